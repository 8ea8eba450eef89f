"""Columns of numbers that grow while tables are read."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_ROOM = 1 << 23  # rows to reserve at first; memory that is not written to is not taken
_SLICE = 1 << 18  # rows that are handled at a time


class GrowingColumns:
    """Columns that grow in place, since many small arrays would leave holes in memory."""

    def __init__(self) -> None:
        self.size = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def __contains__(self, role: str) -> bool:
        return role in self._arrays

    def __getitem__(self, role: str) -> npt.NDArray[Any]:
        return self._arrays[role][: self.size]

    def append(self, rows: dict[str, npt.NDArray[Any]]) -> None:
        size = self.size + len(rows["user"])
        for role, values in rows.items():
            array = self._arrays.setdefault(role, np.empty(_ROOM, values.dtype))
            if (kind := np.result_type(array, values)) != array.dtype:
                array = self._arrays[role] = array.astype(kind)
            if size > len(array):
                array.resize(size + size // 8, refcheck=False)
            array[self.size : size] = values
        self.size = size

    def fill(self, role: str, kind: type) -> None:
        """Add a column of ones."""
        self._arrays[role] = np.ones(self.size, kind)

    def slices(self) -> Iterator[slice]:
        for start in range(0, self.size, _SLICE):
            yield slice(start, min(start + _SLICE, self.size))

    def keep(self, are_kept: Callable[[slice], npt.NDArray[np.bool_]]) -> None:
        """Keep the rows for which `are_kept` holds, and leave out the others."""
        done = 0
        for rows in self.slices():
            keep = are_kept(rows)
            count = int(keep.sum())
            for array in self._arrays.values():
                array[done : done + count] = array[rows][keep]
            done += count
        self.size = done

    def drop(self, role: str) -> None:
        self._arrays.pop(role, None)

    def release(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns, and keep no reference to them."""
        arrays, self._arrays = self._arrays, {}
        for array in arrays.values():
            array.resize(self.size, refcheck=False)
        return arrays
