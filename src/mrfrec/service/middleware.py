"""ASGI middleware: every request passes it on its way in, and every response on its way out.

From the outside in: `RequestLog` (floods, request ids, security headers, metrics, the access log), the
CORSMiddleware of Starlette, `RequestLimits` (access, requests at once, sizes of bodies).
"""

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mrfrec.service.monitoring import Metrics, route_of
from mrfrec.service.problems import ClientLeftError, ProblemError, busy
from mrfrec.service.settings import ServiceSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# The key of the `RequestInfo` in the scope of a request.
INFO = "mrfrec"
# These paths are answered even when the queue is full.
_UNBOUNDED = {"/health", "/ready", "/metrics"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Bytes of a body above which parsing takes more than a millisecond.
LARGE_BODY = 65_536
# The status, in the log and the metrics, of a request whose client has closed the connection.
_CLIENT_LEFT = 499
_LOGGED = 10_000  # bytes of a path, a query or a body in the log
_PAUSE = 10.0  # seconds between messages about refused requests

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

_log = logging.getLogger("mrfrec.service")
_access = logging.getLogger("mrfrec.service.access")


@dataclass
class ProcessLoad:
    """How much this process has to do."""

    requests: int = 0  # requests from the first byte of the body until the answer is made
    is_closing: bool = False  # the process was told to stop


@dataclass(slots=True)
class RequestInfo:
    """Facts about a request that middleware and routes share."""

    path: str  # without the prefix of the application
    headers: dict[bytes, bytes]
    request_id: str
    is_read: bool  # whether the whole body has been read from the connection
    key: str = ""  # name of the API key
    is_manager: bool = False  # whether the request has the role manage, and so may see users
    may_manage: bool = False  # whether the request may change anything, such as reload models
    model: str = ""  # name of the model that answered
    status: int = 0
    body: bytes = b""


def info_of(request: Request) -> RequestInfo:
    """Return what the middleware knows about a request."""
    info: RequestInfo = request.scope[INFO]
    return info


class RequestLog:
    """Gives requests an id and responses their security headers, counts and logs both, and refuses floods.

    In a flood there are many refusals for one answer, so a refusal must cost far less: its response is made
    ahead, and it has no line in the access log. Pages of other sites can read a refusal only with the headers
    of CORS, so `RequestLimits` refuses the requests if such pages are allowed.
    """

    def __init__(
        self, app: App, settings: ServiceSettings, metrics: Metrics, load: ProcessLoad,
        begin: Callable[[], None], error_response: Callable[[Request, ProblemError], Response],
    ) -> None:  # fmt: skip
        """Wrap `app`. The first request calls `begin`, in case no server has started the application."""
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._load = load
        self._begin: Callable[[], None] | None = begin
        self._error_response = error_response
        self._id_prefix = secrets.token_hex(4)
        self._last_id = 0
        self._refusal = busy().response()
        self._refused = 0  # requests that were refused since the last message about them
        self._tell_at = 0.0  # when the next such message is due

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        if self._begin is not None:
            self._begin()
            self._begin = None
        # A proxy may have removed the prefix from the path.
        if self._settings.root_path and not scope.get("root_path"):
            scope["root_path"] = self._settings.root_path
        if scope["path"] == scope.get("root_path") != "":
            scope["path"] += "/"
        load = self._load
        info = self._info(scope)
        scope[INFO] = info

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                message["headers"] = headers = list(message.get("headers", ()))
                names = dict(headers)
                info.model = names.get(b"mrfrec-model", b"").decode("latin-1").partition(";")[0]
                headers += _SECURITY
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                headers.append((b"x-request-id", info.request_id.encode()))
                # The rest of a body could drip in for ever, so the connection ends with the answer.
                if load.is_closing or not info.is_read:
                    headers.append((b"connection", b"close"))
            try:
                await send(message)
            except (OSError, RuntimeError):
                # The connection is closed, and the server may not know it yet.
                raise ClientLeftError from None

        if load.requests >= self._settings.queue and self._is_refused(info):
            # The server drops the body: closing the connection would cost more than reading the body.
            info.is_read = True
            with suppress(ClientLeftError):
                await self._refusal(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except ClientLeftError:
            info.status = _CLIENT_LEFT
        except Exception as error:
            _log.error("request %s: %r", info.request_id, error, exc_info=error)
            if not info.status:
                problem = ProblemError(500, "something went wrong here; the log of the service has more.")
                response = self._error_response(Request(scope), problem)
                await response(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - start
            route = route_of(info.path)
            self._metrics.count_request(route, info.status, seconds, info.model)
            if self._settings.access_log and _access.isEnabledFor(logging.INFO):
                self._write_line(scope, info, route, seconds)

    def _is_refused(self, info: RequestInfo) -> bool:
        """Return whether a request is refused in a flood. Refusals are counted; a message tells of many."""
        # A request is passed on if its connection must end with the answer.
        if self._load.is_closing or self._settings.origins or info.path in _UNBOUNDED:
            return False
        self._metrics.count_request(route_of(info.path), 503, 0.0)
        self._refused += 1
        now = time.monotonic()
        if now >= self._tell_at:
            _log.warning(
                "more than %d requests (queue) at once: %d refused since the last such message",
                self._settings.queue, self._refused,
            )  # fmt: skip
            self._refused = 0
            self._tell_at = now + _PAUSE
        return True

    def _info(self, scope: Message) -> RequestInfo:
        path = scope["path"]
        root = scope.get("root_path", "")
        headers = dict(scope["headers"])
        # Routes match the path without its prefix.
        if path.startswith(root) and path[len(root) :][:1] in ("", "/"):
            path = path[len(root) :]
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if _REQUEST_ID.fullmatch(request_id) is None:
            self._last_id += 1
            request_id = f"{self._id_prefix}{self._last_id:08x}"
        is_read = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        return RequestInfo(path or "/", headers, request_id, is_read)

    def _write_line(self, scope: Message, info: RequestInfo, route: str, seconds: float) -> None:
        """Write a line to the access log, without histories and ids unless `log_requests` asks for them."""
        client = scope.get("client") if self._settings.log_clients else None
        fields = _Fields(
            method=scope["method"], route=route, status=info.status, ms=round(1000 * seconds, 2),
            model=info.model, key=info.key, request=info.request_id, pid=os.getpid(),
            client=client[0] if client else "",
        )  # fmt: skip
        if self._settings.log_requests:
            fields["path"] = info.path[:_LOGGED]
            fields["query"] = scope["query_string"][:_LOGGED].decode("latin-1")
            fields["body"] = info.body[:_LOGGED].decode(errors="replace")
        _access.info(fields, extra={"fields": fields})


class _Fields(dict[str, Any]):
    """A line of the access log: fields for JSON, and words to read."""

    def __str__(self) -> str:
        text = " ".join("-" if value == "" else str(value) for value in self.values())
        if text.isprintable():
            return text
        # A request must not be able to write a line of its own.
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RequestLimits:
    """Bounds the requests at once, and the size and time of their bodies.

    A request enters the queue before its body is read, so that all bodies together have at most `queue` times
    `max_body` bytes. A request that `check_access` refuses does not enter the queue.
    """

    def __init__(
        self, app: App, settings: ServiceSettings, metrics: Metrics, load: ProcessLoad,
        check_access: Callable[[Message, RequestInfo], None],
    ) -> None:  # fmt: skip
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._load = load
        self._check_access = check_access
        self._large_body = asyncio.Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Read the body of a request and pass it on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        info: RequestInfo = scope[INFO]
        try:
            self._check_access(scope, info)
            if info.path in _UNBOUNDED:
                # Anybody may send requests to these paths, so their bodies are not read.
                if not info.is_read:
                    raise ProblemError(413, "a request to this address must have no body.")
                await self._app(scope, receive, send)
                return
            if self._load.requests >= self._settings.queue:
                raise busy()
            self._change_load(1)
            try:
                if not info.is_read:
                    info.body = await self._read(info, receive)
                await self._app(scope, receive, send)
            finally:
                self._change_load(-1)
        except ProblemError as problem:
            await _refuse(problem, scope, receive, send)

    def _change_load(self, by: int) -> None:
        self._load.requests += by
        self._metrics.set_queue(self._load.requests)

    async def _read(self, info: RequestInfo, receive: Receive) -> bytes:
        """Return the body of a request, within the limits of its size and time."""
        most = self._settings.max_body
        seconds = self._settings.body_seconds
        # The server has refused a length that is not a number.
        if int(info.headers.get(b"content-length", b"0")) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while not info.is_read:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeftError
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    info.is_read = not message.get("more_body", False)
        except TimeoutError:
            raise ProblemError(408, f"the body did not arrive within {seconds:g} s.") from None
        values = sum(body.count(mark) for mark in (b",", b":", b"[", b"{"))
        # Parsing many values would keep all other requests waiting.
        if values > self._settings.max_values:
            raise ProblemError(
                413, f"the body must have at most {self._settings.max_values:,} values, counted by its "
                f"commas, colons and opening brackets; it has {values:,}.",
            )  # fmt: skip
        # Other requests get a turn between two large bodies.
        if len(body) > LARGE_BODY:
            async with self._large_body:
                await asyncio.sleep(0)
        return bytes(body)


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, f"the body must have at most {most:,} bytes.")


async def _refuse(problem: ProblemError, scope: Message, receive: Receive, send: Send) -> None:
    """Send a problem as the answer. The connection stays open if the whole body has arrived."""
    info: RequestInfo = scope[INFO]
    if not info.is_read and b"expect" not in info.headers:
        with suppress(TimeoutError):
            # Read what has arrived, and wait for nothing.
            async with asyncio.timeout(0):
                while not info.is_read and (message := await receive())["type"] == "http.request":
                    info.is_read = not message.get("more_body", False)
    await problem.response()(scope, receive, send)
