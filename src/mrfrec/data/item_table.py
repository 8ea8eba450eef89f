"""The item table: the columns that filters and quotas use, and the features that a model learns from."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import check_threads, counted, shortened
from mrfrec.data.holdout import only_entries
from mrfrec.data.ids import Ids, Indices, Texts
from mrfrec.errors import DataError, ParameterError

ColumnType = Literal["number", "flag", "text", "list", "time"]
COLUMN_TYPES: tuple[ColumnType, ...] = get_args(ColumnType)

_log = logging.getLogger("mrfrec")

# An error lists up to 12 columns, and up to 40 characters of a name.
_SHOWN = 12
_LONGEST = 40
_TYPES: Mapping[Any, ColumnType] = {
    pl.Int64: "number", pl.Float64: "number", pl.Boolean: "flag", pl.String: "text", pl.List: "list",
    pl.Datetime: "time",
}  # fmt: skip


class Groups(NamedTuple):
    """Items with the same value of a column; item i is in the groups `codes[ptr[i]:ptr[i + 1]]`."""

    ptr: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    # The value of each group, in ascending order.
    values: pl.Series

    @classmethod
    def of(cls, cells: pl.Series) -> "Groups":
        """Group items by their cells. An item without a value has no group, one with a list several."""
        if cells.dtype == pl.List:
            lengths = cells.list.len().fill_null(0)
            parts = cells.explode(empty_as_null=False, keep_nulls=False)
        else:
            lengths, parts = cells.is_not_null(), cells.drop_nulls()
        ptr = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int64)
        values = parts.unique().sort()
        if values.dtype == pl.String:
            codes = parts.cast(pl.Enum(values)).to_physical().to_numpy()
        else:
            codes = np.searchsorted(values.to_numpy(), parts.to_numpy())
        return cls(ptr, codes.astype(np.int32, copy=False), values)


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Columns about items, read by `read_item_table` or kept by a model: `model.catalogue.table`.

    Attributes
    ----------
    items
        Id of the item of each row.
    frame
        The columns: numbers (integers or floats), flags, texts, lists of distinct texts in ascending order,
        and times in UTC. A missing value is null.
    titles
        Titles of the items, if a column holds titles; a model keeps titles in its catalogue.
    """

    items: Ids
    frame: pl.DataFrame
    titles: Texts | None = None
    # Masks of the items that recent filters keep, since a shop repeats the same filters.
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False)
    _groups: dict[str, Groups] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def __reduce__(self) -> tuple[Any, ...]:
        # Masks and groups follow from the rest.
        return ItemTable, (self.items, self.frame, self.titles)

    def __repr__(self) -> str:
        read = ", ".join(f"{name} ({kind})" for name, kind in self.types.items())
        return f"ItemTable({counted(len(self), 'item')}, {read})"

    @property
    def types(self) -> dict[str, ColumnType]:
        """The type of each column."""
        return {name: _TYPES[kind.base_type()] for name, kind in self.frame.schema.items()}

    @property
    def described(self) -> int:
        """Number of items with a value in at least one column."""
        there = [column.is_not_null().to_numpy() for column in self.frame]
        return int(np.logical_or.reduce(there).sum()) if there else 0

    def column(self, name: object, parameter: str) -> pl.Series:
        """Return a column; if the table lacks it, raise an error that names `parameter`."""
        check_threads("asking about the table of items")
        if not isinstance(name, str) or name not in self.frame.columns:
            raise ParameterError(parameter, f"about columns of the table of items: {self.names}", name)
        # polars would take a name such as ^a$ for a pattern.
        return self.frame.get_column(name).alias("")

    def type_of(self, name: object, parameter: str) -> ColumnType:
        """Return the type of a column; raise if the table lacks it."""
        return _TYPES[self.column(name, parameter).dtype.base_type()]

    @property
    def names(self) -> str:
        """The names of the columns, as an error lists them."""
        names = [shortened(name, _LONGEST) for name in self.frame.columns[:_SHOWN]]
        return ", ".join(map(repr, names)) + (", …" if len(self.frame.columns) > _SHOWN else "")

    def groups(self, name: str, parameter: str) -> Groups:
        """Return the groups of the items by a column that `parameter` names."""
        cells = self.column(name, parameter)
        if name not in self._groups:
            self._groups[name] = Groups.of(cells)
        return self._groups[name]

    def find(self, items: Ids) -> npt.NDArray[np.int64]:
        """Return the row of each item, −1 if it has none. Integers and strings compare as texts."""
        if items.is_text == self.items.is_text:
            return self.items.find(items.values if not items.is_text else list(items), "item")
        row = {str(item): index for index, item in enumerate(self.items)}
        return np.fromiter((row.get(str(item), -1) for item in items), np.int64, len(items))

    def over(self, items: Ids) -> "ItemTable":
        """Return the table with a row for each of `items`, in their order; unknown cells are null."""
        if items is self.items:
            return self
        return ItemTable(items, rows_at(self.frame, self.find(items)))

    def titles_for(self, items: Ids, titles: Texts | None, *, is_new: bool = True) -> Texts | None:
        """Return titles of items: an item without a title takes its title in this table.

        Raises if no item has a row. If the table is new, the log says how many items have a row, and how many
        rows belong to unknown items.
        """
        rows = self.find(items)
        known = rows >= 0
        if not known.any():
            raise DataError(
                "the table of items names none of the items that were used: are the ids the same?"
            )
        counts = known.sum(), len(items), len(self) - known.sum()
        if is_new and not len(items) == len(self) == known.sum():
            shown = (f"{x:,}" for x in counts)
            _log.info("%s of %s items have a row in the table of items; it has %s of other items", *shown)
        if self.titles is None:
            return titles
        # Row −1 has no title.
        others = [*self.titles, ""]
        texts = titles or [""] * len(items)
        filled = [text or others[row] for text, row in zip(texts, rows.tolist(), strict=True)]
        return Texts.of(filled) if any(filled) else None

    def joined(self, more: "ItemTable") -> "ItemTable":
        """Append the rows of `more` for items that this table lacks.

        Columns of the same name must have the same type. Columns that only `more` has are left out.
        """
        rows = np.flatnonzero(self.find(more.items) < 0)
        added = [str(x) if self.items.is_text else x for x in more.items.take(rows)]
        others, known = rows_at(more.frame, rows), more.types
        columns = {}
        for (name, kind), own in zip(self.types.items(), self.frame, strict=True):
            if known.get(name, kind) != kind:
                raise DataError(f"column {name!r} is {kind} in the table of items; got {known[name]}.")
            missing = pl.Series(name, [None] * len(rows), own.dtype)
            other = others.get_column(name, default=missing)
            both = own.dtype if own.dtype == other.dtype else pl.Float64()
            columns[name] = pl.concat([own.cast(both), other.cast(both)])
        return ItemTable(Ids.of([*self.items, *added], "item"), pl.DataFrame(columns))


