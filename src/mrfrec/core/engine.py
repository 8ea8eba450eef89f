"""The engine that runs the core: its interface, its stages, and its budget of memory.

The core is arithmetic over ranges of items and lists of blocks. An engine decides where that runs: on the
threads of this machine, or on a GPU.
"""

import ctypes
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mrfrec.errors import MemoryPlanError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

STAGE_NAMES = {
    "measure": "measuring parameters",
    "low rank": "finding shared tastes", "statistics": "counting", "pattern": "finding related items",
    "schedule": "finding related items", "kinds": "finding related items", "gather": "comparing items",
    "neighbors": "comparing items", "matrix": "comparing items", "mirror": "comparing items",
    "factorise": "learning weights", "invert factor": "learning weights",
    "multiply factor": "learning weights", "solve": "learning weights",
    "average": "learning weights", "regress": "learning weights", "weights": "finishing", "rows": "finishing",
}  # fmt: skip
"""What progress calls each stage of a fit; several stages may have one name."""

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`, always from the thread that made the call.

`stage` says in words what is being done. `done` of `total` units of the whole call are done; each unit takes
about the same time. A `total` of 0 means that it is not known. `done` never falls, and equals `total` in the
last report. `total` may change when the call learns how much there is to do.
"""

# Units of progress of a call that consists of several parts.
_PARTS_OF_CALL = 10_000

Task = TypeVar("Task")
Result = TypeVar("Result")


def ranges(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """Cut start…stop into ranges of length `step`; the last may be shorter."""
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def split_evenly(costs: Array, parts: int) -> list[tuple[int, int]]:
    """Cut 0…len(costs) into about `parts` ranges of equal cost."""
    ends = np.cumsum(costs, dtype=np.float64)
    marks = np.searchsorted(ends, np.linspace(0.0, ends[-1] if len(ends) else 0.0, parts + 1)[1:-1]) + 1
    cuts = np.unique(np.concatenate([[0], np.minimum(marks, len(costs)), [len(costs)]])).tolist()
    return list(pairwise(cuts))


def human_bytes(count: float) -> str:
    """Format a number of bytes with units of powers of 1000: "6.8 GB", "512.0 KB"."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def release_freed() -> None:
    """Return freed memory to the system, where that is possible."""
    # The C library of Linux keeps what a thread has freed; other systems have no such call.
    with suppress(AttributeError, OSError, TypeError):
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


class Engine(ABC):
    """Runs the parts of a fit, and owns its threads, memory and progress.

    Results are reduced in the order of the tasks and do not depend on how the work is cut into tasks: the
    engine cannot change a result.
    """

    # A `TorchAccelerator` may take over the closed form; its results differ by rounding only.
    accelerator: Any = None

    def __init__(self, threads: int, progress: Progress | None) -> None:
        self.threads = threads
        self.scratch = sys.maxsize  # bytes that the scratch spaces of all threads may take together
        self.timings: dict[str, float] = {}  # seconds by stage
        self.saved = 0.0  # seconds of these that belong to stages taken from an earlier fit
        self._progress = progress
        self._stage, self._done, self._total = "", 0, 0
        self._costs: dict[str, float] = {}
        self._growth: dict[str, Sequence[float]] = {}
        self._shares: dict[str, float] = {}  # how much of a stage is done, from 0 to 1

    @property
    @abstractmethod
    def memory(self) -> Budget:
        """The bytes a fit may use, and how many its stages need."""

    @abstractmethod
    def run(
        self,
        work: Callable[..., Result],
        tasks: Sequence[Task],
        *,
        scratch: Callable[[], Any] | None = None,
        scratch_bytes: int = 0,
        costs: Sequence[int] | Callable[[Result], int] | None = None,
    ) -> list[Result]:
        """Return `[work(task) for task in tasks]`, computed on the threads of this machine.

        With `scratch`, a thread makes one scratch space, of `scratch_bytes`, and passes it to `work` as the
        second argument. No more threads run than `self.scratch` has room for. `costs` are the steps of
        progress that tasks count for, or a function that computes them from a result.
        """

    # ── time and progress ─────────────────────────────────────────────────────────────────────────

    @contextmanager
    def stage(self, name: str, total: int, part: tuple[int, int] | None = None) -> Iterator[None]:
        """Time the work inside the block under `name`; `advance` counts its steps from 0 to `total`.

        A stage may be done in several parts: `part` says at which steps this one begins and ends.
        """
        first, last = part or (0, total)
        outer = self._stage, self._done, self._total
        self._stage, self._done, self._total = name, first, total
        self.advance(0)
        start = time.perf_counter()
        yield
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start
        self.advance(last - self._done)
        self._stage, self._done, self._total = outer

    def expect(self, costs: Mapping[str, float], growth: Sequence[float] = (0.0, 1.0)) -> None:
        """Announce about how many seconds the stages take; only the ratios count.

        Where the steps of a stage take different times, `growth` holds the share of its time that has passed
        at evenly spaced steps, from 0 at the first to 1 at the last.
        """
        self._costs.update(costs)
        self._growth.update(dict.fromkeys(costs, growth))

    def add_saved(self, timings: dict[str, float]) -> None:
        """Add the seconds of stages if an earlier fit left their results."""
        for name, seconds in timings.items():
            self._costs.pop(name, None)
            self.timings[name] = self.timings.get(name, 0.0) + seconds
            self.saved += seconds

    def advance(self, steps: int) -> None:
        """Report that `steps` more steps of the stage are done."""
        self._done += steps
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        growth = self._growth.get(self._stage, (0.0, 1.0))
        # np.interp would do this, but takes longer than many tasks.
        place = min(int(share * (len(growth) - 1)), len(growth) - 2)
        share = growth[place] + (share * (len(growth) - 1) - place) * (growth[place + 1] - growth[place])
        self._shares[self._stage] = max(share, self._shares.get(self._stage, 0.0))
        if self._progress is not None:
            total = self._units()
            done = sum(cost * self._shares.get(name, 0.0) for name, cost in self._costs.items())
            # The fit is not done when its last stage is: `finish` reports the end.
            name = STAGE_NAMES.get(self._stage, self._stage)
            self._progress(name, min(round(1e6 * done), total - 1), total)

    def finish(self) -> None:
        """Report that the whole fit is done, not only its last stage."""
        if self._progress is not None:
            total = self._units()
            self._progress("finishing", total, total)

    def _units(self) -> int:
        return max(round(1e6 * sum(self._costs.values())), 1)


def part_of(progress: Progress | None, start: float, stop: float, name: str = "") -> Progress | None:
    """Return a callback for a part of a call, which takes the whole from the share `start` to `stop`.

    `name` is put before the stages of the part.
    """
    if progress is None:
        return None
    reached = round(start * _PARTS_OF_CALL)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal reached
        words = name + stage if total else f"{name}{stage} ({done:,})"
        share = min(done / total, 1.0) if total else 0.0
        # The share is rounded down, so that unfinished work does not look finished.
        reached = max(reached, int((start + (stop - start) * share) * _PARTS_OF_CALL + 1e-6))
        progress(words, reached, _PARTS_OF_CALL)

    return report
