"""What linear models learn: weights of the items of a history in the scores of other items."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mrfrec.core.low_rank import LowRank
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.fitted import scorers
from mrfrec.fitted.files import shaped, stored_rows
from mrfrec.fitted.state import Facts, Learned, Runtime, of_length_one
from mrfrec.io.artifact import Stored

if TYPE_CHECKING:
    from mrfrec.engines.gpu.ranking import DeviceRanker

# For fewer users than this, weights are not brought to a device.
_WORTH_A_DEVICE = 256

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LinearWeights(Learned):
    """B and a low-rank part: a user with history x scores base + x·(B + λ·L)."""

    explains: ClassVar[bool] = True
    scales_scores: ClassVar[bool] = True

    weights: Rows | DenseRows  # B, m × m: B[j, i] is the weight of item j in the score of item i
    low_rank: LowRank | None = None  # λ·L
    # Rankers by the name of their device, where the weights stay for further rankings.
    _rankers: "dict[str, DeviceRanker]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> Facts:
        return {**self.__dict__, "_rankers": {}}

    def scorer(self, histories: Rows, runtime: Runtime) -> scorers.Scorer:
        weights = scorers.WeightScorer(histories, self.weights, self.base_scores.dtype)
        low_rank = self.low_rank
        scorer = weights if low_rank is None else scorers.LowRankScorer(histories, weights, low_rank)
        scorer.ranker = self._ranker(runtime.device) if len(histories) >= _WORTH_A_DEVICE else None
        return scorer

    def _ranker(self, device: str) -> "DeviceRanker | None":
        """Return the weights on a device; None where the CPU is as fast."""
        if device == "cpu" or (self.low_rank is None and isinstance(self.weights, Rows)):
            return None
        from mrfrec.engines.devices import ranker_on

        if device not in self._rankers:
            ranker = ranker_on(device, self.weights, self.low_rank)
            if ranker is None:
                return None
            self._rankers[device] = ranker
        return self._rankers[device]

    def leave_devices(self) -> None:
        self._rankers.clear()

    def weights_between(self, had: Array, values: Array, targets: Array) -> npt.NDArray[np.float64]:
        weights = self.entries(had, targets)
        return weights if self.low_rank is None else weights + self.low_rank.between(had, targets)

    def entries(self, had: Array, targets: Array) -> npt.NDArray[np.float64]:
        """Return these rows and columns of B."""
        B = self.weights
        if isinstance(B, DenseRows):
            B.verify(had)
            weights = np.asarray(B.array[np.ix_(had, targets)], np.float64)
        else:
            from mrfrec.core.kernels import ranking as kernels

            places = had.astype(np.int64), targets.astype(np.int64)
            B.verify(places[0])
            weights = np.zeros((len(had), len(targets)))
            kernels.weights_between(*scorers.for_kernels(B, B.values.dtype), *places, weights)
        return weights

    def directions(self, items: Array) -> npt.NDArray[np.float64]:
        """Return the vectors of the low-rank part; without them, rows of B + λ·L between these items.

        By rows, two items are alike that recommend the same items. An item also recommends itself, as
        strongly as a typical item recommends all other items, so that a weight between two items makes them
        alike.
        """
        if self.low_rank is not None and self.low_rank.left[items].all():  # new items have no vectors
            self.low_rank.verify()
            return of_length_one(self.low_rank.vectors[items])
        W = self.weights_between(items, np.ones(len(items)), items)
        W[np.diag_indices(len(W))] = np.sqrt(np.einsum("ij,ij->", W, W) / max(len(W), 1)) or 1.0
        return of_length_one(W)

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Return row j of B + λ·L: how much item j adds to the score of other items."""
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

    @classmethod
    def of_file(cls, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> Self:
        """Return the weights from the arrays and facts of `stored`, for m items."""
        return cls(**stored_weights(arrays, m))

    def verified(self) -> Self:
        return replace(self, weights=replace(self.weights, check=None))

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
    parts: dict[str, Any] = {"base_scores": shaped(arrays, "shift", m).read()}
    if "weights" in arrays:
        stored = shaped(arrays, "weights", m, m)
        parts["weights"] = DenseRows(stored.array, stored.check)
    else:
        shaped(arrays, "weights.ptr", m + 1, kind="i")
        # Without its values, a row would be read as a row of ones.
        shaped(arrays, "weights.values", *arrays["weights.items"].array.shape)
        parts["weights"] = stored_rows(arrays, "weights", m)
    if "low_rank" in arrays:
        stored = shaped(arrays, "low_rank", m, *arrays["low_rank"].array.shape[1:])
        left = shaped(arrays, "low_rank.left", m).read()
        parts["low_rank"] = LowRank(stored.array, left, stored.check)
    return parts
