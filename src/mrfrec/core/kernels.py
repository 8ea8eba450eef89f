"""The compiled inner loops. Private: they take arrays, check nothing, and hold no Python objects.

The only file with `@njit`. Kernels release the interpreter's lock and are called from several threads
(`resources.Workers`); each call writes to its own part of the output. Integers used as indices are
unsigned where the loop is hot: numba then skips the test for negative indices, a third of the time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, uint64

from mrfrec.core.intrinsics import fortran, prefetch


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile without the lock, and keep the machine code on disk where some folder can be written."""
    try:
        return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no folder for its cache (read-only installation, no home)
        return njit(nogil=True)(function)  # type: ignore[no-any-return]


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


# ── §2.1  statistics ──────────────────────────────────────────────────────────────────────────────


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
def _row(X, i, prefix, accumulator):
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
def _row_cost(X, i, prefix):
    """How many additions `_row` makes."""
    cost = 0
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        u = X.users[t]
        cost += X.rank[t] if prefix else X.user_ptr[u + 1] - X.user_ptr[u]
    return cost


@kernel
def _clear(X, i, prefix, accumulator, cost):
    """Set back to zero what `_row` touched: item by item if these are few, else the whole."""
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


@kernel
def dense_rows(X, scaling, diagonal, first, last, accumulator, S):
    """Rows of the lower triangle of S, diagonal included."""
    a, g = scaling.a, scaling.g
    for i in range(first, last):
        _row(X, i, True, accumulator)
        ai, gi = a[i], g[i]
        for j in range(i):
            S[i, j] = accumulator[j] * (ai * a[j]) - gi * g[j]
            accumulator[j] = 0
        S[i, i] = diagonal[i]


# ── §3.1  pattern ─────────────────────────────────────────────────────────────────────────────────


@kernel
def row_entries(
    X, scaling, rows, start, prefix, threshold, histogram, shift, accumulator, magnitudes, counts, items, sizes
):
    """The entries of rows of S with |S| > threshold: `counts` of them a row, one row after the other.

    With `prefix`, only the entries before the diagonal. Stops before a row for which the room left might
    not do, and returns its place in `rows`. With no room at all (`items` is empty) it only counts, in
    `histogram`, where magnitudes that share all but their last `shift` bits share a bin.
    """
    m = len(X.item_ptr) - 1
    a, g, by_g = scaling.a, scaling.g, scaling.by_g
    keep, tally = len(items) > 0, len(histogram) > 0
    written = 0
    for place in range(start, len(rows)):
        i = rows[place]
        length = i if prefix else m
        if keep and written + length > len(items):
            return place
        counts[place] = 0
        ai, gi = a[i], g[i]
        if ai == 0.0:
            continue
        cost = _row_cost(X, i, prefix)
        _row(X, i, prefix, accumulator)
        accumulator[i] = 0

        # Pairs without a common user have |S| = |g_i·g_j|: those that pass come first in by_g.
        unused = 0
        while 2 * cost + unused < length:
            if np.float32(abs(gi * g[by_g[unused]])) <= threshold:
                break
            unused += 1

        found = 0
        if 2 * cost + unused < length:  # few items touched: visit these alone
            for s in range(unused):
                j = by_g[s]
                if j < length and j != i and accumulator[j] == 0:
                    magnitudes[found] = abs(gi * g[j])
                    if keep:
                        items[written + found] = j
                    found += 1
            for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
                u = X.users[t]
                first = X.user_ptr[u]
                last = first + X.rank[t] if prefix else X.user_ptr[u + 1]
                for q in range(uint64(first), uint64(last)):
                    j = X.items[q]
                    if accumulator[j] != 0:
                        size = np.float32(abs(accumulator[j] * (ai * a[j]) - gi * g[j]))
                        accumulator[j] = 0
                        if size > threshold:
                            magnitudes[found] = size
                            if keep:
                                items[written + found] = j
                            found += 1
        else:
            for j in range(length):
                magnitudes[j] = abs(accumulator[j] * (ai * a[j]) - gi * g[j])
                accumulator[j] = 0
            if not prefix:
                magnitudes[i] = 0.0
            for j in range(length):
                if magnitudes[j] > threshold:
                    magnitudes[found] = magnitudes[j]
                    if keep:
                        items[written + found] = j
                    found += 1

        if tally:
            for s in range(found):
                histogram[np.float32(magnitudes[s]).view(np.uint32) >> np.uint32(shift)] += 1
        if keep:
            sizes[written : written + found] = magnitudes[:found]
            written += found
        counts[place] = found
    return len(rows)


