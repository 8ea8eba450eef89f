"""Train the networks of `mrfrec.models.baselines.networks` several times faster on a large GPU.

The same weights, losses and optimiser, but: the data is a dense matrix of bytes on the device; on a GPU the
large matrix products take bfloat16 numbers and add up in float32, and a step is a recorded CUDA graph: no
waiting for Python. The last batch of an epoch is filled up with users of its first one.
"""

import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrfrec.core.rows import Rows
from mrfrec.models.baselines.autoencoders import Autoencoder
from mrfrec.models.baselines.networks import Weights, initial_weights, seed_of

DEPTH = 100  # places of the nDCG that chooses the epoch
EVERY = 2  # epochs from one validation to the next
SAMPLE = 10_000  # validation users that choose the epoch
_ALIGNED = 64  # items are padded to a multiple: odd widths are slow
_AT_ONCE = 2500  # users validated at a time
_NEVER = -1e4  # bias of the padding where outputs are logits


Verdict = Literal["go on", "enough", "behind"]


class Questions(NamedTuple):
    """Validation users on the device: what they show, and what they hide."""

    shown: Tensor
    targets: Tensor


class Course(NamedTuple):
    """The weights of the best epoch and the course of a training."""

    weights: dict[str, npt.NDArray[np.float32]]
    history: list[dict[str, Any]]  # epoch, loss, ndcg
    best_epoch: int
    value: float | None  # nDCG@100 of the best epoch, on all validation users
    seconds: float


def dense(rows: Rows, device: str) -> Tensor:
    """Return rows of ones as bytes, users × padded items."""
    X = torch.zeros(len(rows), math.ceil(rows.width / _ALIGNED) * _ALIGNED, dtype=torch.uint8, device=device)
    users = np.repeat(np.arange(len(rows)), np.diff(rows.ptr))
    places = torch.from_numpy(users * X.shape[1] + rows.items.astype(np.int64)).to(device)
    X.view(-1)[places] = 1
    return X


def questions(shown: Rows, targets: Rows, device: str) -> Questions:
    """Return the validation users with a hidden item on the device."""
    asked = np.flatnonzero(np.diff(targets.ptr))
    return Questions(dense(shown.take(asked), device), dense(targets.take(asked), device))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a·b in float32."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)


def _dropped(x: Tensor, share: Tensor, kind: torch.dtype) -> Tensor:
    return torch.where(torch.rand(x.shape, device=x.device) >= share, x, 0).to(kind)


