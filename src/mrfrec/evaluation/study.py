"""The trials of a tuning: in memory, and as lines of a file from which an interrupted study continues.

Fits share intermediate results: for a new l2 only the systems are solved again, and for a new novelty
nothing is.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mrfrec import __version__, figures
from mrfrec.checks import check_count, check_number, warn
from mrfrec.core.progress import Progress
from mrfrec.errors import DataError, MemoryPlanError, NumericalError, ParameterError
from mrfrec.evaluation.grids import Parameters, plain
from mrfrec.evaluation.metrics import DEFAULTS, Metric, parse_all, within
from mrfrec.evaluation.protocol import Ties, evaluate, warn_of_another_plan
from mrfrec.evaluation.questions import Questions, Split, check_type, popularity_differs
from mrfrec.io.atomic import expanded, writing
from mrfrec.models.recommender import FitContext, Recommender
from mrfrec.models.registry import build, kind_of
from mrfrec.shown import Tabular, parameter_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = 6  # in a figure of a tuning, at most
_MACHINE = {"threads", "memory_limit", "device"}


@dataclass(frozen=True)
class Trial:
    """A point that was tried; its value is None if the fit failed."""

    parameters: dict[str, Any]
    value: float | None
    error: float | None = None  # standard error of the value
    seconds: float | None = None  # training time of a fit from scratch
    failure: str | None = None
    plan: str | None = None  # of the model, if it has one: dense or sparse, and why


@dataclass(frozen=True, repr=False)
class Tuning(Tabular):
    """The trials of a tuning and the best of them."""

    model: str
    metric: Metric
    split: str
    trials: tuple[Trial, ...]
    fingerprints: dict[str, str] = field(default_factory=dict)  # of the data and the questions
    out_of_time: bool = False
    usual: dict[str, Any] = field(default_factory=dict)  # parameters of a model that is not tuned
    library: str | None = None  # of the data frames that the data came from

    @property
    def default(self) -> Trial | None:
        """The trial of the default parameters; None if they were not tried, or could not be fitted."""
        for trial in self.trials:
            if trial.value is not None and {**self.usual, **trial.parameters} == self.usual:
                return trial
        return None

    @property
    def best(self) -> Trial:
        """The trial with the largest value; the first of equals."""
        if all(trial.value is None for trial in self.trials):
            reasons = "; ".join(sorted({trial.failure for trial in self.trials if trial.failure}))
            raise DataError(f"no trial succeeded{f': {reasons}' if reasons else '.'}")
        return max(self.trials, key=lambda trial: -1.0 if trial.value is None else trial.value)

    def plot(self) -> "Figure":
        """Draw the trials against l2 or, if that does not vary, the number with the most values.

        Returns a matplotlib `Figure`. Each combination of the other parameters that vary has a line; only the
        best six lines are drawn. Trials with "auto" in place of the number are left out. If no number varies,
        x is the place of the trial in their order. Bars are standard errors.
        """
        best = self.best
        tried = [trial for trial in self.trials if trial.value is not None]
        values = {name: {trial.parameters.get(name) for trial in tried} for name in best.parameters}
        varying = [name for name in values if len(values[name]) > 1]
        numbers = {name: [x for x in values[name] if type(x) in (int, float)] for name in varying}
        numeric = [
            name for name in varying if len(numbers[name]) > 1 and best.parameters[name] in numbers[name]
        ]
        x_name = max(numeric, key=lambda name: (name == "l2", len(values[name])), default="trial")
        if numeric:
            tried = [trial for trial in tried if trial.parameters.get(x_name) in numbers[x_name]]

        def x_of(trial: Trial) -> Any:
            return trial.parameters[x_name] if numeric else tried.index(trial) + 1

        lines: dict[str, list[Trial]] = {}
        for trial in sorted(tried, key=x_of):
            others = [name for name in varying if name != x_name and numeric]
            label = ", ".join(f"{n}={parameter_text(n, trial.parameters.get(n))}" for n in others)
            lines.setdefault(label or "accuracy", []).append(trial)
        tops = sorted(lines, key=lambda line: -max(trial.value or 0.0 for trial in lines[line]))[:_LINES]
        figure, axes = figures.new_figure(self.split, x_name, f"{self.metric.title} (validation)")
        for label in tops:
            means = [(trial.value or 0.0, trial.error or math.nan) for trial in lines[label]]
            figures.plot_means(axes, [x_of(trial) for trial in lines[label]], means, label=label, marker="o")
        ring: dict[str, Any] = {"color": axes.xaxis.label.get_color(), "markersize": 14, "fillstyle": "none"}
        axes.plot(x_of(best), best.value or 0.0, "o", label="best", **ring)
        figures.scale_x(axes, [x_of(trial) for trial in tried])
        axes.legend(fontsize="small")
        return figure

    def complete(self, trial: Trial) -> dict[str, Any]:
        """Return all parameters of the model of a trial, those left at their defaults included."""
        return build(self.model, trial.parameters).parameters

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write the best parameters for `mrfrec fit --params` and `--model`.

        The file has all parameters of the model, so that it means the same if a default changes later.
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


Improved = Callable[[Tuning], None]


class Study:
    """The trials so far, in memory and as lines of a file. Takes the parameters of `tune`."""

    def __init__(
        self,
        split: Split,
        metric: str | None,
        model: "str | type[Recommender] | Recommender",
        fixed: Parameters | None,
        minutes: float | None,
        path: "str | os.PathLike[str] | None",
        improved: Improved | None,
        ties: Ties,
        machine: Parameters | None,
        progress: Progress | None,
        trials: int | None = None,
    ) -> None:
        if minutes is not None:
            minutes = check_number("minutes", minutes, "above 0", lambda x: x > 0)
        self._most = math.inf if trials is None else check_count("trials", trials)
        if path is not None and (not isinstance(path, str | os.PathLike) or Path(path).is_dir()):
            raise ParameterError("study", "a file, or None", path)
        if not isinstance(machine or {}, Mapping) or set(machine or {}) - _MACHINE:
            rule = f"of parameters that change no result: {', '.join(sorted(_MACHINE))}"
            raise ParameterError("machine", rule, machine)
        self.split = check_type("split", split, Split).for_tuning()
        try:
            wanted = within(DEFAULTS[:1], split.training.n_items) if metric is None else [metric]
            (self.metric,) = parse_all(wanted, split.training.n_items)
        except ParameterError as error:
            raise error.named("metric") from None
        model, own = kind_of(model)
        fixed = {**own, **(fixed or {})}
        made = build(model, fixed, machine)
        self._measuring: Parameters = {}
        if "measure" in made.parameters:  # once, before the trials
            self._measuring = {"measure": made.parameters["measure"]}
            fixed["measure"] = False
            made = build(model, fixed, machine)
        self.usual = made.parameters  # a climb replaces "auto" by its starting values
        self.measured: dict[str, Any] = {}  # and what is measured
        self.model = model
        self._ties = ties
        # Parameters that change no result do not identify a trial.
        shared = plain(fixed)
        self.fixed = {name: value for name, value in shared.items() if name not in made.machine_parameters}
        self.machine = {name: shared[name] for name in shared.keys() - self.fixed.keys()} | dict(
            machine or {}
        )
        self._progress = progress
        self._improved = improved
        self.done = 0  # trials
        self.wanted = 0  # trials; 0 where nobody knows how many it takes
        self._split_of_trials = replace(self.split, inner=None, whole=None)  # no trial warns of another plan
        self._reuse: dict[str, Any] = {}
        self.trials: list[Trial] = []  # also those of earlier runs
        self.competing: list[Trial] = []  # those of this run
        self.fingerprints = {
            "data": self.split.training.fingerprint, "questions": _fingerprint(self.split.test),
        }  # fmt: skip
        self._header = {
            "study": self.model, "metric": str(self.metric), "fixed": self.fixed, "ties": ties,
            **self.fingerprints,
        }  # fmt: skip
        self._file = None if path is None else expanded(path)
        if self._file is not None and self._file.exists():
            self.trials = _read(self._file, self._header)
        difference = popularity_differs(self.split, split)
        if difference is not None:
            warn(f"{difference} Parameters tuned on the one may not suit the other, above all novelty.")
        self._write()  # fails now, not after the first trial, where it cannot
        self._start = time.monotonic()
        self._out_of_time = False
        self.budget = math.inf if minutes is None else 60 * minutes

    @property
    def elapsed(self) -> float:
        """Seconds since the first trial began."""
        return time.monotonic() - self._start

    def measure(self) -> None:
        """Measure what a fit of the model measures by itself: all trials have it, but for what they vary."""
        model = build(self.model, {**self.fixed, **self._measuring}, self.machine)
        context = FitContext(0, None, None, None)
        self.measured = model.tuning_start(self.split.training, context)
        self.usual |= self.measured

    def value_of(self, point: dict[str, Any]) -> Trial | None:
        """Try a point, or return its earlier trial; None if the time is up, except for the first."""
        parameters = {**self.fixed, **self.measured, **point}
        same = next((trial for trial in self.trials if trial.parameters == parameters), None)
        if len(self.competing) >= self._most and not any(same is trial for trial in self.competing):
            return None
        if same is None:
            if self.trials and self.elapsed > self.budget:
                self._out_of_time = True
                return None
            same = self._try(parameters)
            self.trials.append(same)
            self._write()
        if not any(same is trial for trial in self.competing):
            best = max((t.value for t in self.competing if t.value is not None), default=-1.0)
            self.competing.append(same)
            if self._improved is not None and same.value is not None and same.value > best:
                self._improved(self.result())
        return same

    def _write(self) -> None:
        """Write all trials, so that the file is whole whenever the study is interrupted."""
        if self._file is not None:
            lines = [self._header, *map(asdict, self.trials)]
            with writing(self._file) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def _try(self, parameters: dict[str, Any]) -> Trial:
        self.report()
        model = build(self.model, parameters, self.machine)
        number = len(self.trials) + 1
        tell = None if self._progress is None else lambda stage, *_: self.report(f"trial {number}: {stage}")
        try:
            found = evaluate(
                model, self._split_of_trials, [str(self.metric)], ties=self._ties, reuse=self._reuse,
                progress=tell,
            )  # fmt: skip
        except (NumericalError, MemoryPlanError) as error:
            return Trial(parameters, None, failure=str(error))
        mean = found.mean(self.metric)
        spread = mean.error if math.isfinite(mean.error) else None
        return Trial(parameters, mean.mean, spread, found.seconds["training"], plan=found.facts["plan"])

    def report(self, stage: str = "trying parameters", *, is_over: bool = False) -> None:
        """Report how many trials are done or, where their number is not known, how much time is over."""
        done = self.done
        total = self.wanted
        if not total and math.isfinite(self.budget):
            total = max(round(1000 * self.budget), 1)
            done = min(round(1000 * self.elapsed), total - 1)
        elif not total:
            done = len(self.trials)
        if is_over:
            done = total = max(done, total)
        if self._progress is not None:
            self._progress(stage, done, total)

    def result(self) -> Tuning:
        return Tuning(
            self.model, self.metric, self.split.name, tuple(self.competing), self.fingerprints,
            self._out_of_time, self.usual, self.split.training.library,
        )  # fmt: skip

    def finish(self) -> Tuning:
        """Return the result; warn if a fit to all the data would be another kind of model than the best."""
        self.report(is_over=True)
        result = self.result()
        if any(trial.value is not None for trial in result.trials):
            with suppress(MemoryPlanError):  # a trial of a machine with more memory
                warn_of_another_plan(build(self.model, result.best.parameters, self.machine), self.split)
        return result


def _read(path: Path, header: Mapping[str, Any]) -> list[Trial]:
    """Return the trials in a file, which must be of the same study."""
    try:
        first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        trials = [Trial(**line) for line in lines]
    except (ValueError, TypeError, RecursionError):
        raise DataError(f"{path} is not a study of mrfrec tune. Use another file.") from None
    if first != json.loads(json.dumps(header)):
        raise DataError(
            f"{path} is a different study: of other data, another split, model or metric, or other fixed "
            "parameters. Use another file, or remove it."
        )
    return trials


def _fingerprint(questions: Questions) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for X in (questions.shown, questions.targets):
        digest.update(X.indptr.astype(np.int64).tobytes() + X.indices.astype(np.int64).tobytes())
    if questions.shown_times is not None:
        digest.update(questions.shown_times.tobytes())
    return digest.hexdigest()
