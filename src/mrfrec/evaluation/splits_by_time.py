"""Split events by time: at one moment for everybody, or before the last items of every user."""

from dataclasses import replace
from functools import partial

import numpy as np

from mrfrec.checks import check_number
from mrfrec.data.events import Events
from mrfrec.data.ids import Places
from mrfrec.data.reading_options import Moment, moment
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.questions import Questions, Split, Times, check_type, with_targets
from mrfrec.evaluation.splits import hide_last, training_of

SHARE = 0.1  # of the events, the latest, that come after the cut


def at_time(events: Events, at: "Moment | float" = SHARE) -> Split:
    """Train on what came before a moment, and ask about what came after, of everybody who did something then.

    Users who come back ("return" in `Questions.situation`) show what they had before, and their targets are
    all items that they took since then. Users who are new since then are asked in the middle of their visit
    ("visit"): they show what they did at the first half of their times, rounded down, and their targets are
    the rest. What happens at the same time is never divided. Nobody shows or is asked for items that nobody
    had before: these are counted. Users without a target, or who show nothing, are left out and counted, as
    are new users whose events all have one time.

    Parameters
    ----------
    events
        With times: `read_events(…, time=True)`.
    at
        The cut: events at this time or later are not trained on. "2026-11-16", "2026-11-16T10:30:00", or a
        `datetime`; UTC if it names no zone. Or the share of the events that come after it, above 0 and
        below 1, 0.1 for the last tenth; the nearest to it where many events have one time.

    Notes
    -----
    For tuning, the training data is split in the same way, with the same share of its events after the cut.
    """
    times = _times_of(events)
    cut = _cut(times, at)
    after = times >= cut
    share = at if isinstance(at, float) else float(after.mean())
    before = np.flatnonzero(~after)
    items = np.unique(events.item[before])
    known = np.zeros(events.n_items, np.bool_)
    known[items] = True
    comes_back = np.zeros(events.n_users, np.bool_)
    comes_back[events.user[before]] = True
    hidden = after & comes_back[events.user]
    visits = _second_halves(events, times, np.flatnonzero(after & ~hidden))
    hidden[visits] = True
    users = np.unique(events.user[after])
    shown = np.flatnonzero(~hidden & known[events.item] & np.isin(events.user, users))
    targets = np.flatnonzero(hidden & known[events.item])
    asked = Questions(
        events.users.subset(users),
        events.matrix(shown, users, items),
        events.matrix(targets, users, items, binary=True),
        shown_times=events.times(shown, users, items),
        situation=np.where(comes_back[users], "return", "visit"),
        new_items=len(np.unique(events.item[after & ~known[events.item]])),
        new_targets=int((hidden & ~known[events.item]).sum()),
    )
    shows = np.diff(asked.shown.indptr) > 0
    name = f"cut at {_text(cut)}"
    nothing = (
        f"there is nothing to ask about after {_text(cut)}: nobody took an item since then that others had "
        "before, and had shown one. Choose another cut (at)."
    )
    if not shows.any():
        raise DataError(nothing)
    asked = with_targets(replace(asked.only(shows), left_out=int((~shows).sum())), nothing)
    inner = partial(at_time, events.take(before), share)
    return Split(training_of(events, before, items), asked, None, name, inner, events.size)


def _cut(times: Times, at: "Moment | float") -> int:
    """Return the time of the cut; raise if nothing came before it, or nothing after."""
    if isinstance(at, int | float):
        share = check_number("at", at, "a date, a time, or above 0 and below 1", lambda x: 0 < x < 1)
        distinct, counts = np.unique(times, return_counts=True)
        if len(distinct) == 1:
            raise DataError(f"all {len(times):,} events have one time: there is no cut in time between them.")
        after = len(times) - np.cumsum(counts)[:-1]  # number of events from each time on, but the first
        return int(distinct[1:][np.argmin(abs(after - share * len(times)))])
    cut = moment("at", at)
    if not times.min() < cut <= times.max():
        rule = f"after {_text(int(times.min()))} and no later than {_text(int(times.max()))}, the last event"
        raise ParameterError("at", rule, at)
    return cut


def _second_halves(events: Events, times: Times, rows: Places) -> Places:
    """Return the rows from the middle one of each user's distinct times on, none for a single time.

    Of an odd number of times, one more is in the second half than in the first.
    """
    if not len(rows):
        return rows
    order = rows[np.lexsort((times[rows], events.user[rows]))]
    user, time = events.user[order], times[order]
    first = np.append(True, user[1:] != user[:-1])  # row of each user
    new = first | np.append(True, time[1:] != time[:-1])
    owner = np.cumsum(first) - 1
    place = np.cumsum(new) - 1
    place -= place[first][owner]  # of its time among those of the user, from 0
    count = np.bincount(owner[new])[owner]
    return np.asarray(order[(count > 1) & (place >= count // 2)])


def _text(time: int) -> str:
    """Return a time to the minute, or more exactly where it is not whole."""
    text = str(np.datetime64(time, "us")).replace("T", " ").removesuffix(".000000")
    return text[:16] if text[16:] == ":00" else text


def last(events: Events, k: int = 1) -> Split:
    """Hide the k latest items of every user with more than k; of equal times, the later rows.

    Where many events of a user share one time, the order of the rows decides which of them is hidden: in
    tables that are sorted by item, models that learn the sorting look good. What others did later is in the
    training data, as in the papers that use this split.

    The events need times: `read_events(…, time=True)`, or the name of their column.
    """
    times = _times_of(events)

    def by_age(group: Places) -> Places:
        return group[np.argsort(times[group], kind="stable")]

    return hide_last(events, k, by_age, f"the last {k} of each user", partial(last, k=k))


def _times_of(events: Events) -> Times:
    """Return the times of events; raise if there are none, or if values tell what came later."""
    time = check_type("events", events, Events).time
    if time is None:
        raise DataError("a split by time needs times: read_events(…, time=True), or the name of a column.")
    if events.revised:
        raise DataError(
            f"{events.revised:,} pairs have values that include later rows, which would tell what came after "
            'the items to be guessed. Let the first row of each pair count alone: duplicates="first" '
            "(--duplicates first), with rows in the order of time; or read no values."
        )
    return time
