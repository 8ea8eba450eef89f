"""Draw figures with matplotlib, and write them atomically."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec.checks import missing_extra
from mrfrec.errors import ParameterError
from mrfrec.evaluation.metrics import Mean
from mrfrec.evaluation.report import parameters_text
from mrfrec.evaluation.study import Trial, Tuning
from mrfrec.io.atomic import check_writable, expanded, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS = (".png", ".svg", ".pdf")
_LOG_RATIO = 5  # largest ÷ smallest value from which an axis is logarithmic
_LINES = 6  # in a figure of a tuning, at most


def check_drawable(path: "str | os.PathLike[str]") -> Path:
    """Return the path of a figure; raise before any long work if it cannot be drawn or written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise missing_extra("plots need matplotlib", "plot") from None
    file = expanded(path)
    if file.suffix.lower() not in _FORMATS:
        raise ParameterError("plot", f"a name that ends in {', '.join(_FORMATS)}", str(path))
    check_writable(file)
    return file


@contextmanager
def figure_axes(path: "str | os.PathLike[str]", title: str, x_label: str, y_label: str) -> "Iterator[Axes]":
    """Give axes to draw on, then add a legend and write the file."""
    file = check_drawable(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, fontsize="medium", wrap=True)
    yield axes
    axes.legend(fontsize="small")
    with writing(file) as unfinished:
        figure.savefig(unfinished, format=file.suffix[1:].lower(), dpi=150)


def plot_means(axes: "Axes", x: Sequence[float], means: Sequence[Mean], **style: Any) -> None:
    """Draw means against x, with their standard errors as bars."""
    errors = [mean.error if math.isfinite(mean.error) else 0.0 for mean in means]
    axes.errorbar(x, [mean.mean for mean in means], yerr=errors, capsize=3, **style)


def scale_x(axes: "Axes", values: Sequence[float]) -> None:
    """Make the x axis logarithmic if its values are all above 0, and of several sizes."""
    if min(values) > 0 and max(values) >= _LOG_RATIO * min(values):
        axes.set_xscale("log")


def plot_tuning(tuning: Tuning, path: "str | os.PathLike[str]") -> None:
    """Draw the accuracy of trials against l2 or, if that does not vary, the number with the most values.

    Each combination of the other parameters that vary has a line; only the best six lines are drawn. Trials
    with "auto" in place of the number are left out. If no number varies, x is the place of the trial in their
    order. Bars are standard errors.
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
    with figure_axes(path, tuning.split, x_name, f"{tuning.metric.title} (validation)") as axes:
        for label in tops:
            means = [Mean(trial.value or 0.0, trial.error or math.nan) for trial in lines[label]]
            plot_means(axes, [x_of(trial) for trial in lines[label]], means, label=label, marker="o")
        axes.plot(x_of(best), best.value or 0.0, "ko", markersize=14, fillstyle="none", label="best")
        scale_x(axes, [x_of(trial) for trial in tried])