def rows_at(frame: pl.DataFrame, rows: npt.NDArray[Any]) -> pl.DataFrame:
    """Return rows of a frame by their numbers; row −1 is all null."""
    indices = pl.Series(rows)
    return frame.select(pl.all().gather(indices.set(indices < 0, None)))


FeatureType = Literal["category", "list", "words", "number", "flag"]
FEATURE_TYPES: tuple[FeatureType, ...] = get_args(FeatureType)


@dataclass(frozen=True)
class Encoding:
    """How a column of a table becomes features: its type, the separator of a list, the edges of bins."""

    type: FeatureType
    separator: str | None = None
    edges: tuple[float, ...] = ()

    def bin_name(self, number: int) -> str:
        """Return the name of a bin of numbers."""
        if not self.edges:
            return "any number"
        # Use the fewest digits that tell the edges apart.
        rounded = ([f"{edge:.{digits}g}" for edge in self.edges] for digits in range(6, 18))
        edges = next((texts for texts in rounded if len({*texts}) == len(texts)), [*map(repr, self.edges)])
        if number == 0:
            return f"below {edges[0]}"
        if number == len(edges):
            return f"{edges[-1]} and more"
        return f"{edges[number - 1]} to {edges[number]}"

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Encoding":
        """Restore an encoding from the facts of a model file; raise a ValueError if they are wrong."""
        edges = tuple(float(edge) for edge in facts["edges"])
        if facts["type"] not in FEATURE_TYPES or not isinstance(facts["separator"], str | None):
            raise ValueError("features")
        return cls(facts["type"], facts["separator"], edges)


