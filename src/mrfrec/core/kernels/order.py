"""Ordered pairs: predict every entry of a history from earlier ones, in the same pass over pairs as XᵀX.

A user's entries at step p are predicted from v_p = Σ_{step(a) < p} δ^{p − step(a) − 1}·e_a. Let y² be their
weights, W_g the sum of the weights at step g, and A_g = W_{g+1} + δ²·A_{g+1}. A pair of entries at steps
g ≤ h, with lag h − g, adds δ^lag·A_h to C = Σ y²·v·vᵀ and, if g < h, y_h²·δ^(lag − 1) to D = Σ y²·v·eᵀ.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from mrfrec.core.kernels.blocks import factorise, scale_row
from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.intrinsics import fortran
from mrfrec.core.kernels.rows import AHEAD, ask_for, row_cost

LAGS = 64  # Pairs with this lag or a longer one count as unordered.
# Planes of an accumulator: XᵀX, C, D with the row's item as the later one, and D with it as the earlier one.
PLANES = 4


_L, _N, _T = ord("L"), ord("N"), ord("T")  # left or lower, not transposed, transposed


class Order(NamedTuple):
    """What ordered pairs need beyond `Incidence`; its entries are in the same order."""

    step: Any  # (nnz) uint16: the entry's step in the history, from 0; 0 for features
    after: Any  # (nnz) float32: A at the entry's step; 0 for features
    decay: Any  # (LAGS+1) o·δ^lag; 0 at the end
    decay_before: Any  # (LAGS+1) o·δ^(lag − 1); 0 at both ends
    diagonal: Any  # (m) the diagonal of o·C_order


@kernel
def sum_what_follows(user_ptr, values, steps, square, first, last, after, weight):
    """Compute A for the entries of users first to last.

    `square` is δ². `weight` is scratch, one longer than the most steps of a user.
    """
    for u in range(first, last):
        start, stop = uint64(user_ptr[u]), uint64(user_ptr[u + 1])
        end = 0
        for q in range(start, stop):
            end = max(end, steps[q])
        for g in range(end + 1):
            weight[g] = 0.0
        for q in range(start, stop):
            weight[steps[q]] += 1.0 if len(values) == 0 else values[q] * values[q]
        total, at = 0.0, 0.0
        for g in range(end, -1, -1):
            at, weight[g] = weight[g], total
            total = at + square * total
        for q in range(start, stop):
            after[q] = weight[steps[q]]


@kernel
def sum_diagonal(X, order, first, last):
    """Compute the diagonal of o·C_order for items first to last."""
    for i in range(first, last):
        total = 0.0
        for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
            total += order.after[uint64(X.begin[t]) + uint64(X.rank[t])]
        order.diagonal[i] = total * order.decay[0]


@inner
def add_ordered(X, order, i, accumulator):
    """Add row i, up to its diagonal, of XᵀX and of the ordered pairs to the planes of the accumulator.

    Which of two items came first is unpredictable, so the loop does not branch on it.
    """
    end = uint64(len(X.begin))
    binary, even = len(X.values) == 0, len(X.values) == 0 or X.alike
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        soon = t + uint64(AHEAD)
        if soon < end:
            first, count = X.begin[soon], X.rank[soon]
            ask_for(X.items, first, count)
            ask_for(order.step, first, count + 1)
            ask_for(order.after, first, count + 1)
            if not binary:
                ask_for(X.values, first, 1 if even else count + 1)
        start = uint64(X.begin[t])
        own = start + uint64(X.rank[t])
        step, after = np.int64(order.step[own]), np.float64(order.after[own])
        x = 1.0 if binary else X.values[start if even else own]
        for q in range(start, own):
            j = uint64(X.items[q])
            lag = step - np.int64(order.step[q])
            is_earlier = lag < 0  # whether item i came before item j
            distance = uint64(min(np.int64(abs(lag)), np.int64(LAGS)))
            y = x if even else X.values[q]
            other = np.float64(order.after[q])
            accumulator[j, uint64(0)] += x * y
            accumulator[j, uint64(1)] += order.decay[distance] * (other if is_earlier else after)
            weight = y * y if is_earlier else x * x
            accumulator[j, uint64(3 if is_earlier else 2)] += order.decay_before[distance] * weight


@inner
def clear_ordered(X, i, accumulator, cost):
    """Reset row i, up to its diagonal, to zero in all planes, as `clear_row` does in one."""
    if cost > i // 8:
        for j in range(i):
            for plane in range(PLANES):
                accumulator[j, plane] = 0.0
        return
    for t in range(uint64(X.item_ptr[i]), uint64(X.item_ptr[i + 1])):
        start = uint64(X.begin[t])
        for q in range(start, start + uint64(X.rank[t])):
            for plane in range(PLANES):
                accumulator[X.items[q], plane] = 0.0


@kernel
def dense_ordered(X, order, scaling, diagonal, first, last, accumulator, C, D):
    """Compute rows first to last of the lower triangle of C, and the same pairs of D in both triangles."""
    a, g = scaling.a, scaling.g
    for i in range(first, last):
        add_ordered(X, order, i, accumulator)
        for j in range(i):
            scale, product = a[i] * a[j], accumulator[j, 0]
            less = g[i] * g[j]
            C[i, j] = (product + accumulator[j, 1]) * scale - less
            D[j, i] = (product + accumulator[j, 2]) * scale - less
            D[i, j] = (product + accumulator[j, 3]) * scale - less
            for plane in range(PLANES):
                accumulator[j, plane] = 0.0
        C[i, i] = D[i, i] = diagonal[i]


@kernel
def mirror(C, i0, i1, j0, j1):
    """Copy a tile of the lower triangle to the upper one."""
    for i in range(i0, i1):
        for j in range(j0, min(j1, i)):
            C[j, i] = C[i, j]


@kernel
def multiply_rows(lapack, P, D, i0, i1, j0, j1, panel):
    """panel[i, :] = P[i, :]·D[:, j]."""
    m, one, zero = P.shape[0], P.dtype.type(1.0), P.dtype.type(0.0)
    n, k, width = j1 - j0, i1 - i0, panel.shape[1]
    fortran(lapack.gemm, (_N, _N, n, k, m, one, D[:, j0:], m, P[i0:], m, zero, panel[i0:], width))


@kernel
def weights_from_panel(P, panel, i0, i1, j0, j1, less, scale, row_factor, D):
    """Replace D by B_ij = ((P·D)_ij − P_ij·less_j)·scale_j/s_i, with B_ii = 0."""
    for i in range(i0, i1):
        for j in range(j0, j1):
            D[i, j] = (panel[i, j - j0] - P[i, j] * less[j - j0]) * (scale[j] * row_factor[i])
        if j0 <= i < j1:
            D[i, i] = 0.0


@kernel
def gather_ordered(X, order, first, last, item_ptr, block, number, batch, store, accumulator):
    """Do what `gather` does, for C and D: store the targets' rows of D, then the triangle of C."""
    kinds, d = batch.kinds, batch.target
    for i in range(first, last):
        wanted = 0
        for s in range(item_ptr[i], item_ptr[i + 1]):
            wanted += number[s] - 1
        if wanted == 0:
            continue
        cost = row_cost(X, X.rank, i)
        add_ordered(X, order, i, accumulator)
        for s in range(uint64(item_ptr[i]), uint64(item_ptr[i + 1])):
            b = block[s]
            length = uint64(number[s] - 1)
            base, begin = uint64(batch.kind_ptr[b]), uint64(batch.store_ptr[b])
            k = uint64(batch.kind_ptr[b + 1]) - base
            targets = uint64(batch.dependent_ptr[b + 1] - batch.dependent_ptr[b])
            triangle = begin + targets * k + length * (length - uint64(1)) // uint64(2)
            own = d[base + length]
            for t in range(length):
                j = uint64(kinds[base + t])
                product = accumulator[j, 0]
                store[triangle + t] = product + accumulator[j, 1]
                if d[base + t] >= 0:
                    store[begin + uint64(d[base + t]) * k + length] = product + accumulator[j, 3]
                if own >= 0:
                    store[begin + uint64(own) * k + t] = product + accumulator[j, 2]
        clear_ordered(X, i, accumulator, cost)


