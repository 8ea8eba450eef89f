"""The engine of a Dask cluster: pure functions run on workers, each of which holds a copy of the data.

Dask's `scatter` gives a worker the arguments that the tasks of a stage share; the other workers get them from
each other, with their first task. (With `broadcast=True`, Dask waits forever for a worker that dies in that
moment.) Dask runs a task again when its worker dies. Tasks are pure and results are taken in order, so that
the result is that of one machine, to the bit.
"""

import logging
import pickle
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from mrfrec.checks import missing_extra
from mrfrec.core.engine import Engine, split_evenly
from mrfrec.core.memory import Budget, human_bytes
from mrfrec.core.progress import Progress
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import ClusterError, ParameterError

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

_TASKS_PER_THREAD = 4  # into which a pass over the items is cut
_TASKS_AHEAD = 2  # per thread, which are sent before the first result is back
_MOST_LOSSES = 2  # of the data of a stage, with all workers that hold it
_PATIENCE = 60.0  # seconds to wait for a scheduler or workers that are gone
_CONNECT_SECONDS = 10.0  # to find a scheduler
_MEMORY_SHARE = 0.7  # of a worker's memory that may be used: Dask pauses a worker at 0.8
# Ctrl-C in a terminal reaches all its processes: the client alone decides what ends.
_NO_INTERRUPTS = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
_TOO_SMALL = (
    "Workers may have run out of memory: give them more, fewer threads each, or fit a smaller sparsity or "
    "max_neighbors."
)
_COMPARED_PACKAGES = ("mrfrec", "numpy", "numba", "scipy")


class _Shared(NamedTuple):
    """An object of which every worker has a copy."""

    value: Any  # kept alive, so that no other object gets its id
    future: "Future"
    nbytes: int


class _LostError(Exception):
    """A task was lost with its data, and can be sent again."""


