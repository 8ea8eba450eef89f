"""A figure of the trials of a tuning."""

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from mrfrec.errors import ParameterError
from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Mean, Metric, parse

_LINES = 6  # at most
_BEST = "best:"  # how the legend of the best point begins


def plot_tuning(
    trials: Iterable[tuple[Mapping[str, Any], float, float]],
    metric: "str | Metric",
    path: "str | os.PathLike[str]",
    *,
    title: str = "",
) -> figures.Paths:
    """Draw accuracy against l2 or, if that does not vary, the numeric parameter with the most values.

    There is a line for each combination of the other parameters that vary; of more than six the best six are
    drawn, which the title then says. Trials of which no two share a line are drawn as points. The best trial
    is marked. Bars are standard errors.

    `trials` holds parameters, mean and standard error of each. Writes `path`.png and `path`.svg and returns
    both paths.
    """
    paths = figures.output_paths(path)
    measured = [(parameters, Mean(float(value), float(error))) for parameters, value, error in trials]
    if not measured:
        raise ParameterError("trials", "at least one", [], "There is nothing to draw.")
    best_point, best = max(measured, key=lambda trial: trial[1].mean)
    if not all(math.isfinite(mean.mean) for _, mean in measured):
        raise ParameterError("trials", "with a finite value each", math.nan, "Leave the others out.")
    names = dict.fromkeys(name for parameters, _ in measured for name in parameters)
    values = {name: {parameters.get(name) for parameters, _ in measured} for name in names}
    numeric = [name for name in values if all(type(value) in (int, float) for value in values[name])]
    if not numeric:
        raise ParameterError("trials", "with a number to draw them over", dict(best_point))
    x_name = max(numeric, key=lambda name: (len(values[name]) > 1, name == "l2", len(values[name])))
    line_names = [name for name in values if name != x_name and len(values[name]) > 1]
    lines: dict[str, list[tuple[float, Mean]]] = {}
    for parameters, mean in measured:
        label = _text({name: parameters.get(name) for name in line_names}) or "accuracy"
        lines.setdefault(label, []).append((float(parameters[x_name]), mean))
    style: dict[str, Any] = {}
    if len(lines) == len(measured) > _LINES:
        lines, style = {"accuracy": [point for line in lines.values() for point in line]}, {"linestyle": ""}
    tops = sorted(lines, key=lambda line: -max(mean.mean for _, mean in lines[line]))[:_LINES]
    if len(lines) > len(tops):
        title += f"{'; ' if title else ''}the best {len(tops)} of {len(lines)} combinations"
    with figures.new_figure() as figure:
        axes = figure.add_subplot()
        for number, label in enumerate(label for label in lines if label in tops):
            x, means = zip(*sorted(lines[label]), strict=True)
            figures.plot_means(axes, x, means, label=label, **figures.line_style(number) | style)
        point = {name: best_point.get(name) for name in (*line_names, x_name)}
        axes.plot(float(best_point[x_name]), best.mean, label=f"{_BEST} {_text(point)}", marker="o",
                  markersize=16, linestyle="none", fillstyle="none", color=figures.BLACK)  # fmt: skip
        axes.set(xlabel=x_name, ylabel=f"{parse(metric).title} (validation)")
        figures.scale_axis(axes, "x", [float(parameters[x_name]) for parameters, _ in measured])
        figures.add_title(figure, title)
        figures.add_legend(figure, last=_BEST)
        return figures.save_figure(figure, paths)


def _text(parameters: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{'α' if name == 'alpha' else name} = " + (f"{x:g}" if isinstance(x, float) else str(x))
        for name, x in parameters.items()
        if x is not None
    )
