"""MRF: the paper's model as an estimator on a users × items matrix."""

import math
import time
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core import blocks, closed_form, pattern, ranking, schedule
from mrfrec.core import statistics as statistics_room
from mrfrec.core.resources import MemoryPlan, Progress, Workers, parse_bytes, usable_threads
from mrfrec.errors import DataError, NotFittedError, ParameterError

__all__ = ["MRF"]


class MRF:
    """A Gaussian Markov random field of items, fitted by pseudo-likelihood in closed form.

    Each item is regressed on the others; a user with history x is scored by x·B. Without `sparsity` and
    `threshold` the model is dense (Eq. 4 of the paper); either of them makes it sparse (§3).

    Parameters
    ----------
    l2
        Ridge on the rescaled item-item matrix. Published: dense 6 on ML-20M and Netflix, 3 on MSD; sparse 1.
    alpha
        Exponent of the rescaling, 0 (covariances) to 1 (correlations).
    l2_flat
        A second ridge, in the original space: the diagonal gets `l2 + l2_flat/s²`.
    user_weight
        β: a user with a history of length h counts h^(−β), so that long histories do not drown short ones.
    center
        Subtract the column means. `center=False, alpha=0` is EASE.
    sparsity
        Share of the m² entries to keep, diagonal included, before `max_neighbors` cuts.
    threshold
        Keep the entries with |S| above this; instead of `sparsity`.
    max_neighbors
        Entries kept in a column of the sparse model, diagonal included.
    r
        0 solves one system per item; up to 1, each system also gives the columns of that share of the
        item's neighbours: faster, less accurate.
    mean_constraint
        Fit under μᵀB = μᵀ (the Appendix), for all items with variance; dense only.
    offset
        Score by the exact conditional mean μ + (x − μ)·B instead of x·B.
    dtype
        Of the weights and of the linear algebra: "float32" or "float64".
    threads
        Threads to use; all cores if None. Results do not depend on it.
    memory_limit
        Bytes, or a text such as "8GB", that a fit (or `score`) may use beyond the matrix it is given; what
        the machine has available if None. A fit that needs more is refused with `MemoryPlanError`: before
        it starts, or, where only the data can tell, as soon as that shows.

    Attributes
    ----------
    weights_
        B, m × m with a zero diagonal: B[j, i] is the weight of item j in the score of item i. An ndarray
        (dense) or a `scipy.sparse.csr_array` (sparse).
    pattern_
        A, the entries that may be non-zero, diagonal included (`csc_array` of booleans); None if dense.
    n_blocks_
        Systems solved; None if dense.
    threshold_
        The threshold in use; None if dense.
    mean_, scale_
        μ and s, per item.
    timings_
        Seconds per stage, and "total".
    memory_plan_
        Bytes each stage was planned to hold.
    """

    weights_: Any
    pattern_: "sp.csc_array | None"
    n_blocks_: int | None
    threshold_: float | None
    mean_: npt.NDArray[np.float64]
    scale_: npt.NDArray[np.float64]
    timings_: dict[str, float]
    memory_plan_: dict[str, int]
    _shift: npt.NDArray[Any]  # what every user's scores start from: μ − μ·B with the offset, else zero

    def __init__(
        self,
        *,
        l2: float,
        alpha: float = 0.75,
        l2_flat: float = 0.0,
        user_weight: float = 0.0,
        center: bool = True,
        sparsity: float | None = None,
        threshold: float | None = None,
        max_neighbors: int = 1000,
        r: float = 0.0,
        mean_constraint: bool = False,
        offset: bool = False,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.l2 = _number("l2", l2, "a finite number, 0 or more", lambda x: x >= 0)
        self.alpha = _number("alpha", alpha, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.l2_flat = _number("l2_flat", l2_flat, "a finite number, 0 or more", lambda x: x >= 0)
        self.user_weight = _number("user_weight", user_weight, "a finite number, 0 or more", lambda x: x >= 0)
        self.center = _flag("center", center)
        self.sparsity = _optional(sparsity, "sparsity", "above 0 and at most 1", lambda x: 0 < x <= 1)
        self.threshold = _optional(threshold, "threshold", "between 0 and 1e36", lambda x: 0 <= x <= 1e36)
        self.max_neighbors = _count("max_neighbors", max_neighbors)
        self.r = _number("r", r, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.mean_constraint = _flag("mean_constraint", mean_constraint)
        self.offset = _flag("offset", offset)
        self.dtype = dtype
        self.threads = None if threads is None else _count("threads", threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)
        if dtype not in ("float32", "float64"):
            raise ParameterError("dtype", '"float32" or "float64"', dtype)
        if sparsity is not None and threshold is not None:
            raise ParameterError(
                "threshold", "None when sparsity is given", threshold, "Each alone decides what is kept."
            )
        if self.is_sparse and mean_constraint:
            raise ParameterError(
                "mean_constraint",
                "False for a sparse model",
                mean_constraint,
                "The constraint has a closed form for the dense model only; drop sparsity and threshold.",
            )
        if not self.is_sparse and r != 0.0:
            raise ParameterError(
                "r", "0 for a dense model", r, "It belongs to the sparse model: give sparsity or threshold."
            )

    @property
    def is_sparse(self) -> bool:
        """Whether the parameters ask for the sparse model."""
        return self.sparsity is not None or self.threshold is not None

    def __repr__(self) -> str:
        defaults = MRF.__init__.__kwdefaults__ or {}
        shown = [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if not name.endswith("_") and defaults.get(name, ...) != value
        ]
        return f"MRF({', '.join(shown)})"

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: object, *, progress: Progress | None = None) -> Self:
        """Learn the weights from a `scipy.sparse` matrix of users × items.

        `progress(stage, done, total)` is called as the work goes on. A fit that fails or is interrupted
        leaves the model as it was.
        """
        start = time.perf_counter()
        if progress is not None and not callable(progress):
            raise ParameterError("progress", "a function of (stage, done, total), or None", progress)
        plan = MemoryPlan(self.memory_limit)
        histories = statistics_room.as_histories(X, "X")
        n, m = histories.shape
        if n == 0 or m == 0 or histories.nnz == 0:
            raise DataError(
                f"X must have at least one interaction; got {n} users × {m} items with {histories.nnz}."
            )
        if self.sparsity is not None and self.sparsity * m < 1 - 1e-9:
            raise ParameterError(
                "sparsity",
                f"at least 1/items = {1 / m:.3g} for this data, since the diagonal is always kept",
                self.sparsity,
            )
        binary = statistics_room.is_binary(histories, self.user_weight)
        with Workers(self.threads, progress) as workers:
            held = self._plan_memory(plan, histories, _copied_bytes(histories, X), binary, workers.threads)
            statistics = statistics_room.compute(
                histories,
                alpha=self.alpha,
                user_weight=self.user_weight,
                center=self.center,
                binary=binary,
                workers=workers,
            )
            ridge = statistics.ridge(self.l2, self.l2_flat)
            statistics_room.check_range(statistics.S_diagonal, ridge)
            found = steps = None
            if self.is_sparse:
                found = pattern.find_pattern(
                    statistics,
                    threshold=self.threshold,
                    sparsity=self.sparsity,
                    max_neighbors=self.max_neighbors,
                    workers=workers,
                    plan=plan,
                    held=held,
                )
                steps = schedule.make_schedule(found, statistics.popularity, self.r, workers)
                found.sort_columns(workers)
                weights: Any = blocks.estimate_weights(
                    statistics, found, steps, ridge, dtype=self.dtype, workers=workers, plan=plan, held=held
                )
            else:
                weights = closed_form.closed_form(
                    statistics, ridge, mean_constraint=self.mean_constraint, dtype=self.dtype, workers=workers
                )
            timings = workers.timings

        matrix = None if found is None else found.to_matrix()
        shift = np.zeros(m, self.dtype)
        if self.offset:
            shift = (statistics.mu - statistics.mu.astype(self.dtype) @ weights).astype(self.dtype)
        # Everything is there: from here on nothing can fail.
        self.weights_, self.pattern_, self._shift = weights, matrix, shift
        self.threshold_ = None if found is None else found.threshold
        self.n_blocks_ = None if steps is None else len(steps)
        self.mean_, self.scale_ = statistics.mu, statistics.s
        self.timings_ = {**timings, "total": time.perf_counter() - start}
        self.memory_plan_ = dict(plan.stages)
        return self

    def _plan_memory(self, plan: MemoryPlan, X: sp.csr_array, copied: int, binary: bool, threads: int) -> int:
        """Refuse what cannot fit; returns the bytes held throughout."""
        n, m = X.shape
        held = copied + statistics_room.bytes_for_statistics(n, m, X.nnz, binary, threads)
        # For each thread a row of XᵀX and of magnitudes, the entries it found, and a histogram.
        per_thread = 12 * m + 8 * max(m, 1 << 18) + 5_000_000
        per_item = 128 * m  # the schedule, and the sizes and places of its blocks
        sparse_base = held + threads * per_thread + per_item
        per_entry = max(pattern.BYTES_PER_ENTRY, blocks.BYTES_PER_ENTRY + 2 * np.dtype(self.dtype).itemsize)
        largest = (plan.limit - sparse_base) / (per_entry * float(m) * m)
        if not self.is_sparse:
            advice = (
                f"Use a sparse model: sparsity={_round_down(min(largest, 0.1))} would fit."
                if largest * m >= 2
                else "Not even a sparse model would fit: use fewer items, or more memory."
            )
            if self.dtype == "float64":
                advice += ' dtype="float32" needs half.'
            plan.require("dense", held + closed_form.bytes_for_closed_form(m, self.dtype, threads), advice)
            return held
        plan.require("statistics", sparse_base, "Use fewer threads, or drop users or items.")
        if self.sparsity is not None:
            entries = min(self.sparsity * m, float(self.max_neighbors)) * m
            plan.require(
                "blocks",
                int(sparse_base + per_entry * entries),
                f"The largest sparsity that would fit is about {_round_down(largest)}."
                if largest * m >= 1
                else "Use fewer items, or more memory.",
            )
        return int(sparse_base)

    # ── using the weights ─────────────────────────────────────────────────────────────────────────

    def score(self, X_history: object) -> npt.NDArray[Any]:
        """x·B for each row of histories (with `offset`, μ + (x − μ)·B): an array of users × items.

        Every item gets a score for every user, so the array is as large as that: for rankings of many
        users use `top_k`, which never holds it.
        """
        histories = self._histories(X_history)
        needed = histories.shape[0] * histories.shape[1] * np.dtype(self.dtype).itemsize
        plan = MemoryPlan(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="score")
        return ranking.score(histories, self.weights_, self._shift, self.threads or usable_threads())

    def top_k(
        self, X_history: object, k: int, exclude_seen: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """The k best items of each row of histories and their scores, best first, ties by index.

        Returns two arrays of users × k. Where a user has fewer than k items left to be recommended, the
        places at the end hold item −1 with score −∞.
        """
        histories = self._histories(X_history)
        k, m = _count("k", k), histories.shape[1]
        if k > m:
            raise ParameterError("k", f"at most the number of items, {m}", k)
        _flag("exclude_seen", exclude_seen)
        return ranking.top_k(
            histories, self.weights_, self._shift, k, exclude_seen, self.threads or usable_threads()
        )

    def _histories(self, X: object) -> sp.csr_array:
        if not hasattr(self, "weights_"):
            raise NotFittedError("this MRF has no weights yet: call fit first.")
        histories = statistics_room.as_histories(X, "X_history")
        m = self.weights_.shape[0]
        if histories.shape[1] != m:
            raise DataError(
                f"X_history must have the {m} items the model was fitted on, as columns in the same order; "
                f"got {histories.shape[1]}."
            )
        return histories


def _copied_bytes(histories: sp.csr_array, X: Any) -> int:
    """What making X canonical took; nothing where its arrays are shared."""
    shared = X.format == "csr" and np.shares_memory(histories.data, X.data)
    return 0 if shared else histories.data.nbytes + histories.indices.nbytes + histories.indptr.nbytes


# ── parameter rules ───────────────────────────────────────────────────────────────────────────────


def _number(name: str, value: object, rule: str, holds: Callable[[float], bool]) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise ParameterError(name, rule, value)
    number = float(value)
    if not math.isfinite(number) or not holds(number):
        raise ParameterError(name, rule, value)
    return number


def _optional(value: object, name: str, rule: str, holds: Callable[[float], bool]) -> float | None:
    return None if value is None else _number(name, value, rule, holds)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(name, "a whole number, 1 or more", value)
    return int(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(name, "True or False", value)
    return bool(value)


def _round_down(value: float) -> float:
    """Two significant digits, never more than the value."""
    digits = 1 - math.floor(math.log10(value))
    return float(math.floor(value * 10**digits) / 10**digits)
