"""Tune one parameter at a time, the cheapest first, from the defaults and beyond the ends of the lists."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mrfrec.checks import check_flag
from mrfrec.core.engine import Progress
from mrfrec.core.progress import shows_progress
from mrfrec.errors import ParameterError
from mrfrec.evaluation.grids import Parameters, axes_of, check_values, plain, ridges, rounded, scale_exponent
from mrfrec.evaluation.protocol import Ties
from mrfrec.evaluation.splits import Split
from mrfrec.evaluation.study import Improved, Study, Trial, Tuning
from mrfrec.models.axes import Axis, Range, Ridges
from mrfrec.models.registry import build

MINUTES = 10.0
_BEYOND = 8  # steps beyond either end of an axis, at most
_GAIN = 1.001  # by which the next place must be better to go there: less is chance, and costs time
_ROUNDS = 5  # over all axes, at most; one without a better value is the last

Place = dict[str, int]  # the position on each axis; below 0 and above the last value is beyond its ends


@shows_progress
def climb(
    split: Split,
    metric: str | None = None,
    *,
    model: str = "MRF",
    vary: Mapping[str, Axis] | None = None,
    fixed: Parameters | None = None,
    grid: bool = False,
    minutes: float | None = MINUTES,
    max_seconds: float | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: "Progress | bool | None" = None,
    client: Any = None,
) -> Tuning:
    """Start from the defaults, or values next to them, and change one parameter at a time while that helps.

    The parameters are those of the model's `tuning_route`: for an MRF the novelty exponent and the weight of
    the low-rank part, which need no fit, then l2, user_weight, alpha, rank and, if it is sparse, sparsity.
    Where the best value is the last of its list, values beyond it are tried. A dense model of many items is
    first tuned with a sparse one in its place, for half of the time.

    Parameters
    ----------
    vary
        Lists of values that replace those of the model, or add to them.
    grid
        Try all combinations of the model's grid first, and start from the best of them.
    minutes
        Time for all trials; None for no limit.

    Notes
    -----
    The other parameters are those of `tune`. With a limit of time, the result depends on the machine.

    With a client, its workers try the points of the grid at the same time. The steps after it follow each
    other: the workers share each fit of an `MRF`; other models are fitted on this machine, and without a grid
    a client is refused for them.
    """
    assert not isinstance(progress, bool)
    run = Study(
        split, metric, model, fixed, minutes, max_seconds, study, improved, ties, machine, progress,
        client,
    )  # fmt: skip
    if not check_flag("grid", grid):
        run.check_distributed()
    data = run.split.training
    route = build(run.model, run.fixed, run.machine).tuning_route(data)
    usual = None if grid else route.axes
    axes = {name: _sorted(axis) for name, axis in axes_of(run.model, vary, run.fixed, usual=usual).items()}
    if not grid:
        axes = {name: axis for name, axis in axes.items() if name in (vary or {}) or _size(axis) > 1}
    for name, axis in axes.items():
        check_values(run.model, name, axis, run.fixed)
    for name, values in (vary or {}).items():  # refuse values that this data is too small for
        for value in values if isinstance(values, Sequence) else ():
            build(run.model, plain({**run.fixed, name: value}), run.machine).tuning_route(data)
    start = {} if grid else {name: x for name, x in route.start.items() if name in axes}
    run.usual |= start
    run.free = route.free
    climber = _Climber(run, axes, run.usual, route.needs)
    if not vary:  # the best is never worse than the default, and its gain is known
        run.value_of(plain({name: run.usual[name] for name in axes}), axis="start")
    if grid:
        place = climber.best_of_grid()
    else:
        place = climber.start
        climber.trial(place)
        if route.stand_in and not route.stand_in.keys() & dict(vary or {}).keys():
            half = run.elapsed + (run.budget - run.elapsed) / 2
            stand_in = _Climber(run, axes, climber.defaults, route.needs, route.stand_in, half)
            place = climber.better(place, {**place, **stand_in.climbed_from(place)})
    climber.climbed_from(place)
    run.report(is_over=True)
    return run.finish()


@dataclass(frozen=True)
class Ladder:
    """The values of one axis in their order, and those beyond its ends: in equal ratios, or equal steps."""

    values: tuple[Any, ...]

    def at(self, place: int) -> Any:
        """Return the value at a place; None where there is none."""
        last = len(self.values) - 1
        if 0 <= place <= last:
            return self.values[place]
        steps, ends = (-place, self.values[:2]) if place < 0 else (place - last, self.values[:-3:-1])
        if len(ends) < 2 or steps > _BEYOND or not all(type(x) in (int, float) for x in ends):
            return None
        end, inner = ends
        beyond = end * (end / inner) ** steps if min(ends) > 0 else end + (end - inner) * steps
        return round(beyond) if type(end) is int else rounded(beyond, 3)


class _Climber:
    """Moves over the axes of one model. Trials of a stand-in, with parameters `instead`, do not compete."""

    def __init__(
        self,
        run: Study,
        axes: Mapping[str, Axis],
        defaults: Parameters,
        needs: Mapping[str, str],
        instead: Parameters | None = None,
        budget: float | None = None,
    ) -> None:
        self._run, self.defaults, self._needs = run, defaults, needs
        self._instead, self._budget = dict(instead or {}), budget
        self._axes = {name: axis for name, axis in axes.items() if name not in self._instead}
        self._ladders: dict[tuple[str, float], Ladder] = {}
        self.start = {name: self._nearest(name, axis) for name, axis in self._axes.items()}
        self._out_of_time = False

    def _nearest(self, name: str, axis: Axis) -> int:
        """Return the place of the default or of the value next to it, or the middle if it is no number."""
        default, middle = self.defaults.get(name), (_size(axis) - 1) // 2
        values = [] if isinstance(axis, Ridges) else list(_values(axis))
        if default in values:
            return values.index(default)
        if type(default) not in (int, float):
            return middle
        distance = {i: abs(x - default) for i, x in enumerate(values) if type(x) in (int, float)}
        return min(distance, key=lambda i: distance[i], default=middle)

    def _ladder(self, name: str, alpha: float) -> Ladder:
        axis = self._axes[name]
        if (name, alpha) not in self._ladders:
            values = ridges(self._run.split, alpha, axis) if isinstance(axis, Ridges) else _values(axis)
            self._ladders[name, alpha] = Ladder(tuple(values))
        return self._ladders[name, alpha]

    def parameters(self, place: Place) -> dict[str, Any] | None:
        """Return the parameters at a place, or None if there are none."""
        point: dict[str, Any] = {}
        try:
            for name in sorted(place, key=lambda name: isinstance(self._axes[name], Ridges)):
                ladder = self._ladder(name, scale_exponent(self._run.model, {**self._run.fixed, **point}))
                point[name] = ladder.at(place[name])
                if point[name] is None and None not in ladder.values:
                    return None
            point = plain({**point, **self._instead})
            build(self._run.model, {**self._run.fixed, **point})
        except ParameterError:
            return None
        return point

    def trial(self, place: Place, axis: str = "start") -> Trial | None:
        """Try a place; None if there is no such place or no time."""
        point = self.parameters(place)
        if point is None or self._out_of_time:
            return None
        try:
            found = self._run.value_of(point, axis=axis, competes=not self._instead, budget=self._budget)
        except ParameterError:  # A value beyond the end is too much for this data.
            if axis == "start":
                raise
            return None
        # Another axis may cost less.
        self._out_of_time = found is None and axis == "start"
        return found

    def best_of_grid(self) -> Place:
        """Try all combinations, the last axis varying fastest, and return the place of the best."""
        sizes = [range(_size(axis)) for axis in self._axes.values()]
        places = [dict(zip(self._axes, place, strict=True)) for place in product(*sizes)]
        points = [self.parameters(place) for place in places]
        self._run.try_all([point for point in points if point is not None], "start")
        return self.better(*places)

    def better(self, *places: Place) -> Place:
        """Try these places and return the best of them, the first of equals."""
        best, value = places[0], -1.0
        for place in places:
            found = self.trial(place)
            if found is not None and self._run.worth(found) > value:
                best, value = place, self._run.worth(found)
        return best

    def climbed_from(self, place: Place) -> Place:
        """Return the place where no step along any axis is better, or the best when the time is up."""
        place = {name: place[name] for name in self._axes}
        found = self.trial(place)
        value = 0.0 if found is None else self._run.worth(found)
        for _ in range(_ROUNDS):
            before = value
            for name in self._axes:
                needed = self._needs.get(name)
                if needed is not None and not (self.parameters(place) or {}).get(needed, 1):
                    continue
                for direction in (1, -1):
                    moved = False
                    while True:
                        step = {**place, name: place[name] + direction}
                        found = self.trial(step, name)
                        if found is None or self._run.worth(found) <= _GAIN * value:
                            break
                        place, value, moved = step, self._run.worth(found), True
                    if moved:
                        break
            if value <= before:
                break
        return place


def _values(axis: Axis) -> Sequence[Any]:
    assert not isinstance(axis, Range)  # `axes_of` refuses ranges, which are for a search
    return axis.multiples if isinstance(axis, Ridges) else axis


def _size(axis: Axis) -> int:
    return len(_values(axis))


def _sorted(axis: Axis) -> Axis:
    """Put numbers in their order, so that a step goes to the next one."""
    if isinstance(axis, Ridges) or not all(type(x) in (int, float) for x in _values(axis)):
        return axis
    return sorted(set(_values(axis)))
