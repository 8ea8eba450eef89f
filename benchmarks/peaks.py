"""Peak memory of fits against their plans, each fit in a process of its own.

    python -m benchmarks.peaks                 a table of all fits
    python -m benchmarks.peaks "MRF, dense"    some of them

The peak is what the fit adds to the resident memory of a process that has loaded compiled code and data. A
plan must not be below the peak, nor above 1.5 times the peak plus 60 MB.
"""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FITS: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    # kind, parameters, users, items, pairs
    "MRF, dense": ("MRF", {}, 8_000, 5_000, 300_000),
    "MRF, dense, float64, mean_constraint": (
        "MRF",
        {"dtype": "float64", "mean_constraint": True},
        8_000,
        3_000,
        300_000,
    ),
    "MRF, sparse": ("MRF", {"sparsity": 0.01}, 20_000, 12_000, 600_000),
    "MRF, sparse, r=0.5": ("MRF", {"sparsity": 0.01, "r": 0.5}, 20_000, 12_000, 600_000),
    "MRF, sparse, r=1, float64": (
        "MRF",
        {"sparsity": 0.01, "r": 1.0, "dtype": "float64"},
        20_000,
        6_000,
        400_000,
    ),
    "MRF, sparse, large blocks": (
        "MRF",
        {"sparsity": 0.1, "rank": 0, "measure": False},
        5_000,
        3_000,
        200_000,
    ),
    "MRF, sparse, weighted users": ("MRF", {"sparsity": 0.005, "user_weight": 0.5}, 20_000, 12_000, 600_000),
    "MRF, 90 MB": ("MRF", {"memory_limit": "90MB"}, 20_000, 12_000, 400_000),
    "MRF, sparse, 300,000 items": (
        "MRF",
        {"sparsity": 0.0001, "r": 0.5, "l2": 1.0},
        60_000,
        300_000,
        900_000,
    ),
    "EASE, many pairs": ("EASE", {}, 60_000, 3_000, 4_000_000),
    "ItemKNN": ("ItemKNN", {"neighbors": 100}, 20_000, 30_000, 400_000),
}


def measure(name: str, threads: int = 2, scale: float = 1.0) -> tuple[int, int]:
    """Fit in a new process; return the bytes planned and the bytes at the peak.

    `scale` multiplies the numbers of users, items and pairs.
    """
    command = [sys.executable, "-m", "benchmarks.peaks", "--here", name, str(threads), str(scale)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[1])
    plan, peak = json.loads(done.stdout.splitlines()[-1])
    return plan, peak


def fits(plan: int, peak: int) -> bool:
    return peak <= plan <= 1.5 * peak + 60e6


def here(name: str, threads: int, scale: float) -> tuple[int, int]:
    """Fit in this process."""
    import numpy as np
    import scipy.sparse as sp

    from mrfrec import Interactions
    from mrfrec.models.registry import build

    kind, parameters, *sizes = FITS[name]
    users, items, pairs = (round(scale * size) for size in sizes)
    rng = np.random.default_rng(0)
    user, has_taste, place = rng.integers(0, users, pairs), rng.random(pairs) < 0.6, rng.random(pairs) ** 2
    group = items // 40
    item = np.where(has_taste, user % 40 * group + group * place, items * place).astype(np.int64) % items
    X = sp.csr_array((np.ones(pairs, np.float32), (user, item)), shape=(users, items))
    X.data[:] = 1
    data = Interactions(X, range(users), range(items))
    assert len(data.popularity) == items
    quick = {**parameters}
    if "sparsity" in parameters or "memory_limit" in parameters:
        quick = {**quick, "sparsity": 0.1, "memory_limit": None}
    build(kind, quick, {"threads": threads}).fit(X[:200, :60])  # compile and load first
    del user, has_taste, place, item
    ctypes.CDLL(None).malloc_trim(0)  # or the fit would reuse memory that is freed but still resident
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS:")
    model: Any = build(kind, parameters, {"threads": threads}).fit(data)
    plan = getattr(model, "plan_", None)
    if plan is not None:  # what a user sees before the fit: in use and added, together
        assert max(model.memory_plan_.values()) <= plan.needed, (plan, model.memory_plan_)
        assert _status("VmHWM:") <= plan.in_use + plan.needed, (plan, _status("VmHWM:"))
    return max(model.memory_plan_.values()), _status("VmHWM:") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(here(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
        return
    print(f"| {'fit':40} | plan, MB | peak, MB | |\n|{'-' * 42}|---|---|---|")
    for name in sys.argv[1:] or FITS:
        plan, peak = measure(name)
        verdict = "" if fits(plan, peak) else "MISSED"
        print(f"| {name:40} | {plan / 1e6:.0f} | {peak / 1e6:.0f} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
