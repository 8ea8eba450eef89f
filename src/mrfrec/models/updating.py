"""More or fewer events: add a batch to the training data of a fitted state, or remove users from it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mrfrec.checks import check_flag, warn
from mrfrec.core.progress import Progress
from mrfrec.data.ids import as_list
from mrfrec.data.interactions import Interactions
from mrfrec.data.merging import add, origin_of_data, without_users
from mrfrec.data.provenance import Origin
from mrfrec.data.reading_options import RULES, ReadingOptions
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.state import FittedState
from mrfrec.io.tables import read_more_interactions


def with_batch(
    fitted: FittedState,
    new_events: object,
    batch: str | None,
    again: bool,
    progress: "Progress | None",
    reading: Mapping[str, Any],
) -> "tuple[Interactions, tuple[str, ...]]":
    """Return the training data with a batch of events added, and the names of all its batches.

    `reading` holds parameters of `read_interactions` that are no rules of the training data, such as columns.
    """
    check_flag("again", again)
    if batch is not None and (not isinstance(batch, str) or not batch.strip()):
        raise ParameterError("batch", "a name or None", batch)
    fitted.origin_for("update").check_can_grow()
    known = fitted.batches
    if not isinstance(new_events, Interactions):
        new_events = read_more(fitted, new_events, progress=progress, **reading)
    elif reading:
        name, value = next(iter(reading.items()))
        raise ParameterError(name, "left out with Interactions, which are read already", value)
    name = new_events.fingerprint if batch is None else batch
    if name in known and not again:
        advice = "To add it once more, say again=True (--again)"
        if batch is not None:
            raise ParameterError("batch", "one that was not added before", batch, f"{advice}.")
        raise DataError(
            f"this data was added before: the model has a batch of the same content. {advice}; if these "
            "are other events of the same content, give the batch a name (batch=…, --batch)."
        )
    old = fitted.data_for("update")
    data = add(old, new_events)
    _check_window(old.origin, data.origin)
    return data, (*known, name)


def data_without_users(fitted: FittedState, users: object) -> "Interactions | None":
    """Return the training data without some users; None if none of them is in it."""
    data = fitted.data_for("forget")
    origin_of_data(data).check_can_shrink()
    ids: Any = [users] if isinstance(users, str | float | int | np.number) else users
    places = data.users.find(as_list(ids, "user", "users"), "user")
    known = places[places >= 0]
    if len(known) < len(places):
        warn(f"{len(places) - len(known):,} of {len(places):,} users are not in the training data")
    return without_users(data, known) if len(known) else None


def of_batches(data: "Interactions", batches: tuple[str, ...]) -> "Interactions":
    """Return the data with the names of its batches, which it is given in place."""
    data.origin = replace(origin_of_data(data), batches=batches)
    return data


def read_more(fitted: FittedState, source: object, **options: Any) -> "Interactions":
    """Read more events by the rules of the training data; `options` are the rest of `read_interactions`."""
    for name in RULES:
        if name in options:
            rule = "left out: more events are read by the rules of the first (reading_)"
            raise ParameterError(name, rule, options[name])
    origin = fitted.origin_for("update")
    if origin.times is None and not ReadingOptions(**origin.rules).uses_times:
        options = {"time": False, **options}  # times of the new events alone could not be kept
    return read_more_interactions(source, origin.columns, **options, **origin.rules)


def _check_window(before: Origin | None, after: Origin | None) -> None:
    """Warn if a later time has taken all earlier pairs out of the window."""
    if before is None or after is None or before.times is None or after.times is None:
        return
    if before.moving_window is None:
        return
    old, new = (np.datetime64(int(times.max()), "us") for times in (before.times, after.times))
    if new - old > np.timedelta64(before.moving_window, "us"):
        warn(
            f"the latest time is now {new}, before it was {old}: none of the earlier events is left in the "
            "window. If that time is wrong, correct the new events and update the earlier model again."
        )
