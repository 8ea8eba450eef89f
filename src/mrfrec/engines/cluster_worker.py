"""Functions that run on the workers of a cluster, on arrays in files of the host."""

import pickle
import shutil
from functools import lru_cache
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from platform import node
from typing import Any, NamedTuple

from mrfrec.engines.local import LocalEngine


class SharedArray(NamedTuple):
    """The bytes of an array in a file, in the worker's own folder unless that is named."""

    folder: str | None
    name: str
    nbytes: int

    def path(self, worker: Any = None) -> Path:
        """Return where it lies; `worker` is that of the task, if no other is given."""
        return (_folder_of(worker) if self.folder is None else Path(self.folder)) / self.name


class GoneError(Exception):
    """The host of the worker at this address has no copy of a shared array."""


def _folder_of(worker: Any = None) -> Path:
    """Return the folder that the worker processes of a host share; Dask's own is in it."""
    from distributed import get_worker

    return Path((worker or get_worker()).local_directory).parent


def perform(head: bytes, shared: tuple[SharedArray, ...], task: Any, *, mapped: bool) -> Any:
    """Apply a function that was sent before to a task, with one thread."""
    from distributed import get_worker

    try:
        function = _function(head, shared)
    except FileNotFoundError:
        raise GoneError(get_worker().address) from None
    if mapped:
        return function(task)
    with LocalEngine(1) as engine:
        return function(task, engine)


@lru_cache(maxsize=2)
def _function(head: bytes, shared: tuple[SharedArray, ...]) -> Any:
    return pickle.loads(head, buffers=[_mapped(array) for array in shared])


@lru_cache(maxsize=64)
def _mapped(array: SharedArray) -> Any:
    """Map a file. Its pages are shared by all processes, and arrays in it can be written, without effect."""
    with array.path().open("rb") as file:
        return memoryview(mmap(file.fileno(), array.nbytes, access=ACCESS_COPY))


def write_piece(array: SharedArray, offset: int, piece: bytes | memoryview) -> None:
    """Write a piece of a file; it gets its name when it is whole."""
    path = array.path()
    unfinished = path.with_suffix(".unfinished")
    unfinished.parent.mkdir(exist_ok=True, mode=0o700)
    with unfinished.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(piece)
        if file.tell() == array.nbytes:
            file.flush()
            unfinished.replace(path)


def missing_arrays(
    shared: tuple[SharedArray, ...], dask_worker: Any
) -> tuple[tuple[str, str], list[SharedArray]]:
    """Return the host and folder of a worker, and those arrays that are not there."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = f"{node()} {boot.read_text().strip() if boot.exists() else ''}", str(_folder_of(dask_worker))
    paths = {array: array.path(dask_worker) for array in shared}
    return host, [a for a, path in paths.items() if not path.exists() or path.stat().st_size != a.nbytes]


def drop_arrays(name: str, connected: tuple[str, ...], dask_worker: Any) -> None:
    """Drop the arrays of a fit, and those of clients that are gone."""
    _function.cache_clear()
    _mapped.cache_clear()
    for path in _folder_of(dask_worker).glob("mrfrec-*"):
        if path.name == name or not any(client in path.name for client in connected):
            shutil.rmtree(path, ignore_errors=True)


def connected_clients(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.clients)
