"""§3.2, step 3: one small system per block, and the average of the estimates they give.

For each block, S[N(i)∪{i}, N(i)∪{i}] + ridge is factorised once, and only the columns D(i) of its inverse
are computed. Blocks go in batches that fit the memory at hand: each batch streams the rows of S it needs
into its blocks, solves them, and adds the estimates up in the order of the blocks. That order, and every
block's own arithmetic, is the same whatever the batches and threads are, and so is the result, to the bit.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import kernels
from mrfrec.core.intrinsics import lapack
from mrfrec.core.pattern import Pattern
from mrfrec.core.resources import MemoryPlan, Workers
from mrfrec.core.schedule import Schedule
from mrfrec.core.statistics import Statistics, split_evenly
from mrfrec.errors import NumericalError

__all__ = ["BYTES_PER_ENTRY", "estimate_weights"]

BYTES_PER_ENTRY = 32  # of A: neighbours, sorted columns, total, count; B by columns and by rows
_BATCH_BYTES = 3_500_000_000  # beyond this, another pass over the data costs less than the memory
_PER_MEMBER = 16  # bytes an item in a block takes beside its part of S


def estimate_weights(
    statistics: Statistics,
    pattern: Pattern,
    schedule: Schedule,
    ridge: npt.NDArray[np.float64],
    *,
    dtype: str,
    workers: Workers,
    plan: MemoryPlan,
    held: int,
) -> "sp.csr_array[Any]":
    """B for the sparse model; `held` bytes are in use already."""
    m, scaling = statistics.m, statistics.scaling
    column_ptr, neighbors = pattern.column_ptr, pattern.neighbors
    itemsize = np.dtype(dtype).itemsize
    k = np.diff(column_ptr)[schedule.heads] + 1
    d = schedule.dependents.astype(np.int64)
    # A block's place holds first the strict lower triangle of S, then |D| columns of estimates.
    places = np.where(k > 1, np.maximum(k * (k - 1) // 2, d * k), 0)
    largest = int(k.max())
    block_bytes = places * itemsize + k * _PER_MEMBER
    held += BYTES_PER_ENTRY * len(neighbors)
    held += workers.threads * (m * (8 + itemsize) + 2 * largest**2 * itemsize)
    plan.require(
        "blocks",
        held + int(block_bytes.max()),
        "Make the blocks smaller: a larger threshold, a smaller sparsity or a smaller max_neighbors.",
    )
    budget = min(_BATCH_BYTES, plan.limit - held)
    plan.require("blocks", held + min(budget, int(block_bytes.sum())), "")

    columns = np.empty_like(neighbors)
    column_tasks = split_evenly(np.diff(column_ptr) + 1, 256)
    workers.run(lambda t: kernels.sorted_columns(column_ptr, neighbors, *t, columns), column_tasks)
    total = np.zeros(len(neighbors), dtype)
    count = np.zeros(len(neighbors), np.uint16 if len(schedule) < 2**16 else np.uint32)
    batches = list(_batches(block_bytes, budget))
    store = np.empty(max(int(places[b0:b1].sum()) for b0, b1 in batches), dtype)

    for b0, b1 in batches:
        heads, dependents = schedule.heads[b0:b1], schedule.dependents[b0:b1]
        block_ptr = np.concatenate([[0], np.cumsum(k[b0:b1])])
        store_ptr = np.concatenate([[0], np.cumsum(places[b0:b1])])
        members = np.empty(block_ptr[-1], np.int32)

        with workers.stage("gather", m):
            kernels.block_members(column_ptr, columns, heads, block_ptr, members)
            where = kernels.memberships(block_ptr, members, m)

            def gather(task: tuple[int, int], space: tuple[Any, ...]) -> None:
                kernels.gather(
                    statistics.X, scaling, *task, *where, block_ptr, members, store_ptr, *space, store
                )

            tasks = statistics.row_tasks()
            workers.run(
                gather,
                tasks,
                scratch=lambda: (statistics.accumulator(), np.empty(m, dtype)),
                costs=[stop - start for start, stop in tasks],
            )
            del where

        with workers.stage("solve", b1 - b0):
            size = k[b0:b1]
            by_size = np.argsort(-size, kind="stable")
            pieces = [by_size[p:q] for p, q in split_evenly(size[by_size] ** 2.5 + 1000.0, 512)]

            def solve(piece: npt.NDArray[np.int64], work: npt.NDArray[Any]) -> int:
                return int(
                    kernels.solve_blocks(
                        lapack(dtype),
                        piece,
                        block_ptr,
                        members,
                        heads,
                        dependents,
                        column_ptr,
                        neighbors,
                        ridge,
                        store_ptr,
                        store,
                        work,
                    )
                )

            room = 5 * largest * largest // 4 + largest
            failed = workers.run(
                solve, pieces, scratch=lambda: np.empty(room, dtype), costs=[len(piece) for piece in pieces]
            )
            for b in failed:
                if b >= 0:
                    raise NumericalError(
                        f"the block of item {heads[b]} ({size[b]} items) is not positive definite in {dtype}. "
                        "It may be because (a) l2 is too small for items that are nearly copies of each other: "
                        'raise l2; or (b) the precision is too low for this data: use dtype="float64".'
                    )

        with workers.stage("average", m):
            lists = kernels.dependent_lists(heads, dependents, column_ptr, neighbors, m)
            workers.run(
                lambda t: kernels.add_estimates(
                    *t, column_ptr, columns, *lists, block_ptr, members, store_ptr, store, total, count
                ),
                column_tasks,
                costs=[stop - start for start, stop in column_tasks],
            )
            del lists
    del store

    with workers.stage("weights", m):
        workers.run(
            lambda t: kernels.average_and_rescale(
                *t, column_ptr, columns, statistics.s, scaling.a, total, count
            ),
            column_tasks,
            costs=[stop - start for start, stop in column_tasks],
        )
        index = np.int32 if len(columns) < 2**31 else np.int64
        B = sp.csc_array((total, columns.astype(index, copy=False), column_ptr.astype(index)), shape=(m, m))
        weights = B.tocsr()
        weights.eliminate_zeros()
    return weights


def _batches(block_bytes: npt.NDArray[np.int64], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks that fit the budget together, in order; one block at least."""
    ends = np.cumsum(block_bytes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + budget, "right")), start + 1)
        yield start, stop
        start = stop
