"""Tune CDAE, Mult-DAE and Mult-VAE on a machine with a GPU that has only numpy, PyTorch and safetensors.

    PYTHONPATH=src:lab/src python3 -m mrfrec_lab.autoencoders gowalla.npz out gowalla MultVAE --seconds 300

`export` writes the data of a split. The search moves one parameter after another along its ladder, down and
up, as long as the validation nDCG@100 grows. It ends where nothing is better, or after `--trials` or
`--search-seconds`. Trials that are far behind the best one at the same epoch are given up.
out/gowalla-MultVAE.json has all trials; with that file in place the search goes on from there.

out/gowalla-MultVAE.npz has the 100 best items of every test user. Where validation pairs were hidden from
the training data, the best trial is trained again on all of it, for as many epochs as were best. Otherwise
the search compares the first epochs only, and its best trial is trained once more until `--seconds` are over.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mrfrec.errors import NumericalError
from mrfrec.extending import Rows
from mrfrec_lab.models.autoencoders import CDAE, Autoencoder, MultDAE, MultVAE
from mrfrec_lab.models.networks import DeviceRows, needed_bytes, ranked
from mrfrec_lab.models.training import chosen_device, train

KINDS: dict[str, type[Autoencoder]] = {"MultVAE": MultVAE, "MultDAE": MultDAE, "CDAE": CDAE}
DEFAULTS: dict[str, dict[str, Any]] = {kind: model().parameters for kind, model in KINDS.items()}

LADDERS: dict[str, tuple[Any, ...]] = {
    "kl_cap": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0),
    "kl_epochs": (0.0, 5.0, 20.0, 50.0, 100.0),
    "weight": (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    "dropout": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "l2": (0.0, 0.0001, 0.001, 0.01, 0.03, 0.1, 0.3),
    "hidden": (100, 200, 400, 600, 1000, 1500, 2000, 3000, 4000, 6000),
    "latent": (100, 200, 400, 600),
    "learning_rate": (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004),
    "activation": ("tanh", "sigmoid"),
    "user_vectors": (False, True),
}
"""Values of each parameter; a search moves along them."""

SEARCHES: dict[str, dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "mtg-players": {
        "MultVAE": (
            {"kl_cap": 0.05, "dropout": 0.3, "epochs": 60},
            ("latent+", "learning_rate+", "kl_cap", "hidden+", "dropout", "l2+"),
        ),
        "MultDAE": (
            {"hidden": 1000, "l2": 0.001, "dropout": 0.4, "epochs": 60},
            ("learning_rate+", "dropout", "hidden+", "l2"),
        ),
        "CDAE": (
            {"weight": 0.5, "user_vectors": False, "l2": 0.001, "hidden": 400, "epochs": 60},
            ("hidden+", "dropout", "learning_rate", "weight", "l2", "activation+", "user_vectors+"),
        ),
    },
    "gowalla": {
        "MultVAE": (
            {"kl_cap": 1.0, "kl_epochs": 5.0},
            ("kl_cap", "dropout+", "learning_rate", "hidden+", "latent+", "kl_epochs", "l2+"),
        ),
        "MultDAE": ({"l2": 0.01}, ("dropout+", "l2+", "hidden", "learning_rate+")),
        "CDAE": (
            {"weight": 50.0, "user_vectors": False, "activation": "sigmoid"},
            ("weight", "dropout", "l2", "hidden+", "learning_rate+", "activation", "user_vectors+"),
        ),
    },
}
SEARCHES["yelp2018"] = SEARCHES["gowalla"]
"""For each data set and model, the parameters to start from and the order in which others are tried:
"hidden+" begins with larger values, "hidden" with smaller ones."""

_BEHIND = {0.3: 0.02, 0.6: 0.01}
"""A trial ends after this share of its epochs where it is this far behind the best one at the same epoch."""

DEPTH = 100  # items kept of each test user
_PATIENCE = 40  # where pairs were hidden, a trial ends after so many epochs without a better one
_LONG = 10  # on validation users, the best trial is trained once more for so many times the epochs


class Course(NamedTuple):
    """The weights of the best epoch, its number and the seconds of a training."""

    weights: dict[str, npt.NDArray[np.float32]]
    best_epoch: int
    seconds: float


def export(split: Any, path: str | Path) -> None:
    """Write a `mrfrec.evaluation.Split` of binary data, with what to tune on."""
    from mrfrec_lab.places import writing

    tuned = split.for_tuning()
    parts = {"train": split.training.matrix}
    parts |= {"test_shown": split.test.shown, "test_targets": split.test.targets}
    parts |= {"tuning_shown": tuned.test.shown, "tuning_targets": tuned.test.targets}
    if tuned.training is not split.training:
        parts["tuning_train"] = tuned.training.matrix
    arrays: dict[str, Any] = {"m": np.int64(split.training.n_items)}
    for name, X in parts.items():
        if not (X.data == 1).all():
            raise ValueError(f"{name} must hold ones alone.")
        arrays |= {f"{name}_lengths": np.diff(X.indptr).astype(np.int32), f"{name}_items": _small(X.indices)}
    with writing(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _small(items: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return items.astype(np.uint16 if items.max(initial=0) < 2**16 else np.int32)


def rows(data: Any, name: str) -> Rows:
    """Return a matrix that `export` wrote."""
    items = data[f"{name}_items"].astype(np.int32)
    ptr = np.concatenate([[0], np.cumsum(data[f"{name}_lengths"], dtype=np.int64)])
    return Rows(ptr, items, np.ones(len(items), np.float32), int(data["m"]))


def top_items(
    weights: dict[str, npt.NDArray[np.float32]], recipe: Autoencoder, shown: Rows, k: int, device: str
) -> npt.NDArray[np.int32]:
    """Return the k best unseen items of each history, best first. Ties come in any order."""
    placed = {name: torch.from_numpy(np.array(w)).to(device) for name, w in weights.items()}
    found = [block.cpu() for block in ranked(placed, recipe, DeviceRows(shown, recipe, device), k)]
    return torch.cat(found).numpy().astype(np.int32)


def search(
    start: Mapping[str, Any], order: Sequence[str], tried: Callable[[dict[str, Any]], float | None]
) -> dict[str, Any]:
    """Move one parameter after another along its ladder while the value grows; return the best parameters.

    `tried` returns the value of some parameters, or None once nothing more may be tried.
    """
    best = dict(start)
    highest = tried(best)
    moved = highest is not None
    while moved:
        moved = False
        for name, upwards in ((axis.rstrip("+"), axis.endswith("+")) for axis in order):
            ladder = LADDERS[name]
            for step in (1, -1) if upwards else (-1, 1):
                went = False
                while 0 <= (place := ladder.index(best[name]) + step) < len(ladder):
                    value = tried(other := best | {name: ladder[place]})
                    if value is None or highest is None:
                        return best
                    if value <= highest:
                        break
                    best, highest, moved, went = other, value, True, True
                if went:
                    break
    return best


class Study:
    """The trials of one model on one data set, kept in a file."""

    def __init__(self, path: Path, kind: str, epochs: int, patience: float) -> None:
        self.path, self.kind, self.epochs, self.patience = path, kind, epochs, patience
        self.trials: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def recipe(self, parameters: Mapping[str, Any]) -> Autoencoder:
        settings = DEFAULTS[self.kind] | dict(parameters) | {"patience": None, "validation": 0.0}
        return KINDS[self.kind](**settings)

    def value(self, trial: dict[str, Any], epoch: int | None = None) -> float:
        """Return the best nDCG of a trial up to an epoch: by default, up to the last one of the search."""
        upto = min(epoch or self.epochs, self.epochs)
        return max((h["ndcg"] for h in trial["history"] if h["epoch"] <= upto), default=0.0)

    def known(self, parameters: Mapping[str, Any]) -> float | None:
        wanted = self.recipe(parameters).parameters
        same = (t for t in self.trials if t["recipe"] | {"epochs": 0} == wanted | {"epochs": 0})
        return max((self.value(t) for t in same), default=None)

    def best(self) -> dict[str, Any] | None:
        return max(self.trials, key=self.value, default=None)

    def most_accurate(self) -> dict[str, Any] | None:
        whole = (t for t in self.trials if not t["ended"])
        return max(whole, key=lambda t: t["ndcg@100"], default=None)

    def is_enough(self, history: list[dict[str, Any]], end: float) -> bool:
        """Return whether a trial ends because the time is over or because it grows no more."""
        top = max(history, key=lambda h: h["ndcg"])
        return time.monotonic() > end or history[-1]["epoch"] - top["epoch"] >= self.patience

    def is_behind(self, history: list[dict[str, Any]]) -> bool:
        """Return whether a trial is given up, far behind the best one."""
        best, here = self.best(), history[-1]["epoch"]
        margin = min((m for share, m in _BEHIND.items() if here >= share * self.epochs), default=None)
        if best is None or margin is None or here > self.epochs:
            return False
        return bool(max(h["ndcg"] for h in history) < (1 - margin) * self.value(best, here))

    def add(
        self, recipe: Autoencoder, history: list[dict[str, Any]], seconds: float, *, ended: bool
    ) -> dict[str, Any]:
        top = max(history, key=lambda h: h["ndcg"])
        trial = {
            "kind": self.kind,
            "recipe": recipe.parameters,
            "ndcg@100": top["ndcg"],
            "best_epoch": top["epoch"],
            "epochs": history[-1]["epoch"],
            "ended": ended,  # given up, far behind the best
            "seconds": round(seconds, 2),
            "history": history,
        }
        self.trials.append(trial)
        self.path.write_text(json.dumps(self.trials))
        return trial


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", choices=SEARCHES)
    parser.add_argument("kind", choices=DEFAULTS)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=500.0, help="no training goes on after this time")
    parser.add_argument("--search-seconds", type=float, default=500.0, help="no trial begins after this time")
    parser.add_argument("--set", default="{}", help='other values to start from, as JSON: {"epochs": 5}')
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("high")
    device = chosen_device(asked.device)
    asked.out.mkdir(parents=True, exist_ok=True)
    stem = f"{asked.name}-{asked.kind}"
    first, order = SEARCHES[asked.name][asked.kind]
    start = DEFAULTS[asked.kind] | first | json.loads(asked.set)
    began = time.monotonic()
    end = began + asked.seconds
    with np.load(asked.data) as data:
        hidden = "tuning_train_items" in data
        training = rows(data, "train")
        tuned_on = rows(data, "tuning_train") if hidden else training
        test = rows(data, "test_shown")
        validation = rows(data, "tuning_shown"), rows(data, "tuning_targets")
    study = Study(asked.out / f"{stem}.json", asked.kind, start["epochs"], _PATIENCE if hidden else math.inf)

    def keep(course: Course, recipe: Autoencoder) -> None:
        torch.set_float32_matmul_precision("highest")
        items = top_items(course.weights, recipe, test, min(DEPTH, training.width), device)
        torch.set_float32_matmul_precision("high")
        facts = {
            "kind": asked.kind, "recipe": recipe.parameters, "seconds": round(course.seconds, 2),
            "best_epoch": course.best_epoch, "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        }  # fmt: skip
        np.savez_compressed(asked.out / f"{stem}.npz", ranked=_small(items), facts=json.dumps(facts))

    def trained(parameters: Mapping[str, Any]) -> float:
        recipe, before = study.recipe(parameters), study.most_accurate()
        history = [{"epoch": 0, "loss": math.inf, "ndcg": 0.0}]  # of a training that diverges at once
        since = time.perf_counter()

        def ends(so_far: list[dict[str, Any]]) -> bool:
            history[:] = so_far
            return study.is_enough(so_far, end) or study.is_behind(so_far)

        course = None
        with suppress(NumericalError):
            weights, _, best_epoch = train(
                recipe, tuned_on, validation, device, needed_bytes(recipe, tuned_on), is_enough=ends
            )
            if not study.is_behind(history):
                course = Course(weights, best_epoch, time.perf_counter() - since)
        trial = study.add(recipe, history, time.perf_counter() - since, ended=course is None)
        if course is not None and not hidden and (before is None or trial["ndcg@100"] > before["ndcg@100"]):
            keep(course, recipe)
        changed = {k: v for k, v in parameters.items() if v != start[k]}
        print(
            f"{stem} {len(study.trials)}: {trial['ndcg@100']:.4f} in epoch {trial['best_epoch']} of "
            f"{trial['epochs']}{', given up' * trial['ended']}, {trial['seconds']} s {changed}",
            flush=True,
        )
        if device != "cpu":
            torch.cuda.empty_cache()
        return study.value(trial)

    def tried(parameters: dict[str, Any]) -> float | None:
        if (value := study.known(parameters)) is not None:
            return value
        over = time.monotonic() > began + asked.search_seconds
        return None if over or len(study.trials) >= asked.trials else trained(parameters)

    search(start, order, tried)
    if (chosen := study.best()) and not hidden and time.monotonic() < end:  # the best, for longer
        trained({name: chosen["recipe"][name] for name in start} | {"epochs": _LONG * study.epochs})
    if hidden and (chosen := study.most_accurate()):
        final = study.recipe(chosen["recipe"] | {"epochs": chosen["best_epoch"]})
        since = time.perf_counter()
        weights, _, best_epoch = train(final, training, None, device, needed_bytes(final, training))
        keep(Course(weights, best_epoch, time.perf_counter() - since), final)


if __name__ == "__main__":
    main()
