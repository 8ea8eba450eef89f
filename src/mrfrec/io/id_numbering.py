"""Number the ids of users and items while tables are read."""

import logging

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.data.ids import Ids, Texts
from mrfrec.errors import DataError
from mrfrec.io.batches import INT64_MAX, Source

_log = logging.getLogger("mrfrec")

_SLICE = 1 << 18  # rows that are numbered at a time


class IdNumbering:
    """Numbers ids as they come, and 0, 1, 2, … in ascending order once all are known."""

    def __init__(self, role: str, as_text: bool) -> None:
        self.role = role
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]
        self._as_text = as_text  # some tables have no types: ids are kept as text until all are read
        self._types: dict[str, str] = {}  # type of ids → the first column that has it
        # polars numbers strings itself, and forgets the numbers with the last column that has the type.
        self.texts = pl.Series(dtype=pl.Categorical(pl.Categories.random()))
        self._numbers = pl.DataFrame(schema={"id": pl.Int64, "code": pl.UInt32})

    def encode(self, ids: pl.Series, table: Source, name: str) -> npt.NDArray[np.int32]:
        """Return the number of each id, given the table and the name of its column."""
        is_integer = ids.dtype.is_integer()
        where = f"column {name!r} of {table.name}"
        if not table.is_text:
            self._types.setdefault("integers" if is_integer else "strings", where)
            if len(self._types) == 2:
                self._refuse(self._types["strings"])
        if is_integer and not self._as_text:
            if ids.dtype == pl.UInt64 and not (ids > INT64_MAX).any():
                ids = ids.cast(pl.Int64)
            known = self._numbers
            if ids.dtype != known.schema["id"]:  # some are above the range of signed integers
                if (ids < 0).any() or (known["id"] < 0).any():
                    raise DataError(
                        f"{table.name}: {self.role} ids are both below 0 and above 2**63. Make them strings."
                    )
                ids, known = ids.cast(pl.UInt64), known.with_columns(pl.col("id").cast(pl.UInt64))
            new = ids.unique().to_frame("id").join(known, on="id", how="anti")
            codes = pl.int_range(len(known), len(known) + len(new), dtype=pl.UInt32, eager=True)
            self._numbers = pl.concat([known, new.with_columns(code=codes)])
            both = ids.to_frame("id").join(self._numbers, on="id", how="left", maintain_order="left")
            codes = both["code"]
        else:
            text = ids.cast(pl.String) if is_integer else ids
            codes = text.cast(self.texts.dtype).to_physical()
        return codes.to_numpy().astype(np.int32)

    def finish(self, column: npt.NDArray[np.int32]) -> None:
        """Number the ids in ascending order, also in the column."""
        used = np.zeros(int(column.max()) + 1, np.bool_)
        used[column] = True
        codes = np.flatnonzero(used)  # without ids that occur only in rows that were left out
        if self._as_text or "strings" in self._types:
            ids = pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String)
        else:
            ids = self._numbers["id"].gather(codes)
        if self._as_text and "strings" not in self._types:
            fit = pl.repeat(False, len(ids), eager=True)
            for kind in (pl.Int64, pl.UInt64):
                numbers = ids.cast(kind, strict=False)
                fits = (numbers.cast(pl.String) == ids).fill_null(False)
                fit |= fits
                if fits.all():
                    ids = numbers
                    break
            else:
                odd = ids.filter(~fit)
                if "integers" in self._types:
                    self._refuse(f"a text file, such as {odd.first()!r}")
                if 0 < 2 * len(odd) < len(ids):
                    _log.info(
                        "%s ids are strings, since %s of %s are not integers; the first is %r",
                        self.role, f"{len(odd):,}", f"{len(ids):,}", odd[0],
                    )  # fmt: skip
        order = ids.arg_sort()
        self.rank = np.full(len(used), -1, np.int32)
        self.rank[codes[order.to_numpy()]] = np.arange(len(ids), dtype=np.int32)
        for start in range(0, len(column), _SLICE):
            column[start : start + _SLICE] = self.rank[column[start : start + _SLICE]]
        ids = ids.gather(order)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        del self._numbers, self.texts

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
