"""What a fit uses and what it has decided: settings, a plan, and the sizes that decide how much it holds.

The scratch space of all threads together gets a fixed allowance, and an engine runs no more threads than that
has room for. So the bytes that a fit needs do not depend on the number of threads.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from mrfrec.core.engine import human_bytes

# Every batch of blocks costs a pass over the data, so the more interactions there are, the more a batch may
# hold: a rule of thumb, in bytes, within bounds that leave room for others on an ordinary machine. A machine
# with much memory may take a part of it.
_LEAST_BATCH, _MOST_BATCH, _MOST_OF_MEMORY = 1_000_000_000, 3_500_000_000, 1 / 8
_BATCH_PER_INTERACTION = 100

# The scratch space of all threads has at least so many bytes.
_SCRATCH = 48_000_000
# So many bytes may stay resident after they are freed, or belong to small arrays that are not counted.
_ALLOCATOR = 12_000_000


Features = TypeVar("Features")


@dataclass(frozen=True)
class Settings:
    """What a fit uses: the parameters of a model as numbers. The defaults change nothing, as in EASE."""

    l2: float | Literal["auto"]
    sparsity: float | Literal["auto"] | None
    max_neighbors: int
    r: float
    dtype: Literal["float32", "float64"]
    alpha: float = 0.0
    center: bool = False  # subtract the means of items
    mean_constraint: bool = False
    offset: bool = False
    dropout: float = 0.0  # for p, a ridge of p/(1 − p) times the diagonal of S
    rank: int | Literal["auto"] = 0
    rank_weight: float | Literal["auto"] = "auto"  # if 0, there is no low-rank part
    novelty: float = 0.0
    user_weight: float = 0.0
    feature_weight: float = 0.0
    half_life: float = 0.0  # microseconds after which an event counts half; 0: events do not fade
    order: float = 0.0  # weight of ordered pairs, where unordered pairs have weight 1
    recency: float = 1.0

    @property
    def of_rows(self) -> tuple[float, ...]:
        """What decides the values of X; another value needs another pass over the data."""
        return self.user_weight, self.feature_weight, self.half_life

    @property
    def counts_alike(self) -> bool:
        """Whether all users and all times count alike."""
        return self.user_weight == 0.0 and not self.half_life

    def counted(self, features: Features | None) -> Features | None:
        """Return the features of items if they count, else None."""
        return features if self.feature_weight else None

    @property
    def of_weights(self) -> "Settings":
        """These settings without what only scales or completes the weights, or the histories in questions."""
        return replace(self, rank=0, rank_weight=0.0, novelty=0.0, recency=1.0, offset=False)


@dataclass(frozen=True)
class Plan:
    """What a fit decided to do, and why; as a string, one line."""

    kind: Literal["dense", "sparse"]
    reason: str
    l2: float | Literal["auto"]  # "auto" until the data has been looked at
    sparsity: float | None
    rank: int = 0  # vectors of the part beside the weights
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
        """The bytes in use throughout the fit: X by user and by item, and some numbers per item."""
        per_pair = (8 if self.pairs < 2**32 else 12) + (0 if self.binary else 8)  # indices and values
        per_pair += 6 if self.ordered else 0
        sides = per_pair * self.pairs + 16 * (self.users + 1)
        return self.other + sides + 10 * 8 * self.items + _ALLOCATOR

    @property
    def scratch(self) -> int:
        """The bytes for all threads together: one can always run, and more where there is much memory."""
        one_thread = (
            (32 if self.ordered else 24) * self.items
            + 8_000_000
            + 2 * self.itemsize * tile_size(self.items) ** 2
        )
        return max(one_thread, self.held // 4, min(_SCRATCH, self.limit // 4))

    @property
    def worthwhile_batch(self) -> int:
        """Bytes of the blocks that are solved at one time, where there is room."""
        most = max(_MOST_BATCH, int(_MOST_OF_MEMORY * self.limit))
        return min(max(_LEAST_BATCH, _BATCH_PER_INTERACTION * self.pairs), most)
