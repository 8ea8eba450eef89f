"""GaussianField, what MRF, EASE and EDLAE have in common: the fit in closed form, its plan, its results."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import warn
from mrfrec.core.ages import Times, faded
from mrfrec.core.plan import Plan, Settings, Sizes, decide
from mrfrec.core.progress import Progress, part_of
from mrfrec.data.catalogue import DataSize
from mrfrec.data.interactions import Interactions
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.fitted import scorers
from mrfrec.fitted.measured import Goal, as_parameter
from mrfrec.fitted.state import FittedState
from mrfrec.io.artifact import Stored
from mrfrec.io.tables import as_interactions
from mrfrec.models.linear import Linear
from mrfrec.models.mrf.held_out import held_out
from mrfrec.models.mrf.parameters import RULES, STARTS, TIMES, Automatic, number_of
from mrfrec.models.mrf.weights import MRFWeights, stored_mrf
from mrfrec.models.recommender import FitContext

if TYPE_CHECKING:
    from mrfrec.models.mrf.measuring import Task


class GaussianField(Linear):
    """A Gaussian Markov random field of items, fitted by pseudo-likelihood in closed form.

    The parameters are those of `MRF`. A subclass sets some of them in its constructor; the others are as in
    EASE: nothing is centered or rescaled, and there is nothing beside the weights.
    """

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit", "device")
    l2: float | Automatic
    sparsity: float | Automatic | None
    max_neighbors: int
    r: float
    alpha: float = 0.0
    user_weight: float | Automatic = 0.0
    _center: ClassVar[bool] = False  # whether the mean of each item is subtracted
    mean_constraint: bool = False
    offset: bool = False
    novelty: float | Automatic = 0.0
    rank: int | Automatic = 0
    rank_weight: float | Automatic = "auto"
    feature_weight: float | Automatic = 0.0
    half_life: str | None = None
    order: float | Automatic = 0.0
    recency: float | Automatic = 1.0
    measure: bool | str = True

    def _set_parameters(self, values: Mapping[str, Any]) -> None:
        """Check and keep the parameters among the arguments of a constructor."""
        for name, rule in RULES.items():
            if name in values:
                setattr(self, name, rule.checked(name, values[name]))
        if self.r > 0 and self.sparsity is None:
            raise ParameterError("r", "0 for a dense model", values["r"])
        wants_sparse = self.sparsity not in (None, "auto") or self.r > 0
        if wants_sparse and self.mean_constraint:
            advice = "Drop sparsity and r."
            raise ParameterError(
                "mean_constraint", "False for a sparse model", values["mean_constraint"], advice
            )

    def planned(self, data: object) -> Plan:
        """Return what a fit to this data would do before it measures; l2="auto" stays."""
        from mrfrec.core import fitting
        from mrfrec.models.mrf import measuring

        interactions = as_interactions(data)
        X, settings = interactions.matrix, self._settings
        names = self._measurable(interactions) if self.measure else []
        features = _features_of(interactions, settings)
        with self._engine(None) as engine:
            sizes = fitting.sizes_of(X, settings, engine.memory.limit, features=features)
            plan = decide(settings, sizes, engine.memory)
            asked = None
            if names:
                most = measuring.most_scores(engine, self.dtype)
                asked = held_out(interactions, most)
            with suppress(MemoryPlanError):  # then nothing is measured
                if asked is not None:
                    plan = measuring.prepare(asked, X, settings, names, engine, 0).final
        return plan

    def planned_for(self, size: "DataSize") -> Plan:
        """Return what a fit to data of this size would do, as `planned` does for the data itself."""
        itemsize = np.dtype(self.dtype).itemsize
        binary = size.binary and self.user_weight == 0
        with self._engine(None) as engine:
            sizes = Sizes(*size[:3], binary, itemsize, engine.memory.limit)
            return decide(self._settings, sizes, engine.memory)

    def _engine(self, progress: "Progress | None") -> "LocalEngine":
        from mrfrec.engines.devices import engine_on

        return engine_on(self.device, self.threads, self.memory_limit, progress)

    @property
    def _settings(self) -> Settings:
        """The settings that a fit starts from; l2 and rank_weight may be "auto"."""
        own: dict[str, Any] = {
            field.name: getattr(self, field.name, field.default) for field in fields(Settings)
        }
        started = {
            name: self._starts[name] for name in ("user_weight", "feature_weight", "half_life", "order")
        }
        return Settings(**{**own, **started, "center": self._center})

    def _settings_of(self, fitted: FittedState) -> Settings:
        """Return the settings that the fit of a state started from."""
        return type(self)(**fitted.parameters)._settings

    @property
    def _starts(self) -> dict[str, float]:
        """The values of the parameters that a fit may measure besides l2, or else where these start."""
        return {name: number_of(name, getattr(self, name)) for name in STARTS}

    def _measurable(self, data: "Interactions") -> list[str]:
        """Return the parameters that a fit to this data may measure."""
        names = [name for name in ("l2", *STARTS) if getattr(self, name) == "auto"]
        void = {"rank_weight": self.rank == 0, "feature_weight": data.features is None}
        void |= dict.fromkeys(TIMES, data.times is None)
        return [name for name in names if not void.get(name)]

    def _to_measure(self, data: "Interactions") -> "Task":
        from mrfrec.models.mrf.measuring import Task

        names = self._measurable(data) if self.measure else []
        start = {"l2": self.l2, **self._starts}
        goal = Goal.of(self.measure, by_time=data.times is not None)
        engine = partial(self._engine, None)
        return Task(names, self._settings, start, self.offset, goal, engine)

    def _times_of(self, data: "Interactions") -> "Times | None":
        """Return the times of the data; raise if there are none and a parameter needs them."""
        advice = "Name the column of times when reading (time=…), or give fit(X, times=…)."
        if self.order not in ("auto", 0.0) and data.times is None:
            raise ParameterError("order", "0 for data without times", self.order, advice)
        if self.half_life not in ("auto", None) and data.times is None:
            raise ParameterError("half_life", "None for data without times", self.half_life, advice)
        return data.times

    def _fit(self, data: "Interactions", context: FitContext) -> MRFWeights:
        # numba loads when something is fitted, not to answer from a file.
        from mrfrec.core import fitting
        from mrfrec.models.mrf.measuring import announce, measure_before
        from mrfrec.models.mrf.new_items import with_new_items
        from mrfrec.models.mrf.scoring import intercept, relative_spread

        began = time.perf_counter()
        if self._fitted is not None:
            self._linear.leave_devices()
        before = measure_before(self._to_measure(data), data, context)
        features = data.features if self.uses_features else None
        chosen: dict[str, Any] = {} if before.measured is None else before.measured.values
        chosen = {name: chosen[name] for name in self._measurable(data) if name in chosen}
        of_settings = {field.name for field in fields(Settings)}
        settings = replace(self._settings, **{name: x for name, x in chosen.items() if name in of_settings})
        times = self._times_of(data)
        progress = part_of(context.progress, before.share, 1) if before.share else context.progress
        with self._engine(progress) as engine:
            fitted = fitting.fit(
                data.matrix,
                settings,
                engine,
                features=_features_of(data, settings),
                times=times,
                copied=context.copied,
                announce=lambda plan: None if before.announced else announce(plan),
                reuse=None if context.reuse is None else context.reuse.setdefault("mrf", fitting.Reuse()),
            )
            weights, low_rank = fitted.weights, fitted.low_rank
            rank_weight = 0.0
            base_scores = intercept(fitted, self.dtype, self.offset)
            values = {**self._starts, **chosen}
            if low_rank is None:
                values["rank_weight"] = 0.0
            else:
                spread = relative_spread(_as_asked(data, settings), weights, base_scores, low_rank)
                rank_weight = values["rank_weight"] * spread
        timings = {**engine.timings, "total": time.perf_counter() - began + engine.saved}
        if before.stages:
            timings["measure"] = before.seconds
        plan = fitted.plan
        if before.said:
            plan = replace(plan, reason=f"{plan.reason}; {before.said}")
        if before.announced:
            plan = replace(plan, needed=max(plan.needed, before.announced.needed))
        values["l2"] = float(plan.l2)
        factors = scorers.novelty_factors(data.popularity, values["novelty"]).astype(self.dtype)
        if values["novelty"]:
            weights, base_scores = weights.scaled(factors), base_scores * factors
        if low_rank is not None:
            low_rank = low_rank.scaled(factors * rank_weight) if rank_weight else None
        unused = [] if features is not None else ["feature_weight"]
        for name, blind in TIMES.items():  # keep those that are measured, and those that change something
            is_auto, is_blind = getattr(self, name) == "auto", values[name] == blind
            unused += [name] if (times is None if is_auto else is_blind) else []
        values = {name: x for name, x in values.items() if name not in unused}
        learned = MRFWeights(
            weights=weights, base_scores=base_scores, low_rank=low_rank, mean=fitted.mean, scale=fitted.scale,
            offset=self.offset, plan=plan, rank_weight=rank_weight, threshold=fitted.threshold,
            n_blocks=fitted.n_blocks, pattern=fitted.pattern, values=values, measured=before.measured,
        )  # fmt: skip
        own = engine.memory.stages
        names = {**before.stages, **own}
        stages = {name: max(before.stages.get(name, 0), own.get(name, 0)) for name in names}
        new = np.flatnonzero(~data.used)
        if features is not None and len(new):
            started = time.perf_counter()
            with self._engine(None) as more:
                learned = with_new_items(learned, data, new, settings, more, context.copied)
            timings["new items"] = time.perf_counter() - started
            timings["total"] += timings["new items"]
            stages["new items"] = max(more.memory.stages.values())
        if fitted.pattern is not None:
            _warn_of_a_giant(data)
        engine.finish()
        return replace(learned, timings=timings, memory_plan=stages)

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
        values = self.fitted_.learned.values
        return {name: as_parameter(name, x) for name, x in values.items() if name in ("l2", *STARTS)}

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

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> MRFWeights:
        return stored_mrf(arrays, facts, m, self.offset)


def _as_asked(data: "Interactions", settings: Settings) -> "sp.csr_array":
    """Return the histories with the values that a fit gives them."""
    if not settings.half_life or data.times is None:
        return data.matrix
    return faded(data.matrix, data.times, settings.half_life)[0]


def _features_of(data: "Interactions", settings: Settings) -> "sp.csr_array | None":
    """Return the features that the systems of used items have as further rows."""
    if data.features is None or not settings.feature_weight:
        return None
    return data.features.of_used(data.used)


def _warn_of_a_giant(data: "Interactions") -> None:
    """Warn of a user who makes a sparse model less accurate than its sparsity suggests."""
    lengths = np.diff(data.matrix.indptr).astype(np.float64)
    longest = int(lengths.max())
    share = float(lengths.max() ** 2 / (lengths**2).sum())
    if longest > 1000 and share > 0.1:
        warn(
            f"one user has {longest:,} items, and so {share:.0%} of all pairs of items. Items that only this "
            "user has look alike. Read the data with max_history=1000 to leave such users out."
        )
