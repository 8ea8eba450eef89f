"""Measure time and peak memory of the fits in docs/explanation/performance.md.

    python -m benchmarks.bench                 sparse fits on synthetic and on real data
    python -m benchmarks.bench msd dense       only these groups (dense, beyond, million: ten minutes each)
    python -m benchmarks.bench limits          each stage beside the time that its arithmetic and memory need
    python -m benchmarks.bench gpu gpu-gowalla gpu-mtg                            on a GPU, where there is one

Each fit runs in its own process, on data from `benchmarks/cache`, after a warm-up that loads the compiled
kernels. The peak is the resident memory of that process, Python and data included. Groups on real data are
skipped if the folder --data does not have it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import gpu
from benchmarks.limits import fit_beside_limits

CACHE = Path(__file__).parent / "cache"
DATA = Path(__file__).parents[2] / "shared" / "data"
MSD = {"users": 571_355, "items": 41_140, "count": 34e6}


# ── data ──────────────────────────────────────────────────────────────────────────────────────────


def msd() -> sp.csr_array:
    """Return synthetic data of the size of the Million Song data, cached on disk."""
    path = CACHE / "msd.npz"
    if not path.exists():
        from benchmarks.synthetic import interactions

        CACHE.mkdir(exist_ok=True)
        sp.save_npz(path, interactions(**MSD), compressed=False)  # type: ignore[arg-type]
    return sp.csr_array(sp.load_npz(path))


def beyond() -> sp.csr_array:
    """Return data with so many items that a product of two indices exceeds 32 bits (46,341² > 2³¹)."""
    from benchmarks.synthetic import interactions

    return interactions(100_000, 47_000, 3e6)


def million() -> sp.csr_array:
    """Return data with a million items, five million users and eighty million interactions."""
    from benchmarks.synthetic import interactions

    return interactions(5_000_000, 1_000_000, 80e6)


def table(path: Path, shape: tuple[int, int] | None = None) -> sp.csr_array:
    """Read user and item of a Parquet file as a binary matrix; renumber the ids unless `shape` is given."""
    import polars as pl

    frame = pl.read_parquet(path, columns=["user", "item"])
    user, item = frame["user"].to_numpy(), frame["item"].to_numpy()
    if shape is None:
        user, item = (np.unique(ids, return_inverse=True)[1] for ids in (user, item))
        shape = (int(user.max()) + 1, int(item.max()) + 1)
    X = sp.csr_array((np.ones(len(user), np.float32), (user, item)), shape=shape)
    X.sum_duplicates()
    return X


def peak_gb() -> float:
    """Return the peak resident memory of this process, in GB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e9
    return float("nan")


# ── one measurement, in its own process ───────────────────────────────────────────────────────────


def measure_fit(
    X: sp.csr_array, parameters: dict[str, Any], *, paper: bool = True
) -> tuple[Any, dict[str, Any]]:
    from mrfrec import MRF

    make: Any = MRF.paper if paper else partial(MRF, measure=False)
    small = X[: min(X.shape[0], 2000)][:, : min(X.shape[1], 1500)]
    warm_up = {**parameters, "sparsity": 0.01} if parameters.get("sparsity") else parameters
    make(**warm_up).fit(small)
    before = peak_gb()
    start = time.perf_counter()
    model = make(**parameters).fit(X)
    seconds = time.perf_counter() - start
    result = {
        "seconds": seconds,
        "stages": {name: round(value, 2) for name, value in model.timings_.items()},
        "before_gb": before,
        "planned_gb": max(model.memory_plan_.values()) / 1e9,
    }
    if model.pattern_ is not None:
        result |= {
            "blocks": model.n_blocks_,
            "threshold": model.threshold_,
            "density": model.pattern_.nnz / X.shape[1] ** 2,
            "capped": float((np.diff(model.pattern_.indptr) >= model.max_neighbors).mean()),
        }
    return model, result


def fit(X: sp.csr_array, **parameters: Any) -> dict[str, Any]:
    return measure_fit(X, parameters)[1]


