"""Eq. 4, computed in tiles of the lower triangle of a row-major matrix."""

import numpy as np

from mrfrec.core.kernels.compile import array_kernel, kernel
from mrfrec.core.kernels.intrinsics import fortran
from mrfrec.core.kernels.rows import add_firsts


@kernel
def dense_rows(X, scaling, diagonal, first, last, accumulator, S):
    """Compute rows first to last of the lower triangle of S, including the diagonal."""
    a, g = scaling.a, scaling.g
    for i in range(first, last):
        add_firsts(X, X.rank, i, accumulator)
        ai, gi = a[i], g[i]
        for j in range(i):
            S[i, j] = accumulator[j] * (ai * a[j]) - gi * g[j]
            accumulator[j] = 0
        S[i, i] = diagonal[i]


# BLAS is column-major: a row-major product C = A·B is the column-major product Cᵀ = Bᵀ·Aᵀ, and a
# row-major lower triangle L is the column-major upper triangle Lᵀ. A call covers the rows of one tile at
# most, so that no index inside BLAS comes near 2³¹, however many items there are.

_L, _R, _U, _N, _T = ord("L"), ord("R"), ord("U"), ord("N"), ord("T")


@kernel
def factor_update(lapack, A, k0, k1, i0, i1):
    """A[i, k] −= L[i, :k]·L[k, :k]ᵀ."""
    m, one = A.shape[0], A.dtype.type(1.0)
    if k0 > 0:
        fortran(lapack.gemm, (_T, _N, k1 - k0, i1 - i0, k0, -one, A[k0:], m, A[i0:], m, one, A[i0:, k0:], m))


@kernel
def factor_diagonal(lapack, A, k0, k1, pair_end):
    """Compute L[k, k], the Cholesky factor of A[k, k]; return False if there is none.

    Entries above the diagonal become zero up to the end of the pair of tiles, so that one product can read
    both tiles.
    """
    info = fortran(lapack.potrf, (_U, k1 - k0, A[k0:, k0:], A.shape[0], 0))
    for i in range(k0, k1):
        for j in range(i + 1, pair_end):
            A[i, j] = 0
    return info == 0


@kernel
def factor_panel(lapack, A, k0, k1, i0, i1):
    """L[i, k] = A[i, k]·L[k, k]⁻ᵀ."""
    m, one = A.shape[0], A.dtype.type(1.0)
    fortran(lapack.trsm, (_L, _U, _T, _N, k1 - k0, i1 - i0, one, A[k0:, k0:], m, A[i0:, k0:], m))


@kernel
def invert_factor_tiles(lapack, A, panel, i0, i1, j0, j1):
    """W[i, j] = −L[i, i]⁻¹·L[i, j:i]·W[j:i, j], with W = L⁻¹; `panel` is a copy of L[i, :i]."""
    m, one, zero = A.shape[0], A.dtype.type(1.0), A.dtype.type(0.0)
    n, k, W = j1 - j0, i1 - i0, A[i0:, j0:]
    fortran(
        lapack.gemm, (_N, _N, n, k, i0 - j0, one, A[j0:, j0:], m, panel[:, j0:], panel.shape[1], zero, W, m)
    )
    fortran(lapack.trsm, (_R, _U, _N, _N, n, k, -one, A[i0:, i0:], m, W, m))


@kernel
def invert_factor_diagonal(lapack, A, i0, i1):
    """W[i, i] = L[i, i]⁻¹, which exists: a Cholesky factor has a positive diagonal."""
    fortran(lapack.trtri, (_U, _N, i1 - i0, A[i0:, i0:], A.shape[0], 0))


@kernel
def multiply_factor_tiles(lapack, A, tile, i0, i1, j0, j1):
    """tile = C[i, j] = W[i:, i]ᵀ·W[i:, j]."""
    m, one, zero = A.shape[0], A.dtype.type(1.0), A.dtype.type(0.0)
    n, k, width = j1 - j0, i1 - i0, tile.shape[1]
    fortran(lapack.gemm, (_N, _T, n, k, m - i0, one, A[i0:, j0:], m, A[i0:, i0:], m, zero, tile, width))


@array_kernel
def symmetric_product(C, i0, i1, x):
    """Return the contribution of rows i0 to i1 of the lower triangle of a symmetric C to C·x."""
    y = np.zeros(C.shape[0], np.float64)
    for i in range(i0, i1):
        total = 0.0
        for j in range(i):
            total += C[i, j] * x[j]
            y[j] += C[i, j] * x[i]
        y[i] += total + C[i, i] * x[i]
    return y


@kernel
def weights_from_inverse(C, z, column_factor, row_factor, i0, i1, tile):
    """B_ji = −P_ji/P_ii·s_i/s_j with P = C − z·zᵀ, in place: rows i0 to i1 and their mirror image."""
    for j0 in range(0, i1, tile):
        j1 = min(j0 + tile, i1)
        for i in range(i0, i1):
            for j in range(j0, min(j1, i)):
                p = -(C[i, j] - z[i] * z[j])
                C[i, j] = p * row_factor[i] * column_factor[j]
                C[j, i] = p * row_factor[j] * column_factor[i]
    for i in range(i0, i1):
        C[i, i] = 0
