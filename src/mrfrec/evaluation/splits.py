"""Split data into a training matrix and questions: items that test users show, and items to be guessed.

Strong generalisation follows Liang et al. (2018) step by step, so that its splits are the published ones: the
order of the rows, the order in which users are drawn and the legacy random numbers all matter.

If the data has values, the training matrix and the shown items have them; targets are always 1. If it has
times, these go with both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_number, check_seed, counted
from mrfrec.data.catalogue import DataSize
from mrfrec.data.events import Events
from mrfrec.data.features import ItemFeatures
from mrfrec.data.heldout import FEWEST, by_lowest_hash, hashed, hidden_entries, only_entries
from mrfrec.data.ids import Ids, Places
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.times import as_moments
from mrfrec.errors import DataError

T = TypeVar("T")
Times = npt.NDArray[np.int64]

SEED = 98765  # of the published splits
_HIDDEN = 0.1  # share of the items that are hidden to tune on, where a split is given
LEAVE_ONE = "--split leave-out --leave 1 --min-items 2"  # works with fewer items per user


@dataclass(frozen=True)
class Questions:
    """Test users, their shown items and their targets, over the items of the training data."""

    users: Ids
    shown: sp.csr_array
    targets: sp.csr_array  # ones
    left_out: int = 0  # number of users without a target
    items: Ids | None = None  # of the columns; None if not known
    candidates: npt.NDArray[np.bool_] | None = None  # the items that are ranked; None for all
    shown_times: Times | None = None  # of the stored entries of `shown`, in microseconds since 1970
    asked: Times | None = None  # for each user, the time of the first event that was hidden
    situation: npt.NDArray[np.str_] | None = None  # "return" or "visit" for each user, see `at_time`
    new_items: int = 0  # number of items that nobody had before the cut in time
    new_targets: int = 0  # number of hidden events with these items, which are no targets

    def __post_init__(self) -> None:
        for name, count in (
            ("shown_times", self.shown.nnz), ("asked", len(self)), ("situation", len(self)),
        ):  # fmt: skip
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise DataError(f"{name} must have {count:,} entries; got {len(values):,}.")

    def __len__(self) -> int:
        return len(self.users)

    def times_of(self, part: slice) -> dict[str, Any]:
        """Return what is known of the times of a range of users, as parameters of `Recommender.top_k`."""
        first, last, _ = part.indices(len(self))
        entries = slice(self.shown.indptr[first], self.shown.indptr[last])
        known = {"times": (self.shown_times, entries), "at": (self.asked, part)}
        return {name: times[some] for name, (times, some) in known.items() if times is not None}

    def only(self, rows: npt.NDArray[np.bool_]) -> "Questions":
        """Ask some of the users."""
        of_entries = np.repeat(rows, np.diff(self.shown.indptr))
        return replace(
            self,
            users=self.users.subset(np.flatnonzero(rows)),
            shown=self.shown[rows],
            targets=self.targets[rows],
            shown_times=None if self.shown_times is None else self.shown_times[of_entries],
            asked=None if self.asked is None else self.asked[rows],
            situation=None if self.situation is None else self.situation[rows],
        )


@dataclass(frozen=True)
class Split:
    """Data to train on and questions to ask about test users; parameters are tuned on validation users."""

    training: Interactions
    test: Questions
    validation: Questions | None
    name: str  # for reports
    # Makes the same kind of split of the training data alone, for `for_tuning`.
    inner: "Callable[[], Split] | None" = field(default=None, repr=False, compare=False)
    whole: DataSize | None = None  # of the data before anything was left out or held out, if known

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            questions = getattr(self, name)
            if questions is not None and questions.items is None:
                object.__setattr__(self, name, replace(questions, items=self.training.items))

    def __repr__(self) -> str:
        return f"Split({self.name}: {self})"

    def __str__(self) -> str:
        X, asked = self.training, self.test
        if asked.situation is not None:
            visits = int((asked.situation == "visit").sum())
            come_back = counted(len(asked) - visits, "user")
            return (
                f"{counted(len(X), 'event')} before; {come_back} who come back and {visits:,} in a visit "
                f"asked about what came after; {counted(asked.new_items, 'item')} new since"
            )
        heldout = f"{counted(len(self.test), 'user')} asked about"
        if self.validation is not None:
            heldout += f", {len(self.validation):,} for validation"
        return f"{X.size} to train on; {heldout}"

    def for_tuning(self) -> "Split":
        """Return a split to tune on, which does not contain the targets of the test users.

        Its test users are the validation users. If there are none, the training data is split once more in
        the same way. If that cannot be done, since the split was given, a random tenth of the items of each
        training user with two items or more is hidden, at least one.
        """
        if self.validation is not None:
            # Keeps `validation`: early stopping then looks at the same users as in the final training.
            return replace(self, test=self.validation, name=f"validation of: {self.name}")
        if self.inner is not None:
            return replace(
                self.inner(), inner=None, whole=self.whole, name=f"the training data of: {self.name}"
            )
        X = self.training.matrix
        random = np.random.default_rng(SEED)
        hide = np.zeros(X.nnz, np.bool_)
        for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            if stop - start >= 2:
                count = max(int(_HIDDEN * (stop - start)), 1)
                hide[start + random.choice(stop - start, count, replace=False)] = True
        nothing = "there is nothing to tune on: no training user has two items."
        questions = _hidden_questions(self.training.users, X, hide, nothing, self.training.times)
        name = f"{_HIDDEN:.0%} of the training data hidden; {self.name}"
        return Split(_only_pairs(self.training, ~hide), questions, None, name, whole=self.whole)

    def with_features(self, features: ItemFeatures) -> "Split":
        """Return the split with features of the items; items that nobody has used come last."""
        training = self.training.with_features(features)

        def widened(questions: Questions | None) -> Any:
            if questions is None:
                return None
            shown, targets = (_widened(X, training.n_items) for X in (questions.shown, questions.targets))
            return replace(questions, shown=shown, targets=targets, items=training.items)

        inner = self.inner
        again = None if inner is None else lambda: inner().with_features(features)
        test, validation = widened(self.test), widened(self.validation)
        return replace(self, training=training, test=test, validation=validation, inner=again)

    def with_new_items(self, share: float, *, seed: int = SEED) -> "tuple[Split, Questions]":
        """Make some of the items new: nobody has them in training, and test users have them as targets alone.

        Returns the split, and questions about the new items alone: only these are ranked.
        """
        check_number("share", share, "above 0 and below 1", lambda x: 0 < x < 1)
        X = self.training.matrix
        test = self.test
        used = np.flatnonzero(self.training.popularity)
        count = max(round(share * len(used)), 1)
        new = np.zeros(self.training.n_items, np.bool_)
        new[np.random.default_rng(check_seed(seed)).choice(used, count, replace=False)] = True
        training = _only_pairs(self.training, ~new[X.indices])
        known = ~new[test.shown.indices]
        had = only_entries(test.shown, ~known)
        asked = replace(
            test,
            shown=only_entries(test.shown, known),
            targets=sp.csr_array(test.targets + _ones(had)),
            left_out=0,
            candidates=None,
            shown_times=None if test.shown_times is None else test.shown_times[known],
        )
        nothing = "no test user has one of the new items: make more of them new, or hold out more users."
        among_all = with_targets(asked, nothing)
        of_new = replace(asked, targets=only_entries(asked.targets, new[asked.targets.indices]))
        of_new = with_targets(of_new, nothing)
        split = Split(training, among_all, None, f"{count:,} items made new; {self.name}", whole=self.whole)
        return split, replace(of_new, items=training.items, candidates=new)


def popularity_differs(tuned: Split, final: Split) -> str | None:
    """Say how the questions that parameters are tuned on differ from the final ones, if not by chance.

    Compares two means over users: the logarithm of how many training users the hidden items have and, if
    there are validation users, of how many items are shown. More than four standard errors apart is not
    chance.
    """

    def hidden(split: Split) -> npt.NDArray[np.float64]:
        X = split.training
        targets = split.test.targets
        users = np.maximum(X.popularity, 1) * (len(final.training) / len(X))  # as if both had as much data
        return np.asarray((targets @ np.log(users)) / np.diff(targets.indptr))

    def shown(split: Split) -> npt.NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(np.diff(split.test.shown.indptr), 1)))

    compared = {"the hidden items have {:.3g} users each in validation and {:.3g} in the test": hidden}
    if final.validation is not None:  # otherwise training users show less in validation, by construction
        compared["users show {:.3g} items in validation and {:.3g} in the test"] = shown
    for text, per_user in compared.items():
        a, b = per_user(tuned), per_user(final)
        error = (a.var() / len(a) + b.var() / len(b)) ** 0.5
        if min(len(a), len(b)) > 1 and abs(a.mean() - b.mean()) > 4 * error + 1e-9:
            means = (float(np.exp(x.mean())) for x in (a, b))
            return f"{text.format(*means)} (geometric means), which is not chance."
    return None


def strong_generalisation(
    events: Events,
    heldout: int,
    *,
    min_items: int = 5,
    min_users: int = 0,
    hidden: float = 0.2,
    seed: int = SEED,
) -> Split:
    """Hold out `heldout` users for validation and as many for test, as Liang et al. (2018) do.

    Items with fewer than `min_users` users go first, then users with fewer than `min_items` items, one pass
    each. Users in ascending order of their ids are permuted; the last are the test users, those before them
    the validation users. Held-out users lose the items that no training user has. A share of the items of a
    user with five or more is hidden, rounded down; the others show all they have, and so have no target.
    """
    whole = check_type("events", events, Events).size
    events = events.filtered(min_users=min_users, min_items=min_items)
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
        asked = Questions(
            events.users.subset(users), events.matrix(*seen), targets, shown_times=events.times(*seen)
        )
        questions.append(with_targets(asked, nothing))
    name = f"strong generalisation, {heldout:,} + {heldout:,} users held out"
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


def _by_user(events: Events, rows: Places) -> Iterator[Places]:
    """Yield the rows of each user, users ascending, rows in the order of the table."""
    order = rows[np.argsort(events.user[rows], kind="stable")]
    borders = np.flatnonzero(np.diff(events.user[order])) + 1
    return (group for group in np.split(order, borders) if len(group))


def leave_out(events: Events, k: int = 1, *, seed: int = SEED) -> Split:
    """Hide k random items of every user with more than k; train on the rest, and show it."""
    check_type("events", events, Events)
    random = np.random.default_rng(check_seed(seed))
    name = f"{k} random items of each user left out"
    return hide_last(events, k, random.permutation, name, lambda rest: leave_out(rest, k, seed=seed))


def hide_last(
    events: Events,
    k: int,
    in_order: Callable[[Places], Places],
    name: str,
    again: Callable[[Events], Split],
    *,
    in_time: bool = False,
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
    questions = Questions(
        training.users, training.matrix, targets, shown_times=training.times,
        asked=first_times(events, np.flatnonzero(hide), users) if in_time else None,
    )  # fmt: skip
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
    training.table = data.table
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
        questions.append(_hidden_questions(data.users.subset(part), shown, hide, nothing, of_shown))
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
    wanted = _ones(_over(training.items, targets, targets.matrix))
    twice = history.multiply(wanted).tocoo()
    if twice.nnz:
        user, item = (int(where[0]) for where in twice.coords)
        raise DataError(
            f"{twice.nnz:,} pairs are both shown and to be guessed, the first {targets.users[user]!r} with "
            f"{training.items[item]!r}: what is shown is never recommended. Take them out of one of the two."
        )
    asked = None
    if targets.times is not None and np.diff(targets.matrix.indptr).all():
        asked = np.minimum.reduceat(targets.times, targets.matrix.indptr[:-1])
    questions = with_targets(Questions(targets.users, history, wanted, shown_times=shown_times, asked=asked))
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
    wide = _widened(training.matrix, len(items))
    return Interactions(wide, training.users, items, titles, times=as_moments(training.times), copy=False)


def _widened(X: sp.csr_array, columns: int) -> sp.csr_array:
    return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], columns))


def _numbered(X: sp.csr_array) -> sp.csr_array:
    """Return a matrix of the places of its stored entries, to see where they go when it is indexed."""
    return sp.csr_array((np.arange(X.nnz), X.indices, X.indptr), shape=X.shape)


def _only_pairs(data: Interactions, keep: npt.NDArray[np.bool_]) -> Interactions:
    """Return some of the pairs, with all users and items."""
    times = None if data.times is None else data.times[keep]
    X = only_entries(data.matrix, keep)
    changed = Interactions(X, data.users, data.items, data.titles, times=as_moments(times), copy=False)
    changed.features, changed.table = data.features, data.table
    changed.library = data.library
    return changed


def _over(items: Ids, data: Interactions, X: sp.csr_array) -> sp.csr_array:
    """Return a matrix over the data with these items as columns; other items are dropped."""
    pairs = X.tocoo()
    column = items.find(list(data.items), "item")[pairs.coords[1]]
    keep = column >= 0
    return sp.coo_array(
        (pairs.data[keep], (pairs.coords[0][keep], column[keep])), shape=(data.n_users, len(items))
    ).tocsr()


def check_type(name: str, value: object, kind: type[T]) -> T:
    """Return a value if it is of this type."""
    if not isinstance(value, kind):
        advice = " Read them with evaluation.read_events." if kind is Events else ""
        raise DataError(f"{name} must be {kind.__name__}; got {type(value).__name__}.{advice}")
    return value


def training_of(events: Events, rows: Places, items: Places) -> Interactions:
    """Return rows as training data over these items, which must be all that occur in them."""
    users = np.unique(events.user[rows])
    titles = None if events.titles is None else [events.titles[i] for i in items.tolist()]
    X, times = events.matrix(rows, users, items), events.times(rows, users, items)
    ids = events.users.subset(users), events.items.subset(items)
    return Interactions(X, *ids, titles, times=as_moments(times), copy=False)


def first_times(events: Events, rows: Places, users: Places) -> Times:
    """Return the earliest time among the rows of each user; that of users without a row means nothing."""
    assert events.time is not None
    first = np.full(events.n_users, np.iinfo(np.int64).max)
    np.minimum.at(first, events.user[rows], events.time[rows])
    return first[users]


def with_targets(questions: Questions, nothing: str = "") -> Questions:
    """Ask only the users who have a target, and count the others; raise `nothing` if nobody has one."""
    has_target = np.diff(questions.targets.indptr) > 0
    count = int(has_target.sum())
    if not count:
        everybody = f"none of {len(questions):,} test users has a target: there is nothing to guess."
        raise DataError(nothing or everybody)
    if count == len(questions):
        return questions
    left_out = questions.left_out + len(questions) - count
    return replace(questions.only(has_target), left_out=left_out)


def _hidden_questions(
    users: Ids, X: sp.csr_array, hide: npt.NDArray[np.bool_], nothing: str, times: Times | None
) -> Questions:
    """Ask for some of the entries of a matrix, and show the others; raise `nothing` if none is hidden."""
    shown, targets = only_entries(X, ~hide), _ones(only_entries(X, hide))
    shown_times = None if times is None else times[~hide]
    return with_targets(Questions(users, shown, targets, shown_times=shown_times), nothing)


def _ones(X: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones(X.nnz, np.float32), X.indices, X.indptr), shape=X.shape)
