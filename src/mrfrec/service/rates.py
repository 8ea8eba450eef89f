"""Limits of requests per second, for each of many callers."""

import time
from collections.abc import Callable


class Rates:
    """A token bucket for each caller: `rate` requests per second, and as many at once.

    At most `most` callers are remembered. The one that asked longest ago is forgotten first; its bucket is
    full again by then unless more callers than that ask within a second.
    """

    def __init__(self, rate: float, most: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, most, clock
        self._size = max(rate, 1.0)
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def wait(self, caller: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        tokens, then = self._buckets.pop(caller, (self._size, now))
        tokens = min(self._size, tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[caller] = (tokens if wait else tokens - 1, now)  # at the end: the last to be forgotten
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return wait

    def __len__(self) -> int:
        return len(self._buckets)
