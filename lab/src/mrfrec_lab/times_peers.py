"""Measure tuned models beside `MRF()` on the cut in time of `mrfrec_lab.times`: same split, same questions.

    python -m mrfrec_lab.times_peers ../data steam-100k           # MRF, EASE, item-kNN and implicit, tuned
    python -m mrfrec_lab.times_peers ../data steam-100k --export  # files for sasrec.py
    python -m mrfrec_lab.times_peers ../data steam-100k --lists cache/sasrec/lists  # measure its lists

All are tuned on an earlier cut, of the training data alone. The rows go to cache/time.jsonl, and
`python -m mrfrec_lab.times` prints them with the others. EASE, item-kNN and implicit are tuned as
`mrfrec_lab.peers` does, each in a process and an environment of its own.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec import MRF
from mrfrec.evaluation import Split, evaluate, tune
from mrfrec_lab import peers
from mrfrec_lab.lists import measure_lists
from mrfrec_lab.peer_trials import (
    best_of,
    cached_trial,
    measure_row,
    parameters_text,
    write_split,
)
from mrfrec_lab.places import CACHE
from mrfrec_lab.times import SEQUENCE, keep, metric_of, split_of

OTHERS = ("EASE (mrfrec)", "item-kNN (mrfrec)", "ALS (implicit)", "BM25 (implicit)")
SEED = 0
MOST_MINUTES = 4.0


def others(split: Split, name: str, trials: int) -> None:
    """Append rows of models that know no times."""
    folder, metric = CACHE / "time" / name, metric_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    write_split(split, folder)
    for row in (row for row in peers.ROWS if row.name in OTHERS):
        measure_row(row, folder, [metric], trials, MOST_MINUTES)
        best = best_of(
            [x for point in row.points(trials) if (x := cached_trial(row, point, "validation", folder))],
            metric,
        )
        found = None if best is None else cached_trial(row, best["parameters"], "test", folder)
        if found is None or "failure" in found:
            print(f"{name}: {row.name} has no result: {found}")
            continue
        about = parameters_text(row, found["parameters"])
        keep(name, f"{row.name}, tuned", np.array(found["values"][metric]), split, found["seconds"], about)


def own(split: Split, name: str, trials: int) -> None:
    """Append the row of an MRF that is tuned on the earlier cut."""
    data = split.for_tuning().training
    assert data.times is not None
    found = MRF().fit(data).measured_
    measured = 0.0 if found is None else found.values["half_life"]  # microseconds
    middle = timedelta(microseconds=measured or float(data.times.max() - np.median(data.times)))
    half_lives = [f"{by * middle.total_seconds():.0f}s" for by in (4, 2, 1.4, 1, 0.7, 0.5, 0.25)]
    space: dict[str, Sequence[Any]] = {
        "half_life": [None, *half_lives], "order": [0.0, 0.1, 0.3, 1.0, 3.0],
        "recency": [1.0, 0.95, 0.9, 0.8, 0.65, 0.5],
    }  # fmt: skip
    best = tune(MRF(), split, trials=trials, space=space, metric=metric_of(name)).best.parameters
    evaluated = evaluate(MRF(**best), split, [metric_of(name)])
    about = ", ".join(f"{key}={value}" for key, value in best.items() if key != "measure")
    values = evaluated.per_user(metric_of(name))
    keep(name, "MRF, tuned", values, split, evaluated.seconds["training"], about)


def in_order(X: sp.csr_array, times: npt.NDArray[np.int64], random: np.random.Generator) -> dict[str, Any]:
    """Return the items of each row, oldest first and those of equal times in random order, and lengths."""
    lengths = np.diff(X.indptr)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((random.random(X.nnz), times, owner))
    return {"": X.indices[order].astype(np.int32), "_lengths": lengths.astype(np.int32)}


def export(split: Split, name: str, folder: Path) -> None:
    """Write what `sasrec.py` reads; the targets of the test stay here."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    for stage, of in (("validation", split.for_tuning()), ("test", split)):
        assert of.training.times is not None
        assert of.test.shown_times is not None
        parts = {
            "training": in_order(of.training.matrix, of.training.times, random),
            "shown": in_order(of.test.shown, of.test.shown_times, random),
        }
        if stage == "validation":
            targets = of.test.targets
            parts["targets"] = in_order(targets, np.zeros(targets.nnz, np.int64), random)
        arrays = {part + end: array for part, ends in parts.items() for end, array in ends.items()}
        np.savez_compressed(folder / f"{name}-{stage}.npz", items=of.training.n_items, **arrays)


def measure(split: Split, name: str, folder: Path) -> None:
    """Append the row of lists that `sasrec.py` has written."""
    file = np.load(folder / f"{name}.npz")
    about = json.loads(str(file["about"]))
    values = measure_lists(file["lists"], split, [metric_of(name)])[metric_of(name)]
    chosen = ", ".join(f"{key}={about[key]}" for key in ("size", "dropout", "epochs"))
    keep(name, "SASRec", values, split, about["seconds"], f"{chosen}, {about['device']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with one folder per data set")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--trials", type=int, default=10, help="of each model (default 10)")
    parser.add_argument("--export", action="store_true", help="write cache/sasrec for sasrec.py")
    parser.add_argument("--lists", type=Path, help="folder that sasrec.py has written to")
    options = parser.parse_args()
    for name in options.names:
        split = split_of(options.data, name)
        if options.export:
            export(split, name, CACHE / "sasrec")
        elif options.lists is not None:
            measure(split, name, options.lists)
        else:
            others(split, name, options.trials)
            if name != SEQUENCE:
                own(split, name, options.trials)


if __name__ == "__main__":
    main()
