"""Split data into training data and questions: the items that test users show, and their hidden targets.

Strong generalisation follows Liang et al. (2018) step by step, down to the order in which users are drawn and
numpy's legacy random numbers, so that it gives the published splits. The order of the rows does not matter:
pairs are sorted by user and item, as the published tables are.
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

SHARE = 0.1  # share of the events that come after the cut
_MOST_FOLDS = 10
_MOST_HELDOUT = 10_000  # most users to hold out by default
LEAVE_ONE = "--split leave-out --leave 1 --min-items 2"  # needs fewer items per user


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

    By default, a tenth of the users are held out, at most 10,000. First, items with fewer than `min_users`
    users are dropped, then users with fewer than `min_items` items, in one pass each. Users are sorted by id
    and permuted; the last `heldout` are the test users, and the `heldout` before them the validation users.
    Held-out users lose items that no training user has. If a user has five items or more, the share `hidden`
    of them is hidden, rounded down; users with fewer items show them all and have no target. Items are drawn
    in the order of their ids, as in the published tables, so that the order of the rows does not matter.

    Times are left out: hidden items are not later than shown ones, so a model that learns from times what
    comes next would answer another question. `at_time` and `last` ask that question.

    Parameters
    ----------
    data
        `Interactions`, or anything that `fit` takes; tables are read with the defaults of
        `read_interactions`.
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
    """Return the permuted users, and the hold-out of strong generalisation."""
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
        random = np.random.RandomState(seed)  # The published code seeds anew for each part.
        for group in _by_user(user, np.flatnonzero((part == number) & is_known)):
            if len(group) >= FEWEST:
                hide[group[random.choice(len(group), size=int(hidden * len(group)), replace=False)]] = True
    return drawn, hold_out(data.matrix, part == 0, hide)


def _untimed(data: Interactions) -> tuple[Interactions, str]:
    """Return the data without times, and a note about this for the name of the split."""
    if data.times is None:
        return data, ""
    bare = Interactions(data.matrix, data.users, data.items, data.titles, copy=False)
    bare = bare.replace(features=data.features, table=data.table, library=data.library)
    return bare, "; times left out"


def _by_user(user: Indices, entries: Indices) -> list[Indices]:
    """Group ascending indices of entries by user."""
    borders = np.flatnonzero(np.diff(user[entries])) + 1
    return [group for group in np.split(entries, borders) if len(group)]


def leave_out(data: object, k: int = 1, *, seed: int = SEED) -> Split:
    """Hide k random items of every user with more than k items; train on the rest, and show it.

    `data` and its times are treated as in `strong_generalisation`.
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
    """Hide the last k pairs of every user with more than k, in the order that `in_order` gives.

    `again` makes the same kind of split from other data, for tuning.
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

    Users who come back ("return" in `Questions.situation`) show what they had before the cut; their targets
    are all items that they took since then. New users are asked in the middle of their visit ("visit"): they
    show the first half of their steps, rounded down, and their targets are the rest. A step is never divided.
    Items that nobody had before the cut are counted, but neither shown nor asked for. Users without a target,
    users who show nothing and new users with a single step are left out and counted. A pair counts once, at
    the time of its last event: an item that a user took before the cut and again after it is a target.

    Parameters
    ----------
    data
        As for `strong_generalisation`, with times.
    at
        The cut: events at this time or later are not trained on. It is a time, "2026-11-16",
        "2026-11-16T10:30:00" or a `datetime`, in UTC unless it names a zone; or the share of the events after
        the cut, between 0 and 1, such as 0.1 for the last tenth. If many events share one time, the nearest
        possible share is used.
    folds
        Number of cuts, from 2 to 10, for a result that depends less on one period. The last cut is at `at`.
        An earlier cut asks about what came until the next one, over the same share of the events or the same
        span of time; later events are not used. The result is `Folds`, which `evaluate` and `compare` take
        instead of a split.

    Notes
    -----
    For tuning, the training data is split in the same way, with the same share of its events after a cut.
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
    """Split at a cut in time, without the events at `end` or later."""
    times = data.times
    assert times is not None
    if end > times.max():
        return _split_at(data, cut, None)
    return replace(_split_at(part_of(data, times < end), cut, None), whole=None)


def _split_at(data: Interactions, cut: int, share: float | None) -> Split:
    """Split at a cut in time; `share` is the share after the cut for tuning, by default the same as here."""
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
    """Return the time of the cut; raise if no event is before or after it."""
    if isinstance(at, int | float):
        share = check_number("at", at, "a date, a time, or above 0 and below 1", lambda x: 0 < x < 1)
        distinct, counts = np.unique(times, return_counts=True)
        after = len(times) - np.cumsum(counts)[:-1]  # number of events from the second, third, … time on
        return int(distinct[1:][np.argmin(abs(after - share * len(times)))])
    cut = moment("at", at)
    if not times.min() < cut <= times.max():
        rule = f"after {_text(int(times.min()))} and no later than {_text(int(times.max()))}, the last event"
        raise ParameterError("at", rule, at)
    return cut


def _text(time: int) -> str:
    """Format a time to the minute, or with seconds if it is not a whole minute."""
    text = str(np.datetime64(time, "us")).replace("T", " ").removesuffix(".000000")
    return text[:16] if text[16:] == ":00" else text


def last(data: object, k: int = 1) -> Split:
    """Hide the k latest items of every user with more than k items.

    Ties in time are broken by a hash of user and item, which is random but the same on every day and in every
    order of the rows. A pair counts once, at the time of its last event. The training data contains what
    other users did later, as in the papers that use this split. `data` is as for `strong_generalisation`, and
    needs times.
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
    """Hold out the users with the lowest hashes, and hide some of their items; the choice never changes.

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
        Hold out as many further users, for tuning.
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
    """Make a split from given tables, such as a published split.

    Without `shown`, the test users are training users: they show their training items, and the targets are
    further items (LightGCN publishes its splits this way). With `shown`, the test users are new and show
    these items. Items that occur only in the targets become items without training users. All tables are read
    as in `strong_generalisation`.
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
    # Users who show items but have no target.
    without = int((targets.users.find(list(shown.users), "user") < 0).sum())
    questions = replace(questions, left_out=questions.left_out + without)
    return Split(training, questions, None, "training, shown and test as given", whole=whole)


def _with_items(training: Interactions, targets: Interactions) -> Interactions:
    """Add the items that occur only in the targets to the training data."""
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
    """Return the pairs in `keep` as training data, without users and items that have none of them."""
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
    """Make the questions of the users in `among` about items of the training data."""
    items = np.flatnonzero(has_items(data.matrix, held.training))
    return ask(data.users, data.matrix, data.times, held, among, items, nothing)
