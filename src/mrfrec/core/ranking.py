"""Scores x·B for a batch of users, and the k best of each, without a users × items matrix."""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.kernels import ranking as kernels
from mrfrec.core.resources import Workers

__all__ = ["score", "top_k"]

_USERS_PER_TASK = 64


def score(histories: sp.csr_array, weights: Any, offset: npt.NDArray[Any], threads: int) -> npt.NDArray[Any]:
    """Users × items."""
    out = np.empty(histories.shape, offset.dtype)
    kernel, B = _kernel_and_weights(weights, kernels.score_sparse, kernels.score_dense)
    rows = _rows(histories, offset.dtype)
    with Workers(threads, uses_blas=False) as workers:
        workers.run(lambda t: kernel(*rows, *t, *B, offset, out), _tasks(histories.shape[0]))
    return out


def top_k(
    histories: sp.csr_array,
    weights: Any,
    offset: npt.NDArray[Any],
    k: int,
    exclude_seen: bool,
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Items and scores, users × k; one row of scores per thread is all that is held beside them."""
    n = histories.shape[0]
    items, scores = np.empty((n, k), np.int32), np.empty((n, k), offset.dtype)
    kernel, B = _kernel_and_weights(weights, kernels.top_k_sparse, kernels.top_k_dense)
    rows = _rows(histories, offset.dtype)
    with Workers(threads, uses_blas=False) as workers:
        workers.run(
            lambda t, row: kernel(*rows, *t, *B, offset, exclude_seen, row, items, scores),
            _tasks(n),
            scratch=lambda: np.empty_like(offset),
        )
    return items, scores


def _tasks(n: int) -> list[tuple[int, int]]:
    return [(start, min(start + _USERS_PER_TASK, n)) for start in range(0, n, _USERS_PER_TASK)]


def _rows(histories: sp.csr_array, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], ...]:
    items = histories.indices.astype(np.int32, copy=False).view(np.uint32)
    return histories.indptr.astype(np.int64, copy=False), items, histories.data.astype(dtype, copy=False)


def _kernel_and_weights(weights: Any, for_sparse: Any, for_dense: Any) -> tuple[Any, tuple[Any, ...]]:
    if not sp.issparse(weights):
        return for_dense, (weights,)
    # Sparse weights as scipy keeps them; the views only change how the integers are read.
    ptr = weights.indptr.astype(np.int64, copy=False)
    items = weights.indices
    return for_sparse, (ptr, items.view(np.uint32 if items.itemsize == 4 else np.uint64), weights.data)
