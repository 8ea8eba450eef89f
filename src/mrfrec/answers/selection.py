"""Choose the k best items of each user, without a users × items matrix.

A `Scorer` gives the scores of histories, and `top_k` chooses: for a few users in plain numpy, for more in
compiled code on all threads, with equal results.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.rows import Rows
from mrfrec.fitted.scorers import (
    MOST_IN_NUMPY,
    Base,
    Lift,
    Scorer,
    Selection,
    Ties,
    WeightScorer,
    as_array,
    for_kernels,
    items_of,
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
    base = fitted.base(stranger=stranger, more_novelty=more_novelty, ties=ties)
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
    from mrfrec.engines.local import LocalEngine

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
    in_numpy = n <= scorer.most_in_numpy
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
        if not in_numpy:
            _select(scored, first, last, hide, base, items, best, evidence)
        for u in range(first, last):
            if in_numpy or u in allowed:
                chosen = _choose(scored, u - first, k, base, items_of(hide, u), allowed.get(u))
                items[u], best[u], evidence[u] = -1, -np.inf, False
                for row, places in zip((items[u], best[u], evidence[u]), chosen, strict=True):
                    row[: len(places)] = places
        if not isinstance(scored, Rows):
            evidence[part] = scorer.has_evidence(first, last, items[part])

    tasks = _tasks(scorer)
    if n <= MOST_IN_NUMPY and not scorer.uses_blas:  # not worth a thread
        for task in tasks:
            work(task)
    else:
        from mrfrec.engines.local import LocalEngine

        with LocalEngine(threads, uses_blas=scorer.uses_blas) as workers:
            workers.run(work, tasks)
    return items, best, evidence


def _select(
    scored: Rows | Array, first: int, last: int, hide: Rows, base: Base, items: Array, best: Array,
    evidence: Array,
) -> None:  # fmt: skip
    """Choose for users first to last in compiled code."""
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


def _choose(
    scored: Rows | Array, row: int, k: int, base: Base, hidden: Array, allowed: Array | None
) -> tuple[Array, Array, Array]:
    """Choose for one user in numpy; return items, scores and, if scores are sparse, which have evidence."""
    skip = np.zeros(len(base.scores), bool)
    if allowed is not None:
        skip[:] = True
        skip[allowed] = False
    skip[hidden] = True
    if isinstance(scored, Rows):
        span = slice(int(scored.ptr[row]), int(scored.ptr[row + 1]))
        touched = ~skip[scored.items[span]]
        items, scores = scored.items[span][touched], scored.values[span][touched]
        evidence = len(items)
        skip[items] = True
        # `best_first` is sorted: its first k + (all that may be skipped) hold the k best of the others.
        others = base.best_first[: k + evidence + len(hidden)] if allowed is None else allowed
        others = others[~skip[others]]
        items = np.concatenate([items, others])
        scores = np.concatenate([scores, base.scores[others]])
    else:
        items, scores, evidence = np.arange(len(skip)), scored[row], 0
        scores[skip] = -np.inf
    # Find the k-th best score, and sort only what reaches it.
    places = np.flatnonzero(scores > -np.inf)
    if k < len(places):
        some = scores[places]
        places = places[some >= np.partition(some, -k)[-k]]
    places = places[np.lexsort((base.order[items[places]], -scores[places]))][:k]
    return items[places], scores[places], places < evidence


def _tasks(scorer: Scorer) -> list[tuple[int, int]]:
    """Return the first and last user of each block that is scored at once."""
    n, size = len(scorer), scorer.users_at_once
    return [(start, min(start + size, n)) for start in range(0, n, size)]
