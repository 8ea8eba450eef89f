"""Train an autoencoder: epochs, early stopping, validation and checkpoints."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec.core.sparse import Rows
from mrfrec.errors import DataError, MemoryPlanError, ModelFileError, ParameterError
from mrfrec.io.artifact import open_file, write_file
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.models.networks import (
    DeviceRows,
    Recipe,
    Trainer,
    Weights,
    chosen_device,
    needed_bytes,
    ranked,
    seed_of,
)

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress

__all__ = ["Trained", "train"]

_DEPTH = 100  # places of the nDCG that decides when to stop
_MOST_VALIDATION_USERS = 10_000
_HIDDEN = 0.2  # share of each validation user's items
_SECONDS_BETWEEN_CHECKPOINTS = 30.0


class Trained(NamedTuple):
    """The weights of the best epoch and the course of the training."""

    weights: dict[str, npt.NDArray[np.float32]]
    history: list[dict[str, Any]]  # epoch, loss, ndcg
    best_epoch: int
    seconds: float


def train(
    rows: Rows,
    recipe: Recipe,
    *,
    validation: tuple[Rows, Rows] | None = None,
    device: str = "auto",
    threads: int | None = None,
    checkpoint: str | None = None,
    progress: "Progress | None" = None,
) -> Trained:
    """Train a network on users × items and keep the epoch with the best validation nDCG.

    `validation` holds shown and hidden items of validation users. If None, the share `recipe.validation` of
    the users is held out. With a share of 0 all epochs are trained and the last is kept.
    """
    place = chosen_device(device)
    saved = None if checkpoint is None else _Checkpoint(checkpoint, recipe, rows, validation)
    if validation is None and recipe.validation > 0:
        rows, validation = _set_aside(rows, recipe)
    needed = needed_bytes(recipe, (len(rows), rows.width), len(rows.items), checkpoint=saved is not None)
    with _memory_errors(needed, place), _settings(threads):
        training = Trainer(recipe, rows, place)
        questions = None if validation is None else _Questions(validation, recipe, place)
        began = time.perf_counter()
        run = _Run(training, questions, saved, progress)
        try:
            run.to_the_end()
        except BaseException:  # also Ctrl-C
            run.save()
            raise
        weights = {name: w.cpu().numpy() for name, w in run.best.items()}
    seconds = time.perf_counter() - began
    if saved is not None:
        saved.remove()
    return Trained(weights, run.history, run.best_epoch, seconds)


class _Run:
    """A training in progress."""

    def __init__(
        self,
        training: Trainer,
        questions: "_Questions | None",
        saved: "_Checkpoint | None",
        progress: "Progress | None",
    ) -> None:
        self.training, self._questions, self._saved, self._progress = training, questions, saved, progress
        self.history: list[dict[str, Any]] = []
        self.best: Weights = {}
        self.best_epoch = 0
        self._last: tuple[Weights, dict[str, Any]] | None = None  # state not yet in the checkpoint
        self._written = float("-inf")  # the first epoch is saved at once
        self._steps = training.recipe.epochs * training.steps_per_epoch  # unless it stops early
        if saved is not None and saved.found:
            arrays, facts = saved.read()
            training.restore(arrays, facts["steps"])
            self.history, self.best_epoch = facts["history"], facts["best_epoch"]
            self.best = {
                name.removeprefix("best."): torch.from_numpy(array).to(training.device)
                for name, array in arrays.items()
                if name.startswith("best.")
            }

    def to_the_end(self) -> None:
        """Train until the last epoch or until there is no improvement."""
        self._report(self.training.steps)
        while not self._done():
            epoch = len(self.history) + 1
            loss = self.training.epoch(epoch, self._report)
            ndcg = None if self._questions is None else self._questions.ndcg(self.training.weights)
            best = self.history[self.best_epoch - 1]["ndcg"] if self.best_epoch else None
            if best is None or ndcg is None or ndcg > best:
                self.best, self.best_epoch = self.training.predicting(), epoch
            self.history.append({"epoch": epoch, "loss": loss, "ndcg": ndcg})
            if self._saved is not None:
                facts = {
                    "steps": self.training.steps,
                    "history": [*self.history],
                    "best_epoch": self.best_epoch,
                }
                best_weights = {f"best.{name}": w for name, w in self.best.items()}
                self._last = self.training.state() | best_weights, facts
                if time.monotonic() - self._written > _SECONDS_BETWEEN_CHECKPOINTS:
                    self.save()
            self._report(self.training.steps)
        self._report(self._steps)

    def _done(self) -> bool:
        epoch, patience = len(self.history), self.training.recipe.patience
        tired = self._questions is not None and patience is not None and epoch - self.best_epoch >= patience
        return epoch >= self.training.recipe.epochs or (epoch > 0 and tired)

    def _report(self, steps: int) -> None:
        if self._progress is not None:
            self._progress("train", steps, self._steps)

    def save(self) -> None:
        """Write the state after the last complete epoch, unless already written."""
        if self._saved is not None and self._last is not None:
            self._saved.write(*self._last)
            self._last, self._written = None, time.monotonic()


@contextmanager
def _memory_errors(needed: int, device: str) -> Iterator[None]:
    """Raise `MemoryPlanError` where PyTorch runs out of memory."""
    try:
        yield
    except RuntimeError as error:
        on_device = isinstance(error, torch.cuda.OutOfMemoryError)
        if not on_device and "can't allocate memory" not in str(error):
            raise
        from mrfrec.core.memory import human_bytes

        limit = torch.cuda.mem_get_info(device)[0] if on_device and torch.cuda.is_available() else 0
        advice = 'a smaller batch or hidden, or device="cpu"' if on_device else "a smaller batch or hidden"
        raise MemoryPlanError(
            f"training ran out of memory on {device}: it needs about {human_bytes(needed)}. Use {advice}.",
            needed=needed,
            limit=limit,
        ) from error


@contextmanager
def _settings(threads: int | None) -> Iterator[None]:
    """Enable gradients and set the number of threads; restore the caller's settings afterwards."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