@kernel
def count_directed(rows, counts, items, column_counts):
    """How many of these pairs each column gets: every pair goes to both of its items."""
    t = 0
    for place in range(len(rows)):
        column_counts[rows[place]] += counts[place]
        for _ in range(counts[place]):
            column_counts[items[t]] += 1
            t += 1


@kernel
def _key(i, j, m, size):
    """Orders the neighbours j of i: by magnitude, then the nearer in cyclic order."""
    distance = j - i if j > i else j - i + m
    return (uint64(np.float32(size).view(np.uint32)) << uint64(32)) | (uint64(0xFFFFFFFF) - uint64(distance))


@kernel
def fill_directed(rows, counts, items, sizes, m, slot, keys):
    """Write these pairs into the columns of both items, at `slot`."""
    t = 0
    for place in range(len(rows)):
        i = rows[place]
        for _ in range(counts[place]):
            j, size = np.int64(items[t]), sizes[t]
            keys[slot[i]] = _key(i, j, m, size)
            slot[i] += 1
            keys[slot[j]] = _key(j, i, m, size)
            slot[j] += 1
            t += 1


@kernel
def settle_columns(first, last, most, key_ptr, keys, old_ptr, old_items, old_sizes, new_ptr, new_items, new_sizes):
    """Each column's largest entries, `most` of them, largest first, out of the old ones and the new."""
    m = len(key_ptr) - 1
    for i in range(first, last):
        old = old_ptr[i + 1] - old_ptr[i]
        fresh = key_ptr[i + 1] - key_ptr[i]
        every = np.empty(old + fresh, np.uint64)
        for s in range(old):
            every[s] = _key(i, np.int64(old_items[old_ptr[i] + s]), m, old_sizes[old_ptr[i] + s])
        every[old:] = keys[key_ptr[i] : key_ptr[i + 1]]
        if len(every) > most:
            every = np.partition(every, len(every) - most)[len(every) - most :]
        every = np.sort(every)
        t = new_ptr[i]
        for s in range(len(every) - 1, -1, -1):
            j = i + np.int64(uint64(0xFFFFFFFF) - (every[s] & uint64(0xFFFFFFFF)))
            new_items[t] = j if j < m else j - m
            new_sizes[t] = np.uint32(every[s] >> uint64(32)).view(np.float32)
            t += 1


@kernel
def kept_per_column(column_ptr, sizes, threshold):
    """How many of each column's entries, largest first, pass a higher threshold."""
    kept = np.zeros(len(column_ptr) - 1, np.int64)
    for i in range(len(kept)):
        for t in range(column_ptr[i], column_ptr[i + 1]):
            if sizes[t] <= threshold:
                break
            kept[i] += 1
    return kept


# ── §3.2  schedule and blocks ─────────────────────────────────────────────────────────────────────


@kernel
def greedy_schedule(order, column_ptr, neighbors, r):
    """Steps 1, 2 and 4: the items S that head a block, and |D| for each."""
    m = len(order)
    heads = np.empty(m, np.int32)
    sizes = np.empty(m, np.int64)
    left = np.ones(m, np.bool_)
    blocks = 0
    for i in order:
        if not left[i]:
            continue
        start = column_ptr[i]
        extra = int(np.rint(r * (column_ptr[i + 1] - start)))
        left[i] = False
        for t in range(start, start + extra):
            left[neighbors[t]] = False
        heads[blocks] = i
        sizes[blocks] = 1 + extra
        blocks += 1
    return heads[:blocks].copy(), sizes[:blocks].copy()


