"""Rows of a matrix as plain arrays: sparse (what scipy calls CSR) or dense.

Ranking needs no more than these, so that answering one user loads neither scipy nor numba. Rows that lie in
a file are checked against its checksums before they are read: `verify` says which are about to be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import scipy.sparse as sp

__all__ = ["DenseRows", "Rows"]

CheckSpan = Callable[[int, int], None]
"""Checks the elements from one place to another, flat."""


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
        """The arrays of a canonical CSR matrix, shared."""
        ptr = matrix.indptr.astype(np.int64, copy=False)
        return cls(ptr, matrix.indices, matrix.data, matrix.shape[1])

    @classmethod
    def empty(cls, count: int, width: int) -> "Rows":
        """Return rows without entries."""
        return cls(np.zeros(count + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), width)

    def __reduce__(self) -> tuple[Any, ...]:  # checked, and then without the check: each array once
        self.verify()
        repeated = self.values.strides == (0,)  # a single one stands for all values
        return _unpickled, (self.ptr, self.items, self.values[:1] if repeated else self.values, self.width)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def matrix(self) -> "sp.csr_array":
        """As scipy knows it; the arrays are shared where their types allow."""
        import scipy.sparse as sp

        self.verify()
        ptr = self.ptr if len(self.items) >= 2**31 else self.ptr.astype(np.int32)
        items = self.items.astype(ptr.dtype, copy=False)
        out = sp.csr_array((self.values, items, ptr), shape=(len(self), self.width))
        out.has_canonical_format = True
        return out

    def verify(self, rows: npt.NDArray[Any] | None = None) -> None:
        """Check some rows, or all, before they are read."""
        if self.check is None:
            return
        if rows is None:
            self.check(0, len(self.items))
        else:
            for start, stop in zip(self.ptr[rows].tolist(), self.ptr[rows + 1].tolist(), strict=True):
                self.check(start, stop)

    def take(self, rows: npt.NDArray[np.int64]) -> "Rows":
        """Some rows, in any order."""
        self.verify(rows)
        lengths = self.ptr[rows + 1] - self.ptr[rows]
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        source = np.repeat(self.ptr[rows] - ptr[:-1], lengths) + np.arange(ptr[-1])
        return Rows(ptr, self.items[source], self.values[source], self.width)

    def span(self, start: int, stop: int) -> "Rows":
        """The rows from start to stop, without a copy."""
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
    """All of a matrix."""

    array: npt.NDArray[Any]
    check: CheckSpan | None = None

    def __reduce__(self) -> tuple[Any, ...]:  # as for `Rows`
        self.verify()
        return DenseRows, (self.array,)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.array.shape[1])

    def matrix(self) -> npt.NDArray[Any]:
        """The array itself."""
        self.verify()
        return self.array

    def verify(self, rows: npt.NDArray[Any] | None = None) -> None:
        """Check some rows, or all, before they are read."""
        if self.check is None:
            return
        if rows is None:
            self.check(0, self.array.size)
        else:
            for row in rows:
                self.check(int(row) * self.width, (int(row) + 1) * self.width)
