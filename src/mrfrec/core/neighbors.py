"""Find the nearest neighbours of all items by cosine, streaming rows of XᵀX."""

import numpy as np
import scipy.sparse as sp

from mrfrec.core.engine import Engine, Floats
from mrfrec.core.entries import history_lengths
from mrfrec.core.kernels import pattern as kernels
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.statistics import Statistics, check_range, is_binary, moments, planned_bytes

# The scratch space of so many threads is counted: the memory that is needed must not depend on their number.
SCRATCH_THREADS = 8
# Bytes of an item and its cosine in the lists, in the columns of B and in its rows.
_PER_NEIGHBOR = 32


def bytes_for_raw(X: sp.csr_array, settings: Settings) -> int:
    """Return the bytes that `raw_statistics` holds besides the matrix."""
    n, m = X.shape
    return planned_bytes(Sizes(n, m, X.nnz, is_binary(X, settings), itemsize=4, limit=0))


def raw_statistics(X: sp.csr_array, settings: Settings, engine: Engine) -> Statistics:
    """Return the statistics of XᵀX itself, or of XᵀWX with user weights."""
    statistics = moments(X, settings, engine).scaled(settings)
    check_range(statistics.S_diagonal, np.zeros(statistics.m))
    return statistics


def nearest(statistics: Statistics, neighbors: int, shrink: float, held: int, engine: Engine) -> sp.csc_array:
    """Return B: column i holds the largest x_i·x_j ÷ (‖x_i‖·‖x_j‖ + shrink) > 0, at most `neighbors`.

    Values are compared as float32. Ties go to the items that follow in cyclic order, as in `core/pattern.py`.
    """
    m, X = statistics.m, statistics.X
    most = max(min(neighbors, m - 1), 1)
    engine.scratch = SCRATCH_THREADS * 8 * m
    needed = held + 8 * len(X.items) + m * (_PER_NEIGHBOR * most + 24) + engine.scratch
    engine.memory.require("neighbors", needed, "Keep fewer neighbors.")
    lengths = history_lengths(X.begin)
    norms = np.sqrt(statistics.S_diagonal)
    items = np.empty((m, most), np.int32)
    cosines = np.empty((m, most), np.float32)
    tasks = statistics.row_tasks()
    with engine.stage("neighbors", m):
        engine.run(
            lambda t, space: kernels.nearest(X, lengths, norms, shrink, *t, *space, items, cosines),
            tasks,
            scratch=lambda: (statistics.accumulator(), np.empty(2 * most, np.uint64)),
            scratch_bytes=8 * m,
            costs=[stop - start for start, stop in tasks],
        )
    kept = items >= 0
    ptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    weights = sp.csc_array((cosines[kept], items[kept], ptr), shape=(m, m))
    weights.sort_indices()
    return weights


def to_means(weights: sp.csc_array, mu: Floats) -> Floats:
    """Divide each column of B by its sum, in place, and return μ − μ·B.

    The score μ + (x − μ)·B is then the mean of an item, corrected by a weighted mean over its neighbors.
    """
    sizes = np.diff(weights.indptr)
    sums = np.bincount(np.repeat(np.arange(len(mu), dtype=np.int32), sizes), weights.data, len(mu))
    weights.data /= np.repeat(sums.astype(np.float32), sizes)
    return np.asarray(mu - weights.T @ mu)
