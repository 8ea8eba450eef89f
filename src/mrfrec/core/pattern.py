"""§3.1: the sparsity pattern A. Entry (j, i) is kept where |S_ji| > threshold, then at most so many a column.

Magnitudes are compared as float32: pairs that are equal in exact arithmetic then tie, instead of being
ordered by the last bit of rounding. Within column i, ties go to the item that follows i most closely in
cyclic order. Where thousands of items are used by the same one person, and so all tie, this spreads the
neighbours over the group; lowest index first would give every item of the group the same few.

`sparsity=q` asks for round(q·m²) entries, diagonal included, before the cap. The threshold moves in steps of
0.05 %, and the step that comes nearest to that number is taken if it misses it by 1 % or less. Otherwise
many entries share one step, and this step is cut: its entries are dealt out to the columns in turn, by index,
first the largest entry of a column (ties as above), then the second, and so on, until the number is reached.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import entries
from mrfrec.core.engine import Array, Engine, split_evenly
from mrfrec.core.entries import COARSE, FINE, Columns, Histogram, Scratch
from mrfrec.core.kernels import pattern as kernels
from mrfrec.core.plan import Sizes
from mrfrec.core.statistics import Statistics

# Bytes of a pair (its item and magnitude, and the keys of its two entries), of an entry (its key, and at the
# end its item), and of an interaction while the lengths of the histories are looked up.
_PER_PAIR, _PER_KEY, _PER_INTERACTION = 24, 12, 9
# More pairs than this, 1 GB, are not collected: the cap drops most of them, and columns hold only the rest.
_MOST_PAIRS = 40_000_000
# So many entries are collected at once even if far fewer are wanted.
_FEW_ENTRIES = 2_000_000
# A sample of so many rows chooses the first threshold, and so many times the wanted entries are collected,
# since the sample may be off.
_SAMPLE, _MARGIN = 1024, 1.25
# A pass has so many tasks of about equal cost, so that all threads finish at about the same time.
_TASKS = 512
# Steps of progress in a pass.
_STEPS = 10_000
_NO_LIMITS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Pattern:
    """A without its diagonal: column i holds neighbors[column_ptr[i]:column_ptr[i+1]], largest |S| first."""

    column_ptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    threshold: float

    @property
    def nbytes(self) -> int:
        return int(self.column_ptr.nbytes + self.neighbors.nbytes)

    def with_sorted_columns(self, workers: Engine, *, in_place: bool) -> "Pattern":
        """Return the pattern with ascending columns; in place where nothing else needs the ranking."""
        neighbors = self.neighbors if in_place else self.neighbors.copy()
        tasks = split_evenly(np.diff(self.column_ptr) + 1, 256)
        workers.run(lambda t: kernels.sort_columns(self.column_ptr, neighbors, *t), tasks)
        return self if in_place else replace(self, neighbors=neighbors)

    def to_matrix(self) -> sp.csc_array:
        """Return A itself, diagonal included, from sorted columns."""
        m = len(self.column_ptr) - 1
        ptr = self.column_ptr + np.arange(m + 1)
        rows = np.empty(ptr[-1], np.int32)
        everything = np.arange(m, dtype=np.int32)
        kernels.columns_with_diagonal(self.column_ptr, self.neighbors, everything, ptr, rows)
        return square_csc(np.ones(len(rows), np.bool_), rows, ptr)


def square_csc(data: Array, rows: npt.NDArray[np.int32], ptr: npt.NDArray[np.int64]) -> sp.csc_array:
    """Return a square csc_array around these arrays, with ascending rows and 32-bit indices if possible."""
    index = np.int32 if len(rows) < 2**31 else np.int64
    m = len(ptr) - 1
    matrix = sp.csc_array((data, rows.astype(index, copy=False), ptr.astype(index)), shape=(m, m))
    matrix.has_canonical_format = True
    return matrix


def planned_bytes(sizes: Sizes) -> tuple[int, float]:
    """Return the bytes of this stage in any case, and for each entry of A.

    There are up to twice the entries asked for, or two million, as pairs or keys, and lengths of histories.
    """
    return sizes.held + sizes.scratch + 27_000_000 + 9 * sizes.pairs, 27.0


def find_pattern(
    statistics: Statistics,
    *,
    sparsity: float | None,
    max_neighbors: int,
    workers: Engine,
    held: int,
) -> Pattern:
    """Find A, by the share of entries to keep.

    `held` bytes are in use already, the scratch space of every thread included. There are at most five passes
    over the data, and one if the sample is right and the cap drops none of the tied entries.
    """
    search = _PatternSearch(statistics, min(max_neighbors, statistics.m) - 1, workers, held)
    assert sparsity is not None
    return search.by_share(max(round(sparsity * statistics.m * statistics.m) - statistics.m, 0))


class _TooManyError(Exception):
    """There are more entries than may be kept."""


class _Allowance:
    """How many pairs or keys all threads together may still keep."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._lock = Lock()

    def take(self, count: int) -> bool:
        """Count what a thread keeps; whether it may."""
        with self._lock:
            self.left -= count
            return self.left >= 0


