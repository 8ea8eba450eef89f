"""The autoencoders against dense networks in plain PyTorch; how they are trained and saved."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from mrfrec import (
    DataError,
    MemoryPlanError,
    NumericalError,
    ParameterError,
    load,
)
from mrfrec.extending import Rows
from mrfrec_lab.models import CDAE, MultDAE, MultVAE, networks
from mrfrec_lab.models import training as training_loop
from mrfrec_lab.models.autoencoders import Autoencoder

from matrices import clusters, random_matrix
from naive_evaluation import ndcg

Matrix = npt.NDArray[np.float64]

SMALL: dict[str, Any] = {"batch": 32, "epochs": 4, "learning_rate": 0.01, "device": "cpu", "threads": 1}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MultVAE": (MultVAE, {"hidden": 12, "latent": 5, "kl_epochs": 7.0, **SMALL}),
    "MultDAE": (MultDAE, {"hidden": 12, **SMALL}),
    "CDAE": (CDAE, {"hidden": 12, "weight": 3.0, "activation": "sigmoid", **SMALL}),
}
KINDS = pytest.mark.parametrize("kind", MODELS)


def made(kind: str, **parameters: Any) -> Any:
    model, small = MODELS[kind]
    return model(**{**small, **parameters})


def matrix(seed: int = 4, *, real: bool = False, users: int = 90, items: int = 30) -> Matrix:
    return np.abs(random_matrix(seed, users, items, real=real))


def rows_of(X: Matrix) -> Rows:
    return Rows.of(sp.csr_array(X))


def questions(users: int) -> tuple[Any, Any]:
    """Other people's items, of which some are hidden: shown and hidden ones."""
    people = clusters(2, users)
    hide = np.random.default_rng(3).random(people.shape) < 0.4
    return sp.csr_array(people * ~hide), sp.csr_array(people * hide)


def all_of_a_batch(training: networks.Trainer) -> networks.UserBatch:
    data = training.data
    return next(data.batches(np.arange(len(data)), len(data)))


# ── losses, steps and answers, against dense networks ─────────────────────────────────────────────


