"""Sources of rows: each yields batches in polars, in the order of the rows, and their final types."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mrfrec.data.ids import cleaned_ids
from mrfrec.errors import DataError, MrfrecError

# A batch may have a column FAULT, which says what is wrong with the shape of a row, or is null. A row with
# the fault BLANK has no content and is passed over.
FAULT = "fault"
BLANK = "blank line"
BATCH_ROWS = 250_000
# The first bytes of gzip and zstd files.
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
ID_ROLES = ("user", "item")
# An id must have a visible character.
VISIBLE = r"[^\s\x1c-\x1f\u{200b}\u{2060}\u{feff}]"
# "other user uid" is the role of a column that must equal the column of users. Roles of columns that are
# only looked at begin with UNREAD, roles of columns of an item table with FEATURE.
OTHER = "other "
UNREAD = "unread "
FEATURE = "feature "
INT64_MAX = np.iinfo(np.int64).max
_LISTS = (list, tuple, np.ndarray)
_PLAIN = ({bool}, {int}, {float}, {int, float})
# Spellings of a missing id by pandas, databases and people.
_MISSING = ("NULL", "Null", "null", "None", "NaN", "nan", "NA", "N/A", "n/a", "<NA>", "#N/A", r"\N", "-")
MISSING = (*_MISSING, *(f" {spelling}" for spelling in _MISSING))
# If at most this share of the ids of a column are no integers, these ids are doubtful.
DOUBTFUL = 0.01
# The bytes of a line, or of an id.
LONGEST = 100_000
TOO_LONG = f"of more than {LONGEST:,} bytes"
_NO_ID = "neither a string nor a whole number of 64 bits"
# Floats below this hold whole numbers exactly.
EXACT = 2**53
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
UNREADABLE = (*POLARS_ERRORS, ArithmeticError, OSError, RuntimeError, TypeError, ValueError)

# Role → column, such as {"user": "user_id"}, and role → type to which text is converted while it is read.
Roles = Mapping[str, str]
Types = Mapping[str, pl.DataType]


@dataclass(frozen=True)
class Source:
    """One file, stream, query or frame.

    `name` is for messages. The columns of a text (`is_text`) have no types, so that ids are integers if all
    look like integers. `library` is the data frame library of a frame. `rows` returns about how many rows
    there are, or 0 if that is unknown.
    """

    name: str
    columns: tuple[str, ...]
    batches: Callable[[Roles, Types], Iterator[pl.DataFrame]]
    is_text: bool = False
    library: str | None = None
    rows: Callable[[], int] = lambda: 0


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of libraries and of the system into a `DataError` that names the source."""
    try:
        yield
    except MrfrecError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{name} cannot be read: {_reason(name, error)}.") from _cause(name, error)


def _cause(name: str, error: BaseException) -> BaseException | None:
    """Return the error; None if it quotes a URL, which may hold a password or a signature."""
    return None if "://" in name and "://" in str(error) else error


def _reason(name: str, error: BaseException) -> str:
    if _cause(name, error) is None:
        if isinstance(error, FileNotFoundError) or "expanded paths were empty" in str(error):
            return "there is no such file"
        status = re.search(r"status code: (\d+ [A-Z][A-Za-z ]+)", str(error))
        return status[1] if status else type(error).__name__
    if isinstance(error, UnicodeEncodeError):
        return "a text holds half of a surrogate pair, which is not a character"
    if re.search("utf-?8", str(error), re.IGNORECASE):
        return "the text is not UTF-8. Convert it; if it is Latin-1: iconv -f latin1 -t utf-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:300].rstrip(".") or type(error).__name__


