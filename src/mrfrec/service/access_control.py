"""Who may send requests: allowed hosts, API keys, rates.

A file of keys has a line `name:role:sha256` for each key; empty lines and comments (#) are ignored. The role
is `read`, or `manage`: such a key may also reload models and look at users. A key is 256 random bits, so a
plain hash protects it.
"""

import base64
import hashlib
import hmac
import ipaddress
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from os import PathLike
from typing import NamedTuple

from mrfrec.errors import DataError, MrfrecError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.service.middleware import Message, RequestInfo
from mrfrec.service.problems import ProblemError
from mrfrec.service.settings import ServiceSettings

ROLES = ("read", "manage")
# The service compares every request with all keys of the file.
_MOST_KEYS = 1000
_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY_LINE = re.compile(rf"({_KEY_NAME.pattern}):({'|'.join(ROLES)}):([0-9a-f]{{64}})")
# Load balancers ask for these paths without a key and under any host name.
_OPEN = {"/health", "/ready"}
# A name or an address, and perhaps a port.
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]*)?")
# Nobody can make an IP address point elsewhere, as the owner of a domain name can.
_ADDRESS = re.compile(r"[0-9.]+|\[[0-9a-f:.]+\]")
# If a request had one of these headers twice, a proxy might have checked the other one.
_ONCE = (b"host", b"authorization", b"x-api-key")
# In the address of a reload, only the name of the model may be percent-encoded: a proxy that forbids reloads
# must recognise it.
_RELOAD = re.compile(rb"[^%]*/v1/models/([^/%]|%(?!2[Ff]))+/reload")
_MOST_LETTERS = 8000  # in a query string
# Callers whose rate is remembered. The caller that was silent for longest is forgotten first.
_MOST_CALLERS = 16_384
_ROUNDING = 1e-6  # seconds


_log = logging.getLogger("mrfrec.service")


class AccessControl:
    """Refuses requests for other hosts, without a valid key, or beyond the rate of their caller."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._file = settings.keys
        self._keys = () if self._file is None else read_keys(self._file)
        self._rates = Rates(settings.rate) if settings.rate else None
        self._hosts = {host.lower() for host in settings.hosts}
        self._origins = set(settings.origins)

    def reload_keys(self) -> None:
        """Read the keys again; keep the old ones if the file has no key or a bad line."""
        if self._file is not None:
            try:
                self._keys = read_keys(self._file)
            except MrfrecError as error:
                _log.error("the keys stay as they are: %s", error)

    def check(self, scope: Message, info: RequestInfo) -> None:
        """Refuse a request by a `ProblemError`, or note its key and what it may do."""
        _check_headers(scope, info)
        host = info.headers.get(b"host", b"").decode("latin-1")
        if self._hosts and info.path not in _OPEN and _name_of(host) not in self._hosts:
            raise ProblemError(421, f"{host!r} is not one of the allowed hosts of this service.")
        if len(scope["query_string"]) > _MOST_LETTERS:
            raise ProblemError(414, f"the query of an address must have at most {_MOST_LETTERS:,} letters.")
        if info.path in _OPEN:
            return
        if self._keys:
            self._check_key(info)
        else:
            info.may_manage = self._is_from_here(scope, host, info.headers.get(b"origin"))
            # What users have is not shown to other machines. A Unix socket has no address.
            info.is_manager = info.may_manage and _is_loopback(scope.get("client"))
        if self._rates is not None:
            client = scope.get("client")
            wait = self._rates.wait(info.key or (client[0] if client else ""))
            if wait:
                headers = {"Retry-After": str(math.ceil(wait))}
                raise ProblemError(429, "too many requests; see Retry-After.", headers)

    def _is_from_here(self, scope: Message, host: str, origin: bytes | None) -> bool:
        """Return whether a request without a key comes from this host, and so may manage.

        A page of another site must not send it, neither openly (`Origin`) nor through a domain name that the
        site points at this host (`Host`).
        """
        name = _name_of(host)
        is_here = name in self._hosts or name == "localhost" or _ADDRESS.fullmatch(name) is not None
        page = None if origin is None else origin.decode("latin-1")
        own = f"{scope.get('scheme', 'http')}://{host}"
        return is_here and (page is None or page == own or page in self._origins - {"*"})

    def _check_key(self, info: RequestInfo) -> None:
        """Note the key of a request and whether it may manage, or refuse the request."""
        may_change = True
        secret = info.headers.get(b"x-api-key")
        if secret is None:
            kind, _, secret = info.headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() == b"basic":
                # Browsers add this password to any request, also of another site, so it may change nothing.
                may_change = False
                try:
                    secret = base64.b64decode(secret, validate=True).partition(b":")[2]
                except ValueError:
                    secret = b""
            elif kind.lower() != b"bearer":
                secret = b""
        key = find_key(self._keys, secret.strip())
        if key is None:
            # A browser asks for a password when challenged by Basic: right for the pages, wrong for the API.
            challenge = "Bearer" if info.path.startswith("/v1/") else "Basic"
            wrong = "this key is not known; one is needed" if secret.strip() else "a key is needed"
            raise ProblemError(
                401, f"{wrong}, as Authorization: Bearer KEY or X-API-Key: KEY.",
                {"WWW-Authenticate": f'{challenge} realm="mrfrec"'},
            )  # fmt: skip
        info.key = key.name
        info.is_manager = key.role == "manage"
        info.may_manage = info.is_manager and may_change


def _check_headers(scope: Message, info: RequestInfo) -> None:
    """Refuse a request that a proxy in front may have understood differently."""
    if len(info.headers) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in _ONCE:
            if names.count(name) > 1:
                raise ProblemError(400, f"a request must have only one header {name.decode()}.")
    if b"host" not in info.headers and scope["http_version"] == "1.1":
        raise ProblemError(400, "a request of HTTP/1.1 must have the header host.")
    # A regular expression would overlook a line break at the end of a path.
    if not info.path.isprintable():
        raise ProblemError(400, "the address of a request must have no control characters.")
    raw = scope.get("raw_path")
    if info.path.endswith("/reload") and raw is not None and _RELOAD.fullmatch(raw) is None:
        raise ProblemError(400, "the address of a reload must have only the name of the model encoded by %.")


def _is_loopback(client: tuple[str, int] | None) -> bool:
    try:
        return client is None or ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Return the name or address in a Host header without its port, or "" for an invalid header."""
    match = _HOST.fullmatch(host.lower())
    return match[1] if match else ""


