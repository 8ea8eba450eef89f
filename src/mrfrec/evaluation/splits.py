"""Split data into what to train on, and questions: items that test users show, and items to be guessed.

Strong generalisation follows Liang et al. (2018) step by step, so that its splits are the published ones: the
order in which users are drawn, and numpy's legacy random numbers, matter. The order of rows means nothing:
pairs are taken in ascending order of users and items, as the published tables are sorted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import sub
from typing import overload

import numpy as np

from mrfrec.checks import check_count, check_flag, check_number, check_seed, in_words
from mrfrec.data.holdout import (
    FEWEST,
    HoldOut,
    Mask,
    has_items,
    hashed,
    hashed_pairs,
    hidden_after,
    hidden_by_hash,
    hold_out,
    only_entries,
    owners,
)
from mrfrec.data.ids import Indices
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.reading_options import Moment, moment
from mrfrec.data.times import as_datetimes
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.questions import (
    SEED,
    Folds,
    Questions,
    Split,
    Times,
    ask,
    numbered,
    ones,
    over_columns,
    widened,
    with_targets,
)
from mrfrec.io.tables import as_interactions

SHARE = 0.1  # of the events, the latest, that come after the cut
_MOST_FOLDS = 10
_MOST_HELDOUT = 10_000  # users, by default
LEAVE_ONE = "--split leave-out --leave 1 --min-items 2"  # works with fewer items per user


def strong_generalisation(
    data: object,
    heldout: int | None = None,
    *,
    min_items: int = 5,
    min_users: int = 0,
    hidden: float = 0.2,
    seed: int = SEED,
) -> Split:
    """Hold out `heldout` users for validation and as many for test, as Liang et al. (2018) do.

    By default these are a tenth of the users, at most 10,000. Items with fewer than `min_users` users are
    dropped first, then users with fewer than `min_items` items, in one pass each. The users are permuted in
    ascending order of their ids; the last are the test users, and the `heldout` before them the validation
    users. Held-out users lose the items that no training user has. Of a user with five items or more, a share
    is hidden, rounded down; a user with fewer shows them all and has no target. Items are drawn in ascending
    order of their ids, as in the published tables: the order of the rows means nothing.

    Times are left out: what is hidden is no later than what is shown, so that a model that learns from times
    what comes next would answer another question. `at_time` and `last` ask that question.

    Parameters
    ----------
    data
        `Interactions`, or anything `fit` takes: a table is read by the defaults of `read_interactions`.
    """
    every = as_interactions(data)
    data, without = _untimed(every.filtered(min_users=min_users, min_items=min_items))
    heldout = max(min(data.n_users // 10, _MOST_HELDOUT), 1) if heldout is None else heldout
    drawn, held = strong_parts(data, heldout, hidden=hidden, seed=seed)
    questions = []
    for name, users in (("validation", drawn[-2 * heldout : -heldout]), ("test", drawn[-heldout:])):
        nothing = (
            f"there is nothing to ask the {heldout:,} {name} users: none of those with {FEWEST} items "
            "or more has one to be guessed. Raise heldout or hidden, or hide one item of each user instead: "
            f"leave_out(data), {LEAVE_ONE} at the command line."
        )
        questions.append(_asked(data, held, users, nothing))
    name = f"strong generalisation, {heldout:,} + {heldout:,} users held out{without}"
    training = part_of(data, held.training)
    return Split(training, validation=questions[0], test=questions[1], name=name, whole=every.size)


def strong_parts(
    data: Interactions, heldout: int, *, hidden: float = 0.2, seed: int = SEED
) -> tuple[Indices, HoldOut]:
    """Return the users in the order in which they are drawn, and what strong generalisation holds out."""
    heldout = check_count("heldout", heldout)
    seed = check_seed(seed)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    user, item = owners(data.matrix), data.matrix.indices
    present = np.unique(user)
    if 2 * heldout >= len(present):
        raise DataError(
            f"2 × {heldout:,} users cannot be held out of {len(present):,}: none would be left to train on. "
            "Lower heldout (--heldout)."
        )
    drawn = present[np.random.RandomState(seed).permutation(len(present))]
    part_of_user = np.zeros(data.n_users, np.int8)
    part_of_user[drawn[-2 * heldout : -heldout]] = 1
    part_of_user[drawn[-heldout:]] = 2
    part = part_of_user[user]
    is_known = has_items(data.matrix, part == 0)[item]
    hide = np.zeros(len(data), np.bool_)
    for number in (1, 2):
        random = np.random.RandomState(seed)  # The published code draws anew for each set of users.
        for group in _by_user(user, np.flatnonzero((part == number) & is_known)):
            if len(group) >= FEWEST:
                hide[group[random.choice(len(group), size=int(hidden * len(group)), replace=False)]] = True
    return drawn, hold_out(data.matrix, part == 0, hide)


def _untimed(data: Interactions) -> tuple[Interactions, str]:
    """Return the pairs without times, and what that adds to the name of a split."""
    if data.times is None:
        return data, ""
    bare = Interactions(data.matrix, data.users, data.items, data.titles, copy=False)
    bare = bare.replace(features=data.features, table=data.table, library=data.library)
    return bare, "; times left out"


def _by_user(user: Indices, entries: Indices) -> list[Indices]:
    """Divide ascending indices of entries by user."""
    borders = np.flatnonzero(np.diff(user[entries])) + 1
    return [group for group in np.split(entries, borders) if len(group)]


def leave_out(data: object, k: int = 1, *, seed: int = SEED) -> Split:
    """Hide k random items of every user with more than k items; train on the rest, and show it.

    Times are left out, and `data` is taken, as in `strong_generalisation`.
    """
    bare, without = _untimed(as_interactions(data))
    random = np.random.default_rng(check_seed(seed))
    name = f"{k} random items of each user left out{without}"
    return hide_last(bare, k, random.permutation, name, lambda rest: leave_out(rest, k, seed=seed))


def hide_last(
    data: Interactions,
    k: int,
    in_order: Callable[[Indices], Indices],
    name: str,
    again: Callable[[Interactions], Split],
) -> Split:
    """Hide the last k pairs of every user who has more; `in_order` sorts the pairs of a user.

    `again` makes the same kind of split of other data, for tuning.
    """
    k = check_count("k", k)
    user = owners(data.matrix)
    hide = np.zeros(len(data), np.bool_)
    for group in _by_user(user, np.arange(len(data))):
        if len(group) > k:
            hide[in_order(group)[-k:]] = True
    if not hide.any():
        raise DataError(f"no user has more than k={k} items: nothing can be left out. Leave out fewer.")
    training = part_of(data, ~hide)
    questions = _asked(data, hold_out(data.matrix, ~hide, hide), np.unique(user))
    return Split(training, questions, None, name, partial(again, training), data.size)


@overload
def at_time(data: object, at: Moment | float = SHARE, *, folds: None = None) -> Split: ...
@overload
def at_time(data: object, at: Moment | float = SHARE, *, folds: int) -> Folds: ...
def at_time(data: object, at: Moment | float = SHARE, *, folds: int | None = None) -> Split | Folds:
    """Train on what came before a cut in time, and ask about what came after it.

    Users who come back ("return" in `Questions.situation`) show what they had before the cut, and their
    targets are all items that they took since then. New users are asked in the middle of their visit
    ("visit"): they show what they did at the first half of their times, rounded down, and their targets are
    the rest. Events of one time are never divided. Items that nobody had before the cut are neither shown nor
    asked for; they are counted. Users without a target, or who show nothing, are left out and counted, as are
    new users whose events all have one time. A pair counts once, at the time of its last event: what a user
    took before the cut and again after it is hidden.

    Parameters
    ----------
    data
        As for `strong_generalisation`, with times.
    at
        The cut: events at this time or later are not trained on. "2026-11-16", "2026-11-16T10:30:00", or a
        `datetime`; UTC if it names no zone. Or the share of the events that come after it, above 0 and
        below 1, 0.1 for the last tenth; the nearest to it where many events have one time.
    folds
        Number of cuts, from 2 to 10, for a result that depends less on one period. The last cut is at `at`.
        An earlier cut asks about what came until the next one: the same share of the events, or the same span
        of time. Nothing later is used. Returns `Folds`, which `evaluate` and `compare` take in place of a
        split.

    Notes
    -----
    For tuning, the training data is split in the same way, with the same share of its events after the cut.
    """
    data = _timed(data)
    times = data.times
    assert times is not None
    cut = _cut(times, at)
    if folds is None:
        return _split_at(data, cut, at if isinstance(at, float) else None)
    count = check_count("folds", folds)
    if not 2 <= count <= _MOST_FOLDS:
        raise ParameterError("folds", f"from 2 to {_MOST_FOLDS}", folds)
    last = int(times.max())
    if isinstance(at, int | float):
        shares = [(number + 1) * at for number in range(count)]
        cuts = [_cut(times, share) for share in shares if share < 1]
    else:
        cuts = [cut - number * (last + 1 - cut) for number in range(count)]
    if len(cuts) < count or cuts[-1] <= times.min() or min(map(sub, cuts, cuts[1:])) <= 0:
        advice = "Ask about less at every cut (at), or at fewer."
        raise ParameterError("folds", "fewer: the data does not reach back that far", folds, advice)
    ends = [last + 1, *cuts[:-1]]
    made = [partial(_fold, data, *both) for both in zip(cuts, ends, strict=True)]
    name = f"{count} cuts: {in_words([_text(each) for each in reversed(cuts)])}"
    return Folds(name, tuple(reversed(made)))


def _fold(data: Interactions, cut: int, end: int) -> Split:
    """Split at a cut in time, as if nothing had happened from the end on."""
    times = data.times
    assert times is not None
    if end > times.max():
        return _split_at(data, cut, None)
    return replace(_split_at(part_of(data, times < end), cut, None), whole=None)


def _split_at(data: Interactions, cut: int, share: float | None) -> Split:
    """Split at a cut in time; for tuning, `share` of the events come after the cut, by default as here."""
    times, X = data.times, data.matrix
    assert times is not None
    after = times >= cut
    share = float(after.mean()) if share is None else share
    hide, was_there = hidden_after(X, times, cut, odd_hidden=True)
    held = hold_out(X, ~after, hide)
    nothing = (
        f"there is nothing to ask about after {_text(cut)}: nobody took an item since then that others had "
        "before, and had shown one. Choose another cut (at)."
    )
    asked = _asked(data, held, np.unique(owners(X)[after]), nothing)
    is_new = ~has_items(X, ~after)[X.indices]
    asked = replace(
        asked,
        situation=np.where(was_there[held.users], "return", "visit"),
        new_items=len(np.unique(X.indices[is_new])),
        new_targets=int((hide & is_new).sum()),
    )
    training = part_of(data, ~after)
    return Split(training, asked, None, f"cut at {_text(cut)}", partial(at_time, training, share), data.size)


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


def _text(time: int) -> str:
    """Return a time to the minute, or with seconds if it is not a whole minute."""
    text = str(np.datetime64(time, "us")).replace("T", " ").removesuffix(".000000")
    return text[:16] if text[16:] == ":00" else text


def last(data: object, k: int = 1) -> Split:
    """Hide the k latest items of every user with more than k items.

    Of equal times, the items with the largest hashes of user and item are hidden: where many events of a user
    share one time, chance decides, the same on every day and in every order of the rows. A pair counts once,
    at the time of its last event. What other users did later is in the training data, as in the papers that
    use this split. `data` is taken as in `strong_generalisation`, and needs times.
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


