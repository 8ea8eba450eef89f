"""The results of models, what they show as tables, and the same as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec import figures
from mrfrec.checks import counted, in_words
from mrfrec.data.ids import Ids
from mrfrec.errors import DataError, MrfrecError, ParameterError
from mrfrec.evaluation.metrics import Mean, Metric, Numbers, Paired, mean_of, paired, parse
from mrfrec.evaluation.questions import Split, coming_back
from mrfrec.models.registry import kind_named, model_class
from mrfrec.shown import Report, Section, Tabular, number_or_none, parameter_text, report_of, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEWEST_APART, _MOST_APART = 100, 0.95  # users of a situation with a table of its own, and their share


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The results of a model: one number per user and metric.

    Over several cuts in time there is one number per user and cut. `user` then says whose it is, as an index
    in `users`, and standard errors take the numbers of one user together.
    """

    model: str
    parameters: dict[str, Any]
    split: str
    users: Ids
    left_out: int  # users without a target
    values: dict[Metric, Numbers]
    seconds: dict[str, float]  # "training" and its stages, "ranking"
    recommended: npt.NDArray[np.int64]  # how often each item is recommended; at the last cut
    popularity: npt.NDArray[np.int64]  # training users of each item; at the last cut
    facts: dict[str, Any]  # about the data and the model; at the last cut
    situation: npt.NDArray[np.str_] | None = None  # "return" or "visit" for each question, see `at_time`
    popular: "Evaluation | None" = (
        None  # the most popular items on the same questions, if `evaluate` asked them
    )
    cuts: "tuple[Evaluation, ...]" = ()  # the same model at each of several cuts in time
    user: npt.NDArray[np.int64] | None = None

    def mean(self, metric: "str | Metric", situation: str | None = None) -> Mean:
        """Return the mean with its standard error: over all users, or over the users in one situation.

        A metric with one number for all users has a standard error only over several cuts.
        """
        return mean_of(self.per_user(metric, situation), self.user_of(metric, situation))

    def user_of(self, metric: "str | Metric", situation: str | None = None) -> npt.NDArray[np.int64] | None:
        """Return the index of the user of each number of `per_user`; None if no user has two."""
        if self.user is None or parse(metric).is_overall:
            return None
        return self.user if situation is None else self.user[self.situation == situation]

    @property
    def situations(self) -> dict[str, int]:
        """Number of users in each situation; empty if it is not known, or the same for all."""
        if self.situation is None:
            return {}
        names, counts = np.unique(self.situation, return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True)) if len(names) > 1 else {}

    def per_user(self, metric: "str | Metric", situation: str | None = None) -> Numbers:
        """Return one number per user: of all users, or of the users in one situation."""
        values = self.values.get(parse(metric))
        if values is None:
            rule = f"among those evaluated: {', '.join(map(str, self.values))}"
            raise ParameterError("metric", rule, metric)
        if situation is None:
            return values
        if self.situation is None or situation not in self.situation:
            known = () if self.situation is None else np.unique(self.situation).tolist()
            rule = f"that of a user: {', '.join(known)}" if known else "None for a split without situations"
            raise ParameterError("situation", rule, situation)
        if parse(metric).is_overall:
            raise ParameterError("metric", "one that each user has, not one for all of them", metric)
        return np.asarray(values[self.situation == situation])

    def __repr__(self) -> str:
        means = ", ".join(f"{metric} {self.mean(metric)}" for metric in self.values)
        return f"Evaluation({self.model}: {means}; {len(self.users):,} users)"