def dense_loss(
    r: Autoencoder, W: dict[str, Tensor], X: Tensor, epochs: float, noise: Tensor | None
) -> Tensor:
    """The mean loss of all users, with KL divergence and penalty, as the papers write them."""
    shown = X if isinstance(r, CDAE) else torch.nn.functional.normalize(X, dim=1)
    layer = shown @ W["first"] + W["first.bias"]
    if r.user_vectors:
        layer = layer + W["users"]
    hidden = torch.sigmoid(layer) if r.activation == "sigmoid" else torch.tanh(layer)
    kl = torch.zeros(())
    if isinstance(r, MultVAE):
        assert noise is not None
        mean, log_variance = torch.chunk(hidden @ W["encoder"] + W["encoder.bias"], 2, dim=1)
        q = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
        p = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        kl = torch.distributions.kl_divergence(q, p).sum()
        hidden = torch.tanh((mean + noise * q.scale) @ W["decoder"] + W["decoder.bias"])
    outputs = hidden @ W["vectors"].T + W["bias"]
    square, entropy = (1 + r.weight * X) * (X - outputs) ** 2, -X * torch.log_softmax(outputs, 1)
    loss = (square if isinstance(r, CDAE) else entropy).sum()
    beta = min(r.kl_cap, r.kl_cap * epochs / r.kl_epochs) if r.kl_epochs else 0.0
    penalty = r.l2 / r.batch * sum((w**2).sum() for w in W.values() if w.ndim == 2)
    return (loss + beta * kl) / len(X) + penalty


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("MultVAE", {"l2": 0.5}), ("MultDAE", {"l2": 2.0}), ("CDAE", {"l2": 1.0}),
     ("CDAE", {"user_vectors": False, "activation": "tanh", "weight": 0.0})],
)  # fmt: skip
def test_steps_are_those_of_a_dense_network(kind: str, more: dict[str, Any], real: bool) -> None:
    X = matrix(real=real)
    r = made(kind, batch=90, dropout=0.0, **more)
    training = networks.Trainer(r, rows_of(X), "cpu")
    dense, batch = torch.from_numpy(X).float(), all_of_a_batch(training)
    W = {name: w.detach().clone().requires_grad_() for name, w in training.weights.items()}
    adam = torch.optim.Adam(W.values(), lr=r.learning_rate, fused=False)
    for step in range(3):
        shape = (len(X), r.latent)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(step)) if r.latent else None
        adam.zero_grad()
        loss = dense_loss(r, W, dense, step / training.steps_per_epoch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        before = {name: w.detach().clone() for name, w in training.weights.items()}
        ours = training.step(batch, torch.Generator().manual_seed(step)) / len(X)
        penalty = r.l2 / r.batch * sum(float((w**2).sum()) for w in before.values() if w.ndim == 2)
        assert float(ours) + penalty == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, w in W.items():
        assert w.grad is not None
        sure = w.grad.abs() > 1e-5  # Adam's steps are as long for a gradient that is rounding alone
        assert sure.float().mean() > 0.3
        torch.testing.assert_close(training.weights[name].detach()[sure], w.detach()[sure], rtol=0, atol=2e-5)


def test_the_published_annealing_is_that_of_the_paper() -> None:
    from mrfrec_lab.tables import TABLE_1

    row = next(row for row in TABLE_1["ml-20m"].rows if row.kind == "MultVAE")
    paper = made("MultVAE", **row.fixed)
    found = [networks.kl_weight_after(paper, step / 234) for step in (0, 1, 20_000, 10**6)]
    assert found == pytest.approx([0.0, 1 / 200_000, 0.1, 0.2])
    assert networks.kl_weight_after(made("MultVAE", kl_cap=0.3, kl_epochs=0), 0) == 0.3


def test_a_share_of_a_history_is_dropped_and_the_mean_stays() -> None:
    X = matrix()
    training = networks.Trainer(made("MultDAE", dropout=0.25), rows_of(X), "cpu")
    batch, random = all_of_a_batch(training), torch.Generator().manual_seed(3)
    W = training.weights
    # With an activation that is nearly linear the mean of the hidden layer is that of the whole history.
    W = {name: w.detach() * (1e-3 if name == "first" else 0) for name, w in W.items()}
    whole = networks._hidden(W, training.model, batch)[0]
    times = 500
    runs = torch.stack([networks._hidden(W, training.model, batch, random)[0] for _ in range(times)])
    spread = runs.std(0) / times**0.5
    assert ((runs.mean(0) - whole).abs() < 5 * spread + 1e-9).all()
    one = next(training.data.batches(np.array([int(np.argmax((X > 0).sum(1) == 1))]), 1))
    alone = torch.stack([networks._hidden(W, training.model, one, random)[0] for _ in range(400)])
    dropped = (alone == 0).all(2).float().mean()
    assert 0.15 < dropped < 0.35
    torch.testing.assert_close(alone.abs().amax(0), networks._hidden(W, training.model, one)[0].abs() / 0.75)


@KINDS
@pytest.mark.parametrize("real", [False, True])
def test_scores_are_the_outputs_of_the_network(kind: str, real: bool) -> None:
    X, others = matrix(real=real), matrix(9, real=real, users=41)
    model = made(kind).fit(sp.csr_array(X))
    network: Any = model.fitted_.learned
    W = {name: torch.from_numpy(w) for name, w in network.layers.items()}
    W |= {
        "first": torch.from_numpy(network.first),
        "vectors": torch.from_numpy(network.vectors),
    }
    W["bias"] = torch.from_numpy(network.base_scores)
    r = made(kind)
    for histories in (X, others):
        batch = next(
            networks.DeviceRows(rows_of(histories), r, "cpu").batches(np.arange(len(histories)), 999)
        )
        expected = networks._outputs(W, networks._hidden(W, r, batch)[0], torch.empty(histories.shape))
        np.testing.assert_allclose(model.scores(sp.csr_array(histories)), expected.numpy(), atol=1e-5)


def test_validation_is_the_mean_ndcg() -> None:
    shown, targets = matrix(5), matrix(6)
    targets[shown > 0] = 0
    targets[8] = 0  # nobody to be asked about
    r = made("MultDAE", batch=13)
    training = networks.Trainer(r, rows_of(matrix()), "cpu")
    found = training_loop._ValidationUsers((rows_of(shown), rows_of(targets)), r, "cpu").ndcg(
        training.weights
    )
    people = networks.DeviceRows(rows_of(shown), r, "cpu")
    ranked = torch.cat([*networks.ranked(training.weights, r, people, shown.shape[1])]).numpy()
    each = []
    for items, seen, wanted in zip(ranked, shown, targets, strict=True):
        assert sorted(items) == list(range(shown.shape[1]))
        left = [i for i in items if seen[i] == 0]
        assert list(items[: len(left)]) == left
        if wanted.any():
            each.append(ndcg(left, set(np.flatnonzero(wanted)), shown.shape[1]))
    assert len(each) < len(shown)
    assert found == pytest.approx(np.mean(each), rel=1e-9)


# ── training ──────────────────────────────────────────────────────────────────────────────────────


@KINDS
def test_training_learns_what_popularity_does_not_know(kind: str) -> None:
    X, (shown, targets) = clusters(1, 400), questions(100)
    model = made(kind, epochs=30, l2=0.001).fit(sp.csr_array(X))

    def hits(scores: Matrix) -> float:
        best = np.argsort(-np.where(shown.toarray() > 0, -np.inf, scores), axis=1)[:, :5]
        return float(np.take_along_axis(targets.toarray(), best, 1).mean())

    popular = hits(np.broadcast_to(X.sum(0), X[:100].shape))
    assert hits(model.scores(shown)) > 2.5 * popular
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert set(model.timings_) == {"train", "total"}


@KINDS
def test_the_same_seed_gives_the_same_model_and_nothing_of_the_caller_changes(kind: str) -> None:
    X = sp.csr_array(matrix())
    state, legacy, threads = torch.get_rng_state(), str(np.random.get_state()), torch.get_num_threads()  # noqa: NPY002
    with torch.inference_mode():
        one = made(kind).fit(X)
        assert torch.is_inference_mode_enabled()
    two, other = made(kind).fit(X), made(kind, seed=7).fit(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state()) == legacy  # noqa: NPY002
    assert one.item_vectors_.tobytes() == two.item_vectors_.tobytes()
    assert one.scores(X).tobytes() == two.scores(X).tobytes()
    assert one.history_ == two.history_
    assert np.abs(one.item_vectors_ - other.item_vectors_).max() > 0.01
    faster = made(kind, threads=2).fit(X)
    assert torch.get_num_threads() == threads
    np.testing.assert_allclose(faster.item_vectors_, one.item_vectors_, atol=1e-4)


@KINDS
def test_the_best_epoch_is_kept_and_patience_ends_training(kind: str) -> None:
    X, asked = sp.csr_array(clusters(1, 60)), questions(50)
    parameters = {"learning_rate": 0.03, "epochs": 40, "l2": 0.0}
    model = made(kind, patience=3, **parameters).fit(X, validation=asked)
    found = [epoch["ndcg"] for epoch in model.history_]
    assert model.best_epoch_ == int(np.argmax(found)) + 1
    assert len(found) == model.best_epoch_ + 3 < 40
    exactly = made(kind, **{**parameters, "epochs": model.best_epoch_}).fit(X, validation=asked)
    assert exactly.item_vectors_.tobytes() == model.item_vectors_.tobytes()
    ranked, _ = model.top_k(asked[0], 60)
    expected = [
        ndcg([i for i in items if i >= 0], set(np.flatnonzero(wanted)), 60)
        for items, wanted in zip(ranked.tolist(), asked[1].toarray(), strict=True)
        if wanted.any()
    ]
    assert max(found) == pytest.approx(np.mean(expected), abs=1e-6)
    assert len(made(kind, patience=None, **{**parameters, "epochs": 12}).fit(X).history_) == 12


def test_users_set_aside_are_not_trained_on() -> None:
    X = matrix(users=200, real=True)
    r = made("MultVAE", validation=0.1)
    trained, (shown, targets) = training_loop._set_aside(rows_of(X), r)
    assert (len(trained), len(shown), len(targets)) == (180, 20, 20)
    people = shown.matrix().toarray() + targets.matrix().toarray()
    # Together they are everybody, each once.
    together = np.vstack([trained.matrix().toarray(), people])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, X.tolist()))
    for one, other in zip(np.diff(shown.ptr), np.diff(targets.ptr), strict=True):
        assert other == max(int(0.2 * (one + other)), 1)


