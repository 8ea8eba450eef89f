"""Keep a fitted model up to date: add a batch of events, or forget users, and fit again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mrfrec.checks import check_flag, warn
from mrfrec.data.ids import as_list
from mrfrec.data.provenance import Origin
from mrfrec.data.reading import RULES
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.interactions import Interactions
    from mrfrec.models.measured import Measured
    from mrfrec.models.recommender import Recommender

_FIT_AGAIN = "Fit it again, and save it with"


def update(
    model: "Recommender",
    new_events: object,
    batch: str | None,
    again: bool,
    measure_again: bool,
    item_features: object,
    progress: "Progress | None",
    reading: Mapping[str, Any],
) -> None:
    """Add a batch of events to the training data of a model, and fit it again."""
    from mrfrec.data.interactions import Interactions
    from mrfrec.data.merging import add

    check_flag("again", again)
    check_flag("measure_again", measure_again)
    if batch is not None and (not isinstance(batch, str) or not batch.strip()):
        raise ParameterError("batch", "a name or None", batch)
    origin_of(model, "update").check_can_grow()
    known = batches(model)
    if not isinstance(new_events, Interactions):
        new_events = read_more(model, new_events, progress=progress, **reading)
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
    old = training_data(model, "update")
    data = add(old, new_events)
    if item_features is not None:
        data = model._with_features(data.without_unused_items(), item_features)
    _check_window(old.origin, data.origin)
    _refit(model, data, (*known, name), progress, None if measure_again else model.measured_)


def forget(model: "Recommender", users: object, progress: "Progress | None") -> None:
    """Remove users from the training data of a model, and fit it again if any of them was in it."""
    from mrfrec.data.merging import origin_of_data, without_users

    data = training_data(model, "forget")
    origin_of_data(data).check_can_shrink()
    wanted: Any = [users] if isinstance(users, str | float | int | np.number) else users
    places = data.users.find(as_list(wanted, "user", "users"), "user")
    if (places < 0).any():
        warn(f"{int((places < 0).sum()):,} of {len(places):,} users are not in the training data")
    if (places >= 0).any():
        _refit(model, without_users(data, places[places >= 0]), batches(model), progress, model.measured_)


def _refit(
    model: "Recommender",
    data: "Interactions",
    batches: tuple[str, ...],
    progress: "Progress | None",
    measured: "Measured | None",
) -> None:
    from mrfrec.data.merging import origin_of_data

    data.origin = replace(origin_of_data(data), batches=batches)
    model.fit(data, progress=progress, measured=measured)


def batches(model: "Recommender") -> tuple[str, ...]:
    """Return the ids of the batches a model was fitted on, in the order of their arrival."""
    return origin_of(model, "batches_").batches or (model.fingerprint_,)


def read_more(model: "Recommender", source: object, **options: Any) -> "Interactions":
    """Read more events by the rules of the training data; `options` are others of `read_interactions`."""
    from mrfrec.io.tables import read_interactions

    for name in RULES:
        if name in options:
            rule = "left out: more events are read by the rules of the first (reading_)"
            raise ParameterError(name, rule, options[name])
    return read_interactions(source, **options, **origin_of(model, "update").rules)


def origin_of(model: "Recommender", what: str) -> Origin:
    """Return how the histories of a model were made from rows; `what` needs them, says the error."""
    origin = model._trained_on(what, _FIT_AGAIN).origin
    if origin is None:  # fitted on a matrix
        data = model._interactions
        return Origin.of_matrix(data.matrix.data, data.users, data.items)
    return origin


def training_data(model: "Recommender", what: str) -> "Interactions":
    """Return the training data of a model, also of one that was loaded; `what` needs it, says the error."""
    from mrfrec.data.interactions import Interactions

    training = model._trained_on(what, _FIT_AGAIN)
    if hasattr(model, "_interactions"):
        return model._interactions
    matrix = training.histories.matrix().astype(np.float32)
    data = Interactions(matrix, training.users, model.items_, model.titles_, copy=False)
    data.origin, data.features = origin_of(model, what), model.features_
    return data


def _check_window(before: Origin | None, after: Origin | None) -> None:
    """Warn if a later time has taken all earlier pairs out of the window."""
    if before is None or after is None or before.times is None or after.times is None:
        return
    was, now = (np.datetime64(int(times.max()), "us") for times in (before.times, after.times))
    if now - was > np.timedelta64(before.window, "us"):
        warn(
            f"the latest time is now {now}, before it was {was}: none of the earlier events is left in the "
            "window. If that time is wrong, correct the new events and update the earlier model again."
        )
