"""Reports of the paper's experiments: the trade-off of Table 2, low rank, exposure."""

from dataclasses import replace

from mrfrec.core.memory import human_bytes
from mrfrec.evaluation import report
from mrfrec.evaluation.protocol import Comparison
from mrfrec.evaluation.report import Report, Section, means_text, percent
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff


def of_tradeoff(tradeoff: Tradeoff) -> Report:
    """Report accuracy and training time as in the paper's Table 2, also relative to the dense model.

    Tells the parameters of the models, and the order of items with equal scores.
    """
    page = report.of_evaluations([point.evaluation for point in tradeoff.points])
    metrics = list(tradeoff.points[0].evaluation.values)
    first, dense = metrics[0], tradeoff.dense
    rows, shared = [], {}
    for point, data in zip(tradeoff.points, page.data["models"], strict=True):
        row = [*means_text(point.evaluation), report.seconds_text(point.seconds)]
        if dense is not None:
            best = dense.evaluation.mean(first).mean
            is_share = first.is_accuracy and best > 0
            share = percent(point.evaluation.mean(first).mean / best) if is_share else "–"
            row += [f"{dense.seconds / point.seconds:.1f} ×", share]
        rows.append([*row, percent(point.share, 2), human_bytes(point.bytes)])
        data |= {
            "sparsity": point.sparsity, "r": point.r, "share": point.share, "blocks": point.blocks,
            "bytes": point.bytes,
        }  # fmt: skip
        fixed = {n: v for n, v in point.evaluation.parameters.items() if n not in ("sparsity", "r")}
        shared["dense" if point.sparsity is None else "sparse"] = report.parameters_text(fixed, "MRF")
    relative = [] if dense is None else ["speed-up", f"{first.title} of dense"]
    columns = ["model", *(metric.title for metric in metrics), "training", *relative, "weights kept", "size"]
    left_out = [f"Left out: {note}" for note in tradeoff.notes]
    notes = [*(f"{kind}: {text}" for kind, text in shared.items()), *left_out]
    about = [*page.about, f"ties: by {page.data['ties']}"]
    return Report(about, [Section(columns, rows)], {**page.data, "notes": left_out}, notes=notes)


def of_low_rank(comparison: Comparison) -> Report:
    """Report the loss of accuracy when the weights are cut to a low rank."""
    page = report.of_comparison(comparison)
    full, metrics = comparison.evaluations[0], comparison.metrics
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
    lines = {f"recommended by {name}": share for name, share in exposure.models.items()}
    lines["training interactions"] = exposure.training
    if exposure.targets is not None:
        lines["test users' targets"] = exposure.targets
    rows = [
        [
            f"{group + 1}" + (" (most popular)" if group == 0 else ""),
            f"{exposure.items[group]:,}",
            *(percent(share[group], 2) for share in lines.values()),
        ]
        for group in range(len(exposure.items))
    ]
    title = f"By popularity of the items, first {exposure.places} places"
    columns = ["decile" if len(rows) == 10 else "group", "items", *lines]
    shares = {name: share.tolist() for name, share in lines.items()}
    data = {"places": exposure.places, "items": exposure.items.tolist(), "shares": shares}
    sections = [*page.sections, Section(columns, rows, title)]
    return replace(page, sections=sections, data={**page.data, "exposure": data})
