"""SLIM and fsSLIM: sparse linear methods, fitted by coordinate descent."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal
from warnings import warn

import numpy as np
import scipy.sparse as sp

from mrfrec import Interactions, MrfrecWarning, NumericalError
from mrfrec.extending import FitContext, LinearWeights, memory_budget
from mrfrec.models import ItemKNN, Linear
from mrfrec_lab.models import checks, descent

_PER_WEIGHT = 44  # bytes for each weight of B: in the results of the columns, then joined, then by row
_PER_COLUMN = 800  # bytes for the objects of each column
_TOO_LARGE = 1e12  # products of values that single precision cannot sum

Column = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]
"""The items of a column of B, their weights, and whether its regression converged."""


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
    """

    # Liang et al. (2018) try 0.1, 0.5, 1 and 5 for both penalties; for most items such an l2 changes nothing.
    search_space: ClassVar[Mapping[str, Any]] = {"l1": (0.1, 5, "log"), "l2": (1, 1000, "log")}
    _fewer_weights: ClassVar[str] = "Use a larger l1, or FsSLIM."

    l1: float = 1.0
    l2: float = 100.0
    tolerance: float = 1e-3
    passes: int = 1000
    dtype: Literal["float32", "float64"] = "float32"
    threads: int | None = None
    memory_limit: int | str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.l1 = checks.nonnegative("l1", self.l1)
        self.l2 = checks.nonnegative("l2", self.l2)
        rule = "above 0 and below 1"
        self.tolerance = checks.number("tolerance", self.tolerance, rule, lambda x: 0 < x < 1)
        self.passes = checks.whole("passes", self.passes)
        self.dtype = checks.precision(self.dtype)
        self.set_limits(self.threads, self.memory_limit)

    def _fit(self, data: Interactions, context: FitContext) -> LinearWeights:
        start = time.perf_counter()
        budget = memory_budget(self.memory_limit)  # type: ignore[arg-type]  # a number by now
        G = self._gram(data, context, budget.require)
        columns = self._columns(data, G)
        m = data.n_items
        found: list[Column] = []
        weights = 0
        with ThreadPoolExecutor(self.threads or len(os.sched_getaffinity(0))) as pool:
            tasks = pool.map(columns, range(m), chunksize=16)
            for done, column in enumerate(_told(tasks, context, m)):
                found.append(column)
                weights += len(column[0])
                if done % 64 == 0:
                    needed = budget.stages["gram"] + _PER_WEIGHT * weights + _PER_COLUMN * m
                    budget.require("regress", needed, self._fewer_weights)
        ptr = np.concatenate([[0], np.cumsum([len(items) for items, _, _ in found])])
        items, values = (np.concatenate([column[place] for column in found]) for place in (0, 1))
        B = sp.csc_array((values, items, ptr), (m, m)).tocsr()
        B.eliminate_zeros()
        if unsettled := sum(not converged for _, _, converged in found):
            warn(
                f"{unsettled:,} of {m:,} regressions did not converge within passes={self.passes}. Use a "
                "larger l2, more passes, or a larger tolerance.",
                MrfrecWarning,
                stacklevel=3,
            )
        timings = {"total": time.perf_counter() - start}
        return replace(self.learned(B), timings=timings, memory_plan=budget.stages)

    def _gram(self, data: Interactions, context: FitContext, require: Callable[..., None]) -> Any:
        """Return G = XᵀX, dense."""
        dense = np.dtype(self.dtype).itemsize * data.n_items**2
        advice = "Use FsSLIM, which looks at a few neighbors of each item."
        require("gram", context.copied + _bytes_of_product(data, self.dtype) + dense, advice)
        return _product(data, self.dtype).toarray()

    def _columns(self, data: Interactions, G: Any) -> Callable[[int], Column]:
        """Return a function that regresses one item."""
        # If no value is negative, r_j = G_ji − Σ_k G_jk·w_k is at most G_ji: below l1 the weight stays 0.
        least = self.l1 if G.min() >= 0 else -np.inf
        return lambda i: descent.regress_on_all(G, i, least, *self._penalties)

    @property
    def _penalties(self) -> descent.Penalties:
        return self.l1, self.l2, self.tolerance, self.passes


@dataclass(kw_only=True, repr=False, eq=False)
class FsSLIM(SLIM):
    """SLIM with feature selection: each item is regressed only on its `neighbors` nearest items.

    The nearest items have the largest cosine, as in `ItemKNN` (Ning & Karypis 2011). XᵀX is held as a
    sparse matrix.

    Parameters
    ----------
    neighbors
        Number of items that may have a weight in an item's score.
    l1, l2, tolerance, passes, dtype, threads, memory_limit
        As in `SLIM`.
    """

    search_space: ClassVar[Mapping[str, Any]] = {
        "neighbors": (50, 200),
        "l1": (0.1, 1, "log"),
        "l2": (1, 1000, "log"),
    }
    _fewer_weights: ClassVar[str] = "Use a larger l1, or fewer neighbors."

    neighbors: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.neighbors = checks.whole("neighbors", self.neighbors)

    def _gram(self, data: Interactions, context: FitContext, require: Callable[..., None]) -> Any:
        """Return G = XᵀX, sparse."""
        # The nearest items and their cosines, by row and by column.
        near = 16 * data.n_items * min(self.neighbors, data.n_items)
        advice = "Use fewer users or items, or more memory."
        require("gram", context.copied + _bytes_of_product(data, self.dtype) + near, advice)
        return _product(data, self.dtype)

    def _columns(self, data: Interactions, G: Any) -> Callable[[int], Column]:
        knn = ItemKNN(neighbors=self.neighbors, shrink=0.0, user_weight=0.0, threads=self.threads)
        near = knn.fit(data).weights_.tocsc()
        near.sort_indices()
        penalties = self._penalties

        def column(i: int) -> Column:
            some = near.indices[near.indptr[i] : near.indptr[i + 1]].astype(np.int32)
            return some, *descent.regress_on_some(G.indptr, G.indices, G.data, i, some, *penalties)

        return column


def _bytes_of_product(data: Interactions, dtype: str) -> int:
    """Return the most bytes that XᵀX takes as a sparse matrix while it is made, with two copies of X."""
    X, m = data.matrix, data.n_items
    # Row i has at most as many entries as the users of item i have items.
    lengths = np.diff(X.indptr)
    most = np.bincount(X.indices, np.repeat(lengths, lengths), m)
    return int((4 + np.dtype(dtype).itemsize) * (np.minimum(most, m).sum() + 2 * X.nnz))


def _product(data: Interactions, dtype: str) -> Any:
    """Return XᵀX by row."""
    X = data.matrix.astype(dtype, copy=False)
    # The product is stored by column; since it is symmetric, these are its rows.
    G = (X.T @ X).tocsc().T
    if G.nnz and not max(G.data.max(), -G.data.min()) <= _TOO_LARGE**2:
        raise NumericalError("the values are too large to compute with. Scale them down.")
    G.sort_indices()
    return G


def _told(columns: Iterable[Column], context: FitContext, m: int) -> Iterable[Column]:
    """Yield the columns, and tell how many are done."""
    for done, column in enumerate(columns):
        if context.progress is not None and done % 16 == 0:
            context.progress("regress", done, m)
        yield column
    if context.progress is not None:
        context.progress("regress", m, m)
