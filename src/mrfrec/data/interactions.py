"""Interactions: a matrix of users × items and the names of its rows and columns."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.errors import DataError

__all__ = ["Interactions", "as_histories", "combined", "kept"]


class Interactions:
    """Who used what: a CSR matrix, the ids of its users and items, and titles of the items where known.

    Parameters
    ----------
    matrix
        `scipy.sparse`, users × items.
    users, items
        The ids of its rows and columns, all integers or all strings; 0, 1, 2, … if None.
    titles
        One per item (None or "" where there is none), or a mapping from item id to title.

    Attributes
    ----------
    matrix
        A canonical `csr_array`: sorted, no duplicates, no zeros, all finite.
    users, items
        `Ids`: sequences that also find positions by id.
    titles
        A sequence of one string per item, "" where there is none; None if no item has one.
    skipped
        Rows of the table that were left out with `on_bad="skip"`: a count for each reason.
    library
        The data frame library the interactions came from, in which results go back; None for files.
    """

    matrix: "sp.csr_array"
    users: Ids
    items: Ids
    titles: Texts | None
    skipped: dict[str, int]
    library: str | None

    def __init__(
        self,
        matrix: object,
        users: Iterable[Id] | Ids | None = None,
        items: Iterable[Id] | Ids | None = None,
        titles: Iterable[str | None] | Mapping[Any, str] | Texts | None = None,
    ) -> None:
        self.matrix = as_histories(matrix, "matrix")
        n, m = self.matrix.shape
        self.users = Ids.range(n) if users is None else Ids.of(users, "user")
        self.items = Ids.range(m) if items is None else Ids.of(items, "item")
        for name, ids, count in (("users", self.users, n), ("items", self.items, m)):
            if len(ids) != count:
                raise DataError(f"{name} must have one id for each of the {count:,}; got {len(ids):,}.")
        self.titles = _titles(titles, self.items)
        self.skipped = {}
        self.library = None

    @property
    def n_users(self) -> int:
        """Rows."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Columns."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        titled = ", with titles" if self.titles is not None else ""
        return f"Interactions({self.n_users:,} users × {self.n_items:,} items, {len(self):,} pairs{titled})"

    @cached_property
    def popularity(self) -> npt.NDArray[np.int64]:
        """Users of each item."""
        return np.bincount(self.matrix.indices, minlength=self.n_items)

    @cached_property
    def fingerprint(self) -> str:
        """A text that changes when any id, pair or value does: which data a model was trained on."""
        digest = hashlib.blake2b(digest_size=16)
        for ids in (self.users, self.items):
            values: Any = ids.values
            parts = [values.ptr, values.data] if ids.is_text else [values]
            digest.update(f"{len(ids)} {ids.is_text} {parts[0].dtype.kind}".encode())
            for part in parts:
                digest.update(np.ascontiguousarray(part).data)
        binary = bool((self.matrix.data == 1).all())
        columns = [(self.matrix.indptr, np.int64), (self.matrix.indices, np.int32)]
        for array, kind in columns if binary else [*columns, (self.matrix.data, np.float64)]:
            for start in range(0, len(array), 1 << 20):  # a piece at a time: no second copy of the data
                digest.update(np.ascontiguousarray(array[start : start + (1 << 20)], kind).data)
        return digest.hexdigest()


def _titles(titles: Iterable[str | None] | Mapping[Any, str] | Texts | None, items: Ids) -> Texts | None:
    if titles is None:
        return None
    if isinstance(titles, str | bytes) or not isinstance(titles, Iterable):
        raise DataError(f"titles must be a list or a mapping from item ids; got {type(titles).__name__}.")
    given: Any = titles
    if isinstance(titles, Mapping):
        given = [titles.get(item) for item in items]
        if titles and len(items) and not any(item in titles for item in items):
            raise DataError("titles names none of the items: are the ids the same?")
    elif not isinstance(titles, Texts):
        given = list(titles)
    if len(given) != len(items):
        raise DataError(f"titles must be one for each of the {len(items):,} items; got {len(given):,}.")
    if isinstance(given, Texts):
        return given
    odd = next((title for title in given if title is not None and not isinstance(title, str)), None)
    if odd is not None:
        raise DataError(f"titles must be strings or None; got {odd!r}.")
    return Texts.of(title or "" for title in given) if any(given) else None


