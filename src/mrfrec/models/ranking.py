"""Rank items by score: the k best of each user, without a users × items matrix.

A `Scorer` says what histories score, `top_k` chooses. Few users are ranked in plain numpy, so that one answer
does not wait for compiled code to load; more users in compiled code on all threads. Both do the same
floating-point operations in the same order: the results are equal to the bit.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import DenseRows, Rows

if TYPE_CHECKING:
    from mrfrec.core.low_rank import LowRank

__all__ = [
    "Base",
    "KnownScores",
    "LowRankScorer",
    "ScaledScorer",
    "Scorer",
    "VectorScorer",
    "WeightScorer",
    "as_array",
    "novelty_factors",
    "score",
    "top_k",
]

Array = npt.NDArray[Any]

_FEW = 16  # users, up to which numpy has answered before compiled code has loaded
# Users whose vectors are multiplied at once: always as many, so that scores do not depend on how many ask.
_BLOCK = 32
_CACHED = 2**18  # scores of a block of users, which then stay in the processor's cache
_HELD = 2**22  # sparse scores of a block of users: 32 MB at most


@dataclass(frozen=True)
class Base:
    """The score each item starts from, and which of two items with equal scores comes first."""

    scores: Array  # −∞ for items that must not be chosen
    order: npt.NDArray[np.int32]  # a permutation: the lower number comes first
    _whole: "Base | None" = None

    @cached_property
    def best_first(self) -> npt.NDArray[np.int32]:
        """The items that may be chosen, by base score and then by order."""
        if self._whole is not None:
            items = self._whole.best_first
            return items[self.scores[items] > -np.inf]
        items = np.empty_like(self.order)
        items[self.order] = np.arange(len(items), dtype=np.int32)
        return items[np.argsort(-self.scores[items], kind="stable")] if self.scores.any() else items

    def without(self, hidden: npt.NDArray[np.bool_]) -> "Base":
        """Return this base with some items never chosen."""
        return Base(np.where(hidden, -np.inf, self.scores).astype(self.scores.dtype), self.order, self)


class Scorer(Protocol):
    """The scores of some users' histories."""

    users_at_once: int  # most users that `scores` is asked for
    uses_blas: bool

    def __len__(self) -> int: ...

    def scores(self, first: int, last: int, base: Array) -> Rows | Array:
        """Return the scores of users first to last, added to `base`.

        Either an array of users × items, which the caller may change; or the scores of those items alone for
        which the history holds evidence, a weight other than 0.
        """
        ...

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Tell for users × k items whether the history holds evidence; asked where `scores` is an array."""
        ...


class WeightScorer:
    """Scores x·B."""

    uses_blas = False

    def __init__(self, histories: Rows, weights: Rows | DenseRows, dtype: npt.DTypeLike) -> None:
        self._histories, self._weights = histories, weights
        weights.verify(np.unique(histories.items) if len(histories.items) <= 10_000 else None)
        self._values = histories.values.astype(dtype, copy=False)
        held = _CACHED if isinstance(weights, DenseRows) else _HELD
        self.users_at_once = max(1, min(held // max(weights.width, 1), 64))

    def __len__(self) -> int:
        return len(self._histories)

    def scores(self, first: int, last: int, base: Array) -> Rows | Array:
        """Return base + x·B."""
        if isinstance(self._weights, DenseRows):
            return self._dense(self._weights.array, first, last, base)
        return self._sparse(self._weights, first, last, base)

    def _dense(self, B: Array, first: int, last: int, base: Array) -> Array:
        out = np.empty((last - first, len(base)), base.dtype)
        if len(self) > _FEW:
            from mrfrec.core.kernels import ranking as kernels

            kernels.score_dense(*self._arrays, first, last, np.asarray(B), base, out)
            return out
        out[:] = base
        for u in range(first, last):
            for j, x in self._history(u):
                out[u - first] += x * B[j]
        return out

    def _sparse(self, B: Rows, first: int, last: int, base: Array) -> Rows:
        if len(self) > _FEW:
            from mrfrec.core.kernels import ranking as kernels

            had = self._histories.items[int(self._histories.ptr[first]) : int(self._histories.ptr[last])]
            most = min(int((B.ptr[had + 1] - B.ptr[had]).sum()), (last - first) * B.width)
            ptr = np.zeros(last - first + 1, np.int64)
            items, scores = np.empty(most, np.int32), np.empty(most, base.dtype)
            kernels.score_sparse(
                *self._arrays, first, last, *_arrays(B, base.dtype), base,
                base.copy(), np.zeros(len(base), bool), ptr, items, scores,
            )  # fmt: skip
            return Rows(ptr, items[: ptr[-1]], scores[: ptr[-1]], B.width)
        found = [self._touched(B, u, base) for u in range(first, last)]
        ptr = np.concatenate([[0], np.cumsum([len(items) for items, _ in found])])
        items, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Rows(ptr, items, scores, B.width)

    def _touched(self, B: Rows, u: int, base: Array) -> tuple[Array, Array]:
        """Score the items that some item of the history has a weight for."""
        parts = [(slice(int(B.ptr[j]), int(B.ptr[j + 1])), x) for j, x in self._history(u) if x != 0]
        if not parts:
            return np.empty(0, np.intp), np.empty(0, base.dtype)
        touched = np.concatenate([B.items[part] for part, _ in parts]).astype(np.intp)  # quicker than int32
        weights = np.concatenate([B.values[part] for part, _ in parts])
        scores = np.empty_like(base)  # only its touched places are ever read
        scores[touched] = base[touched]
        x = np.repeat([x for _, x in parts], [part.stop - part.start for part, _ in parts])
        np.add.at(scores, touched, x * weights)  # one after the other, as compiled code does
        marked = np.zeros(len(base), bool)
        marked[touched[weights != 0]] = True
        touched = np.flatnonzero(marked)
        return touched, scores[touched]

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Look for a weight other than 0 in dense B."""
        assert isinstance(self._weights, DenseRows)
        B, rows = self._weights.array, self._histories
        found = np.zeros(items.shape, bool)
        user, place = np.nonzero(items >= 0)
        at = rows.ptr[first:last][user]
        # One item of each history after the other, until one has a weight: nearly always the first.
        while len(user):
            left = at < rows.ptr[first + 1 : last + 1][user]
            user, place, at = user[left], place[left], at[left]
            hit = (B[rows.items[at], items[user, place]] != 0) & (self._values[at] != 0)
            found[user[hit], place[hit]] = True
            user, place, at = user[~hit], place[~hit], at[~hit] + 1
        return found

    @cached_property
    def _arrays(self) -> tuple[Array, ...]:
        return _arrays(self._histories, self._values.dtype)

    def _history(self, u: int) -> "zip[tuple[int, Any]]":
        span = slice(int(self._histories.ptr[u]), int(self._histories.ptr[u + 1]))
        return zip(self._histories.items[span].tolist(), self._values[span], strict=True)


