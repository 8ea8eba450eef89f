"""What the core asks of the engine that runs it.

The core is arithmetic over ranges of items and lists of blocks. An engine decides where that runs: on the
threads of this machine, on a GPU, on a cluster.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mrfrec.core.memory import Budget
from mrfrec.core.progress import Progress

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

WORDS = {
    "measure": "measuring parameters",
    "low rank": "finding shared tastes", "statistics": "counting", "pattern": "finding related items",
    "schedule": "finding related items", "kinds": "finding related items", "gather": "comparing items",
    "neighbors": "comparing items", "matrix": "comparing items", "mirror": "comparing items",
    "factorise": "learning weights", "invert factor": "learning weights",
    "multiply factor": "learning weights", "solve": "learning weights", "blocks": "learning weights",
    "average": "learning weights", "regress": "learning weights", "weights": "finishing", "rows": "finishing",
}  # fmt: skip
"""What progress says of the stages of fits."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def ranges(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """Cut start…stop into ranges of `step`."""
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def split_evenly(costs: Array, parts: int) -> list[tuple[int, int]]:
    """Cut 0…len(costs) into about `parts` ranges of equal cost."""
    ends = np.cumsum(costs, dtype=np.float64)
    marks = np.searchsorted(ends, np.linspace(0.0, ends[-1] if len(ends) else 0.0, parts + 1)[1:-1]) + 1
    cuts = np.unique(np.concatenate([[0], np.minimum(marks, len(costs)), [len(costs)]])).tolist()
    return list(pairwise(cuts))


class Engine(ABC):
    """Runs the parts of a fit, and owns its threads, memory and progress.

    There are two ways to run work. `run` loops over many small tasks on the threads of this machine, which
    share arrays. `fold` applies a pure function to larger tasks; the function, the tasks and the results
    can be pickled, so that an engine may run them anywhere. However the tasks are cut, results are
    reduced in their order, and none depends on the cuts: the engine cannot change a result.
    """

    # A device that does the longest stages of a fit, up to rounding: `engines.gpu.accelerator`, or None.
    accelerator: Any = None
    task_memory: int | None = None  # bytes that a task of `fold` may use, where that is not this machine's,
    threads_of_tasks: int = 1  # and how many tasks run at one time there

    def __init__(self, threads: int, progress: Progress | None) -> None:
        self.threads = threads
        self.scratch = sys.maxsize  # bytes that the tasks running at one time may use, all together
        self.timings: dict[str, float] = {}  # seconds per stage
        self.saved = 0.0  # seconds, among these, of stages that an earlier fit has done
        self._progress = progress
        self._stage, self._done, self._total = "", 0, 0
        self._costs: dict[str, float] = {}
        self._growth: dict[str, Sequence[float]] = {}
        self._shares: dict[str, float] = {}  # of each stage, how much is done

    @property
    @abstractmethod
    def memory(self) -> Budget:
        """The bytes a fit may use, and what its stages plan to."""

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

        With `scratch`, each thread makes one scratch space, of `scratch_bytes`, and passes it to `work` as
        the second argument. No more threads run than `self.scratch` has room for. `costs` are the steps of
        progress that each task counts for, or a function of its result.
        """

    def fold(
        self,
        name: str,
        function: "Callable[[Task, Engine], Result]",
        tasks: Sequence[Task],
        add: Callable[[Task, Result], None],
        costs: Sequence[int],
    ) -> None:
        """Call `add(task, function(task, engine))` for each task, in order.

        `function` is pure. It may use all threads and memory of the engine that it gets, and reports its
        progress there. An engine that runs tasks elsewhere counts `costs` steps of progress for each task
        instead. `name` is for people.
        """
        for task in tasks:
            add(task, function(task, self))

    def ranges(self, costs: Sequence[int]) -> list[tuple[int, int]]:
        """Cut 0…len(costs) into the ranges that make a task of `fold` each: here, one for all threads."""
        return [(0, len(costs))] if len(costs) else []

    # ── time and progress ─────────────────────────────────────────────────────────────────────────

    @contextmanager
    def stage(self, name: str, total: int, part: tuple[int, int] | None = None) -> Iterator[None]:
        """Time the work inside under `name`, which `advance` counts from 0 to `total`.

        A stage that is done in several parts says where this part begins and ends.
        """
        first, last = part or (0, total)
        around = self._stage, self._done, self._total
        self._stage, self._done, self._total = name, first, total
        self.advance(0)
        start = time.perf_counter()
        yield
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start
        self.advance(last - self._done)
        self._stage, self._done, self._total = around

    def expect(self, costs: Mapping[str, float], growth: Sequence[float] = (0.0, 1.0)) -> None:
        """Say about how long stages take compared with each other: in seconds, on any machine.

        Where the steps of these stages differ, `growth` has the share of the time that the first steps take,
        at evenly spaced steps from none to all.
        """
        self._costs.update(costs)
        self._growth.update(dict.fromkeys(costs, growth))

    def count(self, timings: dict[str, float]) -> None:
        """Add the seconds of stages that an earlier fit has done."""
        for name, seconds in timings.items():
            self._costs.pop(name, None)
            self.timings[name] = self.timings.get(name, 0.0) + seconds
            self.saved += seconds

    def advance(self, steps: int) -> None:
        """Report that so many steps more of the stage are done."""
        self._done += steps
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        growth = self._growth.get(self._stage, (0.0, 1.0))
        # As np.interp, which takes longer than many a task.
        place = min(int(share * (len(growth) - 1)), len(growth) - 2)
        share = growth[place] + (share * (len(growth) - 1) - place) * (growth[place + 1] - growth[place])
        self._shares[self._stage] = max(share, self._shares.get(self._stage, 0.0))
        if self._progress is not None:
            total = self._units()
            done = sum(cost * self._shares.get(name, 0.0) for name, cost in self._costs.items())
            # What comes after the last stage is not done yet.
            self._progress(WORDS.get(self._stage, self._stage), min(round(1e6 * done), total - 1), total)

    def finish(self) -> None:
        """Report that the fit is done, which it is a while after its last stage."""
        if self._progress is not None:
            total = self._units()
            self._progress("finishing", total, total)

    def _units(self) -> int:
        return max(round(1e6 * sum(self._costs.values())), 1)
