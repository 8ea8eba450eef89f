"""Try given points on the validation users, and find the best parameters among them."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from mrfrec.core.engine import Progress
from mrfrec.core.progress import shows_progress
from mrfrec.errors import ParameterError
from mrfrec.evaluation.grids import Parameters, plain
from mrfrec.evaluation.protocol import Ties
from mrfrec.evaluation.splits import Split
from mrfrec.evaluation.study import Improved, Study, Tuning
from mrfrec.models.registry import build


@shows_progress
def tune(
    split: Split,
    points: Iterable[Parameters],
    metric: str | None = None,
    *,
    model: str = "MRF",
    fixed: Parameters | None = None,
    minutes: float | None = None,
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
        Time for all trials: none is begun later, except the first.
    study
        A file of trials: those in it are not run again.
    improved
        Called with the `Tuning` so far whenever a trial is the best yet, for example to save it.
    machine
        Parameters that change no result, such as threads.
    client
        Fit each model on a cluster, as `Recommender.fit` does.
    """
    assert not isinstance(progress, bool)
    wanted = list(points) if isinstance(points, Iterable) and not isinstance(points, Mapping) else []
    if not wanted or not all(isinstance(point, Mapping) for point in wanted):
        raise ParameterError("points", "a list of parameters such as grid(l2=[1, 3])", points)
    run = Study(split, metric, model, fixed, minutes, study, improved, ties, machine, progress, client)
    for point in wanted:  # refuse bad parameters before the first trial
        build(run.model, {**run.fixed, **plain(point)})
    run.wanted = len(wanted)
    for run.done, point in enumerate(wanted):
        if run.value_of(plain(point)) is None:
            break
    return run.finish()
