"""The rules of a shop: quotas of groups, boosts, and variety. Items are chosen one after the other.

The candidates are the best items by score, which `selection.rank` finds as without rules. They are few at
first, and more for those users whose quotas leave out so many that k are not found among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.answers.people import UnknownIds, find_ids
from mrfrec.answers.question import BOOST_LIMITS, Boost, Question, candidates_of_variety
from mrfrec.answers.selection import Ranked, rank
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.item_table import ItemTable
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.scorers import Lift, items_of
from mrfrec.fitted.state import FittedState, Runtime

Array = npt.NDArray[Any]

_CANDIDATES_PER_K = 4  # with quotas and no variety
_PLACES_AT_ONCE = 2**22  # candidates, and items hidden from users, that are held at once
_DIGITS = 9  # of the worth of a candidate: rounding must not decide between equal ones


@dataclass(frozen=True)
class Quota:
    """At most so many items of each group in one list; item i is in `groups[ptr[i]:ptr[i + 1]]`."""

    most: int
    ptr: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int32]

    @cached_property
    def owners(self) -> npt.NDArray[np.int64]:
        """The item of each entry of `groups`."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    def of(self, item: int) -> set[int]:
        return {*self.groups[self.ptr[item] : self.ptr[item + 1]].tolist()}


@dataclass(frozen=True)
class Rules:
    """How the items of a list depend on each other, and what is added to their scores."""

    quotas: tuple[Quota, ...] = ()
    lift: Lift | None = None
    variety: float = 0.0

    @classmethod
    def of(cls, catalogue: Catalogue, question: Question) -> "tuple[Rules, tuple[UnknownIds, ...]]":
        """Look up the columns and items of a question; return its rules and the items that are unknown."""
        quotas = tuple(
            Quota(most, *_table(catalogue, "at_most").groups(column, "at_most")[:2])
            for column, most in (question.at_most or {}).items()
        )
        lift, unknown = lift_of(catalogue, question.boost)
        return cls(quotas, lift, question.variety), unknown

    def __bool__(self) -> bool:
        return bool(self.quotas or self.lift or self.variety)

    def candidates(self, k: int) -> int:
        """Return the number of candidates to begin with."""
        if self.variety:
            return candidates_of_variety(k)
        return _CANDIDATES_PER_K * k if self.quotas else k

    @cached_property
    def closed(self) -> npt.NDArray[np.bool_] | None:
        """The items that quotas of 0 rule out; None without such a quota."""
        empty = [quota.ptr[1:] > quota.ptr[:-1] for quota in self.quotas if quota.most == 0]
        return np.logical_or.reduce(empty) if empty else None


def lift_of(catalogue: Catalogue, boost: Boost) -> tuple[Lift | None, tuple[UnknownIds, ...]]:
    """Look up the columns and items of a boost; return it for all items, and the items that are unknown."""
    if not boost:
        return None, ()
    parts: dict[str, Array] = {}
    missing: list[Any] = []
    for way, numbers in boost.items():
        parts[way] = np.full(len(catalogue.items), 1.0 if way == "multiply" else 0.0)
        if isinstance(numbers, str):
            name = f'boost["{way}"]'
            table, (least, most) = _table(catalogue, name), BOOST_LIMITS[way]
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
            places, unknown = find_ids(list(numbers), catalogue.items, "item", "boost")
            missing += [item for each in unknown for item in each.ids]
            parts[way][places[places >= 0]] = np.array([*numbers.values()], np.float64)[places >= 0]
    total = sum(len(numbers) for numbers in boost.values() if not isinstance(numbers, str))
    lift = Lift(parts.get("add"), parts.get("multiply"))
    return lift, (UnknownIds("boost", missing, total),) if missing else ()


def _table(catalogue: Catalogue, parameter: str) -> ItemTable:
    if catalogue.table is None:
        advice = "Whoever makes the model gives it one: items=…, --items."
        raise DataError(f"{parameter} needs a table of items, and this model has none. {advice}")
    return catalogue.table


def lifted(lift: Lift, items: Array, scores: Array) -> npt.NDArray[np.float64]:
    """Return the scores of items with a boost: their sums with the addend, times the factor.

    A sum below 0 is divided by the factor: one above 1 lifts it as well.
    """
    sums = scores + (0.0 if lift.addend is None else lift.addend[items])
    if lift.factor is None:
        return np.asarray(sums)
    return np.where(sums < 0, sums / lift.factor[items], sums * lift.factor[items])


def boosts(lift: Lift, items: Array, scores: Array) -> npt.NDArray[np.float64]:
    """Return what a boost has added to each of these scores; 0 for the item −1, where there was none left."""
    scores = np.where(items >= 0, scores, 0)
    sums = scores.astype(np.float64)
    if lift.factor is not None:
        sums = np.where(sums < 0, sums * lift.factor[items], sums / lift.factor[items])
    return scores - (sums if lift.addend is None else sums - lift.addend[items])


