"""nDCG and Recall from places, and means with their standard errors.

This is the arithmetic of measuring, training and evaluations.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Floats


def discounts(k: int) -> Floats:
    """Return what a hit counts at each of the places p = 1…k: 1/log₂(p + 1)."""
    return np.asarray(1.0 / np.log2(np.arange(2, k + 2)))


def ideal_gains(targets: npt.NDArray[Any], k: int) -> Floats:
    """Return the DCG of a perfect list of k places for users with `targets` targets each."""
    return np.asarray(np.append(0.0, np.cumsum(discounts(k)))[np.minimum(targets, k)])


def of_places(metric: str, k: int, places: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Floats:
    """Return nDCG@k ("ndcg") or Recall@k ("recall") of users, from the places of their targets from 1 on.

    The targets of one user come after those of the other; `counts` says how many each has, at least one.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    if metric == "recall":
        return np.asarray(np.bincount(owner, places <= k, len(counts)) / np.minimum(counts, k))
    gains = np.append(discounts(k), 0.0)[np.minimum(places, k + 1) - 1]
    return np.asarray(np.bincount(owner, gains, len(counts)) / ideal_gains(counts, k))


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Return the mean of one number per user, and its standard error; nan for a single user."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error
