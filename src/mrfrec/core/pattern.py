"""§3.1: the sparsity pattern A. Entry (j, i) is kept where |S_ji| > threshold, then at most so many a column.

Magnitudes are compared as float32: pairs that are equal in exact arithmetic then tie, instead of being
ordered by the last bit of rounding. Ties go to the item that follows i most closely in cyclic order. On
data where thousands of items are used by the same one person, and so all tie, this spreads the neighbours
over the group; lowest index first would give every item of the group the same few.
"""

from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.kernels import pattern as kernels
from mrfrec.core.resources import MemoryPlan, Workers
from mrfrec.core.statistics import Statistics, split_evenly

__all__ = ["BYTES_PER_ENTRY", "Pattern", "find_pattern", "square_csc"]

BYTES_PER_ENTRY = 36  # for each entry asked for: a quarter more are found, and held as below
_PER_PAIR, _PER_SETTLED = 24, 16  # bytes: a pair and its two keys; an item and a magnitude, old and new
_SAMPLE = 1024  # rows that are looked at first to choose a threshold
_SMALL_SAMPLE = 256  # to foresee only the memory a given threshold takes
_MARGIN = 1.25  # entries kept beyond those asked for, since the sample is only a sample
_COARSE, _FINE = 16, 12  # low bits a histogram ignores: bins 0.8 % wide for the sample, 0.05 % for the choice
_ROUND = 40_000_000  # pairs, at most, after which the cap is applied: what is held before the cap bites
_LEAST_ROUND = 1_000_000


@dataclass(frozen=True)
class Pattern:
    """A without its diagonal: column i holds neighbors[column_ptr[i]:column_ptr[i+1]], largest |S| first."""

    column_ptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    threshold: float

    def with_sorted_columns(self, workers: Workers, *, in_place: bool) -> "Pattern":
        """Each column in ascending order; in place where the schedule was the last to need the ranking."""
        neighbors = self.neighbors if in_place else self.neighbors.copy()
        tasks = split_evenly(np.diff(self.column_ptr) + 1, 256)
        workers.run(lambda t: kernels.sort_columns(self.column_ptr, neighbors, *t), tasks)
        return self if in_place else replace(self, neighbors=neighbors)

    def columns_with_diagonal(
        self, items: npt.NDArray[Any], ptr: npt.NDArray[np.int64], out: npt.NDArray[np.int32]
    ) -> None:
        """N(i) ∪ {i} of some items, ascending, from `ptr` on; of sorted columns."""
        kernels.columns_with_diagonal(self.column_ptr, self.neighbors, items, ptr, out)

    def to_matrix(self) -> sp.csc_array:
        """A itself, diagonal included; of sorted columns."""
        m = len(self.column_ptr) - 1
        ptr = self.column_ptr + np.arange(m + 1)
        rows = np.empty(ptr[-1], np.int32)
        self.columns_with_diagonal(np.arange(m), ptr, rows)
        return square_csc(np.ones(len(rows), np.bool_), rows, ptr)


def square_csc(
    data: npt.NDArray[Any], rows: npt.NDArray[np.int32], ptr: npt.NDArray[np.int64]
) -> sp.csc_array:
    """A square csc_array around these arrays, whose rows ascend; with 32-bit indices where they do."""
    index = np.int32 if len(rows) < 2**31 else np.int64
    m = len(ptr) - 1
    matrix = sp.csc_array((data, rows.astype(index, copy=False), ptr.astype(index)), shape=(m, m))
    matrix.has_canonical_format = True
    return matrix


def find_pattern(
    statistics: Statistics,
    *,
    threshold: float | None,
    sparsity: float | None,
    max_neighbors: int,
    workers: Workers,
    plan: MemoryPlan,
    held: int,
) -> Pattern:
    """A, by a threshold or by the share of entries to keep; `held` bytes are in use already."""
    m = statistics.m
    most = min(max_neighbors, m) - 1
    with workers.stage("pattern", m):
        sample = _sample(statistics, _SAMPLE if threshold is None else _SMALL_SAMPLE, workers)
        if threshold is not None:
            columns, _ = _stream(
                statistics,
                np.float32(threshold),
                most,
                sample.above(threshold),
                workers,
                plan,
                held,
                tally=False,
            )
            return Pattern(columns.ptr, columns.items, float(threshold))

        assert sparsity is not None
        wanted = max(sparsity * m * m - m, 0.0)  # besides the diagonal
        margin = _MARGIN
        while True:
            lowest = sample.threshold_for(margin * wanted)
            columns, found = _stream(
                statistics, lowest, most, sample.above(float(lowest)), workers, plan, held, tally=True
            )
            total = found.entries.sum()
            if total >= wanted or lowest == 0:
                break
            # The sample was off: one more pass.
            margin *= 1.5 * wanted / max(total, 1.0)
        final = max(found.threshold_for(wanted), lowest)
        kept = kernels.kept_per_column(columns.ptr, columns.sizes, final)
        return Pattern(*_keep_first(columns, kept), float(final))


