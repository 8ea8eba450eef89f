"""New items in an MRF: weights from their features, and their scale beside the scores of used items."""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.checks import warn
from mrfrec.core.engine import Engine
from mrfrec.core.low_rank import LowRank
from mrfrec.core.plan import Settings
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.errors import DataError
from mrfrec.models.measuring import columns_of, sampled_histories, scores, spread

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.data.interactions import Interactions
    from mrfrec.models.mrf import MRF

Array = npt.NDArray[Any]

_log = logging.getLogger("mrfrec")


@dataclass(frozen=True)
class Learned:
    """The weights of a model and what belongs to them, as its answers use them."""

    weights: Rows | DenseRows
    base_scores: Array
    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    low_rank: LowRank | None
    new_scale: float = 0.0  # of the weights for new items; 0 if there are none


def with_new_items(
    learned: Learned,
    data: "Interactions",
    new: npt.NDArray[np.int64],
    settings: Settings,
    engine: Engine,
    offset: bool,
    copied: int = 0,
) -> Learned:
    """Return what was learned, with weights and base scores of new items.

    If their scale is not known yet, some used items are taken for new ones: their scores then spread as much
    over users as they really do. With the offset, the mean of all users scores 0 for a new item.
    """
    from mrfrec.core.fitting import sizes_of
    from mrfrec.core.new_items import new_columns, sample_of_used

    assert data.features is not None
    F, scale = data.features.matrix, learned.new_scale
    held = copied + 2 * learned.weights.nbytes + (learned.low_rank.nbytes if learned.low_rank else 0)
    sizes = sizes_of(data.matrix, settings, engine.memory.limit, held, F)
    sample = np.empty(0, np.int64) if scale else sample_of_used(data.popularity, F)
    found = new_columns(data.matrix, F, np.concatenate([new, sample]), settings, sizes, engine)
    scale = scale or _scale(learned, data.matrix, found[:, len(new) :], sample)
    columns = found[:, : len(new)] * np.asarray(scale, found.dtype)
    base_scores, scales = learned.base_scores.copy(), learned.scale.copy()
    base_scores[new] = -(learned.mean.astype(found.dtype) @ columns) if offset else 0
    scales[new] = scale
    # Items of which nothing is known come after the others.
    unknown = np.diff(columns.tocsc().indptr) == 0
    base_scores[new[unknown]] = min(base_scores[new].min(), 0)
    if unknown.any():
        _log.info("%s new items have no feature of a used item", f"{unknown.sum():,}")
    weights = _joined(learned.weights, columns, new)
    return replace(learned, weights=weights, base_scores=base_scores, scale=scales, new_scale=float(scale))


def add_items(model: "MRF", table: object, item: str | None, query: str | None) -> int:
    """Add items that nobody has used to a fitted model; return how many were new."""
    from mrfrec.io.features import read_more_features
    from mrfrec.models.storage.updating import training_data

    if not model.uses_features:
        raise DataError(f"add_items needs an MRF: {type(model).__name__} learns from interactions alone.")
    known = model.features_
    if known is None:
        raise DataError("add_items needs a model that was fitted with item_features (--item-features).")
    data = training_data(model, "add_items")
    more = read_more_features(table, known, item, query=query)
    wide = data.with_features(known.joined(more))
    count = wide.n_items - data.n_items
    if count < len(more.items):
        warn(f"{len(more.items) - count:,} of {len(more.items):,} items are known, and left as they are")
    if not count:
        return 0
    new = np.arange(data.n_items, wide.n_items)
    fitted = type(model)(**model.fitted_parameters_)
    settings = replace(fitted._settings, user_weight=model.values_["user_weight"])
    low = model._low_rank
    base_scores, mean, scale = (
        _padded(array, count) for array in (model._base_scores, model.mean_, model.scale_)
    )
    low_rank = None if low is None else LowRank(_padded(low.vectors, count), _padded(low.left, count))
    learned = Learned(_widened(model._weights, count), base_scores, mean, scale, low_rank, model.new_scale_)
    with model._engine(None) as engine:
        learned = with_new_items(learned, wide, new, settings, engine, fitted.offset)
    # Everything is there: from here on nothing can fail.
    model._keep(learned)
    model._on_device = model.pattern_ = None
    model._know(wide)
    return count


def _padded(array: Array, count: int) -> Array:
    """Return an array with so many more rows of zeros."""
    return np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])


def _widened(weights: Rows | DenseRows, count: int) -> Rows | DenseRows:
    """Return weights with empty rows and columns for so many more items."""
    weights.verify()
    m = weights.width + count
    if isinstance(weights, Rows):
        ptr = np.concatenate([weights.ptr, np.full(count, weights.ptr[-1])])
        return Rows(ptr, weights.items, weights.values, m)
    B = np.zeros((m, m), weights.array.dtype)
    B[:-count, :-count] = weights.array
    return DenseRows(B)


def _scale(learned: Learned, X: "sp.csr_array", taken: "sp.csc_array", sample: Array) -> float:
    """Return how much more the scores of some items really spread than if they are taken for new ones."""
    histories = sampled_histories(X)
    base, low = scores(histories, columns_of(learned.weights, sample), learned.low_rank, sample)
    real = base + learned.base_scores[sample] + (0 if low is None else low)
    as_new = (histories.astype(taken.dtype) @ taken).toarray()
    others = histories[:, sample].toarray() == 0
    spreads = [spread(each, others) for each in (real, as_new)]
    return spreads[0] / spreads[1] if spreads[1] > 0 else 1.0


def _joined(weights: Rows | DenseRows, columns: "sp.csc_array", new: Array) -> Rows | DenseRows:
    """Put the weights of new items, m × new, into their columns of B, which are empty so far."""
    import scipy.sparse as sp

    if isinstance(weights, DenseRows):
        weights.array[:, new] = columns.toarray()
        return weights
    m = weights.width
    entries = columns.tocoo()
    wide = sp.csr_array((entries.data, (entries.coords[0], new[entries.coords[1]])), shape=(m, m))
    return Rows.of(sp.csr_array(weights.matrix() + wide))
