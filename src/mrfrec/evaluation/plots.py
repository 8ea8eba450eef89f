"""Figures of results, each as PNG and as SVG: readable in black and white and at half the width of a page.

The same input gives the same bytes: nothing of the date, of the version or of anybody's settings gets in.
"""

import math
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mrfrec.errors import MissingLibraryError, ParameterError
from mrfrec.evaluation.metrics import Mean, Metric, parse
from mrfrec.evaluation.side_checks import Exposure
from mrfrec.evaluation.tradeoff import Tradeoff
from mrfrec.io.atomic import check_writable, expanded, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_drawable", "plot_exposure", "plot_tradeoff", "plot_tuning"]

_SETTINGS: Any = {  # matplotlib's names for them have a type of their own
    "font.size": 12,
    "legend.fontsize": 11,
    "lines.linewidth": 1.4,
    "lines.markersize": 8,
    "errorbar.capsize": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "figure.titlesize": 12,
    "legend.frameon": False,
    "legend.handlelength": 3,  # or dashes could not be told apart
    "svg.hashsalt": "mrfrec",  # or the names inside the file would be random
}
_DOTS_PER_INCH = 200
_MARKERS = "os^Dv<>ph"
_DASHES = ("-", "--", "-.", (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)))
_GREYS = ("0", "0.35", "0.55")
_WIDE = 5  # largest ÷ smallest, from which on a scale is logarithmic
_PANELS = 4
_LINES = 6  # in one panel
_BEST = "best:"  # how the legend of the best point begins

_OTHER_FORMS = (".jpg", ".jpeg", ".pdf", ".eps", ".ps", ".gif", ".tif", ".tiff", ".webp")

Styled = dict[str, Any]
Paths = tuple[Path, Path]


# ── the figures ───────────────────────────────────────────────────────────────────────────────────


def check_drawable(path: "str | os.PathLike[str]") -> None:
    """Refuse, before long work, a figure that could not be drawn or written after it."""
    with _figure():
        _targets(path)


def plot_tradeoff(
    tradeoff: Tradeoff, metric: "str | Metric", path: "str | os.PathLike[str]", *, title: str | None = None
) -> Paths:
    """Accuracy against training time: a line for each sparsity, a point for each r; bars: standard errors.

    Writes `path`.png and `path`.svg and returns both. The title is the name of the split, if none is given.
    """
    targets = _targets(path)
    means = {point.name: point.evaluation.mean(metric) for point in tradeoff.points}
    first = tradeoff.points[0].evaluation
    with _figure() as figure:
        axes = figure.add_subplot()
        _log_if_wide(axes, "x", [point.seconds for point in tradeoff.points])
        labels = []
        for place, sparsity in enumerate(dict.fromkeys(point.sparsity for point in tradeoff.points)):
            line = sorted((p for p in tradeoff.points if p.sparsity == sparsity), key=lambda p: p.r or 0.0)
            if sparsity is None:
                style: Styled = {"marker": "*", "markersize": 13, "linestyle": "none", "color": "0"}
                axes.axhline(means[line[0].name].mean, color="0.5", linewidth=0.9, linestyle=":", zorder=0)
            else:
                style = _style(place)
                labels += [(p.seconds, means[p.name].mean, f"r = {p.r:g}", style["color"]) for p in line]
            _line(
                axes,
                [p.seconds for p in line],
                [means[p.name] for p in line],
                label="dense" if sparsity is None else f"sparsity {_percent(sparsity)}",
                **style,
            )
        axes.set_xlabel("Training time (seconds)")
        axes.set_ylabel(f"{parse(metric).title} on {len(first.users):,} test users")
        axes.margins(0.12)
        _title(figure, title if title is not None else first.split)
        _legend(figure)
        _annotate(figure, axes, labels)
        return _save(figure, targets)


