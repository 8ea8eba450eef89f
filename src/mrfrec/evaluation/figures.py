"""Draw figures with matplotlib and write each as PNG and SVG.

Lines differ in colour (the palette of Okabe and Ito, safe for colour-blind readers), marker and dashes, so
that a figure also reads in black and white. The same input gives the same bytes: neither the date nor the
user's matplotlib settings get in.
"""

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.errors import MissingLibraryError, ParameterError
from mrfrec.evaluation.metrics import Mean
from mrfrec.io.atomic import check_writable, expanded, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SETTINGS: Any = {
    "font.size": 12,
    "legend.fontsize": 11,
    "lines.linewidth": 1.6,
    "lines.markersize": 8,
    "errorbar.capsize": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "figure.titlesize": 12,
    "legend.frameon": False,
    "legend.handlelength": 3,  # long enough to tell dashes apart
    "svg.hashsalt": "mrfrec",  # element ids in an SVG file are random otherwise
}
_DOTS_PER_INCH = 200
BLACK = "#000000"
# Okabe and Ito (2008) without black, which is for references, and yellow, which is faint on white.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "os^Dv<>ph"
_DASHES = ("-", "--", "-.", (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)))
_LOG_RATIO = 5  # largest ÷ smallest value from which an axis is logarithmic
_OTHER_FORMATS = (".jpg", ".jpeg", ".pdf", ".eps", ".ps", ".gif", ".tif", ".tiff", ".webp")

Paths = tuple[Path, Path]


# ── a figure and its lines ────────────────────────────────────────────────────────────────────────


@contextmanager
def new_figure() -> "Iterator[Figure]":
    """Create a figure; inside the context, matplotlib uses this module's settings."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibraryError('plots need matplotlib: pip install "mrfrec[plot]".') from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Figure(figsize=(6.0, 4.0), layout="constrained")


def line_style(number: int) -> dict[str, Any]:
    """Return the colour, marker and dashes of the line with this number."""
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "markeredgecolor": "white",  # keeps overlapping markers apart
    }


def plot_means(axes: "Axes", x: Sequence[float], means: Sequence[Mean], **style: Any) -> None:
    """Draw means against x, with their standard errors as bars."""
    errors = [mean.error if math.isfinite(mean.error) else 0.0 for mean in means]
    axes.errorbar(x, [mean.mean for mean in means], yerr=errors, elinewidth=0.9, **style)


def scale_axis(axes: "Axes", which: Literal["x", "y"], values: Sequence[float]) -> None:
    """Make an axis logarithmic if its values span a wide range; zero, if it occurs, keeps a place on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, SymmetricalLogLocator

    positive = [value for value in values if value > 0]
    if not positive or max(positive) < _LOG_RATIO * min(positive):
        return
    axis, set_scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    decades = math.log10(max(positive) / min(positive))
    steps = [1.0, 2.0, 5.0] if decades < 2.5 else [1.0]  # ticks within a decade, while there is room
    if min(values) > 0:
        set_scale("log")
        axis.set_major_locator(LogLocator(subs=steps))
    else:
        least = 10.0 ** math.floor(math.log10(min(positive)))
        set_scale("symlog", linthresh=least, linscale=0.5)
        axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def add_title(figure: "Figure", title: str) -> None:
    """Write a title above the axes, wrapped to the width of the figure."""
    width = round(10.5 * figure.get_figwidth())  # in characters, 10.5 to an inch
    lines = [textwrap.fill(line, width) for line in title.splitlines()]
    if lines:
        figure.suptitle("\n".join(lines))