def by_hash(
    data: object,
    heldout: float = 0.1,
    *,
    hidden: float = 0.2,
    most: int = 10_000,
    validation: bool = False,
) -> Split:
    """Hold out the users with the lowest hashes, and hide some of their items: the same every day.

    Parameters
    ----------
    data
        As for `strong_generalisation`.
    heldout
        Share of the users with five items or more to hold out.
    hidden
        Share of a held-out user's items to hide, rounded down.
    most
        Hold out at most this many users.
    validation
        Hold out as many users again, for tuning.
    """
    data = as_interactions(data)
    limit = 0.5 if validation else 1.0
    heldout = check_number("heldout", heldout, f"above 0 and below {limit:g}", lambda x: 0 < x < limit)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    most = check_count("most", most)
    X = data.matrix
    names = ("test", "validation") if check_flag("validation", validation) else ("test",)
    candidates = np.flatnonzero(np.diff(X.indptr) >= FEWEST)
    hashes = hashed(data.users, candidates)
    order = np.argsort(hashes)
    ends = np.searchsorted(hashes[order], np.arange(len(names) + 1) * heldout * 2.0**64)
    parts = [np.sort(candidates[order[slice(*both)]][:most]) for both in pairwise(ends.tolist())]
    is_held = np.zeros(data.n_users, np.bool_)
    is_held[np.concatenate(parts)] = True
    user = owners(X)
    training = ~is_held[user]
    for name, part in zip(names, parts, strict=True):
        if not len(part) or not training.any():
            raise DataError(
                f"{len(part):,} {name} users can be held out of {data.n_users:,}, of whom "
                f"{len(candidates):,} have {FEWEST} items or more. Hold out another share "
                "(heldout), or wait for more data."
            )
    known = has_items(X, training)[X.indices]
    can = only_entries(X, known & ~training)
    lengths = np.diff(can.indptr)
    count = np.where(lengths >= FEWEST, (hidden * lengths).astype(np.int64), 0)
    of_user, of_item = np.zeros(data.n_users, np.uint64), np.zeros(data.n_items, np.uint64)
    of_user[is_held] = hashed(data.users, np.flatnonzero(is_held))
    used = np.unique(can.indices)
    of_item[used] = hashed(data.items, used)
    hide = np.zeros(X.nnz, np.bool_)
    hide[known & ~training] = hidden_by_hash(can, of_user, of_item, count)
    held = hold_out(X, training, hide)
    nothing = "there is nothing to ask the held-out users: raise hidden, or hold out more of them (heldout)."
    questions = [_asked(data, held, part, nothing) for part in parts]
    name = f"{' + '.join(f'{len(part):,}' for part in parts)} users held out by hash"
    asked = questions[1] if validation else None
    return Split(part_of(data, training), questions[0], asked, name, whole=data.size)


