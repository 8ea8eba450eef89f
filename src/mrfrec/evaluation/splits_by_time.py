"""Split data by time: at one moment for everybody, or before the last items of every user."""

from dataclasses import replace
from functools import partial

import numpy as np

from mrfrec.checks import check_number
from mrfrec.data.heldout import hashed, hashed_pairs
from mrfrec.data.ids import Indices
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import Moment, moment
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.questions import Split, Times, with_targets
from mrfrec.evaluation.splits import hide_last, owners, part_of, questions_of
from mrfrec.io.tables import as_interactions

SHARE = 0.1  # of the events, the latest, that come after the cut


def at_time(data: object, at: "Moment | float" = SHARE) -> Split:
    """Train on what came before a moment, and ask about what came after, of everybody who did something then.

    Users who come back ("return" in `Questions.situation`) show what they had before, and their targets are
    all items that they took since then. Users who are new since then are asked in the middle of their visit
    ("visit"): they show what they did at the first half of their times, rounded down, and their targets are
    the rest. What happens at the same time is never divided. Nobody shows or is asked for items that nobody
    had before: these are counted. Users without a target, or who show nothing, are left out and counted, as
    are new users whose events all have one time. Several events of one pair count once, at the time of the
    last: what a user took before the cut and again after it is hidden.

    Parameters
    ----------
    data
        As for `strong_generalisation`, with times.
    at
        The cut: events at this time or later are not trained on. "2026-11-16", "2026-11-16T10:30:00", or a
        `datetime`; UTC if it names no zone. Or the share of the events that come after it, above 0 and
        below 1, 0.1 for the last tenth; the nearest to it where many events have one time.

    Notes
    -----
    For tuning, the training data is split in the same way, with the same share of its events after the cut.
    """
    data = _timed(data)
    times = data.times
    assert times is not None
    user, item = owners(data.matrix), data.matrix.indices
    cut = _cut(times, at)
    after = times >= cut
    share = at if isinstance(at, float) else float(after.mean())
    items = np.unique(item[~after])
    known = np.zeros(data.n_items, np.bool_)
    known[items] = True
    comes_back = np.zeros(data.n_users, np.bool_)
    comes_back[user[~after]] = True
    hidden = after & comes_back[user]
    hidden[_second_halves(user, times, np.flatnonzero(after & ~hidden))] = True
    users = np.unique(user[after])
    asked = replace(
        questions_of(data, users, items, ~hidden & known[item], hidden & known[item]),
        situation=np.where(comes_back[users], "return", "visit"),
        new_items=len(np.unique(item[after & ~known[item]])),
        new_targets=int((hidden & ~known[item]).sum()),
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
    training = part_of(data, ~after)
    return Split(training, asked, None, name, partial(at_time, training, share), data.size)


def _cut(times: Times, at: "Moment | float") -> int:
    """Return the time of the cut; raise if nothing came before it, or nothing after."""
    if isinstance(at, int | float):
        share = check_number("at", at, "a date, a time, or above 0 and below 1", lambda x: 0 < x < 1)
        distinct, counts = np.unique(times, return_counts=True)
        after = len(times) - np.cumsum(counts)[:-1]  # number of events from each time on, but the first
        return int(distinct[1:][np.argmin(abs(after - share * len(times)))])
    cut = moment("at", at)
    if not times.min() < cut <= times.max():
        rule = f"after {_text(int(times.min()))} and no later than {_text(int(times.max()))}, the last event"
        raise ParameterError("at", rule, at)
    return cut


def _second_halves(users: Indices, times: Times, pairs: Indices) -> Indices:
    """Return the pairs from the middle one of each user's distinct times on, none for a single time.

    Of an odd number of times, one more is in the second half than in the first.
    """
    if not len(pairs):
        return pairs
    order = pairs[np.lexsort((times[pairs], users[pairs]))]
    user, time = users[order], times[order]
    first = np.append(True, user[1:] != user[:-1])  # pair of each user
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


def last(data: object, k: int = 1) -> Split:
    """Hide the k latest items of every user with more than k; of equal times, those with the largest hashes.

    The hash is that of user and item: where many events of a user share one time, chance decides which of
    them is hidden, the same on every day and in every order of the rows. Several events of one pair count
    once, at the time of the last. What others did later is in the training data, as in the papers that use
    this split.

    `data` is taken as by `strong_generalisation`, and needs times.
    """
    timed = _timed(data)
    times = timed.times
    assert times is not None
    every = (hashed(ids, np.arange(len(ids))) for ids in (timed.users, timed.items))
    ties = hashed_pairs(timed.matrix, *every)

    def by_age(group: Indices) -> Indices:
        return group[np.lexsort((ties[group], times[group]))]

    return hide_last(timed, k, by_age, f"the last {k} of each user", partial(last, k=k))


def _timed(data: object) -> Interactions:
    """Return data with times; raise if it has none."""
    timed = as_interactions(data)
    if timed.times is None:
        same = timed.origin is not None and timed.origin.times is not None
        raise DataError(
            f"a split by time needs times, and {'all are the same' if same else 'there are none'}. Name "
            "their column when reading: read_interactions(…, time=…)."
        )
    return timed
