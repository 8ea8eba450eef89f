"""WMF: weighted matrix factorisation (Hu, Koren & Volinsky, ICDM 2008)."""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg.lapack import dposv
from threadpoolctl import threadpool_limits

from mrfrec import DataError, Interactions, MissingLibraryError, NumericalError
from mrfrec.extending import FitContext, Rows, Stored, memory_budget, shaped
from mrfrec_lab.models import checks
from mrfrec_lab.models.latent import Latent, LatentVectors, refuse_negative, stored_vectors

_USERS_PER_TASK = 64


Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class WMFVectors(LatentVectors):
    """The vectors of the items, from which those of users are solved."""

    explains: ClassVar[bool] = True

    gram: npt.NDArray[np.float64]  # YᵀY
    l2: float
    weight: float

    def weights_between(self, had: Array, values: Array, targets: Array) -> npt.NDArray[np.float64]:
        """Return s_ij·c_j/x_j, the weight of each item j of the history in the score of each target i.

        The score is Σ_j s_ij·c_j with s_ij = y_iᵀ(YᵀCᵘY + λI)⁻¹y_j (Hu et al., §5). A weight depends on the
        other items of the history.
        """
        refuse_negative("WMF", "a history", Rows(np.array([0, len(had)]), had, values, len(self.base_scores)))
        V = self.vectors
        A, Y, c = self._system(had, values)
        s = Y @ _solved(A, V[targets].astype(np.float64).T)
        return np.asarray(s * (c / values)[:, None], np.float64)

    def embed(self, histories: Rows, threads: int) -> npt.NDArray[np.float32]:
        """Return x_u = (YᵀCᵘY + λI)⁻¹ YᵀCᵘp(u), solved exactly for each user (Hu et al., Eq. 4)."""
        refuse_negative("WMF", "a history", histories)
        users = np.zeros((len(histories), self.vectors.shape[1]), np.float32)

        def work(start: int) -> None:
            for u in range(start, min(start + _USERS_PER_TASK, len(users))):
                span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
                if span.start < span.stop:
                    A, Y, c = self._system(histories.items[span], histories.values[span])
                    users[u] = _solved(A, c @ Y)

        # One BLAS thread in each of ours.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(0, len(users), _USERS_PER_TASK)))
        return users

    def _system(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return YᵀCᵘY + λI, and the vectors and confidences of the items a user has."""
        Y = self.vectors[had].astype(np.float64)
        more = self.weight * values.astype(np.float64)
        # YᵀCᵘY = YᵀY + Yᵀ(Cᵘ − I)Y; only items of the history contribute to the second term.
        part = np.sqrt(more)[:, None] * Y
        A = part.T @ part
        A += self.gram
        A.flat[:: len(A) + 1] += self.l2
        return A, Y, 1 + more

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().stored()
        return {**arrays, "gram": self.gram}, facts


class WMF(Latent):
    """Weighted matrix factorisation of implicit feedback, by alternating least squares.

    Minimises  Σ_ui c_ui (p_ui − x_uᵀy_i)² + λ (Σ_u ‖x_u‖² + Σ_i ‖y_i‖²)  over all pairs, where p_ui is 1 for
    items a user has and 0 otherwise, and c_ui = 1 + α·value is the confidence. User vectors are not stored:
    to answer, x_u is solved for the given history, also for training users. Training needs the library
    implicit (the extra `wmf` of the lab); answering does not.

    Parameters
    ----------
    factors
        Length of the vectors.
    l2
        λ. Use more for less data.
    weight
        α, the confidence added per unit of value; items a user does not have get 1.
    iterations
        Number of times that all users and then all items are solved for.
    seed
        Seed of the initial vectors.
    threads, memory_limit
        As in `MRF`.
    """

    # Liang et al. (2018) try 100 or 200 factors, and 1 + weight of 2, 5, 10, 30, 50 or 100.
    search_space: ClassVar[Mapping[str, Any]] = {
        "factors": (100, 200),
        "weight": (1, 50, "log"),
        "l2": (10, 100, "log"),
    }

    def __init__(
        self,
        *,
        factors: int = 100,
        l2: float = 30.0,
        weight: float = 30.0,
        iterations: int = 15,
        seed: int = 98765,
        threads: int | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.factors = checks.whole("factors", factors)
        self.l2 = checks.number("l2", l2, "a finite number above 0", lambda x: x > 0)
        self.weight = checks.nonnegative("weight", weight)
        self.iterations = checks.whole("iterations", iterations)
        self.seed = checks.whole("seed", seed, 0)
        self.set_limits(threads, memory_limit)

    def _fit(self, data: Interactions, context: FitContext) -> WMFVectors:
        start = time.perf_counter()
        X = data.matrix
        refuse_negative("WMF", "the data", Rows.of(X))
        plan = memory_budget(self.memory_limit)
        n, m = X.shape
        # The vectors, drawn in double precision one side after the other; the items' vectors in double
        # precision for YᵀY; confidences by user and by item; a square for each of eight threads.
        needed = 4 * self.factors * (n + m + max(n, 2 * m)) + 20 * X.nnz + 64 * self.factors**2
        plan.require("vectors", context.copied + needed, "Use fewer factors.")
        try:
            from implicit.cpu.als import AlternatingLeastSquares
            from implicit.recommender_base import ModelFitError
        except ModuleNotFoundError as error:
            what = "WMF needs the library implicit to be trained: pip install implicit."
            raise MissingLibraryError(what) from error

        def report(iteration: int, *_: object) -> None:
            if context.progress is not None:
                context.progress("training", iteration + 1, self.iterations)

        # implicit takes the values as c, not as c − 1, and adds `regularization` to the diagonal; its `alpha`
        # would only multiply c.
        with np.errstate(over="ignore"):
            c = X.data.astype(np.float32)
            c *= np.float32(self.weight)
            c += 1
        if not np.isfinite(c).all():
            raise DataError("1 + weight·value exceeds single precision. Scale the values down.")
        report(-1)
        # One BLAS thread in each of implicit's threads; the assignment of users to threads changes nothing.
        with threadpool_limits(1, "blas"):
            als = AlternatingLeastSquares(
                factors=self.factors,
                regularization=self.l2,
                alpha=1.0,
                iterations=self.iterations,
                num_threads=self.threads or len(os.sched_getaffinity(0)),
                random_state=self.seed,
                use_cg=True,  # 5 to 16 times as fast as Cholesky factors; ten iterations are worth five
            )
            confidence = sp.csr_matrix((c, X.indices, X.indptr), X.shape)
            try:
                als.fit(confidence, show_progress=False, callback=report)
            except ModelFitError as error:
                raise NumericalError(
                    f"the vectors exceed single precision ({error}). It may be because l2={self.l2:g} is too "
                    f"small, or weight={self.weight:g} or a value too large."
                ) from error
            trained = time.perf_counter()
            Y = np.ascontiguousarray(als.item_factors)
            del als, confidence, c
            wide = Y.astype(np.float64)
            gram = wide.T @ wide
        return WMFVectors(
            vectors=Y,
            base_scores=np.zeros(m, np.float32),
            gram=gram,
            l2=self.l2,
            weight=self.weight,
            timings={"train": trained - start, "total": time.perf_counter() - start},
            memory_plan=plan.stages,
        )

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> WMFVectors:
        shaped(arrays, "vectors", m, self.factors)
        gram = shaped(arrays, "gram", self.factors, self.factors).read()
        return WMFVectors(**stored_vectors(arrays, m), gram=gram, l2=self.l2, weight=self.weight)


def _solved(A: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return A⁻¹b, by Cholesky."""
    _, x, info = dposv(A.T, b, lower=1, overwrite_a=1)
    if info != 0:
        raise NumericalError("the equations of a user are singular in double precision. Use a larger l2.")
    return np.asarray(x)