def fit_dense(X: sp.csr_array, **parameters: Any) -> dict[str, Any]:
    """Fit, and compare with the rate of a large float32 product on all cores, measured before and after."""
    a, b = np.random.default_rng(0).random((2, 4096, 4096), dtype=np.float32)
    out = np.empty_like(a)

    def rates() -> list[float]:
        found = []
        for _ in range(8):
            start = time.perf_counter()
            np.matmul(a, b, out=out)
            found.append(2 * 4096**3 / (time.perf_counter() - start))
        return found

    before = rates()
    result = fit(X, **parameters)
    samples = before + rates()
    rate = float(np.median(samples))
    ideal = X.shape[1] ** 3 / rate
    spread = [round(s / 1e9) for s in sorted(samples)]
    return result | {"sgemm_gflops": rate / 1e9, "spread": spread, "ratio": result["seconds"] / ideal}


def fit_and_check(X: sp.csr_array, **parameters: Any) -> dict[str, Any]:
    """Fit, and return the largest residual of sampled equations (S + ridge)·B' = S off the item itself."""
    model, result = measure_fit(X, parameters)
    result["peak_gb"] = peak_gb()
    rng = np.random.default_rng(0)
    n, m = X.shape
    targets, equations = rng.choice(m, 20, replace=False), rng.choice(m, 200, replace=False)
    X64, s, mu = X.astype(np.float64), model.scale_, model.mean_
    S = ((X64[:, equations].T @ X64).toarray() - n * np.outer(mu[equations], mu)) / np.outer(s[equations], s)
    ridged = S.copy()
    ridged[np.arange(len(equations)), equations] += model.l2
    B = model.weights_[:, targets] * s[:, None] / s[targets]
    error = ridged @ B - S[:, targets]
    return result | {"worst equation": float(np.abs(error[~np.isin(equations, targets)]).max())}


def fit_and_evaluate(X: sp.csr_array, *, test: str, **parameters: Any) -> dict[str, Any]:
    """Fit, and return Recall@20 (hits ÷ targets) and nDCG@20 as published for LightGCN's split."""
    model, result = measure_fit(X, parameters)
    result["peak_gb"] = peak_gb()
    targets = table(Path(test), X.shape).toarray() > 0
    items, _ = model.top_k(X, 20)
    hits = np.take_along_axis(targets, items.astype(np.int64), axis=1)
    count = targets.sum(axis=1)
    has = count > 0
    discount = 1 / np.log2(np.arange(2, 22))
    ideal = np.concatenate([[0], np.cumsum(discount)])[np.minimum(count, 20)]
    recall, ndcg = hits.sum(axis=1)[has] / count[has], (hits @ discount)[has] / ideal[has]
    return result | {"recall20": float(recall.mean()), "ndcg20": float(ndcg.mean())}


# ── the groups ────────────────────────────────────────────────────────────────────────────────────

Case = tuple[str, Callable[[], Any], Callable[..., dict[str, Any]], dict[str, Any]]


