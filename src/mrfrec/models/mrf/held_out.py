"""Hold out a part of the training data of an MRF, on which its parameters are measured.

With times this is what came after a cut: users who come back are asked about what they took then, and new
users, in the middle of a visit, about its second half. Without times, some users are held out, and some of
their items are hidden.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.ages import Times
from mrfrec.data.holdout import (
    FEWEST,
    hashed,
    hashed_rows,
    hidden_after,
    hidden_by_hash,
    hold_out,
    only_entries,
)
from mrfrec.data.interactions import Interactions, popularity_of

FEWEST_USERS, FEWEST_ASKED = 500, 20
# At most so many users × items are ranked; with more items, a sample of the items is ranked.
MOST_SCORES = 200_000_000
# A user is asked up to five times, where that takes no more scores than this.
_QUICK_SCORES, _MOST_TIMES = 60_000_000, 5
_SHARE, _MOST_USERS = 0.1, 4000  # users held out
_HIDDEN, _MOST_HIDDEN = 0.2, 500  # hidden items per user
_AFTER = 0.1  # share of the pairs after the cut


@dataclass(frozen=True)
class HeldOut:
    """What to train on, and questions: the items that are shown, hidden, and ranked."""

    training: sp.csr_array  # the other users × all items
    shown: sp.csr_array  # questions × all items
    seen: sp.csr_array  # questions × ranked items: the shown entries of these items
    hidden: sp.csr_array  # questions × ranked items
    # Index of the user of each question: a user may be asked several times, with other items hidden.
    user: npt.NDArray[np.int64]
    ranked: npt.NDArray[np.int64]  # indices of items
    popularity: npt.NDArray[np.int64]  # training users of all items
    features: sp.csr_array | None = None  # features × all items
    times: Times | None = None  # one per entry of `training`
    shown_times: Times | None = None  # one per entry of `shown`

    @property
    def median_age(self) -> float:
        """Median age of the entries in microseconds; 0 without times."""
        return 0.0 if self.times is None else float(self.times.max() - np.median(self.times))

    @property
    def ranks_all(self) -> bool:
        """Whether hidden items are ranked among all items."""
        return len(self.ranked) == int(self.shown.shape[1])

    def places(self, k: int) -> int:
        """Return the length of a list of ranked items that is to them as k is to all items; at least ten."""
        share = len(self.ranked) / int(self.shown.shape[1])
        return min(k if self.ranks_all else max(round(k * share), 10), len(self.ranked))

    def nbytes(self, itemsize: int) -> int:
        """Return the bytes of these matrices, and of the scores of one fit and of its low-rank part."""
        matrices = (self.training, self.shown, self.seen, self.hidden)
        arrays = [array for X in matrices for array in (X.data, X.indices, X.indptr)]
        scores = 2 * itemsize * int(self.shown.shape[0]) * len(self.ranked)
        return sum(int(array.nbytes) for array in arrays) + scores


def held_out(data: Interactions, most_scores: int = MOST_SCORES) -> HeldOut | None:
    """Hold out what came after a cut in time; without times, or with too few users then, users by hash.

    `most_scores` bounds users × ranked items.
    """
    if data.n_users < FEWEST_USERS:
        return None
    by_time = None if data.times is None else _held_out_by_time(data, data.times, most_scores)
    return by_time or _held_out_users(data, most_scores)


def _held_out_by_time(data: Interactions, times: Times, most_scores: int) -> HeldOut | None:
    """Hold out the last tenth of the pairs; None if there are too few users to ask about them."""
    X, m = data.matrix, data.n_items
    cut = np.partition(times, int((1 - _AFTER) * len(times)))[int((1 - _AFTER) * len(times))]
    hide, was_there = hidden_after(X, times, cut, odd_hidden=False)
    held = hold_out(X, times < cut, hide)
    if len(held.users) < FEWEST_ASKED or not held.training.any():
        return None
    training = only_entries(X, held.training)
    # At most 4,000 users are asked. Those who come back, and those who are new, have room for 2,000 at least.
    users = held.users[np.argsort(hashed(data.users, held.users), kind="stable")]
    parts = [users[was_there[users]], users[~was_there[users]]]
    room = [max(_MOST_USERS // 2, _MOST_USERS - len(other)) for other in parts[::-1]]
    asked = np.sort(np.concatenate([part[:most] for part, most in zip(parts, room, strict=True)]))
    of_item = hashed(data.items, np.arange(m))
    ranked = np.sort(np.argsort(of_item, kind="stable")[: max(most_scores // len(asked), 1)])
    is_ranked = np.zeros(m, np.bool_)
    is_ranked[ranked] = True
    rows = X[asked]
    entries = np.concatenate([np.arange(*X.indptr[u : u + 2]) for u in asked])
    hidden = only_entries(rows, held.hidden[entries] & is_ranked[rows.indices])
    shown = only_entries(rows, held.shown[entries])
    able = np.flatnonzero(np.diff(hidden.indptr) > 0)
    if len(able) < FEWEST_ASKED:
        return None
    kept = np.repeat(np.isin(np.arange(len(asked)), able), np.diff(shown.indptr))
    features = None if data.features is None else data.features.of_used(data.used)
    shown = shown[able]
    return HeldOut(
        training[np.flatnonzero(was_there)], shown, shown[:, ranked], hidden[able][:, ranked],
        np.arange(len(able)), ranked, popularity_of(training), features, times[held.training],
        times[entries][held.shown[entries]][kept],
    )  # fmt: skip


def _held_out_users(data: Interactions, most_scores: int) -> HeldOut | None:
    """Hold out a tenth of the histories by hash, at most 4,000; None if there are too few users.

    Users with equal histories are held out together, and one of them is asked: otherwise the training data
    would contain the answer.
    """
    X, m = data.matrix, data.n_items
    of_item = hashed(data.items, np.arange(m))
    asked, trains = choose_users(X, of_item)
    training = X[np.flatnonzero(trains)]
    popularity = popularity_of(training)
    of_row = hashed(data.users, asked)
    ranked = np.sort(np.argsort(of_item, kind="stable")[: max(most_scores // max(len(asked), 1), 1)])
    known = np.zeros(m, np.bool_)
    known[ranked] = popularity[ranked] > 0
    # A fifth of a user's items is hidden, or as many as can be: ranked items that training users have, no
    # dislikes.
    histories = X[asked]
    can = known[histories.indices] & (histories.data > 0)
    fifth = np.clip((_HIDDEN * np.diff(histories.indptr)).astype(np.int64), 1, _MOST_HIDDEN)
    nothing, every_item = np.zeros(histories.nnz, np.bool_), np.ones(m, np.bool_)
    parts = []
    for time in range(int(np.clip(_QUICK_SCORES // max(len(asked) * len(ranked), 1), 1, _MOST_TIMES))):
        hide = np.zeros(histories.nnz, np.bool_)
        upto = [
            hidden_by_hash(only_entries(histories, can), of_row, of_item, times * fifth)
            for times in (time, time + 1)
        ]
        hide[can] = upto[1] & ~upto[0]
        held = hold_out(histories, nothing, hide, every_item)
        hidden, shown = only_entries(histories, held.hidden)[:, ranked], only_entries(histories, held.shown)
        parts.append((shown[held.users], hidden[held.users], held.users))
    shown, hidden = (sp.csr_array(sp.vstack(each)) for each in list(zip(*parts, strict=True))[:2])
    user = np.unique(np.concatenate([rows for *_, rows in parts]), return_inverse=True)[1]
    if not training.nnz or not len(user) or user.max() + 1 < FEWEST_ASKED:
        return None
    features = None if data.features is None else data.features.of_used(data.used)
    return HeldOut(training, shown, shown[:, ranked], hidden, user, ranked, popularity, features)


def choose_users(
    X: sp.csr_array, of_item: npt.NDArray[np.uint64], share: float = _SHARE
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the users to ask, one for each history that is held out, and a mask of the users to train on."""
    long = np.flatnonzero(np.diff(X.indptr) >= FEWEST)
    hashes = hashed_rows(X, long, of_item)
    order = np.argsort(hashes, kind="stable")
    order = order[: np.searchsorted(hashes[order], np.uint64(share * 2.0**64))]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.diff(hashes[order]) != 0
    order = order[np.cumsum(is_first) <= _MOST_USERS]
    trains = np.ones(X.shape[0], np.bool_)
    trains[long[order]] = False
    return np.sort(long[order][is_first[: len(order)]]), trains
