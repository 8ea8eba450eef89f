"""Popularity and item-kNN."""

import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mrfrec.checks import check_count, check_number
from mrfrec.core.sparse import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.engines.machine import memory_budget
from mrfrec.models.axes import Axis
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    from mrfrec.data.interactions import Interactions

__all__ = ["ItemKNN", "Popularity"]


class Popularity(Linear):
    """Recommend the most popular items: a baseline that any model must beat.

    The score of an item is its number of training users.
    """

    def __init__(self) -> None:
        return

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        m = data.n_items
        start = time.perf_counter()
        shift = data.popularity.astype(self.dtype)
        nothing = np.empty(0, np.int32), np.empty(0, self.dtype)
        self._weights, self._shift = Rows(np.zeros(m + 1, np.int64), *nothing, m), shift
        self.memory_plan_ = {}
        self.timings_ = {"total": time.perf_counter() - start}


class ItemKNN(Linear):
    """Score items by the sum of their cosines to those items of the history that are among their nearest.

    B_ji = x_j·x_i ÷ (‖x_j‖·‖x_i‖ + shrink) if j is one of the `neighbors` items nearest to i, else 0; x_i is
    the column of item i. Items with a cosine of 0 or less are not neighbours.

    Parameters
    ----------
    neighbors
        Most items with a weight in an item's score.
    shrink
        Added to the denominator: lowers the cosine of pairs that few users have in common.
    threads
        Number of threads, all cores by default. Results do not depend on it.
    memory_limit
        Memory a fit may use beyond the matrix it is given, in bytes or as "8GB"; by default what is
        available.
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

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        from mrfrec.core import neighbors

        X, start = data.matrix, time.perf_counter()
        plan = memory_budget(self.memory_limit)
        with LocalEngine(self.threads, self.memory_limit, given.progress) as workers:
            held = given.copied + neighbors.bytes_for_raw(X)
            plan.require("statistics", held, "Use fewer users or items, or more memory.")
            found = neighbors.nearest(
                X, neighbors.raw_statistics(X, workers), neighbors=self.neighbors, shrink=self.shrink,
                workers=workers, plan=plan, held=held,
            )  # fmt: skip
            with workers.stage("rows", 1):
                weights = Rows.of(found.weights())
            timings = workers.timings
        self._weights, self._shift = weights, np.zeros(data.n_items, self.dtype)
        self.memory_plan_ = plan.stages
        self.timings_ = {**timings, "total": time.perf_counter() - start}

    def warm_up(self) -> None:
        """Compile or load what fitting needs."""
        _warm_up(type(self))


@cache
def _warm_up(kind: type[ItemKNN]) -> None:
    import scipy.sparse as sp

    kind(neighbors=2, threads=1).fit(sp.csr_array(np.eye(20, dtype=np.float32)))
