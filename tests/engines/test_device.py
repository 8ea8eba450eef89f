"""The dense model in PyTorch: the numbers of the naive formulas and of the CPU, on every device there is."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
import torch

from mrfrec import (
    MRF,
    Interactions,
    MemoryPlanError,
    MissingLibraryError,
    NumericalError,
    ParameterError,
    read_item_features,
)
from mrfrec.answers.ranking import Eligible, rank
from mrfrec.core import costs, fitting
from mrfrec.core.low_rank import leading_directions
from mrfrec.core.plan import Settings
from mrfrec.core.rows import Rows
from mrfrec.engines import devices
from mrfrec.engines.gpu import dense, ranking, rows
from mrfrec.engines.gpu.device import computing_on
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted import linear
from mrfrec.fitted.state import Runtime
from mrfrec.shown import report_of

from matrices import random_matrix

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
# Small enough for several chunks, tiles, strips and batches on small data.
SMALL = {
    dense: {"_TILE_SIDE": 16, "_STRIP_ROWS": 7},
    rows: {"_STRIP": 500, "_LISTED": 300},
}


@pytest.fixture(params=DEVICES)
def on_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fit with PyTorch, on its own CPU code or on a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")

    def engine_on(_: str, *given: Any) -> LocalEngine:
        return LocalEngine(*given, accelerator=dense.TorchAccelerator(request.param))

    monkeypatch.setattr(devices, "engine_on", engine_on)
    for module, sizes in SMALL.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
    return str(request.param)


def on_the_cpu(model: MRF, data: object) -> MRF:
    """Fit without PyTorch, whatever the fixture says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "engine_on", lambda _, *given: LocalEngine(*given))
        return model.fit(data)


SETTINGS: list[dict[str, Any]] = [
    {"sparsity": None},
    {"sparsity": None, "offset": False, "alpha": 0.0, "user_weight": 0.0},
    {"sparsity": None, "user_weight": 1.0, "novelty": 0.3, "alpha": 1.0},
    {"sparsity": None, "mean_constraint": True, "offset": False},
    {"sparsity": None, "rank": 5, "rank_weight": 0.5},
    {"sparsity": None, "feature_weight": 1.0},
]
TYPES = pytest.mark.parametrize(
    ("real", "dtype", "error"), [(False, "float32", 3e-6), (True, "float64", 1e-12)]
)


def with_new_items(X: Any) -> Interactions:
    """Let nobody have the items 7 and 30, of which tags are known."""
    X[:, [7, 30]] = 0.0
    tags = np.random.default_rng(0).random((75, 12)) < 0.15
    table = pl.DataFrame({"item": range(75), "tag": [np.flatnonzero(row).astype(str) for row in tags]})
    return Interactions(sp.csr_array(X)).with_features(read_item_features(table))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@TYPES
def test_a_device_gives_the_model_of_the_cpu(
    on_device: str, settings: dict[str, Any], real: bool, dtype: Any, error: float
) -> None:
    X = random_matrix(3, users=150, items=75, real=real)
    X[:, 40:44] = X[:, [40]]  # items that are solved as one
    new = "feature_weight" in settings
    data = with_new_items(X) if new else Interactions(sp.csr_array(X))
    found = MRF(dtype=dtype, device="cuda", **settings).fit(data)
    expected = on_the_cpu(MRF(dtype=dtype, **settings), data)
    a, b = (np.asarray(m.weights_) for m in (found, expected))
    assert np.abs(a - b).max() < (10 if new else 1) * error * np.abs(b).max()
    assert b[:, [7, 30]].any() or not new
    scores = expected.scores(data.matrix)
    assert np.abs(found.scores(data.matrix) - scores).max() < 10 * error * np.abs(scores).max()
    assert found.timings_.keys() == expected.timings_.keys()
    assert str(found.plan_).endswith(f"; on {on_device}")
    if on_device == "cuda":  # to the bit; PyTorch's CPU code depends on where arrays lie in memory
        assert np.array_equal(MRF(dtype=dtype, device="cuda", **settings).fit(data).weights_, a)
    assert "device" not in found.parameters


