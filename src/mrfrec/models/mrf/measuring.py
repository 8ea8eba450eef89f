"""Measure parameters of an MRF: which values rank the hidden items of held-out users best?

The model that is tried is a stand-in with few neighbours per item: values that suit it suit the final model.
Trials share all stages that a value does not change; a new `rank_weight` or `novelty` needs no fit. The nDCG
of two trials is compared user by user, and a value changes by a step only if the gain exceeds its standard
error; the last change, between the steps, needs a gain only. The number of trials is bounded, and no decision
looks at a clock: the result is that of the data.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import costs, fitting, statistics
from mrfrec.core.engine import STAGE_NAMES, Engine
from mrfrec.core.low_rank import LowRank
from mrfrec.core.metrics import discounts, ideal_gains, mean_and_error
from mrfrec.core.plan import Plan, Settings, decide
from mrfrec.core.progress import Progress, part_of
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.data.heldout import by_lowest_hash, hashed, hidden_entries, only_entries
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MemoryPlanError
from mrfrec.fitted.measured import Measured, MeasuredValue
from mrfrec.fitted.scorers import novelty_factors
from mrfrec.models.climbing import Move, Place, climb_along

if TYPE_CHECKING:
    from mrfrec.engines.local import LocalEngine
    from mrfrec.models.recommender import FitContext

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]

_log = logging.getLogger("mrfrec")

FEWEST_USERS = 500
_SHARE, _MOST_USERS, _HIDDEN = 0.1, 4000, 0.2  # of the users, and of each user's items
_ITEMS = 8192  # among which hidden items are ranked, drawn by hash where there are more
_PLACES = 100  # of the lists, if all items are ranked
_USERS_AT_ONCE = 64
_SAMPLED_USERS = 256  # whose scores tell how much these spread
_KEPT = 3  # fits whose scores are kept, the best

DENSE_UP_TO, NEIGHBORS, MOST_NEIGHBORS = 3000, 64, 128  # of the stand-in
AXES: dict[str, tuple[float, ...]] = {
    "l2": tuple(2.0**power for power in range(-4, 5)),  # times where it starts
    "rank_weight": (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.9, 1.3, 1.9),
    "novelty": (-0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3),
    "user_weight": (0.0, 0.25, 0.5, 0.8, 1.2, 1.8),
    "feature_weight": (0.0, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0),
}  # fmt: skip
NAMES = tuple(AXES)
_TRIALS = {"l2": 5, "user_weight": 3, "rank_weight": 4, "novelty": 4, "feature_weight": 3}  # mostly
_PASSES = ("user_weight", "feature_weight")  # a new value of these is a new pass over the data
_SCORED, _RANKED = 3e-8, 1e-8  # seconds of one core, as in `costs`, to score and to rank an item for a user
_SOLVING = ("solve", "rows", "factorise", "invert factor", "multiply factor", "weights")
_LEAST_BUDGET = 20.0  # seconds of one core


@dataclass(frozen=True)
class HeldOut:
    """Users to ask, who are not trained on, and the items among which their hidden ones are ranked."""

    training: sp.csr_array  # the other users × all items
    shown: sp.csr_array  # users × all items
    seen: sp.csr_array  # users × ranked items, of those shown
    hidden: sp.csr_array  # users × ranked items
    ranked: npt.NDArray[np.int64]
    features: sp.csr_array | None = None  # of all items

    @property
    def places(self) -> int:
        """As many places as are a hundred of all items, and at least ten."""
        k = round(_PLACES * len(self.ranked) / int(self.shown.shape[1]))
        return min(max(k, 10), len(self.ranked))

    def nbytes(self, itemsize: int) -> int:
        """Return the bytes of these matrices, of the scores that are kept of a few fits, and of a sample."""
        arrays = [a for X in (self.training, self.shown) for a in (X.data, X.indices, X.indptr)]
        rows = (_KEPT + 3) * int(self.shown.shape[0]) + 4 * _SAMPLED_USERS
        return sum(int(a.nbytes) for a in arrays) + itemsize * rows * len(self.ranked)


def held_out(data: Interactions) -> HeldOut | None:
    """Hold out a tenth of the users by hash, up to 4,000; None if there are too few."""
    X, m = data.matrix, data.n_items
    if data.n_users < FEWEST_USERS:
        return None
    # Another draw than that of evaluations, which may have taken their users out already.
    (users,) = by_lowest_hash(data.users, np.diff(X.indptr), _SHARE, _MOST_USERS, draw=1)
    trains = np.ones(data.n_users, np.bool_)
    trains[users] = False
    training = X[trains]
    of_item = hashed(data.items, np.arange(m))
    ranked = np.sort(np.argsort(of_item, kind="stable")[:_ITEMS])
    known = np.zeros(m, np.bool_)
    known[ranked] = np.bincount(training.indices, minlength=m)[ranked] > 0
    # Hide known items that are ranked: a fifth of all that the user has, or as many as there are.
    asked = X[users]
    can = known[asked.indices]
    wanted = np.maximum((_HIDDEN * np.diff(asked.indptr)).astype(np.int64), 1)
    hide = np.zeros(asked.nnz, np.bool_)
    hide[can] = hidden_entries(only_entries(asked, can), hashed(data.users, users), of_item, wanted)
    hidden, shown = only_entries(asked, hide)[:, ranked], only_entries(asked, ~hide)
    able = np.flatnonzero((np.diff(hidden.indptr) > 0) & (np.diff(shown.indptr) > 0))
    if not len(able) or not training.nnz:
        return None
    shown = shown[able]
    features = None if data.features is None else data.features.of_used(data.popularity)
    return HeldOut(training, shown, shown[:, ranked], hidden[able], ranked, features)


def scores(
    histories: sp.csr_array, B: Any, low_rank: LowRank | None, items: npt.NDArray[np.int64]
) -> tuple[Array, Array | None]:
    """Return x·B and x·L of users for some items, users × items; B has the columns of these items."""
    found = histories.astype(B.dtype) @ B
    base = found if isinstance(found, np.ndarray) else found.toarray()
    if low_rank is None:
        return base, None
    low = (histories * low_rank.left[None, :]).astype(B.dtype) @ low_rank.vectors @ low_rank.vectors[items].T
    column = np.full(len(low_rank.left), -1)
    column[items] = np.arange(len(items))
    owner = np.repeat(np.arange(histories.shape[0]), np.diff(histories.indptr))
    place = column[histories.indices]
    own = place >= 0
    low[owner[own], place[own]] -= histories.data[own] * low_rank.diagonal[histories.indices[own]]
    return base, low


def intercept(fitted: fitting.Fitted, dtype: str, offset: bool) -> Array:
    """Return μ − μ·B of each item, the part of the conditional mean that no history adds, or else 0."""
    mean = fitted.mean
    if not offset:
        return np.zeros(len(mean), dtype)
    return np.asarray(mean - mean.astype(dtype) @ fitted.weights.matrix()).astype(dtype)


def columns_of(weights: Rows | DenseRows, items: npt.NDArray[np.int64]) -> Any:
    """Return the columns of some items, without a copy if these are all."""
    return weights.matrix() if len(items) == weights.width else weights.matrix()[:, items]


def ndcg(scores: Array, hidden: sp.csr_array, places: int) -> npt.NDArray[np.float64]:
    """Return the nDCG of each user: a hidden item has as many before it as have its score or a higher one."""
    counts = np.diff(hidden.indptr)
    owner = np.repeat(np.arange(len(counts)), counts)
    score = scores[owner, hidden.indices]
    least = np.partition(scores, -places, axis=1)[:, -places]
    found = np.flatnonzero(score >= least[owner])
    place = np.empty(len(found), np.int64)
    for i, entry in enumerate(found):
        place[i] = np.count_nonzero(scores[owner[entry]] >= score[entry])
    gain = np.append(discounts(places), 0.0)[np.minimum(place, places + 1) - 1]
    return np.asarray(np.bincount(owner[found], gain, len(counts)) / ideal_gains(counts, places))


def relative_spread(
    X: sp.csr_array, weights: Rows | DenseRows, base_scores: Array, low_rank: LowRank
) -> float:
    """Return how much more the scores of B spread than those of L, over the items that users have not.

    The users and items are samples, evenly spaced; the spread is the root of the mean variance of a user's
    scores.
    """
    m = X.shape[1]
    histories = sampled_histories(X)
    items = np.arange(0, m, max(1, m // _ITEMS))
    base, low = scores(histories, columns_of(weights, items), low_rank, items)
    others = histories[:, items].toarray() == 0
    assert low is not None
    of_low = spread(low, others)
    return spread(base + base_scores[items], others) / of_low if of_low > 0 else 0.0


def sampled_histories(X: sp.csr_array) -> sp.csr_array:
    """Return the histories of some users, evenly spaced, who have some of the items but not all."""
    lengths = np.diff(X.indptr)
    users = np.flatnonzero((lengths > 0) & (lengths < X.shape[1]))
    return X[users[:: max(1, len(users) // _SAMPLED_USERS)]]


def spread(scores: Array, others: npt.NDArray[np.bool_]) -> float:
    """Return the root of the mean variance of a user's scores, over the items that the user has not."""
    variances = [
        own[mask].var(dtype=np.float64) for own, mask in zip(scores, others, strict=True) if mask.any()
    ]
    return float(np.sqrt(np.mean(variances))) if variances else 0.0


