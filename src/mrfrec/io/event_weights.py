"""Weigh events by kind, and select them by time; times are microseconds since 1970."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec.data.reading_options import ReadingOptions
from mrfrec.data.times import Times
from mrfrec.errors import DataError
from mrfrec.io.columns import name_list

OTHER = "other"  # the name under which a weight counts for all kinds that are not named


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
