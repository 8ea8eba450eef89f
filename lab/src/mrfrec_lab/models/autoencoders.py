"""CDAE, Mult-DAE and Mult-VAE.

`networks` and `training` train them with PyTorch (the extra `torch`). This module and saved models need only
numpy: scores are h(x)·Vᵀ + b, where h is the network up to its last hidden layer and V, b are the last layer.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from mrfrec import Interactions, MissingLibraryError, ParameterError
from mrfrec.extending import FitContext, Rows, Stored, memory_budget, shaped
from mrfrec_lab.models import checks
from mrfrec_lab.models.latent import Latent, LatentVectors, refuse_negative, stored_vectors

# Users of a matrix product: the same number for any number of users, and so the same scores.
_USERS_AT_ONCE = 32
_NO_LAYERS = ("first", "vectors", "bias")  # weights that are no `layers` but fields of `Network`


Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Network(LatentVectors):
    """A trained network: V and b are its last layer, and `embed` is all that is before it."""

    first: Array  # W of the first layer, one row per item
    layers: Mapping[str, Array]  # the bias of the first layer, and the layers between it and the last
    name: str  # of the kind of model
    is_multinomial: bool
    is_sigmoid: bool
    history: list[dict[str, Any]]  # of the training
    best_epoch: int

    def embed(self, histories: Rows, threads: int) -> Array:
        """Return the last hidden layer."""
        first = self.first
        refuse_negative(self.name, "a history", histories)
        n, items, values = len(histories), histories.items, histories.values.astype(np.float64)
        out = np.empty((n, first.shape[1]), np.float32)

        def work(start: int) -> None:
            stop = min(start + _USERS_AT_ONCE, n)
            layer = np.zeros((_USERS_AT_ONCE, first.shape[1]), np.float32)
            for u in range(start, stop):
                span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
                x = values[span]
                if self.is_multinomial and len(x):
                    x = x / np.sqrt(x @ x)
                layer[u - start] = x.astype(np.float32) @ first[items[span]]
            out[start:stop] = self._last_hidden(layer + self.layers["first.bias"])[: stop - start]

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(0, n, _USERS_AT_ONCE)))
        return out

    def _last_hidden(self, layer: Array) -> Array:
        """Return the last hidden layer from the sums of the first."""
        W = self.layers
        layer = (1 + np.tanh(layer / 2)) / 2 if self.is_sigmoid else np.tanh(layer)
        if "decoder" not in W:
            return layer
        mean = slice(len(W["decoder"]))  # the rest is the log-variance, used in training only
        z = layer @ W["encoder"][:, mean] + W["encoder.bias"][mean]
        return np.asarray(np.tanh(z @ W["decoder"] + W["decoder.bias"]))

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, _ = super().stored()
        arrays |= {"first": self.first, **self.layers}
        return arrays, {"history": self.history, "best_epoch": self.best_epoch}


@dataclass(kw_only=True, repr=False, eq=False)
class Autoencoder(Latent):
    """What the three models have in common, their parameters among it."""

    machine_parameters: ClassVar[tuple[str, ...]] = ("device", "threads", "memory_limit")
    is_multinomial: ClassVar[bool] = True  # the likelihood; histories are then normalised to length 1
    # Parameters of one of the models, here with the values that switch them off in the others. An annotation
    # would make them parameters of all.
    latent, kl_cap, kl_epochs = 0, 0.0, 0.0  # MultVAE
    weight, activation, user_vectors = 0.0, "tanh", False  # CDAE

    hidden: int = 200
    dropout: float = 0.5
    l2: float = 0.01
    learning_rate: float = 1e-3
    batch: int = 500
    epochs: int = 200
    patience: int | None = 20
    validation: float = 0.05
    seed: int = 98765
    device: str = "auto"
    threads: int | None = None
    memory_limit: int | str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("hidden", "batch", "epochs"):
            setattr(self, name, checks.whole(name, getattr(self, name)))
        for name in ("dropout", "validation"):
            rule = "0 or more and below 1"
            setattr(self, name, checks.number(name, getattr(self, name), rule, lambda x: 0 <= x < 1))
        self.l2 = checks.nonnegative("l2", self.l2)
        rule = "a finite number above 0"
        self.learning_rate = checks.number("learning_rate", self.learning_rate, rule, lambda x: x > 0)
        self.patience = None if self.patience is None else checks.whole("patience", self.patience)
        self.seed = checks.whole("seed", self.seed, 0)
        self.device = _device_named(self.device)
        self.set_limits(self.threads, self.memory_limit)

    def shapes(self, n: int, m: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, for n training users and m items."""
        h, z = self.hidden, self.latent
        shapes: dict[str, tuple[int, ...]] = {"first": (m, h), "first.bias": (h,)}
        if z:
            # Mean and log-variance of z side by side.
            shapes |= {"encoder": (h, 2 * z), "encoder.bias": (2 * z,)}
            shapes |= {"decoder": (z, h), "decoder.bias": (h,)}
        if self.user_vectors:
            shapes["users"] = (n, h)
        return shapes | {"vectors": (m, h), "bias": (m,)}

    def _fit(self, data: Interactions, context: FitContext) -> Network:
        try:
            from mrfrec_lab.models import networks, training
        except ModuleNotFoundError as error:
            name = type(self).__name__
            raise MissingLibraryError(f"{name} needs PyTorch to be trained: pip install torch.") from error

        began = time.perf_counter()
        rows = Rows.of(data.matrix)
        refuse_negative(type(self).__name__, "the data", rows)
        for part in context.validation or ():
            refuse_negative(type(self).__name__, "validation", part)
        device = training.chosen_device(self.device)
        needed = networks.needed_bytes(self, rows)
        plan = memory_budget(self.memory_limit)  # type: ignore[arg-type]  # a number by now
        if device == "cpu":
            plan.require(
                "training", needed + context.copied, "Use a smaller hidden or batch, or fewer items."
            )
        ready = time.perf_counter()
        weights, history, best_epoch = training.train(
            self, rows, context.validation, device, needed, context.progress
        )
        trained = time.perf_counter()
        outer = {name: weights[name] for name in ("first", "vectors")}
        return self._learned(
            weights, {**outer, "base_scores": weights["bias"]}, history=history, best_epoch=best_epoch,
            timings={"train": trained - ready, "total": time.perf_counter() - began}, memory_plan=plan.stages,
        )  # fmt: skip

    def _learned(self, weights: Mapping[str, Array], outer: Mapping[str, Any], **rest: Any) -> Network:
        return Network(
            layers={name: array for name, array in weights.items() if name not in _NO_LAYERS},
            name=type(self).__name__, is_multinomial=self.is_multinomial,
            is_sigmoid=self.activation == "sigmoid", **outer, **rest,
        )  # fmt: skip

    def _restore(self, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> Network:
        shapes = self.shapes(0, m)
        stored = {name: shaped(arrays, name, *shapes[name]) for name in shapes if name != "users"}
        outer = {"first": stored["first"].read(), **stored_vectors(arrays, m)}
        layers = {name: array.read() for name, array in stored.items() if name not in _NO_LAYERS}
        return self._learned(layers, outer, history=facts["history"], best_epoch=facts["best_epoch"])

    @property
    def history_(self) -> list[dict[str, Any]]:
        return list(self._network.history)

    @property
    def best_epoch_(self) -> int:
        return self._network.best_epoch

    @property
    def _network(self) -> Network:
        learned = self.fitted_.learned
        assert isinstance(learned, Network)
        return learned


@dataclass(kw_only=True, repr=False, eq=False)
class MultVAE(Autoencoder):
    """The variational autoencoder with a multinomial likelihood of Liang et al. (2018), Mult-VAE^PR.

    items → hidden → z → hidden → items, with tanh between. Histories are normalised to length 1 and partly
    dropped in training. Adam minimises the mean over users of

        −Σ_i x_i·log softmax(scores)_i + β·KL(q(z|x) ‖ N(0, 1)),   β = kl_cap·min(epochs done/kl_epochs, 1).

    Scores are the logits, computed from the mean of z. Training needs PyTorch; loading and answering do not.
    On one CPU, the same data, parameters, number of threads and version of PyTorch give the same bits.

    Parameters
    ----------
    hidden, latent
        Units of the hidden layers and of z.
    kl_cap, kl_epochs
        β grows from 0 to kl_cap, a little in each step, in the first kl_epochs epochs.
    dropout
        Share of a history that is dropped at random in each step; the rest is scaled up.
    l2
        Penalty: l2/batch times the sum of squares of all weights except biases is added to the loss.
    learning_rate, batch
        Learning rate of Adam, and users per step.
    epochs, patience
        Train for this many epochs, or until the last `patience` epochs brought no improvement on the
        validation users (None: never stop early). The best epoch is kept.
    validation
        Share of the users held out for validation, at most 10,000, with a fifth of their items hidden.
        Ignored if `fit` gets validation users. With 0, all epochs are trained on all users and the last is
        kept.
    seed
        Seed of all random numbers.
    device
        "cpu", "cuda", "cuda:1"; "auto" uses a GPU if PyTorch finds one.
    threads, memory_limit
        As in `MRF`, except that the number of threads may change the last bits of a result.

    Attributes
    ----------
    history_
        For each epoch its number, the mean loss without penalty, and nDCG@100 on the validation users.
    best_epoch_
        The epoch whose weights are kept.
    """

    search_space: ClassVar[Mapping[str, Any]] = {
        "dropout": (0.3, 0.7),
        "kl_epochs": (5, 20),
        "kl_cap": (0.2, 2),
    }

    hidden: int = 600
    latent: int = 200
    kl_cap: float = 0.2
    kl_epochs: float = 20.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.latent = checks.whole("latent", self.latent)
        self.kl_cap = checks.nonnegative("kl_cap", self.kl_cap)
        self.kl_epochs = checks.nonnegative("kl_epochs", self.kl_epochs)


@dataclass(kw_only=True, repr=False, eq=False)
class MultDAE(Autoencoder):
    """The denoising autoencoder with a multinomial likelihood of Liang et al. (2018), Mult-DAE.

    items → hidden → items, with tanh between. Histories are normalised to length 1 and partly dropped in
    training. Adam minimises the mean over users of −Σ_i x_i·log softmax(scores)_i. Scores are the logits.
    Training needs PyTorch; loading and answering do not.

    Parameters
    ----------
    hidden
        Units of the hidden layer.
    dropout, l2, learning_rate, batch, epochs, patience, validation, seed, device, threads, memory_limit
        As in `MultVAE`.
    """

    search_space: ClassVar[Mapping[str, Any]] = {"dropout": (0.3, 0.7), "l2": (0.001, 0.1, "log")}


@dataclass(kw_only=True, repr=False, eq=False)
class CDAE(Autoencoder):
    """The collaborative denoising autoencoder of Wu et al. (2016), with a weighted square loss.

    z = activation(Wᵀx̃ + V_u + b), and the scores are W'z + b'; x̃ is the partly dropped history. Adam
    minimises the mean over users of Σ_i w_i·(x_i − score_i)² over all items, with w_i = 1 + weight·x_i.
    Training needs PyTorch; loading and answering do not.

    Parameters
    ----------
    hidden
        Units of the hidden layer.
    weight
        Extra weight of used items in the loss.
    activation
        "tanh", or "sigmoid" as in the paper, which learns more slowly with Adam.
    user_vectors
        Learn a vector V_u for every training user, as in the paper. The vectors take part in training only:
        all scores come from a history with V_u = 0, the mean of its prior.
    dropout, l2, learning_rate, batch, epochs, patience, validation, seed, device, threads, memory_limit
        As in `MultVAE`.
    """

    search_space: ClassVar[Mapping[str, Any]] = {"weight": (1, 50, "log"), "l2": (0.001, 0.1, "log")}
    is_multinomial: ClassVar[bool] = False

    weight: float = 10.0
    activation: Literal["sigmoid", "tanh"] = "tanh"
    user_vectors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weight = checks.nonnegative("weight", self.weight)
        if self.activation not in ("sigmoid", "tanh"):
            raise ParameterError("activation", '"sigmoid" or "tanh"', self.activation)
        self.user_vectors = checks.one_of("user_vectors", self.user_vectors, False, True)


def _device_named(name: object) -> str:
    """Check the name of a device: "auto", "cpu", "cuda" or "cuda:1"."""
    kind, _, number = str(name).partition(":")
    if not isinstance(name, str) or not (
        name in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdigit())
    ):
        raise ParameterError("device", '"auto", "cpu", "cuda" or one such as "cuda:1"', name)
    return name