def as_histories(X: Any, name: str) -> sp.csr_array:
    """X as a canonical, finite, real CSR array: rows sorted, duplicates summed, no explicit zeros.

    The caller's matrix is never changed; where it is canonical already, its arrays are shared.
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
    try:
        if hasattr(X, "check_format"):
            X.check_format(full_check=True)  # before anything follows its indices
        if X.format != "csr" and X.dtype.kind in "iu":
            X = X.astype(np.int64 if X.dtype != np.uint64 else np.float64)  # or sums could wrap around
        matrix = sp.csr_array(X)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{name} is not a valid CSR matrix: {error}.") from error
    if not matrix.has_canonical_format:
        wide = {"i": np.int64, "u": np.float64 if matrix.dtype == np.uint64 else np.int64}
        matrix = matrix.astype(wide.get(matrix.dtype.kind, matrix.dtype), copy=True)
        matrix.sum_duplicates()
    if matrix.dtype.kind == "f" and not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], "right")) - 1
        raise DataError(f"{name} must be finite; row {row} holds NaN or infinity. Drop or fill such entries.")
    if matrix.nnz and np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def combined(
    rows: npt.NDArray[np.int32],
    columns: npt.NDArray[np.int32],
    data: npt.NDArray[Any],
    users: Ids,
    items: Ids,
    duplicates: str,
) -> sp.csr_array:
    """Users × items out of pairs; for several of one user and item: the "sum", the "last", or an "error"."""
    shape = (len(users), len(items))
    if duplicates == "last" and data.dtype != np.bool_:
        pair = rows.astype(np.int64) * shape[1] + columns
        order = np.argsort(pair, kind="stable")
        last = order[np.append(pair[order[1:]] != pair[order[:-1]], True)]
        rows, columns, data = rows[last], columns[last], data[last]
    matrix = sp.coo_array((data, (rows, columns)), shape=shape).tocsr()
    if duplicates == "error" and matrix.nnz < len(rows):
        pair = np.sort(rows.astype(np.int64) * shape[1] + columns)
        u, i = divmod(int(pair[1:][pair[1:] == pair[:-1]][0]), shape[1])
        raise DataError(
            f"the table has {len(rows) - matrix.nnz:,} rows too many: user {users[u]!r} has item "
            f'{items[i]!r} more than once. Combine them with duplicates="sum" or "last".'
        )
    if data.dtype == np.float32 and matrix.nnz < len(rows) and not _is_exact(data, matrix.data):
        matrix = _summed(rows, columns, data, shape)
        if not np.isfinite(matrix.data).all():
            place = int(np.flatnonzero(~np.isfinite(matrix.data))[0])
            u, i = int(np.searchsorted(matrix.indptr, place, "right")) - 1, int(matrix.indices[place])
            raise DataError(
                f"the values of user {users[u]!r} and item {items[i]!r} add up to more than single precision "
                "holds. Scale them."
            )
    return matrix if data.dtype == np.bool_ else matrix.astype(np.float32, copy=False)


def _is_exact(data: npt.NDArray[np.float32], sums: npt.NDArray[np.float32]) -> bool:
    """Whether nothing was rounded: counts, ratings and the like, in whatever order they were added."""
    parts = next((p for p in (1, 64) if not np.any(data * np.float32(p) % 1)), None)
    return parts is not None and bool(data.min() >= 0 and sums.max() < 2**24 / parts)


def _summed(
    rows: npt.NDArray[np.int32],
    columns: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
    shape: tuple[int, int],
) -> sp.csr_array:
    """Values of one pair added up so that the order of the rows changes nothing, not even the last bit."""
    order = np.lexsort((data, columns, rows))
    rows, columns, data = rows[order], columns[order], data[order]
    new = np.append(True, (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1]))
    sums = np.add.reduceat(data, np.flatnonzero(new), dtype=np.float64)
    with np.errstate(over="ignore"):
        sums = sums.astype(np.float32)
    return sp.coo_array((sums, (rows[new], columns[new])), shape=shape).tocsr()


def kept(
    matrix: sp.csr_array,
    users: Ids,
    items: Ids,
    titles: Texts | None,
    min_value: float | None,
    binary: bool,
) -> tuple[sp.csr_array, Ids, Ids, Texts | None]:
    """Without values below the least, or of 0 where values count, and users and items with nothing left."""
    keep = np.ones(matrix.nnz, np.bool_) if binary else matrix.data != 0
    if min_value is not None:
        keep &= matrix.data >= min_value
    if min_value is None and keep.all():
        return matrix, users, items, titles
    if not keep.any():
        reasons = [] if binary else ["0"]
        reasons += [] if min_value is None else [f"below min_value={min_value:g}"]
        raise DataError(
            f"no interactions are left: all {matrix.nnz:,} pairs have a value that is {' or '.join(reasons)}."
        )
    ends = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
    matrix = sp.csr_array((matrix.data[keep], matrix.indices[keep], ends), shape=matrix.shape)
    some_user = np.flatnonzero(np.diff(matrix.indptr))
    some_item = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]))
    if len(some_user) < len(users):
        matrix, users = matrix[some_user], users.subset(some_user)
    if len(some_item) < len(items):
        matrix, items = matrix[:, some_item], items.subset(some_item)
        titles = None if titles is None else Texts.of(titles[i] for i in some_item.tolist())
    return matrix, users, items, titles
