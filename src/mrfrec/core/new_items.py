"""Weights for new items, which nobody has used: one small system each, as of a block in §3.2.

    b = (S_NN + ridge)⁻¹·S_Ni

N are the used items whose features are most like those of the new item i, by cosine. S is that of Eq. 4, with
features as further rows, which count more than elsewhere because nothing else is known of a new item. All
columns have one scale, since nobody knows how popular each item will be.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks
from mrfrec.core.engine import Engine
from mrfrec.core.lanczos import sample
from mrfrec.core.pattern import Pattern
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.schedule import Schedule
from mrfrec.core.statistics import moments

# Chosen on two seeds of four data sets (docs/method.md); the ridge is a multiple of the usual one.
NEIGHBORS, FEATURE_WEIGHT, RIDGE = 100, 7.0, 10.0
_SAMPLE_USERS = 100_000  # users in a sample, at least; with fewer than twice as many there is no sample
_SAMPLE_ITEMS = 64  # used items that are treated as new, to compare their scores
_COSINES_AT_ONCE = 1 << 22


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
) -> sp.csc_array:
    """Return the weights of the used items in the scores of some items, items × new, without a scale.

    `features` are those of all items, features × items. If items in `new` have users, these do not count in
    the items' own columns.
    """
    m = X.shape[1]
    count = len(new)
    engine.scratch = sizes.scratch
    step = max(X.shape[0] // _SAMPLE_USERS, 1)
    X = X[sample(X.shape[0], step)] if step > 1 else X
    # With one user in `step`, XᵀX is smaller by `step`: so are the square of the features' weight and, for
    # any alpha, the ridge beside it.
    smaller = 1 / step**0.5
    # The new items get columns of their own at the end, with features only: so used items can be among them.
    wide = sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], m + count))
    both = sp.csr_array(sp.hstack([features, features.tocsc()[:, new]]))
    weight = FEATURE_WEIGHT / step**0.5
    unscaled = moments(wide, settings.user_weight, engine, both, weight)
    statistics = unscaled.scaled(settings.alpha, center=settings.center)
    columns = nearest_by_features(features, new, unscaled.popularity[:m] > 0)
    lengths = np.concatenate([np.zeros(m, np.int64), [len(column) for column in columns]])
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    neighbors = np.concatenate([*columns, np.empty(0, np.int32)]).astype(np.int32)
    heads = np.arange(m, m + count, dtype=np.int32)
    ridge = RIDGE * smaller * unscaled.typical_ridge(settings.alpha, settings.center)
    weights = blocks.estimate_weights(
        statistics,
        Pattern(ptr, neighbors, 0.0),
        Schedule(heads, np.arange(count + 1, dtype=np.int64), heads),
        statistics.ridge(ridge, settings.l2_flat, settings.dropout),
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
    return B


def nearest_by_features(
    features: sp.csr_array, new: npt.NDArray[np.int64], used: npt.NDArray[np.bool_]
) -> list[npt.NDArray[np.int32]]:
    """Return for each new item at most `NEIGHBORS` used items with the most similar features, ascending."""
    squares = np.bincount(features.indices, features.data**2, features.shape[1])
    unit = features.multiply(1 / np.sqrt(np.where(squares > 0, squares, 1.0))[None, :]).tocsc()
    of_used = unit.multiply(used[None, :]).T.tocsr()
    nearest = []
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
            nearest.append(np.sort(items[best]).astype(np.int32))
    return nearest
