"""Score histories by weights, or by weights and a low-rank part.

Compiled code scores one user and many users with the same order of floating-point operations: the scores of a
user do not depend on who else is asked about.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.core.low_rank import LowRank
from mrfrec.core.rows import DenseRows, Rows

if TYPE_CHECKING:
    from mrfrec.engines.gpu.ranking import DeviceRanker

Array = npt.NDArray[Any]
Ties = Literal["index", "popularity"]

FEW = 16  # Up to so many users are answered one after the other, without threads.
_CACHED_SCORES = 2**18  # scores of a block of users that stay in the cache of the processor
_SPARSE_SCORES = 2**22  # sparse scores of a block of users: 32 MB at most
_MULTIPLIED_SCORES = 2**23  # scores of a block of users whose vectors are multiplied: 32 MB
_TRIED_PER_K = 8  # Whole scores of 8·k items come first; they bound the scores that can be selected.
_UNDERFLOW = 1e-38  # A sum loses less than this below the smallest float32.


@dataclass(frozen=True)
class Selection:
    """The scores that matter: the k largest of a user, without the hidden items."""

    k: int
    hidden: Rows
    factor: Array | None = None  # number per item, which will multiply its scores

    def factors(self, scores: Array) -> Array:
        """Return the factors of the items in the type of the scores."""
        return read_only(np.ones(scores.shape[-1], scores.dtype) if self.factor is None else self.factor)


class ItemBoost(NamedTuple):
    """What a question adds to the score of each item, and what it then multiplies the sum by."""

    add: Array | None = None
    multiply: Array | None = None  # above 0

    def boosted(self, items: Array, scores: Array) -> npt.NDArray[np.float64]:
        """Return scores with the boost. A sum below 0 is divided, so that a factor above 1 lifts it too."""
        sums = scores + (0.0 if self.add is None else self.add[items])
        if self.multiply is None:
            return np.asarray(sums)
        return np.where(sums < 0, sums / self.multiply[items], sums * self.multiply[items])

    def part_of(self, items: Array, scores: Array) -> npt.NDArray[np.float64]:
        """Return what the boost has added to boosted scores; 0 for item −1, where the list is too short."""
        scores = np.where(items >= 0, scores, 0)
        sums = scores.astype(np.float64)
        if self.multiply is not None:
            sums = np.where(sums < 0, sums * self.multiply[items], sums / self.multiply[items])
        return scores - (sums if self.add is None else sums - self.add[items])


@dataclass(frozen=True)
class Base:
    """The scores that items start from, and the order of items with equal scores."""

    start: Array  # scores to which weights are added; −∞ for items that must not be chosen
    order: npt.NDArray[np.int32]  # a permutation of the items; of equal scores the lower number comes first
    factor: Array | None = None  # number per item, which multiplies its scores
    _whole: "Base | None" = None

    @cached_property
    def scores(self) -> Array:
        """The scores of items that the history adds nothing to."""
        return self.start if self.factor is None else self.start * self.factor

    @cached_property
    def best_first(self) -> npt.NDArray[np.int32]:
        """The items that may be chosen, by base score and then by `order`."""
        if self._whole is not None:
            items = self._whole.best_first
            return items[self.scores[items] > -np.inf]
        items = np.empty_like(self.order)
        items[self.order] = np.arange(len(items), dtype=np.int32)
        return items[np.argsort(-self.scores[items], kind="stable")] if self.scores.any() else items

    def without(self, hidden: npt.NDArray[np.bool_]) -> "Base":
        """Return this base without some items."""
        start = np.where(hidden, -np.inf, self.start).astype(self.start.dtype)
        return Base(start, self.order, self.factor, self)

    def boosted(self, boost: ItemBoost) -> "Base":
        """Return this base with a boost. All scores are multiplied; see `rank` for those below 0."""
        start, factor, kind = self.start, self.factor, self.start.dtype
        if boost.add is not None:
            # The factor that is there multiplies the whole sum, but not what a boost adds.
            start = (start + (boost.add if factor is None else boost.add / factor)).astype(kind)
        if boost.multiply is not None:
            factor = (boost.multiply if factor is None else factor * boost.multiply).astype(kind)
        return Base(start, self.order, factor)


class Scorer(ABC):
    """The scores of some users' histories."""

    users_at_once: int  # largest number of users in a call of `scores`
    uses_blas = False
    ranker: "DeviceRanker | None" = None  # a device that holds the weights, and ranks by them

    def __init__(self, histories: Rows) -> None:
        self.histories = histories

    def __len__(self) -> int:
        return len(self.histories)

    @abstractmethod
    def scores(self, first: int, last: int, base: Array, selection: Selection | None = None) -> Rows | Array:
        """Return the scores of users first to last, added to `base`.

        The result is an array of users × items, which the caller may change; or sparse rows with the items
        that the history has evidence for, a weight other than 0. In an array, −∞ may stand for scores that
        will not be selected.
        """

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return for users × k items whether the history has evidence. Called where `scores` is an array.

        By default any history is evidence for every item.
        """
        ptr = self.histories.ptr[first : last + 1]
        return (items >= 0) & (np.diff(ptr) > 0)[:, None]


class WeightScorer(Scorer):
    """Scores x·B."""

    def __init__(self, histories: Rows, weights: Rows | DenseRows, dtype: npt.DTypeLike) -> None:
        super().__init__(histories)
        self._weights = weights
        if weights.check is not None:
            weights.verify(np.unique(histories.items) if len(histories.items) <= 10_000 else None)
        self._values = histories.values.astype(dtype, copy=False)
        held = _CACHED_SCORES if isinstance(weights, DenseRows) else _SPARSE_SCORES
        self.users_at_once = max(1, min(held // max(weights.width, 1), 64))

    def scores(self, first: int, last: int, base: Array, selection: Selection | None = None) -> Rows | Array:
        """Return base + x·B."""
        if isinstance(self._weights, DenseRows):
            return self._dense(self._weights.array, first, last, base)
        return self._sparse(self._weights, first, last, base)

    def _dense(self, B: Array, first: int, last: int, base: Array) -> Array:
        from mrfrec.core.kernels import ranking as kernels

        out = np.empty((last - first, len(base)), base.dtype)
        kernels.score_dense(*self._arrays, first, last, read_only(B), read_only(base), out)
        return out

    def _sparse(self, B: Rows, first: int, last: int, base: Array) -> Rows:
        from mrfrec.core.kernels import ranking as kernels

        had = self.histories.items[int(self.histories.ptr[first]) : int(self.histories.ptr[last])]
        most = min(int((B.ptr[had + 1] - B.ptr[had]).sum()), (last - first) * B.width)
        ptr = np.zeros(last - first + 1, np.int64)
        items, scores = np.empty(most, np.int32), np.empty(most, base.dtype)
        kernels.score_sparse(
            *self._arrays, first, last, *for_kernels(B, base.dtype), read_only(base),
            base.copy(), np.zeros(len(base), bool), ptr, items, scores,
        )  # fmt: skip
        return Rows(ptr, items[: ptr[-1]], scores[: ptr[-1]], B.width)

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Look for a weight other than 0."""
        rows = self.histories
        found = np.zeros(items.shape, bool)
        # For sparse weights `scores` has told it, but for new items beside a low-rank part.
        if isinstance(self._weights, Rows):
            for u in np.flatnonzero((items >= 0).any(axis=1)).tolist():
                span = slice(int(rows.ptr[first + u]), int(rows.ptr[first + u + 1]))
                some = self._weights.take(rows.items[span][self._values[span] != 0].astype(np.int64))
                found[u] = np.isin(items[u], some.items[some.values != 0])
            return found
        B = self._weights.array
        user, place = np.nonzero(items >= 0)
        at = rows.ptr[first:last][user]
        # Look at the items of every history in turn until one has a weight; nearly always the first has.
        while len(user):
            left = at < rows.ptr[first + 1 : last + 1][user]
            user, place, at = user[left], place[left], at[left]
            hit = (B[rows.items[at], items[user, place]] != 0) & (self._values[at] != 0)
            found[user[hit], place[hit]] = True
            user, place, at = user[~hit], place[~hit], at[~hit] + 1
        return found

    @cached_property
    def _arrays(self) -> tuple[Array, ...]:
        return for_kernels(self.histories, self._values.dtype)


