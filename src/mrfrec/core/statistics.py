"""§2.1: means, scales, and rows of the centered, rescaled item-item matrix S, streamed.

    S = (XᵀWX − n·μμᵀ) ⊘ (s sᵀ),    s = v^(α/2),    v = n × (weighted) column variance

m × m is never held here. Row i of S comes from the two sides of X: the users of item i, and the items of
each of these users, added up in one accumulator of length m per thread. Counting a row again is cheaper
than keeping it, so the pattern and the blocks each stream the rows they need.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.kernels import rows as kernels
from mrfrec.core.resources import Workers
from mrfrec.errors import NumericalError

__all__ = [
    "Statistics",
    "bytes_for_statistics",
    "check_range",
    "compute",
    "is_binary",
    "split_evenly",
]

# Two passes over the values give v to about 1e-15 of the sum of squares; what is below is rounding.
_NO_VARIANCE = 1e-12
_LARGEST = 1e36  # two orders below the range of float32, for sums of a few products


@dataclass(frozen=True)
class Statistics:
    """What the rest of the core knows of X. Letters are the paper's."""

    n: float  # users; with user weights, their sum
    m: int
    X: kernels.Incidence
    popularity: npt.NDArray[np.int64]  # users per item
    mu: npt.NDArray[np.float64]
    s: npt.NDArray[np.float64]
    S_diagonal: npt.NDArray[np.float64]
    scaling: kernels.Scaling

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """Items with variance; the others have no weights in or out."""
        return np.asarray(self.scaling.a > 0.0)

    def accumulator(self) -> npt.NDArray[Any]:
        """Room for one row of XᵀX: integers for binary data, else floats."""
        return np.zeros(self.m, np.float64 if len(self.X.values) else np.int32)

    def ridge(self, l2: float, l2_flat: float, dropout: float) -> npt.NDArray[np.float64]:
        """`l2 + l2_flat ⊘ s² + p/(1 − p)·diag(S)`, what the diagonal of S gets."""
        return np.asarray(l2 + l2_flat * self.scaling.a**2 + dropout / (1 - dropout) * self.S_diagonal)

    def first_twins(self, workers: Workers) -> npt.NDArray[np.int32]:
        """For each item the first item with the same users and values, itself if there is none before."""
        hashes = np.empty(self.m, np.uint64)
        workers.run(lambda t: kernels.hash_columns(self.X, *t, hashes), self.row_tasks())
        twin = np.arange(self.m, dtype=np.int32)
        kernels.first_twins(self.X, hashes, np.argsort(hashes, kind="stable"), twin)
        return twin

    def row_tasks(self) -> list[tuple[int, int]]:
        """Ranges of items that cost about the same to stream."""
        cost = self.X.item_ptr[1:] - self.X.item_ptr[:-1] + max(1, len(self.X.items) // (4 * self.m))
        return split_evenly(cost, 512)


def split_evenly(costs: npt.NDArray[Any], parts: int) -> list[tuple[int, int]]:
    """Cut 0…len(costs) into about `parts` ranges of equal cost."""
    ends = np.cumsum(costs, dtype=np.float64)
    marks = np.searchsorted(ends, np.linspace(0.0, ends[-1] if len(ends) else 0.0, parts + 1)[1:-1]) + 1
    cuts = np.unique(np.concatenate([[0], np.minimum(marks, len(costs)), [len(costs)]])).tolist()
    return list(pairwise(cuts))


def is_binary(X: sp.csr_array, user_weight: float) -> bool:
    """Whether every entry is 1 and counts as 1, so that integers do."""
    return user_weight == 0.0 and bool((X.data == 1).all())


def bytes_for_statistics(n: int, m: int, nnz: int, binary: bool, threads: int) -> int:
    """What `Statistics` holds beyond the matrix it was given."""
    shared_or_copied = 8 * (n + 1) + 4 * nnz  # user_ptr, items
    values = 0 if binary else 8 * nnz + 24 * n
    item_side = 8 * (m + 1) + 8 * nnz + 24 * m * threads
    per_item = 12 * 8 * m
    return shared_or_copied + values + item_side + per_item


def compute(
    X: sp.csr_array,
    *,
    alpha: float,
    user_weight: float,
    center: bool,
    binary: bool,
    workers: Workers,
    raw: bool = False,
) -> Statistics:
    """Both sides of X and all that is known per item.

    `raw` asks for XᵀX itself, without centering or scaling, and with the items that everybody has.
    """
    n_users, m = X.shape
    user_ptr = X.indptr.astype(np.int64, copy=False)
    items = X.indices.astype(np.int32, copy=False).view(np.uint32)
    with workers.stage("statistics", 1):
        item_ptr, begin, rank = _item_side(user_ptr, items, m, workers)
        popularity = np.diff(item_ptr)
        if binary:
            n = float(n_users)
            values = np.empty(0)
            squares = popularity.astype(np.float64)
            mu = squares / n
            v = squares * ((n - squares) / n)
        else:
            values = X.data.astype(np.float64)  # a copy: the weights are worked into it below
            w = _user_weights(np.diff(user_ptr), user_weight)
            n = float(w.sum())
            # Σw·(x − μ)² over an item's users, and μ² for everybody else: no cancellation.
            sums, squares, around, weights = np.zeros((4, m))
            kernels.weighted_sums(user_ptr, items, values, w, np.zeros(m), sums, squares, weights)
            mu = sums / n
            kernels.weighted_sums(user_ptr, items, values, w, mu, np.zeros(m), around, np.zeros(m))
            others = np.where(popularity < n_users, np.maximum(n - weights, 0.0), 0.0)
            with np.errstate(over="ignore", invalid="ignore"):  # looked at by `check_range`
                v = around + others * mu**2
            kernels.scale_users(user_ptr, np.sqrt(w), values)

        with np.errstate(over="ignore", invalid="ignore"):
            active = squares > 0.0 if raw else ~(v <= _NO_VARIANCE * squares)
            v = np.where(active, v, 0.0)
            s = v ** (alpha / 2)
            a = np.zeros(m)
            np.divide(1.0, s, out=a, where=active)
            g = np.sqrt(n) * mu * a if center else np.zeros(m)
            diagonal = (v if center else squares) * a**2
    return Statistics(
        n=n,
        m=m,
        X=kernels.Incidence(items, values, item_ptr, begin, rank),
        popularity=popularity,
        mu=mu,
        s=s,
        S_diagonal=diagonal,
        scaling=kernels.Scaling(a, g, np.argsort(-np.abs(g), kind="stable")),
    )


def check_range(diagonal: npt.NDArray[np.float64], ridge: npt.NDArray[np.float64]) -> None:
    """Refuse what float32 cannot hold: no entry of S is larger than the largest on its diagonal."""
    largest = float(np.max(diagonal + ridge))
    if not largest < _LARGEST:
        raise NumericalError(
            f"the item-item matrix reaches {largest:.3g}, too large to compute with. The values of X or the "
            "ridge are too large: divide the values by a constant, or use a smaller ridge."
        )


def _user_weights(lengths: npt.NDArray[Any], beta: float) -> npt.NDArray[np.float64]:
    """w_u ∝ |x_u|₀^(−β), scaled so that Σ w_u·|x_u|₀ = nnz(X); an empty history counts as one item."""
    counted = np.maximum(lengths, 1).astype(np.float64)
    w = (counted / counted[lengths > 0].min()) ** -beta
    return np.asarray(w * (lengths.sum() / (w @ lengths)))


def _item_side(
    user_ptr: npt.NDArray[np.int64], items: npt.NDArray[np.uint32], m: int, workers: Workers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[np.uint32]]:
    """The users of each item, ascending, by where their histories begin; and the item's rank in these.

    A counting sort, each thread taking a range of users.
    """
    ranges = split_evenly(np.diff(user_ptr) + 1, workers.threads)
    counts = np.zeros((len(ranges), m), np.int64)
    workers.run(
        lambda t: kernels.count_items(user_ptr, items, *ranges[t], counts[t]),
        range(len(ranges)),
    )
    item_ptr = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    slots = item_ptr[:-1] + np.cumsum(counts, axis=0) - counts
    begin = np.empty(len(items), np.uint32 if len(items) < 2**32 else np.uint64)
    rank = np.empty(len(items), np.uint32)
    workers.run(
        lambda t: kernels.transpose(user_ptr, items, *ranges[t], slots[t], begin, rank),
        range(len(ranges)),
    )
    return item_ptr, begin, rank
