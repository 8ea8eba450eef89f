"""From a matrix and settings to weights: choose dense or sparse, refuse what cannot fit, run the stages.

statistics → pattern → schedule → blocks → B    (sparse)
statistics → closed form → B                    (dense)
"""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks, closed_form, entries, pattern, ranking, schedule, statistics
from mrfrec.core.resources import MemoryPlan, Progress, Workers, human_bytes
from mrfrec.core.settings import Plan, Settings
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.errors import ParameterError

__all__ = ["Fitted", "Kept", "fit", "warm_up"]

# What `sparsity="auto"` stands for.
_DENSE_UP_TO = 25_000  # items: the m³ operations of the closed form are about two minutes on two cores
_NEIGHBORS = 200  # on average, of an item: 0.5 % of the Million Song data, the paper's most accurate


@dataclass(frozen=True)
class Fitted:
    """All a fit finds out."""

    weights: Rows | DenseRows
    pattern: "sp.csc_array | None"
    threshold: float | None
    n_blocks: int | None
    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    timings: dict[str, float]
    plan: Plan
    stages: dict[str, int]


def fit(
    X: sp.csr_array,
    settings: Settings,
    *,
    copied: int,
    threads: int | None,
    memory_limit: int | None,
    progress: Progress | None,
    announce: Callable[[Plan], None],
    kept: "Kept | None" = None,
) -> Fitted:
    """Learn B from a canonical CSR matrix, of which `copied` bytes were not the caller's.

    `announce(plan)` is called once, when it is decided what will be done. `kept` saves what later fits to the
    same matrix need not do again; the timings are those of a fit that does all of it.
    """
    start = time.perf_counter()
    kept = kept or Kept(stages=0)
    memory = MemoryPlan(memory_limit)
    m = X.shape[1]
    binary = statistics.is_binary(X, settings.user_weight)
    with Workers(threads, progress) as workers:
        needs = _Needs(X, settings, memory, copied, binary, workers.threads)
        settings, plan = _decide(settings, needs, memory, m)
        held = needs.require(settings)
        announce(plan)
        of_data = (settings.alpha, settings.user_weight, settings.center)
        facts = kept.get(
            "statistics",
            of_data,
            workers,
            lambda: statistics.compute(
                X,
                alpha=settings.alpha,
                user_weight=settings.user_weight,
                center=settings.center,
                binary=binary,
                workers=workers,
            ),
        )
        ridge = facts.ridge(plan.l2, settings.l2_flat, settings.dropout)
        statistics.check_range(facts.S_diagonal, ridge)
        found = steps = None
        weights: Rows | DenseRows
        if plan.kind == "sparse":
            of_pattern = (*of_data, plan.threshold, plan.sparsity, settings.max_neighbors)
            by_size = kept.get(
                "pattern",
                of_pattern,
                workers,
                lambda: pattern.find_pattern(
                    facts,
                    threshold=plan.threshold,
                    sparsity=plan.sparsity,
                    max_neighbors=settings.max_neighbors,
                    workers=workers,
                    plan=memory,
                    held=held,
                ),
            )
            steps = kept.get(
                "schedule",
                (*of_pattern, settings.r),
                workers,
                lambda: schedule.make_schedule(by_size, facts.popularity, settings.r, workers),
            )
            found = by_size.with_sorted_columns(workers, in_place=not kept.stages)
            gathered = kept.get("blocks", (*of_pattern, settings.r, settings.dtype), workers, blocks.Gathered)
            weights = Rows.of(
                blocks.estimate_weights(
                    facts,
                    found,
                    steps,
                    ridge,
                    dtype=settings.dtype,
                    workers=workers,
                    plan=memory,
                    held=held,
                    gathered=gathered if kept.stages else None,
                )
            )
        else:
            keep_matrix = kept.stages and 2 * needs.dense <= memory.limit
            S = (kept if keep_matrix else Kept(stages=0)).get(
                "matrix",
                (*of_data, settings.dtype),
                workers,
                lambda: closed_form.scaled_matrix(facts, settings.dtype, workers),
            )
            weights = DenseRows(
                closed_form.closed_form(
                    S.copy() if keep_matrix else S,
                    facts,
                    ridge,
                    mean_constraint=settings.mean_constraint,
                    workers=workers,
                )
            )
        timings = workers.timings
    return Fitted(
        weights=weights,
        pattern=None if found is None else found.to_matrix(),
        threshold=None if found is None else found.threshold,
        n_blocks=None if steps is None else len(steps),
        mean=facts.mu,
        scale=facts.s,
        timings={**timings, "total": time.perf_counter() - start + workers.saved},
        plan=plan,
        stages=dict(memory.stages),
    )


