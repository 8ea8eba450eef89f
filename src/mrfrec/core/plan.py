"""What a fit will do and hold, decided before it starts.

Everything a fit holds is counted here, in bytes beyond the matrix it is given: what stays, and what each
stage adds at its peak. The count does not depend on the number of threads. The scratch space of all threads
together gets a fixed allowance, and an engine runs no more threads than that has room for.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

from mrfrec.core.lanczos import basis_size, sample_step, users_at_once
from mrfrec.core.memory import Budget, human_bytes
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.shown import Report, Section, Tabular, report_of

# What `sparsity="auto"` stands for, on every machine: a GPU does not change what is fitted.
_DENSE_UP_TO = 25_000  # items: beyond, the closed form takes over two minutes on two cores
_NEIGHBORS = 200  # per item, on average: 0.5 % of the Million Song data, the most accurate model of Table 2
# Instead of a dense model where there are fewer users than items, or few pairs per item: most covariances are
# noise then, and all of them together no more accurate (lab/results/defaults.md). With so few items
# there is no difference.
_FEW_NEIGHBORS, _FEW_ITEMS, _FEW_PAIRS = 100, 1000, 30

_RANK = 256  # what `rank="auto"` stands for, in a dense model only with a rank_weight above 0,
_RANK_ITEMS = 16_000_000  # if that many numbers hold its vectors: they are all read for every answer

TRANSPOSE_PARTS = 8  # ranges of users that are transposed at one time, each with a count for every item
# Every batch of blocks costs a pass over the data, so the more interactions there are, the more a batch may
# hold: a rule of thumb, in bytes, within bounds that leave room for others on an ordinary machine. A machine
# with much memory may take a part of it.
_LEAST_BATCH, _MOST_BATCH, _MOST_OF_MEMORY = 1_000_000_000, 3_500_000_000, 1 / 8
_BATCH_PER_INTERACTION = 100

_SCRATCH = 48_000_000  # bytes for the scratch space of all threads, at least
_ALLOCATOR = 12_000_000  # bytes that memory once freed may keep resident, and small arrays not counted below


@dataclass(frozen=True)
class Settings:
    """What decides the weights: parameters of `MRF` and `EDLAE`, and what tells these models apart."""

    l2: float | Literal["auto"]
    alpha: float
    user_weight: float
    sparsity: float | Literal["auto"] | None
    max_neighbors: int
    r: float
    mean_constraint: bool
    dtype: Literal["float32", "float64"]
    rank: int | Literal["auto"] = 0
    rank_weight: float | Literal["auto"] = "auto"  # if 0, there is no low-rank part
    feature_weight: float = 0.0
    half_life: float = 0.0  # microseconds after which an event counts half; 0: events do not fade
    order: float = 0.0  # of ordered pairs, beside those of S
    center: bool = True  # subtract the mean of each item
    dropout: float = 0.0  # for p, a ridge of p/(1 − p) times the diagonal of S


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """What a fit decided to do, and why; as a string, one line."""

    kind: Literal["dense", "sparse"]
    reason: str
    l2: float | Literal["auto"]  # "auto" until the data has been looked at
    sparsity: float | None
    rank: int = 0  # of the part beside the weights
    needed: int = 0  # bytes that the fit adds to those in use, at most; 0 in a model that was loaded
    least: int = 0  # bytes that the limit must allow; with more, up to `needed`, the fit is faster
    limit: int = 0  # bytes that it may add
    in_use: int = 0  # bytes that the process held before the fit, with the data; 0 if not known
    device: str = ""  # where the fit runs, in words, if a device was asked for

    def without_memory(self) -> "Plan":
        """Return the plan without memory and device, for what should not depend on the machine."""
        return replace(self, needed=0, least=0, limit=0, in_use=0, device="")

    def differs_from(self, other: "Plan", growth: float) -> bool:
        """Return whether this is another kind of model, or has other numbers of neighbours per item.

        `growth` is how many times as many items there are as for the other plan. What a parameter fixes, the
        share of all pairs, does not differ.
        """
        if self.kind != other.kind:
            return True
        if self.sparsity is None or other.sparsity is None or self.sparsity == other.sparsity:
            return False
        more = growth * self.sparsity / other.sparsity
        return max(more, 1 / more) > 1.5

    def __str__(self) -> str:
        kept = "" if self.sparsity is None else f", sparsity={self.sparsity:.3g}"
        if self.rank:
            kept += f", rank={self.rank}"
        memory = f"; memory: {self.memory}" if self.limit else ""
        l2 = self.l2 if self.l2 == "auto" else f"{self.l2:.3g}"
        device = f"; {self.device}" if self.device else ""
        return f"{self.kind} model (l2={l2}{kept}): {self.reason}{memory}{device}"

    @property
    def memory(self) -> str:
        """What the fit adds to the memory in use, in words."""
        held = f"{human_bytes(self.in_use)} in use with the data, " if self.in_use else ""
        least = f" (at least {human_bytes(self.least)})" if self.least < self.needed else ""
        return f"{held}up to {human_bytes(self.needed)} more{least}, limit {human_bytes(self.limit)}"


@report_of.register
def of_plan(plan: Plan) -> Report:
    """Report a plan."""
    decided = {name: getattr(plan, name) for name in ("l2", "sparsity", "rank")}
    rows = [(name, x if isinstance(x, str) else f"{x:.3g}") for name, x in decided.items() if x is not None]
    rows += [("memory", plan.memory)] if plan.limit else []
    rows += [("device", plan.device)] if plan.device else []
    about = [f"{plan.kind} model: {plan.reason}"]
    return Report(about, [Section(["", "plan"], rows)], records=[asdict(plan)])


def tile_size(m: int) -> int:
    """Return the rows of a tile of the dense model: large for BLAS, but at least 16 tiles a side."""
    return min(max(-(-m // (16 * 64)) * 64, 128), 1024)


@dataclass(frozen=True)
class Sizes:
    """The sizes that decide how much memory a fit holds."""

    users: int
    items: int
    pairs: int
    binary: bool  # every entry is 1 and counts as 1
    itemsize: int  # bytes of a weight
    limit: int  # bytes the fit may use
    other: int = 0  # bytes held besides: a converted copy of the matrix, results kept for further fits
    ordered: bool = False  # ordered pairs count, too

    def with_rank(self, rank: int) -> "Sizes":
        """Return these sizes with a low-rank part of so many vectors, held twice while it is scaled."""
        held = 2 * self.itemsize * self.items * (rank + 1) + _ALLOCATOR
        return replace(self, other=self.other + held) if rank else self

    @property
    def held(self) -> int:
        """From the first stage to the last: both sides of X, and some numbers per item."""
        per_pair = (8 if self.pairs < 2**32 else 12) + (0 if self.binary else 8)  # indices and values
        per_pair += 6 if self.ordered else 0
        sides = per_pair * self.pairs + 16 * (self.users + 1)
        return self.other + sides + 10 * 8 * self.items + _ALLOCATOR

    @property
    def scratch(self) -> int:
        """For all threads together: one can always run, and more where there is much memory anyway."""
        one_thread = (
            (32 if self.ordered else 24) * self.items
            + 8_000_000
            + 2 * self.itemsize * tile_size(self.items) ** 2
        )
        return max(one_thread, self.held // 4, min(_SCRATCH, self.limit // 4))

    @property
    def statistics(self) -> int:
        """While X is transposed and its columns are added up."""
        per_user = 0 if self.binary else 24
        return self.held + per_user * self.users + (24 * TRANSPOSE_PARTS + 64) * self.items

    @property
    def dense(self) -> int:
        """The matrix, with order two of them, a row of tiles, and the scratch space of the threads."""
        m, tile = self.items, tile_size(self.items)
        matrix = self.itemsize * ((1 + self.ordered) * m * m + tile * m + tile * tile) + 8 * m * (
            m // tile + 2
        )
        return max(self.statistics, self.held + self.scratch + matrix)

    def low_rank(self, rank: int) -> int:
        """The basis, a block of its columns a few times, both sides of the users it takes, and products."""
        (block, columns), e, m = basis_size(rank, self.items), self.itemsize, self.items
        basis = e * m * (columns + rank + 6 * block) + 32 * columns * columns
        step = sample_step(self.users, m, self.pairs)
        copied = 12 if step > 1 else 0
        pairs = (6 + copied + (0 if self.binary else 2 * e + 16)) * (self.pairs // step)
        parts = e * block * users_at_once(self.users // step) + 100 * m + 48 * self.users
        return self.other + basis + pairs + parts + self.scratch

    def _of_block(self, r: float) -> float:
        """Return the numbers that a block of k items keeps, as a share of k², but for its item i."""
        return 0.5 + r if self.ordered else max(0.5, r)

    def sparse_stages(self, max_neighbors: int, r: float) -> dict[str, tuple[int, float]]:
        """For each stage of the sparse model, bytes that it holds in any case and for each entry of A."""
        m, e, k = self.items, self.itemsize, min(max_neighbors, self.items)
        base = self.held + self.scratch
        one_block = int(e * self._of_block(r) * k * k) + (32 + e * self.ordered) * k
        return {
            # Up to twice the entries asked for, or two million, as pairs or keys; the lengths of histories.
            "pattern": (base + 27_000_000 + 9 * self.pairs, 27.0),
            # Entries of A, their estimates and how many each has; the dependents; one block, and its factor.
            "blocks": (
                self.held
                + max(self.scratch, (2 + self.ordered) * e * k * k)
                + (120 + 24 * TRANSPOSE_PARTS) * m
                + one_block,
                5.0 + e + 8 * r,
            ),
            # B by column and by row, then by row beside A.
            "rows": (self.held + (60 + 24 * TRANSPOSE_PARTS) * m, 4.0 + 2 * (4 + e) + 1),
        }

    def sparse(self, entries: float, max_neighbors: int, r: float) -> int:
        """With this many entries in A."""
        stages = self.sparse_stages(max_neighbors, r).values()
        return max(self.statistics, *(int(base + per_entry * entries) for base, per_entry in stages))

    @property
    def worthwhile_batch(self) -> int:
        """Bytes of the blocks that are solved at one time, where there is room."""
        most = max(_MOST_BATCH, int(_MOST_OF_MEMORY * self.limit))
        return min(max(_LEAST_BATCH, _BATCH_PER_INTERACTION * self.pairs), most)

    def sparse_at_most(self, entries: float, max_neighbors: int, r: float) -> int:
        """With this many entries in A, as few columns as can hold them, and no lack of memory."""
        k, e = min(max_neighbors, self.items) + 1, self.itemsize
        all_blocks = entries * (e * (self._of_block(r) * k + 1 + self.ordered) + 28)
        base, per_entry = self.sparse_stages(max_neighbors, r)["blocks"]
        blocks = int(base + per_entry * entries + min(self.worthwhile_batch, all_blocks))
        return min(max(self.sparse(entries, max_neighbors, r), blocks), self.limit)

    def largest_sparsity(self, max_neighbors: int, r: float) -> float:
        """The largest share of entries that fits into the limit; below 1/m, nothing fits."""
        stages = self.sparse_stages(max_neighbors, r).values()
        if self.statistics > self.limit:
            return 0.0
        entries = min((self.limit - base) / per_entry for base, per_entry in stages)
        return max(entries, 0.0) / (float(self.items) * self.items)


def decide(settings: Settings, sizes: Sizes, memory: Budget, *, with_low_rank: bool = False) -> Plan:
    """Choose dense or sparse where that is left open, and refuse what does not fit.

    `with_low_rank`: a sparse model may have a low-rank part beside it.
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
    low_rank = sizes.low_rank(rank) if rank else 0
    memory.check("low rank", low_rank, "Use a smaller rank, or rank=0.")
    sizes = sizes.with_rank(rank)
    m, limit = sizes.items, sizes.limit
    largest = sizes.largest_sparsity(settings.max_neighbors, settings.r)
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
        least = needed = sizes.dense
        memory.require("dense", needed, advice)
    else:
        kind = "sparse"
        most = min(settings.sparsity * m, settings.max_neighbors) * m
        least = sizes.sparse(most, settings.max_neighbors, settings.r)
        memory.check(
            "sparse",
            least,
            f"The largest sparsity that would fit is about {_round_down(largest)}."
            if largest * m >= 1
            else "Use fewer users or items, or more memory.",
        )
        needed = sizes.sparse_at_most(most, settings.max_neighbors, settings.r)
    return Plan(
        kind,
        reason,
        settings.l2,
        settings.sparsity,
        rank,
        needed=max(needed, low_rank),
        least=max(least, low_rank),
        limit=limit,
        in_use=memory.in_use,
    )


def _choose(settings: Settings, sizes: Sizes, largest: float, with_low_rank: bool) -> tuple[Settings, str]:
    """Settle `sparsity="auto"`, and say why."""
    m = sizes.items
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
    elif sizes.dense <= max(sizes.limit, sizes.sparse(2 * m, settings.max_neighbors, settings.r)):
        return dense, f"{m:,} items fit the closed form"  # or else no model does, and a sparse one needs more
    else:
        reason = f"the closed form of {m:,} items would need {human_bytes(sizes.dense)}"
    sparsity = min(neighbors / m, 1.0)
    if sparsity > largest:  # if not even two neighbours fit, the refusal says what these need
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