def test_without_validation_everybody_is_trained_on_and_the_last_epoch_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, seen = matrix(), []
    original = networks.Trainer.__init__

    def noted(self: Any, model: Any, rows: Rows, device: str) -> None:
        seen.append(len(rows))
        original(self, model, rows, device)

    monkeypatch.setattr(networks.Trainer, "__init__", noted)
    model = made("MultDAE", validation=0, patience=1).fit(sp.csr_array(X))
    assert (model.best_epoch_, len(model.history_), model.history_[-1]["ndcg"]) == (4, 4, None)
    made("MultDAE").fit(sp.csr_array(X))
    targets = np.where(X[:9] > 0, 0, X[9:18])
    made("MultDAE").fit(sp.csr_array(X), validation=(sp.csr_array(X[:9]), sp.csr_array(targets)))
    assert seen == [90, 90 - round(0.05 * 90), 90]


@KINDS
def test_users_without_a_history_do_no_harm(kind: str) -> None:
    X = matrix()
    X[10:20] = 0
    model = made(kind, batch=1).fit(sp.csr_array(X))
    assert np.isfinite(model.scores(sp.csr_array(X))).all()
    nobody = sp.csr_array((3, 30))
    assert model.scores(nobody).shape == (3, 30)


def test_progress_goes_from_nothing_to_everything() -> None:
    steps: list[tuple[str, int, int]] = []
    made("MultDAE", validation=0, batch=20).fit(sp.csr_array(matrix()), progress=lambda *s: steps.append(s))
    assert {(stage, total) for stage, _, total in steps} == {("training", 20)}
    done = [step for _, step, _ in steps]
    assert (done[0], done[-1]) == (0, 20)
    assert done == sorted(done)
    assert len(set(done)) == 21


