"""Two checks of §5 of the paper: the accuracy of low-rank weights, and the exposure of long-tail items."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.answers import selection
from mrfrec.checks import check_count
from mrfrec.core.progress import Progress, part_of
from mrfrec.core.rows import Rows
from mrfrec.engines.machine import memory_budget, usable_threads
from mrfrec.errors import ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Lists, Metric, Numbers
from mrfrec.evaluation.protocol import Comparison, Ties, evaluate_fitted
from mrfrec.evaluation.questions import Questions
from mrfrec.fitted import scorers
from mrfrec.models.mrf.field import GaussianField

_EXACT = 3000  # items up to which the full decomposition takes only seconds
_PASSES = 2  # power iterations; each squares the ratio of the leading to the trailing singular values
_USERS_AT_ONCE = 1000

Array = npt.NDArray[Any]


def low_rank(
    model: GaussianField,
    questions: Questions,
    ranks: Iterable[int] | None = None,
    metrics: Iterable[str | Metric] | str = DEFAULTS,
    *,
    ties: Ties = "popularity",
    seed: int = 0,
    split: str = "",
    progress: Progress | None = None,
) -> Comparison:
    """Evaluate a fitted model with weights cut to low ranks by a singular value decomposition.

    The first evaluation is of the model as it is; the others are called "rank 200" and so on, the largest
    rank first. Their `facts["energy"]` is the share of the sum of squared weights that the rank keeps.

    The cut makes the diagonal of B nonzero, which does not matter: it adds only to the scores of shown items,
    which are never recommended. Beyond 3,000 items the decomposition is randomized (Halko et al. 2011) and
    depends on `seed`. `split` is the name of the split, for reports. The ranks are
    by default those of 200, 1,000 and 3,000 that are below the number of items, or half of the items.
    """
    if not isinstance(model, GaussianField):
        raise ParameterError("model", "an MRF", model)
    m = len(model.items_)
    if model.plan_.rank:
        raise ParameterError("model", "an MRF without a low-rank part, fitted with rank=0", model)
    usual = [rank for rank in (200, 1000, 3000) if rank < m] or [max(m // 2, 1)]
    cuts = sorted({check_count("ranks", rank) for rank in (usual if ranks is None else ranks)})
    if not cuts or cuts[-1] > m:
        raise ParameterError("ranks", f"at least one, each at most the {m:,} items", cuts)
    columns = 8 * m if m <= _EXACT else 4 * _width(cuts[-1], m)  # includes LAPACK's copies
    needed = np.dtype(model.dtype).itemsize * m * (columns + 2 * _USERS_AT_ONCE)
    memory = memory_budget(model.memory_limit)
    memory.require("factors of the weights", needed, "Ask for smaller ranks.", who="low_rank")
    at_first, then, at_last = (part_of(progress, part / 3, (part + 1) / 3) for part in range(3))
    full = evaluate_fitted(model, questions, metrics, name="full rank", ties=ties, progress=at_first)
    full = replace(full, split=split)
    wanted = list(full.values)

    start = time.perf_counter()
    left, right = _factors(model.weights_, cuts[-1], seed, then)
    seconds = time.perf_counter() - start
    # The columns of `left` are orthogonal, so their squared norms add up. Row by row: B is not copied.
    rows = [model.weights_.data] if model.is_sparse else model.weights_
    square = float(sum(np.sum(np.square(row, dtype=np.float64)) for row in rows)) or 1.0
    energy = np.cumsum(np.einsum("ij,ij->j", left, left, dtype=np.float64)) / square

    ranked = _rank(model, questions.shown, left, right, cuts, max(w.k for w in wanted), ties, at_last)
    evaluations = [full]
    for rank, lists in zip(cuts[::-1], ranked[::-1], strict=True):
        ranked_lists = Lists(lists, questions.targets, model.popularity_)
        evaluations.append(
            replace(
                full,
                model=f"rank {rank:,}",
                values={metric: metric.per_user(ranked_lists) for metric in wanted},
                seconds={"decomposition": seconds},
                recommended=np.bincount(lists[lists >= 0], minlength=m),
                facts={**full.facts, "rank": rank, "energy": float(energy[rank - 1])},
            )
        )
    return Comparison(tuple(evaluations))


def _width(rank: int, m: int) -> int:
    """Return how many directions to compute: more than are kept, so that the last ones kept are accurate."""
    return min(rank + max(rank // 10, 20), m)


def _factors(B: Any, rank: int, seed: int, progress: Progress | None) -> tuple[Array, Array]:
    """Return L (m × rank) and R (rank × m) with L[:, :d] · R[:d] the best approximation of B of rank d.

    Let Q be an orthonormal basis of the leading right singular vectors and W the eigenvectors of
    (B·Q)ᵀ(B·Q). Then B ≈ (B·Q·W)·(Q·W)ᵀ. Up to 3,000 items Q is the identity and the result exact.
    """
    from scipy.linalg import eigh, qr

    m = B.shape[0]
    steps = 2 * _PASSES + 2

    def tell(done: int) -> None:
        if progress is not None:
            progress("decomposing", done, steps)

    tell(0)
    if m <= _EXACT:
        dense = (B.toarray() if sp.issparse(B) else B).astype(np.float64)
        _, W = eigh(dense.T @ dense, overwrite_a=True)
        W = W[:, ::-1][:, :rank].astype(B.dtype)  # the largest first
        tell(steps)
        return B @ W, W.T
    Bt = B.T.tocsr() if sp.issparse(B) else B.T
    random = np.random.default_rng(seed)
    Q = random.standard_normal((m, _width(rank, m)), dtype=np.float32).astype(B.dtype, copy=False)
    for turn in range(_PASSES):
        BQ = B @ Q
        tell(2 * turn + 1)
        # Once per pass is enough: rounding loses only directions with less than 1e-6 of the first's energy.
        Q, _ = qr(Bt @ BQ, mode="economic", overwrite_a=True, check_finite=False)
        tell(2 * turn + 2)
    BQ = B @ Q
    tell(steps - 1)
    _, W = eigh(BQ.T @ BQ, overwrite_a=True)
    W = W[:, ::-1][:, :rank]
    tell(steps)
    return BQ @ W, W.T @ Q.T


def _rank(
    model: GaussianField,
    shown: sp.csr_array,
    left: Array,
    right: Array,
    cuts: list[int],
    k: int,
    ties: Ties,
    progress: Progress | None,
) -> list[npt.NDArray[np.int32]]:
    """Return the ranked items, users × k, of each rank."""
    n = shown.shape[0]
    lists = [np.empty((n, k), np.int32) for _ in cuts]
    threads = model.threads or usable_threads()
    base = model.fitted_.base(stranger=True, ties=ties)
    for first in range(0, n, _USERS_AT_ONCE):
        part = slice(first, min(first + _USERS_AT_ONCE, n))
        histories = Rows.of(shown[part])
        reduced = shown[part].astype(left.dtype) @ left
        if model.offset:  # conditional mean, μ + (x − μ)·B, with the novelty of the fit
            reduced -= model.mean_.astype(left.dtype) @ left
        for of_rank, rank in zip(lists, cuts, strict=True):
            scorer = scorers.VectorScorer(histories, reduced[:, :rank], right[:rank].T)
            of_rank[part], _, _ = selection.top_k(scorer, k, base, hide=histories, threads=threads)
        if progress is not None:
            progress("ranking", part.stop, n)
    return lists


TRAINING = "training interactions"
TARGETS = "test users' targets"


@dataclass(frozen=True)
class Exposure:
    """Shares of groups of items, the most popular group first; the shares of a line sum to 1."""

    split: str
    places: int  # length of the lists
    items: npt.NDArray[np.int64]  # number of items in each group
    shares: dict[str, Numbers]  # "recommended by" each model, of the training data and of the targets


def exposure(comparison: Comparison, questions: Questions) -> Exposure:
    """Count how often models recommend popular items and rare ones.

    Items are put into groups of equal size by popularity (of equally popular items the lower index first):
    ten groups, or one per item if there are fewer items. All places of the ranked lists count. The shares
    of the training data and of the test users' targets are given too. The paper explains its lead on MSD by
    the long-tail items that the full-rank model recommends more often.
    """
    first = comparison.evaluations[0]
    m = len(first.popularity)
    groups = min(10, m)
    group = np.empty(m, np.int64)
    group[np.argsort(-first.popularity, kind="stable")] = np.arange(m) * groups // m
    counts = {f"recommended by {name}": found.recommended for name, found in comparison.items()}
    counts |= {TRAINING: first.popularity, TARGETS: np.bincount(questions.targets.indices, minlength=m)}
    totals = {name: np.bincount(group, of, groups) for name, of in counts.items()}
    shares = {name: total / (total.sum() or 1.0) for name, total in totals.items()}
    return Exposure(first.split, first.facts["places"], np.bincount(group, minlength=groups), shares)