class Rates:
    """A token bucket per caller: `rate` requests per second, and as many at once.

    The generic cell rate algorithm: a bucket is stored as the time at which it will be full again, and every
    request moves that time by 1/rate seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = 1 / rate
        # Seconds until a bucket with one token is full.
        self._most = (max(rate, 1.0) - 1) / rate
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Take a token and return 0, or return the seconds until the next token."""
        now = self._clock()
        full_at = max(self._full_at.pop(caller, now), now)
        wait = full_at - now - self._most
        is_allowed = wait <= _ROUNDING
        self._full_at[caller] = full_at + self._step if is_allowed else full_at
        if len(self._full_at) > _MOST_CALLERS:
            self._full_at.popitem(last=False)
        return 0.0 if is_allowed else wait


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


class Key(NamedTuple):
    """A line of the file: it has the hash of a key, not the key."""

    name: str
    role: str
    digest: bytes


def new_key(name: str, role: str = "read") -> tuple[str, str]:
    """Return a new key and its line for the file."""
    if _KEY_NAME.fullmatch(name) is None:
        raise ParameterError("name", "up to 64 letters, digits, dots, dashes and underscores", name)
    if role not in ROLES:
        raise ParameterError("role", "read or manage", role)
    key = f"mrf_{secrets.token_urlsafe(32)}"
    return key, f"{name}:{role}:{_digest(key.encode()).hex()}"


def read_keys(path: "str | PathLike[str]") -> tuple[Key, ...]:
    """Read the keys of a file."""
    try:
        # Opening a pipe could wait for ever.
        if not expanded(path).is_file():
            raise FileNotFoundError("there is no such file")
        text = expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a file of keys: {error}.") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (match := _KEY_LINE.fullmatch(line.strip())) is None:
            # The message does not show the line: somebody may have written a plain key there.
            raise DataError(
                f"{path}, line {number}: must be name:read: or name:manage: and 64 hexadecimal digits, as "
                "mrfrec serve --new-key writes it."
            )
        name, role, digest = match.groups()
        if name in keys:
            raise DataError(f"{path}, line {number}: another key has the name {name}.")
        if bytes.fromhex(digest) == _digest(b""):
            raise DataError(
                f"{path}, line {number}: this is the hash of an empty key, which anybody could send."
            )
        keys[name] = Key(name, role, bytes.fromhex(digest))
    if not 1 <= len(keys) <= _MOST_KEYS:
        raise DataError(
            f"{path} must have 1 to {_MOST_KEYS:,} keys; it has {len(keys):,}. "
            "mrfrec serve --new-key makes one."
        )
    return tuple(keys.values())


def find_key(keys: Iterable[Key], secret: bytes) -> Key | None:
    """Return the key whose text is `secret`, or None, in a time that does not depend on which key it is."""
    digest = _digest(secret)
    match = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            match = key
    return match


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
