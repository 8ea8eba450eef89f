"""The settings of a service: limits, keys, logs."""

import re
from dataclasses import Field, dataclass, fields
from os import PathLike
from typing import Any

from mrfrec.checks import check_count, check_flag, check_number, option
from mrfrec.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Settings of a service. A request beyond a limit is refused with a status that says so."""

    max_k: int = option(1000, "Items of one answer.", least=1)
    max_history: int = option(10_000, "Items of one history.", least=1)
    max_batch: int = option(1000, "Histories of one request.", least=1)
    max_cost: int = option(
        100_000, "Cost of one answer: histories × k × (1 + reasons), and more for long histories.", least=1
    )
    max_body: int = option(4_000_000, "Bytes of a request.", least=1)
    max_values: int = option(
        100_000, "Commas, colons and opening brackets in the JSON of a request, counted unread.", least=1
    )
    queue: int = option(64, "Requests that wait or are worked on; others get 503.", least=1)
    seconds: float = option(5.0, "Seconds from the arrival of a request until its answer begins, else 503.")
    body_seconds: float = option(10.0, "Seconds until the body of a request has arrived, else 408.")
    drain: float = option(
        0.3, 'Seconds between "not ready" and the end of connections, when told to stop.', least=0, most=3600
    )
    poll: float = option(
        2.0, "Seconds between looks whether a model file was replaced; 0 for never.", least=0, most=3600
    )
    copies: str | PathLike[str] | None = option(
        None, "Folder of its own copies of the model files; None: one of this user in the temporary folder."
    )
    keys: str | PathLike[str] | None = option(None, "File of API keys; None: everybody may ask.")
    rate: float = option(
        0.0, "Requests per second of a key, or of an address where there are no keys; 0: any."
    )
    origins: tuple[str, ...] = option((), 'Web origins whose pages may ask (CORS), or "*".')
    hosts: tuple[str, ...] = option((), "Names that requests may call this host by (Host); empty: any.")
    root_path: str = option("", "Prefix of all addresses, behind a proxy: /recs.")
    access_log: bool = option(True, "A line for each request, without histories and ids.")
    log_requests: bool = option(False, "Query strings and bodies in these lines too.")
    log_clients: bool = option(False, "Addresses of clients in these lines too.")

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each, getattr(self, each.name))
        for name in ("origins", "hosts"):
            names = getattr(self, name)
            if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
                raise ParameterError(name, "texts in a tuple or a list", names)
        for name in ("copies", "keys"):
            if not isinstance(place := getattr(self, name), str | PathLike | None):
                raise ParameterError(name, "the name of a file or folder, or None", place)
        if not isinstance(self.root_path, str):
            raise ParameterError("root_path", "a path such as /recs", self.root_path)
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


def _check(setting: "Field[Any]", value: object) -> None:
    """Check a number or a flag by the type of its default and by its limits."""
    name, least, most = setting.name, setting.metadata["least"], setting.metadata["most"]
    if type(setting.default) is int:
        check_count(name, value, least)
    elif type(setting.default) is bool:
        check_flag(name, value)
    elif name == "rate":
        check_number(name, value, "0, or from 0.001 to 1e6", lambda x: x == 0 or 1e-3 <= x <= 1e6)
    elif most is not None:
        check_number(name, value, f"from {least} to {most}", lambda x: least <= x <= most)
    elif type(setting.default) is float:
        check_number(name, value, "above 0", lambda x: x > 0)
