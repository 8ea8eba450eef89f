"""Read original files into `Events`, and write events to Parquet.

Text is read in chunks. Only a few numbers per kept row stay in memory, in the order of the files.
"""

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import polars as pl

from mrfrec.core.engine import Progress
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids, Texts
from mrfrec.datasets.files import Original, damage_named, open_originals
from mrfrec.datasets.registry import DataSet
from mrfrec.errors import DataError
from mrfrec.io.atomic import writing
from mrfrec.io.tables import read_events

_PIECE = 2**25  # bytes of text


class _Form(NamedTuple):
    """The format of a row."""

    separator: str
    columns: Mapping[str, type[pl.DataType]]
    header: str | None = None


_RATING = {"user": pl.Int32, "item": pl.Int32, "value": pl.Float32, "time": pl.Int64}
_FORMS = {
    "csv": _Form(",", _RATING, header="userId,movieId,rating,timestamp"),
    "dat": _Form("::", _RATING),
    "tab": _Form("\t", _RATING),
    "netflix": _Form(",", {"user": pl.Int32, "value": pl.Float32, "time": pl.Date}),  # after a line "item:"
    "triplets": _Form("\t", {"user": pl.String, "item": pl.String, "value": pl.Int32}),
}


def read_original(data_set: DataSet, source: Path, progress: Progress | None = None) -> Events:
    """Read all rows with a value above the threshold, in the order of the files; for Netflix, by movie."""
    reader = _Reader(data_set, progress)
    with damage_named(source):
        for original in open_originals(data_set, source):
            if original.is_titles:
                reader.titles = reader.titles or _read_titles(data_set, original)
            else:
                reader.read(original)
    return reader.events(source)


