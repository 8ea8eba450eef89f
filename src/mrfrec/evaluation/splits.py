"""Split data into a training matrix and questions: items that test users show, and items to be guessed.

Strong generalisation follows Liang et al. (2018) step by step, so that its splits are the published ones: the
order of the rows, the order in which users are drawn and the legacy random numbers all matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_number, check_seed
from mrfrec.data.events import Events
from mrfrec.data.heldout import FEWEST, by_lowest_hash, hashed, hidden_entries
from mrfrec.data.ids import Ids, Places
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.times import as_moments
from mrfrec.errors import DataError
from mrfrec.evaluation.questions import (
    SEED,
    Questions,
    Split,
    check_type,
    hidden_questions,
    ones,
    widened,
    with_targets,
)

_MOST_HELDOUT = 10_000  # users, by default
LEAVE_ONE = "--split leave-out --leave 1 --min-items 2"  # works with fewer items per user


def strong_generalisation(
    events: Events,
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

    Times are left out: what is hidden is no later than what is shown, and a model that learns from times what
    comes next would answer another question. Those are asked by `at_time` and `last`.
    """
    whole = check_type("events", events, Events).size
    events, without = _untimed(events.filtered(min_users=min_users, min_items=min_items))
    heldout = max(min(events.n_users // 10, _MOST_HELDOUT), 1) if heldout is None else heldout
    rows = strong_rows(events, heldout, hidden=hidden, seed=seed)
    items = np.unique(events.item[rows["training"]])
    training = training_of(events, rows["training"], items)
    questions = []
    for part, drawn in (("validation", slice(-2 * heldout, -heldout)), ("test", slice(-heldout, None))):
        users = np.sort(rows["users"][drawn])
        seen = rows[f"{part} shown"], users, items
        targets = events.matrix(rows[f"{part} targets"], users, items, binary=True)
        nothing = (
            f"there is nothing to ask the {heldout:,} {part} users: none of those with {FEWEST} items "
            "or more has one to be guessed. Raise heldout or hidden, or hide one item of each user instead: "
            f"leave_out(events), {LEAVE_ONE} at the command line."
        )
        asked = Questions(events.users.subset(users), events.matrix(*seen), targets)
        questions.append(with_targets(asked, nothing))
    name = f"strong generalisation, {heldout:,} + {heldout:,} users held out{without}"
    return Split(training, validation=questions[0], test=questions[1], name=name, whole=whole)


def strong_rows(events: Events, heldout: int, *, hidden: float = 0.2, seed: int = SEED) -> dict[str, Places]:
    """Return the rows of each part, and under "users" all users in the order in which they were drawn."""
    check_type("events", events, Events)
    heldout = check_count("heldout", heldout)
    seed = check_seed(seed)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    present = np.unique(events.user)
    if 2 * heldout >= len(present):
        raise DataError(
            f"2 × {heldout:,} users cannot be held out of {len(present):,}: none would be left to train on. "
            "Lower heldout (--heldout)."
        )
    drawn = present[np.random.RandomState(seed).permutation(len(present))]
    part_of = np.zeros(events.n_users, np.int8)
    part_of[drawn[-2 * heldout : -heldout]] = 1
    part_of[drawn[-heldout:]] = 2
    part = part_of[events.user]
    rows: dict[str, Places] = {"users": drawn, "training": np.flatnonzero(part == 0)}
    known = np.zeros(events.n_items, np.bool_)
    known[events.item[rows["training"]]] = True
    for number, name in ((1, "validation"), (2, "test")):
        heldout_rows = np.flatnonzero((part == number) & known[events.item])
        random = np.random.RandomState(seed)  # anew for each set of users
        hide = np.zeros(len(events), np.bool_)
        for group in _by_user(events, heldout_rows):
            if len(group) >= FEWEST:
                hide[group[random.choice(len(group), size=int(hidden * len(group)), replace=False)]] = True
        by_user = heldout_rows[np.argsort(events.user[heldout_rows], kind="stable")]
        rows |= {f"{name} shown": by_user[~hide[by_user]], f"{name} targets": by_user[hide[by_user]]}
    return rows


def _untimed(events: Events) -> tuple[Events, str]:
    """Return events without times, and what that adds to the name of a split."""
    return replace(events, time=None), "" if events.time is None else "; times left out"


def _by_user(events: Events, rows: Places) -> Iterator[Places]:
    """Yield the rows of each user, users ascending, rows in the order of the table."""
    order = rows[np.argsort(events.user[rows], kind="stable")]
    borders = np.flatnonzero(np.diff(events.user[order])) + 1
    return (group for group in np.split(order, borders) if len(group))


def leave_out(events: Events, k: int = 1, *, seed: int = SEED) -> Split:
    """Hide k random items of every user with more than k; train on the rest, and show it.

    Times are left out, as by `strong_generalisation`.
    """
    events, without = _untimed(check_type("events", events, Events))
    random = np.random.default_rng(check_seed(seed))
    name = f"{k} random items of each user left out{without}"
    return hide_last(events, k, random.permutation, name, lambda rest: leave_out(rest, k, seed=seed))


def hide_last(
    events: Events,
    k: int,
    in_order: Callable[[Places], Places],
    name: str,
    again: Callable[[Events], Split],
) -> Split:
    """Hide the last k rows of each user who has more, in the order that `in_order` brings them into.

    `again` makes the same kind of split of other events, to tune on.
    """
    k = check_count("k", k)
    hide = np.zeros(len(events), np.bool_)
    for group in _by_user(events, np.arange(len(events))):
        if len(group) > k:
            hide[in_order(group)[-k:]] = True
    if not hide.any():
        raise DataError(f"no user has more than k={k} items: nothing can be left out. Leave out fewer.")
    rows = np.flatnonzero(~hide)
    items = np.unique(events.item[rows])
    training = training_of(events, rows, items)
    known = np.zeros(events.n_items, np.bool_)
    known[items] = True
    hidden = np.flatnonzero(hide & known[events.item])
    users = np.unique(events.user[rows])
    targets = events.matrix(hidden, users, items, binary=True)
    questions = Questions(training.users, training.matrix, targets, shown_times=training.times)
    inner = partial(again, events.take(rows))
    return Split(training, with_targets(questions), None, name, inner, events.size)


def by_hash(
    data: Interactions,
    heldout: float = 0.1,
    *,
    hidden: float = 0.2,
    most: int = 10_000,
    validation: bool = False,
) -> Split:
    """Hold out the users whose hash is below a limit, and hide some of their items: the same every day.

    Parameters
    ----------
    heldout
        Share of the users with five items or more to hold out.
    hidden
        Share of each held-out user's items that are to be guessed, rounded down.
    most
        Hold out at most this many users, those with the lowest hashes.
    validation
        Hold out as many again, to tune on.
    """
    check_type("data", data, Interactions)
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
    kept = keep_pairs(X, data.users, data.items, data.titles, trained)
    training = Interactions(*kept, times=None if times is None else as_moments(times[trained]), copy=False)
    training.features = None if data.features is None else data.features.over(training.items)
    training.table, training.library = data.table, data.library
    if data.times is not None and data.origin is not None:
        training.origin = data.origin.only(trained)
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


def given(training: Interactions, targets: Interactions, shown: Interactions | None = None) -> Split:
    """Use a split as it is given.

    Without `shown`, the targets are further items of training users, who show their items in the training
    data (LightGCN publishes its splits this way). With `shown`, the test users are new and show these items.

    Targets that nobody has in the training data stay targets, as items without users.
    """
    for name, data in (("training", training), ("targets", targets), ("shown", shown)):
        if data is None and name == "shown":
            continue
        check_type(name, data, Interactions)
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
    whole = Interactions(wide, training.users, items, titles, times=as_moments(training.times), copy=False)
    whole.library = training.library
    return whole


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


def training_of(events: Events, rows: Places, items: Places) -> Interactions:
    """Return rows as training data over these items, which must be all that occur in them."""
    users = np.unique(events.user[rows])
    titles = None if events.titles is None else [events.titles[i] for i in items.tolist()]
    X, times = events.matrix(rows, users, items), events.times(rows, users, items)
    ids = events.users.subset(users), events.items.subset(items)
    training = Interactions(X, *ids, titles, times=as_moments(times), copy=False)
    training.library = events.library
    return training
