"""What models by vectors learn: h(x)·Vᵀ + b, a vector for the history times a vector for each item."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.rows import DenseRows, Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.errors import DataError
from mrfrec.fitted.files import shaped
from mrfrec.fitted.scorers import Scorer, VectorScorer
from mrfrec.fitted.state import Facts, Learned, Runtime, of_length_one

if TYPE_CHECKING:
    from mrfrec.io.artifact import Stored

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LatentVectors(Learned):
    """The vectors of the items. A subclass has what makes the vector of a history, and implements `embed`."""

    vectors: DenseRows  # V, m × factors

    @abstractmethod
    def embed(self, histories: Rows, threads: int) -> Array:
        """Return h(x) of each history, users × factors; other histories must not change it."""

    def scorer(self, histories: Rows, runtime: Runtime) -> Scorer:
        self.vectors.verify()
        return VectorScorer(histories, self.embed(histories, runtime.threads), self.vectors.array)

    def directions(self, items: Array) -> npt.NDArray[np.float64]:
        """Return the vectors of the items."""
        self.vectors.verify(items)
        return of_length_one(self.vectors.array[items])

    def stranger_scores(self, catalogue: Catalogue) -> Array:
        return np.zeros_like(self.base_scores)  # the vector of an empty history means nothing

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Return the cosines between the vectors of the items."""
        V = self.vectors.matrix()
        lengths = np.sqrt(np.einsum("ij,ij->i", V, V, dtype=np.float64))
        dots = (V @ V[item]).astype(np.float64)
        cosines = np.divide(
            dots, lengths * lengths[item], out=np.zeros(len(dots)), where=lengths * lengths[item] > 0
        )
        others = np.flatnonzero(np.arange(len(dots)) != item)
        return others, cosines[others]

    def stored(self) -> tuple[dict[str, Array], Facts]:
        return {"vectors": self.vectors.matrix(), "bias": self.base_scores}, {}


def stored_vectors(arrays: "Mapping[str, Stored]", m: int) -> dict[str, Any]:
    """Return the fields of `LatentVectors` that a file has."""
    stored = shaped(arrays, "vectors", m, *arrays["vectors"].array.shape[1:2])
    vectors = DenseRows(stored.array, stored.check)
    return {"vectors": vectors, "base_scores": shaped(arrays, "bias", m).read()}


def refuse_negative(kind: str, what: str, rows: Rows) -> None:
    """Refuse histories with values below 0 for a kind of model to which these mean nothing."""
    negative = np.flatnonzero(rows.values < 0)
    if len(negative):
        row = int(np.searchsorted(rows.ptr, negative[0], "right")) - 1
        raise DataError(
            f"{what} must have no negative values for {kind}; row {row} holds {rows.values[negative[0]]:g}. "
            "Drop such pairs, or use a model that takes them, such as MRF."
        )
