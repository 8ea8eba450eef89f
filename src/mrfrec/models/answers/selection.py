"""Choose the k best items of each user, without a users × items matrix.

A `Scorer` gives the scores of histories, and `top_k` chooses: for a few users in plain numpy, for more in
compiled code on all threads, with equal results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import Rows
from mrfrec.engines.machine import usable_threads
from mrfrec.models.answers.scorers import (
    FEW,
    Scorer,
    Selection,
    WeightScorer,
    as_array,
    for_kernels,
    items_of,
    novelty_factors,
)

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender

_MOST_BASES = 16  # kept by a model; each holds a few numbers per item

Ties = Literal["index", "popularity"]
Array = npt.NDArray[Any]
Ranked = tuple[npt.NDArray[np.int32], Array, npt.NDArray[np.bool_]]
"""Items, scores and whether there is evidence for each: users × k, best first."""


@dataclass(frozen=True)
class Base:
    """The score each item starts from, and which of two items with equal scores comes first."""

    start: Array  # to which weights are added; −∞ for items that must not be chosen
    order: npt.NDArray[np.int32]  # a permutation: the lower number comes first
    factor: Array | None = None  # by which all scores are multiplied, for more novelty
    _whole: "Base | None" = None

    @cached_property
    def scores(self) -> Array:
        """The scores of items to which nothing is added."""
        return self.start if self.factor is None else self.start * self.factor

    @cached_property
    def best_first(self) -> npt.NDArray[np.int32]:
        """The items that may be chosen, by base score and then by order."""
        if self._whole is not None:
            items = self._whole.best_first
            return items[self.scores[items] > -np.inf]
        items = np.empty_like(self.order)
        items[self.order] = np.arange(len(items), dtype=np.int32)
        return items[np.argsort(-self.scores[items], kind="stable")] if self.scores.any() else items

    def without(self, hidden: npt.NDArray[np.bool_]) -> "Base":
        """Return this base with some items never chosen."""
        start = np.where(hidden, -np.inf, self.start).astype(self.start.dtype)
        return Base(start, self.order, self.factor, self)


def base_of(
    model: "Recommender", *, stranger: bool, more_novelty: float = 0.0, ties: Ties = "popularity"
) -> Base:
    """Return the base scores of a model's items for users with a history, or for a stranger without one."""
    key = (ties, stranger, more_novelty)
    base = model._bases.get(key)
    if base is None:
        if len(model._bases) > _MOST_BASES:
            model._bases.clear()
        start, factor = model._stranger_scores if stranger else model._base_scores, None
        if more_novelty:
            factor = novelty_factors(model.popularity_, more_novelty).astype(start.dtype)
        by_index = np.arange(len(start), dtype=np.int32)
        order = model.catalogue.by_popularity if ties == "popularity" else by_index
        base = model._bases[key] = Base(start, order, factor)
    return base


def rank(
    model: "Recommender",
    histories: Rows,
    k: int,
    ties: Ties = "popularity",
    hide: Rows | None = None,
    never: npt.NDArray[np.bool_] | None = None,
    allowed: Mapping[int, Array] | None = None,
    more_novelty: float = 0.0,
) -> Ranked:
    """Return items, scores and whether there is evidence for each: users × k, best first.

    `hide` holds the items to leave out for each user, `never` those for all; `allowed`, the only items
    for some users. `more_novelty` is added to the novelty that the model was fitted with.
    """
    strangers = histories.ptr[1:] == histories.ptr[:-1]
    stranger = bool(strangers.any())
    if stranger and not strangers.all():
        shape = len(histories), k
        out = np.empty(shape, np.int32), np.empty(shape, model._base_scores.dtype), np.empty(shape, bool)
        for rows in (np.flatnonzero(~strangers), np.flatnonzero(strangers)):
            only = (
                {i: allowed[row] for i, row in enumerate(rows.tolist()) if row in allowed}
                if allowed
                else None
            )
            some = None if hide is None else hide.take(rows)
            found = rank(model, histories.take(rows), k, ties, some, never, only, more_novelty)
            for whole, part in zip(out, found, strict=True):
                whole[rows] = part
        return out
    base = base_of(model, stranger=stranger, more_novelty=more_novelty, ties=ties)
    if stranger:  # nothing is known, so nothing adds to the base score
        nothing = Rows.empty(histories.width, histories.width)
        scorer: Scorer = WeightScorer(histories, nothing, base.start.dtype)
    else:
        scorer = model._scorer(histories)
    base = base if never is None else base.without(never)
    return top_k(scorer, k, base, hide=hide, allowed=allowed, threads=model.threads or usable_threads())


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
    items, best = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, base.start.dtype)
    evidence = np.zeros((n, k), bool)
    few, allowed = n <= scorer.few, allowed or {}
    hide = Rows.empty(n, len(base.start)) if hide is None else hide
    selection = None if allowed else Selection(k, hide, base.factor)
    if scorer.ranker is not None and not allowed:
        values = scorer.histories.values.astype(best.dtype, copy=False)
        found = scorer.ranker.top_k(scorer.histories, values, k, base.start, base.order, hide, base.factor)
        return *found, scorer.has_evidence(0, n, found[0])

    def work(task: tuple[int, int]) -> None:
        first, last = task
        part = slice(first, last)
        scored = scorer.scores(first, last, base.start, selection)
        if base.factor is not None:
            if isinstance(scored, Rows):
                scored = replace(scored, values=scored.values * base.factor[scored.items])
            else:
                scored *= base.factor
        if not few:
            _select(scored, first, last, hide, base, items, best, evidence)
        for u in range(first, last):
            if few or u in allowed:
                chosen = _choose(scored, u - first, k, base, items_of(hide, u), allowed.get(u))
                items[u], best[u], evidence[u] = -1, -np.inf, False
                for row, places in zip((items[u], best[u], evidence[u]), chosen, strict=True):
                    row[: len(places)] = places
        if not isinstance(scored, Rows):
            evidence[part] = scorer.has_evidence(first, last, items[part])

    tasks = _tasks(scorer)
    if n <= FEW and not scorer.uses_blas:  # not worth a thread
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
            scored.ptr, scored.items, scored.values, hide_ptr, hide_items, base.scores, base.best_first,
            base.order, np.zeros(len(base.scores), np.uint8), items[part], best[part], evidence[part],
        )  # fmt: skip
    else:
        kernels.select_dense(scored, hide_ptr, hide_items, base.order, items[part], best[part])


def _choose(
    scored: Rows | Array, row: int, k: int, base: Base, hidden: Array, allowed: Array | None
) -> tuple[Array, Array, Array]:
    """Choose for one user in numpy; returns items, scores and, of sparse scores, which are evidence."""
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
        # The best of the other items: in order, so that the first ones will do.
        skip[items] = True
        others = base.best_first[: k + evidence + len(hidden)] if allowed is None else allowed
        others = others[~skip[others]]
        items = np.concatenate([items, others])
        scores = np.concatenate([scores, base.scores[others]])
    else:
        items, scores, evidence = np.arange(len(skip)), scored[row], 0
        scores[skip] = -np.inf
    # Everything that may be among the k best, then these alone in order.
    places = np.flatnonzero(scores > -np.inf)
    if k < len(places):
        some = scores[places]
        places = places[some >= np.partition(some, -k)[-k]]
    places = places[np.lexsort((base.order[items[places]], -scores[places]))][:k]
    return items[places], scores[places], places < evidence


def _tasks(scorer: Scorer) -> list[tuple[int, int]]:
    n, size = len(scorer), scorer.users_at_once
    return [(start, min(start + size, n)) for start in range(0, n, size)]
