"""Which items may be recommended: `allow`, `exclude` and `where`, for everybody or for each user."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.answers.people import People, UnknownIds, find_ids, rows_of_pairs
from mrfrec.answers.question import ItemFilter, Question
from mrfrec.answers.rules import Rules
from mrfrec.answers.where import Where, mask_of, unknown_values
from mrfrec.checks import counted, warn
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Id, Ids, as_list
from mrfrec.errors import ParameterError
from mrfrec.fitted.scorers import items_of


class UnaskedUsers(UnknownIds):
    """The users of `allow` or `exclude` who are not asked about."""

    def warn(self) -> None:
        """Warn of how many there are."""
        count, first = f"{len(self.ids):,} of {self.total:,}", f"the first is {self.ids[0]!r}"
        warn(f"{count} {self.parameter} are not among those asked for; ignored ({first}).")


@dataclass(frozen=True)
class Filters:
    """The items that people must not get, the only ones that some people may get, and the rules of lists."""

    hidden: npt.NDArray[np.bool_] | None = None  # from everybody, for each item
    excluded: Rows | None = None  # for each person
    allowed: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)  # by row; others may get any item
    rules: Rules = field(default_factory=Rules)
    unknown: tuple[UnknownIds, ...] = ()
    left: str = ""  # how many items `where` leaves for everybody, in words

    @classmethod
    def of(cls, people: People, catalogue: Catalogue, question: Question) -> "Filters":
        """Look up what `allow`, `exclude` and `where` say: for everybody, or in a mapping from users.

        In a mapping, None stands for everybody.
        """
        filters = cls._of_ids(people, catalogue.items, question.allow, question.exclude)
        return filters._where(people, catalogue, question.where)

    @classmethod
    def _of_ids(cls, people: People, items: Ids, allow: ItemFilter, exclude: ItemFilter) -> "Filters":
        if allow is None and exclude is None:
            return cls()
        read: dict[str, Any] = {}  # fields of the result
        unknown: tuple[UnknownIds, ...] = ()
        for name, wanted in (("allow", allow), ("exclude", exclude)):
            by_user = wanted if isinstance(wanted, Mapping) else {None: wanted}
            owners, ids, others = _pairs_of_users(by_user, people.names, name)
            for_all = by_user.get(None)
            common = [] if for_all is None else as_list(for_all, "item", name)
            places, missing = find_ids([*ids, *common], items, "item", name)
            if isinstance(wanted, Mapping):
                rows = rows_of_pairs(owners, places[: len(ids)], np.ones(len(ids)), len(people), items)
                if name == "exclude":
                    read["excluded"] = rows
                else:
                    limited = (row for row, user in enumerate(people.names) if user in wanted)
                    read["allowed"] = {row: np.unique(items_of(rows, row)) for row in limited}
            if for_all is not None:
                hidden = read.setdefault("hidden", np.full(len(items), name == "allow"))
                places = places[len(ids) :]
                hidden[places[places >= 0]] = name == "exclude"
            unknown += others + missing
        return cls(**read, unknown=unknown)

    def _where(self, people: People, catalogue: Catalogue, where: Where) -> "Filters":
        """Return these filters, and items for which `where` does not hold left out."""
        if where is None:
            return self
        if not isinstance(where, Mapping) or None not in where:  # not by user
            where = {None: where}
        hidden, left, allowed = self.hidden, "", dict(self.allowed)
        if (kept := mask_of(where[None], catalogue)) is not None:
            left = f" where leaves {counted(int(kept.sum()), 'item')}."
            if not kept.any() and catalogue.table is not None:
                left += unknown_values(where[None], catalogue.table)
            hidden = ~kept if hidden is None else hidden | ~kept
        rows, others = _rows_of_users(where, people.names, "where")
        of_condition: dict[str, npt.NDArray[Any]] = {}  # many users may share one
        for user, condition in where.items():
            if user not in rows or condition is None:
                continue
            found = of_condition.get(text := repr(condition))
            if found is None:
                mask = mask_of(condition, catalogue)
                assert mask is not None
                found = of_condition[text] = np.flatnonzero(mask)
            for row in rows[user]:
                both = allowed.get(row)
                allowed[row] = found if both is None else np.intersect1d(both, found, assume_unique=True)
        return replace(self, hidden=hidden, allowed=allowed, unknown=self.unknown + others, left=left)

    def hide(self, start: int, histories: Rows, exclude_seen: bool) -> Rows | None:
        """Return the items hidden from each person of a batch, which begins at the row `start`."""
        seen = histories if exclude_seen else None
        if self.excluded is None:
            return seen
        excluded = self.excluded.span(start, start + len(histories))
        if seen is None:
            return excluded
        pairs = [
            (np.repeat(np.arange(len(rows)), np.diff(rows.ptr)), rows.items) for rows in (seen, excluded)
        ]
        owners, items = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        order = np.argsort(owners, kind="stable")
        return Rows(seen.ptr + excluded.ptr, items[order], np.ones(len(items), np.float32), seen.width)

    def allow(self, start: int, count: int) -> dict[int, npt.NDArray[Any]]:
        """Return the only items that some people of a batch may get, by their row in the batch."""
        rows = range(start, start + count) if self.allowed else ()
        return {row - start: self.allowed[row] for row in rows if row in self.allowed}


def _rows_of_users(
    by_user: Mapping[Any, Any], names: Ids, parameter: str
) -> tuple[dict[Id, list[int]], tuple[UnknownIds, ...]]:
    """Return the rows of the users who are asked about, and those who are not."""
    rows: dict[Id, list[int]] = {}
    users = [user for user in by_user if user is not None]
    for user in users:
        if not isinstance(user, str if names.is_text else int | np.integer):
            raise ParameterError(
                parameter,
                f"a mapping whose keys are user ids, which are {'strings' if names.is_text else 'integers'}",
                user,
                "Rows of a list of histories are numbered from 0. For everybody, give a list of item ids.",
            )
    for row, name in enumerate(names if users else ()):
        if name in by_user:
            rows.setdefault(name, []).append(row)
    others = [user for user in users if user not in rows]
    return rows, (UnaskedUsers(f"users of {parameter}", others, len(users)),) if others else ()


def _pairs_of_users(
    by_user: Mapping[Any, Any], names: Ids, parameter: str
) -> tuple[npt.NDArray[Any], list[Id], tuple[UnknownIds, ...]]:
    """Return the rows of people and their item ids, pair by pair, and the users who are not asked about."""
    rows, others = _rows_of_users(by_user, names, parameter)
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
