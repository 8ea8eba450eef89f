"""What training users have, as the model keeps it."""

import numpy as np

from mrfrec.answers.people import People, people_of
from mrfrec.data.catalogue import Columns
from mrfrec.data.ids import Id
from mrfrec.errors import ParameterError
from mrfrec.fitted.state import FittedState


def length_of_history(fitted: FittedState, user: Id) -> int | None:
    """Return the number of items of a training user; None if there is no such user."""
    training = fitted.training_for("user")
    place = int(training.users.find([user], "user")[0])
    return int(training.histories.ptr[place + 1] - training.histories.ptr[place]) if place >= 0 else None


def history_columns(fitted: FittedState, users: object) -> tuple[Columns, People]:
    """Return user, item, title, value unless all are 1, and time where it is known; and whose they are.

    The items of a user are in the order of their times, and at the same time in that of the model.
    """
    training = fitted.training_for("history", "Fit it again, and")
    people = people_of(fitted, users)
    if people.unknown:
        rule = "training users, whose ids users_ has"
        raise ParameterError("users", rule, people.unknown[0].ids[0], "Give recommend the history instead.")
    chosen = np.arange(len(people)) if people.chosen is None else people.chosen
    rows, times = training.histories, None if training.origin is None else training.origin.times
    lengths = np.diff(rows.ptr)[chosen]
    owner = np.repeat(np.arange(len(chosen)), lengths)
    entry = np.arange(len(owner)) + np.repeat(rows.ptr[chosen] - (np.cumsum(lengths) - lengths), lengths)
    if times is not None:
        entry = entry[np.lexsort((times[entry], owner))]  # which is stable
    columns = {"user": people.names.take(owner), **fitted.catalogue.columns(rows.items[entry])}
    if not fitted.size.binary:
        columns["value"] = rows.values[entry].astype(np.float64)
    if times is not None and times.min() != times.max():
        columns["time"] = times[entry].astype("datetime64[us]")
    return columns, people
