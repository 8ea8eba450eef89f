"""§3.2: which items head a block, one small system per block, and the average of the estimates they give.

For each block, S[N(i)∪{i}, N(i)∪{i}] + ridge is factorised once, and only the columns D(i) of its inverse
are computed. Identical items, which the same users have with the same values, are solved as one: long tails
are full of them, such as all the books that only one user has. Blocks go in batches that fit into memory. A
batch streams the rows of S that it needs into its blocks and solves these, and the estimates are added up in
the order of the blocks. Neither this order nor the arithmetic of a block depends on batches or threads, so
the result is the same to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mrfrec.core import costs
from mrfrec.core.engine import Array, Engine, Floats, ranges, split_evenly
from mrfrec.core.kernels import blocks as kernels
from mrfrec.core.kernels import order as of_order
from mrfrec.core.kernels.blocks import Blocks
from mrfrec.core.kernels.intrinsics import lapack
from mrfrec.core.kernels.pattern import columns_with_diagonal
from mrfrec.core.pattern import Pattern
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.rows import Rows
from mrfrec.core.statistics import TRANSPOSE_PARTS, Statistics, not_positive_definite, transposed

# Bytes that an item of a block, and a class of identical items, take beside the block's part of XᵀX.
_PER_MEMBER, _PER_KIND = 8, 20
# Numbers that a thread copies at one time.
_COPIED = 1 << 22


@dataclass(frozen=True)
class Schedule:
    """Block b is N(i) ∪ {i} with i = heads[b]; its D is dependents[dependent_ptr[b]:dependent_ptr[b+1]]."""

    heads: npt.NDArray[np.int32]
    dependent_ptr: npt.NDArray[np.int64]
    dependents: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def nbytes(self) -> int:
        return int(self.heads.nbytes + self.dependent_ptr.nbytes + self.dependents.nbytes)


def make_schedule(pattern: Pattern, popularity: npt.NDArray[np.int64], r: float, engine: Engine) -> Schedule:
    """Choose the heads of blocks greedily, by number of neighbours, then popularity, then index.

    Each block takes its D off the list of items, so the work is linear in the entries of A. The blocks can
    then be solved in any order (end of §3.2).
    """
    with engine.stage("schedule", 1):
        m = len(popularity)
        order = np.lexsort((np.arange(m), -popularity, -np.diff(pattern.column_ptr)))
        heads = np.empty(m, np.int32)
        sizes = np.empty(m, np.int64)
        left = np.ones(m, np.bool_)
        blocks = kernels.greedy_schedule(order, pattern.column_ptr, pattern.neighbors, r, left, heads, sizes)
        heads = heads[:blocks].copy()
        dependent_ptr = np.concatenate([[0], np.cumsum(sizes[:blocks])])
        dependents = np.empty(dependent_ptr[-1], np.int32)
        kernels.list_dependents(heads, dependent_ptr, pattern.column_ptr, pattern.neighbors, dependents)
        return Schedule(heads, dependent_ptr, dependents)


@dataclass(frozen=True)
class Gathered:
    """The parts of XᵀX of all blocks, kept for later fits that differ in the ridge alone."""

    batch: Blocks
    store: Array

    @property
    def nbytes(self) -> int:
        return int(self.store.nbytes) + sum(int(np.asarray(part).nbytes) for part in self.batch)


@dataclass(frozen=True)
class Layout:
    """All that is known of the blocks before their parts of XᵀX are counted."""

    pattern: Pattern
    schedule: Schedule
    # Numbers of items in the blocks, of different items, and of different items in D.
    members: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    twin: npt.NDArray[np.int32]
    ordered: bool = False

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return how many numbers the blocks store: the strict lower triangle of S, replaced by estimates.

        With ordered pairs they store columns of D, which the estimates replace, and then the triangle of C.
        """
        triangle = self.kinds * (self.kinds - 1) // 2
        estimates = self.targets * self.kinds
        both = triangle + estimates if self.ordered else np.maximum(triangle, estimates)
        return np.where(self.members > 1, both, 0)


