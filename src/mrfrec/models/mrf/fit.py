"""The fit of a Gaussian Markov random field of items, in closed form: of MRF, EASE and EDLAE."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mrfrec.core.engine import Progress, part_of
from mrfrec.core.plan import Settings, Sizes
from mrfrec.data.catalogue import DataSize
from mrfrec.data.interactions import Interactions
from mrfrec.data.item_table import ItemFeatures
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.fitted.measured import FitPlan, Goal, Measured
from mrfrec.fitted.scorers import novelty_factors
from mrfrec.models.mrf.parameters import RULES, is_measured, number_of, start_of
from mrfrec.models.mrf.weights import MRFWeights
from mrfrec.models.recommender import FitContext, Recommender

if TYPE_CHECKING:
    from mrfrec.core.fitting import Fitted
    from mrfrec.models.mrf.measuring import Task


@dataclass(frozen=True)
class Field:
    """A field to be fitted: the parameters of a model, and the settings that a fit with them starts from."""

    parameters: Mapping[str, Any]  # by the names of `RULES`, as the model keeps them
    settings: Settings

    @classmethod
    def of(cls, model: Recommender, *, center: bool = False) -> "Field":
        """Return the field of a model. Settings that the model has no attribute for keep their defaults."""
        parameters = {name: getattr(model, name) for name in RULES if hasattr(model, name)}
        names = [each.name for each in fields(Settings) if hasattr(model, each.name)]
        values = {name: number_of(name, getattr(model, name)) for name in names}
        return cls(parameters, Settings(**values, center=center))

    def engine(self, progress: Progress | None = None) -> LocalEngine:
        """Return the engine that the parameters of the machine ask for."""
        from mrfrec.engines.devices import engine_on

        given = self.parameters
        return engine_on(given["device"], given["threads"], given["memory_limit"], progress)

    # ── what a fit would do ───────────────────────────────────────────────────────────────────────

    def planned_for(self, size: DataSize) -> FitPlan:
        """Return what a fit to data of this size would do before it measures; l2="auto" stays."""
        from mrfrec.core.deciding import decide

        settings, itemsize = self.settings, np.dtype(self.settings.dtype).itemsize
        with self.engine() as engine:
            binary = size.binary and settings.counts_alike
            sizes = Sizes(*size[:3], binary, itemsize, engine.memory.limit)
            return FitPlan(**vars(decide(settings, sizes, engine.memory)))

    def planned(self, data: Interactions) -> FitPlan:
        """Return the same for the data itself, with the memory that measuring takes."""
        from mrfrec.core import fitting
        from mrfrec.core.deciding import decide
        from mrfrec.models.mrf import held_out, measuring

        X, settings, task = data.matrix, self.settings, self.task(data)
        features = self._features_of_used(data, settings)
        with self.engine() as engine:
            sizes = fitting.sizes_of(X, settings, engine.memory.limit, features=features)
            plan = decide(settings, sizes, engine.memory)
            most = measuring.most_scores(engine, settings.dtype)
            asked = held_out.held_out(data, most) if task.free else None
            with suppress(MemoryPlanError):  # without the memory for trials, nothing is measured
                if asked is not None:
                    plan = measuring.prepare(asked, X, settings, task.free, engine, 0).final
        return FitPlan(**vars(plan))

    # ── the fit ───────────────────────────────────────────────────────────────────────────────────

    def fit(self, data: Interactions, context: FitContext) -> MRFWeights:
        """Measure the parameters that are "auto", fit to all users, and give new items their weights."""
        # numba loads when something is fitted, not to answer from a file.
        from mrfrec.core import fitting
        from mrfrec.models.mrf import measuring
        from mrfrec.models.mrf.new_items import with_new_items

        began = time.perf_counter()
        self._check_times(data)
        before = measuring.measure_before(self.task(data), data, context)
        settings = self._chosen(data, before.measured)
        reuse = None if context.reuse is None else context.reuse.setdefault("mrf", fitting.Reuse())
        progress = part_of(context.progress, before.share, 1) if before.share else context.progress
        with self.engine(progress) as engine:
            fitted = fitting.fit(
                data.matrix, settings, engine, features=self._features_of_used(data, settings),
                times=data.times, copied=context.copied, reuse=reuse,
                announce=lambda plan: None if before.announced else measuring.announce(plan, data),
            )  # fmt: skip
            plan = FitPlan(**vars(before.completed(fitted.plan)))
            learned = self._with_scores(fitted, plan, data, settings)
        timings = {**engine.timings, "total": time.perf_counter() - began + engine.saved, **before.timings}
        stages = _largest(before.stages, engine.memory.stages)
        learned = replace(learned, measured=before.measured)
        new = np.flatnonzero(~data.used)
        if self._features(data) is not None and len(new):
            began = time.perf_counter()
            with self.engine() as more:
                learned = with_new_items(learned, data, new, settings, more, context.copied)
            timings["new items"] = time.perf_counter() - began
            timings["total"] += timings["new items"]
            stages["new items"] = max(more.memory.stages.values())
        engine.finish()
        return replace(learned, timings=timings, memory_plan=stages)

    def task(self, data: Interactions) -> "Task":
        """Return what a fit to this data measures before it begins."""
        from mrfrec.models.mrf.measuring import Task

        measure = self.parameters.get("measure", False)
        goal = Goal.of(measure, by_time=data.times is not None)
        return Task(self._free(data) if measure else [], self.settings, goal, partial(self.engine, None))

    def _free(self, data: Interactions) -> list[str]:
        """Return the parameters that are "auto" and mean something for this data."""
        has = {"times": data.times is not None, "features": data.features is not None}
        has |= {"": True, "rank": self.settings.rank != 0}
        auto = [name for name, value in self.parameters.items() if isinstance(value, str) and value == "auto"]
        # In the order of their rules.
        return [name for name in RULES if name in auto and is_measured(name) and has[RULES[name].needs]]

    def _check_times(self, data: Interactions) -> None:
        """Refuse parameters that need times if the data has none."""
        for name, rule in RULES.items():
            value = self.parameters.get(name, "auto")
            is_off = value == "auto" or number_of(name, value) == getattr(Settings, name, None)
            if rule.off and data.times is None and not is_off:
                advice = "Name the column of times when reading (time=…), or give fit(X, times=…)."
                raise ParameterError(name, f"{rule.off} for data without times", value, advice)

    def _chosen(self, data: Interactions, measured: Measured | None) -> Settings:
        """Return the settings with the values that were measured, perhaps by an earlier fit."""
        free, values = self._free(data), {} if measured is None else measured.values
        chosen: dict[str, Any] = {name: x for name, x in values.items() if name in free}
        return replace(self.settings, **chosen)

    def _features(self, data: Interactions) -> ItemFeatures | None:
        """Return the features of the items, for a model that learns from them."""
        learns = any(RULES[name].needs == "features" for name in self.parameters)
        return data.features if learns else None

    def _features_of_used(self, data: Interactions, settings: Settings) -> Any:
        """Return the features that the systems of used items have as further rows, features × items."""
        features = settings.counted(self._features(data))
        return None if features is None else features.of_used(data.used)

    def _with_scores(
        self, fitted: "Fitted", plan: FitPlan, data: Interactions, settings: Settings
    ) -> MRFWeights:
        """Return the weights with novelty, base scores and the low-rank part."""
        from mrfrec.models.mrf.scoring import as_asked, intercept, relative_spread

        values, weights, low_rank = start_of(settings), fitted.weights, fitted.low_rank
        base_scores = intercept(fitted, settings.dtype, settings.offset)
        if low_rank is None:
            values["rank_weight"] = 0.0
            spread = 0.0
        else:
            histories = as_asked(data.matrix, data.times, settings)
            spread = relative_spread(histories, weights, base_scores, low_rank)
        rank_weight = values["rank_weight"] * spread
        factors = novelty_factors(data.popularity, settings.novelty).astype(settings.dtype)
        if settings.novelty:
            weights, base_scores = weights.scaled(factors), base_scores * factors
        if low_rank is not None:
            low_rank = low_rank.scaled(factors * rank_weight) if rank_weight else None
        values["l2"] = float(plan.l2)
        return MRFWeights(
            weights=weights, base_scores=base_scores, low_rank=low_rank, mean=fitted.mean, scale=fitted.scale,
            offset=settings.offset, plan=plan, rank_weight=rank_weight, threshold=fitted.threshold,
            n_blocks=fitted.n_blocks, pattern=fitted.pattern, values=self._meaningful(values, data),
        )  # fmt: skip

    def _meaningful(self, values: Mapping[str, Any], data: Interactions) -> dict[str, Any]:
        """Return the values without parameters of features or times that change nothing for this data."""

        def changes_nothing(name: str) -> bool:
            needs = RULES[name].needs
            if needs == "features":
                return self._features(data) is None
            if needs != "times":
                return False
            if self.parameters.get(name) == "auto":
                return data.times is None
            return bool(values[name] == getattr(Settings, name))

        return {name: x for name, x in values.items() if not changes_nothing(name)}


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the larger number of planned bytes, stage by stage."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
