"""Figures of the paper's trade-off (Table 2) and of the popularity of recommended items."""

import os

import numpy as np

from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import Metric, parse
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff


def plot_tradeoff(tradeoff: Tradeoff, metric: "str | Metric", path: "str | os.PathLike[str]") -> None:
    """Draw accuracy against training time: a line for each sparsity, a point for each r."""
    first = tradeoff.points[0].evaluation
    with figures.figure_axes(path, first.split) as axes:
        for sparsity in dict.fromkeys(point.sparsity for point in tradeoff.points):
            line = [point for point in tradeoff.points if point.sparsity == sparsity]
            x, means = [point.seconds for point in line], [point.evaluation.mean(metric) for point in line]
            label = "dense" if sparsity is None else f"sparsity {100 * sparsity:g} %"
            figures.plot_means(axes, x, means, label=label, marker="*" if sparsity is None else "o")
            for point, mean in zip(line, means, strict=True):
                if point.r is not None:
                    at = (point.seconds, mean.mean)
                    axes.annotate(
                        f"r = {point.r:g}", at, (4, 4), textcoords="offset points", fontsize="small"
                    )
        axes.set_xlabel("Training time (seconds)")
        axes.set_ylabel(f"{parse(metric).title} on {len(first.users):,} test users")
        if figures.is_wide([point.seconds for point in tradeoff.points]):
            axes.set_xscale("log")


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
