"""Read features of items from a table: categories, lists, words, numbers and flags."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import warn
from mrfrec.data.catalogue import words_of
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.item_table import (
    FEATURE_TYPES,
    ColumnType,
    Encoding,
    FeatureType,
    ItemFeatures,
    ItemTable,
    rarity,
)
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import reading
from mrfrec.io.item_table import (
    FALSE,
    SEPARATORS,
    TRUE,
    check_that_rows_agree,
    joined_texts,
    named_types,
    parts_of_list,
    read_item_rows,
    separator_of,
    share_of_true,
    table_beside,
    type_of_cells,
)

_log = logging.getLogger("mrfrec")

_SECONDS_PER_YEAR = 31_556_952  # on average
# Numbers go into ten bins with about as many items.
_BINS = 10
# A feature counts if at least two items, and at most a quarter of all items, have it.
_FEWEST_ITEMS = 2
_MOST_ITEMS = 0.25
# More pairs of items with a common feature would take longer to fit than most data.
_MOST_PAIRS = 2e9
_TABLE_TYPES: dict[FeatureType, ColumnType] = {
    "category": "text", "words": "text", "list": "list", "number": "number", "flag": "flag",
}  # fmt: skip

FeatureColumns = Mapping[str, FeatureType] | Sequence[str]


def read_item_features(
    source: object,
    item: str | None = None,
    *,
    columns: FeatureColumns | None = None,
    query: str | None = None,
) -> ItemFeatures:
    """Read a table of items and their features, with a row for each item.

    Features of only one item, or of more than a quarter of the items, tell nothing and are left out. Empty
    cells are no features. Several rows of one item must agree.

    Parameters
    ----------
    source
        A path, a URL or a data frame, as for `read_interactions`.
    item
        Column of the items, if its name does not tell.
    columns
        The columns to use, by default all: a list of names, or a mapping from names to types. "category" is
        one value, "list" several ("Action|Comedy", or a list), "words" free text, "number" a number, which is
        put into one of ten bins, and "flag" true or false. Without a type, the values decide.
    query
        SQL that reads from a database: "select sku, brand, title from products".
    """
    table = _read_table(source, item, columns, query)
    encodings = {name: _encoding(table, name, type_) for name, type_ in table.types.items()}
    entries = _entries(table, encodings)
    counts = entries.group_by("name").len("items").sort("items", "name")
    most = max(_MOST_ITEMS * len(table.items), _FEWEST_ITEMS)
    kept = counts.filter((pl.col("items") >= _FEWEST_ITEMS) & (pl.col("items") <= most))
    kept = kept.filter((pl.col("items").cast(pl.Float64) ** 2).cum_sum() <= _MOST_PAIRS).sort("name")
    if not len(kept):
        rule = f"{_FEWEST_ITEMS} items or more, and at most a quarter of all, have in common"
        raise DataError(f"{table.name} has no feature that {rule}.")
    names = Texts.of(kept["name"])
    values = rarity(kept["items"].to_numpy().astype(np.int64), len(table.items))
    features = _features(table, entries, names, values, encodings)
    _log.info("%s: %s, %s entries", table.name, features, f"{features.matrix.nnz:,}")
    return features


def read_more_features(
    source: object,
    known: ItemFeatures,
    item: str | None = None,
    *,
    query: str | None = None,
    types: Mapping[str, ColumnType] | None = None,
) -> ItemFeatures:
    """Read features of more items as the known ones were read; leave out unknown features.

    `types` has the types of the columns of the item table that the model keeps.
    """
    if isinstance(source, ItemFeatures):
        for name, value in (("item", item), ("query", query)):
            if value is not None:
                raise ParameterError(name, "None for features that were read already", value)
        return source.named_like(known)
    try:
        table = _read_table(source, item, list(known.columns), query, types)
    except ParameterError as error:
        raise DataError(f"{error} The features of the fit have this column.") from None
    entries = _entries(table, known.columns)
    for name, encoding in known.columns.items():
        cells = table.columns[name].drop_nulls().to_list()
        own = [each for each in known.names if each.startswith(f"{name}: ")]
        is_known = not own or entries["name"].is_in(own).any()
        if encoding.type in ("category", "list") and cells and not is_known:
            some = f"{len(cells):,} cells, such as {cells[0]!r}"
            warn(f"{table.name}, column {name!r}: the fit knows no feature of its {some}")
    return _features(table, entries, known.names, known.values, known.columns)


class _FeatureTable(NamedTuple):
    """A table of items."""

    name: str
    items: Ids
    # The index of the item of each row.
    item_index: npt.NDArray[np.int32]
    # Texts, or lists of texts.
    columns: Mapping[str, pl.Series]
    # The type of each column of features; None where the values decide.
    types: Mapping[str, FeatureType | None]
    table: ItemTable

    def refuse(self, column: str, odd: pl.Series, rule: str) -> None:
        """Raise an error with the first odd cell, if there is one."""
        if odd.any():
            row = int(odd.arg_true()[0])
            item = self.items[int(self.item_index[row])]
            cells = self.columns[column].slice(row, 1).to_list()
            raise DataError(
                f"{self.name}, column {column!r} must hold {rule}; got {cells[0]!r} for item {item!r}. "
                "Correct it, or fit with another type for this column (columns, --feature-columns)."
            )


def _read_table(
    source: object,
    item: str | None,
    columns: FeatureColumns | None,
    query: str | None,
    known: Mapping[str, ColumnType] | None = None,
) -> _FeatureTable:
    named = named_types(columns, FEATURE_TYPES)
    rows = read_item_rows(source, item, query=query, needed=list(named or ()))
    types: dict[str, FeatureType | None] = named or dict.fromkeys(rows.cells)
    cells = {name: joined_texts(rows.cells[name], f"{rows.name}, column {name!r}") for name in types}
    advice = 'Put several values into one cell, such as "Action|Comedy", or keep'
    for name, texts in cells.items():
        joined = texts.list.join("|", ignore_nulls=True) if texts.dtype == pl.List else texts
        check_that_rows_agree(f"{rows.name}, column {name!r}", rows, joined.replace("", None), advice)
    of_columns = known or {name: _TABLE_TYPES[type_] for name, type_ in types.items() if type_}
    table = table_beside(rows, of_columns)
    return _FeatureTable(rows.name, rows.items, rows.item_index, cells, types, table)


def _entries(table: _FeatureTable, encodings: Mapping[str, Encoding]) -> pl.DataFrame:
    """Return a frame with the index of an item and the name of a feature, without duplicates."""
    parts = []
    for name, encoding in encodings.items():
        with reading(f"{table.name}, column {name!r}"):
            cells = pl.Series(_names_of_features(table, name, encoding), dtype=pl.List(pl.String))
        part = pl.DataFrame({"item": table.item_index, "name": cells}).explode("name").drop_nulls()
        parts.append(part.with_columns(name=pl.lit(f"{name}: ") + pl.col("name")))
    return pl.concat(parts).unique(maintain_order=True)


def _features(
    table: _FeatureTable,
    entries: pl.DataFrame,
    names: Texts,
    values: npt.NDArray[np.float64],
    encodings: Mapping[str, Encoding],
) -> ItemFeatures:
    number = pl.DataFrame({"name": list(names), "number": np.arange(len(names))})
    known = entries.join(number, on="name", how="inner", maintain_order="left")
    row = known["number"].to_numpy()
    matrix = sp.csr_array(
        (values[row], (row, known["item"].to_numpy())), shape=(len(names), len(table.items))
    )
    return ItemFeatures(
        table.items, matrix, names, values, dict(encodings), table.table.titles, table=table.table
    )


def _encoding(table: _FeatureTable, name: str, type_: FeatureType | None) -> Encoding:
    """Return how to read a column; without a type, its values decide."""
    column = table.columns[name].drop_nulls()
    is_text = column.dtype == pl.String
    type_ = type_ or _type_of(column, f"{table.name}, column {name!r}")
    if type_ == "list":
        return Encoding("list", separator=separator_of(column, SEPARATORS) or "," if is_text else None)
    if not is_text:
        rule = f"list for {table.name}, column {name!r}, whose cells are lists"
        raise ParameterError("columns", rule, type_)
    if type_ != "number":
        return Encoding(type_)
    numbers = _numbers_of(table, name).drop_nulls().to_numpy()
    distinct = np.unique(numbers)
    if len(distinct) <= _BINS:
        edges = (distinct[1:] + distinct[:-1]) / 2
    else:
        edges = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS))
    return Encoding("number", edges=tuple(edges.tolist()))


def _type_of(column: pl.Series, where: str) -> FeatureType:
    """Return how to read a column: by its type in an item table; texts are lists, words or categories."""
    of_cells = type_of_cells(column, True, where)
    if of_cells == "time":
        return "number"
    if of_cells != "text":
        return of_cells
    if separator_of(column, SEPARATORS[2:]) is not None:
        return "list"
    several_words = share_of_true(column.str.strip_chars().str.contains(r"\s")) >= 0.5
    return "words" if several_words and 2 * column.n_unique() > len(column) else "category"


def _parsed(text: pl.Series) -> pl.Series:
    """Return numbers, years of dates, and null for other texts."""
    days = text.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    return text.cast(pl.Float64, strict=False).fill_null(
        1970 + days.dt.epoch("s").cast(pl.Float64) / _SECONDS_PER_YEAR
    )


def _numbers_of(table: _FeatureTable, name: str) -> pl.Series:
    """Return the numbers of a column, null for empty cells."""
    column = table.columns[name]
    numbers = _parsed(column)
    table.refuse(name, column.is_not_null() & ~numbers.is_finite().fill_null(False), "numbers")
    return numbers


def _names_of_features(table: _FeatureTable, name: str, encoding: Encoding) -> list[list[str]]:
    """Return the names of the features in each cell."""
    column = table.columns[name]
    type_ = encoding.type
    if column.dtype == pl.List:
        table.refuse(name, column.is_not_null() & (type_ != "list"), f"cells of the type {type_}")
        return [_folded(cell or ()) for cell in column.to_list()]
    if type_ == "number":
        numbers = _numbers_of(table, name)
        names = [encoding.bin_name(number) for number in range(len(encoding.edges) + 1)]
        return [[] if x is None else [names[bisect_right(encoding.edges, x)]] for x in numbers]
    if type_ == "flag":
        flags = column.str.to_lowercase()
        table.refuse(name, ~flags.is_in([*TRUE, *FALSE]).fill_null(True), "true or false")
        return [["yes"] if flag else [] for flag in flags.is_in(TRUE)]
    if type_ == "words":
        return [_words_and_pairs(words_of(text or "").split()) for text in column]
    if type_ == "category":
        return [_folded([text or ""]) for text in column]
    return [_folded(parts_of_list(text or "", encoding.separator or ",")) for text in column]


def _folded(parts: Iterable[str]) -> list[str]:
    return [name for part in parts if part and (name := words_of(part))]


def _words_and_pairs(words: list[str]) -> list[str]:
    """Return the words of a text and its pairs of successive words, since names often have two words."""
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]