@KINDS
def test_a_fit_that_fails_leaves_the_model_as_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.csr_array(matrix())
    model = made(kind).fit(X)
    before = model.scores(X), model.history_, model.timings_
    threads = torch.get_num_threads()
    model.learning_rate = 1e30
    with pytest.raises(NumericalError, match=r"training diverged.*smaller learning_rate"):
        model.fit(sp.csr_array(matrix(5)))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(networks.Trainer, "step", fail)
    with pytest.raises(MemoryPlanError, match=r"ran out of memory on cpu: it needs about .*smaller batch"):
        model.fit(sp.csr_array(matrix(5)))
    assert torch.get_num_threads() == threads
    assert (model.history_, model.timings_) == before[1:]
    assert model.scores(X).tobytes() == before[0].tobytes()


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


@KINDS
def test_a_file_holds_the_course_of_the_training_and_nothing_of_the_machine(
    kind: str, tmp_path: Path
) -> None:
    model = made(kind, threads=None, device="auto").fit(sp.csr_array(matrix(real=True)))
    model.save(tmp_path / "model.mrf")
    loaded: Any = load(tmp_path / "model.mrf")
    assert (loaded.history_, loaded.best_epoch_, loaded.timings_) == (model.history_, model.best_epoch_, {})
    assert not {"device", "threads", "memory_limit"} & set(loaded.parameters)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import scipy.sparse as sp
