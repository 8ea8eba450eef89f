"""The networks of CDAE, Mult-DAE and Mult-VAE in PyTorch: data on the device, losses, training steps.

Liang, Krishnan, Hoffman, Jebara, "Variational Autoencoders for Collaborative Filtering", WWW 2018; and Wu,
DuBois, Zheng, Ester, "Collaborative Denoising Auto-Encoders for Top-N Recommender Systems", WSDM 2016.

A batch holds the stored entries of its users and one dense array, the outputs (users × items). A step never
waits for the device: all sizes follow from the row pointers on the host.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from mrfrec import NumericalError
from mrfrec.extending import Rows

_LIBRARY = 24_000_000  # bytes that PyTorch's own buffers take, measured

Weights = dict[str, Tensor]


class Recipe(Protocol):
    """What a network and its training need of a model: its parameters, 0 or False where it has none."""

    is_multinomial: ClassVar[bool]  # the likelihood; histories are then normalised to length 1
    activation: str
    dropout: float
    l2: float
    learning_rate: float
    batch: int
    epochs: int
    patience: int | None
    validation: float
    seed: int
    threads: int | None
    latent: int  # of MultVAE, as the next two
    kl_cap: float
    kl_epochs: float
    weight: float  # of CDAE, as the next
    user_vectors: bool

    def shapes(self, n: int, m: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, for n training users and m items."""


def needed_bytes(model: Recipe, rows: Rows) -> int:
    """Estimate the bytes a training holds besides the given matrix."""
    n, m = len(rows), rows.width
    parameters = sum(math.prod(one) for one in model.shapes(n, m).values())
    copies = 6  # weights, gradients, two moments, the best epoch and the one before it
    outputs = 2 * min(model.batch, n) * m  # of a training step and of validation
    return 4 * (copies * parameters + outputs) + 48 * len(rows.items) + _LIBRARY


class UserBatch(NamedTuple):
    """The stored entries of the rows of some users."""

    users: Tensor
    offsets: Tensor  # start of each user's entries, and the end of the last
    items: Tensor
    places: Tensor  # flat positions of the entries in the outputs, users × items
    values: Tensor  # x
    inputs: Tensor  # input of the network


