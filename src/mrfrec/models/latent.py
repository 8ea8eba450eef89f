"""Models that score by h(x)·Vᵀ + b: a history becomes a few numbers, and each item has as many."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.core import ranking
from mrfrec.core.resources import usable_threads
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.models.recommender import Recommender
from mrfrec.models.stored import shaped

if TYPE_CHECKING:
    from mrfrec.io.artifact import Stored

__all__ = ["Latent"]


class Latent(Recommender):
    """A recommender by vectors: what it adds is how they are learned, and h.

    Attributes
    ----------
    item_vectors_
        V, one row for each item.
    """

    _vectors: DenseRows  # V
    _bias: npt.NDArray[Any]  # b

    @abstractmethod
    def _embed(self, histories: Rows) -> npt.NDArray[Any]:
        """h(x) of each history; never of the others beside it."""

    @property
    def item_vectors_(self) -> npt.NDArray[Any]:
        """V, one row for each item."""
        if not hasattr(self, "_vectors"):
            raise AttributeError(
                f"item_vectors_: this {type(self).__name__} has learned nothing yet: call fit first."
            )
        return self._vectors.matrix()

    def _scores(self, histories: Rows) -> npt.NDArray[Any]:
        self._vectors.verify()
        return ranking.score_vectors(
            self._embed(histories), self._vectors.array, self._bias, self.threads or usable_threads()
        )

    def _best(
        self,
        histories: Rows,
        k: int,
        *,
        exclude_seen: bool,
        order: npt.NDArray[np.int32],
        base: npt.NDArray[Any] | None = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        self._vectors.verify()
        return ranking.top_k_vectors(
            histories,
            self._embed(histories),
            self._vectors.array,
            self._bias if base is None else base,
            k,
            exclude_seen=exclude_seen,
            order=order,
            threads=self.threads or usable_threads(),
        )

    def _rank(
        self, histories: Rows, k: int, *, exclude_seen: bool, hidden: npt.NDArray[np.bool_] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        def visible(base: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return base if hidden is None else np.where(hidden, -np.inf, base).astype(base.dtype)

        by_popularity = self._catalogue.by_popularity
        known = np.diff(histories.ptr) > 0
        items, scores = self._best(
            histories, k, exclude_seen=exclude_seen, order=by_popularity, base=visible(self._bias)
        )
        if not known.all():
            # Of somebody without a history nothing is known: they all get the most popular items.
            m = histories.width
            nobody = Rows(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, self.dtype), m)
            nothing = Rows(np.zeros(m + 1, np.int64), np.empty(0, np.int32), np.empty(0, self.dtype), m)
            items[~known], scores[~known] = ranking.top_k(
                nobody, nothing, visible(np.zeros(m, self.dtype)), k,
                exclude_seen=exclude_seen, order=by_popularity, threads=1,
            )  # fmt: skip
        return items, scores, np.broadcast_to(known[:, None], items.shape)

    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        # Never asked where `explains` is False; a model whose scores are sums all the same has its own.
        raise NotImplementedError

    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The cosines between the vectors of the items."""
        V = self._vectors
        V.verify()
        lengths = np.sqrt(np.einsum("ij,ij->i", V.array, V.array, dtype=np.float64))
        dots = (V.array @ V.array[item]).astype(np.float64)
        cosines = np.divide(
            dots, lengths * lengths[item], out=np.zeros(len(dots)), where=lengths * lengths[item] > 0
        )
        others = np.flatnonzero(np.arange(len(dots)) != item)
        return others, cosines[others]

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        self._vectors.verify()
        return {"vectors": self._vectors.array, "bias": self._bias}, {}

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        vectors = arrays["vectors"]
        stored = shaped(arrays, "vectors", m, *vectors.array.shape[1:2])
        self._vectors = DenseRows(stored.array, stored.check)
        self._bias = shaped(arrays, "bias", m).read()
        self.timings_ = {}
