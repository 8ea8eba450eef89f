"""§3.2: the schedule of blocks, their estimates, and the solver for their small systems."""

from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner, kernel
from mrfrec.core.kernels.intrinsics import fortran
from mrfrec.core.kernels.rows import add_firsts, clear_row, row_cost
from mrfrec.core.kernels.sorting import first_at_least, sort

_PANEL = 32  # columns
# Columns per product. A product also computes entries above the diagonal, which nobody needs.
_STRIP = 96
_N, _T = ord("N"), ord("T")


@kernel
def greedy_schedule(order, column_ptr, neighbors, r, left, heads, sizes):
    """Steps 1, 2 and 4: write the head of every block and its |D|; return the number of blocks.

    `left` must be True for all items, and is False for all of them afterwards.
    """
    blocks = 0
    for i in order:
        if not left[i]:
            continue
        start = column_ptr[i]
        extra = int(np.rint(r * (column_ptr[i + 1] - start)))
        left[i] = False
        for t in range(start, start + extra):
            left[neighbors[t]] = False
        heads[blocks] = i
        sizes[blocks] = 1 + extra
        blocks += 1
    return blocks


@kernel
def list_dependents(heads, dependent_ptr, column_ptr, neighbors, dependents):
    """Write D of each block, ascending."""
    for b in range(len(heads)):
        start, stop = dependent_ptr[b], dependent_ptr[b + 1]
        source = column_ptr[heads[b]] - start - 1
        dependents[start] = heads[b]
        for t in range(start + 1, stop):
            dependents[t] = neighbors[source + t]
        sort(dependents, start, stop, stop)


@kernel
def distinct_sizes(
    first, last, column_ptr, columns, heads, dependent_ptr, dependents, twin, distinct, targets, last_set
):
    """Count the distinct items of each block, and of its dependents; identical items count once.

    `last_set` holds the number of the set in which each item was last counted; it starts at −1.
    """
    for b in range(first, last):
        i = heads[b]
        last_set[twin[i]] = 2 * b
        count = 1
        for t in range(column_ptr[i], column_ptr[i + 1]):
            j = twin[columns[t]]
            count += last_set[j] != 2 * b
            last_set[j] = 2 * b
        distinct[b] = count
        count = 0
        for t in range(dependent_ptr[b], dependent_ptr[b + 1]):
            j = twin[dependents[t]]
            count += last_set[j] != 2 * b + 1
            last_set[j] = 2 * b + 1
        targets[b] = count


class Blocks(NamedTuple):
    """Blocks that are solved together. Identical items of a block are solved as one: its *kinds*."""

    first: int  # the batch is blocks first to last of the schedule
    last: int
    of: int  # number of blocks in the schedule, for progress
    heads: Any  # item i of each block N(i) ∪ {i}
    member_ptr: Any  # block b's items are members[member_ptr[b]:member_ptr[b+1]], ascending
    members: Any
    member_kind: Any  # which of the block's kinds each item is
    kind_ptr: Any  # block b's kinds are kinds[kind_ptr[b]:kind_ptr[b+1]], ascending
    kinds: Any  # the first of the identical items
    copies: Any  # items of this kind in the block
    target: Any  # the kind's row among the block's estimates, −1 if no dependent is of this kind
    dependent_ptr: Any
    dependents: Any  # D, ascending
    store_ptr: Any  # where the block's part of S begins in the store; estimates replace it


