"""Expressions in SQL on the columns of the table of items, by polars."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import check_threads, shortened
from mrfrec.data.item_table import Column, ItemTable
from mrfrec.errors import ParameterError
from mrfrec.io.batches import POLARS_ERRORS

_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_QUERY = r"(?i)\bselect\b|\(\s*(with|from|values|table)\b"
_MOST_WORDS = 500  # names and signs: polars takes seconds for thousands, and ends the process for more
_BEFORE_BRACKETS = {
    "and",
    "or",
    "not",
    "in",
    "between",
    "like",
    "ilike",
    "is",
    "when",
    "then",
    "else",
    "over",
    "by",
}
_FUNCTIONS = {
    "array_contains", "array_length", "lower", "upper", "length", "starts_with", "ends_with", "regexp_like",
    "left", "right", "substr", "trim", "ltrim", "rtrim", "abs", "round", "floor", "ceil", "sqrt", "ln",
    "greatest", "least", "coalesce", "nullif", "cast", "try_cast", "extract", "date", "date_part", "strftime",
    "avg", "min", "max", "median", "sum", "count",
}  # fmt: skip
"""Those whose values are not longer than what they are given: rpad may fill the memory."""


def mask_of_expression(text: str, table: ItemTable) -> npt.NDArray[np.bool_]:
    """Return for which items an expression such as "price < 50 AND category = 'shoes'" is true.

    It sees the columns of the table and nothing else: a query inside it is refused.
    """
    expression, names = _parsed(text)
    columns = {name: _series(table.column(name, "where")) for name in names}
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


def columns_of_expression(text: str) -> list[str]:
    """Return the names of the columns in an expression."""
    return _parsed(text)[1]


def _parsed(text: str) -> tuple[pl.Expr, list[str]]:
    check_threads("a filter in SQL")
    _check_form(text)
    try:
        expression = pl.sql_expr(text)
        return expression, list(dict.fromkeys(expression.meta.root_names()))
    except (*POLARS_ERRORS, TypeError, ValueError) as error:
        raise _wrong(text, error) from None


def _check_form(text: str) -> None:
    """Refuse what polars would not answer in a bounded time and memory."""
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
    advice = f"polars says: {reason}. Times compare with times: day >= DATE '2026-11-16'."
    return ParameterError("where", "an expression in SQL that polars knows", text, advice)


def _series(column: Column) -> pl.Series:
    missing = pl.Series(column.missing)
    values: Any = pl.Series(column.values)
    if column.kind == "time":
        values = values.cast(pl.Datetime("us"))
    if column.texts is not None:
        texts = pl.Series(list(column.texts), dtype=pl.String)
        values = (
            texts.gather(pl.Series(np.maximum(column.values, 0))) if len(texts) else values.cast(pl.String)
        )
    if column.ptr is not None:
        row = np.repeat(np.arange(len(column)), np.diff(column.ptr))
        lists = pl.DataFrame({"row": row, "part": values}).group_by("row", maintain_order=True).agg("part")
        every = pl.DataFrame({"row": np.arange(len(column))}).join(
            lists, on="row", how="left", maintain_order="left"
        )
        values = every.select(pl.col("part").fill_null(pl.lit([], pl.List(pl.String)))).to_series()
    return pl.select(pl.when(~missing).then(values)).to_series()
