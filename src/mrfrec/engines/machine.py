"""The memory and the cores that this machine offers."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from numbers import Integral
from pathlib import Path

from mrfrec.core.engine import Budget
from mrfrec.errors import ParameterError


def memory_budget(limit: int | None) -> Budget:
    """Return a budget of `limit` bytes beyond those in use, or of all that are available if it is None."""
    in_use = memory_in_use()
    if limit is None:
        return Budget(available_memory(), "is available on this machine", in_use)
    return Budget(limit, in_use=in_use)


def memory_in_use() -> int:
    """Return the bytes of memory that this process holds; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def parse_bytes(limit: float | str) -> int:
    """Return the bytes in a whole number or a text such as "8GB" or "512 MiB"."""
    count = 0
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:([KMGT])(i?)B?|B)\s*", limit, flags=re.IGNORECASE)
        if match is not None:
            number, unit, binary = match.groups()
            factor = (1024 if binary else 1000) ** " KMGT".index((unit or " ").upper())
            count = int(min(float(number) * factor, 2.0**63))
    elif isinstance(limit, Integral | float) and not isinstance(limit, bool) and limit == limit // 1:
        count = int(limit)
    if not 0 < count < 2**63:
        rule = 'a positive whole number of bytes below 2^63, or a text such as "8GB" or "512 MiB"'
        raise ParameterError("memory_limit", rule, limit)
    return count


def usable_threads() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes this process can still take, of the machine and its containers."""
    containers = _container_memory(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(min([_machine_memory(), *containers]), 0)


def _machine_memory() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # macOS does not say how much is free: assume half of the memory that is built in.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_memory(root: Path, membership: Path) -> Iterator[int]:
    """Yield the bytes that the enclosing control groups leave, counting file cache as free."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if controllers == "":
            top, limit_file, usage_file, cache_line = root, "memory.max", "memory.current", "inactive_file "
        elif "memory" in controllers.split(","):  # version 1 of control groups
            top, cache_line = root / "memory", "total_inactive_file "
            limit_file, usage_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inside = top / path.strip("/")
        for group in {top, inside, *(p for p in inside.parents if top in p.parents)}:
            # A group without a limit says "max", or more bytes than any machine has.
            with suppress(OSError, ValueError):
                limit = int((group / limit_file).read_text())
                used = int((group / usage_file).read_text())
                counts = (group / "memory.stat").read_text().splitlines()
                cache = sum(int(line.split()[1]) for line in counts if line.startswith(cache_line))
                yield limit - max(used - cache, 0)