def given(training: object, targets: object, shown: object = None) -> Split:
    """Use a split as it is given.

    Without `shown`, the targets are further items of training users, who show their items in the training
    data (LightGCN publishes its splits this way). With `shown`, the test users are new and show these items.
    Items that are only in the targets become items without training users. All three tables are read as in
    `strong_generalisation`.
    """
    training, targets = as_interactions(training), as_interactions(targets)
    shown = None if shown is None else as_interactions(shown)
    for name, data in (("training", training), ("targets", targets), ("shown", shown)):
        if data is None:
            continue
        for kind in ("users", "items"):
            if getattr(data, kind).is_text != getattr(training, kind).is_text:
                raise DataError(f"the ids of {kind} must be strings, or integers, in training and in {name}.")
    whole = training.size
    training = _with_items(training, targets)
    tested = training if shown is None else shown
    if shown is not None:
        known = np.flatnonzero(training.users.find(list(shown.users), "user") >= 0)
        if len(known):
            raise DataError(
                f"{len(known):,} of {shown.n_users:,} test users are also training users, the first "
                f"{shown.users[int(known[0])]!r}: a model would be asked what it was told. Take them out of "
                "the training data, or give no shown."
            )
    row = tested.users.find(list(targets.users), "user")
    m = training.n_items
    of_tested, of_targets = (training.items.find(list(data.items), "item") for data in (tested, targets))
    history = over_columns(tested.matrix, of_tested, m)[row]
    shown_times = None
    if tested.times is not None:
        shown_times = tested.times[over_columns(numbered(tested.matrix), of_tested, m)[row].data]
    empty = np.flatnonzero((row < 0) | (np.diff(history.indptr) == 0))
    if len(empty):
        raise DataError(
            f"{len(empty):,} of {len(row):,} test users show no item of the training data, the first "
            f"{targets.users[int(empty[0])]!r}: there is nothing to ask from. Drop them, or give what they "
            "are shown (shown)."
        )
    wanted = ones(over_columns(targets.matrix, of_targets, m))
    twice = history.multiply(wanted).tocoo()
    if twice.nnz:
        user, item = (int(where[0]) for where in twice.coords)
        raise DataError(
            f"{twice.nnz:,} pairs are both shown and to be guessed, the first {targets.users[user]!r} with "
            f"{training.items[item]!r}: what is shown is never recommended. Take them out of one of the two."
        )
    questions = with_targets(Questions(targets.users, history, wanted, shown_times=shown_times))
    if shown is None:
        return Split(training, questions, None, "training and test as given", whole=whole)
    without = int((targets.users.find(list(shown.users), "user") < 0).sum())  # show items, have no target
    questions = replace(questions, left_out=questions.left_out + without)
    return Split(training, questions, None, "training, shown and test as given", whole=whole)


