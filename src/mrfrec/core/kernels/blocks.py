"""§3.2: the schedule, and the blocks from S to estimates."""

from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import kernel
from mrfrec.core.kernels.intrinsics import fortran
from mrfrec.core.kernels.rows import add_row, clear_row, row_cost


@kernel
def greedy_schedule(order, column_ptr, neighbors, r):
    """Steps 1, 2 and 4: the items S that head a block, and |D| for each."""
    m = len(order)
    heads = np.empty(m, np.int32)
    sizes = np.empty(m, np.int64)
    left = np.ones(m, np.bool_)
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
    return heads[:blocks].copy(), sizes[:blocks].copy()


@kernel
def list_dependents(heads, dependent_ptr, column_ptr, neighbors, dependents):
    """D of each block, ascending."""
    for b in range(len(heads)):
        start, stop = dependent_ptr[b], dependent_ptr[b + 1]
        source = column_ptr[heads[b]]
        dependents[start] = heads[b]
        dependents[start + 1 : stop] = neighbors[source : source + stop - start - 1]
        dependents[start:stop] = np.sort(dependents[start:stop])


@kernel
def distinct_sizes(
    first, last, column_ptr, columns, heads, dependent_ptr, dependents, twin, distinct, targets
):
    """How many different items a block has, and how many of them its dependents are."""
    for b in range(first, last):
        i = heads[b]
        start, stop = column_ptr[i], column_ptr[i + 1]
        of_block = np.empty(stop - start + 1, np.int32)
        for t in range(start, stop):
            of_block[t - start] = twin[columns[t]]
        of_block[stop - start] = twin[i]
        distinct[b] = _count_different(of_block)
        of_targets = np.empty(dependent_ptr[b + 1] - dependent_ptr[b], np.int32)
        for t in range(len(of_targets)):
            of_targets[t] = twin[dependents[dependent_ptr[b] + t]]
        targets[b] = _count_different(of_targets)


@kernel
def _count_different(numbers):
    ordered = np.sort(numbers)
    count = 1
    for t in range(1, len(ordered)):
        if ordered[t] != ordered[t - 1]:
            count += 1
    return count


class Batch(NamedTuple):
    """Blocks that are solved together. Identical items of a block are solved as one: its *kinds*."""

    member_ptr: Any  # block b's items are members[member_ptr[b]:member_ptr[b+1]], ascending
    members: Any
    member_kind: Any  # which of the block's kinds each item is
    kind_ptr: Any  # its kinds: the first twin of each, ascending
    kinds: Any
    copies: Any  # items of this kind in the block
    target: Any  # the kind's row among the block's estimates, −1 if no dependent is of this kind
    dependent_ptr: Any
    dependents: Any  # D, ascending
    store_ptr: Any  # where the block's part of S, later its estimates, lies


@kernel
def find_kinds(batch, twin, first, last):
    """Fill in member_kind, kinds, copies and target."""
    for b in range(first, last):
        start, stop = batch.member_ptr[b], batch.member_ptr[b + 1]
        base, K = batch.kind_ptr[b], batch.kind_ptr[b + 1] - batch.kind_ptr[b]
        twins = np.empty(stop - start, np.int32)
        for t in range(stop - start):
            twins[t] = twin[batch.members[start + t]]
        ordered = np.sort(twins)
        place = -1
        for t in range(len(ordered)):
            if t == 0 or ordered[t] != ordered[t - 1]:
                place += 1
                batch.kinds[base + place] = ordered[t]
                batch.copies[base + place] = 0
                batch.target[base + place] = -1
            batch.copies[base + place] += 1
        kinds = batch.kinds[base : base + K]
        for t in range(stop - start):
            straight = stop - start == K and kinds[t] == twins[t]
            batch.member_kind[start + t] = t if straight else np.searchsorted(kinds, twins[t])
        for t in range(batch.dependent_ptr[b], batch.dependent_ptr[b + 1]):
            batch.target[base + np.searchsorted(kinds, twin[batch.dependents[t]])] = 0
        row = 0
        for t in range(base, base + K):
            if batch.target[t] == 0:
                batch.target[t] = row
                row += 1


