"""The options by which rows of tables are read, checked in one place."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, get_args

import numpy as np

from mrfrec.checks import check_count, check_flag, check_number, in_words, is_unicode
from mrfrec.errors import ParameterError

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

_CHOICES = {"duplicates": get_args(Duplicates), "on_bad": get_args(OnBad)}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOMENTS = ("now", "since", "until")
_LONGEST_SECONDS = 1e6 * 86400
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """The options of `read_interactions`, which documents them, without the names of columns."""

    min_value: float | None = None
    binary: bool = True
    event_weights: Mapping[str, float] | None = None
    now: Moment | None = None
    since: Moment | None = None
    until: Moment | None = None
    window: Duration | None = None
    duplicates: Duplicates = "sum"
    max_history: int | None = None
    min_users: int = 0
    min_items: int = 0
    on_bad: OnBad = "refuse"
    ids: TextIds | None = None
    missing_time: MissingTime | None = None
    separator: str | None = None
    columns: Sequence[str] | None = None
    input_format: Format | None = None
    query: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ParameterError(name, in_words((f'"{choice}"' for choice in allowed), "or"), value)
        if self.missing_time not in (None, "oldest"):
            raise ParameterError("missing_time", '"oldest" or None', self.missing_time)
        if self.ids not in (None, *get_args(TextIds)):
            raise ParameterError("ids", '"text", "users", "items" or None', self.ids)
        check_flag("binary", self.binary)
        if self.min_value is not None:
            number = check_number("min_value", self.min_value, "a finite number", lambda x: abs(x) < 3e38)
            object.__setattr__(self, "min_value", number)
        if self.event_weights is not None:
            object.__setattr__(self, "event_weights", _weights_by_kind(self.event_weights))
        since, until, *_ = map(self.microseconds, ("since", "until", "now", "window"))
        if since is not None and until is not None and until <= since:
            raise ParameterError("until", f"after since, {self.since}", self.until)
        if self.now is not None and self.window is None:
            advice = "To leave out later events, use until."
            raise ParameterError("now", "left out without window", self.now, advice)
        for name in LIMITS:
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least=0)
        self._check_form()

    def _check_form(self) -> None:
        mark = self.separator
        if mark is not None and not (
            isinstance(mark, str) and mark and mark.isascii() and not set(mark) & set('"\r\n')
        ):
            raise ParameterError("separator", "ASCII characters, no quotation mark or line end", mark)
        columns = self.columns
        if columns is not None:
            names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else []
            are_texts = bool(names) and all(isinstance(name, str) for name in names)
            if not are_texts or len(set(names)) < len(names):
                raise ParameterError("columns", "a list of distinct names", columns)
            object.__setattr__(self, "columns", names)
        form = self.input_format
        if form is not None and (not isinstance(form, str) or form not in FORMATS):
            raise ParameterError("input_format", f"one of {', '.join(FORMATS)}", self.input_format)
        if self.query is not None and not isinstance(self.query, str):
            raise ParameterError("query", "a text", self.query)

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
        kept = [each for each in fields(self) if each.name not in (*LIMITS, *PARSING)]
        rules = {each.name: x for each in kept if (x := getattr(self, each.name)) != each.default}
        for name in rules.keys() & {*_MOMENTS}:
            rules[name] = str(np.datetime64(self.microseconds(name), "us"))
        if self.window is not None:
            rules["window"] = f"{(self.microseconds('window') or 0) / 1e6:.6f}s"
        return rules

    def limits(self) -> dict[str, Any]:
        """Return the options that drop users and items."""
        return {name: getattr(self, name) for name in LIMITS}


RULES = tuple(each.name for each in fields(ReadingOptions) if each.name not in PARSING)
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
