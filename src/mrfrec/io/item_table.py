"""Read item tables: find the type of every column, and one value for every item."""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.data.ids import Ids, Texts, first_titles
from mrfrec.data.item_table import COLUMN_TYPES, ColumnType, ItemTable, rows_at
from mrfrec.data.reading_options import ReadingOptions
from mrfrec.data.times import parsed_dates
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import FEATURE, reading
from mrfrec.io.columns import find_item_columns, name_list
from mrfrec.io.id_numbering import IdNumbering
from mrfrec.io.row_reader import RowReader
from mrfrec.io.sources import open_sources

_log = logging.getLogger("mrfrec")

SEPARATORS = ("|", ";", ",")
TRUE = ["true", "yes", "y", "t", "1", "1.0"]
FALSE = ["false", "no", "n", "f", "0", "0.0"]
# 007 is a code and no number. So is a whole number of 20 digits, since rounding could make two codes equal.
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_CODE = r"^-?[0-9]{20,}$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?$"

TableColumns = Mapping[str, ColumnType] | Sequence[str]


def read_item_table(
    source: object,
    item: str | None = None,
    *,
    columns: TableColumns | None = None,
    query: str | None = None,
) -> ItemTable:
    """Read a table of items, with a row for each item, whose columns filters and quotas can use.

    Empty cells are missing values. Several rows of one item must agree.

    Parameters
    ----------
    source
        A path, a URL or a data frame, as for `read_interactions`.
    item
        Column of the items, if its name does not tell.
    columns
        The columns to keep, by default all: a list of names, or a mapping from names to types. "text" is one
        value, "list" several ("red|blue", or a list), "number" a number, "flag" true or false, and "time" a
        date or a time, UTC if it names no zone. Without a type, a column keeps its own; in a text file, the
        values decide.
    query
        SQL that reads from a database: "select sku, brand, price, stock > 0 as in_stock from products".
    """
    types = named_types(columns, COLUMN_TYPES)
    rows = read_item_rows(source, item, query=query, needed=list(types or ()))
    wanted = types or dict.fromkeys(rows.cells)
    made = {name: _column(rows, name, type_) for name, type_ in wanted.items()}
    table = ItemTable(rows.items, pl.DataFrame(made), rows.titles)
    _log.info("%s: %s", rows.name, table)
    return table


def as_item_table(items: object) -> ItemTable:
    """Return an item table as it is, or read it."""
    return items if isinstance(items, ItemTable) else read_item_table(items)


class ItemRows(NamedTuple):
    """Rows of an item table as they were read."""

    name: str
    items: Ids
    # The index of the item of each row.
    item_index: npt.NDArray[np.int32]
    # Column → its batches.
    cells: Mapping[str, list[pl.Series]]
    # Whether all cells are text because a text file has no types.
    is_text: bool
    titles: Texts | None


def read_item_rows(
    source: object,
    item: str | None,
    *,
    title: str | None = None,
    query: str | None = None,
    needed: Sequence[str] = (),
    beside: RowReader | None = None,
    ids_are_text: bool = False,
) -> ItemRows:
    """Read all columns of an item table; raise if a needed column is missing.

    `beside` is the reader of the events for which the table is read: it refuses or skips bad rows and counts
    them, and `item` is then the name of a column of the events, which the item table need not have.
    """
    sources = open_sources(source, ReadingOptions.of(query=query), what="the table of items")
    first = sources[0]
    if beside is not None and item not in first.columns:
        item = None
    of_ids, title = find_item_columns(first, item, title)
    others = [column for column in first.columns if column != of_ids]
    for column in needed:
        if column not in others:
            raise ParameterError("columns", f"columns of {first.name}: {name_list(others)}", column)
    roles = {"item": of_ids, **{FEATURE + name: name for name in others}}
    if beside is not None and title is not None:
        # Titles that were asked for must be text.
        roles["title"] = title
    rows = RowReader() if beside is None else beside
    numbering = IdNumbering("item", is_text=ids_are_text)
    codes: list[npt.NDArray[np.int32]] = []
    cells: dict[str, list[pl.Series]] = {name: [] for name in others}
    for each in sources:
        for name in (of_ids, *others):
            if name not in each.columns:
                raise DataError(f"{each.name} has no column {name!r}, which other files have.")
        for batch in rows.good_rows(each, roles, prefix="" if beside is None else "items: "):
            codes.append(numbering.encode(batch["item"], each, of_ids))
            for column, batches in cells.items():
                batches.append(batch[FEATURE + column])
    index = np.concatenate([np.empty(0, np.int32), *codes])
    if not len(index):
        raise DataError(f"{first.name} has no items.")
    rows.number(numbering, index)
    titles = None
    if title is not None:
        texts = joined_texts(cells[title], f"{first.name}, column {title!r}")
        if texts.dtype != pl.List:
            titles = first_titles(len(numbering.ids), zip(index.tolist(), texts, strict=True))
    return ItemRows(first.name, numbering.ids, index, cells, first.is_text, titles)


