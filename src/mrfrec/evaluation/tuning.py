"""Find the best parameters on the validation users: one axis at a time, on a grid, or with Optuna.

Every finished trial is appended to the study file, so that an interrupted study can be continued. Fits share
intermediate results: for a new l2 only the systems are solved again, and for a new novelty nothing is.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec.checks import check_count, check_number, warn
from mrfrec.core.engine import Progress
from mrfrec.errors import DataError, MemoryPlanError, NumericalError, ParameterError
from mrfrec.evaluation.chooser import Chooser
from mrfrec.evaluation.grids import Parameters, check_values, plain, ridges, rounded, scale_exponent
from mrfrec.evaluation.metrics import Metric, parse_all
from mrfrec.evaluation.protocol import Ties, evaluate
from mrfrec.evaluation.splits import Questions, Split, check_split, popularity_differs
from mrfrec.io.atomic import writing
from mrfrec.models.axes import Range, Ridges
from mrfrec.models.registry import build, model_class

_SEED = 98765
_MACHINE = {"threads", "memory_limit", "device", "checkpoint"}


@dataclass(frozen=True)
class Trial:
    """A point that was tried; its value is None if the fit failed."""

    parameters: dict[str, Any]
    value: float | None
    error: float | None = None  # standard error of the value
    seconds: float | None = None  # training time of a fit from scratch
    failure: str | None = None
    chosen: dict[str, Any] | None = None  # the point as the search chose it


@dataclass(frozen=True)
class Tuning:
    """The trials of a tuning and the best of them."""

    model: str
    metric: Metric
    split: str
    trials: tuple[Trial, ...]
    max_seconds: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    out_of_time: bool = False

    @property
    def best(self) -> Trial:
        """The trial with the largest value among those within `max_seconds`; the first of equals."""
        eligible = [trial for trial in self.trials if self.is_eligible(trial)]
        if not eligible:
            limit = ""
            if self.max_seconds is not None:
                limit = f" within max_seconds={self.max_seconds:g} of training: allow more, or vary sparsity"
            reasons = "; ".join(sorted({trial.failure for trial in self.trials if trial.failure}))
            raise DataError(f"no trial succeeded{limit}{f': {reasons}' if reasons else '.'}")
        return max(eligible, key=lambda trial: trial.value or 0.0)

    def is_eligible(self, trial: Trial) -> bool:
        """Return whether a trial succeeded within `max_seconds`."""
        fast = self.max_seconds is None or (trial.seconds or 0.0) <= self.max_seconds
        return trial.value is not None and fast

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write the best parameters for `mrfrec fit --params` and `--model`."""
        best = self.best
        tuned = {
            "metric": str(self.metric), "value": best.value, "error": best.error,
            "training_seconds": best.seconds, "trials": len(self.trials), "split": self.split, **self.facts,
        }  # fmt: skip
        found = {"model": self.model, "parameters": best.parameters, "tuned": tuned}
        with writing(Path(path)) as temporary:
            temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


Improved = Callable[[Tuning], None]

# ── trials ────────────────────────────────────────────────────────────────────────────────────────


