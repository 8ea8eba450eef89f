"""The two parts of an MRF's scores, x·B and x·L: their values for some users, their base and their spread."""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.ages import Times, faded
from mrfrec.core.fitting import Fitted
from mrfrec.core.low_rank import LowRank
from mrfrec.core.plan import Settings
from mrfrec.core.rows import DenseRows, Rows

Array = npt.NDArray[Any]

_SAMPLED_USERS, _SAMPLED_ITEMS = 256, 8192  # whose scores tell how much these spread


def intercept(fitted: Fitted, dtype: str, offset: bool) -> Array:
    """Return μ − μ·B of each item, the part of the conditional mean that no history adds, or else 0."""
    mean = fitted.mean
    if not offset:
        return np.zeros(len(mean), dtype)
    return np.asarray(mean - mean.astype(dtype) @ fitted.weights.matrix()).astype(dtype)


def as_asked(X: sp.csr_array, times: Times | None, settings: Settings) -> sp.csr_array:
    """Return the histories with the values that a fit gives them."""
    return X if times is None or not settings.half_life else faded(X, times, settings.half_life)[0]


def columns_of(weights: Rows | DenseRows, items: npt.NDArray[np.int64]) -> Any:
    """Return the columns of some items, without a copy if these are all."""
    return weights.matrix() if len(items) == weights.width else weights.matrix()[:, items]


def scores_of_weights(histories: sp.csr_array, B: Any) -> Array:
    """Return x·B, users × the columns of B."""
    found = histories.astype(B.dtype) @ B
    return found if isinstance(found, np.ndarray) else np.asarray(found.toarray())


def scores_of_low_rank(
    histories: sp.csr_array, low_rank: LowRank, items: npt.NDArray[np.int64], dtype: Any
) -> Array:
    """Return x·L for some items, users × items; no item counts for itself."""
    h = (histories * low_rank.left[None, :]).astype(dtype) @ low_rank.vectors
    low = np.asarray(h @ columns_without_copy(low_rank.vectors, items).T)
    column = np.full(len(low_rank.left), -1)
    column[items] = np.arange(len(items))
    owner = np.repeat(np.arange(histories.shape[0]), np.diff(histories.indptr))
    place = column[histories.indices]
    own = place >= 0
    low[owner[own], place[own]] -= histories.data[own] * low_rank.diagonal[histories.indices[own]]
    return low


def columns_without_copy(vectors: Array, items: npt.NDArray[np.int64]) -> Array:
    """Return the vectors of some items, without a copy if these are all."""
    return vectors if len(items) == len(vectors) else vectors[items]


def relative_spread(
    X: sp.csr_array, weights: Rows | DenseRows, base_scores: Array, low_rank: LowRank
) -> float:
    """Return how much more the scores of B spread than those of L, over the items that users have not.

    The users and items are samples, evenly spaced; the spread is the root of the mean variance of a user's
    scores.
    """
    m = X.shape[1]
    histories = sampled_histories(X)
    items = np.arange(0, m, max(1, m // _SAMPLED_ITEMS))
    B = columns_of(weights, items)
    others = histories[:, items].toarray() == 0
    of_low = spread(scores_of_low_rank(histories, low_rank, items, B.dtype), others)
    return (
        spread(scores_of_weights(histories, B) + base_scores[items], others) / of_low if of_low > 0 else 0.0
    )


def sampled_histories(X: sp.csr_array) -> sp.csr_array:
    """Return the histories of some users, evenly spaced, who have some of the items but not all."""
    lengths = np.diff(X.indptr)
    users = np.flatnonzero((lengths > 0) & (lengths < X.shape[1]))
    return X[users[:: max(1, len(users) // _SAMPLED_USERS)]]


def equal_spread(X: sp.csr_array, items: npt.NDArray[np.int64], one: Any, other: Any) -> float:
    """Return how much more x·B spreads by one matrix of columns of these items than by another."""
    histories = sampled_histories(X)
    others = histories[:, items].toarray() == 0
    spreads = [spread(scores_of_weights(histories, columns), others) for columns in (one, other)]
    return spreads[0] / spreads[1] if spreads[1] > 0 else 0.0


def spread(scores: Array, others: npt.NDArray[np.bool_]) -> float:
    """Return the root of the mean variance of a user's scores, over the items that the user has not."""
    variances = [
        own[mask].var(dtype=np.float64) for own, mask in zip(scores, others, strict=True) if mask.any()
    ]
    return float(np.sqrt(np.mean(variances))) if variances else 0.0
