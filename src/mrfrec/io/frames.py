"""Recommendations as tables: data frames of the caller's library, or files.

A table is put together in polars a few thousand users at a time, so that a file of all users' recommendations
never lies in memory as a whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from mrfrec.data.catalogue import Catalogue, Recommendations, because_text
from mrfrec.data.ids import Ids
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import writing

__all__ = ["FILE_FORMATS", "ResultTable", "table"]

FILE_FORMATS = (".parquet", ".csv", ".jsonl")
_SOURCES = pl.Series(["popular", "model"])


_TYPES = {
    "title": pl.String, "score": pl.Float32, "rank": pl.Int32,
    "value": pl.Float64, "weight": pl.Float64, "contribution": pl.Float64,
}  # fmt: skip


def table(names: Sequence[str], rows: list[list[Any]], text_ids: bool, library: str | None) -> Any:
    """Rows as a data frame of the library (polars if None)."""
    types = {**_TYPES, "item": pl.String if text_ids else pl.Int64}
    if any(isinstance(value, int) and value >= 2**63 for row in rows for value in row):
        types["item"] = pl.UInt64
    return _to_library(
        pl.DataFrame(rows, schema={name: types[name] for name in names}, orient="row"), library
    )


def _to_library(frame: pl.DataFrame, library: Any) -> Any:
    if library in (None, "polars"):
        return frame
    columns = {
        # Without a detour through pyarrow, which not everybody with pandas has.
        column.name: column.to_numpy()
        if column.dtype.is_numeric() and not column.null_count()
        else column.to_list()
        for column in frame
    }
    try:
        return nw.from_dict(columns, backend=library).to_native()
    except (ValueError, ModuleNotFoundError):  # a library that cannot be made from columns
        return frame


class ResultTable:
    """Makes tables of user, item, title, score, rank, source [, because] out of rankings."""

    def __init__(self, catalogue: Catalogue, users: Ids, because: bool, dtype: str) -> None:
        self._items = _column(catalogue.items)
        titles = catalogue.titles
        self._titles = pl.Series(
            [None] * len(self._items) if titles is None else [title or None for title in titles],
            dtype=pl.String,
        )
        self._catalogue = catalogue
        self._schema: dict[str, Any] = {
            "user": _column(users, 0).dtype,
            "item": self._items.dtype,
            "title": pl.String,
            "score": pl.Float64 if dtype == "float64" else pl.Float32,
            "rank": pl.Int32,
            "source": pl.String,
        }
        if because:
            self._schema["because"] = pl.String

    def frame(self, pieces: Iterable[Recommendations], library: str | None) -> Any:
        """All of it as one data frame."""
        frames = [self._piece(ranked) for ranked in pieces]
        if len(frames) != 1:
            frames = [pl.concat([pl.DataFrame(schema=self._schema), *frames])]
        return _to_library(frames[0], library)

    def write(self, pieces: Iterable[Recommendations], path: str | PathLike[str], form: str | None) -> int:
        """All of it into a file, piece by piece; returns the number of rows."""
        suffix = Path(path).suffix.lower() if form is None else f".{form}"
        if suffix not in FILE_FORMATS:
            rule = f"a name that ends in {', '.join(FILE_FORMATS)}"
            raise ParameterError("path", rule, str(path), "Or say which of them with form=….")
        writers: dict[str, Callable[[Iterator[pl.DataFrame], Path], None]] = {
            ".parquet": self._write_parquet,
            ".csv": _write_csv,
            ".jsonl": _write_lines,
        }
        rows = 0

        def counted() -> Iterator[pl.DataFrame]:
            nonlocal rows
            for ranked in pieces:
                piece = self._piece(ranked)
                rows += len(piece)
                yield piece

        try:
            with writing(path) as unfinished:
                writers[suffix](counted(), unfinished)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise DataError(
                f"{path} could not be written: {error}. What was there before is untouched."
            ) from error
        return rows

    def _write_parquet(self, frames: Iterator[pl.DataFrame], path: Path) -> None:
        # polars asks this for its batches, one by one, as it writes them.
        register_io_source(lambda *_: frames, schema=self._schema).sink_parquet(path)

    def _piece(self, ranked: Recommendations) -> pl.DataFrame:
        there = ranked.items >= 0
        chosen = ranked.items[there]
        lengths = there.sum(axis=1)
        owner = np.repeat(np.arange(len(ranked.users)), lengths)
        ranks = np.broadcast_to(np.arange(1, ranked.items.shape[1] + 1, dtype=np.int32), there.shape)[there]
        columns = {
            "user": pl.Series(ranked.users, dtype=self._schema["user"]).gather(owner),
            "item": self._items.gather(chosen),
            "title": self._titles.gather(chosen),
            "score": ranked.scores[there],
            "rank": ranks,
            "source": _SOURCES.gather(ranked.informed[there].astype(np.uint32)),
        }
        if "because" in self._schema:
            assert ranked.because is not None
            columns["because"] = pl.Series(
                [because_text(reasons, self._catalogue) for user in ranked.because for reasons in user],
                dtype=pl.String,
            ).filter(pl.Series(there.reshape(-1)))
        return pl.DataFrame(columns, schema=self._schema)


def _column(ids: Ids, count: int | None = None) -> pl.Series:
    """The first ids, or all."""
    if ids.is_text:
        return pl.Series(list(ids) if count is None else ids[:count], dtype=pl.String)
    return pl.Series(np.asarray(ids.values[:count]))


def _write_csv(frames: Iterator[pl.DataFrame], path: Path) -> None:
    with path.open("wb") as file:
        for place, frame in enumerate(frames):
            frame.write_csv(file, include_header=place == 0)


def _write_lines(frames: Iterator[pl.DataFrame], path: Path) -> None:
    with path.open("wb") as file:
        for frame in frames:
            frame.write_ndjson(file)
