"""Accuracy of rankings, user by user, as Liang et al. (2018) define it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

__all__ = ["Mean", "mean_of", "ndcg", "recall"]


class Mean(NamedTuple):
    """A mean over users and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


def mean_of(values: npt.NDArray[np.float64]) -> Mean:
    """The mean of one number per user."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Mean(float(np.mean(values)), error)


def _hits(ranked: npt.NDArray[np.int32], targets: sp.csr_array, k: int) -> npt.NDArray[np.bool_]:
    """Users × k: whether the item at each place is a target; place −1 never is."""
    owner = np.repeat(np.arange(targets.shape[0], dtype=np.int64), np.diff(targets.indptr))
    wanted = owner * targets.shape[1] + targets.indices
    listed = np.arange(len(ranked), dtype=np.int64)[:, None] * targets.shape[1] + ranked[:, :k]
    return np.isin(listed, wanted) & (ranked[:, :k] >= 0)


def recall(ranked: npt.NDArray[np.int32], targets: sp.csr_array, k: int) -> npt.NDArray[np.float64]:
    """Hits among the first k ÷ the most there could be, min(k, targets)."""
    most = np.minimum(np.diff(targets.indptr), k)
    return np.asarray(_hits(ranked, targets, k).sum(axis=1) / most)


def ndcg(ranked: npt.NDArray[np.int32], targets: sp.csr_array, k: int) -> npt.NDArray[np.float64]:
    """Hits at place p count 1/log₂(p + 1); divided by what a perfect list would get."""
    gain = 1.0 / np.log2(np.arange(2, k + 2))
    best = np.concatenate([[0.0], np.cumsum(gain)])[np.minimum(np.diff(targets.indptr), k)]
    hits = _hits(ranked, targets, k)
    return np.asarray((hits * gain[: hits.shape[1]]).sum(axis=1) / best)