@kernel
def find_kinds(batch, twin, first, last, index):
    """Fill in member_kind, kinds, copies and target of some blocks.

    `index` is scratch with an entry per item, −1 before and after.
    """
    for b in range(first, last):
        base, end = batch.kind_ptr[b], batch.kind_ptr[b + 1]
        found = base
        for t in range(batch.member_ptr[b], batch.member_ptr[b + 1]):
            j = twin[batch.members[t]]
            if index[j] < 0:
                index[j] = 0
                batch.kinds[found] = j
                found += 1
        sort(batch.kinds, base, end, end)
        for t in range(base, end):
            index[batch.kinds[t]] = t - base
            batch.copies[t] = 0
            batch.target[t] = -1
        for t in range(batch.member_ptr[b], batch.member_ptr[b + 1]):
            kind = index[twin[batch.members[t]]]
            batch.member_kind[t] = kind
            batch.copies[base + kind] += 1
        for t in range(batch.dependent_ptr[b], batch.dependent_ptr[b + 1]):
            batch.target[base + index[twin[batch.dependents[t]]]] = 0
        row = 0
        for t in range(base, end):
            index[batch.kinds[t]] = -1
            if batch.target[t] == 0:
                batch.target[t] = row
                row += 1


@kernel
def gather(X, first, last, item_ptr, block, number, batch, store, accumulator):
    """Copy rows of XᵀX into the blocks with the item, as packed rows of a strict lower triangle.

    The item is kind `number` of the block, counted from 1. Rows are scaled when a block is solved.
    """
    kinds = batch.kinds
    for i in range(first, last):
        wanted = 0
        for s in range(item_ptr[i], item_ptr[i + 1]):
            wanted += number[s] - 1
        if wanted == 0:
            continue
        cost = row_cost(X, X.rank, i)
        add_firsts(X, X.rank, i, accumulator)
        for s in range(uint64(item_ptr[i]), uint64(item_ptr[i + 1])):
            b = block[s]
            length = uint64(number[s] - 1)
            source = uint64(batch.kind_ptr[b])
            target = uint64(batch.store_ptr[b]) + length * (length - uint64(1)) // uint64(2)
            for t in range(length):
                store[target + t] = accumulator[uint64(kinds[source + t])]
        clear_row(X, i, accumulator, cost)


@inner
def scale_row(row, a, g, ai, gi):
    """Scale the first entries of row i of XᵀX in place, so that they are those of S."""
    for s in range(len(row)):
        row[s] = row[s] * (ai * a[s]) - gi * g[s]


_L, _N, _T = ord("L"), ord("N"), ord("T")  # lower, not transposed, transposed


