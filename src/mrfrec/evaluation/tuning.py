"""Find good parameters on the validation users: among given points, or one parameter at a time."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from mrfrec.bars import showing
from mrfrec.checks import check_flag
from mrfrec.core.progress import Progress
from mrfrec.errors import ParameterError
from mrfrec.evaluation.grids import Parameters, axes_of, plain, ridges, scale_of
from mrfrec.evaluation.protocol import Ties
from mrfrec.evaluation.questions import Split
from mrfrec.evaluation.study import Improved, Study, Trial, Tuning
from mrfrec.models.climbing import Axis, Place, RidgeMultiples, climb_along, value_at
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build

MINUTES = 10.0
_GAIN = 1.001  # factor by which the next place must be better to go there: less is chance, and costs time
_MOST_ROUNDS = 5  # over all axes; one without a better value is the last


def tune(
    split: Split,
    points: Iterable[Parameters],
    metric: str | None = None,
    *,
    model: "str | type[Recommender] | Recommender" = "MRF",
    fixed: Parameters | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: "Progress | bool | None" = None,
) -> Tuning:
    """Try every point on the validation users.

    Of the test users, only the popularity of their items is looked at: a warning says if it differs from
    that of the validation users by more than chance.

    Parameters
    ----------
    metric
        The metric to maximise, such as "recall@20". By default "ndcg@100", with fewer places for fewer
        items.
    model
        The name of a model, or its class. Of a model, all trials share the parameters that it was given.
    fixed
        Parameters that all trials share.
    minutes
        Time for all trials: none is begun later, except the first.
    trials
        The most points to compare, those of `study` and that of the default included. What a model measures
        before them does not count.
    study
        A file of trials: those in it are not run again.
    improved
        Called with the `Tuning` so far whenever a trial is the best yet, for example to save it.
    machine
        Parameters that change no result, such as threads.
    """
    wanted = list(points) if isinstance(points, Iterable) and not isinstance(points, Mapping) else []
    if not wanted or not all(isinstance(point, Mapping) for point in wanted):
        raise ParameterError("points", "a list of parameters such as grid(l2=[1, 3])", points)
    with showing(progress) as report:
        run = Study(split, metric, model, fixed, minutes, study, improved, ties, machine, report, trials)
        for point in wanted:  # refuse bad parameters before the first trial
            build(run.model, {**run.fixed, **plain(point)})
        run.wanted = len(wanted)
        for run.done, point in enumerate(wanted):
            if run.value_of(plain(point)) is None:
                break
        return run.finish()


def climb(
    split: Split,
    metric: str | None = None,
    *,
    model: "str | type[Recommender] | Recommender" = "MRF",
    vary: Mapping[str, Axis] | None = None,
    fixed: Parameters | None = None,
    grid: bool = False,
    minutes: float | None = MINUTES,
    trials: int | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: "Progress | bool | None" = None,
) -> Tuning:
    """Start from what the model measures, and change one parameter while that helps.

    The parameters are those of the model's `tuning_route`: for an MRF the novelty exponent, the weight of
    the low-rank part and, with times, recency, which need no new weights, then l2, user_weight, with times
    half_life, alpha, rank and, if it is sparse, sparsity. What is measured beside these is kept as it is.
    Where the best value is the last of its list, values beyond it are tried.

    Parameters
    ----------
    split
        Its validation users are asked; if it has none, its training data is split again.
    metric
        The metric to maximise, such as "recall@20". By default "ndcg@100", with fewer places for fewer
        items.
    model
        Name of the kind of model, such as "EASE" or that of a class of your own.
    vary
        Lists of values by the name of the parameter, {"l2": [1, 10, 100]}, that replace those of the model,
        or add to them.
    fixed
        Parameters that all trials share. They are not varied.
    grid
        Try all combinations of the model's grid first, and start from the best of them.
    minutes
        Time for all trials; None for no limit.

    Notes
    -----
    `study`, `improved` and `machine` are those of `tune`, `ties` is that of `evaluate`. With a
    limit of time, the result depends on the machine.
    """
    check_flag("grid", grid)
    with showing(progress) as report:
        run = Study(split, metric, model, fixed, minutes, study, improved, ties, machine, report, trials)
        return _climbed(run, vary, grid)


def _climbed(run: Study, vary: Mapping[str, Axis] | None, grid: bool) -> Tuning:
    data = run.split.training
    route = build(run.model, run.fixed, run.machine).tuning_route(data)
    usual = None if grid else route.axes
    axes = {name: _sorted(axis) for name, axis in axes_of(run.model, vary, run.fixed, usual=usual).items()}
    if not grid:
        axes = {name: axis for name, axis in axes.items() if name in (vary or {}) or _size(axis) > 1}
    for name, values in (vary or {}).items():  # refuse values that this data is too small for
        for value in values if isinstance(values, Sequence) else ():
            build(run.model, plain({**run.fixed, name: value}), run.machine).tuning_route(data)
    if not grid:
        run.usual |= {name: value for name, value in route.start.items() if name in axes}
    run.measure()
    places = _Places(run, axes, named=not grid)
    if not vary:  # the best is never worse than the default, and its gain is known
        run.value_of(plain({name: run.usual[name] for name in axes}))
    place = places.start
    if grid:
        sizes = [range(_size(axis)) for axis in axes.values()]
        corners = [dict(zip(axes, each, strict=True)) for each in product(*sizes)]
        place = max(corners, key=lambda corner: _worth(places.trial(corner)))  # the first of equals

    def is_useless(name: str, place: Place) -> bool:
        needed = route.needs.get(name)
        point = {**run.fixed, **run.measured, **(places.point(place) or {})}
        return needed is not None and not point.get(needed, 1)

    def is_better(trial: Trial, here: Trial | None) -> bool:
        return _worth(trial) > _GAIN * _worth(here)

    directions = {name: {name: 1} for name in axes}
    climb_along(directions, place, places.trial, is_better, _MOST_ROUNDS, skip=is_useless)
    return run.finish()


class _Places:
    """The places on the axes of one model, and their trials."""

    def __init__(self, run: Study, axes: Mapping[str, Axis], *, named: bool) -> None:
        self._run = run
        self._axes = axes
        self._named = named  # whether l2 may be "auto": beside other numbers, a grid has its number
        self._ladders: dict[tuple[str, float], tuple[Any, ...]] = {}
        self.start = {name: self._nearest(name, axis) for name, axis in axes.items()}

    def _nearest(self, name: str, axis: Axis) -> int:
        """Return the place of the default or of the value nearest to it; the middle if it is no number."""
        default = self._run.usual.get(name)
        middle = (_size(axis) - 1) // 2
        values = list(self._ladder(name, self._run.usual))
        if default in values:
            return values.index(default)
        if type(default) not in (int, float):
            return middle
        distance = {i: abs(x - default) for i, x in enumerate(values) if type(x) in (int, float)}
        return min(distance, key=lambda i: distance[i], default=middle)

    def _ladder(self, name: str, parameters: Parameters) -> tuple[Any, ...]:
        """Return the values of an axis; those of l2 depend on the other parameters."""
        axis = self._axes[name]
        scale = scale_of(self._run.model, parameters)
        key = (name, scale)
        if key not in self._ladders:
            if isinstance(axis, RidgeMultiples):
                axis = self._ridges(axis, scale)
            self._ladders[key] = tuple(axis)
        return self._ladders[key]

    def _ridges(self, axis: RidgeMultiples, alpha: float) -> list[Any]:
        """Return values of l2: where it was measured, they are multiples of that, scaled as S is."""
        measured, split = self._run.measured.get("l2"), self._run.split
        if not axis.of_auto or not measured:
            return ridges(split, alpha, axis, named=self._named)
        values = ridges(split, alpha, axis, named=False)
        usual_alpha = scale_of(self._run.model, self._run.usual)
        (usual,) = ridges(split, usual_alpha, replace(axis, multiples=(1.0,)), named=False)
        return [x / usual * measured for x in values]

    def point(self, place: Place) -> dict[str, Any] | None:
        """Return the parameters at a place, or None if there are none."""
        point: dict[str, Any] = {}
        try:
            for name in sorted(place, key=lambda name: isinstance(self._axes[name], RidgeMultiples)):
                ladder = self._ladder(name, {**self._run.fixed, **point})
                point[name] = value_at(ladder, place[name])
                if point[name] is None and None not in ladder:
                    return None
            point = plain(point)
            build(self._run.model, {**self._run.fixed, **point})
        except ParameterError:
            return None
        return point

    def trial(self, place: Place) -> Trial | None:
        """Try a place; None if there is no such place or no time."""
        point = self.point(place)
        if point is None:
            return None
        try:
            return self._run.value_of(point)
        except ParameterError:  # a value beyond the end is too much for this data
            if place == self.start:
                raise
            return None


def _worth(trial: Trial | None) -> float:
    """Return the value of a trial; 0 if it failed, or there was none."""
    return 0.0 if trial is None or trial.value is None else trial.value


def _size(axis: Axis) -> int:
    return len(axis.multiples if isinstance(axis, RidgeMultiples) else axis)


def _sorted(axis: Axis) -> Axis:
    """Put numbers in their order, so that a step goes to the next one."""
    if isinstance(axis, RidgeMultiples) or not all(type(x) in (int, float) for x in axis):
        return axis
    return sorted(set(axis))
