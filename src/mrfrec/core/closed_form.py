"""Eq. 4 and the Appendix: the dense model from one inverse, in place, in tiles.

    C = (S + ridge)⁻¹,    B' = −C ⊘ diag(C) per column, zero diagonal,    B = dMat(1/s)·B'·dMat(s)

One m × m array is all there is: its lower triangle is S, then the Cholesky factor L, then W = L⁻¹, then
C = Wᵀ·W, and at the end both triangles are B. Each of the three steps takes m³/3 flops, nearly all in
products of a tile's rows with long inner dimension, where BLAS is at its best. Every tile is one task with
one BLAS thread, so that the threads share no arithmetic and the result does not depend on their number.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core import kernels
from mrfrec.core.intrinsics import lapack
from mrfrec.core.resources import Workers
from mrfrec.core.statistics import Statistics
from mrfrec.errors import NumericalError

__all__ = ["TILE", "bytes_for_closed_form", "closed_form"]

TILE = 768


def bytes_for_closed_form(m: int, dtype: str, threads: int) -> int:
    """The matrix, a row of tiles, a tile for each thread, and each thread's accumulator."""
    itemsize = np.dtype(dtype).itemsize
    return itemsize * (m * m + TILE * m + threads * TILE * TILE) + 8 * m * (threads + m // TILE + 2)


def closed_form(
    statistics: Statistics,
    ridge: npt.NDArray[np.float64],
    *,
    mean_constraint: bool,
    dtype: str,
    workers: Workers,
) -> npt.NDArray[Any]:
    """B for the dense model. `ridge` is the whole diagonal of S + ridge."""
    m = statistics.m
    A: npt.NDArray[Any] = np.empty((m, m), dtype)
    with workers.stage("matrix", m):
        tasks = statistics.row_tasks()
        workers.run(
            lambda t, accumulator: kernels.dense_rows(
                statistics.X, statistics.scaling, ridge, *t, accumulator, A
            ),
            tasks,
            scratch=statistics.accumulator,
            costs=[stop - start for start, stop in tasks],
        )
    _invert(A, workers)
    with workers.stage("weights", m):
        _weights_in_place(A, statistics, mean_constraint, workers)
    return A


def _invert(A: npt.NDArray[Any], workers: Workers) -> None:
    """Replace the lower triangle of A by that of A⁻¹ (tiled potrf, trtri and lauum)."""
    routines = lapack(A.dtype.name)
    m = len(A)
    tiles = [(start, min(start + TILE, m)) for start in range(0, m, TILE)]
    count = len(tiles)

    with workers.stage("factorise", count * (count + 1) * (count + 2) // 6):  # A = L·Lᵀ
        for k, tile in enumerate(tiles):
            rows = tiles[k:]
            workers.run(
                lambda row, tile=tile: kernels.factor_update(routines, A, *tile, *row),
                rows,
                costs=[k + 1] * len(rows),
            )
            if not kernels.factor_diagonal(routines, A, *tile):
                raise NumericalError(
                    f"the item-item matrix of {m} items is not positive definite in {A.dtype.name}. It may be "
                    "because (a) l2 is too small for items that are nearly copies of each other: raise l2; "
                    'or (b) the precision is too low for this data: use dtype="float64".'
                )
            workers.run(lambda row, tile=tile: kernels.factor_panel(routines, A, *tile, *row), rows[1:])

    panel = np.empty((min(TILE, m), m), A.dtype)
    with workers.stage("invert factor", count * (count - 1) * (count + 1) // 6):  # W = L⁻¹
        for i, tile in enumerate(tiles):
            start, stop = tile
            panel[: stop - start, :start] = A[start:stop, :start]
            workers.run(
                lambda column, tile=tile: kernels.invert_factor_tile(routines, A, panel, *tile, *column),
                tiles[:i],
                costs=range(i, 0, -1),
            )
            kernels.invert_factor_diagonal(routines, A, *tile)
    del panel

    with workers.stage("multiply factor", count * (count + 1) * (count + 2) // 6):  # C = Wᵀ·W

        def multiply(column: tuple[int, int], space: npt.NDArray[Any], tile: tuple[int, int]) -> None:
            kernels.multiply_factor_tile(routines, A, space, *tile, *column)

        for i, tile in enumerate(tiles):
            # The tile on the diagonal is an operand of all the others: it goes last.
            for columns in (tiles[:i], [tile]):
                workers.run(
                    lambda column, space, tile=tile: multiply(column, space, tile),
                    columns,
                    scratch=lambda: np.empty((TILE, TILE), A.dtype),
                    costs=[count - i] * len(columns),
                )


def _weights_in_place(
    C: npt.NDArray[Any], statistics: Statistics, mean_constraint: bool, workers: Workers
) -> None:
    """From the lower triangle of C to B. The Appendix's constraint μᵀB = μᵀ takes a rank-one part off C:

    P = C − C·μ'μ'ᵀ·C / (μ'ᵀ·C·μ'),    B'_ji = −P_ji/P_ii,    μ' = μ ⊘ s
    """
    m = len(C)
    tasks = [(start, min(start + TILE, m)) for start in range(0, m, TILE)]
    costs = [stop - start for start, stop in tasks]
    z = np.zeros(m)
    if mean_constraint:
        mu = statistics.mu * statistics.scaling.a
        z = np.sum(workers.run(lambda t: kernels.symmetric_product(C, *t, mu), tasks), axis=0)
        z /= np.sqrt(mu @ z) if mu.any() else 1.0
    P_diagonal = C.diagonal().astype(np.float64) - z**2
    active = statistics.active
    if not (P_diagonal[active] > 0).all():
        raise NumericalError(
            f"the inverse of the item-item matrix lost its positive diagonal in {C.dtype.name}. "
            'Raise l2 or use dtype="float64".'
        )
    column_factor = np.where(active, statistics.s, 0.0) / np.where(active, P_diagonal, 1.0)
    workers.run(
        lambda t: kernels.weights_from_inverse(C, z, column_factor, statistics.scaling.a, *t, TILE),
        tasks,
        costs=costs,
    )
