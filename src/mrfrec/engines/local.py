"""The engine of one machine: a few threads that run compiled code."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from threadpoolctl import threadpool_info, threadpool_limits

from mrfrec.core.engine import Budget, Engine, Progress
from mrfrec.engines.machine import memory_budget, usable_threads

Task = TypeVar("Task")
Result = TypeVar("Result")


def blas_libraries() -> list[str]:
    """Describe the loaded libraries for linear algebra and their threads."""
    return [
        f"{library['internal_api']} {library.get('version')}, {library['num_threads']} threads, "
        f"{Path(library['filepath']).name}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]


class _OneBlasThread:
    """A context, also for several threads, in which BLAS, which the whole process shares, uses one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                import_module("scipy.linalg")  # its BLAS would escape the limit if it were loaded later
                self._limits = threadpool_limits(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limits.restore_original_limits()


_one_blas_thread = _OneBlasThread()


class LocalEngine(Engine):
    """Threads of this process that run compiled code without the interpreter's lock, one BLAS thread each.

    Plain threads rather than numba's `prange`: several fits can run at once, forked processes work, progress
    is reported between tasks, and Ctrl-C stops at the next task.

    By default there are as many threads as cores, and they may use all memory that is available. With
    `uses_blas=False`, no work may call BLAS; this saves the millisecond that limiting its threads takes.
    """

    def __init__(
        self,
        threads: int | None = None,
        memory_limit: int | None = None,
        progress: Progress | None = None,
        *,
        uses_blas: bool = True,
        accelerator: Any = None,
    ) -> None:
        super().__init__(threads or usable_threads(), progress)
        self.accelerator = accelerator
        self._memory_limit = memory_limit
        self._uses_blas = uses_blas
        self._pool: ThreadPoolExecutor | None = None

    @cached_property
    def memory(self) -> Budget:
        return memory_budget(self._memory_limit)

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

    def run(
        self,
        work: Callable[..., Result],
        tasks: Sequence[Task],
        *,
        scratch: Callable[[], Any] | None = None,
        scratch_bytes: int = 0,
        costs: Sequence[int] | Callable[[Result], int] | None = None,
    ) -> list[Result]:
        assert self._pool is not None
        results: list[Any] = [None] * len(tasks)
        pending = iter(range(len(tasks)))
        take_one = threading.Lock()
        stop = threading.Event()
        finished: SimpleQueue[int | BaseException] = SimpleQueue()

        def take_tasks() -> None:
            try:
                space = () if scratch is None else (scratch(),)
                while not stop.is_set():
                    with take_one:
                        index = next(pending, None)
                    if index is None:
                        return
                    results[index] = work(tasks[index], *space)
                    finished.put(index)
            except BaseException as error:  # handed to the calling thread, which raises it
                finished.put(error)

        room = max(self.scratch // scratch_bytes, 1) if scratch_bytes else self.threads
        futures = [self._pool.submit(take_tasks) for _ in range(min(self.threads, room, len(tasks)))]
        try:
            for _ in tasks:
                outcome = finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                if costs is not None:
                    self.advance(int(costs(results[outcome]) if callable(costs) else costs[outcome]))
        finally:
            stop.set()
            wait(futures)
        return results