# ── validation ────────────────────────────────────────────────────────────────────────────────────


def _set_aside(rows: Rows, recipe: Recipe) -> tuple[Rows, tuple[Rows, Rows]]:
    """Hold out some users: return the others, and the shown and hidden items of those held out."""
    able = np.flatnonzero(np.diff(rows.ptr) >= 2)
    count = min(max(round(recipe.validation * len(rows)), 1), _MOST_VALIDATION_USERS, len(able))
    if count == 0 or count == len(rows):
        raise DataError(
            f"no users can be held out for validation: {len(able):,} of {len(rows):,} have two items or "
            "more, and at least one user must remain for training. Pass validation users to fit, or train "
            "for all epochs with validation=0."
        )
    random = np.random.default_rng(seed_of(recipe, 0))
    aside = np.sort(random.choice(able, count, replace=False))
    asked = rows.take(aside)
    # Shuffle the entries of each user and hide the first ones.
    lengths = np.diff(asked.ptr)
    most = np.maximum((_HIDDEN * lengths).astype(np.int64), 1)
    owner = np.repeat(np.arange(count), lengths)
    shuffled = np.lexsort((random.random(len(owner)), owner))
    hidden = np.zeros(len(owner), np.bool_)
    hidden[shuffled] = np.arange(len(owner)) - asked.ptr[owner] < most[owner]
    return rows.take(np.setdiff1d(np.arange(len(rows)), aside)), (_only(asked, ~hidden), _only(asked, hidden))


def _only(rows: Rows, keep: npt.NDArray[np.bool_]) -> Rows:
    ptr = np.concatenate([[0], np.cumsum(keep)])[rows.ptr]
    return Rows(ptr, rows.items[keep], rows.values[keep], rows.width)