class ClusterEngine(LocalEngine):
    """Sends the large tasks of a fit to the workers of a cluster; the rest runs on this machine."""

    def __init__(
        self,
        client: "Client",
        threads: int | None = None,
        memory_limit: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(threads, memory_limit, progress)
        self._client = client
        self._address = str(client.scheduler.address) if client.scheduler else "an unknown address"
        self._shared: dict[int, _Shared] = {}

    def __enter__(self) -> Self:
        workers = self._workers()
        if not workers:
            raise ClusterError(f"the cluster at {self._address} has no workers: start some.")
        self._check_versions()
        self.tasks_at_once = sum(int(worker["nthreads"]) for worker in workers.values())
        return super().__enter__()

    def __exit__(self, *ended: object) -> None:
        self._shared.clear()  # Dask frees what no future refers to
        super().__exit__(*ended)

    @property
    def task_memory(self) -> int:  # type: ignore[override]
        """Bytes that a task may use on the smallest worker, besides the shared data."""
        shared = sum(each.nbytes for each in self._shared.values())
        bytes_per_task = [
            int(_MEMORY_SHARE * worker["memory_limit"] - shared) // int(worker["nthreads"])
            for worker in self._workers().values()
            if worker.get("memory_limit")
        ]
        return min(bytes_per_task, default=1 << 62)

    def task_ranges(self, costs: Sequence[int]) -> list[tuple[int, int]]:
        import numpy as np

        return split_evenly(np.asarray(costs) + 1, _TASKS_PER_THREAD * self.tasks_at_once)

    def fold(
        self,
        name: str,
        function: Callable[[Task, Engine], Result],
        tasks: Sequence[Task],
        add: Callable[[Task, Result], None],
        costs: Sequence[int],
    ) -> None:
        with closing(self._results(name, function, tasks)) as results:
            for task, cost, result in zip(tasks, costs, results, strict=True):
                add(task, result)
                self.advance(cost)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    def _results(self, name: str, function: Callable[..., Any], tasks: Sequence[Any]) -> Generator[Any]:
        """Yield the results of all tasks in order."""
        token = uuid.uuid4().hex[:8]
        most_waiting = _TASKS_AHEAD * self.tasks_at_once
        waiting: deque[Future] = deque()
        shared: list[Future] = []
        addresses: list[str] = []
        done = losses = 0
        try:
            while done < len(tasks):
                try:
                    if not shared:
                        shared = self._share(function)
                        addresses = self._thread_addresses()
                    while len(waiting) < most_waiting and (number := done + len(waiting)) < len(tasks):
                        key = f"{name}-{token}-{number}-{losses}"
                        address = addresses[number % len(addresses)]
                        waiting.append(self._submit(key, address, tasks[number], shared))
                    result = self._outcome(f"{name} {done + 1} of {len(tasks)}", waiting[0])
                except _LostError as error:
                    losses += 1
                    if losses > _MOST_LOSSES:
                        what = f"the tasks {name} were lost {losses} times with their workers: {error}"
                        raise ClusterError(f"{what}. {_TOO_SMALL}") from None
                    _cancel(waiting)
                    self._shared.clear()
                    shared = []
                    self._wait_for_workers()
                    continue
                waiting.popleft().release()
                done += 1
                yield result
        finally:
            _cancel(waiting)

    def _share(self, function: Callable[..., Any]) -> "list[Future]":
        """Send a worker a function and its arguments, except those that workers have from the last stage."""
        has_arguments = isinstance(function, partial) and not function.keywords
        parts = (function.func, *function.args) if has_arguments else (function,)  # type: ignore[attr-defined]
        wanted = {id(part): part for part in parts}
        self._shared = {key: each for key, each in self._shared.items() if key in wanted}
        sizes = {key: _size_of(part) for key, part in wanted.items()}
        self._check_room(sum(sizes.values()))
        for key, part in wanted.items():
            if key not in self._shared:
                try:
                    (future,) = self._client.scatter([part], hash=False, timeout=_PATIENCE)
                except Exception as error:  # a worker died meanwhile, or the scheduler
                    raise _LostError(str(error) or type(error).__name__) from None
                self._shared[key] = _Shared(part, future, sizes[key])
        return [self._shared[id(part)].future for part in parts]

    def _check_room(self, needed: int) -> None:
        for address, worker in self._workers().items():
            limit = int(_MEMORY_SHARE * (worker.get("memory_limit") or 1 << 62))
            source = f"is what the worker {address} may use of its {human_bytes(limit / _MEMORY_SHARE)}"
            Budget(limit, source).check("data on each worker", needed, "Give workers more memory.")

    def _submit(self, key: str, address: str, task: Any, shared: "list[Future]") -> "Future":
        """Send a task to a worker; left to itself, Dask would prefer the worker that has the data already."""
        try:
            return self._client.submit(
                _with_engine, task, *shared, key=key, pure=False, workers=[address], allow_other_workers=True
            )
        except OSError as error:
            raise _LostError(str(error)) from None

    def _outcome(self, task: str, future: "Future") -> Any:
        """Wait for a task, and return its result or raise its error."""
        from distributed import KilledWorker

        done = Event()
        future.add_done_callback(lambda _: done.set())
        while not future.done():
            if not done.wait(0.5):
                self._wait_for_workers()
        if future.status == "finished":
            with suppress(Exception):  # its worker died before it sent the result
                return future.result()
        if future.status != "error":
            raise _LostError("no worker has its data any more")
        error = future.exception()
        if isinstance(error, KilledWorker):
            raise ClusterError(
                f"the task {task} took {error.allowed_failures + 1} workers with it, the last at "
                f"{error.last_worker.address}. {_TOO_SMALL}"
            )
        if type(error).__module__.startswith("mrfrec."):
            raise error
        raise ClusterError(f"the task {task} failed: {type(error).__name__}: {error}") from error

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    def _wait_for_workers(self) -> None:
        """Wait until some worker runs; raise if that takes too long."""
        began = time.monotonic()
        while not any(w.get("status", "running") == "running" for w in self._workers().values()):
            if time.monotonic() - began > _PATIENCE:
                raise ClusterError(
                    f"the cluster at {self._address} has had no scheduler or no workers that run for "
                    f"{_PATIENCE:.0f} seconds: they are gone, or paused by Dask because their memory is full."
                )
            time.sleep(0.2)

    def _thread_addresses(self) -> list[str]:
        """Return the address of each worker as often as it has threads, beginning with each worker once."""
        threads = {address: int(worker["nthreads"]) for address, worker in self._workers().items()}
        addresses = [
            address
            for turn in range(max(threads.values(), default=0))
            for address, count in threads.items()
            if turn < count
        ]
        if not addresses:
            raise _LostError("all workers are gone")
        return addresses

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers by address; none if the scheduler does not answer.

        `client.scheduler_info` will not do: at any moment, a timer of Dask may replace it by one
        without workers.
        """
        with suppress(Exception):
            scheduler: Any = self._client.scheduler
            if self._client.status == "running":
                return dict(self._client.sync(scheduler.identity, callback_timeout=_PATIENCE)["workers"])
        return {}

    def _check_versions(self) -> None:
        """Refuse workers without this package, or with other versions of the libraries that compute."""
        versions = self._client.get_versions(packages=list(_COMPARED_PACKAGES))
        here = _versions(versions["client"])
        for address, worker in versions["workers"].items():
            there = _versions(worker)
            for name, version in here.items():
                if there[name] != version:
                    raise ClusterError(
                        f"the worker {address} has {name} {there[name] or 'not installed'}, this machine "
                        f"{version}. Install the same versions everywhere, for the same results."
                    )


def _with_engine(task: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    with LocalEngine(1) as engine:
        return function(*arguments, task, engine)


def _cancel(waiting: "deque[Future]") -> None:
    while waiting:
        with suppress(Exception):  # the cluster is gone, and its tasks with it
            waiting.popleft().cancel()


def _size_of(part: object) -> int:
    """Return the bytes of an object and its arrays, without copying these."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def _versions(process: dict[str, Any]) -> dict[str, str | None]:
    """Return what must be the same everywhere, from Dask's description of a process."""
    host = {"python": process["host"]["python"].rsplit(".", 3)[0], "machine": process["host"]["machine"]}
    return {name: process["packages"].get(name) for name in _COMPARED_PACKAGES} | host


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise missing_extra("a cluster needs Dask", "cluster") from None
    return distributed


def check_client(client: object) -> None:
    """Refuse a client that is not one of Dask, or is asynchronous."""
    if not isinstance(client, _distributed().Client) or client.asynchronous:
        raise ParameterError("client", "a distributed.Client that is not asynchronous, or None", client)


@contextmanager
def connected(text: str) -> "Iterator[Client]":
    """Connect to the cluster "tcp://host:8786", or start one of four processes here: "local:4"."""
    dask = _distributed()
    kind, _, number = text.partition(":")
    if kind == "local" and number.isdigit() and 1 <= int(number) <= 1024:
        with (
            tempfile.TemporaryDirectory(prefix="mrfrec-cluster-") as folder,
            dask.LocalCluster(
                n_workers=int(number), threads_per_worker=1, dashboard_address=":0", local_directory=folder,
                silence_logs=logging.CRITICAL, preload=[_NO_INTERRUPTS],
            ) as cluster,
            dask.Client(cluster) as client,
        ):  # fmt: skip
            yield client
        return
    if "://" not in text:
        rule = 'an address such as "tcp://host:8786", or a number of processes such as "local:4"'
        raise ParameterError("cluster", rule, text)
    try:
        client = dask.Client(text, timeout=_CONNECT_SECONDS)
    except (OSError, TypeError, ValueError) as error:  # a TypeError: tls:// without certificates
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(f"no scheduler answers at {text}: {reason}.") from None
    with client:
        yield client
