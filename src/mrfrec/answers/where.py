"""Which items meet conditions on the columns of the table of items."""

import math
from collections.abc import Mapping
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.answers.conditions import Where
from mrfrec.answers.question import Question
from mrfrec.checks import in_words, shortened
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.item_table import Column, ItemTable
from mrfrec.data.reading_options import moment
from mrfrec.errors import ParameterError

Mask = npt.NDArray[np.bool_]

_MOST_MASKS = 16  # kept for one table; each has a byte for each item
_DAY = 86_400_000_000  # microseconds
_KINDS = {
    "text": "a text", "list": "texts", "flag": "True or False", "number": "a number",
    "time": "a date or a time, 2026-11-16 or 2026-11-16T10:30:00",
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
        asked = where if isinstance(where, str) else ", ".join(map(str, where))  # the columns
        raise ParameterError("where", rule, shortened(asked, 80), advice)
    kept = table.masks.get(key := repr(where))
    if kept is None:
        if len(table.masks) >= _MOST_MASKS:
            table.masks.clear()
        kept = table.masks[key] = _mask_of(where, table)
    return kept


def columns_named(question: Question) -> list[tuple[str, str]]:
    """Return the columns that the rules of a question name, each after the parameter that names it."""
    where = question.where
    if isinstance(where, str):
        from mrfrec.io.expressions import columns_of_expression

        where = dict.fromkeys(columns_of_expression(where))
    boosts = [
        (f'boost["{way}"]', name) for way, name in (question.boost or {}).items() if isinstance(name, str)
    ]
    return [
        *(("where", name) for name in where or ()),
        *(("at_most", name) for name in question.at_most or ()),
        *boosts,
    ]


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


def unknown_values(where: Where, table: ItemTable) -> str:
    """Return in sentences which texts of a filter no item has, and the most alike ones that some item has."""
    said = []
    for name, words in where.items() if isinstance(where, Mapping) else ():
        column = table.column(name, "where")
        texts = list(column.texts or ())
        alike = {text.casefold(): text for text in texts}
        for value in [*words.get("any", ()), *words.get("all", ())] if column.texts is not None else ():
            if value not in texts:
                near = [repr(alike[each]) for each in get_close_matches(value.casefold(), alike)]
                said.append(
                    f" No item has the {name} {value!r}" + (f": try {in_words(near, 'or')}." if near else ".")
                )
    return "".join(said)


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
