"""Weigh events by kind and by age, and select them by time; times are microseconds since 1970."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.data.reading_options import ReadingOptions
from mrfrec.errors import DataError
from mrfrec.io.columns import name_list

Times = npt.NDArray[np.int64]

OTHER = "other"  # the name under which a weight counts for all kinds that are not named
OLDEST = 20  # half-lives after which a row fades no more: it counts a millionth, and its item stays seen
# Numbers from here on are milliseconds: as seconds, this is the year 5138; as milliseconds, 1973.
_MILLISECONDS_FROM = 1e11
_LARGEST = 1e14  # number that can be a time


def weights_of_kinds(column: pl.Series, kinds: Mapping[str, float], where: str) -> pl.Series:
    """Return the weight of each row by its kind; refuse kinds without a weight."""
    unknown = sorted(kind for kind in column.unique().to_list() if kind not in kinds)
    if unknown and OTHER not in kinds:
        raise DataError(
            f"{where}: event_weights has no weight for {name_list(unknown)}. Add it; {OTHER}=0 leaves out "
            "all kinds that are not named."
        )
    weights = list(kinds.values())
    return column.replace_strict(list(kinds), weights, default=kinds.get(OTHER), return_dtype=pl.Float64)


def are_within(times: Times, options: ReadingOptions) -> npt.NDArray[np.bool_]:
    """Return which times are from `since` on and before `until`."""
    since = options.microseconds("since")
    until = options.microseconds("until")
    keep = np.ones(len(times), np.bool_)
    if since is not None:
        keep &= times >= since
    if until is not None:
        keep &= times < until
    return keep


def are_recent(times: Times, options: ReadingOptions, latest: int) -> npt.NDArray[np.bool_]:
    """Return which times the window keeps; `latest` is the latest time that `since` and `until` keep."""
    window = options.microseconds("window")
    if window is None:
        return np.ones(len(times), np.bool_)
    now = options.microseconds("now")
    return times > (latest if now is None else now) - window


def weights_of_ages(times: Times, options: ReadingOptions, latest: int) -> npt.NDArray[np.float64]:
    """Return the weight of each row by its age; `latest` is the latest time that `since` and `until` keep.

    Weights stop falling after `OLDEST` half-lives: else the values of old pairs would be 0 in single
    precision, and their items would be recommended to their users again.
    """
    now = options.microseconds("now")
    ages = np.maximum((latest if now is None else now) - times, 0)
    return np.exp2(-np.minimum(ages / (options.microseconds("half_life") or math.inf), OLDEST))


def from_numbers(times: npt.NDArray[Any]) -> tuple[Times, int | None]:
    """Convert seconds or milliseconds since 1970 to microseconds; also return the factor, None for zeros."""
    sizes = np.abs(times[times != 0].astype(np.float64))
    least, most = float(sizes.min(initial=math.inf)), float(sizes.max(initial=0.0))
    looks_like_a_date = 19000101 <= most <= 20991231
    if most >= _LARGEST or least < _MILLISECONDS_FROM <= most or looks_like_a_date:
        raise DataError(
            "times that are numbers must be all seconds or all milliseconds since 1970; got numbers "
            f"from {least:.15g} to {most:.15g}. Or write them as 2026-11-16 or 2026-11-16T10:30:00."
        )
    scale = 1000 if most >= _MILLISECONDS_FROM else 1_000_000
    whole = times.astype(np.int64) * scale if times.dtype.kind in "iu" else np.rint(times * float(scale))
    return whole.astype(np.int64), scale if most else None
