"""Record the weights of fits with many settings, and compare later code with them bit for bit.

    python tools/fits.py record before.npz      # before a change that must not change results
    python tools/fits.py compare before.npz     # after it

Run both on the same machine: bits depend on its BLAS. Models whose extra is not installed are left out.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

import mrfrec

_MRF: dict[str, dict[str, Any]] = {
    "dense": {},
    "dense float64": {"dtype": "float64"},
    "dense alpha=0.25 l2=2": {"alpha": 0.25, "l2": 2.0},
    "dense l2_flat": {"l2_flat": 30.0},
    "dense dropout": {"dropout": 0.2},
    "dense user_weight": {"user_weight": 0.5},
    "dense offset": {"offset": True},
    "dense mean_constraint": {"mean_constraint": True},
    "dense uncentered": {"center": False, "alpha": 0.0, "l2": 100.0},
    "dense uncentered alpha=0.5": {"center": False, "alpha": 0.5},
    "sparse": {"sparsity": 0.02, "l2": 1.0},
    "sparse r=0.5": {"sparsity": 0.02, "l2": 1.0, "r": 0.5},
    "sparse r=1": {"sparsity": 0.01, "r": 1.0},
    "sparse float64": {"sparsity": 0.02, "l2": 1.0, "dtype": "float64", "r": 0.3},
    "sparse threshold": {"threshold": 0.1, "l2": 1.0},
    "sparse capped": {"sparsity": 0.05, "max_neighbors": 30},
    "sparse user_weight": {"sparsity": 0.02, "user_weight": 0.5, "l2_flat": 5.0},
    "sparse uncentered": {"sparsity": 0.02, "center": False, "alpha": 0.0, "l2": 100.0},
    "sparse offset dropout": {"sparsity": 0.02, "offset": True, "dropout": 0.1},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "EASE": {},
    "EDLAE": {},
    "Popularity": {},
    "ItemKNN": {},
    "SLIM": {},
    "FsSLIM": {},
    "WMF": {"factors": 16, "iterations": 3},
    "CDAE": {"epochs": 2},
    "MultDAE": {"epochs": 2},
    "MultVAE": {"epochs": 2},
}


def main() -> None:
    command, path = sys.argv[1:]
    fits = dict(_fits())
    if command == "record":
        np.savez_compressed(path, **fits)
        return
    with np.load(path) as before:
        for name in sorted({*before.files, *fits}):
            sys.stdout.write(f"{name:45} {_verdict(before, fits, name)}\n")


def _verdict(before: Any, after: dict[str, Any], name: str) -> str:
    if name not in before or name not in after:
        return "only before" if name in before else "only after"
    a, b = before[name], after[name]
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"DIFFERENT: {a.dtype}{a.shape} → {b.dtype}{b.shape}"
    if a.tobytes() == b.tobytes():
        return "same bits"
    return f"DIFFERENT by up to {np.abs(a.astype(np.float64) - b.astype(np.float64)).max():.3g}"


def _fits() -> Iterator[tuple[str, Any]]:
    debian = mrfrec.datasets.load("debian")
    rng = np.random.default_rng(1)
    rated = debian.matrix.copy()
    rated.data = rng.integers(1, 6, rated.nnz).astype(np.float32)
    for data_name, data in (("binary", debian.matrix), ("rated", rated)):
        for name, parameters in _MRF.items():
            yield from _arrays(f"{data_name} {name}", mrfrec.MRF.paper(**parameters), data)
        for name, parameters in _OTHERS.items():
            try:
                yield from _arrays(f"{data_name} {name}", getattr(mrfrec.models, name)(**parameters), data)
            except (mrfrec.MissingLibraryError, mrfrec.DataError) as error:
                sys.stderr.write(f"left out {data_name} {name}: {error}\n")


def _arrays(name: str, model: mrfrec.Recommender, data: sp.csr_array) -> Iterator[tuple[str, Any]]:
    sys.stderr.write(f"{name}\n")
    model.fit(data)
    # A dense B takes 107 MB: record a sample of its rows and all column sums instead.
    if hasattr(model, "weights_"):
        B: Any = model.weights_
        if isinstance(B, np.ndarray):
            yield f"{name} rows", B[::97].copy()
            yield f"{name} sums", B.sum(axis=0, dtype=np.float64)
        else:
            yield f"{name} ptr", B.indptr
            yield f"{name} items", B.indices
            yield f"{name} values", B.data
    yield f"{name} scores", model.scores(data[:20])


if __name__ == "__main__":
    main()
