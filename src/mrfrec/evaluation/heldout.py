"""Hold out users by a hash of their ids: the same users, and the same of their items, every day.

A split that is drawn at random changes with every new user. This one does not, so that the results of two
days differ by changes in the data, and not by the draw of the users.
"""

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.interactions import Interactions, only
from mrfrec.errors import DataError
from mrfrec.evaluation.splits import FEWEST, Questions, Split, check_type, hidden_questions

_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial in the bytes of a text
_AT_ONCE = 1 << 20  # texts, so that a few bytes of working memory per byte of text are no concern

Hashes = npt.NDArray[np.uint64]


def by_hash(
    data: Interactions,
    heldout: float = 0.1,
    *,
    hidden: float = 0.2,
    most: int = 10_000,
    validation: bool = False,
) -> Split:
    """Hold out the users whose hash is below a limit, and hide some of their items.

    Parameters
    ----------
    heldout
        Share of the users with five items or more to hold out.
    hidden
        Share of each held-out user's items that are to be guessed, rounded down.
    most
        Hold out at most so many users, those with the lowest hashes.
    validation
        Hold out as many again, to tune on.
    """
    check_type("data", data, Interactions)
    limit = 0.5 if validation else 1.0
    heldout = check_number("heldout", heldout, f"above 0 and below {limit:g}", lambda x: 0 < x < limit)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    most = check_count("most", most)
    X = data.matrix
    long = np.flatnonzero(np.diff(X.indptr) >= FEWEST)
    hashes = hashed(data.users, long)
    long, hashes = long[np.argsort(hashes)], np.sort(hashes)
    ends = np.searchsorted(hashes, np.array([heldout, 2 * heldout]) * 2.0**64)
    parts = [np.sort(long[: ends[0]][:most])]
    if check_flag("validation", validation):
        parts.append(np.sort(long[ends[0] : ends[1]][:most]))
    trains = np.ones(data.n_users, np.bool_)
    trains[np.concatenate(parts)] = False
    trained = np.repeat(trains, np.diff(X.indptr))
    names = ("test", "validation")
    for name, part in zip(names, parts, strict=False):
        if not len(part) or not trained.any():
            raise DataError(
                f"{len(part):,} {name} users can be held out of {data.n_users:,}, of whom {len(long):,} have "
                f"{FEWEST} items or more. Hold out another share (heldout), or wait for more data."
            )
    training = Interactions(*only(X, data.users, data.items, data.titles, trained), copy=False)
    known = np.bincount(X.indices[trained], minlength=data.n_items) > 0
    found = [_questions(data, part, known, hidden) for part in parts]
    count = " + ".join(f"{len(part):,}" for part in parts)
    name = f"{count} users held out by hash"
    return Split(training, found[0], found[1] if validation else None, name, whole=data.size)


def _questions(
    data: Interactions, users: npt.NDArray[np.int64], known: npt.NDArray[np.bool_], hidden: float
) -> Questions:
    """Hide the items of each user whose hashes with the user are lowest."""
    shown = data.matrix[users][:, np.flatnonzero(known)]
    lengths = np.diff(shown.indptr)
    owner = np.repeat(np.arange(len(users)), lengths)
    of_user, of_item = hashed(data.users, users), hashed(data.items, np.flatnonzero(known))
    pair = _mixed(of_user[owner] + _BASE * of_item[shown.indices])
    order = np.lexsort((pair, owner))
    place = np.arange(len(owner)) - np.repeat(shown.indptr[:-1], lengths)  # within the user's items
    hide = np.empty(len(owner), np.bool_)
    hide[order] = place < np.where(lengths >= FEWEST, (hidden * lengths).astype(np.int64), 0)[owner]
    nothing = "there is nothing to ask the held-out users: raise hidden, or hold out more of them (heldout)."
    return hidden_questions(data.users.subset(users), shown, hide, nothing)


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


def _mixed(x: Hashes) -> Hashes:
    """Spread all bits over all bits, as splitmix64 does."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
