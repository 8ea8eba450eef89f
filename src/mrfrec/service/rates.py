"""Limits of requests per second, for each of many callers."""

import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_CALLERS = 16_384  # remembered at once; the one that was silent for longest is forgotten first
_ROUNDING = 1e-6  # seconds


class Rates:
    """A token bucket for each caller: `rate` requests per second, and as many at once.

    A bucket is stored as the time at which it will be full again, which each request puts off by 1/rate
    seconds (the generic cell rate algorithm).
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._step = clock, 1 / rate
        self._most = (max(rate, 1.0) - 1) / rate  # seconds until a bucket is full that has one token
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        full_at = max(self._full_at.pop(caller, now), now)
        wait = full_at - now - self._most
        is_allowed = wait <= _ROUNDING
        self._full_at[caller] = full_at + self._step if is_allowed else full_at
        if len(self._full_at) > _MOST_CALLERS:
            self._full_at.popitem(last=False)
        return 0.0 if is_allowed else wait
