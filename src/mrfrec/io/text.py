"""Read text: tables of fields between separators, and JSON lines with an object in each line.

The fields of tables stay text here, so that errors can quote a bad field as it stands in the file.
"""

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from mrfrec.errors import DataError, ParameterError
from mrfrec.io import batches as tables
from mrfrec.io.batches import BLANK, FAULT, ID_ROLES, LONGEST, UNREAD, Roles, Source, Types, batch_of, stream

# polars may turn the numbers of roles that begin so into text.
_NUMBERS = ("value", "time", UNREAD)
# Spare columns after the last one show rows with too many fields.
_SPARE_COLUMNS = 4
# The columns of JSON lines and their types are inferred from so many lines.
_SAMPLE = 1000
# So many empty lines are read in any text; a file of a megabyte may unpack to hundreds of millions.
_EMPTY_LINES = 1_000_000


def open_text(path: Path, label: str, separator: str | None, columns: list[str] | None) -> Source:
    head = _first_line(path, label)
    is_blank = not head.strip() and columns is None
    if is_blank or "\r" in head or head.count('"') % 2:
        rule = "must name the columns, without line breaks, and have a row for each line below it"
        raise DataError(f"{label}, line 1: it {rule}; got {head[:80]!r}.")
    mark = separator or max(
        (",", "\t", ";", "|", "::"), key=lambda mark: (len(_fields(head, mark)), mark == ",")
    )
    header = [name.strip() for name in _fields(head, mark)]
    if columns is not None and len(columns) < len(header):
        rule = f"a name for each of the {len(header)} columns of {label}"
        raise ParameterError("columns", rule, columns, f"Line 1: {head[:300]}")
    if columns is not None and header == columns[: len(header)]:
        rule = f"left out for {label}, whose first line has these names already"
        raise ParameterError("columns", rule, columns)
    names = columns or header
    # A name that occurs twice cannot be used; the other columns can.
    times = Counter(names)
    names = [name if times[name] == 1 else f"{name} (column {i + 1})" for i, name in enumerate(names)]
    skip = 0 if columns is not None else 1

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        numbers = [str(i) for i in range(len(names) + _SPARE_COLUMNS)]
        is_plain = _is_plain(path, label, mark, first_row=1 - skip)
        if len(mark) == 1:
            rows = pl.scan_csv(
                path,
                has_header=False,
                skip_rows=skip,
                separator=mark,
                schema=dict.fromkeys(numbers, pl.String),
                missing_columns="insert",
                extra_columns="ignore",
                glob=False,
                raise_if_empty=False,
            )
        else:
            # polars splits tables at single bytes only. Quotation marks have no meaning here.
            line = pl.col("line").str.strip_prefix("\ufeff").str.split_exact(mark, len(numbers) - 1)
            rows = pl.scan_lines(path, glob=False).slice(skip)
            rows = rows.select(line.struct.rename_fields(numbers)).unnest("line")
        fields = {role: pl.col(numbers[names.index(name)]) for role, name in roles.items()}
        beyond = pl.any_horizontal(pl.col(numbers[len(names) :]).str.len_bytes() > 0)
        fault: pl.Expr = pl.when(beyond).then(pl.lit(f"more than {len(names)} fields"))
        if not is_plain:
            is_empty = pl.all_horizontal(pl.col(numbers).fill_null("") == "")
            fault = pl.when(is_empty).then(pl.lit(BLANK)).otherwise(fault)
        yield from stream(label, rows.select(**fields, **{FAULT: fault}), types)

    return Source(label, tuple(names), batches, is_text=True)


