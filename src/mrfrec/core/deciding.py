"""What a fit will do, decided before it starts: dense or sparse, with or without a low-rank part.

Beside its code, a stage says how many bytes it holds at its peak, beyond the matrix that a fit is given. The
number does not depend on threads.
"""

import math
from dataclasses import replace
from typing import Literal

from mrfrec.core import blocks, closed_form, low_rank, pattern, statistics
from mrfrec.core.engine import Budget, human_bytes
from mrfrec.core.plan import Plan, Settings, Sizes
from mrfrec.errors import MemoryPlanError, ParameterError

# The following numbers decide what `sparsity="auto"` means. They are the same on every machine: a GPU does
# not change what is fitted. With more items than this, the closed form takes over two minutes on two cores.
_DENSE_UP_TO = 25_000
# A sparse model has so many neighbours per item on average: 0.5 % of the weights on the Million Song data.
# Table 2 has no more accurate model.
_NEIGHBORS = 200
# With fewer users than items, or few pairs per item, most covariances are noise; 100 neighbours are as
# accurate as all (lab/results/defaults.md). With up to 1,000 items it makes no difference.
_FEW_NEIGHBORS, _FEW_ITEMS, _FEW_PAIRS = 100, 1000, 30

# `rank="auto"` is this rank, or as many vectors as these numbers can hold: every answer reads all of them. A
# dense model has a low-rank part only if rank_weight is a number above 0.
_RANK, _RANK_ITEMS = 256, 16_000_000


