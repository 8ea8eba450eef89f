"""Try every point of a grid on the validation users, as published tables are tuned."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from mrfrec import MemoryPlanError, NumericalError
from mrfrec.evaluation import Split, evaluate
from mrfrec.models.registry import build

Point = dict[str, Any]


def grid(**choices: Sequence[Any]) -> list[Point]:
    """Return all combinations; the last parameter varies fastest. Put l2 there: a new l2 costs least."""
    return [dict(zip(choices, point, strict=True)) for point in product(*choices.values())]


def tried(
    split: Split,
    kind: str,
    points: Sequence[Mapping[str, Any]],
    metric: str,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> list[tuple[float, Point]]:
    """Return the value of each point that can be fitted, and all its parameters, the best first.

    Of equal scores the lower column comes first, as in the published experiments.
    """
    tuned = split.for_tuning()
    reuse: dict[str, Any] = {}
    found: list[tuple[float, Point]] = []
    for number, point in enumerate(points):
        tell("trying parameters", number, len(points))
        model = build(kind, {**point, **({"measure": False} if kind == "MRF" else {})})
        try:
            evaluation = evaluate(model, tuned, [metric], ties="index", reuse=reuse)
        except (MemoryPlanError, NumericalError) as error:
            tell(f"not fitted: {error}", number, len(points))
            continue
        found.append((evaluation.mean(metric).mean, model.parameters))
    return sorted(found, key=lambda one: -one[0])


def save(path: Path, kind: str, found: Sequence[tuple[float, Point]], metric: str, split: Split) -> None:
    """Write the best point for `mrfrec fit --params`."""
    value, parameters = found[0]
    tuned = {"metric": metric, "value": value, "trials": len(found), "split": split.name}
    content = {"model": kind, "parameters": parameters, "tuned": tuned}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
