"""Interactions: a matrix of users × items and the ids of its rows and columns."""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, counted, in_words
from mrfrec.data.catalogue import DataSize
from mrfrec.data.erasures import Erasures
from mrfrec.data.holdout import only_entries
from mrfrec.data.ids import Id, Ids, Indices, Texts
from mrfrec.data.item_table import ItemFeatures, ItemTable
from mrfrec.data.pairs import DataNote, Origin
from mrfrec.data.times import Times, note_on_future, notes_on_times, times_of_pairs
from mrfrec.errors import DataError
from mrfrec.shown import Report, Section

_log = logging.getLogger("mrfrec")

# A notebook shows the first pairs.
_SHOWN = 5
# Below this, sums of whole numbers are exact in double precision.
_EXACT = 2**53


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Interactions:
    """The interactions of users with items: a CSR matrix, the ids of its users and items, and titles.

    Interactions are a value: no attribute can be set. `replace` and the other methods return new ones.

    Parameters
    ----------
    matrix
        `scipy.sparse`, users × items.
    users, items
        The ids of its rows and columns, all integers or all strings; 0, 1, 2, … if None.
    titles
        One per item (None or "" where there is none), or a mapping from item id to title.
    times
        The time of each stored pair: numbers (seconds since 1970, or smaller units) or `datetime64`, in UTC.
        A `scipy.sparse` matrix with the same pairs or, for a canonical CSR matrix, an array in its order.
    copy
        Copy the matrix, so that changing it later changes nothing here. With False, the arrays of a canonical
        CSR matrix are shared.

    Attributes
    ----------
    matrix
        A canonical `csr_array`: sorted, no duplicates, no zeros, all finite.
    users, items
        `Ids`: sequences that also find positions by id.
    titles
        A sequence of one string per item, "" where there is none; None if no item has one.
    skipped
        Number of rows that `on_bad="skip"` left out, by reason.
    share_skipped
        Their share of all rows of the table.
    notes
        What reading noticed and did not refuse: a tuple of `DataNote(what, count, text)`.
    unused
        Columns that were recognised but not used, with the parameter of `read_interactions` that would use
        each.
    left_out
        Number of users or items that `filtered` left out, by rule.
    library
        Data frame library of the table; results are frames of the same library. None for files.
    times
        Time of the last event of each pair in microseconds since 1970, UTC, in the order of `matrix.data`.
        None if times are unknown or all equal.
    features
        `ItemFeatures` of the items, in their order; None without. See `with_features`.
    """

    matrix: sp.csr_array
    users: Ids
    items: Ids
    titles: Texts | None
    skipped: Mapping[str, int]
    share_skipped: float
    notes: tuple[DataNote, ...]
    unused: Mapping[str, str]
    left_out: Mapping[str, int]
    library: str | None
    # How the pairs were made from rows, and their times. None for a matrix without times.
    origin: Origin | None
    features: ItemFeatures | None
    # The item table as it was read; it may have other items, in another order.
    table: ItemTable | None
    # The forgotten people whose rows were left out.
    erased: Erasures

    def __init__(
        self,
        matrix: object,
        users: Iterable[Id] | Ids | None = None,
        items: Iterable[Id] | Ids | None = None,
        titles: Iterable[str | None] | Mapping[Any, str] | Texts | None = None,
        *,
        times: object = None,
        copy: bool = True,
    ) -> None:
        X = as_histories(matrix, "matrix")
        _check_single_precision(X)
        if check_flag("copy", copy) and np.may_share_memory(X.data, getattr(matrix, "data", None)):
            X = X.copy()
        of_users = Ids.range(X.shape[0]) if users is None else Ids.of(users, "user")
        of_items = Ids.range(X.shape[1]) if items is None else Ids.of(items, "item")
        for name, ids, count in (("users", of_users, X.shape[0]), ("items", of_items, X.shape[1])):
            if len(ids) != count:
                raise DataError(f"{name} must have one id for each of the {count:,}; got {len(ids):,}.")
        origin, notes = None, []
        if times is not None:
            made = times_of_pairs(times, matrix, X)
            origin = Origin.of_matrix(X.data, of_users, of_items, made)
            stored = getattr(times, "data", None) if sp.issparse(times) else times
            are_numbers = np.asarray(stored).dtype.kind != "M"
            odd = notes_on_times(made, "the matrix", are_numbers=True, without="give none")
            for note in (note_on_future(made), *(odd if are_numbers else ())):
                if note is not None:
                    notes.append(note)
                    note.tell()
        vars(self).update(
            matrix=X, users=of_users, items=of_items, titles=_titles(titles, of_items), skipped={},
            share_skipped=0.0, notes=tuple(notes), unused={}, left_out={}, library=None, origin=origin,
            features=None, table=None, erased=Erasures(),
        )  # fmt: skip

    def replace(self, **changes: Any) -> "Interactions":
        """Return the same interactions with other attributes, such as `library`; the pairs stay."""
        names = {field.name for field in fields(self)} - {"matrix", "users", "items"}
        if odd := changes.keys() - names:
            raise TypeError(f"replace takes {in_words(sorted(names))}; got {in_words(sorted(odd))}")
        out = object.__new__(Interactions)
        vars(out).update({field.name: getattr(self, field.name) for field in fields(self)} | changes)
        return out

    @property
    def n_users(self) -> int:
        """Number of rows of the matrix."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns of the matrix."""
        return int(self.matrix.shape[1])

    @property
    def times(self) -> Times | None:
        times = None if self.origin is None else self.origin.times
        return None if times is None or not len(times) or times.min() == times.max() else times

    @property
    def size(self) -> DataSize:
        """Number of users, items and pairs, and whether every value is 1."""
        return DataSize(self.n_users, self.n_items, len(self), bool((self.matrix.data == 1).all()))

    def __len__(self) -> int:
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        kept = [
            name for name, values in (("times", self.times), ("titles", self.titles)) if values is not None
        ]
        with_ = f", with {in_words(kept)}" if kept else ""
        unused = ", ".join(f"{name!r} ({use} would use it)" for name, use in self.unused.items())
        size = f"{self.n_users:,} users × {self.n_items:,} items, {len(self):,} pairs"
        return f"Interactions({size}{with_}{unused and '; not used: '}{unused})"

    def _repr_html_(self) -> str:
        """Return the size and the first pairs for a notebook."""
        ptr, columns = self.matrix.indptr, self.matrix.indices[:_SHOWN]
        owners = np.searchsorted(ptr, np.arange(len(columns)), "right") - 1
        cells: dict[str, Iterable[Any]] = {"user": self.users.take(owners), "item": self.items.take(columns)}
        if self.titles is not None:
            cells["title"] = self.titles.take(columns)
        cells["value"] = [f"{value:g}" for value in self.matrix.data[:_SHOWN]]
        if self.times is not None:
            seconds = self.times[:_SHOWN].astype("datetime64[us]").astype("datetime64[s]")
            cells["time"] = [str(time).replace("T", " ") for time in seconds]
        rows = [[*map(str, row)] for row in zip(*cells.values(), strict=True)]
        names = list(self._column_names(cells).values())
        table = Section(names, rows, "The first pairs" if rows else "")
        return Report([repr(self)], [table]).html()

    def to_frame(self) -> pl.DataFrame:
        """Return a polars DataFrame with a row for each pair, in the order of the users and items.

        It has the users and items, values unless every pair counts 1, times where they are known, and titles.
        The columns have the names of the table that was read, or else user, item, value, time and title.
        """
        pairs = self.matrix.tocoo()
        columns = {}
        for role, ids, indices in (("user", self.users, pairs.row), ("item", self.items, pairs.col)):
            values = pl.Series(list(ids), dtype=pl.String) if ids.is_text else pl.Series(ids.values)
            columns[role] = values.gather(indices)
        if not self.size.binary:
            columns["value"] = pl.Series(pairs.data)
        if self.times is not None:
            columns["time"] = pl.Series(self.times.astype("datetime64[us]"))
        if self.titles is not None:
            titles = pl.Series([title or None for title in self.titles], dtype=pl.String)
            columns["title"] = titles.gather(pairs.col)
        names = self._column_names(columns)
        return pl.DataFrame({names[role]: column for role, column in columns.items()})

    def _column_names(self, roles: Iterable[str]) -> dict[str, str]:
        """Return the names that the columns had in the table that was read; the roles if names clash."""
        known = {} if self.origin is None else self.origin.columns
        names = {role: known.get(role, role) for role in roles}
        return names if len(set(names.values())) == len(names) else {role: role for role in roles}

    def filtered(
        self, *, max_history: int | None = None, min_users: int = 0, min_items: int = 0
    ) -> "Interactions":
        """Leave out users with giant histories, rare items and users with few items.

        Users with more than `max_history` items go first, then items with fewer than `min_users` users, then
        users with fewer than `min_items` items. Each rule is applied once.
        """
        min_users = check_count("min_users", min_users, least=0)
        min_items = check_count("min_items", min_items, least=0)
        if max_history is None and not min_users and not min_items:
            return self
        user = np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.matrix.indptr))
        keep, left_out = filter_pairs(
            user, self.matrix.indices, max_history=max_history, min_users=min_users, min_items=min_items
        )
        if not left_out:
            return self
        kept = self._with_pairs(*keep_pairs(self.matrix, self.users, self.items, self.titles, keep))
        limits = {"max_history": max_history, "min_users": min_users, "min_items": min_items}
        set_limits = {name: int(limit) for name, limit in limits.items() if limit}
        origin = self.origin or Origin.of_matrix(self.matrix.data, self.users, self.items)
        rules = {**origin.rules, **set_limits}
        return kept.replace(
            left_out=left_out,
            origin=replace(origin.only(keep), rules=rules, is_matrix=False),
            features=None if self.features is None else self.features.over(kept.items),
        )

    def _with_pairs(self, matrix: sp.csr_array, users: Ids, items: Ids, titles: Any) -> "Interactions":
        """Return other pairs that were read in the same way, without features."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)[4:]}
        return Interactions(matrix, users, items, titles, copy=False).replace(**{**kept, "features": None})

    def with_table(self, table: ItemTable) -> "Interactions":
        """Return these interactions with an item table, which a model keeps; it may give them titles."""
        titles = table.titles_for(self.items, self.titles, is_new=table is not self.table)
        return self.replace(table=table, titles=titles)

    def with_features(self, features: ItemFeatures) -> "Interactions":
        """Return these interactions with features of their items, for `MRF.fit`.

        Items of the table that nobody has used are appended. Raises if no used item has features.
        """
        if not isinstance(features, ItemFeatures):
            kind = type(features).__name__
            raise DataError(f"features must be what read_item_features returns; got {kind}.")
        features = features.with_ids_like(self.items)
        indices = self.items.find(list(features.items), "item")
        if not (indices >= 0).any():
            raise DataError(
                "the table of features names none of the items that were used: are the ids the same?"
            )
        new = np.flatnonzero(indices < 0)
        used = int(self.used[indices[indices >= 0]].sum())
        unused = len(indices) - used
        _log.info("the table has %s used items, and %s that nobody has used", f"{used:,}", f"{unused:,}")
        items = self.items if not len(new) else Ids.of([*self.items, *features.items.take(new)], "item")
        titles = [*(self.titles or [""] * self.n_items), *[""] * len(new)]
        indices = items.find(list(features.items), "item")
        for index, title in zip(indices, features.titles or (), strict=False):
            titles[index] = titles[index] or title
        X = self.matrix
        wide = sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], len(items)))
        out = self._with_pairs(wide, self.users, items, titles)
        return out.replace(features=features.over(items), table=features.table or self.table)

    def without_unused_items(self) -> "Interactions":
        """Return these interactions without items that nobody has used, and without features."""
        if self.used.all():
            return self
        keep = np.ones(len(self), np.bool_)
        return self._with_pairs(*keep_pairs(self.matrix, self.users, self.items, self.titles, keep))

    @cached_property
    def popularity(self) -> npt.NDArray[np.int64]:
        """Number of users of each item; users who dislike it, with a value below 0, do not count."""
        return popularity_of(self.matrix)

    @cached_property
    def used(self) -> npt.NDArray[np.bool_]:
        """Boolean per item: at least one user has it, as a like or a dislike."""
        return np.bincount(self.matrix.indices, minlength=self.n_items) > 0

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all ids, pairs, values and times, which identifies the data of a model."""
        digest = hashlib.blake2b(digest_size=16)
        for ids in (self.users, self.items):
            values: Any = ids.values
            parts = [values.ptr, values.data] if ids.is_text else [values]
            digest.update(f"{len(ids)} {ids.is_text} {parts[0].dtype.kind}".encode())
            for part in parts:
                digest.update(np.ascontiguousarray(part).data)
        binary = bool((self.matrix.data == 1).all())
        columns: list[tuple[Any, Any]] = [(self.matrix.indptr, np.int64), (self.matrix.indices, np.int32)]
        columns += [] if binary else [(self.matrix.data, np.float64)]
        # Times count also if all are equal.
        if self.origin is not None and self.origin.times is not None:
            columns.append((self.origin.times, np.int64))
        for array, kind in columns:
            # Piece by piece, so that there is no second copy of the data.
            for start in range(0, len(array), 1 << 20):
                digest.update(np.ascontiguousarray(array[start : start + (1 << 20)], kind).data)
        return digest.hexdigest()