@kernel
def list_dependents(heads, dependent_ptr, column_ptr, neighbors, dependents):
    """D of each block, ascending."""
    for b in range(len(heads)):
        start, stop = dependent_ptr[b], dependent_ptr[b + 1]
        source = column_ptr[heads[b]]
        dependents[start] = heads[b]
        dependents[start + 1 : stop] = neighbors[source : source + stop - start - 1]
        dependents[start:stop] = np.sort(dependents[start:stop])


@kernel
def sort_columns(column_ptr, neighbors, first, last):
    """Ascending rows in each column, in place."""
    for i in range(first, last):
        neighbors[column_ptr[i] : column_ptr[i + 1]] = np.sort(neighbors[column_ptr[i] : column_ptr[i + 1]])


@kernel
def columns_with_diagonal(column_ptr, columns, items, out_ptr, out):
    """The columns of some items, N(i) ∪ {i}, ascending."""
    for c in range(len(items)):
        i = items[c]
        slot = out_ptr[c]
        placed = False
        for t in range(column_ptr[i], column_ptr[i + 1]):
            if not placed and columns[t] > i:
                out[slot] = i
                slot += 1
                placed = True
            out[slot] = columns[t]
            slot += 1
        if not placed:
            out[slot] = i


@kernel
def distinct_sizes(first, last, column_ptr, columns, heads, dependent_ptr, dependents, twin, distinct, targets):
    """How many different items a block has, and how many of them its dependents are."""
    for b in range(first, last):
        i = heads[b]
        start, stop = column_ptr[i], column_ptr[i + 1]
        of_block = np.empty(stop - start + 1, np.int32)
        for t in range(start, stop):
            of_block[t - start] = twin[columns[t]]
        of_block[stop - start] = twin[i]
        distinct[b] = _count_different(of_block)
        of_targets = np.empty(dependent_ptr[b + 1] - dependent_ptr[b], np.int32)
        for t in range(len(of_targets)):
            of_targets[t] = twin[dependents[dependent_ptr[b] + t]]
        targets[b] = _count_different(of_targets)


@kernel
def _count_different(numbers):
    ordered = np.sort(numbers)
    count = 1
    for t in range(1, len(ordered)):
        if ordered[t] != ordered[t - 1]:
            count += 1
    return count


class Batch(NamedTuple):
    """Blocks that are solved together. Identical items of a block are solved as one: its *kinds*."""

    member_ptr: Any  # block b's items are members[member_ptr[b]:member_ptr[b+1]], ascending
    members: Any
    member_kind: Any  # which of the block's kinds each item is
    kind_ptr: Any  # its kinds: the first twin of each, ascending
    kinds: Any
    copies: Any  # items of this kind in the block
    target: Any  # the kind's row among the block's estimates, −1 if no dependent is of this kind
    dependent_ptr: Any
    dependents: Any  # D, ascending
    store_ptr: Any  # where the block's part of S, later its estimates, lies


@kernel
def find_kinds(batch, twin, first, last):
    """Fill in member_kind, kinds, copies and target."""
    for b in range(first, last):
        start, stop = batch.member_ptr[b], batch.member_ptr[b + 1]
        base, K = batch.kind_ptr[b], batch.kind_ptr[b + 1] - batch.kind_ptr[b]
        twins = np.empty(stop - start, np.int32)
        for t in range(stop - start):
            twins[t] = twin[batch.members[start + t]]
        ordered = np.sort(twins)
        place = -1
        for t in range(len(ordered)):
            if t == 0 or ordered[t] != ordered[t - 1]:
                place += 1
                batch.kinds[base + place] = ordered[t]
                batch.copies[base + place] = 0
                batch.target[base + place] = -1
            batch.copies[base + place] += 1
        kinds = batch.kinds[base : base + K]
        for t in range(stop - start):
            straight = K == stop - start and kinds[t] == twins[t]
            batch.member_kind[start + t] = t if straight else np.searchsorted(kinds, twins[t])
        for t in range(batch.dependent_ptr[b], batch.dependent_ptr[b + 1]):
            batch.target[base + np.searchsorted(kinds, twin[batch.dependents[t]])] = 0
        row = 0
        for t in range(base, base + K):
            if batch.target[t] == 0:
                batch.target[t] = row
                row += 1


