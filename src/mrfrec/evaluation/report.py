"""What was measured, for people and for programs: tables, Markdown, JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mrfrec import __version__
from mrfrec.core.resources import human_bytes
from mrfrec.evaluation.metrics import Mean, Metric, p_text
from mrfrec.evaluation.protocol import Comparison, Evaluation
from mrfrec.evaluation.side_checks import Exposure
from mrfrec.evaluation.tradeoff import Tradeoff
from mrfrec.evaluation.tuning import Trial, Tuning
from mrfrec.models.registry import kind_named, model_class

__all__ = [
    "Report",
    "Section",
    "joined",
    "of_comparison",
    "of_evaluations",
    "of_exposure",
    "of_low_rank",
    "of_tradeoff",
    "of_tuning",
    "seconds_text",
]

_UNBOUNDED = ("l2", "l1", "neighbors", "shrink", "factors", "weight")  # of which more can always be tried


@dataclass(frozen=True)
class Section:
    """A table of texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Report:
    """A few lines about what was done, tables, and the same as data."""

    about: Sequence[str]
    sections: Sequence[Section]
    data: dict[str, Any]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def on(self, data: dict[str, Any]) -> "Report":
        """With what is known about where the data came from, and what measured it."""
        said = ", ".join(f"{name}={value}" for name, value in data.items() if name != "data")
        files = " ".join(map(str, data.get("data", ())))
        about = [f"data: {files}{', ' + said if said else ''}", *self.about]
        return replace(self, about=about, data={"mrfrec": __version__, "data": data, **self.data})

    def markdown(self) -> str:
        """As a page, or a part of one."""
        parts = [f"# {self.title}"] if self.title else []
        parts += ["\n".join(f"- {line}" for line in self.about)] if self.about else []
        for section in self.sections:
            parts += [f"## {section.title}"] if section.title else []
            parts.append(
                "\n".join(
                    "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                    for row in (section.columns, ["---"] * len(section.columns), *section.rows)
                )
            )
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        """All numbers, with all their digits."""
        return json.dumps(self.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def seconds_text(seconds: float | None) -> str:
    """A time for people: 0.42 s, 12.3 s, 2 min 5 s."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def mean_text(metric: Metric, value: Mean) -> str:
    """With as many digits as say something."""
    if metric.kind == "popularity":
        return f"{value.mean:,.1f} ± {value.error:,.1f}"
    return str(value)


def of_evaluations(evaluations: Sequence[Evaluation], title: str = "") -> Report:
    """One model, or several, a row each."""
    first = evaluations[0]
    metrics = list(first.values)
    rows = [
        [
            evaluation.model,
            *(mean_text(metric, evaluation.mean(metric)) for metric in metrics),
            seconds_text(evaluation.seconds.get("training")),
        ]
        for evaluation in evaluations
    ]
    columns = ["model", *(metric.title for metric in metrics), "training"]
    data = {
        "split": first.split,
        "ties": first.facts["ties"],
        "models": [_as_data(evaluation) for evaluation in evaluations],
    }
    notes = [_legend(evaluation) for evaluation in evaluations]
    return Report(_about(first), [Section(columns, rows)], data, title, notes)


def _legend(evaluation: Evaluation) -> str:
    """A name, the kind of the model and its parameters; one that is called by these has no other name."""
    name, kind = evaluation.model, _kind(evaluation)
    parameters = _parameters_text(evaluation.parameters, kind)
    text = f"{kind}, {parameters}" if kind else parameters
    is_called_by_it = name in (kind, parameters) or name.startswith((f"{kind}:", f"{kind}("))
    return text if is_called_by_it else f"{name}: {text}"


def of_comparison(comparison: Comparison, title: str = "") -> Report:
    """A row for each model; and, user by user, what the others have over the first."""
    report = of_evaluations(comparison.evaluations, title)
    first, *others = comparison.evaluations
    metrics = [metric for metric in comparison.metrics if not metric.is_overall]
    rows, differences = [], []
    for other in others:
        found = {metric: comparison.paired(other.model, metric) for metric in metrics}
        rows.append([other.model, *(_difference_text(metric, found[metric]) for metric in metrics)])
        differences.append(
            {
                "model": other.model,
                "against": first.model,
                "metrics": {
                    str(metric): {
                        "difference": pair.difference, "error": _or_none(pair.error), "p": _or_none(pair.p)
                    }
                    for metric, pair in found.items()
                },
            }
        )  # fmt: skip
    section = Section(
        ["model", *(metric.title for metric in metrics)], rows, f"Difference from {first.model}, user by user"
    )
    sections = [*report.sections, section]
    data = {**report.data, "differences": differences}
    return Report(report.about, sections, data, title, report.notes)


def of_tuning(tuning: Tuning, most: int = 10, title: str = "") -> Report:
    """The best trials, the best first."""
    names = list(dict.fromkeys(name for trial in tuning.trials for name in trial.parameters))
    tried = {_key(trial): trial for trial in tuning.trials}.values()
    ranked = sorted((t for t in tried if t.value is not None), key=lambda t: -(t.value or 0.0))
    failed = [trial for trial in tried if trial.value is None]
    rows = [
        [
            *(_parameter_text(name, trial.parameters.get(name, "")) for name in names),
            str(Mean(trial.value or 0.0, float("nan") if trial.error is None else trial.error)),
            seconds_text(trial.seconds) + ("" if tuning.is_eligible(trial) else " (too long)"),
        ]
        for trial in ranked[:most]
    ]
    about = [
        f"split: {tuning.split}",
        f"{tuning.model}: {len(tried):,} point{'s' * (len(tried) != 1)} tried"
        + (f", of which {len(failed):,} could not be fitted" if failed else "")
        + (f"; shown: the best {most}" if len(ranked) > most else ""),
    ]
    data = {
        "model": tuning.model,
        "metric": str(tuning.metric),
        "split": tuning.split,
        "best": tuning.best.parameters,
        "trials": [
            {
                "parameters": trial.parameters, "value": trial.value, "error": trial.error,
                "training_seconds": trial.seconds, "failure": trial.failure,
            }
            for trial in tried
        ],
    }  # fmt: skip
    columns = [*names, f"{tuning.metric.title} (validation)", "training"]
    notes = [
        f"Not fitted: {_parameters_text(trial.parameters, tuning.model)}: {trial.failure}"
        for trial in failed[:3]
    ]
    notes += _at_the_border(tuning)
    return Report(about, [Section(columns, rows)], data, title, notes)


def of_tradeoff(tradeoff: Tradeoff, title: str = "") -> Report:
    """The paper's Table 2: accuracy and training time, and both beside those of the dense model."""
    page = of_evaluations([point.evaluation for point in tradeoff.points], title)
    first = tradeoff.metrics[0]
    rows = []
    for point, row in zip(tradeoff.points, tradeoff.rows(), strict=True):
        rows.append(
            [
                row.model,
                *(mean_text(metric, mean) for metric, mean in row.means.items()),
                seconds_text(row.seconds),
                *([] if row.speed_up is None else [f"{row.speed_up:.1f} ×", _share(row.of_dense.get(first))]),
                _percent(point.share, 2),
                human_bytes(point.bytes),
            ]
        )
        page.data["models"][len(rows) - 1] |= {
            "sparsity": point.sparsity, "r": point.r, "share": point.share, "blocks": point.blocks,
            "bytes": point.bytes,
        }  # fmt: skip
    beside = [] if tradeoff.dense is None else ["speed-up", f"{first.title} of dense"]
    titles = [metric.title for metric in tradeoff.metrics]
    columns = ["model", *titles, "training", *beside, "weights kept", "size"]
    left_out = [f"Left out: {note}" for note in tradeoff.notes]
    notes = [*_shared_parameters(tradeoff), *left_out]
    return Report(page.about, [Section(columns, rows)], {**page.data, "notes": left_out}, title, notes)


def _shared_parameters(tradeoff: Tradeoff) -> list[str]:
    """Of the dense model, and of the sparse ones but for what varies."""
    told = {}
    for point in tradeoff.points:
        fixed = {n: v for n, v in point.evaluation.parameters.items() if n not in ("sparsity", "r")}
        told["dense" if point.sparsity is None else "sparse"] = _parameters_text(fixed, "MRF")
    return [f"{kind}: {text}" for kind, text in told.items()]


def _share(value: float | None) -> str:
    return "–" if value is None else _percent(value)


def of_low_rank(comparison: Comparison, split: str, title: str = "") -> Report:
    """What is lost when the weights are cut to a rank."""
    comparison = Comparison(tuple(replace(found, split=split) for found in comparison.evaluations))
    page = of_comparison(comparison, title)
    full = comparison.evaluations[0]
    rows = []
    for evaluation in comparison.evaluations:
        metrics = comparison.metrics
        drop = 1 - evaluation.mean(metrics[0]).mean / (full.mean(metrics[0]).mean or 1.0)
        energy = evaluation.facts.get("energy")
        rows.append(
            [
                evaluation.model,
                *(mean_text(metric, evaluation.mean(metric)) for metric in metrics),
                "–" if evaluation is full else _percent(drop),
                "100 %" if energy is None else _percent(energy),
            ]
        )
    names = [metric.title for metric in comparison.metrics]
    section = Section(["weights", *names, f"drop in {names[0]}", "squares of the weights kept"], rows)
    return Report(page.about, [section], page.data, title, page.notes[:1])


def of_exposure(exposure: Exposure, title: str = "") -> Report:
    """Shares of the recommendations by popularity of the items."""
    lines = {f"recommended by {name}": share for name, share in exposure.models.items()}
    lines["training interactions"] = exposure.training
    if exposure.targets is not None:
        lines["test users' targets"] = exposure.targets
    label = "decile" if exposure.groups == 10 else "group"
    rows = [
        [
            f"{group + 1}" + (" (most popular)" if group == 0 else ""),
            f"{exposure.items[group]:,}",
            *(_percent(share[group], 2) for share in lines.values()),
        ]
        for group in range(exposure.groups)
    ]
    data = {"places": exposure.places, "items": exposure.items.tolist(),
            "shares": {name: share.tolist() for name, share in lines.items()}}  # fmt: skip
    about = [f"share of the first {exposure.places} places of all lists, by popularity of the items"]
    section = Section(
        [label, "items", *lines], rows, f"By popularity of the items, first {exposure.places} places"
    )
    return Report(about, [section], data, title)


def joined(page: Report, other: Report) -> Report:
    """Two in one."""
    return replace(
        page, sections=[*page.sections, *other.sections], data={**page.data, "exposure": other.data}
    )


def _at_the_border(tuning: Tuning) -> list[str]:
    """Says so where the best is the smallest or the largest that was tried with its other parameters."""
    best = tuning.best.parameters
    if tuning.best.chosen is not None:  # by a search, which goes where it likes
        return []
    notes = []
    for name in (name for name in _UNBOUNDED if name in best):
        others = {n: value for n, value in best.items() if n != name}
        beside = [t for t in tuning.trials if {**t.parameters, name: None} == {**others, name: None}]
        values = {t.parameters[name]: t.value for t in beside if name in t.parameters}
        tried = sorted(values)
        if len(tried) < 2 or best[name] not in (tried[0], tried[-1]) or best[name] == 0:
            continue
        inside = values[tried[1] if best[name] == tried[0] else tried[-2]]
        if inside is None or (tuning.best.value or 0.0) > inside:  # not where it makes no difference
            which, more = ("smallest", "smaller") if best[name] == tried[0] else ("largest", "larger")
            notes.append(
                f"The best {name} is the {which} that was tried with its other parameters: try {more} ones."
            )
    return notes


def _kind(evaluation: Evaluation) -> str:
    return str(evaluation.facts.get("kind", ""))


def _parameters_text(parameters: dict[str, Any], kind: str) -> str:
    """Those that are not the usual ones."""
    usual = model_class(kind).defaults() if kind_named(kind) else {}
    own = {n: v for n, v in parameters.items() if n not in usual or usual[n] != v}
    return ", ".join(f"{name}={_parameter_text(name, v)}" for name, v in own.items()) or "as by default"


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _key(trial: Trial) -> str:
    return json.dumps(trial.parameters, sort_keys=True)


def _parameter_text(name: str, value: object) -> str:
    if value is None:
        return "dense" if name == "sparsity" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _about(evaluation: Evaluation) -> list[str]:
    facts = evaluation.facts
    left_out = f" ({evaluation.left_out:,} left out, without a target)" if evaluation.left_out else ""
    return [
        f"split: {evaluation.split}",
        f"training: {facts['users']:,} users × {facts['items']:,} items, {facts['pairs']:,} pairs",
        f"test: {len(evaluation.users):,} users{left_out}",
    ]


def _difference_text(metric: Metric, pair: Any) -> str:
    if metric.kind == "popularity":
        return f"{pair.difference:+,.1f} ± {pair.error:,.1f} (p {p_text(pair.p)})"
    return str(pair)


def _as_data(evaluation: Evaluation) -> dict[str, Any]:
    means = {metric: evaluation.mean(metric) for metric in evaluation.values}
    return {
        "name": evaluation.model,
        "kind": _kind(evaluation),
        "parameters": evaluation.parameters,
        "metrics": {
            str(metric): {"mean": mean.mean, "error": _or_none(mean.error)} for metric, mean in means.items()
        },
        "test_users": len(evaluation.users),
        "left_out": evaluation.left_out,
        "training": {name: evaluation.facts[name] for name in ("users", "items", "pairs")},
        "seconds": evaluation.seconds,
    }


def _or_none(value: float) -> float | None:
    return value if value == value else None
