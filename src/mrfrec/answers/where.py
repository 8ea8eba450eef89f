"""Conditions on the columns of the table of items: which items a question is about."""

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import as_list, shortened
from mrfrec.data.item_table import Column, ItemTable
from mrfrec.data.reading_options import moment
from mrfrec.errors import ParameterError

Where = str | Mapping[Any, Any] | None
"""An expression in SQL, or a mapping from columns to conditions; or these by user; None for no condition."""

Mask = npt.NDArray[np.bool_]

WORDS = ("any", "all", "none", "least", "most", "above", "below", "missing")
"""The words of a condition."""

_LISTS = ("any", "all", "none")  # words that take several values
_MOST_MASKS = 16  # kept for one table; each has a byte for each item
_DAY = 86_400_000_000  # microseconds
_KINDS = {
    "text": "a text", "list": "texts", "flag": "True or False", "number": "a number",
    "time": "a date or a time, 2026-11-16 or 2026-11-16T10:30:00",
}  # fmt: skip


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


def mask_of(where: Where, catalogue: Catalogue) -> Mask | None:
    """Return of which items a filter, not by user, holds: of those for which all its conditions do.

    An item without a value meets no condition on that column but {"missing": True}.
    """
    if where is None:
        return None
    table = catalogue.table
    if table is None:
        advice = "Give it items=… in fit or set_items (mrfrec items)."
        rule = "left out: the model has no table of items"
        raise ParameterError("where", rule, shortened(str(where), 80), advice)
    kept = table.masks.get(key := repr(where))
    if kept is None:
        if len(table.masks) >= _MOST_MASKS:
            table.masks.clear()
        kept = table.masks[key] = _mask_of(where, table)
    return kept


def _mask_of(where: str | Mapping[Any, Any], table: ItemTable) -> Mask:
    if isinstance(where, str):
        from mrfrec.io.expressions import mask_of_expression

        return mask_of_expression(where, table)
    kept = np.ones(len(table), np.bool_)
    for name, words in where.items():
        column = table.column(name, "where")
        for word, value in words.items():
            kept &= _holds(column, f"where.{shortened(name, 40)}", word, value)
    return kept


# ── the form of a condition ───────────────────────────────────────────────────────────────────────


def _checked(where: object) -> Where:
    if where is None or (isinstance(where, str) and where.strip()):
        return where
    if not isinstance(where, Mapping):
        rule = "an expression in SQL, or a mapping from columns to conditions"
        raise ParameterError("where", rule, where)
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
    if isinstance(value, np.datetime64) and not np.isnat(value):
        value = value if value.dtype == "datetime64[D]" else value.astype("datetime64[us]")
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str | bool | int | date) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ParameterError(name, "about texts, numbers, flags, dates or times", value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


# ── which items meet it ───────────────────────────────────────────────────────────────────────────


def _holds(column: Column, name: str, word: str, value: Any) -> Mask:
    if word == "missing":
        return column.missing if value else ~column.missing
    known = ~column.missing
    if word == "none":
        return known & ~_any(column, name, value)
    if word == "any":
        return known & _any(column, name, value)
    if word == "all":
        if column.kind != "list":
            raise ParameterError(name, f"a condition without all: the column is a {column.kind}", value)
        owners = _owners_of_parts(column, name, value)
        return np.asarray(known & (np.bincount(owners, minlength=len(known)) == len({*value})))
    if column.kind not in ("number", "time"):
        rule = f"a condition without {word}, which is for numbers and times: the column is a {column.kind}"
        raise ParameterError(name, rule, value)
    return known & _compared(column, name, word, value)


def _any(column: Column, name: str, values: list[Any]) -> Mask:
    """Return which items have one of some values."""
    x = column.values
    if column.kind == "list":
        some = np.zeros(len(column), np.bool_)
        some[_owners_of_parts(column, name, values)] = True
        return some
    if column.kind == "text":
        return _has_code(column, _codes(column, name, values))
    if column.kind == "flag":
        for value in values:
            if not isinstance(value, bool):
                raise _wrong_type(column, name, value)
        return (x & (True in values)) | (~x & (False in values))
    if column.kind == "number":
        numbers = [_number(column, name, value) for value in values]
        if x.dtype == np.int64:
            numbers = [int(n) for n in numbers if n == int(n) and -(2**63) <= n < 2**63]
        wanted = np.array(numbers, x.dtype)
        return np.asarray(x == wanted[0] if len(wanted) == 1 else np.isin(x, wanted))
    spans = sorted(_span(column, name, value) for value in values)
    if not spans:
        return np.zeros(len(x), np.bool_)
    first, last = np.array(spans).T
    place = np.searchsorted(first, x, side="right") - 1
    return (place >= 0) & (x <= np.maximum.accumulate(last)[place])


def _owners_of_parts(column: Column, name: str, texts: list[Any]) -> npt.NDArray[np.int32]:
    """Return the item of each part of lists that is one of some texts."""
    return column.owners[np.flatnonzero(_has_code(column, _codes(column, name, texts)))]


def _codes(column: Column, name: str, texts: list[Any]) -> npt.NDArray[np.int64]:
    """Return the codes of those texts that some item has."""
    for text in texts:
        if not isinstance(text, str):
            raise _wrong_type(column, name, text)
    codes = column.index.find(texts, "text")
    return codes[codes >= 0]


def _has_code(column: Column, codes: npt.NDArray[np.int64]) -> Mask:
    """Return which values of a column, or which parts of its lists, are one of some codes.

    For missing values, which have the code −1, the result means nothing.
    """
    if len(codes) == 1:
        return np.asarray(column.values == codes[0])
    if not len(codes):
        return np.zeros(len(column.values), np.bool_)
    among = np.zeros(len(column.index), np.bool_)
    among[codes] = True
    return among.take(column.values, mode="clip")  # faster than without


def _compared(column: Column, name: str, word: str, value: Any) -> Mask:
    x = column.values
    if column.kind == "time":
        first, last = _span(column, name, value)
        return {"least": x >= first, "most": x <= last, "above": x > last, "below": x < first}[word]
    bound = _number(column, name, value)
    if x.dtype == np.int64:  # without rounding the numbers of the column
        bound = math.ceil(bound) if word in ("least", "below") else math.floor(bound)
    compare = {"least": np.greater_equal, "most": np.less_equal, "above": np.greater, "below": np.less}[word]
    return np.asarray(compare(x, bound))


def _number(column: Column, name: str, value: Any) -> Any:
    """Return a number; True is 1: SQLite and CSV have no other flags."""
    if not isinstance(value, bool | int | float) or abs(value) > 1e300:
        raise _wrong_type(column, name, value)
    return value


def _span(column: Column, name: str, value: Any) -> tuple[int, int]:
    """Return the first and the last microsecond of a time; a day is all of it."""
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    if isinstance(value, str):
        is_day = len(value.strip()) == 10
    if not isinstance(value, str | date):
        raise _wrong_type(column, name, value)
    start = moment(name, value)
    return start, start + (_DAY - 1 if is_day else 0)


def _wrong_type(column: Column, name: str, value: Any) -> ParameterError:
    return ParameterError(name, f"{_KINDS[column.kind]}, since the column is a {column.kind}", value)
