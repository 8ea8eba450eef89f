"""Look up what a question says about items: `allow`, `exclude` and `where`, quotas and boosts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.answers.people import People, UnknownIds, find_ids, rows_of_pairs
from mrfrec.answers.question import BOOST_LIMITS, Boost, Question
from mrfrec.answers.ranking import Eligible, Quota, Rules
from mrfrec.answers.where import Where, mask_of, unknown_values
from mrfrec.checks import counted, warn
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Id, Ids, as_list
from mrfrec.data.item_table import ItemTable
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.scorers import ItemBoost, items_of

Array = npt.NDArray[Any]


class UnaskedUsers(UnknownIds):
    """The users of `allow`, `exclude` or `where` who are not asked about."""

    def warn(self) -> None:
        """Warn of how many there are."""
        count, first = f"{len(self.ids):,} of {self.total:,}", f"the first is {self.ids[0]!r}"
        warn(f"{count} {self.parameter} are not among those asked for; ignored ({first}).")


@dataclass(frozen=True)
class Filters:
    """The items that a list may have, by user, and the rules that its items keep together."""

    hidden: npt.NDArray[np.bool_] | None = None  # Boolean per item: nobody may get it.
    excluded: Rows | None = None  # the items that a user must not get, users × items
    allowed: Mapping[int, Array] = field(default_factory=dict)  # the items that one row is limited to
    rules: Rules = field(default_factory=Rules)
    unknown: tuple[UnknownIds, ...] = ()
    left: str = ""  # how many items `where` leaves for everybody, in words

    @classmethod
    def of(cls, people: People, catalogue: Catalogue, question: Question) -> "Filters":
        """Look up the ids, columns and conditions of a question.

        `allow`, `exclude` and `where` hold for everybody, or are mappings from users, in which None stands
        for everybody.
        """
        filters = cls._of_ids(people, catalogue.items, question)._where(people, catalogue, question.where)
        rules, unknown = rules_of(catalogue, question, people.any_type)
        return replace(filters, rules=rules, unknown=(*filters.unknown, *unknown))

    @classmethod
    def _of_ids(cls, people: People, items: Ids, question: Question) -> "Filters":
        read: dict[str, Any] = {}  # fields of the result
        unknown: tuple[UnknownIds, ...] = ()
        for name in ("allow", "exclude"):
            if (wanted := getattr(question, name)) is None:
                continue
            by_user = wanted if isinstance(wanted, Mapping) else {None: wanted}
            owners, ids, others = _pairs_of_users(by_user, people.ids, name)
            for_all = by_user.get(None)
            common = [] if for_all is None else as_list(for_all, "item", name)
            indices, missing = find_ids([*ids, *common], items, "item", name, people.any_type)
            if isinstance(wanted, Mapping):
                ones = np.ones(len(ids))
                rows, _ = rows_of_pairs(owners, indices[: len(ids)], ones, len(people), len(items))
                if name == "exclude":
                    read["excluded"] = rows
                else:
                    limited = (row for row, user in enumerate(people.ids) if user in wanted)
                    read["allowed"] = {row: np.unique(items_of(rows, row)) for row in limited}
            if for_all is not None:
                hidden = read.setdefault("hidden", np.full(len(items), name == "allow"))
                indices = indices[len(ids) :]
                hidden[indices[indices >= 0]] = name == "exclude"
            unknown += others + missing
        return cls(**read, unknown=unknown)

    def _where(self, people: People, catalogue: Catalogue, where: Where) -> "Filters":
        """Return these filters without the items for which `where` does not hold."""
        if where is None:
            return self
        if not isinstance(where, Mapping) or None not in where:
            where = {None: where}
        hidden, left, allowed = self.hidden, "", dict(self.allowed)
        if (kept := mask_of(where[None], catalogue)) is not None:
            left = f" where leaves {counted(int(kept.sum()), 'item')}."
            if not kept.any() and catalogue.table is not None:
                left += unknown_values(where[None], catalogue.table)
            hidden = ~kept if hidden is None else hidden | ~kept
        rows, others = _rows_of_users(where, people.ids, "where")
        of_condition: dict[str, Array] = {}  # Many users may share a condition.
        for user, condition in where.items():
            if user not in rows or condition is None:
                continue
            kept_items = of_condition.get(text := repr(condition))
            if kept_items is None:
                mask = mask_of(condition, catalogue)
                assert mask is not None
                kept_items = of_condition[text] = np.flatnonzero(mask)
            for row in rows[user]:
                both = allowed.get(row)
                allowed[row] = (
                    kept_items if both is None else np.intersect1d(both, kept_items, assume_unique=True)
                )
        return replace(self, hidden=hidden, allowed=allowed, unknown=self.unknown + others, left=left)

    def eligible(self, start: int, histories: Rows, exclude_seen: bool) -> Eligible:
        """Return the items that a batch of users, which begins at the row `start`, may get."""
        rows = range(start, start + len(histories)) if self.allowed else ()
        only = {row - start: self.allowed[row] for row in rows if row in self.allowed}
        seen = histories if exclude_seen else None
        if self.excluded is None:
            return Eligible(seen, self.hidden, only)
        excluded = self.excluded.span(start, start + len(histories))
        if seen is None:
            return Eligible(excluded, self.hidden, only)
        pairs = [
            (np.repeat(np.arange(len(rows)), np.diff(rows.ptr)), rows.items) for rows in (seen, excluded)
        ]
        owners, items = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        order = np.argsort(owners, kind="stable")
        ones = np.ones(len(items), np.float32)
        return Eligible(Rows(seen.ptr + excluded.ptr, items[order], ones, seen.width), self.hidden, only)


def _rows_of_users(
    by_user: Mapping[Any, Any], users: Ids, parameter: str
) -> tuple[dict[Id, list[int]], tuple[UnknownIds, ...]]:
    """Return the rows of the users who are asked about, and the users who are not."""
    rows: dict[Id, list[int]] = {}
    named = [user for user in by_user if user is not None]
    for user in named:
        if not isinstance(user, str if users.is_text else int | np.integer):
            raise ParameterError(
                parameter,
                f"a mapping whose keys are user ids, which are {'strings' if users.is_text else 'integers'}",
                user,
                "Rows of a list of histories are numbered from 0. For everybody, give a list of item ids.",
            )
    for row, user in enumerate(users if named else ()):
        if user in by_user:
            rows.setdefault(user, []).append(row)
    others = [user for user in named if user not in rows]
    return rows, (UnaskedUsers(f"users of {parameter}", others, len(named)),) if others else ()


def _pairs_of_users(
    by_user: Mapping[Any, Any], users: Ids, parameter: str
) -> tuple[npt.NDArray[Any], list[Id], tuple[UnknownIds, ...]]:
    """Return pairs of a row and an item id, and the users who are not asked about."""
    rows, others = _rows_of_users(by_user, users, parameter)
    owners: list[int] = []
    ids: list[Id] = []
    for user, items in by_user.items():
        if user is None:
            continue
        listed = as_list(items, "item", f"{parameter}[{user!r}]")
        for row in rows.get(user, ()):
            owners += [row] * len(listed)
            ids += listed
    return np.array(owners, np.int64), ids, others


def rules_of(
    catalogue: Catalogue, question: Question, any_type: bool = False
) -> tuple[Rules, tuple[UnknownIds, ...]]:
    """Look up the columns and items of quotas and a boost; return the rules, and the unknown items."""
    quotas = tuple(
        Quota(most, *table_of(catalogue, "at_most").groups(column, "at_most")[:2])
        for column, most in (question.at_most or {}).items()
    )
    boost, unknown = boost_of(catalogue, question.boost, any_type)
    return Rules(quotas, boost, question.variety), unknown


def boost_of(
    catalogue: Catalogue, boost: Boost, any_type: bool = False
) -> tuple[ItemBoost | None, tuple[UnknownIds, ...]]:
    """Look up the columns and items of a boost; return its numbers per item, and the unknown items."""
    if not boost:
        return None, ()
    parts: dict[str, Array] = {}
    missing: list[Any] = []
    for way, numbers in boost.items():
        parts[way] = np.full(len(catalogue.items), 1.0 if way == "multiply" else 0.0)
        if isinstance(numbers, str):
            name = f'boost["{way}"]'
            table, (least, most) = table_of(catalogue, name), BOOST_LIMITS[way]
            column, kind = table.column(numbers, name), table.type_of(numbers, name)
            known = column.is_not_null().to_numpy()
            rule = f"a column of numbers from {least:g} to {most:g}"
            if kind != "number" and known.any():
                raise ParameterError(name, rule, numbers, f"It is a {kind}.")
            values = column.cast(pl.Float64).to_numpy() if kind == "number" else parts[way]
            if len(wrong := np.flatnonzero(known & ~((values >= least) & (values <= most)))):
                value, item = column[int(wrong[0])], catalogue.items[int(wrong[0])]
                advice = f"It has {value} for the item {item!r}, which must be such a number, or missing."
                raise ParameterError(name, rule, numbers, advice)
            parts[way][known] = values[known]
        else:
            indices, unknown = find_ids(list(numbers), catalogue.items, "item", "boost", any_type)
            missing += [item for ids in unknown for item in ids.ids]
            parts[way][indices[indices >= 0]] = np.array([*numbers.values()], np.float64)[indices >= 0]
    total = sum(len(numbers) for numbers in boost.values() if not isinstance(numbers, str))
    boosts = ItemBoost(parts.get("add"), parts.get("multiply"))
    return boosts, (UnknownIds("boost", missing, total),) if missing else ()


def table_of(catalogue: Catalogue, parameter: str) -> ItemTable:
    """Return the item table of a model; refuse a parameter that needs one if there is none."""
    if catalogue.table is None:
        advice = "Whoever makes the model gives it one: items=…, --items."
        raise DataError(f"{parameter} needs a table of items, and this model has none. {advice}")
    return catalogue.table
