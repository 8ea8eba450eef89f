"""Scores and rankings."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.sorting import first_at_least

_COUNTED = 512  # Scores to compare between two checks whether a rank already exceeds k.


@kernel
def score_dense(user_ptr, items, values, first, last, B, base, out):
    """Write base + x·B of users first to last into `out`."""
    for u in range(first, last):
        scores = out[u - first]
        for i in range(len(scores)):
            scores[i] = base[i]
        for t in range(user_ptr[u], user_ptr[u + 1]):
            x, row = values[t], B[items[t]]
            for i in range(len(scores)):
                scores[i] += x * row[i]


@kernel
def score_sparse(
    user_ptr, items, values, first, last, B_ptr, B_items, B_values, base, scores, marked, out_ptr, found, out
):
    """Write base + x·B of users first to last, only for items with evidence.

    `scores` and `marked` are scratch: before and after, `scores` equals `base` and nothing is marked.
    """
    end = 0
    for u in range(first, last):
        start = end
        for t in range(user_ptr[u], user_ptr[u + 1]):
            j, x = items[t], values[t]
            if x != 0:
                for q in range(uint64(B_ptr[j]), uint64(B_ptr[j + 1])):
                    i, weight = B_items[q], B_values[q]
                    scores[i] += x * weight
                    if weight != 0 and not marked[i]:
                        marked[i] = True
                        found[end] = i
                        end += 1
        for t in range(start, end):
            i = uint64(found[t])
            out[t] = scores[i]
            scores[i], marked[i] = base[i], False
        out_ptr[u - first + 1] = end


@kernel
def embed(user_ptr, items, values, first, last, left, V, out):
    """Add Σ_j x_j·left_j·V_j of users first to last to `out`, users × k."""
    for u in range(first, last):
        h = out[u - first]
        for t in range(user_ptr[u], user_ptr[u + 1]):
            x, row = values[t] * left[items[t]], V[items[t]]
            for f in range(len(h)):
                h[f] += x * row[f]


@kernel
def add_low_rank(vectors, V, sums, out):
    """Add V·h to `out`, users × items, with h in the columns of `vectors`; `sums` is scratch, one per user.

    Terms are added one after the other, four per round.
    """
    m, k = V.shape
    for i in range(m):
        v = V[i]
        for u in range(len(out)):
            sums[u] = out[u, i]
        for f in range(0, k - k % 4, 4):
            v0, v1, v2, v3 = v[f], v[f + 1], v[f + 2], v[f + 3]
            h0, h1, h2, h3 = vectors[f], vectors[f + 1], vectors[f + 2], vectors[f + 3]
            for u in range(len(sums)):
                sums[u] = (((sums[u] + v0 * h0[u]) + v1 * h1[u]) + v2 * h2[u]) + v3 * h3[u]
        for f in range(k - k % 4, k):
            v0, h0 = v[f], vectors[f]
            for u in range(len(sums)):
                sums[u] += v0 * h0[u]
        for u in range(len(out)):
            out[u, i] = sums[u]


@inner
def _worse(score, item, than_score, than_item, order):
    """Return whether an item ranks lower: its score is smaller, or equal and it comes later in `order`."""
    return score < than_score or (score == than_score and order[item] > order[than_item])


@inner
def _sift_down(items, scores, root, length, order):
    """Restore the heap below `root`; the worst item is on top."""
    while True:
        child = 2 * root + 1
        if child >= length:
            return
        if child + 1 < length and _worse(
            scores[child + 1], items[child + 1], scores[child], items[child], order
        ):
            child += 1
        if not _worse(scores[child], items[child], scores[root], items[root], order):
            return
        items[root], items[child] = items[child], items[root]
        scores[root], scores[child] = scores[child], scores[root]
        root = child


@inner
def _offer(score, item, items, best, held, order):
    """Keep an item if it is among the best so far; return how many are kept."""
    k = len(items)
    if held == k:
        if _worse(best[0], items[0], score, item, order):
            best[0], items[0] = score, item
            _sift_down(items, best, 0, k, order)
    elif score > -np.inf:
        best[held], items[held] = score, item
        held += 1
        if held == k:
            for root in range(k // 2 - 1, -1, -1):
                _sift_down(items, best, root, k, order)
    return held


@inner
def _sort(items, best, held, order):
    """Sort the kept items, best first, and write −1 and −∞ to the unused ranks."""
    if held < len(items):
        for root in range(held // 2 - 1, -1, -1):
            _sift_down(items, best, root, held, order)
    for length in range(held - 1, 0, -1):
        items[0], items[length] = items[length], items[0]
        best[0], best[length] = best[length], best[0]
        _sift_down(items, best, 0, length, order)
    for rank in range(held, len(items)):
        items[rank], best[rank] = -1, -np.inf


@kernel
def add_where_best(
    about, vectors, V, norms, lengths, rounding, factor, hide_ptr, hide_items, order, chosen, top, best, out
):
    """Add V·h to `out`, users × items, for all items that may be among the best; the others get −∞.

    `about` has V·h with an error of at most `rounding` times ‖h‖·‖v‖ + |out|. An item with −∞ in `about` is
    not compared: its sum is computed in any case. `vectors` has the h in rows; `norms` has ‖h‖ and `lengths`
    ‖v‖. `chosen` is scratch with an entry per item, `top` and `best` are scratch of length k. Terms are added
    one after the other, as in `add_low_rank`.
    """
    for u in range(len(out)):
        row, sums, h = about[u], out[u], vectors[u]
        for t in range(hide_ptr[u], hide_ptr[u + 1]):
            row[hide_items[t]], sums[hide_items[t]] = -np.inf, -np.inf
        held, count = 0, 0
        for i in range(len(row)):
            if row[i] == -np.inf:
                if sums[i] > -np.inf:
                    chosen[count] = i
                    count += 1
                continue
            total = row[i] + sums[i]
            far = rounding * (norms[u] * lengths[i] + abs(sums[i]))
            if held < len(best) or (total + far) * factor[i] >= best[0]:
                chosen[count] = i
                count += 1
                held = _offer((total - far) * factor[i], i, top, best, held, order)
        kept = 0
        for t in range(count):
            i = chosen[t]
            far = rounding * (norms[u] * lengths[i] + abs(sums[i]))
            if row[i] == -np.inf or held < len(best) or (row[i] + sums[i] + far) * factor[i] >= best[0]:
                chosen[kept], row[kept] = i, sums[i]
                kept += 1
        _add_terms(chosen, kept, V, h, 0, len(h), row)
        for i in range(len(sums)):
            sums[i] = -np.inf
        for t in range(kept):
            sums[chosen[t]] = row[t]


@kernel
def add_where_best_of_one(
    h, V, reach, lengths, rounding, underflow, factor, had, hidden, order,
    tried, tried_sums, top, best, chosen, sums, out,
):  # fmt: skip
    """Add V·h to `out`, the scores of one user, as `add_where_best` does, but without an approximate product.

    The items with the largest scores before V·h are `tried` first; their k-th best score is a lower bound for
    the best. V·h adds at most ‖v‖·‖h‖ to a score (Cauchy-Schwarz), so few other items can reach the bound,
    and fewer still after half of the terms. Sums of items in the history are computed in any case.

    `reach` has ‖h‖ of the whole vector and of its second half, enlarged by `rounding`; `lengths` has ‖v‖
    likewise. `top` and `best` are scratch of length k; `chosen` and `sums` have an entry per item.
    """
    half, end = len(h) // 2, len(h)
    for t in range(len(hidden)):
        out[hidden[t]] = -np.inf
    own, held, full = 0, 0, 0
    for t in range(len(had)):
        i = had[t]
        if out[i] > -np.inf:
            chosen[own], sums[own], out[i] = i, out[i], -np.inf
            own += 1
    for i in range(len(out)):
        score = out[i] * factor[i]
        if score > -np.inf and (held < len(tried) or score >= tried_sums[0]):
            held = _offer(score, i, tried, tried_sums, held, order)
    for t in range(held):
        tried_sums[t] = out[tried[t]]
    _add_terms(tried, held, V, h, 0, end, tried_sums)
    for t in range(held):
        full = _offer(tried_sums[t] * factor[tried[t]], tried[t], top, best, full, order)
    enough = -np.inf
    if full == len(best):
        enough = best[0] - rounding * abs(best[0]) - underflow
    count, left = own, own
    for i in range(len(out)):
        if out[i] > -np.inf and (out[i] + reach[0] * lengths[0, i]) * factor[i] >= enough:
            chosen[count], sums[count] = i, out[i]
            count += 1
        out[i] = -np.inf
    _add_terms(chosen, count, V, h, 0, half, sums)
    for t in range(own, count):
        i, total = chosen[t], sums[t]
        if (total + reach[1] * lengths[1, i]) * factor[i] >= enough:
            chosen[left], sums[left] = i, total
            left += 1
    _add_terms(chosen, left, V, h, half, end, sums)
    for t in range(left):
        out[chosen[t]] = sums[t]


@inner
def _add_terms(items, count, V, h, first, last, sums):
    """Add the terms first to last of V·h to the `sums` of some items, one after the other.

    Four items are summed at once, because an addition waits only for the previous one to the same sum.
    """
    many = count - count % 4
    for t in range(0, many, 4):
        v0, v1, v2, v3 = V[items[t]], V[items[t + 1]], V[items[t + 2]], V[items[t + 3]]
        sum0, sum1, sum2, sum3 = sums[t], sums[t + 1], sums[t + 2], sums[t + 3]
        for f in range(first, last):
            sum0 += v0[f] * h[f]
            sum1 += v1[f] * h[f]
            sum2 += v2[f] * h[f]
            sum3 += v3[f] * h[f]
        sums[t], sums[t + 1], sums[t + 2], sums[t + 3] = sum0, sum1, sum2, sum3
    for t in range(many, count):
        v0 = V[items[t]]
        for f in range(first, last):
            sums[t] += v0[f] * h[f]


@kernel
def select_dense(scores, hide_ptr, hide_items, order, out_items, out_scores):
    """Choose the best items of each row of scores, best first; −∞ is never chosen."""
    for u in range(len(scores)):
        row, items, best = scores[u], out_items[u], out_scores[u]
        for t in range(hide_ptr[u], hide_ptr[u + 1]):
            row[hide_items[t]] = -np.inf
        k, held = len(items), 0
        for i in range(len(row)):
            # Test here first: most items fail, and a call for each would be slow.
            if row[i] > -np.inf and (held < k or row[i] >= best[0]):
                held = _offer(row[i], i, items, best, held, order)
        _sort(items, best, held, order)


@kernel
def select_sparse(
    ptr, items, scores, hide_ptr, hide_items, base, best_first, order, marks, out_items, out_scores, evidence
):
    """Choose the best items of each row: score the listed items by `scores`, and all others by `base`.

    `marks` is scratch, 0 before and after; meanwhile it is 1 for a listed item and 2 for a hidden one.
    """
    for u in range(len(out_items)):
        found, best = out_items[u], out_scores[u]
        k, held = len(found), 0
        for t in range(ptr[u], ptr[u + 1]):
            marks[items[t]] = 1
        for t in range(hide_ptr[u], hide_ptr[u + 1]):
            marks[hide_items[t]] = 2
        for t in range(ptr[u], ptr[u + 1]):
            if marks[items[t]] == 1 and (held < k or scores[t] >= best[0]):
                held = _offer(scores[t], items[t], found, best, held, order)
        for i in best_first:
            if held == k and not _worse(best[0], found[0], base[i], i, order):
                break
            if marks[i] == 0:
                held = _offer(base[i], i, found, best, held, order)
        _sort(found, best, held, order)
        for rank in range(held):
            evidence[u, rank] = marks[found[rank]] == 1
        for t in range(ptr[u], ptr[u + 1]):
            marks[items[t]] = 0
        for t in range(hide_ptr[u], hide_ptr[u + 1]):
            marks[hide_items[t]] = 0


@kernel
def weights_between(B_ptr, B_items, B_values, had, targets, out):
    """Write B[had, targets] into `out`, which is zero before; the items in a row of B ascend."""
    for a in range(len(had)):
        for b in range(len(targets)):
            end = B_ptr[had[a] + 1]
            t = first_at_least(targets[b], B_items, B_ptr[had[a]], end)
            if t < end and B_items[t] == targets[b]:
                out[a, b] = B_values[t]


@kernel
def add_sparse(user_ptr, items, values, first, last, B_ptr, B_items, B_values, column, out):
    """Add x·B of users first to last to `out`; item i goes to column column[i], or nowhere if that is −1."""
    for u in range(first, last):
        scores = out[u - first]
        for t in range(user_ptr[u], user_ptr[u + 1]):
            j, x = items[t], values[t]
            for q in range(uint64(B_ptr[j]), uint64(B_ptr[j + 1])):
                i = column[B_items[q]]
                if i >= 0:
                    scores[i] += x * B_values[q]


@kernel
def ranks_of_hidden(
    base, low, weight, factor, seen_ptr, seen_items, hidden_ptr, hidden_items, k, first, last, row, ranks
):
    """Write the rank of each hidden item of users first to last, among all items that the user has not seen.

    The scores are (base + weight·low) · factor; of tied items, the hidden one ranks last. Counting stops once
    a rank exceeds k, so that a number above k means only that. `row` is scratch for the scores of a user.
    """
    for u in range(first, last):
        of_base, of_low = base[u], low[u]
        for i in range(len(row)):
            row[i] = (of_base[i] + weight * of_low[i]) * factor[i]
        for t in range(seen_ptr[u], seen_ptr[u + 1]):
            row[seen_items[t]] = -np.inf
        for t in range(hidden_ptr[u], hidden_ptr[u + 1]):
            score, count, start = row[hidden_items[t]], 0, 0
            while start < len(row) and count <= k:
                stop = min(start + _COUNTED, len(row))
                for i in range(start, stop):
                    count += row[i] >= score
                start = stop
            ranks[t] = count