@kernel
def solve_ordered(lapack, blocks, batch, scaling, diagonal, more, ridge, store, L, at, a, g):
    """Step 3 for ordered pairs: replace each block's rows of D by its estimates.

    B' = P·D − P·dMat(diag(P·D) ⊘ diag(P)) with P = (C + ridge)⁻¹, computed for the columns of the targets
    alone. Targets come last in C + ridge = L·Lᵀ, so that L⁻¹ of a target's unit vector is zero outside the
    corner of the targets.

    `diagonal` is the diagonal of S; `more` is added to it for C. For k items and d targets, the scratch L has
    k² + 2·k·d values, and `at`, a and g have k each. Return the first block that is not positive definite, or
    −1.
    """
    one, zero = store.dtype.type(1.0), store.dtype.type(0.0)
    for b in blocks:
        if batch.member_ptr[b + 1] - batch.member_ptr[b] < 2:
            continue
        base, begin = batch.kind_ptr[b], batch.store_ptr[b]
        k = batch.kind_ptr[b + 1] - base
        d = batch.dependent_ptr[b + 1] - batch.dependent_ptr[b]
        c = k - d
        conditioners = 0
        for t in range(k):
            j = batch.kinds[base + t]
            a[t], g[t] = scaling.a[j], scaling.g[j]
            if batch.target[base + t] >= 0:
                at[t] = c + batch.target[base + t]
            else:
                at[t] = conditioners
                conditioners += 1

        source = begin + d * k
        for t in range(k):
            j = batch.kinds[base + t]
            p = at[t]
            scale_row(store[source : source + t], a, g, a[t], g[t])
            for s in range(t):
                q = at[s]
                L[q * k + p if p > q else p * k + q] = store[source + s]
            source += t
            L[p * k + p] = diagonal[j] + more[j] * (a[t] * a[t]) + ridge[j]
        if not factorise(lapack, k, L):
            return b

        # Behind the factor are 2d columns of length k: D of the targets, then unit vectors.
        right = k * k
        units = right + d * k
        for t in range(k):
            i = batch.target[base + t]
            if i < 0:
                continue
            row = store[begin + i * k : begin + i * k + k]
            row[t] = zero
            scale_row(row, a, g, a[t], g[t])
            row[t] = diagonal[batch.kinds[base + t]]
            for s in range(k):
                L[right + i * k + at[s]] = row[s]
                L[units + i * k + s] = s == c + i
        corner = (L, c * k + c)
        fortran(lapack.trsm, (_L, _L, _N, _N, k, d, one, L, k, (L, right), k))
        fortran(lapack.trsm, (_L, _L, _N, _N, d, d, one, corner, k, (L, units + c), k))
        fortran(lapack.trsm, (_L, _L, _T, _N, k, 2 * d, one, L, k, (L, right), k))
        for i in range(d):
            of_D, of_P = right + i * k, units + i * k
            less = L[of_D + c + i] / L[of_P + c + i]
            for s in range(k):
                store[begin + i * k + s] = L[of_D + at[s]] - L[of_P + at[s]] * less
    return -1
