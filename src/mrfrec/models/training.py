"""Training an autoencoder, epoch after epoch: until it gets no better, and from where it was interrupted."""

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
from mrfrec.errors import DataError, ModelFileError, ParameterError
from mrfrec.io.artifact import open_file, write_file
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.models.networks import Matrix, Recipe, Training, Weights, chosen_device, ranked, seed_of

if TYPE_CHECKING:
    from mrfrec.core.resources import Progress

__all__ = ["Trained", "train"]

_DEPTH = 100  # of the nDCG that training is stopped by
_MOST_VALIDATION_USERS = 10_000
_HIDDEN = 0.2  # of what a validation user has
_SECONDS_BETWEEN_CHECKPOINTS = 30.0


class Trained(NamedTuple):
    """The weights that predict, those of the best epoch; and how it went."""

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
    """Train a network on users × items, and keep the epoch that serves the validation people best.

    These are given, as what they show and what is to be guessed; or a share of the users, who are then not
    trained on. With a share of 0 all epochs are trained, and the last is kept.
    """
    place = chosen_device(device)
    saved = None if checkpoint is None else _Checkpoint(checkpoint, recipe, rows, validation)
    if validation is None and recipe.validation > 0:
        rows, validation = _set_aside(rows, recipe)
    with _settings(threads):
        training = Training(recipe, rows, place)
        questions = None if validation is None else _Questions(validation, recipe, place)
        began = time.perf_counter()
        run = _Run(training, questions, saved, progress)
        try:
            run.to_the_end()
        except BaseException:  # Ctrl-C above all
            run.save()
            raise
        weights = {name: w.cpu().numpy() for name, w in run.best.items()}
    seconds = time.perf_counter() - began
    if saved is not None:
        saved.remove()
    return Trained(weights, run.history, run.best_epoch, seconds)


class _Run:
    """Epoch after epoch, until the last or until it gets no better."""

    def __init__(
        self,
        training: Training,
        questions: "_Questions | None",
        saved: "_Checkpoint | None",
        progress: "Progress | None",
    ) -> None:
        self.training, self._questions, self._saved, self._progress = training, questions, saved, progress
        self.history: list[dict[str, Any]] = []
        self.best: Weights = {}
        self.best_epoch = 0
        self._last: tuple[Weights, dict[str, Any]] | None = None  # a state that is not in the checkpoint yet
        self._written = float("-inf")  # the first epoch is saved at once
        self._steps = training.recipe.epochs * training.steps_per_epoch  # if it does not stop before
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
        """Train."""
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
        """Write the state after the last whole epoch, if it is not written yet."""
        if self._saved is not None and self._last is not None:
            self._saved.write(*self._last)
            self._last, self._written = None, time.monotonic()


@contextmanager
def _settings(threads: int | None) -> Iterator[None]:
    """Gradients and a number of threads; what the caller had set comes back."""
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
    """The users to train on; and of some others, what they show and what is to be guessed."""
    able = np.flatnonzero(np.diff(rows.ptr) >= 2)
    count = min(max(round(recipe.validation * len(rows)), 1), _MOST_VALIDATION_USERS, len(able))
    if count == 0 or count == len(rows):
        raise DataError(
            f"no users can be set aside for validation: {len(able):,} of {len(rows):,} have two items or "
            "more, and somebody must be left to train on. Give validation people to fit, or train for all "
            "epochs with validation=0."
        )
    random = np.random.default_rng(seed_of(recipe, 0))
    aside = np.sort(random.choice(able, count, replace=False))
    asked = rows.take(aside)
    # The entries of each user in a random order: the first of them are hidden.
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
    """Validation people on the device, and how well they are served."""

    def __init__(self, validation: tuple[Rows, Rows], recipe: Recipe, device: str) -> None:
        asked = np.flatnonzero(np.diff(validation[1].ptr))
        if not len(asked):
            raise DataError("validation: none of these people has anything to be guessed.")
        self._shown, self._targets = (Matrix(rows.take(asked), recipe, device) for rows in validation)
        self._recipe, self._depth = recipe, min(_DEPTH, self._shown.width)
        discounts = 1 / np.log2(np.arange(2, self._depth + 2))
        ideal = np.cumsum(discounts)[np.minimum(self._targets.lengths, self._depth) - 1]
        self._discounts, self._ideal = (torch.from_numpy(a).to(device) for a in (discounts, ideal))

    def ndcg(self, weights: Mapping[str, Tensor]) -> float:
        """Mean nDCG@100: of each user the hits, 1/log2(rank + 1) each, against the best there can be."""
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
    """A file with the state after an epoch, and which training it belongs to."""

    def __init__(self, path: str, recipe: Recipe, rows: Rows, validation: tuple[Rows, Rows] | None) -> None:
        try:
            check_writable(path)
        except ParameterError as error:
            raise error.named("checkpoint") from None
        self._path = path
        self._training = {
            # How far it is to go may change on the way.
            **{name: x for name, x in asdict(recipe).items() if name not in ("epochs", "patience")},
            "data": _fingerprint(rows),
            "validation people": None if validation is None else [_fingerprint(part) for part in validation],
        }
        self.found = expanded(path).exists()

    def read(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts; refuses those of another training."""
        advice = "Give another file, or remove this one to begin anew."
        try:
            facts, stored = open_file(self._path)
            theirs = facts["training"]
            known = {name: facts[name] for name in ("steps", "history", "best_epoch")}
            arrays = {name: np.array(array.read()) for name, array in stored.items()}
        except (ModelFileError, KeyError) as error:
            reason = error if isinstance(error, ModelFileError) else f"it lacks {error}."
            raise DataError(f"checkpoint {self._path} cannot be gone on from: {reason} {advice}") from error
        differ = [name for name, value in self._training.items() if theirs.get(name) != value]
        if differ:
            parts = ", ".join(
                name
                if name in ("data", "validation people")
                else f"{name} ({theirs.get(name)!r}, here {self._training[name]!r})"
                for name in differ
            )
            raise DataError(
                f"checkpoint {self._path} is of another training; what differs: {parts}. {advice}"
            )
        return arrays, known

    def write(self, state: Weights, facts: dict[str, Any]) -> None:
        """Put a state in its place, whole or not at all."""
        arrays = {name: array.cpu().numpy() for name, array in state.items()}
        write_file(self._path, arrays, {"training": self._training, **facts})

    def remove(self) -> None:
        """When all is done."""
        with suppress(OSError):
            expanded(self._path).unlink(missing_ok=True)


def _fingerprint(rows: Rows) -> str:
    """A text that changes when any entry does."""
    digest = hashlib.blake2b(f"{len(rows)} × {rows.width}".encode(), digest_size=16)
    for array, kind in ((rows.ptr, np.int64), (rows.items, np.int32), (rows.values, np.float64)):
        for start in range(0, len(array), 1 << 20):  # a piece at a time: no second copy of the data
            digest.update(np.ascontiguousarray(array[start : start + (1 << 20)], kind).data)
    return digest.hexdigest()