Value = TypeVar("Value")


class Kept:
    """What fits to one matrix have in common: of each stage the last results, by the settings they come from.

    Of what is large, the blocks' parts of S and S itself, there is only ever one.
    """

    def __init__(self, stages: int = 16) -> None:
        self.stages = stages  # of one kind that are kept; 0 keeps nothing
        self._found: dict[str, dict[Hashable, tuple[Any, dict[str, float]]]] = {}

    def get(self, name: str, key: Hashable, workers: Workers, make: Callable[[], Value]) -> Value:
        """What was made with the same settings before, or is made now."""
        found = self._found.setdefault(name, {})
        if key in found:
            value, timings = found[key]
            workers.count(timings)
            return cast(Value, value)
        before = dict(workers.timings)
        value = make()
        spent = {stage: t - before.get(stage, 0.0) for stage, t in workers.timings.items()}
        most = 1 if name in ("matrix", "blocks") else self.stages
        while len(found) >= max(most, 1):
            found.pop(next(iter(found)))
        if self.stages:
            found[key] = value, {stage: t for stage, t in spent.items() if t > 0}
        return value


@cache
def warm_up(dtype: Literal["float32", "float64"]) -> None:
    """Compile or load all that a fit and a ranking call, once, on a few numbers."""
    X = sp.csr_array((np.arange(300 * 40).reshape(300, 40) % 7 % 3 == 0).astype(np.float32))
    for sparsity in (None, 0.5):
        settings = Settings(
            l2=1.0, alpha=0.5, l2_flat=0.0, dropout=0.0, user_weight=0.0, center=True,
            sparsity=sparsity, threshold=None, max_neighbors=10, r=0.5, mean_constraint=False, dtype=dtype,
        )  # fmt: skip
        fitted = fit(
            X, settings, copied=0, threads=1, memory_limit=None, progress=None, announce=lambda _: None
        )
        base = ranking.Base(np.zeros(40, dtype), np.arange(40, dtype=np.int32))
        ranking.top_k(ranking.WeightScorer(Rows.of(X), fitted.weights, dtype), 1, base, threads=1)


# ── what a fit needs, and what it does about it ───────────────────────────────────────────────────


