"""Find good parameters on the validation users with Optuna, starting from the model's own measurements.

Trials share intermediate results: a new l2 only solves the systems again, and a new novelty solves nothing.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mrfrec import __version__, figures
from mrfrec.bars import showing
from mrfrec.checks import check_count, check_seed, counted, missing_extra, warn
from mrfrec.core.engine import Progress, part_of
from mrfrec.data.reading_options import duration, rounded_duration
from mrfrec.errors import MemoryPlanError, NumericalError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Mean, Metric, Paired, paired, parse_all, within
from mrfrec.evaluation.protocol import fit_and_evaluate, warn_of_another_plan
from mrfrec.evaluation.questions import Questions, Split, check_split, popularity_differs
from mrfrec.evaluation.results import Evaluation, parameters_text
from mrfrec.fitted.measured import DURATIONS, as_parameter
from mrfrec.io.atomic import expanded, writing
from mrfrec.models.parameters import unfitted
from mrfrec.models.recommender import Range, Recommender
from mrfrec.models.registry import build, kind_of, model_class
from mrfrec.shown import Report, Section, Tabular, number_or_none, parameter_text, report_of, seconds_text

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Space = Mapping[str, Range]
_RANDOM = 5  # random trials before the sampler learns from the trials


@dataclass(frozen=True)
class Trial:
    """Parameters that were tried, and their result; the value is None if the fit failed."""

    parameters: dict[str, Any]
    value: float | None
    error: float | None = None  # standard error of the value
    gain: Paired | None = None  # difference from the first trial, user by user
    seconds: float | None = None  # training time of a fit from scratch
    failure: str | None = None
    plan: str | None = None  # dense or sparse, and why; None for models without a plan

    @classmethod
    def of(cls, trial: "FrozenTrial") -> "Trial":
        """Convert a trial of Optuna."""
        facts = {name: trial.user_attrs.get(name) for name in ("error", "seconds", "failure", "plan")}
        gain = trial.user_attrs.get("gain")
        of_start = None if gain is None else Paired(*(math.nan if x is None else x for x in gain))
        return cls(trial.user_attrs["parameters"], trial.value, gain=of_start, **facts)


@dataclass(frozen=True, repr=False)
class Tuning(Tabular):
    """The trials of a tuning; the first trial is the model as it was given."""

    model: str
    metric: Metric
    split: str
    trials: tuple[Trial, ...]
    study: "optuna.Study | None" = None
    fingerprints: dict[str, str] = field(default_factory=dict)  # hashes of the data and of the questions
    library: str | None = None  # library of the data frame that the data came from

    @property
    def best(self) -> Trial:
        """The trial with the largest value; the first one of a tie."""
        return max(self.trials, key=lambda trial: -1.0 if trial.value is None else trial.value)

    def plot(self) -> "Figure":
        """Draw the trials against each parameter that varies, as `optuna.visualization` does.

        Returns a matplotlib `Figure`.
        """
        try:
            import matplotlib as mpl
            from matplotlib import pyplot
        except ImportError:
            raise missing_extra("plots need matplotlib", "plot") from None
        from optuna.visualization.matplotlib import plot_slice

        assert self.study is not None
        with warnings.catch_warnings(), mpl.rc_context():  # Optuna changes the style globally.
            warnings.simplefilter("ignore")  # Optuna warns that its plots are experimental.
            axes = plot_slice(self.study, target_name=f"{self.metric.title} (validation)")
        figure: Figure = np.ravel(np.asarray(axes))[0].figure
        pyplot.close(figure)
        figure.suptitle(self.split, fontsize="medium", wrap=True, parse_math=False)
        figure.__class__ = figures.figure_class()
        return figure

    def complete(self, trial: Trial) -> dict[str, Any]:
        """Return all parameters of a trial's model, including those left at their defaults."""
        return build(self.model, trial.parameters).parameters

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write the best parameters for `mrfrec fit --params` and `--model`.

        The file has all parameters of the model, so that later changes of defaults do not affect it.
        """
        best = self.best
        tuned = {
            "metric": str(self.metric), "value": best.value, "error": best.error,
            "training_seconds": best.seconds, "plan": best.plan, "trials": len(self.trials),
            "split": self.split, **self.fingerprints,
        }  # fmt: skip
        parameters = self.complete(best)
        content = {"mrfrec": __version__, "model": self.model, "parameters": parameters, "tuned": tuned}
        with writing(Path(path)) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def tune(
    model: "str | type[Recommender] | Recommender",
    split: Split,
    *,
    trials: int = 30,
    space: Space | None = None,
    metric: str | None = None,
    storage: "str | os.PathLike[str] | None" = None,
    seed: int = 0,
    progress: "Progress | bool | None" = None,
) -> Tuning:
    """Find good parameters on the validation users with Optuna's sampler; the test users are not asked.

    The first trial is the model as it is given, which measures its own parameters. Later trials keep the
    measured values and vary the parameters in `space`. The test users serve for one check: a warning says if
    the popularity of their items differs from the validation users' by more than chance. The same arguments
    give the same result.

    Parameters
    ----------
    model
        A model, its class or its name. All trials share the parameters that were given to a model.
    split
        Trials are evaluated on its validation users; without any, its training data is split again.
    trials
        Number of trials, including the first one and those in `storage`.
    space
        A range per parameter: a list of values, (low, high), (low, high, "log"), or (low, high, "times") for
        multiples of the first trial's value. The ranges replace those of the model's `search_space` or add
        to them; None removes a parameter. A parameter that was given to the model varies only if it is named
        here.
    metric
        The metric to maximise, such as "recall@20". By default "ndcg@100", or a lower k for fewer
        items.
    storage
        A file that keeps the trials, or the URL of a database, such as "sqlite:///trials.db". The same call
        resumes from there, with the same result. A storage can also hold tunings of other data, models and
        spaces.
    seed
        Seed of the sampler.
    """
    check_optuna()
    kind, own = kind_of(model)
    first = unfitted(model) if isinstance(model, Recommender) else build(kind, own)
    varied = checked_space(kind, own, space)
    trials = check_count("trials", trials)
    seed = check_seed(seed)
    tuned = check_split(split).for_tuning()
    try:
        wanted = within(DEFAULTS[:1], tuned.training.n_items) if metric is None else [metric]
        (to_maximise,) = parse_all(wanted, tuned.training.n_items)
    except ParameterError as error:
        raise error.named("metric") from None
    if (difference := popularity_differs(tuned, split)) is not None:
        warn(f"{difference} Parameters tuned on the one may not suit the other, above all novelty.")
    fingerprints = {"data": tuned.training.fingerprint, "questions": _fingerprint(tuned.test)}
    of = {
        "model": kind,
        "metric": str(to_maximise),
        "own": own,
        "space": varied,
        "seed": seed,
        **fingerprints,
    }
    name = hashlib.blake2b(json.dumps(of, default=str).encode(), digest_size=16).hexdigest()
    study = _opened(storage, name)
    with showing(progress) as report:
        # Without `inner` and `whole`, trials do not warn that the plan of the whole data differs.
        search = _Tuner(first, replace(tuned, inner=None, whole=None), to_maximise, varied, study)
        for number in range(len(_done(study)), trials):
            search.try_one(
                number, seed, part_of(report, number / trials, (number + 1) / trials, f"trial {number + 1}: ")
            )
        if report is not None:
            report("trying parameters", trials, trials)
    found = tuple(map(Trial.of, _done(study)[:trials]))
    result = Tuning(kind, to_maximise, tuned.name, found, study, fingerprints, tuned.training.library)
    with suppress(MemoryPlanError):  # The trial may have run on a machine with more memory.
        warn_of_another_plan(build(kind, {**result.best.parameters, **search.machine}), tuned)
    return result


def checked_space(kind: str, own: Mapping[str, Any], space: Space | None) -> dict[str, Range]:
    """Return the search space of a model, updated by `space`; raise if a range is invalid."""
    made = model_class(kind)
    if not isinstance(space or {}, Mapping):
        raise ParameterError("space", 'ranges by parameter, such as {"l2": (1, 1000, "log")}, or None', space)
    known = [name for name in made.defaults() if name not in made.machine_parameters]
    usual = {name: range_ for name, range_ in made.search_space.items() if name not in own}
    for name, range_ in (space or {}).items():
        if name not in known:
            raise ParameterError("space", f"of parameters of {made.__name__}: {', '.join(known)}", name)
        if range_ is not None and not _is_range(range_):
            rule = 'a list of values, (low, high), (low, high, "log") or (low, high, "times")'
            raise ParameterError(f"space: {name}", rule, range_)
    varied = {name: x for name, x in {**usual, **(space or {})}.items() if x is not None}
    for name, range_ in varied.items():  # Refuse bad values before any trial.
        for value in () if range_[-1] == "times" else range_[:2] if isinstance(range_, tuple) else range_:
            build(kind, {**own, name: value})
    if not varied:
        raise ParameterError("space", f"given for {made.__name__}, which has no usual one", space)
    return varied


def _is_range(given: object) -> bool:
    if not isinstance(given, tuple):
        return isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) and len(given) > 0
    scale = given[2:]
    if len(given) not in (2, 3) or any(type(x) not in (int, float) for x in given[:2]):
        return False
    low, high = given[:2]
    return bool(
        low < high and math.isfinite(high - low) and (not scale or (scale[0] in ("log", "times") and low > 0))
    )


class _Tuner:
    """The trials of a tuning, which share intermediate results."""

    def __init__(
        self, first: Recommender, split: Split, metric: Metric, space: Space, study: "optuna.Study"
    ) -> None:
        self._first = first
        self._split = split
        self._metric = metric
        self._space = space
        self._study = study
        self._reuse: dict[str, Any] = {}
        own = first.get_params()
        self.machine = {name: own[name] for name in first.machine_parameters if name in own}

    def try_one(self, number: int, seed: int, progress: Progress | None) -> None:
        """Try the first point, or the next one that the sampler suggests."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        if not number:
            facts, value = self._tried(self._first, progress)
            distributions = self._distributions(facts["parameters"])
            values = {name: facts["parameters"].get(name) for name in distributions}
            numbers = {name: x if (n := _as_number(name, x)) is None else n for name, x in values.items()}
            inside = {name: x for name, x in numbers.items() if _holds(distributions[name], x)}
            known = {name: distributions[name] for name in inside}
            self._study.add_trial(
                create_trial(value=value, params=inside, distributions=known, user_attrs=facts)
            )
            return
        start = _done(self._study)[0].user_attrs["parameters"]
        # Every trial has its own seed, so that a resumed study equals one that was not interrupted.
        self._study.sampler = TPESampler(seed=seed + number, n_startup_trials=_RANDOM, multivariate=True)
        trial = self._study.ask(self._distributions(start))
        suggested = {
            name: as_parameter(name, rounded_duration(x)) if name in DURATIONS else x
            for name, x in trial.params.items()
        }
        parameters = {**start, **suggested}
        trial.set_user_attr("parameters", parameters)
        try:
            model = build(type(self._first).__name__, {**parameters, **self.machine})
            facts, value = self._tried(model, progress)
        except (NumericalError, MemoryPlanError) as error:
            trial.set_user_attr("failure", str(error))
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)
        self._study.tell(trial, value)

    def _tried(self, model: Recommender, progress: Progress | None) -> tuple[dict[str, Any], float]:
        """Return the facts to store with a trial, and its value."""
        metrics = [str(self._metric)]
        found = fit_and_evaluate(unfitted(model), self._split, metrics, reuse=self._reuse, progress=progress)
        mean, values = found.mean(self._metric), found.per_user(self._metric)
        usual = model.defaults()
        parameters = {
            name: x for name, x in found.parameters.items() if name in self._space or x != usual[name]
        }
        facts: dict[str, Any] = {}
        if done := _done(self._study):
            gain = paired(values, np.asarray(done[0].user_attrs["values"]))
            facts["gain"] = [x if math.isfinite(x) else None for x in gain]
        else:
            parameters |= self._resolved(found)
            facts["values"] = values.tolist()
        return {
            "parameters": parameters, "error": mean.error if math.isfinite(mean.error) else None,
            "seconds": found.seconds["training"], "plan": found.facts["plan"], **facts,
        }, mean.mean  # fmt: skip

    def _resolved(self, found: Evaluation) -> dict[str, Any]:
        """Return the values of "auto" in the first trial; later trials use them and do not measure."""
        given = found.parameters
        plan = self._first.planned_for(self._split.training.size)
        values = {**found.facts["values"], **({} if plan is None else {"sparsity": plan.sparsity})}
        resolved = {
            name: x for name, x in values.items() if given.get(name) == "auto" and name in self._space
        }
        measured = {name: values[name] for name in found.facts["measured"]}
        return {**resolved, **measured, **({"measure": False} if "measure" in given else {})}

    def _distributions(self, start: Mapping[str, Any]) -> "dict[str, BaseDistribution]":
        """Return the ranges for Optuna, without parameters for which the model has no number."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        usual = self._first.defaults()
        made: dict[str, BaseDistribution] = {}
        for name, given in self._space.items():
            if not isinstance(given, tuple):
                made[name] = CategoricalDistribution(list(given))
                continue
            low, high, *scale = given
            value = _as_number(name, start.get(name, usual[name]))
            if value is None and (scale == ["times"] or name in self._first.search_space):
                continue
            if scale == ["times"]:
                low, high = (factor * (value or 1.0) for factor in (low, high))
            if type(usual[name]) is int:
                made[name] = IntDistribution(round(low), round(high), log=bool(scale))
            else:
                made[name] = FloatDistribution(low, high, log=bool(scale))
        return made


def _as_number(name: str, value: Any) -> float | None:
    """Return a parameter as a number, a duration in microseconds; None if it is not a number."""
    if name in DURATIONS and value not in (None, "auto"):
        return float(duration(name, value))
    return value if type(value) in (int, float) else None


def _holds(distribution: Any, value: Any) -> bool:
    """Return whether a value is in a range, or among the choices."""
    if hasattr(distribution, "choices"):
        return value in distribution.choices
    return type(value) in (int, float) and distribution.low <= value <= distribution.high


def check_optuna() -> None:
    """Raise if Optuna is not installed, before any data is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # In a notebook, tqdm warns without ipywidgets.
            import optuna  # noqa: F401
    except ImportError:
        raise missing_extra("tuning needs Optuna", "tune") from None


