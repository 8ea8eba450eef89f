"""One request at the door: the headers that every response carries, refusals, the line in the log."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from mrfrec.service.problems import NO_ROOM, problem_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_access = logging.getLogger("mrfrec.service.access")

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SECURITY = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NO_STORE = (b"cache-control", b"no-store")
_SHOWN = 10_000  # bytes of a body in the log
PIECE = 65_536  # bytes of an answer that are handed to the server at once: as many as it buffers
_problem_body = lru_cache(64)(problem_body)


class _Fields(dict[str, Any]):
    """The line of a request in the log: fields for JSON, words for people."""

    def __str__(self) -> str:
        text = " ".join("-" if value == "" else str(value) for value in self.values())
        if text.isprintable():
            return text
        # What was sent must not look like lines of ours.
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _whole_refusal() -> bytes:
    body = problem_body(503, NO_ROOM)
    headers = [
        (b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"), _NO_STORE, *_SECURITY,
    ]  # fmt: skip
    lines = [b"HTTP/1.1 503 Service Unavailable", *(b"%s: %s" % header for header in headers)]
    return b"\r\n".join([*lines, b"", body])


REFUSAL = _whole_refusal()


class StuckError(Exception):
    """The client does not take its answer."""


class Visit:
    """One request, from the door in to the door out."""

    __slots__ = (
        "body", "client", "closes", "extra", "given", "held", "hold", "is_dropped", "key", "may_manage",
        "model", "pass_on", "path", "request_id", "seconds", "status",
    )  # fmt: skip

    def __init__(
        self, path: str, given: dict[bytes, bytes], request_id: bytes, pass_on: Send, seconds: float,
        hold: "Callable[[Visit, int], bool]",
    ) -> None:  # fmt: skip
        """Begin a visit.

        The client has `seconds` to take each piece of its answer. `hold` is told how many bytes a long answer
        has, and returns whether there is room for them.
        """
        self.path, self.given, self.request_id, self.pass_on = path, given, request_id, pass_on
        self.seconds, self.hold = seconds, hold
        self.status, self.held = 0, 0
        self.model = self.key = self.client = ""
        self.may_manage = False
        self.is_dropped = False  # the answer, for which there was no room
        self.body = b""
        # An unread body could drip in for ever: until it has been read, an answer ends the connection.
        self.closes = b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"
        self.extra: list[tuple[bytes, bytes]] = []

    async def send(self, message: Message) -> None:
        """Send a message of the response, the first with our headers."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            cached = False
            for name, value in headers:
                if name == b"mrfrec-model":
                    self.model = value.decode("latin-1").partition(";")[0]
                elif name == b"cache-control":
                    cached = True
                elif name == b"content-length" and len(value) > 4 and int(value) > PIECE:
                    self.is_dropped = not self.hold(self, int(value))
            if self.is_dropped:
                return
            self.status = message["status"]
            headers += _SECURITY
            if not cached:
                headers.append(_NO_STORE)
            headers.append((b"x-request-id", self.request_id))
            if self.closes:
                headers.append((b"connection", b"close"))
            message["headers"] = headers + self.extra
        elif self.is_dropped:
            return
        elif len(message.get("body", b"")) > PIECE:
            await self._send_in_pieces(message)
            return
        await self.pass_on(message)

    async def _send_in_pieces(self, message: Message) -> None:
        """Send a long body so that the server waits until the client has taken what came before."""
        body = memoryview(message["body"])
        for start in range(0, len(body), PIECE):
            more = start + PIECE < len(body) or message.get("more_body", False)
            piece = {
                "type": "http.response.body", "body": bytes(body[start : start + PIECE]), "more_body": more
            }  # fmt: skip
            try:
                async with asyncio.timeout(self.seconds):
                    await self.pass_on(piece)
            except TimeoutError:
                raise StuckError from None

    async def refuse(self, status: int, detail: str, headers: MutableMapping[str, str]) -> None:
        """Send a problem as the whole response."""
        body = _problem_body(status, detail)
        start = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": start})
        await self.pass_on({"type": "http.response.body", "body": body})

    def log(self, method: str, route: str, seconds: float, query: bytes | None) -> None:
        """Write the line of the request. What it asks, and so who asks, is in it only with its `query`."""
        if not _access.isEnabledFor(logging.INFO):
            return
        fields = _Fields(
            method=method, route=route, status=self.status, ms=round(1000 * seconds, 2), model=self.model,
            key=self.key, request=self.request_id.decode(), pid=os.getpid(), client=self.client,
        )  # fmt: skip
        if query is not None:
            fields["path"] = self.path[:_SHOWN]
            fields["query"] = query[:_SHOWN].decode("latin-1")
            fields["body"] = self.body[:_SHOWN].decode(errors="replace")
        # Half the time of `_access.info`, which looks for the line of code that calls it.
        record = logging.LogRecord(_access.name, logging.INFO, __file__, 0, fields, None, None)
        record.fields = fields
        _access.handle(record)