@kernel
def solve_blocks(lapack, blocks, batch, scaling, diagonal, ridge, store, L, at, a, g):
    """Step 3: replace each block's part of XᵀX by its estimates, the columns of B' for the kinds in D.

    A kind with c copies and ridge λ enters once, with ridge λ/c: for R = (S + λ/c)⁻¹ over the kinds, the
    inverse over the items is  C_ab = R_gh/(c_g·c_h)  between kinds g ≠ h, and within a kind
    C_ab = R_gg/c² − 1/(λc)  plus 1/λ where a = b  (Woodbury's identity). Then B'_ba = −C_ba/C_aa.

    With the conditioners C first and the targets T last, S + λ/c = L·Lᵀ gives the rows T of R alone:
    R_TT = L_TT⁻ᵀ·L_TT⁻¹,  R_TC = −R_TT·L_TC·L_CC⁻¹;  A single target takes one triangular solve.

    For k kinds in the largest block, the scratch L has 2k² + k values, and `at`, a and g have k each.
    Return the first block that is not positive definite, or −1.
    """
    one, zero = store.dtype.type(1.0), store.dtype.type(0.0)
    for b in blocks:
        if batch.member_ptr[b + 1] - batch.member_ptr[b] < 2:
            continue
        base = batch.kind_ptr[b]
        k = batch.kind_ptr[b + 1] - base
        d = 0
        for t in range(base, base + k):
            d += batch.target[t] >= 0
        c = k - d

        # The row of each kind in the matrix: conditioners first, then targets.
        conditioners = 0
        for t in range(k):
            if batch.target[base + t] >= 0:
                at[t] = c + batch.target[base + t]
            else:
                at[t] = conditioners
                conditioners += 1

        # The lower triangle of S, column-major, from the packed rows of XᵀX.
        source = batch.store_ptr[b]
        for t in range(k):
            j, copies = batch.kinds[base + t], batch.copies[base + t]
            a[t], g[t] = scaling.a[j], scaling.g[j]
            scale_row(store[source : source + t], a, g, a[t], g[t])
            p = at[t]
            for s in range(t):
                q = at[s]
                L[q * k + p if p > q else p * k + q] = store[source + s]
            source += t
            if copies > 1 and ridge[j] == 0.0:
                return b
            L[p * k + p] = diagonal[j] + ridge[j] / copies

        if not factorise(lapack, k, L):
            return b
        # Offsets: L_TT, later R_TT, is in the corner of L; scratch begins behind L.
        corner, behind = c * k + c, k * k
        if d == 1:
            last = L[corner]
            L[corner] = one / (last * last)
            for s in range(c):
                L[behind + s] = L[s * k + c] * L[corner]
            if c > 0:
                fortran(lapack.trsv, (_L, _T, _N, c, L, k, (L, behind), 1))
        else:
            for s in range(d * d):
                L[behind + s] = s % (d + 1) == 0
            solve_right(lapack, k, L, corner, d, behind, d)
            inverse, R_TT = (L, behind), (L, corner)
            fortran(lapack.gemm, (_T, _N, d, d, d, one, inverse, d, inverse, d, zero, R_TT, k))
            if c > 0:
                fortran(lapack.gemm, (_N, _N, d, c, d, one, R_TT, k, (L, c), k, zero, (L, behind), d))
                begin = np.int64(0)  # of L_CC; a literal 0 would be compiled for itself
                solve_right(lapack, k, L, begin, c, behind, d)

        # R_TT is in the corner, and −R_TC, d × c, behind the factor. `at` becomes the offset of each kind's
        # column in them, and L[share + s] its factor in every estimate.
        share = 2 * k * k
        for s in range(k):
            copies = store.dtype.type(batch.copies[base + s])
            if at[s] < c:
                at[s], L[share + s] = behind + at[s] * d, one / copies
            else:
                at[s], L[share + s] = corner + (at[s] - c) * k, -one / copies
        for t in range(k):
            i = batch.target[base + t]
            if i < 0:
                continue
            n = store.dtype.type(batch.copies[base + t])
            R = L[corner + i * k + i]
            within = zero
            C = R
            if batch.copies[base + t] > 1:
                per_copy = one / (store.dtype.type(ridge[batch.kinds[base + t]]) * n)
                within = R / (n * n) - per_copy
                C = within + per_copy * n
            scale = one / (n * C)
            row = batch.store_ptr[b] + i * k
            for s in range(k):
                store[row + s] = L[at[s] + i] * (scale * L[share + s])
            store[row + t] = -within / C
    return -1


@kernel
def add_estimates(first, last, column_ptr, columns, batch, store, total, count, kind_of):
    """Add the estimates of a batch to the sums of columns first to last, and count them.

    `kind_of` is scratch with an entry per item, −1 before and after.
    """
    for b in range(len(batch.member_ptr) - 1):
        start, stop = batch.member_ptr[b], batch.member_ptr[b + 1]
        low, high = batch.dependent_ptr[b], batch.dependent_ptr[b + 1]
        if stop - start < 2 or batch.dependents[high - 1] < first or batch.dependents[low] >= last:
            continue
        low = first_at_least(first, batch.dependents, low, high)
        high = first_at_least(last, batch.dependents, low, high)
        if low == high:
            continue
        base, k = batch.kind_ptr[b], batch.kind_ptr[b + 1] - batch.kind_ptr[b]
        for t in range(start, stop):
            kind_of[batch.members[t]] = batch.member_kind[t]
        for s in range(low, high):
            i = batch.dependents[s]
            row = batch.store_ptr[b] + batch.target[base + kind_of[i]] * k
            for t in range(uint64(column_ptr[i]), uint64(column_ptr[i + 1])):
                kind = kind_of[uint64(columns[t])]
                if kind >= 0:
                    total[t] += store[row + kind]
                    count[t] += 1
        for t in range(start, stop):
            kind_of[batch.members[t]] = -1


