"""The engine of a Dask cluster: pure functions travel to workers, large arrays once to each host.

A function that many tasks share, such as a pass over the data, is pickled once. Its large arrays are written
to a file on each host, or to one on a shared path. All worker processes of a host map that file, so that a
host holds the data once, which Dask's own `scatter` to all workers would not do. If a host lacks the file,
the task fails, the host gets a copy, and the task is sent again.

Dask runs a task again when its worker dies. Tasks are pure and results are taken in order, so that the result
is that of one machine, to the bit.
"""

import logging
import os
import pickle
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from mrfrec.core.engine import Engine, Progress
from mrfrec.core.memory import Budget, human_bytes
from mrfrec.core.statistics import split_evenly
from mrfrec.engines.cluster_worker import (
    GoneError,
    SharedArray,
    connected_clients,
    drop_arrays,
    missing_arrays,
    perform,
    write_piece,
)
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import ClusterError, MissingLibraryError, ParameterError

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

_SHARED_FROM = 1 << 16  # bytes of an array that is worth a file
_PIECE = 1 << 25  # bytes that are on their way to the hosts at one time
_TASKS_PER_THREAD = 4  # of a pass over the items
_AHEAD = 2  # tasks per thread that are handed out before the first one's result is there
_RESENT = 20  # times that a task may find its data gone, or be lost with it
_PATIENCE = 20.0  # seconds without a scheduler or without workers
_CONNECT = 10.0  # seconds to find a scheduler
_SHARE = 0.7  # of a worker's memory that a task may count on: Dask pauses it at 0.8
# Ctrl-C in a terminal reaches all its processes: the client alone decides what ends.
_NO_INTERRUPTS = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
_CHECKED = ("mrfrec", "numpy", "numba", "scipy")


class Shipped(NamedTuple):
    """A function on its way: its pickle, and the large arrays in it."""

    head: bytes
    shared: tuple[SharedArray, ...]


