"""MRF: the paper's model, from parameters to weights to scores."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.checks import (
    check_count,
    check_device_name,
    check_dtype,
    check_flag,
    check_nonnegative,
    check_number,
    warn,
)
from mrfrec.core.plan import Plan, Settings, Sizes, decide
from mrfrec.core.progress import part_of
from mrfrec.errors import DataError, MemoryPlanError, ParameterError
from mrfrec.fitted import scorers
from mrfrec.fitted.state import FittedState
from mrfrec.models.climbing import Axis, Ridges, Route
from mrfrec.models.linear import Linear
from mrfrec.models.mrf.weights import MRFWeights, stored_mrf
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.core.progress import Progress
    from mrfrec.data.catalogue import DataSize
    from mrfrec.data.interactions import Interactions
    from mrfrec.engines.local import LocalEngine
    from mrfrec.io.artifact import Stored
    from mrfrec.models.mrf.measuring import Task
    from mrfrec.models.recommender import Recommender

__all__ = ["MRF", "PAPER"]

PAPER: dict[str, Any] = {
    "l2": 6.0, "alpha": 0.75, "user_weight": 0.0, "offset": False, "novelty": 0.0, "rank": 0,
    "feature_weight": 0.7,
}  # fmt: skip
"""The parameters of `MRF` that the paper has, where they differ from the defaults."""

# Where the values that are "auto" start. A dense model starts without a low-rank part.
_START = {"user_weight": 0.25, "novelty": 0.1, "rank_weight": 0.3, "feature_weight": 0.7}


class MRF(Linear):
    """A Gaussian Markov random field of items, fitted by pseudo-likelihood in closed form.

    Each item is regressed on the others, and a user with history x gets the scores x·B. The model is dense
    (Eq. 4 of the paper) or sparse (§3); `plan_` says which and why.

    Parameters
    ----------
    l2
        Ridge on the rescaled item-item matrix: a number, or "auto" to measure it.
    alpha
        Exponent of the rescaling, from 0 (covariances) to 1 (correlations).
    l2_flat
        A second ridge, the same for all items before they are rescaled. The diagonal gets `l2 +
        l2_flat/s²`.
    dropout
        A third ridge, proportional to the popularity of an item; below 1. For p it is p/(1 − p) times the
        diagonal of S, as in `EDLAE`.
    user_weight
        Above 0, long histories count less. A user with a history of length h gets the weight h^(−β), for this
        number β; "auto" to measure it.
    center
        Subtract the mean of each item.
    sparsity
        Share of the weights to keep, such as 0.005; "dense" for all weights, or "auto". It is a share of the
        m² entries, diagonal included, before `max_neighbors` applies. None is the same as "dense". "auto" is
        dense up to 25,000 items if that fits in memory and the data is not too thin; `plan_` says why.
    threshold
        Keep pairs that correlate more than this, instead of `sparsity`. These are the entries with |S| above
        it.
    max_neighbors
        Sparse model: largest number of entries in an item's column, the diagonal included.
    r
        Sparse model: 0 is most accurate, 1 is fastest. 0 solves one system per item; above 0, each system
        also gives the columns of that share of the item's neighbours.
    mean_constraint
        Dense model: make predictions reproduce the means of the items. The fit is under μᵀB = μᵀ (the
        Appendix), for all items with variance.
    novelty
        Above 0, rarer items score higher; below 0, popular items; negative scores move the other way. For γ,
        the score of an item with p users is divided by (p/p̄)^γ, where p̄ is the p of a typical interaction;
        "auto" to measure it.
    rank
        Number of vectors of a low-rank part beside the weights: "auto", or 0 for none. With the part L the
        score is x·(B + λ·L). "auto": 256, fewer where that would be more than 16 million numbers, and 0 where
        `rank_weight` is.
    rank_weight
        How much the low-rank part counts, where the weights count 1. It is the ratio of the spreads of both
        scores over the items a user has not; "auto" to measure it.
    feature_weight
        How much a feature counts that two items have in common, where a user they have in common counts 1;
        "auto" to measure it. Without `item_features` it means nothing.
    measure
        Measure the parameters that are "auto" on up to 4,000 held-out users, then fit to everybody. False
        fits at once, with the values at which measuring starts.
    offset
        Add the intercept of the conditional mean. The score is μ + (x − μ)·B instead of x·B; an empty history
        scores μ.
    dtype
        Precision of the weights and of the linear algebra.
    threads
        Number of threads, by default one for each core. Results do not depend on it.
    memory_limit
        Memory to use beyond the data, such as "8GB", by default as much as is free. It holds for a fit and
        for `score`; a number is in bytes. A fit that needs more raises `MemoryPlanError`. Where "auto"
        decides, the limit may make the model smaller; `plan_` says so.
    device
        Where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU that has room where the fit would
        take two seconds or more without it. The device fits, and ranks many users by dense weights or with a
        low-rank part. Needs PyTorch. The weights of devices differ by rounding; the lists from the same
        weights are equal.

    Attributes
    ----------
    plan_
        Dense or sparse, why, and the memory it takes. `str(plan_)` is one line, which is also logged.
    pattern_
        A, the entries that may be non-zero, diagonal included (`csc_array` of booleans); None if dense or
        loaded.
    values_
        The numbers that the fit used for l2, user_weight, novelty and rank_weight, and feature_weight where
        there are features.
    measured_
        The gain of each value that was measured, with its standard error; None if nothing was measured.
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

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit", "device")
    uses_features = True
    tuning_grid: ClassVar[Mapping[str, Axis]] = {
        "sparsity": ("auto",), "alpha": (0.0, 0.25, 0.5, 0.75, 1.0),
        "l2": Ridges((0.25, 0.5, 1.0, 2.0, 4.0), of_auto=True),
    }  # fmt: skip

    def __init__(
        self,
        *,
        l2: float | Literal["auto"] = "auto",
        alpha: float = 0.5,
        l2_flat: float = 0.0,
        dropout: float = 0.0,
        user_weight: float | Literal["auto"] = "auto",
        center: bool = True,
        sparsity: float | Literal["auto", "dense"] | None = "auto",
        threshold: float | None = None,
        max_neighbors: int = 1000,
        r: float = 0.0,
        mean_constraint: bool = False,
        offset: bool = True,
        novelty: float | Literal["auto"] = "auto",
        rank: int | Literal["auto"] = "auto",
        rank_weight: float | Literal["auto"] = "auto",
        feature_weight: float | Literal["auto"] = "auto",
        measure: bool = True,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        self.l2 = _auto_or("l2", l2)
        self.alpha = check_number("alpha", alpha, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.l2_flat = check_nonnegative("l2_flat", l2_flat)
        self.dropout = check_number("dropout", dropout, "at least 0 and below 1", lambda x: 0 <= x < 1)
        self.user_weight = _auto_or("user_weight", user_weight)
        self.center = check_flag("center", center)
        self.sparsity: float | Literal["auto"] | None = None
        if sparsity not in (None, "dense"):
            rule = 'above 0 and at most 1, "dense"'
            self.sparsity = _auto_or("sparsity", sparsity, rule, lambda x: 0 < x <= 1)
        self.threshold = threshold
        if threshold is not None:
            rule = "between 0 and 1e36"
            self.threshold = check_number("threshold", threshold, rule, lambda x: 0 <= x <= 1e36)
        self.max_neighbors = check_count("max_neighbors", max_neighbors)
        self.r = check_number("r", r, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.mean_constraint = check_flag("mean_constraint", mean_constraint)
        self.offset = check_flag("offset", offset)
        self.novelty = _auto_or("novelty", novelty, "between -1 and 1", lambda x: -1 <= x <= 1)
        self.rank: int | Literal["auto"] = "auto" if rank == "auto" else check_count("rank", rank, least=0)
        self.rank_weight = _auto_or("rank_weight", rank_weight)
        self.feature_weight = _auto_or("feature_weight", feature_weight)
        self.measure = check_flag("measure", measure)
        self.dtype = check_dtype(dtype)
        self._limit(threads, memory_limit)
        self.device = check_device_name(device)
        if self.threshold is not None and self.sparsity not in (None, "auto"):
            raise ParameterError("threshold", "None when sparsity is given", threshold)
        asks_for_sparse = self.threshold is not None or self.sparsity not in (None, "auto") or self.r > 0
        if asks_for_sparse and self.mean_constraint:
            advice = "Drop sparsity, threshold and r."
            raise ParameterError("mean_constraint", "False for a sparse model", mean_constraint, advice)
        if self.r > 0 and self.sparsity is None and self.threshold is None:
            raise ParameterError("r", "0 for a dense model", r)

    @classmethod
    def paper(cls, **parameters: Any) -> "MRF":
        """Return the model as the paper has it: no intercept, no weights of users, α = ¾ and l2 = 6.

        These are its values for ML-20M and Netflix; on MSD l2 is 3 for the dense model and 1 for the sparse
        one. `parameters` replace any of them.
        """
        return MRF(**{**PAPER, **parameters})

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────

    def planned(self, data: object) -> Plan:
        """Return what a fit to this data would do before it measures; l2="auto" stays."""
        from mrfrec.core import fitting
        from mrfrec.io.tables import as_interactions
        from mrfrec.models.mrf import measuring

        interactions = as_interactions(data)
        X, settings, free = interactions.matrix, self._settings, self._free(interactions)
        features = _features_of(interactions, settings)
        with self._engine(None) as engine:
            sizes = fitting.sizes_of(X, settings, engine.memory.limit, features=features)
            plan = decide(settings, sizes, engine.memory)
            asked = measuring.held_out(interactions) if free and self.measure else None
            with suppress(MemoryPlanError):  # then nothing is measured
                if asked is not None:
                    plan = measuring.prepare(asked, X, settings, free, engine, 0).final
        return plan

    def planned_for(self, size: "DataSize") -> Plan:
        """Return what a fit to data of this size would do, as `planned` does for the data itself."""
        itemsize, binary = np.dtype(self.dtype).itemsize, size.binary and self.user_weight == 0
        with self._engine(None) as engine:
            sizes = Sizes(*size[:3], binary, itemsize, engine.memory.limit)
            return decide(self._settings, sizes, engine.memory)

    def _engine(self, progress: "Progress | None", client: Any = None) -> "LocalEngine":
        from mrfrec.engines.devices import engine_on

        if client is not None:
            from mrfrec.engines.cluster import ClusterEngine

            return ClusterEngine(client, self.threads, self.memory_limit, progress)
        return engine_on(self.device, self.threads, self.memory_limit, progress)

    def check_client(self, client: object) -> None:
        from mrfrec.engines import cluster

        cluster.check_client(client)
        if self.device not in ("cpu", "auto"):
            raise ParameterError("device", '"cpu" with a client', self.device, "Workers use their CPUs.")

    def check_ready(self) -> None:
        """Raise if PyTorch or the device is missing."""
        from mrfrec.engines.devices import chosen_device

        chosen_device(self.device)

    @property
    def _settings(self) -> Settings:
        """The settings that a fit starts from; l2 and rank_weight may be "auto"."""
        own = {field.name: getattr(self, field.name) for field in fields(Settings)}
        started = {name: self._starts[name] for name in ("user_weight", "feature_weight")}
        return Settings(**{**own, **started})

    @property
    def _starts(self) -> dict[str, float]:
        """The values of the parameters that a fit may measure besides l2, or else where these start."""
        given = {name: getattr(self, name) for name in _START}
        return {name: _START[name] if x == "auto" else float(x) for name, x in given.items()}

    def _free(self, data: "Interactions") -> list[str]:
        """Return the parameters that a fit to this data may measure."""
        names = [name for name in ("l2", *_START) if getattr(self, name) == "auto"]
        void = {"rank_weight": self.rank == 0, "feature_weight": data.features is None}
        return [name for name in names if not void.get(name)]

    def _to_measure(self, data: "Interactions", client: Any) -> "Task":
        from mrfrec.models.mrf.measuring import Task

        free = self._free(data) if self.measure else []
        start = {"l2": self.l2, **self._starts}
        return Task(free, self._settings, start, self.offset, lambda: self._engine(None, client))

    def tuning_route(self, data: "Interactions") -> Route:
        """Return the axes of a climb: γ and λ need no fit, a new l2 no statistics, a new rank no weights."""
        from mrfrec.models.mrf.measuring import AXES

        plan, m = self.planned(data), data.n_items
        most = min(256, min(data.n_users, m) // 4)
        ranks = {0, most // 4, most // 2, most, plan.rank}
        axes: dict[str, Axis] = {
            "novelty": AXES["novelty"], "rank_weight": AXES["rank_weight"][1:], "l2": (),
            "user_weight": AXES["user_weight"], "alpha": (), "rank": sorted(ranks),
            "feature_weight": AXES["feature_weight"],
        }  # fmt: skip
        axes |= self.tuning_grid
        start: dict[str, Any] = {"rank": plan.rank, **_START}
        if plan.sparsity is not None:
            start["sparsity"] = s = float(f"{plan.sparsity:.3g}")
            axes["sparsity"] = [x * s for x in (0.25, 0.5, 1.0, 2.0, 4.0) if x * s <= 1]
        own = self.defaults().keys() - ({"feature_weight"} if data.features is None else set())
        return Route(
            {name: axis for name, axis in axes.items() if name in own},
            {name: value for name, value in start.items() if name in own},
            needs={"rank_weight": "rank"},
        )

    def tuning_start(self, data: "Interactions", given: FitContext) -> dict[str, Any]:
        from mrfrec.models.mrf.measuring import beforehand

        measured = beforehand(self._to_measure(data, given.client), data, given).measured
        choices = () if measured is None else measured.choices
        values: dict[str, Any] = {one.name: one.value for one in choices if one.value != one.start}
        if values.get("rank_weight") and self.rank == "auto":
            weighted = type(self)(**{**self.get_params(), "rank_weight": values["rank_weight"]})
            values["rank"] = weighted.planned_for(data.size).rank
        return values

    def _fit(self, data: "Interactions", given: FitContext) -> MRFWeights:
        # numba loads when something is fitted, not to answer from a file.
        from mrfrec.core import fitting
        from mrfrec.models.mrf.measuring import announce, beforehand, intercept, relative_spread
        from mrfrec.models.mrf.new_items import with_new_items

        began = time.perf_counter()
        if self._fitted is not None:
            self._linear.leave_devices()
        found = beforehand(self._to_measure(data, given.client), data, given)
        features = data.features if self.uses_features else None
        chosen: dict[str, Any] = {} if found.measured is None else found.measured.values
        chosen = {name: chosen[name] for name in self._free(data) if name in chosen}
        settings = replace(self._settings, **{name: x for name, x in chosen.items() if name != "novelty"})
        progress = part_of(given.progress, found.share, 1) if found.share else given.progress
        with self._engine(progress, given.client) as engine:
            fitted = fitting.fit(
                data.matrix,
                settings,
                engine,
                features=_features_of(data, settings),
                copied=given.copied,
                announce=lambda plan: None if found.announced else announce(plan, engine),
                reuse=None if given.reuse is None else given.reuse.setdefault("mrf", fitting.Reuse()),
            )
            weights, low_rank, rank_weight = fitted.weights, fitted.low_rank, 0.0
            base_scores = intercept(fitted, self.dtype, self.offset)
            values = {**self._starts, **chosen}
            if low_rank is None:
                values["rank_weight"] = 0.0
            else:
                spread = relative_spread(data.matrix, weights, base_scores, low_rank)
                rank_weight = values["rank_weight"] * spread
        timings = {**engine.timings, "total": time.perf_counter() - began + engine.saved}
        if found.stages:
            timings["measure"] = found.seconds
        plan = fitted.plan
        if found.said:
            plan = replace(plan, reason=f"{plan.reason}; {found.said}")
        if found.announced:
            plan = replace(plan, needed=max(plan.needed, found.announced.needed))
        values["l2"] = float(plan.l2)
        factors = scorers.novelty_factors(data.popularity, values["novelty"]).astype(self.dtype)
        if values["novelty"]:
            weights, base_scores = weights.scaled(factors), base_scores * factors
        if low_rank is not None:
            low_rank = low_rank.scaled(factors * rank_weight) if rank_weight else None
        if features is None:
            del values["feature_weight"]
        learned = MRFWeights(
            weights=weights, base_scores=base_scores, low_rank=low_rank, mean=fitted.mean, scale=fitted.scale,
            offset=self.offset, plan=plan, rank_weight=rank_weight, threshold=fitted.threshold,
            n_blocks=fitted.n_blocks, pattern=fitted.pattern, values=values, measured=found.measured,
        )  # fmt: skip
        stages = {**found.stages, **engine.memory.stages}
        new = np.flatnonzero(data.popularity == 0)
        if features is not None and len(new):
            before = time.perf_counter()
            with self._engine(None, given.client) as more:
                learned = with_new_items(learned, data, new, settings, more, given.copied)
            timings["new items"] = time.perf_counter() - before
            timings["total"] += timings["new items"]
            stages["new items"] = max(more.memory.stages.values())
        if fitted.pattern is not None:
            _warn_of_a_giant(data)
        engine.finish()
        return replace(learned, timings=timings, memory_plan=stages)

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
        if not self.uses_features:
            raise DataError(f"add_items needs an MRF: {type(self).__name__} learns from interactions alone.")
        data, count = new_items.with_more_items(fitted, table, item, query)
        if not count:
            return 0
        settings = type(self)(**fitted.parameters)._settings
        with self._engine(None) as engine:
            learned = new_items.extended(self._mrf(fitted), data, count, settings, engine)
        self._fitted = self._fitted_to(data, learned, fitted.parameters)
        return count

    @staticmethod
    def _mrf(fitted: FittedState) -> MRFWeights:
        assert isinstance(fitted.learned, MRFWeights)
        return fitted.learned

    @property
    def plan_(self) -> Plan:
        return self._mrf(self.fitted_).plan

    @property
    def pattern_(self) -> "sp.csc_array | None":
        return self._mrf(self.fitted_).pattern

    @property
    def values_(self) -> dict[str, Any]:
        return dict(self.fitted_.learned.values)

    @property
    def rank_weight_(self) -> float:
        return self._mrf(self.fitted_).rank_weight

    @property
    def new_scale_(self) -> float:
        return self._mrf(self.fitted_).new_scale

    @property
    def n_blocks_(self) -> int | None:
        return self._mrf(self.fitted_).n_blocks

    @property
    def threshold_(self) -> float | None:
        return self._mrf(self.fitted_).threshold

    @property
    def mean_(self) -> npt.NDArray[np.float64]:
        return self._mrf(self.fitted_).mean

    @property
    def scale_(self) -> npt.NDArray[np.float64]:
        return self._mrf(self.fitted_).scale

    def _alike(self) -> "list[Recommender]":
        shared: dict[str, Any] = {"l2": 1.0, "dtype": self.dtype, "threads": 1}
        return [MRF(sparsity=None, **shared), MRF(sparsity=0.5, r=0.5, max_neighbors=10, **shared)]

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> MRFWeights:
        return stored_mrf(arrays, facts, m, self.offset)


def _features_of(data: "Interactions", settings: Settings) -> "sp.csr_array | None":
    """Return the features that the systems of used items have as further rows."""
    if data.features is None or not settings.feature_weight:
        return None
    return data.features.of_used(data.popularity)


def _warn_of_a_giant(data: "Interactions") -> None:
    """Warn of a user who makes a sparse model less accurate than its sparsity suggests."""
    lengths = np.diff(data.matrix.indptr).astype(np.float64)
    longest, share = int(lengths.max()), float(lengths.max() ** 2 / (lengths**2).sum())
    if longest > 1000 and share > 0.1:
        warn(
            f"one user has {longest:,} items, and so {share:.0%} of all pairs of items. Items that only this "
            "user has look alike. Read the data with max_history=1000 to leave such users out."
        )


def _auto_or(
    name: str,
    value: Any,
    rule: str = "a finite number, 0 or more",
    holds: Callable[[float], bool] = lambda x: x >= 0,
) -> float | Literal["auto"]:
    return "auto" if value == "auto" else check_number(name, value, f'{rule}, or "auto"', holds)
