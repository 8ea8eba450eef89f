"""Popularity and ItemKNN against plain numpy."""

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MemoryPlanError
from mrfrec.models import ItemKNN

from matrices import Matrix, random_matrix


def cosine_weights(
    X: Matrix, neighbors: int, shrink: float, user_weight: float = 0.5, normalize: bool = False
) -> tuple[Matrix, Matrix]:
    """B, in column i the nearness of the items nearest to item i, ties to the next; and the base scores."""
    m = X.shape[1]
    used = (X != 0).sum(axis=1)
    w = np.maximum(used, 1.0) ** -user_weight
    w *= used.sum() / (w @ used)
    lengths = np.sqrt(w @ (X * X))
    B = np.zeros((m, m))
    for i in range(m):
        near = []
        for step in range(1, m):
            j = (i + step) % m
            dot = float((w * X[:, i]) @ X[:, j])
            if dot > 0:
                near.append((np.float32(dot / (lengths[i] * lengths[j] + shrink)), -step, j))
        for nearness, _, j in sorted(near, reverse=True)[:neighbors]:
            B[j, i] = nearness
        if normalize and near:
            B[:, i] /= B[:, i].sum()
    mu = w @ X / w.sum()
    return B, mu - mu @ B if normalize else np.zeros(m)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("neighbors", "shrink", "user_weight"),
    [(3, 0.0, 0.0), (10, 5.0, 0.5), (1000, 0.0, 0.5)],
)
def test_weights_are_shrunk_cosines_of_the_nearest(
    real: bool, normalize: bool, neighbors: int, shrink: float, user_weight: float
) -> None:
    X = random_matrix(4, real=real)
    model = ItemKNN(neighbors=neighbors, shrink=shrink, user_weight=user_weight, normalize=normalize)
    model.fit(sp.csr_array(X))
    B, base = cosine_weights(X, neighbors, shrink, user_weight, normalize)
    np.testing.assert_allclose(model.weights_.toarray(), B, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(model.scores(sp.csr_array(X)), X @ B + base, rtol=1e-4, atol=1e-5)


def test_a_normalized_model_predicts_the_mean_where_all_neighbors_are_at_theirs() -> None:
    X = random_matrix(7, users=50, items=20)
    model = ItemKNN(neighbors=4, user_weight=0.0, normalize=True).fit(sp.csr_array(X))
    weights, mu = model.weights_.toarray(), X.mean(axis=0)
    np.testing.assert_allclose(weights.sum(axis=0), mu > 0, rtol=1e-6)  # one item has no users
    np.testing.assert_allclose(model.scores(sp.csr_array(mu[None]))[0], mu, rtol=1e-5)
    popular = model.recommend(history=[], k=3)
    assert popular["item"].to_list() == np.lexsort((np.arange(20), -mu))[:3].tolist()


def test_of_many_that_are_as_near_those_that_follow_are_taken() -> None:
    X = np.ones((1, 12))
    weights = ItemKNN(neighbors=3, shrink=0.0).fit(sp.csr_array(X)).weights_.toarray()
    for i in range(12):
        assert set(np.flatnonzero(weights[:, i])) == {(i + step) % 12 for step in (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_few_touched_items_give_the_same_as_all(real: bool) -> None:
    # Histories of two items among 300: only the touched items are visited. One long history: all are.
    rng = np.random.default_rng(3)
    X = np.zeros((400, 300))
    X[np.arange(400)[:, None], rng.integers(0, 300, (400, 2))] = 1
    X[0, :200] = 1
    X *= rng.normal(1, 1, X.shape) if real else 1
    for neighbors in (1, 7, 500):
        weights = ItemKNN(neighbors=neighbors, shrink=1.0).fit(sp.csr_array(X)).weights_.toarray()
        np.testing.assert_allclose(weights, cosine_weights(X, neighbors, 1.0)[0], rtol=1e-6)


def test_what_does_not_fit_is_refused_before_it_is_begun() -> None:
    X = sp.csr_array(random_matrix(5, users=100, items=400))
    with pytest.raises(MemoryPlanError, match="fewer neighbors"):
        ItemKNN(neighbors=400, memory_limit="13MB").fit(X)