def planned_bytes(sizes: Sizes, settings: Settings) -> tuple[int, float]:
    """Return the bytes of this stage in any case, and for each entry of A.

    It holds the entries of A, their estimates and the number of these; D of all blocks; one block, and its
    factor.
    """
    m, e, k = sizes.items, sizes.itemsize, min(settings.max_neighbors, sizes.items)
    one_block = int(e * _share_of_square(sizes, settings.r) * k * k) + (32 + e * sizes.ordered) * k
    factor = max(sizes.scratch, (2 + sizes.ordered) * e * k * k)
    return sizes.held + factor + (120 + 24 * TRANSPOSE_PARTS) * m + one_block, 5.0 + e + 8 * settings.r


def planned_bytes_of_rows(sizes: Sizes) -> tuple[int, float]:
    """Return the same for the last stage, which holds B by column and by row, then by row beside A."""
    return sizes.held + (60 + 24 * TRANSPOSE_PARTS) * sizes.items, 4.0 + 2 * (4 + sizes.itemsize) + 1


def planned_bytes_of_batch(sizes: Sizes, settings: Settings, entries: float) -> int:
    """Return the bytes of a batch that is worthwhile, if as few columns as possible hold the entries."""
    k, e = min(settings.max_neighbors, sizes.items) + 1, sizes.itemsize
    all_blocks = entries * (e * (_share_of_square(sizes, settings.r) * k + 1 + sizes.ordered) + 28)
    base, per_entry = planned_bytes(sizes, settings)
    return int(base + per_entry * entries + min(sizes.worthwhile_batch, all_blocks))


def _share_of_square(sizes: Sizes, r: float) -> float:
    """Return the numbers that a block of k items keeps, as a share of k², but for its item i."""
    return 0.5 + r if sizes.ordered else max(0.5, r)


def estimate_weights(
    statistics: Statistics,
    pattern: Pattern,
    schedule: Schedule,
    ridge: Floats,
    *,
    dtype: str,
    engine: Engine,
    held: int,
    worthwhile: int,
    keep: Callable[[Callable[[], Gathered]], Gathered] | None = None,
) -> Rows:
    """Return B of the sparse model, from a pattern with sorted columns; `held` bytes are in use already.

    A batch of blocks gets `worthwhile` bytes, or what the memory allows. If the blocks are one batch, and
    there is room for a copy, `keep(gather)` returns their parts of S, from an earlier fit or gathered now.
    """
    m, memory = statistics.m, engine.memory
    column_ptr, columns = pattern.column_ptr, pattern.neighbors
    with engine.stage("kinds", 1):
        # Identical items were used at different steps, so with ordered pairs every item stands for itself.
        ordered = statistics.order is not None
        twin = np.arange(m, dtype=np.int32) if ordered else statistics.first_twins(engine)
        members = np.diff(column_ptr)[schedule.heads] + 1
        kinds, targets = members, np.diff(schedule.dependent_ptr)
        if (twin != np.arange(m)).any():
            kinds, targets = np.empty((2, len(schedule)), np.int64)
            where = column_ptr, columns, schedule.heads, schedule.dependent_ptr, schedule.dependents, twin
            engine.run(
                lambda t, last_set: kernels.distinct_sizes(*t, *where, kinds, targets, last_set),
                split_evenly(members, 256),
                scratch=lambda: np.full(m, -1, np.int64),
                scratch_bytes=8 * m,
            )
    layout = Layout(pattern, schedule, members, kinds, targets, twin, ordered)

    advice = "Make the blocks smaller: a smaller sparsity or a smaller max_neighbors."
    itemsize = np.dtype(dtype).itemsize
    counts = np.min_scalar_type(int(np.bincount(schedule.dependents, minlength=1).max()))
    block_bytes = layout.lengths() * itemsize + members * _PER_MEMBER + kinds * _PER_KIND
    held += (4 + itemsize + counts.itemsize) * len(columns) + 120 * m + 4 * len(schedule.dependents)
    held += 24 * TRANSPOSE_PARTS * m
    memory.require("rows", held + 2 * (4 + itemsize) * len(columns), advice)
    held += max(engine.scratch, (2 + ordered) * int(kinds.max()) ** 2 * itemsize)
    batch_ranges = batches(block_bytes, worthwhile, held, engine, advice)
    additions = 2.0 * float(statistics.X.rank.sum(dtype=np.int64)) + len(statistics.X.items)
    expected = costs.of_blocks(kinds, targets, len(batch_ranges) * additions, ordered)
    # The largest blocks come first, while all steps of a range take the same time.
    spent = np.concatenate([[0.0], np.cumsum(kinds**2.5)])
    ends = np.array([0, *(last for _, last in batch_ranges)])
    marks = np.linspace(0, len(kinds), 101)
    engine.expect(expected, (np.interp(marks, ends, spent[ends]) / spent[-1]).tolist())

    total, count = np.zeros(len(columns), dtype), np.zeros(len(columns), counts)
    column_tasks = split_evenly(np.diff(column_ptr) + 1, 64)
    steps = [stop - start for start, stop in column_tasks]

    def add(batch: Blocks, estimates: Array) -> None:
        """Add a batch of estimates to the entries of A, block by block."""
        with engine.stage("average", m * batch.of, (m * batch.first, m * batch.last)):
            engine.run(
                lambda t, kind_of: kernels.add_estimates(
                    *t, column_ptr, columns, batch, estimates, total, count, kind_of
                ),
                column_tasks,
                scratch=lambda: np.full(m, -1, np.int32),
                scratch_bytes=4 * m,
                costs=[step * (batch.last - batch.first) for step in steps],
            )

    def gather() -> Gathered:
        batch = lay_out(layout, *batch_ranges[0], engine)
        return Gathered(batch, gather_blocks(statistics, dtype, batch, engine))

    if keep and len(batch_ranges) == 1 and held + 2 * int(block_bytes.sum()) <= memory.limit:
        gathered = keep(gather)
        store = np.empty_like(gathered.store)
        pieces = [slice(*piece) for piece in ranges(0, len(store), _COPIED)]
        engine.run(lambda piece: np.copyto(store[piece], gathered.store[piece]), pieces)
        solve_blocks(statistics, ridge, gathered.batch, store, engine)
        add(gathered.batch, store)
        del store
    else:
        for some in batch_ranges:
            batch = lay_out(layout, *some, engine)
            store = gather_blocks(statistics, dtype, batch, engine)
            solve_blocks(statistics, ridge, batch, store, engine)
            add(batch, store)
            del batch, store

    with engine.stage("weights", m):
        engine.run(
            lambda t: kernels.average_and_rescale(
                *t, column_ptr, columns, statistics.s, statistics.scaling.a, total, count
            ),
            column_tasks,
            costs=steps,
        )
    with engine.stage("rows", 1):
        return Rows(*transposed(column_ptr, columns, m, engine, total), m)


