"""SLIM: each item regressed on the others, with non-negative weights and two penalties.

    min over w ≥ 0, w_i = 0 of   ½‖x_i − X·w‖² + l1·Σw + ½·l2·Σw²

Only G = XᵀX is needed. With all items as candidates, all of G is held and the columns are solved in parallel.
With few candidates per item, their parts of G are streamed as for the sparse model of §3.2.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks, closed_form
from mrfrec.core.engine import Array, Engine, Floats, split_evenly
from mrfrec.core.kernels import descent as kernels
from mrfrec.core.neighbors import SCRATCH_THREADS
from mrfrec.core.pattern import Pattern, square_csc
from mrfrec.core.schedule import make_schedule
from mrfrec.core.statistics import Statistics

_TILE = 1024
# Bytes for each weight of B: item and float64 in the results of the tasks, then joined, then by row.
_PER_WEIGHT = 44
_LEAST_BATCH, _MOST_BATCH = 250_000_000, 2_000_000_000  # bytes of the blocks of a batch

Penalties = tuple[float, float, float, int]
"""l1, l2, tolerance and passes.

A regression has converged when a pass over its weights changes X·w by at most tolerance·‖x_i‖. `passes` is
the largest number of passes.
"""


def bytes_for_all(m: int, dtype: str, weights: int = 0, working: int = 0) -> int:
    """Return the bytes that regressions on all items hold: G, scratch space, and the weights of B so far.

    `weights` is the number of these, `working` the size of the largest working set so far.
    """
    numbers = m * m + SCRATCH_THREADS * working * working
    return np.dtype(dtype).itemsize * numbers + SCRATCH_THREADS * 48 * m + _PER_WEIGHT * weights


def gram(statistics: Statistics, dtype: str, engine: Engine) -> Array:
    """Return G = XᵀX, both triangles."""
    G = closed_form.scaled_matrix(statistics, dtype, engine)
    m = len(G)
    tiles = [(i, j) for i in range(0, m, _TILE) for j in range(0, i + 1, _TILE)]

    def mirror(tile: tuple[int, int]) -> None:
        i, j = (slice(start, start + _TILE) for start in tile)
        if i == j:
            lower = np.tril(G[i, i])
            G[i, i] = lower + np.tril(lower, -1).T
        else:
            G[j, i] = G[i, j].T

    with engine.stage("mirror", 1):
        engine.run(mirror, tiles)
    return G


def regress_on_all(
    statistics: Statistics, G: Array, penalties: Penalties, held: int, engine: Engine
) -> tuple[sp.csr_array, int]:
    """Return B and the number of columns that did not converge; raise as soon as B gets too large.

    `held` is what the fit holds besides, in bytes.
    """
    m = len(G)
    weights_so_far = largest = 0
    diagonal = G.diagonal()
    # If no value is negative, neither is G, and r_j = G_ji − Σ_k G_jk·w_k is at most G_ji: with G_ji ≤ l1 the
    # weight stays zero.
    least = penalties[0] if (statistics.X.values >= 0).all() else -np.inf

    def columns(task: tuple[int, int], space: tuple[Any, Any]) -> tuple[Any, ...]:
        regressions = [_regress(G, i, diagonal, least, penalties, *space) for i in range(*task)]
        items, values, sizes, failed = zip(*regressions, strict=True)
        counts = [len(part) for part in items]
        return counts, np.concatenate(items), np.concatenate(values), max(sizes), sum(failed)

    def columns_done(part: tuple[Any, ...]) -> int:
        nonlocal weights_so_far, largest
        weights_so_far += len(part[1])
        largest = max(largest, part[3])
        needed = held + bytes_for_all(m, str(G.dtype), weights_so_far, largest)
        engine.memory.require("regress", needed, "Use a larger l1, or FsSLIM.")
        return len(part[0])

    tasks = split_evenly(statistics.popularity + 1, max(min(m // 8, 1024), 1))
    with engine.stage("regress", m):
        parts = engine.run(
            columns,
            tasks,
            scratch=lambda: (np.empty((2, m), np.uint32), np.empty((4, m))),
            costs=columns_done,
        )
    counts, items, values = (np.concatenate([part[place] for part in parts]) for place in range(3))
    failed = sum(part[4] for part in parts)
    del parts
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return square_csc(values.astype(G.dtype), items, ptr).tocsr(), failed


def _regress(
    G: Array,
    i: int,
    diagonal: Array,
    least: float,
    penalties: Penalties,
    lists: npt.NDArray[np.uint32],
    numbers: Floats,
) -> tuple[npt.NDArray[np.int32], Floats, int, bool]:
    """Return the items in the regression of item i, their weights, the size of the working set, and whether
    the regression failed to converge.

    The descent runs on a working set. Candidates outside it that would become non-zero join it; when there
    are none, the solution is that of all candidates: items with an entry of G above `least`.
    """
    l1, l2, tolerance, passes = penalties
    (candidates, working), (w, r, gain, residual) = lists, numbers
    left = kernels.list_candidates(G, i, diagonal, least, candidates) if diagonal[i] > 0 else 0
    limit = tolerance * float(np.sqrt(diagonal[i]))
    size = 0
    converged = True
    while True:
        before = size
        left, size = kernels.extend(G, i, candidates[:left], working, size, w, l1, l2, limit, r, gain)
        if size == before:
            break
        A = np.empty((size, size), G.dtype)
        converged = kernels.regress(G, i, working, w, l1, l2, limit, passes, A, residual)
        del A  # before the next one is made
    kept = np.flatnonzero(w[:size])
    kept = kept[np.argsort(working[kept])]
    return working[kept].astype(np.int32), w[kept], size, not converged


def regress_on_some(
    statistics: Statistics, pattern: Pattern, penalties: Penalties, held: int, engine: Engine, dtype: str
) -> tuple[sp.csr_array, int]:
    """Return B restricted to the pattern, and the number of columns that did not converge."""
    m = statistics.m
    schedule = make_schedule(pattern, statistics.popularity, 0.0, engine)
    members = np.diff(pattern.column_ptr)[schedule.heads] + 1
    engine.scratch = SCRATCH_THREADS * (24 * m + 16 * int(members.max()) ** 2)
    held += 16 * len(pattern.neighbors) + engine.scratch
    block_bytes = members * (members + 1) // 2 * np.dtype(dtype).itemsize + members * 32
    least = max(_LEAST_BATCH, 100 * len(statistics.X.items))
    each_alone = np.arange(m, dtype=np.int32)
    layout = blocks.Layout(pattern, schedule, members, members, np.ones_like(members), each_alone)
    values = np.zeros(len(pattern.neighbors))
    failed = 0
    for span in blocks.batches(block_bytes, min(least, _MOST_BATCH), held, engine, "Use fewer neighbors."):
        batch = blocks.lay_out(layout, *span, engine)
        store = blocks.gather_blocks(statistics, dtype, batch, engine)
        pieces = [np.arange(*part) for part in split_evenly(members[slice(*span)] ** 2 + 100, 256)]
        with engine.stage("regress", m, span):
            failed += sum(
                engine.run(
                    lambda piece, batch=batch, store=store: kernels.regress_blocks(
                        piece, batch, statistics.S_diagonal, *penalties, store, pattern.column_ptr, values
                    ),
                    pieces,
                    costs=[len(piece) for piece in pieces],
                )
            )
        del batch, store  # before the next ones are made
    weights = square_csc(values.astype(dtype), pattern.neighbors, pattern.column_ptr).tocsr()
    weights.eliminate_zeros()
    return weights, failed