import mrfrec
from mrfrec_lab import models
for kind in ("CDAE", "MultDAE", "MultVAE"):
    model = mrfrec.load(f"{sys.argv[1]}/{kind}.mrf")
    print(model.recommend(history=[3, 8], k=3)["item"].to_list())
    try:
        getattr(models, kind)().fit(sp.eye_array(4, format="csr"))
    except mrfrec.MissingLibraryError as error:
        print(error)
"""


def test_without_pytorch_models_answer_and_training_says_what_is_missing(tmp_path: Path) -> None:
    expected = []
    for kind in sorted(MODELS):
        model = made(kind).fit(sp.csr_array(matrix()))
        model.save(tmp_path / f"{kind}.mrf")
        expected.append(str(model.recommend(history=[3, 8], k=3)["item"].to_list()))
        expected.append(f"{kind} needs PyTorch to be trained: pip install torch.")
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == expected


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@KINDS
def test_data_that_cannot_be_learned_from_is_refused(kind: str) -> None:
    X = matrix()
    negative = X.copy()
    negative[4, 7] = -1
    with pytest.raises(DataError, match=f"the data must have no negative values for {kind}; row 4"):
        made(kind).fit(sp.csr_array(negative))
    alone = sp.eye_array(5, format="csr")
    with pytest.raises(DataError, match=r"0 of 5 have two items or more.*validation=0"):
        made(kind).fit(alone)
    assert made(kind, validation=0).fit(alone).scores(alone).shape == (5, 5)
    with pytest.raises(MemoryPlanError, match=r"\(training\).*smaller hidden or batch"):
        made(kind, memory_limit="20 KB").fit(sp.csr_array(X))
    if not torch.cuda.is_available():
        for device in ("cuda", "cuda:1"):
            with pytest.raises(ParameterError, match=f"where PyTorch finds no such GPU; got '{device}'"):
                made(kind, device=device).fit(sp.csr_array(X))


# ── on a GPU ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@KINDS
def test_a_gpu_trains_as_a_cpu_does(kind: str) -> None:
    X = sp.csr_array(clusters(1, 300))
    here, there = (made(kind, epochs=8, device=device).fit(X) for device in ("cpu", "cuda"))
    # Initial weights and orders are the same; what is dropped, and the noise, are not.
    assert there.history_[-1]["loss"] == pytest.approx(here.history_[-1]["loss"], rel=0.05)
    assert np.isfinite(there.scores(X)).all()


# ── what cannot be trained or validated ───────────────────────────────────────────────────────────


def test_validation_that_cannot_be_asked_is_refused_in_one_line() -> None:
    X = sp.csr_array(matrix())
    shown, targets = X[:10], X[10:20]
    wrong: list[tuple[object, str]] = [
        (shown, "validation must be two matrices, of shown and of hidden items; got csr_array"),
        ((shown, targets, targets), "got tuple"),
        ((shown, targets[:5]), "a row for each person"),
        ((shown[:, :3], targets[:, :3]), "items of the data as columns"),
        ((shown, shown), "validation must not show the hidden items; [0-9,]+ pairs"),
        ((shown, sp.csr_array(shown.shape)), "no user has a hidden item"),
        ((sp.csr_array(shown.shape), -targets), r"validation must have no negative values.* row 0 holds -1"),
    ]
    for validation, message in wrong:
        with pytest.raises(DataError, match=message) as caught:
            made("MultDAE").fit(X, validation=validation)
        assert "\n" not in str(caught.value)
