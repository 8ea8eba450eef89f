"""Trials of values for the parameters of an MRF: fit without the held-out users, then rank what they hide."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mrfrec.core import fitting, statistics
from mrfrec.core.engine import Array, Engine, Floats, ranges
from mrfrec.core.kernels import ranking as kernels
from mrfrec.core.metrics import of_places
from mrfrec.core.plan import Settings
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.fitted.measured import Goal
from mrfrec.fitted.scorers import for_kernels, novelty_factors, read_only
from mrfrec.models.mrf.held_out import HeldOut
from mrfrec.models.mrf.scoring import columns_of, intercept, relative_spread, scores_of_low_rank

PASSES = ("user_weight", "feature_weight")  # a new value of these is a new pass over the data
_USERS_AT_ONCE = 64


class Trials:
    """Fits to the users who are not held out, of which the scores of the latest are kept.

    Fits share all stages that a value does not change. A new `rank_weight` or `novelty` needs no fit.
    """

    def __init__(
        self, asked: HeldOut, settings: Settings, held: int, offset: bool, goal: Goal, engine: Engine
    ) -> None:
        self._asked, self._settings, self._held = asked, settings, held
        self._offset, self._goal, self._engine = offset, goal, engine
        self._reuse = fitting.Reuse(keeps_weights=False)
        shape = asked.shown.shape[0], len(asked.ranked)
        self._base = np.empty(shape, settings.dtype)  # x·B and the base score
        self._low: Array | None = None  # x·L, which no value changes
        self._spread = 0.0  # of x·B, as a multiple of that of x·L
        self._passed: tuple[float, ...] | None = None
        self._histories, self._seen, self._hidden = (
            for_kernels(Rows.of(X), self._base.dtype) for X in (asked.shown, asked.seen, asked.hidden)
        )
        self._tasks = ranges(0, shape[0], _USERS_AT_ONCE)

    def usual_ridge(self, user_weight: float) -> float:
        """Return the l2 that "auto" starts from, to three digits; it is that of the users alone."""
        settings = self._settings
        sides = statistics.both_sides(self._asked.training, self._engine)
        moments = statistics.moments(self._asked.training, user_weight, self._engine, sides=sides)
        if self._asked.features is None:  # the first fit needs the same
            self._passed = user_weight, 0.0
            self._reuse.put("sides", False, sides, {})
            self._reuse.put("moments", self._passed, moments, {})
        return float(f"{moments.typical_ridge(settings.alpha, settings.center):.3g}")

    def fit(self, values: Mapping[str, float]) -> None:
        """Fit with these values of l2 and of `PASSES`, and score the held-out users."""
        asked, engine = self._asked, self._engine
        passed = tuple(values[name] for name in PASSES)
        if passed != self._passed:  # most of what earlier fits share is of no more use, and makes room
            self._reuse.drop_all_but("low_rank", "sides")
            self._passed = passed
        user_weight, feature_weight = passed
        settings = replace(
            self._settings, l2=values["l2"], user_weight=user_weight, feature_weight=feature_weight
        )
        fitted = fitting.fit(
            asked.training, settings, engine, features=asked.features, copied=self._held, reuse=self._reuse
        )  # fmt: skip
        weights, low_rank = fitted.weights, fitted.low_rank
        start = intercept(fitted, settings.dtype, self._offset)
        self._score(weights, start[asked.ranked])
        if low_rank is None:
            return
        if self._low is None:
            self._low = np.empty_like(self._base)
            engine.run(lambda task: self._score_low_rank(low_rank, *task), self._tasks)
        self._spread = relative_spread(asked.training, weights, start, low_rank)

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
        some = self._asked.shown[first:last]
        self._low[first:last] = scores_of_low_rank(some, low_rank, self._asked.ranked, self._base.dtype)

    def rank(self, rank_weight: float, novelty: float) -> Floats:
        """Return the metric of each held-out user, by the scores of the latest fit."""
        asked, dtype = self._asked, self._base.dtype
        factors = novelty_factors(asked.popularity, novelty, asked.ranked).astype(dtype)
        low = self._base if self._low is None else self._low
        weight = dtype.type(0.0 if self._low is None else rank_weight * self._spread)
        places = np.empty(asked.hidden.nnz, np.int64)
        self._engine.run(
            lambda task, row: kernels.places_of_hidden(
                self._base, low, weight, factors, *self._seen[:2], *self._hidden[:2], *task, row, places
            ),
            self._tasks,
            scratch=lambda: np.empty(len(asked.ranked), dtype),
            scratch_bytes=dtype.itemsize * len(asked.ranked),
        )
        k = asked.places(self._goal.k)
        found = of_places(self._goal.kind, k, places, np.diff(asked.hidden.indptr))
        return np.asarray(np.bincount(asked.user, found) / np.bincount(asked.user))
