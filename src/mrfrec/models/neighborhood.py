"""Popularity and item-kNN."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.core.sparse import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.models.axes import Axis
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.core.engine import Engine
    from mrfrec.data.interactions import Interactions


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

    user_weight: float = 0.0

    @abstractmethod
    def _learn(
        self, X: "sp.csr_array", held: int, reuse: dict[str, Any] | None, engine: "Engine"
    ) -> "tuple[sp.csr_array, npt.NDArray[Any] | float]":
        """Return B and the base scores; `held` bytes are in use with the statistics of X."""

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        from mrfrec.core.neighbors import bytes_for_raw

        start = time.perf_counter()
        with LocalEngine(self.threads, self.memory_limit, given.progress) as engine:
            held = given.copied + bytes_for_raw(data.matrix, self.user_weight)
            engine.memory.require("statistics", held, "Use fewer users or items, or more memory.")
            engine.expect(self._costs(data))
            weights, base = self._learn(data.matrix, held, given.reuse, engine)
        engine.finish()
        self._weights, self._shift = Rows.of(weights), np.full(data.n_items, base, self.dtype)
        self.memory_plan_ = engine.memory.stages
        self.timings_ = {**engine.timings, "total": time.perf_counter() - start + engine.saved}

    @abstractmethod
    def _costs(self, data: "Interactions") -> dict[str, float]:
        """Return about how long each stage takes compared with the others."""

    def warm_up(self) -> None:
        """Compile or load what fitting needs."""
        import scipy.sparse as sp

        model = type(self)(**{**self.get_params(), "memory_limit": None})
        model.fit(sp.csr_array(np.eye(20, dtype=np.float32)))


class ItemKNN(FromGram):
    """Score items by their cosines to those items of the history that are among their nearest.

    B_ji = x_j·x_i ÷ (‖x_j‖·‖x_i‖ + shrink) if j is one of the `neighbors` items nearest to i, else 0; x_i is
    the column of item i, in which user u counts as in `MRF(user_weight=…)`. Items with a cosine of 0 or less
    are not neighbors. The score of i is the sum of B_ji over the items j of the history.

    Parameters
    ----------
    neighbors
        Most items with a weight in an item's score.
    shrink
        Added to the denominator: lowers the cosine of pairs that few users have in common.
    user_weight
        A user with n items counts n^−user_weight; 0 gives the plain cosine.
    normalize
        Divide the weights in each item's score by their sum and score by μ + (x − μ)·B, with the means μ:
        a prediction of the item's value. Better on some data and far worse on others, so compare both.
    threads, memory_limit
        As in `MRF`.
    """

    tuning_grid: ClassVar[Mapping[str, Axis]] = {
        "neighbors": (20, 100),
        "shrink": (0.0, 10.0),
        "user_weight": (0.5, 1.0),
        "normalize": (False, True),
    }

    def __init__(
        self,
        *,
        neighbors: int = 100,
        shrink: float = 10.0,
        user_weight: float = 0.5,
        normalize: bool = False,
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.neighbors = check_count("neighbors", neighbors)
        self.shrink = check_number("shrink", shrink, "a finite number, 0 or more", lambda x: x >= 0)
        self.user_weight = check_number(
            "user_weight", user_weight, "a finite number, 0 or more", lambda x: x >= 0
        )
        self.normalize = check_flag("normalize", normalize)
        self._limit(threads, memory_limit)

    @property
    def _stranger_scores(self) -> npt.NDArray[Any]:
        return np.zeros_like(self._shift)  # so that popularity decides

    def _costs(self, data: "Interactions") -> dict[str, float]:
        return {"statistics": 0.02, "neighbors": 0.95, "rows": 0.03}  # typical shares

    def _learn(
        self, X: "sp.csr_array", held: int, reuse: dict[str, Any] | None, engine: "Engine"
    ) -> "tuple[sp.csr_array, npt.NDArray[Any] | float]":
        from mrfrec.core import neighbors

        facts = neighbors.raw_statistics(X, engine, self.user_weight)
        found = neighbors.nearest(facts, self.neighbors, self.shrink, held, engine)
        with engine.stage("rows", 1):
            base = neighbors.to_means(found, facts.mu) if self.normalize else 0.0
            return found.tocsr(), base
