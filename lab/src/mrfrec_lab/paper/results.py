"""Tables and figures of the paper's experiments: the trade-off of Table 2, low rank, exposure."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mrfrec import figures
from mrfrec.core.memory import human_bytes
from mrfrec.evaluation import report
from mrfrec.evaluation.metrics import Mean, Metric, parse
from mrfrec.evaluation.protocol import Comparison, Evaluation
from mrfrec.evaluation.report import means_text, percent
from mrfrec.shown import Report, Section, seconds_text
from mrfrec_lab.paper.side_checks import TARGETS, TRAINING, Exposure

Path = str | os.PathLike[str]


def of_tradeoff(comparison: Comparison) -> Report:
    """Report accuracy and training time as in the paper's Table 2, also relative to the dense model.

    Tells the parameters of the models, and the order of items with equal scores.
    """
    page = report.of_evaluations(comparison.evaluations)
    first = comparison.metrics[0]
    dense = comparison.get("dense")
    rows = []
    shared = {}
    for found, data in zip(comparison.evaluations, page.data["models"], strict=True):
        weights = found.facts["weights"]
        seconds = found.seconds["training"]
        row = [*means_text(found), seconds_text(seconds)]
        if dense is not None:
            best = dense.mean(first).mean
            share = percent(found.mean(first).mean / best) if first.is_accuracy and best > 0 else "–"
            row += [f"{dense.seconds['training'] / seconds:.1f} ×", share]
        rows.append([*row, percent(weights["share"], 2), human_bytes(weights["bytes"])])
        data |= {name: None if found is dense else found.parameters[name] for name in ("sparsity", "r")}
        fixed = {n: v for n, v in found.parameters.items() if n not in ("sparsity", "r")}
        shared["dense" if found is dense else "sparse"] = report.parameters_text(fixed, "MRF")
    relative = [] if dense is None else ["speed-up", f"{first.title} of dense"]
    titles = [metric.title for metric in comparison.metrics]
    columns = ["model", *titles, "training", *relative, "weights kept", "size"]
    left_out = [f"Left out: {name}: {error}" for name, error in comparison.failures.items()]
    notes = [*(f"{kind}: {text}" for kind, text in shared.items()), *left_out]
    about = [*page.about, f"ties: by {page.data['ties']}"]
    return Report(about, [Section(columns, rows)], {**page.data, "notes": left_out}, notes=notes)


def of_low_rank(comparison: Comparison) -> Report:
    """Report the loss of accuracy when the weights are cut to a low rank."""
    page = report.of_comparison(comparison)
    full = comparison.evaluations[0]
    metrics = comparison.metrics
    rows = []
    for evaluation in comparison.evaluations:
        drop = 1 - evaluation.mean(metrics[0]).mean / (full.mean(metrics[0]).mean or 1.0)
        lost = "–" if evaluation is full else percent(drop)
        rows.append([*means_text(evaluation), lost, percent(evaluation.facts.get("energy", 1.0))])
    names = [metric.title for metric in metrics]
    columns = ["weights", *names, f"drop in {names[0]}", "squares of the weights kept"]
    return Report(page.about, [Section(columns, rows)], page.data, notes=page.notes[:1])


def of_exposure(comparison: Comparison, exposure: Exposure) -> Report:
    """Report a comparison, and each model's share of recommendations by popularity of the items."""
    page = report.of_comparison(comparison)
    rows = [
        [
            f"{group + 1}" + (" (most popular)" if group == 0 else ""),
            f"{items:,}",
            *(percent(share[group], 2) for share in exposure.shares.values()),
        ]
        for group, items in enumerate(exposure.items)
    ]
    title = f"By popularity of the items, first {exposure.places} places"
    columns = ["decile" if len(rows) == 10 else "group", "items", *exposure.shares]
    shares = {name: share.tolist() for name, share in exposure.shares.items()}
    data = {"places": exposure.places, "items": exposure.items.tolist(), "shares": shares}
    sections = [*page.sections, Section(columns, rows, title)]
    return replace(page, sections=sections, data={**page.data, "exposure": data})


def plot_times(evaluations: Sequence[Evaluation], metric: str | Metric, path: Path) -> None:
    """Draw accuracy against training time; models whose names differ only after ", r = " share a line."""
    lines: dict[str, list[tuple[float, Mean, str]]] = {}
    for found in evaluations:
        line, _, r = found.model.partition(", r = ")
        lines.setdefault(line, []).append((found.seconds["training"], found.mean(metric), r))
    first = evaluations[0]
    with figures.figure_axes(path, first.split, "Training time (seconds)", _accuracy(first, metric)) as axes:
        for line, points in lines.items():
            seconds, means, rs = zip(*points, strict=True)
            figures.plot_means(axes, seconds, means, label=line, marker="o" if any(rs) else "*")
            for at, mean, r in points:
                if r:
                    place = (at, mean.mean)
                    axes.annotate(f"r = {r}", place, (4, 4), textcoords="offset points", fontsize="small")
        figures.scale_x(axes, [found.seconds["training"] for found in evaluations])


def plot_low_rank(comparison: Comparison, metric: str | Metric, path: Path) -> None:
    """Draw the accuracy of weights cut to a low rank over the rank, and that of all weights."""
    full, *cut = comparison.evaluations
    ranks = [found.facts["rank"] for found in cut]
    with figures.figure_axes(path, full.split, "Rank of the weights", _accuracy(full, metric)) as axes:
        means = [found.mean(metric) for found in cut]
        figures.plot_means(axes, ranks, means, label="cut to a rank", marker="o")
        axes.axhline(full.mean(metric).mean, color="k", linestyle=":", label="full rank")
        figures.scale_x(axes, ranks)


def _accuracy(evaluation: Evaluation, metric: str | Metric) -> str:
    return f"{parse(metric).title} on {len(evaluation.users):,} test users"


def plot_exposure(exposure: Exposure, path: Path) -> None:
    """Draw the share of recommendations that each group of items gets, the most popular group first.

    For comparison: the group's share of the training data and of the test users' targets.
    """
    groups = np.arange(1, len(exposure.items) + 1)
    over = "Groups of items by popularity, the most popular first"
    share = f"Share of the first {exposure.places:,} places (%)"
    with figures.figure_axes(path, exposure.split, over, share) as axes:
        for name, shares in exposure.shares.items():
            axes.plot(groups, 100 * shares, {TRAINING: "kx:", TARGETS: "k+:"}.get(name, "o-"), label=name)
        axes.set_yscale("symlog", linthresh=1)
