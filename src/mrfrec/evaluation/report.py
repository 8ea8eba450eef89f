"""Turn results into reports: tables for people, and the same as data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import polars as pl

from mrfrec.checks import counted
from mrfrec.errors import ParameterError
from mrfrec.evaluation.metrics import Mean
from mrfrec.evaluation.others import describe_lists
from mrfrec.evaluation.protocol import Comparison, Evaluation
from mrfrec.evaluation.questions import Split, coming_back
from mrfrec.evaluation.tuning import Tuning
from mrfrec.models.registry import kind_named, model_class
from mrfrec.shown import Report, Section, number_or_none, parameter_text, report_of, seconds_text


def means_text(evaluation: Evaluation, situation: str | None = None) -> list[str]:
    """Return the name of a model and its means with their errors, of all users or those in one situation."""
    metrics = [metric for metric in evaluation.values if situation is None or not metric.is_overall]
    return [evaluation.model, *(str(evaluation.mean(metric, situation)) for metric in metrics)]


def _in_situation(situation: str, count: int) -> str:
    return f"{counted(count, 'user')} in a visit" if situation == "visit" else coming_back(count)


def of_evaluations(evaluations: Sequence[Evaluation]) -> Report:
    """Report evaluations, one row each."""
    first = evaluations[0]
    rows = [
        [*means_text(evaluation), seconds_text(evaluation.seconds.get("training"))]
        for evaluation in evaluations
    ]
    columns = ["model", *(metric.title for metric in first.values), "training"]
    own = ["model", *(metric.title for metric in first.values if not metric.is_overall)]
    apart = [
        Section(own, [means_text(each, name) for each in evaluations], _in_situation(name, count))
        for name, count in first.situations.items()
        if len(own) > 1
    ]
    models = [_as_data(evaluation) for evaluation in evaluations]
    data = {"split": first.split, "ties": first.facts["ties"], "models": models}
    notes = [_legend(evaluation) for evaluation in evaluations]
    left_out = f" ({first.left_out:,} left out, without a target)" if first.left_out else ""
    about = [
        f"split: {first.split}",
        "training: {users:,} users × {items:,} items, {pairs:,} pairs".format_map(first.facts),
        f"test: {len(first.users):,} users{left_out}",
    ]
    if first.facts["new_items"]:
        new, lost = counted(first.facts["new_items"], "item"), counted(first.facts["new_targets"], "event")
        about.append(f"{new} new since the cut, which no model knows: {lost} with them not asked for")
    records = [
        {**({"situation": situation} if first.situations else {}), **record}
        for situation in (None, *first.situations)
        for evaluation in evaluations
        for record in _records(evaluation, situation)
    ]
    return Report(about, [Section(columns, rows), *apart], data, notes, records, first.facts.get("library"))


@report_of.register
def of_evaluation(evaluation: Evaluation) -> Report:
    """Report one evaluation."""
    return of_evaluations([evaluation])


def _records(evaluation: Evaluation, situation: str | None) -> list[dict[str, Any]]:
    """Return a row of a data frame for each metric."""
    seconds = evaluation.seconds.get("training")
    return [
        {"model": evaluation.model, "metric": name, **means, "seconds": seconds}
        for name, means in _means_as_data(evaluation, situation).items()
    ]


def _legend(evaluation: Evaluation) -> str:
    """Describe a model by name, kind, parameters and plan; or the lists of another system."""
    if (lists := evaluation.facts.get("lists")) is not None:
        return "; ".join(
            [f"{evaluation.model}: lists in the order of {lists['order']}", *describe_lists(lists)]
        )
    kind = str(evaluation.facts.get("kind", ""))
    plan = evaluation.facts.get("plan")
    text = f"{evaluation.model}: {kind}, {parameters_text(evaluation.parameters, kind)}"
    rules = ", ".join(f"{name}={value}" for name, value in evaluation.facts.get("rules", {}).items())
    text += f". Asked with {rules}" if rules else ""
    return text + (f". Fitted: {plan}" if plan else "")


@report_of.register
def of_comparison(comparison: Comparison) -> Report:
    """Report models and their differences from the first one, paired by user."""
    if not comparison:
        failed = [(name, str(error)) for name, error in comparison.failures.items()]
        return Report(["no model was evaluated"], [Section(["model", "failure"], failed)])
    report = of_evaluations(comparison.evaluations)
    first, *others = comparison.evaluations
    metrics = [metric for metric in comparison.metrics if not metric.is_overall]
    columns = ["model", *(metric.title for metric in metrics)]
    title = f"Difference from {first.model}, user by user"
    sections = []
    differences: list[dict[str, Any]] = [{"model": each.model, "against": first.model} for each in others]
    for situation, count in [(None, 0), *first.situations.items()]:
        rows = []
        for other, found in zip(others, differences, strict=True):
            pairs = {metric: comparison.paired(other.model, metric, None, situation) for metric in metrics}
            rows.append([other.model, *map(str, pairs.values())])
            by_metric = {
                str(metric): {name: number_or_none(x) for name, x in pair._asdict().items()}
                for metric, pair in pairs.items()
            }
            if situation is None:
                found["metrics"] = by_metric
            else:
                found.setdefault("situations", {})[situation] = by_metric
        apart = "" if situation is None else f": {_in_situation(situation, count)}"
        sections += [Section(columns, rows, title + apart)] if others else []
    untuned = [each for each in comparison.evaluations if _is_untuned(each)]
    notes = [*report.notes]
    if untuned:
        names = ", ".join(map(_with_measured, untuned))
        notes.append(f"Untuned, with their default parameters: {names}.")
    data = {**report.data, "differences": differences, "untuned": [each.model for each in untuned]}
    records = [{**record, **_difference(record, differences)} for record in report.records]
    means, *apart_means = report.sections
    ordered = [means, *sections[:1], *apart_means, *sections[1:]]
    return replace(report, sections=ordered, data=data, notes=notes, records=records, headline=2)


def _difference(record: Mapping[str, Any], differences: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the difference from the first model that belongs to a row of a data frame."""
    found = next((each for each in differences if each["model"] == record["model"]), {})
    if (situation := record.get("situation")) is not None:
        found = {"metrics": found.get("situations", {}).get(situation, {})}
    pair = found.get("metrics", {}).get(record["metric"], {})
    names = {"difference": "difference", "error": "difference_error", "p": "p"}
    return {new: pair.get(name) for name, new in names.items()}


