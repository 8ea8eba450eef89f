"""MRF: the paper's model, from parameters to weights to scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.data.catalogue import DataSize
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import Duration
from mrfrec.fitted.measured import FitPlan
from mrfrec.fitted.state import FittedState
from mrfrec.io.artifact import Stored
from mrfrec.io.tables import as_interactions
from mrfrec.models.linear import Linear
from mrfrec.models.mrf.fit import Field
from mrfrec.models.mrf.parameters import PAPER, keep
from mrfrec.models.mrf.weights import MRFWeights
from mrfrec.models.recommender import FitContext, Range

if TYPE_CHECKING:
    import scipy.sparse as sp


class MRF(Linear):
    """Recommend items by a Gaussian Markov random field, fitted in closed form.

    The model learns from a table of users and items which items are used together: it regresses each item on
    all others, and a user with history x gets the scores x·B. It is dense (Eq. 4 of the paper) or sparse
    (§3); `plan_` says which and why.

        from mrfrec import MRF

        model = MRF().fit("events.csv")
        model.recommend(history=["milk", "bread"], k=5, explain=3)
        model.similar_items("milk")
        model.save("shop.mrf")

    Nothing needs to be set: parameters that are "auto" are measured on held-out users. The first ones below
    are about size, accuracy and the machine. Other parameters are measured too (`l2` to `order`), or for
    experiments (`measure` to `device`), or for variants in the paper (`r` to `mean_constraint`).

    Parameters
    ----------
    sparsity
        Share of the weights to keep, such as 0.005; "dense" for all weights, or "auto". It is a share of the
        m² entries, diagonal included, before `max_neighbors` applies. None is the same as "dense". "auto" is
        dense up to 25,000 items if that fits in memory and the data is not too thin; `plan_` says why.
    half_life
        Time after which an event counts half, such as "90d"; None for no fading, "auto" to measure it. It has
        an effect only on data with times. The history in a question fades in the same way.
    novelty
        Above 0, rarer items score higher; below 0, popular items; "auto" to measure it. For γ, the score of
        an item with p users is divided by (p/p̄)^γ, where p̄ is the p of a typical interaction. Negative
        scores move the other way.
    threads
        Number of threads, by default one for each core, as with -1. Results do not depend on it.
    memory_limit
        Memory to use beyond the data, such as "8GB", by default as much as is free. A number is in bytes. The
        limit holds for a fit and for `scores`; a fit that needs more raises `MemoryPlanError`. Where "auto"
        decides, the limit may make the model smaller; `plan_` says so.

    Other Parameters
    ----------------
    l2
        Ridge on the rescaled item-item matrix: a number, or "auto" to measure it.
    rank_weight
        Weight of a low-rank part of the score; "auto" to measure it. For the weight λ and the low-rank part L
        the score is x·(B + λ·L). At 1 both parts spread a user's scores equally wide over the items that are
        new to the user.
    user_weight
        Above 0, long histories count less; "auto" to measure it. For β, a user with h items has the weight
        h^(−β).
    feature_weight
        Weight of a feature that two items share, where a user they share has weight 1; "auto" to measure it.
        It has an effect only in a fit with `item_features`.
    recency
        Weight of a step of a history relative to the next step, above 0 and at most 1; "auto" to measure it.
        The last step has weight 1. A list of items is oldest first; items at the same time are one step.
    order
        Weight of ordered pairs beside unordered pairs; 0 for none, "auto" to measure it. Above 0, an item is
        also predicted from the items that came before it, most of all from the step just before.
    measure
        Metric to maximise when parameters are measured, such as "ndcg@20" or "recall@50". True is "ndcg@100",
        or "ndcg@20" with times. Measuring holds out up to 4,000 users; the model is then fitted to all. False
        fits at once, with the values at which measuring would start.
    rank
        Number of vectors of the low-rank part: "auto", or 0 for none. "auto" is 256, fewer where that would
        be more than 16 million numbers, and 0 where `rank_weight` is 0.
    max_neighbors
        Sparse model: largest number of entries in an item's column, the diagonal included.
    dtype
        Precision of the weights and of the linear algebra.
    device
        Where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU that has room where a dense model has
        5,000 items or more. A GPU needs PyTorch. It fits dense models, and ranks many users by dense weights
        or with a low-rank part. Sparse models, and models with `order`, are fitted on the processor. Weights
        differ between devices by rounding; the same weights give the same lists.
    r
        Sparse model: 0 is most accurate, 1 is fastest. 0 solves one system per item; above 0, each system
        also gives the columns of that share of the item's neighbours.
    alpha
        Exponent of the rescaling, from 0 (covariances) to 1 (correlations).
    offset
        Add the intercept of the conditional mean. The score is μ + (x − μ)·B instead of x·B; an empty history
        scores μ.
    mean_constraint
        Dense model: make predictions reproduce the means of the items. The fit is under μᵀB = μᵀ (the
        Appendix), for all items with variance.

    Attributes
    ----------
    plan_
        Dense or sparse, why, and the memory it takes. `str(plan_)` is one line, which is also logged.
    pattern_
        A, the entries that may be non-zero, diagonal included (`csc_array` of booleans); None if dense or
        loaded.
    values_
        The numbers that the fit used for l2, user_weight, novelty and rank_weight, for feature_weight where
        there are features, and for half_life, order and recency where there are times.
    measured_
        The values that were measured, from where they started, and what they gain together; None if nothing
        was measured.
    rank_weight_
        λ; 0 without a low-rank part.
    new_scale_
        The scale of the weights for items that nobody has used; 0 if there are none.
    n_blocks_
        Number of systems solved; None if dense.
    threshold_
        Every entry kept has |S| above it; of those that tie just above it, some may be cut. None if dense.
    mean_, scale_
        μ and s, per item.
    """

    uses_features = True
    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit", "device")
    _weights_type = MRFWeights
    _center: ClassVar[bool] = True  # whether the mean of each item is subtracted
    search_space: ClassVar[Mapping[str, Range]] = {
        "l2": (0.2, 5, "times"), "sparsity": (0.25, 4, "times"), "novelty": (-0.1, 0.3),
        "rank_weight": (0, 1), "half_life": (0.1, 2, "times"), "recency": (0.5, 1), "feature_weight": (0, 2),
    }  # fmt: skip

    def __init__(
        self,
        *,
        l2: float | Literal["auto"] = "auto",
        rank: int | Literal["auto"] = "auto",
        rank_weight: float | Literal["auto"] = "auto",
        novelty: float | Literal["auto"] = "auto",
        user_weight: float | Literal["auto"] = "auto",
        half_life: Duration | Literal["auto"] | None = "auto",
        recency: float | Literal["auto"] = "auto",
        order: float | Literal["auto"] = "auto",
        feature_weight: float | Literal["auto"] = "auto",
        measure: bool | str = True,
        sparsity: float | Literal["auto", "dense"] | None = "auto",
        max_neighbors: int = 1000,
        r: float = 0.0,
        alpha: float = 0.5,
        offset: bool = True,
        mean_constraint: bool = False,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "cpu",
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        keep(self, locals())

    @classmethod
    def paper(cls, **parameters: Any) -> "MRF":
        """Return the model as the paper has it: no intercept, no weights of users, α = ¾ and l2 = 6.

        These are its values for ML-20M and Netflix; on MSD l2 is 3 for the dense model and 1 for the sparse
        one. `parameters` replace any of them.
        """
        return MRF(**{**PAPER, **parameters})

    def add_items(self, table: object, *, item: str | None = None, query: str | None = None) -> int:
        """Add items that nobody has used yet, by their features, without a new fit; return how many.

        Each new item gets the weights that a fit with it would give it: one small system, with the items most
        like it. Nothing else changes. Items that the model knows are left as they are, with a warning: the
        same table a second time adds nothing. A loaded model must have been saved with
        `include_histories=True`.

        Parameters
        ----------
        table
            A table with the columns that `item_features` had in the fit, in any form that
            `read_item_features` reads, or what that returns. Values that no item had then are passed over,
            with a warning if a column has no others.
        item
            Column of the items, if its name does not tell.
        query
            SQL, if the table is in a database.
        """
        from mrfrec.models.mrf import new_items

        fitted = self.fitted_
        data, count = new_items.with_more_items(fitted, table, item, query)
        if not count:
            return 0
        settings = type(self)(**fitted.parameters)._field.settings
        with self._field.engine() as engine:
            learned = new_items.extended(_weights_of(fitted), data, count, settings, engine)
        state = FittedState.of_data(data, learned, fitted.kind, fitted.parameters)
        self._fitted = replace(state, beside=fitted.beside)
        return count

    @property
    def _field(self) -> Field:
        return Field.of(self, center=self._center)

    def _fit(self, data: Interactions, context: FitContext) -> MRFWeights:
        return self._field.fit(data, context)

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> MRFWeights:
        return replace(MRFWeights.of_file(arrays, facts, m), offset=self._field.settings.offset)

    def planned(self, data: object) -> FitPlan:
        """Return what a fit to this data would do before it measures; l2="auto" stays."""
        return self._field.planned(as_interactions(data))

    def planned_for(self, size: DataSize) -> FitPlan:
        return self._field.planned_for(size)

    @property
    def pattern_(self) -> "sp.csc_array | None":
        return _weights_of(self.fitted_).pattern

    @property
    def rank_weight_(self) -> float:
        return _weights_of(self.fitted_).rank_weight

    @property
    def new_scale_(self) -> float:
        return _weights_of(self.fitted_).new_scale

    @property
    def n_blocks_(self) -> int | None:
        return _weights_of(self.fitted_).n_blocks

    @property
    def threshold_(self) -> float | None:
        return _weights_of(self.fitted_).threshold

    @property
    def mean_(self) -> npt.NDArray[np.float64]:
        return _weights_of(self.fitted_).mean

    @property
    def scale_(self) -> npt.NDArray[np.float64]:
        return _weights_of(self.fitted_).scale


def _weights_of(fitted: FittedState) -> MRFWeights:
    assert isinstance(fitted.learned, MRFWeights)
    return fitted.learned
