"""The options by which rows of tables are read, checked in one place."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from pydantic import AfterValidator, Field, PlainValidator, model_validator

from mrfrec.checks import check_number, is_unicode
from mrfrec.errors import ParameterError
from mrfrec.options import USUAL, Options, Shell, Whole

Moment = str | date | datetime
Duration = str | timedelta
Duplicates = Literal["sum", "max", "last", "first", "error"]
OnBad = Literal["refuse", "skip"]
MissingTime = Literal["oldest"]
TextIds = Literal["text", "users", "items"]
Format = Literal["csv", "tsv", "jsonl", "parquet", "arrow"]
FORMATS: tuple[str, ...] = get_args(Format)

LIMITS = ("max_history", "min_users", "min_items")
"""Options that drop users and items once all rows are known."""
PARSING = ("on_bad", "missing_time", "separator", "columns", "input_format", "query")
"""Options about the form of a table, in which one table may differ from the next."""

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOMENTS = ("now", "since", "until")
_LONGEST_SECONDS = 1e6 * 86400
_EPOCH = datetime(1970, 1, 1)


def _time(value: object) -> object:
    moment("", value)
    return value


def _window(value: object) -> object:
    duration("", value)
    return value


def _separator(mark: str) -> str:
    if not mark or not mark.isascii() or set(mark) & set('"\r\n'):
        raise ParameterError("separator", "ASCII characters, no quotation mark or line end", mark)
    return mark


def _column_names(columns: object) -> list[str]:
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ParameterError("columns", "a list of distinct names", columns)
    return names


_Time = Annotated[str | date | datetime, PlainValidator(_time)]
_Window = Annotated[str | timedelta, PlainValidator(_window)]
_Weights = Annotated[Mapping[str, float], PlainValidator(lambda weights: _weights_by_kind(weights))]
_Limit = Annotated[Whole, Field(ge=0)]


class ReadingOptions(Options):
    """The options of `read_interactions`, without the names of columns."""

    group: ClassVar[str] = "Rows"

    min_value: Annotated[float | None, USUAL] = Field(
        None,
        gt=-3e38,
        lt=3e38,
        description="Leave out rows with a value below this: 4 for ratings of 4 and more.",
    )
    binary: Annotated[bool, Shell("--binary/--values")] = Field(
        True, description="Let every pair count 1, or its value."
    )
    event_weights: Annotated[
        Annotated[Mapping[str, float], PlainValidator(lambda x: _weights_by_kind(x))] | None, USUAL
    ] = Field(None, description='What an event of each kind counts: {"view": 0.2, "cart": 0.5, "buy": 1}.')
    now: _Time | None = Field(
        None, description="Time from which `window` is measured, by default the latest time in the data."
    )
    since: Annotated[_Time | None, USUAL] = Field(
        None, description='Leave out rows before this time: "2026-11-16", "2026-11-16T10:30:00".'
    )
    until: _Time | None = Field(None, description="Leave out rows at this time and later.")
    window: _Window | None = Field(
        None, description='Leave out rows that are older than this at `now`: "365d", "12h", "2w".'
    )
    duplicates: Duplicates = Field(
        "sum",
        description='Combine several rows of one user and item: "sum" what they count, take the largest '
        '("max"), the "last" or the "first" in the order of the table, or raise an "error".',
    )
    max_history: _Limit | None = Field(
        None, description="Leave out users with more items than this, such as robots."
    )
    min_users: _Limit = Field(0, description="Then leave out items with fewer users than this.")
    min_items: _Limit = Field(0, description="Then leave out users with fewer items than this.")
    on_bad: OnBad = Field(
        "refuse", description='Bad rows, such as rows without ids: "refuse" the table, or "skip" the rows.'
    )
    ids: TextIds | None = Field(
        None,
        description='Ids that are texts, also if they look like integers: of "users", of "items", or "text" '
        "for both.",
    )
    missing_time: MissingTime | None = Field(
        None, description='Let rows whose time is missing or cannot be read count as the "oldest".'
    )
    separator: Annotated[str, AfterValidator(_separator)] | None = Field(
        None, description="Text between the columns of a text file, detected by default."
    )
    columns: Annotated[Sequence[str], PlainValidator(_column_names)] | None = Field(
        None, description='Names of the columns of a text file without a header: ["user", "item", "plays"].'
    )
    input_format: Format | None = Field(
        None, description="Format of the data, if the names of the files do not tell."
    )
    query: Annotated[str | None, Shell(value="SQL", usual=True, group="Data")] = Field(
        None, description='SQL that reads from a database: "select user_id, sku, ts from orders".'
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        since, until = map(self.microseconds, ("since", "until"))
        if since is not None and until is not None and until <= since:
            raise ParameterError("until", f"after since, {self.since}", self.until)
        if self.now is not None and self.window is None:
            advice = "To leave out later events, use until."
            raise ParameterError("now", "left out without window", self.now, advice)
        return self

    def microseconds(self, name: str) -> int | None:
        """Return an option in microseconds: a duration, or a time since 1970 in UTC."""
        value = getattr(self, name)
        if value is None:
            return None
        return duration(name, value) if name == "window" else moment(name, value)

    @property
    def text_ids(self) -> tuple[str, ...]:
        """The roles, "user" and "item", whose ids are texts whatever they look like."""
        return tuple(role for role in ("user", "item") if self.ids in ("text", f"{role}s"))

    @property
    def uses_values(self) -> bool:
        return self.min_value is not None or not self.binary

    @property
    def uses_times(self) -> bool:
        return any(x is not None for x in (self.window, self.since, self.until))

    @property
    def rows_have_weights(self) -> bool:
        """Whether a row may count something else than 1."""
        return not self.binary or self.event_weights is not None

    def rules(self) -> dict[str, Any]:
        """Return the options by which more rows must be read, without limits, as JSON can hold them."""
        kept = {name: field.default for name, field in ReadingOptions.model_fields.items() if name in RULES}
        rules = {
            name: x for name, default in kept.items()
            if name not in LIMITS and (x := getattr(self, name)) != default
        }  # fmt: skip
        for name in rules.keys() & {*_MOMENTS}:
            rules[name] = str(np.datetime64(self.microseconds(name), "us"))
        if self.window is not None:
            rules["window"] = f"{(self.microseconds('window') or 0) / 1e6:.6f}s"
        return rules

    def limits(self) -> dict[str, Any]:
        """Return the options that drop users and items."""
        return {name: getattr(self, name) for name in LIMITS}


def _value_column(value: object) -> object:
    if not isinstance(value, str | None) and value is not False:
        raise ParameterError("value", "the name of a column, False or None", value)
    return value


def _time_column(time: object) -> object:
    if not isinstance(time, str | bool | None):
        raise ParameterError("time", "the name of a column, True, False or None", time)
    return time


class TableColumns(Options):
    """The columns of a table of events, and the table of its items."""

    group: ClassVar[str] = "Data"

    user: Annotated[str | None, Shell("--user-column", "NAME", usual=True)] = Field(
        None, description="Column of the users, if its name does not tell."
    )
    item: Annotated[str | None, Shell("--item-column", "NAME", usual=True)] = Field(
        None, description="Column of the items, if its name does not tell."
    )
    value: Annotated[str | bool | None, PlainValidator(_value_column), Shell("--value-column", "NAME")] = (
        Field(
            None, description="Column of the values, for the options that need them: ratings, counts, plays."
        )
    )
    title: Annotated[str | None, Shell("--title-column", "NAME")] = Field(
        None, description="Column of the items' titles."
    )
    event: Annotated[str | None, Shell("--event-column", "NAME")] = Field(
        None, description="Column of the types of events, if its name does not tell."
    )
    time: Annotated[str | bool | None, PlainValidator(_time_column), Shell("--time-column", "NAME")] = Field(
        None, description="Column of the times, if its name does not tell; False reads none."
    )
    items: Annotated[object, Shell(value="FILE", usual=True)] = Field(
        None, description="Another table, of the items, their titles and further columns."
    )


class TableOptions(TableColumns, ReadingOptions):
    """The parameters of `read_interactions`, but for the source and the progress."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.time is False and (self.uses_times or self.missing_time):
            rule = "left out with window, since, until or missing_time, which need times"
            raise ParameterError("time", rule, self.time)
        if self.value is False and self.uses_values:
            rule = "left out with min_value or binary=False, which need values"
            raise ParameterError("value", rule, self.value)
        if isinstance(self.value, str) and not self.uses_values:
            advice = "binary=False lets pairs count their values, min_value leaves out rows below it."
            rule = "left out without min_value or binary=False (--values)"
            raise ParameterError("value", rule, self.value, advice)
        if self.event is not None and not self.event_weights:
            rule, advice = "left out without event_weights", "Say what each type counts."
            raise ParameterError("event", rule, self.event, advice)
        return self


