"""Both sides of X, and rows of XᵀX (Eq. 4)."""

from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.intrinsics import prefetch


class Incidence(NamedTuple):
    """X from both sides: the items of each user, and the users of each item."""

    items: Any  # (nnz) uint32: the items of all users, user by user, ascending
    values: Any  # (nnz) float64, √w_u·x_uj; empty if all are 1
    item_ptr: Any  # (m+1) int64: item i has the entries item_ptr[i] to item_ptr[i+1] of `begin` and `rank`
    begin: Any  # (nnz) where the histories of the item's users begin in `items`, ascending
    rank: Any  # (nnz) uint32: number of that user's items before item i
    alike: bool  # whether the values of every user are all equal


class Scaling(NamedTuple):
    """S_ij = (XᵀX)_ij·a_i·a_j − g_i·g_j, per item."""

    a: Any  # 1/s, zero for items without variance
    g: Any  # √n·μ·a, zero if not centered
    by_g: Any  # items by |g|, descending


@kernel
def count_items(first, last, ptr, items, values, counts):
    """Count the entries of each item in rows first to last; entries with value 0 do not count."""
    for q in range(uint64(ptr[first]), uint64(ptr[last])):
        if len(values) == 0 or values[q] != 0:
            counts[items[q]] += 1


@kernel
def transpose(first, last, ptr, items, values, slot, out_rows, out_values):
    """Transpose rows first to last: write the row and the value of every entry to its item.

    Entries with value 0 are left out. Without values, write where the row begins and the index of the item in
    it. `slot` is where an item's next entry goes.
    """
    for u in range(uint64(first), uint64(last)):
        start = uint64(ptr[u])
        for q in range(start, uint64(ptr[u + 1])):
            if len(values) and values[q] == 0:
                continue
            i = items[q]
            t = uint64(slot[i])
            slot[i] += 1
            if len(values):
                out_rows[t], out_values[t] = u, values[q]
            else:
                out_rows[t], out_values[t] = start, q - start


@kernel
def weighted_sums(user_ptr, items, x, w, center, sums, squares, weights):
    """Compute Σ w·x, Σ w·(x − center)² and Σ w of each item over its users."""
    for u in range(uint64(len(w))):
        for q in range(uint64(user_ptr[u]), uint64(user_ptr[u + 1])):
            i = items[q]
            sums[i] += w[u] * x[q]
            squares[i] += w[u] * (x[q] - center[i]) ** 2
            weights[i] += w[u]


@kernel
def scale_users(user_ptr, factor, x):
    """Multiply each user's values by the user's factor, in place."""
    for u in range(len(factor)):
        for q in range(user_ptr[u], user_ptr[u + 1]):
            x[q] *= factor[u]


@kernel
def hash_columns(X, first, last, hashes):
    """Compute a hash of the users and values of items first to last."""
    prime = uint64(0x9E3779B97F4A7C15)
    for i in range(first, last):
        h = prime
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            h = (h ^ uint64(X.begin[t])) * prime
            h ^= h >> uint64(29)
            if not X.alike:
                value = X.values[uint64(X.begin[t]) + uint64(X.rank[t])]
                h = (h ^ np.float64(value).view(np.uint64)) * prime
                h ^= h >> uint64(32)
        hashes[i] = h


@inner
def _same_column(X, i, j):
    """Return whether two items have the same users with the same values."""
    p, q = X.item_ptr[i], X.item_ptr[j]
    length = X.item_ptr[i + 1] - p
    if X.item_ptr[j + 1] - q != length:
        return False
    for t in range(length):
        start = uint64(X.begin[p + t])
        if start != uint64(X.begin[q + t]):
            return False
        if not X.alike and X.values[start + uint64(X.rank[p + t])] != X.values[start + uint64(X.rank[q + t])]:
            return False
    return True


