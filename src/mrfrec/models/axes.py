"""Values that tuning varies: lists, ranges, and ridges in the scale of the data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrfrec.checks import check_number
from mrfrec.errors import ParameterError

__all__ = ["RIDGES", "Axis", "Range", "Ridges", "Route"]

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # multiples of a typical diagonal entry of S


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; in steps, or evenly on a logarithmic scale.

    Integer bounds with an integer step give integers: Range(10, 200, step=10) for max_neighbors, and
    Range(10, 200, log=True, step=1) for any of them.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        low, high = (check_number("range", x, "between finite numbers", lambda _: True)
                     for x in (self.low, self.high))  # fmt: skip
        if not low <= high or (self.log and low <= 0):
            raise ParameterError("range", "low ≤ high, and above 0 on a logarithmic scale", (low, high))
        if self.step is not None:
            rule = "above 0, and on a logarithmic scale 1, for whole numbers, or None"
            check_number("step", self.step, rule,
                         lambda x: x > 0 and (not self.log or (x == 1 and self.is_whole)))  # fmt: skip

    @classmethod
    def between(cls, low: float, high: float, *, whole: bool = False) -> "Range":
        """Return a range on a logarithmic scale if `low` is above 0; `whole` for whole numbers."""
        if whole and not (isinstance(low, int) and isinstance(high, int)):
            raise ParameterError("range", "between whole numbers", (low, high))
        return cls(low, high, log=low > 0, step=1 if whole else None)

    @property
    def is_whole(self) -> bool:
        """Whether the range holds whole numbers: bounds and step are integers."""
        return all(isinstance(x, int) for x in (self.low, self.high, self.step))

    def holds(self, value: object) -> bool:
        """Whether a value is in the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return self.low <= value <= self.high and abs(steps - round(steps)) < 1e-9


@dataclass(frozen=True)
class Ridges:
    """Values of l2 in the scale of the data: these multiples on a grid, between `searched` in a search.

    They are multiples of what `l2="auto"` stands for, or else of a typical diagonal entry of S.
    """

    multiples: tuple[float, ...] = RIDGES
    searched: tuple[float, float] = (0.03, 10.0)
    of_auto: bool = False


Axis = Sequence[Any] | Range | Ridges


@dataclass(frozen=True)
class Route:
    """The axes of a climb, the cheapest first, and its starting point if not the defaults.

    `stand_in` holds parameters of a cheaper model that prefers much the same values; empty for none. `needs`
    maps an axis to a parameter: while this is 0, a step along the axis changes nothing. A step along an axis
    in `free` needs no fit.
    """

    axes: Mapping[str, Axis]
    start: Mapping[str, Any] = field(default_factory=dict)
    stand_in: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    free: Collection[str] = ()