class _Questions:
    """Validation users on the device."""

    def __init__(self, validation: tuple[Rows, Rows], recipe: Recipe, device: str) -> None:
        asked = np.flatnonzero(np.diff(validation[1].ptr))
        if not len(asked):
            raise DataError("validation: no user has a hidden item.")
        self._shown, self._targets = (DeviceRows(rows.take(asked), recipe, device) for rows in validation)
        self._recipe, self._depth = recipe, min(_DEPTH, self._shown.width)
        discounts = 1 / np.log2(np.arange(2, self._depth + 2))
        ideal = np.cumsum(discounts)[np.minimum(self._targets.lengths, self._depth) - 1]
        self._discounts, self._ideal = (torch.from_numpy(a).to(device) for a in (discounts, ideal))

    def ndcg(self, weights: Mapping[str, Tensor]) -> float:
        """Return the mean nDCG@100."""
        start = 0
        total = torch.zeros((), dtype=torch.float64, device=self._ideal.device)
        targets = self._targets.batches(np.arange(len(self._targets)), self._recipe.batch)
        rankings = ranked(weights, self._recipe, self._shown, self._depth)
        for found, wanted in zip(rankings, targets, strict=True):
            shape = len(found), self._shown.width
            is_target = torch.zeros(shape, dtype=torch.bool, device=found.device)
            is_target.view(-1).index_fill_(0, wanted.places, True)
            gains = is_target.gather(1, found).double() @ self._discounts
            total += (gains / self._ideal[start : start + len(found)]).sum()
            start += len(found)
        return float(total) / start


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


class _Checkpoint:
    """A file with the state after an epoch and the training it belongs to."""

    def __init__(self, path: str, recipe: Recipe, rows: Rows, validation: tuple[Rows, Rows] | None) -> None:
        try:
            check_writable(path)
        except ParameterError as error:
            raise error.named("checkpoint") from None
        self._path = path
        self._training = {
            # The length of the training may change.
            **{name: x for name, x in asdict(recipe).items() if name not in ("epochs", "patience")},
            "data": _fingerprint(rows),
            "validation users": None if validation is None else [_fingerprint(part) for part in validation],
        }
        self.found = expanded(path).exists()

    def read(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return arrays and facts; refuse those of another training."""
        advice = "Pass another file, or remove this one to start again."
        try:
            facts, stored = open_file(self._path)
            theirs = facts["training"]
            known = {name: facts[name] for name in ("steps", "history", "best_epoch")}
            arrays = {name: np.array(array.read()) for name, array in stored.items()}
        except (ModelFileError, KeyError) as error:
            reason = error if isinstance(error, ModelFileError) else f"it lacks {error}."
            raise DataError(f"checkpoint {self._path} cannot be resumed: {reason} {advice}") from error
        differ = [name for name, value in self._training.items() if theirs.get(name) != value]
        if differ:
            parts = ", ".join(
                name
                if name in ("data", "validation users")
                else f"{name} ({theirs.get(name)!r}, here {self._training[name]!r})"
                for name in differ
            )
            raise DataError(
                f"checkpoint {self._path} belongs to another training; these differ: {parts}. {advice}"
            )
        return arrays, known

    def write(self, state: Weights, facts: dict[str, Any]) -> None:
        """Write a state atomically."""
        arrays = {name: array.cpu().numpy() for name, array in state.items()}
        write_file(self._path, arrays, {"training": self._training, **facts})

    def remove(self) -> None:
        with suppress(OSError):
            expanded(self._path).unlink(missing_ok=True)


def _fingerprint(rows: Rows) -> str:
    """Return a hash of all entries."""
    digest = hashlib.blake2b(f"{len(rows)} × {rows.width}".encode(), digest_size=16)
    for array, kind in ((rows.ptr, np.int64), (rows.items, np.int32), (rows.values, np.float64)):
        for start in range(0, len(array), 1 << 20):  # in chunks, to avoid a copy of the data
            digest.update(np.ascontiguousarray(array[start : start + (1 << 20)], kind).data)
    return digest.hexdigest()