@kernel
def memberships(batch, m):
    """For each item, the blocks in which it stands for a kind, and its place there."""
    item_ptr = np.zeros(m + 1, np.int64)
    for j in batch.kinds:
        item_ptr[j + 1] += 1
    for j in range(m):
        item_ptr[j + 1] += item_ptr[j]
    slot = item_ptr[:-1].copy()
    block = np.empty(len(batch.kinds), np.int32)
    place = np.empty(len(batch.kinds), np.int32)
    for b in range(len(batch.kind_ptr) - 1):
        for t in range(batch.kind_ptr[b], batch.kind_ptr[b + 1]):
            s = slot[batch.kinds[t]]
            slot[batch.kinds[t]] += 1
            block[s] = b
            place[s] = t - batch.kind_ptr[b]
    return item_ptr, block, place


@kernel
def gather(X, scaling, first, last, item_ptr, block, place, batch, store, accumulator, row):
    """Rows of S into the blocks that hold the item: the strict lower triangle of each, row by row."""
    a, g = scaling.a, scaling.g
    for i in range(first, last):
        wanted = 0
        for s in range(item_ptr[i], item_ptr[i + 1]):
            wanted += place[s]
        if wanted == 0:
            continue
        cost = row_cost(X, i)
        add_row(X, i, accumulator)
        ai, gi = a[i], g[i]
        whole = wanted > i // 2  # then it is cheaper to compute the row of S once
        if whole:
            for j in range(i):
                row[j] = accumulator[j] * (ai * a[j]) - gi * g[j]
                accumulator[j] = 0
        for s in range(uint64(item_ptr[i]), uint64(item_ptr[i + 1])):
            b = block[s]
            length = uint64(place[s])
            source = uint64(batch.kind_ptr[b])
            target = uint64(batch.store_ptr[b]) + length * (length - uint64(1)) // uint64(2)
            if whole:
                for t in range(length):
                    store[target + t] = row[uint64(batch.kinds[source + t])]
            else:
                for t in range(length):
                    j = uint64(batch.kinds[source + t])
                    store[target + t] = accumulator[j] * (ai * a[j]) - gi * g[j]
        if not whole:
            clear_row(X, i, accumulator, cost)


