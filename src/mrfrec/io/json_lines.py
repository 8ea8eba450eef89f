"""Read JSON lines: one object to a line."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from mrfrec.errors import DataError
from mrfrec.io.batches import (
    BLANK,
    FAULT,
    ID_ROLES,
    INT64_MAX,
    POLARS_ERRORS,
    Roles,
    Source,
    Types,
    batch_of,
    stream,
)

_SAMPLE = 1000  # lines of JSON from which the columns and their types are inferred


def open_json(path: Path, label: str) -> Source:
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
    kinds = {name: _json_kind([fields.get(name) for fields in objects]) for name in names}

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        for batch in stream(label, lines):
            texts = batch["line"]
            blank = texts.str.strip_chars() == ""
            if blank.any():
                texts = pl.select(pl.when(blank).then(pl.lit("{}")).otherwise(texts)).to_series()
            rows = _parse_fast(texts, roles, kinds)
            if rows is None:
                parsed = [_parse(line) for line in texts]
                columns = {role: [fields.get(name) for fields, _ in parsed] for role, name in roles.items()}
                rows = batch_of(columns, [fault for _, fault in parsed], label)
            if blank.any():
                fault = pl.col(FAULT) if FAULT in rows.columns else None
                rows = rows.with_columns(pl.when(blank).then(pl.lit(BLANK)).otherwise(fault).alias(FAULT))
            yield rows

    return Source(label, tuple(names), batches)


def _json_kind(values: list[Any]) -> type[pl.DataType]:
    """Infer the type of a column of ids from a sample."""
    if any(isinstance(value, str) for value in values):
        return pl.String
    integers = [value for value in values if isinstance(value, int)]
    return pl.UInt64 if max(integers, default=0) > INT64_MAX else pl.Int64


def _parse_fast(
    lines: pl.Series, roles: Roles, kinds: Mapping[str, type[pl.DataType]]
) -> pl.DataFrame | None:
    """Parse these fields of each line; None where polars would fail, or turn other types into text."""
    schema = {column: kinds[column] if role in ID_ROLES else pl.String for role, column in roles.items()}
    odd = [r"\\ud[89a-f]", r"\x{feff}"]
    for role, column in roles.items():
        if schema[column] == pl.String:
            key = "|".join(re.escape(json.dumps(column, ensure_ascii=plain)) for plain in (True, False))
            odd.append(rf"(?:{key})\s*:\s*" + ("[tf]" if role == "value" else r'[^\sn"]'))
    if lines.str.contains(f"(?i){'|'.join(odd)}").any():
        return None
    try:
        rows = pl.read_ndjson(lines.str.join("\n").item().encode(), schema=schema)
    except POLARS_ERRORS:
        return None
    if len(rows) < len(lines):
        return None
    return rows.select(**{role: cs.by_name(column) for role, column in roles.items()})


def _parse(line: str) -> tuple[dict[str, Any], str | None]:
    """Return the fields of a JSON object, of equal keys the first; or the fault of the line."""
    if not line.strip():
        return {}, BLANK
    try:
        fields = json.loads(line.removeprefix("\ufeff"), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
        if "\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()  # fails if half of a surrogate pair is missing
    except (ValueError, RecursionError):
        return {}, "not valid JSON"
    return (fields, None) if isinstance(fields, dict) else ({}, "not a JSON object")
