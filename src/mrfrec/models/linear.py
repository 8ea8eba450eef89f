"""Models that score by x·B: each item of the history has a weight in the score of each other item."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.low_rank import LowRank
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.errors import ParameterError
from mrfrec.models.answers import scorers
from mrfrec.models.recommender import Recommender
from mrfrec.models.storage.files import shaped, stored_rows

if TYPE_CHECKING:
    from mrfrec.engines.gpu.ranking import DeviceRanker
    from mrfrec.io.artifact import Stored

_MANY = 256  # users that are worth bringing weights to a device

_log = logging.getLogger("mrfrec")


class Linear(Recommender):
    """A recommender by item-item weights. A subclass learns these in `_fit`, and calls `set_weights`."""

    scales_scores = True
    _weights: Rows | DenseRows
    _low_rank: LowRank | None = None  # beside B
    _on_device: "DeviceRanker | None" = None
    _few: int = scorers.FEW  # users, up to which numpy is used

    def set_weights(self, weights: Any, base: Any = 0.0) -> None:
        """Keep the weights and base scores that were learned.

        Parameters
        ----------
        weights
            B, m × m with a zero diagonal: B[j, i] is the weight of item j in the score of item i. A numpy
            array or a `scipy.sparse` matrix.
        base
            The score without any weight: a number for each item, or one for all.
        """
        if getattr(weights, "ndim", 0) != 2 or weights.shape[0] != weights.shape[1]:
            raise ParameterError("weights", "a matrix of items × items", getattr(weights, "shape", weights))
        if isinstance(weights, np.ndarray):
            kept: Rows | DenseRows = DenseRows(np.ascontiguousarray(weights, self.dtype))
        else:
            kept = Rows.of(weights.tocsr().astype(self.dtype, copy=False))
        base_scores = np.empty(weights.shape[0], self.dtype)
        base_scores[:] = base
        self._weights, self._base_scores, self._low_rank = kept, base_scores, None

    @property
    def weights_(self) -> Any:
        """B, m × m: B[j, i] is the weight of item j in the score of item i; a low-rank part is not in it.

        An ndarray (dense) or a `scipy.sparse.csr_array` (sparse).
        """
        if not hasattr(self, "_weights"):
            raise AttributeError(
                f"weights_: this {type(self).__name__} has learned nothing yet: call fit first."
            )
        return self._weights.matrix()

    @property
    def is_sparse(self) -> bool:
        """Whether the weights are sparse."""
        self._check_fitted()
        return isinstance(self._weights, Rows)

    @property
    def _ranker(self) -> "DeviceRanker | None":
        """Weights on a device, where they stay for further rankings; None where the CPU is as fast."""
        device, weights, low_rank = getattr(self, "device", "cpu"), self._weights, self._low_rank
        if device == "cpu" or (low_rank is None and isinstance(weights, Rows)):
            return None
        from mrfrec.engines.devices import ranker_on

        if self._on_device is None or not self._on_device.holds(weights, low_rank):
            self._on_device = None  # frees the memory of other weights
            self._on_device = ranker_on(device, weights, low_rank)
        return self._on_device

    # ── using the weights ─────────────────────────────────────────────────────────────────────────

    def _scorer(self, histories: Rows) -> scorers.Scorer:
        weights = scorers.WeightScorer(histories, self._weights, self._base_scores.dtype, self._few)
        low_rank = self._low_rank
        scorer = weights if low_rank is None else scorers.LowRankScorer(histories, weights, low_rank)
        scorer.ranker = self._ranker if len(histories) >= _MANY else None
        return scorer

    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        B = self._weights
        if isinstance(B, DenseRows):
            B.verify(had)
            weights = np.asarray(B.array[np.ix_(had, targets)], np.float64)
        elif not self._few:
            from mrfrec.core.kernels import ranking as kernels

            B.verify(had.astype(np.int64))
            weights = np.zeros((len(had), len(targets)))
            kernels.weights_between(*scorers.for_kernels(B, B.values.dtype), had, targets, weights)
        else:
            column = np.full(B.width, -1)
            column[targets] = np.arange(len(targets))
            rows = B.take(had.astype(np.int64))
            place = column[rows.items]
            owner = np.repeat(np.arange(len(had)), np.diff(rows.ptr))
            weights = np.zeros((len(had), len(targets)))
            weights[owner[place >= 0], place[place >= 0]] = rows.values[place >= 0]
        return weights if self._low_rank is None else weights + self._low_rank.between(had, targets)

    def prepare_answers(self) -> None:
        """Answer single users in compiled code, too: three times as fast, once it is loaded.

        Otherwise numpy does, so that one answer need not wait for that. The answers are the same.
        """
        super().prepare_answers()
        if isinstance(self._weights, Rows) or self._low_rank is not None:
            self._few = 0

    def warm_up(self) -> None:
        """Compile or load what fitting and ranking need, so that it is no part of a fit that is timed."""
        import scipy.sparse as sp

        X = sp.csr_array((np.arange(300 * 40).reshape(300, 40) % 7 % 3 == 0).astype(np.float32))
        level = _log.level
        _log.setLevel(max(level, logging.WARNING))  # these fits are not the caller's
        try:
            for model in self._alike():
                model.memory_limit = None
                model.fit(X).top_k(X, 1)
        finally:
            _log.setLevel(level)

    def _alike(self) -> "list[Recommender]":
        """Return models that run the code of this one when they are fitted to a few numbers."""
        return [self.unfitted()]

    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Row j of B + λ·L: where item j adds most."""
        B = self._weights
        B.verify(np.array([item]))
        low = None if self._low_rank is None else self._low_rank.row(item)
        if isinstance(B, DenseRows):
            return np.arange(B.width), np.asarray(B.array[item]) + (0 if low is None else low)
        span = slice(int(B.ptr[item]), int(B.ptr[item + 1]))
        if low is None:
            return np.asarray(B.items[span]), np.asarray(B.values[span])
        low[B.items[span]] += B.values[span]
        return np.arange(B.width), low

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────

    def verify(self) -> None:
        """Check all arrays now; answers after this check nothing, and are faster."""
        super().verify()
        self._weights = replace(self._weights, check=None)

    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        B = self._weights
        B.verify()
        arrays = {"shift": self._base_scores}
        if self._low_rank is not None:
            self._low_rank.verify()
            arrays |= {"low_rank": self._low_rank.vectors, "low_rank.left": self._low_rank.left}
        if isinstance(B, DenseRows):
            return {**arrays, "weights": B.array}, {}
        return {**arrays, "weights.ptr": B.ptr, "weights.items": B.items, "weights.values": B.values}, {}

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        self._base_scores = shaped(arrays, "shift", m).read()
        if "weights" in arrays:
            stored = shaped(arrays, "weights", m, m)
            self._weights = DenseRows(stored.array, stored.check)
        else:
            shaped(arrays, "weights.ptr", m + 1, kind="i")
            # Without its values, a row would be read as a row of ones.
            shaped(arrays, "weights.values", *arrays["weights.items"].array.shape)
            self._weights = stored_rows(arrays, "weights", m)
        if "low_rank" in arrays:
            stored = shaped(arrays, "low_rank", m, *arrays["low_rank"].array.shape[1:])
            self._low_rank = LowRank(stored.array, shaped(arrays, "low_rank.left", m).read(), stored.check)
