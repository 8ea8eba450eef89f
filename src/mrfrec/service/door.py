"""The door of the service: an ASGI application around another, which refuses what must not come in.

Every request passes here before anything of it is parsed: keys, rates, a bound on how many are inside, limits
on the size and the time of bodies. So does every response: security headers, a line in the log, counts.
"""

import asyncio
import base64
import logging
import math
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from mrfrec.errors import MrfrecError
from mrfrec.service.api import MAY_MANAGE, Recommend
from mrfrec.service.keys import Key, find_key, read_keys
from mrfrec.service.line import LeftError, Line
from mrfrec.service.metrics import Metrics, route_of
from mrfrec.service.problems import NO_ROOM, UNEXPECTED, ProblemError
from mrfrec.service.rates import Rates
from mrfrec.service.schemas import RecommendRequest, read_request
from mrfrec.service.settings import ServiceSettings
from mrfrec.service.shelf import Shelf
from mrfrec.service.visit import REFUSAL, App, Message, Receive, Send, StuckError, Visit

_log = logging.getLogger("mrfrec.service")

_OPEN = {"/health", "/ready"}  # for load balancers, without a key
_UNBOUNDED = {"/health", "/ready", "/metrics"}  # answered also when there is no room
_WANTED = frozenset(
    (b"authorization", b"x-api-key", b"host", b"origin", b"content-length", b"transfer-encoding",
     b"x-request-id", b"access-control-request-method", b"content-type", b"expect")
)  # fmt: skip
_ADDRESS = re.compile(rb"[0-9.]+|\[[0-9a-f:.]+\]")  # no name, which could be anybody's
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_BODIES = 16  # times max_body: bytes of all bodies and long answers that are held at once
_GONE = 499  # in the log: the client left before its request was complete
_PAUSE = 10.0  # seconds between lines in the log about requests that were refused unread
_KEY = re.compile(rb"\r\n(?:authorization: *bearer |x-api-key:)([^\r\n]*)\r\n", re.IGNORECASE)
_JSON = b"application/json"
_LARGE = 65_536  # bytes of a body that takes more than a millisecond to parse
_MOST_LETTERS = 8000  # of a query
_MANY = "too many large requests at once; try again."