def _with_items(training: Interactions, targets: Interactions) -> Interactions:
    """Append the items that only the targets have."""
    new = np.flatnonzero(training.items.find(list(targets.items), "item") < 0)
    if not len(new):
        return training
    items = [*training.items, *(targets.items[i] for i in new.tolist())]
    named, more = (data.titles or [""] * data.n_items for data in (training, targets))
    titles = [*named, *(more[i] for i in new.tolist())]
    wide = widened(training.matrix, len(items))
    whole = Interactions(wide, training.users, items, titles, times=as_datetimes(training.times), copy=False)
    return whole.replace(library=training.library)


def part_of(data: Interactions, keep: Mask) -> Interactions:
    """Return some of the pairs as training data, with the users and items that have one."""
    times = data.times
    kept = keep_pairs(data.matrix, data.users, data.items, data.titles, keep)
    training = Interactions(*kept, times=None if times is None else as_datetimes(times[keep]), copy=False)
    origin = training.origin if times is None or data.origin is None else data.origin.only(keep)
    return training.replace(
        features=None if data.features is None else data.features.over(training.items),
        table=data.table,
        library=data.library,
        origin=origin,
    )


def _asked(data: Interactions, held: HoldOut, among: Indices, nothing: str = "") -> Questions:
    """Ask some users about the items of the training data."""
    items = np.flatnonzero(has_items(data.matrix, held.training))
    return ask(data.users, data.matrix, data.times, held, among, items, nothing)
