"""A low-rank matrix L beside B, for the structure that all items share; a user scores x·(B + λ·L).

    N = D_u^(−½)·X·D_i^(−½),    L = D_i^(−½)·U·Uᵀ·D_i^(½) without its diagonal

U holds the k leading right singular vectors of N, m × k; D_u and D_i hold the sums of squares of the rows
and columns of X on their diagonals. A Gaussian MRF whose items also depend on k hidden variables has this
form: a sparse matrix plus one of low rank (Chandrasekaran et al., 2012).

The singular vectors come from block Lanczos on NᵀN with full reorthogonalisation (Golub & Underwood, 1977).
Of many users, a random sample is enough. The work is cut in the same way for any number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from mrfrec.core.engine import Array, Engine, Floats, split_evenly
from mrfrec.core.plan import Sizes
from mrfrec.core.rows import CheckSpan

# With more blocks in the basis, the directions are more precise.
_LEAST_BLOCKS = 9
# Columns of the basis per direction. On Gowalla, 2.25 hold 96 % of the sum of squares of the exact directions
# and rank users' items as well as these.
_COLUMNS_PER_DIRECTION = 2.25
# A sample has at least this many users, and this many pairs per item.
_SAMPLE_USERS, _SAMPLE_PAIRS = 150_000, 200
# The products of so many users stay in the processor's cache.
_USERS_AT_ONCE = 32_768
# The users are cut into at most so many parts.
_MOST_PARTS = 8
# A thread multiplies so many rows of a basis at one time.
_ROWS_AT_ONCE = 4096
# A column depends on other columns if its squared length is below the first number, as a share of the largest
# squared length. It is mere rounding if it is shorter than the second number.
_DEPENDENT, _ROUNDING = 1e-10, 1e-8


@dataclass
class LowRank:
    """λ·L in factors: a history x scores h·Vᵀ, where h = Σ_j x_j·left_j·V_j.

    An item adds nothing to its own score: `diagonal` is subtracted again.
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
        """What an item would add to its own score if it counted there: the diagonal of λ·left·V·Vᵀ."""
        return np.asarray(self.left * np.einsum("ik,ik->i", self.vectors, self.vectors))

    @cached_property
    def norms(self) -> Floats:
        """The norms ‖v‖ of the rows of V, and the norms of their second halves, 2 × m."""
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
        """Multiply the scores of items by factors other than 0."""
        dtype = self.vectors.dtype
        vectors = (self.vectors * factor[:, None]).astype(dtype, copy=False)
        return LowRank(vectors, (self.left / factor).astype(dtype, copy=False))

    def row(self, item: int) -> Array:
        """Return the weights of one item in the scores of all."""
        weights = np.asarray(self.vectors @ (self.vectors[item] * self.left[item]))
        weights[item] = 0.0
        return weights

    def between(self, had: Array, targets: Array) -> Floats:
        """Return the weights of items of a history in the scores of target items, had × targets."""
        left = self.vectors[had].astype(np.float64) * self.left[had, None]
        weights = left @ self.vectors[targets].astype(np.float64).T
        weights[had[:, None] == targets[None, :]] = 0.0
        return np.asarray(weights)


