"""Measure parameters of an MRF: which values rank the hidden items of held-out users best?

The model that is tried is the final one, fitted without the held-out users, where that can be afforded; else
one with few neighbours per item. Values are compared user by user, and one changes by a step only if the gain
exceeds its standard error. All trials together take at most as long as the fit that follows, or ten seconds
on two cores (eleven with times), by an estimate: no decision looks at a clock, and the result is that of
the data.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import warn
from mrfrec.core import costs, fitting
from mrfrec.core.accuracy import mean_and_error
from mrfrec.core.deciding import decide
from mrfrec.core.engine import STAGE_NAMES, Engine, Progress, part_of
from mrfrec.core.plan import Plan, Settings, Sizes
from mrfrec.data.holdout import FEWEST
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import rounded_duration
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MemoryPlanError
from mrfrec.fitted.measured import Goal, Measured, MeasuredValue
from mrfrec.models.climbing import Place, climb_along
from mrfrec.models.mrf.held_out import FEWEST_ASKED, FEWEST_USERS, MOST_SCORES, HeldOut, held_out
from mrfrec.models.mrf.parameters import RULES, start_of
from mrfrec.models.mrf.trials import NEIGHBORS, PASSES, SCORED, Trials, cross_checked, stand_in
from mrfrec.models.recommender import FitContext

Numbers = npt.NDArray[np.float64]

_log = logging.getLogger("mrfrec")

AXES: dict[str, tuple[float, ...]] = {
    "l2": tuple(2.0 ** (power / 2) for power in range(-8, 9)),  # times where it starts
    "user_weight": (0.0, 0.25, 0.5, 0.8, 1.2, 1.8),
    "half_life": (0.0, 1.4, 0.7, 0.35, 0.18, 0.09, 0.045, 0.022),
    # ↑ times the age of half of the pairs; 0: none
    "order": (0.0, 0.1, 0.3, 1.0, 3.0),
    "recency": (1.0, 0.95, 0.9, 0.8, 0.65, 0.5),
    "feature_weight": (0.0, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0),
    "rank_weight": (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.37, 0.45, 0.55, 0.7, 0.9, 1.1, 1.4, 1.9),
    "novelty": (-0.1, -0.05, 0.0, 0.03, 0.06, 0.1, 0.14, 0.18, 0.22, 0.26, 0.3),
}  # fmt: skip
NAMES = tuple(AXES)
_FITS, _RANKINGS = (
    ("l2", "order", *PASSES, *SCORED),
    ("rank_weight", "novelty"),
)  # the latter need no new scores
_STEPS = {
    "l2": 4,
    "user_weight": 2,
    "feature_weight": 2,
    "half_life": 4,
    "recency": 5,
}  # that are tried mostly
_FEWEST_STEPS = {"l2": 2, "user_weight": 1, "feature_weight": 1}  # for which there must be time
_RANKED = 6  # rankings of a fit, mostly
# How far a step goes, and which way first. Where events fade, or long histories count less, there is less
# data, which wants a larger ridge.
_DIRECTIONS: dict[str, Place] = {
    "l2": {"l2": -2},
    "half_life": {"half_life": 1, "l2": 1},
    "recency": {"recency": 1},
    "order": {"order": 1},
    "user_weight": {"user_weight": 1, "l2": 1},
    "feature_weight": {"feature_weight": 1},
}
_ROUNDS = 2
# Seconds of one core, as in `costs`: to add a weight to a score, to score an item for a user by a low-rank
# part, for each of its vectors, to complete a score, to compare it with that of a hidden item (about half of
# them are, until the item is beyond the places that count), what else a trial takes, and to hold out users,
# for each pair.
_ADDED, _MULTIPLIED, _COMPLETED, _COMPARED, _EACH = 5e-10, 5e-11, 6e-10, 7e-11, 0.15
_HELD_OUT = 2e-8
_LEAST_BUDGET = 11.0  # seconds of one core: at most ten on two, of which one is idle at times
_MORE_WITH_TIMES = 1.4  # times as long, for three more parameters
_LEAST_ON_DEVICE = 8.0


class Preparation(NamedTuple):
    """The plan for measuring parameters: the model to try, and the memory and time for its trials."""

    final: Plan  # of the fit that follows, with the memory of measuring
    settings: Settings  # of the model that is tried
    is_final: bool  # whether that is the final model
    held: int  # bytes that are held for all trials
    first: float  # seconds that the first trial takes, and another value of each parameter
    again: Mapping[str, float]
    after: float  # seconds that the fit that follows takes
    budget: float

    def seconds(self, free: Sequence[str]) -> float:
        """Return about how long all trials take, as `core.costs` counts."""
        fits = sum(count * self.again[name] for name, count in _STEPS.items() if name in free)
        return min(self.first + fits + 2 * _RANKED * self.again["novelty"], self.budget)

    def share(self, free: Sequence[str]) -> float:
        """Return the share of the time of the whole fit that measuring takes, below 1."""
        seconds = self.seconds(free)
        return min(seconds / (seconds + self.after), 0.99)


def prepare(
    asked: HeldOut, X: "sp.csr_array", settings: Settings, free: Sequence[str], engine: Engine, copied: int
) -> Preparation:
    """Plan the trials, and limit the engine to the memory that is planned for them and for the final fit."""
    memory, limit = engine.memory, engine.memory.limit
    # Where order is tried, there must be room for it.
    most = replace(settings, order=settings.order or 1.0) if "order" in free else settings
    held = copied + asked.nbytes(np.dtype(settings.dtype).itemsize)
    sizes = fitting.sizes_of(X, most, limit, copied, asked.features)
    final = decide(most, sizes, memory)
    # A trial has the low-rank part that the final model has, whatever else is held: it fails without room.
    has_low_rank = settings.rank_weight != 0 and settings.rank != 0
    rank = decide(replace(most, rank_weight=1.0), sizes, memory).rank if has_low_rank else 0
    own = replace(settings, rank=rank, rank_weight=1.0 if rank else 0.0, sparsity=final.sparsity)
    small = fitting.sizes_of(asked.training, most, limit, held, asked.features)
    additions = fitting.additions_of(X, asked.features)
    final, device = fitting.placed(final, most, sizes, engine)
    on_device = device is not None
    after = sum(costs.of_fit(final, settings, sizes, additions, on_device).values())
    least = _LEAST_ON_DEVICE if on_device else _LEAST_BUDGET
    budget = max(after, least if asked.times is None else _MORE_WITH_TIMES * least)
    for trial in (own, stand_in(own, sizes.items)):
        try:
            plan = decide(replace(trial, order=most.order), small, memory)
        except MemoryPlanError:
            if trial is own:
                continue
            raise
        _, device = fitting.placed(plan, trial, small, engine)
        first, again = _costs_of(asked, plan, trial, small, additions, device is not None)
        found = Preparation(final, trial, trial is own, held, first, again, after, budget)
        if first + sum(n * again[name] for name, n in _FEWEST_STEPS.items() if name in free) <= budget:
            break
    # Trials share a matrix, or the parts of it that blocks need, of which each makes a copy.
    dense = small.itemsize * small.items**2
    shared = dense if plan.kind == "dense" else plan.needed - plan.least
    memory.limit = min(max(final.needed, plan.needed + shared), limit)
    return found._replace(final=replace(final, needed=memory.limit))


def _costs_of(
    asked: HeldOut, plan: Plan, settings: Settings, sizes: Sizes, additions: float, on_device: bool
) -> tuple[float, dict[str, float]]:
    """Return the costs of the first trial, and of another value of each parameter."""
    fit = costs.of_fit(plan, settings, sizes, additions, on_device)
    users, ranked = asked.shown.shape[0], len(asked.ranked)
    neighbors = len(asked.ranked) if plan.kind == "dense" else (plan.sparsity or 0.0) * ranked
    beside = costs.on_processor(on_device)
    added = beside * _ADDED * (asked.shown.nnz * neighbors + users * ranked)
    rank = beside * ranked * (_COMPLETED * users + _COMPARED * asked.hidden.nnz)
    scored = added + _RANKED * rank + _EACH
    solving = sum(fit.get(stage, 0.0) for stage in costs.SOLVING)
    passing = sum(cost for stage, cost in fit.items() if stage not in ("low rank", "finish"))
    scored_low = beside * _MULTIPLIED * users * ranked * plan.rank
    low = fit.get("low rank", 0.0) + scored_low
    another = {"l2": solving + scored, **dict.fromkeys(PASSES, passing + scored)}
    another |= {"half_life": passing + scored + scored_low, **dict.fromkeys(SCORED, scored + scored_low)}
    ordered = costs.of_fit(plan, replace(settings, order=1.0), sizes, additions, False)
    another["order"] = sum(ordered.get(stage, 0.0) for stage in ("gather", "matrix", *costs.SOLVING)) + scored
    first = _HELD_OUT * sizes.pairs + passing + low + scored
    return first, {**another, **dict.fromkeys(_RANKINGS, rank)}


class _Tried(NamedTuple):
    """A fit with the rankings that suit it best: their place, all values, and the metric of each user."""

    place: Place
    values: Mapping[str, float]
    metric: Numbers

    @property
    def mean(self) -> float:
        return float(self.metric.mean())


def is_better(one: Numbers, other: Numbers) -> bool:
    """Return whether the gain, user by user, exceeds its standard error."""
    gain, error = mean_and_error(one - other)
    return gain > error


@dataclass
class _Exploration:
    """Fits with values that a climb wants, and for each that is the best so far a climb over its rankings."""

    trials: Trials
    plan: Preparation
    axes: Mapping[str, Sequence[float]]
    first: Mapping[str, float]  # values of all parameters, where the climb starts
    progress: Progress | None
    by_time: bool  # what helps at one time may do harm at another
    metrics: dict[tuple[float, ...], Numbers] = field(default_factory=dict)  # of each user, by all values
    fits: dict[tuple[float, ...], _Tried | None] = field(default_factory=dict)  # by l2 and `PASSES`
    left_out: list[str] = field(default_factory=list)
    spent: float = 0.0

    def is_better(self, one: _Tried, other: _Tried | None) -> bool:
        if other is None:
            return True
        # Small losses of one step after the other would add up.
        start = next(iter(self.metrics.values()))
        harm = self.by_time and is_better(start, one.metric)
        return is_better(one.metric, other.metric) and not harm

    def fit(self, place: Place) -> _Tried | None:
        """Try a fit; None beyond the ends of the axes, and where it would take longer than there is time."""
        if not self._exists(place):
            return None
        values = self._values(place)
        key = _fit_of(values)
        if key not in self.fits:
            self.fits[key] = self._fitted(values) if self._has_time(values) else None
        return self.fits[key]

    def _exists(self, place: Place) -> bool:
        return all(0 <= index < len(self.axes[name]) for name, index in place.items())

    def _values(self, place: Place) -> dict[str, float]:
        return {**self.first, **{name: self.axes[name][index] for name, index in place.items()}}

    def _has_time(self, values: Mapping[str, float]) -> bool:
        """Spend what a fit costs, or note what is left out."""
        fits = [key for key, tried in self.fits.items() if tried is not None]
        if not fits:
            cost = self.plan.first
        else:
            before = dict(zip(_FITS, fits[-1], strict=True))
            new = [
                name
                for name in ("half_life", *PASSES, "order", "l2", *SCORED)
                if values[name] != before[name]
            ]
            cost = self.plan.again[new[0]]
            if self.spent + cost > self.plan.budget:
                changed = [name for name in _FITS if values[name] != self.first[name]][-1]
                self.left_out += [] if changed in self.left_out else [changed]
                return False
        if self.progress is not None:
            total = max(self.plan.seconds(list(self.axes)), self.spent + cost)
            self.progress(STAGE_NAMES["measure"], *(max(round(1e6 * x), 1) for x in (self.spent, total)))
        self.spent += cost
        return True

    def _fitted(self, values: Mapping[str, float]) -> _Tried:
        self.trials.fit(values)
        best = max((each for each in self.fits.values() if each), key=lambda each: each.mean, default=None)
        axes = [name for name in _RANKINGS if name in self.axes]

        def ranked(place: Place) -> _Tried | None:
            if not self._exists(place):
                return None
            tried = {**values, **{name: self.axes[name][index] for name, index in place.items()}}
            key = tuple(tried[name] for name in NAMES)
            if key not in self.metrics:
                self.metrics[key] = self.trials.rank(tried["rank_weight"], tried["novelty"])
            return _Tried(place, tried, self.metrics[key])

        start = {name: self.axes[name].index(self.first[name]) for name in axes}
        # Each fit is judged by the rankings that suit it: a smaller ridge wants less novelty.
        place = start if best is None else best.place
        place, _ = climb_along({name: {name: 1} for name in axes}, place, ranked, self.is_better, _ROUNDS)
        reached = ranked(place)
        assert reached is not None
        return reached


def _fit_of(values: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(values[name] for name in _FITS)


def measure(
    asked: HeldOut,
    plan: Preparation,
    free: Sequence[str],
    start: "Mapping[str, float | Literal['auto']]",
    goal: Goal,
    engine: Engine,
    progress: Progress | None = None,
) -> Measured:
    """Climb from the start, a value for each of `NAMES`, along the free parameters."""
    trials = Trials(asked, plan.settings, plan.held, goal, engine)
    first = {name: value for name, value in start.items() if value != "auto"}
    if "l2" not in first:
        first["l2"] = trials.usual_ridge(first["user_weight"])
    axes = {name: axis for name, axis in AXES.items() if name in free}
    if "l2" in axes:
        axes["l2"] = tuple(factor * first["l2"] for factor in axes["l2"])
    if "half_life" in axes:
        axes["half_life"] = half_lives(asked)
    search = _Exploration(trials, plan, axes, first, progress, asked.times is not None)
    # What comes next mostly wants a larger ridge, what is hidden at random a smaller one.
    steps = _DIRECTIONS if asked.times is None else {**_DIRECTIONS, "l2": {"l2": 2}}
    directions = {
        name: {axis: step for axis, step in direction.items() if axis in axes}
        for name, direction in steps.items()
        if next(iter(direction)) in axes
    }
    place = {name: axes[name].index(first[name]) for name in _FITS if name in axes}

    place, _ = climb_along(directions, place, search.fit, search.is_better, _ROUNDS)
    best = search.fit(place)
    assert best is not None
    gain, error = mean_and_error(cross_checked(list(search.metrics.values())))
    ways = [] if plan.is_final else [f"with {NEIGHBORS} neighbours per item"]
    ways += [] if asked.ranks_all else [f"among {len(asked.ranked):,} items"]
    return Measured(
        users=len(best.metric),
        trials=sum(each is not None for each in search.fits.values()),
        metric=str(goal._replace(k=asked.places(goal.k))),
        value=best.mean,
        gain=gain,
        error=error,
        choices=tuple(MeasuredValue(name, first[name], best.values[name]) for name in axes),
        how=" and ".join(ways),
        left_out=tuple(search.left_out),
    )


def half_lives(asked: HeldOut) -> tuple[float, ...]:
    """Return the half-lives that are tried, in microseconds; 0 is none."""
    return tuple(rounded_duration(x * asked.median_age) for x in AXES["half_life"])


class Outcome(NamedTuple):
    """The values that a fit measures before it begins, and what its plan says of them."""

    measured: Measured | None = None
    said: str = ""
    seconds: float = 0.0
    announced: Plan | None = None  # of the fit, with the memory of measuring
    stages: Mapping[str, int] = MappingProxyType({})  # planned bytes
    share: float = 0.0  # of the time of the whole fit that measuring takes, estimated

    @property
    def timings(self) -> dict[str, float]:
        """The seconds that measuring took, if it did anything."""
        return {"measure": self.seconds} if self.stages else {}

    def completed(self, plan: Plan) -> Plan:
        """Return the plan of the fit with what measuring has to say, and the memory of both."""
        if self.said:
            plan = replace(plan, reason=f"{plan.reason}; {self.said}")
        return replace(plan, needed=max(plan.needed, self.announced.needed)) if self.announced else plan


class Task(NamedTuple):
    """What a model lets be measured before it is fitted."""

    free: list[str]  # names of parameters
    settings: Settings  # from which the fit starts
    goal: Goal
    engine: Callable[[], "LocalEngine"]  # makes one to run the trials in


def most_scores(engine: Engine, dtype: str) -> int:
    """Return how many scores of held-out users there is room for, beside a fit: up to `MOST_SCORES`."""
    most = MOST_SCORES
    while most > 1_000_000 and 2 * most * np.dtype(dtype).itemsize > engine.memory.limit // 4:
        most //= 2
    return most


def measure_before(task: Task, data: Interactions, context: "FitContext") -> Outcome:
    """Measure the free parameters of a model, or say why not."""
    began = time.perf_counter()
    if context.measured is not None:
        return Outcome(context.measured, f"kept what was {context.measured}")
    if not task.free:
        return Outcome()
    with task.engine() as engine:
        asked = held_out(data, most_scores(engine, task.settings.dtype))
        if asked is None:
            takes = f"{FEWEST_ASKED} different histories of {FEWEST} or more items among a tenth of the users"
            takes = f"{FEWEST_USERS} users" if data.n_users < FEWEST_USERS else takes
            return Outcome(said=f"nothing measured, which takes {takes}")
        try:
            plan = prepare(asked, data.matrix, task.settings, task.free, engine, context.copied)
            announce(plan.final, data)
            start = start_of(task.settings)
            free = [name for name in task.free if name != "rank_weight" or plan.settings.rank]
            if asked.times is None:  # too few people came after a cut to ask them
                free = [name for name in free if RULES[name].needs != "times"]
            if not plan.final.rank:
                start["rank_weight"] = 0.0
            if data.features is None:
                start["feature_weight"] = 0.0
            if asked.times is None:
                start["order"] = start["half_life"] = 0.0
            share = plan.share(free)
            report = part_of(context.progress, 0, share)
            measured = measure(asked, plan, free, start, task.goal, engine, report)
        except MemoryPlanError:
            return Outcome(said="nothing measured, for which memory is too small")
    seconds = time.perf_counter() - began
    _log.info("%s, in %.1f s", measured, seconds)
    said = str(measured)
    if ("rank_weight" in task.free) != ("rank_weight" in free):
        said += "; rank_weight not measured: memory is too small for a low-rank part"
    return Outcome(measured, said, seconds, plan.final, engine.memory.stages, share)


def announce(plan: Plan, data: Interactions) -> None:
    """Log a plan, and warn of a user who makes a sparse model slow and less accurate."""
    _log.info("%s", plan)
    lengths = np.diff(data.matrix.indptr).astype(np.float64)
    longest, all_products = lengths.max(), (lengths**2).sum()
    share = longest**2 / all_products
    if plan.kind == "sparse" and longest > 1000 and share > 0.1:
        times = all_products / max(all_products - longest**2, 1)
        warn(
            f"one user has {longest:,.0f} items, and so {share:.0%} of all pairs of items: the products of "
            f"the fit take about {times:,.1f} times as long as without this user. Items that only this user "
            "has look alike. Read the data with max_history=1000 to leave such users out."
        )