class LowRankScorer:
    """Scores x·(B + λ·L), of which `low_rank` is the second part."""

    uses_blas = False

    def __init__(self, histories: Rows, weights: WeightScorer, low_rank: "LowRank", threads: int = 1) -> None:
        low_rank.verify()
        low_rank.answers += 1
        self._histories, self._weights, self._low_rank = histories, weights, low_rank
        self._values = histories.values.astype(low_rank.vectors.dtype, copy=False)
        self.users_at_once = min(weights.users_at_once, 16)
        # Compiled code is five times as fast, but takes longer to load than a few answers in numpy.
        self._compiled = len(histories) > _FEW or low_rank.answers > _FEW
        self._threads = threads if len(histories) <= _FEW else 1  # several users have a thread each

    def __len__(self) -> int:
        return len(self._histories)

    def scores(self, first: int, last: int, base: Array) -> Array:
        """Return base + x·B + h·V, without what an item adds to itself."""
        out = as_array(self._weights.scores(first, last, base), base)
        low, rows = self._low_rank, self._histories
        V, left = low.vectors, low.left
        h = np.zeros((last - first, len(V)), base.dtype)
        ptr, items = rows.ptr[first : last + 1], rows.items
        if self._compiled:
            from mrfrec.core.kernels import ranking as kernels

            arrays = _arrays(rows, self._values.dtype)
            kernels.embed(*arrays[:2], self._values, first, last, left, V, h)
            add = partial(kernels.add_low_rank, h, np.asarray(V))
            size = -(-V.shape[1] // self._threads)
            starts = range(0, V.shape[1], size)
            if len(starts) == 1:
                add(0, V.shape[1], out)
            else:
                with ThreadPoolExecutor(len(starts)) as pool:
                    list(pool.map(lambda start: add(start, min(start + size, V.shape[1]), out), starts))
        else:
            for u in range(last - first):
                for t in range(int(ptr[u]), int(ptr[u + 1])):
                    h[u] += self._values[t] * left[items[t]] * V[:, items[t]]
                for f in range(len(V)):
                    out[u] += h[u, f] * V[f]
        span = slice(int(ptr[0]), int(ptr[-1]))
        user = np.repeat(np.arange(last - first), np.diff(ptr))
        out[user, items[span]] -= self._values[span] * low.own[items[span]]
        return out

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Take any history as evidence for every item that has users."""
        known = np.diff(self._histories.ptr)[first:last, None] > 0
        return (items >= 0) & known & (self._low_rank.left[items] > 0)


class ScaledScorer:
    """The scores of another scorer, each item's times a factor."""

    def __init__(self, scorer: Scorer, base: Array, factor: Array) -> None:
        self._scorer, self._base, self._factor = scorer, base, factor.astype(base.dtype)
        self.users_at_once, self.uses_blas = scorer.users_at_once, scorer.uses_blas
        self.has_evidence = scorer.has_evidence

    def __len__(self) -> int:
        return len(self._scorer)

    def scores(self, first: int, last: int, base: Array) -> Rows | Array:
        """Return the scores from the base of the other scorer on; what `base` hides stays hidden."""
        scored, hidden = self._scorer.scores(first, last, self._base), base == -np.inf
        if isinstance(scored, Rows):
            values = np.where(hidden[scored.items], -np.inf, scored.values * self._factor[scored.items])
            return replace(scored, values=values.astype(base.dtype))
        scored *= self._factor
        scored[:, hidden] = -np.inf
        return scored


def novelty_factors(popularity: npt.NDArray[np.int64], novelty: float) -> npt.NDArray[np.float64]:
    """Return (p/p̄)^(−γ) of items with p users each; p̄ = Σp²/Σp is the p of a typical interaction."""
    p = np.maximum(popularity, 1).astype(np.float64)
    return np.asarray((p / (p @ p / p.sum())) ** -novelty)


def as_array(scored: Rows | Array, base: Array) -> Array:
    """Return scores as users × items, those of other items being their base scores."""
    if not isinstance(scored, Rows):
        return scored
    out = np.tile(base, (len(scored), 1))
    out[np.repeat(np.arange(len(scored)), np.diff(scored.ptr)), scored.items] = scored.values
    return out


class VectorScorer:
    """Scores h·Vᵀ, where h is a vector for each user. What is no sum of weights is evidence as a whole."""

    uses_blas = True
    users_at_once = _BLOCK

    def __init__(self, histories: Rows, users: Array, vectors: Array) -> None:
        self._known, self._users, self._vectors = np.diff(histories.ptr) > 0, users, vectors

    def __len__(self) -> int:
        return len(self._users)

    def scores(self, first: int, last: int, base: Array) -> Array:
        """Return base + h·Vᵀ."""
        some = np.zeros((_BLOCK, self._users.shape[1]), base.dtype)
        some[: last - first] = self._users[first:last]
        block = np.matmul(some, self._vectors.T)
        block += base
        return np.asarray(block[: last - first])

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Take any history as evidence for every item."""
        return (items >= 0) & self._known[first:last, None]


class KnownScores:
    """Scores that were computed elsewhere, users × items."""

    uses_blas = False
    users_at_once = 64

    def __init__(self, scores: Array) -> None:
        self._scores = scores

    def __len__(self) -> int:
        return len(self._scores)

    def scores(self, first: int, last: int, base: Array) -> Array:
        """Return base + the scores."""
        return self._scores[first:last] + base

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Take every score as evidence."""
        return items >= 0


# ── all scores, and the best ──────────────────────────────────────────────────────────────────────


def score(scorer: Scorer, base: Array, threads: int) -> Array:
    """Return all scores, users × items."""
    from mrfrec.engines.local import LocalEngine

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
    allowed: Mapping[int, Array] | None = None,
    threads: int,
) -> tuple[npt.NDArray[np.int32], Array, npt.NDArray[np.bool_]]:
    """Return items, scores and whether there is evidence for each: users × k, best first.

    `hidden` are items never chosen for each user, `allowed` the only ones to choose from for some users.
    Places that nothing fills hold item −1 and score −∞.
    """
    n = len(scorer)
    items, best = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, base.scores.dtype)
    evidence = np.zeros((n, k), bool)
    few, allowed = n <= _FEW, allowed or {}
    hide = Rows.empty(n, len(base.scores)) if hidden is None else hidden

    def work(task: tuple[int, int]) -> None:
        first, last = task
        part = slice(first, last)
        scored = scorer.scores(first, last, base.scores)
        if not few:
            _select(scored, first, last, hide, base, items, best, evidence)
        for u in range(first, last):
            if few or u in allowed:
                out = hide.items[int(hide.ptr[u]) : int(hide.ptr[u + 1])]
                chosen = _choose(scored, u - first, k, base, out, allowed.get(u))
                items[u], best[u], evidence[u] = -1, -np.inf, False
                for row, found in zip((items[u], best[u], evidence[u]), chosen, strict=True):
                    row[: len(found)] = found
        if not isinstance(scored, Rows):
            evidence[part] = scorer.has_evidence(first, last, items[part])

    tasks = _tasks(scorer)
    if few and not scorer.uses_blas:
        for task in tasks:
            work(task)
    else:
        from mrfrec.engines.local import LocalEngine

        with LocalEngine(threads, uses_blas=scorer.uses_blas) as workers:
            workers.run(work, tasks)
    return items, best, evidence


