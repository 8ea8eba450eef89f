"""A low-rank matrix L beside B, for the structure that all items share; a user scores x·(B + λ·L).

    N = D_u^(−½)·X·D_i^(−½),    L = D_i^(−½)·U·Uᵀ·D_i^(½) without its diagonal

U are the k leading right singular vectors of N, m × k; D_u and D_i have the sums of squares of the rows and
columns of X. A Gaussian MRF whose items also depend on k hidden variables has this form: a sparse matrix plus
one of low rank (Chandrasekaran et al., 2012).

The singular vectors come from block Lanczos on NᵀN with full reorthogonalisation (Golub & Underwood, 1977).
Its products with X are scipy's, a strip of columns and some users at a time; no n × k matrix is held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Engine
from mrfrec.core.sparse import CheckSpan

if TYPE_CHECKING:
    import scipy.sparse as sp

Array = npt.NDArray[Any]

_STRIP = 32  # columns that one thread multiplies at a time
_BLOCKS = 9  # of the basis, at least: with each, the directions get sharper
_USERS_AT_ONCE = 16_384  # whose products are held
# Columns of the basis per direction wanted. On Gowalla, 2.25 hold 96 % of the sum of squares of the exact
# directions and rank users' items as well as these.
_PER_DIRECTION = 2.25
_LEADING = 32
_SEED = 0


def basis_size(rank: int, m: int) -> tuple[int, int]:
    """Return the columns of a block of the basis and of all blocks; m and m if that is not much more."""
    block = 16 * min(-(-rank // 64), 4)
    columns = block * max(_BLOCKS, -(-int(_PER_DIRECTION * rank) // block))
    return (block, columns) if 2 * columns < m else (m, m)


@dataclass
class LowRank:
    """λ·L as h·V, where h = Σ_j x_j·left_j·V_j is the vector of a history; no item counts for itself."""

    vectors: Array  # V, m × k
    left: Array  # (m)
    check: CheckSpan | None = None  # of V, where it lies in a file

    def __getstate__(self) -> dict[str, Any]:  # checked, and then without the check
        self.verify()
        return {"vectors": self.vectors, "left": self.left, "check": None}

    def verify(self) -> None:
        """Check the whole of V, which every score needs."""
        if self.check is not None:
            self.check(0, self.vectors.size)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.vectors.nbytes + self.left.nbytes)

    @cached_property
    def own(self) -> Array:
        """What an item would add to its own score: the diagonal of λ·L."""
        return np.asarray(self.left * np.einsum("ik,ik->i", self.vectors, self.vectors))

    @cached_property
    def leading(self) -> Array:
        """The first components of V, as rows: with them alone, a pass over all items is quick."""
        return np.ascontiguousarray(self.vectors[:, :_LEADING].T)

    @cached_property
    def lengths(self) -> Array:
        """‖v‖ of each item, and ‖v‖ without the leading components, 2 × m."""
        parts = (self.vectors, self.vectors[:, _LEADING:])
        return np.sqrt([np.einsum("ik,ik->i", part, part) for part in parts])

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

    def between(self, had: Array, targets: Array) -> npt.NDArray[np.float64]:
        """Return the weights of some items in the scores of others, had × targets."""
        left = self.vectors[had].astype(np.float64) * self.left[had, None]
        weights = left @ self.vectors[targets].astype(np.float64).T
        weights[had[:, None] == targets[None, :]] = 0.0
        return np.asarray(weights)


def leading_directions(X: "sp.csr_array", rank: int, dtype: str, engine: Engine) -> LowRank:
    """Return L itself (λ = 1) from the `rank` leading singular vectors of N; `rank` ≤ min(X.shape)."""
    import scipy.sparse as sp

    n, m = X.shape
    data = X.data.astype(dtype, copy=False)
    squares = np.zeros(m)
    np.add.at(squares, X.indices, np.square(X.data, dtype=np.float64))
    of_users = np.add.reduceat(np.append(np.square(X.data, dtype=np.float64), 0.0), X.indptr[:-1])
    of_users[np.diff(X.indptr) == 0] = 0.0
    with np.errstate(divide="ignore"):
        a = np.where(squares > 0, squares**-0.5, 0.0).astype(dtype)
        w = np.where(of_users > 0, 1.0 / of_users, 0.0).astype(dtype)
    parts = []
    for first in range(0, n, _USERS_AT_ONCE):
        ptr = X.indptr[first : first + _USERS_AT_ONCE + 1]
        span = slice(int(ptr[0]), int(ptr[-1]))
        part = sp.csr_array((data[span], X.indices[span], ptr - ptr[0]), shape=(len(ptr) - 1, m))
        parts.append((part, w[first : first + len(ptr) - 1, None]))

    multiply = partial(_multiply, parts, a)
    block, columns = basis_size(rank, m)
    with engine.stage("low rank", -(-columns // _STRIP)):
        if columns == m:
            gram = _by_strips(multiply, np.eye(m, dtype=dtype), engine)
            U = np.linalg.eigh(np.hstack(gram))[1][:, ::-1][:, :rank].T
        else:
            U = _lanczos(multiply, m, block, columns, rank, dtype, engine)
    # An item without users has a zero in each direction, and so in V.
    with np.errstate(divide="ignore"):
        left = np.where(squares > 0, 1.0 / squares, 0.0).astype(dtype)
    return LowRank(np.ascontiguousarray((U * np.sqrt(squares)).T, dtype=dtype), left)


def _multiply(parts: "list[tuple[sp.csr_array, Array]]", a: Array, strip: Array) -> Array:
    """Return NᵀN·Z for a few columns Z."""
    strip = strip * a[:, None]
    out = np.zeros_like(strip)
    for part, weight in parts:
        out += part.T @ (weight * (part @ strip))
    return np.asarray(out * a[:, None])


def _lanczos(
    multiply: Callable[[Array], Array],
    m: int,
    block: int,
    columns: int,
    rank: int,
    dtype: str,
    engine: Engine,
) -> Array:
    """Return the `rank` leading eigenvectors, as rows, found in a Krylov space of so many columns."""
    basis = np.empty((columns, m), dtype)
    T = np.zeros((columns, columns))
    Q = np.random.default_rng(_SEED).standard_normal((m, block)).astype(dtype)
    for start in range(0, columns, block):
        stop = start + block
        Q = np.linalg.qr(Q)[0]
        basis[start:stop] = Q.T
        done = basis[:stop]

        def extend(product: Array, done: Array = done) -> tuple[Array, Array]:
            """Return the product in the basis, and what is new in it."""
            inside = done @ product
            product -= done.T @ inside
            product -= done.T @ (done @ product)  # the rounding of the first time
            return inside, product

        extended = engine.run(extend, _by_strips(multiply, Q, engine))
        T[:stop, start:stop] = np.hstack([inside for inside, _ in extended])
        Q = np.hstack([product for _, product in extended])
    vectors = np.linalg.eigh(T, UPLO="U")[1][:, ::-1][:, :rank]
    return np.asarray(vectors.T.astype(dtype) @ basis)


def _by_strips(multiply: Callable[[Array], Array], Z: Array, engine: Engine) -> list[Array]:
    """Return the product of each strip of columns of Z. No strip depends on another, nor on the threads."""
    strips = [np.ascontiguousarray(Z[:, start : start + _STRIP]) for start in range(0, Z.shape[1], _STRIP)]
    return engine.map("low-rank", multiply, strips)
