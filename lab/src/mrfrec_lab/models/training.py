"""Train an autoencoder: epochs, early stopping and validation."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec import DataError, MemoryPlanError, ParameterError
from mrfrec.extending import Rows
from mrfrec_lab.models.networks import DeviceRows, Recipe, Trainer, Weights, ranked, seed_of
from mrfrec_lab.places import Progress

_DEPTH = 100  # places of the nDCG that decides when to stop
_MOST_VALIDATION_USERS = 10_000
_HIDDEN = 0.2  # share of each validation user's items


Trained = tuple[dict[str, npt.NDArray[np.float32]], list[dict[str, Any]], int]
"""The weights of the best epoch; epoch, loss and ndcg of each epoch; and the number of the best."""


def train(
    model: Recipe,
    rows: Rows,
    validation: tuple[Rows, Rows] | None,
    device: str,
    needed: int,
    progress: Progress | None = None,
    is_enough: Callable[[list[dict[str, Any]]], bool] = lambda _: False,
) -> Trained:
    """Train a network on users × items and keep the epoch with the best validation nDCG.

    `validation` holds shown and hidden items of validation users. If None, the share `model.validation` of
    the users is held out. With a share of 0 all epochs are trained and the last is kept. `needed` is about
    how many bytes it takes. `is_enough` gets the history after each epoch and may end the training.
    """
    if validation is None and model.validation > 0:
        rows, validation = _set_aside(rows, model)
    with _settings(model.threads or len(os.sched_getaffinity(0)), device, needed):
        trainer = Trainer(model, rows, device)
        held_out = None if validation is None else _ValidationUsers(validation, model, device)
        patience = model.epochs if held_out is None else model.patience or model.epochs
        steps = model.epochs * trainer.steps_per_epoch  # unless it stops early

        def report(done: int) -> None:
            if progress is not None:
                progress("training", done, steps)

        history: list[dict[str, Any]] = []
        best: Weights = {}
        best_epoch = 0
        report(0)
        while (epoch := len(history) + 1) <= model.epochs and epoch - 1 - best_epoch < patience:
            loss = trainer.epoch(epoch, report)
            ndcg = None if held_out is None else held_out.ndcg(trainer.weights)
            before = history[best_epoch - 1]["ndcg"] if best_epoch else None
            if before is None or ndcg is None or ndcg > before:
                best, best_epoch = trainer.predicting(), epoch
            history.append({"epoch": epoch, "loss": loss, "ndcg": ndcg})
            if is_enough(history):
                break
        report(steps)
        weights = {name: w.cpu().numpy() for name, w in best.items()}
    return weights, history, best_epoch


@contextmanager
def _settings(threads: int, device: str, needed: int) -> Iterator[None]:
    """Enable gradients and set the number of threads; restore the caller's settings afterwards.

    Where a GPU runs out of memory, raise `MemoryPlanError`.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(
            f"training ran out of memory on {device}: it needs about {needed / 1e9:.1f} GB. Use a smaller "
            'batch or hidden, or device="cpu".',
            needed=needed,
            limit=torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else 0,
        ) from error
    finally:
        torch.set_num_threads(before)


def _set_aside(rows: Rows, model: Recipe) -> tuple[Rows, tuple[Rows, Rows]]:
    """Hold out some users: return the others, and the shown and hidden items of those held out."""
    able = np.flatnonzero(np.diff(rows.ptr) >= 2)
    count = min(max(round(model.validation * len(rows)), 1), _MOST_VALIDATION_USERS, len(able))
    if count == 0 or count == len(rows):
        raise DataError(
            f"no users can be held out for validation: {len(able):,} of {len(rows):,} have two items or "
            "more, and at least one user must remain for training. Pass validation users to fit, or train "
            "for all epochs with validation=0."
        )
    random = np.random.default_rng(seed_of(model, 0))
    aside = np.sort(random.choice(able, count, replace=False))
    held_out = rows.take(aside)
    # Shuffle the entries of each user and hide the first ones.
    lengths = np.diff(held_out.ptr)
    most = np.maximum((_HIDDEN * lengths).astype(np.int64), 1)
    owner = np.repeat(np.arange(count), lengths)
    shuffled = np.lexsort((random.random(len(owner)), owner))
    hidden = np.zeros(len(owner), np.bool_)
    hidden[shuffled] = np.arange(len(owner)) - held_out.ptr[owner] < most[owner]
    others = rows.take(np.setdiff1d(np.arange(len(rows)), aside))
    return others, (_only(held_out, ~hidden), _only(held_out, hidden))


def _only(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    """Return the rows with these of their entries."""
    ptr = np.concatenate([[0], np.cumsum(chosen)])[rows.ptr]
    return Rows(ptr, rows.items[chosen], rows.values[chosen], rows.width)


def chosen_device(name: str) -> str:
    """Return the device that a name stands for; refuse one that is not there."""
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if has_gpu else "cpu"
    if name != "cpu" and not (has_gpu and int(name.partition(":")[2] or 0) < torch.cuda.device_count()):
        raise ParameterError("device", '"cpu" or "auto" where PyTorch finds no such GPU', name)
    return name


class _ValidationUsers:
    """Validation users on the device."""

    def __init__(self, validation: tuple[Rows, Rows], model: Recipe, device: str) -> None:
        users = np.flatnonzero(np.diff(validation[1].ptr))
        if not len(users):
            raise DataError("validation: no user has a hidden item.")
        self._shown, self._targets = (DeviceRows(rows.take(users), model, device) for rows in validation)
        self._model = model
        self._depth = min(_DEPTH, self._shown.width)
        discounts = 1.0 / np.log2(np.arange(2, self._depth + 2))
        best = np.append(0.0, np.cumsum(discounts))  # of a perfect list, by the number of targets
        gains = discounts, best[np.minimum(self._targets.lengths, self._depth)]
        self._discounts, self._ideal = (torch.from_numpy(each).to(device) for each in gains)

    def ndcg(self, weights: Mapping[str, Tensor]) -> float:
        """Return the mean nDCG@100."""
        start = 0
        total = torch.zeros((), dtype=torch.float64, device=self._ideal.device)
        targets = self._targets.batches(np.arange(len(self._targets)), self._model.batch)
        rankings = ranked(weights, self._model, self._shown, self._depth)
        for lists, hidden in zip(rankings, targets, strict=True):
            shape = len(lists), self._shown.width
            is_target = torch.zeros(shape, dtype=torch.bool, device=lists.device)
            is_target.view(-1).index_fill_(0, hidden.places, True)
            gains = is_target.gather(1, lists).double() @ self._discounts
            total += (gains / self._ideal[start : start + len(lists)]).sum()
            start += len(lists)
        return float(total) / start
