"""New items in an MRF: weights from their features, on the scale of the scores of used items."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import warn
from mrfrec.core.engine import Engine
from mrfrec.core.fitting import sizes_of
from mrfrec.core.low_rank import LowRank
from mrfrec.core.new_items import (
    MOST_OF_ALIKE,
    columns_of_alike,
    new_columns,
    sample_of_used,
    shares_of_alike,
)
from mrfrec.core.plan import Settings
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError
from mrfrec.fitted.state import FittedState
from mrfrec.io.features import read_more_features
from mrfrec.models.mrf.scoring import (
    columns_of,
    equal_spread,
    sampled_histories,
    scores_of_low_rank,
    scores_of_weights,
    spread,
)
from mrfrec.models.mrf.weights import MRFWeights

Array = npt.NDArray[Any]

_log = logging.getLogger("mrfrec")


def with_new_items(
    learned: "MRFWeights",
    data: "Interactions",
    new: npt.NDArray[np.int64],
    settings: Settings,
    engine: Engine,
    copied: int = 0,
) -> "MRFWeights":
    """Return what was learned, with weights and base scores of new items.

    The weights of a new item are the sum of two parts with equal spread: the solution of its own system, and
    the weights of alike items. If the scale is not known yet, some used items are treated as new: then their
    scores must spread over the users as much as their real scores. With the offset, a new item scores 0 for
    the mean of all users.
    """
    assert data.features is not None
    F, scale = data.features.matrix, learned.new_scale
    sample = np.empty(0, np.int64) if scale else sample_of_used(data.popularity, F)
    held = copied + 2 * learned.weights.nbytes + (learned.low_rank.nbytes if learned.low_rank else 0)
    if isinstance(learned.weights, Rows):
        held += 36 * MOST_OF_ALIKE * (len(new) + len(sample))
    sizes = sizes_of(data.matrix, settings, engine.memory.limit, held, F)
    unscaled, nearest = new_columns(data.matrix, F, np.concatenate([new, sample]), settings, sizes, engine)
    of_sample, alike_scale = unscaled[:, len(new) :], learned.alike_scale
    if not scale:
        alike = columns_of_alike(learned.weights, shares_of_alike(nearest[:, len(new) :]))
        ratio = equal_spread(data.matrix, sample, of_sample, alike)
        scale = _scale(learned, data.matrix, of_sample + ratio * alike, sample)
        alike_scale = ratio * scale
    columns = unscaled[:, : len(new)] * np.asarray(scale, unscaled.dtype)
    if alike_scale:
        alike = columns_of_alike(learned.weights, shares_of_alike(nearest[:, : len(new)]))
        alike *= np.asarray(alike_scale, unscaled.dtype)
        columns = columns + alike
    base_scores = learned.base_scores.copy()
    base_scores[new] = -(learned.mean.astype(unscaled.dtype) @ columns) if learned.offset else 0
    scales = learned.scale.copy()
    scales[new] = scale
    # Items without a known feature come last.
    unknown = np.diff(nearest.indptr)[: len(new)] == 0
    base_scores[new[unknown]] = min(base_scores[new].min(), 0)
    if unknown.any():
        _log.info("%s new items have no feature of a used item", f"{unknown.sum():,}")
    weights = _joined(learned.weights, columns, new)
    learned = replace(learned, scale=scales, new_scale=float(scale), alike_scale=float(alike_scale))
    return replace(learned, weights=weights, base_scores=base_scores)


def with_more_items(
    fitted: FittedState, table: object, item: str | None, query: str | None
) -> "tuple[Interactions, int]":
    """Return the training data with items of a table that nobody has used, and how many are new."""
    known = fitted.catalogue.features
    if known is None:
        raise DataError("add_items needs a model that was fitted with item_features (--item-features).")
    data = fitted.data_for("add_items")
    kept = fitted.catalogue.table
    more = read_more_features(table, known, item, query=query, types=None if kept is None else kept.types)
    wide = data.with_features(known.joined(more))
    if kept is not None and more.table is not None:
        wide = wide.replace(table=kept.joined(more.table))
    count = wide.n_items - data.n_items
    if count < len(more.items):
        warn(f"{len(more.items) - count:,} of {len(more.items):,} items are known, and left as they are")
    return wide, count


def extended(
    learned: "MRFWeights", data: "Interactions", count: int, settings: Settings, engine: Engine
) -> "MRFWeights":
    """Return what was learned, with weights of the last `count` items of the data, which are new."""
    used: dict[str, Any] = dict(learned.values)
    settings = replace(settings, **used)
    arrays: dict[str, Any] = {
        name: _padded(getattr(learned, name), count) for name in ("base_scores", "mean", "scale")
    }
    low = learned.low_rank
    low_rank = None if low is None else LowRank(_padded(low.vectors, count), _padded(low.left, count))
    weights = _widened(learned.weights, count)
    wide = replace(learned, weights=weights, low_rank=low_rank, pattern=None, **arrays)
    return with_new_items(wide, data, np.arange(data.n_items - count, data.n_items), settings, engine)


def _padded(array: Array, count: int) -> Array:
    """Return an array with `count` rows of zeros added."""
    return np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])


def _widened(weights: Rows | DenseRows, count: int) -> Rows | DenseRows:
    """Return weights with empty rows and columns for `count` more items."""
    weights.verify()
    m = weights.width + count
    if isinstance(weights, Rows):
        ptr = np.concatenate([weights.ptr, np.full(count, weights.ptr[-1])])
        return Rows(ptr, weights.items, weights.values, m)
    B = np.zeros((m, m), weights.array.dtype)
    B[:-count, :-count] = weights.array
    return DenseRows(B)


def _scale(learned: "MRFWeights", X: "sp.csr_array", taken: Any, sample: Array) -> float:
    """Return the ratio of the spreads of the scores of used items: as they are, and as if they were new."""
    histories = sampled_histories(X)
    B = columns_of(learned.weights, sample)
    real = scores_of_weights(histories, B) + learned.base_scores[sample]
    if learned.low_rank is not None:
        real = real + scores_of_low_rank(histories, learned.low_rank, sample, B.dtype)
    as_new = scores_of_weights(histories, taken)
    others = histories[:, sample].toarray() == 0
    spreads = [spread(each, others) for each in (real, as_new)]
    return spreads[0] / spreads[1] if spreads[1] > 0 else 1.0


def _joined(weights: Rows | DenseRows, columns: Any, new: Array) -> Rows | DenseRows:
    """Put the weights of new items, m × new, into their columns of B, which are empty so far."""
    if isinstance(weights, DenseRows):
        weights.array[:, new] = columns if isinstance(columns, np.ndarray) else columns.toarray()
        return weights
    m = weights.width
    entries = columns.tocoo()
    wide = sp.csr_array((entries.data, (entries.coords[0], new[entries.coords[1]])), shape=(m, m))
    return Rows.of(sp.csr_array(weights.matrix() + wide))
