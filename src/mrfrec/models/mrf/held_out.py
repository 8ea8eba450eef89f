"""Users held out of the training data of an MRF, on whom its parameters are measured."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.heldout import FEWEST, hashed, hashed_rows, hidden_entries, only_entries
from mrfrec.data.interactions import Interactions

FEWEST_USERS, FEWEST_ASKED = 500, 20
MOST_SCORES = 200_000_000  # users × items that are ranked; with more items, a sample of them is
_QUICK_SCORES, _MOST_TIMES = 60_000_000, 5  # a user is asked several times where that takes no more scores
_SHARE, _MOST_USERS = 0.1, 4000  # of the users
_HIDDEN, _MOST_HIDDEN = 0.2, 500  # of each user's items


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
    """Hold out a tenth of the histories by hash, up to 4,000; None if there are too few users.

    Users with equal histories are held out together, and one of them is asked: otherwise the training data
    would hold the answer. `most_scores` bounds users × ranked items.
    """
    X, m = data.matrix, data.n_items
    if data.n_users < FEWEST_USERS:
        return None
    of_item = hashed(data.items, np.arange(m))
    asked, trains = _choose(X, of_item)
    training = X[np.flatnonzero(trains)]
    others = X[np.flatnonzero(~trains)]
    popularity = data.popularity - np.bincount(others.indices, minlength=m)
    of_row = hashed(data.users, asked)
    ranked = np.sort(np.argsort(of_item, kind="stable")[: max(most_scores // max(len(asked), 1), 1)])
    known = np.zeros(m, np.bool_)
    known[ranked] = popularity[ranked] > 0
    # Hide known items that are ranked: a fifth of all that the user has, or as many as there are.
    histories = X[asked]
    can = known[histories.indices]
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
    features = None if data.features is None else data.features.of_used(data.popularity)
    return HeldOut(training, shown, shown[:, ranked], hidden, user, ranked, popularity, features)


def _choose(
    X: sp.csr_array, of_item: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the users to ask, one of each history that is held out, and who is trained on."""
    long = np.flatnonzero(np.diff(X.indptr) >= FEWEST)
    hashes = hashed_rows(X, long, of_item)
    order = np.argsort(hashes, kind="stable")
    order = order[: np.searchsorted(hashes[order], np.uint64(_SHARE * 2.0**64))]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.diff(hashes[order]) != 0
    order = order[np.cumsum(is_first) <= _MOST_USERS]
    trains = np.ones(X.shape[0], np.bool_)
    trains[long[order]] = False
    return np.sort(long[order][is_first[: len(order)]]), trains