class _List:
    """The items chosen for one user so far, and how many of each group they are."""

    def __init__(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas
        self._counts: list[dict[int, int]] = [{} for _ in quotas]
        self.items: list[int] = []

    def take(self, item: int) -> bool:
        """Add an item if no group of it has reached its quota; return whether it was added."""
        groups = [quota.of(item) for quota in self._quotas]
        for quota, counts, some in zip(self._quotas, self._counts, groups, strict=True):
            if any(counts.get(group, 0) >= quota.most for group in some):
                return False
        for counts, some in zip(self._counts, groups, strict=True):
            counts.update({group: counts.get(group, 0) + 1 for group in some})
        self.items.append(item)
        return True

    def closed(self) -> npt.NDArray[np.int64]:
        """Return the items that can no longer be chosen: those of the list and of full groups, some twice."""
        parts = [np.array(self.items, np.int64)]
        for quota, counts in zip(self._quotas, self._counts, strict=True):
            full = [group for group, count in counts.items() if count >= quota.most]
            parts.append(quota.owners[np.isin(quota.groups, full)])
        return np.concatenate(parts)


def rank_by_rules(
    fitted: FittedState,
    runtime: Runtime,
    histories: Rows,
    k: int,
    rules: Rules,
    *,
    hide: Rows | None,
    never: npt.NDArray[np.bool_] | None,
    allowed: Mapping[int, Array],
    more_novelty: float,
) -> Ranked:
    """Return what `selection.rank` does, for lists that keep the rules."""
    n, m = len(histories), histories.width
    hide = Rows.empty(n, m) if hide is None else hide
    if rules.closed is not None:
        never = rules.closed if never is None else never | rules.closed
    items = np.full((n, k), -1, np.int32)
    best = np.full((n, k), -np.inf, fitted.score_type)
    evidence = np.zeros((n, k), bool)
    lists = [_List(rules.quotas) for _ in range(n)]
    left, size, is_first = np.arange(n), min(rules.candidates(k), m), True
    while len(left):
        unfinished: list[int] = []
        at_once = max(_PLACES_AT_ONCE // (size if is_first else m), 1)
        for first in range(0, len(left), at_once):
            rows = left[first : first + at_once]
            hidden = hide.take(rows)
            if not is_first:
                hidden = joined(hidden, [lists[row].closed() for row in rows.tolist()])
            some = {i: allowed[row] for i, row in enumerate(rows.tolist()) if row in allowed}
            pools = _lifted_ranks(
                fitted, runtime, histories.take(rows), size, rules.lift, hidden, some, never=never,
                more_novelty=more_novelty,
            )  # fmt: skip
            for row, *pool in zip(rows.tolist(), *pools, strict=True):
                chosen, there = lists[row], int(np.count_nonzero(pool[0] >= 0))
                start, candidates = len(chosen.items), pool[0][:there]
                if rules.variety and is_first:
                    directions = fitted.learned.directions(candidates.astype(np.int64))
                    places = _varied(chosen, k, candidates, pool[1][:there], directions, rules.variety)
                else:
                    places = _best(chosen, k, candidates.tolist())
                for whole, part in zip((items, best, evidence), pool, strict=True):
                    whole[row, start : start + len(places)] = part[places]
                if len(chosen.items) < k and there == size < m:
                    unfinished.append(row)
        left, size, is_first = np.array(unfinished, np.int64), min(max(4 * size, k), m), False
    return items, best, evidence


def _best(chosen: _List, k: int, items: list[int]) -> list[int]:
    """Choose candidates in their order until there are k, and return their places."""
    places = []
    for place, item in enumerate(items):
        if len(chosen.items) == k:
            break
        if chosen.take(item):
            places.append(place)
    return places


def _varied(
    chosen: _List, k: int, items: Array, scores: Array, directions: npt.NDArray[np.float64], variety: float
) -> list[int]:
    """Choose up to k candidates, and return their places.

    The next one has the largest (1 − v)·r − v·max L, where r is its score, scaled to [0, 1] over all
    candidates, and max L is its likeness to the most similar item already chosen. Of equal ones it is the
    first candidate.
    """
    r = scores.astype(np.float64)
    r -= r.min(initial=np.inf)
    r *= (1 - variety) / (r.max(initial=0.0) or 1.0)
    nearest = np.zeros(len(r))
    places: list[int] = []
    for _ in range(len(r)):
        place = int((r - variety * nearest).round(_DIGITS).argmax())
        r[place] = -np.inf
        if chosen.take(int(items[place])):
            places.append(place)
            if len(chosen.items) == k:
                break
            # Without BLAS, whose rounding depends on the number of threads.
            np.maximum(nearest, np.einsum("ij,j->i", directions, directions[place]), out=nearest)
    return places


def _lifted_ranks(
    fitted: FittedState, runtime: Runtime, histories: Rows, size: int, lift: Lift | None, hide: Rows,
    allowed: Mapping[int, Array], **which: Any,
) -> Ranked:  # fmt: skip
    """Rank as `selection.rank` does, where the factor of a boost divides scores below 0.

    Scores keep their sign: those of 0 and more come first, and their products rank them.
    """
    ranked = rank(fitted, runtime, histories, size, hide=hide, allowed=allowed, lift=lift, **which)
    if lift is None or lift.factor is None:
        return ranked
    items, scores, _ = ranked
    low = np.flatnonzero(((items >= 0) & (scores < 0)).any(axis=1))
    if not len(low):
        return ranked
    high = [items[row][scores[row] >= 0] for row in low]
    below = rank(
        fitted, runtime, histories.take(low), size, hide=joined(hide.take(low), high),
        allowed={i: allowed[row] for i, row in enumerate(low.tolist()) if row in allowed},
        lift=Lift(lift.addend, 1 / lift.factor), **which,
    )  # fmt: skip
    for row, some, *parts in zip(low.tolist(), high, *below, strict=True):
        for whole, part in zip(ranked, parts, strict=True):
            whole[row, len(some) :] = part[: size - len(some)]
    return ranked


def joined(rows: Rows, more: list[Array]) -> Rows:
    """Return rows with further items each."""
    parts = [part for i, others in enumerate(more) for part in (items_of(rows, i), others)]
    lengths = np.diff(rows.ptr) + [len(others) for others in more]
    items = np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32)
    return Rows(np.concatenate([[0], np.cumsum(lengths)]), items, np.ones(len(items), np.float32), rows.width)