@kernel
def solve_blocks(lapack, blocks, batch, diagonal, ridge, store, work):
    """Step 3. Turns each block's part of S into its estimates: columns of B' for the kinds in D.

    A kind with c copies and ridge λ enters once, with ridge λ/c: for R = (S + λ/c)⁻¹ over the kinds, the
    inverse over the items is  C_ab = R_gh/(c_g·c_h)  between kinds g ≠ h, and within a kind
    C_ab = R_gg/c² − 1/(λc)  plus 1/λ where a = b  (Woodbury's identity). Then B'_ba = −C_ba/C_aa.

    With the conditioners first and the targets T last, S + λ/c = L·Lᵀ gives the columns T of R without the
    others:  R_TT = (L_TT·L_TTᵀ)⁻¹,  R_CT = −L_CC⁻ᵀ·L_TCᵀ·R_TT;  one triangular solve for a single target.

    Returns the block that is not positive definite, or −1.
    """
    one, zero = store.dtype.type(1.0), store.dtype.type(0.0)
    lower, right, left, transposed, plain = ord("L"), ord("R"), ord("L"), ord("T"), ord("N")
    info = np.zeros(1, np.int32)
    for b in blocks:
        if batch.member_ptr[b + 1] - batch.member_ptr[b] < 2:
            continue
        base = batch.kind_ptr[b]
        k = batch.kind_ptr[b + 1] - base
        kinds = batch.kinds[base : base + k]
        copies = batch.copies[base : base + k]
        target = batch.target[base : base + k]
        d = 0
        for t in range(k):
            if target[t] >= 0:
                d += 1
        c = k - d

        # Where each kind stands in the matrix: conditioners from the front, targets behind them.
        at = np.empty(k, np.int64)
        conditioners = 0
        for t in range(k):
            if target[t] >= 0:
                at[t] = c + target[t]
            else:
                at[t] = conditioners
                conditioners += 1

        # The lower triangle, column-major, from the packed rows.
        L = work[: k * k]
        source = batch.store_ptr[b]
        for t in range(k):
            p = at[t]
            for s in range(t):
                q = at[s]
                L[q * k + p if p > q else p * k + q] = store[source + s]
            source += t
            if copies[t] > 1 and ridge[kinds[t]] == 0.0:
                return b
            L[p * k + p] = diagonal[kinds[t]] + ridge[kinds[t]] / copies[t]

        fortran(lapack.potrf, (lower, k, L, k, info))
        if info[0] != 0:
            return b
        if d == 1:
            last = L[k * k - 1]
            L[k * k - 1] = one / (last * last)
            x = L[c * k :]  # the column above: R_CT/R_TT with its sign turned
            for s in range(c):
                x[s] = L[s * k + c]
            if c > 0:
                fortran(lapack.trsv, (lower, transposed, plain, c, L, k, x, 1))
            for s in range(c):
                x[s] *= L[k * k - 1]
        else:
            fortran(lapack.potri, (lower, d, L[c * k + c :], k, info))
            if info[0] != 0:
                return b
            if c > 0:
                L_TC = work[k * k :]  # transposed, c × d, column-major
                for s in range(c):
                    for t in range(d):
                        L_TC[t * c + s] = L[s * k + c + t]
                # The factor's unused corner takes the product.
                fortran(
                    lapack.symm, (right, lower, c, d, one, L[c * k + c :], k, L_TC, c, zero, L[c * k :], k)
                )
                fortran(lapack.trsm, (left, lower, transposed, plain, c, d, one, L, k, L[c * k :], k))

        # Column at[t] of L now holds −R_CT above its diagonal, R_TT from there on (lower triangle).
        for t in range(k):
            if target[t] < 0:
                continue
            i = at[t]
            n = store.dtype.type(copies[t])
            R = L[i * k + i]
            within = zero
            C = R
            if copies[t] > 1:
                per_copy = one / (store.dtype.type(ridge[kinds[t]]) * n)
                within = R / (n * n) - per_copy
                C = within + per_copy * n
            row = batch.store_ptr[b] + target[t] * k
            for s in range(k):
                j = at[s]
                if j < c:
                    store[row + s] = L[i * k + j] / (n * copies[s] * C)
                elif j == i:
                    store[row + s] = -within / C
                else:
                    store[row + s] = -L[i * k + j if j > i else j * k + i] / (n * copies[s] * C)
    return -1


@kernel
def add_estimates(first, last, column_ptr, columns, batch, store, total, count, kind_of):
    """Add the estimates of a batch, block by block, to the entries of A they belong to, in some columns.

    `kind_of` is −1 throughout, before and after.
    """
    for b in range(len(batch.member_ptr) - 1):
        start, stop = batch.member_ptr[b], batch.member_ptr[b + 1]
        D = batch.dependents[batch.dependent_ptr[b] : batch.dependent_ptr[b + 1]]
        if stop - start < 2 or D[-1] < first or D[0] >= last:
            continue
        p, q = np.searchsorted(D, first), np.searchsorted(D, last)
        if p == q:
            continue
        base, k = batch.kind_ptr[b], batch.kind_ptr[b + 1] - batch.kind_ptr[b]
        for t in range(start, stop):
            kind_of[batch.members[t]] = batch.member_kind[t]
        for s in range(p, q):
            i = D[s]
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