def table_beside(rows: ItemRows, types: Mapping[str, ColumnType | None]) -> ItemTable:
    """Return the item table of rows that were read for features or titles.

    A column that cannot be kept, for instance because the rows of an item differ, is left out; the log says
    why.
    """
    made = {}
    for name in rows.cells:
        try:
            made[name] = _column(rows, name, types.get(name))
        except DataError as error:
            _log.info("a column is not kept for filters: %s", error)
    return ItemTable(rows.items, pl.DataFrame(made), rows.titles)


def named_types(columns: Any, types: Sequence[str]) -> dict[str, Any] | None:
    """Return the named columns with their types, which may be None; return None if no column is named."""
    if columns is None:
        return None
    are_names = isinstance(columns, Iterable) and not isinstance(columns, str)
    if not are_names or not len(columns) or not all(isinstance(column, str) for column in columns):
        rule = "a list of columns, or a mapping from columns to types"
        raise ParameterError("columns", rule, columns)
    named: dict[str, Any] = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    for column, type_ in named.items():
        if type_ is not None and type_ not in types:
            raise ParameterError("columns", f"of the types {', '.join(types)}", f"{column}={type_}")
    return named


# ── typed columns ─────────────────────────────────────────────────────────────────────────────────


def _column(rows: ItemRows, name: str, type_: ColumnType | None) -> pl.Series:
    """Return the value of each item; refuse rows of one item that differ."""
    where = f"{rows.name}, column {name!r}"
    with reading(where):
        cells = _typed(_joined(rows.cells[name], where).alias(""), type_, rows.is_text, where)
    check_that_rows_agree(where, rows, cells, "Keep")
    known = np.flatnonzero(cells.is_not_null().to_numpy())[::-1]
    first = np.full(len(rows.items), -1)
    # The first row with a value decides.
    first[rows.item_index[known]] = known
    return rows_at(cells.to_frame(), first).to_series()


def check_that_rows_agree(where: str, rows: ItemRows, cells: pl.Series, advice: str) -> None:
    """Refuse an item whose rows differ, since no row is better than another."""
    if len(rows.item_index) == len(rows.items):
        return
    different = pl.DataFrame({"item": rows.item_index, "cell": cells}).drop_nulls("cell").unique()["item"]
    if (repeated := different.filter(different.is_duplicated())).len():
        item = rows.items[int(repeated.min())]  # type: ignore[arg-type]
        raise DataError(
            f"{where} must have one value for each item; the rows of {item!r} differ. "
            f"{advice} one row of each item: drop_duplicates of pandas, unique of polars."
        )


def _joined(batches: list[pl.Series], where: str) -> pl.Series:
    """Join the batches of a column, as numbers or texts if their types differ."""
    parts = [part for part in batches if part.dtype != pl.Null] or [part.cast(pl.String) for part in batches]
    types = {part.dtype for part in parts}
    if len(types) > 1 and all(type_.is_numeric() for type_ in types):
        parts = [part.cast(pl.Float64) for part in parts]
    elif len(types) > 1:
        return joined_texts(batches, where)
    return pl.concat([part if part.dtype != pl.Null else part.cast(parts[0].dtype) for part in batches])


def _typed(cells: pl.Series, type_: ColumnType | None, is_text: bool, where: str) -> pl.Series:
    if cells.dtype == pl.String:
        cells = pl.select(pl.when(cells.str.strip_chars() != "").then(cells)).to_series()
    type_ = type_ or type_of_cells(cells, is_text, where)
    if type_ in ("text", "list"):
        cells = as_texts(cells, where)
        if type_ == "text" and cells.dtype == pl.List:
            raise DataError(f"{where} must hold a text in each cell; it holds lists.")
        cells = _lists(cells) if type_ == "list" else cells
        parts = (
            cells.explode(empty_as_null=False, keep_nulls=False) if type_ == "list" else cells.drop_nulls()
        )
        if (odd := parts.filter(parts.str.contains("\0", literal=True))).len():
            raise DataError(f"{where} must hold texts without NUL characters; got {odd[0]!r}.")
        return cells
    odd = cells
    if type_ == "number":
        cells = _numbers(cells)
    elif type_ == "flag":
        cells = _flags(cells, where)
    elif cells.dtype == pl.String:
        cells = parsed_dates(cells.str.strip_chars())[0]
    if (wrong := cells.is_null() & odd.is_not_null()).any():
        got = odd.filter(wrong)[0]
        raise DataError(f"{where} must hold a {type_} in each cell; got {got!r}.")
    if type_ == "time":
        if not cells.dtype.is_temporal():
            raise DataError(f"{where} must hold dates or times, such as 2026-11-16.")
        if not cells.drop_nulls().dt.year().is_between(1, 9999).all():
            raise DataError(f"{where} must hold times in the years 1 to 9999.")
        cells = cells.cast(pl.Datetime("us"))
    return cells