class ClusterEngine(LocalEngine):
    """Sends the large tasks of a fit to the workers of a cluster; the rest runs on this machine."""

    def __init__(
        self,
        client: "Client",
        threads: int | None = None,
        memory_limit: int | None = None,
        progress: Progress | None = None,
        *,
        shared_path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(threads, memory_limit, progress)
        self._client = client
        self._address = str(client.scheduler.address) if client.scheduler else "an unknown address"
        self._name = f"mrfrec-{client.id}-{uuid.uuid4().hex[:8]}"
        self._shared_path = None if shared_path is None else os.fspath(shared_path)
        self._arrays: dict[tuple[int, int], tuple[SharedArray, Any]] = {}

    def __enter__(self) -> Self:
        workers = self._workers()
        if not workers:
            raise ClusterError(f"the cluster at {self._address} has no workers: start some.")
        self._check_versions()
        self.threads_of_tasks = sum(int(worker["nthreads"]) for worker in workers.values())
        if self._shared_path is not None:
            try:
                (Path(self._shared_path) / self._name).mkdir(mode=0o700)
            except OSError as error:
                rule = f"a folder in which files can be created ({error.strerror or error})"
                raise ParameterError("shared_path", rule, self._shared_path) from error
        return super().__enter__()

    def __exit__(self, *ended: object) -> None:
        with suppress(Exception):  # a cluster that is gone has nothing left to be freed
            if self._client.status == "running":
                connected = tuple(self._ask(self._client.run_on_scheduler, connected_clients))
                self._ask(self._client.run, drop_arrays, self._name, connected, on_error="ignore")
        if self._shared_path is not None:
            shutil.rmtree(Path(self._shared_path) / self._name, ignore_errors=True)
        self._arrays.clear()
        super().__exit__(*ended)

    @property
    def task_memory(self) -> int:  # type: ignore[override]
        """Bytes that a task may use on the smallest worker, beside the shared arrays."""
        rooms = [
            int(_SHARE * worker["memory_limit"] - self._shared_bytes) // int(worker["nthreads"])
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
        shipped = self._ship(function)
        with closing(self._results(name, partial(perform, mapped=False), shipped, tasks)) as results:
            for task, cost, result in zip(tasks, costs, results, strict=True):
                add(task, result)
                self.advance(cost)

    def map(self, name: str, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        found, shipped = [], self._ship(function)
        with closing(self._results(name, partial(perform, mapped=True), shipped, tasks)) as results:
            for result in results:
                found.append(result)
                self.advance(1)
        return found

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    def _results(
        self, name: str, perform: Callable[..., Any], shipped: Shipped, tasks: Sequence[Any]
    ) -> Generator[Any]:
        """Yield the results of all tasks in order, each as soon as those before it are there."""
        token, ahead = uuid.uuid4().hex[:8], _AHEAD * self.threads_of_tasks
        running: dict[int, Future] = {}
        finished: dict[int, Any] = {}
        again = dict.fromkeys(range(len(tasks)), 0)

        def submit(number: int) -> None:
            key = f"{name}-{token}-{number}-{again[number]}"
            with _speaking_of(self._address):
                running[number] = self._client.submit(
                    perform, shipped.head, shipped.shared, tasks[number], key=key, pure=False,
                    priority=len(tasks) - number,
                )  # fmt: skip

        next_one = next_result = 0
        try:
            while next_result < len(tasks):
                while next_one < len(tasks) and len(running) + len(finished) < ahead:
                    submit(next_one)
                    next_one += 1
                for number in self._any_done(running):
                    task = f"{name} {number + 1} of {len(tasks)}"
                    future = running.pop(number)
                    try:
                        finished[number] = self._outcome(task, future)
                    except _LostError as lost:
                        again[number] += 1
                        if again[number] > _RESENT:
                            raise ClusterError(f"the task {task} was lost {_RESENT} times: {lost}.") from None
                        self._find_scheduler()
                        self._send(shipped.shared)
                        submit(number)
                    finally:
                        future.release()  # now, and not when its last reference is collected
                while next_result in finished:
                    yield finished.pop(next_result)
                    next_result += 1
        finally:
            for future in running.values():
                with suppress(Exception):
                    future.cancel()

    def _any_done(self, running: "dict[int, Future]") -> list[int]:
        """Wait until a task is done; raise if there is nobody left to do it."""
        from distributed import CancelledError, wait
        from distributed.utils import TimeoutError as NotYet

        last_seen = time.monotonic()
        while True:
            done = [number for number, future in running.items() if future.done()]
            if done:
                return done
            alive = self._client.status == "running"
            if alive:
                # Futures of a scheduler that goes away are cancelled, and done: each has its outcome then.
                with suppress(NotYet, ValueError, CancelledError):
                    wait(list(running.values()), timeout=0.5, return_when="FIRST_COMPLETED")
            else:
                time.sleep(0.5)
            working = alive and any(w.get("status", "running") == "running" for w in self._workers().values())
            if working:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _PATIENCE:
                why = "has no workers that run: they are gone, or paused by Dask because their memory is full"
                why = why if alive else "does not answer"
                raise ClusterError(
                    f"the scheduler at {self._address} {why}, for {_PATIENCE:.0f} seconds now."
                )

    def _ask(self, question: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Return the answer of the cluster; raise if its scheduler goes away meanwhile."""
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put((question(*given, **options), None))
            except BaseException as error:
                answers.put((None, error))

        # Dask's own calls may wait for minutes: nobody waits for this thread.
        Thread(target=ask, daemon=True, name="mrfrec-cluster").start()
        while True:
            try:
                answer, error = answers.get(timeout=0.5)
            except Empty:
                self._find_scheduler()
                continue
            if error is not None:
                raise error
            return answer

    def _find_scheduler(self) -> None:
        """Wait for a scheduler that is not there at the moment."""
        began = time.monotonic()
        while self._client.status != "running":
            if self._client.status in ("closed", "closing") or time.monotonic() - began > _PATIENCE:
                raise ClusterError(f"the scheduler at {self._address} does not answer any more.")
            time.sleep(0.2)

    def _outcome(self, task: str, future: "Future") -> Any:
        """Return the result of a task that is done, or raise its error."""
        from distributed import KilledWorker

        if future.status == "cancelled" or future.status == "lost":
            raise _LostError("its worker or its data went away")
        try:
            error = self._ask(future.exception)
            if error is None:
                return self._ask(future.result)
        except ClusterError:
            raise
        except Exception as failed:
            raise _LostError(str(failed) or type(failed).__name__) from None
        if isinstance(error, GoneError):
            raise _LostError(f"the host of {error} has no copy of the data")
        if isinstance(error, KilledWorker):
            raise ClusterError(
                f"the task {task} took {error.allowed_failures + 1} workers with it, the last at "
                f"{error.last_worker.address}. They may have run out of memory: give workers more, fewer "
                "threads each, or fit a smaller sparsity or max_neighbors."
            )
        if type(error).__module__.startswith("mrfrec."):
            raise error
        raise ClusterError(f"the task {task} failed: {type(error).__name__}: {error}") from error

    # ── data ──────────────────────────────────────────────────────────────────────────────────────

    def _ship(self, function: Callable[..., Any]) -> Shipped:
        """Pickle a function, and send its large arrays to all hosts that lack them."""
        shared: list[SharedArray] = []

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _SHARED_FROM:
                return True  # stays in the pickle
            place = _address_of(raw), raw.nbytes
            if place not in self._arrays:
                file = f"{self._name}/{len(self._arrays)}.array"
                # The buffer is kept, so that its address stays its own.
                self._arrays[place] = SharedArray(self._shared_path, file, raw.nbytes), buffer
            shared.append(self._arrays[place][0])
            return False

        head = pickle.dumps(function, protocol=5, buffer_callback=out_of_band)
        shipped = Shipped(head, tuple(shared))
        self._check_room()
        self._send(shipped.shared)
        return shipped

    @property
    def _shared_bytes(self) -> int:
        return sum(array.nbytes for array, _ in self._arrays.values())

    def _check_room(self) -> None:
        for address, worker in self._workers().items():
            limit = int(_SHARE * (worker.get("memory_limit") or 1 << 62))
            source = f"is what the worker {address} may use of its {human_bytes(limit / _SHARE)}"
            Budget(limit, source).check(
                "data on each worker", self._shared_bytes, "Give workers more memory."
            )

    def _send(self, shared: Sequence[SharedArray]) -> None:
        """Write these arrays where they are not yet: on the shared path, or on each host that lacks them."""
        if self._shared_path is not None:
            for array in shared:
                if not array.path().exists():
                    write_piece(array, 0, self._content(array))
            return
        for _ in range(_RESENT if shared else 0):
            try:
                lacking = self._lacking(shared)
                if not lacking:
                    return
                for array, writers in lacking.items():
                    self._send_to(writers, array, self._content(array))
            except ClusterError:
                raise
            except Exception:  # a worker died meanwhile: ask again
                self._find_scheduler()
                time.sleep(0.5)

    def _lacking(self, shared: Sequence[SharedArray]) -> dict[SharedArray, list[str]]:
        """Return, for each array that a host lacks, the address of one worker on each such host."""
        hosts: dict[tuple[str, str], tuple[str, list[SharedArray]]] = {}
        answers = self._ask(self._client.run, missing_arrays, tuple(shared), on_error="ignore")
        for address, (host, missing) in answers.items():
            hosts.setdefault(tuple(host), (address, missing))
        lacking: dict[SharedArray, list[str]] = {}
        for address, missing in hosts.values():
            for array in missing:
                lacking.setdefault(array, []).append(address)
        return lacking

    def _content(self, array: SharedArray) -> memoryview:
        return next(buffer.raw() for known, buffer in self._arrays.values() if known == array)

    def _send_to(self, writers: list[str], array: SharedArray, raw: memoryview) -> None:
        for offset in range(0, array.nbytes, _PIECE):
            piece = self._ask(
                self._client.scatter,
                bytes(raw[offset : offset + _PIECE]), workers=writers, broadcast=True, hash=False,
                timeout=_PATIENCE,
            )  # fmt: skip
            written = [
                self._client.submit(
                    write_piece, array, offset, piece, workers=[writer], allow_other_workers=False,
                    pure=False, key=f"data-{uuid.uuid4().hex[:8]}-{offset}",
                )
                for writer in writers
            ]  # fmt: skip
            for future in written:
                self._ask(future.result)
            del piece, written

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers by address.

        `client.scheduler_info` will not do: at any moment, a timer of Dask replaces its answer by one without
        workers.
        """
        try:
            scheduler: Any = self._client.scheduler
            return dict(self._ask(self._client.sync, scheduler.identity)["workers"])
        except ClusterError:
            raise
        except Exception:
            return {}

    def _check_versions(self) -> None:
        """Refuse workers without this package, or with other versions of the libraries that compute."""
        versions = self._ask(self._client.get_versions, packages=list(_CHECKED))
        wanted, problems = _versions(versions["client"]), []
        for address, there in versions["workers"].items():
            has = _versions(there)
            problems += [
                f"{address} has {name} {has[name] or 'not installed'}, this machine {version}"
                for name, version in wanted.items()
                if has[name] != version
            ]
        if problems:
            more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise ClusterError(
                f"the workers do not run the same code: {'; '.join(problems[:3])}{more}. Install the same "
                "versions everywhere; results would not be the same otherwise."
            )


class _LostError(Exception):
    """A task went away with its worker or its data, and can be sent again."""


def _versions(of: dict[str, Any]) -> dict[str, str | None]:
    """Return the versions that must be the same everywhere, from Dask's description of a process."""
    host = {"python": of["host"]["python"].rsplit(".", 3)[0], "machine": of["host"]["machine"]}
    return {name: of["packages"].get(name) for name in _CHECKED} | host


def _address_of(raw: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])


@contextmanager
def _speaking_of(address: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # A strip of vectors for many items is large, and no other task has the same.
            warnings.filterwarnings("ignore", message="Sending large graph")
            yield
    except OSError as error:
        raise ClusterError(f"the scheduler at {address} does not answer: {error}.") from None


def check_client(client: object) -> None:
    """Refuse a client that is not one of Dask, or is asynchronous."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingLibraryError('a cluster needs Dask: pip install "mrfrec[cluster]".') from None
    if not isinstance(client, Client):
        raise ParameterError("client", "a distributed.Client, or None", client)
    if client.asynchronous:
        raise ParameterError("client", "a client that is not asynchronous", client)


@contextmanager
def connected(text: str) -> "Iterator[Client]":
    """Connect to the cluster "tcp://host:8786", or start one of four processes here: "local:4"."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingLibraryError('a cluster needs Dask: pip install "mrfrec[cluster]".') from None
    kind, _, number = text.partition(":")
    if kind == "local":
        if not number.isdigit() or not 1 <= int(number) <= 1024:
            raise ParameterError("cluster", 'an address, or a number of processes such as "local:4"', text)
        with (
            tempfile.TemporaryDirectory(prefix="mrfrec-cluster-") as folder,
            LocalCluster(
                n_workers=int(number), threads_per_worker=1, dashboard_address=":0", local_directory=folder,
                silence_logs=logging.CRITICAL, preload=[_NO_INTERRUPTS],
            ) as cluster,
            Client(cluster) as client,
        ):  # fmt: skip
            yield client
        return
    if "://" not in text:
        raise ParameterError("cluster", 'an address such as "tcp://host:8786", or "local:4"', text)
    try:
        client = Client(text, timeout=_CONNECT)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(f"no scheduler answers at {text}: {reason}.") from None
    with client:
        yield client
