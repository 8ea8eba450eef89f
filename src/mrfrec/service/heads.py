"""Limits on the heads of requests, which uvicorn reads with httptools without any; a way to refuse floods.

To parse a request and to refuse it takes a fifth of the time of an answer: a flood of requests would leave
little of it. While there is no room, a request that came whole is refused as it is, unread.
"""

import re
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 65_536  # bytes of a head
_STEP = 4096  # bytes that are parsed at once: what may be counted to a head, and belongs to its body
SECONDS = 10.0  # until a head has arrived
_ASKS = b"POST /v1/recommend HTTP/1.1\r\n"  # what comes in floods
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HeadLimits(HttpToolsProtocol):
    """The protocol of a connection, which ends if the head of a request is too large or too slow."""

    door: Any  # uvicorn wraps the application in others if it logs all messages
    _in_head, _length, _step, _since = True, 0, 0, 0.0
    _is_idle = True  # between two requests

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.door.metrics.set_connections(len(self.connections))
        self._since = time.monotonic()
        self.loop.call_later(SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.door.metrics.set_connections(len(self.connections))

    def on_message_begin(self) -> None:
        self._is_idle = False
        self._in_head, self._length, self._since = True, self._step, time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._length > MOST:
            raise ValueError("the head is too large")  # for the parser, which ends with send_400_response
        if self.parser.should_upgrade():
            raise ValueError("its body would be taken for another protocol")
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_idle = True

    def _is_whole(self, data: bytes) -> bool:
        """Return whether these bytes are one request, nothing else is under way, and more may follow."""
        head = data.find(b"\r\n\r\n") + 2
        if head < 2 or not self._is_idle or not (self.cycle is None or self.cycle.response_complete):
            return False
        length = _LENGTH.search(data, 0, head)
        is_all = length is not None and int(length[1]) == len(data) - head - 2
        return is_all and b"close" not in data[:head].lower()  # the connection, after this

    def data_received(self, data: bytes) -> None:
        if data.startswith(_ASKS) and self._is_whole(data):
            refusal = self.door.expect(data, self.loop)
            if refusal is not None:
                self._since = time.monotonic()
                self.transport.write(refusal)
                return
        if self._is_idle and not self._in_head:
            self._in_head, self._length, self._since = True, 0, time.monotonic()
        if self._in_head and b"pgrade" in data:
            data = _without_upgrade(data)
        for start in range(0, len(data), _STEP):
            step = data[start : start + _STEP]
            self._step = len(step)
            self._length += self._step
            super().data_received(step)
            if self.transport.is_closing():
                return
            if self._in_head and self._length > MOST:
                self.send_400_response("")
                return

    def send_400_response(self, msg: str) -> None:
        if self._in_head and self._length > MOST:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def timeout_keep_alive_handler(self) -> None:
        left = self._since + self.timeout_keep_alive - time.monotonic()
        if left > 0:  # requests were refused unread meanwhile
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _look(self) -> None:
        """Close the connection if it has been sending a head for too long; look again later."""
        left = self._since + SECONDS - time.monotonic() if self._in_head else SECONDS
        if left <= 0:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(left, self._look)


def limits_for(door: Any) -> type[HeadLimits]:
    """Return the protocol of the connections of a `Door`."""
    return type("HeadLimits", (HeadLimits,), {"door": door})


def _without_upgrade(data: bytes) -> bytes:
    """Rename the header Upgrade, which a server may ignore: the parser would leave out the body.

    One that arrives in two pieces stays, and the request is refused.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"ignored", head) + end + rest
