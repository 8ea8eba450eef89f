"""Open files, streams, queries and data frames as batches of rows in polars, in the order of the rows.

A file is never in memory as a whole, since polars reads and decompresses it piece by piece. Streams are
copied to an anonymous temporary file first.
"""

import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import polars.selectors as cs

from mrfrec.checks import check_threads
from mrfrec.data.reading_options import FORMATS, Format, ReadingOptions
from mrfrec.errors import DataError, ParameterError
from mrfrec.io import batches as tables
from mrfrec.io.batches import (
    FEATURE,
    POLARS_ERRORS,
    Roles,
    Source,
    Types,
    batch_of,
    check_text,
    lines_of,
    reading,
    stream,
)
from mrfrec.io.databases import is_database, open_query, redacted
from mrfrec.io.text import open_json, open_text

SUFFIXES: dict[str, Format] = {
    ".csv": "csv", ".txt": "csv", ".dat": "csv", ".data": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_CLOUD_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
_RETRIES = {"max_retries": 2, "retry_timeout_ms": 30_000}
# On Linux, /dev/fd/9 is the file from its start; elsewhere it goes on where reading stopped.
_OPENS_DESCRIPTORS = sys.platform == "linux"
_TEXT_OPTIONS = ("separator", "columns")
_OTHER_DATABASES = "Read another database into a data frame first: polars.read_database(query, connection)."


def open_sources(
    source: object, options: ReadingOptions | None = None, *, what: str = "the data"
) -> list[Source]:
    """Open a path, a pattern, a URL, a list of them, a stream, or a data frame that narwhals knows.

    Errors call the source `what`.
    """
    check_threads("reading")
    options = options or ReadingOptions.of()
    parts: Any = source if isinstance(source, list | tuple) else [source]
    if options.query is not None or any(map(is_database, parts)):
        _check_query(parts, options)
        return [open_query(url, str(options.query), options.text_ids) for url in parts]
    if parts and all(isinstance(one, str | Path) or hasattr(one, "read") for one in parts):
        opened = []
        files: list[Path] = []
        for one in parts:
            if hasattr(one, "read"):
                opened.append(_open_stream(one, str(getattr(one, "name", "the stream")), options))
            elif "://" in str(one):
                opened += _open_url(str(one), options)
            elif str(one) == "-":
                if sys.stdin is None:
                    raise DataError("standard input is closed: there is nothing to read.")
                opened.append(_open_stream(sys.stdin.buffer, "standard input", options))
            elif (folder := _folder_of(str(one))) is not None:
                opened.append(_open_folder(folder, options))
            else:
                for path in paths_of(str(one)):
                    if path.is_file():
                        _refuse_again(path, files)
                        opened.append(_open_file(path, str(path), options))
                    else:
                        with reading(str(path)), path.open("rb") as pipe:
                            opened.append(_open_stream(pipe, str(path), options))
        return opened
    try:
        frame: Any = nw.from_native(source)
    except TypeError:
        raise _not_readable(source, what) from None
    except ValueError as error:
        raise DataError(f"the data frame cannot be read: {error}") from error
    _refuse_options(options, "a data frame", *_TEXT_OPTIONS, "input_format")
    return [_open_frame(frame, options.text_ids)]


def _refuse_again(path: Path, files: list[Path]) -> None:
    """Refuse a file that was opened already, and add it to the opened files."""
    with reading(str(path)):
        if again := next((one for one in files if one.samefile(path)), None):
            raise DataError(f"{path} is the same file as {again}: its rows would count twice. Name it once.")
    files.append(path)


def _check_query(sources: Sequence[object], options: ReadingOptions) -> None:
    query = options.query
    for source in sources:
        if is_database(source):
            continue
        if isinstance(source, str) and "://" in source:
            _check_scheme(source)
        if _is_connection(source):
            raise _not_readable(source)
        rule = "left out unless all data comes from databases (postgresql://… or sqlite:///…)"
        raise ParameterError("query", rule, query)
    if query is None or not query.strip("; \t\r\n"):
        rule = f"SQL that reads from {redacted(str(sources[0]))}"
        raise ParameterError("query", rule, query, 'Such as "select user_id, item_id from …".')
    _refuse_options(options, "a database", *_TEXT_OPTIONS, "input_format")


def _is_connection(source: object) -> bool:
    """Return whether a source that is no data frame is a connection, cursor or engine of a database."""
    return any(hasattr(source, name) for name in ("connect", "cursor", "execute"))


def _not_readable(source: object, what: str = "the data") -> DataError:
    advice = "A matrix becomes Interactions(matrix)." if what == "the data" else ""
    if _is_connection(source):
        advice = f"PostgreSQL and SQLite are read by URL: postgresql://…, sqlite:///…. {_OTHER_DATABASES}"
    return DataError(
        f"{what} must be a path, a list of paths, a file object or a data frame (pandas, polars, "
        f"pyarrow, …); got {type(source).__name__}. {advice}".rstrip()
    )


def _check_scheme(url: str) -> None:
    """Refuse a URL of a scheme that cannot be read."""
    scheme = url.partition("://")[0].lower()
    if scheme not in _CLOUD_SCHEMES:
        known = ", ".join(("postgresql", "sqlite", *_CLOUD_SCHEMES))
        plain = f"{scheme.partition('+')[0]}://"
        advice = f"Write {plain}…." if is_database(plain) else f"Save a file here first. {_OTHER_DATABASES}"
        raise DataError(f"{redacted(url)}: {scheme}:// is not known. Known are {known}. {advice}")


def _refuse_options(options: ReadingOptions, source: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ParameterError(name, f"left out for {source}", getattr(options, name))


def paths_of(name: str) -> list[Path]:
    """Return the files behind a name, a folder or a pattern; none for a URL; "-" stays."""
    if name == "-":
        return [Path(name)]
    if "://" in name:
        return []
    with reading(name):
        path = _path_of(name)
        if path.is_dir():
            return _files_of(path)
        if path.exists():
            return [path]
        is_pattern = any(mark in name for mark in "*?[")
        anchor = Path(path.anchor)
        matches = sorted(anchor.glob(str(path.relative_to(anchor)))) if is_pattern else []
        matches = [path for path in matches if path.is_file()]
    if not matches:
        what = "no file matches the pattern" if is_pattern else "there is no file"
        start = "" if path.is_absolute() else f" Relative paths start from {Path.cwd()}."
        raise DataError(f"{what} {name}.{start}")
    return matches


def _folder_of(name: str) -> Path | None:
    with reading(name):
        path = _path_of(name)
        return path if path.is_dir() else None


def _path_of(name: str) -> Path:
    """Return a path; refuse an empty name, which would be the current folder."""
    if not name:
        raise DataError("'' names no file to read. For the current folder, write a point: '.'.")
    return Path(name).expanduser()


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder of Parquet files; refuse any other folder."""
    files: list[Path] = []
    what = "no files"
    for path in folder.rglob("*"):
        if path.is_file() and path.name[0] not in "._":
            if path.suffix != ".parquet":
                files, what = [], str(path.relative_to(folder))
                break
            files.append(path)
    if not files:
        raise DataError(
            f"a folder must have Parquet files (.parquet) and no others; {folder} has {what}. Name files, or "
            f"give a pattern such as {folder}/*.csv."
        )
    return sorted(files)


def _open_folder(folder: Path, options: ReadingOptions) -> Source:
    """Open a folder of Parquet files as one table; names such as day=2026-11-16 become columns."""
    _refuse_options(options, "a folder of Parquet files", *_TEXT_OPTIONS, "input_format")
    with reading(str(folder)):
        _files_of(folder)
        rows = pl.scan_parquet(folder, glob=False, hive_partitioning=True)
        source = _lazy_source(str(folder), rows.collect_schema().names(), lambda _: rows)
    return replace(source, rows=lambda: int(rows.select(pl.len()).collect().item()))


def _open_stream(stream: Any, name: str, options: ReadingOptions) -> Source:
    """Copy a stream to a temporary file that is deleted with the source."""
    _format_of(name, options)
    with _temporary_file() as file:
        with reading(name):
            while piece := stream.read(1 << 20):
                file.write(piece.encode() if isinstance(piece, str) else piece)
        return _open_temporary(file, name, options)


@contextmanager
def _temporary_file() -> Iterator[Any]:
    """Yield a temporary file, which is closed at the end. On Linux it has no name."""
    if _OPENS_DESCRIPTORS:
        with tempfile.TemporaryFile() as file:
            yield file
        return
    with tempfile.NamedTemporaryFile(prefix="mrfrec-", delete=False) as named:
        try:
            yield named
        except BaseException:
            Path(named.name).unlink(missing_ok=True)
            raise


def _open_temporary(file: Any, name: str, options: ReadingOptions) -> Source:
    """Open a temporary file, which is deleted with the source."""
    file.flush()
    with ExitStack() as stack:
        if _OPENS_DESCRIPTORS:
            copy = os.dup(file.fileno())
            stack.callback(os.close, copy)
            path = Path(f"/dev/fd/{copy}")
        else:
            path = Path(file.name)
            stack.callback(path.unlink, missing_ok=True)
        source = _open_file(path, name, options)
        weakref.finalize(source, stack.pop_all().close)
    return source


def _open_url(url: str, options: ReadingOptions) -> list[Source]:
    """Open files in a cloud by name or pattern; text files are copied first."""
    _check_scheme(url)
    name = redacted(url)
    form = _format_of(name, options)
    options = options.model_copy(update={"input_format": form})
    scan_options: dict[str, Any] = {"glob": any(mark in url for mark in "*?["), "storage_options": _RETRIES}
    if form in ("parquet", "arrow"):
        scan = pl.scan_parquet if form == "parquet" else pl.scan_ipc
        with reading(name):
            rows = scan(url, **scan_options)
            return [_lazy_source(name, rows.collect_schema().names(), lambda _: rows)]
    lines = pl.scan_lines(url, include_file_paths="path", **scan_options)
    with ExitStack() as stack, reading(name):
        copies: dict[str, Any] = {}
        for batch in lines.collect_batches(chunk_size=tables.BATCH_ROWS, maintain_order=True, lazy=True):
            for (path,), part in batch.group_by("path", maintain_order=True):
                if path not in copies:
                    copies[path] = stack.enter_context(_temporary_file())
                copies[path].writelines(f"{line}\n".encode() for line in part["line"])
        sources = [_open_temporary(copy, path, options) for path, copy in copies.items()]
    if not sources:
        raise DataError(f"{name} is empty, or no file matches.")
    return sources


def _format_of(name: str, options: ReadingOptions) -> Format:
    path = Path(name.lower())
    packed = options.input_format is None and path.suffix in (".gz", ".zst")
    form = options.input_format or SUFFIXES.get(Path(path.stem).suffix if packed else path.suffix)
    if form is None or (packed and form in ("parquet", "arrow")):
        raise DataError(
            f"{name}: cannot tell the format from the name. Use one that ends in {', '.join(SUFFIXES)}, "
            "text and JSON lines also with .gz or .zst after that; or give input_format=… of "
            f"read_interactions (--input-format), one of {', '.join(FORMATS)}."
        )
    if form not in ("csv", "tsv"):
        _refuse_options(options, "data that is not a text table", *_TEXT_OPTIONS)
    return form


def _open_file(path: Path, name: str, options: ReadingOptions) -> Source:
    form = _format_of(name, options)
    with reading(name):
        if form not in ("parquet", "arrow"):
            check_text(path, name)
        if form in ("csv", "tsv"):
            mark = options.separator or ("\t" if form == "tsv" else None)
            names = None if options.columns is None else list(options.columns)
            return replace(open_text(path, name, mark, names), rows=lambda: lines_of(path))
        if form == "jsonl":
            return replace(open_json(path, name, options.text_ids), rows=lambda: lines_of(path))
        try:
            return _open_columnar(path, name, form)
        except POLARS_ERRORS as error:
            raise DataError(f"{name} cannot be read: it is damaged, or not {form.capitalize()}.") from error


def _open_columnar(path: Path, label: str, form: str) -> Source:
    with path.open("rb") as file:
        is_stream = form == "arrow" and file.read(6) != b"ARROW1"
    # A stream cannot be scanned, so its columns are read into memory.
    if is_stream:
        columns = pl.read_ipc_stream(path, n_rows=0).columns
        return _lazy_source(label, columns, lambda names: pl.read_ipc_stream(path, columns=names).lazy())
    rows = pl.scan_parquet(path, glob=False) if form == "parquet" else pl.scan_ipc(path, glob=False)
    source = _lazy_source(label, rows.collect_schema().names(), lambda _: rows)
    # The number of rows comes from the metadata.
    return replace(source, rows=lambda: int(rows.select(pl.len()).collect().item()))


def _lazy_source(
    name: str, columns: list[str], scan: Callable[[list[str]], pl.LazyFrame], library: str | None = None
) -> Source:
    """Return a source that reads only the columns it needs; `scan` is called with their names."""

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        with reading(name):
            # Selectors take a name literally, while pl.col("*") means all columns.
            rows = scan(list(roles.values())).select(**{r: cs.by_name(column) for r, column in roles.items()})
        yield from stream(name, rows, types)

    return Source(name, tuple(columns), batches, library=library)


def _open_frame(frame: "nw.DataFrame[Any] | nw.LazyFrame[Any]", text_ids: Collection[str]) -> Source:
    library = str(frame.implementation.value)
    name = f"the {library} frame"
    with reading(name):
        if isinstance(frame, nw.LazyFrame):
            native = frame.to_native()
            if isinstance(native, pl.LazyFrame):
                return _lazy_source(name, native.collect_schema().names(), lambda _: native, library)
        eager = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        columns = {str(column): column for column in eager.columns}
        if len(columns) < len(eager.columns):
            raise DataError(f"{name} has several columns of one name: {', '.join(columns)}.")

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        for start in range(0, len(eager), tables.BATCH_ROWS):
            with reading(name):
                part = eager[start : start + tables.BATCH_ROWS]
                series = {
                    role: _series(part.get_column(columns[column]), role) for role, column in roles.items()
                }
                batch = batch_of(series, [None] * len(part), name, text_ids)
            yield batch

    return Source(name, tuple(columns), batches, library=library, rows=lambda: len(eager))


def _series(column: "nw.Series[Any]", role: str) -> pl.Series | list[Any]:
    """Convert a column without pyarrow; a column that may hold any objects becomes a list."""
    native = column.to_native()
    if isinstance(native, pl.Series):
        return native
    if column.implementation.is_pyarrow():
        return pl.Series(native)
    if column.dtype.is_float() or (column.dtype.is_integer() and column.null_count() == 0):
        return pl.Series(column.to_numpy(), nan_to_null=True)
    if (role == "time" or role.startswith(FEATURE)) and isinstance(column.dtype, nw.Datetime):
        in_utc = column
        if column.dtype.time_zone is not None:
            in_utc = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        # pandas may have seconds, which polars does not know.
        times = pl.Series(in_utc.to_numpy().astype("datetime64[us]"))
        return times if column.dtype.time_zone is None else times.dt.replace_time_zone("UTC")
    # None, NaN, and pandas' NaT and NA, which cannot be compared, are missing.
    odd = ("NAType", "NaTType")
    return [None if type(x).__name__ in odd or (np.isscalar(x) and x != x) else x for x in column.to_list()]
