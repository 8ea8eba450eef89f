"""Values that tuning varies: lists, and ridges in the scale of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RIDGES", "Axis", "Ridges", "Route"]

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # multiples of a typical diagonal entry of S


@dataclass(frozen=True)
class Ridges:
    """Values of l2: multiples of what `l2="auto"` stands for, or else of a typical diagonal entry of S."""

    multiples: tuple[float, ...] = RIDGES
    of_auto: bool = False


Axis = Sequence[Any] | Ridges


@dataclass(frozen=True)
class Route:
    """The axes of a climb, the cheapest first, and its starting point if not the defaults.

    `needs` maps an axis to a parameter: while this is 0, a step along the axis changes nothing.
    """

    axes: Mapping[str, Axis]
    start: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
