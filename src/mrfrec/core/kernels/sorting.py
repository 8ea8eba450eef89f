"""Sorting and bisection of a range, in place.

numba's `np.sort` and `np.partition` take seconds to compile for each type; these take a fraction of one.
"""

from mrfrec.core.kernels.compile import inner
from mrfrec.core.kernels.intrinsics import integers_128

_FEW = 16  # values, up to which insertion is quicker


@inner
def sort(values, start, stop, until):
    """Sort values[start:stop] in place, ascending, as far as the places before `until` are concerned.

    Quicksort with the median of three as pivot. Parts that begin at `until` or later are left unsorted: with
    `until = start + k` it selects the k smallest and sorts them. There is no recursion, which machine code
    that is loaded from disk does not survive.
    """
    waiting = integers_128()  # parts to be sorted later, the larger of two: log2 of the length
    depth = 0
    while True:
        while stop - start > _FEW and start < until:
            low, pivot, high = values[start], values[(start + stop) // 2], values[stop - 1]
            if low > high:
                low, high = high, low
            if pivot < low:
                pivot = low
            elif pivot > high:
                pivot = high
            i, j = start, stop - 1
            while i <= j:
                while values[i] < pivot:
                    i += 1
                while values[j] > pivot:
                    j -= 1
                if i <= j:
                    values[i], values[j] = values[j], values[i]
                    i += 1
                    j -= 1
            # Now nothing in start…j is larger than the pivot, and nothing in i…stop smaller.
            if j - start < stop - i:
                waiting[depth], waiting[depth + 1], stop = i, stop, j + 1
            else:
                waiting[depth], waiting[depth + 1], start = start, j + 1, i
            depth += 2
        if start < until:
            for t in range(start + 1, stop):
                value, s = values[t], t
                while s > start and values[s - 1] > value:
                    values[s] = values[s - 1]
                    s -= 1
                values[s] = value
        if depth == 0:
            return
        depth -= 2
        start, stop = waiting[depth], waiting[depth + 1]


@inner
def first_at_least(value, values, start, stop):
    """Return the first place in values[start:stop], ascending, that holds `value` or more; else `stop`."""
    while start < stop:
        middle = (start + stop) // 2
        if values[middle] < value:
            start = middle + 1
        else:
            stop = middle
    return start