RULES = tuple(name for name in ReadingOptions.model_fields if name not in PARSING)
"""Options that are kept with the data, since more rows must be read by the same."""


def _weights_by_kind(weights: object) -> dict[str, float]:
    rule = 'weights by kind, such as {"view": 0.2, "buy": 1}'
    if not isinstance(weights, Mapping) or not weights:
        raise ParameterError("event_weights", rule, weights)
    kinds = {str(kind).strip(): weight for kind, weight in weights.items()}
    if "" in kinds or len(kinds) < len(weights) or not all(map(is_unicode, kinds)):
        raise ParameterError("event_weights", f"{rule}, with distinct names in valid Unicode", weights)
    rule = "a number from -1e6 to 1e6"
    return {
        kind: check_number(f"event_weights: {kind}", weight, rule, lambda x: abs(x) <= 1e6)
        for kind, weight in kinds.items()
    }


def duration(name: str, value: object) -> int:
    """Return a duration in microseconds."""
    seconds = math.nan
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", value.strip())):
        seconds = float(match[1]) * _SECONDS.get(match[2], math.nan)
    if not 1e-6 <= seconds <= _LONGEST_SECONDS:
        units = "a number and one of the units s, min, h, d and w, such as 30d, 12h or 2w"
        raise ParameterError(name, f"{units}, from 1e-6s to 1000000d", value)
    return round(seconds * 1e6)


