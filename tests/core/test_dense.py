"""Eq. 4 and the Appendix against the naive truth."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import MRF, NumericalError
from mrfrec.core import closed_form

import naive
from kinds import field
from matrices import random_matrix

Matrix = npt.NDArray[np.float64]


def fit(X: Matrix, **parameters: Any) -> Any:
    return field(dtype="float64", **parameters).fit(sp.csr_array(X))


PARAMETERS: list[dict[str, Any]] = [
    {"user_weight": 0.6},
    {"user_weight": 1.3},
    {"mean_constraint": True},
    *({"alpha": alpha} for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)),
    *({"alpha": alpha, "center": False} for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)),
]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_dense_equals_naive(real: bool, parameters: dict[str, Any]) -> None:
    X = random_matrix(4, real=real)
    B = fit(X, l2=2.0, **parameters).weights_
    np.testing.assert_allclose(
        B, naive.dense(X, 2.0, **parameters), atol=1e-10 if "mean_constraint" in parameters else 1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.75, 1.0])
def test_weights_are_those_of_the_paper_as_written_with_its_unit_of_lambda(alpha: float) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((500, 30)) < rng.random(30) / 2).astype(float)
    n, scale, l2 = len(X), X.std(axis=0) ** alpha, 6.0
    Z = (X - X.mean(axis=0)) / scale
    C = np.linalg.inv((Z.T @ Z + l2 * n**alpha * np.eye(30)) / n)  # Eq. 4, with λ = l2·n^α
    B = (np.eye(30) - C / np.diag(C)) * scale / scale[:, None]
    np.testing.assert_allclose(fit(X, l2=l2, alpha=alpha).weights_, B, rtol=0, atol=5e-15)


def test_mean_constraint_holds_and_makes_offset_and_plain_scores_agree() -> None:
    X = random_matrix(6)
    X = X[:, X.std(axis=0) > 0]
    plain = fit(X, l2=2.0, mean_constraint=True)
    np.testing.assert_allclose(plain.mean_ @ plain.weights_, plain.mean_, atol=1e-10)
    with_offset = fit(X, l2=2.0, mean_constraint=True, offset=True)
    history = sp.csr_array(X[4:14])  # a stranger, who has nothing, gets the means instead
    np.testing.assert_allclose(plain.scores(history), with_offset.scores(history), atol=1e-10)


def test_mean_constraint_does_not_depend_on_centering() -> None:
    X = random_matrix(7)[:, :5]
    centered, plain = (
        fit(X, l2=2.0, alpha=0.0, mean_constraint=True, center=center).weights_ for center in (True, False)
    )
    np.testing.assert_allclose(centered, plain, atol=1e-10)


@pytest.mark.parametrize("tile", [7, 16, 45, 64])
def test_tiles_of_any_size_give_the_same(binary: Matrix, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "tile_size", lambda m: tile)
    for mean_constraint in (False, True):
        B = fit(binary, l2=2.0, threads=3, mean_constraint=mean_constraint).weights_
        np.testing.assert_allclose(B, naive.dense(binary, 2.0, mean_constraint=mean_constraint), atol=1e-10)


def test_more_items_than_a_tile_in_both_precisions() -> None:
    X = random_matrix(8, users=500, items=700)
    expected = naive.dense(X, 5.0)
    np.testing.assert_allclose(fit(X, l2=5.0).weights_, expected, atol=1e-12)
    single = MRF.paper(l2=5.0).fit(sp.csr_array(X)).weights_
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, atol=2e-6)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("parameters", [{}, {"sparsity": 1.0, "max_neighbors": 45}], ids=["dense", "sparse"])
def test_items_without_variance_get_no_weights(real: bool, parameters: dict[str, Any]) -> None:
    """Nobody has item 5, everybody has item 7, and 20 too, with a value that cannot be represented."""
    X = random_matrix(9, real=real)
    X[:, 20] = 0.1
    model = fit(X, l2=1.0, **parameters)
    B = model.weights_.toarray() if model.is_sparse else model.weights_
    assert not B[[5, 7, 20]].any()
    assert not B[:, [5, 7, 20]].any()
    if model.is_sparse:
        assert (np.diff(model.pattern_.indptr)[[5, 7, 20]] == 1).all()


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [(None, r"not positive definite.*raise l2"), (0.3, r"block of item .* raise l2")],
    ids=["dense", "sparse"],
)
def test_twins_without_ridge_are_refused(binary: Matrix, sparsity: float | None, message: str) -> None:
    with pytest.raises(NumericalError, match=message):
        field(l2=0.0, sparsity=sparsity).fit(sp.csr_array(binary))