def decide(settings: Settings, sizes: Sizes, memory: Budget, *, with_low_rank: bool = False) -> Plan:
    """Choose dense or sparse where that is left open, and refuse what does not fit.

    With `with_low_rank`, a sparse model may have a low-rank part.
    """
    if settings.order and settings.mean_constraint:
        raise ParameterError("mean_constraint", "False where order is above 0", settings.mean_constraint)
    if settings.rank == "auto":
        plan = decide(replace(settings, rank=0), sizes, memory, with_low_rank=True)
        auto = min(_RANK, _RANK_ITEMS // sizes.items, min(sizes.users, sizes.items) // 4)
        without = (0, "auto") if plan.kind == "dense" else (0,)
        if auto < 1 or settings.rank_weight in without:
            return plan
        try:
            return decide(replace(settings, rank=auto), sizes, memory, with_low_rank=True)
        except MemoryPlanError:
            return replace(
                plan, reason=f"{plan.reason}; without a low-rank part, for which memory is too small"
            )
    rank = settings.rank
    if rank > min(sizes.users, sizes.items):
        rule = f"at most the number of users or items, {min(sizes.users, sizes.items)} for this data"
        raise ParameterError("rank", rule, rank)
    beside = low_rank.planned_bytes(sizes, rank) if rank else 0
    memory.check("low rank", beside, "Use a smaller rank, or rank=0.")
    sizes = sizes.with_rank(rank)
    m, limit = sizes.items, sizes.limit
    largest = largest_sparsity(sizes, settings)
    settings, reason = _choose(settings, sizes, largest, with_low_rank)
    assert settings.sparsity != "auto"
    if settings.sparsity is not None and settings.sparsity * m < 1 - 1e-9:
        raise ParameterError(
            "sparsity",
            f"at least 1/items, {round_up(1 / m):g} for this data, since the diagonal is always kept",
            settings.sparsity,
        )
    if settings.sparsity is None:
        kind: Literal["dense", "sparse"] = "dense"
        advice = (
            f"Use a sparse model: sparsity={_round_down(min(largest, 0.1))} would fit."
            if largest * m >= 2
            else "Not even a sparse model would fit: use fewer items, or more memory."
        )
        if settings.dtype == "float64":
            advice += ' dtype="float32" needs half.'
        least = needed = closed_form.planned_bytes(sizes)
        memory.require("dense", needed, advice)
    else:
        kind = "sparse"
        most = min(settings.sparsity * m, settings.max_neighbors) * m
        least = sparse_bytes(sizes, settings, most)
        memory.check(
            "sparse",
            least,
            f"The largest sparsity that would fit is about {_round_down(largest)}."
            if largest * m >= 1
            else "Use fewer users or items, or more memory.",
        )
        batch = blocks.planned_bytes_of_batch(sizes, settings, most)
        needed = min(max(least, batch), limit)
    return Plan(
        kind,
        reason,
        settings.l2,
        settings.sparsity,
        rank,
        needed=max(needed, beside),
        least=max(least, beside),
        limit=limit,
        in_use=memory.in_use,
    )


def sparse_stages(sizes: Sizes, settings: Settings) -> list[tuple[int, float]]:
    """Return the bytes that the stages of a sparse model hold in any case, and for every entry of A."""
    return [
        (statistics.planned_bytes(sizes), 0.0),
        pattern.planned_bytes(sizes),
        blocks.planned_bytes(sizes, settings),
        blocks.planned_bytes_of_rows(sizes),
    ]


def sparse_bytes(sizes: Sizes, settings: Settings, entries: float) -> int:
    """Return the bytes that a sparse model with so many entries in A needs at least."""
    return max(int(base + per_entry * entries) for base, per_entry in sparse_stages(sizes, settings))


def largest_sparsity(sizes: Sizes, settings: Settings) -> float:
    """Return the largest share of entries that fits into the limit; below 1/m, nothing fits."""
    stages = sparse_stages(sizes, settings)
    if any(base > sizes.limit for base, _ in stages):
        return 0.0
    entries = min((sizes.limit - base) / per_entry for base, per_entry in stages if per_entry)
    return entries / (float(sizes.items) * sizes.items)


def _choose(settings: Settings, sizes: Sizes, largest: float, with_low_rank: bool) -> tuple[Settings, str]:
    """Settle `sparsity="auto"`, and say why."""
    m, of_dense = sizes.items, closed_form.planned_bytes(sizes)
    neighbors = _NEIGHBORS
    if settings.sparsity != "auto":
        return settings, "as sparsity asks"
    dense = replace(settings, sparsity=None)
    if settings.mean_constraint:
        return dense, "the mean constraint has a closed form for the dense model only"
    if settings.r > 0:
        reason = "r belongs to the sparse model"
    elif m > _DENSE_UP_TO:
        reason = f"{m:,} items are more than {_DENSE_UP_TO:,}, beyond which the closed form takes long"
    elif with_low_rank and m > _FEW_ITEMS and (sizes.users < m or sizes.pairs < _FEW_PAIRS * m):
        neighbors = _FEW_NEIGHBORS
        few = f"{sizes.users:,} users" if sizes.users < m else f"{sizes.pairs / m:.1f} users per item"
        reason = f"{few} are too few for the covariances of all pairs of {m:,} items"
    elif of_dense <= max(sizes.limit, sparse_bytes(sizes, settings, 2 * m)):
        # Where no model fits, the sparse one needs more memory, so the refusal is about the dense one.
        return dense, f"{m:,} items fit the closed form"
    else:
        reason = f"the closed form of {m:,} items would need {human_bytes(of_dense)}"
    sparsity = min(neighbors / m, 1.0)
    if sparsity > largest:
        # If not even two neighbours fit, the refusal says what these would need.
        sparsity = _round_down(largest) if largest * m >= 2 else min(2 / m, 1.0)
        reason += "; kept within the memory there is"
    return replace(settings, sparsity=sparsity), reason


def _round_down(value: float) -> float:
    """Round to two significant digits, downwards."""
    digits = 1 - math.floor(math.log10(value))
    return float(math.floor(value * 10**digits) / 10**digits)


def round_up(value: float) -> float:
    """Round to three significant digits, upwards."""
    digits = 2 - math.floor(math.log10(value))
    return float(math.ceil(value * 10**digits) / 10**digits)
