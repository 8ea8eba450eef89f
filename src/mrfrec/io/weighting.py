"""What an event counts, by its kind and its age, and which times are read at all."""

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import check_number, is_unicode, warn
from mrfrec.errors import DataError, ParameterError

_log = logging.getLogger("mrfrec")

OTHER = "other"  # the name under which a weight counts for all kinds that are not named
Moment = str | int | float | date | datetime
Duration = str | timedelta
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MILLISECONDS_FROM = 1e11  # numbers from here on: as seconds, this is the year 5138; as milliseconds, 1973
_LARGEST = 1e14
_LONGEST = 1e6 * 86400  # seconds
_FADED = 3  # half-lives after which little is left
_OLDEST = 20  # half-lives after which a row fades no more: it counts a millionth, and its item stays seen
_YEAR = 365 * 86_400_000_000  # microseconds
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """Weights of kinds, and rules about times; times and durations in microseconds."""

    kinds: Mapping[str, float] | None = None
    half_life: int | None = None
    now: int | None = None  # None: the latest time that `since` and `until` keep
    since: int | None = None  # the first time that is kept
    until: int | None = None  # the first time that is not
    window: int | None = None

    @classmethod
    def of(
        cls,
        event_weights: object = None,
        half_life: object = None,
        now: object = None,
        since: object = None,
        until: object = None,
        window: object = None,
    ) -> "Weighting":
        """Check the parameters of `read_interactions`."""
        given = {"now": now, "since": since, "until": until}
        moments = {name: None if x is None else _moment(name, x) for name, x in given.items()}
        since_us, until_us = moments["since"], moments["until"]
        if since_us is not None and until_us is not None and until_us <= since_us:
            raise ParameterError("until", f"after since, {since}", until)
        if now is not None and half_life is None and window is None:
            advice = "To leave out later events, use until."
            raise ParameterError("now", "None without half_life or window", now, advice)
        return cls(
            kinds=None if event_weights is None else _kinds(event_weights),
            half_life=None if half_life is None else duration("half_life", half_life),
            window=None if window is None else duration("window", window),
            **moments,
        )

    @property
    def uses_times(self) -> bool:
        return any(x is not None for x in (self.half_life, self.window, self.since, self.until))

    @property
    def weighs(self) -> bool:
        """Whether rows count other than 1."""
        return self.kinds is not None or self.half_life is not None

    def rules(self) -> dict[str, Any]:
        """Return the parameters of `of` that give these rules, as JSON can hold them."""
        moments = {"now": self.now, "since": self.since, "until": self.until}
        durations = {"half_life": self.half_life, "window": self.window}
        return {
            "event_weights": None if self.kinds is None else dict(self.kinds),
            **{name: None if x is None else str(np.datetime64(x, "us")) for name, x in moments.items()},
            **{name: None if x is None else f"{x / 1e6:.6f}s" for name, x in durations.items()},
        }

    def of_kinds(self, column: pl.Series, where: str) -> npt.NDArray[np.float64]:
        """Return the weight of each row by its kind; refuse kinds without a weight."""
        kinds = self.kinds or {}
        unknown = sorted(kind for kind in column.unique().to_list() if kind not in kinds)
        if unknown and OTHER not in kinds:
            named = ", ".join(repr(kind) for kind in unknown[:12]) + (", …" if len(unknown) > 12 else "")
            raise DataError(
                f"{where}: event_weights (--event-weights) has no weight for {named}. Add it; {OTHER}=0 "
                "leaves out all kinds that are not named."
            )
        names = [kind for kind in kinds if kind != OTHER] + ([OTHER] if OTHER in kinds else [])
        weights = column.replace_strict(
            names, [kinds[name] for name in names], default=kinds.get(OTHER), return_dtype=pl.Float64
        )
        return weights.to_numpy()

    def within(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which times are from `since` on and before `until`."""
        keep = np.ones(len(times), np.bool_)
        if self.since is not None:
            keep &= times >= self.since
        if self.until is not None:
            keep &= times < self.until
        return keep

    @property
    def goes_by_age(self) -> bool:
        return self.half_life is not None or self.window is not None

    def is_recent(self, times: npt.NDArray[np.int64], latest: int) -> npt.NDArray[np.bool_]:
        """Return which times the window keeps."""
        if self.window is None:
            return np.ones(len(times), np.bool_)
        return times > (latest if self.now is None else self.now) - self.window

    def of_ages(
        self, times: npt.NDArray[np.int64], latest: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return what each row counts by its age, and which rows have faded as far as rows do.

        Without an end to it, old pairs would vanish below the range of single precision, and what their users
        own would be recommended to them again.
        """
        now = latest if self.now is None else self.now
        ages = np.maximum(now - times, 0) / (self.half_life or math.inf)
        return np.exp2(-np.minimum(ages, _OLDEST)), ages > _OLDEST

    def note_faded(self, faded: int, rows: int) -> None:
        """Log how many rows have faded as far as rows do."""
        if faded:
            _log.info(
                "%s of %s rows are older than %d half-lives: they count a millionth, and their items are "
                "not recommended again. To leave such rows out: window=… (--window).",
                f"{faded:,}", f"{rows:,}", _OLDEST,
            )  # fmt: skip

    def check_latest(
        self, times: Iterable[npt.NDArray[np.int64]], span: tuple[int, int], older: int, last: int
    ) -> None:
        """Warn if few rows, long after all others, decide what counts.

        Beside the rows with these times there were `older` ones, until `last`; `span` is from the first to
        the latest time.
        """
        if self.now is not None:
            return
        earliest, latest = span
        _log.info("now is %s, the latest time that was read", shown(latest))
        reach = min(x for x in (self.window, _FADED * (self.half_life or 0)) if x)
        first, late, before = latest, 0, last
        for some in times:
            is_late = some > latest - reach
            late, older = late + int(is_late.sum()), older + int((~is_late).sum())
            first = min(first, int(some[is_late].min(initial=latest)))
            before = max(before, int(some[~is_late].max(initial=last)))
        gap, others = first - before, before - earliest
        is_stray = older >= 19 * late and gap > max(reach, others / 20)
        if is_stray or (older >= late and gap > max(10 * reach, 10 * others, _YEAR)):  # of few rows, too
            fate = "are left out by window" if reach == self.window else "count less than 1/8 by half_life"
            warn(
                f"now is {shown(latest)}, the latest time that was read: {older:,} of {older + late:,} rows, "
                f"none of them after {shown(before)}, {fate}. If later times are wrong, correct them, "
                "leave them out with until=… (--until), or set now=… (--now)."
            )


def _kinds(given: object) -> dict[str, float]:
    rule = 'weights by kind, such as {"view": 0.2, "buy": 1}'
    if not isinstance(given, Mapping) or not given:
        raise ParameterError("event_weights", rule, given)
    kinds = {str(kind).strip(): weight for kind, weight in given.items()}
    if "" in kinds or len(kinds) < len(given) or not all(map(is_unicode, kinds)):
        raise ParameterError("event_weights", f"{rule}, with distinct names in valid Unicode", given)
    return {
        kind: check_number(
            f"event_weights: {kind}", weight, "a number from -1e6 to 1e6", lambda x: abs(x) <= 1e6
        )
        for kind, weight in kinds.items()
    }


def duration(name: str, given: object) -> int:
    """Return a duration in microseconds."""
    seconds = math.nan
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", given.strip())):
        seconds = float(found[1]) * _SECONDS.get(found[2], math.nan)
    if not 1e-6 <= seconds <= _LONGEST:
        rule = (
            "a number and one of the units s, min, h, d and w, such as 30d, 12h or 2w, from 1e-6s to 1000000d"
        )
        raise ParameterError(name, rule, given)
    return round(seconds * 1e6)


def _moment(name: str, given: object) -> int:
    """Return a time in microseconds since 1970, UTC."""
    rule = "a date, 2026-11-16, a time, 2026-11-16T10:30:00, or seconds or milliseconds since 1970"
    value = given
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else datetime.fromisoformat(text)
        except ValueError:
            raise ParameterError(name, rule, given) from None
    if isinstance(value, datetime):
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (plain - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()) // timedelta(microseconds=1)
    number = check_number(name, value, rule, lambda x: abs(x) < _LARGEST)
    if _looks_like_dates(number) or look_like_years(number, number):
        raise ParameterError(name, rule, given, "A date has hyphens: 2026-11-16.")
    return round(number * (1e3 if abs(number) >= _MILLISECONDS_FROM else 1e6))


def _looks_like_dates(latest: float) -> bool:
    """Return whether a number is more likely 20261116 than a time of the year 1970."""
    return 19000101 <= latest <= 20991231


def look_like_years(first: float, last: float) -> bool:
    """Return whether numbers are more likely 2026, or 202611, than times of January 1970."""
    return any(least <= first and last <= most for least, most in ((1900, 2100), (190001, 210012)))


def from_numbers(times: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int | None]:
    """Convert seconds or milliseconds since 1970 to microseconds; also return the factor, None for zeros."""
    sizes = np.abs(times[times != 0].astype(np.float64))
    least, most = float(sizes.min(initial=math.inf)), float(sizes.max(initial=0.0))
    if most >= _LARGEST or least < _MILLISECONDS_FROM <= most or _looks_like_dates(most):
        raise DataError(
            "times that are numbers must be all seconds or all milliseconds since 1970; got numbers "
            f"from {least:.15g} to {most:.15g}. Or write them as 2026-11-16 or 2026-11-16T10:30:00."
        )
    scale = 1000 if most >= _MILLISECONDS_FROM else 1_000_000
    whole = times.astype(np.int64) * scale if times.dtype.kind in "iu" else np.rint(times * float(scale))
    return whole.astype(np.int64), scale if most else None


def shown(moment: int) -> str:
    """Return a time for people, in UTC."""
    return str(np.datetime64(moment, "us"))[:19]
