"""Matrix rows as plain arrays, sparse (CSR) or dense.

Rows may lie in a mapped file, which a scipy matrix would read whole. They are checked against the checksums
of the file: call `verify` before reading `items`, `values` or `array`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

CheckSpan = Callable[[int, int], None]
"""Checks the elements `start` to `stop` of the flattened array, and raises if they are damaged."""


@dataclass(frozen=True)
class Rows:
    """Row i holds `values[ptr[i]:ptr[i+1]]` in the columns `items[ptr[i]:ptr[i+1]]`, ascending."""

    ptr: npt.NDArray[np.int64]
    items: npt.NDArray[Any]
    values: npt.NDArray[Any]
    width: int
    check: CheckSpan | None = None

    @classmethod
    def of(cls, matrix: "sp.csr_array") -> "Rows":
        """Wrap the arrays of a canonical CSR matrix without copying."""
        ptr = matrix.indptr.astype(np.int64, copy=False)
        return cls(ptr, matrix.indices, matrix.data, matrix.shape[1])

    @classmethod
    def empty(cls, count: int, width: int) -> "Rows":
        """Return rows without entries."""
        return cls(np.zeros(count + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), width)

    def __reduce__(self) -> tuple[Any, ...]:  # verified, so that a copy needs no check; no array twice
        self.verify()
        repeated = self.values.strides == (0,)  # one value in memory stands for all
        return _unpickled, (self.ptr, self.items, self.values[:1] if repeated else self.values, self.width)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def matrix(self) -> "sp.csr_array":
        """Return a `csr_array`, which shares the arrays if their types allow that."""
        self.verify()
        ptr = self.ptr if len(self.items) >= 2**31 else self.ptr.astype(np.int32)
        items = self.items.astype(ptr.dtype, copy=False)
        out = sp.csr_array((self.values, items, ptr), shape=(len(self), self.width))
        out.has_canonical_format = True
        return out

    def verify(self, rows: npt.NDArray[Any] | None = None) -> None:
        """Check these rows, or all of them."""
        if self.check is None:
            return
        if rows is None:
            self.check(0, len(self.items))
        else:
            for start, stop in zip(self.ptr[rows].tolist(), self.ptr[rows + 1].tolist(), strict=True):
                self.check(start, stop)

    def take(self, rows: npt.NDArray[np.int64]) -> "Rows":
        """Return a copy of these rows, in this order."""
        self.verify(rows)
        lengths = self.ptr[rows + 1] - self.ptr[rows]
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        source = np.repeat(self.ptr[rows] - ptr[:-1], lengths) + np.arange(ptr[-1])
        return Rows(ptr, self.items[source], self.values[source], self.width)

    @property
    def nbytes(self) -> int:
        return self.ptr.nbytes + self.items.nbytes + self.values.nbytes

    def copy(self) -> "Rows":
        """Return rows with a copy of the values."""
        return replace(self, values=self.values.copy())

    def scaled(self, factors: npt.NDArray[Any]) -> "Rows":
        """Multiply columns by factors, in place: the arrays must belong to this matrix alone."""
        self.values[:] *= factors[self.items]
        return self

    def span(self, start: int, stop: int) -> "Rows":
        """Return the rows `start` to `stop` without copying."""
        first, last = int(self.ptr[start]), int(self.ptr[stop])
        if self.check is not None:
            self.check(first, last)
        return Rows(
            self.ptr[start : stop + 1] - first, self.items[first:last], self.values[first:last], self.width
        )


def _unpickled(ptr: Any, items: Any, values: Any, width: int) -> Rows:
    return Rows(ptr, items, np.broadcast_to(values, items.shape) if len(values) == 1 else values, width)


@dataclass(frozen=True)
class DenseRows:
    """The rows of a dense matrix."""

    array: npt.NDArray[Any]
    check: CheckSpan | None = None

    def __reduce__(self) -> tuple[Any, ...]:  # verified, so that a copy needs no check
        self.verify()
        return DenseRows, (self.array,)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    def matrix(self) -> npt.NDArray[Any]:
        self.verify()
        return self.array

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def copy(self) -> "DenseRows":
        return DenseRows(self.array.copy())

    def scaled(self, factors: npt.NDArray[Any]) -> "DenseRows":
        """Multiply columns by factors, in place."""
        np.multiply(self.array, factors, out=self.array)
        return self

    def verify(self, rows: npt.NDArray[Any] | None = None) -> None:
        """Check these rows, or all of them."""
        if self.check is None:
            return
        if rows is None:
            self.check(0, self.array.size)
        else:
            for row in rows:
                self.check(int(row) * self.width, (int(row) + 1) * self.width)