class _Trials:
    """The values that were tried, and the nDCG of each held-out user with them."""

    def __init__(
        self, asked: HeldOut, plan: "Preparation", offset: bool, engine: Engine, progress: Progress | None
    ) -> None:
        self._asked, self._plan, self._offset, self._engine = asked, plan, offset, engine
        self._progress, self._done = progress, 0.0
        self._passed: tuple[float, ...] | None = None  # the weights of users and features in the latest fit
        self._reuse = fitting.Reuse()
        self._low: Array | None = None  # x·L, which no value changes
        self._scored: dict[tuple[float, ...], tuple[Array, float]] = {}  # by l2 and the weights of rows
        self._best: dict[tuple[float, ...], float] = {}  # nDCG
        self._popularity = np.bincount(asked.training.indices, minlength=asked.shown.shape[1])
        self.found: dict[tuple[float, ...], Numbers] = {}

    def ndcg(self, point: Mapping[str, float]) -> Numbers:
        """Return the nDCG of each user with these values."""
        key = tuple(point[name] for name in NAMES)
        if key not in self.found:
            of_fit = (point["l2"], *(point[name] for name in _PASSES))
            done = self._done + self._cost(of_fit)
            if self._progress is not None:
                units = (max(round(1e6 * x), 1) for x in (self._done, max(self._plan.seconds, done)))
                self._progress(STAGE_NAMES["measure"], *units)
            self._done = done
            base, spread = self._scores(of_fit)
            factors = novelty_factors(self._popularity, point["novelty"], self._asked.ranked)
            self.found[key] = self._ranked(base, point["rank_weight"] * spread, factors.astype(base.dtype))
            self._best[of_fit] = max(self._best.get(of_fit, 0.0), float(self.found[key].mean()))
        return self.found[key]

    def _cost(self, of_fit: tuple[float, ...]) -> float:
        """Return about how long it takes to try these values next."""
        if of_fit in self._scored:
            return self._plan.costs["novelty"]
        last, self._passed = self._passed, of_fit[1:]
        return self._plan.costs["first" if last is None else "l2" if last == self._passed else "user_weight"]

    def _ranked(self, base: Array, weight: float, factors: Array) -> Numbers:
        asked, low = self._asked, self._low

        def of_users(first: int) -> Numbers:
            part = slice(first, first + _USERS_AT_ONCE)
            total = base[part] if low is None else base[part] + base.dtype.type(weight) * low[part]
            total = total * factors
            total[asked.seen[part].nonzero()] = -np.inf
            return ndcg(total, asked.hidden[part], asked.places)

        return np.concatenate(self._engine.run(of_users, range(0, len(base), _USERS_AT_ONCE)))

    def _scores(self, of_fit: tuple[float, ...]) -> tuple[Array, float]:
        """Return x·B of the held-out users for the ranked items, and how much more that spreads than x·L."""
        if of_fit not in self._scored:
            while len(self._scored) >= _KEPT:
                self._scored.pop(min(self._scored, key=lambda other: self._best[other]))
            values: dict[str, Any] = dict(zip(("l2", *_PASSES), of_fit, strict=True))
            self._scored[of_fit] = self._fitted(replace(self._plan.settings, **values))
        return self._scored[of_fit]

    def _fitted(self, settings: Settings) -> tuple[Array, float]:
        asked = self._asked
        fitted = fitting.fit(
            asked.training, settings, self._engine, features=asked.features, copied=self._plan.held,
            reuse=self._reuse,
        )  # fmt: skip
        B, low_rank = fitted.weights, fitted.low_rank
        base_scores = intercept(fitted, settings.dtype, self._offset)
        wanted, ranked = low_rank if self._low is None else None, columns_of(B, asked.ranked)

        def of_users(first: int) -> tuple[Array, Array | None]:
            return scores(asked.shown[first : first + _USERS_AT_ONCE], ranked, wanted, asked.ranked)

        parts = self._engine.run(of_users, range(0, asked.shown.shape[0], _USERS_AT_ONCE))
        base = np.concatenate([part for part, _ in parts])
        base += base_scores[asked.ranked]
        if wanted is not None:
            self._low = np.concatenate([low for _, low in parts if low is not None])
        spread = 0.0 if low_rank is None else relative_spread(asked.training, B, base_scores, low_rank)
        return base, spread