@dataclass(frozen=True)
class ItemFeatures:
    """Features of items, read from a table by `read_item_features`.

    Attributes
    ----------
    items
        Ids of the items of the table.
    matrix
        `csr_array` of features × items. The entries of a row are equal; rarer features have larger entries.
    names
        The name of each feature, with its column: "genre: comedy".
    values
        The entry of each feature.
    columns
        Encoding of each column of the table.
    titles
        Titles of the items, if a column holds titles.
    weight
        Weight of the features in the model.
    table
        All columns of the table as they are; a model keeps them in `catalogue.table`.
    """

    items: Ids
    matrix: sp.csr_array
    names: Texts
    values: npt.NDArray[np.float64]
    columns: Mapping[str, Encoding]
    titles: Texts | None = None
    weight: float = 0.0
    table: ItemTable | None = None

    def __repr__(self) -> str:
        read = ", ".join(f"{name} ({encoding.type})" for name, encoding in self.columns.items())
        return f"ItemFeatures({len(self.items):,} items, {len(self.names):,} features from {read})"

    def over(self, items: Ids) -> "ItemFeatures":
        """Return the features of `items`, in their order; leave out other items."""
        column = items.find(list(self.items), "item")
        matrix = self._moved(np.arange(len(self.names)), column, self.values, len(items))
        return replace(self, items=items, matrix=matrix, titles=None, table=None)

    def named_like(self, known: "ItemFeatures") -> "ItemFeatures":
        """Return these features under the names and entries of `known`; leave out unknown features."""
        for name, encoding in known.columns.items():
            own = self.columns.get(name)
            if own is None or (own.type, own.edges) != (encoding.type, encoding.edges):
                raise DataError(
                    f"column {name!r} is {encoding.type} in the features of the fit, and missing, of another "
                    "type or in other bins here. Give the table itself: it is read by the rules of the fit."
                )
        number = {name: row for row, name in enumerate(known.names)}
        rows = np.array([number.get(name, -1) for name in self.names])
        matrix = self._moved(rows, np.arange(len(self.items)), known.values, len(self.items))
        return replace(known, items=self.items, matrix=matrix, titles=self.titles, table=self.table)

    def _moved(self, row: Indices, column: Indices, values: npt.NDArray[np.float64], m: int) -> sp.csr_array:
        """Return the matrix with feature f moved to row[f] and item i to column[i]; −1 drops them."""
        entries = self.matrix.tocoo()
        row = row[entries.coords[0]]
        column = column[entries.coords[1]]
        kept = (row >= 0) & (column >= 0)
        row, column = row[kept], column[kept]
        return sp.csr_array((values[row], (row, column)), shape=(len(values), m))

    def with_ids_like(self, items: Ids) -> "ItemFeatures":
        """Return these features with ids of the type of `items`: integers may become strings."""
        return replace(self, items=self.items.like(items, "item", "features"))

    def joined(self, more: "ItemFeatures") -> "ItemFeatures":
        """Append the features of new items; both must have the same feature names."""
        more = more.with_ids_like(self.items)
        new = np.flatnonzero(self.items.find(list(more.items), "item") < 0)
        items = Ids.of([*self.items, *more.items.take(new)], "item")
        titles = None
        if more.titles is not None:
            titles = Texts.of([*(self.titles or [""] * len(self.items)), *more.titles.take(new)])
        matrix = sp.csr_array(sp.hstack([self.matrix, more.matrix[:, new]]))
        return replace(self, items=items, matrix=matrix, titles=titles)

    def of_table_items(self, titles: Texts | None, used: npt.NDArray[np.bool_]) -> "ItemFeatures":
        """Return the features of the items that came from a table: items with features or without users."""
        count = np.bincount(self.matrix.indices, minlength=len(self.items))
        kept = np.flatnonzero((count > 0) | ~used)
        kept_titles = None if titles is None else Texts.of(titles.take(kept))
        matrix = self.matrix[:, kept]
        return replace(self, items=self.items.subset(kept), matrix=matrix, titles=kept_titles)

    def of_used(self, used: npt.NDArray[np.bool_]) -> sp.csr_array:
        """Return the matrix without the entries of items that nobody has used."""
        return only_entries(self.matrix, used[self.matrix.indices])

    def shared(self, item: int, other: int) -> tuple[list[str], float]:
        """Return the names of the features that two items share, rarest first, and Σ entry²."""
        ptr, features = self._of_item
        first, second = (features[ptr[i] : ptr[i + 1]] for i in (item, other))
        common = np.intersect1d(first, second, assume_unique=True)
        common = common[np.argsort(-self.values[common], kind="stable")]
        names = dict.fromkeys(self.names[i].partition(": ")[2] for i in common.tolist())
        return list(names), float((self.values[common] ** 2).sum())

    @cached_property
    def _of_item(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        by_item = self.matrix.tocsc()
        return by_item.indptr, by_item.indices


def rarity(counts: npt.NDArray[np.int64], items: int) -> npt.NDArray[np.float64]:
    """Return the entry of each feature, √log(items / count); `counts` has the number of items with it."""
    return np.asarray(np.sqrt(np.log(items / counts)))
