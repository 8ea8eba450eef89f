"""Interactions: a matrix of users × items and the names of its rows and columns."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.errors import DataError
from mrfrec.ids import Id, Ids, Texts

__all__ = ["Interactions", "as_histories"]


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
            parts = [ids.values.ptr, ids.values.data] if isinstance(ids.values, Texts) else [ids.values]
            digest.update(f"{len(ids)} {ids.is_text}".encode())
            for part in parts:
                digest.update(np.ascontiguousarray(part).data)
        binary = bool((self.matrix.data == 1).all())
        columns = [(self.matrix.indptr, np.int64), (self.matrix.indices, np.int32)]
        for array, kind in columns if binary else [*columns, (self.matrix.data, np.float64)]:
            for start in range(0, len(array), 1 << 20):  # a piece at a time: no second copy of the data
                digest.update(np.ascontiguousarray(array[start : start + (1 << 20)], kind).data)
        return digest.hexdigest()


def _titles(titles: Iterable[str | None] | Mapping[Any, str] | Texts | None, items: Ids) -> Texts | None:
    if titles is None or isinstance(titles, Texts):
        return titles
    given = [titles.get(item) for item in items] if isinstance(titles, Mapping) else list(titles)
    if len(given) != len(items):
        raise DataError(f"titles must be one for each of the {len(items):,} items; got {len(given):,}.")
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
    if X.format != "csr" and X.dtype.kind in "iu":
        X = X.astype(np.int64)  # or sums of duplicates could wrap around
    try:
        matrix = sp.csr_array(X)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{name} is not a valid CSR matrix: {error}.") from error
    if matrix.dtype.kind == "f" and not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], "right")) - 1
        raise DataError(f"{name} must be finite; row {row} holds NaN or infinity. Drop or fill such entries.")
    if not matrix.has_canonical_format:
        matrix = matrix.astype(np.int64, copy=True) if matrix.dtype.kind in "iu" else matrix.copy()
        matrix.sum_duplicates()
    if matrix.nnz and np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix
