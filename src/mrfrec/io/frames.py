"""Answers as tables: data frames of the caller's library, files, or tables of databases.

Answers are written in batches of a few thousand users, and need not fit into memory as a whole.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event
from typing import Any, BinaryIO

import narwhals as nw
import polars as pl
from polars.io.plugins import register_io_source

from mrfrec.checks import check_threads, shortened
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded, writing
from mrfrec.io.batches import POLARS_ERRORS
from mrfrec.io.databases import is_database, refuse_url
from mrfrec.io.staging import Staging, check_table, open_staging, parse_table

FILE_FORMATS = (".parquet", ".csv", ".jsonl")

Batches = Iterable[Mapping[str, Any]]
Frame = pl.DataFrame | Any
"""A table of answers, of polars or of the library that the model was fitted on or `frames` names."""

# The pause between checks whether the other thread has ended.
_POLL_SECONDS = 0.05

_TYPES = {
    "title": pl.String, "score": pl.Float32, "rank": pl.Int32, "source": pl.String, "because": pl.String,
    "both": pl.String, "value": pl.Float64, "weight": pl.Float64, "contribution": pl.Float64,
    "users": pl.Int64, "time": pl.Datetime("us"),
}  # fmt: skip
_KINDS: dict[str, Any] = {
    "string": pl.String, "int64": pl.Int64, "uint64": pl.UInt64, "float32": pl.Float32, "float64": pl.Float64,
    "unknown": None,
}  # fmt: skip


def frame(columns: Batches, names: Iterable[str], kinds: Mapping[str, str], library: Any) -> Frame:
    """Put batches of columns into one data frame of a library, by default polars.

    `kinds` has the types of the columns whose type depends on the model.
    """
    schema = _schema(names, kinds)
    frames = [_frame(batch, schema) for batch in columns]
    table = frames[0] if len(frames) == 1 else pl.concat([pl.DataFrame(schema=schema), *frames])
    # The file of the model may come from a machine that has other libraries.
    if library in (None, "polars") or find_spec(library) is None:
        return table
    backend = nw.Implementation.from_backend(library)
    # Not every installation of pandas has pyarrow, so this goes without it.
    values = {
        column.name: column.to_numpy()
        if column.dtype.is_numeric() and not column.null_count()
        else column.to_list()
        for column in table
    }
    if backend.is_pandas_like():
        return _pandas_frame(values, table.schema, backend.to_native_namespace())
    try:
        return nw.from_dict(values, nw.from_native(table).schema, backend=library).to_native()
    except (ValueError, ModuleNotFoundError):
        # This library cannot make a frame from columns.
        return table


def _pandas_frame(values: Mapping[str, Any], schema: Mapping[str, pl.DataType], pandas: Any) -> Any:
    """Give every column its type whatever it holds, since a null must not turn ids into floats."""
    # Texts have the type of the caller's own frames: object, or str from pandas 3 on.
    text = pandas.Series([""]).dtype
    kinds = {
        name: text if kind == pl.String
        else "datetime64[us]" if kind == pl.Datetime("us")
        else str(kind).lower() if name in _TYPES
        else str(kind)  # ids are Int64 or UInt64, which have nulls
        for name, kind in schema.items()
    }  # fmt: skip
    return pandas.DataFrame({name: pandas.Series(values[name], dtype=kind) for name, kind in kinds.items()})


def _frame(batch: Mapping[str, Any], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, batch[name], dtype=kind) for name, kind in schema.items()])


def _schema(names: Iterable[str], kinds: Mapping[str, str]) -> dict[str, Any]:
    return {name: _KINDS[kinds[name]] if name in kinds else _TYPES[name] for name in names}


@contextmanager
def writing_rows(
    batches: Batches,
    names: Iterable[str],
    kinds: Mapping[str, str],
    path: str | PathLike[str] | Staging,
    form: str | None = None,
    table: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Write batches of columns beside a file or a table of a database, and yield the number of rows.

    The new rows replace the old ones when the block ends; if the block raises, the old rows stay. With an
    open `Staging`, all its tables are replaced together. `columns` maps columns to new names. A file that is
    a table with other columns is refused.
    """
    check_threads("writing")
    renamed = new_names(columns, names)
    rows = 0
    schema = {renamed[name]: kind for name, kind in _schema(renamed, kinds).items()}

    def frames() -> Iterator[pl.DataFrame]:
        nonlocal rows
        for batch in batches:
            piece = _frame({new: batch[name] for name, new in renamed.items()}, schema)
            rows += len(piece)
            yield piece

    rank = renamed.get("rank", "rank")
    if isinstance(path, Staging):
        yield path.stage(table, schema, frames(), rank)
        return
    if is_database(path):
        with open_staging(str(path)) as database:
            yield database.stage(table, schema, frames(), rank)
        return
    refuse_other_table(path, _suffix(path, form), schema)
    error_of_caller: BaseException | None = None
    try:
        with writing(path) as unfinished:
            with unfinished.open("r+b") as file:
                _write_frames(frames(), schema, _suffix(path, form), file)
            try:
                yield rows
            except BaseException as error:
                error_of_caller = error
                raise
    except (OSError, pl.exceptions.PolarsError) as error:
        if error is error_of_caller:
            raise
        raise DataError(
            f"{path} could not be written: {error}. What was there before is untouched."
        ) from error


def _write_frames(
    frames: Iterator[pl.DataFrame], schema: dict[str, Any], suffix: str, file: BinaryIO
) -> None:
    """Write frames to an open file one by one.

    This thread makes the frames and another thread writes them, since Ctrl-C interrupts the Python code of
    the main thread but not polars, which would wait for the next frame. polars gets an open file and no name:
    one of its threads could create the file again after an interrupt has removed it.
    """
    ready: Queue[pl.DataFrame] = Queue(maxsize=1)
    ended = Event()
    all_made = False

    def waiting() -> Iterator[pl.DataFrame]:
        while True:
            try:
                yield ready.get(timeout=_POLL_SECONDS)
            except Empty:
                # A frame that came meanwhile is written first.
                if ended.is_set() and ready.empty():
                    if all_made:
                        return
                    raise InterruptedError from None

    lazy = register_io_source(lambda *_: waiting(), schema=schema)
    sinks: dict[str, Any] = {
        ".parquet": lazy.sink_parquet, ".csv": lazy.sink_csv, ".jsonl": lazy.sink_ndjson,
    }  # fmt: skip
    with ThreadPoolExecutor(1) as thread:
        # An interrupt may come as soon as the thread has started.
        try:
            written = thread.submit(sinks[suffix], file)
            for piece in frames:
                while not written.done():
                    with suppress(Full):
                        ready.put(piece, timeout=_POLL_SECONDS)
                        break
                # The thread has failed.
                if written.done():
                    break
            all_made = True
        finally:
            ended.set()
        written.result()


def new_names(columns: object, names: Iterable[str]) -> dict[str, str]:
    """Return the new name of each column; refuse `columns` that do not rename these columns."""
    names = tuple(names)
    if not isinstance(columns, Mapping | None):
        raise ParameterError("columns", "a mapping from columns to their new names", columns)
    replacements = dict(columns or {})
    for old, new in replacements.items():
        if old not in names:
            raise ParameterError("columns", f"new names of {', '.join(names)}", old)
        if not isinstance(new, str) or not new or "\0" in new or len(new.encode()) > 63:
            raise ParameterError(f"columns.{old}", "a name of 1 to 63 bytes", new)
    renamed = {name: replacements.get(name, name) for name in names}
    # Databases compare names without case.
    lower = [new.lower() for new in renamed.values()]
    doubled = next((new for new in renamed.values() if lower.count(new.lower()) > 1), None)
    if doubled is not None:
        raise ParameterError("columns", "another name for each column", doubled)
    return renamed


def check_place(
    url: str,
    table: str,
    names: Iterable[str],
    kinds: Mapping[str, str],
    columns: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Raise if `writing_rows` could not replace a table of a database; return its schema and name."""
    renamed = new_names(columns, names)
    schema = {renamed[name]: kind for name, kind in _schema(renamed, kinds).items()}
    return check_table(url, table, schema, renamed["rank"])


def check_target(path: str | PathLike[str] | Staging, form: str | None, table: str | None) -> None:
    """Refuse targets that `writing_rows` cannot write to, as far as their names tell."""
    if isinstance(path, Staging) or is_database(path):
        if form is not None:
            raise ParameterError("form", "None with a database", form)
        if table is None:
            raise ParameterError("table", "the name of a table, with a database", table)
        parse_table(table)
        return
    if not isinstance(path, str | PathLike):
        rule = "the name of a file, or the URL of a database such as sqlite:///shop.db"
        raise ParameterError("path", rule, type(path).__name__)
    refuse_url(path)
    if table is not None:
        advice = "Tables are in databases, such as postgresql://host/shop."
        raise ParameterError("table", "None with a file", table, advice)
    _suffix(path, form)


def refuse_other_table(path: str | PathLike[str], suffix: str, names: Iterable[str]) -> None:
    """Refuse to replace a table that has other columns: it is data, and no earlier answer."""
    file, wanted = expanded(path), list(names)
    if not file.is_file() or (columns := _columns_of(file, suffix)) in (None, wanted):
        return
    rule = f"a new file, or one with the columns {', '.join(wanted)}"
    advice = f"It is a table of {shortened(', '.join(columns), 200)}. Remove it first, or give another name."
    raise ParameterError("path", rule, str(path), advice)


def _columns_of(file: Path, suffix: str) -> list[str] | None:
    """Return the columns of a file that was written in a format; None if it is no table with rows."""
    with suppress(OSError, ValueError, csv.Error, *POLARS_ERRORS):
        if suffix == ".parquet":
            return list(pl.read_parquet_schema(file))
        with file.open("rb") as opened:
            head = opened.read(1 << 16).decode(errors="replace").removeprefix("\ufeff")
        if suffix == ".csv":
            line, line_break, _ = head.partition("\n")
            return next(csv.reader([line])) if line_break and line.strip() else None
        first, _ = json.JSONDecoder().raw_decode(head.lstrip("[ \r\n\t"))
        return list(first) if isinstance(first, dict) else None
    return None


def _suffix(path: str | PathLike[str], form: str | None) -> str:
    suffix = Path(path).suffix.lower() if form is None else f".{form}"
    if suffix not in FILE_FORMATS:
        rule = f"a name that ends in {', '.join(FILE_FORMATS)}"
        raise ParameterError("path", rule, str(path), "Or say which of them with form=… (--format).")
    return suffix
