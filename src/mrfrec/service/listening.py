"""How the workers of `mrfrec serve` accept connections: the one that has fewest goes first."""

import asyncio
import errno
import fcntl
import logging
import mmap
import os
import socket
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

import uvloop

from mrfrec.service.connections import Connection, Connections

_MOST_WORKERS = 64  # with a place; others accept connections without one
_AT_ONCE = 32  # connections that are accepted in a turn of the event loop
_MOMENT = 0.001  # seconds until a worker that has left connections to others looks again
_LOOKS = 10  # after which it takes the connections that the others have left waiting
_PAUSE = 0.1  # seconds without new connections when the process has no descriptor for them
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Shares:
    """The number of connections of each worker, in memory that all of them map.

    Each worker has a place, which it locks: the system unlocks that of a worker that was killed. A place
    holds 1 + the number of connections, or 0 if nobody has it. `multiprocessing` can send the object to the
    processes that it starts.
    """

    def __init__(self, file: int | None = None) -> None:
        """Map a file, or a new one without a name."""
        if file is None:
            if hasattr(os, "memfd_create"):  # memory that programs which fill /dev/shm cannot take
                file = os.memfd_create("mrfrec")
            else:
                with tempfile.TemporaryFile() as unnamed:
                    file = os.dup(unnamed.fileno())
            os.truncate(file, 4 * _MOST_WORKERS)
        self._file = file
        self._place = -1  # none
        self._counts = memoryview(mmap.mmap(file, 4 * _MOST_WORKERS)).cast("i")

    def __reduce__(self) -> Any:
        return _shares_of, (DupFd(self._file),)

    def join(self) -> None:
        """Take a place, as a worker that accepts connections from now on."""
        self._place = next(filter(self._lock, range(_MOST_WORKERS)), -1)
        self.tell(0)

    def leave(self) -> None:
        """Give the place back."""
        if self._place >= 0:
            self._unlock(self._place)
            self._place = -1

    def tell(self, count: int) -> None:
        """Tell the others how many connections this worker has."""
        if self._place >= 0:
            self._counts[self._place] = 1 + count

    def fewest(self) -> int | None:
        """Return the smallest number of connections of another worker; None if there is no other."""
        counts = self._counts.tolist()
        while others := [place for place, count in enumerate(counts) if count and place != self._place]:
            place = min(others, key=counts.__getitem__)
            if not self._lock(place):
                return int(counts[place]) - 1
            self._unlock(place)  # its worker was killed
            counts[place] = 0
        return None

    def _lock(self, place: int) -> bool:
        """Lock a place; return whether no other process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True

    def _unlock(self, place: int) -> None:
        self._counts[place] = 0
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _shares_of(file: Any) -> Shares:
    return Shares(file.detach())


class Loop(uvloop.Loop):
    """The event loop of a worker, whose server leaves connections to workers that have fewer."""

    def __init__(self, connections: Connections, shares: Shares | None = None) -> None:
        """Make a loop for a server; without `shares`, it accepts every connection at once."""
        super().__init__()
        self._connections = connections
        self._shares = shares

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Connection], *, sock: socket.socket, backlog: int = 100, **_: Any
    ) -> "_Listener":
        """Listen at a socket, and accept its connections."""
        sock.listen(backlog)
        return _Listener(self, protocol_factory, sock, self._connections, self._shares)


class _Listener:
    """Accepts connections, unless the worker has a tenth more of them than the one that has fewest.

    If that worker does not take them within some milliseconds, because it is busy, this one does after all.
    """

    def __init__(
        self, loop: Loop, protocol_factory: Callable[[], Connection], listening: socket.socket,
        connections: Connections, shares: Shares | None,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._new_connection = protocol_factory
        self._listening = listening
        self._connections = connections
        self._shares = shares
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closed = False
        # uvicorn warns of every request that is not HTTP.
        self._filter: Callable[[logging.LogRecord], bool] = lambda record: (
            record.levelno != logging.WARNING or connections.is_news(str(record.msg))
        )
        logging.getLogger("uvicorn.error").addFilter(self._filter)
        if shares is not None:
            shares.join()
            connections.on_count = shares.tell
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more connections."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listening)
            logging.getLogger("uvicorn.error").removeFilter(self._filter)
            if self._shares is not None:
                self._shares.leave()

    async def wait_closed(self) -> None:
        """Return at once: the server waits for its connections."""

    def _room(self) -> int:
        """Return how many connections to accept before others have a turn."""
        fewest = None if self._shares is None else self._shares.fewest()
        return _AT_ONCE if fewest is None else 1 + fewest + fewest // 10 - len(self._connections)

    def _look(self, looks: int = 0) -> None:
        """Accept waiting connections, or leave them to another worker for ten looks at most."""
        room = self._room()
        if looks == _LOOKS:  # the other one is stuck
            room = max(room, 1 + len(self._connections) // 10)
        if room > 0:
            self._accept(min(room, _AT_ONCE))
        else:
            self._wait(_MOMENT, looks + 1)

    def _wait(self, seconds: float, looks: int) -> None:
        """Look again after some seconds, whether connections wait or not."""
        self._loop.remove_reader(self._listening)
        self._loop.call_later(seconds, self._resume, looks)

    def _resume(self, looks: int = 0) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._look)
            if looks:
                self._look(looks)

    def _accept(self, count: int) -> None:
        for _ in range(count):
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):  # another worker was quicker
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._connections.make_room()
                self._wait(_PAUSE, 0)
                return
            client.setblocking(False)
            task = self._loop.create_task(self._connect(client, self._new_connection()))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client)
        except OSError:  # the client has left
            client.close()
            self._connections.remove(connection)
