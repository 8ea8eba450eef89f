"""The settings of a service: limits, keys, logs."""

import re
from dataclasses import dataclass, fields
from os import PathLike

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Settings of a service. A request beyond a limit is refused with a status that says so."""

    max_k: int = 1000  # items of one answer
    max_history: int = 10_000  # items of one history
    max_batch: int = 1000  # histories of one request
    max_cost: int = 100_000  # of one answer: histories × k × (1 + reasons), and more for long histories
    max_body: int = 4_000_000  # bytes of a request
    max_values: int = 100_000  # commas, colons and opening brackets in the JSON of a request, counted unread
    queue: int = 64  # requests that wait or are worked on; others get 503
    seconds: float = 5.0  # from the arrival of a request until its answer begins, else 503
    body_seconds: float = 10.0  # until the body of a request has arrived, else 408
    write_seconds: float = 10.0  # until a client has taken the next 64 KB of its answers, else it is cut off
    drain: float = 0.3  # seconds between "not ready" and the end of connections, when told to stop
    poll: float = 2.0  # seconds between looks whether a model file was replaced; 0 for never
    keys: "str | PathLike[str] | None" = None  # file of API keys; None: everybody may ask
    rate: float = 0.0  # requests per second of a key, or of an address where there are no keys; 0: any
    origins: tuple[str, ...] = ()  # web origins whose pages may ask (CORS), or "*"
    hosts: tuple[str, ...] = ()  # names that requests may call this host by (Host); empty: any
    root_path: str = ""  # prefix of all addresses, behind a proxy: /recs
    access_log: bool = True  # a line for each request, without histories and ids
    log_requests: bool = False  # query strings and bodies in these lines too
    log_clients: bool = False  # addresses of clients in these lines too

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(field.default) is int:
                check_count(field.name, value)
            elif type(field.default) is bool:
                check_flag(field.name, value)
            elif field.name in ("poll", "drain"):
                check_number(field.name, value, "from 0 to 3600", lambda x: 0 <= x <= 3600)
            elif field.name == "rate":
                check_number(
                    field.name, value, "0, or from 0.001 to 1e6", lambda x: x == 0 or 1e-3 <= x <= 1e6
                )
            elif type(field.default) is float:
                check_number(field.name, value, "above 0", lambda x: x > 0)
        for origin in self.origins:
            if origin != "*" and re.fullmatch(r"https?://[^/\s*,]+", origin) is None:
                raise ParameterError("origins", "as https://shop.example, without a path, or *", origin)
        for host in self.hosts:
            if re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) is None:
                raise ParameterError("hosts", "names or addresses without a port, as shop.example", host)
        if self.root_path and re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path) is None:
            raise ParameterError(
                "root_path", "a path such as /recs, without a slash at its end", self.root_path
            )
