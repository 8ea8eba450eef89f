"""Find the items that a filter keeps, by conditions on the columns of the item table or an expression in SQL.

Both forms become one expression of polars.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs

from mrfrec.checks import in_words, shortened
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import as_list
from mrfrec.data.item_table import ItemTable
from mrfrec.data.reading_options import moment
from mrfrec.errors import ParameterError
from mrfrec.io.batches import POLARS_ERRORS

Mask = npt.NDArray[np.bool_]

Where = str | Mapping[Any, Any] | None
"""An expression in SQL, or a mapping from columns to conditions, or a mapping from users to either."""

_WORDS = ("any", "all", "none", "least", "most", "above", "below", "missing")
"""The words of a condition."""

_LISTS = ("any", "all", "none")  # These words take several values.
_MOST_MASKS = 16  # masks kept for one table, with a byte per item
_DAY = 86_400_000_000  # microseconds
_BEYOND = 2**64  # larger than any whole number of a column
_TYPES: Mapping[str, Any] = {
    "text": str, "list": str, "flag": bool, "number": bool | int | float, "time": str | date,
}  # fmt: skip
_VALUES = {
    "text": "a text", "list": "texts", "flag": "True or False", "number": "a number",
    "time": "a date or a time, 2026-11-16 or 2026-11-16T10:30:00",
}  # fmt: skip
_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_HOW_TO_WRITE = "Texts stand in single quotes, numbers in none: brand = 'A' AND price > 5."
_QUERY = r"(?i)\bselect\b|\(\s*(with|from|values|table)\b"
_MOST_WORDS = 500  # names and signs; polars takes seconds for thousands, and ends the process for more
_BEFORE_BRACKETS = {
    "and", "or", "not", "in", "between", "like", "ilike", "is", "when", "then", "else", "over", "by",
}  # fmt: skip
_FUNCTIONS = {
    "array_contains", "array_length", "lower", "upper", "length", "starts_with", "ends_with", "regexp_like",
    "left", "right", "substr", "trim", "ltrim", "rtrim", "abs", "round", "floor", "ceil", "sqrt", "ln",
    "greatest", "least", "coalesce", "nullif", "cast", "try_cast", "extract", "date", "date_part", "strftime",
    "avg", "min", "max", "median", "sum", "count",
}  # fmt: skip
"""The functions whose values are not longer than their arguments; rpad could fill the memory."""


def check_where(where: object) -> Where:
    """Return a filter in its plain form, {column: {word: value}}, or by user; refuse anything else."""
    if isinstance(where, Mapping) and None in where:
        return {user: _checked(each) for user, each in where.items()}
    return _checked(where)


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
    words = {}
    for word, value in condition.items():
        if word not in _WORDS:
            raise ParameterError(name, f"a condition with the words {', '.join(_WORDS)}", word)
        if word in _LISTS:
            several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
            words[word] = [_value(name, x) for x in (as_list(value, "value", name) if several else [value])]
        elif word == "missing" and not isinstance(value, bool):
            raise ParameterError(f"{name}.missing", "True or False", value)
        else:
            words[word] = _value(name, value)
    least, most = words.get("least"), words.get("most")
    if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
        raise ParameterError(name, "the least and the most, in this order", (least, most))
    return words


def _value(name: str, value: Any) -> Any:
    """Return a value as a plain one of Python."""
    if hasattr(value, "item"):  # The value is one of numpy.
        if isinstance(value, np.datetime64) and not np.isnat(value):
            value = value if value.dtype == "datetime64[D]" else value.astype("datetime64[us]")
        value = value.item()
    if isinstance(value, str | bool | int | date) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ParameterError(name, "about texts, numbers, flags, dates or times", value)


# ── which items are kept ──────────────────────────────────────────────────────────────────────────


def mask_of(where: Where, catalogue: Catalogue) -> Mask | None:
    """Return a Boolean per item: all conditions of a filter hold. The filter is not by user.

    An item without a value in a column meets no condition on it but {"missing": True}.
    """
    if where is None:
        return None
    table = catalogue.table
    if table is None:
        advice = "Give it items=… in fit or set_items (mrfrec update --items)."
        rule = "left out: the model has no table of items"
        asked = where if isinstance(where, str) else ", ".join(map(str, where))  # the columns
        raise ParameterError("where", rule, shortened(asked, 80), advice)
    kept = table.masks.get(key := repr(where))
    if kept is None:
        if len(table.masks) >= _MOST_MASKS:
            table.masks.clear()
        kept = table.masks[key] = _mask_of(where, table)
    return kept


def _mask_of(where: str | Mapping[Any, Any], table: ItemTable) -> Mask:
    if isinstance(where, str):
        return _mask_of_sql(where, table)
    conditions = [
        _condition(table, name, word, value) for name, words in where.items() for word, value in words.items()
    ]
    kept = table.frame.select(kept=pl.all_horizontal(pl.lit(True), *conditions).fill_null(False))
    # Without conditions there is one value for all items.
    return np.broadcast_to(kept["kept"].to_numpy(), len(table))


def unknown_values(where: Where, table: ItemTable) -> str:
    """Return sentences that name the texts of a filter that no item has, and similar texts that exist."""
    said = []
    for name, words in where.items() if isinstance(where, Mapping) else ():
        if table.type_of(name, "where") not in ("text", "list"):
            continue
        texts = table.groups(name, "where").values.to_list()
        alike = {text.casefold(): text for text in texts}
        for value in [*words.get("any", ()), *words.get("all", ())]:
            if value not in texts:
                near = [repr(alike[each]) for each in get_close_matches(value.casefold(), alike)]
                said.append(
                    f" No item has the {name} {value!r}" + (f": try {in_words(near, 'or')}." if near else ".")
                )
    return "".join(said)


def _condition(table: ItemTable, column: str, word: str, value: Any) -> pl.Expr:
    """Return one condition as an expression, which may be null where the value is missing."""
    name, kind = f"where.{shortened(column, 40)}", table.type_of(column, "where")
    # pl.col would take names such as ^a$ for patterns.
    x = cs.by_name(column).as_expr()
    if word == "missing":
        return x.is_null() if value else x.is_not_null()
    if word == "all" and kind != "list":
        raise ParameterError(name, f"a condition without all: the column is a {kind}", value)
    if word not in _LISTS and kind not in ("number", "time"):
        rule = f"a condition without {word}, which is for numbers and times: the column is a {kind}"
        raise ParameterError(name, rule, value)
    values = value if word in _LISTS else [value]
    for each in values:
        if not isinstance(each, _TYPES[kind]) or (kind == "number" and abs(each) > 1e300):
            raise ParameterError(name, f"{_VALUES[kind]}, since the column is a {kind}", each)
    if word == "all":
        return x.list.eval(pl.element().is_in(values)).list.sum() == len({*values})
    if kind == "list":
        found = x.list.eval(pl.element().is_in(values)).list.any()
    elif kind in ("text", "flag"):
        found = x.is_in(values)
    else:
        x, number = x.to_physical(), pl.Float64() if table.frame.schema[column] == pl.Float64 else pl.Int128()
        spans = [_span(name, kind, number, each) for each in values]
        if word not in _LISTS:
            first, last = (pl.lit(bound, number) for bound in spans[0])
            return {"least": x >= first, "most": x <= last, "above": x > last, "below": x < first}[word]
        days = [first // _DAY for first, last in spans if first < last]
        found = x.is_in(pl.Series([first for first, last in spans if first == last], dtype=number).implode())
        found = found | x.floordiv(_DAY).is_in(days) if days else found
    return ~found if word == "none" else found


def _span(name: str, kind: str, number: pl.DataType, value: Any) -> tuple[Any, Any]:
    """Return the first and the last number of a column that equal a value; a day has many.

    No whole number equals 2.5: the first is then larger than the last.
    """
    if kind == "number":
        if number == pl.Float64:
            return float(value), float(value)
        return tuple(max(-_BEYOND, min(x, _BEYOND)) for x in (math.ceil(value), math.floor(value)))
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    if isinstance(value, str):
        is_day = len(value.strip()) == 10
    start = moment(name, value)
    return start, start + (_DAY - 1 if is_day else 0)


# ── expressions in SQL ────────────────────────────────────────────────────────────────────────────


def _mask_of_sql(text: str, table: ItemTable) -> Mask:
    """Return a Boolean per item: an expression such as "price < 50 AND category = 'shoes'" is true.

    The expression sees the columns of the table and nothing else; a query inside it is refused.
    """
    expression, names = _parsed(text)
    if unknown := next((name for name in names if name not in table.frame.columns), None):
        rule = f"about columns of the table of items: {table.names}"
        raise ParameterError("where", rule, unknown, _HOW_TO_WRITE)
    columns = {name: table.column(name, "where") for name in names}
    rule = 'an expression that is true or false for each item, such as "price < 50"'
    if not columns:
        raise ParameterError("where", f"{rule}, and that names a column: {table.names}", text)
    try:
        found = pl.DataFrame(columns).select(expression.alias("kept"))["kept"]
    except POLARS_ERRORS as error:
        raise _wrong(text, error) from None
    if found.dtype != pl.Boolean or len(found) != len(table):
        raise ParameterError("where", rule, text, "A column of numbers: in_stock = 1.")
    return found.fill_null(False).to_numpy()


def columns_of_sql(text: str) -> list[str]:
    """Return the names of the columns in an expression."""
    return _parsed(text)[1]


def _parsed(text: str) -> tuple[pl.Expr, list[str]]:
    _check_form(text)
    try:
        expression = pl.sql_expr(text)
        return expression, list(dict.fromkeys(expression.meta.root_names()))
    except (*POLARS_ERRORS, TypeError, ValueError) as error:
        raise _wrong(text, error) from None


def _check_form(text: str) -> None:
    """Refuse expressions that polars would not answer in bounded time and memory."""
    plain = re.sub(_QUOTED, "0", text)
    if "--" in plain or "/*" in plain or re.search(_QUERY, plain):
        raise ParameterError("where", "an expression on columns, without a query or a comment inside", text)
    words = len(re.findall(r"[^\W\d]\w*|[^\w\s,.]", plain))
    if words > _MOST_WORDS:
        rule = f"an expression of up to {_MOST_WORDS} names and signs, besides numbers and quoted texts"
        advice = "For one of many values: price IN (10, 20, …), or a mapping from columns to conditions."
        raise ParameterError("where", rule, shortened(text, 80), f"It has {words:,}. {advice}")
    for name in re.findall(r"([\w`]+)\s*\(", plain):
        if name.lower() not in _FUNCTIONS | _BEFORE_BRACKETS:
            rule = f"an expression with the functions {', '.join(sorted(_FUNCTIONS))}"
            raise ParameterError("where", rule, shortened(text, 80), f"It has {name}.")


def _wrong(text: str, error: BaseException) -> ParameterError:
    reason = str(error).strip().split("\n")[0][:200].rstrip(".")
    advice = f"polars says: {reason}. {_HOW_TO_WRITE} Times compare with times: day >= DATE '2026-11-16'."
    return ParameterError("where", "an expression in SQL that polars knows", text, advice)
