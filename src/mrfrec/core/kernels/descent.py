"""Non-negative regressions with two penalties, by coordinate descent on the Gram matrix."""

import numpy as np

from mrfrec.core.kernels.compile import array_kernel, kernel
from mrfrec.core.kernels.sorting import first_at_least, sort

_FIRST = 32  # items in the first working set


@kernel
def _descend(A, l1, l2, tolerance, passes, w, r):
    """Minimise ½wᵀAw − bᵀw + l1·Σw + ½l2·Σw² over w ≥ 0, starting from w; return whether it converged.

    r = b − A·w is kept up to date. Converged means that no step of a pass moves A^½·w by more than the
    tolerance.
    """
    for _ in range(passes):
        largest = 0.0
        for t in range(len(A)):
            a = np.float64(A[t, t])
            # The minimum over w_t alone: soft-thresholded and clipped at zero.
            new = max((r[t] + a * w[t] - l1) / (a + l2), 0.0)
            step = new - w[t]
            if step != 0.0:
                w[t] = new
                for s in range(len(A)):
                    r[s] -= step * A[t, s]
                largest = max(largest, abs(step) * np.sqrt(a))
        if largest <= tolerance:
            return True
    return False


@kernel
def list_candidates(G, i, diagonal, least, candidates):
    """List the items, other than i, that have users and an entry above `least` in row i; return how many."""
    count = 0
    for j in range(len(diagonal)):
        if G[i, j] > least and j != i and diagonal[j] > 0:
            candidates[count] = j
            count += 1
    return count


@kernel
def extend(G, i, candidates, working, size, w, l1, l2, tolerance, r, gain):
    """Move candidates that would become non-zero to the end of the working set, with weights of zero.

    Those with the largest gain go first, up to as many as the working set has. Return how many candidates
    are left, in their order, and the new size of the working set. `r` and `gain` are scratch space.
    """
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
        r[t] = 0.0
        if excess > 0.0 and excess / (a + l2) * np.sqrt(a) > tolerance:
            r[t] = excess * excess / (a + l2)  # twice the decrease of the objective
            gain[waiting] = -r[t]
            waiting += 1
    room = max(_FIRST, size)
    least = 0.0
    if waiting > room:
        sort(gain, 0, waiting, room)
        least = -gain[room - 1]
    left, room = 0, room + size
    for t in range(len(candidates)):
        if r[t] > 0.0 and r[t] >= least and size < room:
            working[size], w[size] = candidates[t], 0.0
            size += 1
        else:
            candidates[left] = candidates[t]
            left += 1
    return left, size


@kernel
def regress(G, i, working, w, l1, l2, tolerance, passes, A, r):
    """Regress item i on the working set, starting from w; return whether it converged.

    `A`, for the part of G, and `r` are scratch space.
    """
    for s in range(len(A)):
        r[s] = G[i, working[s]]
        for t in range(len(A)):
            A[s, t] = G[working[s], working[t]]
    for s in range(len(A)):
        if w[s] > 0.0:
            for t in range(len(A)):
                r[t] -= w[s] * A[s, t]
    return _descend(A, l1, l2, tolerance, passes, w, r)


@array_kernel
def regress_blocks(blocks, batch, diagonal, l1, l2, tolerance, passes, store, column_ptr, values):
    """Regress the head of each block on its other items; return the number that did not converge.

    A block's part of XᵀX is packed as in `core/blocks.py`: the strict lower triangle, row by row.
    """
    failed = 0
    for b in blocks:
        members = batch.members[batch.member_ptr[b] : batch.member_ptr[b + 1]]
        i = batch.heads[b]
        k = len(members) - 1
        if k == 0 or diagonal[i] <= 0:
            continue
        place = first_at_least(i, members, 0, k + 1)
        A, g = np.empty((k, k)), np.empty(k)
        source = batch.store_ptr[b]
        for t in range(k + 1):
            p = t - (t > place)
            for s in range(t):
                q = s - (s > place)
                entry = store[source + s]
                if t == place:
                    g[q] = entry
                elif s == place:
                    g[p] = entry
                else:
                    A[p, q] = A[q, p] = entry
            source += t
            if t != place:
                A[p, p] = diagonal[members[t]]
        w = np.zeros(k)
        limit = tolerance * np.sqrt(diagonal[i])
        failed += not _descend(A, l1, l2, limit, passes, w, g)
        for t in range(k):
            values[column_ptr[i] + t] = w[t]
    return failed
