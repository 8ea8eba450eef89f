"""The connections of `mrfrec serve`."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = logging.getLogger("mrfrec.service")


class Connection(HttpToolsProtocol):
    """A connection of uvicorn that ends when its client takes too little of what is written to it.

    More than 64 KB that wait to be sent must shrink to 16 KB within `seconds`, whichever answers they belong
    to. The middleware can only let a connection end after all that waits, which the client may never take.
    """

    def __init__(self, seconds: float, **given: Any) -> None:
        super().__init__(**given)
        self._seconds = seconds
        self._end: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end = asyncio.get_running_loop().call_later(self._seconds, self._cut_off)

    def resume_writing(self) -> None:
        self._go_on()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def _go_on(self) -> None:
        if self._end is not None:
            self._end.cancel()

    def _cut_off(self) -> None:
        _log.warning("a connection ends: its client takes no more of its answers")
        self.transport.abort()
