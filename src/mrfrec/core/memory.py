"""How much memory a fit may use, and what each of its stages needs."""

import ctypes
from contextlib import suppress

from mrfrec.errors import MemoryPlanError


def human_bytes(count: float) -> str:
    """Format a number of bytes with units of powers of 1000: "6.8 GB", "512.0 KB"."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def release_freed() -> None:
    """Return freed memory to the system, where that is possible."""
    # The C library keeps for each thread what the thread has freed.
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


class Budget:
    """The bytes a fit may add to what its process already holds, and how many of them its stages need."""

    def __init__(self, limit: int, source: str = "is what memory_limit allows", in_use: int = 0) -> None:
        self.limit = limit
        self.in_use = in_use  # bytes that the process holds before the fit, mostly the data; 0 if unknown
        self.source = source
        self.stages: dict[str, int] = {}

    def require(self, stage: str, needed: int, advice: str, who: str = "the fit") -> None:
        """Note the bytes that a stage needs; raise `MemoryPlanError` if the limit does not allow them."""
        self.stages[stage] = max(needed, self.stages.get(stage, 0))
        self.check(stage, needed, advice, who)

    def check(self, stage: str, needed: int, advice: str, who: str = "the fit") -> None:
        """Raise `MemoryPlanError` if the limit does not allow `needed` bytes."""
        if needed > self.limit:
            holds = f" more than the {human_bytes(self.in_use)} in use, with the data," if self.in_use else ""
            raise MemoryPlanError(
                f"{who} needs about {human_bytes(needed)} ({stage}){holds} and {human_bytes(self.limit)} "
                f"{self.source}. {advice}",
                needed=needed,
                limit=self.limit,
            )
