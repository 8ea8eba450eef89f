"""SLIM and fsSLIM against exact regressions and scikit-learn."""

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import nnls

from mrfrec import Interactions, MemoryPlanError, MrfrecWarning, NumericalError
from mrfrec.models import ItemKNN
from mrfrec_lab.models import SLIM, FsSLIM

from matrices import Matrix, random_matrix

EXACT: dict[str, Any] = {"dtype": "float64", "tolerance": 1e-12, "passes": 100_000}


def elastic_nets(X: Matrix, l1: float, l2: float, allowed: Matrix | None = None, every: int = 1) -> Matrix:
    """The exact minimum of one regression per item, on all others or on those allowed.

    With A = XᵀX + l2·I = L·Lᵀ, it is the w ≥ 0 that minimises ‖Lᵀw − L⁻¹(Xᵀx_i − l1)‖².
    """
    m = X.shape[1]
    B = np.zeros((m, m))
    for i in range(0, m, every):
        others = [j for j in range(m) if j != i and (allowed is None or allowed[j, i])]
        if others:
            L = np.linalg.cholesky(X[:, others].T @ X[:, others] + l2 * np.eye(len(others)))
            B[others, i] = nnls(L.T, np.linalg.solve(L, X[:, others].T @ X[:, i] - l1))[0]
    return B


def test_penalties_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import ElasticNet  # takes two seconds to load

    X, l1, l2 = random_matrix(1), 1.0, 5.0
    weights = SLIM(l1=l1, l2=l2, **EXACT).fit(sp.csr_array(X)).weights_.toarray()
    net = ElasticNet(
        alpha=(l1 + l2) / len(X), l1_ratio=l1 / (l1 + l2), positive=True, fit_intercept=False, tol=1e-10,
        max_iter=10_000,
    )  # fmt: skip
    for i in (0, 7, 12):
        others = [j for j in range(X.shape[1]) if j != i]
        np.testing.assert_allclose(weights[others, i], net.fit(X[:, others], X[:, i]).coef_, atol=1e-6)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("l1", "l2"), [(1.0, 5.0), (0.5, 1.0), (0.0, 2.0), (3.0, 0.5)])
def test_weights_are_the_exact_minimum(real: bool, l1: float, l2: float) -> None:
    X = random_matrix(1, real=real)
    model = SLIM(l1=l1, l2=l2, **EXACT).fit(sp.csr_array(X))
    weights = model.weights_.toarray()
    np.testing.assert_allclose(weights, elastic_nets(X, l1, l2), atol=1e-8)
    assert (weights >= 0).all()
    assert not weights.diagonal().any()


def test_more_items_than_the_working_set_begins_with() -> None:
    # Groups of alike items: regressions with far more than 32 weights, found in several rounds.
    rng = np.random.default_rng(0)
    used = (rng.random((80, 3)) < 0.5)[:, rng.integers(0, 3, 150)] & (rng.random((80, 150)) < 0.7)
    X = used.astype(np.float64)
    weights = SLIM(l1=0.1, l2=40.0, **EXACT).fit(sp.csr_array(X)).weights_.toarray()
    assert (weights > 0).sum(axis=0).max() > 40
    expected = elastic_nets(X, 0.1, 40.0, every=10)
    np.testing.assert_allclose(weights[:, ::10], expected[:, ::10], atol=1e-7)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("neighbors", [1, 6, 20])
def test_with_feature_selection_only_the_nearest_weigh(real: bool, neighbors: int) -> None:
    X = random_matrix(2, real=real)
    knn = ItemKNN(neighbors=neighbors, shrink=0.0, user_weight=0.0)
    nearest = knn.fit(sp.csr_array(X)).weights_.toarray()
    weights = FsSLIM(neighbors=neighbors, l1=0.5, l2=2.0, **EXACT).fit(sp.csr_array(X)).weights_.toarray()
    np.testing.assert_allclose(weights, elastic_nets(X, 0.5, 2.0, nearest > 0), atol=1e-8)


