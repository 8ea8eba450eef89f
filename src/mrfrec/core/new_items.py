"""Weights for new items, which nobody has used: one small system each, as of a block in §3.2.

    b = (S_NN + ridge)⁻¹·S_Ni

N are the used items whose features are most like those of the new item i, by cosine. S is that of Eq. 4, with
features as further rows that count more than elsewhere: of a new item nothing else is known. The columns have
one scale, since there are no users who would tell how popular each will be.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks, statistics
from mrfrec.core.engine import Engine
from mrfrec.core.lanczos import sample
from mrfrec.core.pattern import Pattern
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.schedule import Schedule

# Chosen on two seeds of four data sets (docs/method.md); the ridge is relative to the usual one.
NEIGHBORS, FEATURE_WEIGHT, RIDGE = 100, 7.0, 10.0
_USERS = 100_000  # that tell how items are used together, at least; of more, one in so many
_SAMPLE = 64  # used items that are taken for new ones, to compare their scores
_AT_ONCE = 1 << 22  # likenesses of items


def sample_of_used(popularity: npt.NDArray[np.int64], features: sp.csr_array) -> npt.NDArray[np.int64]:
    """Return used items that have features, evenly spaced."""
    able = np.flatnonzero((popularity > 0) & (np.bincount(features.indices, minlength=len(popularity)) > 0))
    return able[:: -(-len(able) // _SAMPLE)] if len(able) else able


def new_columns(
    X: sp.csr_array,
    features: sp.csr_array,
    new: npt.NDArray[np.int64],
    settings: Settings,
    sizes: Sizes,
    engine: Engine,
) -> sp.csc_array:
    """Return the weights of the used items in the scores of some items, items × new, without a scale.

    `features` are those of all items, features × items. The users of `new` items, if they have any, count
    for nothing in their own columns.
    """
    m, count = X.shape[1], len(new)
    engine.scratch = sizes.scratch
    step = max(X.shape[0] // _USERS, 1)
    X = X[sample(X.shape[0], step)] if step > 1 else X
    # With a part of the users, XᵀX is smaller by `step`: so are ω² and, for any alpha, the ridge beside it.
    weight, smaller = FEATURE_WEIGHT / step**0.5, 1 / step**0.5
    # The new items stand at the end, with their features alone; so that used ones can be among them.
    wide = sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], m + count))
    both = sp.csr_array(sp.hstack([features, features.tocsc()[:, new]]))
    found = statistics.moments(wide, settings.user_weight, engine, both, weight)
    facts = found.scaled(settings.alpha, center=settings.center)
    columns = like_items(features, new, found.popularity[:m] > 0)
    lengths = np.concatenate([np.zeros(m, np.int64), [len(column) for column in columns]])
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    neighbors = np.concatenate([*columns, np.empty(0, np.int32)]).astype(np.int32)
    heads = np.arange(m, m + count, dtype=np.int32)
    ridge = RIDGE * smaller * found.typical_ridge(settings.alpha, settings.center)
    weights = blocks.estimate_weights(
        facts,
        Pattern(ptr, neighbors, 0.0),
        Schedule(heads, np.arange(count + 1, dtype=np.int64), heads),
        facts.ridge(ridge, settings.l2_flat, settings.dropout),
        dtype=settings.dtype,
        engine=engine,
        held=sizes.held,
        worthwhile=sizes.worthwhile_batch,
    )
    B = weights.matrix()[:m, m:].tocsc()
    scale = np.where(facts.s[m:] > 0, facts.s[m:], 1.0)  # which B has none of afterwards
    B.data /= np.repeat(scale, np.diff(B.indptr)).astype(B.dtype)
    return B


def like_items(
    features: sp.csr_array, new: npt.NDArray[np.int64], used: npt.NDArray[np.bool_]
) -> list[npt.NDArray[np.int32]]:
    """Return for each new item the used items, at most 100, with the most similar features; ascending."""
    squares = np.bincount(features.indices, features.data**2, features.shape[1])
    unit = features.multiply(1 / np.sqrt(np.where(squares > 0, squares, 1.0))[None, :]).tocsc()
    of_used = unit.multiply(used[None, :]).T.tocsr()
    found = []
    step = max(_AT_ONCE // features.shape[1], 1)
    for first in range(0, len(new), step):
        some = new[first : first + step]
        alike = (of_used @ unit[:, some]).tocsc()
        for number, item in enumerate(some.tolist()):
            span = slice(alike.indptr[number], alike.indptr[number + 1])
            items, cosine = alike.indices[span], alike.data[span]
            others = (items != item) & (cosine > 0)
            items, cosine = items[others], cosine[others]
            best = np.lexsort((items, -cosine))[:NEIGHBORS]
            found.append(np.sort(items[best]).astype(np.int32))
    return found
