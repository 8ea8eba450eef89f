"""Add a batch of events to the training data of a fitted state, or remove users from it."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_flag, counted, warn
from mrfrec.core.engine import Progress
from mrfrec.data.erasures import NEVER, Erasures
from mrfrec.data.ids import as_list, text_roles
from mrfrec.data.interactions import Interactions
from mrfrec.data.merging import add, added_before, origin_of_data, without_erased, without_users
from mrfrec.data.pairs import DataNote, Origin
from mrfrec.data.reading_options import RULES, ReadingOptions
from mrfrec.data.times import shown
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.state import FittedState
from mrfrec.io.tables import RowsBefore, read_events

_TWO_DAYS = 172_800_000_000  # microseconds


def with_batch(
    fitted: FittedState,
    new_events: object,
    batch: str | None,
    again: bool,
    progress: "Progress | None",
    reading: Mapping[str, Any],
) -> "tuple[Interactions, tuple[str, ...]]":
    """Return the training data with a batch of events added, and the names of all its batches.

    `reading` has the parameters of `read_interactions` that may differ from batch to batch, such as columns.
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
    new_events = without_erased(new_events, fitted.erasures)
    old = without_erased(fitted.data_for("update"), fitted.erasures)
    data = add(old, new_events)
    if count := added_before(old, new_events):
        note = _note_on_pairs_added_before(old, new_events, count, again)
        data = data.replace(notes=(*data.notes, note))
    _check_window(old.origin, data.origin)
    return data, (*known, name)


def _note_on_pairs_added_before(
    old: "Interactions", new: "Interactions", count: int, again: bool
) -> DataNote:
    """Log how many new pairs the model already has; refuse the batch if they would count twice."""
    origin = origin_of_data(old)
    is_timed = origin.times is not None and origin_of_data(new).times is not None
    when = ", with the same time or a later one" if is_timed else ""
    text = f"{count:,} of {counted(len(new), 'new pair')} are in the model already{when}"
    if origin.is_binary or origin.rules.get("duplicates", "sum") != "sum":
        text += ": they count once"
    elif again:
        text += ": their values are added once more"
    else:
        raise DataError(
            f"{text}: if they are the same events, they would count twice. Leave them out; if they are other "
            "events, say again=True (--again)."
        )
    note = DataNote("repeated pairs", count, text)
    note.tell()
    return note


def without_forgotten(fitted: FittedState, users: object) -> "tuple[Interactions | None, Erasures]":
    """Return the training data without some users, and the erasures with these users added.

    `users` may be erasures. Instead of unchanged data, None is returned.
    """
    ids: Any = [users] if isinstance(users, str | float | int | np.number) else users
    people = [] if isinstance(users, Erasures) else as_list(ids, "user", "users")
    before = fitted.erasures
    erased = before.joined(users) if isinstance(users, Erasures) else before.including(people)
    if not fitted.has_histories:
        warn(
            "the model was saved without histories, and stays as it is: the forgotten people may be in its "
            "weights, each as one of many. They are left out when it is fitted again."
        )
        return None, erased
    data = fitted.data_for("forget")
    indices = data.users.find(people, "user")
    if not isinstance(users, Erasures):
        erased = before.including(people, _last_times(data, indices))
    known = indices[indices >= 0]
    if len(known) < len(indices):
        missing = f"{len(indices) - len(known):,} of {len(indices):,} users are not in the training data"
        warn(f"{missing}; rows of theirs that come later are left out all the same")
    left = without_users(data, known) if len(known) else data
    left = without_erased(left, erased)
    return (left if len(left) < len(data) or left.n_users < data.n_users else None), erased


def _last_times(data: Interactions, users: npt.NDArray[np.int64]) -> list[int]:
    """Return the time of the last event of each user; `NEVER` without times, and for unknown users (-1)."""
    times = origin_of_data(data).times
    if times is None or not len(times):
        return []
    if times.max() > (time.time_ns() // 1000) + _TWO_DAYS:
        warn(
            f"the model has events up to {shown(int(times.max()))}, days after the clock of this machine: is "
            "the clock right? Later events of the people who are forgotten would come in again."
        )
    ptr = data.matrix.indptr
    return [
        int(times[ptr[user] : ptr[user + 1]].max(initial=NEVER)) if user >= 0 else NEVER for user in users
    ]


def of_batches(data: "Interactions", batches: tuple[str, ...]) -> "Interactions":
    """Return the data with the names of its batches."""
    return data.replace(origin=replace(origin_of_data(data), batches=batches))


def read_more(fitted: FittedState, source: object, **options: Any) -> "Interactions":
    """Read more events with the reading options of the training data; `options` are the remaining ones."""
    for name in RULES:
        if name in options:
            rule = "left out: more events are read by the rules of the first (reading_)"
            raise ParameterError(name, rule, options[name])
    origin = fitted.origin_for("update")
    oldest = None if origin.times is None else int(origin.times.min())
    if origin.times is None and not ReadingOptions.of(**origin.rules).uses_times:
        if options.get("missing_time") is not None:
            rule = "left out: the model was fitted without times"
            raise ParameterError("missing_time", rule, options["missing_time"])
        # The model has no times, so it could not keep those of the new events.
        options = {"time": False, **options}
    text_ids = text_roles(fitted.training_for("update").users, fitted.catalogue.items)
    before = RowsBefore(origin.columns, oldest, erased=fitted.erasures, text_ids=text_ids)
    return read_events(source, before, **options, **origin.rules)


def _check_window(before: Origin | None, after: Origin | None) -> None:
    """Warn if the new latest time moves the window past all earlier pairs."""
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
