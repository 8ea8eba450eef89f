"""The k best items of many users on a GPU, from dense B: the lists and scores of the CPU, to the bit.

Rows of B are added one after the other in the order of the history, multiplied and added in separate steps,
as compiled code does; so sums round alike, and what ties there ties here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec.core.sparse import Rows
from mrfrec.engines.gpu.device import Device, computing_on

_SCORES = 1 << 27  # scores of the users that are ranked at one time
_BYTES = 24  # per score: the sums, the rows to add, the keys, and a sort of these
_SIGN = 0x7FFFFFFF


class DeviceRanker:
    """Dense B on a device."""

    def __init__(self, name: str, B: npt.NDArray[Any]) -> None:
        self._device, self.source = Device(name), B
        advice = 'Use device="cpu", or a device with more memory.'
        self._device.memory.check("ranking, on the device", B.nbytes + _BYTES * _SCORES, advice, "ranking")
        with computing_on(self._device.torch, "ranking"):
            self._B = self._device.to_device(B)

    def top_k(
        self,
        histories: Rows,
        values: npt.NDArray[Any],
        k: int,
        base: npt.NDArray[Any],
        order: npt.NDArray[np.int32],
        hidden: Rows,
        factor: npt.NDArray[Any] | None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return each user's k best items and their scores, best first; −1 and −∞ where there are fewer.

        Scores are (base + x·B) · factor, and of equal scores the one with the lower `order` comes first.
        """
        n, to_device = len(histories), self._device.to_device
        items, scores = np.empty((n, k), np.int32), np.empty((n, k), base.dtype)
        by_length = np.argsort(-np.diff(histories.ptr), kind="stable")  # so that those at work are the first
        weights = None if (values == 1).all() else values
        start, rank = to_device(base), to_device(order).long()
        item = torch.argsort(rank)
        scale = None if factor is None else to_device(factor)
        at_once = max(_SCORES // len(base), 1)
        with computing_on(self._device.torch, "ranking"):
            for first in range(0, n, at_once):
                users = by_length[first : first + at_once]
                out = self._sums(histories, weights, users, start)
                if scale is not None:
                    out *= scale
                had = hidden.take(users)
                user = np.repeat(np.arange(len(users)), np.diff(had.ptr))
                out[to_device(user), to_device(np.asarray(had.items)).long()] = -torch.inf
                best, value = _best(out, k, rank, item)
                scores[users] = value.cpu().numpy()
                items[users] = torch.where(value > -torch.inf, best, -1).int().cpu().numpy()
        return items, scores

    def _sums(
        self, histories: Rows, weights: npt.NDArray[Any] | None, users: npt.NDArray[Any], start: Tensor
    ) -> Tensor:
        """Return start + x·B, added one item of each history after the other; longest histories first."""
        out = start.repeat(len(users), 1)
        begin, lengths = histories.ptr[users], np.diff(histories.ptr)[users]
        at_work = len(users) - np.searchsorted(lengths[::-1], np.arange(lengths.max(initial=0)), "right")
        # The first items of all histories, then the second ones, and so on.
        places = np.concatenate([begin[:count] + step for step, count in enumerate(at_work)] or [begin[:0]])
        rows = self._device.to_device(np.asarray(histories.items)[places]).long()
        x = None if weights is None else self._device.to_device(weights[places])
        done = 0
        for count in at_work.tolist():
            added = self._B[rows[done : done + count]]
            if x is not None:
                added *= x[done : done + count, None]
            out[:count] += added
            done += count
        return out


def _best(scores: Tensor, k: int, rank: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Return the k best items of each row, and their scores; rank[item] decides between equal scores."""
    if scores.dtype != torch.float32:
        value, place = torch.sort(scores[:, item], dim=1, descending=True, stable=True)
        return item[place[:, :k]], value[:, :k]
    # One number to sort by: the bits of the score, in the order of the scores, and then the rank.
    bits = (scores + 0.0).view(torch.int32)  # no negative zeros
    keys = (bits ^ ((bits >> 31) & _SIGN)).long() << 32
    keys += _SIGN - rank
    keys = torch.topk(keys, k, dim=1).values
    bits = (keys >> 32).int()
    return item[_SIGN - (keys & _SIGN)], (bits ^ ((bits >> 31) & _SIGN)).view(torch.float32)
