"""Expressions in SQL on the columns of the table of items, by polars."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import check_threads
from mrfrec.data.item_table import Column, ItemTable
from mrfrec.errors import ParameterError
from mrfrec.io.batches import POLARS_ERRORS

_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""


def mask_of_expression(text: str, table: ItemTable) -> npt.NDArray[np.bool_]:
    """Return for which items an expression such as "price < 50 AND category = 'shoes'" is true.

    It sees the columns of the table and nothing else: a query inside it is refused.
    """
    check_threads("a filter in SQL")
    try:
        if re.search(r"\(\s*(select|with|from|values|table)\b", re.sub(_QUOTED, "''", text), re.IGNORECASE):
            raise ParameterError("where", "an expression on columns, without a query inside", text)
        expression = pl.sql_expr(text)
        names = list(dict.fromkeys(expression.meta.root_names()))
    except (*POLARS_ERRORS, TypeError, ValueError) as error:
        if isinstance(error, ParameterError):
            raise
        raise _wrong(text, error) from None
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