def check_text(path: Path, name: str) -> None:
    """Refuse a file that is not text, or text in UTF-16."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name} is text in UTF-16. Convert it to UTF-8: iconv -f utf-16 -t utf-8.")
    if b"\0" in head and not head.startswith(PACKED):
        raise DataError(f"{name} is not a text file: it contains NUL bytes.")


def lines_of(path: Path) -> int:
    """Estimate the number of lines of a text from its first MiB; 0 if it is compressed."""
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return 0 if head.startswith(PACKED) else head.count(b"\n") * path.stat().st_size // max(len(head), 1)


def stream(name: str, rows: pl.LazyFrame, types: Types) -> Iterator[pl.DataFrame]:
    """Yield batches of rows; convert texts to the types, and blank texts to null."""
    done = 0
    try:
        schema = rows.collect_schema()
        texts = {role: pl.col(role) for role in types if schema.get(role) == pl.String}
        if texts:
            long = {role: text.str.len_bytes() > LONGEST for role, text in texts.items()}
            faults = [pl.when(long[role]).then(pl.lit(f"{role} id {TOO_LONG}")) for role in texts]
            rows = rows.with_columns(
                *(
                    pl.when(text.str.contains(VISIBLE) & ~long[role]).then(text).cast(types[role])
                    for role, text in texts.items()
                ),
                pl.coalesce(*([pl.col(FAULT)] if FAULT in schema else []), *faults).alias(FAULT),
            )
        for batch in rows.collect_batches(
            chunk_size=BATCH_ROWS, maintain_order=True, lazy=True, engine="streaming"
        ):
            yield batch
            done += len(batch)
    except UNREADABLE as error:
        reason = _reason(name, error)
        raise DataError(f"{name} cannot be read after row {done:,}: {reason}.") from _cause(name, error)


def not_an_integer(role: str) -> str:
    """Return the fault of a row whose id is no integer in a column of integers."""
    return f"{role} id not an integer, as nearly all are"


def written_as_missing(role: str) -> str:
    """Return the fault of a row whose id is a spelling of a missing one."""
    return f"{role} id written as missing (NULL, NA, None, -)"


def batch_of(
    columns: Mapping[str, pl.Series | list[Any]],
    faults: list[str | None],
    name: str,
    text_ids: Collection[str] = (),
) -> pl.DataFrame:
    """Build a batch from columns or lists of Python values; a value that cannot be an id becomes a fault.

    The ids of the roles `text_ids` are texts.
    """
    series: dict[str, pl.Series] = {}
    for role, values in columns.items():
        if isinstance(values, pl.Series):
            series[role] = values
        elif role.startswith(FEATURE) and any(isinstance(x, _LISTS) for x in values):
            cells = (x if x is None or isinstance(x, _LISTS) else [x] for x in values)
            lists = [None if x is None else [str(part) for part in x if part is not None] for x in cells]
            series[role] = pl.Series(lists, dtype=pl.List(pl.String))
        elif role.startswith(FEATURE) and {type(x) for x in values if x is not None} in _PLAIN:
            kinds = {type(x) for x in values}
            number = pl.Float64 if float in kinds else pl.Int128
            series[role] = pl.Series(values, dtype=pl.Boolean if bool in kinds else number, strict=False)
        elif role not in ID_ROLES:
            plain = [
                int(x) if isinstance(x, bool) and role.startswith(("value", UNREAD)) else x for x in values
            ]
            series[role] = pl.Series([None if x is None else str(x) for x in plain], dtype=pl.String)
        else:
            series[role] = _ids(values, role, faults, name, is_text=role in text_ids)
    return pl.DataFrame({**series, FAULT: pl.Series(faults, dtype=pl.String)})


def _ids(values: list[Any], role: str, faults: list[str | None], name: str, *, is_text: bool) -> pl.Series:
    """Return ids of one type, and add the faults of values that cannot be ids."""
    ids = [_as_id(value) for value in values]
    for i, (value, raw) in enumerate(zip(ids, values, strict=True)):
        if value is None and raw is not None:
            what = "a list: write a row for each part (explode)" if isinstance(raw, _LISTS) else _NO_ID
            faults[i] = faults[i] or f"{role} id {what}"
    if is_text:
        texts = [str(int(x)) if isinstance(x, int | float) else x for x in ids]
        return pl.Series(texts, dtype=pl.String)
    types = Counter(type(value) for value in ids if value is not None)
    if str in types and len(types) > 1:
        for i, value in enumerate(ids):
            if value in MISSING:
                faults[i], ids[i] = faults[i] or written_as_missing(role), None
                types[str] -= 1
    types = +types
    if str in types and len(types) > 1:
        if types[str] > DOUBTFUL * types.total():
            raise DataError(
                f"{name}: {role} ids are numbers in some rows and strings in others. Make them the same, or "
                'say that they are texts: ids="text" (--ids text).'
            )
        for i, value in enumerate(ids):
            if isinstance(value, str):
                faults[i], ids[i] = faults[i] or not_an_integer(role), None
        del types[str]
    if float in types:
        return pl.Series([None if value is None else float(value) for value in ids], dtype=pl.Float64)
    return pl.Series(ids, dtype=pl.Int128 if int in types else pl.String)


def _as_id(value: Any) -> int | float | str | None:
    """Return a value as an id, or None if it cannot be an id."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return float(value)
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_integer and -INT64_MAX - 1 <= value <= 2 * INT64_MAX + 1 else None


