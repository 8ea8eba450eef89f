"""Read features of items from a table: categories, lists, words, numbers and flags."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.data.features import KINDS, Encoding, ItemFeatures, Kind, rarity
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading import ReadingOptions
from mrfrec.data.search import words_of
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import BLANK, FAULT, Source, reading
from mrfrec.io.columns import find_item, find_title, name_list
from mrfrec.io.sources import open_sources

_log = logging.getLogger("mrfrec")

_SEPARATORS = ("|", ";", ",")
_YEAR = 31_556_952  # seconds, on average
_BINS = 10  # of numbers, with about as many items each
_FEWEST, _MOST = 2, 0.25  # items that have a feature: at least so many, at most this share
_PAIRS = 2e9  # of items with a feature in common: more would take longer than most data
_TRUE, _FALSE = ["true", "yes", "y", "t", "1", "1.0"], ["false", "no", "n", "f", "0", "0.0"]
_IDS = "\0"  # name of the column of ids, which no other has

FeatureColumns = Mapping[str, Kind] | Sequence[str]


def read_item_features(
    source: object,
    item: str | None = None,
    *,
    columns: FeatureColumns | None = None,
    query: str | None = None,
) -> ItemFeatures:
    """Read a table of items and their features, with a row for each item.

    Features that only one item has, or more than a quarter of the items, tell nothing and are left out.
    Several rows of one item add up. Empty cells are no features.

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
    table = _table(source, item, columns, query)
    encodings = {
        name: _encoding(table.columns[name], kind, f"{table.name}, column {name!r}")
        for name, kind in table.kinds.items()
    }
    entries = _entries(table, encodings)
    counts = entries.group_by("name").len("items").sort("items", "name")
    most = max(_MOST * len(table.ids), _FEWEST)
    kept = counts.filter((pl.col("items") >= _FEWEST) & (pl.col("items") <= most))
    kept = kept.filter((pl.col("items").cast(pl.Float64) ** 2).cum_sum() <= _PAIRS).sort("name")
    if not len(kept):
        rule = f"{_FEWEST} items or more, and at most a quarter of all, have in common"
        raise DataError(f"{table.name} has no feature that {rule}.")
    names = Texts.of(kept["name"])
    values = rarity(kept["items"].to_numpy().astype(np.int64), len(table.ids))
    found = _features(table, entries, names, values, encodings)
    _log.info("%s: %s, %s entries", table.name, found, f"{found.matrix.nnz:,}")
    return found


def read_more_features(
    source: object, known: ItemFeatures, item: str | None = None, *, query: str | None = None
) -> ItemFeatures:
    """Read features of other items, by the names and rules of those that are known; others are left out."""
    try:
        table = _table(source, item, list(known.columns), query)
    except ParameterError as error:
        raise DataError(f"{error} The features of the fit have this column.") from None
    return _features(table, _entries(table, known.columns), known.names, known.values, known.columns)


def with_item_features(
    data: Interactions, item_features: object, feature_columns: FeatureColumns | None = None
) -> Interactions:
    """Return interactions with features of their items, which a fit of `MRF` then learns from.

    Items of the table that nobody has used come after the others. The parameters are those of `fit`.
    """
    if isinstance(item_features, ItemFeatures):
        if feature_columns is not None:
            rule = "None for features that were read already"
            raise ParameterError("feature_columns", rule, feature_columns)
        return data.with_features(item_features)
    return data.with_features(read_item_features(item_features, columns=feature_columns))


class _FeatureTable(NamedTuple):
    """A table of items."""

    name: str
    ids: Ids
    place: pl.Series  # of the item of each row among the ids
    columns: pl.DataFrame
    kinds: Mapping[str, Kind | None]  # as asked for, of each column of features
    titles: Texts | None


def _table(
    source: object, item: str | None, columns: FeatureColumns | None, query: str | None
) -> _FeatureTable:
    kinds = _kinds(columns)
    sources = open_sources(source, ReadingOptions(query=query))
    first = sources[0]
    of_ids = find_item(first, item)
    others = [column for column in first.columns if column != of_ids]
    for column in kinds or ():
        if column not in others:
            raise ParameterError("feature_columns", f"columns of {first.name}: {name_list(others)}", column)
    if not others:
        raise DataError(f"{first.name} has no column of features beside {of_ids!r}.")
    kinds = kinds or dict.fromkeys(others)
    of_titles = find_title(first, of_ids)
    wanted = [*kinds, *([of_titles] if of_titles and of_titles not in kinds else [])]
    rows = pl.concat([_rows(each, of_ids, wanted) for each in sources], how="vertical_relaxed")
    ids = _ids(rows[_IDS], first)
    distinct = ids.unique().sort()
    place = pl.DataFrame({"id": ids}).join(
        pl.DataFrame({"id": distinct, "place": np.arange(len(distinct), dtype=np.int32)}),
        on="id", how="left", maintain_order="left",
    )["place"]  # fmt: skip
    known = Ids.of(distinct.to_list() if distinct.dtype == pl.String else distinct.to_numpy(), "item")
    titles = None if of_titles is None else _titles(rows[of_titles], place, len(known))
    return _FeatureTable(first.name, known, place, rows, kinds, titles)


