"""Evaluate one model on a split, or compare several: fit, rank, compute metrics."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

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
from mrfrec.evaluation.metrics import DEFAULTS, Lists, Metric, parse_all, within
from mrfrec.evaluation.questions import SEED, Folds, Questions, Split, check_split, check_type
from mrfrec.evaluation.results import Comparison, Evaluation, pooled
from mrfrec.fitted.measured import as_parameter
from mrfrec.fitted.state import Runtime
from mrfrec.models.mrf.weights import MRFWeights
from mrfrec.models.parameters import call_of, unfitted
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build

_USERS_AT_ONCE = 4096
_TRAINING = 0.8  # rough share of the time of an evaluation that the fit takes
_POPULAR = "most popular"

T = TypeVar("T")

Ties = Literal["index", "popularity"]
Rules = Mapping[str, Any] | None
_NAMES_OF_RULES = ("where", "at_most", "boost", "variety", "allow", "exclude", "novelty")
RULES = tuple(name for name in Question.model_fields if name in _NAMES_OF_RULES)
"""The parameters of `recommend` with which models can be evaluated."""


def evaluate(
    model: Recommender,
    split: Split | Folds,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
    rules: Rules = None,
) -> Evaluation:
    """Fit a model on the training data of a split and evaluate it on the test users.

    The model is not changed: a new one with its parameters is fitted. The result also has the evaluation of
    the most popular items on the same questions (`popular`), which its table shows in a second row.

    Parameters
    ----------
    split
        What `at_time` or another split returns; or several cuts in time, `at_time(data, folds=3)`. A warning
        tells if a fit to all the data would be another kind of model (dense or sparse) than this one.
    ties
        Order of items with equal scores: "popularity", the more popular first, as in `recommend`; or "index",
        the lower column first, as in the published experiments.
    rules
        Rules of the question, such as {"at_most": {"brand": 2}, "variety": 0.3}: where, at_most, boost,
        variety, allow, exclude or novelty, as in `Recommender.recommend`. Columns are those of the item table
        of the training data, see `Split.with_table`.

    Notes
    -----
    Models trained in epochs use the validation users, if the split has any, to choose the best epoch.
    """
    _check_model(model)
    options: dict[str, Any] = {"ties": ties, "rules": rules}
    with showing(progress) as report:

        def one(split: Split, part: Progress | None) -> Evaluation:
            found = fit_and_evaluate(unfitted(model), split, metrics, name=name, progress=part, **options)
            if type(model).__name__ == "Popularity":
                return found
            usual = {rule: x for rule, x in (rules or {}).items() if rule != "novelty"}
            popular = fit_and_evaluate(
                build("Popularity", {}), split, metrics, name=_POPULAR, ties=ties, rules=usual
            )
            return replace(found, popular=popular)

        return pooled(_each(split, one, report)) if isinstance(split, Folds) else one(split, report)


def _check_model(model: object, name: str = "model") -> None:
    if inspect.isclass(model):
        raise ParameterError(name, "a model, not its class", model, f"Write {model.__name__}().")
    if not isinstance(model, Recommender):
        raise ParameterError(name, "a model such as MRF()", model)


def _each(
    folds: Folds, evaluate_one: Callable[[Split, Progress | None], T], progress: Progress | None
) -> list[T]:
    """Evaluate at each cut in time; only one split is held at a time."""
    total = len(folds)
    return [
        evaluate_one(
            split, part_of(progress, number / total, (number + 1) / total, f"cut {number + 1} of {total}: ")
        )
        for number, split in enumerate(folds)
    ]


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

    wanted = parse_all(metrics, check_split(split).training.n_items)
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
    fitted = model.fitted_
    data = partial(fitted.data_for, "variety@k")
    lists = Lists(ranked, questions.targets, model.popularity_, fitted.size.users, data)
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
            "k": ranked.shape[1], "ties": ties,
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
                model.fitted_, Runtime.of(model), histories, k, Eligible(histories, hidden), ties=ties
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
    prepared, runtime = PreparedQuestion.of(fitted, people, question), Runtime.of(model)
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
    split: Split | Folds,
    rules: Mapping[str, Any],
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    progress: "Progress | bool | None" = None,
) -> Comparison:
    """Fit a model once, and evaluate it without rules and with them: what do they cost, what do they bring?

    `rules` and the other parameters are those of `evaluate`. The model with rules is compared with the model
    without rules, user by user.
    """
    _check_model(model)
    if _question(rules, 1, "popularity") is None:
        raise ParameterError("rules", f"given, some of {', '.join(RULES)}", rules)
    _check_name(name)
    called = call_of(model) if name is None else name

    def one(split: Split, report: Progress | None) -> tuple[Evaluation, Evaluation]:
        fitted = unfitted(model)
        wanted = [str(metric) for metric in parse_all(metrics, check_split(split).training.n_items)]
        without = fit_and_evaluate(fitted, split, wanted, name=called, progress=report)
        ruled = evaluate_fitted(fitted, split.test, wanted, name=f"{called}, with rules", rules=rules)
        return without, replace(ruled, split=split.name)

    with showing(progress) as report:
        if isinstance(split, Folds):
            return Comparison([pooled(both) for both in zip(*_each(split, one, report), strict=True)])
        return Comparison(one(split, report))


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
    be guessed. The k of a metric is at most the number of new items.
    """
    _check_model(model)
    changed, of_new = check_split(split).with_new_items(share, seed=seed)
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
    split: Split | Folds,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    ties: Ties = "popularity",
    progress: "Progress | bool | None" = None,
    rules: Rules = None,
) -> Comparison:
    """Evaluate several models on one split, or on several cuts in time, and compare them user by user.

    The models are not changed: new ones with their parameters are fitted. All are asked with the same
    `rules`, as in `evaluate`.
    """
    if not isinstance(split, Folds):
        check_split(split)
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise ParameterError("models", "models in a list, or by name", models)
    for model in models.values() if isinstance(models, Mapping) else models:
        _check_model(model, "models")
    named = dict(models) if isinstance(models, Mapping) else {call_of(model): model for model in models}
    if len(named) < 2 or len(named) < len(models):
        raise ParameterError("models", "at least two, with different names", list(named))
    for model in named.values():
        model.check_ready()  # before any model is trained
    with showing(progress) as report:
        if not isinstance(split, Folds):
            return evaluate_each(named, split, metrics, ties=ties, progress=report, rules=rules)

        def one(split: Split, part: Progress | None) -> Sequence[Evaluation]:
            return evaluate_each(named, split, metrics, ties=ties, progress=part, rules=rules).evaluations

        return Comparison([pooled(cuts) for cuts in zip(*_each(split, one, report), strict=True)])


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
    """Evaluate models one after the other; a fitted model is dropped before the next one is fitted.

    A model that raises an error of `skip` is left out. `tell` is called with an evaluation as soon as it is
    made.
    """
    wanted = [str(metric) for metric in parse_all(metrics, split.training.n_items)]
    found: list[Evaluation] = []
    failures: dict[str, MrfrecError] = {}
    total = len(models)
    for number, (name, model) in enumerate(models.items(), 1):
        part = part_of(progress, (number - 1) / total, number / total, f"{number} of {total}, {name}: ")
        try:
            fresh = unfitted(model)
            made = fit_and_evaluate(fresh, split, wanted, name=name, ties=ties, progress=part, rules=rules)
            found.append(made)
        except skip as error:
            failures[name] = error.with_traceback(None)  # the traceback would keep the fit's arrays alive
        else:
            tell(found[-1])
    return Comparison(tuple(found), failures)
