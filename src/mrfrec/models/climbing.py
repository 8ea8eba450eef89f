"""Climb: change one value at a time while that helps, as `MRF.fit` does."""

from collections.abc import Callable, Mapping
from typing import TypeVar

Place = dict[str, int]
"""The position on each axis; below 0 and above the last value is beyond its ends."""

Found = TypeVar("Found")


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