def _kinds(columns: FeatureColumns | None) -> dict[str, Kind | None] | None:
    if columns is None:
        return None
    rule = "a list of columns, or a mapping from columns to kinds"
    names = (
        isinstance(columns, Iterable)
        and not isinstance(columns, str)
        and all(isinstance(column, str) for column in columns)
    )
    if not names or not columns:
        raise ParameterError("feature_columns", rule, columns)
    kinds: dict[str, Any] = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    for column, kind in kinds.items():
        if kind is not None and kind not in KINDS:
            raise ParameterError("feature_columns", f"of the kinds {', '.join(KINDS)}", f"{column}={kind}")
    return kinds


def _rows(source: Source, of_ids: str, wanted: list[str]) -> pl.DataFrame:
    """Return the column of ids under a name of its own, and the others under theirs; no empty texts."""
    for name in (of_ids, *wanted):
        if name not in source.columns:
            raise DataError(f"{source.name} has no column {name!r}, which other files have.")
    roles = {"item": of_ids, **{f"column {name}": name for name in wanted}}
    batches, done = [], 0
    for batch in source.batches(roles, {}):
        if FAULT in batch.columns:
            bad = (batch[FAULT] != BLANK).fill_null(False)
            if bad.any():
                row = int(bad.arg_true()[0])
                raise DataError(f"{source.name}: row {done + row + 1:,}: {batch[FAULT][row]}.")
            batch = batch.filter(batch[FAULT].is_null())
        done += len(batch)
        batches.append(batch.select(*roles))
    if not batches:
        raise DataError(f"{source.name} is empty.")
    rows = pl.concat(batches, how="vertical_relaxed")
    rows = rows.with_columns(pl.when(pl.col(pl.String).str.strip_chars() != "").then(pl.col(pl.String)))
    return rows.rename({"item": _IDS, **{f"column {name}": name for name in wanted}})


def _ids(column: pl.Series, source: Source) -> pl.Series:
    """Return ids as they are; those of text files as integers if all of them are."""
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(f"{source.name}: item ids must be integers or strings; got {column.dtype}.")
    missing = column.fill_nan(None).is_null() if column.dtype.is_float() else column.is_null()
    if missing.any():
        row = int(missing.arg_true()[0]) + 1
        raise DataError(f"{source.name}: row {row:,} has no item id. Give one, or drop the row.")
    if column.dtype.is_float():
        if (column != column.round()).any():
            odd = column.filter(column != column.round())[0]
            raise DataError(f"{source.name}: item ids must be integers or strings; got {odd}.")
        return column.cast(pl.Int64)
    texts = column.cast(pl.String)
    if column.dtype.is_integer():
        return column
    whole = source.is_text and texts.str.contains(r"^(0|-?[1-9][0-9]{0,17})$").all()
    return texts.cast(pl.Int64) if whole else texts


def _titles(column: pl.Series, place: pl.Series, count: int) -> Texts | None:
    """Return the title of each item, of several the first in alphabetical order."""
    best = [""] * count
    for at, title in zip(place.to_list(), column.cast(pl.String).to_list(), strict=True):
        best[at] = min(best[at] or title or "", title or best[at])
    return Texts.of(best) if any(best) else None


def _entries(table: _FeatureTable, encodings: Mapping[str, Encoding]) -> pl.DataFrame:
    """Return the place of an item and the name of a feature, each pair once."""
    parts = []
    for name, encoding in encodings.items():
        where = f"{table.name}, column {name!r}"
        with reading(where):
            cells = pl.Series(list(_cells(table.columns[name], encoding, where)), dtype=pl.List(pl.String))
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
    row, column = known["number"].to_numpy(), known["place"].to_numpy()
    matrix = sp.csr_array((values[row], (row, column)), shape=(len(names), len(table.ids)))
    return ItemFeatures(table.ids, matrix, names, values, dict(encodings), table.titles)


