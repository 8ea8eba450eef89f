"""Memory, threads and progress: what a fit may use, and how it shares it out."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from numbers import Integral
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from threadpoolctl import threadpool_info, threadpool_limits

from mrfrec.errors import MemoryPlanError, ParameterError

__all__ = [
    "MemoryPlan",
    "Progress",
    "Workers",
    "available_memory",
    "blas_libraries",
    "human_bytes",
    "parse_bytes",
    "usable_threads",
]

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`, always from the thread that called `fit`."""

Task = TypeVar("Task")
Result = TypeVar("Result")


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def human_bytes(count: float) -> str:
    """A size for people: "6.8 GB", "512 KB" (powers of 1000)."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def parse_bytes(limit: float | str) -> int:
    """Bytes from a whole number or a text such as "8GB", "512 MiB"."""
    rule = 'a positive whole number of bytes, or a text such as "8GB" or "512 MiB"'
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:([KMGT])(i?)B?|B)\s*", limit, flags=re.IGNORECASE)
        if match is None:
            raise ParameterError("memory_limit", rule, limit)
        number, unit, binary = match.groups()
        count = int(float(number) * (1024 if binary else 1000) ** " KMGT".index((unit or " ").upper()))
    elif isinstance(limit, Integral | float) and not isinstance(limit, bool) and limit == limit // 1:
        count = int(limit)
    else:
        raise ParameterError("memory_limit", rule, limit)
    if count <= 0:
        raise ParameterError("memory_limit", rule, limit)
    return count


def available_memory() -> int:
    """Bytes this process may still take without anybody being killed: the machine's and the container's."""
    candidates = [_machine_memory(), *_container_memory(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))]
    return max(min(candidates), 0)


def _machine_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        # No count of what is free (macOS): half of what is built in is a fair guess.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 * 1000**3  # nothing tells; `memory_limit` overrides


def _container_memory(root: Path, membership: Path) -> Iterator[int]:
    """What each enclosing control group (version 1 or 2) leaves; reclaimable file cache counts as free."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if controllers == "":
            folder, names = root, ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        else:
            continue
        inside = folder / path.strip("/")
        for group in {folder, inside, *(p for p in inside.parents if folder in p.parents)}:
            try:
                limit = (group / names[0]).read_text().strip()
                if limit == "max":
                    continue
                used = int((group / names[1]).read_text())
                statistics = (group / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):
                continue
            cache = sum(int(line.split()[1]) for line in statistics if line.startswith(names[2]))
            yield int(limit) - max(used - cache, 0)


class MemoryPlan:
    """What a fit will hold at each stage, added up before it starts and again when more is known.

    Bytes the caller already holds (the matrix given to `fit`) are not counted: the limit is what the
    fit itself may add.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = available_memory() if limit is None else limit
        self.source = "is available on this machine" if limit is None else "is what memory_limit allows"
        self.stages: dict[str, int] = {}

    def require(self, stage: str, needed: int, advice: str, who: str = "the fit") -> None:
        """Note that `stage` holds `needed` bytes in all; refuse it, with advice, if that is too much."""
        self.stages[stage] = max(needed, self.stages.get(stage, 0))
        if needed > self.limit:
            raise MemoryPlanError(
                f"{who} needs about {human_bytes(needed)} ({stage}) and {human_bytes(self.limit)} "
                f"{self.source}. {advice}",
                needed=needed,
                limit=self.limit,
            )


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


def usable_threads() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def blas_libraries() -> list[str]:
    """The libraries for linear algebra that are loaded, with their threads."""
    return [
        f"{library['internal_api']} {library.get('version')}, {library['num_threads']} threads, "
        f"{Path(library['filepath']).name}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]


class _OneBlasThread:
    """BLAS keeps to one thread while anybody is inside; how many it had comes back when the last one leaves.

    The number is the library's own and the same for the whole process, so fits that overlap must share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                import_module("scipy.linalg")  # its BLAS, which would escape the limit if it came later
                self._limits = threadpool_limits(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limits.restore_original_limits()


_one_blas_thread = _OneBlasThread()


class Workers:
    """A few threads that run compiled code outside the interpreter's lock, with one BLAS thread in each.

    Plain threads and not numba's `prange`: several fits can run at once, forked processes work, progress
    is reported between tasks, and Ctrl-C stops at the next task. Tasks are cut
    by the size of the problem, never by the number of threads, and each writes its own results: so the
    number of threads cannot change a result.
    """

    def __init__(
        self, threads: int | None = None, progress: Progress | None = None, *, uses_blas: bool = True
    ) -> None:
        self.threads = threads or usable_threads()
        self._uses_blas = uses_blas
        self.timings: dict[str, float] = {}
        self.saved = 0.0  # seconds of stages that did not have to be done again
        self._progress = progress
        self._pool: ThreadPoolExecutor | None = None
        self._stage, self._done, self._total = "", 0, 0

    def __enter__(self) -> Self:
        if self._uses_blas:
            _one_blas_thread.__enter__()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="mrfrec")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        if self._uses_blas:
            _one_blas_thread.__exit__()

    @contextmanager
    def stage(self, name: str, total: int, part: tuple[int, int] | None = None) -> Iterator[None]:
        """Time what happens inside under `name`; `run` moves its progress from 0 to `total`.

        A stage that comes in several parts names where this part begins and ends.
        """
        first, last = part or (0, total)
        self._stage, self._done, self._total = name, first, total
        self._report(0)
        start = time.perf_counter()
        yield
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start
        self._report(last - self._done)

    def count(self, timings: dict[str, float]) -> None:
        """Add the seconds of stages that were done before, and need not be done again."""
        for name, seconds in timings.items():
            self.timings[name] = self.timings.get(name, 0.0) + seconds
            self.saved += seconds

    def run(
        self,
        work: Callable[..., Result],
        tasks: Sequence[Task],
        *,
        scratch: Callable[[], Any] | None = None,
        costs: Sequence[int] | Callable[[Result], int] = lambda _: 0,
    ) -> list[Result]:
        """`[work(task) for task in tasks]`, in parallel; results come in the order of the tasks.

        With `scratch`, each thread makes one scratch space and passes it as the second argument.
        `costs` are the steps of progress each task stands for, or tell them from its result.
        """
        assert self._pool is not None
        results: list[Any] = [None] * len(tasks)
        pending = iter(range(len(tasks)))
        taking = threading.Lock()
        stop = threading.Event()
        finished: SimpleQueue[int | BaseException] = SimpleQueue()

        def take_tasks() -> None:
            try:
                space = () if scratch is None else (scratch(),)
                while not stop.is_set():
                    with taking:
                        index = next(pending, None)
                    if index is None:
                        return
                    results[index] = work(tasks[index], *space)
                    finished.put(index)
            except BaseException as error:  # handed to the calling thread, which raises it
                finished.put(error)

        futures = [self._pool.submit(take_tasks) for _ in range(min(self.threads, len(tasks)))]
        try:
            for _ in tasks:
                outcome = finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                self._report(int(costs(results[outcome]) if callable(costs) else costs[outcome]))
        finally:
            stop.set()
            wait(futures)
        return results

    def _report(self, steps: int) -> None:
        self._done += steps
        if self._progress is not None:
            self._progress(self._stage, min(self._done, self._total), self._total)
