"""§3.1: the sparsity pattern A. Entry (j, i) is kept where |S_ji| > threshold, then at most so many a column.

Magnitudes are compared as float32: pairs that are equal in exact arithmetic then tie, instead of being
ordered by the last bit of rounding. Ties go to the item that follows i most closely in cyclic order. On
data where thousands of items are used by the same one person, and so all tie, this spreads the neighbours
over the group; lowest index first would give every item of the group the same few.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import kernels
from mrfrec.core.resources import MemoryPlan, Workers
from mrfrec.core.statistics import Statistics

__all__ = ["BYTES_PER_ENTRY", "Pattern", "find_pattern"]

BYTES_PER_ENTRY = 17  # an item and a magnitude, twice while the pieces are joined, and a little
_BINS = 1 << (31 - kernels.BIN_SHIFT)
_SAMPLE = 1024  # columns that are looked at first
_MARGIN = 1.25  # entries kept beyond those asked for, since the sample is only a sample


@dataclass(frozen=True)
class Pattern:
    """A without its diagonal: column i holds neighbors[column_ptr[i]:column_ptr[i+1]], largest |S| first."""

    column_ptr: npt.NDArray[np.int64]
    neighbors: npt.NDArray[np.int32]
    threshold: float

    def to_matrix(self) -> "sp.csc_array[Any]":
        """A itself, diagonal included."""
        m = len(self.column_ptr) - 1
        columns = np.repeat(np.arange(m, dtype=np.int32), np.diff(self.column_ptr))
        everyone = np.arange(m, dtype=np.int32)
        rows = np.concatenate([self.neighbors, everyone])
        A = sp.coo_array(
            (np.ones(len(rows), np.bool_), (rows, np.concatenate([columns, everyone]))), shape=(m, m)
        ).tocsc()
        A.sort_indices()
        return A


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
    with workers.stage("pattern", m):
        sample = _sample_histogram(statistics, workers)
        if threshold is not None:
            _plan_entries(plan, held, _entries_above(sample, _bin_of(threshold)), m, max_neighbors)
            column_ptr, neighbors, _, _ = _stream(
                statistics, np.float32(threshold), max_neighbors, workers, plan, held, histogram=False
            )
            return Pattern(column_ptr, neighbors, float(threshold))

        assert sparsity is not None
        wanted = max(sparsity * m * m - m, 0.0)  # besides the diagonal
        margin = _MARGIN
        while True:
            lowest = _bin_for(sample, margin * wanted)
            _plan_entries(plan, held, margin * wanted, m, max_neighbors)
            column_ptr, neighbors, magnitudes, histogram = _stream(
                statistics, _threshold_of(lowest), max_neighbors, workers, plan, held, histogram=True
            )
            found = histogram.sum()
            if found >= wanted or lowest == 0:
                break
            # The sample was off, so that one more pass is needed.
            margin *= 1.5 * wanted / max(found, 1)
        cut = max(_bin_for(histogram, wanted), lowest)
        final = _threshold_of(cut)
        kept = kernels.kept_per_column(column_ptr, magnitudes, final)
        return Pattern(*_keep_first(column_ptr, neighbors, kept), float(final))


# ── bins of magnitude: bin b holds the float32 whose bits, shifted, are b ──────────────────────────


def _bin_of(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.uint32)) >> kernels.BIN_SHIFT


def _threshold_of(first_bin: int) -> np.float32:
    """The threshold that keeps just the bins from `first_bin` on."""
    bits = max((first_bin << kernels.BIN_SHIFT) - 1, 0)
    return np.float32(np.uint32(bits).view(np.float32))


def _entries_above(histogram: npt.NDArray[np.float64], first_bin: int) -> float:
    return float(histogram[first_bin:].sum())


def _bin_for(histogram: npt.NDArray[Any], wanted: float) -> int:
    """The first bin to keep, so that the number of entries comes as near to `wanted` as can be."""
    above = np.append(np.cumsum(histogram[::-1])[::-1], 0)
    return int(np.abs(above - wanted).argmin())


def _sample_histogram(statistics: Statistics, workers: Workers) -> npt.NDArray[np.float64]:
    """Magnitudes in a sample of columns, evenly spaced by popularity, scaled up to all of S."""
    m = statistics.m
    by_popularity = np.argsort(-statistics.popularity, kind="stable")
    size = min(m, _SAMPLE)
    sample = by_popularity[((np.arange(size) + 0.5) * m / size).astype(np.int64)]
    pieces = [sample[start : start + 32] for start in range(0, size, 32)]
    no_items, no_magnitudes = np.empty(0, np.int32), np.empty(0, np.float32)
    histograms: list[npt.NDArray[np.int64]] = []

    def scratch() -> tuple[Any, ...]:
        histograms.append(np.zeros(_BINS, np.int64))
        return _scratch(statistics), histograms[-1]

    def work(items: npt.NDArray[Any], space: tuple[Any, ...]) -> None:
        rows, histogram = space
        kernels.pattern_columns(
            statistics.X, statistics.scaling, items, np.float32(0), 0, *rows, no_items, no_magnitudes, histogram
        )

    workers.run(work, pieces, scratch=scratch)
    return np.sum(histograms, axis=0) * (m / size)


def _scratch(statistics: Statistics) -> tuple[npt.NDArray[Any], ...]:
    """Per thread: a row of XᵀX, the magnitudes of a row, the sorting keys of the entries found."""
    m = statistics.m
    return statistics.accumulator(), np.empty(m, np.float32), np.empty(m, np.uint64)


def _plan_entries(plan: MemoryPlan, held: int, expected: float, m: int, max_neighbors: int) -> None:
    entries = int(min(1.2 * expected, m * (max_neighbors - 1)))
    plan.require(
        "pattern",
        held + BYTES_PER_ENTRY * entries,
        "Keep fewer entries: a larger threshold, a smaller sparsity or a smaller max_neighbors.",
    )


def _stream(
    statistics: Statistics,
    threshold: np.float32,
    max_neighbors: int,
    workers: Workers,
    plan: MemoryPlan,
    held: int,
    *,
    histogram: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Every column of S once: its entries above the threshold, capped while streaming."""
    m = statistics.m
    most = min(max_neighbors, m) - 1
    tasks = statistics.row_tasks(longest=max(1, (1 << 21) // max(most, 1)))
    longest = max(stop - start for start, stop in tasks)
    histograms: list[npt.NDArray[np.int64]] = []
    entries = 0

    def scratch() -> tuple[Any, ...]:
        histograms.append(np.zeros(_BINS if histogram else 0, np.int64))
        out = np.empty(longest * most, np.int32), np.empty(longest * most, np.float32)
        return _scratch(statistics), out, histograms[-1]

    def work(
        task: tuple[int, int], space: tuple[Any, ...]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        nonlocal entries
        rows, out, counted = space
        counts = kernels.pattern_columns(
            statistics.X, statistics.scaling, np.arange(*task), threshold, most, *rows, *out, counted
        )
        total = int(counts.sum())
        entries += total
        plan.require(
            "pattern",
            held + BYTES_PER_ENTRY * entries,
            "The data keeps more entries than its sample promised: use a larger threshold, a smaller sparsity "
            "or a smaller max_neighbors.",
        )
        return counts, out[0][:total].copy(), out[1][:total].copy() if histogram else out[1][:0].copy()

    pieces = workers.run(work, tasks, scratch=scratch, costs=[stop - start for start, stop in tasks])
    column_ptr = np.concatenate([[0], np.cumsum(np.concatenate([counts for counts, _, _ in pieces]))])
    return (
        column_ptr,
        np.concatenate([items for _, items, _ in pieces]),
        np.concatenate([magnitudes for _, _, magnitudes in pieces]),
        np.sum(histograms, axis=0),
    )


def _keep_first(
    column_ptr: npt.NDArray[np.int64], neighbors: npt.NDArray[np.int32], kept: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Only the first `kept` entries of each column."""
    new_ptr = np.concatenate([[0], np.cumsum(kept)])
    index = np.arange(new_ptr[-1]) + np.repeat(column_ptr[:-1] - new_ptr[:-1], kept)
    return new_ptr, neighbors[index]