def _titles(titles: Iterable[str | None] | Mapping[Any, str] | Texts | None, items: Ids) -> Texts | None:
    if titles is None:
        return None
    if isinstance(titles, str | bytes) or not isinstance(titles, Iterable):
        raise DataError(f"titles must be a list or a mapping from item ids; got {type(titles).__name__}.")
    by_item: Any = titles if isinstance(titles, Texts) else list(titles)
    if isinstance(titles, Mapping):
        by_item = [titles.get(item) for item in items]
        if titles and len(items) and not any(item in titles for item in items):
            raise DataError("titles names none of the items: are the ids the same?")
    if len(by_item) != len(items):
        raise DataError(f"titles must be one for each of the {len(items):,} items; got {len(by_item):,}.")
    if isinstance(by_item, Texts):
        return by_item
    odd = next((title for title in by_item if title is not None and not isinstance(title, str)), None)
    if odd is not None:
        raise DataError(f"titles must be strings or None; got {odd!r}.")
    return Texts.of(title or "" for title in by_item) if any(by_item) else None


def as_histories(X: Any, name: str) -> sp.csr_array:
    """Convert to a canonical, finite, real CSR array: rows sorted, duplicates summed, no explicit zeros.

    The caller's matrix never changes. If it is canonical already, the result shares its arrays.
    """
    if not sp.issparse(X):
        raise DataError(
            f"{name} must be a scipy.sparse matrix of users × items; got {type(X).__name__}. "
            "Wrap a dense array in scipy.sparse.csr_array(...)."
        )
    if X.ndim != 2:
        raise DataError(f"{name} must have two dimensions, users × items; got {X.ndim}.")
    if X.dtype.kind not in "buif":
        raise DataError(f"{name} must hold real numbers or booleans; got {X.dtype}.")
    stored = X.nnz
    is_whole = X.dtype.kind in "iu"
    try:
        if hasattr(X, "check_format"):
            # No index may be used before this check.
            X.check_format(full_check=True)
        if X.format != "csr" and is_whole:
            # Sums of integers could wrap around.
            X = X.astype(np.float64)
        matrix = sp.csr_array(X)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{name} is not a valid CSR matrix: {error}.") from error
    if not matrix.has_canonical_format:
        matrix = matrix.astype(np.float64 if is_whole else matrix.dtype, copy=True)
        matrix.sum_duplicates()
    if is_whole and matrix.nnz < stored and float(np.abs(matrix.data).max(initial=0)) >= _EXACT:
        raise DataError(
            f"{name} has several integers for one user and item, and some add up to 2**53 or more, which is "
            "not exact. Scale them, or combine them first."
        )
    if matrix.dtype.kind == "f" and not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], "right")) - 1
        raise DataError(f"{name} must be finite; row {row} holds NaN or infinity. Drop or fill such entries.")
    if matrix.nnz and np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def _check_single_precision(matrix: sp.csr_array) -> None:
    """Refuse values that single precision turns into infinity or 0, as reading does."""
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize <= 4:
        return
    with np.errstate(over="ignore", under="ignore"):
        single = matrix.data.astype(np.float32)
    beyond = np.flatnonzero(~np.isfinite(single) | (single == 0))
    if len(beyond):
        row = int(np.searchsorted(matrix.indptr, beyond[0], "right")) - 1
        raise DataError(
            f"matrix must hold values within single precision, 1e-45 to 3e38; row {row} holds "
            f"{matrix.data[beyond[0]]:g}. Multiply all values by a constant."
        )


