"""SLIM's regressions: coordinate descent on G = XᵀX, an item on the others, with non-negative weights.

min over w ≥ 0, w_i = 0 of   ½‖x_i − X·w‖² + l1·Σw + ½·l2·Σw²
"""

import numpy as np
from numba import njit

FIRST = 32  # items in the first working set


@njit(nogil=True, cache=True)
def _descend(A, l1, l2, tolerance, passes, w, r):  # type: ignore[no-untyped-def]
    """Minimise ½wᵀAw − bᵀw + l1·Σw + ½l2·Σw² over w ≥ 0, starting from w; return whether it converged.

    r = b − A·w is kept up to date. Converged means that no step of a pass moves A^½·w by more than the
    tolerance.
    """
    for _ in range(passes):
        largest = 0.0
        for t in range(len(A)):
            a = np.float64(A[t, t])
            # The minimum over w_t alone: soft-thresholded and clipped at zero.
            new = max((r[t] + a * w[t] - l1) / (a + l2), 0.0) if a + l2 > 0 else 0.0
            step = new - w[t]
            if step != 0.0:
                w[t] = new
                for s in range(len(A)):
                    r[s] -= step * A[t, s]
                largest = max(largest, abs(step) * np.sqrt(a))
        if largest <= tolerance:
            return True
    return False


@njit(nogil=True, cache=True)
def _extended(G, i, candidates, working, size, w, l1, l2, tolerance):  # type: ignore[no-untyped-def]
    """Move candidates that would become non-zero to the end of the working set, with weights of zero.

    Those with the largest gain go first, up to as many as the working set has. Return how many candidates
    are left, in their order, and the new size of the working set.
    """
    r, gain = np.empty(len(candidates)), np.zeros(len(candidates))
    for t in range(len(candidates)):  # r = G_i − Σ_k G_k·w_k
        r[t] = G[i, candidates[t]]
    for s in range(size):
        if w[s] > 0.0:
            for t in range(len(candidates)):
                r[t] -= w[s] * G[working[s], candidates[t]]
    waiting = 0
    for t in range(len(candidates)):
        a = G[candidates[t], candidates[t]]
        excess = r[t] - l1
        if excess > 0.0 and excess / (a + l2) * np.sqrt(a) > tolerance:
            gain[t] = excess * excess / (a + l2)  # twice the decrease of the objective
            waiting += 1
    room = max(FIRST, size)
    least = np.sort(gain)[len(gain) - room] if waiting > room else 0.0
    left, room = 0, room + size
    for t in range(len(candidates)):
        if gain[t] > 0.0 and gain[t] >= least and size < room:
            working[size], w[size] = candidates[t], 0.0
            size += 1
        else:
            candidates[left] = candidates[t]
            left += 1
    return left, size


@njit(nogil=True, cache=True)
def regress_on_all(G, i, least, l1, l2, tolerance, passes):  # type: ignore[no-untyped-def]
    """Return the items in the regression of item i, their weights, and whether it converged.

    The descent runs on a working set. Candidates outside it that would become non-zero join it; when there
    are none, the solution is that of all candidates: items with an entry of G above `least`.
    """
    m = len(G)
    candidates, working, w = np.empty(m, np.int32), np.empty(m, np.int32), np.empty(m)
    left = size = 0
    if G[i, i] > 0:
        for j in range(m):
            if G[i, j] > least and j != i and G[j, j] > 0:
                candidates[left] = j
                left += 1
    limit = tolerance * np.sqrt(np.float64(G[i, i]))
    converged = True
    while True:
        before = size
        left, size = _extended(G, i, candidates[:left], working, size, w, l1, l2, limit)
        if size == before:
            break
        A, r = np.empty((size, size), G.dtype), np.empty(size)
        for s in range(size):
            r[s] = G[i, working[s]]
            for t in range(size):
                A[s, t] = G[working[s], working[t]]
        for s in range(size):
            for t in range(size):
                r[t] -= w[s] * A[s, t]
        converged = _descend(A, l1, l2, limit, passes, w[:size], r)
    return working[:size].copy(), w[:size].copy(), converged


@njit(nogil=True, cache=True)
def regress_on_some(ptr, items, values, i, some, l1, l2, tolerance, passes):  # type: ignore[no-untyped-def]
    """Return the weights of `some` items in the regression of item i, and whether it converged.

    G is sparse, with ascending items in each row.
    """
    A, r, w = np.empty((len(some), len(some))), np.empty(len(some)), np.zeros(len(some))
    own = _entries(ptr, items, values, i, np.array([i], np.int32))[0]
    r[:] = _entries(ptr, items, values, i, some)
    for t in range(len(some)):
        A[t] = _entries(ptr, items, values, some[t], some)
    return w, _descend(A, l1, l2, tolerance * np.sqrt(own), passes, w, r)


@njit(nogil=True, cache=True)
def _entries(ptr, items, values, row, columns):  # type: ignore[no-untyped-def]
    """Return entries of a row of a sparse matrix, 0 where it has none."""
    found = np.zeros(len(columns))
    some = items[ptr[row] : ptr[row + 1]]
    for t in range(len(columns)):
        place = np.searchsorted(some, columns[t])
        if place < len(some) and some[place] == columns[t]:
            found[t] = values[ptr[row] + place]
    return found


Penalties = tuple[float, float, float, int]
"""l1, l2, tolerance and passes.

A regression has converged when a pass over its weights changes X·w by at most tolerance·‖x_i‖. `passes` is
the largest number of passes.
"""
