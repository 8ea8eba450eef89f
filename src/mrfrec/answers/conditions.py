"""Conditions on columns of the table of items, in their plain form; `where.py` finds what meets them."""

import math
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from mrfrec.checks import shortened
from mrfrec.errors import ParameterError

Where = str | Mapping[Any, Any] | None
"""An expression in SQL, or a mapping from columns to conditions; or these by user; None for no condition."""

WORDS = ("any", "all", "none", "least", "most", "above", "below", "missing")
"""The words of a condition."""

_LISTS = ("any", "all", "none")  # words that take several values


def check_where(where: object) -> Where:
    """Return a filter in its plain form, {column: {word: value}}, or by user; refuse what is none."""
    if isinstance(where, Mapping) and None in where:
        return {user: _checked(each) for user, each in where.items()}
    return _checked(where)


def is_by_user(where: Where) -> bool:
    """Return whether a filter in its plain form is by user: then it says what holds for everybody."""
    return isinstance(where, Mapping) and None in where


def as_json(where: Where) -> dict[str, Any] | None:
    """Return a filter in its plain form as the service takes it."""
    if isinstance(where, str) or is_by_user(where):
        rule = "a mapping from columns to conditions: a service takes no SQL, and no filters by user"
        raise ParameterError("where", rule, where)
    return None if where is None else {
        column: {word: _plain(value) for word, value in words.items()} for column, words in where.items()
    }  # fmt: skip


def _checked(where: object) -> Where:
    if where is None or (isinstance(where, str) and where.strip()):
        return where
    if not isinstance(where, Mapping):
        rule = "an expression in SQL, or a mapping from columns to conditions"
        raise ParameterError("where", rule, where if isinstance(where, str) else type(where).__name__)
    for name in where:
        if not isinstance(name, str):
            advice = "By user, say what holds for everybody, too: {None: {…}, user: {…}}."
            raise ParameterError("where", "a mapping from names of columns to conditions", name, advice)
    return {name: _words(f"where.{shortened(name, 40)}", each) for name, each in where.items()}


def _words(name: str, condition: Any) -> dict[str, Any]:
    """Return a condition as a mapping from words to values."""
    if isinstance(condition, tuple):
        if len(condition) != 2:
            rule = "a pair of the least and the most, None where it is open; or a list of values"
            raise ParameterError(name, rule, condition)
        bounds = zip(("least", "most"), condition, strict=True)
        condition = {word: bound for word, bound in bounds if bound is not None}
    elif not isinstance(condition, Mapping):
        condition = {"any": condition}
    from mrfrec.data.ids import as_list  # loads numpy

    words = {}
    for word, value in condition.items():
        if word not in WORDS:
            raise ParameterError(name, f"a condition with the words {', '.join(WORDS)}", word)
        if word in _LISTS:
            several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
            words[word] = [_value(name, x) for x in (as_list(value, "value", name) if several else [value])]
        elif word == "missing" and not isinstance(value, bool):
            raise ParameterError(f"{name}.missing", "True or False", value)
        else:
            words[word] = _value(name, value)
    return words


def _value(name: str, value: Any) -> Any:
    """Return a value as a plain one of Python."""
    if hasattr(value, "item"):  # of numpy
        import numpy as np

        if isinstance(value, np.datetime64) and not np.isnat(value):
            value = value if value.dtype == "datetime64[D]" else value.astype("datetime64[us]")
        value = value.item()
    if isinstance(value, str | bool | int | date) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ParameterError(name, "about texts, numbers, flags, dates or times", value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value
