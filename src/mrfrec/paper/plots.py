"""Figures of the paper's trade-off (Table 2), of low rank and of the popularity of recommended items."""

import os
from collections.abc import Mapping

import numpy as np

from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Metric, parse
from mrfrec.evaluation.protocol import Comparison, Evaluation
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff


def plot_tradeoff(tradeoff: Tradeoff, metric: "str | Metric", path: "str | os.PathLike[str]") -> None:
    """Draw accuracy against training time: a line for each sparsity, a point for each r."""
    lines: dict[str, dict[str, Evaluation]] = {}
    for point in tradeoff.points:
        label = "dense" if point.sparsity is None else f"sparsity {100 * point.sparsity:g} %"
        lines.setdefault(label, {})["" if point.r is None else f"r = {point.r:g}"] = point.evaluation
    plot_times(lines, metric, path)


def plot_times(
    lines: Mapping[str, Mapping[str, Evaluation]], metric: "str | Metric", path: "str | os.PathLike[str]"
) -> None:
    """Draw accuracy against training time: lines by their names, and their points by what varies."""
    points = [found for line in lines.values() for found in line.values()]
    with figures.figure_axes(path, points[0].split) as axes:
        for label, line in lines.items():
            x = [found.seconds["training"] for found in line.values()]
            means = [found.mean(metric) for found in line.values()]
            figures.plot_means(axes, x, means, label=label, marker="o" if any(line) else "*")
            for text, seconds, mean in zip(line, x, means, strict=True):
                if text:
                    at = (seconds, mean.mean)
                    axes.annotate(text, at, (4, 4), textcoords="offset points", fontsize="small")
        axes.set_xlabel("Training time (seconds)")
        axes.set_ylabel(_accuracy(points[0], metric))
        if figures.is_wide([found.seconds["training"] for found in points]):
            axes.set_xscale("log")


def plot_low_rank(comparison: Comparison, metric: "str | Metric", path: "str | os.PathLike[str]") -> None:
    """Draw the accuracy of weights cut to a low rank over the rank, and that of all weights."""
    full, *cut = comparison.evaluations
    ranks = [found.facts["rank"] for found in cut]
    with figures.figure_axes(path, full.split) as axes:
        means = [found.mean(metric) for found in cut]
        figures.plot_means(axes, ranks, means, label="cut to a rank", marker="o")
        axes.axhline(full.mean(metric).mean, color="k", linestyle=":", label="full rank")
        axes.set_xlabel("Rank of the weights")
        axes.set_ylabel(_accuracy(full, metric))
        if figures.is_wide(ranks):
            axes.set_xscale("log")


def _accuracy(evaluation: Evaluation, metric: "str | Metric") -> str:
    return f"{parse(metric).title} on {len(evaluation.users):,} test users"


def plot_exposure(exposure: Exposure, path: "str | os.PathLike[str]") -> None:
    """Draw the share of recommendations that each group of items gets, the most popular group first.

    For comparison: the group's share of the training data and, if known, of the test users' targets.
    """
    groups = np.arange(1, len(exposure.items) + 1)
    with figures.figure_axes(path, exposure.split) as axes:
        for name, shares in exposure.models.items():
            axes.plot(groups, 100 * shares, marker="o", label=name)
        axes.plot(groups, 100 * exposure.training, "kx:", label="of training data")
        if exposure.targets is not None:
            axes.plot(groups, 100 * exposure.targets, "k+:", label="of test targets")
        axes.set_xlabel("Groups of items by popularity, the most popular first")
        axes.set_ylabel(f"Share of the first {exposure.places:,} places (%)")
        axes.set_yscale("symlog", linthresh=1)