def plot_exposure(exposure: Exposure, path: "str | os.PathLike[str]", *, title: str | None = None) -> Paths:
    """The share of recommendations that each group of items gets, the most popular group first.

    Beside the models: the group's share of the training data, and of the test users' targets where known.
    """
    targets = _targets(path)
    lines = {name: (shares, _style(place)) for place, (name, shares) in enumerate(exposure.models.items())}
    lines["of training data"] = exposure.training, {"marker": "x", "linestyle": ":", "color": "0"}
    if exposure.targets is not None:
        lines["of test targets"] = (
            exposure.targets,
            {"marker": "+", "linestyle": ":", "color": "0.4"},
        )
    groups = np.arange(1, exposure.groups + 1)
    with _figure() as figure:
        axes = figure.add_subplot()
        for name, (shares, style) in lines.items():
            axes.plot(groups, 100 * shares, label=name, **style)
        _log_if_wide(axes, "y", [100 * share for shares, _ in lines.values() for share in shares])
        step = math.ceil(len(groups) / 12)
        names = ["1\n(most popular)", *map(str, groups[1:])]
        axes.set_xticks(groups[::step], names[::step])
        axes.set_xlabel(f"Items by popularity, {_sizes(exposure)} in each group")
        axes.set_ylabel(f"Share of the first {exposure.places:,} places (%)")
        _title(figure, title if title is not None else exposure.split)
        _legend(figure)
        return _save(figure, targets)


