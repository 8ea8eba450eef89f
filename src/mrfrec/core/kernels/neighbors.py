"""The nearest items of each item, from rows of XᵀX."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import kernel
from mrfrec.core.kernels.rows import add_firsts

_LOW = 0xFFFFFFFF  # the lower half of a key


@kernel
def _key(i, j, m, nearness):
    """Order the neighbours j of i by nearness as float32, then by how closely j follows i in cyclic order."""
    distance = j - i if j > i else j - i + m
    return (uint64(np.float32(nearness).view(np.uint32)) << uint64(32)) | (uint64(_LOW) - uint64(distance))


@kernel
def _add(keys, found, least, key):
    """Add a key; once the room is full, keep the larger half. Return the count and the least key to add."""
    if key < least:
        return found, least
    keys[found] = key
    found += 1
    if found == len(keys):
        half = len(keys) // 2
        keys[:] = np.partition(keys, half)
        keys[:half] = keys[half:]
        return half, keys[0]
    return found, least


@kernel
def nearest(X, sizes, lengths, shrink, first, last, row, items, values):
    """For items first to last, find those with the largest (XᵀX)_ij ÷ (‖x_i‖·‖x_j‖ + shrink) above zero.

    `sizes` are the lengths of the histories in X.begin; `row` is zero before and after.
    """
    m, most = len(lengths), items.shape[1]
    keys = np.empty(2 * most, np.uint64)
    for i in range(first, last):
        touched = 0
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            touched += sizes[t]
        add_firsts(X, sizes, i, row)
        row[i] = 0
        found, least = 0, uint64(0)
        if 2 * touched < m:  # visit only the items of these histories, of which few are others'
            for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
                start = uint64(X.begin[t])
                for q in range(start, start + uint64(sizes[t])):
                    other = np.int64(X.items[q])
                    if row[other] > 0:
                        key = _key(i, other, m, row[other] / (lengths[i] * lengths[other] + shrink))
                        found, least = _add(keys, found, least, key)
                    row[other] = 0
        else:
            for j in range(m):
                if row[j] > 0:
                    key = _key(i, j, m, row[j] / (lengths[i] * lengths[j] + shrink))
                    found, least = _add(keys, found, least, key)
                row[j] = 0
        best = np.sort(keys[:found])[::-1]
        for s in range(most):
            items[i, s], values[i, s] = -1, 0
            if s < found:
                items[i, s] = (i + np.int64(uint64(_LOW) - (best[s] & uint64(_LOW)))) % m
                values[i, s] = np.uint32(best[s] >> uint64(32)).view(np.float32)
