"""Reasons of recommendations for the page: the contributions of a history, as bars."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import Id
from mrfrec.models.answers.explaining import explanations
from mrfrec.models.recommender import Recommender

_FEW, _MANY = 6, 60  # bars that are always visible; bars before the rest is summed up


def bars_of(
    model: Recommender,
    history: Sequence[Id],
    targets: npt.NDArray[np.int64],
    novelty: float | None,
    rows_by_place: Mapping[int, Any],
) -> list[dict[str, Any]]:
    """Return, for each target, the bars whose amounts add up to its score.

    All bars have one scale, so that those of different items can be compared. `rows_by_place` has the rows of
    the items of the history.
    """
    if not len(targets):
        return []
    found, starts = explanations(model, targets, history=[list(history)], novelty=novelty)
    each = []
    for parts, start in zip(found, starts.astype(np.float64).tolist(), strict=True):
        parts = sorted(parts, key=lambda part: -abs(part.amount))
        bars = [{"item": rows_by_place[part.item], "amount": part.amount} for part in parts[:_MANY]]
        rest = fsum(part.amount for part in parts[_MANY:])
        last = [{"item": None, "label": f"{len(parts) - _MANY:,} others", "amount": rest}]
        bars += last if len(parts) > _MANY else []
        score = fsum([start, *(part.amount for part in parts)])
        each.append({"bars": bars, "base": start, "score": score})
    amounts = [bar["amount"] for one in each for bar in one["bars"]] + [one["base"] for one in each]
    low, high = min(0.0, *amounts), max(0.0, *amounts)
    width = high - low or 1.0
    for one in each:
        for bar in one["bars"]:
            bar |= _bar(bar["amount"], low, width)
        one["base_bar"] = _bar(one["base"], low, width)
        one["zero"] = round(-100 * low / width, 2)
        one["few"], one["rest"] = one["bars"][:_FEW], one["bars"][_FEW:]
        one["rest_amount"] = fsum(bar["amount"] for bar in one["rest"])
    return each


def _bar(amount: float, low: float, width: float) -> dict[str, float]:
    """Return where a bar begins and how long it is, in percent of the widest."""
    start = (min(amount, 0.0) - low) / width
    return {"x": round(100 * start, 2), "length": round(100 * abs(amount) / width, 2)}