def groups(data: Path) -> dict[str, list[Case]]:
    gowalla = data / "gowalla-lightgcn"
    shape = (29_858, 40_981)
    mtg = data / "mtg-players" / "interactions.parquet"
    cuda: dict[str, Any] = {"device": "cuda"}
    wide = {"l2": 3.0, "sparsity": None, **cuda}

    def train() -> sp.csr_array:
        return table(gowalla / "train.parquet", shape)

    def evaluated(name: str, **parameters: Any) -> Case:
        return name, train, fit_and_evaluate, {"test": str(gowalla / "test.parquet"), **parameters}

    return {
        "msd": [
            ("MSD-shaped, 0.1 %, r = 0.5", msd, fit, {"l2": 1.0, "sparsity": 0.001, "r": 0.5}),
            ("MSD-shaped, 0.1 %, r = 0", msd, fit, {"l2": 1.0, "sparsity": 0.001}),
            ("MSD-shaped, 0.5 %, r = 0.5", msd, fit, {"l2": 1.0, "sparsity": 0.005, "r": 0.5}),
            ("MSD-shaped, 0.5 %, r = 0", msd, fit, {"l2": 1.0, "sparsity": 0.005}),
        ],
        "book-crossing": [
            (
                "book-crossing, 0.01 %, r = 0.5",
                lambda: table(data / "book-crossing" / "interactions.parquet"),
                fit,
                {"l2": 1.0, "alpha": 0.75, "sparsity": 0.0001, "r": 0.5},
            )
        ],
        "gowalla-sparse": [
            evaluated("gowalla, 0.3 %, r = 0, α = 0.5, l2 = 40", l2=40.0, alpha=0.5, sparsity=0.003),
            evaluated("gowalla, 0.3 %, r = 0.5, α = 0.5, l2 = 40", l2=40.0, alpha=0.5, sparsity=0.003, r=0.5),
        ],
        "gowalla-dense": [
            evaluated("gowalla, dense, α = 0.5, l2 = 40", l2=40.0, alpha=0.5, sparsity=None),
        ],
        "gpu": [
            ("MSD-shaped, dense", msd, gpu.fit_and_compare, {"l2": 3.0, "sparsity": None, **cuda}),
            *(
                (f"{items:,} items, dense", lambda m=items: gpu.wide(m), gpu.fit_or_refuse, wide)
                for items in (100_000, 150_000)
            ),
        ],
        "gpu-gowalla": [
            evaluated("gowalla, dense, α = 0.5, l2 = 40", l2=40.0, alpha=0.5, sparsity=None, **cuda)
        ],
        "gpu-mtg": [
            *(
                (f"mtg-players, recommend --all -k 20 {o}", lambda: mtg, gpu.recommend_all, {"options": o})
                for o in ("--device cuda", "--threads 2")
            ),
            ("mtg-players, 25 dense models", lambda: mtg, gpu.tune_dense, cuda),
        ],
        "limits": [
            (
                "MSD-shaped, 0.5 %, r = 0, beside its limits",
                msd,
                fit_beside_limits,
                {"l2": 1.0, "sparsity": 0.005},
            ),
            ("MSD-shaped, MRF() unmeasured, beside its limits", msd, fit_beside_limits, {"paper": False}),
        ],
        "million": [("1,000,000 items, α = 0.5, l2 = 3", million, fit, {"l2": 3.0, "alpha": 0.5})],
        "beyond": [("47,000 items, dense", beyond, fit_and_check, {"l2": 3.0, "sparsity": None})],
        "dense": [("MSD-shaped, dense", msd, fit_dense, {"l2": 3.0, "sparsity": None})],
    }


USUAL = ("msd", "limits", "book-crossing", "gowalla-sparse")


def run_one(group: str, number: int, data: Path) -> None:
    _, load, measure, parameters = groups(data)[group][number]
    result = measure(load(), **parameters)
    result.setdefault("peak_gb", peak_gb())
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "groups", nargs="*", default=list(USUAL), metavar="group", help=f"of {list(groups(DATA))}"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the real data")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.groups) - set(groups(options.data))
    if unknown:
        parser.error(
            f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(groups(options.data))}"
        )
    if options.one is not None:
        run_one(options.groups[0], options.one, options.data)
        return

    import numba
    import scipy

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, "
        f"numpy {np.__version__}, scipy {scipy.__version__}, numba {numba.__version__}\n"
    )
    print("| fit | seconds | peak GB | stages and results |\n|---|---|---|---|", flush=True)
    for group in options.groups:
        folder = {"book-crossing": "book-crossing", "gpu-mtg": "mtg-players"}.get(
            group, "gowalla-lightgcn" if "gowalla" in group else ""
        )
        if group.startswith("gpu") and not gpu.available():
            print(f"| {group} | skipped: PyTorch finds no GPU | | |")
            continue
        if folder and not (options.data / folder).exists():
            print(f"| {group} | skipped: no {folder} in {options.data} | | |")
            continue
        if group in ("msd", "dense", "limits", "gpu"):
            subprocess.run([sys.executable, "-c", "from benchmarks import bench; bench.msd()"], check=True)
        for number, (name, *_) in enumerate(groups(options.data)[group]):
            command = [
                sys.executable,
                "-m",
                "benchmarks.bench",
                group,
                "--one",
                str(number),
                "--data",
                str(options.data),
            ]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            result = json.loads(output.splitlines()[-1])
            rest = {k: v for k, v in result.items() if k not in ("seconds", "peak_gb", "stages")}
            details = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rest.items()]
            stages = ", ".join(f"{k} {v}" for k, v in result.get("stages", {}).items())
            notes = "; ".join(part for part in (stages, ", ".join(details)) if part)
            print(f"| {name} | {result['seconds']:.1f} | {result['peak_gb']:.2f} | {notes} |", flush=True)


if __name__ == "__main__":
    main()
