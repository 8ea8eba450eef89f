"""Find the best parameters on the validation users: all points of a grid, or those that Optuna chooses."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrfrec.checks import check_count
from mrfrec.core.engine import Progress
from mrfrec.core.progress import shows_progress
from mrfrec.errors import ParameterError
from mrfrec.evaluation.chooser import Chooser
from mrfrec.evaluation.grids import Parameters, check_values, plain, ridges, rounded, scale_exponent
from mrfrec.evaluation.protocol import Ties
from mrfrec.evaluation.splits import Split
from mrfrec.evaluation.study import Improved, Study, Trial, Tuning
from mrfrec.models.axes import Range, Ridges
from mrfrec.models.registry import build, model_class

_SEED = 98765


@shows_progress
def tune(
    split: Split,
    points: Iterable[Parameters],
    metric: str | None = None,
    *,
    model: str = "MRF",
    fixed: Parameters | None = None,
    minutes: float | None = None,
    max_seconds: float | None = None,
    study: "str | os.PathLike[str] | None" = None,
    improved: Improved | None = None,
    ties: Ties = "popularity",
    machine: Parameters | None = None,
    progress: "Progress | bool | None" = None,
    client: Any = None,
) -> Tuning:
    """Try every point on the validation users.

    Of the test users, only the popularity of their items is looked at: a warning says if it differs from
    that of the validation users by more than chance.

    Parameters
    ----------
    metric
        The metric to maximise, such as "recall@20". By default "ndcg@100", with fewer places for fewer
        items.
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
    client
        A `distributed.Client`: its workers run trials at the same time, one in each of their threads. The
        trials, their order and the best are the same; training times are those of the workers.

    Notes
    -----
    With a client and a limit of `minutes`, as many trials are begun together as the workers have threads,
    and none before the last of these has ended: the longest tells whether there is time for more. Each may
    use one thread and its share of the memory of the smallest worker, unless `machine` says otherwise.
    """
    assert not isinstance(progress, bool)
    wanted = list(points) if isinstance(points, Iterable) and not isinstance(points, Mapping) else []
    if not wanted or not all(isinstance(point, Mapping) for point in wanted):
        raise ParameterError("points", "a list of parameters such as grid(l2=[1, 3])", points)
    run = Study(
        split, metric, model, fixed, minutes, max_seconds, study, improved, ties, machine, progress,
        client,
    )  # fmt: skip
    for point in wanted:  # refuse bad parameters before the first trial
        build(run.model, {**run.fixed, **plain(point)})
    run.wanted = len(wanted)
    run.try_all([plain(point) for point in wanted])
    for run.done, point in enumerate(wanted):
        if run.value_of(plain(point)) is None:
            break
    run.report(is_over=True)
    return run.finish()


@shows_progress
def search(
    split: Split,
    space: Mapping[str, Range | Sequence[Any]],
    trials: int = 50,
    metric: str | None = None,
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
    progress: "Progress | bool | None" = None,
    client: Any = None,
) -> Tuning:
    """Let Optuna choose points from ranges and lists of choices, based on earlier trials.

    "ridge" in the space stands for l2 ÷ the typical diagonal entry of S, as in `ridges`. A continued study
    chooses as if it had not been interrupted; its trials outside the space are ignored. The trials follow
    each other: with a client, the workers share each fit, which must be that of an `MRF`.
    """
    assert not isinstance(progress, bool)
    trials = check_count("trials", trials)
    if not isinstance(space, Mapping):
        raise ParameterError("space", "a mapping from parameters to ranges and lists", space)
    choose = Chooser(space, seed)
    run = Study(
        split, metric, model, fixed, minutes, max_seconds, study, improved, ties, machine, progress,
        client,
    )  # fmt: skip
    run.check_distributed()
    for name, of in space.items():
        if name != "ridge":
            check_values(run.model, name, of, run.fixed)
    ridge_axis = model_class(run.model).tuning_grid.get("l2")
    run.competing += [t for t in run.trials if t.chosen is not None and choose.holds(t.chosen)]
    run.wanted = trials
    while len(run.competing) < trials:
        run.done = len(run.competing)
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
    run.report(is_over=True)
    return run.finish()


def points_of(trials: Iterable[Trial]) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Yield parameters, values and standard errors of the successful trials, for plots."""
    for trial in trials:
        if trial.value is not None:
            yield trial.parameters, trial.value, trial.error or 0.0