def stand_in(settings: Settings, plan: Plan, items: int) -> Settings:
    """Return the settings of the model that is tried in place of the final one."""
    rank_weight = 0.0 if settings.rank_weight == 0 else 1.0  # any that has a low-rank part
    if items <= DENSE_UP_TO:
        return replace(settings, sparsity=plan.sparsity, rank_weight=rank_weight)
    return replace(
        settings,
        sparsity=min(NEIGHBORS / items, plan.sparsity or 1.0),
        threshold=None,
        max_neighbors=min(MOST_NEIGHBORS, settings.max_neighbors),
        mean_constraint=False,
        rank_weight=rank_weight,
    )


class Preparation(NamedTuple):
    """How parameters will be measured."""

    final: Plan  # of the fit that follows, with the memory of measuring
    settings: Settings  # of the stand-in
    free: list[str]  # the parameters to measure
    held: int  # bytes that are held for all trials
    costs: Mapping[str, float]  # of the first trial, and of another value of each parameter
    after: float  # what the fit that follows costs

    @property
    def seconds(self) -> float:
        """About how long all trials take, as `core.costs` counts."""
        return self.costs["first"] + sum(_TRIALS[name] * self.costs[name] for name in self.free)

    @property
    def share(self) -> float:
        """Of the time of the whole fit."""
        return self.seconds / (self.seconds + self.after)


