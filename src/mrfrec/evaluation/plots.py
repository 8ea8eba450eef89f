"""A figure of the trials of a tuning."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mrfrec.errors import ParameterError
from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Mean, Metric, parse

_PANELS = 4  # at most
_LINES = 6  # at most, in one panel
_BEST = "best:"  # how the legend of the best point begins

Measured = tuple[Mapping[str, Any], Mean]  # the parameters of a trial and its accuracy


def plot_tuning(
    trials: Iterable[tuple[Mapping[str, Any], float, float]],
    metric: "str | Metric",
    path: "str | os.PathLike[str]",
    *,
    title: str | None = None,
) -> figures.Paths:
    """Draw accuracy against l2, a line for each alpha, and mark the best point. Bars are standard errors.

    Each combination of sparsity and r has its own panel. At most four panels and six lines are drawn, the
    best ones, which the title then says; of trials that differ in nothing else drawn, only the best.

    For a model without alpha there is a line for each combination of the other parameters; where l2 does not
    vary, the axis is the numeric parameter with the most values.

    Parameters
    ----------
    trials
        Parameters, mean of the metric and its standard error, for each trial.
    metric
        What was measured, such as "ndcg@100".
    path
        Where to write: `path`.png and `path`.svg, which are returned.
    title
        Written above the figure; put the name of the data there.
    """
    paths = figures.output_paths(path)
    measured = _measured(trials)
    best = max(measured, key=lambda trial: trial[1].mean)
    x_name, line_names, is_scattered = _axes(measured)

    def panel_of(parameters: Mapping[str, Any]) -> tuple[Any, float]:
        return parameters.get("sparsity"), parameters.get("r", 0.0)

    def line_of(parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        return () if is_scattered else tuple(parameters.get(name) for name in line_names)

    panels, n_panels = _best_keys(measured, panel_of, _PANELS)
    lines, n_lines = _best_keys(measured, line_of, _LINES)
    remarks = [title] if title else []
    if n_panels > len(panels):
        remarks.append(f"the best {len(panels)} of {n_panels} panels")
    if n_lines > len(lines):
        what = "α" if line_names == ["alpha"] else "combinations"
        remarks.append(f"the best {len(lines)} of {n_lines} {what}")
    with figures.new_figure(len(panels)) as figure:
        grid = figure.subplots(*figures.grid_shape(len(panels)), sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for panel, axes in zip(panels, grid.flat, strict=False):
            here = [trial for trial in measured if panel_of(trial[0]) == panel]
            for number, line in enumerate(lines):
                top: dict[float, Mean] = {}  # the best mean at each x
                for parameters, mean in here:
                    x = float(parameters[x_name])
                    if line_of(parameters) == line and (x not in top or mean.mean > top[x].mean):
                        top[x] = mean
                if top:
                    label = _parameters_text(dict(zip(line_names, line, strict=False))) or "accuracy"
                    style = {**figures.line_style(number), **({"linestyle": "none"} if is_scattered else {})}
                    figures.plot_means(axes, sorted(top), [top[x] for x in sorted(top)], label=label, **style)
            if panel_of(best[0]) == panel:
                point = {name: best[0].get(name) for name in (*line_names, x_name)}
                axes.plot(best[0][x_name], best[1].mean, label=f"{_BEST} {_parameters_text(point)}",
                          marker="o", markersize=16, linestyle="none", fillstyle="none",
                          color=figures.BLACK)  # fmt: skip
            if len(panels) > 1:
                axes.set_title(_panel_title(*panel))
            axes.set(xlabel=x_name, ylabel=f"{parse(metric).title} (validation)")
            axes.tick_params(labelbottom=True, labelleft=True)
        figures.scale_axis(grid[0, 0], "x", [float(parameters[x_name]) for parameters, _ in measured])
        figures.add_title(figure, "; ".join(remarks))
        figures.add_legend(figure, last=_BEST)
        return figures.save_figure(figure, paths)


def _measured(trials: Iterable[tuple[Mapping[str, Any], float, float]]) -> list[Measured]:
    measured = [(parameters, Mean(float(value), float(error))) for parameters, value, error in trials]
    if not measured:
        raise ParameterError("trials", "at least one", [], "There is nothing to draw.")
    for _, mean in measured:
        if not math.isfinite(mean.mean):
            raise ParameterError("trials", "with a finite value each", mean.mean, "Leave the others out.")
    return measured


def _axes(measured: Sequence[Measured]) -> tuple[str, list[str], bool]:
    """Choose the parameter of the x axis and those that lines differ in.

    The last value says whether every trial would be a line of its own; they are then drawn as points.
    """
    values: dict[str, set[Any]] = {}
    for parameters, _ in measured:
        for name, value in parameters.items():
            values.setdefault(name, set()).add(value)
    numeric = [
        name
        for name, tried in values.items()
        if all(name in parameters for parameters, _ in measured)
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in tried)
    ]
    if not numeric:
        raise ParameterError("trials", "with a number to draw them over", dict(measured[0][0]))
    x_name = max(numeric, key=lambda name: (len(values[name]) > 1, name == "l2", len(values[name])))
    line_names = [n for n in values if n not in (x_name, "sparsity", "r") and len(values[n]) > 1]
    if "alpha" in values and x_name == "l2":
        line_names = ["alpha"]
    combinations = {tuple(parameters.get(name) for name in line_names) for parameters, _ in measured}
    is_scattered = line_names != ["alpha"] and len(combinations) == len(measured) > _LINES
    return x_name, line_names, is_scattered


def _best_keys(
    measured: Sequence[Measured], key: Callable[[Mapping[str, Any]], Any], most: int
) -> tuple[list[Any], int]:
    """Return the keys of the best trials, sorted, and the number of all keys."""
    best: dict[Any, float] = {}
    for parameters, mean in measured:
        best[key(parameters)] = max(best.get(key(parameters), -math.inf), mean.mean)
    return sorted(sorted(best, key=lambda one: -best[one])[:most], key=_sortable), len(best)


def _sortable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Order None before numbers and numbers before texts."""
    return tuple(
        (0, 0.0, "") if p is None else (2, 0.0, p) if isinstance(p, str) else (1, p, "") for p in key
    )


def _parameters_text(parameters: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{'α' if name == 'alpha' else name} = " + (f"{x:g}" if isinstance(x, float) else str(x))
        for name, x in parameters.items()
        if x is not None
    )


def _panel_title(sparsity: Any, r: float) -> str:
    if sparsity is None:
        return "dense"
    return f"sparsity {sparsity if isinstance(sparsity, str) else f'{100 * sparsity:g} %'}, r = {r:g}"
