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
_BINS = 10  # of numbers, each with about as many items
_FEWEST_ITEMS = 2  # that have a feature
_MOST_ITEMS = 0.25  # that have a feature, as a share of all
_MOST_PAIRS = 2e9  # of items with a feature in common: more would take longer than most data
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
        The columns to use, by default all: a list of names, or a mapping from names to kinds. "category" is
        one value, "list" several ("Action|Comedy", or a list), "words" free text, "number" a number, which is
        put into one of ten bins, and "flag" true or false. Without a kind, the values tell.
    query
        SQL that reads from a database: "select sku, brand, title from products".
    """
    table = _read_table(source, item, columns, query)
    encodings = {name: _encoding(table, name, kind) for name, kind in table.kinds.items()}
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
    kinds: Mapping[str, ColumnType] | None = None,
) -> ItemFeatures:
    """Read features of other items by the names and rules of the known ones; leave out unknown features.

    `kinds` are those of the columns of the table of items, as it is known.
    """
    if isinstance(source, ItemFeatures):
        for name, value in (("item", item), ("query", query)):
            if value is not None:
                raise ParameterError(name, "None for features that were read already", value)
        return source.named_like(known)
    try:
        table = _read_table(source, item, list(known.columns), query, kinds)
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
    place: npt.NDArray[np.int32]  # position of the item of each row
    columns: Mapping[str, pl.Series]  # texts, or lists of texts
    kinds: Mapping[str, FeatureType | None]  # of each column of features; None where the values decide
    table: ItemTable

    def refuse(self, column: str, odd: pl.Series, rule: str) -> None:
        """Raise an error with the first odd cell, if there is one."""
        if odd.any():
            row = int(odd.arg_true()[0])
            item = self.items[int(self.place[row])]
            cells = self.columns[column].slice(row, 1).to_list()
            raise DataError(
                f"{self.name}, column {column!r} must hold {rule}; got {cells[0]!r} for item {item!r}. "
                "Correct it, or fit with another kind for this column (columns, --feature-columns)."
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
    kinds: dict[str, FeatureType | None] = named or dict.fromkeys(rows.cells)
    cells = {name: joined_texts(rows.cells[name], f"{rows.name}, column {name!r}") for name in kinds}
    advice = 'Put several values into one cell, such as "Action|Comedy", or keep'
    for name, texts in cells.items():
        joined = texts.list.join("|", ignore_nulls=True) if texts.dtype == pl.List else texts
        check_that_rows_agree(f"{rows.name}, column {name!r}", rows, joined.replace("", None), advice)
    of_columns = known or {name: _TABLE_TYPES[kind] for name, kind in kinds.items() if kind}
    table = table_beside(rows, of_columns)
    return _FeatureTable(rows.name, rows.items, rows.place, cells, kinds, table)


def _entries(table: _FeatureTable, encodings: Mapping[str, Encoding]) -> pl.DataFrame:
    """Return a table of the position of an item and the name of a feature, each pair once."""
    parts = []
    for name, encoding in encodings.items():
        with reading(f"{table.name}, column {name!r}"):
            cells = pl.Series(_names_of_features(table, name, encoding), dtype=pl.List(pl.String))
        part = pl.DataFrame({"place": table.place, "name": cells}).explode("name").drop_nulls()
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
        (values[row], (row, known["place"].to_numpy())), shape=(len(names), len(table.items))
    )
    return ItemFeatures(
        table.items, matrix, names, values, dict(encodings), table.table.titles, table=table.table
    )


def _encoding(table: _FeatureTable, name: str, kind: FeatureType | None) -> Encoding:
    """Return how to read a column; without a kind, its values decide."""
    column = table.columns[name].drop_nulls()
    is_text = column.dtype == pl.String
    kind = kind or _type_of(column, f"{table.name}, column {name!r}")
    if kind == "list":
        return Encoding("list", separator=separator_of(column, SEPARATORS) or "," if is_text else None)
    if not is_text:
        rule = f"list for {table.name}, column {name!r}, whose cells are lists"
        raise ParameterError("columns", rule, kind)
    if kind != "number":
        return Encoding(kind)
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
    """Return texts as numbers, dates as years, and others as null."""
    days = text.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    return text.cast(pl.Float64, strict=False).fill_null(
        1970 + days.dt.epoch("s").cast(pl.Float64) / _SECONDS_PER_YEAR
    )


def _numbers_of(table: _FeatureTable, name: str) -> pl.Series:
    """Return the numbers of a column, null where cells are empty."""
    column = table.columns[name]
    numbers = _parsed(column)
    table.refuse(name, column.is_not_null() & ~numbers.is_finite().fill_null(False), "numbers")
    return numbers


def _names_of_features(table: _FeatureTable, name: str, encoding: Encoding) -> list[list[str]]:
    """Return the names of the features of each cell."""
    column = table.columns[name]
    kind = encoding.type
    if column.dtype == pl.List:
        table.refuse(name, column.is_not_null() & (kind != "list"), f"cells of the kind {kind}")
        return [_folded(cell or ()) for cell in column.to_list()]
    if kind == "number":
        numbers = _numbers_of(table, name)
        names = [encoding.bin_name(number) for number in range(len(encoding.edges) + 1)]
        return [[] if x is None else [names[bisect_right(encoding.edges, x)]] for x in numbers]
    if kind == "flag":
        flags = column.str.to_lowercase()
        table.refuse(name, ~flags.is_in([*TRUE, *FALSE]).fill_null(True), "true or false")
        return [["yes"] if flag else [] for flag in flags.is_in(TRUE)]
    if kind == "words":
        return [_words_and_pairs(words_of(text or "").split()) for text in column]
    if kind == "category":
        return [_folded([text or ""]) for text in column]
    return [_folded(parts_of_list(text or "", encoding.separator or ",")) for text in column]


def _folded(parts: Iterable[str]) -> list[str]:
    return [name for part in parts if part and (name := words_of(part))]


def _words_and_pairs(words: list[str]) -> list[str]:
    """Return the words of a text, and each pair of successive words: names often have several words."""
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]