def prepare(
    asked: HeldOut, X: sp.csr_array, settings: Settings, free: Sequence[str], engine: Engine, copied: int
) -> Preparation:
    """Plan the trials, and limit the engine to the memory that is planned for them and for the final fit."""
    memory, held = engine.memory, copied + asked.nbytes(np.dtype(settings.dtype).itemsize)
    sizes = fitting.sizes_of(X, settings, memory.limit, copied, asked.features)
    final = decide(settings, sizes, memory)
    small = fitting.sizes_of(asked.training, settings, memory.limit, held, asked.features)
    trial = stand_in(settings, final, sizes.items)
    plan = decide(trial, small, memory)
    memory.limit = max(final.needed, plan.needed)
    additions = fitting.additions_of(X, asked.features)
    work = [
        costs.of_fit(*fit, additions, engine.accelerator is not None)
        for fit in ((final, settings, sizes), (plan, trial, small))
    ]
    final = replace(final, needed=memory.limit)
    free = affordable(free, *work)
    return Preparation(final, trial, free, held, _of_trials(work[1], asked), sum(work[0].values()))


def _of_trials(fit: Mapping[str, float], asked: HeldOut) -> dict[str, float]:
    """Return the costs of the first trial, and of another value of each parameter."""
    scored, ranked = (each * asked.shown.shape[0] * len(asked.ranked) for each in (_SCORED, _RANKED))
    solving, again = _refits(fit)
    costs = {"l2": solving + scored + ranked, **dict.fromkeys(_PASSES, again + scored + ranked)}
    return {**costs, "rank_weight": ranked, "novelty": ranked, "first": sum(fit.values()) + scored + ranked}


def _refits(fit: Mapping[str, float]) -> tuple[float, float]:
    """Return the costs of a fit with another l2, and with another user_weight."""
    solving = sum(cost for stage, cost in fit.items() if stage in _SOLVING)
    return solving, sum(cost for stage, cost in fit.items() if stage not in ("low rank", "finish"))


def affordable(free: Sequence[str], final: Mapping[str, float], trial: Mapping[str, float]) -> list[str]:
    """Leave out user_weight where trying it would take longer than the final fit, by the costs of both."""
    solving, again = _refits(trial)
    total = trial.get("low rank", 0.0) + (1 + _TRIALS["user_weight"]) * again + _TRIALS["l2"] * solving
    dear = total > max(sum(final.values()), _LEAST_BUDGET)
    return [name for name in free if name != "user_weight" or not dear]