class DeviceRows:
    """The rows of a matrix on a device, divided into batches."""

    def __init__(self, rows: Rows, model: Recipe, device: str) -> None:
        self.width = rows.width
        self.device = device
        self.lengths = np.diff(rows.ptr)
        values = rows.values.astype(np.float64)
        inputs = values
        if model.is_multinomial:  # these normalise each history to length 1
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
        """Allocate the outputs of a batch."""
        shape = min(size, len(self)), self.width
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def batches(self, order: npt.NDArray[np.int64], size: int) -> Iterator[UserBatch]:
        """Yield the rows in this order, `size` at a time."""
        users = self._moved(order, np.int64)
        ends = np.concatenate([[0], np.cumsum(self.lengths[order])])
        for start in range(0, len(order), size):
            stop = min(start + size, len(order))
            yield self._batch(users[start:stop], int(ends[stop] - ends[start]))

    def _batch(self, users: Tensor, count: int) -> UserBatch:
        """Return the entries of these rows. `count`, their number, is known on the host: no need to wait."""
        starts = self._ptr[users]
        lengths = self._ptr[users + 1] - starts
        offsets = torch.zeros(len(users) + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        row = torch.arange(len(users), device=self.device)
        owner = torch.repeat_interleave(row, lengths, output_size=count)
        source = torch.arange(count, device=self.device) + (starts - offsets[:-1])[owner]
        items = self._items[source].long()
        places = owner * self.width + items
        return UserBatch(users, offsets, items, places, self._values[source], self._inputs[source])


def _row_sums(values: npt.NDArray[np.float64], ptr: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    return np.bincount(owner, values, len(ptr) - 1).astype(np.float64, copy=False)


def initial_weights(model: Recipe, n: int, m: int, device: str) -> Weights:
    """Return initial weights, the same on every device: Glorot's uniform, biases near 0, user vectors 0."""
    random = torch.Generator().manual_seed(seed_of(model, 0))
    weights = {}
    for name, shape in model.shapes(n, m).items():
        made = torch.zeros(shape, dtype=torch.float32, device="cpu")
        if len(shape) == 1:
            made.normal_(0, 0.001, generator=random).clamp_(-0.002, 0.002)
        elif name != "users":
            most = math.sqrt(6 / sum(shape))
            made.uniform_(-most, most, generator=random)
        weights[name] = made.to(device).requires_grad_()
    return weights


def seed_of(model: Recipe, epoch: int) -> int:
    """Return the seed of an epoch; 0 is for the initial weights."""
    return int(np.random.SeedSequence((model.seed, epoch)).generate_state(1, np.uint64)[0])


def _hidden(
    weights: Mapping[str, Tensor],
    model: Recipe,
    batch: UserBatch,
    random: torch.Generator | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the last hidden layer, users × hidden, and Mult-VAE's KL(q‖N(0, 1)) per user.

    With `random`, as in training: with dropout, user vectors and a sampled z.
    """
    inputs = batch.inputs
    if random is not None and model.dropout > 0:
        # Equals dropout on the dense row: zeros stay zero.
        kept = torch.rand(inputs.shape, generator=random, dtype=inputs.dtype, device=inputs.device)
        inputs = inputs * (kept >= model.dropout) / (1 - model.dropout)
    layer = embedding_bag(
        batch.items, weights["first"], batch.offsets, mode="sum", per_sample_weights=inputs,
        include_last_offset=True,
    ) + weights["first.bias"]  # fmt: skip
    if random is not None and model.user_vectors:
        layer = layer + embedding(batch.users, weights["users"])
    layer = torch.sigmoid(layer) if model.activation == "sigmoid" else torch.tanh(layer)
    if not model.latent:
        return layer, None
    encoded = torch.addmm(weights["encoder.bias"], layer, weights["encoder"])
    mean, log_variance = encoded[:, : model.latent], encoded[:, model.latent :]
    z, divergence = mean, None
    if random is not None:
        noise = torch.randn(mean.shape, generator=random, dtype=mean.dtype, device=mean.device)
        z = mean + noise * torch.exp(log_variance / 2)
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
    return torch.tanh(torch.addmm(weights["decoder.bias"], z, weights["decoder"])), divergence


def _outputs(weights: Mapping[str, Tensor], hidden: Tensor, out: Tensor) -> Tensor:
    """Compute the outputs, users × items, into the first rows of `out`: logits, or CDAE's predictions."""
    return torch.addmm(weights["bias"], hidden, weights["vectors"].T, out=out[: len(hidden)])


def _multinomial(outputs: Tensor, batch: UserBatch, totals: Tensor) -> tuple[Tensor, Tensor]:
    """Return −Σ x_i·log π_i over users and items, π = softmax(outputs), and its gradient.

    Eq. 2 of Liang et al. The gradient, (Σx)·π − x, overwrites the outputs.
    """
    fits = batch.values @ outputs.take(batch.places)
    top = outputs.amax(1, keepdim=True)
    shares = outputs.sub_(top).exp_()
    sums = shares.sum(1)
    loss = totals @ (top[:, 0] + sums.log()) - fits
    gradient = shares.mul_((totals / sums)[:, None])
    gradient.view(-1).index_add_(0, batch.places, batch.values, alpha=-1)
    return loss, gradient


def _weighted_square(outputs: Tensor, batch: UserBatch, weight: float) -> tuple[Tensor, Tensor]:
    """Return Σ w_i·(x_i − ŷ_i)² over users and items, w_i = 1 + weight·x_i, and its gradient; ŷ: the outputs.

    Without a stored entry the term is ŷ², so the sum of all ŷ² is corrected at the stored entries. The
    gradient overwrites the outputs.
    """
    x, guess = batch.values, outputs.take(batch.places)
    w = 1 + weight * x
    loss = outputs.view(-1) @ outputs.view(-1) + (w * (x - guess).square() - guess.square()).sum()
    gradient = outputs.mul_(2)
    gradient.view(-1).index_copy_(0, batch.places, 2 * w * (guess - x))
    return loss, gradient


def kl_weight_after(model: Recipe, epochs: float) -> float:
    """Return β of Liang et al. §2.2.2 after some epochs: it grows to kl_cap in kl_epochs epochs."""
    return model.kl_cap * min(epochs / model.kl_epochs, 1.0) if model.kl_epochs else model.kl_cap


class Trainer:
    """A network and its optimiser on a device."""

    def __init__(self, model: Recipe, rows: Rows, device: str) -> None:
        self.model = model
        self.device = device
        self.data = DeviceRows(rows, model, device)
        self.weights = initial_weights(model, len(rows), rows.width, device)
        biases, matrices = ([w for w in self.weights.values() if w.ndim == n] for n in (1, 2))
        # The gradient of (l2/batch)·‖W‖² is 2·l2/batch·W: `weight_decay` times W. (Liang et al. publish code
        # with λ = l2/batch times twice TensorFlow's l2_loss, which is half the sum of squares.)
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 2 * model.l2 / model.batch},
            {"params": biases},
        ]
        self._block = self.data.block(model.batch)
        self.adam = torch.optim.Adam(groups, lr=model.learning_rate, fused=True)
        self.steps_per_epoch = math.ceil(len(rows) / model.batch)
        self.steps = 0

    def step(self, batch: UserBatch, random: torch.Generator) -> Tensor:
        """Take one step on the mean loss of a batch; return the summed loss without penalties."""
        hidden, divergence = _hidden(self.weights, self.model, batch, random)
        share = 1 / len(batch.users)
        # The gradients of the last layer are computed by hand, so that one dense block of users × items
        # suffices.
        with torch.no_grad():
            outputs = _outputs(self.weights, hidden, self._block)
            if self.model.is_multinomial:
                loss, gradient = _multinomial(outputs, batch, self.data.totals[batch.users])
            else:
                loss, gradient = _weighted_square(outputs, batch, self.model.weight)
            gradient.mul_(share)
            behind = [gradient @ self.weights["vectors"]]
        self.adam.zero_grad()
        self.weights["vectors"].grad = gradient.T @ hidden.detach()
        self.weights["bias"].grad = gradient.sum(0)
        ends = [hidden]
        if divergence is not None:
            kl_weight = kl_weight_after(self.model, self.steps / self.steps_per_epoch)
            ends.append(divergence)
            behind.append(torch.full_like(divergence, kl_weight * share))
            loss = loss + kl_weight * divergence.detach().sum()
        torch.autograd.backward(ends, behind)
        self.adam.step()
        self.steps += 1
        return loss

    def epoch(self, number: int, report: Callable[[int], None]) -> float:
        """Train on all users once, in a new order, and return the mean loss; `report` gets the steps done."""
        seed = seed_of(self.model, number)
        random = torch.Generator(self.device).manual_seed(seed)
        order = np.random.default_rng(seed).permutation(len(self.data))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in self.data.batches(order, self.model.batch):
            total += self.step(batch, random)
            report(self.steps)
        loss = float(total) / len(self.data)
        if not math.isfinite(loss):
            raise NumericalError(
                f"training diverged: the loss of epoch {number} is {loss}. "
                "Use a smaller learning_rate, or scale the values of the data down."
            )
        return loss

    def predicting(self) -> Weights:
        """Return a copy of the weights that predictions need, that is without user vectors."""
        return {name: w.detach().clone() for name, w in self.weights.items() if name != "users"}


@torch.no_grad()
def ranked(weights: Mapping[str, Tensor], model: Recipe, shown: DeviceRows, k: int) -> Iterator[Tensor]:
    """Yield the k best unseen items of each user, one batch of users at a time."""
    block = shown.block(model.batch)
    for batch in shown.batches(np.arange(len(shown)), model.batch):
        outputs = _outputs(weights, _hidden(weights, model, batch)[0], block)
        outputs.view(-1).index_fill_(0, batch.places, -math.inf)
        yield outputs.topk(k, 1).indices
