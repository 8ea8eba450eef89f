"""Ids of users and items, integers or strings, in the same arrays in memory and in files.

Opening a model decodes no strings: a few ids are found by bisection, and the first search for many ids builds
a table.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import lt
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.errors import DataError, ParameterError

Id = int | str
Indices = npt.NDArray[np.integer[Any]]

# If a caller wants fewer than one string in 64, decoding them one by one, or finding them by bisection, is
# faster than building a list or a table of all.
_FEW_IN = 64


_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ") | dict.fromkeys(map(ord, "\u200b\u2060\ufeff"))


def cleaned(text: str) -> str:
    """Return a text as an id: in NFC, with plain spaces, without zero-width characters, stripped."""
    return text.strip() if text.isascii() else unicodedata.normalize("NFC", text).translate(_SPACES).strip()


def cleaned_ids(ids: pl.Series) -> pl.Series:
    """Apply `cleaned` to a column."""
    odd = ids.filter(ids.str.contains(r"^[\s\x1c-\x1f]|[\s\x1c-\x1f]$|[^\x00-\x7f]")).unique()
    return ids.replace(odd, [cleaned(text) for text in odd]) if len(odd) else ids


class Texts(Sequence[str]):
    """Strings in two arrays: all UTF-8 bytes, and the offset at which each string begins.

    The arrays lie in a model file as they are, so that opening a model of millions of ids takes no time.
    """

    def __init__(self, data: npt.NDArray[np.uint8], ptr: npt.NDArray[np.int64]) -> None:
        self.data = data
        self.ptr = ptr

    @classmethod
    def of(cls, strings: Iterable[str]) -> "Texts":
        try:
            encoded = [text.encode() for text in strings]
        except UnicodeEncodeError as error:
            raise DataError(f"ids and titles must be valid Unicode; got {error.object!r}.") from None
        ptr = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=ptr[1:])
        data = b"".join(encoded)
        if b"\0" in data:
            odd = next(text.decode() for text in encoded if b"\0" in text)
            raise DataError(f"ids and titles must not contain NUL characters; got {odd!r}.")
        return cls(np.frombuffer(data, np.uint8), ptr)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __repr__(self) -> str:
        return f"Texts([{', '.join(map(repr, self[:3]))}{', …' if len(self) > 3 else ''}], {len(self):,})"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.bytes_at(i).decode() for i in range(len(self))[index]]
        return self.bytes_at(range(len(self))[index]).decode()

    def __iter__(self) -> Iterator[str]:
        data = self.data.tobytes()
        return (data[a:b].decode() for a, b in pairwise(self.ptr.tolist()))

    @cached_property
    def _strings(self) -> list[str]:
        return list(self)

    def take(self, indices: Indices) -> list[str]:
        if len(indices) * _FEW_IN < len(self):
            return [self.bytes_at(i).decode() for i in indices.tolist()]
        strings = self._strings
        return [strings[i] for i in indices.tolist()]

    def bytes_at(self, index: int) -> bytes:
        return self.data[self.ptr[index] : self.ptr[index + 1]].tobytes()


def first_titles(count: int, named: Iterable[tuple[int, str | None]]) -> Texts | None:
    """Return the title of each of `count` items, the first in alphabetical order; None if no item has one.

    `named` yields the index of an item and a title. An index below 0 and an empty title are passed over.
    """
    texts = [""] * count
    for index, title in named:
        if title and index >= 0:
            texts[index] = min(texts[index] or title, title)
    return Texts.of(texts) if any(texts) else None


class Ids(Sequence[Id]):
    """Distinct integers or strings: the id at an index, and the index of an id."""

    def __init__(self, values: npt.NDArray[Any] | Texts, order: npt.NDArray[np.int64] | None = None) -> None:
        self.values = values
        # The indices in ascending order of the ids; None if the ids ascend already.
        self.order = order

    @classmethod
    def of(cls, ids: "Iterable[Id] | Ids", name: str) -> "Ids":
        """Return ids in the order of their rows or columns; refuse duplicates and mixed types.

        Errors call the ids by `name`, "user" or "item".
        """
        if isinstance(ids, Ids):
            return ids
        values: Any = _as_sequence(ids, name)
        if isinstance(values, np.ndarray):
            if values.ndim != 1:
                raise DataError(f"{name} ids must be a list; got an array of {values.ndim} dimensions.")
            if values.dtype.kind in "mMV":
                raise DataError(f"{name} ids must be integers or strings; got an array of {values.dtype}.")
            values = values if values.dtype.kind in "iu" else values.tolist()
        if isinstance(values, list):
            odd = [value for value in values if not isinstance(value, str) and not _is_integer(value)]
            kinds = {isinstance(value, str) for value in values}
            if odd or len(kinds) > 1:
                got = repr(odd[0]) if odd else "some of each"
                raise DataError(f"{name} ids must be all integers or all strings; got {got}.")
            if kinds == {True}:
                return cls._ordered(Texts.of(values), name)
            low, high = min(values, default=0), max(values, default=0)
            if low < -(2**63) or high >= 2**64 or (low < 0 and high >= 2**63):
                raise DataError(
                    f"{name} ids must fit 64 bits; got {low} to {high}. Use strings for such ids."
                )
            values = np.array(values, np.uint64 if high >= 2**63 else np.int64)
        wide = np.uint64 if len(values) and int(values.max()) >= 2**63 else np.int64
        # This copies: the caller may change the original.
        return cls._ordered(values.astype(wide), name)

    @classmethod
    def range(cls, count: int) -> "Ids":
        """Return 0, 1, 2, …, the ids of a matrix that has none."""
        return cls(np.arange(count))

    @classmethod
    def _ordered(cls, values: npt.NDArray[Any] | Texts, name: str) -> "Ids":
        keys: Any = list(values) if isinstance(values, Texts) else values
        if isinstance(values, Texts):
            order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
            repeated = next((keys[b] for a, b in pairwise(order.tolist()) if keys[a] == keys[b]), None)
        else:
            order = np.argsort(keys, kind="stable")
            same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
            repeated = None if not len(same) else keys[order[same[0]]].item()
        if repeated is not None:
            raise DataError(f"{name} ids must be distinct; {repeated!r} appears more than once.")
        return cls(values, None if (order[1:] > order[:-1]).all() else order)

    @property
    def is_text(self) -> bool:
        return isinstance(self.values, Texts)

    @property
    def type(self) -> str:
        """The type of the ids: "string", "int64" or "uint64"."""
        if isinstance(self.values, Texts):
            return "string"
        return "uint64" if self.values.dtype == np.uint64 else "int64"

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Id: ...
    @overload
    def __getitem__(self, index: slice) -> list[Id]: ...
    def __getitem__(self, index: int | slice) -> Id | list[Id]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        value = self.values[int(index)]
        return value if isinstance(value, str) else int(value)

    def __iter__(self) -> Iterator[Id]:
        return iter(self.values if isinstance(self.values, Texts) else self.values.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.is_text == other.is_text and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((len(self), self.is_text))

    def __repr__(self) -> str:
        shown = ", ".join(repr(value) for value in self[:3]) + (", …" if len(self) > 3 else "")
        return f"Ids([{shown}], {len(self):,} {'strings' if self.is_text else 'integers'})"

    def is_ordered(self) -> bool:
        """Return whether the ids ascend by `order`, so that they are distinct; a forged file may break it."""
        if not isinstance(self.values, Texts):
            return bool((self._ascending[1:] > self._ascending[:-1]).all())
        data = self.values.data.tobytes()
        texts = [data[a:b] for a, b in pairwise(self.values.ptr.tolist())]
        texts = texts if self.order is None else [texts[i] for i in self.order.tolist()]
        return all(map(lt, texts, texts[1:]))

    def parse(self, text: str, name: str) -> Id:
        """Convert an id that somebody typed to the type of these ids."""
        if self.is_text:
            return text
        try:
            if text.isascii() and "_" not in text:
                return int(text)
        except ValueError:
            pass
        raise DataError(f"{name} ids are integers here; got {text!r}.")

    def take(self, indices: Indices) -> list[Id]:
        values = self.values
        taken: list[Any] = values.take(indices) if isinstance(values, Texts) else values[indices].tolist()
        return taken

    def subset(self, keep: Indices) -> "Ids":
        """Return the ids at some indices as `Ids`."""
        values = self.values
        return Ids.of(values.take(keep) if isinstance(values, Texts) else values[keep], "kept")

    def like(self, others: "Ids", name: str, table: str) -> "Ids":
        """Return the ids of a table in the type of `others`: integers may become strings."""
        if self.is_text == others.is_text:
            return self
        if not others.is_text:
            first = next((value for value in self if not str(value).isdecimal()), self[0])
            raise DataError(f"{name} ids are integers in the data; got {first!r} in the table of {table}.")
        return Ids.of([str(value) for value in self], name)

    def find(self, wanted: Any, name: str) -> npt.NDArray[np.int64]:
        """Return the index of each id, −1 if it is unknown. Errors call the ids by `name`."""
        wanted = _as_sequence(wanted, name)
        ids = wanted.tolist() if isinstance(wanted, np.ndarray) else wanted
        wanted_type = str if self.is_text else int
        # Types of numpy pass this check and are accepted below.
        if {*map(type, ids)} - {wanted_type}:
            for value in ids:
                if not (isinstance(value, str) if self.is_text else _is_integer(value)):
                    kind = "strings" if self.is_text else "integers"
                    by_title = (
                        " Find ids by title: search(…)." if name == "item" and isinstance(value, str) else ""
                    )
                    raise DataError(
                        f"{name} ids are {kind} here; got {value!r} ({type(value).__name__}). "
                        f"Give them as {kind}, as they were in the training data.{by_title}"
                    )
        if not isinstance(self.values, Texts):
            return self._find_integers(ids)
        indices = self._find_texts(self.values, ids)
        # Reading a table cleans its ids, so clean the ids that were not found and try again.
        for i in np.flatnonzero(indices < 0).tolist():
            if (text := cleaned(ids[i])) != ids[i]:
                indices[i] = self._find_texts(self.values, [text])[0]
        return indices

    def _find_texts(self, texts: Texts, ids: list[str]) -> npt.NDArray[np.int64]:
        if len(ids) * _FEW_IN < len(self) and "_table" not in self.__dict__:
            return np.fromiter((self._find_text(texts, value) for value in ids), np.int64, len(ids))
        return np.fromiter((self._table.get(value, -1) for value in ids), np.int64, len(ids))

    @cached_property
    def _table(self) -> dict[Id, int]:
        return {value: index for index, value in enumerate(self)}

    @cached_property
    def _ascending(self) -> npt.NDArray[Any]:
        values: Any = self.values
        return np.asarray(values if self.order is None else values[self.order])

    def _find_integers(self, ids: list[Any]) -> npt.NDArray[np.int64]:
        ascending = self._ascending
        possible: Any = True
        if not ids or not len(self):
            return np.full(len(ids), -1, np.int64)
        low, high = int(ascending[0]), int(ascending[-1])
        if not low <= min(ids) <= max(ids) <= high:
            possible = np.array([low <= value <= high for value in ids])
            ids = [value if low <= value <= high else low for value in ids]
        keys = np.array(ids, ascending.dtype)
        ranks = ascending.searchsorted(keys)
        indices = ranks if self.order is None else self.order[ranks]
        known = possible & (ascending[ranks] == keys)
        return indices if known.all() else np.where(known, indices, -1)

    def _find_text(self, texts: Texts, wanted: str) -> int:
        order = self.order

        def index_at(rank: int) -> int:
            return rank if order is None else int(order[rank])

        try:
            key = str(wanted).encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair is no valid text, so it is no id either.
            return -1
        # The order of UTF-8 bytes is that of the strings.
        rank = bisect_left(range(len(self)), key, key=lambda rank: texts.bytes_at(index_at(rank)))
        return index_at(rank) if rank < len(self) and texts.bytes_at(index_at(rank)) == key else -1


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def text_roles(users: Ids, items: Ids) -> tuple[str, ...]:
    """Return the roles, "user" and "item", whose ids are texts."""
    return tuple(role for role, ids in (("user", users), ("item", items)) if ids.is_text)


def is_table(value: object) -> bool:
    """Return whether a value is a data frame or a sparse matrix."""
    # This looks at the class, since reading the columns of a lazy frame computes them.
    return hasattr(value, "tocsr") or hasattr(type(value), "columns")


def as_list(ids: Any, kind: str, parameter: str) -> list[Any]:
    """Return the ids in any iterable, such as a column of a data frame, as a list of plain Python values.

    Refuse tables and mappings: iterating over them gives names of columns, or drops values.
    """
    if is_table(ids):
        advice = f'Give its column of {kind}s, such as table["{kind}"].'
        raise DataError(f"{parameter} must be ids, not a table; got {type(ids).__name__}. {advice}")
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise ParameterError(parameter, f"a sequence of {kind} ids", ids)
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow, pandas and polars, numpy
        if hasattr(ids, method):
            return list(getattr(ids, method)())
    return list(ids)


def _as_sequence(ids: Any, name: str) -> Any:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise DataError(f"{name} ids must be a list; got {ids!r}.")
    return ids if isinstance(ids, np.ndarray) else list(ids)


def inverse_of(order: Indices, count: int) -> npt.NDArray[np.int32]:
    """Return where each index from 0 to `count` stands in `order`; −1 if it is missing there."""
    out = np.full(count, -1, np.int32)
    out[order] = np.arange(len(order), dtype=np.int32)
    return out
