"""Fit and measure models of several libraries, each trial in a process and an environment of its own."""

import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec.evaluation import Split
from mrfrec_lab.lists import measure_lists, split_of
from mrfrec_lab.places import CACHE, machine, writing

SCRIPT = Path(__file__).with_name("peer_models.py")
SEED = 98765
K = 100  # items per list
_NOT_INSTALLED = "not installed"
REQUIREMENTS = {
    "sansa": ("sansa==1.1.0", "scikit-sparse==0.4.16", "numba==0.68.1", "numpy==2.4.6", "scipy==1.17.1"),
    "implicit": ("implicit==0.7.3", "numpy==2.4.6", "scipy==1.17.1"),
    "lenskit": ("lenskit==2025.8.1", "torch==2.13.0", "pandas==2.3.3", "numpy==2.4.6", "scipy==1.17.1"),
    "irspack": ("irspack==0.5.2", "numpy==2.4.6", "scipy==1.17.1"),
}


@dataclass(frozen=True)
class Row:
    """A model of a library, what it is always given, and the values that tuning chooses from.

    With `defaults`, the first trial is the model without any of these values.
    """

    library: str
    model: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    defaults: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} ({self.library})"

    def points(self, trials: int) -> list[dict[str, Any]]:
        """Return the points to try: all of the grid, or as many as there are trials, drawn at random.

        Those of fewer trials are among those of more.
        """
        drawn = product(*self.grid.values()) if self.grid else ()
        points = [{**self.fixed, **dict(zip(self.grid, point, strict=True))} for point in drawn]
        if len(points) + self.defaults > trials:
            points = random.Random(SEED).sample(points, len(points))
        return ([dict(self.fixed)] if self.defaults or not points else []) + points[: trials - self.defaults]


def write_split(split: Split, folder: Path) -> None:
    """Write what models are trained on, shown and asked for, of both stages, as files of CSR matrices."""
    for stage, of in (("validation", split.for_tuning()), ("test", split)):
        parts = {"training": of.training.matrix, "shown": of.test.shown, "targets": of.test.targets}
        for part, X in parts.items():
            with writing(folder / f"{stage}-{part}.npz") as unfinished, unfinished.open("wb") as file:
                sp.save_npz(file, sp.csr_matrix((np.ones(X.nnz, np.float32), X.indices, X.indptr), X.shape))


@cache
def environment(library: str) -> Path | str:
    """Return the Python of a library's environment, installing it first, or the reason it has none."""
    if library == "mrfrec":
        return Path(sys.executable)
    folder = CACHE / "environments" / library
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.exists() or done.read_text() != "\n".join(REQUIREMENTS[library]):
        print(f"── installing {library}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[library]]
        if (failed := _run(pip, None)).returncode:
            return f"{_NOT_INSTALLED}: {_last_line(failed.stderr)}"
        done.write_text("\n".join(REQUIREMENTS[library]))
    return python


def _run(command: list[str], seconds: float | None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def measure_row(row: Row, folder: Path, wanted: Sequence[str], trials: int, minutes: float) -> None:
    """Try the points of a model on the validation questions and measure the best on the test questions."""
    tried = [trial(row, point, "validation", folder, wanted, minutes) for point in row.points(trials)]
    best = best_of(tried, wanted[0])
    if best is not None:
        trial(row, best["parameters"], "test", folder, wanted, minutes)


def best_of(tried: Sequence[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    """Return the trial with the largest mean; None if all have failed."""
    done = [found for found in tried if "failure" not in found]
    return max(done, key=lambda found: float(np.mean(found["values"][metric]))) if done else None


def trial(
    row: Row, parameters: dict[str, Any], stage: str, folder: Path, wanted: Sequence[str], minutes: float
) -> dict[str, Any]:
    """Fit and measure one point in a process of its own, or return what is cached."""
    kept = _kept(row, parameters, stage, folder)
    if (cached := cached_trial(row, parameters, stage, folder)) is not None:
        failure = cached.get("failure")
        if failure is None or (cached["minutes"] >= minutes and not failure.startswith(_NOT_INSTALLED)):
            return cached
    found: dict[str, Any] = {"parameters": parameters, "minutes": minutes, "load": os.getloadavg()[0]}
    python = environment(row.library)
    kept.parent.mkdir(parents=True, exist_ok=True)
    job, lists, measured = (kept.with_suffix(f".{ending}") for ending in ("job", "npy", "measured"))
    files = {part: str(folder / f"{stage}-{part}.npz") for part in ("training", "shown")}
    task = {"library": row.library, "model": row.model, "parameters": parameters, "k": K, **files}
    job.write_text(
        json.dumps({**task, "lists": str(lists), "measured": str(measured), "save": stage == "test"})
    )
    try:
        if isinstance(python, str):
            found["failure"] = python
        elif (done := _run([str(python), str(SCRIPT), str(job)], 60 * minutes)).returncode:
            found["failure"] = _last_line(done.stderr) if done.returncode > 0 else "stopped by the system"
        else:
            X, targets = (sp.load_npz(folder / f"{stage}-{part}.npz") for part in ("training", "targets"))
            values = measure_lists(np.load(lists), split_of(X, targets), wanted)
            found |= json.loads(measured.read_text()) | {"values": {m: v.tolist() for m, v in values.items()}}
    except subprocess.TimeoutExpired:
        found["failure"] = f"more than {minutes:g} min"
    for file in (job, lists, measured):
        file.unlink(missing_ok=True)
    found |= {"machine": machine(), "date": datetime.date.today().isoformat()}
    with writing(kept) as unfinished:
        unfinished.write_text(json.dumps(found))
    value = found.get("failure") or f"{np.mean(found['values'][wanted[0]]):.4f}, {found['seconds']:.1f} s"
    print(f"{row.name}, {stage}: {parameters_text(row, parameters)}: {value}", file=sys.stderr, flush=True)
    return found


def _kept(row: Row, parameters: Mapping[str, Any], stage: str, folder: Path) -> Path:
    digest = hashlib.blake2b(json.dumps(parameters, sort_keys=True).encode(), digest_size=6).hexdigest()
    model = "".join(letter for letter in row.model if letter.isalnum() or letter == "-")
    return folder / row.library / f"{model}.{stage}.{digest}.json"


def cached_trial(row: Row, parameters: Mapping[str, Any], stage: str, folder: Path) -> dict[str, Any] | None:
    """Return what was measured of a point, or None if it has not been tried."""
    kept = _kept(row, parameters, stage, folder)
    found: dict[str, Any] | None = json.loads(kept.read_text()) if kept.exists() else None
    return found


def parameters_text(row: Row, parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in parameters.items() if name in row.grid)


def value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