class _Needs:
    """Bytes of the dense and of the sparse fit on this data."""

    def __init__(
        self, X: sp.csr_array, settings: Settings, memory: MemoryPlan, copied: int, binary: bool, threads: int
    ) -> None:
        n, self.m = X.shape
        self.memory = memory
        self.dtype = settings.dtype
        self.held = copied + statistics.bytes_for_statistics(n, self.m, X.nnz, binary, threads)
        self.dense = self.held + closed_form.bytes_for_closed_form(self.m, self.dtype, threads)
        per_thread = entries.bytes_for_scratch(self.m, min(settings.max_neighbors, self.m) - 1)
        per_item = 128 * self.m  # the schedule, and the sizes and places of its blocks
        self.sparse_base = self.held + threads * per_thread + per_item
        self.per_entry = max(
            pattern.BYTES_PER_ENTRY, blocks.BYTES_PER_ENTRY + 2 * np.dtype(self.dtype).itemsize
        )
        self.largest_sparsity = (memory.limit - self.sparse_base) / (self.per_entry * float(self.m) * self.m)

    def sparse(self, sparsity: float, max_neighbors: int) -> int:
        """With this share of entries kept."""
        return int(self.sparse_base + self.per_entry * min(sparsity * self.m, max_neighbors) * self.m)

    def require(self, settings: Settings) -> int:
        """Refuse what cannot fit; returns the bytes held throughout."""
        if settings.sparsity is None and settings.threshold is None:
            advice = (
                f"Use a sparse model: sparsity={_round_down(min(self.largest_sparsity, 0.1))} would fit."
                if self.largest_sparsity * self.m >= 2
                else "Not even a sparse model would fit: use fewer items, or more memory."
            )
            if self.dtype == "float64":
                advice += ' dtype="float32" needs half.'
            self.memory.require("dense", self.dense, advice)
            return self.held
        self.memory.require("statistics", self.sparse_base, "Use fewer threads, or drop users or items.")
        if settings.sparsity is not None:
            assert settings.sparsity != "auto"
            self.memory.require(
                "blocks",
                self.sparse(settings.sparsity, settings.max_neighbors),
                f"The largest sparsity that would fit is about {_round_down(self.largest_sparsity)}."
                if self.largest_sparsity * self.m >= 1
                else "Use fewer items, or more memory.",
            )
        return int(self.sparse_base)


def _decide(settings: Settings, needs: _Needs, memory: MemoryPlan, m: int) -> tuple[Settings, Plan]:
    """Settings with nothing left open, and the plan that says why."""
    settings, reason = _choose(settings, needs, memory, m)
    sparse = settings.sparsity is not None or settings.threshold is not None
    sparsity = settings.sparsity
    assert sparsity != "auto"
    if sparsity is not None and sparsity * m < 1 - 1e-9:
        raise ParameterError(
            "sparsity",
            f"at least 1/items, {_round_up(1 / m):g} for this data, since the diagonal is always kept",
            sparsity,
        )
    if not sparse:
        needed = needs.dense
    elif sparsity is not None:
        needed = needs.sparse(sparsity, settings.max_neighbors)
    else:
        needed = needs.sparse_base
    return settings, Plan(
        kind="sparse" if sparse else "dense",
        reason=reason,
        l2=settings.l2,
        sparsity=sparsity,
        threshold=settings.threshold,
        needed=needed,
        limit=memory.limit,
    )


def _choose(settings: Settings, needs: _Needs, memory: MemoryPlan, m: int) -> tuple[Settings, str]:
    """Dense or sparse, where that was left open; never by the number of threads."""
    if settings.threshold is not None:
        return replace(settings, sparsity=None), "as the threshold asks"
    if settings.sparsity != "auto":
        return settings, "as sparsity asks"
    dense = replace(settings, sparsity=None)
    if settings.mean_constraint:
        return dense, "the mean constraint has a closed form for the dense model only"
    if settings.r > 0:
        reason = "r belongs to the sparse model"
    elif m > _DENSE_UP_TO:
        reason = f"{m:,} items are more than {_DENSE_UP_TO:,}, beyond which the closed form takes long"
    elif needs.dense > memory.limit:
        reason = f"the closed form of {m:,} items would need {human_bytes(needs.dense)}"
    else:
        return dense, f"{m:,} items fit the closed form"
    sparsity = min(_NEIGHBORS / m, 1.0)
    if needs.sparse(sparsity, settings.max_neighbors) > memory.limit and needs.largest_sparsity * m >= 2:
        sparsity = _round_down(needs.largest_sparsity)
        reason += "; kept within the memory there is"
    return replace(settings, sparsity=sparsity), reason


def _round_down(value: float) -> float:
    """Two significant digits, never more than the value."""
    digits = 1 - math.floor(math.log10(value))
    return float(math.floor(value * 10**digits) / 10**digits)


def _round_up(value: float) -> float:
    """Three significant digits, never less than the value."""
    digits = 2 - math.floor(math.log10(value))
    return float(math.ceil(value * 10**digits) / 10**digits)
