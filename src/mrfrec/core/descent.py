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
from mrfrec.core.engine import Engine
from mrfrec.core.kernels import descent as kernels
from mrfrec.core.pattern import Pattern, square_csc
from mrfrec.core.schedule import make_schedule
from mrfrec.core.statistics import Statistics, split_evenly

__all__ = ["bytes_for_all", "gram", "regress_on_all", "regress_on_some"]

_TILE = 1024
# A weight of B: as found (item and float64, in arrays that double as they grow), together, and by row.
_PER_WEIGHT = 44
_SCRATCH_THREADS = 8  # threads whose scratch space is counted: plans must not depend on their number
_LEAST_BATCH, _MOST_BATCH = 250_000_000, 2_000_000_000


# l1, l2, the largest change of X·w in a converged pass as a share of ‖x_i‖, and most passes over the weights.
Penalties = tuple[float, float, float, int]


def bytes_for_all(m: int, dtype: str, weights: int = 0) -> int:
    """Return what regressions on all items hold: G, scratch space, and what is found of B so far."""
    return np.dtype(dtype).itemsize * m * m + _SCRATCH_THREADS * 48 * m + _PER_WEIGHT * weights


def gram(facts: Statistics, dtype: str, engine: Engine) -> npt.NDArray[Any]:
    """Return G = XᵀX, both triangles."""
    G = closed_form.scaled_matrix(facts, dtype, engine)
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
    facts: Statistics, G: npt.NDArray[Any], penalties: Penalties, held: int, engine: Engine
) -> tuple[sp.csr_array, int]:
    """Return B and the number of columns that did not converge. Stop as soon as B gets too large."""
    m, weights_found = len(G), 0

    def columns_done(part: tuple[Any, ...]) -> int:
        nonlocal weights_found
        weights_found += len(part[1])
        needed = held + bytes_for_all(m, str(G.dtype), weights_found)
        engine.memory.require("regress", needed, "Use a larger l1, or FsSLIM.")
        return len(part[0])

    screened = len(facts.X.values) == 0 or bool((facts.X.values >= 0).all())
    tasks = split_evenly(facts.popularity + 1, max(min(m // 8, 1024), 1))
    with engine.stage("regress", m):
        found = engine.run(
            lambda t: kernels.regress_columns(G, *t, *penalties, screened), tasks, costs=columns_done
        )
    counts, items, values = (np.concatenate([part[place] for part in found]) for place in range(3))
    unsettled = sum(part[3] for part in found)
    del found
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return square_csc(values.astype(G.dtype), items, ptr).tocsr(), unsettled


def regress_on_some(
    facts: Statistics, pattern: Pattern, penalties: Penalties, held: int, engine: Engine, dtype: str
) -> tuple[sp.csr_array, int]:
    """Return B restricted to the pattern, and the number of columns that did not converge."""
    m = facts.m
    schedule = make_schedule(pattern, facts.popularity, 0.0, engine)
    members = np.diff(pattern.column_ptr)[schedule.heads] + 1
    places = members * (members - 1) // 2
    engine.scratch = _SCRATCH_THREADS * (24 * m + 16 * int(members.max()) ** 2)
    held += 16 * len(pattern.neighbors) + engine.scratch
    block_bytes = places * np.dtype(dtype).itemsize + members * 32
    least = max(_LEAST_BATCH, 100 * len(facts.X.items))
    each_alone = np.arange(m, dtype=np.int32)
    values = np.zeros(len(pattern.neighbors))
    failed = 0
    for some in blocks.batches(block_bytes, min(least, _MOST_BATCH), held, engine, "Use fewer neighbors."):
        batch = blocks.lay_out(pattern, schedule, members, members, places, each_alone, engine, *some)
        store = blocks.gather_blocks(facts, dtype, batch, engine)
        pieces = [np.arange(*part) for part in split_evenly(members[slice(*some)] ** 2 + 100, 256)]
        with engine.stage("regress", m, some):
            failed += sum(
                engine.run(
                    lambda piece, batch=batch, store=store: kernels.regress_blocks(
                        piece, batch, facts.S_diagonal, *penalties, store, pattern.column_ptr, values
                    ),
                    pieces,
                    costs=[len(piece) for piece in pieces],
                )
            )
        del batch, store  # before the next ones are made
    weights = square_csc(values.astype(dtype), pattern.neighbors, pattern.column_ptr).tocsr()
    weights.eliminate_zeros()
    return weights, failed
