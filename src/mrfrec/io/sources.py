"""Files and data frames as streams of polars batches, in the order of their rows.

A file is never held whole: polars reads it in pieces, decompressing as it goes. CSV stays text here, so that
what cannot be understood can be shown as it stands in the file; everything else keeps its types.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import polars.selectors as cs

from mrfrec.errors import DataError, MrfrecError, ParameterError

__all__ = ["FAULT", "Roles", "Source", "Types", "open_sources", "paths_of"]

FAULT = "fault"
"""Name of an extra column of a batch: what is wrong with the shape of a row, or null."""

_BATCH = 250_000  # rows
_SAMPLE = 1000  # lines of JSON that tell the columns and their types
_SPARE = 4  # columns beyond the last, to see that a row has too many fields
_LONGEST = 100_000  # lines in one quoted field
_IDS = ("user", "item")
_INT64 = np.iinfo(np.int64).max
_EXACT = 2**53  # below this, every whole number is a float of its own
_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_UNREADABLE = (*_POLARS, csv.Error, ArithmeticError, OSError, RuntimeError, TypeError, ValueError)

Roles = Mapping[str, str]  # the columns to read, by what they are: {"user": "user_id"}
Types = Mapping[str, pl.DataType]  # of which roles text may be stored as what, while it is read

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
    batches: Callable[[Roles, Types], Iterator[pl.DataFrame]]
    is_text: bool = False  # without types: ids are integers if all of them look like it
    library: str | None = None  # the data frame library it came from


def open_sources(
    source: object, *, separator: str | None = None, columns: Sequence[str] | None = None
) -> list[Source]:
    """What to read: a path, a glob, a list of paths, or a data frame of any library narwhals knows."""
    one_byte = isinstance(separator, str) and len(separator) == 1 and separator.isascii()
    if separator is not None and (not one_byte or separator in '"\r\n'):
        raise ParameterError("separator", "one ASCII character, no quotation mark or line end", separator)
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else []
    all_texts = bool(names) and all(isinstance(name, str) for name in names)
    if columns is not None and not (all_texts and len(set(names)) == len(names)):
        raise ParameterError("columns", "a list of distinct names", columns)
    given: Any = [source] if isinstance(source, str | Path) else source
    if isinstance(given, list | tuple) and given and all(isinstance(path, str | Path) for path in given):
        paths = [path for name in given for path in paths_of(str(name))]
        return [_open_file(path, separator, names if columns is not None else None) for path in paths]
    try:
        frame = nw.from_native(given)
    except TypeError:
        raise DataError(
            "the data must be a path, a list of paths, a data frame (pandas, polars, pyarrow, …), a "
            f"scipy.sparse matrix or Interactions; got {type(source).__name__}."
        ) from None
    except ValueError as error:
        raise DataError(f"the data frame cannot be read: {error}") from error
    _only_text(False, separator, columns)
    return [_open_frame(frame)]


def _only_text(is_text: bool, separator: str | None, columns: Sequence[str] | None) -> None:
    for name, value in (("separator", separator), ("columns", columns)):
        if value is not None and not is_text:
            raise ParameterError(name, "None for data that is not a text table", value)


def paths_of(name: str) -> list[Path]:
    """The files of a name or a pattern; at least one."""
    with _reading(name):
        path = Path(name).expanduser()
        if path.is_dir():
            raise DataError(f"{name} is a folder; name its files, or give a pattern such as {name}/*.csv.")
        if path.exists():
            return [path]
        is_pattern = any(mark in name for mark in "*?[")
        anchor = Path(path.anchor)
        found = sorted(anchor.glob(str(path.relative_to(anchor)))) if is_pattern else []
        found = [path for path in found if path.is_file()]
    if not found:
        what = "no file matches the pattern" if is_pattern else "there is no file"
        raise DataError(f"{what} {name}. Relative paths start from {Path.cwd()}.")
    return found


def _open_file(path: Path, separator: str | None, columns: list[str] | None) -> Source:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in (".gz", ".zst")
    suffix = suffixes[-2] if packed and len(suffixes) > 1 else suffixes[-1] if suffixes else ""
    form = _SUFFIXES.get(suffix)
    if form is None or (packed and form not in ("csv", "json")):
        raise DataError(
            f"{path}: cannot tell the format from the name. It may end in {', '.join(_SUFFIXES)}; "
            "text and JSON lines also in .gz or .zst after that."
        )
    _only_text(form == "csv", separator, columns)
    with _reading(str(path)):
        if form == "csv":
            tab = "\t" if suffix in (".tsv", ".tab") else None
            return _open_csv(path, packed, separator or tab, columns)
        return _open_json(path) if form == "json" else _open_columns(path, form)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """What goes wrong in here is the fault of the data."""
    try:
        yield
    except MrfrecError:
        raise
    except _UNREADABLE as error:
        raise DataError(f"{name} cannot be read: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    reason = str(error).split("\n")[0][:300].rstrip(".") or type(error).__name__
    if re.search("utf-?8", reason, re.IGNORECASE):
        reason += ". The text must be UTF-8: convert it, for example with iconv"
    return reason


def _stream(name: str, rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    done = 0
    try:
        for batch in rows.collect_batches(
            chunk_size=_BATCH, maintain_order=True, lazy=True, engine="streaming"
        ):
            yield batch
            done += len(batch)
    except _UNREADABLE as error:
        raise DataError(f"{name} cannot be read after row {done:,}: {_reason(error)}.") from error


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def _open_csv(path: Path, packed: bool, separator: str | None, columns: list[str] | None) -> Source:
    first = pl.scan_lines(path, glob=False).head(1).collect(engine="streaming")
    if not len(first):
        raise DataError(f"{path} is empty.")
    head = str(first.item()).removeprefix("\ufeff")
    if head.count('"') % 2:
        raise DataError(f"{path}, line 1: a quotation mark is not closed.")
    mark = separator or max(",\t;|", key=lambda mark: (len(_fields(head, mark)), mark == ","))
    found = [name.strip() for name in _fields(head, mark)]
    if columns is not None and len(columns) < len(found):
        rule = f"a name for each of the {len(found)} columns of {path}"
        raise ParameterError("columns", rule, columns, f"Line 1: {head[:300]}")
    names = columns or found
    # A name that comes twice cannot be asked for, but must not stand in the way of the others.
    times = Counter(names)
    names = [name if times[name] == 1 else f"{name} (column {i + 1})" for i, name in enumerate(names)]

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        _check_quotes(path, packed, mark, first_row=1 if columns is not None else 0)
        places = [str(i) for i in range(len(names) + _SPARE)]
        rows = pl.scan_csv(
            path,
            has_header=False,
            skip_rows=0 if columns is not None else 1,
            separator=mark,
            schema=dict.fromkeys(places, pl.String),
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            raise_if_empty=False,
        )
        beyond = pl.any_horizontal(pl.col(places[len(names) :]).str.len_bytes() > 0)
        fault = pl.when(beyond).then(pl.lit(f"more than {len(names)} fields"))
        wanted = {role: pl.col(places[names.index(name)]) for role, name in roles.items()}
        wanted |= {role: pl.when(wanted[role] != "").then(wanted[role]).cast(types[role]) for role in types}
        yield from _stream(str(path), rows.select(**wanted, **{FAULT: fault}))

    return Source(str(path), tuple(names), batches, is_text=True)


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [""])


def _check_quotes(path: Path, packed: bool, separator: str, first_row: int) -> None:
    """Refuse what polars would mend: quotation marks that do not match, carriage returns outside of them."""
    if not packed:
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(1 << 20), b"")
            if not any(b'"' in x or (b"\r" in x and x.count(b"\r") > x.count(b"\r\n")) for x in pieces):
                return
    mark = f"\\x{ord(separator):02x}"
    field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{mark}\r\n][^{mark}\r\n]*)?'
    record = rf"{field}(?:{mark}{field})*"
    row, parts, marks = first_row, list[str](), 0
    for batch in _stream(str(path), pl.scan_lines(path, glob=False)):
        lines = batch["line"]
        some = lines.filter(lines.str.contains(r'["\r]'))
        even = some.str.count_matches('"', literal=True) % 2 == 0
        if not parts and (even & some.str.contains(rf"^(?:\x{{feff}})?{record}$")).all():
            row += len(lines)
            continue
        for line in lines:
            if parts or '"' in line or "\r" in line:
                parts.append(line.removeprefix("\ufeff") if row == first_row else line)
                marks += line.count('"')
                if marks % 2 and len(parts) < _LONGEST:
                    continue  # a quoted field goes on in the next line
                if not re.fullmatch(record, "\n".join(parts)):
                    raise _mismatch(path, row)
            row, parts, marks = row + 1, [], 0
    if parts:
        raise _mismatch(path, row)


def _mismatch(path: Path, row: int) -> DataError:
    return DataError(
        f"{path}, row {row:,}: quotation marks that do not match, or a carriage return outside of them. A "
        "field that begins with a quotation mark must end with one and have those inside doubled."
    )


def _open_json(path: Path) -> Source:
    lines = pl.scan_lines(path, glob=False)
    head = lines.head(_SAMPLE).collect(engine="streaming")["line"]
    if not len(head):
        raise DataError(f"{path} is empty.")
    if "".join(head[:50]).lstrip("\ufeff \t\r").startswith("["):
        raise DataError(f"{path} is one JSON array; what can be read is JSON lines, one object to a line.")
    objects = [fields for fields, fault in map(_parse, head) if not fault]
    if not objects:
        raise DataError(f"{path}: none of the first {len(head)} lines is a JSON object.")
    names = dict.fromkeys(name for fields in objects for name in fields)
    kinds = {name: _json_kind([fields.get(name) for fields in objects]) for name in names}

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        for batch in _stream(str(path), lines):
            yield _parse_lines(batch["line"], roles, kinds, str(path))

    return Source(str(path), tuple(names), batches)


def _json_kind(values: list[Any]) -> type[pl.DataType]:
    """What the ids of a column are, by a sample of them."""
    if any(isinstance(value, str) for value in values):
        return pl.String
    integers = [value for value in values if isinstance(value, int)]
    return pl.UInt64 if max(integers, default=0) > _INT64 else pl.Int64


def _parse_lines(
    lines: pl.Series, roles: Roles, kinds: Mapping[str, type[pl.DataType]], path: str
) -> pl.DataFrame:
    """These fields of each line; one by one where polars would fail, or make text of what is none."""
    schema = {column: kinds[column] if role in _IDS else pl.String for role, column in roles.items()}
    odd = [r"\\ud[89a-f]", r"\x{feff}"]
    for role, column in roles.items():
        if schema[column] == pl.String:
            key = "|".join(re.escape(json.dumps(column, ensure_ascii=plain)) for plain in (True, False))
            odd.append(rf"(?:{key})\s*:\s*" + ("[tf]" if role == "value" else r'[^\sn"]'))
    if not lines.str.contains(f"(?i){'|'.join(odd)}").any():
        try:
            rows = pl.read_ndjson(lines.str.join("\n").item().encode(), schema=schema)
            if len(rows) == len(lines):
                return rows.select(**{role: cs.by_name(column) for role, column in roles.items()})
        except _POLARS:
            pass
    parsed = [_parse(line) for line in lines]
    columns = {role: [fields.get(column) for fields, _ in parsed] for role, column in roles.items()}
    return _columns(columns, [fault for _, fault in parsed], path)


def _parse(line: str) -> tuple[dict[str, Any], str | None]:
    """The fields of a JSON object, or what keeps a line from being one; of a key given twice, the first."""
    if not line.strip():
        return {}, "blank line"
    try:
        fields = json.loads(line.removeprefix("\ufeff"), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
        if "\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()  # fails where half of a surrogate pair is missing
    except (ValueError, RecursionError):
        return {}, "not valid JSON"
    return (fields, None) if isinstance(fields, dict) else ({}, "not a JSON object")


# ── columns with types ────────────────────────────────────────────────────────────────────────────


def _open_columns(path: Path, form: str) -> Source:
    with path.open("rb") as file:
        is_stream = form == "arrow" and file.read(6) != b"ARROW1"
    if is_stream:  # has no index to scan by: only the columns that are wanted are held

        def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
            with _reading(str(path)):
                rows = pl.read_ipc_stream(path, columns=list(roles.values()))
            yield from _stream(str(path), _select(rows.lazy(), roles, types))

        return Source(str(path), tuple(pl.read_ipc_stream(path, n_rows=0).columns), batches)
    rows = pl.scan_parquet(path, glob=False) if form == "parquet" else pl.scan_ipc(path, glob=False)
    return _lazy(str(path), rows)


def _lazy(name: str, rows: pl.LazyFrame, library: str | None = None) -> Source:
    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        yield from _stream(name, _select(rows, roles, types))

    return Source(name, tuple(rows.collect_schema().names()), batches, library=library)


def _select(rows: pl.LazyFrame, roles: Roles, types: Types) -> pl.LazyFrame:
    # By selectors, which take a name as it is: pl.col would take "*" for all of them.
    rows = rows.select(**{role: cs.by_name(name) for role, name in roles.items()})
    texts = [role for role, kind in rows.collect_schema().items() if kind == pl.String and role in types]
    empty = {role: pl.when(pl.col(role) != "").then(pl.col(role)).cast(types[role]) for role in texts}
    return rows.with_columns(**empty)


def _open_frame(frame: "nw.DataFrame[Any] | nw.LazyFrame[Any]") -> Source:
    library = str(frame.implementation.value)
    name = f"the {library} frame"
    with _reading(name):
        if isinstance(frame, nw.LazyFrame):
            native = frame.to_native()
            if isinstance(native, pl.LazyFrame):
                return _lazy(name, native, library)
        eager = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        columns = {str(column): column for column in eager.columns}
        if len(columns) < len(eager.columns):
            raise DataError(f"{name} has several columns of one name: {', '.join(columns)}.")

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        for start in range(0, len(eager), _BATCH):
            with _reading(name):
                part = eager[start : start + _BATCH]
                series = {role: _series(part.get_column(columns[column])) for role, column in roles.items()}
                batch = _columns(series, [None] * len(part), name)
            yield batch

    return Source(name, tuple(columns), batches, library=library)


def _series(column: "nw.Series[Any]") -> pl.Series | list[Any]:
    """One column, without asking for pyarrow; as a list where it may hold anything."""
    native = column.to_native()
    if isinstance(native, pl.Series):
        return native
    if column.implementation.is_pyarrow():
        return pl.Series(native)
    if column.dtype.is_float() or (column.dtype.is_integer() and column.null_count() == 0):
        return pl.Series(column.to_numpy(), nan_to_null=True)
    return [None if _is_missing(value) else value for value in column.to_list()]


def _is_missing(value: object) -> bool:
    """None, NaN, and pandas' own marks, one of which refuses even to be compared."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _columns(
    columns: Mapping[str, pl.Series | list[Any]], faults: list[str | None], name: str
) -> pl.DataFrame:
    """Columns by role, of Python values where they are lists; ids that are none become faults."""
    found: dict[str, pl.Series] = {}
    for role, values in columns.items():
        if isinstance(values, pl.Series):
            found[role] = values
        elif role not in _IDS:
            plain = [int(x) if role == "value" and isinstance(x, bool) else x for x in values]
            found[role] = pl.Series([None if x is None else str(x) for x in plain], dtype=pl.String)
        else:
            ids = [_id(value) for value in values]
            for i, (value, given) in enumerate(zip(ids, values, strict=True)):
                if value is None and given is not None:
                    faults[i] = faults[i] or f"{role} id neither a string nor a whole number of 64 bits"
            found[role] = _of_one_type(ids, f"{name}: {role} ids")
    return pl.DataFrame({**found, FAULT: pl.Series(faults, dtype=pl.String)})


def _of_one_type(ids: list[Any], whose: str) -> pl.Series:
    known = [value for value in ids if value is not None]
    if len({type(value) for value in known}) > 1:
        raise DataError(f"{whose} are numbers in some rows and strings in others. Make them the same.")
    if not known or isinstance(known[0], str):
        return pl.Series(ids, dtype=pl.String)
    wide = max(known) > _INT64
    if wide and min(known) < 0:
        raise DataError(f"{whose} are both below 0 and above 2**63. Make them strings.")
    return pl.Series(ids, dtype=pl.UInt64 if wide else pl.Int64)


def _id(value: Any) -> int | str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_integer and -_INT64 - 1 <= value <= 2 * _INT64 + 1 else None
