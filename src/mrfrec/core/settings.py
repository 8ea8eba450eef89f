"""What a fit is asked for, and what it makes of it."""

from dataclasses import dataclass
from typing import Literal

from mrfrec.core.resources import human_bytes

__all__ = ["Plan", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The parameters of `MRF` that decide the weights."""

    l2: float
    alpha: float
    l2_flat: float
    dropout: float
    user_weight: float
    center: bool
    sparsity: float | Literal["auto"] | None
    threshold: float | None
    max_neighbors: int
    r: float
    mean_constraint: bool
    dtype: Literal["float32", "float64"]


@dataclass(frozen=True)
class Plan:
    """What a fit decided before it started, and why; as a text, one line."""

    kind: Literal["dense", "sparse"]
    reason: str
    l2: float
    sparsity: float | None
    threshold: float | None
    needed: int = 0  # bytes, and how many may be used; 0 in a model that was loaded
    limit: int = 0

    def __str__(self) -> str:
        kept = ""
        if self.sparsity is not None:
            kept = f", sparsity={self.sparsity:.3g}"
        elif self.threshold is not None:
            kept = f", threshold={self.threshold:.3g}"
        memory = f", at least {human_bytes(self.needed)} of {human_bytes(self.limit)}" if self.limit else ""
        return f"{self.kind} model (l2={self.l2:g}{kept}){memory}: {self.reason}"