def _numbers(cells: pl.Series) -> pl.Series:
    """Return numbers, as int64 if all are whole and fit; null for other cells."""
    if cells.dtype == pl.String:
        cells = cells.str.strip_chars()
        whole = cells.cast(pl.Int64, strict=False)
        cells = whole if whole.null_count() == cells.null_count() else cells.cast(pl.Float64, strict=False)
    if cells.dtype.is_integer():
        whole = cells.cast(pl.Int64, strict=False)
        if whole.null_count() == cells.null_count():
            return whole
    if not (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
        return pl.Series([None] * len(cells), dtype=pl.Float64)
    numbers = cells.cast(pl.Float64)
    return pl.select(pl.when(numbers.is_finite()).then(numbers)).to_series()


def _flags(cells: pl.Series, where: str) -> pl.Series:
    if cells.dtype == pl.Boolean:
        return cells
    texts = as_texts(cells, where)
    if texts.dtype == pl.List:
        return pl.Series([None] * len(cells), dtype=pl.Boolean)
    texts = texts.str.strip_chars().str.to_lowercase()
    true, false = texts.is_in(TRUE), texts.is_in(FALSE)
    return pl.select(pl.when(true).then(True).when(false).then(False)).to_series()


def type_of_cells(cells: pl.Series, is_text: bool, where: str) -> ColumnType:
    """Return the type of a column: that of its cells or, for texts, what all of them look like.

    Texts of a file without types (`is_text`) may be flags and numbers; any texts may be times or lists.
    """
    type_ = cells.dtype
    if type_ == pl.Boolean:
        return "flag"
    if type_.is_numeric():
        return "number"
    if type_ in (pl.Date, pl.Datetime):
        return "time"
    if type_ in (pl.List, pl.Array):
        return "list"
    if type_ != pl.String:
        raise DataError(f"{where} must hold texts, numbers, flags, times or lists; it is {type_}.")
    texts = cells.drop_nulls().str.strip_chars()
    if not len(texts):
        return "text"
    if is_text and texts.str.to_lowercase().is_in([*TRUE[:2], *FALSE[:2]]).all():
        return "flag"
    if is_text and texts.str.contains(_NUMBER).all() and not texts.str.contains(_CODE).any():
        return "number"
    if texts.str.contains(_DATE).all() and not parsed_dates(texts)[0].null_count():
        return "time"
    is_list = texts.str.contains(r"^\[.*\]$").all() or separator_of(texts, SEPARATORS[:2]) is not None
    return "list" if is_list else "text"


def _lists(cells: pl.Series) -> pl.Series:
    """Return lists of distinct texts in ascending order."""
    if cells.dtype != pl.List:
        mark = separator_of(cells.drop_nulls(), SEPARATORS) or "|"
        parts = [None if text is None else parts_of_list(text, mark) for text in cells]
        lists = [None if each is None else [part.strip() for part in each] for each in parts]
        cells = pl.Series(lists, dtype=pl.List(pl.String))
    # Empty parts count for nothing, as in texts.
    filled = pl.element().filter(pl.element().str.strip_chars() != "")
    return cells.list.eval(filled).list.unique().list.sort()


# ── cells as text ─────────────────────────────────────────────────────────────────────────────────


def joined_texts(batches: list[pl.Series], where: str) -> pl.Series:
    """Join the batches of a column as texts, or as lists of texts if any cell is a list."""
    with reading(where):
        parts = [as_texts(batch, where) for batch in batches]
        if any(part.dtype == pl.List for part in parts):
            parts = [
                part if part.dtype == pl.List else pl.select(pl.concat_list(part)).to_series()
                for part in parts
            ]
        return pl.concat(parts)


def as_texts(cells: pl.Series, where: str) -> pl.Series:
    """Return cells as texts or lists of texts; 5.0 becomes 5, since missing cells make integers floats."""
    if cells.dtype in (pl.List, pl.Array):
        return cells.cast(pl.List(pl.String))
    if cells.dtype.is_nested():
        raise DataError(f"{where} must hold text, numbers, times or lists; it is {cells.dtype}.")
    is_float = cells.dtype.is_float()
    texts = (
        cells.cast(pl.Float64).cast(pl.String).str.strip_suffix(".0") if is_float else cells.cast(pl.String)
    )
    return pl.select(pl.when(texts.str.strip_chars() != "").then(texts)).to_series()


def share_of_true(flags: pl.Series) -> float:
    """Return the share of true values."""
    return float(flags.sum()) / max(len(flags), 1)


def separator_of(text: pl.Series, marks: Sequence[str]) -> str | None:
    """Return the separator of lists: many cells have it, and parts repeat, unlike parts of sentences."""
    for mark in marks:
        if share_of_true(text.str.contains(mark, literal=True)) >= 0.1:
            parts = text.str.split(mark).explode().str.strip_chars()
            if len(parts) >= 5 * parts.n_unique():
                return mark
    return None


def parts_of_list(text: str, mark: str) -> list[str]:
    """Return the parts of a list in a text: a|b, or in brackets, as JSON or not."""
    if not re.fullmatch(r"\[.*\]", text, re.DOTALL):
        return text.split(mark)
    with suppress(ValueError, RecursionError):
        return [str(part) for part in json.loads(text) if part is not None]
    return [part.strip("\"' ") for part in text[1:-1].split(mark)]
