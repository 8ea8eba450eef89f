"""Models that score by h(x)·Vᵀ + b: a vector for the history, times a vector for each item."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec import DataError, Recommender
from mrfrec.extending import Catalogue, Learned, Rows, Runtime, Scorer, Selection, Stored, shaped

# Users whose vectors are multiplied at once: the same number for any number of users, and so the same scores.
USERS_AT_ONCE = 32

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LatentVectors(Learned):
    """The vectors of the items. A subclass has what makes the vector of a history, and implements `embed`."""

    vectors: Array  # V, m × factors

    @abstractmethod
    def embed(self, histories: Rows, threads: int) -> Array:
        """Return h(x) of each history, users × factors; other histories must not change it."""

    def scorer(self, histories: Rows, runtime: Runtime) -> Scorer:
        return VectorScorer(histories, self.embed(histories, runtime.threads), self.vectors)

    def directions(self, items: Array) -> npt.NDArray[np.float64]:
        """Return the vectors of the items, of length 1."""
        V = self.vectors[items].astype(np.float64)
        lengths = np.linalg.norm(V, axis=1, keepdims=True)
        return np.asarray(np.divide(V, lengths, out=np.zeros_like(V), where=lengths > 0))

    def unknown_user_scores(self, catalogue: Catalogue) -> Array:
        return np.zeros_like(self.base_scores)  # the vector of an empty history means nothing

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Return the cosines between the vectors of the items."""
        unit = self.directions(np.arange(len(self.vectors)))
        others = np.flatnonzero(np.arange(len(unit)) != item)
        return others, unit[others] @ unit[item]

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"vectors": self.vectors, "bias": self.base_scores}, {}


def stored_vectors(arrays: Mapping[str, Stored], m: int) -> dict[str, Any]:
    """Return the fields of `LatentVectors` that a file has."""
    vectors = shaped(arrays, "vectors", m, *arrays["vectors"].array.shape[1:2]).read()
    return {"vectors": vectors, "base_scores": shaped(arrays, "bias", m).read()}


class VectorScorer(Scorer):
    """Scores h·Vᵀ, where h is a vector for each user."""

    uses_blas = True
    users_at_once = USERS_AT_ONCE

    def __init__(self, histories: Rows, users: Array, vectors: Array) -> None:
        super().__init__(histories)
        self._users, self._vectors = users, vectors

    def scores(self, first: int, last: int, base: Array, selection: Selection | None = None) -> Array:
        """Return base + h·Vᵀ."""
        some = np.zeros((USERS_AT_ONCE, self._users.shape[1]), base.dtype)
        some[: last - first] = self._users[first:last]
        block = np.matmul(some, self._vectors.T)
        block += base
        return np.asarray(block[: last - first])


class Latent(Recommender):
    """A recommender by vectors. A subclass learns them in `_fit`."""

    @property
    def item_vectors_(self) -> Array:
        """V, one row for each item."""
        learned = self.fitted_.learned
        assert isinstance(learned, LatentVectors)
        return learned.vectors


def refuse_negative(kind: str, what: str, rows: Rows) -> None:
    """Refuse histories with values below 0 for a kind of model to which these mean nothing."""
    negative = np.flatnonzero(rows.values < 0)
    if len(negative):
        row = int(np.searchsorted(rows.ptr, negative[0], "right")) - 1
        raise DataError(
            f"{what} must have no negative values for {kind}; row {row} holds {rows.values[negative[0]]:g}. "
            "Drop such pairs, or use a model that takes them, such as MRF."
        )
