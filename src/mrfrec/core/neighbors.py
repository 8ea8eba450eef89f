"""Find the nearest neighbours of each item by cosine, streaming rows of XᵀX."""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import statistics
from mrfrec.core.engine import Engine
from mrfrec.core.kernels import neighbors as kernels
from mrfrec.core.memory import Budget
from mrfrec.core.pattern import Pattern
from mrfrec.core.plan import Sizes
from mrfrec.core.statistics import Statistics

__all__ = ["Neighbors", "bytes_for_raw", "nearest", "raw_statistics"]

_SCRATCH_THREADS = 8  # threads whose rows are counted: plans must not depend on their number
_PER_NEIGHBOR = 32  # bytes: item and cosine, sorted, and again as rows of B


class Neighbors:
    """The nearest items of each item, `items[i]`, and their cosines, nearest first; padded with −1."""

    def __init__(self, items: npt.NDArray[np.int32], nearness: npt.NDArray[np.float32]) -> None:
        self.items, self.nearness = items, nearness

    def weights(self) -> sp.csr_array:
        """Return B: column i holds the cosines of the nearest items of item i."""
        m = len(self.items)
        kept = self.items >= 0
        columns = np.repeat(np.arange(m, dtype=np.int32), kept.sum(axis=1))
        found = sp.csr_array((self.nearness[kept], (self.items[kept], columns)), shape=(m, m))
        found.sort_indices()
        return found

    def pattern(self) -> Pattern:
        """Return the nearest items as a pattern with ascending rows in each column."""
        kept = self.items >= 0
        ptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        last = np.where(kept, self.items, np.iinfo(np.int32).max)
        ordered = np.sort(last, axis=1)
        return Pattern(ptr, ordered[ordered < np.iinfo(np.int32).max], 0.0)


def bytes_for_raw(X: sp.csr_array) -> int:
    """Return the bytes that `raw_statistics` holds beyond the matrix."""
    n, m = X.shape
    return Sizes(n, m, X.nnz, statistics.is_binary(X, 0.0), itemsize=4, limit=0).statistics


def raw_statistics(X: sp.csr_array, workers: Engine) -> Statistics:
    """Return the statistics of XᵀX itself."""
    facts = statistics.moments(X, 0.0, workers).scaled(0.0, center=False)
    statistics.check_range(facts.S_diagonal, np.zeros(facts.m))
    return facts


def nearest(
    X: sp.csr_array,
    facts: Statistics,
    *,
    neighbors: int,
    shrink: float,
    workers: Engine,
    plan: Budget,
    held: int,
) -> Neighbors:
    """Return for each item the `neighbors` others with the largest x_i·x_j ÷ (‖x_i‖·‖x_j‖ + shrink) > 0.

    Values are compared as float32; ties go to the item that follows in cyclic order, as in `core/pattern.py`.
    """
    m = facts.m
    most = max(min(neighbors, m - 1), 1)
    workers.scratch = _SCRATCH_THREADS * 8 * m
    needed = held + 8 * X.nnz + m * (_PER_NEIGHBOR * most + 24) + workers.scratch
    plan.require("neighbors", needed, "Keep fewer neighbors.")
    of_user = np.diff(X.indptr)
    size_at = np.zeros(X.nnz, np.uint32)  # length of a history, at its first entry
    size_at[X.indptr[:-1][of_user > 0]] = of_user[of_user > 0]
    sizes = size_at[facts.X.begin]
    lengths = np.sqrt(facts.S_diagonal)
    items, nearness = np.empty((m, most), np.int32), np.empty((m, most), np.float32)
    tasks = facts.row_tasks()
    with workers.stage("neighbors", m):
        workers.run(
            lambda t, space: kernels.nearest(facts.X, sizes, lengths, shrink, *t, *space, items, nearness),
            tasks,
            scratch=lambda: (facts.accumulator(), np.empty(2 * most, np.uint64)),
            scratch_bytes=8 * m,
            costs=[stop - start for start, stop in tasks],
        )
    return Neighbors(items, nearness)
