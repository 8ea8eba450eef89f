"""Eq. 4 and the Appendix: the dense model from one inverse, in place, in tiles.

    C = (S + ridge)⁻¹,    B' = −C ⊘ diag(C) per column, zero diagonal,    B = dMat(1/s)·B'·dMat(s)

All steps share one m × m array: its lower triangle is S, then the Cholesky factor L, then W = L⁻¹, then
C = Wᵀ·W, and at the end both triangles are B. The three steps take m³/3 flops each, nearly all in products of
one or two tiles with a long inner dimension, where BLAS is at its best. A product is one task with one BLAS
thread, so the threads share no arithmetic and the result does not depend on their number.
"""

from functools import partial

import numpy as np

from mrfrec.core import statistics as of_statistics
from mrfrec.core.engine import Array, Engine, Floats, ranges
from mrfrec.core.kernels import closed_form as kernels
from mrfrec.core.kernels import order as of_order
from mrfrec.core.kernels.intrinsics import lapack
from mrfrec.core.plan import Sizes, tile_size
from mrfrec.core.statistics import Statistics, not_positive_definite
from mrfrec.errors import NumericalError


def planned_bytes(sizes: Sizes) -> int:
    """Return the bytes of a dense fit: the matrix, with order two of them, and a row of tiles."""
    m, tile = sizes.items, tile_size(sizes.items)
    matrix = sizes.itemsize * ((1 + sizes.ordered) * m * m + tile * m + tile * tile) + 8 * m * (m // tile + 2)
    return max(of_statistics.planned_bytes(sizes), sizes.held + sizes.scratch + matrix)


def scaled_matrix(statistics: Statistics, dtype: str, engine: Engine) -> Array:
    """Return S, m × m, with only the lower triangle filled."""
    m = statistics.m
    S: Array = np.empty((m, m), dtype)
    with engine.stage("matrix", m):
        tasks = statistics.row_tasks()
        engine.run(
            lambda t, accumulator: kernels.dense_rows(
                statistics.X, statistics.scaling, statistics.S_diagonal, *t, accumulator, S
            ),
            tasks,
            scratch=statistics.accumulator,
            scratch_bytes=8 * m,
            costs=[stop - start for start, stop in tasks],
        )
    return S


def closed_form(
    A: Array, statistics: Statistics, ridge: Floats, *, mean_constraint: bool, engine: Engine
) -> Array:
    """Return B of the dense model, which replaces S; only the lower triangle of S is read."""
    # Items without variance have empty rows; a 1 on their diagonal keeps the matrix regular.
    np.fill_diagonal(A, np.where(statistics.active, statistics.S_diagonal + ridge, 1.0))
    _invert(A, engine)
    with engine.stage("weights", len(A)):
        _weights_in_place(A, statistics, mean_constraint, engine)
    return A


def ordered_closed_form(statistics: Statistics, ridge: Floats, dtype: str, engine: Engine) -> Array:
    """Return B of the dense model with ordered pairs: P·D − P·dMat(diag(P·D) ⊘ diag(P)), rescaled.

    P = (C + ridge)⁻¹ replaces C, and B replaces D, one panel of columns at a time.
    """
    m, order = statistics.m, statistics.order
    assert order is not None
    routines, side = lapack(dtype), tile_size(m)
    tiles = ranges(0, m, side)
    C: Array
    D: Array
    C, D = np.empty((m, m), dtype), np.empty((m, m), dtype)
    with engine.stage("matrix", m):
        tasks = statistics.row_tasks()
        engine.run(
            lambda t, accumulator: of_order.dense_ordered(
                statistics.X, order, statistics.scaling, statistics.S_diagonal, *t, accumulator, C, D
            ),
            tasks,
            scratch=statistics.ordered_accumulator,
            scratch_bytes=8 * of_order.PLANES * m,
            costs=[stop - start for start, stop in tasks],
        )
    diagonal = statistics.S_diagonal + order.diagonal * statistics.scaling.a**2 + ridge
    np.fill_diagonal(C, np.where(statistics.active, diagonal, 1.0))
    _invert(C, engine)
    with engine.stage("weights", m * m):
        squares = [(*rows, *columns) for rows in tiles for columns in tiles if columns <= rows]
        engine.run(lambda t: of_order.mirror(C, *t), squares)
        factor = column_factor(statistics, C.diagonal().astype(np.float64), dtype)
        scale, row_factor = np.where(statistics.active, statistics.s, 0.0), statistics.scaling.a
        panel = np.empty((m, side), dtype)
        steps = [i1 - i0 for i0, i1 in tiles]
        for j0, j1 in tiles:
            width = j1 - j0
            engine.run(
                lambda t, j=(j0, j1): of_order.multiply_rows(routines, C, D, *t, *j, panel),
                tiles,
                costs=[step * width for step in steps],
            )
            # This is diag(P·D) ⊘ diag(P), and 0 for items that take no part.
            less = panel[j0:j1].diagonal() * factor[j0:j1] * row_factor[j0:j1]
            engine.run(
                lambda t, j=(j0, j1), less=less: of_order.weights_from_panel(
                    C, panel, *t, *j, less, scale, row_factor, D
                ),
                tiles,
            )
    return D


def _invert(A: Array, engine: Engine) -> None:
    """Replace the lower triangle of A by that of A⁻¹ (tiled potrf, trtri and lauum).

    Progress counts rows (or columns) times inner dimension, so that its steps take equal time.
    """
    routines = lapack(A.dtype.name)
    m = len(A)
    side = tile_size(m)
    tiles = ranges(0, m, side)
    with engine.stage("factorise", sum((m - k0) * k1 for k0, k1 in tiles)):
        # A = L·Lᵀ, one column of tiles at a time.
        for k0, k1 in tiles:
            below = ranges(k0, m, 2 * side)
            engine.run(
                lambda rows, k=(k0, k1): kernels.factor_update(routines, A, *k, *rows),
                below,
                costs=[(i1 - i0) * k1 for i0, i1 in below],
            )
            pair_end = min(k0 // (2 * side) * 2 * side + 2 * side, m)
            if not kernels.factor_diagonal(routines, A, k0, k1, pair_end):
                raise not_positive_definite(f"the item-item matrix of {m} items", A.dtype.name)
            engine.run(
                lambda rows, k=(k0, k1): kernels.factor_panel(routines, A, *k, *rows), ranges(k1, m, side)
            )
    with engine.stage("invert factor", sum(i0 * i0 // 2 for i0, _ in tiles)):
        panel = np.empty((side, m), A.dtype)
        # W = L⁻¹, one row of tiles at a time.
        for i0, i1 in tiles:
            panel[: i1 - i0, :i0] = A[i0:i1, :i0]
            before = ranges(0, i0, 2 * side)
            engine.run(
                lambda columns, i=(i0, i1): kernels.invert_factor_tiles(routines, A, panel, *i, *columns),
                before,
                costs=[(j1 - j0) * (i0 - (j0 + j1) // 2) for j0, j1 in before],
            )
            kernels.invert_factor_diagonal(routines, A, i0, i1)
    with engine.stage("multiply factor", sum(i1 * (m - i0) for i0, i1 in tiles)):
        corner = np.empty((side, side), A.dtype)

        def multiply(columns: tuple[int, int], space: Array, i: tuple[int, int]) -> None:
            if columns == i:
                # All other products read this tile, so it is replaced when they are done.
                kernels.multiply_factor_tiles(routines, A, corner, *i, *columns)
            else:
                kernels.multiply_factor_tiles(routines, A, space, *i, *columns)
                A[slice(*i), slice(*columns)] = space[: i[1] - i[0], : columns[1] - columns[0]]

        # C = Wᵀ·W, one row of tiles at a time.
        for i0, i1 in tiles:
            before = [*ranges(0, i0, 2 * side), (i0, i1)]
            engine.run(
                partial(multiply, i=(i0, i1)),
                before,
                scratch=lambda: np.empty((side, 2 * side), A.dtype),
                scratch_bytes=2 * side * side * A.itemsize,
                costs=[(j1 - j0) * (m - i0) for j0, j1 in before],
            )
            A[i0:i1, i0:i1] = corner[: i1 - i0, : i1 - i0]


def _weights_in_place(C: Array, statistics: Statistics, mean_constraint: bool, engine: Engine) -> None:
    """Replace C by B; only the lower triangle of C is read.

    The Appendix's constraint μᵀB = μᵀ subtracts a matrix of rank one from C:

    P = C − C·μ'μ'ᵀ·C / (μ'ᵀ·C·μ'),    B'_ji = −P_ji/P_ii,    μ' = μ ⊘ s
    """
    m = len(C)
    tasks = ranges(0, m, tile_size(m))
    z = np.zeros(m)
    if mean_constraint:
        mu = statistics.mu * statistics.scaling.a
        z = np.sum(engine.run(lambda t: kernels.symmetric_product(C, *t, mu), tasks), axis=0)
        z /= np.sqrt(mu @ z) if mu.any() else 1.0
    factor = column_factor(statistics, C.diagonal().astype(np.float64) - z**2, C.dtype.name)
    engine.run(
        lambda t: kernels.weights_from_inverse(C, z, factor, statistics.scaling.a, *t, tile_size(m)),
        tasks,
        costs=[stop - start for start, stop in tasks],
    )


def column_factor(statistics: Statistics, P_diagonal: Floats, dtype: str) -> Floats:
    """Return s ⊘ diag(P), by which the columns of −P are multiplied; 0 for items that take no part."""
    active = statistics.active
    if not (P_diagonal[active] > 0).all():
        raise NumericalError(
            f"the inverse of the item-item matrix has no positive diagonal in {dtype}. It may be because (a) "
            'l2 is too small: raise it; (b) the precision is too low: use dtype="float64"; or (c) '
            "mean_constraint leaves nothing to fit, as with a single item: drop it."
        )
    return np.asarray(np.where(active, statistics.s, 0.0) / np.where(active, P_diagonal, 1.0))