@kernel
def memberships(batch, m):
    """For each item, the blocks in which it stands for a kind, and its place there."""
    item_ptr = np.zeros(m + 1, np.int64)
    for j in batch.kinds:
        item_ptr[j + 1] += 1
    for j in range(m):
        item_ptr[j + 1] += item_ptr[j]
    slot = item_ptr[:-1].copy()
    block = np.empty(len(batch.kinds), np.int32)
    place = np.empty(len(batch.kinds), np.int32)
    for b in range(len(batch.kind_ptr) - 1):
        for t in range(batch.kind_ptr[b], batch.kind_ptr[b + 1]):
            s = slot[batch.kinds[t]]
            slot[batch.kinds[t]] += 1
            block[s] = b
            place[s] = t - batch.kind_ptr[b]
    return item_ptr, block, place


@kernel
def gather(X, scaling, first, last, item_ptr, block, place, batch, store, accumulator, row):
    """Rows of S into the blocks that hold the item: the strict lower triangle of each, row by row."""
    a, g = scaling.a, scaling.g
    for i in range(first, last):
        wanted = 0
        for s in range(item_ptr[i], item_ptr[i + 1]):
            wanted += place[s]
        if wanted == 0:
            continue
        cost = _row_cost(X, i, True)
        _row(X, i, True, accumulator)
        ai, gi = a[i], g[i]
        whole = wanted > i // 2  # then it is cheaper to compute the row of S once
        if whole:
            for j in range(i):
                row[j] = accumulator[j] * (ai * a[j]) - gi * g[j]
                accumulator[j] = 0
        for s in range(uint64(item_ptr[i]), uint64(item_ptr[i + 1])):
            b = block[s]
            length = uint64(place[s])
            source = uint64(batch.kind_ptr[b])
            target = uint64(batch.store_ptr[b]) + length * (length - uint64(1)) // uint64(2)
            if whole:
                for t in range(length):
                    store[target + t] = row[uint64(batch.kinds[source + t])]
            else:
                for t in range(length):
                    j = uint64(batch.kinds[source + t])
                    store[target + t] = accumulator[j] * (ai * a[j]) - gi * g[j]
        if not whole:
            _clear(X, i, True, accumulator, cost)


