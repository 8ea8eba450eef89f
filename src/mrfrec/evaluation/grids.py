"""Choose the points to try: the default grid of a model, and changes to it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from mrfrec.checks import check_number
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import ParameterError
from mrfrec.evaluation.questions import Split, check_type
from mrfrec.models.climbing import RIDGES, Axis, RidgeMultiples
from mrfrec.models.mrf.parameters import RULES
from mrfrec.models.registry import build, model_class

Parameters = Mapping[str, Any]


def grid(**choices: Any) -> list[dict[str, Any]]:
    """Return all combinations; the last parameter varies fastest. Put l2 there: a new l2 costs least."""
    for name, values in choices.items():
        _check_list(name, values)
    return [plain(dict(zip(choices, point, strict=True))) for point in product(*choices.values())]


def _check_list(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
        raise ParameterError(name, "a list with at least one value", values)


def plain(point: Parameters) -> dict[str, Any]:
    """Return parameters with Python's numbers in place of numpy's."""
    return {name: x.item() if isinstance(x, np.generic) else x for name, x in point.items()}


def axes_of(
    model: str = "MRF",
    vary: Mapping[str, Axis] | None = None,
    fixed: Parameters | None = None,
    *,
    usual: Mapping[str, Axis] | None = None,
) -> dict[str, Axis]:
    """Return the parameters to vary: `usual` ones, updated by `vary`, without those that are `fixed`.

    The usual ones are by default those of the class's `tuning_grid`.
    """
    for what, mapping in (("vary", vary), ("fixed", fixed)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ParameterError(what, "a mapping from parameters, or None", mapping)
    made = model_class(model)
    varied = dict(vary or {})
    shared = dict(fixed or {})
    known = made.defaults()
    for name, axis in varied.items():
        if name not in known or name in made.machine_parameters or name in shared:
            free = ", ".join(n for n in known if n not in made.machine_parameters and n not in shared)
            rule = f"of parameters of {made.__name__} that are not fixed: {free or 'there are none'}"
            raise ParameterError("vary", rule, name)
        if not isinstance(axis, RidgeMultiples):
            _check_list(name, axis)
    usual = {name: axis for name, axis in (usual or made.tuning_grid).items() if name in known}
    axes = {name: axis for name, axis in varied.items() if name not in usual}
    axes |= {name: varied.get(name, axis) for name, axis in usual.items() if name not in shared}
    for name, axis in axes.items():  # refuse values that the model would refuse, before any trial runs
        for value in () if isinstance(axis, RidgeMultiples) else axis:
            build(model, plain({**shared, name: value}))
    return axes


def usual_points(
    split: Split,
    model: str = "MRF",
    vary: Mapping[str, Sequence[Any]] | None = None,
    fixed: Parameters | None = None,
) -> list[dict[str, Any]]:
    """Return the points that `mrfrec tune` tries by default.

    `vary` replaces or adds values of parameters; parameters that are `fixed` are not varied.
    """
    axes = axes_of(model, vary, fixed)
    scale = {name: axis for name, axis in axes.items() if isinstance(axis, RidgeMultiples)}
    points = grid(**{name: axis for name, axis in axes.items() if name not in scale})
    for name, of in scale.items():  # at most one, the last parameter
        scales = [scale_of(model, {**(fixed or {}), **point}) for point in points]
        points = [
            {**point, name: l2}
            for point, alpha in zip(points, scales, strict=True)
            for l2 in ridges(split, alpha, of)
        ]
    return points


def scale_of(model: str, parameters: Parameters) -> float:
    """Return the alpha that the scale of l2 depends on, in a model with these parameters."""
    return float({**model_class(model).defaults(), **parameters}.get("alpha", 0.0))


def ridges(
    split: Split,
    alpha: float,
    multiples: "Iterable[float] | RidgeMultiples" = RIDGES,
    *,
    named: bool = True,
) -> list[Any]:
    """Return values of l2 to try: `multiples` of a typical diagonal entry of S, v^(1 − α), to two digits.

    `RidgeMultiples` may be multiples of what "auto" stands for. The multiple 1 is
    then "auto" itself or, unless `named`, its number.
    """
    alpha = RULES["alpha"].checked("alpha", alpha)
    data = check_type("split", split, Split).training
    of = multiples if isinstance(multiples, RidgeMultiples) else RidgeMultiples(tuple(multiples))
    checked = [check_number("multiples", multiple, "above 0", lambda x: x > 0) for multiple in of.multiples]
    if of.of_auto:
        from mrfrec.core.statistics import moments  # loads numba

        with LocalEngine() as engine:
            scale = moments(data.matrix, 0.0, engine).typical_ridge(alpha, center=True)
        return ["auto" if named and multiple == 1 else _rounded(multiple * scale) for multiple in checked]
    c = data.popularity.astype(np.float64)
    # The mean over interactions of v = n × variance of their item.
    v_typical = float(np.average(c - c * c / data.n_users, weights=c)) or 1.0
    return [_rounded(multiple * v_typical ** (1 - alpha)) for multiple in checked]


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
