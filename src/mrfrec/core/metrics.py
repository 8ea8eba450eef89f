"""nDCG, and means with their standard errors: the arithmetic of measuring, training and evaluations."""

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


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Return the mean of one number per user, and its standard error; nan for a single user."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error