def pooled(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return one evaluation of a model over several cuts in time, from its evaluation at each cut."""
    last = evaluations[-1]
    cuts = [each.split.removeprefix("cut at ") for each in evaluations]
    users = Ids.of(sorted({user for each in evaluations for user in each.users}), "user")
    rows = [users.find(list(each.users), "user") for each in evaluations]
    situations = [each.situation for each in evaluations if each.situation is not None]
    populars = [each.popular for each in evaluations if each.popular is not None]
    return replace(
        last,
        split=f"{len(cuts)} cuts: {in_words(cuts)}",
        users=users,
        left_out=sum(each.left_out for each in evaluations),
        values={x: np.concatenate([each.values[x] for each in evaluations]) for x in last.values},
        seconds={x: sum(each.seconds.get(x, 0.0) for each in evaluations) for x in last.seconds},
        situation=np.concatenate(situations) if situations else None,
        popular=pooled(populars) if populars else None,
        cuts=tuple(evaluations),
        user=np.concatenate(rows),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular, Mapping[str, Evaluation]):
    """The results of several models on the same users, by name; the first is the reference."""

    evaluations: Sequence[Evaluation]
    failures: Mapping[str, MrfrecError] = field(default_factory=dict)  # why models were left out

    def __post_init__(self) -> None:
        for other in self.evaluations[1:]:
            first = self.evaluations[0]
            if other.users != first.users or [*other.values] != [*first.values]:
                raise DataError(
                    f"{first.model} and {other.model} were evaluated on other users or with other metrics. "
                    "Evaluate both on the same split."
                )
        if len(self) > len({*self}):
            raise ParameterError("evaluations", "of models with different names", [*self])

    @property
    def metrics(self) -> list[Metric]:
        return list(self.evaluations[0].values)

    def paired(
        self,
        model: str,
        metric: "str | Metric",
        against: str | None = None,
        situation: str | None = None,
    ) -> Paired:
        """Compare a model with another, by default the first, user by user: all users, or one situation's."""
        other = self._named("against", against) if against is not None else self.evaluations[0]
        one = self._named("model", model)
        user = one.user_of(metric, situation)
        return paired(one.per_user(metric, situation), other.per_user(metric, situation), user)

    def _named(self, parameter: str, model: str) -> Evaluation:
        """Return the results of a model, or raise an error that suggests a name."""
        if isinstance(model, str) and model in self:
            return self[model]
        near = get_close_matches(str(model), [*self], 1)
        advice = f"Did you mean {near[0]!r}?" if near else ""
        raise ParameterError(parameter, f"one of those compared: {', '.join(self)}", model, advice)

    def plot(self, metric: "str | Metric | None" = None) -> "Figure":
        """Draw the mean of each model with its standard error: of a metric, by default the first.

        Returns a matplotlib `Figure`. Models may differ although their bars overlap: `paired` tells.
        """
        metric = self.metrics[0] if metric is None else parse(metric)
        means = [evaluation.mean(metric) for evaluation in self.evaluations]
        return figures.plot_points(self.evaluations[0].split, metric.title, [*self], means)

    def __getitem__(self, model: str) -> Evaluation:
        return {evaluation.model: evaluation for evaluation in self.evaluations}[model]

    def __iter__(self) -> Iterator[str]:
        return (evaluation.model for evaluation in self.evaluations)

    def __len__(self) -> int:
        return len(self.evaluations)


def means_text(evaluation: Evaluation, situation: str | None = None) -> list[str]:
    """Return the name of a model and its means with their errors: of all users, or of one situation."""
    metrics = [metric for metric in evaluation.values if situation is None or not metric.is_overall]
    return [evaluation.model, *(str(evaluation.mean(metric, situation)) for metric in metrics)]


def _in_situation(situation: str, count: int) -> str:
    return f"{counted(count, 'user')} in a visit" if situation == "visit" else coming_back(count)


def _shown_apart(evaluation: Evaluation) -> tuple[dict[str, int], list[str]]:
    """Return the situations that get a table of their own, and why the others get none."""
    total = sum(evaluation.situations.values())
    shown, reasons = {}, []
    for name, count in evaluation.situations.items():
        if count < _FEWEST_APART:
            reasons.append(f"{_in_situation(name, count)}, too few")
        elif count > _MOST_APART * total:
            reasons.append(f"{_in_situation(name, count)}, {count / total:.1%} of all")
        else:
            shown[name] = count
    return shown, reasons


def of_evaluations(evaluations: Sequence[Evaluation]) -> Report:
    """Report evaluations, one row each."""
    first = evaluations[0]
    rows = [
        [*means_text(evaluation), seconds_text(evaluation.seconds.get("training"))]
        for evaluation in evaluations
    ]
    metrics = [metric.title for metric in first.values]
    own = ["model", *(metric.title for metric in first.values if not metric.is_overall)]
    shown, reasons = _shown_apart(first) if len(own) > 1 else ({}, [])
    apart = [
        Section(own, [means_text(each, name) for each in evaluations], _in_situation(name, count))
        for name, count in shown.items()
    ]
    if first.cuts:
        at_cuts = [
            [cut.split.removeprefix("cut at "), f"{len(cut.users):,}", *means_text(cut)]
            for cuts in zip(*(each.cuts for each in evaluations), strict=True)
            for cut in cuts
        ]
        apart.insert(0, Section(["cut", "users", "model", *metrics], at_cuts, "At each cut"))
    models = [_as_data(evaluation) for evaluation in evaluations]
    data = {"split": first.split, "ties": first.facts["ties"], "models": models}
    notes = [_legend(evaluation) for evaluation in evaluations]
    records = [
        {
            **({"cut": cut.split if cut is not each else None} if first.cuts else {}),
            **({"situation": situation} if first.situations else {}),
            **record,
        }
        for number in range(len(first.cuts) + 1)
        for situation in (None, *(() if number else first.situations))
        for each in evaluations
        for cut in [(each, *each.cuts)[number]]
        for record in _records(cut, situation)
    ]
    columns = ["model", *metrics, "training"]
    about = _about(first, reasons)
    return Report(about, [Section(columns, rows), *apart], data, notes, records, first.facts.get("library"))


def _about(first: Evaluation, reasons: Sequence[str]) -> list[str]:
    """Return lines about the split, for the top of a report."""
    latest = ", at the last cut" if first.cuts else ""
    at_cuts = f", {len(first.user):,} times at one of the cuts" if first.user is not None else ""
    left_out = f" ({first.left_out:,} left out, without a target)" if first.left_out else ""
    training = "training: {users:,} users × {items:,} items, {pairs:,} pairs".format_map(first.facts)
    about = [
        f"split: {first.split}",
        f"{training}{latest}",
        f"test: {len(first.users):,} users{at_cuts}{left_out}",
    ]
    if first.facts["new_items"]:
        new, lost = counted(first.facts["new_items"], "item"), counted(first.facts["new_targets"], "event")
        about.append(f"{new} new since the cut{latest}, which no model knows: {lost} with them not asked for")
    return about + ([f"without a table of their own: {in_words(reasons)}"] if reasons else [])


@report_of.register
def of_evaluation(evaluation: Evaluation) -> Report:
    """Report one evaluation, and beside it the most popular items."""
    return of_evaluations([evaluation, *([] if evaluation.popular is None else [evaluation.popular])])


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


def describe_lists(counts: dict[str, Any]) -> list[str]:
    """Return in words what was odd about the lists, as `facts["lists"]` counts it."""
    seen = "taken out" if counts["drop_seen"] else "each a miss"
    said = {
        "users_without_list": ("test user", "without a list, who count as misses"),
        "users_not_asked": ("user", "not among the test users, left out"),
        "unknown_items": ("place", "with an item that is not in the training data, each a miss"),
        "seen_items": ("place", f"with an item that the user has already seen, {seen}"),
    }
    return [f"{counted(counts[key], noun)} {what}" for key, (noun, what) in said.items() if counts[key]]


@report_of.register
def of_comparison(comparison: Comparison) -> Report:
    """Report models and their differences from the first one, paired by user."""
    if not comparison:
        failed = [(name, str(error)) for name, error in comparison.failures.items()]
        return Report(["no model was evaluated"], [Section(["model", "failure"], failed)])
    report = of_evaluations(comparison.evaluations)
    first, *others = comparison.evaluations
    shown, _ = _shown_apart(first)
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
        if others and (situation is None or situation in shown):
            sections.append(Section(columns, rows, title + apart))
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
    if record.get("cut") is not None:
        found = {}
    if (situation := record.get("situation")) is not None:
        found = {"metrics": found.get("situations", {}).get(situation, {})}
    pair = found.get("metrics", {}).get(record["metric"], {})
    names = {"difference": "difference", "error": "difference_error", "p": "p"}
    return {new: pair.get(name) for name, new in names.items()}


def _with_measured(evaluation: Evaluation) -> str:
    """Return the name of a model, with the parameters that it measured itself."""
    measured = evaluation.facts.get("measured")
    note = f" (which measured {', '.join(measured)} on training users)" if measured else ""
    return evaluation.model + note


def _is_untuned(evaluation: Evaluation) -> bool:
    """Return whether all parameters that change a result have their defaults."""
    kind = str(evaluation.facts.get("kind", ""))
    if not kind_named(kind):
        return False
    defaults = {n: x for n, x in model_class(kind).defaults().items() if n in evaluation.parameters}
    return bool(defaults) and evaluation.parameters == defaults


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
    cuts = [
        {"split": cut.split, "test_users": len(cut.users), "metrics": _means_as_data(cut)}
        for cut in evaluation.cuts
    ]
    return {
        "name": evaluation.model,
        "kind": evaluation.facts.get("kind", ""),
        "parameters": evaluation.parameters,
        "values": evaluation.facts.get("values", {}),
        "plan": evaluation.facts.get("plan"),
        "metrics": _means_as_data(evaluation),
        **({"situations": apart} if apart else {}),
        **({"cuts": cuts} if cuts else {}),
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

    Beside it stand the group's shares of the catalogue and of the training pairs. The groups with the most
    pairs are shown, and all other groups as one. An item with a list of values counts for every value.
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
