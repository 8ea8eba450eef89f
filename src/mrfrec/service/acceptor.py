"""Accepts connections of a socket that several processes listen to, each about as many as the others.

Clients keep their connections. Left to the system, one process may accept nearly all of them, and answer all
requests while the others are idle.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

_AT_ONCE = 256  # connections, before answers are made: 20 ms
_MOST_FREE = 16  # connections that are accepted after a pause, whoever is ahead
_PAUSE = 0.005  # seconds in which others, who have fewer, may accept
_LONG_PAUSE = 1.0  # seconds, if no connection can be held any more

_log = logging.getLogger("mrfrec.service")


class Acceptor:
    """Accepts connections until it is closed; a server, as far as uvicorn is concerned."""

    def __init__(
        self, listening: socket.socket, make_protocol: Callable[[], Any], is_ahead: Callable[[int], bool]
    ) -> None:
        """Listen at a socket that does not block; while `is_ahead`, let others come first.

        It is told how many connections this process has accepted but not counted yet.
        """
        self._listening, self._make_protocol, self._is_ahead = listening, make_protocol, is_ahead
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # How many to accept though ahead, since the others did not: more after each pause in a row.
        self._free, self._next_free = 0, 1
        self._listen()

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._free == 0 and self._is_ahead(len(self._starting)):
                self._free, self._next_free = self._next_free, min(2 * self._next_free, _MOST_FREE)
                self._pause(_PAUSE)
                return
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:  # there is none, or another process was faster
                self._free, self._next_free = 0, 1
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    _log.error("no more connections can be accepted for now: %s", error.strerror)
                    self._pause(_LONG_PAUSE)
                    return
                continue  # this one has gone already
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_protocol, connection))
            self._starting.add(task)
            task.add_done_callback(self._started)
            if self._free:
                self._free -= 1
            else:
                self._next_free = 1

    def _started(self, task: "asyncio.Task[Any]") -> None:
        self._starting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a connection could not be taken", exc_info=task.exception())

    def close(self) -> None:
        """Accept no more connections, and close the socket."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Wait until those that were accepted have a protocol."""
        await asyncio.gather(*self._starting, return_exceptions=True)
