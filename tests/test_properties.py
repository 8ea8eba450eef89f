"""What must hold for any data."""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import naive
from kinds import field

Matrix = npt.NDArray[np.float64]
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def matrices(draw: Any, *, distinct: bool = False) -> Matrix:
    """Binary or real users × items; with `distinct`, values whose covariances do not tie."""
    shape = draw(st.tuples(st.integers(2, 25), st.integers(2, 18)))
    used = draw(hnp.arrays(np.bool_, shape))
    used[0, 0] = True
    if distinct or draw(st.booleans()):
        values = np.random.default_rng(draw(st.integers(0, 2**32))).normal(1.0, 0.5, shape)
        return np.asarray(used * values)
    return np.asarray(used, np.float64)


sparse_parameters = st.fixed_dictionaries(
    {
        "threshold": st.sampled_from([0.0, 0.05, 0.3, 0.8]),
        "r": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "max_neighbors": st.sampled_from([1, 2, 5, 1000]),
        "alpha": st.sampled_from([0.0, 0.5, 0.75, 1.0]),
        "center": st.booleans(),
        "user_weight": st.sampled_from([0.0, 0.5]),
    }
)


def fit(X: Matrix, threshold: float | None = None, **parameters: Any) -> Any:
    """Fit with the sparsity that keeps what is above a threshold."""
    if threshold is not None:
        of_moments = {name: x for name, x in parameters.items() if name in ("alpha", "center", "user_weight")}
        parameters["sparsity"] = naive.share_above(naive.moments(X, **of_moments).S, threshold)
    return field(l2=0.9, dtype="float64", **parameters).fit(sp.csr_array(X))


@SETTINGS
@given(matrices(), sparse_parameters)
def test_sparse_fit_equals_naive(X: Matrix, parameters: dict[str, Any]) -> None:
    model = fit(X, **parameters)
    B, A, n_blocks, _ = naive.sparse(X, 0.9, **{**parameters, "threshold": model.threshold_})
    np.testing.assert_array_equal(model.pattern_.toarray(), A)
    assert model.n_blocks_ == n_blocks
    np.testing.assert_allclose(model.weights_.toarray(), B, atol=1e-9)


@SETTINGS
@given(matrices(), st.booleans())
def test_dense_fit_equals_naive_with_a_zero_diagonal(X: Matrix, center: bool) -> None:
    B = fit(X, center=center).weights_
    assert not B.diagonal().any()
    np.testing.assert_allclose(B, naive.dense(X, 0.9, center=center), atol=1e-9)


@SETTINGS
@given(matrices(distinct=True), st.sampled_from([0.0, 0.5, 1.0]))
def test_pattern_that_keeps_everything_equals_dense(X: Matrix, r: float) -> None:
    X = X[:, X.std(axis=0) > 0]
    S = naive.moments(X).S if X.shape[1] else np.zeros((0, 0))
    if X.shape[1] < 2 or np.abs(S).min() < 1e-9:
        return
    sparse = fit(X, sparsity=1.0, r=r)
    assert not sparse.weights_.diagonal().any()
    np.testing.assert_allclose(sparse.weights_.toarray(), fit(X).weights_, atol=1e-9)


@SETTINGS
@given(matrices(distinct=True), st.integers(0, 2**32), st.booleans())
def test_permuting_items_permutes_the_weights(X: Matrix, seed: int, sparse: bool) -> None:
    # Identical magnitudes are ordered by index, and so are not expected to follow a permutation.
    size = np.abs(naive.moments(X).S).astype(np.float32)
    pairs = size[np.triu_indices(len(size), 1)]
    if sparse and len(np.unique(pairs)) < len(pairs):
        return
    order = np.random.default_rng(seed).permutation(X.shape[1])
    parameters = {"threshold": 0.2, "r": 0.0} if sparse else {}
    B, permuted = fit(X, **parameters).weights_, fit(X[:, order], **parameters).weights_
    if sparse:
        B, permuted = B.toarray(), permuted.toarray()
    np.testing.assert_allclose(permuted, B[np.ix_(order, order)], atol=1e-9)


@SETTINGS
@given(matrices(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
def test_rescaling_equals_unscaled_fit_with_ridge_of_variance(X: Matrix, alpha: float) -> None:
    X = X[:, X.std(axis=0) > 1e-6]
    if X.size == 0:
        return
    centered = X - X.mean(axis=0)
    C = np.linalg.inv(centered.T @ centered + np.diag(0.9 * (centered**2).sum(axis=0) ** alpha))
    expected = -C / np.diag(C)
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(fit(X, alpha=alpha).weights_, expected, atol=1e-8)


@SETTINGS
@given(matrices(), sparse_parameters, st.integers(2, 4))
def test_threads_do_not_change_a_bit(X: Matrix, parameters: dict[str, Any], threads: int) -> None:
    one, several = fit(X, threads=1, **parameters).weights_, fit(X, threads=threads, **parameters).weights_
    np.testing.assert_array_equal(one.toarray(), several.toarray())


@SETTINGS
@given(matrices(), st.integers(1, 18), st.booleans(), st.booleans())
def test_top_k_is_the_sorted_head_of_the_scores(X: Matrix, k: int, sparse: bool, exclude: bool) -> None:
    k = min(k, X.shape[1])
    model = fit(X, **({"threshold": 0.1} if sparse else {}))
    history = sp.csr_array(X)
    items, scores = model.top_k(history, k, exclude_seen=exclude)
    every = model.scores(history)
    expected = naive.top_k(every, X if exclude else np.zeros_like(X), k)
    np.testing.assert_array_equal(items, expected)
    for row in range(len(X)):
        shown = items[row] >= 0
        np.testing.assert_array_equal(scores[row][shown], every[row][items[row][shown]])
        assert np.isneginf(scores[row][~shown]).all()
