"""The leading right singular vectors of N = D_u^(−½)·X·D_i^(−½), for the low-rank part.

They come from block Lanczos on NᵀN with full reorthogonalisation (Golub & Underwood, 1977). Where there are
many users, a part of them tells the vectors as well. The work is cut the same way for any number of threads.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mrfrec.core.engine import Array, Engine, split_evenly

if TYPE_CHECKING:
    import scipy.sparse as sp


_BLOCKS = 9  # of the basis, at least: with each, the directions get sharper
# Columns of the basis per direction wanted. On Gowalla, 2.25 hold 96 % of the sum of squares of the exact
# directions and rank users' items as well as these.
_PER_DIRECTION = 2.25
# A sample has at least so many users, and so many pairs per item.
_USERS, _PAIRS = 150_000, 200
_USERS_AT_ONCE = 32_768  # whose products stay in the processor's cache
_PARTS = 8  # of the users, at most
_ROWS_AT_ONCE = 4096  # of the basis, that a thread multiplies
# Squares of the lengths of columns that depend on others, compared with the longest, or are mere rounding.
_DEPENDENT, _ROUNDING = 1e-10, 1e-8


def basis_size(rank: int, m: int) -> tuple[int, int]:
    """Return the columns of a block of the basis and of all blocks; m and m if that is not much more."""
    block = 16 * min(-(-rank // 64), 4)
    columns = block * max(_BLOCKS, -(-int(_PER_DIRECTION * rank) // block))
    return (block, columns) if 2 * columns < m else (m, m)


class Half(NamedTuple):
    """One side of a part of N: `rows` of the other side for each of its own, and their values."""

    ptr: Array
    rows: Array
    values: Array  # empty if all are 1
    weight: Array  # of each sum


def leading_vectors(X: "sp.csr_array", rank: int, dtype: str, engine: Engine) -> Array:
    """Return the `rank` leading right singular vectors of N as rows; one step per column of the basis."""
    m = X.shape[1]
    block, columns = basis_size(rank, m)
    parts, a = halves(X, dtype)
    if columns == m:
        multiply = _product(parts, a, engine)
        strips = np.array_split(np.eye(m, dtype=dtype), -(-m // 64), axis=1)
        gram = np.hstack([multiply(strip) for strip in strips])
        return np.asarray(np.linalg.eigh(gram)[1][:, ::-1][:, :rank].T)

    def random(seed: int) -> Array:
        return np.random.default_rng(seed).standard_normal((m, block)).astype(dtype)

    if engine.accelerator is not None:
        return np.asarray(engine.accelerator.leading_vectors(parts, a, random, columns, rank, engine))
    basis = np.empty((columns, m), dtype)
    here = (partial(work, engine=engine) for work in (_project, _gram, _transform))
    vectors = fill_basis(basis, Operations(random, _product(parts, a, engine), *here), engine)
    return np.asarray(vectors[:, :rank].T.astype(dtype) @ basis)


def sample(users: int, step: int) -> Array:
    """Choose about every step-th user, at random."""
    return np.flatnonzero(np.random.default_rng(0).random(users) * step < 1)


def sample_step(users: int, items: int, pairs: int) -> int:
    """Return s if one user in s is enough to find the directions."""
    return max(min(users // _USERS, pairs // (_PAIRS * items)), 1)


def halves(X: "sp.csr_array", dtype: str) -> tuple[list[tuple[Half, Half]], Array]:
    """Return both sides of N, by users and by items, in parts of the users, and the scale of the items."""
    import scipy.sparse as sp

    step = sample_step(X.shape[0], X.shape[1], X.nnz)
    X = X[sample(X.shape[0], step)] if step > 1 else X
    n, m = X.shape
    binary = bool((X.data == 1).all())
    squares, of_users = sums_of_squares(X)
    with np.errstate(divide="ignore"):
        a = np.where(squares > 0, squares**-0.5, 0.0).astype(dtype)
        w = np.where(of_users > 0, 1.0 / of_users, 0.0).astype(dtype)
    data = np.ones(X.nnz, np.int8) if binary else X.data.astype(dtype, copy=False)

    def half(ptr: Array, rows: Array, values: Array, weight: Array) -> Half:
        rows = rows.astype(np.int32, copy=False).view(np.uint32)
        return Half(ptr.astype(np.int64), rows, np.empty(0, dtype) if binary else values, weight)

    parts, at_once = [], users_at_once(n)
    for first in range(0, n, at_once):
        ptr = X.indptr[first : first + at_once + 1]
        span, weight = slice(int(ptr[0]), int(ptr[-1])), w[first : first + at_once]
        by_user = data[span], X.indices[span], ptr - ptr[0]
        by_item = sp.csr_array(by_user, shape=(len(weight), m)).tocsc()
        parts.append(
            (
                half(by_user[2], by_user[1], by_user[0], weight),
                half(by_item.indptr, by_item.indices, by_item.data, np.ones(m, dtype)),
            )
        )
    return parts, a


def users_at_once(n: int) -> int:
    """Return how many users a part of N has: a part has a pointer per item, so there are few."""
    return max(_USERS_AT_ONCE, -(-n // _PARTS))


def sums_of_squares(X: "sp.csr_array") -> tuple[Array, Array]:
    """Return the sums of squares of each column and each row."""
    if (X.data == 1).all():
        return np.bincount(X.indices, minlength=X.shape[1]).astype(np.float64), np.diff(X.indptr)
    squares = np.square(X.data, dtype=np.float64)
    of_users = np.add.reduceat(np.append(squares, 0.0), X.indptr[:-1])
    of_users[np.diff(X.indptr) == 0] = 0.0
    return np.bincount(X.indices, squares, minlength=X.shape[1]), of_users


class Operations(NamedTuple):
    """What Lanczos does with large arrays, numpy's or a device's; small ones are numpy's."""

    random: Callable[[int], Any]  # a block of columns, by a seed
    multiply: Callable[[Any], Any]  # Q ↦ NᵀN·Q
    project: Callable[[Any, Any], Array]  # makes Q orthogonal to a basis; returns what that takes away
    gram: Callable[[Any], Array]  # Q ↦ QᵀQ in float64
    transform: Callable[[Any, Array], Any]  # Q, R ↦ Q·R