def gather_blocks(statistics: Statistics, dtype: str, batch: Blocks, engine: Engine) -> Array:
    """Stream the rows of XᵀX into the blocks: return the strict lower triangles of their parts."""
    m, tasks = statistics.m, statistics.row_tasks()
    with engine.stage("gather", m * batch.of, (m * batch.first, m * batch.last)):
        store = np.empty(int(batch.store_ptr[-1]), dtype)
        # List the blocks of every item that is not identical to an earlier one, and its index in the block,
        # counted from 1.
        starts = batch.kind_ptr.astype(np.int32)
        index = np.arange(1, starts[-1] + 1, dtype=np.int32) - np.repeat(starts[:-1], np.diff(starts))
        of_item = transposed(batch.kind_ptr, batch.kinds, m, engine, index)
        del index
        order = statistics.order
        gather = kernels.gather if order is None else of_order.gather_ordered
        what = (statistics.X,) if order is None else (statistics.X, order)
        engine.run(
            lambda t, accumulator: gather(*what, *t, *of_item, batch, store, accumulator),
            tasks,
            scratch=statistics.accumulator if order is None else statistics.ordered_accumulator,
            scratch_bytes=8 * m if order is None else 8 * of_order.PLANES * m,
            costs=_even_steps(m * (batch.last - batch.first), len(tasks)),
        )
    return store