def _multinomial(
    outputs: Tensor, bias: Tensor, x: Tensor, _: Tensor, kind: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the summed loss, the gradient of its mean for the outputs, and that for the bias."""
    logits, wanted = outputs + bias, x.float()
    total = wanted.sum(1, keepdim=True)
    top = logits.amax(1, keepdim=True)
    shares = torch.exp(logits - top)
    sums = shares.sum(1, keepdim=True)
    loss = (total * (top + sums.log())).sum() - (wanted * logits).sum()
    gradient = (shares * (total / sums) - wanted) / len(x)
    return loss, gradient.to(kind), gradient.sum(0)


def _weighted_square(
    outputs: Tensor, bias: Tensor, x: Tensor, weight: Tensor, kind: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the same for CDAE."""
    wrong, w = outputs + bias - x, 1 + weight * x
    gradient = (2 / len(x)) * w * wrong
    return (w * wrong.square()).sum(), gradient.to(kind), gradient.sum(0)


@cache
def _fused(function: Any) -> Any:
    """Compile a function of elements and sums to few passes over its arrays."""
    return torch.compile(function, dynamic=False)


class DenseTrainer:
    """A network, its optimiser and its data on a device."""

    def __init__(self, recipe: Autoencoder, X: Tensor, m: int, *, exact: bool = False) -> None:
        self.recipe, self.X, self.m, n, device = recipe, X, m, len(X), X.device
        self.on_gpu = device.type == "cuda"
        self.kind = torch.bfloat16 if self.on_gpu and not exact else torch.float32
        torch.manual_seed(seed_of(recipe, 0) % 2**63)
        self.weights = {
            name: self._padded(name, w) for name, w in initial_weights(recipe, n, m, "cpu").items()
        }
        self.scale = self._scale(X)
        self.batch = min(recipe.batch, n)
        self.steps_per_epoch = math.ceil(n / self.batch)
        self.order = torch.zeros(self.steps_per_epoch, self.batch, dtype=torch.int64, device=device)
        self.done = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.share, self.weight = (torch.tensor(x, device=device) for x in (recipe.dropout, recipe.weight))
        biases, matrices = ([w for w in self.weights.values() if w.ndim == d] for d in (1, 2))
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 2 * recipe.l2 / recipe.batch},
            {"params": biases},
        ]
        self.adam = torch.optim.Adam(groups, lr=recipe.learning_rate, fused=True, capturable=self.on_gpu)
        loss = _multinomial if recipe.is_multinomial else _weighted_square
        self._dropped: Any = _fused(_dropped) if self.on_gpu else _dropped
        self._loss: Any = _fused(loss) if self.on_gpu else loss
        self._graph: Any = None

    def _padded(self, name: str, w: Tensor) -> Tensor:
        if name in ("first", "vectors", "bias"):
            more = self.X.shape[1] - self.m
            fill = _NEVER if name == "bias" and self.recipe.is_multinomial else 0.0
            w = torch.cat([w.detach(), torch.full((more, *w.shape[1:]), fill)])
        return w.detach().to(self.X.device).requires_grad_()

    def _scale(self, X: Tensor) -> Tensor:
        """Return the factor of each history: Mult-DAE and Mult-VAE normalise it to length 1."""
        if not self.recipe.is_multinomial:
            return torch.ones(len(X), 1, device=X.device)
        return torch.cat([x.sum(1, keepdim=True).clamp(min=1).rsqrt() for x in torch.split(X, _AT_ONCE)])

    def _between(self, sums: Tensor, *, training: bool) -> tuple[Tensor, Tensor | None]:
        """Return the last hidden layer from the sums of the first, and Mult-VAE's divergence of each user."""
        W, latent = self.weights, self.recipe.latent
        layer = torch.sigmoid(sums) if self.recipe.activation == "sigmoid" else torch.tanh(sums)
        if not latent:
            return layer, None
        encoded = torch.addmm(W["encoder.bias"], layer, W["encoder"])
        z, log_variance = encoded[:, :latent], encoded[:, latent:]
        divergence = (z.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
        if training:
            z = z + torch.randn(z.shape, device=z.device) * torch.exp(log_variance / 2)
        return torch.tanh(torch.addmm(W["decoder.bias"], z, W["decoder"])), divergence

    @torch.no_grad()
    def _step(self) -> None:
        """Take one step. All numbers that change are on the device, so that the step can be recorded."""
        W, recipe = self.weights, self.recipe
        users = self.order[self.done % self.steps_per_epoch].view(-1)
        x = self.X[users]
        kept = self._dropped(x, self.share, self.kind)
        scale = self.scale[users] / (1 - recipe.dropout)
        first, vectors = W["first"].to(self.kind), W["vectors"].to(self.kind)
        sums = _product(kept, first) * scale + W["first.bias"]
        if recipe.user_vectors:
            sums += W["users"][users]
        with torch.enable_grad():
            hidden, divergence = self._between(sums.requires_grad_(), training=True)
        last = hidden.to(self.kind)
        loss, gradient, W["bias"].grad = self._loss(
            _product(last, vectors.T), W["bias"], x, self.weight, self.kind
        )
        W["vectors"].grad = _product(gradient.T, last)
        ends, behind = [hidden], [_product(gradient, vectors)]
        between = [name for name in W if name.startswith(("encoder", "decoder"))]
        if divergence is not None:
            grown = (self.done / max(recipe.kl_epochs * self.steps_per_epoch, 1e-9)).clamp(max=1)
            kl_weight = recipe.kl_cap * grown
            ends.append(divergence)
            behind.append((kl_weight / self.batch).expand_as(divergence))
            loss = loss + kl_weight[0] * divergence.sum()
        at_sums, *others = torch.autograd.grad(ends, [sums, *(W[name] for name in between)], behind)
        for name, found in zip(between, others, strict=True):
            W[name].grad = found
        W["first.bias"].grad = at_sums.sum(0)
        W["first"].grad = _product(kept.T, (at_sums * scale).to(self.kind))
        if recipe.user_vectors:
            W["users"].grad = torch.zeros_like(W["users"]).index_copy_(0, users, at_sums)
        self.adam.step()
        self.total += loss
        self.done += 1

    def _record(self) -> Any:
        """Record a step as a CUDA graph; the steps taken to warm up are undone."""
        kept = [w.detach().clone() for w in self.weights.values()]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        with torch.no_grad():
            for w, before in zip(self.weights.values(), kept, strict=True):
                w.copy_(before)
            for state in self.adam.state.values():
                for value in state.values():
                    value.zero_()
            self.done.zero_()
        return graph

    def epoch(self, number: int) -> Tensor:
        """Train on all users once, in a new order, and return the mean loss, on the device."""
        order = np.random.default_rng(seed_of(self.recipe, number)).permutation(len(self.X))
        order = np.resize(order, self.order.shape)
        self.order.copy_(torch.from_numpy(order))
        if self.on_gpu and self._graph is None:
            self._graph = self._record()
        self.total.zero_()
        for _ in range(self.steps_per_epoch):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        return self.total / order.size

    @torch.no_grad()
    def ndcg(self, asked: Questions) -> Tensor:
        """Return the mean nDCG@100, on the device."""
        W, depth = self.weights, min(DEPTH, self.m)
        gains = 1 / torch.log2(torch.arange(2, depth + 2, device=self.X.device, dtype=torch.float32))
        total = torch.zeros((), dtype=torch.float64, device=self.X.device)
        for x, wanted in zip(*(torch.split(part, _AT_ONCE) for part in asked), strict=True):
            sums = x.float() @ W["first"] * self._scale(x) + W["first.bias"]
            scores = torch.addmm(W["bias"], self._between(sums, training=False)[0], W["vectors"].T)
            scores.masked_fill_(x > 0, -torch.inf)
            scores[:, self.m :] = -torch.inf
            hits = wanted.gather(1, scores.topk(depth, 1).indices)
            counts = wanted.sum(1).clamp(max=depth)
            total += ((hits * gains).sum(1) / gains.cumsum(0)[counts - 1]).sum()
        return total / len(asked.shown)

    def predicting(self) -> Weights:
        """Return a copy of the weights that predictions need, without the padding."""
        m = {"first": self.m, "vectors": self.m, "bias": self.m}
        return {
            name: w.detach()[: m.get(name)].clone() for name, w in self.weights.items() if name != "users"
        }


def train(
    recipe: Autoencoder,
    X: Tensor,
    m: int,
    asked: Questions | None,
    verdict: Callable[[list[dict[str, Any]]], Verdict],
) -> Course | None:
    """Train a network and keep its best epoch on the validation users, or the last if there are none.

    `verdict` gets the history after each validation: "enough" ends the training, "behind" gives it up.
    """
    began = time.perf_counter()
    trainer = DenseTrainer(recipe, X, m)
    sample = None
    if asked is not None:
        chosen = np.random.default_rng(recipe.seed).permutation(len(asked.shown))[:SAMPLE]
        places = torch.from_numpy(np.sort(chosen)).to(X.device)
        sample = Questions(asked.shown[places], asked.targets[places])
    history: list[dict[str, Any]] = []
    best, best_epoch, highest, value = trainer.predicting(), 0, -1.0, None
    for epoch in range(1, recipe.epochs + 1):
        loss = trainer.epoch(epoch)
        if sample is None or (epoch % EVERY and epoch != recipe.epochs):
            continue
        found = float(trainer.ndcg(sample))
        history.append({"epoch": epoch, "loss": round(float(loss), 4), "ndcg": round(found, 5)})
        if not math.isfinite(history[-1]["loss"]):
            break
        if found > highest:
            best, best_epoch, highest = trainer.predicting(), epoch, found
        found_so_far = verdict(history)
        if found_so_far == "behind":
            return None
        if found_so_far == "enough":
            break
    if asked is None:
        best, best_epoch = trainer.predicting(), recipe.epochs
    else:
        with torch.no_grad():
            for name, w in best.items():
                trainer.weights[name][: len(w)] = w
        value = float(trainer.ndcg(asked))
    weights = {name: w.cpu().numpy() for name, w in best.items()}
    return Course(weights, history, best_epoch, value, time.perf_counter() - began)
