"""Climb: change one value at a time while that helps. `MRF.fit` and `mrfrec tune` both go this way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # multiples of a typical diagonal entry of S


@dataclass(frozen=True)
class RidgeMultiples:
    """Values of l2: multiples of what `l2="auto"` stands for, or else of a typical diagonal entry of S."""

    multiples: tuple[float, ...] = RIDGES
    of_auto: bool = False


Axis = Sequence[Any] | RidgeMultiples


@dataclass(frozen=True)
class Route:
    """The axes of a climb, the cheapest first, and its starting point if not the defaults.

    `needs` maps an axis to a parameter: while this is 0, a step along the axis changes nothing.
    """

    axes: Mapping[str, Axis]
    start: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)


Place = dict[str, int]
"""The position on each axis; below 0 and above the last value is beyond its ends."""

Found = TypeVar("Found")

_BEYOND = 8  # steps beyond either end of an axis, at most


def climb_along(
    directions: Mapping[str, Place],
    place: Place,
    find: Callable[[Place], Found | None],
    is_better: Callable[[Found, Found | None], bool],
    rounds: int,
    *,
    skip: Callable[[str, Place], bool] = lambda name, place: False,
) -> tuple[Place, int]:
    """Return the place where no step in any direction is better, and how many steps led there.

    Parameters
    ----------
    directions
        By name, how far a step goes on each axis. The opposite step is tried, too.
    find
        Returns what is found at a place, or None if there is no such place.
    is_better
        Whether the first of two findings is better than the second by enough to go there.
    rounds
        The most rounds over all directions; a round without a step is the last.
    skip
        Whether steps in a direction are useless at a place.
    """
    here, steps = find(place), 0
    for _ in range(rounds):
        before = steps
        for name, direction in directions.items():
            if skip(name, place):
                continue
            for sign in (1, -1):
                moved = False
                while True:
                    step = {axis: at + sign * direction.get(axis, 0) for axis, at in place.items()}
                    found = find(step)
                    if found is None or not is_better(found, here):
                        break
                    here, place, moved, steps = found, step, True, steps + 1
                if moved:
                    break
        if steps == before:
            break
    return place, steps


def value_at(values: Sequence[Any], place: int) -> Any:
    """Return a value of an axis, also beyond its ends, in equal ratios or steps; None if there is none."""
    last = len(values) - 1
    if 0 <= place <= last:
        return values[place]
    steps, ends = (-place, values[:2]) if place < 0 else (place - last, values[:-3:-1])
    if len(ends) < 2 or steps > _BEYOND or not all(type(x) in (int, float) for x in ends):
        return None
    end, inner = ends
    beyond = end * (end / inner) ** steps if min(ends) > 0 else end + (end - inner) * steps
    return round(beyond) if type(end) is int else float(f"{beyond:.3g}")
