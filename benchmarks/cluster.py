"""Measure fits on a cluster of processes of this machine against fits on its threads.

    python -m benchmarks.cluster sizes          four sizes: the same bits, and what the cost model says
    python -m benchmarks.cluster msd            the size of the Million Song data: seconds and peaks of memory
    python -m benchmarks.cluster kills          20 fits, in each of which a random worker dies at some moment

`docs/explanation/performance.md` has the results. `predicted` is the cost model; `sizes` measured its
constants.
"""

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec import MRF
from mrfrec.models.compiling import warm_up

WORKERS = 2
SIZES = {  # users, items, interactions
    "an eighth": (71_000, 10_285, 4.2e6),
    "a quarter": (143_000, 20_570, 8.5e6),
    "a half": (285_000, 41_140, 17e6),
    "MSD": (571_355, 41_140, 34e6),
}
FIT = {"l2": 1.0, "sparsity": 0.005}

# Of one core of two (aarch64), from one run of `sizes`; docs/explanation/performance.md has another.
CONSTANTS = {
    "pattern": 4.0e-9,  # seconds of a thread for a pair of items in a history
    "gather": 2.6e-9,  # the same, for each batch of blocks
    "solve": 1.1e-11,  # seconds of a thread for k³, k being the size of a block
    "copy": 9.7e-9,  # and for k²
    "data": 3.0e-9,  # seconds for a byte that is sent to a host
    "client": 1.5e-8,  # seconds of the client for an interaction
    "fixed": 0.3,  # seconds
}


def data(size: str) -> sp.csr_array:
    from benchmarks import bench
    from benchmarks.synthetic import interactions

    return bench.msd() if size == "MSD" else interactions(*SIZES[size])


def measures(X: sp.csr_array, model: MRF, batches: int) -> dict[str, float]:
    """Return what the time of a fit depends on."""
    lengths = np.diff(X.indptr).astype(np.float64)
    assert model.pattern_ is not None
    k = np.diff(model.pattern_.indptr).astype(np.float64)
    return {
        "pairs": float((lengths * (lengths - 1) / 2).sum()),
        "interactions": float(X.nnz),
        "k2": float((k**2).sum()),
        "k3": float((k**3).sum()),
        "bytes": 12.0 * X.nnz + 4 * float(k.sum()),
        "batches": float(batches),
    }


def predicted(of: dict[str, float], threads: int, hosts: int = 1) -> dict[str, float]:
    """Return the seconds of each part of a fit on so many threads of so many hosts."""
    c = CONSTANTS
    return {
        "data": c["data"] * of["bytes"] * (1 + np.log2(hosts)),
        "pattern": c["pattern"] * of["pairs"] / threads,
        # Each batch passes over all pairs.
        "gather": c["gather"] * of["pairs"] * np.ceil(of["batches"] / threads),
        "solve": (c["solve"] * of["k3"] + c["copy"] * of["k2"]) / threads,
        "client": c["client"] * of["interactions"] + c["fixed"],
    }


def peak_mb(pid: int) -> float:
    """Return the peak of the resident memory of a process, shared pages included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return float("nan")


@contextmanager
def cluster() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", local_directory=folder
        ) as workers,
        Client(workers) as client,
    ):
        client.run(warm_up, MRF(sparsity=0.1))
        yield client


def fitted(X: sp.csr_array, **where: Any) -> tuple[MRF, float]:
    start = time.perf_counter()
    model = MRF.paper(**FIT, threads=WORKERS).fit(X, **where)
    return model, time.perf_counter() - start


def same(a: MRF, b: MRF) -> bool:
    return all(np.array_equal(getattr(a.weights_, n), getattr(b.weights_, n)) for n in ("data", "indices"))


def sizes(names: list[str]) -> None:
    print(
        "| size | threads | cluster | ratio | same bits | predicted | stages |\n|---|---|---|---|---|---|---|"
    )
    for name in names:
        X = data(name)
        with cluster() as client:
            MRF.paper(sparsity=0.01).fit(X[:3000, :2000], client=client)
            here, alone = fitted(X)
            there, together = fitted(X, client=client)
        parts = predicted(measures(X, here, WORKERS), WORKERS)
        guess = sum(parts.values())
        stages = ", ".join(f"{k} {v:.1f}" for k, v in there.timings_.items() if v > 0.1)
        local = ", ".join(f"{k} {v:.1f}" for k, v in here.timings_.items() if v > 0.1)
        of = ", ".join(f"{k} {v:.3g}" for k, v in measures(X, here, WORKERS).items())
        share = ", ".join(f"{k} {v:.1f}" for k, v in parts.items())
        print(
            f"| {name} | {alone:.1f} | {together:.1f} | {together / alone:.2f} | {same(here, there)} | "
            f"{guess:.1f} ({guess / together - 1:+.0%}) | {stages}; here {local}; {of}; model {share} |",
            flush=True,
        )


def msd() -> None:
    """Fit three times in turn here and there, since other work disturbs both."""
    X = data("MSD")
    seconds: dict[str, list[float]] = {"threads": [], "cluster": []}
    with cluster() as client:
        MRF.paper(sparsity=0.01).fit(X[:3000, :2000], client=client)
        before = peak_mb(os.getpid())
        for _ in range(3):
            there, together = fitted(X, client=client)
            peak = peak_mb(os.getpid())
            here, alone = fitted(X)
            seconds["cluster"].append(round(together, 1))
            seconds["threads"].append(round(alone, 1))
            print(seconds, "same bits", same(here, there), flush=True)
            if len(seconds["threads"]) == 1:
                workers = [round(peak_mb(pid)) for pid in processes(client)]
                print(
                    f"client with scheduler {before:.0f} MB before, {peak:.0f} MB then; workers {workers}, "
                    f"{12 * X.nnz / 1e6:.0f} MB of each shared",
                    flush=True,
                )
    best = {name: min(of) for name, of in seconds.items()}
    print(f"best {best}, ratio {best['cluster'] / best['threads']:.2f}")


def processes(client: Any) -> list[int]:
    """Return the ids of the worker processes, when all of them answer."""
    for _ in range(120):
        found = client.run(os.getpid, on_error="ignore")
        if len(found) == WORKERS and all(isinstance(pid, int) for pid in found.values()):
            return sorted(found.values())
        time.sleep(0.5)
    raise TimeoutError("the workers did not come back")


def kills(count: int, size: str) -> None:
    X = data(size)
    expected, alone = fitted(X)
    rng = random.Random(0)
    for number in range(count):
        with cluster() as client:  # a new one: Dask does not replace every worker that dies
            pid = rng.choice(processes(client))
            after = rng.uniform(0.0, alone)
            timer = threading.Timer(after, os.kill, (pid, signal.SIGKILL))
            timer.start()
            model, seconds = fitted(X, client=client)
            timer.join()
        bits = same(model, expected)
        print(f"{number + 1}: killed at {after:.1f} s, {seconds:.1f} s, same bits {bits}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sizes", "msd", "kills"])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    if options.what == "sizes":
        sizes(options.sizes)
    elif options.what == "msd":
        msd()
    else:
        kills(options.count, options.sizes[0])


if __name__ == "__main__":
    main()
