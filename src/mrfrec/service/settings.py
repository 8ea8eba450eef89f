"""The settings of a service: limits, keys, logs."""

import re
from os import PathLike
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from mrfrec.errors import ParameterError
from mrfrec.options import USUAL, Options, Shell, Whole, plain, refusing


def _file_name(name: object) -> object:
    if not isinstance(name, str | PathLike | None):
        raise ParameterError("", "the name of a file or folder, or None", name)
    return name


def _texts(names: object) -> object:
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise ParameterError("", "texts in a tuple or a list", names)
    return tuple(names)


def _all_match(pattern: str, rule: str) -> AfterValidator:
    """Return a check that all texts, or the one text, match a pattern."""

    def check(texts: Any) -> Any:
        for text in [texts] if isinstance(texts, str) else texts:
            if re.fullmatch(pattern, text) is None:
                raise ParameterError("", rule, text)
        return texts

    return AfterValidator(check)


def _rate(rate: float) -> float:
    if rate != 0 and not 1e-3 <= rate <= 1e6:
        raise ParameterError("", "0, or from 0.001 to 1e6", rate)
    return rate


Positive = Annotated[Whole, Field(ge=1)]
FileName = Annotated[str | PathLike[str] | None, PlainValidator(_file_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(_texts)]
_ORIGIN = _all_match(r"\*|https?://[^/\s*,]+", "as https://shop.example, without a path, or *")
_HOST = _all_match(
    r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "names or addresses without a port, as shop.example"
)
_PATH = _all_match(r"((/[A-Za-z0-9._~-]+)+)?", "a path such as /recs, without a slash at its end")


class ServiceSettings(Options):
    """Settings of a service. A request beyond a limit is refused with a status that says so."""

    group: ClassVar[str] = "Limits and logs"

    max_k: Positive = Field(1000, description="Largest number of items in an answer.")
    max_history: Positive = Field(10_000, description="Largest number of items in a history.")
    max_batch: Positive = Field(1000, description="Largest number of histories in a request.")
    max_cost: Positive = Field(
        100_000,
        description="Largest cost of an answer: histories × k × (1 + reasons), and more for long histories.",
    )
    max_body: Positive = Field(4_000_000, description="Largest request in bytes.")
    max_values: Positive = Field(
        100_000,
        description="Largest number of commas, colons and opening brackets in the JSON of a request.",
    )
    queue: Positive = Field(64, description="Requests that wait or are worked on; any more get 503.")
    seconds: float = Field(
        5.0, gt=0, description="Seconds from the arrival of a request until its answer begins, else 503."
    )
    body_seconds: float = Field(
        10.0, gt=0, description="Seconds until the body of a request has arrived, else 408."
    )
    drain: float = Field(
        0.3, ge=0, le=3600,
        description='Seconds between "not ready" and the end of connections, when the service stops.',
    )  # fmt: skip
    poll: float = Field(
        2.0,
        ge=0,
        le=3600,
        description="Seconds between two checks whether a model file has changed; 0: never.",
    )
    copies: FileName = Field(
        None,
        description="Folder for this service's copies of the model files; by default one of this user in the "
        "temporary folder.",
    )
    keys: Annotated[FileName, USUAL] = Field(
        None, description="File of API keys; without one, everybody may ask."
    )
    rate: Annotated[float, AfterValidator(_rate), USUAL] = Field(
        0.0, description="Requests per second of a key, or of an address if there are no keys; 0: no limit."
    )
    origins: Annotated[Names, _ORIGIN, Shell("--cors")] = Field(
        (), description='Web origins whose pages may ask (CORS), or "*".'
    )
    hosts: Annotated[Names, _HOST, Shell("--allowed-hosts")] = Field(
        (), description="Names of this host that requests may use (Host); empty: any."
    )
    root_path: Annotated[str, _PATH] = Field("", description="Prefix of all addresses behind a proxy: /recs.")
    user_page: bool = Field(
        False,
        description="A page about a user: what they have, what they get and why. Needs the role manage.",
    )
    access_log: bool = Field(True, description="Log a line for each request, without histories and ids.")
    log_requests: bool = Field(False, description="Log query strings and bodies of requests, too.")
    log_clients: bool = Field(False, description="Log addresses of clients, too.")

    def __init__(self, **settings: Any) -> None:
        with refusing(type(self)):
            super().__init__(**plain(settings))
