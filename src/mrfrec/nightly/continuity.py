"""Tell whether the events of a night have the users, items and columns of those published before."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.data.holdout import Hashes, hashed, hashed_pairs
from mrfrec.data.interactions import Interactions

_SAMPLED = 1_000  # users
_HASH = np.dtype("<u4")  # type of the hash of a pair in a report


def sample_of(data: Interactions) -> dict[str, str]:
    """Return hashes of one pair (user, item) for each of up to 1,000 users, for the report.

    The sample has the users with the lowest hashes, up to the hash `users_to`, and of each user the item with
    the lowest hash: tomorrow most of these pairs are in the data again, whoever joins.
    """
    hashes = hashed(data.users, np.arange(data.n_users))
    last = int(np.partition(hashes, min(_SAMPLED, len(hashes)) - 1)[:_SAMPLED].max())
    pairs, starts = _pairs_of(data, hashes, last)
    first = np.minimum.reduceat(pairs, starts)
    return {"users_to": f"{last:016x}", "pairs": first.tobytes().hex()}


def share_again(sample: Mapping[str, str], data: Interactions) -> float:
    """Return the share of the pairs of a sample that are in the data."""
    hashes = hashed(data.users, np.arange(data.n_users))
    pairs, _ = _pairs_of(data, hashes, int(sample["users_to"], 16))
    before = np.frombuffer(bytes.fromhex(sample["pairs"]), _HASH)
    return round(float(np.isin(before, pairs).mean()), 6)


def _pairs_of(
    data: Interactions, hashes: Hashes, last: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return hashes of all pairs of the users whose hash is at most `last`, and where each user begins."""
    lengths = np.diff(data.matrix.indptr)
    users = np.flatnonzero((hashes <= np.uint64(last)) & (lengths > 0))
    of_item = hashed(data.items, np.arange(data.n_items))
    pairs = hashed_pairs(data.matrix[users], hashes[users], of_item).astype(_HASH)
    return pairs, np.cumsum(lengths[users], dtype=np.int64) - lengths[users]


def columns_of(data: Interactions, *, is_batch: bool) -> dict[str, str]:
    """Return the column of each role, such as the times, that the events have and that tells something.

    Equal times of all events tell nothing. Those of a batch may be equal.
    """
    columns = {} if data.origin is None else dict(data.origin.columns)
    if data.times is None and not is_batch:
        columns.pop("time", None)
    return columns


def lost_columns(before: Mapping[str, Any], now: Mapping[str, str], *, has_items: bool) -> list[str]:
    """Return a message for each role that the published events had a column for and the new ones have not.

    Titles may have moved to the table of items (`has_items`).
    """
    lost = [role for role in before if role not in now and not (role == "title" and has_items)]
    return [
        f"the events have no {role}s any more, or only equal ones: those published had them in the column "
        f"{before[role]!r}"
        for role in lost
    ]
