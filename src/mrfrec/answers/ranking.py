"""Choose the k best items of each user, without a users × items matrix.

A `Scorer` computes the scores of histories, and `top_k` selects, both in compiled code. With rules (quotas, a
boost, variety) the items of a list depend on each other: they are chosen one after the other among
candidates, the best items by score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.answers.question import candidates_of_variety
from mrfrec.core.rows import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.scorers import (
    FEW,
    Base,
    ItemBoost,
    Scorer,
    Selection,
    Ties,
    WeightScorer,
    as_array,
    for_kernels,
    items_of,
    read_only,
)
from mrfrec.fitted.state import FittedState, Runtime

Array = npt.NDArray[Any]
Ranked = tuple[npt.NDArray[np.int32], Array, npt.NDArray[np.bool_]]
"""Items, their scores, and whether the history has evidence for them: users × k, best first."""

_CANDIDATES_PER_K = 4  # with quotas and no variety
_ENTRIES_AT_ONCE = 2**22  # candidates, and hidden items of the users, that are held at once
_DIGITS = 9  # Rounding errors must not decide between equal candidates.


@dataclass(frozen=True)
class Eligible:
    """The items that the users of a batch may get."""

    hidden: Rows | None = None  # the items that a user must not get, users × items
    never: npt.NDArray[np.bool_] | None = None  # Boolean per item: nobody may get it.
    only: Mapping[int, Array] = field(default_factory=dict)  # the items that one row is limited to

    def take(self, rows: npt.NDArray[np.int64]) -> "Eligible":
        """Return the same for some rows."""
        hidden = None if self.hidden is None else self.hidden.take(rows)
        only = {i: self.only[row] for i, row in enumerate(rows.tolist()) if row in self.only}
        return Eligible(hidden, self.never, only)

    def without(self, items: list[Array]) -> "Eligible":
        """Hide further items, given by row."""
        assert self.hidden is not None
        rows = self.hidden
        parts = [part for u, more in enumerate(items) for part in (items_of(rows, u), more)]
        lengths = np.diff(rows.ptr) + [len(more) for more in items]
        flat = np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32)
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        return replace(self, hidden=Rows(ptr, flat, np.ones(len(flat), np.float32), rows.width))


ALL = Eligible()


# ── by score ──────────────────────────────────────────────────────────────────────────────────────


def rank(
    fitted: FittedState,
    runtime: Runtime,
    histories: Rows,
    k: int,
    eligible: Eligible = ALL,
    *,
    ties: Ties = "popularity",
    more_novelty: float = 0.0,
    boost: ItemBoost | None = None,
) -> Ranked:
    """Return the k best items of each user by score.

    `more_novelty` is added to the novelty of the fit. `boost` changes the scores before the selection.
    """
    empty = histories.ptr[1:] == histories.ptr[:-1]
    unknown_user = bool(empty.any())
    if unknown_user and not empty.all():
        shape = len(histories), k
        out = np.empty(shape, np.int32), np.empty(shape, fitted.score_type), np.empty(shape, bool)
        for rows in (np.flatnonzero(~empty), np.flatnonzero(empty)):
            parts = rank(
                fitted, runtime, histories.take(rows), k, eligible.take(rows),
                ties=ties, more_novelty=more_novelty, boost=boost,
            )  # fmt: skip
            for whole, part in zip(out, parts, strict=True):
                whole[rows] = part
        return out
    base = fitted.base(unknown_user=unknown_user, more_novelty=more_novelty, ties=ties)
    base = base if boost is None else base.boosted(boost)
    base = base if eligible.never is None else base.without(eligible.never)
    scorer: Scorer
    if unknown_user:  # An empty history adds nothing to the base scores.
        scorer = WeightScorer(histories, Rows.empty(histories.width, histories.width), base.start.dtype)
    else:
        scorer = fitted.learned.scorer(histories, runtime)
    return top_k(scorer, k, base, hidden=eligible.hidden, only=eligible.only, runtime=runtime)


def score(scorer: Scorer, base: Array, threads: int) -> Array:
    """Return all scores, users × items."""
    out = np.empty((len(scorer), len(base)), base.dtype)

    def work(task: tuple[int, int]) -> None:
        out[slice(*task)] = as_array(scorer.scores(*task, base), base)

    with LocalEngine(threads, uses_blas=scorer.uses_blas) as workers:
        workers.run(work, _tasks(scorer))
    return out


def top_k(
    scorer: Scorer,
    k: int,
    base: Base,
    *,
    hidden: Rows | None = None,
    only: Mapping[int, Array] | None = None,
    runtime: Runtime,
) -> Ranked:
    """Return the k best items of each user; item −1 with score −∞ where fewer are left."""
    n = len(scorer)
    items = np.full((n, k), -1, np.int32)
    best = np.full((n, k), -np.inf, base.start.dtype)
    evidence = np.zeros((n, k), bool)
    only = only or {}
    hidden = Rows.empty(n, len(base.start)) if hidden is None else hidden
    selection = None if only else Selection(k, hidden, base.factor)
    if scorer.ranker is not None and not only:
        values = scorer.histories.values.astype(best.dtype, copy=False)
        ranked = scorer.ranker.top_k(scorer.histories, values, k, base.start, base.order, hidden, base.factor)
        return *ranked, scorer.has_evidence(0, n, ranked[0])

    def work(task: tuple[int, int]) -> None:
        first, last = task
        part = slice(first, last)
        scored = scorer.scores(first, last, base.start, selection)
        if base.factor is not None:
            if isinstance(scored, Rows):
                scored = replace(scored, values=scored.values * base.factor[scored.items])
            else:
                scored *= base.factor
        if only:
            scored = as_array(scored, base.scores)
            for u in only.keys() & range(first, last):
                is_out = np.ones(len(base.scores), bool)
                is_out[only[u]] = False
                scored[u - first, is_out] = -np.inf
        _select(scored, first, last, hidden, base, items, best, evidence)
        if not isinstance(scored, Rows):
            evidence[part] = scorer.has_evidence(first, last, items[part])

    tasks = _tasks(scorer)
    if n <= FEW and not scorer.uses_blas:  # A thread would cost more than the work.
        for task in tasks:
            work(task)
    else:
        with LocalEngine(runtime.threads, uses_blas=scorer.uses_blas) as workers:
            workers.run(work, tasks)
    return items, best, evidence


def _select(
    scored: Rows | Array, first: int, last: int, hidden: Rows, base: Base, items: Array, best: Array,
    evidence: Array,
) -> None:  # fmt: skip
    """Select the items of users first to last."""
    from mrfrec.core.kernels import ranking as kernels

    part = slice(first, last)
    hidden_ptr, hidden_items, _ = for_kernels(hidden, hidden.values.dtype)
    hidden_ptr = hidden_ptr[first : last + 1]
    if isinstance(scored, Rows):
        kernels.select_sparse(
            scored.ptr, scored.items, scored.values, hidden_ptr, hidden_items, read_only(base.scores),
            read_only(base.best_first), read_only(base.order),
            np.zeros(len(base.scores), np.uint8), items[part], best[part], evidence[part],
        )  # fmt: skip
    else:
        kernels.select_dense(scored, hidden_ptr, hidden_items, read_only(base.order), items[part], best[part])


def _tasks(scorer: Scorer) -> list[tuple[int, int]]:
    """Return the first and last user of the blocks that are scored at once."""
    n, size = len(scorer), scorer.users_at_once
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def nearest(fitted: FittedState, item: int, k: int) -> tuple[Array, Array]:
    """Return the k items that go with an item most strongly, by index, and their strengths; best first."""
    items, strengths = fitted.learned.neighbors(item, fitted.catalogue)
    least = np.partition(strengths, -k)[-k] if len(items) > k else -np.inf
    keep = (strengths > 0) & (strengths >= least)
    items, strengths = items[keep], strengths[keep]
    order = np.lexsort((fitted.catalogue.popularity_rank[items], -strengths))[:k]
    return items[order], strengths[order].astype(fitted.score_type)


# ── by rules ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Quota:
    """A list has at most `most` items of a group; item i is in `groups[ptr[i]:ptr[i + 1]]`."""

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
    """The quotas, the boost and the variety of a list."""

    quotas: tuple[Quota, ...] = ()
    boost: ItemBoost | None = None
    variety: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.quotas or self.boost or self.variety)

    def candidates(self, k: int) -> int:
        """Return the number of candidates to begin with."""
        if self.variety:
            return candidates_of_variety(k)
        return _CANDIDATES_PER_K * k if self.quotas else k

    @cached_property
    def closed(self) -> npt.NDArray[np.bool_] | None:
        """Boolean per item: a quota of 0 rules it out. None without such a quota."""
        closed = [quota.ptr[1:] > quota.ptr[:-1] for quota in self.quotas if quota.most == 0]
        return np.logical_or.reduce(closed) if closed else None


class _List:
    """The items chosen for one user so far, and how many of them are in each group."""

    def __init__(self, quotas: tuple[Quota, ...]) -> None:
        self._quotas = quotas
        self._counts: list[dict[int, int]] = [{} for _ in quotas]
        self.items: list[int] = []

    def take(self, item: int) -> bool:
        """Add an item unless one of its groups has reached its quota; return whether it was added."""
        groups = [quota.of(item) for quota in self._quotas]
        for quota, counts, some in zip(self._quotas, self._counts, groups, strict=True):
            if any(counts.get(group, 0) >= quota.most for group in some):
                return False
        for counts, some in zip(self._counts, groups, strict=True):
            counts.update({group: counts.get(group, 0) + 1 for group in some})
        self.items.append(item)
        return True

    def closed(self) -> npt.NDArray[np.int64]:
        """Return the items that can no longer be added: the list's own and the full groups'; some twice."""
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
    eligible: Eligible,
    more_novelty: float,
) -> Ranked:
    """Return lists of k items that keep the rules.

    The first candidates are few. Users whose quotas leave out too many of them get four times as many.
    """
    n, m = len(histories), histories.width
    never = eligible.never
    if rules.closed is not None:
        never = rules.closed if never is None else never | rules.closed
    hidden = Rows.empty(n, m) if eligible.hidden is None else eligible.hidden
    eligible = Eligible(hidden, never, eligible.only)
    items = np.full((n, k), -1, np.int32)
    best = np.full((n, k), -np.inf, fitted.score_type)
    evidence = np.zeros((n, k), bool)
    lists = [_List(rules.quotas) for _ in range(n)]
    left, size, is_first = np.arange(n), min(rules.candidates(k), m), True
    while len(left):
        unfinished: list[int] = []
        at_once = max(_ENTRIES_AT_ONCE // (size if is_first else m), 1)
        for first in range(0, len(left), at_once):
            rows = left[first : first + at_once]
            may_get = eligible.take(rows)
            if not is_first:
                may_get = may_get.without([lists[row].closed() for row in rows.tolist()])
            pools = _rank_boosted(
                fitted, runtime, histories.take(rows), size, may_get, rules.boost, more_novelty
            )
            for row, *pool in zip(rows.tolist(), *pools, strict=True):
                chosen, count = lists[row], int(np.count_nonzero(pool[0] >= 0))
                start, candidates = len(chosen.items), pool[0][:count]
                if rules.variety and is_first:
                    directions = fitted.learned.directions(candidates.astype(np.int64))
                    indices = _choose_varied(
                        chosen, k, candidates, pool[1][:count], directions, rules.variety
                    )
                else:
                    indices = _choose(chosen, k, candidates.tolist())
                for whole, part in zip((items, best, evidence), pool, strict=True):
                    whole[row, start : start + len(indices)] = part[indices]
                if len(chosen.items) < k and count == size < m:
                    unfinished.append(row)
        left, size, is_first = np.array(unfinished, np.int64), min(max(4 * size, k), m), False
    return items, best, evidence


def _choose(chosen: _List, k: int, candidates: list[int]) -> list[int]:
    """Add candidates in their order until the list has k items; return their indices."""
    indices = []
    for index, item in enumerate(candidates):
        if len(chosen.items) == k:
            break
        if chosen.take(item):
            indices.append(index)
    return indices


def _choose_varied(
    chosen: _List, k: int, candidates: Array, scores: Array, directions: npt.NDArray[np.float64],
    variety: float,
) -> list[int]:  # fmt: skip
    """Add up to k candidates to the list, and return their indices.

    The next candidate has the largest (1 − v)·r − v·max L, where r is its score, scaled to [0, 1] over all
    candidates, and max L its likeness to the most similar item of the list. The first of equal ones is taken.
    """
    r = scores.astype(np.float64)
    r -= r.min(initial=np.inf)
    r *= (1 - variety) / (r.max(initial=0.0) or 1.0)
    likeness = np.zeros(len(r))
    indices: list[int] = []
    for _ in range(len(r)):
        index = int((r - variety * likeness).round(_DIGITS).argmax())
        r[index] = -np.inf
        if chosen.take(int(candidates[index])):
            indices.append(index)
            if len(chosen.items) == k:
                break
            # BLAS would round by the number of threads.
            np.maximum(likeness, np.einsum("ij,j->i", directions, directions[index]), out=likeness)
    return indices


def _rank_boosted(
    fitted: FittedState, runtime: Runtime, histories: Rows, size: int, eligible: Eligible,
    boost: ItemBoost | None, more_novelty: float,
) -> Ranked:  # fmt: skip
    """Rank by boosted scores; a factor divides scores below 0.

    A boost keeps the sign of a score: scores of 0 and more come first, ranked by their products, and then
    the scores below 0, ranked by their quotients.
    """
    ranked = rank(fitted, runtime, histories, size, eligible, more_novelty=more_novelty, boost=boost)
    if boost is None or boost.multiply is None:
        return ranked
    items, scores, _ = ranked
    low = np.flatnonzero(((items >= 0) & (scores < 0)).any(axis=1))
    if not len(low):
        return ranked
    high = [items[row][scores[row] >= 0] for row in low]
    below = rank(
        fitted, runtime, histories.take(low), size, eligible.take(low).without(high),
        more_novelty=more_novelty, boost=ItemBoost(boost.add, 1 / boost.multiply),
    )  # fmt: skip
    for row, some, *parts in zip(low.tolist(), high, *below, strict=True):
        for whole, part in zip(ranked, parts, strict=True):
            whole[row, len(some) :] = part[: size - len(some)]
    return ranked