class Door:
    """An ASGI application that lets requests in to another, `app`.

    What is asked most, `recommend`, is answered at the door: the framework takes as long as the answer.
    """

    def __init__(
        self, app: App, settings: ServiceSettings, metrics: Metrics, shelf: Shelf, recommend: Recommend,
        line: Line, begin: Callable[[], None],
    ) -> None:  # fmt: skip
        """Stand before `app`; `begin` is called with each request, in case no server has started the app."""
        self.app, self._settings, self.metrics, self.shelf = app, settings, metrics, shelf
        self._recommend, self._line, self._begin = recommend, line, begin
        self._keys: tuple[Key, ...] = () if settings.keys is None else read_keys(settings.keys)
        self._rates = Rates(settings.rate, metrics.of_rates) if settings.rate else None
        self._origins = {origin.encode() for origin in settings.origins}
        self.is_closing = False  # connections are: each answer says so
        self.drain = settings.drain
        self._hosts = {host.lower().encode() for host in settings.hosts}
        self._root = settings.root_path
        self._inside = 0  # requests that wait or are answered
        self._expected = 0  # that will be inside before more arrive
        self._refused, self._tell_at = 0, 0.0  # unread since the log told of them; when it tells again
        self._held = 0  # bytes of their bodies
        self._turn = asyncio.Lock()  # of large bodies
        self._prefix, self._number = secrets.token_hex(4), 0  # of request ids

    @property
    def is_full(self) -> bool:
        """Whether the next request should go elsewhere."""
        return self.is_closing or self._inside >= self._settings.queue

    def expect(self, request: bytes, loop: asyncio.AbstractEventLoop) -> bytes | None:
        """Expect a request for recommendations that has arrived whole.

        Returns the whole response, to send without reading the request, if there is no room for it. Who has
        no key takes no room, and gets no such answer, nor does a page of another origin.
        """
        if self._origins or (self._keys and not self._has_key(request)):
            return None
        inside = self._inside - self._line.answered + self._expected
        if inside >= self._settings.queue and not self.is_closing:
            self.metrics.count_request("/v1/recommend", 503, 0.0)
            self._tell_of_refusal()
            return REFUSAL
        if not self._expected:
            loop.call_soon(self._all_came)
        self._expected += 1
        return None

    def _has_key(self, request: bytes) -> bool:
        """Return whether a request has a valid key, where it usually is."""
        given = _KEY.search(request, 0, request.find(b"\r\n\r\n") + 2)
        return given is not None and find_key(self._keys, given[1].strip()) is not None

    def _tell_of_refusal(self) -> None:
        """Say in the log, from time to time, how many were refused, of which each has no line."""
        self._refused += 1
        now = time.monotonic()
        if now >= self._tell_at:
            _log.warning(
                "more than %d requests (queue) at once: %d refused since this was last said",
                self._settings.queue, self._refused,
            )  # fmt: skip
            self._refused, self._tell_at = 0, now + _PAUSE

    def _all_came(self) -> None:
        """Go on from here: those expected come in now, before the loop reads from connections again."""
        self._expected = 0

    def reload(self) -> None:
        """Open the models anew and read the file of keys again; the old stay where that fails."""
        self.catch_up(every=True)

    def catch_up(self, every: bool = False) -> None:
        """Open models whose files were replaced, or `every` one, and read the file of keys again."""
        self.shelf.follow(every)
        if self._settings.keys is not None:
            try:
                self._keys = read_keys(self._settings.keys)
            except MrfrecError as error:
                _log.error("the keys stay as they are: %s", error)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or pass on what is none."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        self._begin()
        if self._root and not scope.get("root_path"):
            path = scope["path"]
            # A proxy may have removed the prefix, or not.
            is_whole = path == self._root or path.startswith(f"{self._root}/")
            path = f"{path}/" if path == self._root else path if is_whole else f"{self._root}{path}"
            scope = {**scope, "root_path": self._root, "path": path}
        elif scope["path"] == scope.get("root_path") != "":
            scope = {**scope, "path": f"{scope['path']}/"}
        given = {name: value for name, value in scope["headers"] if name in _WANTED}
        request_id = given.get(b"x-request-id", b"")
        if _REQUEST_ID.fullmatch(request_id) is None:
            self._number += 1
            request_id = f"{self._prefix}{self._number:08x}".encode()
        visit = Visit(_path_of(scope), given, request_id, send, self._settings.write_seconds, self._hold)
        visit.closes |= self.is_closing
        if self._settings.log_clients and scope.get("client"):
            visit.client = scope["client"][0]
        try:
            await self._enter(visit, scope, receive)
        except ProblemError as problem:
            await self._skip(visit, receive)
            await visit.refuse(problem.status, problem.detail, problem.headers)
        except LeftError:
            visit.status = _GONE
        except StuckError:  # the server closes the connection, since the answer is not complete
            _log.warning("request %s: its client takes no more of the answer", request_id.decode())
        except Exception as error:
            _log.error("request %s: %r", request_id.decode(), error, exc_info=error)
            if not visit.status:
                await visit.refuse(500, UNEXPECTED, {})
        finally:
            self._held -= visit.held
            seconds = time.perf_counter() - start
            route = route_of(visit.path)
            self.metrics.count_request(route, visit.status, seconds, visit.model)
            if self._settings.access_log:
                query = scope["query_string"] if self._settings.log_requests else None
                visit.log(scope["method"], route, seconds, query)

    async def _enter(self, visit: Visit, scope: Message, receive: Receive) -> None:
        """Refuse a request with a `ProblemError`, or let it in."""
        given, path = visit.given, visit.path
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise ProblemError(400, "a request must have one Host.")
        if self._hosts and path not in _OPEN and _name_of(given.get(b"host", b"")) not in self._hosts:
            name = given.get(b"host", b"").decode("latin-1")
            raise ProblemError(421, f"{name!r} is not one of the allowed hosts of this service.")
        if len(scope["query_string"]) > _MOST_LETTERS:
            raise ProblemError(414, f"the query of an address must have at most {_MOST_LETTERS:,} letters.")
        if self._origins and b"origin" in given and self._is_preflight(visit, scope["method"]):
            await visit.send({"type": "http.response.start", "status": 204, "headers": []})
            await visit.pass_on({"type": "http.response.body", "body": b""})
            return
        if path not in _OPEN:
            if self._keys:
                self._check_key(visit)
            else:
                visit.may_manage = self._is_from_here(given, scope)
            if self._rates is not None:
                client = scope.get("client")
                wait = self._rates.wait(visit.key or (client[0] if client else ""))
                if wait:
                    detail = "too many requests; see Retry-After."
                    raise ProblemError(429, detail, {"Retry-After": str(math.ceil(wait))})
        self._check_room(path)
        if b"content-length" in given or b"transfer-encoding" in given:
            await self._read(visit, receive)
            self._check_room(path)
            receive = _replay(visit.body, receive)
        if path in _UNBOUNDED:
            await self.app(scope, receive, visit.send)
            return
        scope[MAY_MANAGE] = visit.may_manage
        self._inside += 1
        self.metrics.set_queue(self._inside)
        try:
            question = _question(visit, scope["method"])
            answer = self.app if question is None else await self._recommend(question)
            await answer(scope, receive, visit.send)
            if visit.is_dropped:
                visit.is_dropped = False
                raise ProblemError(503, _MANY, {"Retry-After": "1"})
        finally:
            self._inside -= 1
            self.metrics.set_queue(self._inside)

    def _check_room(self, path: str) -> None:
        if self._inside >= self._settings.queue and path not in _UNBOUNDED:
            raise ProblemError(503, NO_ROOM, {"Retry-After": "1"})

    def _is_from_here(self, given: dict[bytes, bytes], scope: Message) -> bool:
        """Return whether a request without a key may change anything.

        It may if no page of another site sent it, neither openly nor by a name that its owner has made one
        of this host.
        """
        host, origin = given.get(b"host", b""), given.get(b"origin")
        name = _name_of(host)
        is_here = name in self._hosts or name == b"localhost" or _ADDRESS.fullmatch(name) is not None
        own = b"%s://%s" % (scope.get("scheme", "http").encode(), host)
        return is_here and (origin is None or origin == own or origin in self._origins)

    def _hold(self, visit: Visit, size: int) -> bool:
        """Count bytes that are held until a request ends; return whether there is room for them."""
        visit.held += size
        self._held += size
        return self._held <= _BODIES * self._settings.max_body

    def _check_key(self, visit: Visit) -> None:
        """Find the key of a request, and whether it may manage."""
        given, may_manage = visit.given, True
        secret = given.get(b"x-api-key")
        if secret is None:
            kind, _, secret = given.get(b"authorization", b"").partition(b" ")
            if kind.lower() == b"basic":
                # Browsers send it again on their own, also for a form of another site: it may only read.
                may_manage = False
                try:
                    secret = base64.b64decode(secret, validate=True).partition(b":")[2]
                except ValueError:
                    secret = b""
            elif kind.lower() != b"bearer":
                secret = b""
        key = find_key(self._keys, secret.strip())
        if key is None:
            # Browsers ask for a password where they are challenged so: on the page, not in the API.
            challenge = "Bearer" if visit.path.startswith("/v1/") else "Basic"
            raise ProblemError(
                401, "a key is needed, as Authorization: Bearer KEY or X-API-Key: KEY.",
                {"WWW-Authenticate": f'{challenge} realm="mrfrec"'},
            )  # fmt: skip
        visit.key, visit.may_manage = key.name, may_manage and key.may_manage

    async def _read(self, visit: Visit, receive: Receive) -> None:
        """Read the body of a request, within the limits of its size and time."""
        most = self._settings.max_body
        too_large = f"the body must have at most {most:,} bytes."
        declared = visit.given.get(b"content-length", b"0")
        if not declared.isdigit():
            raise ProblemError(400, "Content-Length must be a number.")
        if len(declared) > 18 or int(declared) > most:
            raise ProblemError(413, too_large)
        pieces = []
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise LeftError
                    piece = message.get("body", b"")
                    has_room = self._hold(visit, len(piece))
                    if visit.held > most:
                        raise ProblemError(413, too_large)
                    if not has_room:
                        raise ProblemError(503, _MANY, {"Retry-After": "1"})
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        visit.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                        visit.closes = self.is_closing
                        break
        except TimeoutError:
            detail = f"the body did not arrive within {self._settings.body_seconds:g} s."
            raise ProblemError(408, detail) from None
        values = sum(visit.body.count(mark) for mark in (b",", b":", b"[", b"{"))
        if values > self._settings.max_values:  # to read them would keep everybody else waiting
            detail = (
                f"the body must have at most {self._settings.max_values:,} values, counted by its commas, "
                f"colons and opening brackets; it has {values:,}."
            )
            raise ProblemError(413, detail)
        if len(visit.body) > _LARGE:  # of several that have come, one is parsed before others have a turn
            async with self._turn:
                await asyncio.sleep(0)

    async def _skip(self, visit: Visit, receive: Receive) -> None:
        """Take what has arrived of an unread body: if that is the whole, the connection can go on."""
        if visit.closes and not self.is_closing and b"expect" not in visit.given:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    while (message := await receive())["type"] == "http.request":
                        if not message.get("more_body", False):
                            visit.closes = False
                            return

    def _is_preflight(self, visit: Visit, method: str) -> bool:
        """Add the headers that let a page of a named origin ask; whether only these are asked for."""
        origin = visit.given[b"origin"]
        visit.extra.append((b"vary", b"Origin"))
        if origin not in self._origins and b"*" not in self._origins:
            return False
        visit.extra.append((b"access-control-allow-origin", origin))
        if method != "OPTIONS" or b"access-control-request-method" not in visit.given:
            visit.extra.append((b"access-control-expose-headers", b"Mrfrec-Model, Retry-After, X-Request-Id"))
            return False
        visit.extra += [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"Authorization, Content-Type, X-API-Key, X-Request-Id"),
            (b"access-control-max-age", b"600"),
        ]
        return True


def _question(visit: Visit, method: str) -> RecommendRequest | None:
    """Return a request for recommendations; None if it is another one, or not a valid one."""
    if visit.path != "/v1/recommend" or method != "POST":
        return None
    kind = visit.given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return read_request(visit.body) if kind == _JSON else None


def _path_of(scope: Message) -> str:
    """Return the path of a request without the prefix of the application, as routes do."""
    path, root = scope["path"], scope.get("root_path", "")
    is_below = path.startswith(root) and path[len(root) :][:1] in ("", "/")
    return (path[len(root) :] if is_below else path) or "/"


def _name_of(host: bytes) -> bytes:
    """Return the name or address in a Host header, without the port."""
    return (host.partition(b"]")[0] + b"]" if host.startswith(b"[") else host.partition(b":")[0]).lower()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body which has been read, then what comes after it."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
