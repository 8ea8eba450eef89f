"""Which points to try of a kind of model: what is usual, and what to vary beside it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from mrfrec.checks import check_number
from mrfrec.errors import ParameterError
from mrfrec.evaluation.splits import Split, check_split
from mrfrec.models.axes import RIDGES, Axis, Range, Ridges
from mrfrec.models.registry import build, model_class

__all__ = [
    "Parameters",
    "axes_of",
    "check_values",
    "grid",
    "has_numbers",
    "plain",
    "ridges",
    "rounded",
    "scale_exponent",
    "space_of",
    "usual_points",
]

Parameters = Mapping[str, Any]


def grid(**choices: Any) -> list[dict[str, Any]]:
    """All combinations, the last varying fastest: put l2 there, since a new l2 costs least."""
    for name, values in choices.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            raise ParameterError(name, "a list with at least one value", values)
    return [plain(dict(zip(choices, point, strict=True))) for point in product(*choices.values())]


def plain(point: Parameters) -> dict[str, Any]:
    """With Python's numbers in the place of numpy's."""
    return {name: x.item() if isinstance(x, np.generic) else x for name, x in point.items()}


def axes_of(
    model: str = "MRF",
    vary: Mapping[str, Axis] | None = None,
    fixed: Parameters | None = None,
    *,
    searched: bool = False,
) -> dict[str, Axis]:
    """Return what is varied: the class's `tuning_grid`, with `vary` in its place and without what is `fixed`.

    With `searched`, ranges between the values of the grid, for a search.
    """
    made, given, shared = model_class(model), dict(vary or {}), dict(fixed or {})
    known = made.defaults()
    for name, axis in given.items():
        if name not in known or name in made._machine_parameters or name in shared:
            free = ", ".join(n for n in known if n not in made._machine_parameters and n not in shared)
            rule = f"of parameters of {made.__name__} that are not fixed: {free or 'there are none'}"
            raise ParameterError("vary", rule, name)
        if isinstance(axis, Range) and not searched:
            raise ParameterError("vary", "lists of values on a grid", axis, "A range is for a search.")
    usual = {name: axis for name, axis in made.tuning_grid.items() if name in known}
    if searched:
        usual = {name: made.search_space.get(name, _between(axis)) for name, axis in usual.items()}
    axes = {name: axis for name, axis in given.items() if name not in usual}
    axes |= {name: given.get(name, axis) for name, axis in usual.items() if name not in shared}
    if "r" in axes and not _is_sparse(axes, shared):
        if "r" in given:
            raise ParameterError("r", "given with sparsity levels alone", given["r"], "A level is 0.01.")
        del axes["r"]
    return axes


def check_values(model: str, name: str, axis: Axis, fixed: Parameters | None = None) -> None:
    """Refuse values of a parameter that the model would, and not only when their turn comes."""
    values = (axis.low, axis.high) if isinstance(axis, Range) else () if isinstance(axis, Ridges) else axis
    for value in values:
        build(model, plain({**(fixed or {}), name: value}))


def _is_sparse(axes: Mapping[str, Axis], fixed: Parameters) -> bool:
    """Whether all models will be sparse, which r is for."""
    levels, thresholds = (axes.get(n, [fixed.get(n)]) for n in ("sparsity", "threshold"))
    return any(
        isinstance(of, Range) or (isinstance(of, Sequence) and all(isinstance(level, float) for level in of))
        for of in (levels, thresholds)
    )


def has_numbers(axes: Mapping[str, Axis]) -> bool:
    """Whether a number is among what is varied, to be drawn over."""
    return any(
        isinstance(axis, Range | Ridges) or all(type(value) in (int, float) for value in axis)
        for axis in axes.values()
    )


def _between(axis: Axis) -> Axis:
    """A range in the place of several numbers."""
    if isinstance(axis, Range | Ridges) or len(axis) < 2:
        return axis
    for kind in (int, float):
        if all(type(value) is kind for value in axis):
            return Range.between(min(axis), max(axis), whole=kind is int)
    return axis


def usual_points(
    split: Split,
    model: str = "MRF",
    vary: Mapping[str, Sequence[Any]] | None = None,
    fixed: Parameters | None = None,
) -> list[dict[str, Any]]:
    """The points that are worth trying of a kind of model, if nothing is known: what `mrfrec tune` tries.

    `vary` has values of parameters, in the place of the usual ones or beside them; what is `fixed` is not
    varied.
    """
    axes = axes_of(model, vary, fixed)
    scale = {name: axis for name, axis in axes.items() if isinstance(axis, Ridges)}
    points = grid(**{name: axis for name, axis in axes.items() if name not in scale})
    for name, of in scale.items():  # there is at most one, and it is the last
        points = [
            {**point, name: l2}
            for point in points
            for l2 in ridges(split, scale_exponent(model, {**(fixed or {}), **point}), of.multiples)
        ]
    return points


def space_of(axes: Mapping[str, Axis]) -> dict[str, Range | Sequence[Any]]:
    """What `search` takes, of what is varied."""
    return {
        "ridge" if isinstance(axis, Ridges) else name: Range(*axis.searched, log=True)
        if isinstance(axis, Ridges)
        else axis
        for name, axis in axes.items()
    }


def scale_exponent(model: str, parameters: Parameters) -> float:
    """The exponent that tells the scale of l2: 0 where the item-item matrix is not rescaled."""
    return float({**model_class(model).defaults(), **parameters}.get("alpha", 0.0))


def ridges(split: Split, alpha: float, multiples: Iterable[float] = RIDGES) -> list[float]:
    """Values of l2 worth trying: a typical diagonal entry of S, v^(1 − α), times these; two digits each.

    A ridge has the scale of what it is added to: 100 for covariances is what 1 is for correlations.
    """
    alpha = check_number("alpha", alpha, "between 0 and 1", lambda x: 0 <= x <= 1)
    typical = _typical_variance(check_split(split)) ** (1 - alpha)
    return [
        rounded(check_number("multiples", multiple, "above 0", lambda x: x > 0) * typical, 2)
        for multiple in multiples
    ]


def _typical_variance(split: Split) -> float:
    """v = n × variance of the item of a randomly chosen interaction, its mean."""
    n, c = split.training.n_users, split.training.popularity.astype(np.float64)
    return float(np.average(c - c * c / n, weights=c)) or 1.0


def rounded(value: float, digits: int) -> float:
    """To so many digits, wherever the point is."""
    return float(f"{value:.{digits}g}")
