"""The k best items of many users on a GPU: the lists and scores of the CPU, to the bit.

Rows of B are added one after the other in the order of the history, multiplied and added in separate steps,
as the compiled code of the CPU does: so sums round in the same way, and the same scores tie. A low-rank part
is added in this way only for the items that may be among the best.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec.core.engine import Array, ranges
from mrfrec.core.low_rank import LowRank
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.engines.gpu.device import Device, computing_on
from mrfrec.engines.gpu.rows import owners_and_places

# Scores of the users that are ranked at one time.
_SCORES_AT_ONCE = 1 << 27
# Bytes per score: the sums, the rows to add, the keys and a sort of these. A low-rank part takes more, for
# bounds, masks and the indices of sparse rows.
_BYTES_PER_SCORE, _LOW_RANK_BYTES = 24, 40
# Products of a low-rank part that are added up at one time.
_TERMS_AT_ONCE = 1 << 28
# All bits but the sign of a 32-bit number.
_LOW_BITS = 0x7FFFFFFF


class DeviceRanker:
    """Ranks items with weights B, dense or sparse, and a low-rank part, all on a device."""

    def __init__(self, name: str, weights: Rows | DenseRows, low_rank: LowRank | None = None) -> None:
        self._device = Device(name)
        self._low_rank = low_rank
        needed = weights.nbytes + _BYTES_PER_SCORE * _SCORES_AT_ONCE
        if low_rank is not None:
            needed += low_rank.nbytes + _LOW_RANK_BYTES * _SCORES_AT_ONCE + 8 * _TERMS_AT_ONCE
        advice = 'Use device="cpu", or a device with more memory.'
        self._device.memory.check("ranking, on the device", needed, advice, "ranking")
        to_device = self._device.to_device
        weights.verify()
        with computing_on(self._device.torch, "ranking"):
            self._B: _Matrix = (
                to_device(weights.array)
                if isinstance(weights, DenseRows)
                else (to_device(weights.ptr), to_device(weights.items).long(), to_device(weights.values))
            )
            if low_rank is not None:
                low_rank.verify()
                self._V = to_device(low_rank.vectors)
                self._lengths = to_device(low_rank.norms[0].astype(low_rank.vectors.dtype))

    def top_k(
        self,
        histories: Rows,
        values: Array,
        k: int,
        base: Array,
        order: npt.NDArray[np.int32],
        hidden: Rows,
        factor: Array | None,
    ) -> tuple[npt.NDArray[np.int32], Array]:
        """Return the k best items of users and their scores, best first; −1 and −∞ where there are fewer.

        Scores are (base + x·(B + λ·L)) · factor; of items with equal scores, the one with the lower `order`
        comes first. Items in `hidden` are not ranked.
        """
        n = len(histories)
        to_device = self._device.to_device
        items = np.empty((n, k), np.int32)
        scores = np.empty((n, k), base.dtype)
        by_length = np.argsort(-np.diff(histories.ptr), kind="stable")  # the longest first, as `_add` needs
        weights = None if (values == 1).all() else values
        start = to_device(base)
        rank = to_device(order).long()
        item = torch.argsort(rank)
        scale = None if factor is None else to_device(factor)
        at_once = max(_SCORES_AT_ONCE // len(base), 1)
        with computing_on(self._device.torch, "ranking"):
            for first in range(0, n, at_once):
                users = by_length[first : first + at_once]
                out = start.repeat(len(users), 1)
                self._add(out, self._B, histories, weights, users)
                out[self._places(hidden.take(users))] = -torch.inf
                if self._low_rank is not None:
                    self._add_low_rank(out, self._low_rank, histories, values, users, k, scale)
                if scale is not None:
                    out *= scale
                best, value = _best(out, k, rank, item)
                scores[users] = value.cpu().numpy()
                items[users] = torch.where(value > -torch.inf, best, -1).int().cpu().numpy()
        return items, scores

    def _places(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the rows and the items of all entries."""
        row = np.repeat(np.arange(len(rows)), np.diff(rows.ptr))
        return self._device.to_device(row), self._device.to_device(np.asarray(rows.items)).long()

    def _add(
        self, out: Tensor, matrix: "_Matrix", histories: Rows, weights: Array | None, users: Array
    ) -> None:
        """Add x·B to `out`, one item of each history after the other; the longest histories come first."""
        begin = histories.ptr[users]
        lengths = np.diff(histories.ptr)[users]
        # Histories are sorted by length, so the first ones are longer than 0, 1, 2, …: count them.
        longer = len(users) - np.searchsorted(lengths[::-1], np.arange(lengths.max(initial=0)), "right")
        # The first items of all histories come first, then the second items, and so on.
        places = np.concatenate([begin[:count] + step for step, count in enumerate(longer)] or [begin[:0]])
        rows = self._device.to_device(np.asarray(histories.items)[places]).long()
        x = None if weights is None else self._device.to_device(weights[places])
        done = 0
        for count in longer.tolist():
            part = slice(done, done + count)
            _add_rows(out, matrix, rows[part], None if x is None else x[part])
            done += count

    def _add_low_rank(
        self,
        out: Tensor,
        low_rank: LowRank,
        histories: Rows,
        values: Array,
        users: Array,
        k: int,
        scale: Tensor | None,
    ) -> None:
        """Add x·λ·L for all items that may be among the k best; give the others −∞."""
        h = out.new_zeros(len(users), self._V.shape[1])
        self._add(h, self._V, histories, values * low_rank.left[histories.items], users)
        total = h @ self._V.T  # the scores up to rounding
        total += out
        error = torch.outer(torch.linalg.norm(h, dim=1), self._lengths)
        error += out.abs()
        error *= float(low_rank.rounding)
        factor = 1.0 if scale is None else scale
        had = histories.take(users)
        own = self._places(had)
        lowest = (total - error) * factor
        lowest[own] = -torch.inf  # their scores still contain what items add to their own
        wanted = (total + error) * factor >= torch.topk(lowest, k, dim=1).values[:, -1:]
        wanted[own] = True
        wanted &= out > -torch.inf
        user, item = wanted.nonzero(as_tuple=True)
        exact = out[user, item]
        for first, last in ranges(0, len(user), _TERMS_AT_ONCE // h.shape[1]):
            terms = self._V[item[first:last]] * h[user[first:last]]
            for f in range(terms.shape[1]):  # one after the other, as compiled code does
                exact[first:last] += terms[:, f]
        out.fill_(-torch.inf)
        out[user, item] = exact
        itself = had.values.astype(values.dtype, copy=False) * low_rank.diagonal[had.items]
        out[own] -= self._device.to_device(itself)


_Matrix = Tensor | tuple[Tensor, Tensor, Tensor]  # dense, or the arrays of CSR


def _add_rows(out: Tensor, matrix: _Matrix, rows: Tensor, x: Tensor | None) -> None:
    """Add x times some rows of a matrix to the first rows of `out`."""
    if isinstance(matrix, Tensor):
        added = matrix[rows]
        if x is not None:
            added *= x[:, None]
        out[: len(rows)] += added
        return
    ptr, items, values = matrix
    lengths = ptr[rows + 1] - ptr[rows]
    ends = torch.cumsum(lengths, 0)
    own, place = owners_and_places(lengths, int(ends[-1]))
    place += (ptr[rows] - ends + lengths)[own]
    added = values[place]
    if x is not None:
        added *= x[own]
    # No index comes twice, so the order of additions cannot matter.
    out.view(-1).index_add_(0, own * out.shape[1] + items[place], added)


def _best(scores: Tensor, k: int, rank: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Return the k best items of each row and their scores; of equal ones, the lowest rank[item] is first."""
    if scores.dtype != torch.float32:
        value, place = torch.sort(scores[:, item], dim=1, descending=True, stable=True)
        return item[place[:, :k]], value[:, :k]
    # Sort by one number: the bits of the score, such that they order as scores do, and then the rank.
    bits = (scores + 0.0).view(torch.int32)  # no negative zeros
    keys = (bits ^ ((bits >> 31) & _LOW_BITS)).long() << 32
    keys += _LOW_BITS - rank
    keys = torch.topk(keys, k, dim=1).values
    bits = (keys >> 32).int()
    return item[_LOW_BITS - (keys & _LOW_BITS)], (bits ^ ((bits >> 31) & _LOW_BITS)).view(torch.float32)