@kernel
def average_and_rescale(first, last, column_ptr, columns, scale, a, total, count):
    """B = dMat(1/s)·B'·dMat(s), where B' is the average of the estimates."""
    for i in range(first, last):
        for t in range(column_ptr[i], column_ptr[i + 1]):
            if count[t]:
                total[t] *= scale[i] * a[columns[t]] / count[t]


# ── small systems ─────────────────────────────────────────────────────────────────────────────────
#
# LAPACK is made for large matrices and is slow with a few hundred unknowns. Here, only the columns within a
# panel are updated one after the other, by sums of columns that the compiler vectorises; the rest is matrix
# products. Matrices are stored column by column in a flat array, from an offset on. Indices are unsigned: the
# compiler does not vectorise loops whose indices may be negative.


@inner
def factorise(lapack, k, A):
    """Replace the lower triangle of A (k × k) by L, with A = L·Lᵀ; return whether A is positive definite."""
    one = A.dtype.type(1.0)
    for start in range(0, k, _PANEL):
        stop = min(start + _PANEL, k)
        for j in range(start, stop):
            below = start * k + j
            _subtract_columns(A, j * k + j, below, k, below, k, j - start, k - j)
            if not A[j * k + j] > 0:
                return False
            _divide(A, j * k + j, k - j, A[j * k + j] ** A.dtype.type(0.5))
        for first in range(stop, k, _STRIP):
            n, width, rows = k - first, min(_STRIP, k - first), (A, start * k + first)
            rest = (A, first * k + first)
            fortran(lapack.gemm, (_N, _T, n, width, stop - start, -one, rows, k, rows, k, one, rest, k))
    return True


@inner
def solve_right(lapack, k, A, L, n, Y, d):
    """Replace the d × n matrix at offset Y by Y·L⁻¹; the n × n triangle at offset L is part of k rows."""
    one, step = A.dtype.type(1.0), np.int64(1)  # a literal 1 would be compiled for itself
    for start in range((n - 1) // _PANEL * _PANEL, -1, -_PANEL):
        stop = min(start + _PANEL, n)
        if stop < n:
            later, factor, panel = (A, Y + stop * d), (A, L + start * k + stop), (A, Y + start * d)
            fortran(
                lapack.gemm, (_N, _N, d, stop - start, n - stop, -one, later, d, factor, k, one, panel, d)
            )
        for j in range(stop - 1, start - 1, -1):
            diagonal = L + j * k + j
            _subtract_columns(A, Y + j * d, Y + (j + 1) * d, d, diagonal + 1, step, stop - 1 - j, d)
            _divide(A, Y + j * d, d, A[diagonal])


@inner
def _subtract_columns(A, to, column, stride, factor, factor_stride, count, n):
    """Subtract `count` columns of length n, times their factors, from the column at offset `to`."""
    to, column, stride, n = uint64(to), uint64(column), uint64(stride), uint64(n)
    in_fours = count - count % 4
    for p in range(0, in_fours, 4):
        c0 = column + uint64(p) * stride
        c1, c2, c3 = c0 + stride, c0 + uint64(2) * stride, c0 + uint64(3) * stride
        f = factor + p * factor_stride
        f0, f1, f2, f3 = A[f], A[f + factor_stride], A[f + 2 * factor_stride], A[f + 3 * factor_stride]
        for i in range(n):
            A[to + i] -= (f0 * A[c0 + i] + f1 * A[c1 + i]) + (f2 * A[c2 + i] + f3 * A[c3 + i])
    for p in range(in_fours, count):
        c0, f0 = column + uint64(p) * stride, A[factor + p * factor_stride]
        for i in range(n):
            A[to + i] -= f0 * A[c0 + i]


@inner
def _divide(A, at, n, divisor):
    at, n, inverse = uint64(at), uint64(n), A.dtype.type(1.0) / divisor
    for i in range(n):
        A[at + i] *= inverse
