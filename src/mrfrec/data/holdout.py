"""Hold out a part of the data: what to train on, what to show of some users, and what to ask them about.

Users and items are chosen by a cut in time or by hashes of their ids. A random choice would change with every
new user; a hash does not, so that the results of two days differ only because the data has changed.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.ages import Times, steps_from_end
from mrfrec.data.ids import Ids, Indices, Texts

FEWEST = 5  # items that a user needs to be held out
_BASE = np.uint64(0x9E3779B97F4A7C15)  # base of the polynomial in the bytes of a text
_AT_ONCE = 1 << 20  # texts; hashing takes several times the memory of their bytes

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


class HoldOut(NamedTuple):
    """Three masks over the stored entries of a matrix of users × items, and the rows of the users to ask."""

    training: Mask
    shown: Mask
    hidden: Mask
    users: npt.NDArray[np.int64]  # in ascending order


def hold_out(X: sp.csr_array, training: Mask, hide: Mask, known: Mask | None = None) -> HoldOut:
    """Ask the users of X about the entries to hide, and show them the entries that are not hidden.

    Both have to be of known items, by default the items of the training entries. A hidden entry with a value
    of 0 or below, a dislike, is not asked about. A user is asked who has an entry to guess and one to show.
    """
    if known is None:
        known = has_items(X, training)
    is_known = known[X.indices]
    shown, hidden = ~hide & is_known, hide & is_known & (X.data > 0)
    owner = owners(X)
    has_shown, has_hidden = (np.bincount(owner[part], minlength=X.shape[0]) > 0 for part in (shown, hidden))
    return HoldOut(training, shown, hidden, np.flatnonzero(has_shown & has_hidden))


def hidden_after(X: sp.csr_array, times: Times, cut: int, *, odd_hidden: bool) -> tuple[Mask, Mask]:
    """Return the entries to hide where training ends at a cut in time, and which users were there before it.

    These are asked about all that they have at the cut or later. New users are asked in the middle of their
    visit: the later half of their times is hidden. Of an odd number of times the middle one is hidden if
    `odd_hidden`, else shown. Entries of one time are never divided.
    """
    owner, after = owners(X), times >= cut
    was_there = np.bincount(owner[~after], minlength=X.shape[0]) > 0
    step = steps_from_end(X.indptr, times)
    steps = np.zeros(X.shape[0], np.int64)
    np.maximum.at(steps, owner, step + 1)
    late = np.where(steps > 1, (steps + odd_hidden) // 2, 0)
    return after & (was_there[owner] | (step < late[owner])), was_there


def hidden_by_hash(X: sp.csr_array, of_user: Hashes, of_item: Hashes, count: Indices) -> Mask:
    """Return the entries to hide: of each row of X `count`, those with the lowest hashes of user and item."""
    lengths = np.diff(X.indptr)
    owner = owners(X)
    order = np.lexsort((hashed_pairs(X, of_user, of_item), owner))
    index = np.arange(len(owner)) - np.repeat(X.indptr[:-1], lengths)  # within the user's items
    hide = np.empty(len(owner), np.bool_)
    hide[order] = index < count[owner]
    return hide


def has_items(X: sp.csr_array, entries: Mask) -> Mask:
    """Return a mask of the columns that have some of the entries."""
    return np.asarray(np.bincount(X.indices[entries], minlength=X.shape[1]) > 0)


def owners(X: sp.csr_array) -> npt.NDArray[np.int32]:
    """Return the row of each stored entry."""
    return np.repeat(np.arange(X.shape[0], dtype=np.int32), np.diff(X.indptr))


def only_entries(X: sp.csr_array, keep: Mask) -> sp.csr_array:
    """Return a matrix of the same shape and types with some of the stored entries."""
    ptr = np.concatenate([[0], np.cumsum(keep)])[X.indptr].astype(X.indptr.dtype)
    return sp.csr_array((X.data[keep], X.indices[keep], ptr), shape=X.shape)


def hashed(ids: Ids, indices: npt.NDArray[np.int64]) -> Hashes:
    """Return a hash of the ids at these indices; 7 and "7" have the same."""
    out = np.empty(len(indices), np.uint64)
    for start in range(0, len(indices), _AT_ONCE):
        part = indices[start : start + _AT_ONCE]
        texts = Texts.of(str(x) for x in ids.take(part))
        length = np.diff(texts.ptr)
        index = np.arange(len(texts.data)) - np.repeat(texts.ptr[:-1], length)
        powers = np.cumprod(np.full(length.max(initial=0) + 1, _BASE), dtype=np.uint64)
        total = np.zeros(len(texts.data) + 1, np.uint64)
        np.cumsum((texts.data + np.uint64(1)) * powers[index], out=total[1:])
        out[start : start + len(part)] = _mixed(total[texts.ptr[1:]] - total[texts.ptr[:-1]])
    return out


def hashed_rows(X: sp.csr_array, rows: npt.NDArray[np.int64], of_item: Hashes) -> Hashes:
    """Return a hash of some rows of X, none of them empty; rows with equal items have the same.

    The hash covers the number of items and five of them, evenly spaced. Rows that agree in these have the
    same hash although they differ elsewhere.
    """
    last = np.diff(X.indptr)[rows].astype(np.int64) - 1
    out: Hashes = last.astype(np.uint64)
    for part in range(5):
        out = _mixed(out + _BASE * of_item[X.indices[X.indptr[rows] + part * last // 4]])
    return out


def hashed_pairs(X: sp.csr_array, of_user: Hashes, of_item: Hashes) -> Hashes:
    """Return a hash of the user and the item of each stored entry of X."""
    return _mixed(of_user[owners(X)] + _BASE * of_item[X.indices])


def _mixed(x: Hashes) -> Hashes:
    """Let every bit depend on every bit, as splitmix64 does."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