def popularity_of(matrix: sp.csr_array) -> npt.NDArray[np.int64]:
    """Return the number of stored values above 0 in each column: a dislike makes no item popular."""
    likes = matrix.data > 0
    items = matrix.indices if likes.all() else matrix.indices[likes]
    return np.bincount(items, minlength=matrix.shape[1])


def keep_pairs(
    matrix: sp.csr_array, users: Ids, items: Ids, titles: Texts | None, keep: npt.NDArray[np.bool_]
) -> tuple[sp.csr_array, Ids, Ids, Texts | None]:
    """Keep some of the stored entries, and the users and items that still have an entry."""
    matrix = only_entries(matrix, keep)
    used = np.flatnonzero(np.diff(matrix.indptr))
    if len(used) < len(users):
        matrix = matrix[used]
        users = users.subset(used)
    used = np.flatnonzero(np.bincount(matrix.indices, minlength=len(items)))
    if len(used) < len(items):
        matrix = matrix[:, used]
        items = items.subset(used)
        titles = None if titles is None else Texts.of(titles.take(used))
    return matrix, users, items, titles


def filter_pairs(
    user: Indices, item: Indices, *, max_history: int | None, min_users: int, min_items: int
) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
    """Return a mask of the pairs that `Interactions.filtered` keeps, and what each rule left out.

    Each rule is applied once, so an item may end up with fewer than `min_users` users. No pair may occur
    twice.
    """
    if max_history is not None:
        max_history = check_count("max_history", max_history)
    min_users = check_count("min_users", min_users, least=0)
    min_items = check_count("min_items", min_items, least=0)
    keep = np.ones(len(user), np.bool_)
    left_out: dict[str, int] = {}
    limits: list[str] = []
    for name, ids, limit, fails, rule in (
        ("max_history", user, max_history, np.greater, "users with more than {:,} items"),
        ("min_users", item, min_users, np.less, "items with fewer than {:,} users"),
        ("min_items", user, min_items, np.less, "users with fewer than {:,} items"),
    ):
        # A user or item of a pair has at least one pair anyway.
        if limit and (limit > 1 or fails is np.greater):
            counts = np.bincount(ids, weights=keep)
            drop = (counts > 0) & fails(counts, limit)
            keep &= ~drop[ids]
            if drop.any():
                left_out[rule.format(limit)] = int(drop.sum())
                limits.append(f"{name}={limit} (--{name.replace('_', '-')})")
    if not keep.any():
        raise DataError(
            f"no interactions are left without {', '.join(left_out)}. Relax {' or '.join(limits)}."
        )
    for rule, count in left_out.items():
        # The rule begins with "users" or "items".
        noun, _, why = rule.partition("s ")
        _log.info("left out %s %s", counted(count, noun), why)
    return keep, left_out
