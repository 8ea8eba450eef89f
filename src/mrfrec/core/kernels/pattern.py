"""§3.1: the entries of S that pass the threshold, and the largest of each column; the nearest items."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.rows import add_firsts, row_cost
from mrfrec.core.kernels.sorting import sort

_LOW, _ALL = uint64(0xFFFFFFFF), uint64(0xFFFFFFFFFFFFFFFF)


@inner
def _key(i, j, m, size):
    """Encode neighbour j of item i so that keys sort by magnitude, then by nearness in cyclic order."""
    distance = j - i if j > i else j - i + m
    return (uint64(np.float32(size).view(np.uint32)) << uint64(32)) | (_LOW - uint64(distance))


@inner
def _item(key, i, m):
    """Return the neighbour of item i that a key encodes."""
    j = i + np.int64(_LOW - (key & _LOW))
    return j if j < m else j - m


@inner
def _offer(key, largest, n, cutoff):
    """Add a key to the n largest so far, unless there are enough larger ones; return n and the cutoff.

    When the room is full, the larger half stays.
    """
    if key <= cutoff:
        return n, cutoff
    largest[n] = key
    n += 1
    if n < len(largest):
        return n, cutoff
    n = _sort_largest(largest, 0, n, n // 2)
    return n, largest[n - 1]


@inner
def _row(X, scaling, counts, i, end, threshold, accumulator, items, sizes):
    """List the entries j < end of row i of S, j ≠ i, with |S_ij| > threshold; return how many there are.

    `counts` says how many items of each history come before `end`. `items` and `sizes` need room for `end`.
    """
    a, g, by_g = scaling.a, scaling.g, scaling.by_g
    ai, gi = a[i], g[i]
    if ai == 0.0:
        return 0
    cost = row_cost(X, counts, i)
    add_firsts(X, counts, i, accumulator)
    accumulator[i] = 0

    # Pairs without a common user have |S| = |g_i·g_j|: those that pass come first in by_g.
    unused = 0
    while 2 * cost + unused < end:
        if np.float32(abs(gi * g[by_g[unused]])) <= threshold:
            break
        unused += 1

    found = 0
    if 2 * cost + unused < end:  # few items touched: visit these alone
        for s in range(unused):
            j = by_g[s]
            if j < end and j != i and accumulator[j] == 0:
                items[found] = j
                sizes[found] = abs(gi * g[j])
                found += 1
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            first = uint64(X.begin[t])
            for q in range(first, first + uint64(counts[t])):
                j = X.items[q]
                if accumulator[j] != 0:
                    size = np.float32(abs(accumulator[j] * (ai * a[j]) - gi * g[j]))
                    accumulator[j] = 0
                    if size > threshold:
                        items[found] = j
                        sizes[found] = size
                        found += 1
    else:
        for j in range(end):
            sizes[j] = abs(accumulator[j] * (ai * a[j]) - gi * g[j])
            accumulator[j] = 0
        if i < end:
            sizes[i] = 0.0
        for j in range(end):
            if sizes[j] > threshold:
                items[found] = j
                sizes[found] = sizes[j]
                found += 1
    return found


@inner
def _tally(sizes, shift, histogram):
    """Count magnitudes in bins; those that share all but their last `shift` bits share a bin."""
    for s in range(len(sizes)):
        histogram[np.float32(sizes[s]).view(np.uint32) >> np.uint32(shift)] += 1


@kernel
def list_pairs(X, scaling, rows, start, threshold, histogram, shift, accumulator, counts, items, sizes):
    """List the entries before the diagonal with |S| > threshold, `counts` of them in each row.

    Stops before a row for which the room left might not do, and returns its place in `rows`.
    """
    written = 0
    for place in range(start, len(rows)):
        i = rows[place]
        if written + i > len(items):
            return place
        free = slice(written, len(items))
        found = _row(X, scaling, X.rank, i, i, threshold, accumulator, items[free], sizes[free])
        _tally(sizes[written : written + found], shift, histogram)
        counts[place] = found
        written += found
    return len(rows)


@kernel
def list_columns(
    X, scaling, lengths, first, last, threshold, ties, limits, histogram, shift, accumulator, items, sizes,
    largest, counts, tied, keys
):  # fmt: skip
    """Write the keys of the largest entries of each column with |S| > threshold, largest first.

    Each column gets at most half as many as `largest` has room for, and `counts` tells how many. `tied` tells
    how many entries have |S| ≤ ties; with `limits`, column i gets at most limits[i] of these. Stops before a
    column for which the room left in `keys` might not do, and returns it.
    """
    m = len(scaling.a)
    most = len(largest) // 2
    written = 0
    for i in range(first, last):
        if written + most > len(keys):
            return i
        found = _row(X, scaling, lengths, i, m, threshold, accumulator, items, sizes)
        _tally(sizes[:found], shift, histogram)
        below = 0
        for s in range(found):
            below += sizes[s] <= ties
        tied[i - first] = below
        counts[i - first] = 0
        if most:
            n, cutoff = 0, uint64(0)
            for s in range(found):
                key = _key(i, np.int64(items[s]), m, sizes[s])
                n, cutoff = _offer(key, largest, n, cutoff)
            n = _sort_largest(largest, 0, n, most)
            if len(limits):
                n = min(n, _count_above(largest, 0, n, ties) + limits[i])
            for s in range(n):
                keys[written + s] = largest[s]
            counts[i - first] = n
            written += n
    return last


@inner
def _sort_largest(keys, start, stop, most):
    """Move the `most` largest of keys[start:stop] to its front, largest first; return how many that are.

    The complements are sorted: the smallest complements are those of the largest keys.
    """
    end = stop if stop - start < most else start + most
    for t in range(start, stop):
        keys[t] ^= _ALL
    sort(keys, start, stop, end)
    for t in range(start, end):
        keys[t] ^= _ALL
    return end - start


@inner
def _count_above(keys, start, stop, threshold):
    """Count the keys of a sorted column with |S| > threshold."""
    t = start
    while t < stop and np.uint32(keys[t] >> uint64(32)).view(np.float32) > threshold:
        t += 1
    return t - start


@kernel
def count_directed(rows, counts, items, column_counts):
    """Add how many of these pairs each column gets: every pair goes to both of its items."""
    t = 0
    for place in range(len(rows)):
        column_counts[rows[place]] += counts[place]
        for _ in range(counts[place]):
            column_counts[items[t]] += 1
            t += 1


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
def sort_keys(first, last, most, ptr, keys, counts):
    """Sort the columns, largest first, and count what the cap leaves of each."""
    for i in range(first, last):
        counts[i] = _sort_largest(keys, ptr[i], ptr[i + 1], most)


@kernel
def cut_columns(first, ptr, keys, threshold, ties, limits, counts, tied):
    """Apply a higher threshold and the limits on ties to sorted columns, from column `first` on.

    `counts` has how many keys of each column count, and gets how many are left; `tied` gets how many of those
    that pass the threshold have |S| ≤ ties.
    """
    for c in range(len(counts)):
        start, stop = ptr[c], ptr[c] + counts[c]
        passing, larger = _count_above(keys, start, stop, threshold), _count_above(keys, start, stop, ties)
        tied[c] = passing - larger
        counts[c] = min(passing, larger + limits[first + c]) if len(limits) else passing


@kernel
def decode_columns(first, m, ptr, keys, counts, out):
    """Write the items of the keys that count, column after column."""
    t = 0
    for c in range(len(counts)):
        for s in range(ptr[c], ptr[c] + counts[c]):
            out[t] = _item(keys[s], first + c, m)
            t += 1


@kernel
def sort_columns(column_ptr, neighbors, first, last):
    """Ascending rows in each column, in place."""
    for i in range(first, last):
        sort(neighbors, column_ptr[i], column_ptr[i + 1], column_ptr[i + 1])


@kernel
def columns_with_diagonal(column_ptr, columns, items, out_ptr, out):
    """Write the columns of some items, N(i) ∪ {i}, ascending."""
    for c in range(len(items)):
        i, slot, smaller = items[c], out_ptr[c], 0
        for t in range(column_ptr[i], column_ptr[i + 1]):
            smaller += columns[t] < i
            out[slot + (columns[t] > i)] = columns[t]
            slot += 1
        out[out_ptr[c] + smaller] = i


@kernel
def nearest(X, lengths, norms, shrink, first, last, row, largest, items, values):
    """For items first to last, find those with the largest (XᵀX)_ij ÷ (‖x_i‖·‖x_j‖ + shrink) above zero.

    `lengths` are those of the histories in X.begin; `row` is zero before and after; `largest` has room for
    twice as many neighbours as are kept.
    """
    m = len(norms)
    most = items.shape[1]
    for i in range(first, last):
        add_firsts(X, lengths, i, row)
        row[i] = 0
        n, cutoff = 0, uint64(0)
        if 2 * row_cost(X, lengths, i) < m:  # visit only the items of these histories
            for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
                start = uint64(X.begin[t])
                for q in range(start, start + uint64(lengths[t])):
                    k = np.int64(X.items[q])
                    if row[k] > 0:
                        key = _key(i, k, m, row[k] / (norms[i] * norms[k] + shrink))
                        n, cutoff = _offer(key, largest, n, cutoff)
                    row[k] = 0
        else:
            for j in range(m):
                if row[j] > 0:
                    key = _key(i, j, m, row[j] / (norms[i] * norms[j] + shrink))
                    n, cutoff = _offer(key, largest, n, cutoff)
                row[j] = 0
        n = _sort_largest(largest, 0, n, most)
        for s in range(most):
            items[i, s], values[i, s] = -1, 0
            if s < n:
                items[i, s] = _item(largest[s], i, m)
                values[i, s] = np.uint32(largest[s] >> uint64(32)).view(np.float32)
