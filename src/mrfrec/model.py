"""MRF: the paper's model, from parameters to weights to scores."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.core import ranking
from mrfrec.core.resources import MemoryPlan, Progress, parse_bytes, usable_threads
from mrfrec.core.settings import Plan, Settings
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.errors import ParameterError
from mrfrec.recommender import Recommender
from mrfrec.saving import shaped, stored_rows

if TYPE_CHECKING:
    import scipy.sparse as sp

    from mrfrec.interactions import Interactions
    from mrfrec.io.artifact import Stored

__all__ = ["MRF"]

_log = logging.getLogger("mrfrec")


class MRF(Recommender):
    """A Gaussian Markov random field of items, fitted by pseudo-likelihood in closed form.

    Each item is regressed on the others; a user with history x is scored by x·B. The model is dense (Eq. 4
    of the paper) or sparse (§3): left to itself, dense where that fits; `plan_` says which, and why.

    Parameters
    ----------
    l2
        Ridge on the rescaled item-item matrix. Published: dense 6 on ML-20M and Netflix, 3 on MSD; sparse 1
        on MSD. More for less data.
    alpha
        Exponent of the rescaling, 0 (covariances) to 1 (correlations).
    l2_flat
        A second ridge, in the original space: the diagonal gets `l2 + l2_flat/s²`.
    user_weight
        β: a user with a history of length h counts h^(−β), so that long histories do not drown short ones.
    center
        Subtract the column means. `center=False, alpha=0` is EASE.
    sparsity
        Share of the m² entries to keep, diagonal included, before `max_neighbors` cuts. None for a dense
        model. "auto": dense up to 25,000 items where that fits in memory, otherwise as many entries as give
        an item 200 neighbours, or as the memory has room for.
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
    plan_
        Dense or sparse, why, and what it takes; as a text, one line, which is also logged.
    weights_
        B, m × m with a zero diagonal: B[j, i] is the weight of item j in the score of item i. An ndarray
        (dense) or a `scipy.sparse.csr_array` (sparse).
    pattern_
        A, the entries that may be non-zero, diagonal included (`csc_array` of booleans); None if dense, and
        in a model that was loaded.
    n_blocks_
        Systems solved; None if dense.
    threshold_
        The threshold in use; None if dense.
    mean_, scale_
        μ and s, per item.
    items_, titles_, popularity_, users_
        Ids and titles of the items, training users of each, ids of the users.
    timings_
        Seconds per stage, and "total"; empty in a model that was loaded.
    memory_plan_
        Bytes each stage was planned to hold; empty in a model that was loaded.
    """

    plan_: Plan
    pattern_: "sp.csc_array | None"
    n_blocks_: int | None
    threshold_: float | None
    mean_: npt.NDArray[np.float64]
    scale_: npt.NDArray[np.float64]
    timings_: dict[str, float]
    memory_plan_: dict[str, int]
    _weights: Rows | DenseRows
    _shift: npt.NDArray[Any]  # what every user's scores start from: μ − μ·B with the offset, else zero

    def __init__(
        self,
        *,
        l2: float = 6.0,
        alpha: float = 0.75,
        l2_flat: float = 0.0,
        user_weight: float = 0.0,
        center: bool = True,
        sparsity: float | Literal["auto"] | None = "auto",
        threshold: float | None = None,
        max_neighbors: int = 1000,
        r: float = 0.0,
        mean_constraint: bool = False,
        offset: bool = False,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.l2 = check_number("l2", l2, "a finite number, 0 or more", lambda x: x >= 0)
        self.alpha = check_number("alpha", alpha, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.l2_flat = check_number("l2_flat", l2_flat, "a finite number, 0 or more", lambda x: x >= 0)
        self.user_weight = check_number(
            "user_weight", user_weight, "a finite number, 0 or more", lambda x: x >= 0
        )
        self.center = check_flag("center", center)
        self.sparsity: float | Literal["auto"] | None = None
        if sparsity == "auto":
            self.sparsity = "auto"
        elif sparsity is not None:
            rule = 'above 0 and at most 1, "auto", or None for dense'
            self.sparsity = check_number("sparsity", sparsity, rule, lambda x: 0 < x <= 1)
        self.threshold = None
        if threshold is not None:
            self.threshold = check_number(
                "threshold", threshold, "between 0 and 1e36", lambda x: 0 <= x <= 1e36
            )
        self.max_neighbors = check_count("max_neighbors", max_neighbors)
        self.r = check_number("r", r, "between 0 and 1", lambda x: 0 <= x <= 1)
        self.mean_constraint = check_flag("mean_constraint", mean_constraint)
        self.offset = check_flag("offset", offset)
        self.dtype = dtype
        self.threads = None if threads is None else check_count("threads", threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)
        if dtype not in ("float32", "float64"):
            raise ParameterError("dtype", '"float32" or "float64"', dtype)
        if self.threshold is not None and self.sparsity not in (None, "auto"):
            raise ParameterError(
                "threshold", "None when sparsity is given", threshold, "Each alone decides what is kept."
            )
        asks_for_sparse = self.threshold is not None or self.sparsity not in (None, "auto") or self.r > 0
        if asks_for_sparse and self.mean_constraint:
            raise ParameterError(
                "mean_constraint",
                "False for a sparse model",
                mean_constraint,
                "The constraint has a closed form for the dense model only; drop sparsity, threshold and r.",
            )
        if self.r > 0 and self.sparsity is None and self.threshold is None:
            raise ParameterError("r", "0 for a dense model", r, "It belongs to the sparse model.")

    def __repr__(self) -> str:
        defaults = MRF.__init__.__kwdefaults__ or {}
        shown = [f"{name}={value!r}" for name, value in self._parameters().items() if defaults[name] != value]
        return f"MRF({', '.join(shown)})"

    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MRF.__init__.__kwdefaults__ or {}}

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────

    def _fit(
        self,
        data: "Interactions",
        copied: int,
        progress: Progress | None,
        reuse: dict[str, Any] | None,
    ) -> None:
        from mrfrec.core import fitting  # numba loads when something is fitted, not to answer from a file

        machine = ("threads", "memory_limit", "offset")
        settings = {name: value for name, value in self._parameters().items() if name not in machine}
        fitted = fitting.fit(
            data.matrix,
            Settings(**settings),
            copied=copied,
            threads=self.threads,
            memory_limit=self.memory_limit,
            progress=progress,
            announce=lambda plan: _log.info("%s", plan),
            kept=None if reuse is None else reuse.setdefault("mrf", fitting.Kept()),
        )
        shift = np.zeros(data.n_items, self.dtype)
        if self.offset:
            shift = (fitted.mean - fitted.mean.astype(self.dtype) @ fitted.weights.matrix()).astype(
                self.dtype
            )
        # Everything is there: from here on nothing can fail.
        self._weights, self._shift = fitted.weights, shift
        self.plan_, self.timings_, self.memory_plan_ = fitted.plan, fitted.timings, fitted.stages
        self.pattern_, self.threshold_, self.n_blocks_ = fitted.pattern, fitted.threshold, fitted.n_blocks
        self.mean_, self.scale_ = fitted.mean, fitted.scale

    def warm_up(self) -> None:
        """Compile or load what fitting needs: half a minute on a new machine, a second otherwise."""
        from mrfrec.core import fitting

        fitting.warm_up(self.dtype)

    @property
    def weights_(self) -> Any:
        """B: an ndarray (dense) or a `scipy.sparse.csr_array` (sparse)."""
        if not hasattr(self, "_weights"):
            raise AttributeError("weights_: this MRF has learned nothing yet: call fit first.")
        return self._weights.matrix()

    @property
    def is_sparse(self) -> bool:
        """Whether the weights are sparse."""
        self._fitted()
        return isinstance(self._weights, Rows)

    # ── using the weights ─────────────────────────────────────────────────────────────────────────

    def score(self, X_history: object) -> npt.NDArray[Any]:
        """x·B for each row of histories (with `offset`, μ + (x − μ)·B): an array of users × items.

        Every item gets a score for every user, so the array is as large as that: for rankings of many
        users use `top_k`, which never holds it.
        """
        histories = self._histories(X_history)
        needed = len(histories) * histories.width * np.dtype(self.dtype).itemsize
        plan = MemoryPlan(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="score")
        return ranking.score(histories, self._weights, self._shift, self.threads or usable_threads())

    def _best(
        self,
        histories: Rows,
        k: int,
        *,
        exclude_seen: bool,
        order: npt.NDArray[np.int32],
        base: npt.NDArray[Any] | None = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        return ranking.top_k(
            histories,
            self._weights,
            self._shift if base is None else base,
            k,
            exclude_seen=exclude_seen,
            order=order,
            threads=self.threads or usable_threads(),
        )

    def _rank(
        self, histories: Rows, k: int, *, exclude_seen: bool, hidden: npt.NDArray[np.bool_] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        def best(rows: Rows, base: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
            # An item that starts from −∞ stays there.
            start = base if hidden is None else np.where(hidden, -np.inf, base).astype(self.dtype)
            by_popularity = self._catalogue.by_popularity
            return self._best(rows, k, exclude_seen=exclude_seen, order=by_popularity, base=start)

        items, scores = best(histories, self._shift)
        informed = scores != self._shift[items]
        strangers = np.flatnonzero(np.diff(histories.ptr) == 0)
        if self.offset and len(strangers):
            # The conditional mean takes an empty history as having nothing; here it means knowing nothing.
            items[strangers], scores[strangers] = best(histories.take(strangers), np.zeros_like(self._shift))
        return items, scores, informed

    def _weights_between(self, had: npt.NDArray[Any], targets: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        B = self._weights
        if isinstance(B, DenseRows):
            B.verify(had)
            return np.asarray(B.array[np.ix_(had, targets)], np.float64)
        column = np.full(B.width, -1)
        column[targets] = np.arange(len(targets))
        rows = B.take(had.astype(np.int64))
        place = column[rows.items]
        owner = np.repeat(np.arange(len(had)), np.diff(rows.ptr))
        weights = np.zeros((len(had), len(targets)))
        weights[owner[place >= 0], place[place >= 0]] = rows.values[place >= 0]
        return weights

    def _base_score(self, item: int) -> float:
        return float(self._shift[item])

    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Row j of B', where all items have one scale: popular items are not near to everything."""
        B = self._weights
        B.verify(np.array([item]))
        if isinstance(B, DenseRows):
            others, weights = np.arange(B.width), B.array[item]
        else:
            span = slice(int(B.ptr[item]), int(B.ptr[item + 1]))
            others, weights = B.items[span], B.values[span]
        scale = self.scale_[others]
        return others, np.divide(
            weights * self.scale_[item], scale, out=np.zeros(len(scale)), where=scale > 0
        )

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        B = self._weights
        B.verify()
        arrays = {"mean": self.mean_, "scale": self.scale_, "shift": self._shift}
        if isinstance(B, DenseRows):
            arrays["weights"] = B.array
        else:
            arrays |= {"weights.ptr": B.ptr, "weights.items": B.items, "weights.values": B.values}
        plan = {name: value for name, value in vars(self.plan_).items() if name not in ("needed", "limit")}
        return arrays, {"plan": plan, "threshold": self.threshold_, "blocks": self.n_blocks_}

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        self.mean_, self.scale_, self._shift = (
            shaped(arrays, name, m).read() for name in ("mean", "scale", "shift")
        )
        if "weights" in arrays:
            stored = shaped(arrays, "weights", m, m)
            self._weights = DenseRows(stored.array, stored.check)
        else:
            shaped(arrays, "weights.ptr", m + 1)
            # Without its values, a row would be read as a row of ones.
            shaped(arrays, "weights.values", *arrays["weights.items"].array.shape)
            self._weights = stored_rows(arrays, "weights", m)
        self.plan_ = Plan(**facts["plan"])
        self.threshold_, self.n_blocks_ = facts["threshold"], facts["blocks"]
        self.pattern_, self.timings_, self.memory_plan_ = None, {}, {}
