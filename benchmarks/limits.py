"""How long each stage of a fit takes, beside the time that its arithmetic and its memory alone need.

The rates are measured on all cores, in the same run: products and factorisations in float32 with one BLAS
thread per core, as fits run them; sums of rows that lie anywhere; additions to numbers that lie anywhere.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numba import njit
from threadpoolctl import threadpool_limits

from mrfrec.core.kernels.blocks import factorise
from mrfrec.core.kernels.intrinsics import lapack
from mrfrec.core.kernels.rows import sum_rows
from mrfrec.core.low_rank import basis_size, sample_step
from mrfrec.engines.machine import usable_threads

_SIZES = (100, 200, 400, 800)


@njit(nogil=True)
def _add_anywhere(places: Any, sums: Any) -> None:
    for place in places:
        sums[place] += 1


@njit(nogil=True)
def _factorise_often(lapack: Any, k: int, A: Any, scratch: Any, times: int) -> None:
    for _ in range(times):
        scratch[:] = A
        factorise(lapack, k, scratch)


def rate(work: Callable[[int], Any], amount: float) -> float:
    """Return how much is done in a second if every core does `amount`: the median of five times."""
    threads = usable_threads()
    seconds = []
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        for _ in range(6):
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            seconds.append(time.perf_counter() - start)
    return threads * amount / float(np.median(seconds[1:]))


def rates(m: int) -> dict[str, float]:
    """Return the rates of this machine, for data with m items."""
    random = np.random.default_rng(0)
    large = random.random((2048, 2048), dtype=np.float32)
    found = {"product": rate(lambda _: large @ large, 2 * 2048**3)}
    narrow, wide = random.random((64, 256), dtype=np.float32), random.random((256, m), dtype=np.float32)
    found["narrow product"] = rate(lambda _: narrow @ wide, 2 * 64 * 256 * m)
    for k in _SIZES:
        A = np.asfortranarray(large[:k] @ large[:k].T + k * np.eye(k, dtype=np.float32))
        times = max(1, 10**8 // k**3)

        def by_lapack(_: int, A: Any = A, times: int = times) -> None:
            for _ in range(times):
                scipy.linalg.lapack.spotrf(A, lower=1, clean=0)

        def by_panels(_: int, A: Any = A, times: int = times) -> None:
            flat = A.ravel("F")
            _factorise_often(lapack("float32"), len(A), flat, flat.copy(), times)

        found[f"cholesky {k}"] = rate(by_panels, times * k**3 / 3)
        found[f"lapack's cholesky {k}"] = rate(by_lapack, times * k**3 / 3)
    rows = random.integers(0, m, 2_000_000).astype(np.uint32)
    Z, out = random.random((m, 64), dtype=np.float32), np.empty((20_000, 64), np.float32)
    ptr, weight = np.arange(0, 2_000_001, 100), np.ones(20_000, np.float32)
    nothing = np.empty(0, np.float32)
    found["sums of rows"] = rate(
        lambda _: sum_rows(0, 20_000, ptr, rows, nothing, weight, Z, out), rows.size * 256
    )
    found["additions"] = rate(lambda _: _add_anywhere(rows, np.zeros(m, np.int32)), rows.size)
    source, target = np.zeros((2, 2**25), np.float32)
    found["copy"] = rate(lambda _: np.copyto(target, source), 2 * source.nbytes)
    return found


def work(X: sp.csr_array, model: Any) -> dict[str, dict[str, float]]:
    """Return what each stage of a fit with r = 0 must do, in the units of the rates."""
    n, m = X.shape
    additions = float((np.diff(X.indptr).astype(np.float64) ** 2).sum() / 2)
    if model.pattern_ is None:
        steps = "factorise", "invert factor", "multiply factor"
        stages = {"matrix": {"additions": additions, "copy": 4.0 * m * m}}
        stages |= {step: {"product": m**3 / 3} for step in steps}
    else:
        k = np.diff(model.pattern_.indptr).astype(np.float64)  # with the diagonal
        stages = {
            "pattern": {"additions": additions},
            "gather": {"additions": additions, "copy": float((k**2).sum()) / 2 * 8},
            "solve": {"product": float((k**3 / 3 + k**2).sum())},
        }
    if model.plan_.rank:
        columns = basis_size(model.plan_.rank, m)[1]
        pairs = X.nnz / sample_step(n, m, X.nnz)
        stages["low rank"] = {
            "sums of rows": 2 * pairs * columns * 4,
            "product": 4.0 * m * columns * columns + 2.0 * m * columns * model.plan_.rank,
        }
    return stages


def fit_beside_limits(X: sp.csr_array, *, paper: bool = True, **parameters: Any) -> dict[str, Any]:
    """Fit, and return the rates of the machine and time ÷ limit of each stage."""
    from benchmarks.bench import measure_fit

    before = rates(X.shape[1])
    model, result = measure_fit(X, parameters, paper=paper)
    after = rates(X.shape[1])
    best = {name: max(before[name], after[name]) for name in before}
    limits = {
        stage: sum(amount / best[kind] for kind, amount in needs.items())
        for stage, needs in work(X, model).items()
    }
    ratios = {
        f"{stage} ÷ limit": round(result["stages"][stage] / limit, 2) for stage, limit in limits.items()
    }
    rounded = {stage: float(f"{limit:.3g}") for stage, limit in limits.items()}
    return (
        result | {f"{name} G/s": value / 1e9 for name, value in best.items()} | {"limits": rounded} | ratios
    )