def _encoding(column: pl.Series, kind: Kind | None, where: str) -> Encoding:
    """Return how to read a column; without a kind, its values tell."""
    with reading(where):
        values = column.drop_nulls()
        text = None if values.dtype == pl.List else values.cast(pl.String)
        kind = kind or _told(values, text)
        if kind == "list":
            return Encoding("list", separator=None if text is None else _separator(text) or ",")
        if text is None:
            raise ParameterError("feature_columns", f"list for {where}, whose cells are lists", kind)
        if kind != "number":
            return Encoding(kind)
        numbers = _numbers(values, where)
    distinct = np.unique(numbers)
    if len(distinct) <= _BINS:
        edges = (distinct[1:] + distinct[:-1]) / 2
    else:
        edges = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS))
    return Encoding("number", edges=tuple(edges.tolist()))


def _told(values: pl.Series, text: pl.Series | None) -> Kind:
    if text is None or _share(text.str.contains(r"^\[.*\]$")) == 1:
        return "list"
    if values.dtype == pl.Boolean or text.str.to_lowercase().is_in([*_TRUE[:4], *_FALSE[:4]]).all():
        return "flag"
    numbers = _parsed(text)
    if values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime) or numbers.is_not_null().all():
        return "number"
    if _separator(text) is not None:
        return "list"
    several_words = _share(text.str.strip_chars().str.contains(r"\s")) >= 0.5
    return "words" if several_words and 2 * text.n_unique() > len(text) else "category"


def _share(flags: pl.Series) -> float:
    return float(flags.sum()) / max(len(flags), 1)


def _separator(text: pl.Series) -> str | None:
    """Return the separator of lists: many cells have it, and its parts repeat, unlike those of sentences."""
    for mark in _SEPARATORS:
        if _share(text.str.contains(mark, literal=True)) >= 0.1:
            parts = text.str.split(mark).explode().str.strip_chars()
            if len(parts) >= 5 * parts.n_unique():
                return mark
    return None


def _parsed(values: pl.Series) -> pl.Series:
    """Return numbers, and dates in texts as years; null for others."""
    numbers = values.cast(pl.Float64, strict=False)
    if values.dtype != pl.String or numbers.is_not_null().all():
        return numbers
    days = values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    years = 1970 + days.dt.epoch("s").cast(pl.Float64) / _YEAR
    return pl.select(pl.coalesce(numbers, years)).to_series()


def _numbers(values: pl.Series, where: str) -> npt.NDArray[np.float64]:
    """Return numbers, and times as years."""
    if values.dtype in (pl.Date, pl.Datetime):
        seconds = values.cast(pl.Datetime("us")).dt.epoch("s").to_numpy().astype(np.float64)
        return 1970 + seconds / _YEAR
    numbers = _parsed(values)
    odd = values.filter(numbers.is_null() | ~numbers.is_finite().fill_null(False))
    if len(odd):
        raise DataError(f"{where} must hold numbers; got {odd[0]!r}. Give it another kind, such as category.")
    return numbers.to_numpy()


def _cells(column: pl.Series, encoding: Encoding, where: str) -> Iterator[list[str]]:
    """Yield the names of the features of each cell."""
    if encoding.kind == "number":
        bins = np.searchsorted(encoding.edges, _numbers(column.drop_nulls(), where), side="right")
        numbers = iter(bins.tolist())
        return ([encoding.bin_name(next(numbers))] if there else [] for there in column.is_not_null())
    if column.dtype == pl.List:
        if encoding.kind != "list":
            raise DataError(f"{where} holds lists, which it did not before.")
        return (_folded(map(str, cell or ())) for cell in column.to_list())
    texts = (text or "" for text in column.cast(pl.String))
    if encoding.kind == "flag":
        return (_flag(text, where) for text in texts)
    if encoding.kind == "words":
        return (_words_and_pairs(words_of(text).split()) for text in texts)
    if encoding.kind == "category":
        return (_folded([text]) for text in texts)
    mark = encoding.separator or ","
    return (
        _folded(part.strip("\"' ") for part in re.sub(r"^\[(.*)\]$", r"\1", text).split(mark))
        for text in texts
    )


def _flag(text: str, where: str) -> list[str]:
    if text and text.lower() not in (*_TRUE, *_FALSE):
        raise DataError(f"{where} must hold true or false; got {text!r}.")
    return ["yes"] if text.lower() in _TRUE else []


def _folded(parts: Iterable[str]) -> list[str]:
    return [name for part in parts if (name := words_of(part))]


def _words_and_pairs(words: list[str]) -> list[str]:
    """Return the words of a text, and each two that follow each other: names are often several words."""
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]
