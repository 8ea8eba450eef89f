"""Train CDAE, Mult-DAE and Mult-VAE on a GPU machine that has only numpy, PyTorch and safetensors.

    PYTHONPATH=src python3 experiments/autoencoders.py data.npz results --jobs jobs.json
    PYTHONPATH=src python3 experiments/autoencoders.py data.npz results --jobs jobs.json --only 0,3

`export` writes data.npz from a split. jobs.json is a list of {"name", "kind", "parameters"}, where kind is
MultVAE, MultDAE or CDAE. With "rank": true, the 100 best items of every test user are also written to
results/NAME.npz. Results are written to results/results.json after every job; with --only 0,3 to
results/results-0-3.json, so that several processes can share a GPU.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mrfrec.core.sparse import Rows
from mrfrec.engines.devices import chosen_device
from mrfrec.models.networks import DeviceRows, Recipe, ranked
from mrfrec.models.training import Trained, train

DEPTH = 100
COMMON = {
    "dropout": 0.5, "learning_rate": 1e-3, "batch": 500, "epochs": 200, "patience": 20, "validation": 0.05,
    "seed": 98765,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "MultVAE": {"hidden": 600, "latent": 200, "kl_cap": 0.2, "kl_epochs": 20.0, "l2": 0.0, **COMMON},
    "MultDAE": {"hidden": 200, "l2": 0.01, **COMMON},
    "CDAE": {
        "hidden": 200, "weight": 10.0, "activation": "tanh", "user_vectors": True, "l2": 0.01, **COMMON,
    },
}  # fmt: skip
"""Defaults of the models, repeated here because the rest of the package is not installed."""


def export(split: Any, path: str | Path) -> None:
    """Write a `mrfrec.evaluation.Split` of binary data."""
    from mrfrec.io.atomic import writing

    parts = {"train": split.training.matrix, "test_shown": split.test.shown}
    if split.validation is not None:
        parts |= {"validation_shown": split.validation.shown, "validation_targets": split.validation.targets}
    arrays: dict[str, Any] = {"m": np.int64(split.training.n_items)}
    for name, X in parts.items():
        if not (X.data == 1).all():
            raise ValueError(f"{name} must hold ones alone.")
        arrays |= {f"{name}_ptr": X.indptr.astype(np.int64), f"{name}_items": X.indices.astype(np.int32)}
    with writing(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, **arrays)


def rows(data: Any, name: str) -> Rows:
    items = data[f"{name}_items"]
    return Rows(data[f"{name}_ptr"].astype(np.int64), items, np.ones(len(items), np.float32), int(data["m"]))


def top_items(
    weights: dict[str, npt.NDArray[np.float32]], recipe: Recipe, shown: Rows, k: int, device: str
) -> npt.NDArray[np.int32]:
    """Return the k best unseen items of each history, best first. Ties come in any order."""
    placed = {name: torch.from_numpy(np.array(w)).to(device) for name, w in weights.items()}
    found = [block.cpu() for block in ranked(placed, recipe, DeviceRows(shown, recipe, device), k)]
    return torch.cat(found).numpy().astype(np.int32)


class Report:
    """Print progress every few seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.began, self.next = name, time.monotonic(), time.monotonic() + 5

    def __call__(self, _: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self.next:
            self.next = now + 20
            print(f"{self.name}: step {done:,} of {total:,}, {now - self.began:.0f} s", flush=True)


def figures(job: dict[str, Any], recipe: Recipe, trained: Trained) -> dict[str, Any]:
    best = trained.history[trained.best_epoch - 1]
    return {
        **job,
        "recipe": vars(recipe),
        "seconds": round(trained.seconds, 2),
        "epochs": len(trained.history),
        "best_epoch": trained.best_epoch,
        "ndcg@100": best["ndcg"],
        "history": trained.history,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--only", default="", help="positions of jobs in the list, from 0: 0,3")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--tf32", action="store_true", help="faster matrix products with 10 bits of precision"
    )
    asked = parser.parse_args(arguments)
    jobs = json.loads(asked.jobs.read_text())
    chosen = [int(place) for place in asked.only.split(",") if place] or range(len(jobs))
    if asked.tf32:
        torch.set_float32_matmul_precision("high")
    asked.out.mkdir(parents=True, exist_ok=True)
    results = asked.out / ("results" + (f"-{asked.only.replace(',', '-')}" if asked.only else "") + ".json")
    with np.load(asked.data) as data:
        training, test = rows(data, "train"), rows(data, "test_shown")
        validation = None
        if "validation_shown_ptr" in data:
            validation = rows(data, "validation_shown"), rows(data, "validation_targets")
    device = chosen_device(asked.device)
    print(f"{len(training):,} users × {training.width:,} items on {device}", flush=True)
    done = []
    for place in chosen:
        job = jobs[place]
        recipe = Recipe(kind=job["kind"], **DEFAULTS[job["kind"]] | job.get("parameters", {}))
        trained = train(training, recipe, validation=validation, device=device, progress=Report(job["name"]))
        done.append({**figures(job, recipe, trained), "tf32": asked.tf32})
        results.write_text(json.dumps(done, indent=1))
        best, last = done[-1], trained.history[-1]
        print(
            f"{job['name']}: nDCG@100 {best['ndcg@100'] or 0:.4f} in epoch {best['best_epoch']} of "
            f"{best['epochs']}, {best['seconds']:.1f} s; last loss {last['loss']:.2f}",
            flush=True,
        )
        if job.get("rank"):
            best_items = top_items(trained.weights, recipe, test, min(DEPTH, test.width), device)
            np.savez_compressed(asked.out / f"{job['name']}.npz", ranked=best_items)


if __name__ == "__main__":
    main(sys.argv[1:])
