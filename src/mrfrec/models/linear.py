"""Models that score by x·B: an item of the history has weights in the scores of other items."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from mrfrec.core.rows import DenseRows, Rows
from mrfrec.errors import ParameterError
from mrfrec.fitted.linear import LinearWeights
from mrfrec.io.artifact import Stored
from mrfrec.models.recommender import Recommender


class Linear(Recommender):
    """A recommender by item-item weights, which a subclass learns in `_fit` and returns as `learned(…)`."""

    dtype: Literal["float32", "float64"] = "float32"  # of weights and scores
    _weights_type: ClassVar[type[LinearWeights]] = LinearWeights

    def learned(self, weights: Any, base: Any = 0.0) -> LinearWeights:
        """Return weights and base scores as the result of `_fit`.

        Parameters
        ----------
        weights
            B, m × m: B[j, i] is the weight of item j in the score of item i. A numpy array or a
            `scipy.sparse` matrix of finite numbers, usually with a zero diagonal.
        base
            The score without a history: a number per item, or one number for all items.
        """
        if getattr(weights, "ndim", 0) != 2 or weights.shape[0] != weights.shape[1]:
            raise ParameterError("weights", "a matrix of items × items", getattr(weights, "shape", weights))
        if isinstance(weights, np.ndarray):
            kept: Rows | DenseRows = DenseRows(np.ascontiguousarray(weights, self.dtype))
        else:
            B = weights.tocsr().astype(self.dtype, copy=False)
            if not B.has_canonical_format:  # The items of a row must ascend; a product of matrices may not.
                B = B.copy()
                B.sum_duplicates()
            kept = Rows.of(B)
        if np.shape(base) not in ((), weights.shape[:1]):
            raise ParameterError("base", f"one number, or one for each of {len(kept)} items", np.shape(base))
        base_scores = np.empty(len(kept), self.dtype)
        base_scores[:] = base
        entries = kept.array if isinstance(kept, DenseRows) else kept.values
        for name, values in (("weights", entries), ("base", base_scores)):
            if wrong := values.size - int(np.isfinite(values).sum()):
                rule = f"finite numbers, also as {self.dtype}"
                raise ParameterError(name, rule, f"{wrong:,} of {values.size:,} that are not")
        return self._weights_type(weights=kept, base_scores=base_scores)

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> LinearWeights:
        return self._weights_type.of_file(arrays, facts, m)

    @property
    def weights_(self) -> Any:
        """B, m × m: B[j, i] is the weight of item j in the score of item i, without the low-rank part.

        An ndarray (dense) or a `scipy.sparse.csr_array` (sparse).
        """
        return _weights_of(self).weights.matrix()

    @property
    def is_sparse(self) -> bool:
        """Whether the weights are sparse."""
        return isinstance(_weights_of(self).weights, Rows)


def _weights_of(model: Linear) -> LinearWeights:
    learned = model.fitted_.learned
    assert isinstance(learned, LinearWeights)
    return learned
