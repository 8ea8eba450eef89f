"""What the core asks of the engine that runs it.

The core is arithmetic over ranges of items and lists of blocks. An engine decides where that runs: on the
threads of this machine, on a GPU, on a cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mrfrec.core.memory import Budget

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`, always from the thread that made the call.

`stage` says in words what is being done. `done` of `total` is how much of the whole call is done, in units
that take about the same time each; 0 as the total says that it is not known. `done` never falls, and the last
report has all of it done. `total` may change when the call learns how much there is to do.
"""

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


class Engine(ABC):
    """Runs the parts of a fit, and owns its threads, memory and progress.

    There are two ways to run work. `run` loops over many small tasks on the threads of this machine, which
    share arrays. `fold` applies a pure function to larger tasks; the function, the tasks and the results
    can be pickled, so that an engine may run them anywhere. However the tasks are cut, results are
    reduced in their order, and none depends on the cuts: the engine cannot change a result.
    """

    threads: int
    scratch: int  # bytes that the tasks running at one time may use for themselves, all together
    timings: dict[str, float]  # seconds per stage
    saved: float  # seconds, among these, of stages that an earlier fit has done
    accelerator: "Accelerator | None" = None
    task_memory: int | None = None  # bytes that a task of `fold` may use, where that is not this machine's,
    threads_of_tasks: int = 1  # and how many tasks run at one time there

    @property
    @abstractmethod
    def memory(self) -> Budget:
        """The bytes a fit may use, and what its stages plan to."""

    @abstractmethod
    def stage(
        self, name: str, total: int, part: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        """Time the work inside under `name`, which `advance` counts from 0 to `total`.

        A stage that is done in several parts says where this part begins and ends.
        """

    @abstractmethod
    def expect(self, costs: Mapping[str, float], growth: Sequence[float] = (0.0, 1.0)) -> None:
        """Say about how long stages take compared with each other: in seconds, on any machine.

        Where the steps of these stages differ, `growth` has the share of the time that the first steps take,
        at evenly spaced steps from none to all.
        """

    @abstractmethod
    def advance(self, steps: int) -> None:
        """Report that so many steps more of the stage are done."""

    @abstractmethod
    def count(self, timings: dict[str, float]) -> None:
        """Add the seconds of stages that an earlier fit has done."""

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

    @abstractmethod
    def fold(
        self,
        name: str,
        function: "Callable[[Task, Engine], Result]",
        tasks: Sequence[Task],
        add: Callable[[Task, Result], None],
        costs: Sequence[int],
    ) -> None:
        """Call `add(task, function(task, engine))` for each task, in order.

        `function` is pure and uses all of the engine it is given, whose progress it reports. Where that is
        another engine, `costs` are the steps of progress that each task counts for. `name` is for people.
        """

    def ranges(self, costs: Sequence[int]) -> list[tuple[int, int]]:
        """Cut 0…len(costs) into the ranges that make a task of `fold` each: here, one for all threads."""
        return [(0, len(costs))] if len(costs) else []

    @abstractmethod
    def release(self) -> None:
        """Give memory that was freed back to the system, where that is possible."""


class Accelerator(ABC):
    """A device beside the threads of this machine, which does the longest stages of a fit.

    Its results are those of the core up to rounding, and the same for every run on one device. `statistics`,
    `batch` and the pairs are the core's own.
    """

    name: str

    @abstractmethod
    def takes(
        self, kind: str, m: int, pairs: int, binary: bool, dtype: str, rank: int, seconds: float
    ) -> bool:
        """Return whether the device is to fit a model of this size, which takes so long without it.

        Raises `MemoryPlanError` if it must and has no room.
        """

    @abstractmethod
    def leading_vectors(
        self,
        parts: Any,
        a: npt.NDArray[Any],
        random: Callable[[int], npt.NDArray[Any]],
        columns: int,
        rank: int,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        """Return singular vectors as rows, as `lanczos` does, from both sides of N."""

    @abstractmethod
    def dense_weights(
        self,
        statistics: Any,
        ridge: npt.NDArray[np.float64],
        dtype: str,
        mean_constraint: bool,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        """Return B of the dense model, as `closed_form` does."""

    @abstractmethod
    def list_pairs(
        self,
        statistics: Any,
        threshold: np.float32,
        shift: int,
        may_keep: Callable[[int], bool],
        steps: int,
        engine: Engine,
    ) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """Return all pairs with |S| > threshold and the histogram of their magnitudes, as `entries` does."""

    @abstractmethod
    def estimates_of_blocks(
        self,
        statistics: Any,
        ridge: npt.NDArray[np.float64],
        dtype: str,
        batch: Any,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        """Return the estimates of a batch of blocks, as `blocks` does."""
