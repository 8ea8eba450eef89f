"""Choose the k best items of each user, without a users × items matrix.

A `Scorer` gives the scores of histories, and `top_k` chooses, both in compiled code.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.rows import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.scorers import (
    FEW,
    Base,
    Lift,
    Scorer,
    Selection,
    Ties,
    WeightScorer,
    as_array,
    for_kernels,
    read_only,
)
from mrfrec.fitted.state import FittedState, Runtime

Array = npt.NDArray[Any]
Ranked = tuple[npt.NDArray[np.int32], Array, npt.NDArray[np.bool_]]
"""Items, scores and whether there is evidence for each: users × k, best first."""


def rank(
    fitted: FittedState,
    runtime: Runtime,
    histories: Rows,
    k: int,
    ties: Ties = "popularity",
    hide: Rows | None = None,
    never: npt.NDArray[np.bool_] | None = None,
    allowed: Mapping[int, Array] | None = None,
    more_novelty: float = 0.0,
    lift: Lift | None = None,
) -> Ranked:
    """Return items, scores and whether there is evidence for each: users × k, best first.

    `hide` holds the items to leave out for each user, `never` those for all; `allowed`, the only items
    for some users. `more_novelty` is added to the novelty that the model was fitted with. `lift` changes the
    scores.
    """
    strangers = histories.ptr[1:] == histories.ptr[:-1]
    stranger = bool(strangers.any())
    if stranger and not strangers.all():
        shape = len(histories), k
        out = np.empty(shape, np.int32), np.empty(shape, fitted.score_type), np.empty(shape, bool)
        for rows in (np.flatnonzero(~strangers), np.flatnonzero(strangers)):
            only = (
                {i: allowed[row] for i, row in enumerate(rows.tolist()) if row in allowed}
                if allowed
                else None
            )
            some = None if hide is None else hide.take(rows)
            parts = rank(
                fitted, runtime, histories.take(rows), k, ties, some, never, only, more_novelty, lift
            )
            for whole, part in zip(out, parts, strict=True):
                whole[rows] = part
        return out
    base = fitted.base(unknown_user=stranger, more_novelty=more_novelty, ties=ties)
    base = base if lift is None else base.lifted(lift)
    if stranger:  # nothing is known, so nothing adds to the base score
        nothing = Rows.empty(histories.width, histories.width)
        scorer: Scorer = WeightScorer(histories, nothing, base.start.dtype)
    else:
        scorer = fitted.learned.scorer(histories, runtime)
    base = base if never is None else base.without(never)
    return top_k(scorer, k, base, hide=hide, allowed=allowed, threads=runtime.threads)


def score(scorer: Scorer, base: Array, threads: int) -> Array:
    """Return all scores, users × items."""
    out = np.empty((len(scorer), len(base)), base.dtype)

    def work(task: tuple[int, int]) -> None:
        out[slice(*task)] = as_array(scorer.scores(*task, base), base)

    with LocalEngine(threads, uses_blas=scorer.uses_blas) as workers:
        workers.run(work, _tasks(scorer))
    return out


def top_k(
    scorer: Scorer,
    k: int,
    base: Base,
    *,
    hide: Rows | None = None,
    allowed: Mapping[int, Array] | None = None,
    threads: int,
) -> Ranked:
    """Return items, scores and whether there is evidence for each: users × k, best first.

    `hide` holds the items to leave out for each user, `allowed` the only ones to choose from for some users.
    Places that nothing fills hold item −1 and score −∞.
    """
    n = len(scorer)
    items = np.full((n, k), -1, np.int32)
    best = np.full((n, k), -np.inf, base.start.dtype)
    evidence = np.zeros((n, k), bool)
    allowed = allowed or {}
    hide = Rows.empty(n, len(base.start)) if hide is None else hide
    selection = None if allowed else Selection(k, hide, base.factor)
    if scorer.ranker is not None and not allowed:
        values = scorer.histories.values.astype(best.dtype, copy=False)
        ranked = scorer.ranker.top_k(scorer.histories, values, k, base.start, base.order, hide, base.factor)
        return *ranked, scorer.has_evidence(0, n, ranked[0])

    def work(task: tuple[int, int]) -> None:
        first, last = task
        part = slice(first, last)
        scored = scorer.scores(first, last, base.start, selection)
        if base.factor is not None:
            if isinstance(scored, Rows):
                scored = replace(scored, values=scored.values * base.factor[scored.items])
            else:
                scored *= base.factor
        if allowed:
            scored = as_array(scored, base.scores)
            for u in allowed.keys() & range(first, last):
                other = np.ones(len(base.scores), bool)
                other[allowed[u]] = False
                scored[u - first, other] = -np.inf
        _select(scored, first, last, hide, base, items, best, evidence)
        if not isinstance(scored, Rows):
            evidence[part] = scorer.has_evidence(first, last, items[part])

    tasks = _tasks(scorer)
    if n <= FEW and not scorer.uses_blas:  # not worth a thread
        for task in tasks:
            work(task)
    else:
        with LocalEngine(threads, uses_blas=scorer.uses_blas) as workers:
            workers.run(work, tasks)
    return items, best, evidence


def _select(
    scored: Rows | Array, first: int, last: int, hide: Rows, base: Base, items: Array, best: Array,
    evidence: Array,
) -> None:  # fmt: skip
    """Choose for users first to last."""
    from mrfrec.core.kernels import ranking as kernels

    part = slice(first, last)
    hide_ptr, hide_items, _ = for_kernels(hide, hide.values.dtype)
    hide_ptr = hide_ptr[first : last + 1]
    if isinstance(scored, Rows):
        kernels.select_sparse(
            scored.ptr, scored.items, scored.values, hide_ptr, hide_items, read_only(base.scores),
            read_only(base.best_first), read_only(base.order),
            np.zeros(len(base.scores), np.uint8), items[part], best[part], evidence[part],
        )  # fmt: skip
    else:
        kernels.select_dense(scored, hide_ptr, hide_items, read_only(base.order), items[part], best[part])


def _tasks(scorer: Scorer) -> list[tuple[int, int]]:
    """Return the first and last user of each block that is scored at once."""
    n, size = len(scorer), scorer.users_at_once
    return [(start, min(start + size, n)) for start in range(0, n, size)]