@kernel
def solve_blocks(lapack, blocks, batch, diagonal, ridge, store, work):
    """Step 3. Turns each block's part of S into its estimates: columns of B' for the kinds in D.

    A kind with c copies and ridge λ enters once, with ridge λ/c: for R = (S + λ/c)⁻¹ over the kinds, the
    inverse over the items is  C_ab = R_gh/(c_g·c_h)  between kinds g ≠ h, and within a kind
    C_ab = R_gg/c² − 1/(λc)  plus 1/λ where a = b  (Woodbury's identity). Then B'_ba = −C_ba/C_aa.

    With the conditioners first and the targets T last, S + λ/c = L·Lᵀ gives the columns T of R without the
    others:  R_TT = (L_TT·L_TTᵀ)⁻¹,  R_CT = −L_CC⁻ᵀ·L_TCᵀ·R_TT;  one triangular solve for a single target.

    Returns the block that is not positive definite, or −1.
    """
    one, zero = store.dtype.type(1.0), store.dtype.type(0.0)
    lower, right, left, transposed, plain = ord("L"), ord("R"), ord("L"), ord("T"), ord("N")
    info = np.zeros(1, np.int32)
    for b in blocks:
        if batch.member_ptr[b + 1] - batch.member_ptr[b] < 2:
            continue
        base = batch.kind_ptr[b]
        k = batch.kind_ptr[b + 1] - base
        kinds = batch.kinds[base : base + k]
        copies = batch.copies[base : base + k]
        target = batch.target[base : base + k]
        d = 0
        for t in range(k):
            if target[t] >= 0:
                d += 1
        c = k - d

        # Where each kind stands in the matrix: conditioners from the front, targets behind them.
        at = np.empty(k, np.int64)
        conditioners = 0
        for t in range(k):
            if target[t] >= 0:
                at[t] = c + target[t]
            else:
                at[t] = conditioners
                conditioners += 1

        # The lower triangle, column-major, from the packed rows.
        L = work[: k * k]
        source = batch.store_ptr[b]
        for t in range(k):
            p = at[t]
            for s in range(t):
                q = at[s]
                L[q * k + p if p > q else p * k + q] = store[source + s]
            source += t
            if copies[t] > 1 and ridge[kinds[t]] == 0.0:
                return b
            L[p * k + p] = diagonal[kinds[t]] + ridge[kinds[t]] / copies[t]

        fortran(lapack.potrf, (lower, k, L, k, info))
        if info[0] != 0:
            return b
        if d == 1:
            last = L[k * k - 1]
            L[k * k - 1] = one / (last * last)
            x = L[c * k :]  # the column above: R_CT/R_TT with its sign turned
            for s in range(c):
                x[s] = L[s * k + c]
            if c > 0:
                fortran(lapack.trsv, (lower, transposed, plain, c, L, k, x, 1))
            for s in range(c):
                x[s] *= L[k * k - 1]
        else:
            fortran(lapack.potri, (lower, d, L[c * k + c :], k, info))
            if info[0] != 0:
                return b
            if c > 0:
                L_TC = work[k * k :]  # transposed, c × d, column-major
                for s in range(c):
                    for t in range(d):
                        L_TC[t * c + s] = L[s * k + c + t]
                # The factor's unused corner takes the product.
                fortran(lapack.symm, (right, lower, c, d, one, L[c * k + c :], k, L_TC, c, zero, L[c * k :], k))
                fortran(lapack.trsm, (left, lower, transposed, plain, c, d, one, L, k, L[c * k :], k))

        # Column at[t] of L now holds −R_CT above its diagonal, R_TT from there on (lower triangle).
        for t in range(k):
            if target[t] < 0:
                continue
            i = at[t]
            n = store.dtype.type(copies[t])
            R = L[i * k + i]
            within = zero
            C = R
            if copies[t] > 1:
                per_copy = one / (store.dtype.type(ridge[kinds[t]]) * n)
                within = R / (n * n) - per_copy
                C = within + per_copy * n
            row = batch.store_ptr[b] + target[t] * k
            for s in range(k):
                j = at[s]
                if j < c:
                    store[row + s] = L[i * k + j] / (n * copies[s] * C)
                elif j == i:
                    store[row + s] = -within / C
                else:
                    store[row + s] = -L[i * k + j if j > i else j * k + i] / (n * copies[s] * C)
    return -1


@kernel
def add_estimates(first, last, column_ptr, columns, batch, store, total, count, kind_of):
    """Add the estimates of a batch to the entries of A they belong to, for a range of columns, block by block.

    `kind_of` is −1 throughout, before and after.
    """
    for b in range(len(batch.member_ptr) - 1):
        start, stop = batch.member_ptr[b], batch.member_ptr[b + 1]
        D = batch.dependents[batch.dependent_ptr[b] : batch.dependent_ptr[b + 1]]
        if stop - start < 2 or D[-1] < first or D[0] >= last:
            continue
        p, q = np.searchsorted(D, first), np.searchsorted(D, last)
        if p == q:
            continue
        base, k = batch.kind_ptr[b], batch.kind_ptr[b + 1] - batch.kind_ptr[b]
        for t in range(start, stop):
            kind_of[batch.members[t]] = batch.member_kind[t]
        for s in range(p, q):
            i = D[s]
            row = batch.store_ptr[b] + batch.target[base + kind_of[i]] * k
            for t in range(uint64(column_ptr[i]), uint64(column_ptr[i + 1])):
                kind = kind_of[uint64(columns[t])]
                if kind >= 0:
                    total[t] += store[row + kind]
                    count[t] += 1
        for t in range(start, stop):
            kind_of[batch.members[t]] = -1


@kernel
def average_and_rescale(first, last, column_ptr, columns, scale, a, total, count):
    """B = dMat(1/s)·B'·dMat(s), where B' is the average of the estimates."""
    for i in range(first, last):
        for t in range(column_ptr[i], column_ptr[i + 1]):
            if count[t]:
                total[t] *= scale[i] * a[columns[t]] / count[t]


