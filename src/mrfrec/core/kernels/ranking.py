"""Scores and rankings."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.sorting import first_at_least

_COUNTED = 512  # scores between two looks at whether a place is beyond those that count


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
    """Write base + x·B of users first to last, for the items with evidence alone.

    `scores` are those of `base`, and nothing is `marked`, before and after.
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
        for place in range(start, end):
            i = uint64(found[place])
            out[place] = scores[i]
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
    """Add V·h to `out`, users × items, with h in the columns of `vectors`; `sums` is for as many users.

    Terms are added one after the other, four in each round.
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
    """Ranked lower: a smaller score, or the same score and a later place in the order."""
    return score < than_score or (score == than_score and order[item] > order[than_item])


@inner
def _sift_down(items, scores, root, length, order):
    """Restore the heap, worst on top, below `root`."""
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
    """Keep an item if it is among the best so far; returns how many are kept."""
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
    """Put the kept items in order, best first, and empty the other places."""
    if held < len(items):
        for root in range(held // 2 - 1, -1, -1):
            _sift_down(items, best, root, held, order)
    for length in range(held - 1, 0, -1):
        items[0], items[length] = items[length], items[0]
        best[0], best[length] = best[length], best[0]
        _sift_down(items, best, 0, length, order)
    for place in range(held, len(items)):
        items[place], best[place] = -1, -np.inf


@kernel
def add_where_best(
    about, vectors, V, norms, lengths, rounding, factor, hide_ptr, hide_items, order, chosen, top, best, out
):
    """Add V·h to `out`, users × items, for all items that may be among the best; the others get −∞.

    `about` has V·h up to rounding, a share of ‖h‖·‖v‖ and of what is in `out`, and −∞ for items that are not
    compared: their sums are wanted in any case. h are the rows of `vectors`, `norms` and `lengths` are ‖h‖
    and ‖v‖. As scratch, `chosen` has a place per item, `top` and `best` one for each of the k best.
    Terms are added one after the other, as in `add_low_rank`.
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
    """Add V·h to `out`, the scores of one user, as `add_where_best` does, without any product beforehand.

    The k-th best of a few items with the largest scores, those `tried`, is what the best reach. V·h adds at
    most ‖v‖·‖h‖ to a score (Cauchy-Schwarz): few items can reach that, and still fewer after half of the
    terms. The sums of items in the history are wanted in any case.

    `reach` and `lengths` have ‖h‖ and ‖v‖, then those of the second halves; `reach` includes a share
    `rounding`. As scratch, `top` and `best` have k places, `chosen` and `sums` one for each item.
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

    An addition waits for the one before it, but not for those of three other items.
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
            # Most are not, which a call would be slow to tell.
            if row[i] > -np.inf and (held < k or row[i] >= best[0]):
                held = _offer(row[i], i, items, best, held, order)
        _sort(items, best, held, order)


@kernel
def select_sparse(
    ptr, items, scores, hide_ptr, hide_items, base, best_first, order, marks, out_items, out_scores, evidence
):
    """Choose the best items of each row: those with scores of their own, and the others by base score.

    `marks` are 0 before and after; meanwhile 1 for an item with a score of its own, 2 for a hidden one.
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
        for place in range(held):
            evidence[u, place] = marks[found[place]] == 1
        for t in range(ptr[u], ptr[u + 1]):
            marks[items[t]] = 0
        for t in range(hide_ptr[u], hide_ptr[u + 1]):
            marks[hide_items[t]] = 0


@kernel
def weights_between(B_ptr, B_items, B_values, had, targets, out):
    """Write B[had, targets] into `out`, which holds zeros; the items of each row of B ascend."""
    for a in range(len(had)):
        for b in range(len(targets)):
            end = B_ptr[had[a] + 1]
            place = first_at_least(targets[b], B_items, B_ptr[had[a]], end)
            if place < end and B_items[place] == targets[b]:
                out[a, b] = B_values[place]


@kernel
def add_sparse(user_ptr, items, values, first, last, B_ptr, B_items, B_values, column, out):
    """Add x·B of users first to last to `out`; column `column[i]` of it is item i, unless that is below 0."""
    for u in range(first, last):
        scores = out[u - first]
        for t in range(user_ptr[u], user_ptr[u + 1]):
            j, x = items[t], values[t]
            for q in range(uint64(B_ptr[j]), uint64(B_ptr[j + 1])):
                i = column[B_items[q]]
                if i >= 0:
                    scores[i] += x * B_values[q]


@kernel
def places_of_hidden(
    base, low, weight, factor, seen_ptr, seen_items, hidden_ptr, hidden_items, k, first, last, row, places
):
    """Write the place of each hidden item of users first to last, among all items but those seen.

    The scores are (base + weight·low) · factor, and an item comes after all those that tie with it. Places
    beyond k are not counted to the end, and any number above k stands for them. `row` is scratch space for a
    user's scores.
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
            places[t] = count