def measure(
    asked: HeldOut,
    plan: Preparation,
    start: Mapping[str, float | Literal["auto"]],
    offset: bool,
    engine: Engine,
    progress: Progress | None = None,
) -> Measured:
    """Climb from the start, a value for each of `NAMES`, along the free parameters."""
    settings, trials = plan.settings, _Trials(asked, plan, offset, engine, progress)
    first = {name: value for name, value in start.items() if value != "auto"}
    if "l2" not in first:
        moments = statistics.moments(asked.training, first["user_weight"], engine)  # of the users alone
        first["l2"] = float(f"{moments.typical_ridge(settings.alpha, settings.center):.3g}")
    axes = {name: axis for name, axis in AXES.items() if name in plan.free}
    if "l2" in axes:
        axes["l2"] = tuple(factor * first["l2"] for factor in axes["l2"])

    def point(place: Place) -> dict[str, float]:
        return {**first, **{name: axes[name][index] for name, index in place.items()}}

    def find(place: Place) -> Numbers | None:
        if any(not 0 <= index < len(axes[name]) for name, index in place.items()):
            return None
        return trials.ndcg(point(place))

    place = {name: axis.index(first[name]) for name, axis in axes.items()}
    at_first = find(place)
    assert at_first is not None
    place, moves = climb_along(list(axes), place, find, _is_better, 1)
    quick = [name for name in axes if name not in _PASSES]  # a pass over the data: once is enough
    place, more = climb_along(quick, place, find, _is_better, 1)
    moves += more
    last, found = find(place), point(place)
    assert last is not None
    for name in quick:  # between the steps
        beside = axes[name][max(place[name] - 1, 0) : place[name] + 2]
        tried = [float(trials.ndcg({**found, name: value}).mean()) for value in beside]
        between = {**found, name: _summit(beside, tried, found[name], name == "l2")}
        values = trials.ndcg(between)
        if values.mean() > last.mean():
            moves.append(Move(name, last, values))
            last, found = values, between
    gains = {name: np.zeros_like(at_first) for name in axes}
    for move in moves:
        gains[move.name] += move.after - move.before
    choices = (MeasuredValue(name, first[name], found[name], *mean_and_error(gains[name])) for name in axes)
    return Measured(len(last), len(trials.found), float(last.mean()), tuple(choices), asked.places)


def _summit(values: Sequence[float], found: Sequence[float], here: float, ratios: bool) -> float:
    """Return where a parabola through three findings is highest, at most halfway to the next value.

    `ratios` says that the values have equal ratios. At an end of an axis, the parabola is not known.
    """
    x = np.log2(values) if ratios else np.asarray(values)
    if len(x) < 3:
        return here
    bend, slope, _ = np.polyfit(x - x[1], found, 2)
    if not bend < 0:
        return here
    top = x[1] + min(max(-slope / (2 * bend), (x[0] - x[1]) / 2), (x[2] - x[1]) / 2)
    return float(f"{2.0**top if ratios else top:.3g}")


def _is_better(found: Numbers, here: Numbers | None) -> bool:
    """Return whether the gain is larger than its standard error."""
    assert here is not None
    gain, error = mean_and_error(found - here)
    return gain > error


class Beforehand(NamedTuple):
    """The values that a fit measures before it begins, and what its plan says of them."""

    measured: Measured | None = None
    said: str = ""
    seconds: float = 0.0
    announced: Plan | None = None  # of the fit, with the memory of measuring
    stages: Mapping[str, int] = MappingProxyType({})  # planned bytes
    share: float = 0.0  # of the time of the whole fit that measuring takes, estimated


class Task(NamedTuple):
    """What a model lets be measured before it is fitted."""

    free: list[str]  # names of parameters
    settings: Settings  # from which the fit starts
    start: Mapping[str, float | Literal["auto"]]  # a value for each of `NAMES`
    offset: bool
    engine: Callable[[], "LocalEngine"]  # makes one to run the trials in


def beforehand(task: Task, data: Interactions, given: "FitContext") -> Beforehand:
    """Measure the free parameters of a model, or say why not."""
    began = time.perf_counter()
    if given.measured is not None:
        return Beforehand(given.measured, f"kept what was {given.measured}")
    if not task.free:
        return Beforehand()
    asked = held_out(data)
    if asked is None:
        few = f"nothing measured, which takes {FEWEST_USERS} users and some with 5 items"
        return Beforehand(said=few)
    with task.engine() as engine:
        try:
            plan = prepare(asked, data.matrix, task.settings, task.free, engine, given.copied)
            announce(plan.final, engine)
            start = dict(task.start)
            if not plan.final.rank:
                start["rank_weight"] = 0.0
            if data.features is None:
                start["feature_weight"] = 0.0
            report = part_of(given.progress, 0, plan.share)
            measured = measure(asked, plan, start, task.offset, engine, report)
        except MemoryPlanError:
            return Beforehand(said="nothing measured, for which memory is too small")
    seconds = time.perf_counter() - began
    _log.info("%s, in %.1f s", measured, seconds)
    return Beforehand(measured, str(measured), seconds, plan.final, engine.memory.stages, plan.share)


def announce(plan: Plan, engine: Engine) -> None:
    """Log a plan."""
    _log.info("%s%s", plan, f", on {engine.accelerator.name}" if engine.accelerator else "")
