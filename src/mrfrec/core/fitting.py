"""From a matrix and settings to weights: plan the fit, then run its stages.

statistics → pattern → schedule → blocks → B    (sparse)
statistics → closed form → B                    (dense)
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks, closed_form, costs, low_rank, pattern, statistics
from mrfrec.core.ages import Times, UserAges, faded, steps_from_end
from mrfrec.core.deciding import decide
from mrfrec.core.engine import Engine, Floats, release_freed, split_evenly
from mrfrec.core.low_rank import LowRank
from mrfrec.core.plan import Plan, Settings, Sizes
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.core.statistics import Statistics
from mrfrec.errors import MemoryPlanError

Value = TypeVar("Value")


class AgedHistories(NamedTuple):
    """Histories with faded values, and how much their users count."""

    X: sp.csr_array
    ages: UserAges

    @property
    def nbytes(self) -> int:
        return int(self.X.data.nbytes) + sum(int(array.nbytes) for array in self.ages)


@dataclass(frozen=True)
class Fitted:
    """The weights, and how they came about."""

    weights: Rows | DenseRows
    plan: Plan
    mean: Floats
    scale: Floats
    pattern: "sp.csc_array | None" = None
    threshold: float | None = None
    n_blocks: int | None = None
    low_rank: LowRank | None = None  # L, beside the weights

    @property
    def nbytes(self) -> int:
        """The bytes of the weights; the pattern of a sparse model is smaller."""
        return self.weights.nbytes


def fit(
    X: sp.csr_array,
    settings: Settings,
    engine: Engine,
    *,
    features: sp.csr_array | None = None,
    times: Times | None = None,
    steps: npt.NDArray[np.uint16] | None = None,
    copied: int = 0,
    announce: Callable[[Plan], None] = lambda _: None,
    reuse: "Reuse | None" = None,
) -> Fitted:
    """Learn B from a canonical CSR matrix, of which `copied` bytes were not the caller's.

    `features` is a matrix of features × items. `times` holds a time in microseconds for every entry of X.
    Times matter only with `settings.half_life` or `settings.order`; for order, `steps` may take their place:
    the number of earlier times in the history of an entry. `announce(plan)` is called before any work, when
    it is decided what will be done; an automatic l2 is still "auto" then. `reuse` saves what later fits to
    the same matrices need not do again; the timings are the timings of a fit that does all of it.
    """
    features = settings.counted(features)
    sizes = sizes_of(X, settings, engine.memory.limit, copied, features)
    stages = _Stages(settings, engine, reuse)
    besides = 0 if reuse is None else reuse.nbytes_besides(stages.keys)
    sizes = replace(sizes, other=sizes.other + besides)
    try:
        plan = decide(settings, sizes, engine.memory)
    except MemoryPlanError:
        if reuse is None or not besides:
            raise
        # The results of earlier fits take the memory that this one needs.
        reuse.drop_besides(stages.keys)
        more: dict[str, Any] = {"features": features, "times": times, "steps": steps, "copied": copied}
        return fit(X, settings, engine, **more, announce=announce, reuse=reuse)
    if settings.order and steps is None and times is not None:
        steps = stages.made("steps", lambda: steps_of(X, times, engine))
    entries, ages = X, None
    if settings.half_life and times is not None:
        X, ages = stages.made("faded", lambda: AgedHistories(*faded(entries, times, settings.half_life)))
    plan, device = placed(plan, settings, sizes, engine)
    stages.device = device
    announce(plan)
    additions = additions_of(X, features)
    engine.expect(costs.of_fit(plan, settings, sizes, additions, device is not None))
    engine.scratch = sizes.scratch
    beside = None
    if plan.rank:
        # The low-rank part comes from histories that do not fade: shared tastes last.
        stages.keys["low_rank"] = (plan.rank, settings.dtype)
        needed = low_rank.planned_bytes(sizes, plan.rank)
        engine.memory.require("low rank", needed, "Use a smaller rank, or rank=0.")
        beside = stages.made(
            "low_rank",
            lambda: low_rank.leading_directions(entries, plan.rank, settings.dtype, engine, device),
        )
        sizes = sizes.with_rank(plan.rank)
        engine.scratch = sizes.scratch
    advice = "Use fewer users or items, or more memory."
    engine.memory.require("statistics", statistics.planned_bytes(sizes), advice)
    sides = stages.made("sides", lambda: statistics.both_sides(X, engine, features))
    moments = stages.made("moments", lambda: statistics.moments(X, settings, engine, features, sides, ages))
    facts = moments.scaled(settings)
    l2 = moments.typical_ridge(settings) if plan.l2 == "auto" else plan.l2
    plan = replace(plan, l2=l2)
    if settings.order:
        assert steps is not None
        facts = facts.with_order(X.indptr.astype(np.int64, copy=False), steps, settings.order, engine)
    ridge = facts.ridge(l2, settings.dropout)
    statistics.check_range(facts.S_diagonal, ridge)
    solve = _fit_dense if plan.kind == "dense" else _fit_sparse
    fitted = stages.made("solved", lambda: solve(stages, facts, ridge, plan, sizes))
    weights = fitted.weights
    if reuse is not None and reuse.keeps_weights:
        # The caller scales the weights in place, so that it gets a copy.
        held = sizes.held + reuse.nbytes_besides({}) + weights.nbytes
        if held <= engine.memory.limit:
            engine.memory.require("reuse", held, "")
            weights = weights.copy()
        else:
            reuse.drop("solved", stages.keys["solved"])
    return replace(fitted, weights=weights, plan=plan, low_rank=beside)


def placed(plan: Plan, settings: Settings, sizes: Sizes, engine: Engine) -> tuple[Plan, Any]:
    """Return the plan with the words for where the fit runs, and the device; None for the processor.

    Only dense models without order are fitted on a device.
    """
    device = engine.accelerator
    if device is None:
        return plan, None
    if plan.kind == "sparse" or settings.order:
        what = "sparse models" if plan.kind == "sparse" else "models with order"
        said = "" if device.if_it_pays else f"fitted on the processor: {what} do not use a GPU"
        return replace(plan, device=said), None
    if not device.takes(sizes.items, sizes.pairs, sizes.binary, settings.dtype, plan.rank):
        return plan, None
    return replace(plan, device=f"on {device.name}"), device


def steps_of(X: sp.csr_array, times: Times, engine: Engine) -> npt.NDArray[np.uint16]:
    """Return the number of different earlier times in the history of every entry."""
    ptr, steps = X.indptr.astype(np.int64), np.empty(X.nnz, np.uint16)

    def number(users: tuple[int, int]) -> None:
        own = ptr[users[0] : users[1] + 1]
        some = slice(own[0], own[-1])
        steps[some] = np.minimum(steps_from_end(own - own[0], -times[some]), np.iinfo(np.uint16).max)

    engine.run(number, split_evenly(np.diff(ptr) + 1, 64))
    return steps


def sizes_of(
    X: sp.csr_array, settings: Settings, limit: int, copied: int = 0, features: sp.csr_array | None = None
) -> Sizes:
    """Return the sizes that decide the memory of a fit."""
    rows, entries = (0, 0) if features is None else (features.shape[0], features.nnz)
    converted = X.indices.dtype != np.int32 or features is not None  # the indices, in an array of its own
    return Sizes(
        users=X.shape[0] + rows,
        items=X.shape[1],
        pairs=X.nnz + entries,
        binary=statistics.is_binary(X, settings, features),
        itemsize=np.dtype(settings.dtype).itemsize,
        limit=limit,
        other=copied + (4 * (X.nnz + entries) if converted else 0) + (4 * X.nnz if settings.half_life else 0),
        ordered=settings.order > 0,
    )


def additions_of(X: sp.csr_array, features: sp.csr_array | None = None) -> float:
    """Return Σ|row|², the number of products that a pass over the data adds up."""
    parts = (X,) if features is None else (X, features)
    return sum(float((np.diff(part.indptr).astype(np.float64) ** 2).sum()) for part in parts)


def _fit_sparse(stages: "_Stages", facts: Statistics, ridge: Floats, plan: Plan, sizes: Sizes) -> Fitted:
    settings, engine, is_last = stages.settings, stages.engine, stages.reuse is None
    by_size = stages.made(
        "pattern",
        lambda: pattern.find_pattern(
            facts,
            sparsity=plan.sparsity,
            max_neighbors=settings.max_neighbors,
            workers=engine,
            held=sizes.held + sizes.scratch,
        ),
    )
    schedule = stages.made(
        "schedule", lambda: blocks.make_schedule(by_size, facts.popularity, settings.r, engine)
    )
    entries = by_size.with_sorted_columns(engine, in_place=is_last)
    release_freed()
    weights = blocks.estimate_weights(
        facts,
        entries,
        schedule,
        ridge,
        dtype=settings.dtype,
        engine=engine,
        held=sizes.held,
        worthwhile=sizes.worthwhile_batch,
        keep=None if is_last else partial(stages.made, "gathered"),
    )
    return Fitted(
        weights=weights,
        plan=plan,
        mean=facts.mu,
        scale=facts.s,
        pattern=entries.to_matrix(),
        threshold=by_size.threshold,
        n_blocks=len(schedule),
    )


def _fit_dense(stages: "_Stages", facts: Statistics, ridge: Floats, plan: Plan, sizes: Sizes) -> Fitted:
    settings, engine = stages.settings, stages.engine
    if facts.order is not None:
        B = closed_form.ordered_closed_form(facts, ridge, settings.dtype, engine)
        return Fitted(DenseRows(B), plan, facts.mu, facts.s)
    if stages.device is not None:
        B = stages.device.dense_weights(facts, ridge, settings.dtype, settings.mean_constraint, engine)
        return Fitted(DenseRows(B), plan, facts.mu, facts.s)
    make = partial(closed_form.scaled_matrix, facts, settings.dtype, engine)
    twice = 2 * closed_form.planned_bytes(sizes) - sizes.held
    if stages.reuse is not None and twice <= engine.memory.limit:
        engine.memory.require("dense", twice, "")
        S = stages.made("matrix", make).copy()
    else:
        S = make()
    B = closed_form.closed_form(S, facts, ridge, mean_constraint=settings.mean_constraint, engine=engine)
    return Fitted(DenseRows(B), plan, facts.mu, facts.s)


# ── results that fits to one matrix share ─────────────────────────────────────────────────────────


class Reuse:
    """Results of earlier fits to the same matrix: the latest of a stage, by the settings it depends on."""

    # A grid over r or l2 within one sparsity comes back to the same few patterns. Other results are large.
    _most: ClassVar = {"pattern": 4, "schedule": 4}

    def __init__(self, *, keeps_weights: bool = True) -> None:
        # Without weights, no two fits may have the same settings.
        self.keeps_weights = keeps_weights
        self._results: dict[tuple[str, Hashable], tuple[Any, dict[str, float]]] = {}

    def find(self, stage: str, key: Hashable) -> tuple[Any, dict[str, float]] | None:
        """Return the result that was made with these settings, and the seconds that it took."""
        return self._results.get((stage, key))

    def put(self, stage: str, key: Hashable, value: Any, seconds: dict[str, float]) -> None:
        """Keep a result, and forget the oldest of the stage if there are enough."""
        self._results[stage, key] = value, seconds
        for old in [kept for kept in self._results if kept[0] == stage][: -self._most.get(stage, 1)]:
            del self._results[old]

    def drop(self, stage: str, key: Hashable) -> None:
        """Forget a result."""
        self._results.pop((stage, key), None)

    def nbytes_besides(self, keys: dict[str, Hashable]) -> int:
        """Return the bytes of all results that a fit with these keys does not use."""
        return sum(int(r[0].nbytes) for kept, r in self._results.items() if kept not in keys.items())

    def drop_all_but(self, *stages: str) -> None:
        """Forget the results of all other stages."""
        self._results = {kept: r for kept, r in self._results.items() if kept[0] in stages}

    def drop_besides(self, keys: dict[str, Hashable]) -> None:
        """Forget all results that a fit with these keys does not use."""
        self._results = {kept: r for kept, r in self._results.items() if kept in keys.items()}


class _Stages:
    """The stages of a fit, by name, and their keys: the settings that decide the result of a stage."""

    def __init__(self, settings: Settings, engine: Engine, reuse: Reuse | None) -> None:
        self.settings, self.engine, self.reuse = settings, engine, reuse
        self.device: Any = None  # takes over the closed form
        rows = settings.of_rows
        scaling = (settings.alpha, *rows, settings.center)
        entries = (*scaling, settings.sparsity, settings.max_neighbors)
        self.keys: dict[str, Hashable] = {
            "steps": None,
            "faded": settings.half_life,
            # Features are further rows, and faded values differ within a row.
            "sides": tuple(x > 0 for x in rows[1:]),
            "moments": rows,
            "low_rank": (settings.rank, settings.dtype),
            "matrix": (*scaling, settings.dtype),
            "pattern": entries,
            "schedule": (*entries, settings.r),
            "gathered": (*entries, settings.r, settings.order, settings.dtype),
            "solved": settings.of_weights,
        }

    def made(self, stage: str, make: Callable[[], Value]) -> Value:
        """Return what an earlier fit has made with the same settings, or make it now and keep it."""
        if self.reuse is None or (stage == "solved" and not self.reuse.keeps_weights):
            return make()
        found = self.reuse.find(stage, self.keys[stage])
        if found is not None:
            self.engine.add_saved(found[1])
            return cast(Value, found[0])
        before = dict(self.engine.timings)
        value = make()
        seconds = {name: t - before.get(name, 0.0) for name, t in self.engine.timings.items()}
        self.reuse.put(stage, self.keys[stage], value, {name: t for name, t in seconds.items() if t > 0})
        return value
