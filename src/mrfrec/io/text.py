"""Read text tables: lines of fields with a separator between them, with or without a header.

Fields stay text here, so that what cannot be understood can be shown as it stands in the file.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import BLANK, FAULT, ID_ROLES, Roles, Source, Types, stream

__all__ = ["open_text"]

_SPARE = 4  # columns beyond the last, to notice rows with too many fields
_LONGEST = 100_000  # characters in the first line; lines in one quoted field


def open_text(path: Path, label: str, separator: str | None, columns: list[str] | None) -> Source:
    first = pl.scan_lines(path, glob=False).head(1).collect(engine="streaming")
    if not len(first):
        raise DataError(f"{label} is empty.")
    head = str(first.item()).removeprefix("\ufeff")
    if "\r" in head:
        raise DataError(
            f"{label}, line 1 holds a carriage return. If lines end in carriage returns alone, convert them: "
            "tr '\\r' '\\n'."
        )
    if len(head) > _LONGEST:
        raise DataError(
            f"{label}, line 1 has {len(head):,} characters: is this a table, with a row to a line?"
        )
    if head.count('"') % 2:
        raise DataError(f"{label}, line 1: a quotation mark is not closed.")
    mark = separator or max(
        (",", "\t", ";", "|", "::"), key=lambda mark: (len(_fields(head, mark)), mark == ",")
    )
    header = [name.strip() for name in _fields(head, mark)]
    if columns is not None and len(columns) < len(header):
        rule = f"a name for each of the {len(header)} columns of {label}"
        raise ParameterError("columns", rule, columns, f"Line 1: {head[:300]}")
    names = columns or header
    # A name that occurs twice cannot be asked for, but must not keep the others from being used.
    times = Counter(names)
    names = [name if times[name] == 1 else f"{name} (column {i + 1})" for i, name in enumerate(names)]
    skip = 0 if columns is not None else 1

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        places = [str(i) for i in range(len(names) + _SPARE)]
        if len(mark) == 1:
            look = _inspect(path, label, mark, first_row=1 - skip)
            rows = pl.scan_csv(
                path,
                has_header=False,
                skip_rows=skip,
                separator=mark,
                schema=dict.fromkeys(places, pl.String),
                missing_columns="insert",
                extra_columns="ignore",
                glob=False,
                raise_if_empty=False,
            )
        else:  # polars splits at single bytes only; quotation marks are characters like others here
            look = _Look(has_empty=True, has_spaces=True)
            line = pl.col("line").str.strip_prefix("\ufeff").str.split_exact(mark, len(places) - 1)
            rows = pl.scan_lines(path, glob=False).slice(skip)
            rows = rows.select(line.struct.rename_fields(places)).unnest("line")
        fields = {role: pl.col(places[names.index(name)]) for role, name in roles.items()}
        if look.has_spaces:
            fields |= {role: fields[role].str.strip_chars(" \t") for role in ID_ROLES if role in fields}
        fields |= {role: pl.when(fields[role] != "").then(fields[role]).cast(types[role]) for role in types}
        beyond = pl.any_horizontal(pl.col(places[len(names) :]).str.len_bytes() > 0)
        fault: pl.Expr = pl.when(beyond).then(pl.lit(f"more than {len(names)} fields"))
        if look.has_empty:
            is_empty = pl.all_horizontal(pl.col(places).fill_null("") == "")
            fault = pl.when(is_empty).then(pl.lit(BLANK)).otherwise(fault)
        yield from stream(label, rows.select(**fields, **{FAULT: fault}))

    return Source(label, tuple(names), batches, is_text=True)


def _fields(line: str, separator: str) -> list[str]:
    return (
        next(csv.reader([line], delimiter=separator), [""]) if len(separator) == 1 else line.split(separator)
    )


class _Look(NamedTuple):
    """What a text table may contain, and needs more work."""

    has_empty: bool  # rows whose fields are all empty
    has_spaces: bool


def _inspect(path: Path, label: str, separator: str, first_row: int) -> _Look:
    """Look for empty rows and spaces; refuse what polars would repair.

    That is: quotation marks that do not match, and carriage returns outside of quotation marks.
    """
    empty, spaces, odd, last = False, False, False, b"\n"
    with path.open("rb") as file:
        packed = file.read(4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
        file.seek(0)
        while not packed and (piece := file.read(1 << 16)):
            spaces = spaces or b" " in piece or (separator != "\t" and b"\t" in piece)
            odd = odd or b'"' in piece or (b"\r" in piece and piece.count(b"\r") > piece.count(b"\r\n"))
            empty = empty or _has_empty_first_field(last + piece, separator)
            last = piece[-1:]
    if not packed and not odd:
        return _Look(empty, spaces)
    spaces = True  # at least a tab may stand in quotation marks
    mark = re.escape(separator)
    field = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{mark}\r\n][^{mark}\r\n]*)?'
    record = rf"{field}(?:{mark}{field})*"
    row, parts, marks = first_row, list[str](), 0
    for batch in stream(label, pl.scan_lines(path, glob=False)):
        lines = batch["line"]
        if packed:
            starts_empty = lines.str.starts_with(separator) | lines.str.starts_with('""')
            empty = empty or bool((starts_empty | (lines == "")).any())
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
                    raise _mismatch(label, row)
            row, parts, marks = row + 1, [], 0
    if parts:
        raise _mismatch(label, row)
    return _Look(empty, spaces)


def _has_empty_first_field(piece: bytes, separator: str) -> bool:
    codes = np.frombuffer(piece, np.uint8)
    start, first = codes[:-1] == ord("\n"), codes[1:]
    is_empty = (first == ord("\n")) | (first == ord("\r")) | (first == ord(separator))
    return bool((start & is_empty).any()) or (b'"' in piece and b'\n""' in piece)


def _mismatch(label: str, row: int) -> DataError:
    return DataError(
        f"{label}, row {row:,}: quotation marks that do not match, or a carriage return outside of them. A "
        "field that begins with a quotation mark must end with one and have those inside doubled."
    )
