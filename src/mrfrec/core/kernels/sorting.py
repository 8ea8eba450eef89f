"""Sort a range in place, and search it by bisection.

numba takes seconds to compile `np.sort` and `np.partition` for each type; these functions take a fraction.
"""

from mrfrec.core.kernels.compile import inner
from mrfrec.core.kernels.intrinsics import integers_128

_FEW = 16  # Up to this many values, insertion sort is quicker.


@inner
def sort(values, start, stop, until):
    """Sort values[start:stop] in place, ascending, so that values[start:until] is final.

    This is quicksort with the median of three as pivot. Parts that begin at `until` or later stay unsorted:
    `until = start + k` selects the k smallest values and sorts them. It does not recurse, because recursive
    machine code does not work once it is loaded from disk.
    """
    waiting = integers_128()  # the larger parts, to be sorted later; at most log2 of the length
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
    """Return the first index from start to stop with values[index] ≥ value, else `stop`; values ascend."""
    while start < stop:
        middle = (start + stop) // 2
        if values[middle] < value:
            start = middle + 1
        else:
            stop = middle
    return start
