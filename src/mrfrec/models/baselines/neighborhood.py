"""Popularity and item-kNN."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_nonnegative
from mrfrec.core.engine import Engine
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.interactions import Interactions
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.linear import LinearWeights
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import FitContext, Range


class Popularity(Linear):
    """Recommend the most popular items: a baseline that any model must beat.

    The score of an item is its number of training users.
    """

    def __init__(self) -> None:
        return

    def _fit(self, data: "Interactions", context: FitContext) -> LinearWeights:
        return self.learned(sp.csr_array((data.n_items, data.n_items)), data.popularity)


class GramFit:
    """A fit to XᵀX: its engine, and the time and memory it takes."""

    def __init__(self, engine: "Engine", held: int) -> None:
        self.engine = engine
        self.held = held  # bytes in use, with the statistics
        self.seconds = 0.0

    def noted(self, learned: LinearWeights) -> LinearWeights:
        """Return what was learned, with the time and the memory it took."""
        timings = {**self.engine.timings, "total": self.seconds}
        return replace(learned, timings=timings, memory_plan=self.engine.memory.stages)


@contextmanager
def fitting_gram(
    model: Linear,
    data: "Interactions",
    context: FitContext,
    costs: Mapping[str, float],
    user_weight: float = 0.0,
) -> Iterator[GramFit]:
    """Run a fit to XᵀX in an engine.

    `costs` holds the share of the time that each stage takes, about.
    """
    from mrfrec.core.neighbors import bytes_for_raw

    start = time.perf_counter()
    with LocalEngine(model.threads, model.memory_limit, context.progress) as engine:
        held = context.copied + bytes_for_raw(data.matrix, user_weight)
        engine.memory.require("statistics", held, "Use fewer users or items, or more memory.")
        engine.expect(costs)
        fit = GramFit(engine, held)
        yield fit
    engine.finish()
    fit.seconds = time.perf_counter() - start + engine.saved


@dataclass(frozen=True, kw_only=True)
class KNNWeights(LinearWeights):
    """The cosines of the nearest items."""

    def unknown_user_scores(self, catalogue: Catalogue) -> npt.NDArray[Any]:
        return np.zeros_like(self.base_scores)  # so that popularity decides


class ItemKNN(Linear):
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

        costs = {"statistics": 0.02, "neighbors": 0.95, "rows": 0.03}  # typical shares
        with fitting_gram(self, data, context, costs, self.user_weight) as fit:
            engine, held = fit.engine, fit.held
            facts = neighbors.raw_statistics(data.matrix, engine, self.user_weight)
            cosines = neighbors.nearest(facts, self.neighbors, self.shrink, held, engine)
            with engine.stage("rows", 1):
                base = neighbors.to_means(cosines, facts.mu) if self.normalize else 0.0
                weights = cosines.tocsr()
        return fit.noted(self.learned(weights, base))
