"""Models that score by h(x)·Vᵀ + b: a vector for the history, times a vector for each item."""

from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mrfrec.checks import missing_extra
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.engines.devices import chosen_device
from mrfrec.errors import DataError
from mrfrec.models.answers.scorers import Scorer, VectorScorer
from mrfrec.models.recommender import Recommender
from mrfrec.models.storage.files import shaped

if TYPE_CHECKING:
    from mrfrec.io.artifact import Stored


class Latent(Recommender):
    """A recommender by vectors. A subclass learns them, and implements `_embed`, which is h."""

    _trained_by: ClassVar[tuple[str, str]]  # the module that training imports, and its library in words
    _vectors: DenseRows  # V

    @abstractmethod
    def _embed(self, histories: Rows) -> npt.NDArray[Any]:
        """Return h(x) of each history, users × factors; other histories must not change it."""

    def check_ready(self) -> None:
        """Raise if the library or the device that training needs is missing."""
        module, library = self._trained_by
        try:
            import_module(module)
        except ImportError as error:
            what = f"{type(self).__name__} needs {library} to be trained"
            raise missing_extra(what, str(self.extra)) from error
        chosen_device(getattr(self, "device", "cpu"))

    def warm_up(self) -> None:
        """Load the library that training needs, which may take seconds."""
        self.check_ready()

    @property
    def item_vectors_(self) -> npt.NDArray[Any]:
        """V, one row for each item."""
        if not hasattr(self, "_vectors"):
            raise AttributeError(
                f"item_vectors_: this {type(self).__name__} has learned nothing yet: call fit first."
            )
        return self._vectors.matrix()

    def _scorer(self, histories: Rows) -> Scorer:
        self._vectors.verify()
        return VectorScorer(histories, self._embed(histories), self._vectors.array)

    @property
    def _stranger_scores(self) -> npt.NDArray[Any]:
        return np.zeros_like(self._base_scores)  # the vector of an empty history means nothing

    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the cosines between the vectors of the items."""
        V = self._vectors
        V.verify()
        lengths = np.sqrt(np.einsum("ij,ij->i", V.array, V.array, dtype=np.float64))
        dots = (V.array @ V.array[item]).astype(np.float64)
        cosines = np.divide(
            dots, lengths * lengths[item], out=np.zeros(len(dots)), where=lengths * lengths[item] > 0
        )
        others = np.flatnonzero(np.arange(len(dots)) != item)
        return others, cosines[others]

    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        self._vectors.verify()
        return {"vectors": self._vectors.array, "bias": self._base_scores}, {}

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        stored = shaped(arrays, "vectors", m, *arrays["vectors"].array.shape[1:2])
        self._vectors = DenseRows(stored.array, stored.check)
        self._base_scores = shaped(arrays, "bias", m).read()


def refuse_negative(kind: str, what: str, rows: Rows) -> None:
    """Refuse histories with values below 0 for a kind of model to which these mean nothing."""
    negative = np.flatnonzero(rows.values < 0)
    if len(negative):
        row = int(np.searchsorted(rows.ptr, negative[0], "right")) - 1
        raise DataError(
            f"{what} must have no negative values for {kind}; row {row} holds {rows.values[negative[0]]:g}. "
            "Drop such pairs, or use a model that takes them, such as MRF."
        )