# ── histograms of magnitude: bin b holds the float32 whose bits, shifted, are b ────────────────────


@dataclass(frozen=True)
class _Histogram:
    entries: npt.NDArray[Any]
    shift: int

    def above(self, threshold: float) -> float:
        """About how many entries lie above a threshold."""
        return float(self.entries[int(np.float32(threshold).view(np.uint32)) >> self.shift :].sum())

    def threshold_for(self, wanted: float) -> np.float32:
        """The edge between two bins with as near to `wanted` entries above it as can be."""
        above = np.append(np.cumsum(self.entries[::-1])[::-1], 0)
        first_bin = int(np.abs(above - wanted).argmin())
        return np.float32(np.uint32(max((first_bin << self.shift) - 1, 0)).view(np.float32))


def _bins(shift: int) -> npt.NDArray[np.int64]:
    return np.zeros(1 << (31 - shift), np.int64)


def _row_scratch(statistics: Statistics) -> tuple[npt.NDArray[Any], ...]:
    """Per thread: a row of XᵀX and the magnitudes of a row."""
    return statistics.accumulator(), np.empty(statistics.m, np.float32)


def _sample(statistics: Statistics, size: int, workers: Workers) -> _Histogram:
    """Magnitudes in `size` rows, evenly spaced by popularity, scaled up to all of S."""
    m = statistics.m
    by_popularity = np.argsort(-statistics.popularity, kind="stable")
    size = min(m, size)
    sample = by_popularity[((np.arange(size) + 0.5) * m / size).astype(np.int64)]
    histograms: list[npt.NDArray[np.int64]] = []
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)

    def scratch() -> tuple[Any, ...]:
        histograms.append(_bins(_COARSE))
        return histograms[-1], _COARSE, *_row_scratch(statistics)

    def work(rows: npt.NDArray[np.int64], space: tuple[Any, ...]) -> None:
        counts = np.empty(len(rows), np.int64)
        kernels.row_entries(
            statistics.X, statistics.scaling, rows, 0, np.float32(0), *space, counts, *nothing
        )

    workers.run(work, [sample[start : start + 16] for start in range(0, size, 16)], scratch=scratch)
    return _Histogram(2 * np.sum(histograms, axis=0) * (m / size), _COARSE)


# ── the pass over all pairs ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Pairs:
    """Entries before the diagonal of a few rows of S."""

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.float32]


class _PairBuffer:
    """Room for the pairs of a round, shared by the threads and used again and again: a fixed size."""

    def __init__(self, size: int) -> None:
        self.items, self.sizes = np.empty(size, np.int32), np.empty(size, np.float32)
        self.used = 0
        self._taking = Lock()

    def take(
        self,
        rows: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        items: npt.NDArray[np.int32],
        sizes: npt.NDArray[np.float32],
    ) -> _Pairs:
        """Copy what a thread has found."""
        total = int(counts.sum())
        with self._taking:
            part = slice(self.used, self.used + total)
            self.used += total
        self.items[part], self.sizes[part] = items[:total], sizes[:total]
        return _Pairs(rows, counts, self.items[part], self.sizes[part])

    def empty(self, size: int) -> None:
        """Begin again, with no more room than `size`."""
        self.items, self.sizes = self.items[:size], self.sizes[:size]
        self.used = 0


@dataclass(frozen=True)
class _Columns:
    """Capped columns, largest magnitude first."""

    ptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.float32]


