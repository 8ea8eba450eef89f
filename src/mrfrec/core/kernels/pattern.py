"""§3.1: the entries of S that pass the threshold, and the largest of each column."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import kernel
from mrfrec.core.kernels.rows import add_row, row_cost


@kernel
def row_entries(
    X, scaling, rows, start, threshold, histogram, shift, accumulator, magnitudes, counts, items, sizes
):
    """Entries before the diagonal with |S| > threshold: `counts` of them a row, one row after the other.

    Stops before a row for which the room left might not do, and returns its place in `rows`. With no room
    at all (`items` is empty) it only counts, in `histogram`, where magnitudes that share all but their last
    `shift` bits share a bin.
    """
    a, g, by_g = scaling.a, scaling.g, scaling.by_g
    keep, tally = len(items) > 0, len(histogram) > 0
    written = 0
    for place in range(start, len(rows)):
        i = rows[place]
        if keep and written + i > len(items):
            return place
        counts[place] = 0
        ai, gi = a[i], g[i]
        if ai == 0.0:
            continue
        cost = row_cost(X, i)
        add_row(X, i, accumulator)

        # Pairs without a common user have |S| = |g_i·g_j|: those that pass come first in by_g.
        unused = 0
        while 2 * cost + unused < i:
            if np.float32(abs(gi * g[by_g[unused]])) <= threshold:
                break
            unused += 1

        found = 0
        if 2 * cost + unused < i:  # few items touched: visit these alone
            for s in range(unused):
                j = by_g[s]
                if j < i and accumulator[j] == 0:
                    magnitudes[found] = abs(gi * g[j])
                    if keep:
                        items[written + found] = j
                    found += 1
            for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
                first = uint64(X.begin[t])
                for q in range(first, first + uint64(X.rank[t])):
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
            for j in range(i):
                magnitudes[j] = abs(accumulator[j] * (ai * a[j]) - gi * g[j])
                accumulator[j] = 0
            for j in range(i):
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
def settle_columns(
    first, last, most, key_ptr, keys, old_ptr, old_items, old_sizes, new_ptr, new_items, new_sizes
):
    """Each column's largest entries, `most` of them, largest first, out of the old ones and the new."""
    m = len(key_ptr) - 1
    if most == 0:
        return
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
