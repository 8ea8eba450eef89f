"""What a column looks like that was only recognised, or not used: ratings, returns, labels, no titles."""

import numpy as np
import polars as pl

from mrfrec.data.notes import DataNote
from mrfrec.data.times import Times, shown

RATINGS = ("rating", "ratings", "stars", "score")
"""Names of columns whose small numbers are ratings rather than counts."""
_FEW_TITLES = 2  # values of a column that is no title, where there are more items
_DIFFERENT = 0.1  # share of items within which a column may differ and still be a title
_ROWS = 10  # from which one value in all of them is odd
_IN_1990 = int(np.datetime64("1990-01-01", "us").astype(np.int64))
_MINUTE = 60_000_000


class UnusedValues:
    """The range of the values of a column that no option uses."""

    def __init__(self, name: str, table: str, counts: str) -> None:
        self.column = f"column {name!r} of {table}"
        self.may_be_ratings = False  # whether its name is one of ratings
        self._name = name
        self._counts = counts  # what each row counts
        self._count = self._zeros = self._negative = self._ones = 0
        self._least, self._most = np.inf, -np.inf
        self._are_halves = True

    def add(self, raw: pl.Series) -> None:
        if raw.dtype == pl.String:
            raw = raw.str.strip_chars()
        if not (raw.dtype.is_numeric() or raw.dtype in (pl.String, pl.Boolean)):
            return
        values = raw.cast(pl.Float64, strict=False).drop_nulls().drop_nans().to_numpy()
        self._count += len(values)
        self._zeros += int((values == 0).sum())
        self._ones += int((values == 1).sum())
        self._negative += int((values < 0).sum())
        self._least = min(self._least, float(values.min(initial=np.inf)))
        self._most = max(self._most, float(values.max(initial=-np.inf)))
        self._are_halves = self._are_halves and bool((values * 2 == np.floor(values * 2)).all())

    def note(self) -> DataNote | None:
        """Return a note if counting every row as a like seems wrong."""
        of_all = f"of {self._count:,} values"
        least, count = 1, self._zeros
        good = 4 if self._most <= 5 else 8  # rating of what is liked
        if self._zeros and self._zeros + self._ones == self._count and self._ones:
            seems = f"looks like labels: {self._zeros:,} {of_all} are 0, the others 1"
        elif self._negative:
            count = self._negative
            seems = f"looks like one with returns or dislikes: {self._negative:,} {of_all} are below 0"
        elif (
            self.may_be_ratings
            and self._are_halves
            and self._least < min(good, self._most)
            and self._most <= 10
        ):
            least, count = good, self._count
            seems = f"looks like ratings from {self._least:g} to {self._most:g}"
        elif self._zeros:
            seems = f"has values of 0: {self._zeros:,} {of_all}"
        else:
            return None
        return DataNote("looks like", count, f"{self.column} {seems}, but {self.ways(least)}")

    def ways(self, least: int = 1) -> str:
        """Say what the rows count, and what else they may."""
        return (
            f"every row counts {self._counts}. To count only good ones: value={self._name!r}, "
            f"min_value={least} (--value-column, --min-value). If every row is one: value=False "
            "(--value-column no)."
        )


def note_on_titles(column: str, titles: pl.DataFrame) -> DataNote | None:
    """Return a note if a column that was recognised is no title.

    `titles` has the first and the last title of each of these items, in alphabetical order.
    """
    if not len(titles):
        return None
    every = pl.concat([titles["first"], titles["last"]]).unique()
    different = int((titles["first"] != titles["last"]).sum())
    if len(titles) > _FEW_TITLES and len(every) <= _FEW_TITLES:
        why = f"it has {'one value' if len(every) == 1 else 'two values'} for {len(titles):,} items"
    elif every.str.strip_chars().cast(pl.Float64, strict=False).null_count() == 0:
        why = "it holds numbers"
    elif different > _DIFFERENT * len(titles):
        why = f"it differs within {different:,} of {len(titles):,} items"
    else:
        return None
    text = (
        f"column {column!r} is not read as titles: {why}. If it holds them: title={column!r} "
        f"(--title-column). If it says who liked an item: value={column!r}, min_value=1."
    )
    return DataNote("looks like", len(titles), text)


def note_on_one_id(role: str, column: str, ids: int, rows: int) -> DataNote | None:
    """Return a note if all rows have one user, or one item."""
    if ids > 1 or rows < _ROWS:
        return None
    text = (
        f"column {column!r} has one {role} in all {rows:,} rows: does it hold the {role}s? If another column "
        f"does, name it: {role}=… (--{role}-column)."
    )
    return DataNote("looks like", rows, text)


def notes_on_times(times: Times, columns: str, *, are_numbers: bool) -> list[DataNote]:
    """Return notes on times that are early, or close to each other, as numbers are that are no times."""
    early, first, last = int((times < _IN_1990).sum()), int(times.min()), int(times.max())
    ways = "Correct them, or read none: time=False (--time-column no)."
    if are_numbers:
        ways = f"Numbers must be seconds or milliseconds since 1970; Excel writes days. {ways}"
    if early:
        count = f"{early:,} of {len(times):,} times of {columns}"
        text = f"{count} are before 1990, the first is {shown(first)}. {ways}"
        return [DataNote("looks like", early, text)]
    if are_numbers and first < last < first + _MINUTE:
        text = f"all times of {columns} are within a minute, from {shown(first)}. {ways}"
        return [DataNote("looks like", len(times), text)]
    return []
