"""§2.1: both sides of X, and rows of XᵀX."""

from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import kernel
from mrfrec.core.kernels.intrinsics import prefetch


class Incidence(NamedTuple):
    """X from both sides: the items of each user, and the users of each item."""

    user_ptr: Any  # (n+1) int64: user u's items are items[user_ptr[u]:user_ptr[u+1]]
    items: Any  # (nnz) uint32, ascending within a user
    values: Any  # (nnz) float64, √w_u·x_uj; empty where every entry is 1 and counts as 1
    item_ptr: Any  # (m+1) int64: item i's users are users[item_ptr[i]:item_ptr[i+1]]
    users: Any  # (nnz) uint32, ascending within an item
    rank: Any  # (nnz) uint32: how many of that user's items come before item i


class Scaling(NamedTuple):
    """S_ij = (XᵀX)_ij·a_i·a_j − g_i·g_j, per item."""

    a: Any  # 1/s, zero for items without variance
    g: Any  # √n·μ·a, zero if not centered
    by_g: Any  # items by |g|, descending


@kernel
def count_items(user_ptr, items, first_user, last_user, counts):
    """How often each item occurs among a range of users."""
    for q in range(uint64(user_ptr[first_user]), uint64(user_ptr[last_user])):
        counts[items[q]] += 1


@kernel
def transpose(user_ptr, items, first_user, last_user, slot, users, rank):
    """Write a range of users into the item side; `slot` is where each item's next user goes."""
    for u in range(uint64(first_user), uint64(last_user)):
        start = uint64(user_ptr[u])
        for q in range(start, uint64(user_ptr[u + 1])):
            i = items[q]
            t = uint64(slot[i])
            slot[i] += 1
            users[t] = u
            rank[t] = q - start


@kernel
def weighted_sums(user_ptr, items, x, w, center, sums, squares, weights):
    """Per item over its users: Σ w·x, Σ w·(x − center)² and Σ w."""
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
    """A number per item that is the same for items with the same users and values."""
    prime = uint64(0x9E3779B97F4A7C15)
    binary = len(X.values) == 0
    for i in range(first, last):
        h = prime
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            h = (h ^ uint64(X.users[t])) * prime
            h ^= h >> uint64(29)
            if not binary:
                value = X.values[uint64(X.user_ptr[X.users[t]]) + X.rank[t]]
                h = (h ^ np.float64(value).view(np.uint64)) * prime
                h ^= h >> uint64(32)
        hashes[i] = h


@kernel
def _same_column(X, i, j):
    """Whether two items have the same users with the same values."""
    p, q = X.item_ptr[i], X.item_ptr[j]
    length = X.item_ptr[i + 1] - p
    if X.item_ptr[j + 1] - q != length:
        return False
    for t in range(length):
        if X.users[p + t] != X.users[q + t]:
            return False
        if len(X.values):
            start = X.user_ptr[X.users[p + t]]
            if X.values[start + X.rank[p + t]] != X.values[start + X.rank[q + t]]:
                return False
    return True


@kernel
def first_twins(X, hashes, by_hash):
    """For each item, the first item with the same column; `by_hash` sorts the items by hash, then index."""
    m = len(hashes)
    twin = np.arange(m).astype(np.int32)
    for s in range(1, m):
        i = by_hash[s]
        t = s - 1
        while t >= 0 and hashes[by_hash[t]] == hashes[i]:
            # Only different columns of the same hash, which chance hardly ever makes, take a second step.
            if _same_column(X, twin[by_hash[t]], i):
                twin[i] = twin[by_hash[t]]
                break
            t -= 1
    return twin


_NEAR, _FAR = 6, 16  # how many users ahead their items, and where these begin, are asked for
_MOST_LINES = 16  # of a long history, as many cache lines as this; the hardware fetches the rest


@kernel
def add_row(X, i, prefix, accumulator):
    """Add row i of XᵀX to the accumulator; with `prefix`, only the items before i.

    Nearly all of the time would go to waiting for the histories, which lie all over memory: so they
    are asked for a few users ahead.
    """
    here, width = X.items.ctypes.data, X.items.itemsize
    step = 64 // width
    end = uint64(len(X.users))
    binary = len(X.values) == 0
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        if t + _FAR < end:
            prefetch(X.user_ptr.ctypes.data + 8 * X.users[t + _FAR])
        if t + _NEAR < end:
            near = X.users[t + _NEAR]
            start = X.user_ptr[near]
            stop = start + X.rank[t + _NEAR] if prefix else X.user_ptr[near + 1]
            for q in range(start, min(stop, start + _MOST_LINES * step), step):
                prefetch(here + q * width)
        u = X.users[t]
        start = X.user_ptr[u]
        stop = start + X.rank[t] if prefix else X.user_ptr[u + 1]
        if binary:
            for q in range(uint64(start), uint64(stop)):
                accumulator[X.items[q]] += 1
        else:
            x = X.values[uint64(start) + X.rank[t]]
            for q in range(uint64(start), uint64(stop)):
                accumulator[X.items[q]] += x * X.values[q]


@kernel
def row_cost(X, i, prefix):
    """How many additions `add_row` makes."""
    cost = 0
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        u = X.users[t]
        cost += X.rank[t] if prefix else X.user_ptr[u + 1] - X.user_ptr[u]
    return cost


@kernel
def clear_row(X, i, prefix, accumulator, cost):
    """Set back to zero what `add_row` touched: item by item if these are few, else the whole."""
    length = i if prefix else len(accumulator)
    if cost > length // 8:
        accumulator[:length] = 0
        return
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        u = X.users[t]
        start = X.user_ptr[u]
        stop = start + X.rank[t] if prefix else X.user_ptr[u + 1]
        for q in range(uint64(start), uint64(stop)):
            accumulator[X.items[q]] = 0
