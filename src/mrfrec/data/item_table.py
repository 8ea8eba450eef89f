"""The table of items: the columns that filters and quotas use, typed, in the order of a model's items."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted, shortened
from mrfrec.data.ids import Ids, Texts
from mrfrec.errors import DataError, ParameterError

ColumnKind = Literal["number", "flag", "text", "list", "time"]
COLUMN_KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)

_log = logging.getLogger("mrfrec")

Array = npt.NDArray[Any]
_SHOWN = 12  # columns that an error lists
_LONGEST = 40  # characters of a name that an error shows


@dataclass(frozen=True)
class Column:
    """One column, with a value for each of m items.

    Attributes
    ----------
    kind
        "number", "flag", "text", "list" (of texts) or "time".
    values
        Numbers as float64, or int64 if all are whole; flags as booleans; times as microseconds since 1970.
        Texts as codes, the positions in `texts`, −1 where they are missing. Of lists, the codes of all parts,
        item by item; of one item they ascend and are distinct.
    missing
        For each item, whether it has no value.
    texts
        The different texts or parts, in ascending order.
    ptr
        Of lists, where the parts of each item begin: (m + 1).
    """

    kind: ColumnKind
    values: Array
    missing: npt.NDArray[np.bool_]
    texts: Texts | None = None
    ptr: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.missing)

    def __getstate__(self) -> dict[str, Any]:  # without cached properties
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def index(self) -> Ids:
        """The texts, which find their codes."""
        assert self.texts is not None
        return Ids(self.texts)

    @cached_property
    def owners(self) -> npt.NDArray[np.int32]:
        """The item of each part of lists."""
        assert self.ptr is not None
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.ptr))

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """For each text or part, how many items have it."""
        return np.bincount(self.values[self.values >= 0], minlength=len(self.texts or ()))

    @cached_property
    def span(self) -> tuple[Any, Any]:
        """The least and the largest value of numbers, flags or times; there must be one."""
        known = self.values[~self.missing]
        return known.min().item(), known.max().item()

    def at(self, rows: npt.NDArray[np.int64]) -> "Column":
        """Return the values of these rows; rows that are −1 are missing. Keep only texts that are used."""
        absent = rows < 0
        missing = absent | self.missing[rows] if len(self) else np.ones(len(rows), np.bool_)
        if self.ptr is not None:
            starts, ends = self.ptr[:-1], self.ptr[1:]
            lengths = np.zeros(len(rows), np.int64)
            lengths[~missing] = (ends - starts)[rows[~missing]]
            ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            first = np.zeros(len(rows), np.int64)
            first[~missing] = starts[rows[~missing]]
            values = self.values[np.repeat(first - ptr[:-1], lengths) + np.arange(ptr[-1])]
            return _with_used_texts(replace(self, values=values, missing=missing, ptr=ptr))
        values = np.full(len(rows), -1 if self.kind == "text" else 0, self.values.dtype)
        values[~missing] = self.values[rows[~missing]]
        made = replace(self, values=values, missing=missing)
        return made if self.texts is None else _with_used_texts(made)

    def groups(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the groups of each item, those with the same value: where they begin (m + 1), and codes.

        Codes are 0, 1, 2, … in the order of the values. An item without a value is in no group; one with a
        list is in as many as it has parts.
        """
        return self._groups

    @cached_property
    def _groups(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        if self.ptr is not None:
            return self.ptr, self.values
        ptr = np.concatenate([[0], np.cumsum(~self.missing)]).astype(np.int64)
        known = self.values[~self.missing]
        if self.kind != "text":
            known = np.unique(known, return_inverse=True)[1]
        return ptr, known.astype(np.int32, copy=False)


def _with_used_texts(column: Column) -> Column:
    """Return a column without texts that no item has."""
    assert column.texts is not None
    used = np.zeros(len(column.texts), np.bool_)
    used[column.values[column.values >= 0]] = True
    if used.all():
        return column
    code = np.append(np.cumsum(used) - 1, -1).astype(np.int32)  # the last is that of −1
    texts = Texts.of(column.texts.take(np.flatnonzero(used)))
    return replace(column, values=code[column.values], texts=texts)


@dataclass(frozen=True)
class ItemTable:
    """Columns about items, read by `read_item_table`, or those of a model: `model.catalogue.table`.

    Attributes
    ----------
    items
        Ids of the items of the rows.
    columns
        Columns by name.
    titles
        Titles of the items, if a column holds titles; those of a model are in its catalogue.
    """

    items: Ids
    columns: Mapping[str, Column]
    titles: Texts | None = None
    # Which items the last filters have kept: a shop asks the same one again and again.
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getstate__(self) -> dict[str, Any]:  # without what is derived from the rest
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "masks": {}}

    def __repr__(self) -> str:
        read = ", ".join(f"{name} ({column.kind})" for name, column in self.columns.items())
        return f"ItemTable({counted(len(self), 'item')}, {read})"

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kind of each column."""
        return {name: column.kind for name, column in self.columns.items()}

    @property
    def described(self) -> int:
        """Number of items that have a value in some column."""
        missing = [column.missing for column in self.columns.values()]
        return int((~np.logical_and.reduce(missing)).sum()) if missing else 0

    def column(self, name: object, parameter: str) -> Column:
        """Return a column; raise if there is none of that name. `parameter` is where it was named."""
        column = self.columns.get(name) if isinstance(name, str) else None
        if column is None:
            raise ParameterError(parameter, f"about columns of the table of items: {self.names}", name)
        return column

    @property
    def names(self) -> str:
        """The names of the columns, as an error lists them."""
        names = [shortened(name, _LONGEST) for name in list(self.columns)[:_SHOWN]]
        return ", ".join(map(repr, names)) + (", …" if len(self.columns) > _SHOWN else "")

    def groups(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the groups of each item by a column: see `Column.groups`."""
        return self.column(name, "groups").groups()

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
        rows = self.find(items)
        return ItemTable(items, {name: column.at(rows) for name, column in self.columns.items()})

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
        columns = {}
        for name, column in self.columns.items():
            other = more.columns.get(name)
            if other is not None and other.kind != column.kind:
                raise DataError(f"column {name!r} is {column.kind} in the table of items; got {other.kind}.")
            places = rows if other is not None else np.full(len(rows), -1)
            columns[name] = _stacked(column, (other or column).at(places))
        return ItemTable(Ids.of([*self.items, *added], "item"), columns)


def _stacked(first: Column, second: Column) -> Column:
    """Return the values of one column, and then those of another one of the same kind."""
    parts = [first, second]
    missing = np.concatenate([part.missing for part in parts])
    values = [part.values for part in parts]
    texts = ptr = None
    if first.texts is not None and second.texts is not None:
        texts = Texts.of(sorted({*first.texts, *second.texts}))
        index = Ids(texts)
        codes = (np.append(index.find(list(part.texts or ()), "text"), -1) for part in parts)
        values = [code[each].astype(np.int32) for code, each in zip(codes, values, strict=True)]
    if first.ptr is not None and second.ptr is not None:
        ptr = np.concatenate([first.ptr, first.ptr[-1] + second.ptr[1:]])
    return Column(first.kind, np.concatenate(values), missing, texts, ptr)
