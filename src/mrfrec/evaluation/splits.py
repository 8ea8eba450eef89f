"""Split data into a training matrix and questions: items that test users show, and items to be guessed.

Strong generalisation follows Liang et al. (2018) step by step, so that its splits are the published ones: the
order in which users are drawn and the legacy random numbers matter. The order of rows means nothing: pairs
are taken in ascending order of users and items, as the published tables are sorted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_number, check_seed
from mrfrec.data.heldout import FEWEST, by_lowest_hash, hashed, hidden_entries, only_entries
from mrfrec.data.ids import Ids, Indices
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.times import as_datetimes
from mrfrec.errors import DataError
from mrfrec.evaluation.questions import (
    SEED,
    Questions,
    Split,
    hidden_questions,
    ones,
    widened,
    with_targets,
)
from mrfrec.io.tables import as_interactions

Mask = npt.NDArray[np.bool_]

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

    By default these are a tenth of the users, at most 10,000.
    Items with fewer than `min_users` users go first, then users with fewer than `min_items` items, one pass
    each. Users in ascending order of their ids are permuted; the last are the test users, those before them
    the validation users. Held-out users lose the items that no training user has. A share of the items of a
    user with five or more is hidden, rounded down; the others show all they have, and so have no target.
    The items are drawn in ascending order of their ids, as in the published tables: the order of the rows
    means nothing.

    Times are left out: what is hidden is no later than what is shown, and a model that learns from times what
    comes next would answer another question. Those are asked by `at_time` and `last`.

    Parameters
    ----------
    data
        `Interactions`, or anything `fit` takes: a table is read by the defaults of `read_interactions`.
    """
    every = as_interactions(data)
    data, without = _untimed(every.filtered(min_users=min_users, min_items=min_items))
    heldout = max(min(data.n_users // 10, _MOST_HELDOUT), 1) if heldout is None else heldout
    parts = strong_parts(data, heldout, hidden=hidden, seed=seed)
    training = part_of(data, parts.training)
    items = np.flatnonzero(np.bincount(data.matrix.indices[parts.training], minlength=data.n_items))
    questions = []
    for name, users, shown, targets in (
        ("validation", parts.users[-2 * heldout : -heldout], *parts.validation),
        ("test", parts.users[-heldout:], *parts.test),
    ):
        nothing = (
            f"there is nothing to ask the {heldout:,} {name} users: none of those with {FEWEST} items "
            "or more has one to be guessed. Raise heldout or hidden, or hide one item of each user instead: "
            f"leave_out(data), {LEAVE_ONE} at the command line."
        )
        questions.append(with_targets(questions_of(data, np.sort(users), items, shown, targets), nothing))
    name = f"strong generalisation, {heldout:,} + {heldout:,} users held out{without}"
    return Split(training, validation=questions[0], test=questions[1], name=name, whole=every.size)


class StrongParts(NamedTuple):
    """The pairs of each part, as masks over the stored entries of the matrix."""

    users: Indices  # all of them, in the order in which they were drawn
    training: Mask
    validation: tuple[Mask, Mask]  # what is shown, and what is to be guessed
    test: tuple[Mask, Mask]


def strong_parts(data: Interactions, heldout: int, *, hidden: float = 0.2, seed: int = SEED) -> StrongParts:
    """Divide the pairs by strong generalisation."""
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
    training = part == 0
    known = np.zeros(data.n_items, np.bool_)
    known[item[training]] = True
    asked = []
    for number in (1, 2):
        kept = (part == number) & known[item]
        random = np.random.RandomState(seed)  # anew for each set of users
        hide = np.zeros(len(data), np.bool_)
        for group in _by_user(user, np.flatnonzero(kept)):
            if len(group) >= FEWEST:
                hide[group[random.choice(len(group), size=int(hidden * len(group)), replace=False)]] = True
        asked.append((kept & ~hide, hide))
    return StrongParts(drawn, training, *asked)


def _untimed(data: Interactions) -> tuple[Interactions, str]:
    """Return the pairs without times, and what that adds to the name of a split."""
    if data.times is None:
        return data, ""
    bare = Interactions(data.matrix, data.users, data.items, data.titles, copy=False)
    bare = bare.replace(features=data.features, table=data.table, library=data.library)
    return bare, "; times left out"


def owners(X: sp.csr_array) -> Indices:
    """Return the row of each stored entry."""
    return np.repeat(np.arange(X.shape[0], dtype=np.int32), np.diff(X.indptr))


def _by_user(user: Indices, places: Indices) -> list[Indices]:
    """Divide places in ascending order by the user of each."""
    borders = np.flatnonzero(np.diff(user[places])) + 1
    return [group for group in np.split(places, borders) if len(group)]


def leave_out(data: object, k: int = 1, *, seed: int = SEED) -> Split:
    """Hide k random items of every user with more than k; train on the rest, and show it.

    Times are left out, and `data` is taken, as by `strong_generalisation`.
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
    """Hide the last k pairs of each user who has more, in the order that `in_order` brings them into.

    `again` makes the same kind of split of other data, to tune on.
    """
    k = check_count("k", k)
    user, item = owners(data.matrix), data.matrix.indices
    hide = np.zeros(len(data), np.bool_)
    for group in _by_user(user, np.arange(len(data))):
        if len(group) > k:
            hide[in_order(group)[-k:]] = True
    if not hide.any():
        raise DataError(f"no user has more than k={k} items: nothing can be left out. Leave out fewer.")
    training = part_of(data, ~hide)
    items = np.unique(item[~hide])
    questions = questions_of(data, np.unique(user), items, ~hide, hide)
    inner = partial(again, training)
    return Split(training, with_targets(questions), None, name, inner, data.size)


def by_hash(
    data: object,
    heldout: float = 0.1,
    *,
    hidden: float = 0.2,
    most: int = 10_000,
    validation: bool = False,
) -> Split:
    """Hold out the users whose hash is below a limit, and hide some of their items: the same every day.

    Parameters
    ----------
    data
        As for `strong_generalisation`.
    heldout
        Share of the users with five items or more to hold out.
    hidden
        Share of each held-out user's items that are to be guessed, rounded down.
    most
        Hold out at most this many users, those with the lowest hashes.
    validation
        Hold out as many again, to tune on.
    """
    data = as_interactions(data)
    limit = 0.5 if validation else 1.0
    heldout = check_number("heldout", heldout, f"above 0 and below {limit:g}", lambda x: 0 < x < limit)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    most = check_count("most", most)
    X = data.matrix
    names = ("test", "validation") if check_flag("validation", validation) else ("test",)
    lengths = np.diff(X.indptr)
    parts = by_lowest_hash(data.users, lengths, heldout, most, len(names))
    trains = np.ones(data.n_users, np.bool_)
    trains[np.concatenate(parts)] = False
    trained = np.repeat(trains, lengths)
    for name, part in zip(names, parts, strict=True):
        if not len(part) or not trained.any():
            raise DataError(
                f"{len(part):,} {name} users can be held out of {data.n_users:,}, of whom "
                f"{(lengths >= FEWEST).sum():,} have {FEWEST} items or more. Hold out another share "
                "(heldout), or wait for more data."
            )
    times = data.times
    training = part_of(data, trained)
    items = np.flatnonzero(np.bincount(X.indices[trained], minlength=data.n_items))
    of_items = hashed(data.items, items)
    questions = []
    nothing = "there is nothing to ask the held-out users: raise hidden, or hold out more of them (heldout)."
    entries = None if times is None else _numbered(X)
    for part in parts:  # hide the items whose hashes with the user are lowest
        shown = X[part][:, items]
        of_shown = None if times is None or entries is None else times[entries[part][:, items].data]
        lengths = np.diff(shown.indptr)
        count = np.where(lengths >= FEWEST, (hidden * lengths).astype(np.int64), 0)
        hide = hidden_entries(shown, hashed(data.users, part), of_items, count)
        questions.append(hidden_questions(data.users.subset(part), shown, hide, nothing, of_shown))
    name = f"{' + '.join(f'{len(part):,}' for part in parts)} users held out by hash"
    return Split(training, questions[0], questions[1] if validation else None, name, whole=data.size)


def given(training: object, targets: object, shown: object = None) -> Split:
    """Use a split as it is given.

    Without `shown`, the targets are further items of training users, who show their items in the training
    data (LightGCN publishes its splits this way). With `shown`, the test users are new and show these items.

    Targets that nobody has in the training data stay targets, as items without users. All three are taken as
    by `strong_generalisation`.
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
    place = tested.users.find(list(targets.users), "user")
    history = _over(training.items, tested, tested.matrix)[place]
    shown_times = None
    if tested.times is not None:
        shown_times = tested.times[_over(training.items, tested, _numbered(tested.matrix))[place].data]
    empty = np.flatnonzero((place < 0) | (np.diff(history.indptr) == 0))
    if len(empty):
        raise DataError(
            f"{len(empty):,} of {len(place):,} test users show no item of the training data, the first "
            f"{targets.users[int(empty[0])]!r}: there is nothing to ask from. Drop them, or give what they "
            "are shown (shown)."
        )
    wanted = ones(_over(training.items, targets, targets.matrix))
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
    """Append the items of the targets that nobody has in the training data."""
    new = np.flatnonzero(training.items.find(list(targets.items), "item") < 0)
    if not len(new):
        return training
    items = [*training.items, *(targets.items[i] for i in new.tolist())]
    named, more = (data.titles or [""] * data.n_items for data in (training, targets))
    titles = [*named, *(more[i] for i in new.tolist())]
    wide = widened(training.matrix, len(items))
    whole = Interactions(wide, training.users, items, titles, times=as_datetimes(training.times), copy=False)
    return whole.replace(library=training.library)


def _numbered(X: sp.csr_array) -> sp.csr_array:
    """Return a matrix of the places of its stored entries, to see where they go when it is indexed."""
    return sp.csr_array((np.arange(X.nnz), X.indices, X.indptr), shape=X.shape)


def _over(items: Ids, data: Interactions, X: sp.csr_array) -> sp.csr_array:
    """Return a matrix over the data with these items as columns; other items are dropped."""
    pairs = X.tocoo()
    column = items.find(list(data.items), "item")[pairs.coords[1]]
    keep = column >= 0
    return sp.coo_array(
        (pairs.data[keep], (pairs.coords[0][keep], column[keep])), shape=(data.n_users, len(items))
    ).tocsr()


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


def questions_of(data: Interactions, users: Indices, items: Indices, shown: Mask, targets: Mask) -> Questions:
    """Ask these users about some of their pairs, and show others, over these items."""
    of_shown = None
    if data.times is not None:
        of_shown = data.times[only_entries(_numbered(data.matrix), shown)[users][:, items].data]
    return Questions(
        data.users.subset(users),
        only_entries(data.matrix, shown)[users][:, items],
        ones(only_entries(data.matrix, targets)[users][:, items]),
        shown_times=of_shown,
    )
