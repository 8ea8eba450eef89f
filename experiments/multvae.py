"""Tune Mult-VAE on a machine that has only numpy, PyTorch and safetensors.

    PYTHONPATH=src python3 experiments/multvae.py gowalla.npz results.json --seconds 450

Starting from the defaults, one parameter after another takes the value that is best on hidden training pairs.
After each trial the model is trained again on all training pairs, for as many epochs as were best, and both
accuracies are printed: Recall@20 over all targets and nDCG@20. No choice depends on the test pairs.

`export` writes the data of a split. For each of `vtrain` (training without the hidden pairs), `vshown`,
`vtargets`, `train`, `tshown` and `ttargets` it has the arrays NAME_ptr, NAME_idx and NAME_shape of a binary
CSR matrix, users × items.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrfrec.core.sparse import Rows
from mrfrec.engines.devices import chosen_device
from mrfrec.models.networks import DeviceRows, Recipe, ranked
from mrfrec.models.training import Trained, train

K = 20
START = Recipe(
    kind="MultVAE", hidden=600, latent=200, dropout=0.5, l2=0.0, learning_rate=1e-3, batch=500, epochs=100,
    patience=10, validation=0.0, seed=98765, kl_cap=0.2, kl_epochs=20.0,
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "kl_cap": (0.5, 1.0),
    "l2": (0.01, 0.1),
    "dropout": (0.3, 0.7),
    "kl_epochs": (5.0, 50.0),
}


def export(split: Any, path: str | Path) -> None:
    """Write a `mrfrec.evaluation.Split` whose test users are training users, with pairs to tune on."""
    from mrfrec.io.atomic import writing

    tuned = split.for_tuning()
    parts = {
        "train": split.training.matrix, "tshown": split.test.shown, "ttargets": split.test.targets,
        "vtrain": tuned.training.matrix, "vshown": tuned.test.shown, "vtargets": tuned.test.targets,
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    for name, X in parts.items():
        arrays |= {f"{name}_ptr": X.indptr, f"{name}_idx": X.indices, f"{name}_shape": X.shape}
    with writing(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, **arrays)


def rows(data: Any, name: str) -> Rows:
    ptr, items = data[f"{name}_ptr"].astype(np.int64), data[f"{name}_idx"].astype(np.int32)
    return Rows(ptr, items, np.ones(len(items), np.float32), int(data[f"{name}_shape"][1]))


def measure(trained: Trained, recipe: Recipe, shown: Rows, targets: Rows, device: str) -> dict[str, float]:
    """Return the mean Recall@20 over all targets and nDCG@20 of the users with targets."""
    asked = np.flatnonzero(np.diff(targets.ptr))
    placed = {name: torch.from_numpy(np.array(w)).to(device) for name, w in trained.weights.items()}
    batches = ranked(placed, recipe, DeviceRows(shown.take(asked), recipe, device), K)
    best = torch.cat([batch.cpu() for batch in batches]).numpy()
    user = np.repeat(np.arange(len(targets)), np.diff(targets.ptr))
    pairs = user * targets.width + targets.items
    hits = np.isin(asked[:, None] * targets.width + best, pairs)
    counts = np.diff(targets.ptr)[asked]
    discounts = 1 / np.log2(np.arange(2, K + 2))
    ideal = np.cumsum(discounts)[np.minimum(counts, K) - 1]
    return {
        "recall": float((hits.sum(axis=1) / counts).mean()),
        "ndcg": float((hits @ discounts / ideal).mean()),
    }


def trial(recipe: Recipe, parts: dict[str, Rows], device: str) -> dict[str, Any]:
    """Train with early stopping on the hidden pairs, then on all pairs; measure both."""
    began = time.perf_counter()
    hidden = parts["vshown"], parts["vtargets"]
    first = train(parts["vtrain"], recipe, validation=hidden, device=device)
    final = replace(recipe, epochs=first.best_epoch)
    second = train(parts["train"], final, device=device)
    return {
        "recipe": asdict(recipe),
        "epochs": len(first.history),
        "best_epoch": first.best_epoch,
        "validation": measure(first, recipe, *hidden, device),
        "test": measure(second, final, parts["tshown"], parts["ttargets"], device),
        "training_seconds": round(second.seconds, 2),
        "seconds": round(time.perf_counter() - began, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, help="JSON file with all trials, written after each")
    parser.add_argument("--seconds", type=float, default=450.0, help="begin no trial after this time")
    parser.add_argument("--set", default="{}", help='other values to start from, as JSON: {"epochs": 5}')
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    with np.load(asked.data) as data:
        names = ("vtrain", "vshown", "vtargets", "train", "tshown", "ttargets")
        parts = {name: rows(data, name) for name in names}
    device, end = chosen_device(asked.device), time.monotonic() + asked.seconds
    best = replace(START, **json.loads(asked.set))
    done: list[dict[str, Any]] = []

    def tried(recipe: Recipe) -> float:
        found = trial(recipe, parts, device)
        done.append(found)
        asked.out.write_text(json.dumps(done, indent=1))
        accuracy = ", ".join(
            f"{of} {found[of]['recall']:.4f} / {found[of]['ndcg']:.4f}" for of in ("validation", "test")
        )
        varied = " ".join(f"{name}={getattr(recipe, name):g}" for name in AXES)
        epochs = f"epoch {found['best_epoch']} of {found['epochs']}"
        print(f"{varied}: {accuracy}, {epochs}, {found['seconds']:.0f} s", flush=True)
        return float(found["validation"]["ndcg"])

    print(f"{len(parts['train']):,} users × {parts['train'].width:,} items on {device}", flush=True)
    value = tried(best)
    for name, values in AXES.items():
        start = best
        for x in values:
            if time.monotonic() < end and x != getattr(start, name):
                recipe = replace(start, **{name: x})
                if (found := tried(recipe)) > value:
                    best, value = recipe, found
    print("best on validation: " + " ".join(f"{name}={getattr(best, name):g}" for name in AXES), flush=True)


if __name__ == "__main__":
    main()
