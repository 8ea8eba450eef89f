"""The group `gpu` of the benchmarks: fits, rankings and a grid on a GPU. Needs PyTorch with CUDA."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

WIDE = {"users": 300_000, "count": 15e6}


def available() -> bool:
    """Return whether there is a GPU."""
    from mrfrec.engines.devices import devices

    return bool(devices())


def wide(items: int) -> sp.csr_array:
    """Return synthetic data with many items."""
    from benchmarks.synthetic import interactions

    return interactions(items=items, **WIDE)  # type: ignore[arg-type]


def fit_and_compare(X: sp.csr_array, *, items: int = 5000, **parameters: Any) -> dict[str, Any]:
    """Fit, check sampled equations, and compare a fit to a few items with one in float64 on the CPU."""
    from benchmarks.bench import fit_and_check
    from mrfrec import MRF

    result = fit_and_check(X, **parameters)
    some = X[:, :items]
    found = MRF.paper(**parameters).fit(some).weights_
    expected = MRF.paper(**{**parameters, "device": "cpu", "dtype": "float64"}).fit(some).weights_
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    return result | device_gb() | {f"error of {items} items": error}


def fit_or_refuse(X: sp.csr_array, **parameters: Any) -> dict[str, Any]:
    """Fit, or return why not."""
    from benchmarks.bench import fit_and_check
    from mrfrec import MemoryPlanError

    try:
        return fit_and_check(X, **parameters) | device_gb()
    except MemoryPlanError as error:
        return {"seconds": float("nan"), "refused": str(error)}


def device_gb() -> dict[str, float]:
    """Return the peak of the memory that was in use on the device, and of what PyTorch held for that."""
    import torch

    return {
        "device_gb": torch.cuda.max_memory_allocated() / 1e9,
        "held_gb": torch.cuda.max_memory_reserved() / 1e9,
    }


def recommend_all(path: Path, *, options: str) -> dict[str, Any]:
    """Write 20 recommendations for every training user, by a dense model, from the shell."""
    from mrfrec import MRF

    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder) / "model.mrf", Path(folder) / "out.parquet"
        MRF(sparsity=None, device="auto").fit(str(path)).save(model, include_histories=True)
        command = [sys.executable, "-m", "mrfrec", "recommend", str(model), "--all", "-k", "20"]
        start = time.perf_counter()
        subprocess.run([*command, "-o", str(output), *options.split()], check=True)
        return {"seconds": time.perf_counter() - start, "file_mb": output.stat().st_size / 1e6}


def tune_dense(path: Path, *, device: str) -> dict[str, Any]:
    """Try 25 dense models on validation users."""
    from mrfrec import MRF
    from mrfrec.evaluation import strong_generalisation, tune

    split = strong_generalisation(path, heldout=10_000)
    model = MRF(sparsity=None, user_weight=1.0, measure=False, device=device)
    start = time.perf_counter()
    found = tune(model, split, trials=25, space={"alpha": (0.25, 0.75), "l2": (4, 64, "log")})
    return {
        "seconds": time.perf_counter() - start,
        "trials": len(found.trials),
        "ndcg@100": found.best.value,
        "parameters": str(found.best.parameters),
    }
