"""Combine the rows of each user and item into the pairs of a matrix."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.ids import Ids, Places
from mrfrec.data.provenance import Sums, sums_of
from mrfrec.errors import DataError

_AT_ONCE = 1 << 19  # rows that are combined at one time, or a 16th of all if that is more


def combine_in_ranges(
    columns: dict[str, npt.NDArray[Any]], users: Ids, items: Ids, duplicates: str
) -> tuple[sp.csr_array, Sums, npt.NDArray[np.int64] | None]:
    """Combine rows as `combine` does, one range of users after the other; also return the latest times.

    Memory holds little more than the rows and the result. `columns` are "user", "item", "value" and, if the
    latest time of each pair is wanted, "time"; they are emptied.
    """
    user = columns["user"]
    is_binary = columns["value"].dtype == np.bool_
    shape = len(users), len(items)
    step = max(_AT_ONCE, len(user) // 16)
    ends = np.cumsum(np.bincount(user, minlength=len(users)))
    cuts = np.searchsorted(ends, np.arange(step, len(user), step)).tolist()
    # Room for as many pairs as rows: the system provides memory only where something is written.
    item = np.empty(len(user), np.int32)
    total = np.empty(len(user), np.float64)
    time = np.empty(len(user) if "time" in columns else 0, np.int64)
    indptr = np.zeros(len(users) + 1, np.int64)
    sums: list[Sums] = []
    done = 0
    for start, stop in pairwise(sorted({0, *cuts, len(users)})):
        rows = np.flatnonzero((user >= start) & (user < stop))
        part = {role: column[rows] for role, column in columns.items()}
        matrix, range_sums = combine(part["user"], part["item"], part["value"], users, items, duplicates)
        pairs = slice(done, done := done + matrix.nnz)
        item[pairs] = matrix.indices
        indptr[1:] += matrix.indptr[1:]
        if not is_binary:
            total[pairs] = matrix.data if range_sums.values is None else range_sums.values
        if "time" in part:
            time[pairs] = last_times(part["user"], part["item"], part["time"], matrix)
        sums.append(range_sums._replace(values=None))
    columns.clear()
    del user, part, rows
    for array in (item, total, time):
        array.resize(min(done, len(array)), refcheck=False)
    data = np.ones(done, np.bool_) if is_binary else total.astype(np.float32)
    bound = max(one.bound for one in sums)
    grains = [one.grain for one in sums if one.grain is not None]
    joined = Sums(None, min(grains) if len(grains) == len(sums) else None, bound)
    if not joined.are_exact:
        joined = Sums(None, None)
    elif duplicates == "sum" and not is_binary:
        joined = joined._replace(values=total).shortened(data)
    kind = np.int32 if done < 2**31 else np.int64
    matrix = sp.csr_array((data, item, indptr.astype(kind)), shape=shape)
    return matrix, joined, time if len(time) else None


def combine(
    rows: Places, columns: Places, data: npt.NDArray[Any], users: Ids, items: Ids, duplicates: str
) -> tuple[sp.csr_array, Sums]:
    """Build a matrix of users × items from rows; also return the exact sums, to which more can be added.

    `duplicates` is how several rows of a pair are combined: by the "sum", "max", "last" or "first" of their
    values, or not at all, "error". "max" and "first" pass over values of 0. Pairs with a value of 0 stay, as
    stored zeros. `data` holds values in single precision, or only True if every pair counts 1.
    """
    shape = (len(users), len(items))
    counts_pairs = data.dtype == np.bool_
    if duplicates in ("max", "last", "first") and not counts_pairs:
        chosen = _row_of_each_pair(rows.astype(np.int64) * shape[1] + columns, data, duplicates)
        rows, columns, data = rows[chosen], columns[chosen], data[chosen]
    adds = duplicates == "sum" and not counts_pairs
    wide = data.astype(np.float64) if adds else data
    matrix = sp.coo_array((wide, (rows, columns)), shape=shape).tocsr()
    if duplicates == "error" and matrix.nnz < len(rows):
        pair = np.sort(rows.astype(np.int64) * shape[1] + columns)
        u, i = divmod(int(pair[1:][pair[1:] == pair[:-1]][0]), shape[1])
        raise DataError(
            f"some rows repeat an earlier pair, such as user {users[u]!r} and item {items[i]!r}. Combine "
            'them with duplicates="sum", "max", "last" or "first".'
        )
    if not adds:
        return matrix, Sums()
    # The order of the rows must not matter. Double precision holds most sums exactly; if not, the values of
    # each pair are added in a fixed order.
    sizes = matrix.data
    if data.min() < 0:
        sizes = sp.coo_array((np.abs(wide), (rows, columns)), shape=shape).tocsr().data
    total = matrix.data
    sums = sums_of(data, float(sizes.max()))
    if sums.are_exact:
        sums = sums._replace(values=total)
    else:
        order = np.lexsort((data, columns, rows))
        ordered = rows[order], columns[order]
        new = np.append(True, (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1]))
        total = np.add.reduceat(data[order], np.flatnonzero(new), dtype=np.float64)
        sums = Sums(None, None)
    with np.errstate(over="ignore"):
        matrix = sp.csr_array((total.astype(np.float32), matrix.indices, matrix.indptr), shape=shape)
    if not np.isfinite(matrix.data).all():
        place = np.flatnonzero(~np.isfinite(matrix.data))[0]
        user = int(np.searchsorted(matrix.indptr, place, "right")) - 1
        raise DataError(
            f"the values of user {users[user]!r} and item {items[matrix.indices[place]]!r} add up to "
            "more than single precision holds. Scale them."
        )
    return matrix, sums.shortened(matrix.data)


def last_times(
    rows: Places, columns: Places, times: npt.NDArray[np.int64], matrix: sp.csr_array
) -> npt.NDArray[np.int64]:
    """Return the latest time of each pair that `combine` has stored in the matrix."""
    if matrix.nnz == len(rows):  # no pair repeats: this takes a fraction of the time of sorting
        return np.asarray(sp.coo_array((times, (rows, columns)), shape=matrix.shape).tocsr().data)
    pair = rows.astype(np.int64) * matrix.shape[1] + columns
    order = np.argsort(pair, kind="stable")
    first = np.flatnonzero(np.append(True, pair[order[1:]] != pair[order[:-1]]))
    return np.asarray(np.maximum.reduceat(times[order], first))


def _row_of_each_pair(
    pair: npt.NDArray[np.int64], data: npt.NDArray[Any], duplicates: str
) -> npt.NDArray[np.int64]:
    """Return the row that counts for each pair, in ascending order of the pairs."""
    if duplicates == "last":
        _, last = np.unique(pair[::-1], return_index=True)
        return np.asarray(len(pair) - 1 - last)
    preference = data if duplicates == "max" else -np.arange(len(pair))
    order = np.lexsort((preference, data != 0, pair))
    return np.asarray(order[np.append(pair[order[1:]] != pair[order[:-1]], True)])
