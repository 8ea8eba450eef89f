"""Measure η: how much of the weights of alike items is carried over to a new item.

Some used items are left out of the data, and some people; a stand-in is fitted to the rest. The items get
weights as new ones do, from their features, and are ranked among themselves for these people.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import fitting
from mrfrec.core.engine import Engine, Floats
from mrfrec.core.metrics import expected_gains, ideal_gains, mean_and_error
from mrfrec.core.new_items import carried, new_columns, sample_of_used, shares_of_alike
from mrfrec.core.plan import Settings
from mrfrec.data.heldout import hashed, only_entries
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MemoryPlanError
from mrfrec.fitted.measured import Carry
from mrfrec.fitted.scorers import novelty_factors
from mrfrec.models.mrf.held_out import FEWEST_ASKED, choose_users
from mrfrec.models.mrf.scoring import equal_spread, scores_of_weights
from mrfrec.models.mrf.trials import cross_checked, stand_in

CARRIES = (0.0, 0.1, 0.3, 1.0, 3.0)  # values of η
_USERS, _ITEMS, _MOST_ITEMS = 0.2, 0.1, 500  # shares that are left out; held_out bounds the users
_PLACES = 20


class LeftOut(NamedTuple):
    """People and used items that are left out, both chosen by hash."""

    training: sp.csr_array  # other users × all items, without entries of the items left out
    shown: sp.csr_array  # people × all items, likewise
    hidden: sp.csr_array  # people × items left out
    items: npt.NDArray[np.int64]


def left_out(data: Interactions) -> LeftOut | None:
    """Leave out a fifth of the histories and a tenth of the items; None if there are too few."""
    assert data.features is not None
    X, m = data.matrix, data.n_items
    of_item = hashed(data.items, np.arange(m))
    asked, trains = choose_users(X, of_item, _USERS)
    training, histories = X[np.flatnonzero(trains)], X[asked]
    used = np.bincount(training.indices, minlength=m) > 0
    used &= np.bincount(data.features.matrix.indices, minlength=m) > 0
    items = np.flatnonzero(used)
    items = items[np.argsort(of_item[items], kind="stable")]
    items = np.sort(items[: min(int(_ITEMS * len(items)), _MOST_ITEMS)])
    is_left = np.zeros(m, np.bool_)
    is_left[items] = True
    shown, hidden = only_entries(histories, ~is_left[histories.indices]), histories[:, items]
    able = np.flatnonzero((np.diff(shown.indptr) > 0) & (np.diff(hidden.indptr) > 0))
    if len(able) < FEWEST_ASKED:
        return None
    training = only_entries(training, ~is_left[training.indices])
    return LeftOut(training, shown[able], sp.csr_array(hidden[able]), items)


def metrics_of_carries(
    asked: LeftOut,
    data: Interactions,
    settings: Settings,
    novelty: float,
    offset: bool,
    engine: Engine,
    copied: int,
) -> list[Floats]:
    """Return the nDCG@20 of each of the people, by the values of η in `CARRIES`."""
    assert data.features is not None
    X, F = asked.training, data.features.matrix
    popularity = np.bincount(X.indices, minlength=X.shape[1])
    held = copied + sum(part.data.nbytes + part.indices.nbytes for part in asked[:3])
    fitted = fitting.fit(X, settings, engine, features=data.features.of_used(popularity > 0), copied=held)
    weights = fitted.weights.scaled(novelty_factors(popularity, novelty).astype(settings.dtype))
    sizes = fitting.sizes_of(X, settings, engine.memory.limit, held + weights.nbytes, F)
    count, sample = len(asked.items), sample_of_used(popularity, F)
    own, nearest = new_columns(X, F, np.concatenate([asked.items, sample]), settings, sizes, engine)
    others = carried(weights, shares_of_alike(nearest))
    ratio = equal_spread(X, sample, own[:, count:], others[:, count:])
    scores = []
    for columns in (own[:, :count], others[:, :count]):
        found = scores_of_weights(asked.shown, columns)
        scores.append(found - fitted.mean.astype(found.dtype) @ columns if offset else found)
    counts = np.diff(asked.hidden.indptr)
    owner, ideal = np.repeat(np.arange(len(counts)), counts), ideal_gains(counts, _PLACES)
    metrics = []
    for carry in CARRIES:
        gains = expected_gains(scores[0] + carry * ratio * scores[1], asked.hidden, _PLACES)
        metrics.append(np.asarray(np.bincount(owner, gains, len(counts)) / ideal))
    return metrics


def chosen_carry(metrics: list[Floats]) -> int:
    """Return the place of η in `CARRIES`: from 0 upwards, as long as a step gains more than its error."""
    place = 0
    while place + 1 < len(metrics):
        gain, error = mean_and_error(metrics[place + 1] - metrics[place])
        if not gain > error:
            break
        place += 1
    return place


def measured_carry(
    data: Interactions,
    settings: Settings,
    values: Mapping[str, float],
    offset: bool,
    engine: Engine,
    copied: int,
) -> Carry | None:
    """Measure η with these values of other parameters; None without features, people or memory."""
    asked = None if data.features is None else left_out(data)
    if asked is None:
        return None
    of_model = {name: values[name] for name in ("l2", "user_weight", "feature_weight")}
    own = stand_in(replace(settings, **of_model), data.n_items)  # type: ignore[arg-type]
    own = replace(own, rank=0, rank_weight=0.0, half_life=0.0, order=0.0)
    try:
        metrics = metrics_of_carries(asked, data, own, values["novelty"], offset, engine, copied)
    except MemoryPlanError:
        return None
    gain, error = mean_and_error(cross_checked(metrics, chosen_carry))
    return Carry(CARRIES[chosen_carry(metrics)], len(metrics[0]), len(asked.items), gain, error)