@pytest.mark.parametrize(
    "settings",
    [{"sparsity": 0.2, "r": 0.5, "rank": 5, "rank_weight": 0.5}, {"sparsity": 0.1}, {"sparsity": 0.2}],
    ids=str,
)
def test_a_sparse_model_is_fitted_on_the_processor_and_the_plan_says_so(
    on_device: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    X = sp.csr_array(random_matrix(3, users=150, items=75))
    found = MRF(device="cuda", **settings).fit(X)
    expected = on_the_cpu(MRF(**settings), X)
    assert str(found.plan_).endswith("; fitted on the processor: sparse models do not use a GPU")
    assert "fitted on the processor" in str(report_of(found.plan_))
    assert str(found.plan_.without_memory()) == str(expected.plan_.without_memory())
    for model, name in ((found, "there.mrf"), (expected, "here.mrf")):
        model.save(tmp_path / name)
    assert (tmp_path / "there.mrf").read_bytes() == (tmp_path / "here.mrf").read_bytes()


@TYPES
def test_a_device_finds_the_directions_of_the_cpu(
    on_device: str, real: bool, dtype: Any, error: float
) -> None:
    X = random_matrix(3, users=400, items=350, real=real)
    X[:200, :100] += 1.0  # so that some directions stand out
    both = []
    for engine in (devices.engine_on("", None, None, None), LocalEngine()):
        with engine:
            both.append(leading_directions(sp.csr_array(X), 4, dtype, engine, engine.accelerator))
    found, expected = ((L.vectors * L.left[:, None]) @ L.vectors.T for L in both)
    assert np.abs(found - expected).max() < 30 * error * np.abs(expected).max()


def test_what_cannot_be_inverted_is_refused_in_the_same_words(on_device: str) -> None:
    X = sp.csr_array(np.repeat(random_matrix(3), 2, axis=1))  # twins of everything
    with pytest.raises(NumericalError, match="not positive definite") as there:
        MRF(l2=0.0, sparsity=None, device="cuda").fit(X)
    with pytest.raises(NumericalError) as here:
        on_the_cpu(MRF(l2=0.0, sparsity=None), X)
    assert str(there.value) == str(here.value)


def test_what_does_not_fit_on_the_device_is_refused_before_it_starts(
    on_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "LIBRARIES", 10**15)
    X, stages = sp.csr_array(random_matrix(3)), list[str]()
    with pytest.raises(MemoryPlanError, match=r"1000\.0 TB \(dense, on the device\).*device=\"cpu\""):
        MRF(sparsity=None, device="cuda").fit(X, progress=lambda stage, *_: stages.append(stage))
    assert not stages
    assert MRF(sparsity=0.2, device="cuda").fit(X).is_sparse  # needs no room there


def test_memory_that_others_take_meanwhile_ends_in_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2_000_000_000, 8_000_000_000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    precision = torch.get_float32_matmul_precision()
    with (
        pytest.raises(
            MemoryPlanError, match=r"^the fit ran out of memory on the device cuda, of which 2\.0 GB"
        ),
        computing_on(torch.device("cuda"), "the fit"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")
    assert torch.get_float32_matmul_precision() == precision


def test_auto_takes_a_gpu_with_room_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    careful, obedient = (dense.TorchAccelerator("cpu", if_it_pays=x) for x in (True, False))
    for m, expected in ((4_999, False), (5_000, True), (10**7, False)):
        assert careful.takes(m, 10**6, False, "float32", 0) == expected
    assert obedient.takes(10, 10, True, "float32", 0)
    X = sp.csr_array(random_matrix(3))
    B = MRF(sparsity=None).fit(X).weights_
    monkeypatch.setattr(devices, "chosen_device", lambda _: "cpu:0")  # PyTorch's own
    small = MRF(sparsity=None, device="auto").fit(X)  # too small to be worth it
    assert np.array_equal(B, small.weights_)
    assert "processor" not in str(small.plan_)
    assert "on cpu:0" not in str(small.plan_)
    monkeypatch.setattr(dense, "_LEAST_ITEMS", 1)
    assert str(MRF(sparsity=None, device="auto").fit(X).plan_).endswith("; on cpu:0")


def test_auto_chooses_whatever_the_threads_and_leaves_the_engine_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, taken = sp.csr_array(random_matrix(3)), []
    settings = Settings(2.0, None, 1000, 0.0, "float32", 0.75, center=True, user_weight=0.25)
    monkeypatch.setattr(costs, "of_fit", lambda *_: {"factorise": 10.0})  # as if for 10 seconds of one core
    for threads in (1, 64):
        device = dense.TorchAccelerator("cpu", if_it_pays=True)
        with LocalEngine(threads, accelerator=device) as engine:
            taken.append(fitting.fit(X, settings, engine).weights)
            assert engine.accelerator is device
    assert np.array_equal(taken[0].matrix(), taken[1].matrix())


def test_devices_are_checked_by_name_and_by_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("gpu", "cuda:x", 3, None):
        with pytest.raises(ParameterError, match=r'device must be "auto", "cpu", "cuda"'):
            MRF(device=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"device must be a device that PyTorch finds; got 'cuda:99'"):
        MRF(device="cuda:99").fit(sp.csr_array(random_matrix(3)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.chosen_device("cuda:1") == "cuda:1"
    with pytest.raises(ParameterError, match=r"got 'cuda:2'\."):
        devices.chosen_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.chosen_device("auto") == "cpu"
    assert devices.engine_on("auto", None, None, None).accelerator is None
    assert devices.devices() == []
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ParameterError, match="This PyTorch is built without CUDA"):
        devices.chosen_device("cuda")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert devices.chosen_device("auto") == "cpu"
    assert devices.devices() == []
    with pytest.raises(MissingLibraryError, match=r'device="cuda" needs PyTorch: pip install .*\[torch\]"'):
        MRF(device="cuda").check_ready()


@pytest.fixture
def ranking_on(on_device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rank with PyTorch, a few users and terms at a time, however few they are."""
    monkeypatch.setattr(devices, "ranker_on", lambda _, B, L: ranking.DeviceRanker(on_device, B, L))
    monkeypatch.setattr(linear, "_WORTH_A_DEVICE", 1)
    monkeypatch.setattr(ranking, "_SCORES_AT_ONCE", 300)
    monkeypatch.setattr(ranking, "_TERMS_AT_ONCE", 100)
    return on_device


@pytest.mark.parametrize(
    ("dtype", "real", "ties"),
    [("float32", False, True), ("float32", True, False), ("float64", True, True), ("float64", False, False)],
)
@pytest.mark.parametrize(
    "parameters",
    [
        {"sparsity": None, "rank": 0},
        {"sparsity": None, "rank": 6, "rank_weight": 0.7},
        {"sparsity": 0.1, "rank": 6, "rank_weight": 0.7},
    ],
    ids=["dense", "dense and low rank", "sparse and low rank"],
)
def test_a_device_gives_the_lists_of_the_cpu(
    ranking_on: str, parameters: Any, dtype: Any, real: bool, ties: bool
) -> None:
    X = sp.csr_array(random_matrix(3, users=60, items=75, real=real))
    model = on_the_cpu(MRF(dtype=dtype, measure=False, **parameters), X)
    if ties:
        learned: Any = model.fitted_.learned
        low_rank = [] if learned.low_rank is None else [learned.low_rank.vectors, learned.low_rank.left]
        for array in (getattr(model.weights_, "data", model.weights_), learned.base_scores, *low_rank):
            np.round(np.asarray(array), 1, out=np.asarray(array))
    elsewhere = pickle.loads(pickle.dumps(model)).set_params(device="cuda")
    hidden = np.zeros(75, bool)
    hidden[[3, 9]] = True
    options: list[dict[str, Any]] = [{}, {"exclude_seen": False}, {"ties": "popularity"}, {"k": 75}]
    for option in options:
        given = {"k": 10, **option}
        for mine, theirs in zip(model.top_k(X, **given), elsewhere.top_k(X, **given), strict=True):
            assert np.array_equal(mine, theirs)
    for novelty in (0.0, 0.4):
        histories = Rows.of(X)
        answers = (
            rank(m.fitted_, Runtime.of(m), histories, 5, Eligible(histories, hidden), more_novelty=novelty)
            for m in (model, elsewhere)
        )
        for mine, theirs in zip(*answers, strict=True):
            assert np.array_equal(mine, theirs)
    there: Any = elsewhere.fitted_.learned
    assert isinstance(there._rankers[elsewhere.device], ranking.DeviceRanker)
    assert not pickle.loads(pickle.dumps(there))._rankers
