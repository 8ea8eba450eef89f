"""Models that score by x·B: each item of the history has a weight in the score of each other item."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mrfrec.core.low_rank import LowRank
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.errors import ParameterError
from mrfrec.models.answers import scorers
from mrfrec.models.fitted import Facts, Learned, Runtime
from mrfrec.models.recommender import Recommender
from mrfrec.models.storage.files import shaped, stored_rows

if TYPE_CHECKING:
    from mrfrec.engines.gpu.ranking import DeviceRanker
    from mrfrec.io.artifact import Stored

_MANY = 256  # users that are worth bringing weights to a device

Array = npt.NDArray[Any]
_log = logging.getLogger("mrfrec")


@dataclass(frozen=True, kw_only=True)
class LinearWeights(Learned):
    """B, and a low-rank part beside it: a user with history x scores base + x·(B + λ·L)."""

    weights: Rows | DenseRows  # B, m × m: B[j, i] is the weight of item j in the score of item i
    low_rank: LowRank | None = None  # λ·L
    few: int = scorers.FEW  # users, up to which numpy is used
    # By device, where weights stay for further rankings.
    _rankers: "dict[str, DeviceRanker]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> Facts:
        return {**self.__dict__, "_rankers": {}}

    def scorer(self, histories: Rows, runtime: Runtime) -> scorers.Scorer:
        weights = scorers.WeightScorer(histories, self.weights, self.base_scores.dtype, self.few)
        low_rank = self.low_rank
        scorer = weights if low_rank is None else scorers.LowRankScorer(histories, weights, low_rank)
        scorer.ranker = self._ranker(runtime.device) if len(histories) >= _MANY else None
        return scorer

    def _ranker(self, device: str) -> "DeviceRanker | None":
        """Return the weights on a device; None where the CPU is as fast."""
        if device == "cpu" or (self.low_rank is None and isinstance(self.weights, Rows)):
            return None
        from mrfrec.engines.devices import ranker_on

        if device not in self._rankers:
            found = ranker_on(device, self.weights, self.low_rank)
            if found is None:
                return None
            self._rankers[device] = found
        return self._rankers[device]

    def leave_devices(self) -> None:
        """Free the memory of devices, which a fit may need."""
        self._rankers.clear()

    def weights_between(self, had: Array, values: Array, targets: Array) -> npt.NDArray[np.float64]:
        B = self.weights
        if isinstance(B, DenseRows):
            B.verify(had)
            weights = np.asarray(B.array[np.ix_(had, targets)], np.float64)
        elif not self.few:
            from mrfrec.core.kernels import ranking as kernels

            places = had.astype(np.int64), targets.astype(np.int64)
            B.verify(places[0])
            weights = np.zeros((len(had), len(targets)))
            kernels.weights_between(*scorers.for_kernels(B, B.values.dtype), *places, weights)
        else:
            column = np.full(B.width, -1)
            column[targets] = np.arange(len(targets))
            rows = B.take(had.astype(np.int64))
            place = column[rows.items]
            owner = np.repeat(np.arange(len(had)), np.diff(rows.ptr))
            weights = np.zeros((len(had), len(targets)))
            weights[owner[place >= 0], place[place >= 0]] = rows.values[place >= 0]
        return weights if self.low_rank is None else weights + self.low_rank.between(had, targets)

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Row j of B + λ·L: where item j adds most."""
        B = self.weights
        B.verify(np.array([item]))
        low = None if self.low_rank is None else self.low_rank.row(item)
        if isinstance(B, DenseRows):
            return np.arange(B.width), np.asarray(B.array[item]) + (0 if low is None else low)
        span = slice(int(B.ptr[item]), int(B.ptr[item + 1]))
        if low is None:
            return np.asarray(B.items[span]), np.asarray(B.values[span])
        low[B.items[span]] += B.values[span]
        return np.arange(B.width), low

    def verified(self) -> Self:
        return replace(self, weights=replace(self.weights, check=None))

    def prepared(self) -> Self:
        """Answer single users in compiled code, too: three times as fast, once it is loaded.

        Otherwise numpy does, so that one answer need not wait for that. The answers are the same.
        """
        pays = isinstance(self.weights, Rows) or self.low_rank is not None
        return replace(self, few=0) if pays else self

    def stored(self) -> tuple[dict[str, Array], Facts]:
        B = self.weights
        B.verify()
        arrays = {"shift": self.base_scores}
        if self.low_rank is not None:
            self.low_rank.verify()
            arrays |= {"low_rank": self.low_rank.vectors, "low_rank.left": self.low_rank.left}
        if isinstance(B, DenseRows):
            return {**arrays, "weights": B.array}, {}
        return {**arrays, "weights.ptr": B.ptr, "weights.items": B.items, "weights.values": B.values}, {}


def stored_weights(arrays: "Mapping[str, Stored]", m: int) -> dict[str, Any]:
    """Return the fields of `LinearWeights` that a file has."""
    found: dict[str, Any] = {"base_scores": shaped(arrays, "shift", m).read()}
    if "weights" in arrays:
        stored = shaped(arrays, "weights", m, m)
        found["weights"] = DenseRows(stored.array, stored.check)
    else:
        shaped(arrays, "weights.ptr", m + 1, kind="i")
        # Without its values, a row would be read as a row of ones.
        shaped(arrays, "weights.values", *arrays["weights.items"].array.shape)
        found["weights"] = stored_rows(arrays, "weights", m)
    if "low_rank" in arrays:
        stored = shaped(arrays, "low_rank", m, *arrays["low_rank"].array.shape[1:])
        left = shaped(arrays, "low_rank.left", m).read()
        found["low_rank"] = LowRank(stored.array, left, stored.check)
    return found


class Linear(Recommender):
    """A recommender by item-item weights. A subclass learns these in `_fit`, and returns `learned(…)`."""

    scales_scores = True
    learns: ClassVar[type[LinearWeights]] = LinearWeights

    def learned(self, weights: Any, base: Any = 0.0) -> LinearWeights:
        """Return weights and base scores as what a fit has learned.

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
        return self.learns(weights=kept, base_scores=base_scores)

    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> LinearWeights:
        return self.learns(**stored_weights(arrays, m))

    @property
    def weights_(self) -> Any:
        """B, m × m: B[j, i] is the weight of item j in the score of item i; a low-rank part is not in it.

        An ndarray (dense) or a `scipy.sparse.csr_array` (sparse).
        """
        return self._linear.weights.matrix()

    @property
    def is_sparse(self) -> bool:
        """Whether the weights are sparse."""
        return isinstance(self._linear.weights, Rows)

    @property
    def _linear(self) -> LinearWeights:
        learned = self.fitted_.learned
        assert isinstance(learned, LinearWeights)
        return learned

    @property
    def runtime(self) -> Runtime:
        return super().runtime._replace(device=getattr(self, "device", "cpu"))

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