def _with_measured(evaluation: Evaluation) -> str:
    """Return the name of a model, and which of its parameters it has measured by itself."""
    measured = evaluation.facts.get("measured")
    note = f" (which measured {', '.join(measured)} on training users)" if measured else ""
    return evaluation.model + note


def _is_untuned(evaluation: Evaluation) -> bool:
    """Return whether all parameters that change results have their defaults."""
    kind = str(evaluation.facts.get("kind", ""))
    if not kind_named(kind):
        return False
    defaults = {n: x for n, x in model_class(kind).defaults().items() if n in evaluation.parameters}
    return bool(defaults) and evaluation.parameters == defaults


@report_of.register
def of_tuning(tuning: Tuning, most: int = 10) -> Report:
    """Report the best trials, the best first, and by how much they are better than the first one."""
    first = tuning.trials[0]
    names = list(dict.fromkeys(name for trial in tuning.trials for name in trial.parameters))
    names = [name for name in names if name != "measure"]  # no trial measures, but the first
    ranked = sorted((t for t in tuning.trials if t.value is not None), key=lambda t: -(t.value or 0.0))
    failed = [trial for trial in tuning.trials if trial.value is None]
    shown = ranked[:most] + ([] if first in ranked[:most] else [first])
    rows = [
        [
            *(parameter_text(name, trial.parameters.get(name, "")) for name in names),
            str(Mean(trial.value or 0.0, float("nan") if trial.error is None else trial.error)),
            "start" if trial.gain is None else str(trial.gain),
            seconds_text(trial.seconds),
        ]
        for trial in shown
    ]
    about = [
        f"split: {tuning.split}",
        f"{tuning.model}: {counted(len(tuning.trials), 'point')} tried"
        + (f", of which {len(failed):,} could not be fitted" if failed else ""),
    ]
    data = {
        "model": tuning.model, "metric": str(tuning.metric), "split": tuning.split,
        "best": tuning.complete(tuning.best), "start": tuning.complete(first),
        "trials": [{**asdict(trial), "parameters": tuning.complete(trial)} for trial in tuning.trials],
    }  # fmt: skip
    columns = [*names, f"{tuning.metric.title} (validation)", "over the start", "training"]
    notes = [
        f"Not fitted: {parameters_text(trial.parameters, tuning.model)}: {trial.failure}"
        for trial in failed[:3]
    ]
    if tuning.best.plan:
        notes.insert(0, f"The best of {counted(len(tuning.trials), 'point')} tried: {tuning.best.plan}")
    records = [
        {
            **{name: trial.parameters.get(name) for name in names},
            str(tuning.metric): trial.value, "error": trial.error,
            "gain": None if trial.gain is None else trial.gain.difference,
            "gain_error": None if trial.gain is None else number_or_none(trial.gain.error),
            "seconds": trial.seconds, "failure": trial.failure,
        }
        for trial in tuning.trials
    ]  # fmt: skip
    return Report(about, [Section(columns, rows)], data, notes, records, tuning.library)