def _fields(line: str, separator: str) -> list[str]:
    return (
        next(csv.reader([line], delimiter=separator), [""]) if len(separator) == 1 else line.split(separator)
    )


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield a text, decompressed, in pieces of 64 KB; yield nothing of .zst if pyarrow is missing."""
    with (
        path.open("rb") as raw,
        suppress(EOFError, OSError, zlib.error),
    ):
        # If this fails, polars will say what is wrong.
        file: Any = raw
        head = raw.read(4)
        raw.seek(0)
        if head.startswith(tables.PACKED[0]):
            file = gzip.GzipFile(fileobj=raw)
        elif head.startswith(tables.PACKED[1]):
            try:
                from pyarrow import CompressedInputStream
            except ImportError:
                return
            file = CompressedInputStream(raw, "zstd")
        while piece := file.read(1 << 16):
            yield piece


def _bounded(path: Path, label: str) -> Iterator[bytes]:
    """Yield a text in pieces; refuse a long line, or too many empty ones, before all is in memory."""
    # The number and the size of the line that the next piece continues.
    line, size = 1, 0
    empty = 0
    for piece in _pieces(path):
        breaks = np.frombuffer(piece.replace(b"\r", b""), np.uint8) == ord("\n")
        empty += int((breaks[1:] & breaks[:-1]).sum())
        # A file with an empty line after each row is read.
        if empty > _EMPTY_LINES and empty > 0.75 * line:
            raise DataError(
                f"{label}, before line {line:,}: {empty:,} lines are empty, most of the file. Is it a table?"
            )
        end = piece.find(b"\n")
        if size + (len(piece) if end < 0 else end) > LONGEST:
            raise DataError(
                f"{label}, line {line:,}: it is longer than {LONGEST:,} bytes. Is it a table, with a row in "
                "each line?"
            )
        size = size + len(piece) if end < 0 else len(piece) - piece.rfind(b"\n") - 1
        line += piece.count(b"\n")
        yield piece


def _first_line(path: Path, label: str) -> str:
    head = b""
    for piece in _bounded(path, label):
        head += piece
        if b"\n" in piece:
            break
    else:
        # The file is empty, or .zst without pyarrow.
        if not head:
            lines = pl.scan_lines(path, glob=False).head(1).collect(engine="streaming")
            if not len(lines):
                raise DataError(f"{label} is empty.")
            return str(lines.item()).removeprefix("\ufeff")
    return head.partition(b"\n")[0].removesuffix(b"\r").decode().removeprefix("\ufeff")


def _is_plain(path: Path, label: str, separator: str, first_row: int) -> bool:
    """Return whether a text has no quotation marks and no rows that begin with an empty field.

    Refuse long lines, and text that polars would repair in silence: quotation marks that do not match, and
    carriage returns outside of quotation marks.
    """
    plain = True
    # Whether there are quotation marks or carriage returns.
    odd = False
    last = b""
    begins_empty = re.compile(rb"\n[\r\n" + re.escape(separator).encode() + b"]")
    for piece in _bounded(path, label):
        plain = plain and not begins_empty.search(last + piece)
        odd = odd or b'"' in piece or (b"\r" in piece and piece.count(b"\r") > piece.count(b"\r\n"))
        last = piece[-1:]
    # With a separator of several characters, quotation marks mean nothing.
    if len(separator) > 1:
        return False
    if last and not odd:
        return plain
    mark = re.escape(separator)
    field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{mark}\r\n][^{mark}\r\n]*)?'
    record = rf"{field}(?:{mark}{field})*"
    row = first_row
    # The lines of a row so far, with the numbers of their quotation marks and characters.
    parts: list[str] = []
    marks = size = 0

    def mismatch() -> DataError:
        return DataError(
            f"{label}, row {row:,}: quotation marks that do not match, or a carriage return outside of them. "
            "A field that begins with a quotation mark must end with one and have those inside doubled."
        )

    for batch in stream(label, pl.scan_lines(path, glob=False), {}):
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
                size += len(line)
                if marks % 2 and size <= LONGEST:
                    # A quoted field goes on in the next line.
                    continue
                if not re.fullmatch(record, "\n".join(parts)):
                    raise mismatch()
            row += 1
            parts = []
            marks = size = 0
    if parts:
        raise mismatch()
    return False


def open_json(path: Path, label: str, text_ids: Collection[str]) -> Source:
    for _ in _bounded(path, label):
        pass
    lines = pl.scan_lines(path, glob=False)
    head = lines.head(_SAMPLE).collect(engine="streaming")["line"]
    if not len(head):
        raise DataError(f"{label} is empty.")
    if "".join(head[:50]).lstrip("\ufeff \t\r").startswith("["):
        raise DataError(f"{label} is one JSON array. Convert it to JSON lines, one object to a line.")
    objects = [fields for fields, fault in map(_parse, head) if not fault]
    if not objects:
        raise DataError(f"{label}: none of the first {len(head)} lines is a JSON object.")
    names = dict.fromkeys(name for fields in objects for name in fields)
    texts = {name for fields in objects for name, value in fields.items() if isinstance(value, str)}
    kinds = {name: pl.String if name in texts else pl.Int128 for name in names}

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        for batch in stream(label, lines, {}):
            texts = batch["line"]
            blank = texts.str.strip_chars() == ""
            if blank.any():
                texts = pl.select(pl.when(blank).then(pl.lit("{}")).otherwise(texts)).to_series()
            rows = _parse_fast(texts, roles, kinds)
            if rows is None:
                parsed = [_parse(line) for line in texts]
                columns = {role: [fields.get(name) for fields, _ in parsed] for role, name in roles.items()}
                rows = batch_of(columns, [fault for _, fault in parsed], label, text_ids)
            if blank.any():
                fault = pl.col(FAULT) if FAULT in rows.columns else None
                rows = rows.with_columns(pl.when(blank).then(pl.lit(BLANK)).otherwise(fault).alias(FAULT))
            yield rows

    return Source(label, tuple(names), batches)


def _parse_fast(
    lines: pl.Series, roles: Roles, kinds: Mapping[str, type[pl.DataType]]
) -> pl.DataFrame | None:
    """Parse fields of JSON lines with polars; return None if it would fail, or turn other types into text."""
    schema = {column: kinds[column] if role in ID_ROLES else pl.String for role, column in roles.items()}
    odd = [r"\\ud[89a-f]", r"\x{feff}"]
    for role, column in roles.items():
        if schema[column] == pl.String:
            key = "|".join(re.escape(json.dumps(column, ensure_ascii=plain)) for plain in (True, False))
            odd.append(rf"(?:{key})\s*:\s*" + (r"[tf{\[]" if role.startswith(_NUMBERS) else r'[^\sn"]'))
    if lines.str.contains(f"(?i){'|'.join(odd)}").any():
        return None
    try:
        rows = pl.read_ndjson(lines.str.join("\n").item().encode(), schema=schema)
    except tables.POLARS_ERRORS:
        return None
    if len(rows) < len(lines):
        return None
    return rows.select(**{role: cs.by_name(column) for role, column in roles.items()})


def _parse(line: str) -> tuple[dict[str, Any], str | None]:
    """Return the fields of a JSON object, or the fault of the line; the first of equal keys counts."""
    try:
        fields = json.loads(line.removeprefix("\ufeff"), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
        if "\\u" in line:
            # This fails if half of a surrogate pair is missing.
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}, "not valid JSON"
    return (fields, None) if isinstance(fields, dict) else ({}, "not a JSON object")
