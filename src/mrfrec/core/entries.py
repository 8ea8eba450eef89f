"""§3.1: entries of S above a threshold, by pairs or by columns, and the threshold for a number of entries.

`list_pairs` and `list_columns` are pure functions over ranges of items, apart from their scratch space.
Magnitudes are float32. The two find the same entries:

- by pairs, a pair of items is computed once, in the row of the later item, and goes to both columns;
- by columns, a column is computed whole and cut to its largest entries at once. This takes twice the
  additions, but never holds more than the cap leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Array
from mrfrec.core.kernels import pattern as kernels
from mrfrec.core.statistics import Statistics

# A histogram ignores so many low bits: bins are 0.8 % wide for a sample, and 0.05 % wide for the choice.
COARSE, FINE = 16, 12
# An edge between two bins may miss the wanted entries by this share of them.
_TOLERANCE = 0.01
# A thread collects so many pairs before it hands them over: 2 MB, which fit into a processor's cache.
_ROOM = 1 << 18


class Scratch:
    """Arrays that a thread uses for one range of items after another; `histogram` adds up over all of them.

    Columns are cut to `most` entries; the histogram ignores `shift` bits.
    """

    def __init__(self, statistics: Statistics, shift: int, most: int) -> None:
        room = max(statistics.m, _ROOM)
        self.accumulator = statistics.accumulator()
        self.items = np.empty(room, np.int32)
        self.sizes = np.empty(room, np.float32)
        self.histogram = np.zeros(1 << (31 - shift), np.int64)
        self.shift = shift
        self.largest = np.empty(2 * most, np.uint64)
        self.keys = np.empty(max(_ROOM // 4, most), np.uint64)


def bytes_for_scratch(m: int, most: int) -> int:
    """Return the bytes of the `Scratch` that a thread needs."""
    return 8 * m + 8 * max(m, _ROOM) + 8 * (1 << (31 - FINE)) + 16 * most + 8 * max(_ROOM // 4, most)


class Pairs(NamedTuple):
    """Entries before the diagonal of some rows of S, row by row."""

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # entries per row
    items: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Columns:
    """The columns from `first` on: column `first + c` has keys[ptr[c] : ptr[c] + counts[c]], largest first.

    A key holds a magnitude and a distance in cyclic order. `tied` counts the entries of each column that tie
    at the threshold.
    """

    first: int
    ptr: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    tied: npt.NDArray[np.int64]


def history_lengths(begin: Array) -> npt.NDArray[np.uint32]:
    """Return the length of the history of every interaction.

    `begin` holds the index at which the history of an interaction begins.
    """
    is_begin = np.zeros(len(begin), np.bool_)
    is_begin[begin] = True
    users = np.flatnonzero(is_begin)
    lengths = np.zeros(len(begin), np.uint32)
    lengths[users] = np.diff(users, append=len(begin))
    return np.asarray(lengths[begin])


def list_pairs(
    statistics: Statistics,
    threshold: np.float32,
    rows: npt.NDArray[np.int64],
    scratch: Scratch,
    may_keep: Callable[[int], bool] | None,
) -> list[Pairs]:
    """List the pairs of these rows with |S| > threshold; stop when `may_keep(count)` returns False.

    Without `may_keep`, only fill the histogram.
    """
    counts = np.empty(len(rows), np.int64)
    pairs = []
    start = 0
    while start < len(rows):
        stop = kernels.list_pairs(
            statistics.X, statistics.scaling, rows, start, threshold, scratch.histogram, scratch.shift,
            scratch.accumulator, counts, scratch.items, scratch.sizes,
        )  # fmt: skip
        total = int(counts[start:stop].sum())
        if may_keep is not None:
            if not may_keep(total):
                break
            items, sizes = scratch.items[:total].copy(), scratch.sizes[:total].copy()
            pairs.append(Pairs(rows[start:stop], counts[start:stop], items, sizes))
        start = stop
    return pairs


def list_columns(
    statistics: Statistics,
    threshold: np.float32,
    lengths: npt.NDArray[np.uint32],
    ties: np.float32,
    limits: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    scratch: Scratch,
    may_keep: Callable[[int], bool],
) -> list[Columns]:
    """List the largest entries with |S| > threshold in the columns of successive items.

    `lengths` holds the lengths of the histories of the users of every item. Entries with |S| ≤ ties
    tie; if `limits` is not empty, column i keeps at most limits[i] of these. When `may_keep(count)` returns
    False, stop and return no columns.
    """
    start, stop = int(items[0]), int(items[-1]) + 1
    counts, tied = np.empty((2, stop - start), np.int64)
    parts = []
    first = start
    while first < stop:
        last = kernels.list_columns(
            statistics.X, statistics.scaling, lengths, first, stop, threshold, ties, limits,
            scratch.histogram, scratch.shift, scratch.accumulator, scratch.items, scratch.sizes,
            scratch.largest, counts[first - start :], tied[first - start :], scratch.keys,
        )  # fmt: skip
        parts.append(scratch.keys[: counts[first - start : last - start].sum()].copy())
        if not may_keep(len(parts[-1])):
            return []
        first = last
    return [Columns(start, np.cumsum(counts) - counts, counts, np.concatenate(parts), tied)]


class Histogram:
    """Counts of magnitudes: bin b counts the float32 numbers whose bits, without the last `shift`, are b."""

    def __init__(self, entries: Array, shift: int) -> None:
        self.shift = shift
        self.above_edge = np.append(np.cumsum(entries[::-1])[::-1], 0)  # entries in bin b and all later bins

    def above(self, threshold: float) -> float:
        """Return about how many entries are above a threshold."""
        return float(self.above_edge[int(np.float32(threshold).view(np.uint32)) >> self.shift])

    def at_least(self, wanted: float) -> np.float32:
        """Return the largest edge of a bin with at least `wanted` entries above it, 0 if there is none."""
        return self._edge(int(np.count_nonzero(self.above_edge >= max(wanted, 1.0))) - 1)

    def choose(self, wanted: int) -> tuple[np.float32, np.float32, int, int]:
        """Choose the edge with about `wanted` entries above it; if there is none, choose a bin to cut.

        Return the edges below and above that bin, the number of its entries, and how many of these to keep.
        """
        nearest = int(np.abs(self.above_edge - wanted).argmin())
        miss = abs(self.above_edge[nearest] - wanted)
        if miss <= _TOLERANCE * wanted or self.above_edge[0] <= wanted:
            return self._edge(nearest), self._edge(nearest), 0, 0
        cut = int(np.count_nonzero(self.above_edge > wanted)) - 1
        total, larger = (int(count) for count in self.above_edge[cut : cut + 2])
        return self._edge(cut), self._edge(cut + 1), total - larger, wanted - larger

    def _edge(self, first_bin: int) -> np.float32:
        """Return the largest float32 below a bin, 0 below the first."""
        return np.float32(np.uint32(max((first_bin << self.shift) - 1, 0)).view(np.float32))


def deal(tied: npt.NDArray[np.int64], dealt: int) -> npt.NDArray[np.int64]:
    """Return how many entries the columns get if `dealt` are dealt in turn, at most tied[i] to column i."""
    takers = len(tied) - np.cumsum(np.bincount(tied))  # columns that get an entry in each round
    rounds = int(np.searchsorted(np.cumsum(takers), dealt, side="right"))
    limits = np.minimum(tied, rounds)
    limits[np.flatnonzero(tied > rounds)[: dealt - limits.sum()]] += 1
    return np.asarray(limits)
