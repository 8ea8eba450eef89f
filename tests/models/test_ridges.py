"""EASE and EDLAE: the named settings of the MRF, against their own formulas."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec.models import EASE, EDLAE

import naive
from kinds import field
from matrices import Matrix, random_matrix


def closed_form(G: Matrix, ridge: Matrix) -> Matrix:
    """B = −C ⊘ diag(C) per column with C = (G + dMat(ridge))⁻¹, zero diagonal."""
    C = np.linalg.inv(G + np.diag(ridge))
    B = -C / np.diag(C)
    np.fill_diagonal(B, 0.0)
    return np.asarray(B)


def data(real: bool) -> Matrix:
    """With an item that everybody has, and none that nobody has: without a ridge it would be singular."""
    X = random_matrix(11, real=real)
    assert (X[:, 7] == 1).all()
    X[5, 5] = 1.0
    return X


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    ("model", "dropout", "l2"),
    [(EASE, 0.0, 1.0), (EASE, 0.0, 50.0), (EDLAE, 0.0, 3.0), (EDLAE, 0.33, 0.0), (EDLAE, 0.5, 2.0),
     (EDLAE, 0.9, 10.0)],
)  # fmt: skip
def test_weights_are_those_of_the_formula(model: Any, dropout: float, l2: float, real: bool) -> None:
    X = data(real)
    given = {"l2": l2} if model is EASE else {"l2": l2, "dropout": dropout}
    G = X.T @ X
    expected = closed_form(G, dropout / (1 - dropout) * np.diag(G) + l2)
    weights = model(**given, dtype="float64").fit(sp.csr_array(X)).weights_
    np.testing.assert_allclose(weights, expected, atol=1e-9)


def test_edlae_is_what_dropping_items_out_does_on_average() -> None:
    # The regression on inputs with items left out at random, and the rest scaled up, over many draws.
    X, p, l2 = data(False), 0.4, 5.0
    rng = np.random.default_rng(0)
    G, draws = X.T @ X, 4000
    noisy = np.zeros_like(G)
    for _ in range(draws):
        Z = X * (rng.random(X.shape) >= p) / (1 - p)
        noisy += Z.T @ Z / draws
    np.fill_diagonal(G, np.diag(noisy))
    expected = closed_form(G, np.full(len(G), l2))
    model = EDLAE(dropout=p, l2=l2, dtype="float64").fit(sp.csr_array(X))
    np.testing.assert_allclose(model.weights_, expected, atol=0.02)


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "r": 0.4}])
def test_they_are_settings_of_the_mrf(parameters: dict[str, Any]) -> None:
    X = sp.csr_array(data(False))
    flat: dict[str, Any] = {"center": False, "alpha": 0.0, **parameters}
    for named, plain in (
        (EASE(l2=7.0, **parameters), field(l2=7.0, **flat)),
        (EDLAE(dropout=0.2, l2=7.0, **parameters), field(l2=7.0, dropout=0.2, **flat)),
    ):
        weights = [model.fit(X).weights_ for model in (named, plain)]
        dense = [w.toarray() if sp.issparse(w) else w for w in weights]
        np.testing.assert_array_equal(*dense)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.75, 1.0])
def test_dropout_is_a_ridge_in_proportion_to_the_diagonal_of_s(center: bool, alpha: float) -> None:
    X = random_matrix(12)
    model = field(l2=1.5, dropout=0.3, alpha=alpha, center=center, dtype="float64").fit(sp.csr_array(X))
    found = naive.moments(X, alpha, center)
    ridge = naive.ridge(found, 1.5, dropout=0.3)
    S = found.S.copy()
    S[~found.active, ~found.active] = 0.0
    B = closed_form(S, np.where(found.active, ridge, 1.0))
    np.testing.assert_allclose(model.weights_, naive.rescale(found, B), atol=1e-9)


def test_names_and_parameters_are_their_own() -> None:
    assert repr(EASE(l2=3)) == "EASE(l2=3.0)"
    assert repr(EDLAE(dropout=0.5)) == "EDLAE(dropout=0.5)"
    assert "alpha" not in EASE().parameters
