"""Rows of S on a GPU (the S of Eq. 4), streamed: m × m is never held here.

Strips of S come from the pairs of items in each history, listed and added up on the device, so that the work
grows with the pairs and never with m × m. Sums are whole numbers, counts or products in units of 2⁻ᵏ, and so
do not depend on the order in which a GPU adds.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mrfrec.core.statistics import Statistics
from mrfrec.engines.gpu.device import Device

# Numbers in a strip of S, and numbers (such as pairs) that are listed at one time, with their bytes.
_STRIP, _LISTED = 1 << 25, 1 << 24
_BYTES_PER_NUMBER, _BYTES_PER_LISTED = 32, 80


def rows_bytes(pairs: int, binary: bool) -> int:
    """Return the bytes of the data on the device, of a strip and of the lists."""
    return (20 + (0 if binary else 8)) * pairs + _BYTES_PER_NUMBER * _STRIP + _BYTES_PER_LISTED * _LISTED


class StreamedRows:
    """Rows of S, from the histories that lie on the device."""

    def __init__(self, statistics: Statistics, device: Device) -> None:
        self.statistics = statistics
        self.device = device
        X = statistics.X
        begin = X.begin if len(X.begin) < 2**31 else X.begin.astype(np.int64)
        self._items, self._begin, self._rank = (device.to_device(x) for x in (X.items, begin, X.rank))
        self._before = torch.cumsum(self._rank, 0, dtype=torch.int64) - self._rank
        self._values = device.to_device(X.values) if len(X.values) else None
        self._a = device.to_device(statistics.scaling.a)
        self._g = device.to_device(statistics.scaling.g)

    @cached_property
    def _unit(self) -> float:
        """2⁻ᵏ, with the largest k for which no sum over all rows overflows."""
        X = self.statistics.X
        largest = float(np.abs(X.values).max()) ** 2 * float(np.diff(X.item_ptr).max())
        return float(2.0 ** (np.ceil(np.log2(largest)) - 62)) if largest > 0 else 1.0

    def strips(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield i0, i1 and the sums for S[i0:i1, :i1] before the diagonal, which `entries` scales.

        A strip has about `_STRIP` sums, or a single row.
        """
        m = self.statistics.m
        i0 = 0
        while i0 < m:
            # Take the largest i1 for which the strip has at most `_STRIP` numbers, (i1 − i0)·i1.
            i1 = min(max(int((i0 + (i0 * i0 + 4 * _STRIP) ** 0.5) / 2), i0 + 1), m)
            yield i0, i1, self._strip(i0, i1)
            i0 = i1

    def entries(self, sums: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Return S_ij in float64, from its sums."""
        S = sums.double()
        if self._values is not None:
            S *= self._unit
        S *= self._a[i] * self._a[j]
        S -= self._g[i] * self._g[j]
        return S

    def _strip(self, i0: int, i1: int) -> Tensor:
        device = self.device.torch
        item_ptr = self.statistics.X.item_ptr
        first, last = int(item_ptr[i0]), int(item_ptr[i1])
        kind = torch.int32 if self._values is None else torch.int64
        sums = torch.zeros((i1 - i0) * i1, dtype=kind, device=device)
        # An interaction adds to the row of its item; its partners are the earlier items of its history.
        users = torch.from_numpy(np.diff(item_ptr[i0 : i1 + 1])).to(device)
        row = torch.repeat_interleave(
            torch.arange(i1 - i0, device=device) * i1, users, output_size=last - first
        )
        for start, stop in _bounded_ranges(self._before, first, last):
            count = self._rank[start:stop]
            before = self._before[start:stop]
            own, place = owners_and_places(count, int(before[-1] + count[-1] - before[0]))
            partner = (self._begin[start:stop] - (before - before[0]))[own] + place
            target = row[start - first : stop - first][own] + self._items[partner]
            if self._values is None:
                sums.index_add_(0, target, torch.ones((), dtype=kind, device=device).expand(len(target)))
            else:
                x = self._values[(self._begin[start:stop] + count).long()]
                products = (x[own] * self._values[partner]).div_(self._unit).round_()
                sums.index_add_(0, target, products.long())
        return sums.view(i1 - i0, i1)

    def free(self) -> None:
        """Take the data off the device."""
        self._items = self._begin = self._rank = self._before = torch.empty(0)
        self._values = None


def _bounded_ranges(before: Tensor, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Cut first…last into ranges that list about `_LISTED` numbers; before[i] numbers come before entry i."""
    if first == last:
        return
    marks = torch.arange(int(before[first]), int(before[last - 1]) + 1, _LISTED, device=before.device)
    cuts = torch.searchsorted(before[first:last], marks)
    cuts = torch.unique(torch.cat([cuts, cuts.new_tensor([0, last - first])]))
    for start, stop in pairwise(cuts.tolist()):
        yield first + start, first + stop


def owners_and_places(counts: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return for each of `total` places its owner, where owner o has counts[o] of them, and its number."""
    owners = torch.arange(len(counts), device=counts.device)
    own = torch.repeat_interleave(owners, counts, output_size=total)
    return own, torch.arange(total, device=counts.device)
