"""Turn the columns of a batch of rows into their final types, and find what is wrong with rows."""

import polars as pl

from mrfrec.errors import DataError
from mrfrec.io.batches import FEATURE, ID_ROLES, LONGEST, OTHER, TOO_LONG, UNUSED, Roles, Source, Types
from mrfrec.io.id_numbering import cleaned_ids

_EXACT = {
    "Float16": 2**11,
    "Float32": 2**24,
    "Float64": 2**53,
}  # below, whole numbers are represented exactly
_RULES = {
    "user": "user ids must be integers or strings",
    "item": "item ids must be integers or strings",
    "value": "values must be numbers",
    "order": "ranks and scores must be numbers",
    "title": "titles must be text",
    "event": "kinds of events must be text or integers",
}


def typed_columns(
    batch: pl.DataFrame, table: Source, roles: Roles, types: Types
) -> tuple[pl.DataFrame, dict[str, tuple[pl.Series, str | None]]]:
    """Return the columns in their final types; and for each fault, its rows and the role to quote.

    Times, columns of features, and those that are only looked at stay as they are.
    """
    columns: dict[str, pl.Series] = {}
    faults: dict[str, tuple[pl.Series, str | None]] = {}
    for role, name in roles.items():
        raw = batch[role]
        is_numbered = role in types and raw.dtype == types[role]
        if isinstance(raw.dtype, pl.Categorical | pl.Enum | pl.Null) and not is_numbered:
            raw = raw.cast(pl.String)
        if role.startswith((FEATURE, OTHER)) or role in ("time", UNUSED):
            columns[role] = raw
            continue
        kind = raw.dtype
        is_text = kind == pl.String
        of_role = {"value": (pl.Boolean, pl.Decimal), "order": (pl.Decimal,)}.get(role, ())
        if not (is_text or is_numbered or kind.is_integer() or kind.is_float() or kind in of_role):
            is_list = kind in (pl.List, pl.Array)
            advice = (
                f" Write a row for each part of a list: explode({name!r}) of data frames." if is_list else ""
            )
            raise DataError(f"{table.name}: {_RULES[role]}; column {name!r} is {kind}.{advice}")
        if role == "title":
            columns[role] = raw.cast(pl.String)
            continue
        if role == "event":
            raw = raw.cast(pl.String).str.strip_chars()
            is_text = True
        nouns = {"value": "value", "order": "rank or score", "event": "kind of event"}
        noun = nouns.get(role, f"{role} id")
        if is_text and role in ID_ROLES:
            raw = cleaned_ids(raw)
        missing = raw.is_null() | (raw == "") if is_text else raw.is_null()
        wrong: list[tuple[pl.Series, str]] = []
        if role in ("value", "order"):
            number = raw.cast(pl.Float64, strict=False)
            if is_text and number.null_count():
                stripped = raw.str.strip_chars()
                number = stripped.cast(pl.Float64, strict=False)
                missing |= stripped == ""
            columns[role] = number
            wrong = [(number.is_null() | ~number.is_finite(), "not a finite number")]
            if role == "value":
                columns[role] = small = number.cast(pl.Float32)
                beyond = ~small.is_finite() | ((small == 0) & (number != 0))
                wrong.append((beyond, "beyond single precision"))
        elif is_text or is_numbered:
            columns[role] = raw
            if is_text and role in ID_ROLES:
                wrong = [(raw.str.len_bytes() > LONGEST, TOO_LONG)]
        elif kind.is_float():  # pandas turns integers into floats if one is missing
            columns[role] = raw.cast(pl.Int64, strict=False)
            missing |= raw.is_nan()
            wrong = [
                (raw != raw.round(), "not a whole number"),
                (raw.abs() >= _EXACT[str(kind)], "too large for a float to be exact"),
            ]
        else:
            columns[role] = raw
            signed, unsigned = (raw.cast(bits, strict=False).is_null() for bits in (pl.Int64, pl.UInt64))
            wrong = [(signed & unsigned, "not a whole number of 64 bits")]
        faults[f"no {noun}"] = missing.fill_null(False), None
        faults |= {f"{noun} {what}": (where.fill_null(False), role) for where, what in wrong}
    return pl.DataFrame(columns), faults
