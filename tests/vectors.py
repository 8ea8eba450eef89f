"""A model of one's own that scores by vectors and explains nothing: singular vectors of the histories."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec import DataError, Interactions, ParameterError, Recommender, register
from mrfrec.extending import Catalogue, FitContext, Learned, Rows, Runtime, Scorer, Selection, Stored, shaped

Array = npt.NDArray[Any]


class VectorScorer(Scorer):
    """Scores x·V·Vᵀ, one user at a time: other users must not change a score."""

    users_at_once = 32

    def __init__(self, histories: Rows, V: Array) -> None:
        super().__init__(histories)
        self.V = V

    def scores(self, first: int, last: int, base: Array, selection: Selection | None = None) -> Array:
        X = self.histories.matrix()
        # In double precision: the order of a sum must not change a score.
        V = self.V.astype(np.float64)
        liked = (X[[u]] @ V for u in range(first, last))
        return np.array([base + (V * own).sum(axis=1) for own in liked], base.dtype)


@dataclass(frozen=True, kw_only=True)
class Directions(Learned):
    vectors: Array  # items × factors

    def scorer(self, histories: Rows, runtime: Runtime) -> Scorer:
        return VectorScorer(histories, self.vectors)

    def directions(self, items: Array) -> Array:
        V = self.vectors[items].astype(np.float64)
        return np.asarray(V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), 1e-12))

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        unit = self.directions(np.arange(len(self.vectors)))
        others = np.flatnonzero(np.arange(len(unit)) != item)
        return others, unit[others] @ unit[item]

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"vectors": self.vectors, "base": self.base_scores}, {}


@register
class Vectors(Recommender):
    def __init__(self, factors: int = 4) -> None:
        if not isinstance(factors, int) or factors < 1:
            raise ParameterError("factors", "a whole number, 1 or more", factors)
        self.factors = factors

    def _fit(self, data: Interactions, context: FitContext) -> Directions:
        if (data.matrix.data < 0).any():
            raise DataError("Vectors takes no negative values.")
        _, _, Vt = np.linalg.svd(data.matrix.toarray(), full_matrices=False)
        V = np.ascontiguousarray(Vt[: self.factors].T, np.float32)
        return Directions(vectors=V, base_scores=np.zeros(data.n_items, np.float32))

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> Directions:
        V = shaped(arrays, "vectors", m, arrays["vectors"].array.shape[1]).read()
        return Directions(vectors=V, base_scores=shaped(arrays, "base", m).read())
