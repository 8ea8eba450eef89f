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

_TASKS_PER_THREAD = 4  # of a pass over the items
_AHEAD = 2  # tasks per thread that are handed out before the first one's result is there
_RESENT = 2  # times that the data of a stage may be lost with all workers that hold it
_PATIENCE = 60.0  # seconds without a scheduler or without workers
_CONNECT = 10.0  # seconds to find a scheduler
_SHARE = 0.7  # of a worker's memory that a task may count on: Dask pauses it at 0.8
# Ctrl-C in a terminal reaches all its processes: the client alone decides what ends.
_NO_INTERRUPTS = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
_TOO_SMALL = (
    "Workers may have run out of memory: give them more, fewer threads each, or fit a smaller sparsity or "
    "max_neighbors."
)
_CHECKED = ("mrfrec", "numpy", "numba", "scipy")


class _Shared(NamedTuple):
    """An object of which every worker has a copy."""

    value: Any  # kept, so that its id stays its own
    future: "Future"
    nbytes: int


class _LostError(Exception):
    """A task went away with its data, and can be sent again."""


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
        self.threads_of_tasks = sum(int(worker["nthreads"]) for worker in workers.values())
        return super().__enter__()

    def __exit__(self, *ended: object) -> None:
        self._shared.clear()  # Dask frees what no future refers to
        super().__exit__(*ended)

    @property
    def task_memory(self) -> int:  # type: ignore[override]
        """Bytes that a task may use on the smallest worker, beside the shared data."""
        shared = sum(each.nbytes for each in self._shared.values())
        rooms = [
            int(_SHARE * worker["memory_limit"] - shared) // int(worker["nthreads"])
            for worker in self._workers().values()
            if worker.get("memory_limit")
        ]
        return min(rooms, default=1 << 62)

    def ranges(self, costs: Sequence[int]) -> list[tuple[int, int]]:
        import numpy as np

        return split_evenly(np.asarray(costs) + 1, _TASKS_PER_THREAD * self.threads_of_tasks)

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
        token, ahead = uuid.uuid4().hex[:8], _AHEAD * self.threads_of_tasks
        waiting: deque[Future] = deque()
        shared: list[Future] = []
        places: list[str] = []
        done = lost = 0
        try:
            while done < len(tasks):
                try:
                    if not shared:
                        shared, places = self._share(function), self._places()
                    while len(waiting) < ahead and (number := done + len(waiting)) < len(tasks):
                        key, place = f"{name}-{token}-{number}-{lost}", places[number % len(places)]
                        waiting.append(self._submit(key, place, tasks[number], shared))
                    result = self._outcome(f"{name} {done + 1} of {len(tasks)}", waiting[0])
                except _LostError as error:
                    lost += 1
                    if lost > _RESENT:
                        what = f"the tasks {name} were lost {lost} times with their workers: {error}"
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
        """Give a worker a function and its arguments, unless some have them from the stage before."""
        apart = isinstance(function, partial) and not function.keywords
        parts = (function.func, *function.args) if apart else (function,)  # type: ignore[attr-defined]
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
            limit = int(_SHARE * (worker.get("memory_limit") or 1 << 62))
            source = f"is what the worker {address} may use of its {human_bytes(limit / _SHARE)}"
            Budget(limit, source).check("data on each worker", needed, "Give workers more memory.")

    def _submit(self, key: str, place: str, task: Any, shared: "list[Future]") -> "Future":
        """Send a task to a worker: Dask by itself prefers the one that has the data already."""
        try:
            return self._client.submit(
                _with_engine, task, *shared, key=key, pure=False, workers=[place], allow_other_workers=True
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
            with suppress(Exception):  # its worker died before it was asked
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
        """Return when some worker runs; raise if that takes too long."""
        began = time.monotonic()
        while not any(w.get("status", "running") == "running" for w in self._workers().values()):
            if time.monotonic() - began > _PATIENCE:
                raise ClusterError(
                    f"the cluster at {self._address} has had no scheduler or no workers that run for "
                    f"{_PATIENCE:.0f} seconds: they are gone, or paused by Dask because their memory is full."
                )
            time.sleep(0.2)

    def _places(self) -> list[str]:
        """Return the address of each worker as often as it has threads; first all workers once."""
        threads = {address: int(worker["nthreads"]) for address, worker in self._workers().items()}
        places = [
            address
            for turn in range(max(threads.values(), default=0))
            for address, count in threads.items()
            if turn < count
        ]
        if not places:
            raise _LostError("all workers are gone")
        return places

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers by address; none if the scheduler does not answer.

        `client.scheduler_info` will not do: at any moment, a timer of Dask replaces its answer by one without
        workers.
        """
        with suppress(Exception):
            scheduler: Any = self._client.scheduler
            if self._client.status == "running":
                return dict(self._client.sync(scheduler.identity, callback_timeout=_PATIENCE)["workers"])
        return {}

    def _check_versions(self) -> None:
        """Refuse workers without this package, or with other versions of the libraries that compute."""
        versions = self._client.get_versions(packages=list(_CHECKED))
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
        with suppress(Exception):  # a cluster that is gone has nothing left to cancel
            waiting.popleft().cancel()


def _size_of(part: object) -> int:
    """Return the bytes of an object and its arrays, without copying these."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def _versions(of: dict[str, Any]) -> dict[str, str | None]:
    """Return the versions that must be the same everywhere, from Dask's description of a process."""
    host = {"python": of["host"]["python"].rsplit(".", 3)[0], "machine": of["host"]["machine"]}
    return {name: of["packages"].get(name) for name in _CHECKED} | host


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
        client = dask.Client(text, timeout=_CONNECT)
    except (OSError, TypeError, ValueError) as error:  # a TypeError: tls:// without certificates
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(f"no scheduler answers at {text}: {reason}.") from None
    with client:
        yield client
