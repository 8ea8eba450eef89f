"""A low-rank matrix L beside B, for the structure that all items share; a user scores x·(B + λ·L).

    N = D_u^(−½)·X·D_i^(−½),    L = D_i^(−½)·U·Uᵀ·D_i^(½) without its diagonal

U holds the k leading right singular vectors of N, m × k; D_u and D_i hold the sums of squares of the rows
and columns of X on their diagonals. A Gaussian MRF whose items also depend on k hidden variables has this
form: a sparse matrix plus one of low rank (Chandrasekaran et al., 2012).

`lanczos` finds the singular vectors.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec.core import lanczos
from mrfrec.core.engine import Array, Engine, Floats
from mrfrec.core.rows import CheckSpan


@dataclass
class LowRank:
    """λ·L in factors: a history x scores h·Vᵀ, where h = Σ_j x_j·left_j·V_j.

    What an item would add to its own score, `diagonal`, is subtracted again.
    """

    vectors: Array  # V, m × k
    left: Array  # (m)
    check: CheckSpan | None = None  # checks V if it is in a mapped file

    def __getstate__(self) -> dict[str, Any]:  # verified, so that a copy needs no check
        self.verify()
        return {"vectors": self.vectors, "left": self.left, "check": None}

    def verify(self) -> None:
        """Check all of V, since every score needs all of it."""
        if self.check is not None:
            self.check(0, self.vectors.size)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.vectors.nbytes + self.left.nbytes)

    @cached_property
    def diagonal(self) -> Array:
        """What each item would add to its own score if it counted there: the diagonal of λ·left·V·Vᵀ."""
        return np.asarray(self.left * np.einsum("ik,ik->i", self.vectors, self.vectors))

    @cached_property
    def norms(self) -> Floats:
        """‖v‖ of each row v of V, and the norm of its second half, 2 × m."""
        return _halves(self.vectors)

    def norm_bounds(self, h: Array) -> Floats:
        """Return upper bounds of ‖h‖ and of the norm of its second half, which allow for rounding."""
        return np.asarray(_halves(h[None])[:, 0] * (1 + float(self.rounding)))

    @property
    def rounding(self) -> Any:
        """The largest error of v·h in any order of addition, as a share of ‖v‖·‖h‖."""
        dtype = self.vectors.dtype
        return dtype.type(8 * self.vectors.shape[1] * np.finfo(dtype).eps)

    def scaled(self, factor: Array) -> "LowRank":
        """Multiply the scores of each item by a factor other than 0."""
        dtype = self.vectors.dtype
        vectors = (self.vectors * factor[:, None]).astype(dtype, copy=False)
        return LowRank(vectors, (self.left / factor).astype(dtype, copy=False))

    def row(self, item: int) -> Array:
        """Return the weights of one item in the scores of all."""
        weights = np.asarray(self.vectors @ (self.vectors[item] * self.left[item]))
        weights[item] = 0.0
        return weights

    def between(self, had: Array, targets: Array) -> Floats:
        """Return the weights of some items in the scores of others, had × targets."""
        left = self.vectors[had].astype(np.float64) * self.left[had, None]
        weights = left @ self.vectors[targets].astype(np.float64).T
        weights[had[:, None] == targets[None, :]] = 0.0
        return np.asarray(weights)


def _halves(vectors: Array) -> Floats:
    """Return the norm of each row and of its second half, 2 × rows; float64, for squares of small float32."""
    parts = vectors, vectors[:, vectors.shape[1] // 2 :]
    return np.sqrt([np.einsum("ik,ik->i", part, part, dtype=np.float64) for part in parts])


def leading_directions(
    X: "sp.csr_array", rank: int, dtype: str, engine: Engine, device: Any = None
) -> LowRank:
    """Return L (λ = 1) from the `rank` leading singular vectors of N; `rank` ≤ min(X.shape)."""
    with engine.stage("low rank", lanczos.basis_size(rank, X.shape[1])[1]):
        U = lanczos.leading_vectors(X, rank, dtype, engine, device)
        squares = lanczos.sums_of_squares(X)[0]
        left = lanczos.power(squares, -1.0, dtype)
        # An item without users has a zero in each direction, and so in V.
        return LowRank(np.ascontiguousarray((U * np.sqrt(squares).astype(dtype)).T, dtype=dtype), left)