def _run(
    statistics: Statistics,
    work: Callable[[Any, Scratch], Any],
    ranges: tuple[list[Any], list[int]],
    engine: Engine,
    shift: int = FINE,
    most: int = 0,
) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Run tasks with one scratch space per thread; return their results and the histogram of all."""
    tasks, steps = ranges
    histograms: list[npt.NDArray[np.int64]] = []

    def scratch() -> Scratch:
        space = Scratch(statistics, shift, most)
        histograms.append(space.histogram)
        return space

    room = entries.bytes_for_scratch(statistics.m, most)
    results = engine.run(work, tasks, scratch=scratch, scratch_bytes=room, costs=steps)
    return results, np.sum(histograms, axis=0)


class _PatternSearch:
    """The passes over the data that find one pattern."""

    def __init__(self, statistics: Statistics, most: int, workers: Engine, held: int) -> None:
        self.statistics, self.most, self.workers, self.held = statistics, most, workers, held
        self.passes_begun, self.passes_expected = 0, 1

    def by_share(self, wanted: int) -> Pattern:
        """Keep `wanted` entries besides the diagonal, before the cap."""
        sample = self.sample(_SAMPLE)
        lowest = sample.at_least(_MARGIN * wanted)
        for attempt in range(3):
            expected = sample.above(float(lowest))
            columns: list[Columns] | None = None
            if expected > max(2 * wanted, _FEW_ENTRIES):  # many tie: count first, collect later
                self.passes_expected = self.passes_begun + 3
                _, found = self.by_columns(lowest, most=0)
            else:
                columns, found = self.collect(lowest, expected)
            total = found.above_edge[0]
            if total >= wanted or lowest == 0:
                break
            # The sample was off. Correct it by the number of entries; then, if need be, take all entries.
            right = 1.5 * wanted * expected / total if total and attempt == 0 else np.inf
            lowest = sample.at_least(right)

        edge, ties, tied, dealt = found.choose(wanted)
        threshold, limits = max(edge, lowest), _NO_LIMITS
        if columns is not None:
            self.cut(columns, threshold, ties, limits)
        if dealt:
            counted = columns
            if counted is None or sum(part.tied.sum() for part in counted) < tied:  # dropped by the cap
                counted, _ = self.by_columns(threshold, most=0, ties=ties)
            limits = entries.deal(np.concatenate([part.tied for part in counted]), dealt)
        if columns is None:
            columns, _ = self.by_columns(threshold, self.most, 1.01 * wanted, ties, limits)
        elif dealt:
            self.cut(columns, threshold, ties, limits)
        return self.pattern(columns, float(threshold))

    def sample(self, size: int) -> Histogram:
        """Count the magnitudes in `size` rows, evenly spaced by popularity, scaled up to all of S."""
        m, size = self.statistics.m, min(self.statistics.m, size)
        by_popularity = np.argsort(-self.statistics.popularity, kind="stable")
        rows = by_popularity[((np.arange(size) + 0.5) * m / size).astype(np.int64)]
        tasks = [rows[start : start + 16] for start in range(0, size, 16)]
        with self.between_passes():
            _, bins = _run(
                self.statistics,
                lambda part, scratch: entries.list_pairs(self.statistics, np.float32(0), part, scratch, None),
                (tasks, [0] * len(tasks)),
                self.workers,
                COARSE,
            )
        return Histogram(2 * bins * (m / size), COARSE)

    def collect(self, threshold: np.float32, expected: float) -> tuple[list[Columns], Histogram]:
        """Collect about `expected` entries above a threshold, cut to the cap: by pairs if these are few."""
        allowed = min(_MOST_PAIRS, (self.workers.memory.limit - self.held) // _PER_PAIR)
        pairs = int(0.55 * expected)  # a tenth more than the sample tells
        if pairs <= allowed:
            self.require(_PER_PAIR * pairs)
            with self.next_pass(), suppress(_TooManyError):
                return self.by_pairs(threshold, allowed)
        return self.by_columns(threshold, self.most, 1.1 * expected)

    def by_pairs(self, threshold: np.float32, allowed: int) -> tuple[list[Columns], Histogram]:
        """Collect entries by pairs; raise if there are more than `allowed`."""
        m = self.statistics.m
        pieces, bins = self.listed(entries.list_pairs, 0, allowed, self.statistics.X.rank, threshold)
        self.require(_PER_PAIR * sum(len(piece.items) for piece in pieces))
        counts = np.zeros(m, np.int64)
        for piece in pieces:
            kernels.count_directed(*piece[:3], counts)
        ptr = np.concatenate([[0], np.cumsum(counts)])
        keys, slot = np.empty(ptr[-1], np.uint64), ptr[:-1].copy()
        for piece in pieces:
            kernels.fill_directed(*piece, m, slot, keys)
        del pieces
        self.workers.run(
            lambda t: kernels.sort_keys(*t, self.most, ptr, keys, counts), split_evenly(counts + 1, 256)
        )
        return [Columns(0, ptr[:-1], counts, keys, np.zeros(m, np.int64))], Histogram(2 * bins, FINE)

    def by_columns(
        self,
        threshold: np.float32,
        most: int,
        expected: float = 0.0,
        ties: np.float32 | None = None,
        limits: npt.NDArray[np.int64] = _NO_LIMITS,
    ) -> tuple[list[Columns], Histogram]:
        """Collect the `most` largest entries of each column, about `expected` in all; 0 only counts."""
        fixed = _PER_INTERACTION * len(self.statistics.X.items)
        self.require(fixed + _PER_KEY * int(min(expected, self.statistics.m * most)))
        allowed = (self.workers.memory.limit - self.held - fixed) // _PER_KEY
        ties = threshold if ties is None else ties
        options = threshold, self.lengths, ties, limits
        try:
            with self.next_pass():
                columns, bins = self.listed(entries.list_columns, most, allowed, self.lengths, *options)
        except _TooManyError:
            self.require(fixed + _PER_KEY * self.statistics.m * most)
            raise
        self.require(fixed + _PER_KEY * sum(len(part.keys) for part in columns))
        return columns, Histogram(bins, FINE)

    @cached_property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """The lengths of the histories of the users of every item."""
        return entries.history_lengths(self.statistics.X.begin)

    def cut(
        self, columns: list[Columns], threshold: np.float32, ties: np.float32, limits: npt.NDArray[np.int64]
    ) -> None:
        """Cut the columns back to what is above the threshold, and limits[i] of what is not above `ties`."""
        with self.between_passes():
            for part in columns:
                kernels.cut_columns(
                    part.first, part.ptr, part.keys, threshold, ties, limits, part.counts, part.tied
                )

    def pattern(self, columns: list[Columns], threshold: float) -> Pattern:
        """Decode the keys."""
        with self.between_passes():
            ptr = np.concatenate([[0], np.cumsum(np.concatenate([part.counts for part in columns]))])
            neighbors = np.empty(ptr[-1], np.int32)
            for part in columns:
                out = neighbors[ptr[part.first] :]
                kernels.decode_columns(part.first, self.statistics.m, part.ptr, part.keys, part.counts, out)
        return Pattern(ptr, neighbors, threshold)

    def listed(
        self, lister: Callable[..., list[Any]], most: int, allowed: int, counts: Array, *options: Any
    ) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """List the entries of all rows by a function of `entries`, and their histogram.

        Raise if there are more than `allowed`.
        """
        allowance = _Allowance(allowed)

        def work(rows: tuple[int, int], scratch: Scratch) -> list[Any]:
            return lister(self.statistics, *options, np.arange(*rows), scratch, allowance.take)

        found, bins = _run(self.statistics, work, self.tasks(counts), self.workers, most=most)
        if allowance.left < 0:
            raise _TooManyError
        return [piece for part in found for piece in part], bins

    def tasks(self, counts: Array) -> tuple[list[tuple[int, int]], list[int]]:
        """Split the rows into ranges of about equal work; return them and their steps of progress."""
        item_ptr = self.statistics.X.item_ptr
        additions = np.ones(self.statistics.m, np.int64)
        # NumPy converts to 64 bits what it adds up, so only a part is added up at one time.
        for first, last in split_evenly(np.diff(item_ptr) + 1, _TASKS):
            used = first + np.flatnonzero(np.diff(item_ptr[first : last + 1]))
            if len(used):
                part = counts[item_ptr[first] : item_ptr[last]]
                additions[used] += np.add.reduceat(part, item_ptr[used] - item_ptr[first], dtype=np.int64)
        tasks = split_evenly(additions, _TASKS)
        done = np.cumsum(additions)[[stop - 1 for _, stop in tasks]]
        return tasks, np.diff(done * _STEPS // done[-1], prepend=0).tolist()

    def next_pass(self) -> AbstractContextManager[None]:
        """Time a pass and report its progress."""
        self.passes_begun += 1
        self.passes_expected = max(self.passes_begun, self.passes_expected)
        return self.between_passes(_STEPS)

    def between_passes(self, steps: int = 0) -> AbstractContextManager[None]:
        """Time what is no pass; the progress stays where it is."""
        end = _STEPS * self.passes_begun
        return self.workers.stage("pattern", _STEPS * self.passes_expected, (end - steps, end))

    def require(self, needed: int) -> None:
        """Raise an error if `needed` further bytes do not fit in memory."""
        advice = "Keep fewer entries: a smaller sparsity or a smaller max_neighbors."
        self.workers.memory.require("pattern", self.held + needed, advice)
