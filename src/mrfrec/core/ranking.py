"""Scores x·B for a batch of users, and the k best of each, without a users × items matrix.

A few users are ranked in plain numpy, so that one answer does not wait for compiled code to load; many users
in compiled code on all threads. Both add up the same numbers in the same order: the results are the same.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import DenseRows, Rows

__all__ = ["score", "score_vectors", "top_k", "top_k_vectors"]

_FEW = 16  # users, up to which numpy has answered before compiled code has loaded
_USERS_PER_TASK = 64
# Users whose vectors are multiplied at once: always as many, so that scores do not depend on how many ask.
_BLOCK = 32


def score(
    histories: Rows, weights: Rows | DenseRows, offset: npt.NDArray[Any], threads: int
) -> npt.NDArray[Any]:
    """Users × items."""
    from mrfrec.core.kernels import ranking as kernels
    from mrfrec.core.resources import Workers

    out = np.empty((len(histories), histories.width), offset.dtype)
    weights.verify(_needed(histories))
    kernel = kernels.score_dense if isinstance(weights, DenseRows) else kernels.score_sparse
    rows, B = _arrays(histories, offset.dtype), _arrays(weights, offset.dtype)
    with Workers(threads, uses_blas=False) as workers:
        workers.run(lambda t: kernel(*rows, *t, *B, offset, out), _tasks(len(histories)))
    return out


def top_k(
    histories: Rows,
    weights: Rows | DenseRows,
    offset: npt.NDArray[Any],
    k: int,
    *,
    exclude_seen: bool,
    order: npt.NDArray[np.int32],
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Items and scores, users × k, best first; places that nothing fills hold −1 and −∞.

    Items whose offset is −∞ are never chosen. Of equal scores, the item with the lower `order` comes first.
    One row of scores per thread is all that is held beside the result.
    """
    n = len(histories)
    weights.verify(_needed(histories))
    if n <= _FEW:
        return _top_k_of_few(histories, weights, offset, k, exclude_seen, order)

    from mrfrec.core.kernels import ranking as kernels
    from mrfrec.core.resources import Workers

    items, scores = np.empty((n, k), np.int32), np.empty((n, k), offset.dtype)
    kernel = kernels.top_k_dense if isinstance(weights, DenseRows) else kernels.top_k_sparse
    rows, B = _arrays(histories, offset.dtype), _arrays(weights, offset.dtype)
    with Workers(threads, uses_blas=False) as workers:
        workers.run(
            lambda t, row: kernel(*rows, *t, *B, offset, order, exclude_seen, row, items, scores),
            _tasks(n),
            scratch=lambda: np.empty_like(offset),
        )
    return items, scores


def _top_k_of_few(
    histories: Rows,
    weights: Rows | DenseRows,
    offset: npt.NDArray[Any],
    k: int,
    exclude_seen: bool,
    order: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    items = np.full((len(histories), k), -1, np.int32)
    best = np.full((len(histories), k), -np.inf, offset.dtype)
    values = histories.values.astype(offset.dtype, copy=False)
    for u in range(len(histories)):
        scores = offset.copy()
        history = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
        for j, x in zip(histories.items[history].tolist(), values[history], strict=True):
            if isinstance(weights, DenseRows):
                scores += x * weights.array[j]
            else:
                row = slice(int(weights.ptr[j]), int(weights.ptr[j + 1]))
                scores[weights.items[row]] += x * weights.values[row]
        if exclude_seen:
            scores[histories.items[history]] = -np.inf
        _choose(scores, order, items[u], best[u])
    return items, best


def _choose(
    scores: npt.NDArray[Any],
    order: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    best: npt.NDArray[Any],
) -> None:
    """The best of one user's scores into `items` and `best`."""
    k = len(items)
    # Everything that may be among the k best, then these alone in order.
    least = np.partition(scores, -k)[-k]
    chosen = np.flatnonzero((scores >= least) & (scores > -np.inf))
    chosen = chosen[np.lexsort((order[chosen], -scores[chosen]))][:k]
    items[:], best[:] = -1, -np.inf
    items[: len(chosen)], best[: len(chosen)] = chosen, scores[chosen]


# ── scores as products of vectors ─────────────────────────────────────────────────────────────────


def score_vectors(
    users: npt.NDArray[Any], vectors: npt.NDArray[Any], offset: npt.NDArray[Any], threads: int
) -> npt.NDArray[Any]:
    """users·vectorsᵀ + offset."""
    from mrfrec.core.resources import Workers

    out = np.empty((len(users), len(vectors)), offset.dtype)

    def work(task: tuple[int, int], block: npt.NDArray[Any]) -> None:
        out[slice(*task)] = _products(users, task, vectors, offset, block)

    with Workers(threads) as workers:
        workers.run(
            work, _tasks(len(users), _BLOCK), scratch=lambda: np.empty((_BLOCK, len(vectors)), offset.dtype)
        )
    return out


def top_k_vectors(
    histories: Rows,
    users: npt.NDArray[Any],
    vectors: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    k: int,
    *,
    exclude_seen: bool,
    order: npt.NDArray[np.int32],
    threads: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """As `top_k`, where the scores are users·vectorsᵀ + offset. A block of users per thread is held."""
    from mrfrec.core.resources import Workers

    n = len(histories)
    items, scores = np.empty((n, k), np.int32), np.empty((n, k), offset.dtype)
    if n > _FEW:
        from mrfrec.core.kernels import ranking as kernels

    def work(task: tuple[int, int], block: npt.NDArray[Any]) -> None:
        found = _products(users, task, vectors, offset, block)
        for u, row in zip(range(*task), found, strict=True):
            if exclude_seen:
                row[histories.items[int(histories.ptr[u]) : int(histories.ptr[u + 1])]] = -np.inf
            (kernels.select if n > _FEW else _choose)(row, order, items[u], scores[u])

    with Workers(threads) as workers:
        workers.run(work, _tasks(n, _BLOCK), scratch=lambda: np.empty((_BLOCK, len(vectors)), offset.dtype))
    return items, scores


def _products(
    users: npt.NDArray[Any],
    task: tuple[int, int],
    vectors: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    block: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """A few users' scores, in the first rows of the block."""
    start, stop = task
    some = np.zeros((_BLOCK, users.shape[1]), offset.dtype)
    some[: stop - start] = users[start:stop]
    np.matmul(some, vectors.T, out=block)
    block += offset
    return block[: stop - start]


# ── tasks and arrays ──────────────────────────────────────────────────────────────────────────────


def _needed(histories: Rows) -> npt.NDArray[Any] | None:
    """The rows of B a few histories read; None, for all, where there are many."""
    return np.unique(histories.items) if len(histories.items) <= 10_000 else None


def _tasks(n: int, size: int = _USERS_PER_TASK) -> list[tuple[int, int]]:
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _arrays(rows: Rows | DenseRows, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], ...]:
    """As the kernels take them; unsigned indices only change how the integers are read."""
    if isinstance(rows, DenseRows):
        return (np.asarray(rows.array),)
    unsigned = np.uint32 if rows.items.itemsize == 4 else np.uint64
    return (
        np.asarray(rows.ptr),
        np.asarray(rows.items).view(unsigned),
        np.asarray(rows.values).astype(dtype, copy=False),
    )
