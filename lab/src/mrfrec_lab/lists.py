"""What experiments share: means over users, some of the pairs of a data set, and measures of any rankings."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec import Interactions
from mrfrec.evaluation import Mean, Questions, Split, evaluate_lists

Numbers = npt.NDArray[np.float64]


def mean_of(values: Numbers) -> Mean:
    """Return the mean over users and its standard error, nan for a single user."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return Mean(float(values.mean()), float(error))


def some_pairs(data: Interactions, keep: npt.NDArray[np.bool_]) -> Interactions:
    """Return some of the pairs with their times, and all users and items."""
    X = data.matrix.copy()
    X.data[~keep] = 0
    X.eliminate_zeros()
    times = None if data.times is None else data.times[keep].astype("datetime64[us]")
    return Interactions(X, data.users, data.items, times=times)


def split_of(X: sp.csr_array, targets: sp.csr_array) -> Split:
    """Return a split to measure lists on, of the matrix that was trained on and what is to be guessed.

    Nobody is shown anything: what users had may be in their lists, and is no hit.
    """
    shown = sp.csr_array(targets.shape, dtype=np.float32)
    asked = Questions(Interactions(targets).users, shown, sp.csr_array(targets))
    return Split(Interactions(X), asked, None, "matrices")


def measure_lists(
    lists: npt.NDArray[np.int32], split: Split, metrics: Sequence[str], name: str | None = None
) -> dict[str, Numbers]:
    """Return one number per test user and metric for lists of items, test users × places, best first.

    Lists hold columns of the training matrix, and −1 after the last item.
    """
    user, place = np.nonzero(lists >= 0)
    users, items = (np.array(list(ids)) for ids in (split.test.users, split.training.items))
    frame = pl.DataFrame({"user": users[user], "item": items[lists[user, place]], "rank": place + 1})
    found = evaluate_lists(frame, split, metrics, name=name)
    return {metric: found.per_user(metric) for metric in metrics}
