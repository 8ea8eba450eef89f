"""Weigh rows by the kind of event and by age, and choose them by time."""

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.checks import warn
from mrfrec.data.reading import LARGEST_TIME, MILLISECONDS_FROM, ReadingOptions, look_like_dates
from mrfrec.errors import DataError

_log = logging.getLogger("mrfrec")

OTHER = "other"  # the name under which a weight counts for all kinds that are not named
_FADED = 3  # half-lives after which little is left
_OLDEST = 20  # half-lives after which a row fades no more: it counts a millionth, and its item stays seen
_YEAR = 365 * 86_400_000_000  # microseconds


class Weighting:
    """Weights of rows, and rules about their times; times and durations in microseconds."""

    def __init__(self, options: ReadingOptions) -> None:
        self.kinds = options.event_weights
        self.half_life, self.window = options.microseconds("half_life"), options.microseconds("window")
        self.now = options.microseconds("now")  # None: the latest time that `since` and `until` keep
        self.since = options.microseconds("since")  # the first time that is kept
        self.until = options.microseconds("until")  # the first time that is not

    @property
    def goes_by_age(self) -> bool:
        return self.half_life is not None or self.window is not None

    def of_kinds(self, column: pl.Series, where: str) -> npt.NDArray[np.float64]:
        """Return the weight of each row by its kind; refuse kinds without a weight."""
        kinds = self.kinds or {}
        unknown = sorted(kind for kind in column.unique().to_list() if kind not in kinds)
        if unknown and OTHER not in kinds:
            named = ", ".join(repr(kind) for kind in unknown[:12]) + (", …" if len(unknown) > 12 else "")
            raise DataError(
                f"{where}: event_weights has no weight for {named}. Add it; {OTHER}=0 leaves out all kinds "
                "that are not named."
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

    def is_recent(self, times: npt.NDArray[np.int64], latest: int) -> npt.NDArray[np.bool_]:
        """Return which times the window keeps."""
        if self.window is None:
            return np.ones(len(times), np.bool_)
        return times > (latest if self.now is None else self.now) - self.window

    def of_ages(
        self, times: npt.NDArray[np.int64], latest: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return the weight of each row by its age, and which rows are too old to fade any further.

        If rows faded without end, old pairs would fall below the range of single precision, and their items
        would be recommended to their users again.
        """
        now = latest if self.now is None else self.now
        ages = np.maximum(now - times, 0) / (self.half_life or math.inf)
        return np.exp2(-np.minimum(ages, _OLDEST)), ages > _OLDEST

    def note_faded(self, faded: int, rows: int) -> None:
        """Log how many rows are too old to fade any further."""
        if faded:
            _log.info(
                "%s of %s rows are older than %d half-lives: they count a millionth, and their items are "
                "not recommended again. Give window=… to leave such rows out.",
                f"{faded:,}", f"{rows:,}", _OLDEST,
            )  # fmt: skip

    def check_latest(
        self, times: Iterable[npt.NDArray[np.int64]], span: tuple[int, int], older: int, last: int
    ) -> None:
        """Warn if few rows, long after all others, decide the weight of the others.

        Beside the rows with these times there were `older` ones, until `last`; `span` is from the first to
        the latest time.
        """
        if self.now is not None:
            return
        earliest, latest = span
        _log.info("now is %s, the latest time that was read", utc_text(latest))
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
                f"now is {utc_text(latest)}, the latest time that was read: {older:,} of {older + late:,} "
                f"rows, none of them after {utc_text(before)}, {fate}. If later times are wrong, correct "
                "them, or give until=… to leave them out, or now=… to fix the time."
            )


def from_numbers(times: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int | None]:
    """Convert seconds or milliseconds since 1970 to microseconds; also return the factor, None for zeros."""
    sizes = np.abs(times[times != 0].astype(np.float64))
    least, most = float(sizes.min(initial=math.inf)), float(sizes.max(initial=0.0))
    if most >= LARGEST_TIME or least < MILLISECONDS_FROM <= most or look_like_dates(most):
        raise DataError(
            "times that are numbers must be all seconds or all milliseconds since 1970; got numbers "
            f"from {least:.15g} to {most:.15g}. Or write them as 2026-11-16 or 2026-11-16T10:30:00."
        )
    scale = 1000 if most >= MILLISECONDS_FROM else 1_000_000
    whole = times.astype(np.int64) * scale if times.dtype.kind in "iu" else np.rint(times * float(scale))
    return whole.astype(np.int64), scale if most else None


def utc_text(moment: int) -> str:
    """Return a time in UTC, to the second."""
    return str(np.datetime64(moment, "us"))[:19]
