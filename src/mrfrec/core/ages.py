"""How much an event counts by its age, and by its step in a history.

    w_ui = 2^(−(now − t_ui)/half-life) = ω_u·r_ui²,    ω_u = 2^(−(now − t_u)/half-life),    t_u = max t_ui

A fit gets the values r·x and the weights ω of users: S then fades as w does. A history that is asked about
gets the same values r·x, times ρ^p for a step p steps before the last one. So training and questions are on
one scale, and nothing but differences of times matters.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]  # microseconds since 1970, one per entry of a matrix

# After so many half-lives an event fades no more: it counts a millionth, and its item stays seen.
OLDEST = 20
# All steps count alike that are farther than this from the end of a history.
_FARTHEST = 64


class UserAges(NamedTuple):
    """How much users count by the ages of their events."""

    weight: Floats  # ω
    length: Floats  # Σ r² of a history: its length in entries that have not faded


def faded(X: "sp.csr_array", times: Times, half_life: float) -> "tuple[sp.csr_array, UserAges]":
    """Return r·x and ω; `half_life` is in microseconds."""
    lengths = np.diff(X.indptr)
    last = last_times(X.indptr, times)
    r = _factors(X.indptr, times, last, half_life)
    values = X.data.astype(np.float32 if X.data.dtype.itemsize <= 4 else np.float64) * r
    wide = sp.csr_array((values.astype(np.float32), X.indices, X.indptr), shape=X.shape)
    used = lengths > 0
    age = np.where(used, (last.max(initial=0) - last) / half_life, 0.0)
    weight = np.exp2(-np.minimum(age, OLDEST))
    squares = np.zeros(len(lengths))
    squares[used] = np.add.reduceat(np.square(r, dtype=np.float64), X.indptr[:-1][used]) if len(r) else 0.0
    return wide, UserAges(weight, squares)


def last_times(ptr: npt.NDArray[np.integer], times: Times) -> Times:
    """Return the last time of each row; an empty row gets the earliest time of all."""
    used = np.diff(ptr) > 0
    last = np.full(len(used), times.min(initial=0), np.int64)
    if len(times):
        last[used] = np.maximum.reduceat(times, ptr[:-1][used])
    return last


def _factors(
    ptr: npt.NDArray[np.integer], times: Times, last: Times, half_life: float
) -> npt.NDArray[np.float32]:
    """Return the factor r of each entry."""
    half_lives = (np.repeat(last, np.diff(ptr)) - times) / (2 * half_life)
    return np.exp2(-np.minimum(half_lives, OLDEST / 2)).astype(np.float32)


def steps_from_end(ptr: npt.NDArray[np.integer], times: Times) -> npt.NDArray[np.int64]:
    """Return the number of later steps in the row of each entry: 0 for the last step."""
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    order = np.lexsort((-times, owner))
    by_time, of = times[order], owner[order]
    is_new = np.ones(len(order), np.int64)
    is_new[1:] = (by_time[1:] != by_time[:-1]) | (of[1:] != of[:-1])
    number = np.cumsum(is_new)
    out = np.empty(len(order), np.int64)
    out[order] = number - np.repeat(number[ptr[:-1][np.diff(ptr) > 0]], np.diff(ptr)[np.diff(ptr) > 0])
    return out


class Recency(NamedTuple):
    """How the values of a history in a question fall with time."""

    half_life: float = 0.0  # microseconds; 0 means that events do not fade
    recency: float = 1.0  # ρ

    @property
    def is_blind(self) -> bool:
        """Whether times make no difference."""
        return not self.half_life and self.recency == 1

    def factors(
        self,
        ptr: npt.NDArray[np.integer],
        times: Times,
        *,
        are_times: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Return the factor of every value.

        Parameters
        ----------
        ptr
            Index of the first entry of every history, and the number of entries.
        times
            The time of each entry; with `are_times=False`, numbers that tell the order alone.
        """
        out = np.ones(len(times), np.float32)
        if self.recency != 1:
            steps = np.minimum(steps_from_end(ptr, times), _FARTHEST)
            out *= np.power(self.recency, steps.astype(np.float64)).astype(np.float32)
        if self.half_life and are_times:
            out *= _factors(ptr, times, last_times(ptr, times), self.half_life)
        return out


BLIND = Recency()
"""Histories do not fall with time."""
