"""Autoencoders of histories, trained step by step: CDAE, Mult-DAE, Mult-VAE. Arrays in, arrays out.

Liang, Krishnan, Hoffman, Jebara, "Variational Autoencoders for Collaborative Filtering", WWW 2018; and Wu,
DuBois, Zheng, Ester, "Collaborative Denoising Auto-Encoders for Top-N Recommender Systems", WSDM 2016.

Of a batch of users only the stored entries are ever held, and one dense thing: the outputs, users × items.
The step waits for nothing from the device: what it must know beforehand, it knows from the row starts.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from mrfrec.core.sparse import Rows
from mrfrec.errors import DataError, ModelFileError, NumericalError, ParameterError
from mrfrec.io.artifact import open_file, write_file
from mrfrec.io.atomic import check_writable, expanded

if TYPE_CHECKING:
    from mrfrec.core.resources import Progress

__all__ = ["Recipe", "Trained", "chosen_device", "needed_bytes", "top_items", "train"]

_DEPTH = 100  # of the nDCG that training is stopped by
_MOST_VALIDATION_USERS = 10_000
_HIDDEN = 0.2  # of what a validation user has
_REPORTS = 100  # of progress in an epoch, at most
_SECONDS_BETWEEN_CHECKPOINTS = 30.0

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how: the parameters of the models, by the same names."""

    kind: Literal["CDAE", "MultDAE", "MultVAE"]
    hidden: int
    dropout: float
    l2: float
    learning_rate: float
    batch: int
    epochs: int
    patience: int | None
    validation: float
    seed: int
    latent: int = 0  # Mult-VAE
    kl_cap: float = 0.0
    kl_steps: int = 0
    weight: float = 0.0  # CDAE
    activation: Literal["sigmoid", "tanh"] = "tanh"
    user_vectors: bool = False

    def kl_weight(self, step: int) -> float:
        """β of Liang et al. §2.2.2, before this step (from 0): it grows by 1/kl_steps up to its cap."""
        return min(self.kl_cap, step / self.kl_steps) if self.kl_steps else self.kl_cap

    def shapes(self, n: int, m: int) -> dict[str, tuple[int, ...]]:
        """Of every weight, for n training users and m items."""
        h = self.hidden
        shapes: dict[str, tuple[int, ...]] = {"first": (m, h), "first.bias": (h,)}
        if self.kind == "MultVAE":
            # Mean and log-variance of z side by side.
            shapes |= {"encoder": (h, 2 * self.latent), "encoder.bias": (2 * self.latent,)}
            shapes |= {"decoder": (self.latent, h), "decoder.bias": (h,)}
        if self.user_vectors:
            shapes["users"] = (n, h)
        return shapes | {"vectors": (m, h), "bias": (m,)}


class Trained(NamedTuple):
    """The weights that predict, those of the best epoch; and how it went."""

    weights: dict[str, npt.NDArray[np.float32]]
    history: list[dict[str, Any]]  # epoch, loss, ndcg
    best_epoch: int
    seconds: float


def chosen_device(name: str) -> str:
    """The device a name stands for, if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    number = torch.device(name).index or 0
    if name != "cpu" and not (torch.cuda.is_available() and number < torch.cuda.device_count()):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ParameterError(
            "device",
            "a device that PyTorch finds",
            name,
            f'It finds {found} of CUDA. Say "cpu", or "auto" for what there is.',
        )
    return name


def needed_bytes(recipe: Recipe, shape: tuple[int, int], pairs: int, *, checkpoint: bool) -> int:
    """What a training holds beside the matrix it is given, about."""
    n, m = shape
    parameters = sum(math.prod(one) for one in recipe.shapes(n, m).values())
    # Weights, gradients, two moments and the best so far; for a checkpoint, two states while one is made.
    copies = 11 if checkpoint else 5
    outputs = 2 * min(recipe.batch, n) * m  # of a step, and of validation
    return 4 * (copies * parameters + outputs) + 48 * pairs


# ── data on the device ────────────────────────────────────────────────────────────────────────────


class _Batch(NamedTuple):
    """The stored entries of some users' rows."""

    users: Tensor
    offsets: Tensor  # where each user's entries begin, and where the last end
    items: Tensor
    places: Tensor  # of the entries in the outputs, users × items, flat
    values: Tensor  # x
    inputs: Tensor  # what the network is shown of x