def parameters_text(parameters: dict[str, Any], kind: str) -> str:
    """List the parameters that differ from the defaults of this kind of model."""
    defaults = model_class(kind).defaults() if kind_named(kind) else {}
    own = {n: v for n, v in parameters.items() if n not in defaults or defaults[n] != v}
    return ", ".join(f"{name}={parameter_text(name, v)}" for name, v in own.items()) or "default parameters"


def percent(share: float, digits: int = 1) -> str:
    """Format a share: 12.3 %."""
    return f"{100 * share:.{digits}f} %"


def _as_data(evaluation: Evaluation) -> dict[str, Any]:
    apart = {
        situation: {"users": count, "metrics": _means_as_data(evaluation, situation)}
        for situation, count in evaluation.situations.items()
    }
    return {
        "name": evaluation.model,
        "kind": evaluation.facts.get("kind", ""),
        "parameters": evaluation.parameters,
        "values": evaluation.facts.get("values", {}),
        "plan": evaluation.facts.get("plan"),
        "metrics": _means_as_data(evaluation),
        **({"situations": apart} if apart else {}),
        "test_users": len(evaluation.users),
        "left_out": evaluation.left_out,
        **{name: x for name in ("new_items", "new_targets") if (x := evaluation.facts[name])},
        "training": {name: evaluation.facts[name] for name in ("users", "items", "pairs")},
        "seconds": evaluation.seconds,
        **evaluation.facts.get("weights", {}),
        **({"rules": rules} if (rules := evaluation.facts.get("rules")) else {}),
        **({"lists": lists} if (lists := evaluation.facts.get("lists")) is not None else {}),
    }


def _means_as_data(evaluation: Evaluation, situation: str | None = None) -> dict[str, Any]:
    metrics = [metric for metric in evaluation.values if situation is None or not metric.is_overall]
    means = {str(metric): evaluation.mean(metric, situation) for metric in metrics}
    return {name: {"mean": m.mean, "error": number_or_none(m.error)} for name, m in means.items()}


def by_column(evaluations: Sequence[Evaluation], split: Split, column: str, most: int = 10) -> Section:
    """Report how much of what is recommended goes to each group of items with one value of a column.

    Beside it stand the group's shares of the catalogue and of the training pairs. The largest groups by pairs
    are shown, and the others as one. An item with a list counts for each of its parts.
    """
    table = split.training.table
    if table is None:
        raise ParameterError("column", "left out without a table of items", column)
    own = table.over(split.training.items)
    ptr, codes, values = own.groups(column, "column")
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    names = _names_of_groups(values)
    counts = [np.ones(len(ptr) - 1), split.training.popularity, *(each.recommended for each in evaluations)]
    of_groups = [np.bincount(codes, each[owner], len(names)) / max(each.sum(), 1) for each in counts]
    order = np.argsort(-of_groups[1], kind="stable")
    rows = [[names[group], *(percent(each[group]) for each in of_groups)] for group in order[:most].tolist()]
    if len(order) > most:
        others = [percent(each[order[most:]].sum()) for each in of_groups]
        rows.append([f"{len(order) - most:,} others", *others])
    bare = np.diff(ptr) == 0
    if bare.any():
        rows.append(["without", *(percent(each[bare].sum() / max(each.sum(), 1)) for each in counts)])
    columns = [column, "catalogue", "training", *(each.model for each in evaluations)]
    return Section(columns, rows, f"Share of what is recommended, by {column}")


def _names_of_groups(values: pl.Series) -> list[str]:
    if values.dtype == pl.Datetime:
        return values.dt.strftime("%Y-%m-%d %H:%M").to_list()
    if values.dtype == pl.String:
        return values.to_list()
    return [f"{value:g}" if values.dtype != pl.Boolean else "yes" if value else "no" for value in values]
