"""nDCG and Recall from ranks, and means with their standard errors: for measuring and for evaluations."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Floats


def discounts(k: int) -> Floats:
    """Return the gain 1/log₂(p + 1) of a hit of rank p, for p = 1…k."""
    return np.asarray(1.0 / np.log2(np.arange(2, k + 2)))


def ideal_gains(targets: npt.NDArray[Any], k: int) -> Floats:
    """Return the DCG of a perfect list of k items per user; `targets` has their numbers of targets."""
    return np.asarray(np.append(0.0, np.cumsum(discounts(k)))[np.minimum(targets, k)])


def of_ranks(metric: str, k: int, ranks: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Floats:
    """Return nDCG@k ("ndcg") or Recall@k ("recall") per user, from the ranks of the targets, 1 for the best.

    `ranks` has the targets user by user; `counts` has the number of targets per user, at least one.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    if metric == "recall":
        return np.asarray(np.bincount(owner, ranks <= k, len(counts)) / np.minimum(counts, k))
    gains = np.append(discounts(k), 0.0)[np.minimum(ranks, k + 1) - 1]
    return np.asarray(np.bincount(owner, gains, len(counts)) / ideal_gains(counts, k))


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Return the mean of one number per user, and its standard error; nan for a single user."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error
