"""Tune EASE on a GPU, for data with so many items that its closed form takes two cores too long.

    python3 experiments/ease_gpu.py experiments/cache/peers/gowalla 10 30 100

The folder has the files that experiments/peers.py writes; the numbers are values of l2. For each, nDCG@20 and
Recall@20 over all targets are printed, on the validation and on the test questions, with standard errors.
Only numpy and PyTorch are needed. The items × items matrix is float64: 14 GB for 41,000 items, three times.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

K = 20
_AT_ONCE = 2000  # users multiplied or scored at a time


def rows(folder: Path, name: str) -> list[Any]:
    """Read a CSR matrix of ones as dense parts of `_AT_ONCE` users."""
    with np.load(folder / f"{name}.npz") as file:
        ptr, items, (n_users, n_items) = file["indptr"].astype(np.int64), file["indices"], file["shape"]
    parts = []
    for start in range(0, n_users, _AT_ONCE):
        end = min(start + _AT_ONCE, n_users)
        users = np.repeat(np.arange(end - start), np.diff(ptr[start : end + 1]))
        pairs = np.stack([users, items[ptr[start] : ptr[end]]])
        ones = torch.ones(pairs.shape[1], dtype=torch.float64)
        parts.append(torch.sparse_coo_tensor(torch.from_numpy(pairs), ones, (end - start, int(n_items))))
    return parts


def fit(G: Any, l2: float) -> Any:
    """Return B = −P ⊘ diag(P) per column, with zero diagonal, for P = (G + l2·I)⁻¹."""
    A = G.clone()
    A.diagonal().add_(l2)
    B = torch.cholesky_inverse(torch.linalg.cholesky(A))
    B /= -B.diagonal().clone()
    return B.fill_diagonal_(0)


def measure(B: Any, shown: list[Any], targets: list[Any]) -> str:
    """Return nDCG@K and Recall@K of the users with targets, mean ± standard error."""
    gains = 1 / torch.log2(torch.arange(2, K + 2, device="cuda", dtype=torch.float64))
    values = []
    for x, asked in zip(shown, targets, strict=True):
        history, wanted = x.cuda().to_dense(), asked.cuda().to_dense()
        scores = (history @ B).masked_fill(history > 0, -torch.inf)
        hits = torch.gather(wanted, 1, torch.topk(scores, K, dim=1).indices)
        counts = wanted.sum(1)
        ideal = torch.cumsum(gains, 0)[counts.long().clamp(1, K) - 1]
        of_users = torch.stack([(hits * gains).sum(1) / ideal, hits.sum(1) / counts])
        values.append(of_users[:, counts > 0].cpu())
    all_users = torch.cat(values, dim=1)
    errors = all_users.std(dim=1) / all_users.shape[1] ** 0.5
    return ", ".join(f"{m:.4f} ± {e:.4f}" for m, e in zip(all_users.mean(dim=1), errors, strict=True))


def main(folder: Path, ridges: list[float]) -> None:
    for stage in ("validation", "test"):
        parts = {name: rows(folder, f"{stage}-{name}") for name in ("training", "shown", "targets")}
        n_items = parts["training"][0].shape[1]
        G = torch.zeros(n_items, n_items, dtype=torch.float64, device="cuda")
        for x in parts["training"]:
            X = x.cuda().to_dense()
            G.addmm_(X.T, X)
        for l2 in ridges:
            began = time.perf_counter()
            B = fit(G, l2)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            found = measure(B, parts["shown"], parts["targets"])
            print(f"{stage}, l2={l2:g}: nDCG@{K} and Recall@{K} {found}; {seconds:.1f} s", flush=True)
            del B


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(l2) for l2 in sys.argv[2:]])
