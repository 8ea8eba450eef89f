"""Scores and rankings."""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import kernel


@kernel
def _score_sparse(items, values, B_ptr, B_items, B_values, scores):
    for t in range(len(items)):
        j, x = items[t], values[t]
        for q in range(uint64(B_ptr[j]), uint64(B_ptr[j + 1])):
            scores[B_items[q]] += x * B_values[q]


@kernel
def _score_dense(items, values, B, scores):
    for t in range(len(items)):
        x, row = values[t], B[items[t]]
        for i in range(len(scores)):
            scores[i] += x * row[i]


@kernel
def score_sparse(user_ptr, items, values, first, last, B_ptr, B_items, B_values, offset, out):
    """x·B (plus the offset) for users first to last."""
    for u in range(first, last):
        out[u] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_sparse(items[span], values[span], B_ptr, B_items, B_values, out[u])


@kernel
def score_dense(user_ptr, items, values, first, last, B, offset, out):
    """x·B (plus the offset) for users first to last."""
    for u in range(first, last):
        out[u] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_dense(items[span], values[span], B, out[u])


@kernel
def _worse(score, item, than_score, than_item, order):
    """Ranked lower: a smaller score, or the same score and a later place in the order."""
    return score < than_score or (score == than_score and order[item] > order[than_item])


@kernel
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


@kernel
def select(scores, order, items, best):
    """The best of the scores, best first, into `items` and `best`; −∞ is never selected."""
    k = len(items)
    items[:] = -1
    best[:] = -np.inf
    held = 0
    for i in range(len(scores)):
        score = scores[i]
        if held == k:
            if score > best[0] or (score == best[0] and order[i] < order[items[0]]):
                best[0], items[0] = score, i
                _sift_down(items, best, 0, k, order)
        elif score > -np.inf:
            best[held], items[held] = score, i
            held += 1
            if held == k:
                for root in range(k // 2 - 1, -1, -1):
                    _sift_down(items, best, root, k, order)
    if held < k:
        for root in range(held // 2 - 1, -1, -1):
            _sift_down(items, best, root, held, order)
    for length in range(held - 1, 0, -1):
        items[0], items[length] = items[length], items[0]
        best[0], best[length] = best[length], best[0]
        _sift_down(items, best, 0, length, order)


@kernel
def top_k_sparse(
    user_ptr,
    items,
    values,
    first,
    last,
    B_ptr,
    B_items,
    B_values,
    offset,
    order,
    hide_seen,
    scores,
    out_items,
    out_scores,
):
    """The best items of users first to last."""
    for u in range(first, last):
        scores[:] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_sparse(items[span], values[span], B_ptr, B_items, B_values, scores)
        if hide_seen:
            for j in items[span]:
                scores[j] = -np.inf
        select(scores, order, out_items[u], out_scores[u])


@kernel
def top_k_dense(
    user_ptr, items, values, first, last, B, offset, order, hide_seen, scores, out_items, out_scores
):
    """The best items of users first to last."""
    for u in range(first, last):
        scores[:] = offset
        span = slice(user_ptr[u], user_ptr[u + 1])
        _score_dense(items[span], values[span], B, scores)
        if hide_seen:
            for j in items[span]:
                scores[j] = -np.inf
        select(scores, order, out_items[u], out_scores[u])
