"""Draw figures with matplotlib, and write them atomically."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec.errors import MissingLibraryError, ParameterError
from mrfrec.evaluation.metrics import Mean
from mrfrec.io.atomic import check_writable, expanded, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS = (".png", ".svg", ".pdf")
_LOG_RATIO = 5  # largest ÷ smallest value from which an axis is logarithmic


def check_drawable(path: "str | os.PathLike[str]") -> Path:
    """Return the path of a figure; raise now if it could not be drawn or written later, after long work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingLibraryError('plots need matplotlib: pip install "mrfrec[plot]".') from None
    file = expanded(path)
    if file.suffix.lower() not in _FORMATS:
        raise ParameterError("plot", f"a name that ends in {', '.join(_FORMATS)}", str(path))
    check_writable(file)
    return file


@contextmanager
def figure_axes(path: "str | os.PathLike[str]", title: str) -> "Iterator[Axes]":
    """Give axes to draw on, then add a legend and write the file."""
    file = check_drawable(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize="medium", wrap=True)
    yield axes
    axes.legend(fontsize="small")
    with writing(file) as unfinished:
        figure.savefig(unfinished, format=file.suffix[1:].lower(), dpi=150)


def plot_means(axes: "Axes", x: Sequence[float], means: Sequence[Mean], **style: Any) -> None:
    """Draw means against x, with their standard errors as bars."""
    errors = [mean.error if math.isfinite(mean.error) else 0.0 for mean in means]
    axes.errorbar(x, [mean.mean for mean in means], yerr=errors, capsize=3, **style)


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values are better drawn on a logarithmic axis: all above 0, and of several sizes."""
    return min(values) > 0 and max(values) >= _LOG_RATIO * min(values)
