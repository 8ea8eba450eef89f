"""Number the ids of users and items while tables are read, and decide on their types."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import counted
from mrfrec.data.ids import Ids, Texts, cleaned_ids
from mrfrec.data.pairs import DataNote
from mrfrec.errors import DataError
from mrfrec.io.batches import DOUBTFUL, EXACT, Source, not_an_integer

# Rows that are numbered at one time, ids that an error shows, and rows from which a note tells of types.
_SLICE = 1 << 18
_SHOWN = 5
_ROWS = 10
TEXT_IDS = 'If ids are texts: ids="text" (--ids text); "users" or "items" for these alone.'
"""Advice about integers among texts."""


def note_on_floats(role: str, where: str, count: int) -> DataNote:
    """Return a note on ids that are floats: pandas turns integers into floats if one is missing."""
    text = f"{role} ids are floats in {where}, such as 1.0: they are read as integers"
    return DataNote("looks like", count, text)


def without_fractions(ids: pl.Series, role: str) -> tuple[pl.Series, DataNote | None]:
    """Return ids of a text file with 1 in place of 1.0, and a note if that changed any id."""
    whole = ids.str.strip_suffix(".0")
    floats = whole != ids
    if not floats.any():
        return whole, None
    large = floats & (whole.cast(pl.Int128, strict=False).abs() >= EXACT)
    if large.any():
        odd = ids.filter(large)[0]
        raise DataError(f"{role} id too large for a float to be exact, {odd!r}. Write it as an integer.")
    return whole, note_on_floats(role, "a text file", int(floats.sum()))


def _are_integers(ids: pl.Series) -> pl.Series:
    """Return a mask of the texts that are integers of 64 bits; 1.0 is one, 007 is not."""
    whole = ids.str.strip_suffix(".0")
    return pl.select(
        pl.any_horizontal(
            (whole.cast(kind, strict=False).cast(pl.String) == whole).fill_null(False)
            for kind in (pl.Int64, pl.UInt64)
        )
    ).to_series()


class _OddId(NamedTuple):
    """An id that is no integer, and the row in which it came first."""

    code: int
    text: str
    where: str


class IdNumbering:
    """Numbers ids in the order in which they come, and in ascending order once all are known.

    With `is_text`, ids are texts even if they look like integers. `note` tells of ids that are floats.
    """

    def __init__(self, role: str, *, is_text: bool = False) -> None:
        self.role = role
        self.note: DataNote | None = None
        # Whether the ids of earlier data are texts. Integers among texts are no doubt then.
        self.joins_texts = False
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]
        self._is_text = is_text
        # Type → the first column that had it.
        self._types: dict[str, str] = {"strings": f'ids="{role}s"'} if is_text else {}
        # polars numbers the strings. It forgets the numbers when no column has the type any more.
        self.texts = pl.Series(dtype=pl.Categorical(pl.Categories.random()))
        # Whether a number was looked at, and the first ids that are no integers.
        self._seen = np.zeros(0, np.bool_)
        self._odd: list[_OddId] = []

    def encode(
        self, ids: pl.Series, table: Source, name: str, rows: pl.Series | None = None
    ) -> npt.NDArray[np.int32]:
        """Return the number of each id in the column `name` of a table; `rows` has the row numbers."""
        is_integer = ids.dtype.is_integer()
        if not (table.is_text or self._is_text):
            where = f"column {name!r} of {table.name}"
            self._types.setdefault("integers" if is_integer else "strings", where)
            if len(self._types) == 2:
                self._refuse(self._types["strings"])
        texts = ids.cast(pl.String) if is_integer else ids
        codes = texts.cast(self.texts.dtype).to_physical().to_numpy().astype(np.int32)
        is_known = is_integer or self._is_text or self.joins_texts
        if not (is_known or rows is None) and len(self._odd) < _SHOWN:
            self._look_for_odd(codes, rows.to_numpy(), table)
        return codes

    def _look_for_odd(self, codes: npt.NDArray[np.int32], rows: npt.NDArray[Any], table: Source) -> None:
        """Keep the first ids that are no integers, for an error in case that nearly all ids are integers."""
        there = np.zeros(max(int(codes.max()) + 1, len(self._seen)), np.bool_)
        there[codes] = True
        there[: len(self._seen)] &= ~self._seen
        new = np.flatnonzero(there)
        self._seen = np.append(self._seen, np.zeros(len(there) - len(self._seen), np.bool_))
        self._seen[new] = True
        there[new] = ~_are_integers(self.texts_of(new)).to_numpy()
        for i in np.flatnonzero(there[codes])[:_SHOWN].tolist():
            code = int(codes[i])
            text = str(self.texts_of(np.array([code]))[0])
            self._odd.append(_OddId(code, text, f"{table.name}, row {int(rows[i]):,}"))

    def texts_of(self, codes: npt.NDArray[Any]) -> pl.Series:
        """Return the ids of some numbers as texts."""
        texts = pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String)
        return cleaned_ids(texts)

    def doubtful(self, column: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the few rows whose ids are no integers while nearly all ids are; None without."""
        if not self._odd:
            return None
        counts = np.bincount(column)
        codes = np.flatnonzero(counts)
        odd = codes[~_are_integers(self.texts_of(codes)).to_numpy()]
        if not 0 < counts[odd].sum() <= DOUBTFUL * len(column):
            return None
        is_odd = np.zeros(len(counts), np.bool_)
        is_odd[odd] = True
        return is_odd[column]

    def refusal(self, doubtful: npt.NDArray[np.bool_], column: npt.NDArray[np.int32]) -> DataError:
        """Return the error that names the rows whose ids are no integers."""
        left = set(column[doubtful].tolist())
        kept = [odd for odd in self._odd if odd.code in left] or self._odd
        first, *others = kept[:_SHOWN]
        more = f" ({', '.join(f'{odd.text!r} in {odd.where}' for odd in others)})" if others else ""
        count = f"{int(doubtful.sum()):,} of {counted(len(column), 'row')}{more}"
        return DataError(
            f"{first.where}: {not_an_integer(self.role)}, {first.text!r}. So it is in {count}. Correct them, "
            f'or leave such rows out: on_bad="skip" of read_interactions (--on-bad skip). {TEXT_IDS}'
        )

    def finish(self, column: npt.NDArray[np.int32]) -> None:
        """Number the ids 0, 1, 2, … in ascending order, and put the new numbers into the column."""
        counts = np.bincount(column)
        used = counts > 0
        # Ids of rows that were all left out get no number.
        codes = np.flatnonzero(used)
        ids = self.texts_of(codes)
        if "strings" not in self._types:
            ids = self._as_integers(ids, counts[codes])
        order = ids.arg_sort()
        ids = ids.gather(order)
        self.rank = np.full(len(used), -1, np.int32)
        # 1 and 1.0 are the same id.
        ranks = ids.rle_id().to_numpy()
        self.rank[codes[order.to_numpy()]] = ranks
        for start in range(0, len(column), _SLICE):
            column[start : start + _SLICE] = self.rank[column[start : start + _SLICE]]
        ids = ids if ranks[-1] == len(ids) - 1 else ids.unique(maintain_order=True)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        del self.texts

    def _as_integers(self, ids: pl.Series, rows: npt.NDArray[np.int64]) -> pl.Series:
        """Return integers if all texts are integers; otherwise texts, unless a column had integers.

        `rows` has the number of rows of each id.
        """
        odd = pl.repeat(True, len(ids), eager=True)
        whole = ids.str.strip_suffix(".0")
        for kind in (pl.Int64, pl.UInt64):
            numbers = whole.cast(kind, strict=False)
            fits = (numbers.cast(pl.String) == whole).fill_null(False)
            if fits.all():
                if (whole != ids).any():
                    _, self.note = without_fractions(ids, self.role)
                    # 1.0 is no string id.
                    self._types.setdefault("integers", "a text file")
                return numbers
            odd &= ~fits
        others = ids.filter(odd)
        if "integers" in self._types:
            if not len(others):
                raise DataError(f"{self.role} ids are both below 0 and above 2**63. Make them strings.")
            self._refuse(f"a text file, such as {others[0]!r}")
        count, total = int(rows[odd.to_numpy()].sum()), int(rows.sum())
        if 0 < 2 * count <= total >= _ROWS and not self.joins_texts:
            text = (
                f"{self.role} ids are read as texts: in {count:,} of {total:,} rows they are no integers "
                f"({others[0]!r}), in the others they are. Correct them if they are wrong. {TEXT_IDS}"
            )
            self.note = DataNote("looks like", count, text)
        return ids

    @property
    def type(self) -> str:
        """The type of the ids: "integers", "strings", or "untyped" if they were read from text only."""
        return next(iter(self._types), "untyped")

    def _refuse(self, strings: str) -> None:
        integers = self._types["integers"]
        strings = "other rows" if strings == integers else strings
        raise DataError(
            f"{self.role} ids are integers in {integers}, and strings in {strings}. Make them the same: "
            "convert the integers to strings, or the other way round."
        )
