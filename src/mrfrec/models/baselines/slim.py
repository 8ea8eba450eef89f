"""SLIM and fsSLIM: sparse linear methods, fitted by coordinate descent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from mrfrec.checks import check_count, check_dtype, check_nonnegative, check_number, warn
from mrfrec.fitted.linear import LinearWeights
from mrfrec.models.baselines.neighborhood import GramFit, fitting_gram
from mrfrec.models.climbing import Axis, RidgeMultiples
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.data.interactions import Interactions

# Liang et al. (2018) try 0.1, 0.5, 1 and 5 for both penalties; for most items such an l2 changes nothing.
_RIDGES = RidgeMultiples((0.003, 0.03, 0.3))


@dataclass(frozen=True, kw_only=True)
class SLIMWeights(LinearWeights):
    """The weights of the regressions."""

    unsettled: int | None = None  # regressions that did not converge; not saved


@dataclass(kw_only=True, repr=False, eq=False)
class SLIM(Linear):
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
    threads, memory_limit
        As in `MRF`.

    Attributes
    ----------
    unsettled_
        Number of regressions that did not converge; None in a loaded model.
    """

    _weights_type: ClassVar[type[LinearWeights]] = SLIMWeights
    tuning_grid: ClassVar[Mapping[str, Axis]] = {"l1": (0.1, 0.5, 1.0, 5.0), "l2": _RIDGES}
    # Typical shares of the time.
    _costs: ClassVar[Mapping[str, float]] = {
        "statistics": 0.01,
        "matrix": 0.03,
        "mirror": 0.01,
        "regress": 0.95,
    }

    l1: float = 1.0
    l2: float = 100.0
    tolerance: float = 1e-3
    passes: int = 1000
    dtype: Literal["float32", "float64"] = "float32"
    threads: int | None = None
    memory_limit: int | str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.l1 = check_nonnegative("l1", self.l1)
        self.l2 = check_nonnegative("l2", self.l2)
        self.tolerance = check_number("tolerance", self.tolerance, "above 0 and below 1", lambda x: 0 < x < 1)
        self.passes = check_count("passes", self.passes)
        self.dtype = check_dtype(self.dtype)
        self._set_limits(self.threads, self.memory_limit)

    @property
    def unsettled_(self) -> int | None:
        learned = self.fitted_.learned
        return learned.unsettled if isinstance(learned, SLIMWeights) else None

    def _fit(self, data: "Interactions", context: FitContext) -> LinearWeights:
        with fitting_gram(self, data, context, self._costs) as fit:
            weights, unsettled = self._regressions(data, fit)
            if unsettled:
                warn(
                    f"{unsettled:,} of {data.n_items:,} regressions did not converge within "
                    f"passes={self.passes}. Use a larger l2, more passes, or a larger tolerance."
                )
        return fit.noted(replace(self.learned(weights), unsettled=unsettled))  # type: ignore[call-arg]

    def _regressions(self, data: "Interactions", fit: GramFit) -> "tuple[sp.csr_array, int]":
        """Regress each item on all others; return the weights, and how many regressions did not converge."""
        from mrfrec.core import descent, neighbors

        advice = "Use FsSLIM, which looks at a few neighbors of each item."
        fit.engine.memory.require("gram", fit.held + descent.bytes_for_all(data.n_items, self.dtype), advice)
        facts = neighbors.raw_statistics(data.matrix, fit.engine)
        gram = descent.gram(facts, self.dtype, fit.engine)
        return descent.regress_on_all(facts, gram, self._penalties, fit.held, fit.engine)

    @property
    def _penalties(self) -> tuple[float, float, float, int]:
        return self.l1, self.l2, self.tolerance, self.passes


@dataclass(kw_only=True, repr=False, eq=False)
class FsSLIM(SLIM):
    """SLIM with feature selection: each item is regressed only on its `neighbors` nearest items.

    The nearest items have the largest cosine, as in `ItemKNN` (Ning & Karypis 2011). Nothing of size m
    × m is held.

    Parameters
    ----------
    neighbors
        Number of items that may have a weight in an item's score.
    l1, l2, tolerance, passes, dtype, threads, memory_limit
        As in `SLIM`.
    """

    tuning_grid: ClassVar[Mapping[str, Axis]] = {"neighbors": (50, 200), "l1": (0.1, 1.0), "l2": _RIDGES}

    _costs: ClassVar[Mapping[str, float]] = {
        "statistics": 0.01,
        "neighbors": 0.09,
        "gather": 0.3,
        "regress": 0.6,
    }

    neighbors: int = 200

    def __post_init__(self) -> None:
        self.neighbors = check_count("neighbors", self.neighbors)
        super().__post_init__()

    def _regressions(self, data: "Interactions", fit: GramFit) -> "tuple[sp.csr_array, int]":
        from mrfrec.core import descent, neighbors
        from mrfrec.core.pattern import Pattern

        engine, held = fit.engine, fit.held
        facts = neighbors.raw_statistics(data.matrix, engine)
        nearest = neighbors.nearest(facts, self.neighbors, 0.0, held, engine)
        some = Pattern(nearest.indptr.astype(np.int64), nearest.indices, 0.0)
        return descent.regress_on_some(facts, some, self._penalties, held, engine, self.dtype)
