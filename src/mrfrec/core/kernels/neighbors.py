"""The nearest items of each item, from rows of XᵀX."""

import numpy as np

from mrfrec.core.kernels.compile import kernel
from mrfrec.core.kernels.ranking import select
from mrfrec.core.kernels.rows import add_firsts


@kernel
def nearest(X, sizes, lengths, shrink, order, first, last, row, nearness, items, values):
    """For items first to last, those with the largest (XᵀX)_ij ÷ (‖x_i‖·‖x_j‖ + shrink) above zero.

    `nearness` is laid out from item i on and around, so that ties go to the item that follows i most closely.
    """
    m = len(lengths)
    for i in range(first, last):
        row[:] = 0
        add_firsts(X, sizes, i, row)
        row[i] = 0
        for j in range(m):
            t = j - i if j >= i else j - i + m
            nearness[t] = row[j] / (lengths[i] * lengths[j] + shrink) if row[j] > 0 else -np.inf
        select(nearness, order, items[i], values[i])
        for s in range(items.shape[1]):
            if items[i, s] < 0:
                values[i, s] = 0
            else:
                items[i, s] = (i + items[i, s]) % m
