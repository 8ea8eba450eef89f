"""Models that score by h(x)·Vᵀ + b: a vector for the history, times a vector for each item."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.engines.devices import chosen_device
from mrfrec.errors import MissingLibraryError
from mrfrec.models.answers.scorers import Scorer, VectorScorer
from mrfrec.models.recommender import Recommender
from mrfrec.models.storage.arrays import shaped

if TYPE_CHECKING:
    from mrfrec.io.artifact import Stored


class Encoder(Protocol):
    """The part of a model that turns histories into vectors."""

    def embed(self, histories: Rows, threads: int | None) -> npt.NDArray[Any]:
        """Return h(x) of each history, users × factors; other histories must not change it."""
        ...

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the arrays and facts to save."""
        ...


class Latent(Recommender):
    """A recommender by vectors; a subclass says how they are learned, and sets `_encoder`, which is h.

    Attributes
    ----------
    item_vectors_
        V, one row for each item.
    """

    _trained_by: ClassVar[tuple[str, str]]  # the module that training imports, and its library in words
    _vectors: DenseRows  # V
    _bias: npt.NDArray[Any]  # b
    _encoder: Encoder  # h

    def check_ready(self) -> None:
        """Raise if the library or the device that training needs is missing."""
        module, library = self._trained_by
        try:
            import_module(module)
        except ImportError as error:
            raise MissingLibraryError(
                f'{type(self).__name__} needs {library} to be trained: pip install "mrfrec[{self.extra}]".'
            ) from error
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
        users = self._encoder.embed(histories, self.threads)
        return VectorScorer(histories, users, self._vectors.array)

    @property
    def _base_scores(self) -> npt.NDArray[Any]:
        return self._bias

    @property
    def _stranger_scores(self) -> npt.NDArray[Any]:
        return np.zeros_like(self._bias)  # the vector of an empty history means nothing

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
        arrays, facts = self._encoder.state()
        return {"vectors": self._vectors.array, "bias": self._bias, **arrays}, facts

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        stored = shaped(arrays, "vectors", m, *arrays["vectors"].array.shape[1:2])
        self._vectors = DenseRows(stored.array, stored.check)
        self._bias = shaped(arrays, "bias", m).read()