def test_in_single_precision_it_is_nearly_the_same() -> None:
    X = random_matrix(4)
    weights = SLIM(l1=1.0, l2=5.0).fit(sp.csr_array(X)).weights_
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights.toarray(), elastic_nets(X, 1.0, 5.0), atol=5e-3)


def test_items_that_share_no_more_users_than_l1_have_no_weight() -> None:
    X = random_matrix(5)
    weights = SLIM(l1=4.0, l2=1.0).fit(sp.csr_array(X)).weights_.toarray()
    assert not weights[X.T @ X <= 4.0].any()
    assert weights.any()


@pytest.mark.parametrize("make", [SLIM, FsSLIM])
def test_threads_change_nothing(make: Any) -> None:
    X = sp.csr_array(random_matrix(6, users=300, items=120))
    one, two = (make(threads=threads).fit(X).weights_ for threads in (1, 2))
    assert (one != two).nnz == 0


def test_regressions_that_do_not_converge_are_counted_in_a_warning() -> None:
    X = sp.csr_array(random_matrix(8))
    with pytest.warns(MrfrecWarning, match=r"\d+ of 45 regressions did not converge within passes=1"):
        SLIM(l1=0.0, l2=0.0, passes=1, tolerance=1e-9).fit(X)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    # XᵀX takes 9 MB; of its pairs of items, 50 · 30² at most are not 0.
    X = sp.random_array((50, 1500), density=0.02, rng=9, format="csr")
    with pytest.raises(MemoryPlanError, match=r"\(gram\).*Use FsSLIM"):
        SLIM(memory_limit="5MB").fit(X)
    FsSLIM(neighbors=10, memory_limit="5MB", threads=1).fit(X)
    with pytest.raises(MemoryPlanError, match=r"\(gram\).*Use fewer users or items"):
        FsSLIM(neighbors=10, memory_limit="500KB").fit(X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_plan_is_what_a_fit_takes_where_nearly_all_pairs_are_used_together(dtype: Any) -> None:
    data = Interactions(sp.csr_array((np.random.default_rng(1).random((100, 800)) < 0.5).astype(np.float32)))
    plans = []
    for kind, more in ((SLIM, {}), (FsSLIM, {"neighbors": 10})):
        make: Any = partial(kind, l1=100.0, dtype=dtype, threads=1, **more)
        plans.append(max(make().fit(data).memory_plan_.values()))
        tracemalloc.start()
        make().fit(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # Objects of Python, which no plan counts, come and go by some per cent.
        assert 0.95 * peak <= plans[-1] <= 1.2 * peak
    assert plans[1] < 0.8 * plans[0]


def test_weights_that_do_not_fit_are_refused_as_soon_as_that_shows() -> None:
    # XᵀX takes 1 MB, and 3 MB as it is made; the 250,000 weights of alike items, 11 MB.
    X = sp.csr_array(np.ones((30, 500)) - sp.random_array((30, 500), density=0.1, rng=1).todense().round())
    with pytest.raises(MemoryPlanError, match=r"\(regress\).*Use a larger l1, or FsSLIM"):
        SLIM(l1=0.0, l2=100.0, memory_limit="8MB").fit(X)
    with pytest.raises(MemoryPlanError, match=r"\(regress\).*Use a larger l1, or fewer neighbors"):
        FsSLIM(neighbors=400, l1=0.0, l2=100.0, memory_limit="8MB").fit(X)


@pytest.mark.parametrize("make", [SLIM, FsSLIM, ItemKNN])
@pytest.mark.parametrize("size", [1e18, 3e37])
def test_values_too_large_to_compute_with_are_refused(make: Any, size: float) -> None:
    X = sp.csr_array(random_matrix(10) * size)
    with pytest.raises(NumericalError, match="too large to compute with"):
        make().fit(X)