class LowRankScorer(Scorer):
    """Scores x·(B + λ·L); `low_rank` is λ·L."""

    def __init__(self, histories: Rows, weights: WeightScorer, low_rank: "LowRank") -> None:
        low_rank.verify()
        super().__init__(histories)
        self._weights = weights
        self._low_rank = low_rank
        self._values = read_only(histories.values.astype(low_rank.vectors.dtype, copy=False))
        self._V, self._left = read_only(low_rank.vectors), read_only(low_rank.left)
        self.uses_blas = len(histories) > FEW
        self.users_at_once = max(1, min(_MULTIPLIED_SCORES // len(self._V), 256))

    def scores(self, first: int, last: int, base: Array, selection: Selection | None = None) -> Array:
        """Return base + x·B + V·h, without the weight of an item for itself."""
        out = as_array(self._weights.scores(first, last, base), base)
        if selection is None:
            self._add_to_all(first, last, out)
        elif len(self) > FEW:
            self._add_to_best(first, last, out, selection)
        else:
            for u in range(first, last):
                self._add_to_best_of_one(u, out[u - first], selection)
        ptr, items = self.histories.ptr[first : last + 1], self.histories.items
        span = slice(int(ptr[0]), int(ptr[-1]))
        user = np.repeat(np.arange(last - first), np.diff(ptr))
        out[user, items[span]] -= self._values[span] * self._low_rank.diagonal[items[span]]
        return out

    def _embedded(self, first: int, last: int) -> Array:
        """Return h of users first to last."""
        from mrfrec.core.kernels import ranking as kernels

        ptr, items, _ = for_kernels(self.histories, self._V.dtype)
        h = np.zeros((last - first, self._V.shape[1]), self._V.dtype)
        kernels.embed(ptr, items, self._values, first, last, self._left, self._V, h)
        return h

    def _add_to_all(self, first: int, last: int, out: Array) -> None:
        """Add V·h to the scores of all items."""
        from mrfrec.core.kernels import ranking as kernels

        h = self._embedded(first, last)
        kernels.add_low_rank(np.ascontiguousarray(h.T), self._V, np.zeros(len(h), out.dtype), out)

    def _add_to_best(self, first: int, last: int, out: Array, selection: Selection) -> None:
        """Add V·h to scores that may be selected, and to items of the history; other scores become −∞."""
        from mrfrec.core.kernels import ranking as kernels

        V, low, h = self._V, self._low_rank, self._embedded(first, last)
        ptr, items = self.histories.ptr[first : last + 1], self.histories.items
        # A quick estimate: its rounding depends on the number of users.
        about = h @ V.T
        # The scores of items in the history still include their weight for themselves.
        about[np.repeat(np.arange(last - first), np.diff(ptr)), items[ptr[0] : ptr[-1]]] = -np.inf
        hide_ptr, hide_items, _ = for_kernels(selection.hidden, out.dtype)
        kernels.add_where_best(
            about, h, V, np.linalg.norm(h, axis=1), low.norms[0].astype(out.dtype), low.rounding,
            selection.factors(out), hide_ptr[first : last + 1], hide_items, np.arange(len(V), dtype=np.int32),
            np.empty(len(V), np.uint32), np.empty(selection.k, np.uint32), np.empty(selection.k, out.dtype),
            out,
        )  # fmt: skip

    def _add_to_best_of_one(self, u: int, out: Array, selection: Selection) -> None:
        """Add V·h to the same scores of one user, without the product of all vectors."""
        from mrfrec.core.kernels import ranking as kernels

        V, low, k, m = self._V, self._low_rank, selection.k, len(out)
        h = self._embedded(u, u + 1)[0]
        ptr, items, _ = for_kernels(self.histories, out.dtype)
        hide_ptr, hide_items, _ = for_kernels(selection.hidden, out.dtype)
        tried = min(_TRIED_PER_K * k, m)
        kernels.add_where_best_of_one(
            h, V, low.norm_bounds(h), low.norms, low.rounding, _UNDERFLOW, selection.factors(out),
            items[ptr[u] : ptr[u + 1]], hide_items[hide_ptr[u] : hide_ptr[u + 1]],
            np.arange(m, dtype=np.int32), np.empty(tried, np.uint32), np.empty(tried, out.dtype),
            np.empty(k, np.uint32), np.empty(k, out.dtype), np.empty(m, np.uint32), np.empty(m, out.dtype),
            out,
        )  # fmt: skip

    def has_evidence(self, first: int, last: int, items: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Any history is evidence for every item that has users; new items need a weight."""
        known = super().has_evidence(first, last, items)
        new = known & (self._low_rank.left[items] == 0)
        if new.any():
            known[new] = self._weights.has_evidence(first, last, np.where(new, items, -1))[new]
        return known


def novelty_factors(
    popularity: npt.NDArray[np.int64], novelty: float, items: Any = slice(None)
) -> npt.NDArray[np.float64]:
    """Return (p/p̄)^(−γ) per item, where p is its number of users and p̄ = Σp²/Σp."""
    p = popularity.astype(np.float64)
    # Without likes, when all of the data is dislikes, p is 0.
    typical = p @ p / p.sum() if p.any() else 1.0
    return np.asarray((np.maximum(p[items], 1.0) / typical) ** -novelty)


def as_array(scored: Rows | Array, base: Array) -> Array:
    """Return scores as users × items; items without a score of their own have their base score."""
    if not isinstance(scored, Rows):
        return scored
    out = np.tile(base, (len(scored), 1))
    out[np.repeat(np.arange(len(scored)), np.diff(scored.ptr)), scored.items] = scored.values
    return out


def items_of(rows: Rows, u: int) -> Array:
    """Return the items of one row."""
    return rows.items[int(rows.ptr[u]) : int(rows.ptr[u + 1])]


def read_only(array: Array) -> Array:
    """Return a contiguous view that cannot be written, as kernels take what they only read.

    Kernels are compiled for one type of array, and arrays of a file cannot be written.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def for_kernels(rows: Rows, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Return the arrays as kernels take them, with the indices read as unsigned integers."""
    unsigned = np.uint32 if rows.items.itemsize == 4 else np.uint64
    values = rows.values.astype(dtype, copy=False)
    return read_only(rows.ptr), read_only(rows.items).view(unsigned), read_only(values)
