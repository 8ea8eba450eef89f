"""§3.2, step 3: one small system per block, and the average of the estimates they give.

For each block, S[N(i)∪{i}, N(i)∪{i}] + ridge is factorised once, and only the columns D(i) of its inverse
are computed. Items that were used by the same people in the same way are solved as one (long tails are full
of them: all the books that only one person has). Blocks go in batches that fit the memory at hand: each batch
streams the rows of S it needs into its blocks, solves them, and adds the estimates up in the order of the
blocks. That order, and every block's own arithmetic, is the same whatever the batches and threads are, and so
is the result, to the bit.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.kernels import blocks as kernels
from mrfrec.core.kernels.intrinsics import lapack
from mrfrec.core.pattern import Pattern, square_csc
from mrfrec.core.resources import MemoryPlan, Workers
from mrfrec.core.schedule import Schedule
from mrfrec.core.statistics import Statistics, split_evenly
from mrfrec.errors import NumericalError

__all__ = ["BYTES_PER_ENTRY", "Gathered", "batches", "estimate_weights", "gather", "lay_out"]

BYTES_PER_ENTRY = 12  # of A: its row, how many estimates, its row again in B; two values come on top
_LEAST_BATCH, _MOST_BATCH = 1_000_000_000, 3_500_000_000
_BATCH_PER_INTERACTION = 100  # bytes: the dearer another pass over the data, the more a batch may hold
_PER_MEMBER, _PER_KIND = 8, 24  # bytes an item, and a kind, of a block takes beside its part of S


class Gathered:
    """The blocks' parts of S, kept for further fits that differ in the ridge alone; where they all fit."""

    def __init__(self) -> None:
        self.batch: kernels.Batch | None = None
        self.store: npt.NDArray[Any] | None = None
        self.timings: dict[str, float] = {}


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
    gathered: Gathered | None = None,
) -> sp.csr_array:
    """B for the sparse model, from sorted columns of A; `held` bytes are in use already.

    `gathered` holds the blocks' parts of S, or takes a copy of them for the next fit, if there is room.
    """
    values = _estimate_columns(statistics, pattern, schedule, ridge, dtype, workers, plan, held, gathered)
    with workers.stage("rows", 1):
        weights = square_csc(values, pattern.neighbors, pattern.column_ptr).tocsr()
        weights.eliminate_zeros()
    return weights


