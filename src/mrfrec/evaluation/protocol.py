"""Evaluate one model on a split, or compare several: fit, rank, compute metrics."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mrfrec import figures
from mrfrec.answers.people import People, people_of, timed_rows
from mrfrec.answers.question import Question
from mrfrec.answers.ranking import Eligible
from mrfrec.answers.ranking import rank as rank_items
from mrfrec.answers.recommending import PreparedQuestion
from mrfrec.bars import showing
from mrfrec.checks import warn
from mrfrec.core.engine import Progress, part_of
from mrfrec.core.rows import Rows
from mrfrec.data.ids import Ids
from mrfrec.errors import DataError, MemoryPlanError, MrfrecError, ParameterError
from mrfrec.evaluation.metrics import (
    DEFAULTS,
    Lists,
    Mean,
    Metric,
    Numbers,
    Paired,
    mean_of,
    paired,
    parse,
    parse_all,
    within,
)
from mrfrec.evaluation.questions import SEED, Questions, Split, check_type
from mrfrec.fitted.measured import as_parameter
from mrfrec.models.mrf.weights import MRFWeights
from mrfrec.models.parameters import call_of, runtime_of, unfitted
from mrfrec.models.recommender import Recommender
from mrfrec.shown import Tabular

_USERS_AT_ONCE = 4096
_TRAINING = 0.8  # share of the time of an evaluation that the fit takes, about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ties = Literal["index", "popularity"]
Rules = Mapping[str, Any] | None
_NAMES_OF_RULES = ("where", "at_most", "boost", "variety", "allow", "exclude", "novelty")
RULES = tuple(name for name in Question.model_fields if name in _NAMES_OF_RULES)
"""The parameters of `recommend` with which models can be evaluated."""


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The results of a model: one number per user and metric."""

    model: str
    parameters: dict[str, Any]
    split: str
    users: Ids
    left_out: int  # users without a target
    values: dict[Metric, Numbers]
    seconds: dict[str, float]  # "training" and its stages, "ranking"
    recommended: npt.NDArray[np.int64]  # how often each item is recommended
    popularity: npt.NDArray[np.int64]  # training users of each item
    facts: dict[str, Any]  # about the data and the model
    situation: npt.NDArray[np.str_] | None = None  # "return" or "visit" for each user, see `at_time`

    def mean(self, metric: "str | Metric", situation: str | None = None) -> Mean:
        """Return the mean over users, with its standard error; over those in one situation if it is given."""
        return mean_of(self.per_user(metric, situation))

    @property
    def situations(self) -> dict[str, int]:
        """Number of users in each situation; none where all are in the same, or nobody knows."""
        if self.situation is None:
            return {}
        names, counts = np.unique(self.situation, return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True)) if len(names) > 1 else {}

    def per_user(self, metric: "str | Metric", situation: str | None = None) -> Numbers:
        """Return one number per user, of all or of those in one situation."""
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


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular, Mapping[str, Evaluation]):
    """The results of several models on the same users, by name; the first is the reference."""

    evaluations: Sequence[Evaluation]
    failures: Mapping[str, MrfrecError] = field(default_factory=dict)  # of models that were left out

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
        """Compare a model with another, by default the first, user by user; all or those in one situation."""
        other = self._named("against", against) if against is not None else self.evaluations[0]
        one = self._named("model", model)
        return paired(one.per_user(metric, situation), other.per_user(metric, situation))

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


def evaluate(
    model: Recommender,
    split: Split,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
    reuse: dict[str, Any] | None = None,
    rules: Rules = None,
) -> Evaluation:
    """Fit a model on the training data of a split and evaluate it on the test users.

    The model is not changed: a new one with its parameters is fitted.

    Parameters
    ----------
    split
        Also says how much data there was before some was left out or held out. A warning tells if a fit to
        all of it would be another kind of model (dense or sparse) than the one evaluated.
    ties
        Order of items with equal scores: "popularity", the more popular first, as in `recommend`; or "index",
        the lower column first, as in the published experiments.
    reuse
        A dict in which fits on the same data share intermediate results, as in `Recommender.fit`.
    rules
        Of the question that is asked, such as {"at_most": {"brand": 2}, "variety": 0.3}: where, at_most,
        boost, variety, allow, exclude or novelty, as in `Recommender.recommend`. Columns are those of the
        table of items of the training data, see `Split.with_table`.

    Notes
    -----
    Models trained in epochs use the validation users, if the split has any, to choose the best epoch.
    """
    if not isinstance(model, Recommender):
        raise ParameterError("model", "a model such as MRF()", model)
    with showing(progress) as report:
        return fit_and_evaluate(
            unfitted(model), split, metrics, name=name, ties=ties, progress=report, reuse=reuse,
            rules=rules,
        )  # fmt: skip


