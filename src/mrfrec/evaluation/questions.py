"""A split of data: what to train on, and questions about test users.

The training matrix and the shown items have the values and times of the data; targets are always 1. A hidden
pair with a value below 0, a dislike, is no target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_number, check_seed, counted
from mrfrec.data.catalogue import DataSize
from mrfrec.data.holdout import HoldOut, Mask, hold_out, only_entries
from mrfrec.data.ids import Ids, Indices
from mrfrec.data.interactions import Interactions
from mrfrec.data.item_table import ItemFeatures, ItemTable
from mrfrec.data.times import as_datetimes
from mrfrec.errors import DataError

T = TypeVar("T")
Times = npt.NDArray[np.int64]

SEED = 98765  # the seed of the published splits
_HIDDEN = 0.1  # share of the items that are hidden to tune on, where a split is given


@dataclass(frozen=True)
class Questions:
    """Test users, their shown items and their targets, over the items of the training data.

    Attributes
    ----------
    users
        Ids of the test users, in the order of all rows below.
    shown
        Test users × items: what the users show, with its values. A `csr_array`; its columns are in the order
        of `Split.training.items`.
    targets
        Test users × items: what is to be guessed, as ones. Every user has at least one.
    left_out
        Number of users who are not asked, for lack of a target.
    items
        Ids of the columns; None if not known.
    candidates
        Mask of the items that are ranked; None for all items. Only questions about new items have it.
    shown_times
        Times of the stored entries of `shown`, in microseconds since 1970.
    situation
        "return" or "visit" per user, see `at_time`.
    new_items
        Number of items that nobody had before the cut in time.
    new_targets
        Number of hidden events with these items, which are no targets.
    """

    users: Ids
    shown: sp.csr_array
    targets: sp.csr_array
    left_out: int = 0
    items: Ids | None = None
    candidates: npt.NDArray[np.bool_] | None = None
    shown_times: Times | None = None
    situation: npt.NDArray[np.str_] | None = None
    new_items: int = 0
    new_targets: int = 0

    def __post_init__(self) -> None:
        for name, count in (("shown_times", self.shown.nnz), ("situation", len(self))):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise DataError(f"{name} must have {count:,} entries; got {len(values):,}.")

    def __len__(self) -> int:
        return len(self.users)

    def times_of(self, part: slice) -> dict[str, Any]:
        """Return the times of a range of users, as parameters of `Recommender.top_k`; empty if unknown."""
        first, last, _ = part.indices(len(self))
        entries = slice(self.shown.indptr[first], self.shown.indptr[last])
        return {} if self.shown_times is None else {"times": self.shown_times[entries]}

    def only(self, rows: npt.NDArray[np.bool_]) -> "Questions":
        """Ask some of the users."""
        of_entries = np.repeat(rows, np.diff(self.shown.indptr))
        return replace(
            self,
            users=self.users.subset(np.flatnonzero(rows)),
            shown=self.shown[rows],
            targets=self.targets[rows],
            shown_times=None if self.shown_times is None else self.shown_times[of_entries],
            situation=None if self.situation is None else self.situation[rows],
        )


@dataclass(frozen=True)
class Split:
    """Data to train on and questions to ask about test users; parameters are tuned on validation users.

    Attributes
    ----------
    training
        The `Interactions` to train on.
    test
        Questions about the test users.
    validation
        Questions about the validation users; None if the split has none.
    name
        How the data was split, for reports.
    inner
        Makes the same kind of split of the training data alone, for `for_tuning`.
    whole
        The users, items and pairs of the data before anything was left out or held out, if known.
    """

    training: Interactions
    test: Questions
    validation: Questions | None
    name: str
    inner: "Callable[[], Split] | None" = field(default=None, repr=False, compare=False)
    whole: DataSize | None = None

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
            back = coming_back(len(asked) - visits)
            return (
                f"{counted(len(X), 'event')} before; {back} and {visits:,} in a visit asked "
                f"about what came after; {counted(asked.new_items, 'item')} new since"
            )
        heldout = f"{counted(len(self.test), 'user')} asked about"
        if self.validation is not None:
            heldout += f", {len(self.validation):,} for validation"
        return f"{X.size} to train on; {heldout}"

    def for_tuning(self) -> "Split":
        """Return a split to tune on, which does not contain the targets of the test users.

        Its test users are the validation users. If there are none, the training data is split again in the
        same way. The training data of a given split cannot be split so: a random tenth of the items of every
        training user with two items or more is hidden, at least one.
        """
        if self.validation is not None:
            # `validation` stays: early stopping then looks at the same users as in the final training.
            return replace(self, test=self.validation, name=f"validation of: {self.name}")
        if self.inner is not None:
            return replace(
                self.inner(), inner=None, whole=self.whole, name=f"the training data of: {self.name}"
            )
        data, X = self.training, self.training.matrix
        random = np.random.default_rng(SEED)
        hide = np.zeros(X.nnz, np.bool_)
        for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            if stop - start >= 2:
                count = max(int(_HIDDEN * (stop - start)), 1)
                hide[start + random.choice(stop - start, count, replace=False)] = True
        held = hold_out(X, ~hide, hide, np.ones(data.n_items, np.bool_))
        nothing = "there is nothing to tune on: no training user has two items."
        questions = ask(data.users, X, data.times, held, np.arange(data.n_users), nothing=nothing)
        name = f"{_HIDDEN:.0%} of the training data hidden; {self.name}"
        return Split(_only_pairs(data, ~hide), questions, None, name, whole=self.whole)

    def with_features(self, features: ItemFeatures) -> "Split":
        """Return the split with features of items; items that nobody has used come last."""
        training = self.training.with_features(features)

        def wide(questions: Questions | None) -> Any:
            if questions is None:
                return None
            shown, targets = (widened(X, training.n_items) for X in (questions.shown, questions.targets))
            return replace(questions, shown=shown, targets=targets, items=training.items)

        inner = self.inner
        again = None if inner is None else lambda: inner().with_features(features)
        test, validation = wide(self.test), wide(self.validation)
        return replace(self, training=training, test=test, validation=validation, inner=again)

    def with_table(self, table: ItemTable) -> "Split":
        """Return the split with a table of items, by whose columns models can be asked; see `evaluate`."""
        inner = self.inner
        again = None if inner is None else lambda: inner().with_table(table)
        return replace(self, training=self.training.with_table(table), inner=again)

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
            targets=sp.csr_array(test.targets + ones(had)),
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


@dataclass(frozen=True)
class Folds(Sequence[Split]):
    """Splits at several cuts in time, earliest first.

    A split is made only on access, so that one at most is in memory.
    """

    name: str
    makers: tuple[Callable[[], Split], ...] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.makers)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> "Folds": ...
    def __getitem__(self, index: int | slice) -> "Split | Folds":
        if isinstance(index, slice):
            return replace(self, makers=self.makers[index])
        return self.makers[index]()

    def changed(self, change: Callable[[Split], Split]) -> "Folds":
        """Return the folds with a change of each split, such as `lambda split: split.with_table(table)`."""

        def changed(make: Callable[[], Split]) -> Split:
            return change(make())

        return replace(self, makers=tuple(partial(changed, make) for make in self.makers))


def coming_back(count: int) -> str:
    """Return the number of users who come back, in words."""
    return f"{counted(count, 'user')} who {'comes' if count == 1 else 'come'} back"


def popularity_differs(tuned: Split, final: Split) -> str | None:
    """Say how the questions that parameters are tuned on differ from the final ones, if not by chance.

    Compares two means over users: the logarithm of how many training users the hidden items have and, if
    there are validation users, of how many items are shown. More than four standard errors apart is not
    chance.
    """

    def hidden(split: Split) -> npt.NDArray[np.float64]:
        X = split.training
        targets = split.test.targets
        users = np.maximum(X.popularity, 1) * (
            len(final.training) / len(X)
        )  # scaled as if both had as much data
        return np.asarray((targets @ np.log(users)) / np.diff(targets.indptr))

    def shown(split: Split) -> npt.NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(np.diff(split.test.shown.indptr), 1)))

    compared = {"the hidden items have {:.3g} users each in validation and {:.3g} in the test": hidden}
    if final.validation is not None:  # Otherwise users show less in validation, by construction.
        compared["users show {:.3g} items in validation and {:.3g} in the test"] = shown
    for text, per_user in compared.items():
        a, b = per_user(tuned), per_user(final)
        error = (a.var() / len(a) + b.var() / len(b)) ** 0.5
        if min(len(a), len(b)) > 1 and abs(a.mean() - b.mean()) > 4 * error + 1e-9:
            means = (float(np.exp(x.mean())) for x in (a, b))
            return f"{text.format(*means)} (geometric means), which is not chance."
    return None


def check_type(name: str, value: object, kind: type[T], advice: str = "") -> T:
    """Return a value if it is of this type."""
    if not isinstance(value, kind):
        raise DataError(f"{name} must be {kind.__name__}; got {type(value).__name__}.{advice}")
    return value


def check_split(split: object) -> Split:
    """Return a split; refuse anything else, and say how to make one of it."""
    if isinstance(split, Folds):
        raise DataError("split must be Split; got several cuts in time. Give one of them: split[-1].")
    of_table = " Make one of the data: evaluation.at_time(data), or evaluation.strong_generalisation(data)"
    return check_type("split", split, Split, f"{of_table} without times.")


def with_targets(questions: Questions, nothing: str = "") -> Questions:
    """Leave out and count users without a target; raise `nothing` if no user has one."""
    has_target = np.diff(questions.targets.indptr) > 0
    count = int(has_target.sum())
    if not count:
        everybody = f"none of {len(questions):,} test users has a target: there is nothing to guess."
        raise DataError(nothing or everybody)
    if count == len(questions):
        return questions
    left_out = questions.left_out + len(questions) - count
    return replace(questions.only(has_target), left_out=left_out)


def ask(
    users: Ids,
    X: sp.csr_array,
    times: Times | None,
    held: HoldOut,
    among: Indices,
    items: Indices | None = None,
    nothing: str = "",
) -> Questions:
    """Ask some users what a hold-out hides of their rows in X; count the users without a question.

    Parameters
    ----------
    users, X, times
        The ids of all rows, the matrix that was divided, and the time of each of its entries, if known.
    among
        Rows of the users who may be asked.
    items
        Columns of the questions; by default all.
    nothing
        Message of the error if nobody can be asked.
    """
    rows = held.users[np.isin(held.users, among)]
    if not len(rows):
        raise DataError(
            nothing or f"none of {len(among):,} test users has a target: there is nothing to guess."
        )

    def part(X: sp.csr_array, entries: Mask) -> sp.csr_array:
        chosen = only_entries(X, entries)[rows]
        return chosen if items is None else chosen[:, items]

    return Questions(
        users.subset(rows),
        part(X, held.shown),
        ones(part(X, held.hidden)),
        left_out=len(among) - len(rows),
        shown_times=None if times is None else times[part(numbered(X), held.shown).data],
    )


def numbered(X: sp.csr_array) -> sp.csr_array:
    """Return a matrix of the indices of its stored entries, to see where they go when it is indexed."""
    return sp.csr_array((np.arange(X.nnz), X.indices, X.indptr), shape=X.shape)


def ones(X: sp.csr_array) -> sp.csr_array:
    """Return ones in place of the values above 0, to be guessed: nobody asks for dislikes."""
    X = X if (X.data > 0).all() else only_entries(X, X.data > 0)
    return sp.csr_array((np.ones(X.nnz, np.float32), X.indices, X.indptr), shape=X.shape)


def over_columns(X: sp.csr_array, column: Indices, count: int) -> sp.csr_array:
    """Return a matrix with `count` columns, where each column of X has the index in `column`; −1 drops it."""
    pairs = X.tocoo()
    moved = column[pairs.coords[1]]
    keep = moved >= 0
    where = pairs.coords[0][keep], moved[keep]
    return sp.coo_array((pairs.data[keep], where), shape=(X.shape[0], count)).tocsr()


def widened(X: sp.csr_array, columns: int) -> sp.csr_array:
    """Append empty columns."""
    return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], columns))


def _only_pairs(data: Interactions, keep: npt.NDArray[np.bool_]) -> Interactions:
    """Return some of the pairs, with all users and items."""
    times = None if data.times is None else data.times[keep]
    X = only_entries(data.matrix, keep)
    changed = Interactions(X, data.users, data.items, data.titles, times=as_datetimes(times), copy=False)
    return changed.replace(features=data.features, table=data.table, library=data.library)