def _stream(
    statistics: Statistics,
    threshold: np.float32,
    most: int,
    expected: float,
    workers: Workers,
    plan: MemoryPlan,
    held: int,
    *,
    tally: bool,
) -> tuple[_Columns, _Histogram]:
    """Every pair of items once; those above the threshold go to the columns of both.

    When the pairs found fill the room there is for them, the columns are capped and the pass goes on: data
    may hold hundreds of millions of pairs that the cap then throws away.
    """
    m = statistics.m
    row_room = max(m, 1 << 18)  # pairs a thread finds before it hands them over
    histograms: list[npt.NDArray[np.int64]] = []
    advice = "Keep fewer entries: a larger threshold, a smaller sparsity or a smaller max_neighbors."
    forecast = int(min(1.1 * expected, float(most) * m))
    most_pairs = int(min(max(0.55 * expected, _LEAST_ROUND), _ROUND))
    overshoot = workers.threads * row_room

    def pairs_that_fit(columns: _Columns) -> int:
        settled = held + _PER_SETTLED * max(forecast, len(columns.items))
        least = min(most_pairs, _LEAST_ROUND) + overshoot
        plan.require("pattern", settled + _PER_PAIR * least, advice)
        count = min((plan.limit - settled) // _PER_PAIR, most_pairs + overshoot)
        plan.require("pattern", settled + _PER_PAIR * count, advice)
        return count

    def scratch() -> tuple[Any, ...]:
        histograms.append(_bins(_FINE) if tally else np.empty(0, np.int64))
        output = np.empty(row_room, np.int32), np.empty(row_room, np.float32)
        return (histograms[-1], _FINE, *_row_scratch(statistics)), output

    def work(task: tuple[int, int], space: tuple[Any, ...]) -> tuple[list[_Pairs], tuple[int, int]]:
        """The pairs of some rows, and the rows that are left where the round is full."""
        rows, counts = np.arange(*task), np.empty(task[1] - task[0], np.int64)
        inner, found = space
        pieces, start = [], 0
        while start < len(rows) and buffer.used + overshoot <= len(buffer.items):
            stop = kernels.row_entries(
                statistics.X, statistics.scaling, rows, start, threshold, *inner, counts, *found
            )
            part = slice(start, stop)
            pieces.append(buffer.take(rows[part], counts[part], *found))
            start = stop
        return pieces, (task[0] + start, task[1])

    columns = _Columns(np.zeros(m + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    buffer = _PairBuffer(pairs_that_fit(columns))
    tasks = statistics.row_tasks()
    while tasks:
        found = workers.run(
            work, tasks, scratch=scratch, costs=lambda result: sum(len(piece.rows) for piece in result[0])
        )
        columns = _settle(columns, [piece for pieces, _ in found for piece in pieces], most, workers)
        tasks = [left for _, left in found if left[0] < left[1]]
        if tasks:
            buffer.empty(pairs_that_fit(columns))
    return columns, _Histogram(2 * np.sum(histograms, axis=0), _FINE)


def _settle(columns: _Columns, pairs: list[_Pairs], most: int, workers: Workers) -> _Columns:
    """The columns with the pairs added, each cut back to its `most` largest entries."""
    m = len(columns.ptr) - 1
    fresh = np.zeros(m, np.int64)
    for piece in pairs:
        kernels.count_directed(piece.rows, piece.counts, piece.items, fresh)
    key_ptr = np.concatenate([[0], np.cumsum(fresh)])
    keys, slot = np.empty(key_ptr[-1], np.uint64), key_ptr[:-1].copy()
    for piece in pairs:
        kernels.fill_directed(piece.rows, piece.counts, piece.items, piece.sizes, m, slot, keys)
    sizes = np.minimum(np.diff(columns.ptr) + fresh, most)
    new_ptr = np.concatenate([[0], np.cumsum(sizes)])
    settled = _Columns(new_ptr, np.empty(new_ptr[-1], np.int32), np.empty(new_ptr[-1], np.float32))
    workers.run(
        lambda t: kernels.settle_columns(
            *t,
            most,
            key_ptr,
            keys,
            columns.ptr,
            columns.items,
            columns.sizes,
            settled.ptr,
            settled.items,
            settled.sizes,
        ),
        split_evenly(fresh + 1, 256),
    )
    return settled


def _keep_first(
    columns: _Columns, kept: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Only the first `kept` entries of each column."""
    ptr = np.concatenate([[0], np.cumsum(kept)])
    index = np.arange(ptr[-1]) + np.repeat(columns.ptr[:-1] - ptr[:-1], kept)
    return ptr, columns.items[index]