def fit_and_evaluate(
    model: Recommender,
    split: Split,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    ties: Ties = "popularity",
    progress: Progress | None = None,
    rules: Rules = None,
    **options: Any,
) -> Evaluation:
    """Do what `evaluate` does, but fit the model itself, with further `options` of its `fit`."""
    from mrfrec.models.compiling import warm_up  # loads numba

    wanted = parse_all(metrics, check_type("split", split, Split).training.n_items)
    _question(rules, 1, ties)  # refuses bad rules before the fit
    _check_name(name)
    warn_of_another_plan(model, split)
    warm_up(model)  # exclude compiling from the training time
    start = time.perf_counter()
    training = part_of(progress, 0, _TRAINING)
    model.fit(split.training, progress=training, validation=split.validation, **options)
    stages = model.timings_
    seconds = {**stages, "training": stages.get("total", time.perf_counter() - start)}
    ranking = part_of(progress, _TRAINING, 1)
    found = evaluate_fitted(model, split.test, wanted, name=name, ties=ties, progress=ranking, rules=rules)
    facts = {**found.facts, "weights": _size_of_weights(model)}
    return replace(found, split=split.name, seconds={**seconds, **found.seconds}, facts=facts)


def _check_name(name: object) -> None:
    """Refuse a name of an evaluation that is not a text, or an empty one."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ParameterError("name", "a text, or None", name)


def _size_of_weights(model: Recommender) -> dict[str, Any]:
    """Return how many weights a field keeps: the share of the m² entries, diagonal included, and their bytes.

    `blocks` is the number of systems solved, and `capped` the share of items with `max_neighbors` entries.
    """
    learned = model.fitted_.learned
    if not isinstance(learned, MRFWeights):
        return {}
    B = learned.weights.matrix()
    m = len(model.items_)
    if isinstance(B, np.ndarray):
        return {"share": 1.0, "blocks": None, "bytes": B.nbytes}
    size = B.data.nbytes + B.indices.nbytes + B.indptr.nbytes
    facts = {"share": (B.nnz + m) / m**2, "blocks": learned.n_blocks, "bytes": size}
    if learned.pattern is not None:  # it is None where the fit added items that nobody has used
        most = model.parameters["max_neighbors"]
        facts["capped"] = float(np.mean(np.diff(learned.pattern.indptr) >= most))
    return facts


def warn_of_another_plan(model: Recommender, split: Split) -> None:
    """Warn if a fit to all the data of a split would be another kind of model than the one evaluated."""
    size = split.training.size
    whole = split.whole
    planned = model.planned_for(size)
    if whole is None or planned is None:
        return
    try:
        other = model.planned_for(whole)
        assert other is not None
        if not other.differs_from(planned, whole.items / size.items):
            return
        text = f"a {other.without_memory()}"
    except MemoryPlanError as error:
        text = f"refused: {error}"
    warn(
        f"what is evaluated is a {planned.without_memory()}, trained on {size}. A fit to all the data "
        f"({whole}) would be {text}. To evaluate what is fitted, give the model a sparsity, or leave out the "
        "same users and items in both (min_items, --min-items)."
    )


def evaluate_fitted(
    model: Recommender,
    questions: Questions,
    metrics: Iterable[str | Metric] | str = DEFAULTS,
    *,
    name: str | None = None,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
    rules: Rules = None,
) -> Evaluation:
    """Evaluate a fitted model; the columns of the questions must be its items. `rules` are as in `evaluate`.

    Warns if the model keeps histories and was fitted to pairs that are to be guessed.
    """
    m = len(model.items_)
    _check_name(name)
    check_type("questions", questions, Questions)
    if questions.shown.shape[1] != m or questions.items not in (None, model.items_):
        raise DataError(
            f"the questions are about {questions.shown.shape[1]:,} items, but the model was fitted on {m:,}, "
            "others or in another order. Fit it on the training data of the same split."
        )
    _warn_of_known_targets(model, questions)
    wanted = parse_all(metrics, m)
    plan = model.fitted_.learned.plan
    start = time.perf_counter()
    with showing(progress) as report:
        k = max(metric.k for metric in wanted)
        ranked = rank(model, questions, k, ties=ties, progress=report, rules=rules)
    lists = Lists(ranked, questions.targets, model.popularity_, partial(model.fitted_.data_for, "variety@k"))
    values = {metric: metric.per_user(lists) for metric in wanted}
    return Evaluation(
        model=name if name is not None else call_of(model),
        parameters=model.parameters,
        split="",
        users=questions.users,
        left_out=questions.left_out,
        values=values,
        seconds={"ranking": time.perf_counter() - start},
        recommended=np.bincount(ranked[ranked >= 0], minlength=m),
        popularity=model.popularity_,
        facts={
            **model.fitted_.size._asdict(), "kind": type(model).__name__, "test_users": len(questions),
            "places": ranked.shape[1], "ties": ties,
            "plan": None if plan is None else str(plan.without_memory()),
            # What "auto" stood for, durations as they are given.
            "values": {name: as_parameter(name, x) for name, x in model.fitted_.learned.values.items()},
            "measured": [] if model.measured_ is None else list(model.measured_.values),
            "new_items": questions.new_items, "new_targets": questions.new_targets,
            "rules": dict(rules or {}), "library": model.fitted_.library,
        },
        situation=questions.situation,
    )  # fmt: skip


def _warn_of_known_targets(model: Recommender, questions: Questions) -> None:
    if model.users_ is None or model.users_.is_text != questions.users.is_text:
        return
    histories = people_of(model.fitted_, list(questions.users)).batches()
    told = sum(
        rows.matrix().multiply(questions.targets[start : start + len(rows)]).nnz
        for start, _, rows in histories
    )
    if told:
        warn(
            f"the model was fitted to {told:,} of the {questions.targets.nnz:,} pairs to be guessed: it is "
            "evaluated on what it was told. Fit it on the training data of the same split."
        )


def rank(
    model: Recommender,
    questions: Questions,
    k: int,
    *,
    ties: Ties = "popularity",
    progress: Progress | None = None,
    rules: Rules = None,
) -> npt.NDArray[np.int32]:
    """Return the recommended items, users × k, computed a few thousand users at a time."""
    question = _question(rules, k, ties)
    if question is not None and questions.candidates is not None:
        raise ParameterError("rules", "None where some items alone are ranked", rules)
    ranked = np.empty((len(questions), k), np.int32)
    for start in range(0, len(questions), _USERS_AT_ONCE):
        part = slice(start, start + _USERS_AT_ONCE)
        shown = questions.shown[part]
        if question is not None:
            ranked[part] = _by_rules(model, questions, part, question)
        elif questions.candidates is None:
            ranked[part], _ = model.top_k(shown, k, ties=ties, **questions.times_of(part))
        else:
            histories = Rows.of(shown)
            hidden = ~questions.candidates
            found = rank_items(
                model.fitted_, runtime_of(model), histories, k, Eligible(histories, hidden), ties=ties
            )
            ranked[part] = found[0]
        if progress is not None:
            progress("ranking", min(part.stop, len(questions)), len(questions))
    return ranked


def _by_rules(
    model: Recommender, questions: Questions, part: slice, question: Question
) -> npt.NDArray[np.int32]:
    """Return what `recommend` would for some users, users × k."""
    fitted = model.fitted_
    histories = timed_rows(questions.shown[part], fitted, **{"times": None, **questions.times_of(part)})
    people = People(Ids.range(len(histories)), histories)
    prepared, runtime = PreparedQuestion.of(fitted, people, question), runtime_of(model)
    prepared.warn()
    found = np.full((len(histories), question.k), -1, np.int32)
    done = 0
    for batch in people.batches():
        piece = prepared.answer(runtime, batch)
        found[done : done + len(piece.items), : piece.items.shape[1]] = piece.items
        done += len(piece.items)
    return found


def _question(rules: Rules, k: int, ties: Ties) -> Question | None:
    """Return the question with these rules; None without any."""
    if rules is None:
        return None
    if not isinstance(rules, Mapping) or not {*rules} <= {*RULES}:
        raise ParameterError("rules", f"a mapping with names among {', '.join(RULES)}", rules)
    if not rules:
        return None
    if ties != "popularity":
        raise ParameterError("ties", '"popularity" with rules', ties)
    return Question.of(k=k, **rules)


def evaluate_rules(
    model: Recommender,
    split: Split,
    rules: Mapping[str, Any],
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    progress: "Progress | bool | None" = None,
) -> "Comparison":
    """Fit a model once, and evaluate it without rules and with them: what do they cost, what do they bring?

    `rules` and the other parameters are those of `evaluate`. The second of both is compared with the first
    user by user.
    """
    if not isinstance(model, Recommender):
        raise ParameterError("model", "a model such as MRF()", model)
    if _question(rules, 1, "popularity") is None:
        raise ParameterError("rules", f"given, some of {', '.join(RULES)}", rules)
    _check_name(name)
    fitted = unfitted(model)
    name = call_of(model) if name is None else name
    wanted = [
        str(metric) for metric in parse_all(metrics, check_type("split", split, Split).training.n_items)
    ]
    with showing(progress) as report:
        without = fit_and_evaluate(fitted, split, wanted, name=name, progress=report)
        found = evaluate_fitted(fitted, split.test, wanted, name=f"{name}, with rules", rules=rules)
    return Comparison([without, replace(found, split=split.name)])


def evaluate_new_items(
    model: Recommender,
    split: Split,
    share: float,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    seed: int = SEED,
    name: str | None = None,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
) -> tuple[Evaluation, Evaluation]:
    """Make a share of the items new, fit a model, and evaluate it: among the new items, and among all.

    New items are in no history that the model is fitted to or shown: wherever a test user has one, it is to
    be guessed. The metrics have no more places than there are new items.
    """
    if not isinstance(model, Recommender):
        raise ParameterError("model", "a model such as MRF()", model)
    changed, of_new = check_type("split", split, Split).with_new_items(share, seed=seed)
    _check_name(name)
    fitted = unfitted(model)
    name = call_of(model) if name is None else name
    assert of_new.candidates is not None
    parsed = parse_all(metrics, changed.training.n_items)
    wanted = within([str(metric) for metric in parsed], int(of_new.candidates.sum()))
    with showing(progress) as report:
        among_all = fit_and_evaluate(
            fitted, changed, wanted, name=f"{name}, all items", ties=ties, progress=report
        )
    among_new = evaluate_fitted(fitted, of_new, wanted, name=f"{name}, new items", ties=ties)
    return replace(among_new, split=changed.name), among_all


def compare(
    models: "Mapping[str, Recommender] | Sequence[Recommender]",
    split: Split,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
    rules: Rules = None,
) -> Comparison:
    """Evaluate several models on one split, for comparison user by user. The models are not changed.

    All are asked with the same `rules`, those of `evaluate`.
    """
    check_type("split", split, Split)
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise ParameterError("models", "models in a list, or by name", models)
    for model in models.values() if isinstance(models, Mapping) else models:
        if not isinstance(model, Recommender):
            raise ParameterError("models", "models such as MRF()", model)
    named = dict(models) if isinstance(models, Mapping) else {call_of(model): model for model in models}
    if len(named) < 2 or len(named) < len(models):
        raise ParameterError("models", "at least two, with different names", list(named))
    for model in named.values():
        model.check_ready()  # before any model is trained
    with showing(progress) as report:
        return evaluate_each(named, split, metrics, ties=ties, progress=report, rules=rules)


def evaluate_each(
    models: Mapping[str, Recommender],
    split: Split,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    ties: Ties = "popularity",
    progress: Progress | None = None,
    skip: tuple[type[MrfrecError], ...] = (),
    tell: Callable[[Evaluation], None] = lambda _: None,
    rules: Rules = None,
) -> Comparison:
    """Evaluate models one after the other; each is dropped before the next one is fitted.

    A model that raises an error of `skip` is left out. `tell` is called with each evaluation, as soon as it
    is made.
    """
    wanted = [str(metric) for metric in parse_all(metrics, split.training.n_items)]
    found: list[Evaluation] = []
    failures: dict[str, MrfrecError] = {}
    total = len(models)
    for number, (name, model) in enumerate(models.items(), 1):
        part = part_of(progress, (number - 1) / total, number / total, f"{number} of {total}, {name}: ")
        try:
            made = evaluate(model, split, wanted, name=name, ties=ties, progress=part, rules=rules)
            found.append(made)
        except skip as error:
            failures[name] = error.with_traceback(None)  # the traceback would keep the fit's arrays alive
        else:
            tell(found[-1])
    return Comparison(tuple(found), failures)
