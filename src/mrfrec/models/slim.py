"""SLIM and fsSLIM: sparse linear methods, fitted by coordinate descent."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_dtype, check_number, warn
from mrfrec.core.memory import Budget
from mrfrec.core.sparse import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.engines.machine import memory_budget
from mrfrec.models.axes import Axis, Ridges
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.core.descent import Penalties
    from mrfrec.core.pattern import Pattern
    from mrfrec.core.statistics import Statistics
    from mrfrec.data.interactions import Interactions

__all__ = ["SLIM", "FsSLIM"]

# Liang et al. (2018) try 0.1, 0.5, 1 and 5 for both penalties; for most items such an l2 changes nothing.
_RIDGES = Ridges((0.003, 0.03, 0.3), (0.001, 3.0))


class _Regressions(Linear):
    """Base class of the two models, which differ in the items that each item is regressed on."""

    l1: float
    l2: float
    tolerance: float
    passes: int
    unsettled_: int

    def _set(
        self,
        l1: float,
        l2: float,
        tolerance: float,
        passes: int,
        dtype: Literal["float32", "float64"],
        threads: int | None,
        memory_limit: int | str | None,
    ) -> None:
        self.l1 = check_number("l1", l1, "a finite number, 0 or more", lambda x: x >= 0)
        self.l2 = check_number("l2", l2, "a finite number, 0 or more", lambda x: x >= 0)
        self.tolerance = check_number("tolerance", tolerance, "above 0 and below 1", lambda x: 0 < x < 1)
        self.passes = check_count("passes", passes)
        self.dtype = check_dtype(dtype)
        self._limit(threads, memory_limit)

    @abstractmethod
    def _regress(
        self,
        X: "sp.csr_array",
        penalties: "Penalties",
        workers: LocalEngine,
        plan: Budget,
        held: int,
        kept: dict[str, Any],
    ) -> "tuple[sp.csr_array, int]":
        """Return B and the number of columns that did not converge."""

    def _fit(self, data: "Interactions", given: FitContext) -> None:
        from mrfrec.core.descent import Penalties
        from mrfrec.core.neighbors import bytes_for_raw

        X, start = data.matrix, time.perf_counter()
        plan = memory_budget(self.memory_limit)
        penalties = Penalties(self.l1, self.l2, self.tolerance, self.passes)
        kept = {} if given.reuse is None else given.reuse.setdefault(type(self).__name__, {})
        with LocalEngine(self.threads, self.memory_limit, given.progress) as workers:
            held = given.copied + bytes_for_raw(X)
            plan.require("statistics", held, "Use fewer users or items, or more memory.")
            weights, unsettled = self._regress(X, penalties, workers, plan, held, kept)
            timings, saved = workers.timings, workers.saved
        if unsettled:
            warn(
                f"{unsettled:,} of {data.n_items:,} regressions did not converge within passes={self.passes}."
                " Use a larger l2, more passes, or a larger tolerance."
            )
        self._weights, self._shift = Rows.of(weights), np.zeros(data.n_items, self.dtype)
        self.unsettled_ = unsettled
        self.memory_plan_ = plan.stages
        self.timings_ = {**timings, "total": time.perf_counter() - start + saved}

    def warm_up(self) -> None:
        """Compile or load what fitting needs."""
        _warm_up(type(self), self.dtype)


def _reused(kept: dict[Any, Any], key: Any, workers: LocalEngine, prepare: Callable[[], Any]) -> Any:
    """Return what `prepare` returns, or returned in an earlier fit with the same key."""
    if key in kept:
        workers.count(kept[key][1])
    else:
        kept.clear()
        kept[key] = prepare(), dict(workers.timings)
    return kept[key][0]


@cache
def _warm_up(kind: type[Any], dtype: str) -> None:
    import scipy.sparse as sp

    kind(threads=1, dtype=dtype).fit(sp.csr_array(np.eye(20, dtype=np.float32)))


class SLIM(_Regressions):
    """Ning & Karypis, *SLIM: Sparse Linear Methods for Top-N Recommender Systems*, ICDM 2011.

    Each item is regressed on all others with non-negative weights:

        min over w ≥ 0, w_i = 0 of   ½‖x_i − X·w‖² + l1·Σw + ½·l2·Σw²

    by coordinate descent on XᵀX, which is held in memory (m × m); if that does not fit, use `FsSLIM`. Loss
    and penalties are sums, not means, over the users: scikit-learn's `ElasticNet(alpha, l1_ratio)` has l1 =
    n·alpha·l1_ratio and l2 = n·alpha·(1 − l1_ratio).

    Parameters
    ----------
    l1
        Larger values give fewer weights and faster fits. In binary data, an item that shares at most l1 users
        with another gets no weight in its score.
    l2
        Larger values give smaller weights.
    tolerance
        A regression has converged when no step of a pass changes X·w by more than this share of ‖x_i‖.
    passes
        Most passes over the weights of a regression. A warning counts those that did not converge.
    dtype
        Precision of the weights and of XᵀX, "float32" or "float64". Counts up to 16 million are exact in
        both.
    threads
        Number of threads, all cores by default. Results do not depend on it.
    memory_limit
        Memory a fit may use beyond the matrix it is given, in bytes or as "8GB"; by default what is
        available.

    Attributes
    ----------
    weights_
        B, sparse.
    unsettled_
        Number of regressions that did not converge.
    """

    tuning_grid: ClassVar[Mapping[str, Axis]] = {"l1": (0.1, 0.5, 1.0, 5.0), "l2": _RIDGES}

    def __init__(
        self,
        *,
        l1: float = 1.0,
        l2: float = 100.0,
        tolerance: float = 1e-3,
        passes: int = 1000,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self._set(l1, l2, tolerance, passes, dtype, threads, memory_limit)

    def _regress(
        self,
        X: "sp.csr_array",
        penalties: "Penalties",
        workers: LocalEngine,
        plan: Budget,
        held: int,
        kept: dict[str, Any],
    ) -> "tuple[sp.csr_array, int]":
        from mrfrec.core import descent
        from mrfrec.core.neighbors import raw_statistics

        m = X.shape[1]
        plan.require(
            "gram",
            held + descent.bytes_for_all(m, self.dtype),
            "Use FsSLIM, which looks at a few neighbors of each item.",
        )

        def prepare() -> "tuple[Statistics, npt.NDArray[Any]]":
            facts = raw_statistics(X, workers)
            return facts, descent.gram(facts, self.dtype, workers)

        facts, G = _reused(kept, self.dtype, workers, prepare)
        return descent.regress_on_all(G, facts, penalties, workers=workers, plan=plan, held=held)


class FsSLIM(_Regressions):
    """SLIM with feature selection: each item is regressed only on its `neighbors` nearest items.

    The nearest items have the largest cosine, as in `ItemKNN` (Ning & Karypis 2011, §4.2). Nothing of size m
    × m is held.

    Parameters
    ----------
    neighbors
        Number of items that may have a weight in an item's score.
    l1, l2, tolerance, passes, dtype, threads, memory_limit
        As in `SLIM`.

    Attributes
    ----------
    weights_
        B, sparse.
    unsettled_
        Number of regressions that did not converge.
    """

    tuning_grid: ClassVar[Mapping[str, Axis]] = {"neighbors": (50, 200), "l1": (0.1, 1.0), "l2": _RIDGES}

    def __init__(
        self,
        *,
        neighbors: int = 200,
        l1: float = 1.0,
        l2: float = 100.0,
        tolerance: float = 1e-3,
        passes: int = 1000,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.neighbors = check_count("neighbors", neighbors)
        self._set(l1, l2, tolerance, passes, dtype, threads, memory_limit)

    def _regress(
        self,
        X: "sp.csr_array",
        penalties: "Penalties",
        workers: LocalEngine,
        plan: Budget,
        held: int,
        kept: dict[str, Any],
    ) -> "tuple[sp.csr_array, int]":
        from mrfrec.core import descent
        from mrfrec.core.neighbors import nearest, raw_statistics

        def prepare() -> "tuple[Statistics, Pattern]":
            facts = raw_statistics(X, workers)
            found = nearest(
                X, facts, neighbors=self.neighbors, shrink=0.0, workers=workers, plan=plan, held=held
            )
            return facts, found.pattern()

        facts, pattern = _reused(kept, self.neighbors, workers, prepare)
        return descent.regress_on_some(
            facts, pattern, penalties, dtype=self.dtype, workers=workers, plan=plan, held=held
        )
