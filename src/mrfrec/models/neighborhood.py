"""Popularity and item-kNN."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mrfrec.checks import check_count, check_number
from mrfrec.core.sparse import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.models.axes import Axis
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.core.engine import Engine
    from mrfrec.data.interactions import Interactions

__all__ = ["FromGram", "ItemKNN", "Popularity"]


class Popularity(Linear):
    """Recommend the most popular items: a baseline that any model must beat.

    The score of an item is its number of training users.
    """

    def __init__(self) -> None:
        return

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        m, start = data.n_items, time.perf_counter()
        shift = data.popularity.astype(self.dtype)
        self._weights, self._shift = Rows.empty(m, m), shift
        self.memory_plan_ = {}
        self.timings_ = {"total": time.perf_counter() - start}


class FromGram(Linear):
    """A model whose sparse weights are learned from XᵀX; a subclass says how."""

    @abstractmethod
    def _learn(
        self, X: "sp.csr_array", held: int, reuse: dict[str, Any] | None, engine: "Engine"
    ) -> "sp.csr_array":
        """Return B; `held` bytes are in use with the statistics of X."""

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        from mrfrec.core.neighbors import bytes_for_raw

        start = time.perf_counter()
        with LocalEngine(self.threads, self.memory_limit, given.progress) as engine:
            held = given.copied + bytes_for_raw(data.matrix)
            engine.memory.require("statistics", held, "Use fewer users or items, or more memory.")
            weights = Rows.of(self._learn(data.matrix, held, given.reuse, engine))
        self._weights, self._shift = weights, np.zeros(data.n_items, self.dtype)
        self.memory_plan_ = engine.memory.stages
        self.timings_ = {**engine.timings, "total": time.perf_counter() - start + engine.saved}

    def warm_up(self) -> None:
        """Compile or load what fitting needs."""
        import scipy.sparse as sp

        model = type(self)(**{**self.get_params(), "memory_limit": None})
        model.fit(sp.csr_array(np.eye(20, dtype=np.float32)))


class ItemKNN(FromGram):
    """Score items by the sum of their cosines to those items of the history that are among their nearest.

    B_ji = x_j·x_i ÷ (‖x_j‖·‖x_i‖ + shrink) if j is one of the `neighbors` items nearest to i, else 0; x_i is
    the column of item i. Items with a cosine of 0 or less are not neighbours.

    Parameters
    ----------
    neighbors
        Most items with a weight in an item's score.
    shrink
        Added to the denominator: lowers the cosine of pairs that few users have in common.
    threads, memory_limit
        As in `MRF`.
    """

    tuning_grid: ClassVar[Mapping[str, Axis]] = {
        "neighbors": (20, 50, 100, 200),
        "shrink": (0.0, 10.0, 100.0),
    }

    def __init__(
        self,
        *,
        neighbors: int = 100,
        shrink: float = 10.0,
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.neighbors = check_count("neighbors", neighbors)
        self.shrink = check_number("shrink", shrink, "a finite number, 0 or more", lambda x: x >= 0)
        self._limit(threads, memory_limit)

    def _learn(
        self, X: "sp.csr_array", held: int, reuse: dict[str, Any] | None, engine: "Engine"
    ) -> "sp.csr_array":
        from mrfrec.core import neighbors

        facts = neighbors.raw_statistics(X, engine)
        found = neighbors.nearest(facts, self.neighbors, self.shrink, held, engine)
        with engine.stage("rows", 1):
            return found.tocsr()