def add_legend(figure: "Figure", last: str | None = None) -> None:
    """Add a legend below the axes; the entry that starts with `last` comes last."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    if last is not None:
        entries = dict(sorted(entries.items(), key=lambda entry: entry[0].startswith(last)))
    width, height = figure.get_size_inches()
    # Inches: 0.8 for the handle and its margins, 0.085 for a character.
    fitting = max(1, int(width / (0.8 + 0.085 * max(map(len, entries)))))
    rows = math.ceil(len(entries) / fitting)
    figure.set_size_inches(width, height + 0.23 * rows)
    columns = math.ceil(len(entries) / rows)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


# ── labels of points ──────────────────────────────────────────────────────────────────────────────


Label = tuple[float, float, str, str]  # a point in the coordinates of the axes, its text and its colour
_DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
_GAPS = (9, 18, 30, 44)  # pixels between a point and its label; from the second on, a line joins them


def add_labels(figure: "Figure", axes: "Axes", labels: Sequence[Label]) -> None:
    """Write a label beside each point, where it covers no other label or marker and least of the lines."""
    figure.draw_without_rendering()  # settles the layout, so that pixels are final
    marks, strokes = _drawn(axes)
    frame = np.array(axes.bbox.extents)
    leader = {"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 5}
    placed: list[Pixels] = []
    for x, y, text, color in labels:
        note = axes.annotate(
            text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=10, color=color, ha="center",
            va="center", in_layout=False, arrowprops={**leader, "color": color},
        )  # fmt: skip
        point = axes.transData.transform((x, y))
        extent = note.get_window_extent()
        half = np.array([extent.width, extent.height]) / 2
        choices = []
        for gap, direction in product(_GAPS, _DIRECTIONS):
            middle = point + np.array(direction) * (half + gap)
            box = np.concatenate([middle - half, middle + half])  # left, bottom, right, top
            is_outside = (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any()
            covered = sum(np.all([box[:2] - 1 < b[2:], b[:2] - 1 < box[2:]]) for b in placed)
            cost = 100.0 * is_outside + 200.0 * covered + 30.0 * _inside(marks, box, 5.0)
            choices.append((cost + 3.0 * _inside(strokes, box, 1.0) + 0.5 * gap, gap, middle, box))
        _, gap, middle, box = min(choices, key=lambda choice: choice[0])
        placed.append(box)
        note.set_position(tuple((middle - point) * 72 / figure.dpi))
        if note.arrow_patch is not None:
            note.arrow_patch.set_visible(gap > _GAPS[0])


Pixels = npt.NDArray[np.float64]


def _drawn(axes: "Axes") -> tuple[Pixels, Pixels]:
    """Return the positions of all markers, and of points along all lines and error bars."""
    lines = [line.get_transform().transform(line.get_xydata()) for line in axes.get_lines()]
    bars: Iterable[Any] = axes.collections
    segments = [axes.transData.transform(segment) for bar in bars for segment in bar.get_segments()]
    strokes = [
        np.linspace(start, stop, 2 + int(np.hypot(*(stop - start)) // 4))
        for path in [*lines, *segments]
        for start, stop in pairwise(path)
    ]
    return np.concatenate(lines), np.concatenate([*lines, *strokes])


def _inside(points: Pixels, box: Pixels, margin: float) -> int:
    return int(((points > box[:2] - margin) & (points < box[2:] + margin)).all(axis=1).sum())


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def check_drawable(path: "str | os.PathLike[str]") -> None:
    """Raise now if a figure could not be drawn or written later, after long work."""
    with new_figure():
        output_paths(path)


def output_paths(path: "str | os.PathLike[str]") -> Paths:
    """Return the PNG and the SVG file that `path` stands for, with or without a suffix."""
    given = expanded(path)
    if given.suffix.lower() in _OTHER_FORMATS:
        raise ParameterError("path", "a name that ends in .png or .svg; both are written", str(path))
    name = given.stem if given.suffix.lower() in (".png", ".svg") else given.name
    if not name:
        raise ParameterError("path", "the name of a file", str(path))
    paths = given.with_name(f"{name}.png"), given.with_name(f"{name}.svg")
    for each in paths:
        check_writable(each)
    return paths


def save_figure(figure: "Figure", paths: Paths) -> Paths:
    """Write both files; neither is touched unless both could be drawn."""
    contents = []
    for path, left_out in zip(paths, (("Software",), ("Date", "Creator")), strict=True):
        buffer = BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=_DOTS_PER_INCH, metadata=dict.fromkeys(left_out))
        contents.append(buffer.getvalue())
    for path, content in zip(paths, contents, strict=True):
        with writing(path) as unfinished:
            unfinished.write_bytes(content)
    return paths