# ── Eq. 4  the closed form, in tiles of a row-major matrix whose lower triangle is in use ──────────
#
# BLAS is column-major: a row-major product C = A·B is the column-major product Cᵀ = Bᵀ·Aᵀ, and a
# row-major lower triangle L is the column-major upper triangle Lᵀ. Every routine sees one tile's worth
# of rows at most, so no index inside BLAS comes near 2³¹, however many items there are.

_L, _R, _U, _N, _T = ord("L"), ord("R"), ord("U"), ord("N"), ord("T")


@kernel
def factor_update(lapack, A, k0, k1, i0, i1):
    """A[i, k] −= L[i, :k]·L[k, :k]ᵀ."""
    m, one = A.shape[0], A.dtype.type(1.0)
    if k0 > 0:
        fortran(lapack.gemm, (_T, _N, k1 - k0, i1 - i0, k0, -one, A[k0:], m, A[i0:], m, one, A[i0:, k0:], m))


@kernel
def factor_diagonal(lapack, A, k0, k1, pair_end):
    """L[k, k] = the Cholesky factor of A[k, k]. False if there is none.

    Zeros take the place of what is above the diagonal, up to the end of the pair of tiles this one is in:
    a product can then take both tiles at once.
    """
    info = np.zeros(1, np.int32)
    fortran(lapack.potrf, (_U, k1 - k0, A[k0:, k0:], A.shape[0], info))
    for i in range(k0, k1):
        A[i, i + 1 : pair_end] = 0
    return info[0] == 0


@kernel
def factor_panel(lapack, A, k0, k1, i0, i1):
    """L[i, k] = A[i, k]·L[k, k]⁻ᵀ."""
    m, one = A.shape[0], A.dtype.type(1.0)
    fortran(lapack.trsm, (_L, _U, _T, _N, k1 - k0, i1 - i0, one, A[k0:, k0:], m, A[i0:, k0:], m))


@kernel
def invert_factor_tiles(lapack, A, panel, i0, i1, j0, j1):
    """W[i, j] = −L[i, i]⁻¹·L[i, j:i]·W[j:i, j], with W = L⁻¹; `panel` is a copy of L[i, :i]."""
    m, one = A.shape[0], A.dtype.type(1.0)
    W = A[i0:, j0:]
    width = panel.shape[1]
    fortran(
        lapack.gemm,
        (_N, _N, j1 - j0, i1 - i0, i0 - j0, one, A[j0:, j0:], m, panel[:, j0:], width, A.dtype.type(0.0), W, m),
    )
    fortran(lapack.trsm, (_R, _U, _N, _N, j1 - j0, i1 - i0, -one, A[i0:, i0:], m, W, m))


@kernel
def invert_factor_diagonal(lapack, A, i0, i1):
    """W[i, i] = L[i, i]⁻¹."""
    info = np.zeros(1, np.int32)
    fortran(lapack.trtri, (_U, _N, i1 - i0, A[i0:, i0:], A.shape[0], info))
    return info[0] == 0


@kernel
def multiply_factor_tiles(lapack, A, tile, i0, i1, j0, j1):
    """tile = C[i, j] = W[i:, i]ᵀ·W[i:, j]."""
    m, one = A.shape[0], A.dtype.type(1.0)
    width = tile.shape[1]
    fortran(
        lapack.gemm,
        (_N, _T, j1 - j0, i1 - i0, m - i0, one, A[i0:, j0:], m, A[i0:, i0:], m, A.dtype.type(0.0), tile, width),
    )


@kernel
def symmetric_product(C, i0, i1, x):
    """What rows i0 to i1 of the lower triangle of a symmetric C add to C·x."""
    y = np.zeros(C.shape[0], np.float64)
    for i in range(i0, i1):
        total = 0.0
        for j in range(i):
            total += C[i, j] * x[j]
            y[j] += C[i, j] * x[i]
        y[i] += total + C[i, i] * x[i]
    return y


