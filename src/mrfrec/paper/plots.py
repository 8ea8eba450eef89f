"""Figures of the paper's trade-off (Table 2) and of the popularity of recommended items."""

import math
import os

import numpy as np

from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Metric, parse
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff

_TICKS = 12  # most labels on the axis of groups


def plot_tradeoff(
    tradeoff: Tradeoff, metric: "str | Metric", path: "str | os.PathLike[str]", *, title: str | None = None
) -> figures.Paths:
    """Draw accuracy against training time: a line for each sparsity, a point for each r.

    Bars are standard errors. Writes `path`.png and `path`.svg and returns both paths. The title is the name
    of the split unless one is given; put the name of the data there.
    """
    paths = figures.output_paths(path)
    means = {point.name: point.evaluation.mean(metric) for point in tradeoff.points}
    first = tradeoff.points[0].evaluation
    with figures.new_figure() as figure:
        axes = figure.add_subplot()
        figures.scale_axis(axes, "x", [point.seconds for point in tradeoff.points])
        labels = []
        levels = dict.fromkeys(point.sparsity for point in tradeoff.points if point.sparsity is not None)
        if tradeoff.dense is not None:
            dense = means[tradeoff.dense.name]
            axes.axhline(dense.mean, color="0.5", linewidth=0.9, linestyle=":", zorder=0)
            figures.plot_means(axes, [tradeoff.dense.seconds], [dense], label="dense", marker="*",
                               markersize=13, linestyle="none", color=figures.BLACK)  # fmt: skip
        for number, sparsity in enumerate(levels):
            line = sorted((p for p in tradeoff.points if p.sparsity == sparsity), key=lambda p: p.r or 0.0)
            style = figures.line_style(number)
            x, y = [p.seconds for p in line], [means[p.name] for p in line]
            figures.plot_means(axes, x, y, label=f"sparsity {100 * sparsity:g} %", **style)
            labels += [(p.seconds, means[p.name].mean, f"r = {p.r:g}", style["color"]) for p in line]
        axes.set_xlabel("Training time (seconds)")
        axes.set_ylabel(f"{parse(metric).title} on {len(first.users):,} test users")
        axes.margins(0.12)
        figures.add_title(figure, first.split if title is None else title)
        figures.add_legend(figure)
        if labels:
            figures.add_labels(figure, axes, labels)
        return figures.save_figure(figure, paths)


def plot_exposure(
    exposure: Exposure, path: "str | os.PathLike[str]", *, title: str | None = None
) -> figures.Paths:
    """Draw the share of recommendations that each group of items gets, the most popular group first.

    For comparison: the group's share of the training data and, if known, of the test users' targets. Writes
    `path`.png and `path`.svg and returns both paths. The title is as in `plot_tradeoff`.
    """
    paths = figures.output_paths(path)
    lines = {
        name: (shares, figures.line_style(n)) for n, (name, shares) in enumerate(exposure.models.items())
    }
    reference = {"linestyle": ":", "color": figures.BLACK}
    lines["of training data"] = exposure.training, {"marker": "x", **reference}
    if exposure.targets is not None:
        lines["of test targets"] = exposure.targets, {"marker": "+", **reference}
    groups = np.arange(1, len(exposure.items) + 1)
    with figures.new_figure() as figure:
        axes = figure.add_subplot()
        for name, (shares, style) in lines.items():
            axes.plot(groups, 100 * shares, label=name, **style)
        figures.scale_axis(axes, "y", [100 * share for shares, _ in lines.values() for share in shares])
        step = math.ceil(len(groups) / _TICKS)
        names = ["1\n(most popular)", *map(str, groups[1:])]
        axes.set_xticks(groups[::step], names[::step])
        least, most = int(exposure.items.min()), int(exposure.items.max())
        size = f"{least:,}" if least == most else f"{least:,} or {most:,}"
        axes.set_xlabel(f"Items by popularity, {size} in each group")
        axes.set_ylabel(f"Share of the first {exposure.places:,} places (%)")
        figures.add_title(figure, exposure.split if title is None else title)
        figures.add_legend(figure)
        return figures.save_figure(figure, paths)
