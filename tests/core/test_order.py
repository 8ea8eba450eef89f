"""Ordered pairs against the definition: what came before each entry of a history."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import NumericalError, ParameterError
from mrfrec.core import blocks, closed_form, fitting
from mrfrec.core.deciding import decide
from mrfrec.core.engine import Budget
from mrfrec.core.plan import Settings, Sizes
from mrfrec.core.rows import Rows
from mrfrec.engines.local import LocalEngine

import naive
from matrices import Places, places_of, random_matrix

Matrix = npt.NDArray[np.float64]

SETTINGS = Settings(2.0, None, 1000, 0.0, "float64", 0.75, center=True, order=0.4)


def fit(
    X: Matrix,
    places: Places | None,
    settings: Settings,
    *,
    threads: int = 2,
    F: Matrix | None = None,
    reuse: fitting.Reuse | None = None,
) -> Any:
    matrix = sp.csr_array(X)
    of_entries = None if places is None else places[np.nonzero(X)].astype(np.uint16)
    features = None if F is None else sp.csr_array(F)
    with LocalEngine(threads) as engine:
        return fitting.fit(matrix, settings, engine, steps=of_entries, features=features, reuse=reuse)


def weights(*arguments: Any, **options: Any) -> Matrix:
    B = fit(*arguments, **options).weights
    return np.asarray(B.matrix().toarray() if isinstance(B, Rows) else B.array)


def one_with_everything() -> Matrix:
    """More items than lags that count, and a user who has all of them."""
    X = np.hstack([random_matrix(3), random_matrix(4)])
    X[2] = 1.0
    return X


F = (np.random.default_rng(5).random((6, 45)) < 0.2).astype(np.float64)
DATA = {
    "binary": random_matrix(1),
    "values": random_matrix(2, real=True),
    "everything": one_with_everything(),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "binary": ("binary", {}),
    "user weights": ("binary", {"user_weight": 0.6}),
    "values": ("values", {}),
    "values and user weights": ("values", {"user_weight": 1.3}),
    "EASE": ("values", {"alpha": 0.0, "center": False}),
    "features": ("binary", {"feature_weight": 1.5}),
    "features, values": ("values", {"feature_weight": 1.5, "user_weight": 0.5}),
    "one with everything": ("everything", {}),
    "one with everything, user weights": ("everything", {"user_weight": 0.25}),
}
# A is kept in single precision.
TOLERANCE = {"float64": 1e-6, "float32": 3e-5}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_dense_equals_naive(case: str, dtype: Any, at_once: bool) -> None:
    name, parameters = CASES[case]
    X, features = DATA[name], F if "feature_weight" in parameters else None
    places = places_of(X, at_once=at_once)
    B = weights(X, places, replace(SETTINGS, dtype=dtype, **parameters), F=features)
    assert B.dtype == dtype
    given = {"alpha": 0.75, **parameters, "F": features}
    expected = naive.dense_with_order(X, places, 0.4, 2.0, **given)
    np.testing.assert_allclose(B, expected, atol=TOLERANCE[dtype] * np.abs(expected).max())
    without = naive.dense_with_order(X, places, 0.0, 2.0, **given)
    assert np.abs(expected - without).max() > 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("r", [0.0, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_sparse_equals_naive(case: str, dtype: Any, r: float) -> None:
    name, parameters = CASES[case]
    X, features = DATA[name], F if "feature_weight" in parameters else None
    places = places_of(X)
    given = {"alpha": 0.75, **parameters, "F": features}
    S = naive.moments(X, **given).S
    share = naive.share_above(S, float(np.quantile(np.abs(S), 0.8)))
    fitted = fit(X, places, replace(SETTINGS, dtype=dtype, sparsity=share, r=r, **parameters), F=features)
    expected, A, n_blocks, count = naive.sparse(
        X, 2.0, fitted.threshold, r, places=places, order=0.4, **given
    )
    np.testing.assert_array_equal(fitted.pattern.toarray(), A)
    assert fitted.n_blocks == n_blocks
    B = fitted.weights.matrix().toarray()
    assert B.dtype == dtype
    np.testing.assert_allclose(B, expected, atol=TOLERANCE[dtype] * np.abs(expected).max())
    assert (count.max() > 1) == (r > 0)  # averaged


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "r": 0.2}], ids=["dense", "sparse"])
def test_threads_change_no_bit(parameters: dict[str, Any]) -> None:
    X = np.hstack([random_matrix(seed, users=300, items=60, real=True) for seed in (3, 4, 5)])
    places, settings = places_of(X), replace(SETTINGS, dtype="float32", user_weight=0.25, **parameters)
    one, many = (weights(X, places, settings, threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(one, many)


def test_batches_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.hstack([random_matrix(seed, users=300, items=60) for seed in (3, 4, 5)])
    places, settings = places_of(X), replace(SETTINGS, sparsity=0.4, r=0.2)
    one = weights(X, places, settings)
    monkeypatch.setattr(Sizes, "worthwhile_batch", 100_000)
    passes: list[int] = []
    gather = blocks.gather_blocks

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return gather(*arguments)

    monkeypatch.setattr(blocks, "gather_blocks", counted)
    np.testing.assert_array_equal(weights(X, places, settings), one)
    assert len(passes) > 2


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "r": 0.2}], ids=["dense", "sparse"])
def test_without_order_places_change_no_bit(parameters: dict[str, Any]) -> None:
    X, settings = random_matrix(6), replace(SETTINGS, order=0.0, **parameters)
    np.testing.assert_array_equal(weights(X, places_of(X), settings), weights(X, None, settings))


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "r": 0.2}], ids=["dense", "sparse"])
def test_further_fits_with_another_order_are_those_alone(parameters: dict[str, Any]) -> None:
    X, reuse = random_matrix(7), fitting.Reuse()
    places = places_of(X)
    for order, l2 in ((0.0, 1.0), (0.4, 1.0), (0.4, 3.0), (0.8, 3.0), (0.0, 3.0)):
        settings = replace(SETTINGS, order=order, l2=l2, **parameters)
        shared = weights(X, places, settings, reuse=reuse)
        np.testing.assert_array_equal(shared, weights(X, places, settings))


def test_tiles_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    X = random_matrix(8)
    places = places_of(X)
    expected = naive.dense_with_order(X, places, 0.4, 2.0)
    for tile in (7, 16, 44, 45):
        monkeypatch.setattr(closed_form, "tile_size", lambda m, tile=tile: tile)
        np.testing.assert_allclose(weights(X, places, SETTINGS), expected, atol=1e-6)


def test_mean_constraint_is_refused() -> None:
    X = random_matrix(6)
    with pytest.raises(ParameterError, match="mean_constraint must be False where order is above 0"):
        fit(X, places_of(X), replace(SETTINGS, mean_constraint=True))


def test_twins_without_ridge_are_refused() -> None:
    X = random_matrix(1)
    places = places_of(X)
    places[:, 11] = places[:, 12]
    for sparsity, message in ((None, "not positive definite.*raise l2"), (0.3, "block of item .* raise l2")):
        with pytest.raises(NumericalError, match=message):
            fit(X, places, replace(SETTINGS, l2=0.0, sparsity=sparsity))


@pytest.mark.parametrize("parameters", [{"sparsity": None}, {"sparsity": 0.3, "r": 0.5}], ids=str)
def test_memory_is_counted(parameters: dict[str, Any]) -> None:
    sizes = Sizes(2_000, 3_000, 60_000, True, 4, 10**12)
    settings, memory = replace(SETTINGS, **{"sparsity": None, **parameters}), Budget(10**12)
    with_order = decide(settings, replace(sizes, ordered=True), memory).needed
    without = decide(replace(settings, order=0.0), sizes, memory).needed
    assert with_order >= without + 6 * sizes.pairs + (4 * 3_000**2 if "r" not in parameters else 0)