@kernel
def weights_from_inverse(C, z, column_factor, row_factor, i0, i1, tile):
    """B_ji = −P_ji/P_ii·s_i/s_j in place, both triangles, where P = C − z·zᵀ; rows i0 to i1 of the lower."""
    for j0 in range(0, i1, tile):
        j1 = min(j0 + tile, i1)
        for i in range(i0, i1):
            for j in range(j0, min(j1, i)):
                p = -(C[i, j] - z[i] * z[j])
                C[i, j] = p * row_factor[i] * column_factor[j]
                C[j, i] = p * row_factor[j] * column_factor[i]
    for i in range(i0, i1):
        C[i, i] = 0


# ── scores and rankings ───────────────────────────────────────────────────────────────────────────


@kernel
def _score_sparse(items, values, B_ptr, B_items, B_values, scores):
    for t in range(len(items)):
        j, x = items[t], values[t]
        for q in range(uint64(B_ptr[j]), uint64(B_ptr[j + 1])):
            scores[B_items[q]] += x * B_values[q]


@kernel
def _score_dense(items, values, B, scores):
    for t in range(len(items)):
        x, row = values[t], B[items[t]]
        for i in range(len(scores)):
            scores[i] += x * row[i]


@kernel
def score_sparse(user_ptr, items, values, first, last, B_ptr, B_items, B_values, offset, out):
    """x·B (plus the offset) for users first to last."""
    for u in range(first, last):
        out[u] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_sparse(items[span], values[span], B_ptr, B_items, B_values, out[u])


@kernel
def score_dense(user_ptr, items, values, first, last, B, offset, out):
    """x·B (plus the offset) for users first to last."""
    for u in range(first, last):
        out[u] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_dense(items[span], values[span], B, out[u])


@kernel
def _worse(score, item, than_score, than_item):
    """Ranked lower: a smaller score, or the same score and a larger index."""
    return score < than_score or (score == than_score and item > than_item)


@kernel
def _sift_down(items, scores, root, length):
    """Restore the heap, worst on top, below `root`."""
    while True:
        child = 2 * root + 1
        if child >= length:
            return
        if child + 1 < length and _worse(scores[child + 1], items[child + 1], scores[child], items[child]):
            child += 1
        if not _worse(scores[child], items[child], scores[root], items[root]):
            return
        items[root], items[child] = items[child], items[root]
        scores[root], scores[child] = scores[child], scores[root]
        root = child


@kernel
def _select(scores, items, best):
    """The best of the scores, best first, into `items` and `best`; −∞ is never selected."""
    k = len(items)
    items[:] = -1
    best[:] = -np.inf
    held = 0
    for i in range(len(scores)):
        score = scores[i]
        if held == k:
            if score > best[0]:
                best[0], items[0] = score, i
                _sift_down(items, best, 0, k)
        elif score > -np.inf:
            best[held], items[held] = score, i
            held += 1
            if held == k:
                for root in range(k // 2 - 1, -1, -1):
                    _sift_down(items, best, root, k)
    if held < k:
        for root in range(held // 2 - 1, -1, -1):
            _sift_down(items, best, root, held)
    for length in range(held - 1, 0, -1):
        items[0], items[length] = items[length], items[0]
        best[0], best[length] = best[length], best[0]
        _sift_down(items, best, 0, length)


@kernel
def top_k_sparse(
    user_ptr, items, values, first, last, B_ptr, B_items, B_values, offset, hide_seen, scores, out_items, out_scores
):
    """The best items of users first to last."""
    for u in range(first, last):
        scores[:] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_sparse(items[span], values[span], B_ptr, B_items, B_values, scores)
        if hide_seen:
            for j in items[span]:
                scores[j] = -np.inf
        _select(scores, out_items[u], out_scores[u])


@kernel
def top_k_dense(user_ptr, items, values, first, last, B, offset, hide_seen, scores, out_items, out_scores):
    """The best items of users first to last."""
    for u in range(first, last):
        scores[:] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_dense(items[span], values[span], B, scores)
        if hide_seen:
            for j in items[span]:
                scores[j] = -np.inf
        _select(scores, out_items[u], out_scores[u])
