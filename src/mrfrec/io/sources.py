"""Files and data frames as streams of polars batches, in the order of their rows.

A file is never held whole: polars reads it in pieces, decompressing as it goes. Text stays text here, so that
what cannot be understood can be shown as it stands in the file.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

from mrfrec.errors import DataError, ParameterError

__all__ = ["FAULT", "Source", "open_sources"]

FAULT = "\x00fault"
"""Name of an extra column of a batch: what is wrong with the shape of a row, or null."""

_BATCH = 250_000  # rows
_SAMPLE = 1000  # lines of JSON that tell the columns and their types
_NEVER = "\x1f"  # a character no text file has: with it as separator, polars reads whole lines

_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".dat": "csv", ".tab": "csv",
    ".jsonl": "json", ".ndjson": "json", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One file or frame."""

    name: str  # for people
    columns: tuple[str, ...]
    numbers_in_text: frozenset[str]  # columns of text that are integers if all of them look like it
    batches: Callable[[Sequence[str]], Iterator[pl.DataFrame]]  # these columns of it
    library: str | None = None  # the data frame library it came from


def open_sources(
    source: object, *, separator: str | None = None, columns: Sequence[str] | None = None
) -> list[Source]:
    """What to read: a path, a glob, a list of paths, or a data frame of any library narwhals knows."""
    if isinstance(source, str | Path):
        return [_open_file(path, separator, columns) for path in _paths(str(source))]
    if isinstance(source, list | tuple) and source and all(isinstance(path, str | Path) for path in source):
        return [_open_file(path, separator, columns) for name in source for path in _paths(str(name))]
    try:
        frame = nw.from_native(source)  # type: ignore[call-overload]
    except TypeError:
        raise DataError(
            "the data must be a path, a list of paths, a data frame (pandas, polars, pyarrow, …), a "
            f"scipy.sparse matrix or Interactions; got {type(source).__name__}."
        ) from None
    return [_open_frame(frame)]


def _paths(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        raise DataError(f"{name} is a folder; name its files, or give a pattern such as {name}/*.csv.")
    if path.exists():
        return [path]
    is_pattern = any(mark in name for mark in "*?[")
    anchor = Path(path.anchor) if path.is_absolute() else Path()
    pattern = str(path.relative_to(anchor)) if path.is_absolute() else str(path)
    found = sorted(anchor.glob(pattern)) if is_pattern else []
    if not found:
        what = "no file matches the pattern" if is_pattern else "there is no file"
        raise DataError(f"{what} {name}. Relative paths start from {Path.cwd()}.")
    return found


def _open_file(path: Path, separator: str | None, columns: Sequence[str] | None) -> Source:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    suffix = suffixes[-2] if packed and len(suffixes) > 1 else suffixes[-1] if suffixes else ""
    form = _SUFFIXES.get(suffix)
    if form is None or (packed and form not in ("csv", "json")):
        raise DataError(
            f"{path}: cannot tell the format from the name. It may end in {', '.join(_SUFFIXES)}; "
            "text and JSON lines also in .gz or .zst after that."
        )
    if form != "csv" and (separator is not None or columns is not None):
        raise ParameterError(
            "separator" if separator is not None else "columns",
            "None for files that are not text tables",
            separator if separator is not None else columns,
        )
    try:
        if form == "csv":
            return _open_csv(path, "\t" if suffix in (".tsv", ".tab") else None, separator, columns)
        if form == "json":
            return _open_json(path)
        return _open_columns(path, form)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error).split("\n")[0][:300]


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def _lines(path: Path) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=_NEVER,
        quote_char=None,
        has_header=False,
        schema={"line": pl.String},
        glob=False,
        raise_if_empty=False,
    )


def _first_line(path: Path) -> str:
    rows = _lines(path).head(1).collect(engine="streaming")
    if not len(rows):
        raise DataError(f"{path} is empty.")
    return str(rows.item() or "")


def _open_csv(
    path: Path, by_suffix: str | None, separator: str | None, columns: Sequence[str] | None
) -> Source:
    if separator is not None and (not isinstance(separator, str) or len(separator.encode()) != 1):
        raise ParameterError("separator", "a single character", separator)
    head = _first_line(path)
    mark = separator or by_suffix or max(",\t;|", key=lambda mark: (len(_fields(head, mark)), mark == ","))
    found = _fields(head, mark)
    if columns is not None:
        names = list(columns)
        if len(names) < len(found):
            raise ParameterError(
                "columns",
                f"a name for each of the {len(found)} columns of {path}",
                columns,
                f"Line 1: {head}",
            )
    else:
        names = [name.strip() for name in found]
    # A name that comes twice cannot be asked for; it must not stand in the way of the others either.
    unique = [name if names.index(name) == i else f"{name} (column {i + 1})" for i, name in enumerate(names)]

    def batches(wanted: Sequence[str]) -> Iterator[pl.DataFrame]:
        rows = pl.scan_csv(
            path,
            has_header=False,
            skip_rows=0 if columns is not None else 1,
            separator=mark,
            schema={**dict.fromkeys(unique, pl.String), FAULT: pl.String},
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            raise_if_empty=False,
        ).select(*wanted, FAULT)
        # What stands beyond the last column: the row has too many fields.
        fault = pl.when(pl.col(FAULT).is_not_null()).then(pl.lit(f"more than {len(unique)} fields"))
        yield from _stream(path, rows.with_columns(fault.alias(FAULT)))

    return Source(str(path), tuple(unique), frozenset(unique), batches)


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [""])


