"""Factorise and solve small systems, panel by panel.

LAPACK is made for large matrices and slow with some hundred unknowns. Here only the columns of a panel are
updated one after the other, as sums of columns, which compilers turn into vector instructions; everything
else is a product of matrices. These lie in one flat array, column by column, at an offset each. Indices are
unsigned, since code that must expect negative ones is not vectorised.
"""

import numpy as np
from numba import uint64

from mrfrec.core.kernels.compile import inner
from mrfrec.core.kernels.intrinsics import fortran

_PANEL = 32  # columns
_STRIP = 96  # columns in a product: what it computes above the diagonal is in vain
_N, _T = ord("N"), ord("T")


@inner
def factorise(lapack, k, A):
    """Replace the lower triangle of A, k × k, by L with A = L·Lᵀ; return whether A is positive definite."""
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
    """Replace the d × n matrix at Y by Y·L⁻¹. The n × n triangle at L is part of a matrix with k rows."""
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
    """Subtract `count` columns from the one at `to`, all of n numbers and each times its factor."""
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
