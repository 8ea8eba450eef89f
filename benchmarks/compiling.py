"""Seconds that the first fit on a machine compiles, kernel by kernel.

    python -m benchmarks.compiling                      the first dense and the first sparse fit
    python -m benchmarks.compiling sparse --kernels 20  one of them, with its slowest functions
    PYTHONPATH=OTHER/src python -m benchmarks.compiling the same for other code

Each fit runs in a process of its own with an empty cache, on one thread. Seconds are processor time: other
work on the machine does not change them. "alone" leaves out the functions a function calls; those of numba
itself (sorting, say) are listed by the name of their module.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

FITS: dict[str, dict[str, Any]] = {
    "dense": {"sparsity": None},
    "sparse": {"sparsity": 0.1},
    "sparse, r=0.5": {"sparsity": 0.1, "r": 0.5},
    "dense, values": {"sparsity": None, "user_weight": 0.5},
    "sparse, values": {"sparsity": 0.1, "user_weight": 0.5},
}


def measure(name: str) -> dict[str, Any]:
    """Fit here, and note how long each function takes to compile."""
    import numpy as np
    import scipy.sparse as sp
    from numba.core import event

    import mrfrec
    from mrfrec.core.kernels import compile as cache

    cache.cache_folders = list  # nothing is loaded
    running: list[list[float]] = []  # of each function being compiled: its start, and what its callees took
    spent: dict[str, list[float]] = {}

    class Stopwatch(event.Listener):
        def on_start(self, event: Any) -> None:
            running.append([time.process_time(), 0.0])

        def on_end(self, event: Any) -> None:
            start, inside = running.pop()
            seconds = time.process_time() - start
            if running:
                running[-1][1] += seconds
            function = event.data["dispatcher"].py_func
            row = spent.setdefault(f"{function.__module__}.{function.__name__}", [0, 0.0, 0.0])
            row[0] += 1
            row[1] += seconds - inside
            row[2] += 0.0 if running else seconds

    X = sp.csr_array((np.arange(300 * 40).reshape(300, 40) % 7 % 3 == 0).astype(np.float32))
    with event.install_listener("numba:compile", Stopwatch()):
        start = time.process_time()
        mrfrec.MRF(l2=1.0, threads=1, **FITS[name]).fit(X)
        total = time.process_time() - start
    kernels = [[name, *row] for name, row in sorted(spent.items(), key=lambda item: -item[1][1])]
    return {"fit": total, "compiling": sum(row[3] for row in kernels), "kernels": kernels}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fits", nargs="*", default=["dense", "sparse"], help=", ".join(FITS))
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="list the N slowest functions")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(*arguments.fits)))
        return
    for name in arguments.fits:
        with tempfile.TemporaryDirectory() as empty:
            command = [sys.executable, "-m", "benchmarks.compiling", "--here", name]
            environment = {**os.environ, "NUMBA_CACHE_DIR": empty}
            result = json.loads(
                subprocess.run(command, env=environment, check=True, capture_output=True).stdout
            )
        functions, variants = len(result["kernels"]), sum(row[1] for row in result["kernels"])
        print(
            f"{name:16} {result['compiling']:5.1f} s compiling, {result['fit']:5.1f} s in all; "
            f"{variants} variants of {functions} functions"
        )
        for function, count, alone, called in result["kernels"][: arguments.kernels]:
            print(f"    {alone:6.2f} s alone  {called:6.2f} s with callees  {count:3} × {function}")


if __name__ == "__main__":
    main()
