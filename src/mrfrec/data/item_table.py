"""The table of items: the columns that filters and quotas use, in the order of a model's items."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import check_threads, counted, shortened
from mrfrec.data.ids import Ids, Texts
from mrfrec.errors import DataError, ParameterError

ColumnKind = Literal["number", "flag", "text", "list", "time"]
COLUMN_KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)

_log = logging.getLogger("mrfrec")

_SHOWN = 12  # columns that an error lists
_LONGEST = 40  # characters of a name that an error shows
_KINDS: Mapping[Any, ColumnKind] = {
    pl.Int64: "number", pl.Float64: "number", pl.Boolean: "flag", pl.String: "text", pl.List: "list",
    pl.Datetime: "time",
}  # fmt: skip


class Groups(NamedTuple):
    """Items with the same value of a column; item i is in the groups `codes[ptr[i]:ptr[i + 1]]`."""

    ptr: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    values: pl.Series  # of the groups, in ascending order

    @classmethod
    def of(cls, cells: pl.Series) -> "Groups":
        """Group items by their cells. One without a value is in no group, one with a list in several."""
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
    """Columns about items, read by `read_item_table`, or those of a model: `model.catalogue.table`.

    Attributes
    ----------
    items
        Ids of the items of the rows.
    frame
        The columns: numbers (whole ones or not), flags, texts, lists of texts, which ascend and are distinct,
        and times in UTC. A missing value is null.
    titles
        Titles of the items, if a column holds titles; those of a model are in its catalogue.
    """

    items: Ids
    frame: pl.DataFrame
    titles: Texts | None = None
    # Which items the last filters have kept: a shop asks the same one again and again.
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False)
    _groups: dict[str, Groups] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def __reduce__(self) -> tuple[Any, ...]:  # without what is derived from the rest
        return ItemTable, (self.items, self.frame, self.titles)

    def __repr__(self) -> str:
        read = ", ".join(f"{name} ({kind})" for name, kind in self.kinds.items())
        return f"ItemTable({counted(len(self), 'item')}, {read})"

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of each column."""
        return {name: _KINDS[kind.base_type()] for name, kind in self.frame.schema.items()}

    @property
    def described(self) -> int:
        """Number of items that have a value in some column."""
        there = [column.is_not_null().to_numpy() for column in self.frame]
        return int(np.logical_or.reduce(there).sum()) if there else 0

    def column(self, name: object, parameter: str) -> pl.Series:
        """Return a column; raise if there is none of that name. `parameter` is where it was named."""
        check_threads("asking about the table of items")
        if not isinstance(name, str) or name not in self.frame.columns:
            raise ParameterError(parameter, f"about columns of the table of items: {self.names}", name)
        return self.frame.get_column(name).alias("")  # polars takes names such as ^a$ for patterns

    def kind(self, name: object, parameter: str) -> ColumnKind:
        """Return the kind of a column; raise if there is none of that name."""
        return _KINDS[self.column(name, parameter).dtype.base_type()]

    @property
    def names(self) -> str:
        """The names of the columns, as an error lists them."""
        names = [shortened(name, _LONGEST) for name in self.frame.columns[:_SHOWN]]
        return ", ".join(map(repr, names)) + (", …" if len(self.frame.columns) > _SHOWN else "")

    def groups(self, name: str, parameter: str) -> Groups:
        """Return the groups of each item by a column, which `parameter` names."""
        cells = self.column(name, parameter)
        if name not in self._groups:
            self._groups[name] = Groups.of(cells)
        return self._groups[name]

    def find(self, items: Ids) -> npt.NDArray[np.int64]:
        """Return the row of each item, −1 without one. Integers are compared with strings as texts."""
        if items.is_text == self.items.is_text:
            return self.items.find(items.values if not items.is_text else list(items), "item")
        row = {str(item): place for place, item in enumerate(self.items)}
        return np.fromiter((row.get(str(item), -1) for item in items), np.int64, len(items))

    def over(self, items: Ids) -> "ItemTable":
        """Return the table of these items, in their order; what it does not know of them is missing."""
        if items is self.items:
            return self
        return ItemTable(items, rows_at(self.frame, self.find(items)))

    def titles_for(self, items: Ids, titles: Texts | None, *, is_new: bool = True) -> Texts | None:
        """Return titles of items, with those of this table where they have none.

        The log says if some items or rows are without the other, unless the table is not new to them. Raises
        if it knows none of the items.
        """
        rows = self.find(items)
        known = rows >= 0
        if not known.any():
            raise DataError("the table of items names none of the items of the model: are the ids the same?")
        counts = known.sum(), len(items), len(self) - known.sum()
        if is_new and not len(items) == len(self) == known.sum():
            shown = (f"{x:,}" for x in counts)
            _log.info("%s of %s items have a row in the table of items; it has %s of other items", *shown)
        if self.titles is None:
            return titles
        others = [*self.titles, ""]  # the last is that of −1
        texts = titles or [""] * len(items)
        return Texts.of(text or others[row] for text, row in zip(texts, rows.tolist(), strict=True))

    def joined(self, more: "ItemTable") -> "ItemTable":
        """Return this table, with the rows of another one for items that it does not have.

        Columns of the same name must be of the same kind; those that only the other one has are left out.
        """
        rows = np.flatnonzero(self.find(more.items) < 0)
        added = [str(x) if self.items.is_text else x for x in more.items.take(rows)]
        others, known = rows_at(more.frame, rows), more.kinds
        columns = {}
        for (name, kind), own in zip(self.kinds.items(), self.frame, strict=True):
            if known.get(name, kind) != kind:
                raise DataError(f"column {name!r} is {kind} in the table of items; got {known[name]}.")
            missing = pl.Series(name, [None] * len(rows), own.dtype)
            other = others.get_column(name, default=missing)
            both = own.dtype if own.dtype == other.dtype else pl.Float64()
            columns[name] = pl.concat([own.cast(both), other.cast(both)])
        return ItemTable(Ids.of([*self.items, *added], "item"), pl.DataFrame(columns))


def rows_at(frame: pl.DataFrame, rows: npt.NDArray[Any]) -> pl.DataFrame:
    """Return rows of a frame; those of rows that are −1 are missing."""
    places = pl.Series(rows)
    return frame.select(pl.all().gather(places.set(places < 0, None)))
