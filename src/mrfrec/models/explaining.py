"""What each item of a history adds to a score."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import Contribution

Array = npt.NDArray[Any]
WeightsBetween = Callable[[Array, Array, Array], npt.NDArray[np.float64]]

_AT_ONCE = 100_000  # weights from a history to its recommended items: some megabytes


def contributions(
    weights_between: WeightsBetween, had: Array, values: Array, targets: Array, most: int | None = None
) -> list[list[Contribution]]:
    """Return x_j·B_ji of the items j of one history for each target i: the largest first, `most` of them."""
    weights = weights_between(had, values, targets)
    x = values.astype(np.float64)
    # In float64, where a product of two float32 is exact.
    order = np.lexsort((np.broadcast_to(had[:, None], weights.shape), -x[:, None] * weights), axis=0)[:most]
    chosen = had[order], x[order], weights[order, np.arange(len(targets))]
    parts = (each.T.tolist() for each in chosen)
    return [list(map(Contribution, *of_target)) for of_target in zip(*parts, strict=True)]


def reasons(
    weights_between: WeightsBetween, histories: Rows, items: npt.NDArray[np.int32], most: int
) -> list[list[list[Contribution]]]:
    """Return the largest positive contributions to each recommended item, of users × k items."""
    found = []
    for u, recommended in enumerate(items):
        span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
        had, values, there = histories.items[span], histories.values[span], recommended[recommended >= 0]
        step = max(1, _AT_ONCE // max(len(had), 1))
        positive = [
            [c for c in parts if c.amount > 0]
            for first in range(0, len(there), step)
            for parts in contributions(weights_between, had, values, there[first : first + step], most)
        ]
        found.append(positive + [[] for _ in range(len(recommended) - len(positive))])
    return found
