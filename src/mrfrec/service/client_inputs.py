"""Check the arguments of a client before they are sent, and bring them into the form of the API."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.answers.histories import LARGEST_VALUE

if TYPE_CHECKING:
    import httpx


class Histories(NamedTuple):
    """Histories as the API takes them, and the names of their owners."""

    names: list[Id]
    histories: list[list[Any]]


def checked_url(url: object) -> "httpx.URL":
    """Return the address of a service; a password in it is not shown in errors."""
    import httpx

    shown = re.sub(".*@", "…@", url) if isinstance(url, str) else url
    try:
        if not isinstance(url, str):
            raise ValueError
        found = httpx.URL(url)
        found.raw_host.decode().encode("idna")  # no empty part, and none that is too long
        if found.scheme not in ("http", "https") or not found.host or found.query or found.fragment:
            raise ValueError
        if not 0 < (found.port or 80) < 2**16:
            raise ValueError
    except (httpx.InvalidURL, ValueError):
        rule = 'the address of a service, such as "http://127.0.0.1:8000"'
        raise ParameterError("url", rule, shown) from None
    return found


def checked_key(key: object) -> str:
    """Return a key without the spaces around it; errors do not show it."""
    if not isinstance(key, str) or not re.fullmatch("[!-~]+", key.strip()):
        raise ParameterError("key", "one word of ASCII characters, as `mrfrec key` prints it", "…")
    return key.strip()


def _plain(value: object) -> Any:
    """Return a value of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def checked_visitor(visitor: Id | None, user: object) -> Id | None:
    """Return a visitor, which requests for users do not take."""
    if visitor is None:
        return None
    if user is not None:
        raise ParameterError("visitor", "None with users: each user is a visitor", visitor)
    visitor = _plain(visitor)
    if not _is_id(visitor):
        raise ParameterError("visitor", "an integer or a string", visitor)
    return visitor


def plain_ids(ids: Iterable[object], whose: str) -> list[Id]:
    """Return ids as values of Python; `whose` they are is for errors."""
    plain = [_plain(one) for one in ids]
    for one in plain:
        if not _is_id(one):
            raise DataError(f"{whose} ids must be integers or strings; got {one!r} ({type(one).__name__}).")
    return plain


def item_list(name: str, given: object) -> list[Id] | None:
    """Return the ids given as a parameter."""
    if given is None:
        return None
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ParameterError(name, "a sequence of item ids", given)
    return plain_ids(given, "item")


def users_of(users: object) -> list[Id]:
    """Return one user, or several, as a list."""
    several = isinstance(users, Iterable) and not isinstance(users, str)
    return plain_ids(users if several else [users], "user")  # type: ignore[arg-type]


def histories_of(history: object) -> Histories:
    """Return histories as the API takes them, and a name for each."""
    rule = "item ids, a mapping from item to value, or several of these"
    if isinstance(history, str | bytes) or not isinstance(history, Iterable) or hasattr(history, "columns"):
        raise ParameterError("history", rule, history)
    if isinstance(history, Mapping):
        if all(isinstance(_plain(value), int | float) for value in history.values()):
            return Histories([0], [_history(history)])
        return Histories([_plain(name) for name in history], [_history(each) for each in history.values()])
    given = list(history)
    if any(isinstance(each, Iterable) and not isinstance(each, str | bytes) for each in given):
        return Histories(list(range(len(given))), [_history(each) for each in given])
    return Histories([0], [_history(given)])


def _history(given: object) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ParameterError("history", "a sequence of item ids", given)
    items = plain_ids(given, "item")
    if not isinstance(given, Mapping):
        return items
    values = [_plain(value) for value in given.values()]
    if not all(isinstance(value, int | float) and abs(value) <= LARGEST_VALUE for value in values):
        raise DataError(
            f"the values of a history must be finite numbers from -{LARGEST_VALUE:g} to {LARGEST_VALUE:g}."
        )
    return [{"item": item, "value": float(value)} for item, value in zip(items, values, strict=True)]
