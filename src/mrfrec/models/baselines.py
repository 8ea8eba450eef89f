"""The models that the paper compares the MRF with: Popularity, ItemKNN, EASE and EDLAE.

EASE and EDLAE are fields of the MRF with other ridges. Without centering and rescaling, the diagonal of XᵀX
gets `l2 + p/(1 − p)·diag(XᵀX)`. A flat ridge is EASE; a ridge proportional to how often items are used is
EDLAE.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_nonnegative, check_number
from mrfrec.core.plan import Settings
from mrfrec.data.catalogue import Catalogue, DataSize
from mrfrec.data.interactions import Interactions
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.linear import LinearWeights
from mrfrec.fitted.measured import FitPlan
from mrfrec.models.linear import Linear
from mrfrec.models.mrf.fit import Field
from mrfrec.models.mrf.parameters import keep
from mrfrec.models.mrf.weights import MRFWeights
from mrfrec.models.recommender import FitContext, Range


class Popularity(Linear):
    """Recommend the most popular items: a baseline that any model must beat.

    The score of an item is its number of training users.
    """

    def __init__(self) -> None:
        return

    def _fit(self, data: "Interactions", context: FitContext) -> LinearWeights:
        return self.learned(sp.csr_array((data.n_items, data.n_items)), data.popularity)


@dataclass(frozen=True, kw_only=True)
class KNNWeights(LinearWeights):
    """The cosines of the nearest items."""

    def unknown_user_scores(self, catalogue: Catalogue) -> npt.NDArray[Any]:
        return np.zeros_like(self.base_scores)  # so that popularity decides


class ItemKNN(Linear):
    """Score an item by its cosines to the items of the history that are among its nearest neighbors.

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
        Divide the weights in the score of an item by their sum and score by μ + (x − μ)·B, with the means μ:
        a prediction of the item's value. It is better on some data and far worse on other data: compare both.
    threads, memory_limit
        As in `MRF`.
    """

    _weights_type = KNNWeights
    search_space: ClassVar[Mapping[str, Range]] = {
        "neighbors": (20, 200, "log"),
        "shrink": (0, 20),
        "user_weight": (0, 1),
        "normalize": [False, True],
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
        self.shrink = check_nonnegative("shrink", shrink)
        self.user_weight = check_nonnegative("user_weight", user_weight)
        self.normalize = check_flag("normalize", normalize)
        self.set_limits(threads, memory_limit)

    def _fit(self, data: "Interactions", context: FitContext) -> LinearWeights:
        from mrfrec.core import neighbors

        began = time.perf_counter()
        settings = Settings(0.0, None, self.neighbors, 0.0, "float32", user_weight=self.user_weight)
        with LocalEngine(self.threads, self.memory_limit, context.progress) as engine:
            held = context.copied + neighbors.bytes_for_raw(data.matrix, settings)
            engine.memory.require("statistics", held, "Use fewer users or items, or more memory.")
            engine.expect({"statistics": 0.02, "neighbors": 0.95, "rows": 0.03})  # typical shares
            facts = neighbors.raw_statistics(data.matrix, settings, engine)
            cosines = neighbors.nearest(facts, self.neighbors, self.shrink, held, engine)
            with engine.stage("rows", 1):
                base = neighbors.to_means(cosines, facts.mu) if self.normalize else 0.0
                weights = cosines.tocsr()
        engine.finish()
        timings = {**engine.timings, "total": time.perf_counter() - began + engine.saved}
        return replace(self.learned(weights, base), timings=timings, memory_plan=engine.memory.stages)


class EASE(Linear):
    """Steck, *Embarrassingly Shallow Autoencoders for Sparse Data*, WWW 2019: an MRF with a flat ridge.

    C = (XᵀX + l2·I)⁻¹, B = −C ⊘ diag(C) per column, zero diagonal. Published: l2 = 500
    on ML-20M, 1000 on Netflix, 200 on MSD.

    The other parameters are those of `MRF`; with `sparsity`, the largest entries of XᵀX are kept.
    """

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit", "device")
    _weights_type = MRFWeights
    search_space: ClassVar[Mapping[str, Range]] = {"l2": (1, 5000, "log")}

    def __init__(
        self,
        *,
        l2: float = 500.0,
        sparsity: float | Literal["auto"] | None = "auto",
        max_neighbors: int = 1000,
        r: float = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        keep(self, locals())

    def _fit(self, data: Interactions, context: FitContext) -> MRFWeights:
        return Field.of(self).fit(data, context)

    def planned_for(self, size: DataSize) -> FitPlan:
        return Field.of(self).planned_for(size)


class EDLAE(Linear):
    """Steck, *Autoencoders that don't overfit towards the Identity*, NeurIPS 2020, of full rank.

    Dropping each item of a history with probability p is, in expectation, a ridge proportional to how often
    the items are used: C = (XᵀX + p/(1 − p)·dMat(diag(XᵀX)) + l2·I)⁻¹, B = −C ⊘ diag(C) per column, zero
    diagonal.

    Parameters
    ----------
    dropout
        p, from 0 to below 1.
    l2
        The flat ridge.

    Notes
    -----
    The other parameters are those of `MRF`; with `sparsity`, the largest entries of XᵀX are kept.
    """

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit", "device")
    _weights_type = MRFWeights
    search_space: ClassVar[Mapping[str, Range]] = {"dropout": (0.1, 0.8), "l2": (1, 1000, "log")}

    def __init__(
        self,
        *,
        dropout: float = 0.33,
        l2: float = 100.0,
        sparsity: float | Literal["auto"] | None = "auto",
        max_neighbors: int = 1000,
        r: float = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        keep(self, locals())
        self.dropout = check_number("dropout", dropout, "at least 0 and below 1", lambda x: 0 <= x < 1)

    def _fit(self, data: Interactions, context: FitContext) -> MRFWeights:
        return Field.of(self).fit(data, context)

    def planned_for(self, size: DataSize) -> FitPlan:
        return Field.of(self).planned_for(size)
