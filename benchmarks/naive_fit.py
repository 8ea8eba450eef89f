"""A plain implementation of the sparse fit: dense covariances, one general inverse per block.

`benchmarks.bench` compares against it. Like the notebook that was published with the paper, it holds all
covariances and inverts each block; but in float64, and with the sets D and the order of ties that mrfrec has
(docs/method.md says where the notebook departs from the paper).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp


def fit(
    X: sp.csr_array, *, l2: float, alpha: float, threshold: float, r: float, max_neighbors: int = 1000
) -> tuple[npt.NDArray[np.float64], int]:
    """Return B (dense) and the number of blocks."""
    n, m = X.shape
    X = X.astype(np.float64)
    S = np.asarray((X.T @ X).todense())
    mean = np.asarray(X.sum(axis=0)).ravel() / n
    S -= n * np.outer(mean, mean)
    scale = np.diag(S) ** (alpha / 2)
    S /= np.outer(scale, scale)

    size = np.abs(S).astype(np.float32)
    np.fill_diagonal(size, np.inf)
    A = size > np.float32(threshold)
    for i in np.flatnonzero(A.sum(axis=0) > max_neighbors):
        A[:, i] = False
        A[_largest_first(size[:, i], np.arange(m), i, m)[:max_neighbors], i] = True

    popularity = np.asarray((X != 0).sum(axis=0)).ravel()
    gone = np.zeros(m, np.bool_)
    total, count = np.zeros((m, m)), np.zeros((m, m))
    blocks = 0
    for i in np.lexsort((np.arange(m), -popularity, -A.sum(axis=0))):
        if gone[i]:
            continue
        block = np.flatnonzero(A[:, i])
        ranked = _largest_first(size[block, i], block, i, m)
        D = ranked[: 1 + round(r * (len(block) - 1))]
        C = np.linalg.inv(S[np.ix_(block, block)] + l2 * np.eye(len(block)))
        place = np.searchsorted(block, D)
        total[np.ix_(block, D)] -= C[:, place] / np.diag(C)[place]
        count[np.ix_(block, D)] += 1
        blocks += 1
        gone[D] = True
    B = np.where(A & (count > 0), total / np.maximum(count, 1), 0.0) * scale[None, :] / scale[:, None]
    np.fill_diagonal(B, 0.0)
    return B, blocks


def _largest_first(size: npt.NDArray[Any], items: npt.NDArray[Any], i: Any, m: int) -> npt.NDArray[Any]:
    """Sort items by magnitude, i first; ties in cyclic order after i."""
    return items[np.lexsort(((items - i) % m, -size))]