def _opened(storage: "str | os.PathLike[str] | None", name: str) -> "optuna.Study":
    """Open the study with this name in the storage, or create it."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    if storage is not None and not isinstance(storage, str | os.PathLike):
        raise ParameterError("storage", "a file, the URL of a database, or None", storage)
    where: Any = storage
    if storage is not None and "://" not in str(storage):
        file = expanded(storage)
        if file.is_dir():
            raise ParameterError("storage", "a file, the URL of a database, or None", storage)
        where = JournalStorage(JournalFileBackend(str(file)))
    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(storage=where, study_name=name, direction="maximize", load_if_exists=True)
    finally:
        optuna.logging.set_verbosity(said)
    for trial in study.trials:
        if trial.state == TrialState.RUNNING:  # An interruption left it; it is tried again.
            study.tell(trial.number, state=TrialState.FAIL)
    return study


def _done(study: "optuna.Study") -> "list[FrozenTrial]":
    """Return the trials that ended, including those whose fit failed."""
    return [trial for trial in study.trials if trial.value is not None or "failure" in trial.user_attrs]


def _fingerprint(questions: Questions) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for X in (questions.shown, questions.targets):
        digest.update(X.indptr.astype(np.int64).tobytes() + X.indices.astype(np.int64).tobytes())
    if questions.shown_times is not None:
        digest.update(questions.shown_times.tobytes())
    return digest.hexdigest()


@report_of.register
def of_tuning(tuning: Tuning, most: int = 10) -> Report:
    """Report the best trials, best first, with their gains over the first trial."""
    first = tuning.trials[0]
    names = list(dict.fromkeys(name for trial in tuning.trials for name in trial.parameters))
    names = [name for name in names if name != "measure"]  # only the first trial measures
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
