"""Choose held-out users and items by hashes of their ids: the same every day, on every machine.

A random choice would change with every new user. By hash it does not, so that results of two days differ
because the data has changed, and not the choice.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.ids import Ids, Texts

FEWEST = 5  # items that a user needs to be held out
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial in the bytes of a text
_AT_ONCE = 1 << 20  # texts; hashing takes several times the memory of their bytes

Hashes = npt.NDArray[np.uint64]


def hashed(ids: Ids, positions: npt.NDArray[np.int64]) -> Hashes:
    """Return a hash of the ids at these positions, the same for 7 and "7"."""
    out = np.empty(len(positions), np.uint64)
    for start in range(0, len(positions), _AT_ONCE):
        part = positions[start : start + _AT_ONCE]
        texts = Texts.of(str(x) for x in ids.take(part))
        length = np.diff(texts.ptr)
        place = np.arange(len(texts.data)) - np.repeat(texts.ptr[:-1], length)
        powers = np.cumprod(np.full(length.max(initial=0) + 1, _BASE), dtype=np.uint64)
        total = np.zeros(len(texts.data) + 1, np.uint64)
        np.cumsum((texts.data + np.uint64(1)) * powers[place], out=total[1:])
        out[start : start + len(part)] = _mixed(total[texts.ptr[1:]] - total[texts.ptr[:-1]])
    return out


def by_lowest_hash(
    users: Ids, lengths: npt.NDArray[np.integer], share: float, most: int, parts: int = 1
) -> list[npt.NDArray[np.int64]]:
    """Choose users with at least `FEWEST` items by their hashes; return their positions, a list per part.

    Part p takes the users whose hashes lie from p·share to (p + 1)·share of their range, at most `most` of
    them, those with the lowest hashes.
    """
    candidates = np.flatnonzero(lengths >= FEWEST)
    hashes = hashed(users, candidates)
    candidates = candidates[np.argsort(hashes)]
    ends = np.searchsorted(np.sort(hashes), np.arange(parts + 1) * share * 2.0**64)
    return [np.sort(candidates[ends[i] : ends[i + 1]][:most]) for i in range(parts)]


def hashed_rows(X: sp.csr_array, rows: npt.NDArray[np.int64], of_item: Hashes) -> Hashes:
    """Return a hash of some rows of X, none of them empty: the same for rows of equal items.

    It is that of the number of items and of five of them, evenly spaced. Other rows that agree in these get
    the same hash.
    """
    last = np.diff(X.indptr)[rows].astype(np.int64) - 1
    out: Hashes = last.astype(np.uint64)
    for part in range(5):
        out = _mixed(out + _BASE * of_item[X.indices[X.indptr[rows] + part * last // 4]])
    return out


def hashed_pairs(X: sp.csr_array, of_user: Hashes, of_item: Hashes) -> Hashes:
    """Return a hash of the user and the item of each stored entry of X."""
    owner = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    return _mixed(of_user[owner] + _BASE * of_item[X.indices])


def hidden_entries(
    X: sp.csr_array, of_user: Hashes, of_item: Hashes, count: npt.NDArray[np.integer]
) -> npt.NDArray[np.bool_]:
    """Mark `count` entries of each row of X: those with the lowest hashes of user and item."""
    lengths = np.diff(X.indptr)
    owner = np.repeat(np.arange(X.shape[0]), lengths)
    order = np.lexsort((hashed_pairs(X, of_user, of_item), owner))
    place = np.arange(len(owner)) - np.repeat(X.indptr[:-1], lengths)  # within the user's items
    hide = np.empty(len(owner), np.bool_)
    hide[order] = place < count[owner]
    return hide


def only_entries(X: sp.csr_array, keep: npt.NDArray[np.bool_]) -> sp.csr_array:
    """Return a matrix of the same shape and types with some of the stored entries."""
    ptr = np.concatenate([[0], np.cumsum(keep)])[X.indptr].astype(X.indptr.dtype)
    return sp.csr_array((X.data[keep], X.indices[keep], ptr), shape=X.shape)


def _mixed(x: Hashes) -> Hashes:
    """Let every bit depend on every bit, as splitmix64 does."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