# Floats below these numbers hold whole numbers exactly.
_EXACT_BELOW = {
    "Float16": 2**11,
    "Float32": 2**24,
    "Float64": 2**53,
}
_RULES = {
    "user": "user ids must be integers or strings",
    "item": "item ids must be integers or strings",
    "value": "values must be numbers",
    "order": "ranks and scores must be numbers",
    "title": "titles must be text",
    "event": "kinds of events must be text or integers",
}


def typed_columns(
    batch: pl.DataFrame, table: Source, roles: Roles, types: Types, with_missing: Collection[str] = ()
) -> tuple[pl.DataFrame, dict[str, tuple[pl.Series, str | None]]]:
    """Return the columns in their final types, and the faults of rows: fault → rows, role to quote.

    Times, columns of an item table and columns that are only looked at stay as they are. In the roles
    `with_missing`, an id that is a spelling of a missing one, such as NULL, is a fault.
    """
    columns: dict[str, pl.Series] = {}
    faults: dict[str, tuple[pl.Series, str | None]] = {}
    is_name: dict[str, pl.Series] = {}  # role → rows whose id is the name of its column
    for role, name in roles.items():
        raw = batch[role]
        is_numbered = role in types and raw.dtype == types[role]
        if isinstance(raw.dtype, pl.Categorical | pl.Enum | pl.Null) and not is_numbered:
            raw = raw.cast(pl.String)
        if role.startswith((FEATURE, OTHER, UNREAD)) or role == "time":
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
            if role in with_missing:
                is_missing = raw.is_in(pl.Series(MISSING, dtype=raw.dtype).implode())
                faults[written_as_missing(role)] = is_missing.fill_null(False), role
        elif kind.is_float():
            # pandas turns integers into floats if one is missing.
            columns[role] = raw.cast(pl.Int64, strict=False)
            missing |= raw.is_nan()
            wrong = [
                (raw != raw.round(), "not a whole number"),
                (raw.abs() >= _EXACT_BELOW[str(kind)], "too large for a float to be exact"),
            ]
        else:
            columns[role] = raw
            signed, unsigned = (raw.cast(bits, strict=False).is_null() for bits in (pl.Int64, pl.UInt64))
            wrong = [(signed & unsigned, "not a whole number of 64 bits")]
        if role in ID_ROLES and (is_text or is_numbered):
            is_name[role] = raw.is_in(pl.Series([name], dtype=raw.dtype).implode()).fill_null(False)
        faults[f"no {noun}"] = missing.fill_null(False), None
        faults |= {f"{noun} {what}": (where.fill_null(False), role) for where, what in wrong}
    if len(is_name) == len(ID_ROLES):
        faults["the names of the columns again"] = is_name["user"] & is_name["item"], None
    return pl.DataFrame(columns), faults
