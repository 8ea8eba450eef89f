"""The sparse model on a GPU: the pairs of the pattern (§3.1) and the blocks (§3.2, step 3).

Blocks are factorised in batches of about one size, padded with rows of the identity.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec.core.blocks import block_name
from mrfrec.core.engine import Array, Engine, Floats
from mrfrec.core.entries import Pairs
from mrfrec.core.kernels.blocks import Blocks
from mrfrec.core.statistics import Statistics, not_positive_definite
from mrfrec.engines.gpu.device import computes, dtype_name
from mrfrec.engines.gpu.rows import LISTED, StreamedRows, StreamingDevice, bounded_ranges, owners_and_places

_BATCH = 1 << 26  # numbers in the matrices of a batch of blocks
_BYTES_PER_NUMBER = 24  # of the matrix, its factor, and the places of its parts
_LEAST_SIZE = 0.9  # of a block in a batch, as a share of the largest


@computes
def list_pairs(
    device: StreamingDevice,
    statistics: Statistics,
    threshold: np.float32,
    shift: int,
    may_keep: Callable[[int], bool],
    steps: int,
    engine: Engine,
) -> tuple[list[Pairs], npt.NDArray[np.int64]]:
    """Return the pairs with |S| > threshold and a histogram of |S|; stop if `may_keep(count)` is False."""
    pairs: list[Pairs] = []
    m = statistics.m
    rows = device.streamed(statistics)
    histogram = torch.zeros(1 << (31 - shift), dtype=torch.int64, device=device.torch)
    # Items that may have |S| > threshold with each other though nobody has both.
    g = np.abs(statistics.scaling.g)
    common = device.to_device(np.flatnonzero(g * g.max(initial=0.0) >= 0.999 * threshold))
    for i0, i1, sums in rows.large_strips():
        for first, strip in _cut(sums, i0, common):
            row, item = _candidates(strip, first, common)
            sizes = rows.entries(strip[row, item], first + row, item).abs_().float()
            above = sizes > float(threshold)
            row, item, kept = row[above], item[above], sizes[above]
            histogram += torch.bincount(kept.view(torch.int32) >> shift, minlength=len(histogram))
            if not may_keep(len(row)):
                return pairs, histogram.cpu().numpy()
            counts = torch.bincount(row, minlength=len(strip)).cpu().numpy()
            rows_here = np.arange(first, first + len(strip))
            pairs.append(Pairs(rows_here, counts, item.int().cpu().numpy(), kept.cpu().numpy()))
        engine.advance(steps * i1 // m - steps * i0 // m)
    return pairs, histogram.cpu().numpy()


def _cut(sums: Tensor, i0: int, common: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Cut a strip into ranges of rows with about `LISTED` candidates each."""
    count = int(torch.count_nonzero(sums)) + int((common >= i0).sum()) * len(common)
    step = max(len(sums) * LISTED // max(count, 1), 1)
    for start in range(0, len(sums), step):
        yield i0 + start, sums[start : start + step]


def _candidates(sums: Tensor, first: int, common: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and item of each pair before the diagonal that has users, or consists of common items."""
    last = first + len(sums)
    own = common[(common >= first) & (common < last)]
    others = common[common < last]
    wanted = sums != 0
    wanted[(own - first)[:, None], others] = own[:, None] > others
    row, item = torch.nonzero(wanted, as_tuple=True)
    return row, item


def needed_bytes() -> int:
    """Return the bytes of a batch of blocks."""
    return _BYTES_PER_NUMBER * _BATCH


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────


@computes
def estimates_of_blocks(
    device: StreamingDevice, statistics: Statistics, ridge: Floats, dtype: str, batch: Blocks, engine: Engine
) -> Array:
    """Return the estimates of the blocks one after the other, at the places of `batch.store_ptr`."""
    rows = device.streamed(statistics)
    kinds = np.diff(batch.kind_ptr)
    estimates = np.zeros(int(batch.store_ptr[-1]), dtype)
    triangle = kinds * (kinds - 1) // 2 * np.dtype(dtype).itemsize
    most = max((device.memory.limit - needed_bytes()) // 2, int(triangle.max()))
    ends = np.cumsum(triangle)
    first = 0
    while first < len(kinds):  # as many blocks as the device has room for
        last = int(np.searchsorted(ends, most + (ends[first - 1] if first else 0), "right"))
        part = _Part(rows, batch, first, last, ridge, dtype)
        done = batch.first + first, batch.first + last
        with engine.stage("gather", batch.of, done):
            part.gather()
        with engine.stage("solve", batch.of, done):
            for group in part.groups():
                part.solve(group, estimates)
                engine.advance(len(group))
        first = last
    return estimates


class _Part:
    """Blocks first to last of a batch, whose parts of S are on the device at the same time."""

    def __init__(
        self, rows: StreamedRows, batch: Blocks, first: int, last: int, ridge: Floats, dtype: str
    ) -> None:
        to_device = rows.device.to_device
        self.rows = rows
        self.batch = batch
        self.first = first
        self.dtype = getattr(torch, dtype)
        start, stop = int(batch.kind_ptr[first]), int(batch.kind_ptr[last])
        self.sizes = np.diff(batch.kind_ptr[first : last + 1])
        self.kind_ptr = to_device(batch.kind_ptr[first : last + 1] - start)
        self.kinds = to_device(batch.kinds[start:stop]).long()
        self.copies = to_device(batch.copies[start:stop])
        self.target = to_device(batch.target[start:stop])
        self.targets = np.add.reduceat(batch.target[start:stop] >= 0, batch.kind_ptr[first:last] - start)
        self.diagonal = to_device(rows.statistics.S_diagonal)
        self.ridge = to_device(ridge)
        self.ptr = to_device(np.concatenate([[0], np.cumsum(self.sizes * (self.sizes - 1) // 2)]))

    def gather(self) -> None:
        """Fill the strict lower triangle of S of each block, row by row, from strips of S."""
        kinds = self.kinds
        device = kinds.device
        self.store = torch.empty(int(self.ptr[-1]), dtype=self.dtype, device=device)
        blocks = torch.arange(len(self.sizes), device=device)
        block = torch.repeat_interleave(blocks, torch.diff(self.kind_ptr), output_size=len(kinds))
        place = torch.arange(len(kinds), device=device) - self.kind_ptr[block]
        by_item = torch.argsort(kinds, stable=True)  # each item's places in all blocks
        item, block, place = kinds[by_item], block[by_item], place[by_item]
        before = torch.cumsum(place, 0) - place
        source = self.kind_ptr[block] - before
        target = self.ptr[block] + place * (place - 1) // 2 - before
        for i0, i1, sums in self.rows.large_strips():
            low, high = torch.searchsorted(item, item.new_tensor([i0, i1])).tolist()
            for start, stop in bounded_ranges(before, low, high):
                some = slice(start, stop)
                origin = int(before[start])
                own, at = owners_and_places(place[some], int(before[stop - 1] + place[stop - 1]) - origin)
                at += origin
                column = kinds[source[some][own] + at]
                i = item[some][own]
                values = self.rows.entries(sums.view(-1)[(i - i0) * i1 + column], i, column)
                self.store[target[some][own] + at] = values.to(self.dtype)

    def groups(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield blocks of about one size, as many as are solved at one time, largest first."""
        order = np.argsort(-self.sizes, kind="stable")
        alone = np.diff(self.batch.member_ptr[self.first : self.first + len(order) + 1])[order] < 2
        order = order[~alone]
        start = 0
        while start < len(order):
            k = int(self.sizes[order[start]])
            stop = start + int(np.searchsorted(-self.sizes[order[start:]], -_LEAST_SIZE * k, "right"))
            columns = 2 * np.maximum.accumulate(self.targets[order[start:stop]]) + 2 * k
            fit = np.arange(1, stop - start + 1) * columns * k <= _BATCH
            stop = start + max(int(fit.sum()), 1)
            yield order[start:stop]
            start = stop

    def solve(self, group: npt.NDArray[np.int64], estimates: Array) -> None:
        """Write the estimates of some blocks; the letters are those of the core's `solve_blocks`."""
        device = self.kinds.device
        k, d = int(self.sizes[group].max()), int(self.targets[group].max())
        b = torch.from_numpy(group).to(device)
        size = (self.kind_ptr[b + 1] - self.kind_ptr[b])[:, None]
        kind_place = torch.arange(k, device=device)
        inside = kind_place < size
        at = torch.where(inside, self.kind_ptr[b, None] + kind_place, 0)
        kind = self.kinds[at]
        copies = torch.where(inside, self.copies[at], 1).to(self.dtype)
        ridge = self.ridge[kind]

        A = torch.zeros((len(group), k, k), dtype=self.dtype, device=device)
        row, column = torch.tril_indices(k, k, -1, device=device)
        if len(row):
            packed = self.ptr[b, None] + torch.arange(len(row), device=device)
            is_stored = row < size
            packed = self.store[torch.where(is_stored, packed, 0)]
            A[:, row, column] = torch.where(is_stored, packed, 0)
        own = torch.where(inside, self.diagonal[kind] + ridge / copies, 1.0)
        A.diagonal(dim1=1, dim2=2).copy_(own)
        singular = (inside & (copies > 1) & (ridge == 0)).any(1)
        L, failed = torch.linalg.cholesky_ex(A)
        bad = torch.nonzero(singular | (failed != 0))[:, 0].tolist()
        if bad:
            name = block_name(self.batch, self.first + int(group[bad[0]]))
            raise not_positive_definite(name, dtype_name(L))
        del A

        # The columns T of R: E has a 1 for each target, and zeros where a block has fewer targets.
        targets = torch.where(inside, self.target[at], -1)
        block, p = torch.nonzero(targets >= 0, as_tuple=True)
        t = targets[block, p].long()
        E = torch.zeros((len(group), k, d), dtype=self.dtype, device=device)
        E[block, p, t] = 1
        R = torch.cholesky_solve(E, L)
        n = copies[block, p]
        R_tt = R[block, p, t]
        per_copy = 1 / (ridge[block, p].to(self.dtype) * n)
        several = n > 1
        within = torch.where(several, R_tt / (n * n) - per_copy, 0)
        C = torch.where(several, within + per_copy * n, R_tt)
        columns = -R[block, :, t] / (n[:, None] * copies[block] * C[:, None])
        columns[torch.arange(len(p), device=device), p] = -within / C
        keep = inside[block]
        ptr = (
            torch.from_numpy(self.batch.store_ptr[self.first + group]).to(device)[block] + t * size[block, 0]
        )
        places = (ptr[:, None] + kind_place)[keep]
        estimates[places.cpu().numpy()] = columns[keep].cpu().numpy()
