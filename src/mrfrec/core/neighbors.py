"""Find the nearest neighbours of each item by cosine, streaming rows of XᵀX."""

import numpy as np
import scipy.sparse as sp

from mrfrec.core import statistics
from mrfrec.core.engine import Engine, Floats
from mrfrec.core.entries import history_lengths
from mrfrec.core.kernels import pattern as kernels
from mrfrec.core.plan import Sizes
from mrfrec.core.statistics import Statistics

SCRATCH_THREADS = 8  # threads whose scratch space is counted: plans must not depend on their number
_PER_NEIGHBOR = 32  # bytes: item and cosine, then as columns, and again as rows of B


def bytes_for_raw(X: sp.csr_array, user_weight: float = 0.0) -> int:
    """Return the bytes that `raw_statistics` holds beyond the matrix."""
    n, m = X.shape
    return Sizes(n, m, X.nnz, statistics.is_binary(X, user_weight), itemsize=4, limit=0).statistics


def raw_statistics(X: sp.csr_array, engine: Engine, user_weight: float = 0.0) -> Statistics:
    """Return the statistics of XᵀX itself, or of XᵀWX with user weights."""
    facts = statistics.moments(X, user_weight, engine).scaled(0.0, center=False)
    statistics.check_range(facts.S_diagonal, np.zeros(facts.m))
    return facts


def nearest(facts: Statistics, neighbors: int, shrink: float, held: int, engine: Engine) -> sp.csc_array:
    """Return B: column i holds the largest x_i·x_j ÷ (‖x_i‖·‖x_j‖ + shrink) > 0, at most `neighbors`.

    Values are compared as float32; ties go to the item that follows in cyclic order, as in `core/pattern.py`.
    """
    m = facts.m
    most = max(min(neighbors, m - 1), 1)
    engine.scratch = SCRATCH_THREADS * 8 * m
    needed = held + 8 * len(facts.X.items) + m * (_PER_NEIGHBOR * most + 24) + engine.scratch
    engine.memory.require("neighbors", needed, "Keep fewer neighbors.")
    lengths, norms = history_lengths(facts.X.begin), np.sqrt(facts.S_diagonal)
    items, nearness = np.empty((m, most), np.int32), np.empty((m, most), np.float32)
    tasks = facts.row_tasks()
    with engine.stage("neighbors", m):
        engine.run(
            lambda t, space: kernels.nearest(facts.X, lengths, norms, shrink, *t, *space, items, nearness),
            tasks,
            scratch=lambda: (facts.accumulator(), np.empty(2 * most, np.uint64)),
            scratch_bytes=8 * m,
            costs=[stop - start for start, stop in tasks],
        )
    kept = items >= 0
    ptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    found = sp.csc_array((nearness[kept], items[kept], ptr), shape=(m, m))
    found.sort_indices()
    return found


def to_means(weights: sp.csc_array, mu: Floats) -> Floats:
    """Divide each column of B by its sum, in place, and return μ − μ·B.

    The score μ + (x − μ)·B is then the mean of an item, corrected by a weighted mean over its neighbors.
    """
    sizes = np.diff(weights.indptr)
    sums = np.bincount(np.repeat(np.arange(len(mu), dtype=np.int32), sizes), weights.data, len(mu))
    weights.data /= np.repeat(sums.astype(np.float32), sizes)
    return np.asarray(mu - weights.T @ mu)