@kernel
def first_twins(X, hashes, by_hash, twin):
    """Set `twin` of each item, itself at first, to the first item with the same column.

    `by_hash` sorts the items by hash, then index.
    """
    for s in range(1, len(hashes)):
        i = by_hash[s]
        t = s - 1
        while t >= 0 and hashes[by_hash[t]] == hashes[i]:
            # The loop goes on only if different columns have the same hash, which is very rare.
            if _same_column(X, twin[by_hash[t]], i):
                twin[i] = twin[by_hash[t]]
                break
            t -= 1


AHEAD = 8  # Prefetch the items of users this far ahead.
_LINE = 64  # bytes of a cache line


@inner
def ask_for(array, first, count):
    """Prefetch `count` elements of an array, which may end beyond the array."""
    address = array.ctypes.data + array.itemsize * np.int64(first)
    stop = address + array.itemsize * np.int64(count)
    while address < stop:
        prefetch(address)
        address += _LINE


@inner
def add_firsts(X, counts, i, accumulator):
    """Add the values of the first items of each user of item i, times the user's value of i.

    `counts` says how many items per user. If these are the lengths of the histories, the result is row i of
    XᵀX; if they are X.rank, it is the row up to the diagonal. Histories are scattered over memory, so
    they are prefetched a few users ahead.
    """
    end = uint64(len(X.begin))
    binary = len(X.values) == 0
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        soon = t + uint64(AHEAD)
        if soon < end:
            ask_for(X.items, X.begin[soon], counts[soon])
            # Equal values need only the first; otherwise the user's value of item i is needed, too.
            if not binary:
                ask_for(X.values, X.begin[soon], 1 if X.alike else counts[soon] + 1)
        start, count = uint64(X.begin[t]), uint64(counts[t])
        if binary:
            for q in range(start, start + count):
                accumulator[X.items[q]] += 1
        elif X.alike:
            weight = X.values[start] * X.values[start]
            for q in range(start, start + count):
                accumulator[X.items[q]] += weight
        else:
            x = X.values[start + uint64(X.rank[t])]
            for q in range(start, start + count):
                accumulator[X.items[q]] += x * X.values[q]


@inner
def row_cost(X, counts, i):
    """Return how many additions `add_firsts` makes."""
    cost = 0
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        cost += counts[t]
    return cost


@inner
def clear_row(X, i, accumulator, cost):
    """Reset row i to zero up to its diagonal: only the items touched if they are few, otherwise all."""
    if cost > i // 8:
        for j in range(i):
            accumulator[j] = 0
        return
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        start = uint64(X.begin[t])
        for q in range(start, start + uint64(X.rank[t])):
            accumulator[X.items[q]] = 0


@kernel
def sum_rows(first, last, ptr, rows, values, weight, Z, out):
    """Write weight_u·Σ value·Z[row] over the rows of u into out[u], for u from first to last.

    Eight rows are added per round, so that the sums are read and written less often.
    """
    k, one = Z.shape[1], Z.dtype.type(1.0)
    binary = len(values) == 0
    for u in range(first, last):
        sums, t, stop = out[u], ptr[u], ptr[u + 1]
        for f in range(k):
            sums[f] = 0
        while binary and t + 8 <= stop:
            z0, z1, z2, z3 = Z[rows[t]], Z[rows[t + 1]], Z[rows[t + 2]], Z[rows[t + 3]]
            z4, z5, z6, z7 = Z[rows[t + 4]], Z[rows[t + 5]], Z[rows[t + 6]], Z[rows[t + 7]]
            for f in range(k):
                sums[f] += ((z0[f] + z1[f]) + (z2[f] + z3[f])) + ((z4[f] + z5[f]) + (z6[f] + z7[f]))
            t += 8
        while t < stop:
            x, z0 = one if binary else values[t], Z[rows[t]]
            for f in range(k):
                sums[f] += x * z0[f]
            t += 1
        for f in range(k):
            sums[f] *= weight[u]