def duration_text(microseconds: float) -> str:
    """Return a duration of at least a microsecond as `duration` reads it: "1.5d", "12h"."""
    seconds = microseconds / 1e6
    unit = next((unit for unit in ("d", "h", "min") if seconds >= _SECONDS[unit]), "s")
    return f"{seconds / _SECONDS[unit]:.6f}".rstrip("0").rstrip(".") + unit


def rounded_duration(microseconds: float) -> float:
    """Return a duration of three digits in the unit that `duration_text` has; 0 for none."""
    if not microseconds:
        return 0.0
    text = duration_text(microseconds)
    number, unit = re.findall(r"[\d.]+|[a-z]+", text)
    return float(round(float(f"{float(number):.3g}") * _SECONDS[unit] * 1e6))


def moment(name: str, value: object) -> int:
    """Return a time in microseconds since 1970, UTC."""
    parsed = value
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = datetime.fromisoformat(value.strip()) if "-" in value else None
    if isinstance(parsed, datetime):
        with suppress(OverflowError):  # a time of the year 1 or 9999 may be of no year in UTC
            plain = parsed if parsed.tzinfo is None else parsed.astimezone(UTC).replace(tzinfo=None)
            microseconds = (plain - _EPOCH) // timedelta(microseconds=1)
            if isinstance(microseconds, int):  # NaT of pandas is a time by its type
                return microseconds
    elif isinstance(parsed, date):
        return (parsed - _EPOCH.date()) // timedelta(microseconds=1)
    raise ParameterError(name, "a date, 2026-11-16, or a time, 2026-11-16T10:30:00", value)