class _Matrix:
    """Rows on a device, from which batches are cut."""

    def __init__(self, rows: Rows, recipe: Recipe, device: str) -> None:
        self.width, self.device, self.lengths = rows.width, device, np.diff(rows.ptr)
        values = rows.values.astype(np.float64)
        inputs = values
        if recipe.kind != "CDAE":  # the others see each history at length 1
            inputs = values / np.repeat(np.sqrt(_row_sums(values**2, rows.ptr)), self.lengths)
        self._ptr = self._moved(rows.ptr, np.int64)
        self._items = self._moved(rows.items, np.int32)
        self._values = self._moved(values, np.float32)
        self._inputs = self._moved(inputs, np.float32) if inputs is not values else self._values
        self.totals = self._moved(_row_sums(values, rows.ptr), np.float32)

    def _moved(self, array: npt.NDArray[Any], kind: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.array(array, kind)).to(self.device)

    def __len__(self) -> int:
        return len(self.lengths)

    def block(self, size: int) -> Tensor:
        """Room for the outputs of a batch."""
        shape = min(size, len(self)), self.width
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def batches(self, order: npt.NDArray[np.int64], size: int) -> Iterator[_Batch]:
        """Some rows after the other, a few at a time."""
        users = self._moved(order, np.int64)
        ends = np.concatenate([[0], np.cumsum(self.lengths[order])])
        for start in range(0, len(order), size):
            stop = min(start + size, len(order))
            yield self._batch(users[start:stop], int(ends[stop] - ends[start]))

    def _batch(self, users: Tensor, count: int) -> _Batch:
        """The entries of these rows, `count` in all: known here, it need not be asked from the device."""
        starts = self._ptr[users]
        lengths = self._ptr[users + 1] - starts
        offsets = torch.zeros(len(users) + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        row = torch.arange(len(users), device=self.device)
        owner = torch.repeat_interleave(row, lengths, output_size=count)
        source = torch.arange(count, device=self.device) + (starts - offsets[:-1])[owner]
        items = self._items[source].long()
        places = owner * self.width + items
        return _Batch(users, offsets, items, places, self._values[source], self._inputs[source])


def _row_sums(values: npt.NDArray[np.float64], ptr: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    return np.bincount(owner, values, len(ptr) - 1).astype(np.float64, copy=False)


# ── the networks ──────────────────────────────────────────────────────────────────────────────────


def _initial(recipe: Recipe, n: int, m: int, device: str) -> Weights:
    """Glorot's uniform weights, biases near zero, user vectors at zero; the same on every device."""
    random = torch.Generator().manual_seed(_seed(recipe, 0))
    weights = {}
    for name, shape in recipe.shapes(n, m).items():
        made = torch.zeros(shape, dtype=torch.float32, device="cpu")
        if len(shape) == 1:
            made.normal_(0, 0.001, generator=random).clamp_(-0.002, 0.002)
        elif name != "users":
            most = math.sqrt(6 / sum(shape))
            made.uniform_(-most, most, generator=random)
        weights[name] = made.to(device).requires_grad_()
    return weights


def _seed(recipe: Recipe, epoch: int) -> int:
    """Of all that is random in an epoch, so that any epoch can be begun anew; 0 is before the first."""
    return int(np.random.SeedSequence((recipe.seed, epoch)).generate_state(1, np.uint64)[0])


def _hidden(
    weights: Mapping[str, Tensor], recipe: Recipe, batch: _Batch, random: torch.Generator | None = None
) -> tuple[Tensor, Tensor | None]:
    """The last hidden layer, users × hidden, and Mult-VAE's KL divergence; with `random`, as in training."""
    inputs = batch.inputs
    if random is not None and recipe.dropout > 0:
        # Of the dense row the same: what is zero stays zero, whether it is dropped or not.
        kept = torch.rand(inputs.shape, generator=random, dtype=inputs.dtype, device=inputs.device)
        inputs = inputs * (kept >= recipe.dropout) / (1 - recipe.dropout)
    layer = embedding_bag(
        batch.items,
        weights["first"],
        batch.offsets,
        mode="sum",
        per_sample_weights=inputs,
        include_last_offset=True,
    )
    layer = layer + weights["first.bias"]
    if random is not None and recipe.user_vectors:
        layer = layer + embedding(batch.users, weights["users"])
    layer = torch.sigmoid(layer) if recipe.activation == "sigmoid" else torch.tanh(layer)
    if recipe.kind != "MultVAE":
        return layer, None
    encoded = torch.addmm(weights["encoder.bias"], layer, weights["encoder"])
    mean, log_variance = encoded[:, : recipe.latent], encoded[:, recipe.latent :]
    z, divergence = mean, None
    if random is not None:
        noise = torch.randn(mean.shape, generator=random, dtype=mean.dtype, device=mean.device)
        z = mean + noise * torch.exp(log_variance / 2)
        divergence = _divergence(mean, log_variance)
    return torch.tanh(torch.addmm(weights["decoder.bias"], z, weights["decoder"])), divergence


def _outputs(weights: Mapping[str, Tensor], hidden: Tensor, out: Tensor) -> Tensor:
    """Users × items, in the first rows of `out`: logits; of CDAE, the guesses themselves."""
    return torch.addmm(weights["bias"], hidden, weights["vectors"].T, out=out[: len(hidden)])


def _divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(q‖p) for each user, of a Gaussian against the standard one."""
    return (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2


def _multinomial(outputs: Tensor, batch: _Batch, totals: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ_i x_i·log π_i with π = softmax(outputs) (Liang et al., Eq. 2), of all users together.

    With its gradient in the outputs, (Σx)·π − x, which takes their place.
    """
    fits = batch.values @ outputs.take(batch.places)
    top = outputs.amax(1, keepdim=True)
    shares = outputs.sub_(top).exp_()
    sums = shares.sum(1)
    loss = totals @ (top[:, 0] + sums.log()) - fits
    gradient = shares.mul_((totals / sums)[:, None])
    gradient.view(-1).index_add_(0, batch.places, batch.values, alpha=-1)
    return loss, gradient


def _weighted_square(outputs: Tensor, batch: _Batch, weight: float) -> tuple[Tensor, Tensor]:
    """Σ_i w_i·(x_i − ŷ_i)² with w_i = 1 + weight·x_i, of all users together; ŷ are the outputs.

    Where nothing is stored that is ŷ², so the sum over all ŷ² is corrected at the stored entries. With its
    gradient in the outputs, which takes their place.
    """
    x, guess = batch.values, outputs.take(batch.places)
    w = 1 + weight * x
    loss = outputs.view(-1) @ outputs.view(-1) + (w * (x - guess).square() - guess.square()).sum()
    gradient = outputs.mul_(2)
    gradient.view(-1).index_copy_(0, batch.places, 2 * w * (guess - x))
    return loss, gradient


# ── training ──────────────────────────────────────────────────────────────────────────────────────


class _Training:
    """A network, its optimiser, and where they are."""

    def __init__(self, recipe: Recipe, rows: Rows, device: str) -> None:
        self.recipe, self.device, self.data = recipe, device, _Matrix(rows, recipe, device)
        self.weights = _initial(recipe, len(rows), rows.width, device)
        matrices = [w for w in self.weights.values() if w.ndim == 2]
        biases = [w for w in self.weights.values() if w.ndim == 1]
        # The gradient of (l2/batch)·‖W‖² is 2·l2/batch·W: `weight_decay` times W. (Liang et al. publish code
        # with λ = l2/batch times twice TensorFlow's l2_loss, which is half the sum of squares.)
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 2 * recipe.l2 / recipe.batch},
            {"params": biases},
        ]
        self._block = self.data.block(recipe.batch)
        self.adam = torch.optim.Adam(groups, lr=recipe.learning_rate, fused=True)
        self.steps = 0

    def step(self, batch: _Batch, random: torch.Generator) -> Tensor:
        """One step down the mean loss of some users; returns their loss together, penalties aside."""
        hidden, divergence = _hidden(self.weights, self.recipe, batch, random)
        share = 1 / len(batch.users)
        # The last layer's gradients by hand: then one dense block is all that users × items ever takes.
        with torch.no_grad():
            outputs = _outputs(self.weights, hidden, self._block)
            if self.recipe.kind == "CDAE":
                loss, gradient = _weighted_square(outputs, batch, self.recipe.weight)
            else:
                loss, gradient = _multinomial(outputs, batch, self.data.totals[batch.users])
            gradient.mul_(share)
            behind = [gradient @ self.weights["vectors"]]
        self.adam.zero_grad()
        self.weights["vectors"].grad = gradient.T @ hidden.detach()
        self.weights["bias"].grad = gradient.sum(0)
        ends = [hidden]
        if divergence is not None:
            kl_weight = self.recipe.kl_weight(self.steps)
            ends.append(divergence)
            behind.append(torch.full_like(divergence, kl_weight * share))
            loss = loss + kl_weight * divergence.detach().sum()
        torch.autograd.backward(ends, behind)
        self.adam.step()
        self.steps += 1
        return loss

    def epoch(self, number: int, report: Callable[[int], None]) -> float:
        """Everybody once, in a new order; returns the mean loss. `report` is told the steps done by then."""
        seed = _seed(self.recipe, number)
        random = torch.Generator(self.device).manual_seed(seed)
        order = np.random.default_rng(seed).permutation(len(self.data))
        every = math.ceil(self.steps_per_epoch / _REPORTS)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for done, batch in enumerate(self.data.batches(order, self.recipe.batch), start=1):
            total += self.step(batch, random)
            if done % every == 0 and done < self.steps_per_epoch:
                report(self.steps)
        loss = float(total) / len(self.data)
        if not math.isfinite(loss):
            raise NumericalError(
                f"training has diverged: the loss of epoch {number} is {loss}. Use a smaller learning_rate, "
                "or scale the values of the data down."
            )
        return loss

    @property
    def steps_per_epoch(self) -> int:
        """Batches."""
        return math.ceil(len(self.data) / self.recipe.batch)

    def predicting(self) -> Weights:
        """A copy of the weights that predictions need: of people who were not trained on, too."""
        return {name: w.detach().clone() for name, w in self.weights.items() if name != "users"}

    def state(self) -> Weights:
        """A copy of all that training goes on from, beside the number of steps."""
        found = {}
        for name, w in self.weights.items():
            kept = self.adam.state[w]
            found[f"weight.{name}"] = w.detach().clone()
            found[f"mean.{name}"] = kept["exp_avg"].clone()
            found[f"square.{name}"] = kept["exp_avg_sq"].clone()
        return found

    def restore(self, state: Mapping[str, npt.NDArray[Any]], steps: int) -> None:
        """Go on from a state."""
        self.steps = steps

        def placed(name: str) -> Tensor:
            return torch.from_numpy(np.array(state[name])).to(self.device)

        for name, w in self.weights.items():
            with torch.no_grad():
                w.copy_(placed(f"weight.{name}"))
            self.adam.state[w] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=self.device),
                "exp_avg": placed(f"mean.{name}"),
                "exp_avg_sq": placed(f"square.{name}"),
            }


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
        training = _Training(recipe, rows, place)
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
        training: _Training,
        questions: "_Questions | None",
        saved: "_Checkpoint | None",
        progress: "Progress | None",
    ) -> None:
        self.training, self._questions, self._saved, self._progress = training, questions, saved, progress
        self.history: list[dict[str, Any]] = []
        self.best: Weights = {}
        self.best_epoch = 0
        self._last: tuple[Weights, dict[str, Any]] | None = None  # a state that is not in the checkpoint yet
        self._written = time.monotonic()
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
    random = np.random.default_rng(_seed(recipe, 0))
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
        self._shown, self._targets = (_Matrix(rows.take(asked), recipe, device) for rows in validation)
        self._recipe, self._depth = recipe, min(_DEPTH, self._shown.width)
        discounts = 1 / np.log2(np.arange(2, self._depth + 2))
        ideal = np.cumsum(discounts)[np.minimum(self._targets.lengths, self._depth) - 1]
        self._discounts, self._ideal = (torch.from_numpy(a).to(device) for a in (discounts, ideal))

    def ndcg(self, weights: Mapping[str, Tensor]) -> float:
        """Mean nDCG@100: of each user the hits, 1/log2(rank + 1) each, against the best there can be."""
        start = 0
        total = torch.zeros((), dtype=torch.float64, device=self._ideal.device)
        targets = self._targets.batches(np.arange(len(self._targets)), self._recipe.batch)
        ranked = _ranked(weights, self._recipe, self._shown, self._depth)
        for found, wanted in zip(ranked, targets, strict=True):
            shape = len(found), self._shown.width
            is_target = torch.zeros(shape, dtype=torch.bool, device=found.device)
            is_target.view(-1).index_fill_(0, wanted.places, True)
            gains = is_target.gather(1, found).double() @ self._discounts
            total += (gains / self._ideal[start : start + len(found)]).sum()
            start += len(found)
        return float(total) / start


@torch.no_grad()
def _ranked(weights: Mapping[str, Tensor], recipe: Recipe, shown: _Matrix, k: int) -> Iterator[Tensor]:
    """The k best items of each user, without what they show; a batch of users at a time."""
    block = shown.block(recipe.batch)
    for batch in shown.batches(np.arange(len(shown)), recipe.batch):
        outputs = _outputs(weights, _hidden(weights, recipe, batch)[0], block)
        outputs.view(-1).index_fill_(0, batch.places, -math.inf)
        yield outputs.topk(k, 1).indices


def top_items(
    weights: Mapping[str, npt.NDArray[np.float32]], recipe: Recipe, shown: Rows, k: int, device: str = "auto"
) -> npt.NDArray[np.int32]:
    """The k best items of each row of histories, best first, without those it holds. Ties in any order."""
    place = chosen_device(device)
    placed = {name: torch.from_numpy(np.array(w)).to(place) for name, w in weights.items()}
    found = [block.cpu() for block in _ranked(placed, recipe, _Matrix(shown, recipe, place), k)]
    return torch.cat(found).numpy().astype(np.int32)


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
            **asdict(recipe),
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
