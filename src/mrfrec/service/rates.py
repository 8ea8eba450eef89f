"""Limits of requests per second, for each of many callers."""

import time
from collections.abc import Callable
from hashlib import blake2b

_SETS, _WAYS = 2048, 8  # 16,384 callers are remembered; each may be in one of 8 places
CELLS = 2 * _SETS * _WAYS  # doubles that hold them
_ROUNDING = 1e-6  # seconds


class Rates:
    """A token bucket for each caller: `rate` requests per second, and as many at once.

    A bucket is the time at which it will be full again, which each request puts off by 1/rate seconds (the
    generic cell rate algorithm). These times are in `cells`, which processes may share: `time.monotonic` is
    one clock for all of them. Nothing is locked: of two requests at the very same time, one may go uncounted.

    A new caller takes the place of that one, of the eight places it may have, whose bucket is full first.
    """

    def __init__(
        self,
        rate: float,
        cells: "memoryview[float] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells = memoryview(bytearray(8 * CELLS)).cast("d") if cells is None else cells
        self._clock, self._step = clock, 1 / rate
        self._most = (max(rate, 1.0) - 1) / rate  # seconds until a bucket is full that has one token

    def wait(self, caller: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now, digest = self._clock(), int.from_bytes(blake2b(caller.encode(), digest_size=8).digest(), "big")
        name, first = float((digest >> 11) + 1), digest % _SETS * 2 * _WAYS
        names, times = (list(self._cells[at : at + _WAYS]) for at in (first, first + _WAYS))
        if name in names:
            place = names.index(name)
            full = max(times[place], now)
        else:
            place, full = times.index(min(times)), now
            self._cells[first + place] = name
        wait = full - now - self._most
        if wait > _ROUNDING:
            return wait
        self._cells[first + _WAYS + place] = full + self._step
        return 0.0
