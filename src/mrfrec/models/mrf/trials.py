"""Trials of values for the parameters of an MRF: fit without the held-out users, then rank what they hide."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec.core import fitting, statistics
from mrfrec.core.accuracy import of_ranks
from mrfrec.core.ages import Recency
from mrfrec.core.engine import Array, Engine, Floats, ranges
from mrfrec.core.kernels import ranking as kernels
from mrfrec.core.low_rank import LowRank
from mrfrec.core.plan import Settings
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.fitted.measured import Goal
from mrfrec.fitted.scorers import for_kernels, novelty_factors, read_only
from mrfrec.models.mrf.held_out import HeldOut
from mrfrec.models.mrf.scoring import as_asked, columns_of, intercept, relative_spread, scores_of_low_rank

# A new value of the first is a new pass over the data, and of the second needs new scores.
PASSES = ("user_weight", "feature_weight", "half_life")
SCORED = ("recency",)
NEIGHBORS, MOST_NEIGHBORS = 64, 128  # of a stand-in, where the final model cannot be tried
_USERS_AT_ONCE = 64


def stand_in(settings: Settings, items: int) -> Settings:
    """Return the settings of a sparse model with few neighbours in place of a dear one."""
    return replace(
        settings,
        sparsity=min(NEIGHBORS / items, settings.sparsity or 1.0),
        max_neighbors=min(MOST_NEIGHBORS, settings.max_neighbors),
        mean_constraint=False,
    )


class Trials:
    """Fits to the users who are not held out, of which the scores of the latest are kept.

    Fits share all stages that a value does not change. A new `rank_weight` or `novelty` needs no fit.
    """

    def __init__(self, asked: HeldOut, settings: Settings, held: int, goal: Goal, engine: Engine) -> None:
        self._asked, self._settings, self._held = asked, settings, held
        self._goal, self._engine = goal, engine
        self._reuse = fitting.Reuse(keeps_weights=False)
        shape = asked.shown.shape[0], len(asked.ranked)
        self._base = np.empty(shape, settings.dtype)  # x·B and the base score
        self._low: Array | None = None  # x·L
        self._low_rank: LowRank | None = None
        self._fitted: tuple[Any, ...] = ()  # the weights and base scores of the latest fit, and its key
        self._asked_as: Recency | None = None  # how `_histories` fall with time
        self._spread = 0.0  # of x·B, as a multiple of that of x·L
        self._passed: tuple[float, ...] | None = None
        self._shown = asked.shown
        self._histories, self._seen, self._hidden = (
            for_kernels(Rows.of(X), self._base.dtype) for X in (asked.shown, asked.seen, asked.hidden)
        )
        self._tasks = ranges(0, shape[0], _USERS_AT_ONCE)

    def usual_ridge(self, user_weight: float) -> float:
        """Return the l2 that "auto" starts from, to three digits; it is that of the users alone."""
        settings = replace(self._settings, user_weight=user_weight)
        sides = statistics.both_sides(self._asked.training, self._engine)
        moments = statistics.moments(self._asked.training, settings, self._engine, sides=sides)
        if self._asked.features is None:  # the first fit needs the same
            self._passed = user_weight, 0.0, 0.0
            self._reuse.put("sides", (False, False), sides, {})
            self._reuse.put("moments", self._passed, moments, {})
        return float(f"{moments.typical_ridge(settings):.3g}")

    def fit(self, values: Mapping[str, float]) -> None:
        """Fit with these values of l2 and of `PASSES`, and score the held-out users."""
        asked, engine = self._asked, self._engine
        passed = tuple(values[name] for name in PASSES)
        changed: dict[str, Any] = {name: values[name] for name in ("l2", "order", *PASSES)}
        settings = replace(self._settings, **changed)
        recency = Recency(values["half_life"], values["recency"])
        if not self._fitted or self._fitted[0] != settings:
            if passed != self._passed:  # most of what earlier fits share is of no more use, and makes room
                self._reuse.drop_all_but("low_rank", "sides")
                self._passed = passed
            fitted = fitting.fit(
                asked.training, settings, engine, features=asked.features, times=asked.times,
                copied=self._held, reuse=self._reuse,
            )  # fmt: skip
            start = intercept(fitted, settings.dtype, settings.offset)
            if fitted.low_rank is not None:
                X = as_asked(asked.training, asked.times, settings)
                self._spread = relative_spread(X, fitted.weights, start, fitted.low_rank)
            self._fitted = settings, fitted.weights, start, fitted.low_rank
        self._ask_as(recency)
        _, weights, start, low_rank = self._fitted
        self._score(weights, start[asked.ranked])
        if low_rank is not None and (self._low is None or low_rank is not self._low_rank):
            self._low = np.empty_like(self._base) if self._low is None else self._low
            self._low_rank = low_rank
            engine.run(lambda task: self._score_low_rank(low_rank, *task), self._tasks)

    def _ask_as(self, recency: Recency) -> None:
        """Let the values of the histories fall with time."""
        asked = self._asked
        if asked.shown_times is None or recency == self._asked_as:
            return
        X = asked.shown
        factors = recency.factors(X.indptr, asked.shown_times)
        self._shown = sp.csr_array((X.data * factors, X.indices, X.indptr), shape=X.shape)
        self._histories = for_kernels(Rows.of(self._shown), self._base.dtype)
        self._asked_as, self._low_rank = recency, None  # x·L is another

    def _score(self, weights: Rows | DenseRows, start: Array) -> None:
        """Write the base scores and x·B of the held-out users."""
        start, out = read_only(start), self._base
        if isinstance(weights, DenseRows):
            B = read_only(columns_of(weights, self._asked.ranked))

            def of_users(task: tuple[int, int]) -> None:
                kernels.score_dense(*self._histories, *task, B, start, out[slice(*task)])

        else:
            rows = for_kernels(weights, out.dtype)
            column = np.full(weights.width, -1, np.int32)
            column[self._asked.ranked] = np.arange(len(start), dtype=np.int32)

            def of_users(task: tuple[int, int]) -> None:
                out[slice(*task)] = start
                kernels.add_sparse(*self._histories, *task, *rows, column, out[slice(*task)])

        self._engine.run(of_users, self._tasks)

    def _score_low_rank(self, low_rank: Any, first: int, last: int) -> None:
        assert self._low is not None
        some = self._shown[first:last]
        self._low[first:last] = scores_of_low_rank(some, low_rank, self._asked.ranked, self._base.dtype)

    def rank(self, rank_weight: float, novelty: float) -> Floats:
        """Return the metric of each held-out user, by the scores of the latest fit."""
        asked, dtype = self._asked, self._base.dtype
        factors = novelty_factors(asked.popularity, novelty, asked.ranked).astype(dtype)
        low = self._base if self._low is None else self._low
        weight = dtype.type(0.0 if self._low is None else rank_weight * self._spread)
        k, places = asked.places(self._goal.k), np.empty(asked.hidden.nnz, np.int64)
        self._engine.run(
            lambda task, row: kernels.ranks_of_hidden(
                self._base, low, weight, factors, *self._seen[:2], *self._hidden[:2], k, *task, row, places
            ),
            self._tasks,
            scratch=lambda: np.empty(len(asked.ranked), dtype),
            scratch_bytes=dtype.itemsize * len(asked.ranked),
        )
        found = of_ranks(self._goal.kind, k, places, np.diff(asked.hidden.indptr))
        return np.asarray(np.bincount(asked.user, found) / np.bincount(asked.user))


def best_on_average(metrics: Sequence[Floats]) -> int:
    """Return the place of the trial with the best mean."""
    return int(np.mean(metrics, axis=1).argmax())


def cross_checked(metrics: Sequence[Floats]) -> Floats:
    """Return each user's gain over the first trial, by the trial that the other half of the users prefers.

    The gain of the trial that all users prefer, on the same users, would be too large: some of it is chance.
    """
    table = np.array(metrics)
    users = np.arange(table.shape[1])
    gains = np.zeros(len(users))
    for half in (0, 1):
        own, others = users % 2 == half, users % 2 != half
        if others.any():
            gains[own] = (table[best_on_average([*table[:, others]])] - table[0])[own]
    return gains
