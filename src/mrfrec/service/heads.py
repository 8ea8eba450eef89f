"""Limits on the heads of requests, which uvicorn reads with httptools without any."""

import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 65_536  # bytes of a head
SECONDS = 10.0  # until a head has arrived
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HeadLimits(HttpToolsProtocol):
    """The protocol of a connection, which ends if the head of a request is too large or too slow."""

    _in_head, _length, _since = True, 0, 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = time.monotonic()
        self.loop.call_later(SECONDS, self._look)

    def on_message_begin(self) -> None:
        self._in_head, self._length, self._since = True, 0, time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._length += len(data)
        super().data_received(data)
        if self._in_head and self._length > MOST and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _look(self) -> None:
        """Close the connection if it has been sending a head for too long; look again later."""
        if self._in_head and time.monotonic() - self._since >= SECONDS:
            self.transport.close()
        if not self.transport.is_closing():
            self.loop.call_later(SECONDS, self._look)
