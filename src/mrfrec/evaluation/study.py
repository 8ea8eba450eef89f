"""The trials of a tuning: in memory, as lines of a file, and on the workers of a cluster.

Every finished trial is appended to the study file, so that an interrupted study can be continued. Fits share
intermediate results: for a new l2 only the systems are solved again, and for a new novelty nothing is.
"""

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mrfrec.checks import check_number, warn
from mrfrec.core.engine import Progress
from mrfrec.errors import DataError, MemoryPlanError, NumericalError, ParameterError
from mrfrec.evaluation.grids import Parameters, plain
from mrfrec.evaluation.metrics import DEFAULTS, Metric, parse_all, within
from mrfrec.evaluation.protocol import Ties, evaluate, warn_of_another_plan
from mrfrec.evaluation.splits import Questions, Split, check_split, popularity_differs
from mrfrec.io.atomic import writing
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build

_MACHINE = {"threads", "memory_limit", "device"}
_UNLIMITED = 1 << 60  # bytes; workers that report no memory seem to have more


@dataclass(frozen=True)
class Trial:
    """A point that was tried; its value is None if the fit failed."""

    parameters: dict[str, Any]
    value: float | None
    error: float | None = None  # standard error of the value
    seconds: float | None = None  # training time of a fit from scratch
    failure: str | None = None
    chosen: dict[str, Any] | None = None  # the point as the search chose it
    plan: str | None = None  # of the model, if it has one: dense or sparse, and why


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
    usual: dict[str, Any] = field(default_factory=dict)  # parameters of a model that is not tuned

    @property
    def default(self) -> Trial | None:
        """The trial of the default parameters; None if they were not tried, or could not be fitted."""
        for trial in self.trials:
            if trial.value is not None and {**self.usual, **trial.parameters} == self.usual:
                return trial
        return None

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
            "training_seconds": best.seconds, "plan": best.plan, "trials": len(self.trials),
            "split": self.split, **self.facts,
        }  # fmt: skip
        found = {"model": self.model, "parameters": best.parameters, "tuned": tuned}
        with writing(Path(path)) as temporary:
            temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


Improved = Callable[[Tuning], None]


class Attempt(NamedTuple):
    """A point to try: its place among the points, its parameters, and a model that has them."""

    number: int
    parameters: dict[str, Any]
    model: Recommender


class Trying:
    """Fits and measures models; the trials of one thread share intermediate results."""

    def __init__(self, split: Split, metric: Metric, ties: Ties) -> None:
        self._split, self._metric, self._ties = replace(split, inner=None, whole=None), metric, ties
        self._reuse: dict[int, dict[str, Any]] = {}  # by thread

    def __getstate__(self) -> dict[str, Any]:  # the workers of a cluster begin with nothing
        return {**self.__dict__, "_reuse": {}}

    def __call__(self, attempt: Attempt, engine: object = None, **fit: Any) -> Trial:
        """Return the trial of a point. `engine`, that of a task on a cluster, is not needed."""
        reuse = self._reuse.setdefault(threading.get_ident(), {})
        try:
            found = evaluate(
                attempt.model, self._split, [str(self._metric)], ties=self._ties, reuse=reuse, **fit
            )
        except (NumericalError, MemoryPlanError) as error:
            return Trial(attempt.parameters, None, failure=str(error))
        mean = found.mean(self._metric)
        spread = mean.error if math.isfinite(mean.error) else None
        seconds, plan = found.seconds["training"], found.facts["plan"]
        return Trial(attempt.parameters, mean.mean, spread, seconds, plan=plan)


