"""Explain a score: what each item of a history adds to it."""

from collections.abc import Callable
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.answers.columns import Contribution
from mrfrec.answers.people import people_of
from mrfrec.answers.question import Boost, check_boost, check_novelty
from mrfrec.answers.rules import lift_of, lifted
from mrfrec.core.rows import Rows
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.scorers import novelty_factors
from mrfrec.fitted.state import FittedState

Array = npt.NDArray[Any]
WeightsBetween = Callable[[Array, Array, Array], npt.NDArray[np.float64]]

_WEIGHTS_AT_ONCE = 100_000  # weights from a history to its recommended items: some megabytes


def check_explains(fitted: FittedState) -> None:
    """Refuse a model whose scores are no sums over the items of a history."""
    if not fitted.learned.explains:
        raise DataError(
            f"a {fitted.kind} cannot explain: its scores are no sums over the items of a "
            "history. MRF, EASE, EDLAE and ItemKNN can."
        )


def added_novelty(fitted: FittedState, novelty: float | None) -> float:
    """Return the difference between this novelty and the one the model was fitted with."""
    if novelty is None:
        return 0.0
    if not fitted.learned.scales_scores:
        raise DataError(
            f"a {fitted.kind} takes no novelty: its scores are no sums of weights, and dividing "
            "them by popularity means nothing. MRF, EASE, EDLAE and ItemKNN do."
        )
    return novelty - fitted.novelty


def explanation(
    fitted: FittedState,
    item: Id,
    *,
    user: Id | None = None,
    history: object = None,
    novelty: float | None = None,
    boost: Boost = None,
) -> tuple[list[Contribution], float, float]:
    """Return the contributions of a history to an item's score, largest first, its base score and boost."""
    position = fitted.catalogue.index_of(item)
    check_explains(fitted)
    if (user is None) == (history is None):
        raise ParameterError(
            "user", "given, or else a history", user, "Exactly one of them says whose score."
        )
    contributions, base = explanations(
        fitted, np.array([position]), user=user, history=history, novelty=novelty
    )
    lift, unknown = lift_of(fitted.catalogue, check_boost(boost))
    for each in unknown:
        each.warn()
    plain = np.array([base[0] + fsum(part.amount for part in contributions[0])], np.float64)
    added = 0.0 if lift is None else float((lifted(lift, np.array([position]), plain) - plain)[0])
    return contributions[0], float(base[0]), added


def explanations(
    fitted: FittedState,
    targets: Array,
    *,
    user: Id | None = None,
    history: object = None,
    novelty: float | None = None,
) -> tuple[list[list[Contribution]], Array]:
    """Return the contributions of one history to the scores of several items, and their base scores.

    `targets` are positions of items.
    """
    people = people_of(fitted, None if user is None else [user], history)
    if len(people) != 1:
        raise ParameterError("history", "of one person", history)
    people.warn()
    _, _, rows = next(people.batches())
    more = added_novelty(fitted, check_novelty(novelty))
    places, *factors = _largest(scaled_weights(fitted, more), rows.items, rows.values, targets)
    columns = (each.tolist() for each in (rows.items[places], *factors))
    contributions = [list(map(Contribution, *of_target)) for of_target in zip(*columns, strict=True)]
    base = fitted.base(unknown_user=not len(rows.items), more_novelty=more)
    return contributions, base.scores[targets]


def scaled_weights(fitted: FittedState, more_novelty: float) -> WeightsBetween:
    """Return the function that gives the weights between items, scaled for more novelty."""
    weights_between = fitted.learned.weights_between
    if not more_novelty:
        return weights_between
    factors = novelty_factors(fitted.catalogue.popularity, more_novelty)
    return lambda had, values, targets: weights_between(had, values, targets) * factors[targets]


def _largest(
    weights_between: WeightsBetween, had: Array, values: Array, targets: Array, count: int | None = None
) -> tuple[Array, Array, Array]:
    """Return the places in a history of the items j that add most to each target i, and x_j and B_ji.

    Each is targets × `count`, or × all items of the history: the largest x_j·B_ji first, of equal ones the
    first item.
    """
    weights = weights_between(had, values, targets).T
    x = values.astype(np.float64)
    # In float64, where a product of two float32 is exact.
    places = (-x * weights).argsort(axis=1, kind="stable")[:, :count]
    return places, x[places], weights[np.arange(len(targets))[:, None], places]


def reasons(
    weights_between: WeightsBetween, histories: Rows, items: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return the items of the histories that add most to each of users × k items, and how much they add.

    Both are users × k × `count`, the largest first; item −1 where nothing more adds anything.
    """
    found = np.full((*items.shape, count), -1, np.int32)
    amounts = np.zeros((*items.shape, count))
    for u, recommended in enumerate(items):
        span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
        had, values = histories.items[span], histories.values[span]
        there = recommended[recommended >= 0]
        step = max(1, _WEIGHTS_AT_ONCE // max(len(had), 1))
        for first in range(0, len(there), step):
            places, x, weights = _largest(weights_between, had, values, there[first : first + step], count)
            part = u, slice(first, first + len(places)), slice(places.shape[1])
            amounts[part] = x * weights
            found[part] = np.where(amounts[part] > 0, had[places], -1)
    return found, amounts