def _open_json(path: Path) -> Source:
    lines = _lines(path)
    head = lines.head(_SAMPLE).collect(engine="streaming")["line"].drop_nulls()
    if not len(head):
        raise DataError(f"{path} is empty.")
    if head[0].lstrip().startswith("["):
        raise DataError(f"{path} is one JSON array; what can be read is JSON lines, one object to a line.")
    objects = [line for line in head if not _fault(line)]
    if not objects:
        raise DataError(f"{path}: none of the first {len(head)} lines is a JSON object.")
    sample = pl.read_ndjson("\n".join(objects).encode(), infer_schema_length=None).schema
    integers = frozenset(name for name, kind in sample.items() if kind.is_integer())

    def batches(wanted: Sequence[str]) -> Iterator[pl.DataFrame]:
        for batch in _stream(path, lines):
            yield _parse_lines(batch["line"].fill_null(""), wanted)

    return Source(str(path), tuple(sample), integers, batches)


def _parse_lines(lines: pl.Series, wanted: Sequence[str]) -> pl.DataFrame:
    """These fields of each line, as text; line by line only where something is wrong."""
    schema = dict.fromkeys(wanted, pl.String)
    try:
        rows = pl.read_ndjson("\n".join(lines).encode(), schema=schema)
        if len(rows) == len(lines):
            return rows.with_columns(pl.lit(None, pl.String).alias(FAULT))
    except pl.exceptions.PolarsError:
        pass
    faults = [_fault(line) for line in lines]
    objects = [{} if fault else json.loads(line) for line, fault in zip(lines, faults, strict=True)]
    texts = {name: [_as_text(fields.get(name)) for fields in objects] for name in wanted}
    return pl.DataFrame({**texts, FAULT: faults}, schema={**schema, FAULT: pl.String})


def _fault(line: str) -> str | None:
    """What keeps a line from being a JSON object."""
    if not line.strip():
        return "blank line"
    try:
        return None if isinstance(json.loads(line), dict) else "not a JSON object"
    except ValueError:
        return "not valid JSON"


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


# ── columns with types ────────────────────────────────────────────────────────────────────────────


def _open_columns(path: Path, form: str) -> Source:
    if form == "parquet":
        rows = pl.scan_parquet(path, glob=False)
    else:
        with path.open("rb") as file:
            is_file = file.read(6) == b"ARROW1"  # else it is a stream, which holds no index to scan by
        rows = pl.scan_ipc(path, glob=False) if is_file else pl.read_ipc_stream(path).lazy()
    names = tuple(rows.collect_schema().names())
    return Source(str(path), names, frozenset(), lambda wanted: _stream(path, rows.select(wanted)))


def _stream(path: Path, rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    done = 0
    try:
        for batch in rows.collect_batches(
            chunk_size=_BATCH, maintain_order=True, lazy=True, engine="streaming"
        ):
            yield batch
            done += len(batch)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = _reason(error)
        if "utf-8" in reason.lower() or "utf8" in reason.lower():
            reason += ". The text must be UTF-8: convert it, for example with iconv"
        raise DataError(f"{path} cannot be read after row {done:,}: {reason}.") from error


def _open_frame(frame: "nw.DataFrame[Any] | nw.LazyFrame[Any]") -> Source:
    library = str(frame.implementation.value)
    name = f"the {library} frame"
    if isinstance(frame, nw.LazyFrame):
        native = frame.to_native()
        if not isinstance(native, pl.LazyFrame):
            return _open_frame(frame.collect())
        names = tuple(native.collect_schema().names())
        return Source(
            name, names, frozenset(), lambda wanted: _stream(Path(name), native.select(wanted)), library
        )
    eager = frame
    if len(set(eager.columns)) < len(eager.columns):
        raise DataError(f"{name} has several columns of one name: {', '.join(map(str, eager.columns))}.")

    def batches(wanted: Sequence[str]) -> Iterator[pl.DataFrame]:
        for start in range(0, len(eager), _BATCH):
            part = eager[start : start + _BATCH]
            yield pl.DataFrame({column: _to_polars(part[column], name) for column in wanted})

    return Source(name, tuple(map(str, eager.columns)), frozenset(), batches, library)


def _to_polars(column: "nw.Series[Any]", name: str) -> pl.Series:
    """One column, without asking for pyarrow."""
    native = column.to_native()
    if isinstance(native, pl.Series):
        return native
    if column.dtype.is_numeric() and column.null_count() == 0:
        return pl.Series(column.to_numpy())
    values = [None if value != value else value for value in _plain(column.to_list())]  # NaN is missing
    try:
        return pl.Series(values, strict=True)
    except TypeError:
        raise DataError(
            f"{name}: column {column.name!r} mixes types. Make it all integers or all strings."
        ) from None


def _plain(values: list[Any]) -> Iterator[Any]:
    """Without pandas' own mark for a missing value, which refuses even to be compared."""
    return (None if type(value).__name__ == "NAType" else value for value in values)
