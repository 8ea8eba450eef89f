"""Peak memory of fits of the paper's other models, each in a process of its own, against their plans."""

import json
import subprocess
import sys

import pytest

FIT = """
import json, sys
from pathlib import Path
import numpy as np
import scipy.sparse as sp
from mrfrec import Interactions
from mrfrec.models.registry import build

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

kind, parameters, users, items, pairs = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
u, taste = rng.integers(0, users, pairs), rng.random(pairs) < 0.6
spread = rng.random(pairs) ** 2
i = np.where(taste, u % 40 * (items // 40) + items // 40 * spread, items * spread).astype(np.int64) % items
X = sp.csr_array((np.ones(pairs, np.float32), (u, i)), shape=(users, items))
X.data[:] = 1
data = Interactions(X, range(users), range(items))
data.popularity
small = {"factors": 4, "iterations": 1} if kind == "WMF" else parameters
build(kind, small, {"threads": 2}).fit(X[:200, :60])  # compile and load first
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = status("VmRSS:")
model = build(kind, parameters, {"threads": 2}).fit(data)
print(max(model.memory_plan_.values()), status("VmHWM:") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "fit",
    [
        ("ItemKNN", {"neighbors": 100}, 20_000, 30_000, 400_000),
        ("SLIM", {"l1": 1.0}, 8_000, 2_000, 200_000),
        ("FsSLIM", {"neighbors": 100}, 10_000, 5_000, 400_000),
        ("WMF", {"factors": 100, "iterations": 2}, 30_000, 20_000, 300_000),
    ],
    ids=lambda fit: fit[0],
)
def test_a_fit_holds_what_its_plan_says(fit: tuple[object, ...]) -> None:
    command = [sys.executable, "-c", FIT, json.dumps(fit)]
    plan, peak = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert peak <= plan <= 1.5 * peak + 60e6