def _halves(vectors: Array) -> Floats:
    """Return the norms of the rows and of their second halves, 2 × rows; float64 for small squares."""
    parts = vectors, vectors[:, vectors.shape[1] // 2 :]
    return np.sqrt([np.einsum("ik,ik->i", part, part, dtype=np.float64) for part in parts])


def leading_directions(
    X: "sp.csr_array", rank: int, dtype: str, engine: Engine, device: Any = None
) -> LowRank:
    """Return L (λ = 1) from the `rank` leading singular vectors of N; `rank` ≤ min(X.shape)."""
    with engine.stage("low rank", basis_size(rank, X.shape[1])[1]):
        U = leading_vectors(X, rank, dtype, engine, device)
        squares = sums_of_squares(X)[0]
        left = power(squares, -1.0, dtype)
        # An item without users has a zero in every direction, and so in V.
        return LowRank(np.ascontiguousarray((U * np.sqrt(squares).astype(dtype)).T, dtype=dtype), left)


# ── block Lanczos ─────────────────────────────────────────────────────────────────────────────────


def planned_bytes(sizes: Sizes, rank: int) -> int:
    """Return the bytes of the basis and a few of its blocks, of the users in the sample, and of products."""
    (block, columns), e, m = basis_size(rank, sizes.items), sizes.itemsize, sizes.items
    basis = e * m * (columns + rank + 6 * block) + 32 * columns * columns
    step = sample_step(sizes.users, m, sizes.pairs)
    copied = 12 if step > 1 else 0
    pairs = (6 + copied + (0 if sizes.binary else 2 * e + 16)) * (sizes.pairs // step)
    parts = e * block * users_at_once(sizes.users // step) + 100 * m + 48 * sizes.users
    return sizes.other + basis + pairs + parts + sizes.scratch


def basis_size(rank: int, m: int) -> tuple[int, int]:
    """Return the columns of a block of the basis and of all blocks; m and m if m is not much larger."""
    block = 16 * min(-(-rank // 64), 4)
    columns = block * max(_LEAST_BLOCKS, -(-int(_COLUMNS_PER_DIRECTION * rank) // block))
    return (block, columns) if 2 * columns < m else (m, m)


class Side(NamedTuple):
    """A part of X by user or by item: user (or item) s has values[ptr[s]:ptr[s+1]] for rows[ptr[s]:ptr[s+1]].

    A product with a matrix sums these rows of it, times the values, and multiplies the sum by weight[s].
    """

    ptr: Array
    rows: Array
    values: Array  # empty if all are 1
    weight: Array


def leading_vectors(X: "sp.csr_array", rank: int, dtype: str, engine: Engine, device: Any = None) -> Array:
    """Return the `rank` leading right singular vectors of N as rows; one step per column of the basis."""
    m = X.shape[1]
    block, columns = basis_size(rank, m)
    parts, a = sides(X, dtype)
    if columns == m:
        multiply = _product(parts, a, engine)
        strips = np.array_split(np.eye(m, dtype=dtype), -(-m // 64), axis=1)
        gram = np.hstack([multiply(strip) for strip in strips])
        return np.asarray(np.linalg.eigh(gram)[1][:, ::-1][:, :rank].T)

    def random(seed: int) -> Array:
        return np.random.default_rng(seed).standard_normal((m, block)).astype(dtype)

    if device is not None:
        return np.asarray(device.leading_vectors(parts, a, random, columns, rank, engine))
    basis = np.empty((columns, m), dtype)
    here = (partial(work, engine=engine) for work in (_project, _gram, _transform))
    vectors = fill_basis(basis, Operations(random, _product(parts, a, engine), *here), engine)
    return np.asarray(vectors[:, :rank].T.astype(dtype) @ basis)


def sample(users: int, step: int) -> Array:
    """Choose about every step-th user, at random."""
    return np.flatnonzero(np.random.default_rng(0).random(users) * step < 1)


def sample_step(users: int, items: int, pairs: int) -> int:
    """Return s if one user in s is enough to find the directions."""
    return max(min(users // _SAMPLE_USERS, pairs // (_SAMPLE_PAIRS * items)), 1)


def sides(X: "sp.csr_array", dtype: str) -> tuple[list[tuple[Side, Side]], Array]:
    """Return the parts of X by user and by item, and the scale of the items, D_i^(−½)."""
    step = sample_step(X.shape[0], X.shape[1], X.nnz)
    X = X[sample(X.shape[0], step)] if step > 1 else X
    n, m = X.shape
    binary = bool((X.data == 1).all())
    squares, of_users = sums_of_squares(X)
    a = power(squares, -0.5, dtype)
    w = power(of_users, -1.0, dtype)
    data = np.ones(X.nnz, np.int8) if binary else X.data.astype(dtype, copy=False)

    def side(ptr: Array, rows: Array, values: Array, weight: Array) -> Side:
        rows = rows.astype(np.int32, copy=False).view(np.uint32)
        return Side(ptr.astype(np.int64), rows, np.empty(0, dtype) if binary else values, weight)

    parts = []
    at_once = users_at_once(n)
    for first in range(0, n, at_once):
        ptr = X.indptr[first : first + at_once + 1]
        span = slice(int(ptr[0]), int(ptr[-1]))
        weight = w[first : first + at_once]
        by_user = data[span], X.indices[span], ptr - ptr[0]
        by_item = sp.csr_array(by_user, shape=(len(weight), m)).tocsc()
        parts.append(
            (
                side(by_user[2], by_user[1], by_user[0], weight),
                side(by_item.indptr, by_item.indices, by_item.data, np.ones(m, dtype)),
            )
        )
    return parts, a


def users_at_once(n: int) -> int:
    """Return how many of n users a part of X has; parts are few, since they have a pointer per item."""
    return max(_USERS_AT_ONCE, -(-n // _MOST_PARTS))


def power(squares: Array, exponent: float, dtype: str) -> Array:
    """Raise sums of squares to a power from −1 to 0; 0 where the type cannot hold the inverse."""
    held = squares > np.finfo(dtype).tiny
    return np.power(squares, exponent, out=np.zeros(len(squares)), where=held).astype(dtype)


def sums_of_squares(X: "sp.csr_array") -> tuple[Array, Array]:
    """Return the sums of squares of columns and of rows."""
    if (X.data == 1).all():
        return np.bincount(X.indices, minlength=X.shape[1]).astype(np.float64), np.diff(X.indptr)
    squares = np.square(X.data, dtype=np.float64)
    of_users = np.add.reduceat(np.append(squares, 0.0), X.indptr[:-1])
    of_users[np.diff(X.indptr) == 0] = 0.0
    return np.bincount(X.indices, squares, minlength=X.shape[1]), of_users


class Operations(NamedTuple):
    """The operations on large arrays, of numpy or of a device; small arrays are always numpy's."""

    random: Callable[[int], Any]  # seed ↦ a block of random columns
    multiply: Callable[[Any], Any]  # Q ↦ NᵀN·Q
    project: Callable[[Any, Any], Array]  # basis, Q ↦ coordinates of Q; makes Q orthogonal to the basis
    gram: Callable[[Any], Array]  # Q ↦ QᵀQ in float64
    transform: Callable[[Any, Array], Any]  # Q, R ↦ Q·R


def fill_basis(basis: Any, operations: Operations, engine: Engine) -> Array:
    """Fill the basis of a Krylov space, columns × m.

    Return the coordinates of the eigenvectors of NᵀN within it as columns, the largest eigenvalue first.
    """
    columns = len(basis)
    T = np.zeros((columns, columns))
    Q = operations.random(0)
    block = Q.shape[1]
    for start in range(0, columns, block):
        stop = start + block
        Q = _orthonormal(Q, basis[:start], operations)
        basis[start:stop] = Q.T
        Q = operations.multiply(Q)
        T[:stop, start:stop] = operations.project(basis[:stop], Q)
        engine.advance(block)
    return np.asarray(np.linalg.eigh(T, UPLO="U")[1][:, ::-1])


def _orthonormal(Q: Any, basis: Any, operations: Operations) -> Any:
    """Return an orthonormal basis of the columns of Q, by eigenvectors of QᵀQ, which are quicker than QR.

    Products with N make no column longer than 1. Where the space is exhausted and some columns are mere
    rounding, random directions take their place.
    """
    for _ in range(4):
        squares, V = np.linalg.eigh(operations.gram(Q))
        null = squares < max(_DEPENDENT * squares[-1], _ROUNDING)
        Q = operations.transform(Q, V * np.where(null, 0.0, np.maximum(squares, 1e-300) ** -0.5))
        missing = int(null.sum())
        if missing:
            Q[:, :missing] = operations.random(len(basis))[:, :missing] / len(Q) ** 0.5
            operations.project(basis, Q)
        elif squares[0] > 0.5:
            # The columns were orthonormal up to rounding already.
            break
    return Q


def _product(parts: list[tuple[Side, Side]], a: Array, engine: Engine) -> Callable[[Array], Array]:
    """Return the function Z ↦ NᵀN·Z."""
    from mrfrec.core.kernels.rows import sum_rows

    tasks = [[split_evenly(np.diff(side.ptr), 64) for side in part] for part in parts]

    def multiply(Z: Array) -> Array:
        Z = Z * a[:, None]
        out = np.zeros_like(Z)
        for part, ranges in zip(parts, tasks, strict=True):
            product = Z
            for side, of_side in zip(part, ranges, strict=True):
                sums = np.empty((len(side.weight), Z.shape[1]), Z.dtype)
                engine.run(lambda t, x=side, p=product, s=sums: sum_rows(*t, *x, p, s), of_side)
                product = sums
            out += product
        out *= a[:, None]
        return out

    return multiply


def _spans(m: int) -> list[slice]:
    return [slice(first, first + _ROWS_AT_ONCE) for first in range(0, m, _ROWS_AT_ONCE)]


def _project(basis: Array, product: Array, engine: Engine) -> Array:
    """Make the product orthogonal to the basis, in place; return its coordinates in the basis."""
    coordinates = []
    for _ in range(2):  # the second time removes the rounding of the first
        inside = np.sum(engine.run(lambda span: basis[:, span] @ product[span], _spans(len(product))), axis=0)

        def subtract(span: slice, inside: Array = inside) -> None:
            product[span] -= basis[:, span].T @ inside

        engine.run(subtract, _spans(len(product)))
        coordinates.append(inside)
    return np.asarray(coordinates[0])


def _gram(Q: Array, engine: Engine) -> Array:
    def part(span: slice) -> Array:
        rows = Q[span].astype(np.float64)
        return np.asarray(rows.T @ rows)

    return np.asarray(np.sum(engine.run(part, _spans(len(Q))), axis=0))


def _transform(Q: Array, R: Array, engine: Engine) -> Array:
    small = R.astype(Q.dtype)
    return np.vstack(engine.run(lambda span: Q[span] @ small, _spans(len(Q))))
