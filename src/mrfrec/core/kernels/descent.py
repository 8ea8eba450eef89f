"""Non-negative regressions with two penalties, by coordinate descent on the Gram matrix."""

import numpy as np

from mrfrec.core.kernels.compile import array_kernel, kernel


@kernel
def _descend(A, b, l1, l2, tolerance, passes, w, r):
    """Minimise ½wᵀAw − bᵀw + l1·Σw + ½l2·Σw² over w ≥ 0, starting from w; return whether it converged.

    r = b − A·w is kept up to date. Converged means that no step of a pass moves A^½·w by more than the
    tolerance.
    """
    for _ in range(passes):
        largest = 0.0
        for t in range(len(w)):
            a = A[t, t]
            # The minimum over w_t alone: soft-thresholded and clipped at zero.
            new = max((r[t] + a * w[t] - l1) / (a + l2), 0.0)
            step = new - w[t]
            if step != 0.0:
                w[t] = new
                for s in range(len(w)):
                    r[s] -= step * A[t, s]
                largest = max(largest, abs(step) * np.sqrt(a))
        if largest <= tolerance:
            return True
    return False


_FIRST = 32  # items in the first working set


@array_kernel
def _regress(G, i, l1, l2, tolerance, passes, candidates, r, gain, chosen):
    """Return the items in the regression of item i, their weights, and whether it converged.

    The descent runs on a working set. Candidates outside it that would become non-zero join it, those with
    the largest gain first; when there are none, the solution is that of all candidates.
    """
    working = np.empty(0, np.int64)
    w = np.empty(0, np.float64)
    chosen[: len(candidates)] = False
    settled = True
    while True:
        for t in range(len(candidates)):  # r = G_·i − Σ_k G_·k·w_k
            r[t] = G[i, candidates[t]]
        for s in range(len(working)):
            if w[s] > 0.0:
                row, weight = G[working[s]], w[s]
                for t in range(len(candidates)):
                    r[t] -= weight * row[candidates[t]]
        waiting = 0
        for t in range(len(candidates)):
            gain[t] = 0.0
            excess = r[t] - l1
            if chosen[t] or excess <= 0.0:
                continue
            a = G[candidates[t], candidates[t]]
            if excess / (a + l2) * np.sqrt(a) > tolerance:
                gain[t] = excess * excess / (a + l2)  # twice the decrease of the objective
                waiting += 1
        if waiting == 0:
            return working, w, settled
        room = max(_FIRST, len(working))
        least = 0.0
        if waiting > room:
            least = np.partition(gain[: len(candidates)], len(candidates) - room)[len(candidates) - room]
        more = np.empty(waiting, np.int64)
        count = 0
        for t in range(len(candidates)):
            if gain[t] > 0.0 and gain[t] >= least and count < room:
                more[count] = candidates[t]
                chosen[t] = True
                count += 1
        working = np.append(working, more[:count])
        w = np.append(w, np.zeros(count))
        k = len(working)
        A = np.empty((k, k))
        b = np.empty(k)
        for s in range(k):
            row = G[working[s]]
            b[s] = row[i]
            for t in range(k):
                A[s, t] = row[working[t]]
        settled = _descend(A, b, l1, l2, tolerance, passes, w, b - A @ w)


@array_kernel
def regress_columns(G, first, last, l1, l2, tolerance, passes, screened):
    """Regress items first to last.

    Return the number of weights of each, their items and values, and the number of regressions that did not
    converge.
    """
    m = len(G)
    candidates = np.empty(m, np.int64)
    r, gain, chosen = np.empty(m), np.empty(m), np.empty(m, np.bool_)
    counts = np.zeros(last - first, np.int64)
    items, values = np.empty(1024, np.int32), np.empty(1024)
    total = failed = 0
    for i in range(first, last):
        if G[i, i] <= 0:
            continue
        # If no value is negative, neither is G, and r_j = G_ji − Σ_k G_jk·w_k is at most G_ji: with G_ji ≤ l1
        # the weight stays zero.
        count = 0
        for j in range(m):
            if j != i and G[j, j] > 0 and (not screened or G[i, j] > l1):
                candidates[count] = j
                count += 1
        limit = tolerance * np.sqrt(G[i, i])
        working, w, settled = _regress(G, i, l1, l2, limit, passes, candidates[:count], r, gain, chosen)
        failed += not settled
        if total + len(working) > len(items):
            size = 2 * (total + len(working))
            more_items, more_values = np.empty(size, np.int32), np.empty(size)
            more_items[:total], more_values[:total] = items[:total], values[:total]
            items, values = more_items, more_values
        for t in np.argsort(working):
            if w[t] > 0.0:
                items[total], values[total] = working[t], w[t]
                total += 1
                counts[i - first] += 1
    return counts, items[:total].copy(), values[:total].copy(), failed


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
        place = np.searchsorted(members, i)
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
        failed += not _descend(A, g, l1, l2, limit, passes, w, g.copy())
        values[column_ptr[i] : column_ptr[i + 1]] = w
    return failed