def tune(
    split: Split,
    points: Iterable[Parameters],
    metric: str = "ndcg@100",
    *,
    model: str = "MRF",
    fixed: Parameters | None = None,
    minutes: float | None = None,
    max_seconds: float | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Try every point on the validation users.

    Of the test users only the popularity of what they have is looked at: if it differs from that of the
    validation users by more than chance, a warning says so.

    Parameters
    ----------
    fixed
        Parameters that all trials share.
    minutes
        Time for all trials: none is begun that would be expected to end later, except the first.
    max_seconds
        Longest training time of the best trial.
    study
        A file of trials: those in it are not run again.
    improved
        Called with the `Tuning` so far whenever a trial is the best yet, for example to save it.
    machine
        Parameters that change no result, such as threads.
    """
    wanted = list(points) if isinstance(points, Iterable) and not isinstance(points, Mapping) else []
    if not wanted or not all(isinstance(point, Mapping) for point in wanted):
        raise ParameterError("points", "a list of parameters such as grid(l2=[1, 3])", points)
    run = Study(split, metric, model, fixed, minutes, max_seconds, study, improved, ties, machine, progress)
    for point in wanted:  # refuse bad parameters before the first trial
        build(run.model, {**run.fixed, **plain(point)})
    for done, point in enumerate(wanted):
        run.report(done, len(wanted))
        if run.value_of(plain(point)) is None:
            break
    run.report(len(wanted), len(wanted))
    return run.result()


def search(
    split: Split,
    space: Mapping[str, Range | Sequence[Any]],
    trials: int = 50,
    metric: str = "ndcg@100",
    *,
    model: str = "MRF",
    fixed: Parameters | None = None,
    minutes: float | None = None,
    max_seconds: float | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    seed: int = _SEED,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Let Optuna choose points from ranges and lists of choices, based on earlier trials.

    "ridge" in the space stands for l2 ÷ the typical diagonal entry of S, as in `ridges`. A continued study
    chooses as if it had not been interrupted; its trials outside the space are ignored.
    """
    trials = check_count("trials", trials)
    if not isinstance(space, Mapping):
        raise ParameterError("space", "a mapping from parameters to ranges and lists", space)
    choose = Chooser(space, seed)
    run = Study(split, metric, model, fixed, minutes, max_seconds, study, improved, ties, machine, progress)
    for name, of in space.items():
        if name != "ridge":
            check_values(run.model, name, of, run.fixed)
    ridge_axis = model_class(run.model).tuning_grid.get("l2")
    run.competing += [t for t in run.trials if t.chosen is not None and choose.holds(t.chosen)]
    while len(run.competing) < trials:
        run.report(len(run.competing), trials)
        chosen = choose.next([(trial.chosen, run.worth(trial)) for trial in run.competing])
        point = dict(chosen)
        for name, of in space.items():
            if isinstance(point[name], float) and isinstance(of, Range):  # three digits, within the range
                point[name] = float(min(max(rounded(point[name], 3), of.low), of.high))
        if "ridge" in point:
            alpha = scale_exponent(run.model, {**run.fixed, **point})
            axis = ridge_axis if isinstance(ridge_axis, Ridges) else Ridges()
            (point["l2"],) = ridges(split, alpha, replace(axis, multiples=(point.pop("ridge"),)))
        if run.value_of(point, chosen) is None:
            break
    run.report(trials, trials)
    return run.result()


class Study:
    """The trials so far, in memory and as lines of a file. Takes the parameters of `tune`."""

    def __init__(
        self,
        split: Split,
        metric: str,
        model: str,
        fixed: Parameters | None,
        minutes: float | None,
        max_seconds: float | None,
        path: "str | os.PathLike[str] | None",
        improved: Improved | None,
        ties: Ties,
        machine: Parameters | None,
        progress: Progress | None,
    ) -> None:
        if max_seconds is not None:
            max_seconds = check_number("max_seconds", max_seconds, "above 0", lambda x: x > 0)
        if minutes is not None:
            minutes = check_number("minutes", minutes, "above 0", lambda x: x > 0)
        for name, function in (("improved", improved), ("progress", progress)):
            if function is not None and not callable(function):
                raise ParameterError(name, "a function or None", function)
        if path is not None and (not isinstance(path, str | os.PathLike) or Path(path).is_dir()):
            raise ParameterError("study", "a file, or None", path)
        if not isinstance(machine or {}, Mapping) or set(machine or {}) - _MACHINE:
            rule = f"of parameters that change no result: {', '.join(sorted(_MACHINE))}"
            raise ParameterError("machine", rule, machine)
        self.split = check_split(split).for_tuning()
        try:
            (self.metric,) = parse_all([metric], split.training.n_items)
        except ParameterError as error:
            raise error.named("metric") from None
        made = build(model, fixed or {})
        self.model, self.max_seconds, self.ties = type(made).__name__, max_seconds, ties
        # Parameters that change no result do not identify a trial.
        given = plain(fixed or {})
        self.fixed = {name: value for name, value in given.items() if name not in made._machine_parameters}
        self.machine = {name: given[name] for name in given.keys() - self.fixed.keys()} | dict(machine or {})
        self._progress, self._improved = progress, improved
        self._reuse: dict[str, Any] = {}
        self.trials: list[Trial] = []
        self.competing: list[Trial] = []  # those of this run
        self.facts = {"data": self.split.training.fingerprint, "questions": _fingerprint(self.split.test)}
        self._file = None if path is None else Path(path).expanduser()
        if self._file is not None:
            self._open(self._file)
        difference = popularity_differs(self.split, split)
        if difference is not None:
            warn(f"{difference} Parameters tuned on the one may not suit the other, above all novelty.")
        self._start, self._out_of_time = time.monotonic(), False
        self.budget = math.inf if minutes is None else 60 * minutes
        self._longest: dict[tuple[str, bool], float] = {}  # seconds of the trials of each axis

    def _open(self, path: Path) -> None:
        header = {
            "study": self.model, "metric": str(self.metric), "fixed": self.fixed, "ties": self.ties,
            **self.facts,
        }  # fmt: skip
        if not path.exists() or path.stat().st_size == 0:
            with writing(path) as temporary:
                temporary.write_text(json.dumps(header) + "\n", encoding="utf-8")
            return
        lines = path.read_bytes().split(b"\n")
        if len(lines) < 2:
            raise DataError(f"{path} is not a study of mrfrec tune. Use another file.")
        found = _line(path, 1, lines[0], header.keys())
        for name, value in header.items():
            if found[name] != json.loads(json.dumps(value)):
                differs = f"its {name} is {found[name]!r}, now it is {value!r}"
                if name in self.facts:
                    differs = "it was made with other data or another split"
                raise DataError(f"{path} is a different study: {differs}. Use another file, or remove it.")
        for number, line in enumerate(lines[1:-1], 2):  # a last line without line feed was not finished
            self.trials.append(_trial(path, number, line))
        if lines[-1]:
            with writing(path) as temporary:
                temporary.write_bytes(b"\n".join(lines[:-1]) + b"\n")

    @property
    def elapsed(self) -> float:
        """Seconds since the first trial began."""
        return time.monotonic() - self._start

    def value_of(
        self,
        point: dict[str, Any],
        chosen: dict[str, Any] | None = None,
        *,
        axis: str = "",
        competes: bool = True,
        budget: float | None = None,
    ) -> Trial | None:
        """Try a point, or return its earlier trial; None if there is no time for it.

        `axis` is the parameter that changed since the last trial. Points that do not compete are those of a
        cheaper model.
        """
        parameters = {**self.fixed, **point}
        same = next((trial for trial in self.trials if trial.parameters == parameters), None)
        if same is None or chosen is not None:
            limit = self.budget if budget is None else budget
            if same is None and self.trials and self.elapsed + self._expected(axis, competes) > limit:
                self._out_of_time |= competes
                return None
            start = time.monotonic()
            same = replace(same or self._try(parameters), chosen=chosen)
            seconds = time.monotonic() - start
            self._longest[axis, competes] = max(self._longest.get((axis, competes), 0.0), seconds)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(same)) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            self.trials.append(same)
        if competes and not any(same is trial for trial in self.competing):
            before = [trial.value or 0.0 for trial in self.competing if self.result().is_eligible(trial)]
            self.competing.append(same)
            better = self.result().is_eligible(same) and (same.value or 0.0) > max(before, default=-1.0)
            if self._improved is not None and better:
                self._improved(self.result())
        return same

    def _expected(self, axis: str, competes: bool) -> float:
        """Return how long a trial may take: as long as others of its axis, or as the cheaper model tells."""
        alike = {name: seconds for (name, of), seconds in self._longest.items() if of == competes}
        cheap = {name: seconds for (name, of), seconds in self._longest.items() if of != competes}
        longest = max(alike.values(), default=0.0)
        if axis in alike or not competes or axis not in cheap:
            return alike.get(axis, longest)
        return longest * cheap[axis] / max(cheap.values())

    def _try(self, parameters: dict[str, Any]) -> Trial:
        model = build(self.model, parameters, self.machine)
        try:
            found = evaluate(model, self.split, [str(self.metric)], ties=self.ties, reuse=self._reuse)
        except (NumericalError, MemoryPlanError) as error:
            return Trial(parameters, None, failure=str(error))
        mean = found.mean(self.metric)
        spread = mean.error if math.isfinite(mean.error) else None
        return Trial(parameters, mean.mean, spread, found.seconds["training"])

    def worth(self, trial: Trial) -> float:
        """Return the value of a trial for the search: 0 if it failed or trained too long."""
        return trial.value if trial.value is not None and self.result().is_eligible(trial) else 0.0

    def report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress("tune", done, total)

    def result(self) -> Tuning:
        return Tuning(
            self.model, self.metric, self.split.name, tuple(self.competing), self.max_seconds, self.facts,
            self._out_of_time,
        )  # fmt: skip


def _line(path: Path, number: int, line: bytes, names: Iterable[str]) -> dict[str, Any]:
    """Parse a line of a study, which must have exactly these keys."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.keys() != set(names):
        raise DataError(f"{path}, line {number}: not a line of a study of mrfrec tune. Use another file.")
    return found


def _trial(path: Path, number: int, line: bytes) -> Trial:
    trial = Trial(**_line(path, number, line, Trial.__dataclass_fields__))
    numbers = (trial.value, trial.error, trial.seconds)
    whole = all(x is None or (isinstance(x, float) and math.isfinite(x)) for x in numbers)
    if not whole or not isinstance(trial.parameters, dict) or not isinstance(trial.chosen, dict | None):
        raise DataError(f"{path}, line {number}: not a trial of mrfrec tune. Remove the line.")
    return trial


def _fingerprint(questions: Questions) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for X in (questions.shown, questions.targets):
        digest.update(X.indptr.astype(np.int64).tobytes() + X.indices.astype(np.int64).tobytes())
    return digest.hexdigest()


def points_of(trials: Iterable[Trial]) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Yield parameters, values and standard errors of the successful trials, for plots."""
    for trial in trials:
        if trial.value is not None:
            yield trial.parameters, trial.value, trial.error or 0.0
