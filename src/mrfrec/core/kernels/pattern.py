"""§3.1: the entries of S above the threshold and the largest per column; nearest items for item-kNN."""

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
    """Add a key to the n largest so far if it exceeds the cutoff; return the new n and cutoff.

    When `largest` is full, only its larger half is kept.
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
    """List the entries of row i of S with j < end, j ≠ i and |S_ij| > threshold; return how many there are.

    `counts` has the number of items before `end` in each history. `items` and `sizes` need `end` elements.
    """
    a, g, by_g = scaling.a, scaling.g, scaling.by_g
    ai, gi = a[i], g[i]
    if ai == 0.0:
        return 0
    cost = row_cost(X, counts, i)
    add_firsts(X, counts, i, accumulator)
    accumulator[i] = 0

    # Pairs without a common user have |S| = |g_i·g_j|. In the order of by_g, all that pass come first.
    unused = 0
    while 2 * cost + unused < end:
        if np.float32(abs(gi * g[by_g[unused]])) <= threshold:
            break
        unused += 1

    found = 0
    # If few items have a common user with item i, visit only these.
    if 2 * cost + unused < end:
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
    """Count magnitudes in bins; magnitudes that differ only in the last `shift` bits share a bin."""
    for s in range(len(sizes)):
        histogram[np.float32(sizes[s]).view(np.uint32) >> np.uint32(shift)] += 1


@kernel
def list_pairs(X, scaling, rows, start, threshold, histogram, shift, accumulator, counts, items, sizes):
    """List the entries before the diagonal with |S| > threshold, and write their number per row to `counts`.

    Stop before a row that might not fit in the room left, and return its index in `rows`.
    """
    written = 0
    for r in range(start, len(rows)):
        i = rows[r]
        if written + i > len(items):
            return r
        free = slice(written, len(items))
        found = _row(X, scaling, X.rank, i, i, threshold, accumulator, items[free], sizes[free])
        _tally(sizes[written : written + found], shift, histogram)
        counts[r] = found
        written += found
    return len(rows)


@kernel
def list_columns(
    X, scaling, lengths, first, last, threshold, ties, limits, histogram, shift, accumulator, items, sizes,
    largest, counts, tied, keys
):  # fmt: skip
    """Write the keys of the largest entries with |S| > threshold of each column, largest first.

    A column gets at most half as many as `largest` has room for; their number is written to `counts`. The
    number of entries with |S| ≤ ties is written to `tied`; with `limits`, column i gets at most limits[i] of
    them. Stop before a column that might not fit in the room left in `keys`, and return it.
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
    """Move the `most` largest of keys[start:stop] to the front, largest first; return how many there are.

    Keys are complemented, sorted in ascending order, and complemented again.
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
    """Add the number of pairs per column to `column_counts`; a pair counts in the columns of both items."""
    t = 0
    for r in range(len(rows)):
        column_counts[rows[r]] += counts[r]
        for _ in range(counts[r]):
            column_counts[items[t]] += 1
            t += 1


@kernel
def fill_directed(rows, counts, items, sizes, m, slot, keys):
    """Write every pair into the columns of both items; `slot` is where a column's next key goes."""
    t = 0
    for r in range(len(rows)):
        i = rows[r]
        for _ in range(counts[r]):
            j, size = np.int64(items[t]), sizes[t]
            keys[slot[i]] = _key(i, j, m, size)
            slot[i] += 1
            keys[slot[j]] = _key(j, i, m, size)
            slot[j] += 1
            t += 1


@kernel
def sort_keys(first, last, most, ptr, keys, counts):
    """Sort columns first to last, largest first, and count the keys that `most` leaves in each."""
    for i in range(first, last):
        counts[i] = _sort_largest(keys, ptr[i], ptr[i + 1], most)


@kernel
def cut_columns(first, ptr, keys, threshold, ties, limits, counts, tied):
    """Apply a higher threshold and the limits on ties to sorted columns, from column `first` on.

    `counts` holds the number of valid keys per column, and is lowered to the number left. The number of
    entries above the threshold with |S| ≤ ties is written to `tied`.
    """
    for c in range(len(counts)):
        start, stop = ptr[c], ptr[c] + counts[c]
        passing, larger = _count_above(keys, start, stop, threshold), _count_above(keys, start, stop, ties)
        tied[c] = passing - larger
        counts[c] = min(passing, larger + limits[first + c]) if len(limits) else passing


@kernel
def decode_columns(first, m, ptr, keys, counts, out):
    """Write the items of the first `counts` keys of each column, column after column."""
    t = 0
    for c in range(len(counts)):
        for s in range(ptr[c], ptr[c] + counts[c]):
            out[t] = _item(keys[s], first + c, m)
            t += 1


@kernel
def sort_columns(column_ptr, neighbors, first, last):
    """Sort the neighbours of items first to last in place, ascending."""
    for i in range(first, last):
        sort(neighbors, column_ptr[i], column_ptr[i + 1], column_ptr[i + 1])


@kernel
def columns_with_diagonal(column_ptr, columns, items, out_ptr, out):
    """Write N(i) ∪ {i} of some items, ascending."""
    for c in range(len(items)):
        i, slot, smaller = items[c], out_ptr[c], 0
        for t in range(column_ptr[i], column_ptr[i + 1]):
            smaller += columns[t] < i
            out[slot + (columns[t] > i)] = columns[t]
            slot += 1
        out[out_ptr[c] + smaller] = i


@kernel
def nearest(X, lengths, norms, shrink, first, last, row, largest, items, values):
    """For items i from first to last, find the j with the largest positive (XᵀX)_ij ÷ (‖x_i‖·‖x_j‖ + shrink).

    `lengths` has the lengths of the histories in X.begin. `row` is scratch, zero before and after; `largest`
    is scratch for twice as many neighbours as are kept.
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