def _estimate_columns(
    statistics: Statistics,
    pattern: Pattern,
    schedule: Schedule,
    ridge: npt.NDArray[np.float64],
    dtype: str,
    workers: Workers,
    plan: MemoryPlan,
    held: int,
    gathered: Gathered | None,
) -> npt.NDArray[Any]:
    """The values of B, in the order of the entries of A."""
    m = statistics.m
    column_ptr, columns = pattern.column_ptr, pattern.neighbors
    column_tasks = split_evenly(np.diff(column_ptr) + 1, 64)
    with workers.stage("kinds", 1):
        twin = statistics.first_twins(workers)
        members = np.diff(column_ptr)[schedule.heads] + 1
        kinds, targets = _distinct_sizes(pattern, schedule, twin, workers)
    # A block's place holds first the strict lower triangle of S, then the estimates.
    places = np.where(members > 1, np.maximum(kinds * (kinds - 1) // 2, targets * kinds), 0)
    most_estimates = int(np.bincount(schedule.dependents, minlength=1).max())

    itemsize, largest = np.dtype(dtype).itemsize, int(kinds.max())
    block_bytes = places * itemsize + members * _PER_MEMBER + kinds * _PER_KIND
    held += (BYTES_PER_ENTRY + 2 * itemsize) * len(columns) + 8 * len(schedule.dependents)
    held += workers.threads * (m * (16 + itemsize) + 2 * largest**2 * itemsize)
    plan.require(
        "blocks",
        held + int(block_bytes.max()),
        "Make the blocks smaller: a larger threshold, a smaller sparsity or a smaller max_neighbors.",
    )
    worthwhile = min(max(_LEAST_BATCH, _BATCH_PER_INTERACTION * len(statistics.X.items)), _MOST_BATCH)
    budget = min(worthwhile, plan.limit - held)
    plan.require("blocks", held + min(budget, int(block_bytes.sum())), "")

    total = np.zeros(len(columns), dtype)
    count = np.zeros(len(columns), np.min_scalar_type(most_estimates))
    ranges = list(batches(block_bytes, budget))
    store = np.empty(max(int(places[b0:b1].sum()) for b0, b1 in ranges), dtype)
    for turn, (b0, b1) in enumerate(ranges):
        rows, part = m * len(ranges), (m * turn, m * (turn + 1))
        if gathered is not None and gathered.store is not None and gathered.batch is not None:
            workers.count(gathered.timings)
            batch, store = gathered.batch, gathered.store.copy()
        else:
            with workers.stage("gather", rows, part):
                batch = lay_out(pattern, schedule, slice(b0, b1), members, kinds, places, twin, workers)
                gather(statistics, batch, store, workers)
            if gathered is not None and len(ranges) == 1 and held + 2 * int(block_bytes.sum()) <= plan.limit:
                gathered.batch, gathered.store = batch, store.copy()
                gathered.timings = {"gather": workers.timings["gather"]}
        with workers.stage("solve", len(schedule), (b0, b1)):
            failed = _solve(statistics, ridge, batch, store, workers)
            if failed is not None:
                raise NumericalError(
                    f"the block of item {schedule.heads[b0 + failed]} ({members[b0 + failed]} items) is not "
                    f"positive definite in {dtype}. It may be because (a) l2 is too small for items that are "
                    "copies of each other, or nearly so: raise l2; or (b) the precision is too low for this "
                    'data: use dtype="float64".'
                )
        with workers.stage("average", rows, part):
            workers.run(
                lambda t, kind_of, batch=batch, store=store: kernels.add_estimates(
                    *t, column_ptr, columns, batch, store, total, count, kind_of
                ),
                column_tasks,
                scratch=lambda: np.full(m, -1, np.int32),
                costs=[stop - start for start, stop in column_tasks],
            )

    with workers.stage("weights", m):
        workers.run(
            lambda t: kernels.average_and_rescale(
                *t, column_ptr, columns, statistics.s, statistics.scaling.a, total, count
            ),
            column_tasks,
            costs=[stop - start for start, stop in column_tasks],
        )
    return total


def gather(statistics: Statistics, batch: kernels.Batch, store: npt.NDArray[Any], workers: Workers) -> None:
    """Stream the rows of S into the blocks."""
    m, tasks = statistics.m, statistics.row_tasks()
    item_ptr = np.concatenate([[0], np.cumsum(np.bincount(batch.kinds, minlength=m))])
    block, place = np.empty(len(batch.kinds), np.int32), np.empty(len(batch.kinds), np.int32)
    kernels.memberships(batch.kind_ptr, batch.kinds, item_ptr[:-1].copy(), block, place)
    where = item_ptr, block, place
    workers.run(
        lambda t, space: kernels.gather(statistics.X, statistics.scaling, *t, *where, batch, store, *space),
        tasks,
        scratch=lambda: (statistics.accumulator(), np.empty(m, store.dtype)),
        costs=[stop - start for start, stop in tasks],
    )


def _solve(
    statistics: Statistics,
    ridge: npt.NDArray[np.float64],
    batch: kernels.Batch,
    store: npt.NDArray[Any],
    workers: Workers,
) -> int | None:
    """Turn each block's part of S into estimates, largest blocks first; returns one that failed, if any."""
    size = np.diff(batch.kind_ptr)
    largest = int(size.max())
    by_size = np.argsort(-size, kind="stable")
    pieces = [by_size[p:q] for p, q in split_evenly(size[by_size] ** 2.5 + 1000.0, 512)]
    failed = workers.run(
        lambda piece, space: kernels.solve_blocks(
            lapack(store.dtype.name), piece, batch, statistics.S_diagonal, ridge, store, *space
        ),
        pieces,
        scratch=lambda: (
            np.empty(5 * largest * largest // 4 + largest, store.dtype),
            np.empty(largest, np.int64),
        ),
        costs=[len(piece) for piece in pieces],
    )
    return next((b for b in failed if b >= 0), None)


def _distinct_sizes(
    pattern: Pattern, schedule: Schedule, twin: npt.NDArray[np.int32], workers: Workers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Per block: how many kinds of items it has, and how many of these are targets."""
    if (twin == np.arange(len(twin))).all():
        return np.diff(pattern.column_ptr)[schedule.heads] + 1, np.diff(schedule.dependent_ptr)
    kinds, targets = np.empty(len(schedule), np.int64), np.empty(len(schedule), np.int64)
    workers.run(
        lambda t, last_set: kernels.distinct_sizes(
            *t,
            pattern.column_ptr,
            pattern.neighbors,
            schedule.heads,
            schedule.dependent_ptr,
            schedule.dependents,
            twin,
            kinds,
            targets,
            last_set,
        ),
        split_evenly(np.diff(pattern.column_ptr)[schedule.heads] + 1, 256),
        scratch=lambda: np.full(len(twin), -1, np.int64),
    )
    return kinds, targets


def lay_out(
    pattern: Pattern,
    schedule: Schedule,
    blocks: slice,
    members: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    twin: npt.NDArray[np.int32],
    workers: Workers,
) -> kernels.Batch:
    """Everything about a batch of blocks but their part of S."""
    member_ptr, kind_ptr, store_ptr = (
        np.concatenate([[0], np.cumsum(sizes[blocks])]) for sizes in (members, kinds, places)
    )
    first, last = schedule.dependent_ptr[blocks.start], schedule.dependent_ptr[blocks.stop]
    batch = kernels.Batch(
        member_ptr=member_ptr,
        members=np.empty(member_ptr[-1], np.int32),
        member_kind=np.empty(member_ptr[-1], np.int32),
        kind_ptr=kind_ptr,
        kinds=np.empty(kind_ptr[-1], np.int32),
        copies=np.empty(kind_ptr[-1], np.int32),
        target=np.empty(kind_ptr[-1], np.int32),
        dependent_ptr=schedule.dependent_ptr[blocks.start : blocks.stop + 1] - first,
        dependents=schedule.dependents[first:last],
        store_ptr=store_ptr,
    )
    pattern.columns_with_diagonal(schedule.heads[blocks], member_ptr, batch.members)
    workers.run(
        lambda t, place: kernels.find_kinds(batch, twin, *t, place),
        split_evenly(members[blocks], 256),
        scratch=lambda: np.full(len(twin), -1, np.int32),
    )
    return batch


def batches(block_bytes: npt.NDArray[np.int64], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks that fit the budget together, in order; one block at least."""
    ends = np.cumsum(block_bytes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + budget, "right")), start + 1)
        yield start, stop
        start = stop
