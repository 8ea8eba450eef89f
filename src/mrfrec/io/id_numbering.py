"""Number the ids of users and items while tables are read."""

import logging

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import warn
from mrfrec.data.ids import Ids, Texts
from mrfrec.errors import DataError
from mrfrec.io.batches import EXACT, Source

_log = logging.getLogger("mrfrec")

_SLICE = 1 << 18  # rows that are numbered at one time


def warn_of_floats(role: str, where: str) -> None:
    """Warn of ids that are floats: pandas turns integers into floats if one is missing."""
    warn(f"{role} ids are floats in {where}, such as 1.0: they are read as integers.")


def without_fractions(ids: pl.Series, role: str) -> pl.Series:
    """Return ids of a text file with 1 in place of 1.0; warn if there are any such."""
    whole = ids.str.strip_suffix(".0")
    floats = whole != ids
    if floats.any():
        large = floats & (whole.cast(pl.Int128, strict=False).abs() >= EXACT)
        if large.any():
            odd = ids.filter(large)[0]
            raise DataError(f"{role} id too large for a float to be exact, {odd!r}. Write it as an integer.")
        warn_of_floats(role, "a text file")
    return whole


class IdNumbering:
    """Numbers ids in the order in which they come, and in ascending order once all are known."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]
        self._types: dict[str, str] = {}  # type of ids → the first column that has it
        # polars itself numbers strings; it forgets the numbers when no column has the type any more.
        self.texts = pl.Series(dtype=pl.Categorical(pl.Categories.random()))

    def encode(self, ids: pl.Series, table: Source, name: str) -> npt.NDArray[np.int32]:
        """Return the number of each id, given the table and the name of its column."""
        is_integer = ids.dtype.is_integer()
        if not table.is_text:
            where = f"column {name!r} of {table.name}"
            self._types.setdefault("integers" if is_integer else "strings", where)
            if len(self._types) == 2:
                self._refuse(self._types["strings"])
        texts = ids.cast(pl.String) if is_integer else ids
        return texts.cast(self.texts.dtype).to_physical().to_numpy().astype(np.int32)

    def texts_of(self, codes: npt.NDArray[np.int64]) -> list[str]:
        """Return the ids of these numbers as they were read."""
        return pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String).to_list()

    def finish(self, column: npt.NDArray[np.int32]) -> None:
        """Number the ids 0, 1, 2, … in ascending order, and replace the numbers in the column by these."""
        used = np.zeros(int(column.max()) + 1, np.bool_)
        used[column] = True
        codes = np.flatnonzero(used)  # without ids that occur in no row that was kept
        ids = pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String)
        if "strings" not in self._types:
            ids = self._as_integers(ids)
        order = ids.arg_sort()
        ids = ids.gather(order)
        self.rank = np.full(len(used), -1, np.int32)
        places = ids.rle_id().to_numpy()  # 1 and 1.0 are one id
        self.rank[codes[order.to_numpy()]] = places
        for start in range(0, len(column), _SLICE):
            column[start : start + _SLICE] = self.rank[column[start : start + _SLICE]]
        ids = ids if places[-1] == len(ids) - 1 else ids.unique(maintain_order=True)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        del self.texts

    def _as_integers(self, ids: pl.Series) -> pl.Series:
        """Return integers if all texts are integers; else the texts, provided that no column had integers."""
        odd = pl.repeat(True, len(ids), eager=True)
        whole = ids.str.strip_suffix(".0")
        for kind in (pl.Int64, pl.UInt64):
            numbers = whole.cast(kind, strict=False)
            fits = (numbers.cast(pl.String) == whole).fill_null(False)
            if fits.all():
                if (whole != ids).any():
                    without_fractions(ids, self.role)
                    self._types.setdefault("integers", "a text file")  # 1.0 is no string id
                return numbers
            odd &= ~fits
        others = ids.filter(odd)
        if "integers" in self._types:
            if not len(others):
                raise DataError(f"{self.role} ids are both below 0 and above 2**63. Make them strings.")
            self._refuse(f"a text file, such as {others[0]!r}")
        if 0 < 2 * len(others) < len(ids):
            _log.info(
                "%s ids are strings, since %s of %s are not integers; the first is %r",
                self.role, f"{len(others):,}", f"{len(ids):,}", others[0],
            )  # fmt: skip
        return ids

    @property
    def kind(self) -> str:
        """The type of the ids: "integers", "strings", or "untyped" if they were read from text only."""
        return next(iter(self._types), "untyped")

    def _refuse(self, strings: str) -> None:
        integers = self._types["integers"]
        strings = "other rows" if strings == integers else strings
        raise DataError(
            f"{self.role} ids are integers in {integers}, and strings in {strings}. Make them the same: "
            "convert the integers to strings, or the other way round."
        )