def fill_basis(basis: Any, on: Operations, engine: Engine) -> Array:
    """Fill the basis of a Krylov space, columns × m; return eigenvectors in it, largest first."""
    columns, Q = len(basis), on.random(0)
    T, block = np.zeros((columns, columns)), Q.shape[1]
    for start in range(0, columns, block):
        stop = start + block
        Q = _orthonormal(Q, basis[:start], on)
        basis[start:stop] = Q.T
        Q = on.multiply(Q)
        T[:stop, start:stop] = on.project(basis[:stop], Q)
        engine.advance(block)
    return np.asarray(np.linalg.eigh(T, UPLO="U")[1][:, ::-1])


def _orthonormal(Q: Any, basis: Any, on: Operations) -> Any:
    """Return an orthonormal basis of the columns of Q, by eigenvectors of QᵀQ, which are quicker than QR.

    The lengths of N's products are 1 at most. Where the space is exhausted, and some of them mere rounding,
    new directions take their place.
    """
    for _ in range(4):
        squares, V = np.linalg.eigh(on.gram(Q))
        null = squares < max(_DEPENDENT * squares[-1], _ROUNDING)
        Q = on.transform(Q, V * np.where(null, 0.0, np.maximum(squares, 1e-300) ** -0.5))
        missing = int(null.sum())
        if missing:
            Q[:, :missing] = on.random(len(basis))[:, :missing] / len(Q) ** 0.5
            on.project(basis, Q)
        elif squares[0] > 0.5:  # it was orthonormal, up to rounding, before
            break
    return Q


def _product(parts: list[tuple[Half, Half]], a: Array, engine: Engine) -> Callable[[Array], Array]:
    """Return the function Z ↦ NᵀN·Z."""
    from mrfrec.core.kernels.products import sum_rows

    tasks = [[split_evenly(np.diff(half.ptr), 64) for half in part] for part in parts]

    def multiply(Z: Array) -> Array:
        Z = Z * a[:, None]
        out = np.zeros_like(Z)
        for part, ranges in zip(parts, tasks, strict=True):
            product = Z
            for half, some in zip(part, ranges, strict=True):
                sums = np.empty((len(half.weight), Z.shape[1]), Z.dtype)
                engine.run(lambda t, h=half, p=product, s=sums: sum_rows(*t, *h, p, s), some)
                product = sums
            out += product
        out *= a[:, None]
        return out

    return multiply


def _spans(m: int) -> list[slice]:
    return [slice(first, first + _ROWS_AT_ONCE) for first in range(0, m, _ROWS_AT_ONCE)]


def _project(basis: Array, product: Array, engine: Engine) -> Array:
    """Make the product orthogonal to the basis; return what that takes away, in the basis."""
    taken = []
    for _ in range(2):  # the second time for the rounding of the first
        inside = np.sum(engine.run(lambda span: basis[:, span] @ product[span], _spans(len(product))), axis=0)

        def subtract(span: slice, inside: Array = inside) -> None:
            product[span] -= basis[:, span].T @ inside

        engine.run(subtract, _spans(len(product)))
        taken.append(inside)
    return np.asarray(taken[0])


def _gram(Q: Array, engine: Engine) -> Array:
    def part(span: slice) -> Array:
        some = Q[span].astype(np.float64)
        return np.asarray(some.T @ some)

    return np.asarray(np.sum(engine.run(part, _spans(len(Q))), axis=0))


def _transform(Q: Array, R: Array, engine: Engine) -> Array:
    small = R.astype(Q.dtype)
    return np.vstack(engine.run(lambda span: Q[span] @ small, _spans(len(Q))))