def solve_blocks(statistics: Statistics, ridge: Floats, batch: Blocks, store: Array, engine: Engine) -> None:
    """Replace the parts of XᵀX of the blocks by their estimates, in place, largest blocks first."""
    size = np.diff(batch.kind_ptr)
    largest = int(size.max())
    by_size = np.argsort(-size, kind="stable")
    # The time of a small block grows with k² (copying), and of a large one with k³ (factorising). k^2.5
    # balances the pieces well enough, and the constant stands for the calls themselves.
    pieces = [by_size[p:q] for p, q in split_evenly(size[by_size] ** 2.5 + 1000.0, 512)]
    work_size = 2 * largest * largest + largest
    solve = kernels.solve_blocks
    diagonals: tuple[Floats, ...] = (statistics.S_diagonal,)
    if statistics.order is not None:
        solve, diagonals = of_order.solve_ordered, (statistics.S_diagonal, statistics.order.diagonal)
        work_size = int((size * (size + 2 * np.diff(batch.dependent_ptr))).max())
    with engine.stage("solve", batch.of, (batch.first, batch.last)):
        failed = engine.run(
            lambda piece, space: solve(
                lapack(store.dtype.name),
                piece,
                batch,
                statistics.scaling,
                *diagonals,
                ridge,
                store,
                *space,
            ),
            pieces,
            scratch=lambda: (
                np.empty(work_size, store.dtype),
                np.empty(largest, np.int64),
                *np.empty((2, largest)),
            ),
            scratch_bytes=work_size * store.itemsize,
            costs=_even_steps(batch.last - batch.first, len(pieces)),
        )
    block = next((b for b in failed if b >= 0), None)
    if block is not None:
        raise not_positive_definite(block_name(batch, block), store.dtype.name)


def block_name(batch: Blocks, block: int) -> str:
    k = int(batch.member_ptr[block + 1] - batch.member_ptr[block])
    return f"the block of item {batch.heads[block]} ({k} items)"


def _even_steps(total: int, parts: int) -> list[int]:
    """Divide the steps of a progress bar evenly among tasks of similar duration."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def lay_out(layout: Layout, first: int, last: int, engine: Engine) -> Blocks:
    """Prepare a batch of blocks: everything about them but their parts of XᵀX."""
    some, schedule, twin = slice(first, last), layout.schedule, layout.twin
    member_ptr, kind_ptr, store_ptr = (
        np.concatenate([[0], np.cumsum(sizes[some])])
        for sizes in (layout.members, layout.kinds, layout.lengths())
    )
    start, stop = schedule.dependent_ptr[first], schedule.dependent_ptr[last]
    batch = Blocks(
        first=first,
        last=last,
        of=len(schedule),
        heads=schedule.heads[some],
        member_ptr=member_ptr,
        members=np.empty(member_ptr[-1], np.int32),
        member_kind=np.empty(member_ptr[-1], np.int32),
        kind_ptr=kind_ptr,
        kinds=np.empty(kind_ptr[-1], np.int32),
        copies=np.empty(kind_ptr[-1], np.int32),
        target=np.empty(kind_ptr[-1], np.int32),
        dependent_ptr=schedule.dependent_ptr[first : last + 1] - start,
        dependents=schedule.dependents[start:stop],
        store_ptr=store_ptr,
    )
    columns = layout.pattern.column_ptr, layout.pattern.neighbors
    columns_with_diagonal(*columns, batch.heads, member_ptr, batch.members)
    engine.run(
        lambda t, index: kernels.find_kinds(batch, twin, *t, index),
        split_evenly(layout.members[some], 256),
        scratch=lambda: np.full(len(twin), -1, np.int32),
        scratch_bytes=4 * len(twin),
    )
    return batch


def batches(
    block_bytes: npt.NDArray[np.int64], worthwhile: int, held: int, engine: Engine, advice: str
) -> list[tuple[int, int]]:
    """Cut the blocks into ranges, in order: of `worthwhile` bytes, or what the memory allows."""
    memory = engine.memory
    memory.require("blocks", held + int(block_bytes.max()), advice)
    budget = min(worthwhile, memory.limit - held)
    memory.require("blocks", held + min(budget, int(block_bytes.sum())), advice)
    ends, cuts = np.cumsum(block_bytes), [0]
    while cuts[-1] < len(ends):
        first = cuts[-1]
        before = int(ends[first - 1]) if first else 0
        cuts.append(max(int(np.searchsorted(ends, before + budget, "right")), first + 1))
    return list(pairwise(cuts))
