"""The connections of `mrfrec serve`: what clients may do to a worker before it has read their requests."""

import asyncio
import logging
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mrfrec.service.problems import ProblemError, busy

_MOST_HEAD = 65_536  # bytes of the head of a request
_MOST_HEADERS = 256  # each of which, like each chunk of a body, takes some microseconds of the event loop
_MOST_CHUNKS = 4096  # of a body
_MOST_PIPELINED = 256  # requests that wait for the answers to earlier ones of their connection
_MOST_OPEN = 10_000  # connections of a process; each takes some kilobytes
_LEAST_OPEN = 16
_SPARE = 64  # descriptors that are left for model files, and for connections that are about to end
_HEAD_CHECK = 1.0  # seconds between checks for heads that are due
_QUIET = 60.0  # seconds until a message is logged again

_log = logging.getLogger("mrfrec.service")


class Connections:
    """The open connections of a process, and which of them have no request under way.

    Beyond the limit, which leaves some of the descriptors of the process free, a new connection takes the
    place of the one that is silent for longest: one that has not sent a request yet, or if there is none, one
    that was kept open after an answer.
    """

    def __init__(
        self, write_seconds: float = 10.0, head_seconds: float = 10.0, most: int | None = None
    ) -> None:
        """Set the limits. Without `most`, the number of connections depends on the limit on open files."""
        self.write_seconds = write_seconds
        self._head_seconds = head_seconds
        self._most = most
        self.on_count: Callable[[int], None] | None = None  # called with the number when it changes
        self._open: set[Connection] = set()
        self._heads: OrderedDict[Connection, float] = OrderedDict()  # still to arrive, and when they are due
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # kept open after an answer
        self._is_checking = False
        self._quiet_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "Connection") -> None:
        """Count a connection, as soon as it is accepted."""
        self._open.add(connection)
        self._report_count()

    def remove(self, connection: "Connection") -> None:
        """Forget a connection that was lost."""
        self._open.discard(connection)
        self.note_request(connection)
        self._report_count()

    def welcome(self, connection: "Connection") -> None:
        """Wait for the first request of a connection; make room for it, or refuse it."""
        if self._most is None:
            self._most = _most_open(len(self._open))
        # Count those that uvicorn knows; others were just accepted, and are welcomed after this one.
        if len(connection.connections) > self._most and not self.make_room():
            connection.end(busy("too many connections; try again."))
        else:
            self.note_silence(connection, has_begun=True)

    def make_room(self) -> bool:
        """Close the connection that has been silent for longest; return whether there is one."""
        self.warn(
            "too many connections (%d): the one that is silent for longest ends for each new one. The limit "
            "on open files (ulimit -n, LimitNOFILE) allows no more.", len(self._open),
        )  # fmt: skip
        for silent in (self._heads, self._idle):
            if silent:
                _end_now(silent.popitem(last=False)[0].transport)
                return True
        return False

    def note_silence(self, connection: "Connection", has_begun: bool) -> None:
        """Note a connection without a request; `has_begun` if the head of one is due."""
        if not has_begun:
            self._idle[connection] = None
            return
        loop = asyncio.get_running_loop()
        self._heads[connection] = loop.time() + self._head_seconds
        if not self._is_checking:
            self._is_checking = True
            loop.call_later(_HEAD_CHECK, self._end_late_heads, loop)

    def note_data(self, connection: "Connection") -> None:
        """Note that an idle connection has begun to send another request."""
        if connection in self._idle:
            del self._idle[connection]
            self.note_silence(connection, has_begun=True)

    def note_request(self, connection: "Connection") -> None:
        """Note that the head of a request has arrived."""
        self._heads.pop(connection, None)
        self._idle.pop(connection, None)

    def warn(self, message: str, *values: object) -> None:
        """Log a warning, at most once a minute."""
        if self.is_news(message):
            _log.warning(message, *values)

    def is_news(self, message: str) -> bool:
        """Return whether to log a message: not if it was logged during the last minute."""
        now = time.monotonic()
        if now < self._quiet_until.get(message, 0.0):
            return False
        self._quiet_until[message] = now + _QUIET
        return True

    def _end_late_heads(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the connections whose heads are due; `_heads` is in the order of time."""
        while self._heads and next(iter(self._heads.values())) <= loop.time():
            self._heads.popitem(last=False)[0].end_late(self._head_seconds)
        self._is_checking = bool(self._heads)
        if self._is_checking:
            loop.call_later(_HEAD_CHECK, self._end_late_heads, loop)

    def _report_count(self) -> None:
        if self.on_count is not None:
            self.on_count(len(self._open))


def _most_open(count: int) -> int:
    """Return how many connections this process has descriptors for, if `count` of them are open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _MOST_OPEN
    return max(_LEAST_OPEN, min(_MOST_OPEN, limit + count - len(list(Path("/dev/fd").iterdir())) - _SPARE))


def _end_now(transport: asyncio.Transport) -> None:
    """Close a connection without waiting for a client that takes no more of its answers."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()


class Connection(HttpToolsProtocol):
    """A connection of uvicorn whose client must send heads in time and of some size, and take its answers.

    More than 64 KB that wait to be sent must shrink to 16 KB within `write_seconds`, whichever answers they
    belong to. The middleware cannot see to that: the connections it ends first send all that waits, which the
    client may never take.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections
        self._end: asyncio.TimerHandle | None = None
        self._problem: ProblemError | None = None  # that ends the connection
        self._is_head = False  # whether a head has begun and is not complete
        self._head_size = self._headers = self._chunks = 0
        self._unfinished = 0  # bytes since a head or a piece of a body was last complete
        connections.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.welcome(self)

    def data_received(self, data: bytes) -> None:
        self._all.note_data(self)
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > _MOST_HEAD:  # a header, a chunk's extension or a trailer without an end
            self.end(_too_large())

    def on_message_begin(self) -> None:
        self._is_head = True
        self._head_size = self._headers = self._chunks = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4  # with a colon, a space and the end of the line
        self._headers += 1
        if self._head_size > _MOST_HEAD or self._headers > _MOST_HEADERS:
            self._problem = _too_large()
            raise self._problem
        if self._is_head:  # else it is a trailer, after a body, which must not pass for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head = False
        self._unfinished = 0
        if self._head_size + len(self.url) > _MOST_HEAD:
            self._problem = _too_large()
            raise self._problem
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._problem = ProblemError(400, f"at most {_MOST_PIPELINED} requests may wait for answers.")
            raise self._problem
        self._all.note_request(self)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            self._problem = ProblemError(413, f"a body must have at most {_MOST_CHUNKS:,} chunks.")
            raise self._problem

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # no other request waits
            self._all.note_silence(self, has_begun=self._is_head)

    def send_400_response(self, msg: str) -> None:
        """End the connection after bytes that are not HTTP, or that a limit refuses."""
        self.end(self._problem or ProblemError(400, "the request is not valid HTTP/1.1."))

    def end(self, problem: ProblemError) -> None:
        """Answer with a problem, unless another answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if problem.status != 400:
            self._all.warn("a connection ends: %s", problem.detail)
        if (
            self.cycle is None
            or self.cycle.response_complete
            or not (self.cycle.response_started or self.pipeline)
        ):
            response = problem.response()
            headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
            lines = [b"%b: %b\r\n" % header for header in headers]
            line = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n".encode()
            self.transport.write(b"".join([line, *lines, b"\r\n", bytes(response.body)]))
        self.transport.close()

    def end_late(self, seconds: float) -> None:
        """End the connection because the head of a request did not arrive in time."""
        if self._unfinished:
            self.end(ProblemError(408, f"the head of the request did not arrive within {seconds:g} s."))
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            _end_now(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end = asyncio.get_running_loop().call_later(self._all.write_seconds, self._cut_off)

    def resume_writing(self) -> None:
        self._go_on()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._go_on()
        super().connection_lost(exc)

    def _go_on(self) -> None:
        if self._end is not None:
            self._end.cancel()

    def _cut_off(self) -> None:
        self._all.warn("a connection ends: its client takes no more of its answers")
        self.transport.abort()


def _too_large() -> ProblemError:
    return ProblemError(
        431, f"the head of a request must have at most {_MOST_HEAD:,} bytes and {_MOST_HEADERS} headers."
    )
