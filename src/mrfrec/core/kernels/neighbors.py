"""The nearest items of each item, from rows of XᵀX."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.intrinsics import bits, from_bits
from mrfrec.core.kernels.rows import add_firsts
from mrfrec.core.kernels.sorting import sort

_ONES = 0xFFFFFFFF


@inner
def _add(keys, found, worst, i, j, m, nearness):
    """Add the neighbour j of i, unless there are enough better ones; return the count and the worst key.

    Keys order neighbours: the nearest by float32 first, then those that follow i most closely in cyclic
    order. When the room is full, the better half stays.
    """
    distance = j - i if j > i else j - i + m
    key = ((uint64(_ONES) - uint64(bits(np.float32(nearness)))) << uint64(32)) | uint64(distance)
    if key > worst:
        return found, worst
    keys[found] = key
    found += 1
    if found < len(keys):
        return found, worst
    half = len(keys) // 2
    sort(keys, 0, found, half)
    return half, keys[half - 1]


@kernel
def nearest(X, sizes, lengths, shrink, first, last, row, keys, items, values):
    """For items first to last, find those with the largest (XᵀX)_ij ÷ (‖x_i‖·‖x_j‖ + shrink) above zero.

    `sizes` are the lengths of the histories in X.begin; `row` is zero before and after; `keys` has room for
    twice as many neighbours as are kept.
    """
    m, most = len(lengths), items.shape[1]
    for i in range(first, last):
        touched = 0
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            touched += sizes[t]
        add_firsts(X, sizes, i, row)
        row[i] = 0
        found, worst = 0, ~uint64(0)
        if 2 * touched < m:  # visit only the items of these histories
            for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
                start = uint64(X.begin[t])
                for q in range(start, start + uint64(sizes[t])):
                    other = np.int64(X.items[q])
                    if row[other] > 0:
                        near = row[other] / (lengths[i] * lengths[other] + shrink)
                        found, worst = _add(keys, found, worst, i, other, m, near)
                    row[other] = 0
        else:
            for j in range(m):
                if row[j] > 0:
                    near = row[j] / (lengths[i] * lengths[j] + shrink)
                    found, worst = _add(keys, found, worst, i, j, m, near)
                row[j] = 0
        sort(keys, 0, found, most)
        for s in range(most):
            items[i, s], values[i, s] = -1, 0
            if s < found:
                items[i, s] = (i + np.int64(keys[s] & uint64(_ONES))) % m
                values[i, s] = from_bits(np.uint32(uint64(_ONES) - (keys[s] >> uint64(32))))
