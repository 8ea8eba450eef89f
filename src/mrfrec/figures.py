"""Draw figures with matplotlib, and write them atomically."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec.checks import missing_extra, shortened
from mrfrec.errors import ParameterError
from mrfrec.io.atomic import check_writable, expanded, writing
from mrfrec.shown import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")
# An axis is logarithmic if the largest value is at least five times the smallest.
_LOG_RATIO = 5
_LONGEST_NAME = 50  # characters
_NOTEBOOK_DPI = 100
_MARGIN = 0.1  # inches


def check_drawable(path: "str | os.PathLike[str]") -> Path:
    """Return the path of a figure; raise if it cannot be drawn or written, before any long work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise missing_extra("plots need matplotlib", "plot") from None
    file = expanded(path)
    if file.suffix.lower() not in _FORMATS:
        raise ParameterError("plot", f"a name that ends in {', '.join(_FORMATS)}", str(path))
    check_writable(file)
    return file


@cache
def figure_class() -> "type[Figure]":
    """Return the class of our figures. Notebooks show them, although pyplot does not know them."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=_NOTEBOOK_DPI)
            return content.getvalue()

    return ShownFigure


def new_figure(title: str, x_label: str, y_label: str, height: float = 5.0) -> "tuple[Figure, Axes]":
    """Return an empty figure in the style of the caller, and its axes; pyplot does not know it."""
    try:
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        margins = ConstrainedLayoutEngine(w_pad=_MARGIN, h_pad=_MARGIN)
        figure = figure_class()(figsize=(7.0, height), layout=margins)
    except ImportError:
        raise missing_extra("plots need matplotlib", "plot") from None
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    return figure, axes


def write_figure(figure: "Figure", path: "str | os.PathLike[str]") -> None:
    """Write a figure in the format of the file's name."""
    file = check_drawable(path)
    with writing(file) as unfinished:
        figure.savefig(unfinished, format=file.suffix[1:].lower(), dpi=150)


@contextmanager
def figure_axes(path: "str | os.PathLike[str]", title: str, x_label: str, y_label: str) -> "Iterator[Axes]":
    """Give axes to draw on, then add a legend and write the file."""
    check_drawable(path)
    figure, axes = new_figure(title, x_label, y_label)
    yield axes
    axes.legend(fontsize="small")
    write_figure(figure, path)


def _named_rows(title: str, x_label: str, names: Sequence[str]) -> "tuple[Figure, Axes]":
    """Return a figure with a row for each name, the first at the top, and its axes to draw on."""
    figure, axes = new_figure(title, x_label, "", 1.2 + 0.3 * max(len(names), 2))
    labels = [shortened(printable(name), _LONGEST_NAME) for name in names]
    axes.set_yticks(range(len(names)), labels=labels, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    return figure, axes


def plot_bars(title: str, x_label: str, names: Sequence[str], values: Sequence[float]) -> "Figure":
    """Draw a bar for each name."""
    figure, axes = _named_rows(title, x_label, names)
    axes.barh(range(len(names)), values)
    if not names:
        axes.text(0.5, 0.5, "nothing", ha="center", transform=axes.transAxes)
    return figure


def plot_points(
    title: str, x_label: str, names: Sequence[str], means: Sequence[tuple[float, float]]
) -> "Figure":
    """Draw the mean of each name with its standard error."""
    figure, axes = _named_rows(title, f"{x_label} ± standard error", names)
    errors = _known_errors(means)
    axes.errorbar([mean for mean, _ in means], range(len(names)), xerr=errors, fmt="o", capsize=3)
    axes.grid(axis="x", alpha=0.3)
    return figure


def plot_means(axes: "Axes", x: Sequence[float], means: Sequence[tuple[float, float]], **style: Any) -> None:
    """Draw means against x, with their standard errors as bars where these are known."""
    axes.errorbar(x, [mean for mean, _ in means], yerr=_known_errors(means), capsize=3, **style)


def _known_errors(means: Sequence[tuple[float, float]]) -> list[float]:
    return [error if math.isfinite(error) else 0.0 for _, error in means]


def scale_x(axes: "Axes", values: Sequence[float]) -> None:
    """Make the x axis logarithmic if all values are above 0 and they span a wide range."""
    if min(values) > 0 and max(values) >= _LOG_RATIO * min(values):
        axes.set_xscale("log")
