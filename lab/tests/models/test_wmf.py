"""WMF against alternating least squares in plain numpy, and what it refuses."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import (
    DataError,
    MemoryPlanError,
    MissingLibraryError,
    ModelFileError,
    MrfrecWarning,
    load,
)
from mrfrec_lab.models import WMF

from kinds import relearn
from matrices import random_matrix

Matrix = npt.NDArray[Any]


def half_step(X: Matrix, Y: Matrix, weight: float, l2: float) -> Matrix:
    """For each row of X, the vector that minimises Σ_i c_i (p_i − xᵀy_i)² + λ‖x‖², c = 1 + α·value."""
    C, P = 1 + weight * X, (X > 0).astype(np.float64)
    return np.array(
        [
            np.linalg.solve(Y.T @ np.diag(c) @ Y + l2 * np.eye(Y.shape[1]), Y.T @ (c * p))
            for c, p in zip(C, P, strict=True)
        ]
    )


@pytest.fixture(name="X", scope="module", params=["binary", "values"])
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return np.abs(random_matrix(5, users=80, items=30, real=request.param == "values"))


def trained(X: Matrix, **parameters: Any) -> WMF:
    return WMF(**{"factors": 4, "l2": 3.0, "weight": 5.0, "threads": 1, **parameters}).fit(sp.csr_array(X))


def test_training_ends_where_alternating_least_squares_stands_still(X: Matrix) -> None:
    Y = trained(X, iterations=150).item_vectors_.astype(np.float64)
    U = half_step(X, Y, 5.0, 3.0)
    np.testing.assert_allclose(half_step(X.T, U, 5.0, 3.0), Y, atol=5e-6)
    # Another α, c = α·value, or a λ counted per pair would not stand still here.
    for weight, l2 in ((6.0, 3.0), (5.0, 4.0)):
        U = half_step(X, Y, weight, l2)
        assert np.abs(half_step(X.T, U, weight, l2) - Y).max() > 2e-2


def test_one_iteration_of_few_factors_is_that_of_plain_numpy(X: Matrix) -> None:
    # As many conjugate gradient steps as there are factors solve a system exactly.
    model = trained(X, factors=3, iterations=1)
    rng = np.random.default_rng(model.seed)
    rng.random((len(X), 3), dtype=np.float32)
    Y = rng.random((X.shape[1], 3), dtype=np.float32).astype(np.float64) * 0.01
    expected = half_step(X.T, half_step(X, Y, 5.0, 3.0), 5.0, 3.0)
    np.testing.assert_allclose(model.item_vectors_, expected, atol=2e-5)


def test_scores_are_those_of_the_best_vector_for_each_history(X: Matrix) -> None:
    model = trained(X)
    others = np.abs(random_matrix(8, users=25, items=30, real=True))
    for histories in (X, others):
        Y = model.item_vectors_.astype(np.float64)
        expected = half_step(histories, Y, 5.0, 3.0) @ Y.T
        np.testing.assert_allclose(model.scores(sp.csr_array(histories)), expected, rtol=1e-4, atol=1e-5)


def test_explanations_are_those_of_section_5(X: Matrix) -> None:
    model = trained(X)
    Y, user, target = model.item_vectors_.astype(np.float64), 6, 2
    had = np.flatnonzero(X[user])
    c = 1 + 5.0 * X[user]
    W = np.linalg.inv(Y.T @ np.diag(c) @ Y + 3.0 * np.eye(4))
    expected = {int(j): float(Y[target] @ W @ Y[j] * c[j]) for j in had}
    found = model.explain(target, user=user).select("item", "contribution").rows()
    assert dict(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_an_item_nobody_has_is_a_zero_vector_and_is_near_to_nothing(X: Matrix) -> None:
    model = trained(X)
    assert not X[:, 5].any()
    assert not model.item_vectors_[5].any()
    with pytest.warns(MrfrecWarning, match="fewer than k=10"):
        assert len(model.similar_items(5)) == 0


def test_blas_threads_are_as_before_and_change_nothing() -> None:
    from threadpoolctl import threadpool_info, threadpool_limits

    X = random_matrix(6, users=300, items=80)
    with threadpool_limits(2, "blas"):
        before = threadpool_info()
        two = trained(X, factors=40, threads=2)
        assert [found["num_threads"] for found in before] == [
            found["num_threads"] for found in threadpool_info() if found["filepath"] in str(before)
        ]
    with threadpool_limits(1, "blas"):
        one = trained(X, factors=40, threads=1)
    np.testing.assert_array_equal(one.item_vectors_, two.item_vectors_)
    np.testing.assert_array_equal(one.scores(sp.csr_array(X)), two.scores(sp.csr_array(X)))


def test_progress_counts_the_iterations() -> None:
    steps: list[tuple[str, int, int]] = []
    X = sp.csr_array(random_matrix(5))
    model = WMF(factors=3, iterations=4).fit(X, progress=lambda *step: steps.append(step))
    assert steps == [("training", done, 4) for done in range(5)]
    assert model.timings_["total"] >= model.timings_["train"] > 0


def test_negative_values_are_refused_in_histories() -> None:
    X = np.abs(random_matrix(5, real=True))
    model = trained(X)
    X[0, 7] = -0.5
    for ask in (
        lambda: model.recommend(history={7: -2.0, 1: 1.0}),
        lambda: model.explain(2, history={7: -2.0}),
        lambda: model.scores(sp.csr_array(X)),
    ):
        with pytest.raises(DataError, match="a history must have no negative values"):
            ask()


def test_values_beyond_single_precision_are_refused() -> None:
    X = sp.csr_array(np.array([[1e38, 1.0], [1.0, 1.0]]))
    with pytest.raises(DataError, match="Scale the values"):
        WMF(factors=2, weight=100.0).fit(X)


def test_too_little_memory_is_refused_before_training() -> None:
    with pytest.raises(MemoryPlanError, match="fewer factors"):
        WMF(memory_limit="10KB").fit(sp.csr_array(random_matrix(5)))


def test_without_the_library_training_says_what_to_install_and_answering_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(random_matrix(5))
    model.save(tmp_path / "w.mrf")
    for name in [name for name in sys.modules if name.split(".")[0] == "implicit"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "implicit", None)
    with pytest.raises(MissingLibraryError, match="pip install implicit"):
        WMF().fit(sp.csr_array(random_matrix(5)))
    loaded = load(tmp_path / "w.mrf")
    assert loaded.recommend(history=[3], k=3).equals(model.recommend(history=[3], k=3))


@pytest.mark.parametrize("part", ["gram", "vectors"])
def test_a_file_whose_parts_do_not_go_together_is_refused(part: str, tmp_path: Path) -> None:
    model = trained(random_matrix(5))
    relearn(model, **{part: getattr(model.fitted_.learned, part)[:, :3].copy()})
    model.save(tmp_path / "w.mrf")
    with pytest.raises(ModelFileError, match=part):
        load(tmp_path / "w.mrf")
