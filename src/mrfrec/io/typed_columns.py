"""Turn the columns of a batch of rows into their final types, and find what is wrong with rows."""

import polars as pl

from mrfrec.errors import DataError
from mrfrec.io.batches import FEATURE, POSSIBLE_TIME, Roles, Source, Types

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
    "time": "times must be numbers, dates, or texts such as 2019-12-08 or 2019-12-08T10:30:00",
    "event": "kinds of events must be text or integers",
}
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f%z")
MIXED_TIMES = "times are numbers in some rows and dates in others. Make them the same."
"""What to say of times of both forms."""
_NO_TIME = "time neither a number nor a date"
_ISO = (
    " Texts must be in ISO 8601, such as 2013-04-03 or 2013-04-03T10:30:00: convert others by "
    "pd.to_datetime(…, dayfirst=True) or dayfirst=False."
)


def advice_on(fault: str, value: object) -> str:
    """Return what else to say of a bad value: how a text is to be written to be a time."""
    return _ISO if fault == _NO_TIME and isinstance(value, str) else ""


def typed_columns(
    batch: pl.DataFrame, table: Source, roles: Roles, types: Types
) -> tuple[pl.DataFrame, dict[str, tuple[pl.Series, str | None]]]:
    """Return the columns in their final types; and for each fault, its rows and the role to quote."""
    columns: dict[str, pl.Series] = {}
    faults: dict[str, tuple[pl.Series, str | None]] = {}
    for role, name in roles.items():
        if role not in batch.columns:  # a possible time of a type that cannot be read
            continue
        raw = batch[role]
        is_numbered = role in types and raw.dtype == types[role]
        if isinstance(raw.dtype, pl.Categorical | pl.Enum | pl.Null) and not is_numbered:
            raw = raw.cast(pl.String)
        if role.startswith(FEATURE) or role == POSSIBLE_TIME:
            columns[role] = raw
            continue
        kind = raw.dtype
        is_text = kind == pl.String
        of_role = {
            "value": (pl.Boolean, pl.Decimal),
            "order": (pl.Decimal,),
            "time": (pl.Date, pl.Datetime),
        }.get(role, ())
        if not (is_text or is_numbered or kind.is_integer() or kind.is_float() or kind in of_role):
            raise DataError(f"{table.name}: {_RULES[role]}; column {name!r} is {kind}.")
        if role == "title":
            columns[role] = raw.cast(pl.String)
            continue
        if role == "event":
            raw = raw.cast(pl.String).str.strip_chars()
            is_text = True
        noun = {"value": "value", "order": "rank or score", "time": "time", "event": "kind of event"}.get(
            role, f"{role} id"
        )
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
        elif role == "time":
            moment = parsed_times(raw, table.name) if is_text else raw
            if moment.dtype.is_temporal():
                # The infinities of PostgreSQL have no year, and cannot be shown.
                beyond = ~moment.dt.year().is_between(1, 9999).fill_null(moment.is_null())
                faults["time beyond the years 1 to 9999"] = beyond, "time" if is_text else None
                moment = pl.select(pl.when(~beyond).then(moment)).to_series().cast(pl.Datetime("us"))
                odd = moment.is_null()
            else:
                odd = moment.is_null() | ~moment.is_finite()
            columns[role] = moment
            wrong = [(odd, "neither a number nor a date")]
        elif is_text or is_numbered:
            columns[role] = raw
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


def parsed_times(raw: pl.Series, name: str) -> pl.Series:
    """Parse texts as numbers or dates, null where they are neither.

    Only dates in ISO 8601 are recognised: 01/12 may be in January or in December.
    """
    text = raw.str.strip_chars()
    whole = text.cast(pl.Int64, strict=False)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    dates = pl.repeat(None, len(text), dtype=pl.Datetime("us"), eager=True)
    if number.null_count():
        plain = text.str.replace(r"^(\S{10})T", "$1 ").str.replace(r"Z$", "+00:00")
        # That of the first text comes first: usually it is that of all.
        first = plain[:1].str
        for form in sorted(_DATES, key=lambda form: first.to_datetime(form, strict=False).null_count()):
            if not dates.null_count():
                break
            parsed = plain.str.to_datetime(form, time_unit="us", strict=False)
            dates = dates.fill_null(parsed.cast(pl.Datetime("us")))
    if dates.null_count() == len(dates):
        return whole if whole.null_count() == number.null_count() else number
    if number.null_count() < len(number):
        raise DataError(f"{name}: {MIXED_TIMES}")
    return dates