def _select(
    scored: Rows | Array, first: int, last: int, hide: Rows, base: Base, items: Array, best: Array,
    evidence: Array,
) -> None:  # fmt: skip
    """Choose for users first to last in compiled code."""
    from mrfrec.core.kernels import ranking as kernels

    part = slice(first, last)
    hide_ptr, hide_items, _ = _arrays(hide, hide.values.dtype)
    hide_ptr = hide_ptr[first : last + 1]
    if isinstance(scored, Rows):
        kernels.select_sparse(
            scored.ptr, scored.items, scored.values, hide_ptr, hide_items, base.scores, base.best_first,
            base.order, np.zeros(len(base.scores), np.uint8), items[part], best[part], evidence[part],
        )  # fmt: skip
    else:
        kernels.select_dense(scored, hide_ptr, hide_items, base.order, items[part], best[part])


def _choose(
    scored: Rows | Array, row: int, k: int, base: Base, hidden: Array, allowed: Array | None
) -> tuple[Array, Array, Array]:
    """Choose for one user in numpy; returns items, scores and, of sparse scores, which are evidence."""
    skip = np.zeros(len(base.scores), bool)
    if allowed is not None:
        skip[:] = True
        skip[allowed] = False
    skip[hidden] = True
    if isinstance(scored, Rows):
        span = slice(int(scored.ptr[row]), int(scored.ptr[row + 1]))
        touched = ~skip[scored.items[span]]
        items, scores = scored.items[span][touched], scored.values[span][touched]
        evidence = len(items)
        # The best of the other items: in order, so that the first k will do.
        skip[items] = True
        pool = base.best_first if allowed is None else allowed
        others = pool if allowed is not None else pool[: k + evidence + len(hidden)]
        others = others[~skip[others]]
        others = others if allowed is not None else others[:k]
        items = np.concatenate([items, others])
        scores = np.concatenate([scores, base.scores[others]])
    else:
        items = np.flatnonzero(~skip) if allowed is not None else np.arange(len(skip))
        scores, evidence = scored[row], 0
        scores[skip] = -np.inf
        scores = scores[items] if allowed is not None else scores
    # Everything that may be among the k best, then these alone in order.
    least = np.partition(scores, -k)[-k] if k < len(scores) else -np.inf
    places = np.flatnonzero((scores >= least) & (scores > -np.inf))
    places = places[np.lexsort((base.order[items[places]], -scores[places]))][:k]
    return items[places], scores[places], places < evidence


def _tasks(scorer: Scorer) -> list[tuple[int, int]]:
    n, size = len(scorer), scorer.users_at_once
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _arrays(rows: Rows, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """As the kernels take them; unsigned indices only change how the integers are read."""
    unsigned = np.uint32 if rows.items.itemsize == 4 else np.uint64
    return (
        np.asarray(rows.ptr),
        np.asarray(rows.items).view(unsigned),
        np.asarray(rows.values).astype(dtype, copy=False),
    )
