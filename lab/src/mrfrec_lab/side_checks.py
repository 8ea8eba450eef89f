"""Two checks of §5 of the paper: the accuracy of low-rank weights, and the exposure of long-tail items."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh, qr

from mrfrec import MRF, Interactions, ParameterError
from mrfrec.evaluation import Comparison, Evaluation, Questions, Split, evaluate_fitted
from mrfrec.extending import FitContext, Rows, Stored, memory_budget
from mrfrec_lab.models.latent import Latent, LatentVectors

_EXACT = 3000  # items up to which the full decomposition takes only seconds
_PASSES = 2  # power iterations; each squares the ratio of the leading to the trailing singular values

Array = npt.NDArray[Any]


def low_rank(
    model: MRF, split: Split, ranks: Iterable[int] | None, metrics: list[str], seed: int = 0
) -> list[tuple[Evaluation, float]]:
    """Evaluate a model fitted to the training data with weights cut to low ranks.

    Returns evaluations, the first of the model as it is, the others called "rank 200" and so on, the largest
    rank first; and the share of the sum of squared weights that each keeps.

    The cut makes the diagonal of B nonzero, which does not matter: it adds only to the scores of shown items,
    which are never recommended. Beyond 3,000 items the decomposition is randomized (Halko et al. 2011) and
    depends on `seed`. The ranks are by default those of 200, 1,000 and 3,000 that are below the number of
    items, or half of the items.
    """
    m = len(model.items_)
    if getattr(model.plan_, "rank", 0):
        raise ParameterError("model", "an MRF without a low-rank part, fitted with rank=0", model)
    usual = [rank for rank in (200, 1000, 3000) if rank < m] or [max(m // 2, 1)]
    cuts = sorted({*(usual if ranks is None else ranks)})
    if not cuts or cuts[-1] > m or cuts[0] < 1:
        raise ParameterError("ranks", f"at least one, each from 1 to the {m:,} items", cuts)
    columns = 8 * m if m <= _EXACT else 4 * _width(cuts[-1], m)  # includes LAPACK's copies
    needed = np.dtype(model.dtype).itemsize * m * columns
    memory_budget(model.memory_limit).require("factors of the weights", needed, "Ask for smaller ranks.")
    B = model.weights_
    left, right = _factors(B, cuts[-1], seed)
    # The columns of `left` are orthogonal, so their squared norms add up.
    square = float(np.sum(np.square(B.data if sp.issparse(B) else B, dtype=np.float64))) or 1.0
    energy = np.cumsum(np.einsum("ij,ij->j", left, left, dtype=np.float64)) / square
    found = [(evaluate_fitted(model, split.test, metrics, name="full rank", ties="index"), 1.0)]
    for rank in reversed(cuts):
        L, R = left[:, :rank], right[:rank]
        # The conditional mean is μ + (x − μ)·B.
        base = model.mean_ - (model.mean_ @ L) @ R if model.parameters["offset"] else np.zeros(m)
        cut = Cut(L, R, base.astype(model.dtype)).fit(split.training)
        evaluation = evaluate_fitted(cut, split.test, metrics, name=f"rank {rank:,}", ties="index")
        found.append((evaluation, float(energy[rank - 1])))
    return found


@dataclass(frozen=True, kw_only=True)
class CutVectors(LatentVectors):
    """x·L of a history x, times R: weights of a low rank."""

    left: Array

    def embed(self, histories: Rows, threads: int) -> Array:
        return np.asarray(histories.matrix().astype(self.left.dtype) @ self.left)


class Cut(Latent):
    """A model by weights L·R, which is measured and not saved."""

    def __init__(self, left: Array, right: Array, base: Array) -> None:
        self.left, self.right, self.base = left, right, base

    def _fit(self, data: Interactions, context: FitContext) -> CutVectors:
        return CutVectors(vectors=np.ascontiguousarray(self.right.T), base_scores=self.base, left=self.left)

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> CutVectors:
        raise NotImplementedError


def _width(rank: int, m: int) -> int:
    """Return how many directions to compute: more than are kept, so that the last ones kept are accurate."""
    return min(rank + max(rank // 10, 20), m)


def _factors(B: Any, rank: int, seed: int) -> tuple[Array, Array]:
    """Return L (m × rank) and R (rank × m) with L[:, :d] · R[:d] the best approximation of B of rank d.

    Let Q be an orthonormal basis of the leading right singular vectors and W the eigenvectors of
    (B·Q)ᵀ(B·Q). Then B ≈ (B·Q·W)·(Q·W)ᵀ. Up to 3,000 items Q is the identity and the result exact.
    """
    m = B.shape[0]
    if m <= _EXACT:
        dense = (B.toarray() if sp.issparse(B) else B).astype(np.float64)
        _, W = eigh(dense.T @ dense, overwrite_a=True)
        W = W[:, ::-1][:, :rank].astype(B.dtype)  # the largest first
        return B @ W, W.T
    Bt = B.T.tocsr() if sp.issparse(B) else B.T
    random = np.random.default_rng(seed)
    Q = random.standard_normal((m, _width(rank, m)), dtype=np.float32).astype(B.dtype, copy=False)
    for _ in range(_PASSES):
        BQ = B @ Q
        # Once per pass is enough: rounding loses only directions with less than 1e-6 of the first's energy.
        Q, _ = qr(Bt @ BQ, mode="economic", overwrite_a=True, check_finite=False)
    BQ = B @ Q
    _, W = eigh(BQ.T @ BQ, overwrite_a=True)
    W = W[:, ::-1][:, :rank]
    return BQ @ W, W.T @ Q.T


TRAINING = "training interactions"
TARGETS = "test users' targets"


@dataclass(frozen=True)
class Exposure:
    """Shares of groups of items, the most popular group first; the shares of a line sum to 1."""

    split: str
    places: int  # length of the lists
    items: npt.NDArray[np.int64]  # number of items in each group
    shares: dict[str, Array]  # "recommended by" each model, of the training data and of the targets


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
    return Exposure(first.split, first.facts["k"], np.bincount(group, minlength=groups), shares)