def plot_tuning(
    trials: Iterable[tuple[Mapping[str, Any], float, float]],
    metric: "str | Metric",
    path: "str | os.PathLike[str]",
    *,
    title: str | None = None,
) -> Paths:
    """Accuracy against l2, a line for each alpha, the best marked; bars: standard errors.

    `trials` are parameters, the metric's mean and its standard error. Where sparsity or r vary, each
    combination has its panel. Of more than four panels, or six lines, the best are drawn, which the title
    says; of trials that differ in something else, the best. Without an alpha, there is a line for each
    combination of what else varies; without an l2 that varies, the axis is the number with the most values.
    """
    targets = _targets(path)
    tried = _trials(trials)
    top = max(tried, key=lambda trial: trial[1].mean)
    along, beside, is_scattered = _axes(tried)

    def line_of(parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        return () if is_scattered else tuple(parameters.get(name) for name in beside)

    panels, of_panels = _best_keys(tried, lambda p: (p.get("sparsity"), p.get("r", 0.0)), _PANELS)
    lines, of_lines = _best_keys(tried, line_of, _LINES)
    said = [f"the best {len(panels)} of {of_panels} panels"] if of_panels > len(panels) else []
    of_what = "α" if beside == ["alpha"] else "combinations"
    said += [f"the best {len(lines)} of {of_lines} {of_what}"] if of_lines > len(lines) else []
    with _figure(len(panels)) as figure:
        grid = figure.subplots(*_grid(len(panels)), sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for panel, axes in zip(panels, grid.flat, strict=False):
            here = [trial for trial in tried if (trial[0].get("sparsity"), trial[0].get("r", 0.0)) == panel]
            for place, line in enumerate(lines):
                best: dict[float, Mean] = {}
                for parameters, value in here:
                    x = float(parameters[along])
                    if line_of(parameters) == line and (x not in best or value.mean > best[x].mean):
                        best[x] = value
                if best:
                    label = _point_name(dict(zip(beside, line, strict=False))) or "accuracy"
                    style = {**_style(place), **({"linestyle": "none"} if is_scattered else {})}
                    _line(axes, sorted(best), [best[x] for x in sorted(best)], label=label, **style)
            if any(trial is top for trial in here):
                ring: Styled = {"marker": "o", "markersize": 16, "linestyle": "none", "fillstyle": "none"}
                point = {name: top[0].get(name) for name in (*beside, along)}
                axes.plot(
                    top[0][along], top[1].mean, label=f"{_BEST} {_point_name(point)}", color="0", **ring
                )
            if len(panels) > 1:
                axes.set_title(_panel_name(*panel))
            axes.set(xlabel=along, ylabel=f"{parse(metric).title} (validation)")
            axes.tick_params(labelbottom=True, labelleft=True)
        _log_if_wide(grid[0, 0], "x", [float(parameters[along]) for parameters, _ in tried])
        _title(figure, "; ".join([*([title] if title else []), *said]))
        _legend(figure)
        return _save(figure, targets)


# ── what goes in ──────────────────────────────────────────────────────────────────────────────────


def _trials(trials: Iterable[tuple[Mapping[str, Any], float, float]]) -> list[tuple[Mapping[str, Any], Mean]]:
    found = [(parameters, Mean(float(value), float(error))) for parameters, value, error in trials]
    if not found:
        raise ParameterError("trials", "at least one", [], "There is nothing to draw.")
    for _, value in found:
        if not math.isfinite(value.mean):
            raise ParameterError("trials", "with a finite value each", value.mean, "Leave the others out.")
    return found


def _axes(trials: Sequence[tuple[Mapping[str, Any], Mean]]) -> tuple[str, list[str], bool]:
    """What lies along the axis; what tells lines apart; and whether there would be a line for each trial."""
    values: dict[str, set[Any]] = {}
    for parameters, _ in trials:
        for name, value in parameters.items():
            values.setdefault(name, set()).add(value)
    numeric = [
        name
        for name, found in values.items()
        if all(name in parameters for parameters, _ in trials)
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    ]
    if not numeric:
        raise ParameterError("trials", "with a number to draw them over", dict(trials[0][0]))
    along = max(numeric, key=lambda name: (len(values[name]) > 1, name == "l2", len(values[name])))
    beside = [name for name in values if name not in (along, "sparsity", "r") and len(values[name]) > 1]
    if "alpha" in values and along == "l2":
        beside = ["alpha"]
    combinations = {tuple(parameters.get(name) for name in beside) for parameters, _ in trials}
    is_scattered = beside != ["alpha"] and len(combinations) == len(trials) > _LINES
    return along, beside, is_scattered


def _best_keys(
    trials: Sequence[tuple[Mapping[str, Any], Mean]], key: Callable[[Mapping[str, Any]], Any], most: int
) -> tuple[list[Any], int]:
    """The keys with the best trials, in the order of the keys; and how many there are in all."""
    best: dict[Any, float] = {}
    for parameters, value in trials:
        of = key(parameters)
        best[of] = max(best.get(of, -math.inf), value.mean)
    chosen = sorted(best, key=lambda of: -best[of])[:most]
    return sorted(chosen, key=_sortable), len(best)


def _sortable(key: Any) -> tuple[Any, ...]:
    """Numbers in their order, after None and before texts."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(
        (0, 0.0, "") if p is None else (2, 0.0, p) if isinstance(p, str) else (1, p, "") for p in parts
    )


def _point_name(parameters: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{'α' if name == 'alpha' else name} = " + (f"{x:g}" if isinstance(x, float) else str(x))
        for name, x in parameters.items()
        if x is not None
    )


def _panel_name(sparsity: Any, r: float) -> str:
    if sparsity is None:
        return "dense"
    name = f"sparsity {sparsity}" if isinstance(sparsity, str) else f"sparsity {_percent(sparsity)}"
    return f"{name}, r = {r:g}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _sizes(exposure: Exposure) -> str:
    least, most = int(exposure.items.min()), int(exposure.items.max())
    return f"{least:,}" if least == most else f"{least:,} or {most:,}"


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _figure(panels: int = 1) -> "Iterator[Figure]":
    """An empty figure, while whose making matplotlib has this module's settings and nobody else's."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibraryError('a figure needs matplotlib: pip install "mrfrec[plot]".') from None
    rows, columns = _grid(panels)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Figure(figsize=(6.0 if columns == 1 else 8.5, 0.9 + 3.1 * rows), layout="constrained")


def _grid(panels: int) -> tuple[int, int]:
    """Rows and columns."""
    return math.ceil(panels / 2), min(panels, 2)


def _style(place: int) -> Styled:
    """Told apart by marker and dashes; the shade of grey only helps."""
    return {
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "color": _GREYS[place % len(_GREYS)],
        "markeredgecolor": "1",  # so that markers one upon the other stay two
    }


def _line(axes: "Axes", x: Sequence[float], means: Sequence[Mean], **style: Any) -> None:
    errors = [mean.error if math.isfinite(mean.error) else 0.0 for mean in means]
    axes.errorbar(x, [mean.mean for mean in means], yerr=errors, elinewidth=0.9, **style)


def _log_if_wide(axes: "Axes", which: Literal["x", "y"], values: Sequence[float]) -> None:
    """A logarithmic scale, with a place for 0 if need be, where a linear one would hide the small."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, SymmetricalLogLocator

    positive = [value for value in values if value > 0]
    if not positive or max(positive) < _WIDE * min(positive):
        return
    axis, set_scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    decades = math.log10(max(positive) / min(positive))
    steps = [1.0, 2.0, 5.0] if decades < 2.5 else [1.0]
    if min(values) > 0:
        set_scale("log")
        axis.set_major_locator(LogLocator(subs=steps))
    else:
        least = 10.0 ** math.floor(math.log10(min(positive)))
        set_scale("symlog", linthresh=least, linscale=0.5)
        axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _title(figure: "Figure", title: str) -> None:
    if title:
        figure.suptitle(textwrap.fill(title, round(10.5 * figure.get_figwidth())))


def _legend(figure: "Figure") -> None:
    """Below, where it can hide nothing; each name once."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
    entries = dict(sorted(entries.items(), key=lambda entry: entry[0].startswith(_BEST)))  # which is last
    width, height = figure.get_size_inches()
    room = max(1, int(width / (0.8 + 0.085 * max(map(len, entries)))))  # columns that fit, by length of names
    rows = math.ceil(len(entries) / room)
    figure.set_size_inches(width, height + 0.23 * rows)
    columns = math.ceil(len(entries) / rows)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def _annotate(figure: "Figure", axes: "Axes", labels: list[tuple[float, float, str, str]]) -> None:
    """Write a text beside each point, where it covers least of the lines, the markers and the other texts."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # so that everything has its place
    taken: list[Any] = []
    lines = [line.get_transform().transform(line.get_xydata()) for line in axes.get_lines()]
    errors: Any = axes.collections
    bars = [bar for one in errors for bar in one.get_segments()]
    for points in [*lines, *map(axes.transData.transform, bars)]:
        taken += [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in points]
        for a, b in pairwise(points):
            steps = np.linspace(a, b, 2 + int(np.hypot(*(b - a)) // 6))
            taken += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in steps]
    texts: list[Any] = []
    for x, y, text, color in labels:
        note = axes.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=10)
        note.set(ha="center", va="center", color=color, in_layout=False)
        choices: list[Any] = []
        for away in (1.0, 1.5, 2.2):
            for right, up in (
                (0, 1),
                (0, -1),
                (1.6, 0.7),
                (1.6, -0.7),
                (-1.6, 0.7),
                (-1.6, -0.7),
                (2, 0),
                (-2, 0),
            ):
                note.set_position((14 * right * away, 13 * up * away))
                box = note.get_window_extent()
                inside = axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1)
                inside = inside and axes.bbox.containsy(box.y0) and axes.bbox.containsy(box.y1)
                cost = box.count_overlaps(taken) + 50 * box.count_overlaps(texts) + 20 * (not inside) + away
                choices.append((cost, len(choices), note.get_position(), box))
        _, _, position, box = min(choices, key=lambda choice: choice[:2])
        note.set_position(position)
        texts.append(box)


# ── on disk ───────────────────────────────────────────────────────────────────────────────────────


def _targets(path: "str | os.PathLike[str]") -> Paths:
    """The two files, whichever of them was named; refused now if they could not be written later."""
    given = expanded(path)
    if given.suffix.lower() in _OTHER_FORMS:
        raise ParameterError("path", "a name that ends in .png or .svg; both are written", str(path))
    name = given.stem if given.suffix.lower() in (".png", ".svg") else given.name
    if not name:
        raise ParameterError("path", "the name of a file", str(path))
    targets = given.with_name(f"{name}.png"), given.with_name(f"{name}.svg")
    for target in targets:
        check_writable(target)
    return targets


def _save(figure: "Figure", targets: Paths) -> Paths:
    """Both are drawn before the first is written."""
    drawn = []
    for target, left_out in zip(targets, (("Software",), ("Date", "Creator")), strict=True):
        buffer = BytesIO()
        figure.savefig(buffer, format=target.suffix[1:], dpi=_DOTS_PER_INCH, metadata=dict.fromkeys(left_out))
        drawn.append(buffer.getvalue())
    for target, content in zip(targets, drawn, strict=True):
        with writing(target) as unfinished:
            unfinished.write_bytes(content)
    return targets
