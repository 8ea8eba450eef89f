"""Compare `update` with a fit on all events, on real data: seconds of each step, and equal arrays.

    python -m benchmarks.living                      MRF() with its defaults: two fits of some minutes
    python -m benchmarks.living --sparsity 0.01      a sparse model: two fits of some seconds

One event in a hundred of mtg-players is new. Loading, reading, adding and saving stand beside the time of the
fit itself, which is the same work in both and varies most. Every step runs in a process of its own. The
first model is a cheap one, whose parameters are changed before the update: its weights play no part in that.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import CACHE, DATA


def split(table: str, old: str, new: str) -> None:
    """Write 99 of 100 events to one file, in another order, and the rest to another."""
    import polars as pl

    events = pl.read_parquet(table, columns=["user", "item"]).sample(fraction=1, shuffle=True, seed=0)
    few = len(events) // 100
    events[few:].write_parquet(old)
    events[:few].write_parquet(new)


def fit(table: str, path: str, parameters: dict[str, Any]) -> None:
    """Read a table, fit and save."""
    from mrfrec import MRF, read_interactions

    clock = Clock()
    data = read_interactions(table, user="user", item="item")
    clock.step("read")
    model = MRF(**parameters).fit(data)
    clock.step("fit")
    model.save(path, include_histories=True)
    clock.step("save")
    clock.tell()


def update(table: str, path: str, parameters: dict[str, Any]) -> None:
    """Load a model, add a table and save. Only the table of new events is read."""
    import mrfrec
    from mrfrec import MRF

    clock, refit = Clock(), MRF.fit

    def timed(*given: Any, **options: Any) -> Any:
        clock.step("read and add")
        fitted = refit(*given, **options)
        clock.step("fit")
        return fitted

    MRF.fit = timed  # type: ignore[method-assign]
    model = mrfrec.load(path).set_params(**{**MRF().get_params(), **parameters})
    clock.step("load")
    model.update(table)
    model.save(path, include_histories=True)
    clock.step("save")
    clock.tell()


class Clock:
    """Seconds of steps that follow each other."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def step(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name], self._last = now - self._last, now

    def tell(self) -> None:
        print(json.dumps(self._seconds))


def in_a_process(function: str, *arguments: object) -> dict[str, float]:
    code = f"from benchmarks import living; living.{function}(*{list(arguments)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout else {}


def differences(a: Path, b: Path) -> list[str]:
    """Return the names of the arrays that differ in any bit."""
    from mrfrec.io.artifact import open_file

    left, right = open_file(a)[1], open_file(b)[1]
    return [
        name
        for name in sorted(left.keys() | right.keys())
        if name not in left
        or name not in right
        or left[name].read().tobytes() != right[name].read().tobytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sparsity", type=float)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the real data")
    options = parser.parse_args()
    parameters = {} if options.sparsity is None else {"sparsity": options.sparsity}
    table = options.data / "mtg-players" / "interactions.parquet"
    if not table.exists():
        parser.error(f"there is no {table}")
    CACHE.mkdir(exist_ok=True)
    old, new = CACHE / "living-old.parquet", CACHE / "living-new.parquet"
    updated, whole = CACHE / "living-updated.mrf", CACHE / "living-whole.mrf"
    in_a_process("split", str(table), str(old), str(new))
    in_a_process("fit", str(old), str(updated), {"sparsity": 0.0005, "rank": 0})
    for name, seconds in (
        ("update", in_a_process("update", str(new), str(updated), parameters)),
        ("fit on all events", in_a_process("fit", str(table), str(whole), parameters)),
    ):
        steps = ", ".join(f"{step} {spent:.1f} s" for step, spent in seconds.items())
        beside = sum(seconds.values()) - seconds["fit"]
        print(f"{name}: {steps}; {beside:.1f} s beside the fit", flush=True)
    print("arrays that differ:", ", ".join(differences(updated, whole)) or "none")
    for path in (old, new, updated, whole):
        path.unlink()


if __name__ == "__main__":
    main()
