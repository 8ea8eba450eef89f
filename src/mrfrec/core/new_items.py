"""Weights for new items, which nobody has used: one small system for an item, as for a block in §3.2.

    b = (S_NN + ridge)⁻¹·S_Ni

N holds the used items with the features most like those of the new item i, by cosine. S is as in Eq. 4, with
features as further rows, which count more than elsewhere because nothing else is known of a new item. All
columns have one scale, since nobody knows how popular each item will be.

Beside these they get the columns that alike items have in B, added up with the shares

    κ_ji = cos_ji^p / (Σ_j cos_ji^p)^q, j in N
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks
from mrfrec.core.engine import Engine, ranges
from mrfrec.core.low_rank import sample
from mrfrec.core.pattern import Pattern
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.core.statistics import moments

# Chosen on two seeds of four data sets (docs/explanation/method.md); the ridge multiplies the usual one.
NEIGHBORS, FEATURE_WEIGHT, RIDGE = 100, 7.0, 10.0
# Chosen on one seed of Debian and of anime: near items count most. With q = 1 the shares of all new items
# have the same sum; with q = 0 new items with many alike items get the largest.
POWER, EVENNESS = 4, 0.75
# Where weights are sparse, a column gets so many entries from alike items; more of them gain nothing.
MOST_OF_ALIKE = 300
# A sample has at least so many users; with fewer than twice as many users there is no sample.
_SAMPLE_USERS = 100_000
# So many used items are treated as new, to compare their scores.
_SAMPLE_ITEMS = 64
_COSINES_AT_ONCE = _COLUMNS_AT_ONCE = 1 << 22


def sample_of_used(popularity: npt.NDArray[np.int64], features: sp.csr_array) -> npt.NDArray[np.int64]:
    """Return some used items that have features, evenly spaced."""
    has_features = np.bincount(features.indices, minlength=len(popularity)) > 0
    items = np.flatnonzero((popularity > 0) & has_features)
    return items[:: -(-len(items) // _SAMPLE_ITEMS)] if len(items) else items


def new_columns(
    X: sp.csr_array,
    features: sp.csr_array,
    new: npt.NDArray[np.int64],
    settings: Settings,
    sizes: Sizes,
    engine: Engine,
) -> tuple[sp.csc_array, sp.csc_array]:
    """Return the weights of the used items in the scores of some items, items × new, without a scale.

    The second matrix has the cosines that chose these used items.

    `features` is a matrix of features × items. The users of items in `new`, if any, do not count in the
    columns of these items.
    """
    m = X.shape[1]
    count = len(new)
    engine.scratch = sizes.scratch
    step = max(X.shape[0] // _SAMPLE_USERS, 1)
    X = X[sample(X.shape[0], step)] if step > 1 else X
    # With one user in `step`, XᵀX is smaller by `step`: so are the square of the features' weight and, for
    # any alpha, the ridge beside it.
    smaller = 1 / step**0.5
    # New items get columns of their own at the end, with features only, so that used items can be among them.
    wide = sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], m + count))
    both = sp.csr_array(sp.hstack([features, features.tocsc()[:, new]]))
    settings = replace(settings, feature_weight=FEATURE_WEIGHT / step**0.5)
    unscaled = moments(wide, settings, engine, both)
    statistics = unscaled.scaled(settings)
    nearest = nearest_by_features(features, new, unscaled.popularity[:m] > 0)
    ptr = np.concatenate([np.zeros(m, np.int64), nearest.indptr.astype(np.int64)])
    heads = np.arange(m, m + count, dtype=np.int32)
    ridge = RIDGE * smaller * unscaled.typical_ridge(settings)
    weights = blocks.estimate_weights(
        statistics,
        Pattern(ptr, nearest.indices.astype(np.int32), 0.0),
        blocks.Schedule(heads, np.arange(count + 1, dtype=np.int64), heads),
        statistics.ridge(ridge, settings.dropout),
        dtype=settings.dtype,
        engine=engine,
        held=sizes.held,
        worthwhile=sizes.worthwhile_batch,
    )
    B = weights.matrix()[:m, m:].tocsc()
    scale = np.where(
        statistics.s[m:] > 0, statistics.s[m:], 1.0
    )  # of the new columns, which is taken off again
    B.data /= np.repeat(scale, np.diff(B.indptr)).astype(B.dtype)
    return B, nearest


def nearest_by_features(
    features: sp.csr_array, new: npt.NDArray[np.int64], used: npt.NDArray[np.bool_]
) -> sp.csc_array:
    """Return the cosines of new items with their nearest used items, at most `NEIGHBORS`: items × new."""
    squares = np.bincount(features.indices, features.data**2, features.shape[1])
    unit = features.multiply(1 / np.sqrt(np.where(squares > 0, squares, 1.0))[None, :]).tocsc()
    of_used = unit.multiply(used[None, :]).T.tocsr()
    lengths, found, values = [0], [np.empty(0, np.int32)], [np.empty(0)]
    step = max(_COSINES_AT_ONCE // features.shape[1], 1)
    for first in range(0, len(new), step):
        part = new[first : first + step]
        cosines = (of_used @ unit[:, part]).tocsc()
        for number, item in enumerate(part.tolist()):
            span = slice(cosines.indptr[number], cosines.indptr[number + 1])
            items, cosine = cosines.indices[span], cosines.data[span]
            others = (items != item) & (cosine > 0)
            items, cosine = items[others], cosine[others]
            best = np.lexsort((items, -cosine))[:NEIGHBORS]
            best = best[np.argsort(items[best])]
            lengths.append(len(best))
            found.append(items[best].astype(np.int32))
            values.append(cosine[best])
    ptr = np.cumsum(lengths)
    shape = features.shape[1], len(new)
    return sp.csc_array((np.concatenate(values), np.concatenate(found), ptr), shape=shape)


def shares_of_alike(nearest: sp.csc_array) -> sp.csc_array:
    """Return κ, the shares that new items get of the columns of used items, from cosines: items × new."""
    powers = nearest.data**POWER
    sums = np.bincount(
        np.repeat(np.arange(nearest.shape[1]), np.diff(nearest.indptr)), powers, nearest.shape[1]
    )
    kappa = powers / np.repeat(sums**EVENNESS, np.diff(nearest.indptr))
    return sp.csc_array((kappa, nearest.indices, nearest.indptr), shape=nearest.shape)


def columns_of_alike(weights: Rows | DenseRows, kappa: sp.csc_array) -> npt.NDArray[Any] | sp.csc_array:
    """Return B·κ, items × new, without a scale. Sparse columns have their `MOST_OF_ALIKE` largest entries."""
    B = weights.matrix()
    m, count = kappa.shape
    kappa = kappa.astype(B.dtype)
    if isinstance(B, np.ndarray):
        out = np.empty((m, count), B.dtype)
        for first, last in ranges(0, m, max(_COLUMNS_AT_ONCE // m, 1)):
            out[first:last] = (kappa.T @ B[first:last].T).T
        return out
    about = min(NEIGHBORS * (B.nnz // m + 1), m)  # entries of a column
    parts = [
        _largest(sp.csc_array(B @ kappa[:, first:last]))
        for first, last in ranges(0, count, max(_COLUMNS_AT_ONCE // about, 1))
    ]
    return sp.csc_array(sp.hstack(parts, "csc")) if parts else sp.csc_array((m, count), dtype=B.dtype)


def _largest(columns: sp.csc_array) -> sp.csc_array:
    """Return the largest entries of each column; ties go to the first items."""
    columns.sort_indices()
    keep = np.ones(columns.nnz, np.bool_)
    for first, last in pairwise(columns.indptr.tolist()):
        if last - first > MOST_OF_ALIKE:
            size = np.abs(columns.data[first:last])
            bar = np.partition(size, -MOST_OF_ALIKE)[-MOST_OF_ALIKE]
            keep[first:last] = size > bar
            level = first + np.flatnonzero(size == bar)
            keep[level[: MOST_OF_ALIKE - keep[first:last].sum()]] = True
    ptr = np.concatenate([[0], np.cumsum(keep)])[columns.indptr]
    return sp.csc_array((columns.data[keep], columns.indices[keep], ptr), shape=columns.shape)