class _Reader:
    def __init__(self, data_set: DataSet, progress: Progress | None) -> None:
        self.titles: dict[int, str] = {}
        self._data_set, self._progress = data_set, progress
        self._form = _FORMS[data_set.form]
        self._is_netflix = data_set.form == "netflix"
        self._done = 0  # rows
        self._frames: list[pl.DataFrame] = []  # kept rows
        self._place = ""  # of the last file
        self._movies: dict[int, str] = {}  # Netflix only: movie → file
        # Strings as categories: polars keeps the mapping as long as a column has the type.
        self._types = {
            name: pl.Categorical(pl.Categories.random())
            for name, kind in self._form.columns.items()
            if kind == pl.String
        }

    def read(self, original: Original) -> None:
        place, file = original.place, original.file
        if self._place and not self._is_netflix:
            raise DataError(f"both {self._place} and {place} hold ratings: pass one of them.")
        self._place = place
        line = 0  # lines read so far
        if self._form.header is not None:
            head, line = file.readline(1000).rstrip(b"\r\n"), 1
            if head != self._form.header.encode():
                raise self._bad_line(place, line, head)
        movie: int | None = None  # movie of the following rows
        for piece in _pieces(file):
            found = self._rows(piece, movie)
            if found is None:
                raise self._first_bad_line(place, line, piece, movie)
            rows, movies = found
            for movie in movies:
                if movie in self._movies:
                    raise DataError(f"movie {movie} is in {self._movies[movie]} and again in {place}.")
                self._movies[movie] = place
            line += piece.count(b"\n")
            self._done += len(rows)
            if self._progress is not None:
                self._progress("reading", self._done, self._data_set.rows or 0)
            if self._data_set.above is not None:
                rows = rows.filter(pl.col("value") > self._data_set.above)
            if len(rows):
                small = [pl.col(name).cast(kind) for name, kind in self._types.items()]
                if self._is_netflix:
                    small.append(pl.col("time").dt.epoch("s"))
                self._frames.append(rows.drop("value").with_columns(small))

    def _rows(self, piece: bytes, movie: int | None) -> tuple[pl.DataFrame, list[int]] | None:
        """Parse a chunk into rows and the movies that start in it; None if a line is malformed."""
        if not self._is_netflix:
            rows = self._typed(piece)
            return None if rows is None else (rows, [])
        *before, last = piece.split(b":\n")
        parts, movies = [], []
        for part in before:
            text, end, number = part.rpartition(b"\n")
            if not number.isdigit() or len(number) > 9:
                return None
            parts.append(text + end)
            movies.append(int(number))
        parts.append(last)
        counts = [part.count(b"\n") for part in parts]
        rows = self._typed(b"".join(parts))
        if rows is None or (movie is None and counts[0]):
            return None
        item = np.repeat(np.array([movie or 0, *movies], np.int32), counts)
        return rows.with_columns(item=pl.Series(item)), movies

    def _typed(self, piece: bytes) -> pl.DataFrame | None:
        """Parse a chunk into rows; None if a line is malformed."""
        separator = self._form.separator
        if len(separator) > 1:  # polars supports one byte
            piece, separator = piece.replace(separator.encode(), b"\t"), "\t"
        schema = dict(self._form.columns)
        try:
            rows = pl.read_csv(piece, has_header=False, separator=separator, schema=schema, quote_char=None)
        except pl.exceptions.PolarsError:
            return None
        is_whole = len(rows) == piece.count(b"\n") and not any(column.null_count() for column in rows)
        return rows if is_whole and rows["value"].is_finite().all() else None

    def _first_bad_line(self, place: str, before: int, piece: bytes, movie: int | None) -> DataError:
        lines = piece.split(b"\n")[:-1]

        def is_bad(count: int) -> bool:
            return self._rows(b"\n".join(lines[:count]) + b"\n", movie) is None

        bad = bisect_left(range(1, len(lines)), True, key=is_bad)
        return self._bad_line(place, before + bad + 1, lines[bad])

    def _bad_line(self, place: str, number: int, line: bytes) -> DataError:
        rule = self._form.header or self._form.separator.join(self._form.columns).replace("\t", "<tab>")
        rule += ", or item:" if self._is_netflix else ""
        shown = line[:80].decode(errors="replace")
        return DataError(f"{place}, line {number:,}: it must be {rule}; got {shown!r}.")

    def events(self, source: Path) -> Events:
        """Return all rows read, each pair once; refuse incomplete data or another data set of this format."""
        data_set, count = self._data_set, len(self._movies)
        missing = next(number for number in range(1, count + 2) if number not in self._movies)
        if missing <= count:
            raise DataError(f"{source} lacks movie {missing}: {data_set.title} is incomplete.")
        if data_set.rows not in (None, self._done):
            raise DataError(
                f"{source} has {self._done:,} rows, but {data_set.title} has {data_set.rows:,}: "
                "it is another data set, or incomplete."
            )
        if not self._frames:
            raise DataError(f"{source}: none of its {self._done:,} rows passes the filter.")
        rows = pl.concat(self._frames, rechunk=True)
        self._frames.clear()
        if any(first > second for first, second in pairwise(self._movies)):
            rows = rows.sort("item", maintain_order=True)
        table = {"item": list(self.titles), "title": list(self.titles.values())}
        return read_events(rows, time=data_set.has_times, items=pl.DataFrame(table) if self.titles else None)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield chunks of whole lines, each ending with a line feed."""
    rest = b""
    while read := file.read(_PIECE):
        lines, end, rest = (rest + read).rpartition(b"\n")
        if end:
            yield (lines + end).replace(b"\r\n", b"\n")
    if rest:
        yield rest.removesuffix(b"\r") + b"\n"


def _read_titles(data_set: DataSet, original: Original) -> dict[int, str]:
    place, form = original.place, data_set.form
    try:
        text = original.file.read().decode(data_set.encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not text in {data_set.encoding}: {error}.") from error
    if form == "csv":
        rows = csv.reader(io.StringIO(text, newline=""))
        if next(rows, [])[:2] != ["movieId", "title"]:
            raise DataError(f"{place}, line 1: it must begin with movieId,title.")
        found: Iterable[tuple[int, Sequence[str]]] = ((rows.line_num, fields[:2]) for fields in rows)
    else:
        pattern = {
            "dat": "(.*?)::(.*)::.*",  # titles may contain the separator; the last field holds genres
            "tab": r"(.*?)\|(.*?)(?:\|.*)?",
            "netflix": "(.*?),.*?,(.*)",  # number, year, title
        }[form]
        # Not splitlines, which also splits at characters that are letters in other encodings.
        lines = text.removesuffix("\n").split("\n")
        matches = (re.fullmatch(pattern, line) for line in lines)
        found = ((number, match.groups() if match else ()) for number, match in enumerate(matches, 1))
    titles: dict[int, str] = {}
    for number, fields in found:
        if len(fields) != 2 or not fields[0].isdigit():
            raise DataError(f"{place}, line {number:,}: it must have an item number and a title.")
        titles[int(fields[0])] = fields[1]
    return titles


def write_events(events: Events, path: Path, titles: Path) -> None:
    """Write user, item and, if known, time (seconds since 1970) of each event; titles to their own file."""
    items, tables = _series(events.items), dict[Path, dict[str, pl.Series]]()
    if events.titles is None:
        titles.unlink(missing_ok=True)
    else:
        tables[titles] = {"item": items, "title": pl.Series(list(events.titles))}
    # Written last: its presence means that everything is there.
    tables[path] = {"user": _series(events.users).gather(events.user), "item": items.gather(events.item)}
    if events.time is not None:
        tables[path]["time"] = pl.Series(events.time).cast(pl.Int64)
    for target, columns in tables.items():
        with writing(target) as unfinished, unfinished.open("r+b") as file:
            pl.DataFrame(columns).write_parquet(file)


def _series(ids: Ids) -> pl.Series:
    return pl.Series(list(ids.values) if isinstance(ids.values, Texts) else ids.values)
