"""Where results and what is kept between runs lie, and the machine that measures."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

Progress = Callable[[str, int, int], None]

LAB = Path(__file__).parents[2]
RESULTS, CACHE = LAB / "results", LAB / "cache"


def machine() -> str:
    """Describe this machine in one line."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    libraries = ", ".join(f"{name} {version(name)}" for name in ("mrfrec", "numpy", "scipy", "numba"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {memory:.0f} GiB, Python {platform.python_version()}, {libraries}"


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, which replaces `path` at the end; after an error nothing is left of it."""
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.touch()
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def seconds_text(seconds: float) -> str:
    """Return "12.3 s", "5 min 7 s"."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {round(seconds % 60)} s"
