"""A figure of the trials of a tuning."""

import math
import os
from typing import Any

from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Mean
from mrfrec.evaluation.report import parameters_text
from mrfrec.evaluation.study import Trial, Tuning

_LINES = 6  # at most


def plot_tuning(tuning: Tuning, path: "str | os.PathLike[str]") -> None:
    """Draw accuracy against l2 or, if that does not vary, the numeric parameter with the most values.

    There is a line for each combination of the other parameters that vary; of more than six the best six are
    drawn. Trials with "auto" in place of a number are left out. Where no number varies, the trials are drawn
    in their order. Bars are standard errors.
    """
    best = tuning.best
    tried = [trial for trial in tuning.trials if trial.value is not None]
    values = {name: {trial.parameters.get(name) for trial in tried} for name in best.parameters}
    varying = [name for name in values if len(values[name]) > 1]
    numbers = {name: [x for x in values[name] if type(x) in (int, float)] for name in varying}
    numeric = [name for name in varying if len(numbers[name]) > 1 and best.parameters[name] in numbers[name]]
    x_name = max(numeric, key=lambda name: (name == "l2", len(values[name])), default="trial")
    if numeric:
        tried = [trial for trial in tried if trial.parameters.get(x_name) in numbers[x_name]]

    def x_of(trial: Trial) -> Any:
        return trial.parameters[x_name] if numeric else tried.index(trial) + 1

    lines: dict[str, list[Trial]] = {}
    for trial in sorted(tried, key=x_of):
        others = {name: trial.parameters.get(name) for name in varying if name != x_name and numeric}
        lines.setdefault(parameters_text(others, "") if others else "accuracy", []).append(trial)
    tops = sorted(lines, key=lambda line: -max(trial.value or 0.0 for trial in lines[line]))[:_LINES]
    with figures.figure_axes(path, tuning.split) as axes:
        for label in tops:
            means = [Mean(trial.value or 0.0, trial.error or math.nan) for trial in lines[label]]
            figures.plot_means(axes, [x_of(trial) for trial in lines[label]], means, label=label, marker="o")
        axes.plot(x_of(best), best.value or 0.0, "ko", markersize=14, fillstyle="none", label="best")
        axes.set(xlabel=x_name, ylabel=f"{tuning.metric.title} (validation)")
        if figures.is_wide([x_of(trial) for trial in tried]):
            axes.set_xscale("log")