class Study:
    """The trials so far, in memory and as lines of a file. Takes the parameters of `tune`."""

    def __init__(
        self,
        split: Split,
        metric: str | None,
        model: str,
        fixed: Parameters | None,
        minutes: float | None,
        max_seconds: float | None,
        path: "str | os.PathLike[str] | None",
        improved: Improved | None,
        ties: Ties,
        machine: Parameters | None,
        progress: Progress | None,
        client: Any = None,
    ) -> None:
        if max_seconds is not None:
            max_seconds = check_number("max_seconds", max_seconds, "above 0", lambda x: x > 0)
        if minutes is not None:
            minutes = check_number("minutes", minutes, "above 0", lambda x: x > 0)
        if improved is not None and not callable(improved):
            raise ParameterError("improved", "a function or None", improved)
        if path is not None and (not isinstance(path, str | os.PathLike) or Path(path).is_dir()):
            raise ParameterError("study", "a file, or None", path)
        if not isinstance(machine or {}, Mapping) or set(machine or {}) - _MACHINE:
            rule = f"of parameters that change no result: {', '.join(sorted(_MACHINE))}"
            raise ParameterError("machine", rule, machine)
        if client is not None:
            from mrfrec.engines.cluster import check_client

            check_client(client)
        self.split = check_split(split).for_tuning()
        try:
            wanted = within(DEFAULTS[:1], split.training.n_items) if metric is None else [metric]
            (self.metric,) = parse_all(wanted, split.training.n_items)
        except ParameterError as error:
            raise error.named("metric") from None
        made = build(model, fixed or {})
        self.usual = made.parameters  # a climb replaces "auto" by its starting values
        self.model, self.max_seconds, self.ties = type(made).__name__, max_seconds, ties
        # Parameters that change no result do not identify a trial.
        given = plain(fixed or {})
        self.fixed = {name: value for name, value in given.items() if name not in made.machine_parameters}
        self.machine = {name: given[name] for name in given.keys() - self.fixed.keys()} | dict(machine or {})
        self._progress, self._improved = progress, improved
        self.done, self.wanted = 0, 0  # trials; 0 are wanted where nobody knows how many it takes
        self._trying = Trying(self.split, self.metric, ties)
        self._cluster = {} if client is None else {"client": client}
        self._fit_on: dict[str, Any] = {}  # the cluster, if it can fit the model
        if client is not None:
            with suppress(ParameterError):
                self.check_distributed()
                self._fit_on = self._cluster
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
        self.free: Collection[str] = ()  # axes that need no fit
        self._besides_fit = 0.0  # seconds of the first trial

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
        found: Trial | None = None,
    ) -> Trial | None:
        """Try a point, or return its earlier trial; None if there is no time for it.

        `axis` is the parameter that changed since the last trial. Points that do not compete are those of a
        cheaper model. `found` is the trial, where a cluster has made it.
        """
        parameters = {**self.fixed, **point}
        same = next((trial for trial in self.trials if trial.parameters == parameters), None)
        if same is None or chosen is not None:
            if same is None and found is None and not self._has_time(axis, competes, budget):
                return None
            start = time.monotonic()
            same = replace(same or found or self._try(parameters), chosen=chosen)
            seconds = time.monotonic() - start
            if not self._longest:
                self._besides_fit = max(seconds - (same.seconds or 0.0), 0.0)
            self._note_seconds(axis, competes, seconds)
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

    def try_all(self, points: Sequence[dict[str, Any]], axis: str = "") -> None:
        """Try points on the workers of the cluster, if there is one; they are recorded in their order.

        With a limit of time, there are as many at one time as the workers have threads, and no more are begun
        that would be expected to end later.
        """
        known = [trial.parameters for trial in self.trials]
        new: list[tuple[int, dict[str, Any]]] = []
        for number, point in enumerate(points):
            parameters = {**self.fixed, **point}
            if parameters not in known:
                known.append(parameters)
                new.append((number, parameters))
        if not self._cluster or not new:
            return
        from mrfrec.engines.cluster import ClusterEngine

        self.report()
        done = 0

        def record(attempt: Attempt, found: Trial) -> None:
            nonlocal done
            for number in range(done, attempt.number):  # tried before
                self.value_of(points[number], axis=axis)
            self.value_of(points[attempt.number], axis=axis, found=found)
            self.done = done = attempt.number + 1
            self.report()

        with ClusterEngine(**self._cluster) as engine:
            matrices = (self.split.training.matrix, self.split.test.shown, self.split.test.targets)
            room = engine.task_memory - sum(X.data.nbytes + X.indices.nbytes for X in matrices)
            limit = max(room, 1) if room < _UNLIMITED else None
            machine: dict[str, Any] = {"threads": 1, "memory_limit": limit}
            machine |= {name: value for name, value in self.machine.items() if value is not None}
            attempts = [Attempt(number, p, build(self.model, p, machine)) for number, p in new]
            at_once = len(attempts) if math.isinf(self.budget) else engine.threads_of_tasks
            for start in range(0, len(attempts), at_once):
                if not self._has_time(axis):
                    break
                begun, some = self.elapsed, attempts[start : start + at_once]
                engine.fold("trial", self._trying, some, record, [1] * len(some))
                self._note_seconds(axis, True, self.elapsed - begun)

    def _has_time(self, axis: str, competes: bool = True, budget: float | None = None) -> bool:
        """Return whether a trial is expected to end in time; the first may take as long as it does."""
        limit = self.budget if budget is None else budget
        late = bool(self.trials) and self.elapsed + self._expected(axis, competes) > limit
        self._out_of_time |= late and competes
        return not late

    def _note_seconds(self, axis: str, competes: bool, seconds: float) -> None:
        self._longest[axis, competes] = max(self._longest.get((axis, competes), 0.0), seconds)

    def _expected(self, axis: str, competes: bool) -> float:
        """Return how long a trial may take: as long as others of its axis, or as the cheaper model tells."""
        alike = {name: seconds for (name, of), seconds in self._longest.items() if of == competes}
        cheap = {name: seconds for (name, of), seconds in self._longest.items() if of != competes}
        longest = max(alike.values(), default=0.0)
        if axis in self.free and axis not in alike:
            return self._besides_fit
        if axis in alike or not competes or axis not in cheap:
            return alike.get(axis, longest)
        return longest * cheap[axis] / max(cheap.values())

    def _try(self, parameters: dict[str, Any]) -> Trial:
        self.report()
        model, number = build(self.model, parameters, self.machine), len(self.trials) + 1
        tell = None if self._progress is None else lambda stage, *_: self.report(f"trial {number}: {stage}")
        return self._trying(Attempt(0, parameters, model), progress=tell, **self._fit_on)

    def check_distributed(self) -> None:
        """Refuse a cluster that cannot fit the model, for trials one after the other."""
        if self._cluster:
            build(self.model, self.fixed, self.machine).check_client(self._cluster["client"])

    def worth(self, trial: Trial) -> float:
        """Return the value of a trial for the search: 0 if it failed or trained too long."""
        return trial.value if trial.value is not None and self.result().is_eligible(trial) else 0.0

    def report(self, stage: str = "trying parameters", *, is_over: bool = False) -> None:
        """Tell how many trials are done, or how much of the time is over where their number is not known."""
        done, total = self.done, self.wanted
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
            self.model, self.metric, self.split.name, tuple(self.competing), self.max_seconds, self.facts,
            self._out_of_time, self.usual,
        )  # fmt: skip

    def finish(self) -> Tuning:
        """Return the result; warn if a fit to all the data would be another kind of model than the best."""
        found = self.result()
        if any(found.is_eligible(trial) for trial in found.trials):
            with suppress(MemoryPlanError):  # a trial of a machine with more memory
                warn_of_another_plan(build(self.model, found.best.parameters, self.machine), self.split)
        return found


def _line(
    path: Path, number: int, line: bytes, names: Iterable[str], added: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Parse a line of a study, which must have exactly these keys; older files lack those `added` since."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        found = {**(added or {}), **found}
    if not isinstance(found, dict) or found.keys() != set(names):
        raise DataError(f"{path}, line {number}: not a line of a study of mrfrec tune. Use another file.")
    return found


def _trial(path: Path, number: int, line: bytes) -> Trial:
    trial = Trial(**_line(path, number, line, Trial.__dataclass_fields__, {"plan": None}))
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
