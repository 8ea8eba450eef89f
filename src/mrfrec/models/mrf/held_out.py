"""What is held out of the training data of an MRF, so that its parameters can be measured.

Without times these are users, of whose items some are hidden. With times it is what came after a cut: people
who come back are asked about what they took then, and those who are new since the cut, in the middle of a
visit, about the second half of that.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.ages import Times, moments_from_end
from mrfrec.data.heldout import FEWEST, hashed, hashed_rows, hidden_entries, only_entries
from mrfrec.data.interactions import Interactions, popularity_of

FEWEST_USERS, FEWEST_ASKED = 500, 20
MOST_SCORES = 200_000_000  # users × items that are ranked; with more items, a sample of them is
_QUICK_SCORES, _MOST_TIMES = 60_000_000, 5  # a user is asked several times where that takes no more scores
_SHARE, _MOST_USERS = 0.1, 4000  # of the users
_HIDDEN, _MOST_HIDDEN = 0.2, 500  # of each user's items
_AFTER = 0.1  # share of the pairs that come after the cut


@dataclass(frozen=True)
class HeldOut:
    """Users to ask, who are not trained on, and the items among which their hidden ones are ranked."""

    training: sp.csr_array  # the other users × all items
    shown: sp.csr_array  # questions × all items
    seen: sp.csr_array  # questions × ranked items, of those shown
    hidden: sp.csr_array  # questions × ranked items
    user: npt.NDArray[
        np.int64
    ]  # of each question: a user may be asked several times, with other items hidden
    ranked: npt.NDArray[np.int64]
    popularity: npt.NDArray[np.int64]  # of all items, among those trained on
    features: sp.csr_array | None = None  # of all items
    times: Times | None = None  # of the entries of `training`
    shown_times: Times | None = None

    @property
    def median_age(self) -> float:
        """How old half of the entries are, in microseconds; 0 without times."""
        return 0.0 if self.times is None else float(self.times.max() - np.median(self.times))

    @property
    def ranks_all(self) -> bool:
        """Whether hidden items are ranked among all items."""
        return len(self.ranked) == int(self.shown.shape[1])

    def places(self, k: int) -> int:
        """Return as many places of a list of the ranked items as are k of all items, and at least ten."""
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
    after = times >= cut
    lengths = np.diff(X.indptr)
    owner = np.repeat(np.arange(data.n_users), lengths)
    had, came = (np.bincount(owner[part], minlength=data.n_users) > 0 for part in (~after, after))
    training = only_entries(X, ~after)
    popularity = popularity_of(training)
    # A visit is divided between two moments.
    place = moments_from_end(X.indptr, times)
    count = np.zeros(data.n_users, np.int64)
    np.maximum.at(count, owner, place + 1)
    hide = after & (had[owner] | (place < count[owner] // 2))
    of_item = hashed(data.items, np.arange(m))
    users = np.flatnonzero(came & (had | (count > 1)))
    known = np.bincount(training.indices, minlength=m) > 0
    asks, shows = (
        np.bincount(owner[part & known[X.indices]], minlength=data.n_users) > 0
        for part in (hide & (X.data > 0), ~hide)
    )
    users = users[asks[users] & shows[users]]
    users = users[np.argsort(hashed(data.users, users), kind="stable")]
    parts = [users[had[users]], users[~had[users]]]
    room = [max(_MOST_USERS // 2, _MOST_USERS - len(other)) for other in parts[::-1]]
    asked = np.sort(np.concatenate([part[:most] for part, most in zip(parts, room, strict=True)]))
    if len(asked) < FEWEST_ASKED or not (~after).any():
        return None
    ranked = np.sort(np.argsort(of_item, kind="stable")[: max(most_scores // len(asked), 1)])
    is_ranked = np.zeros(m, np.bool_)
    is_ranked[ranked] = True
    rows = X[asked]
    entries = np.concatenate([np.arange(*X.indptr[u : u + 2]) for u in asked])
    wanted = hide[entries] & (known & is_ranked)[rows.indices] & (rows.data > 0)  # nobody asks for dislikes
    show = ~hide[entries] & known[rows.indices]
    hidden, shown = (only_entries(rows, part) for part in (wanted, show))
    able = np.flatnonzero((np.diff(hidden.indptr) > 0) & (np.diff(shown.indptr) > 0))
    if len(able) < FEWEST_ASKED:
        return None
    kept = np.repeat(np.isin(np.arange(len(asked)), able), np.diff(shown.indptr))
    features = None if data.features is None else data.features.of_used(data.used)
    shown = shown[able]
    return HeldOut(
        training[np.flatnonzero(had)], shown, shown[:, ranked], hidden[able][:, ranked], np.arange(len(able)),
        ranked, popularity, features, times[~after], times[entries][show][kept],
    )  # fmt: skip


def _held_out_users(data: Interactions, most_scores: int) -> HeldOut | None:
    """Hold out a tenth of the histories by hash, up to 4,000; None if there are too few users.

    Users with equal histories are held out together, and one of them is asked: otherwise the training data
    would hold the answer.
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
    # Hide known items that are ranked: a fifth of all that the user has, or as many as there are. Dislikes
    # are shown: nobody asks for them.
    histories = X[asked]
    can = known[histories.indices] & (histories.data > 0)
    fifth = np.clip((_HIDDEN * np.diff(histories.indptr)).astype(np.int64), 1, _MOST_HIDDEN)
    parts = []
    for time in range(int(np.clip(_QUICK_SCORES // max(len(asked) * len(ranked), 1), 1, _MOST_TIMES))):
        hide = np.zeros(histories.nnz, np.bool_)
        upto = [
            hidden_entries(only_entries(histories, can), of_row, of_item, times * fifth)
            for times in (time, time + 1)
        ]
        hide[can] = upto[1] & ~upto[0]
        hidden, shown = only_entries(histories, hide)[:, ranked], only_entries(histories, ~hide)
        able = np.flatnonzero((np.diff(hidden.indptr) > 0) & (np.diff(shown.indptr) > 0))
        parts.append((shown[able], hidden[able], able))
    shown, hidden = (sp.csr_array(sp.vstack(each)) for each in list(zip(*parts, strict=True))[:2])
    user = np.unique(np.concatenate([able for *_, able in parts]), return_inverse=True)[1]
    if not training.nnz or not len(user) or user.max() + 1 < FEWEST_ASKED:
        return None
    features = None if data.features is None else data.features.of_used(data.used)
    return HeldOut(training, shown, shown[:, ranked], hidden, user, ranked, popularity, features)


def choose_users(
    X: sp.csr_array, of_item: npt.NDArray[np.uint64], share: float = _SHARE
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the users to ask, one of each history that is held out, and who is trained on."""
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
