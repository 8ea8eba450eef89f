"""Models that score by vectors: rankings against plain numpy, and what does not change them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import Interactions
from mrfrec_lab.models import MultDAE
from mrfrec_lab.side_checks import Cut

from matrices import random_matrix

M, D = 40, 6
Array = npt.NDArray[Any]


def problem(n: int, m: int = M, d: int = D) -> tuple[Any, sp.csr_array]:
    """A model with random vectors, and histories of which none is empty."""
    rng = np.random.default_rng(0)
    X = rng.random((n, m)) < 0.2
    X[:, 0] |= ~X.any(axis=1)
    left, vectors = (rng.normal(size=(m, d)).astype(np.float32) for _ in range(2))
    base = rng.normal(size=m).astype(np.float32)
    histories = sp.csr_array(X.astype(np.float32))
    return Cut(left, vectors.T, base).fit(Interactions(histories)), histories


def naive_top_k(X: Array, scores: Array, k: int, exclude_seen: bool) -> tuple[Array, Array]:
    items, best = np.full((len(scores), k), -1), np.full((len(scores), k), -np.inf)
    for u, row in enumerate(scores):
        left = [i for i in range(len(row)) if not (exclude_seen and X[u, i])]
        chosen = sorted(left, key=lambda i: (-row[i], i))[:k]
        items[u, : len(chosen)], best[u, : len(chosen)] = chosen, row[chosen]
    return items, best


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("k", [1, 7, M])
@pytest.mark.parametrize("n", [5, 70])
def test_the_best_are_those_of_plain_numpy(n: int, k: int, exclude_seen: bool) -> None:
    model, X = problem(n)
    found = model.top_k(X, k, exclude_seen=exclude_seen)
    items, best = naive_top_k(X.toarray(), model.scores(X), k, exclude_seen)
    np.testing.assert_array_equal(found[0], items)
    np.testing.assert_array_equal(found[1], best.astype(np.float32))
    learned = model.fitted_.learned
    expected = X.toarray() @ learned.left @ learned.vectors.T + learned.base_scores
    np.testing.assert_allclose(model.scores(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("d", [1, 100])
def test_a_user_alone_among_few_and_among_many_gets_the_same_to_the_bit(d: int) -> None:
    model, X = problem(90, m=700, d=d)
    items, scores = model.top_k(X, 20)
    mixed = np.random.default_rng(2).permutation(90)
    # Up to 16 users are answered one after the other, more in blocks.
    for chosen in (mixed, mixed[:16], mixed[:17], mixed[40:41], np.repeat(mixed[:3], 30)):
        for threads in (1, 2):
            model.threads = threads
            found = model.top_k(X[chosen], 20)
            np.testing.assert_array_equal(found[0], items[chosen])
            np.testing.assert_array_equal(found[1], scores[chosen])
        whole = model.scores(X[chosen])
        np.testing.assert_array_equal(np.take_along_axis(whole, items[chosen], 1), scores[chosen])


@pytest.mark.parametrize("n", [2, 40])
def test_ties_go_by_popularity_or_by_index(n: int) -> None:
    """Everybody has item 5; the vectors make pairs of items equal."""
    X = np.zeros((n, 6), np.float32)
    X[:, 5] = 1.0
    X[0] = [0, 0, 1, 1, 0, 1]
    vectors = np.array([[1.0], [2], [2], [1], [2], [0]], np.float32)
    model = Cut(np.eye(6, 1, -5, np.float32), vectors.T, np.zeros(6)).fit(Interactions(sp.csr_array(X)))
    asked = sp.csr_array(X[1:])
    every: list[tuple[Any, list[int]]] = [("index", [1, 2, 4, 0]), ("popularity", [2, 1, 4, 3])]
    for ties, expected in every:
        items, scores = model.top_k(asked, 4, ties=ties)
        assert items.tolist() == [expected] * (n - 1)
        assert scores.tolist() == [[2.0, 2.0, 2.0, 1.0]] * (n - 1)


# ── the base of such models ───────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model() -> Any:
    return MultDAE(hidden=D, epochs=1, validation=0, device="cpu").fit(
        sp.csr_array(random_matrix(3, users=50))
    )


def test_somebody_without_a_history_gets_the_most_popular_and_no_bias(model: Any) -> None:
    histories: list[list[int]] = [[], [1, 2], []]
    table = model.recommend(history=histories, k=4)
    assert table["source"].to_list() == ["popular"] * 4 + ["model"] * 4 + ["popular"] * 4
    popular = np.argsort(-model.popularity_, kind="stable")[:4].tolist()
    for user in (0, 2):
        rows = table.filter(table["user"] == user)
        assert rows["item"].to_list() == popular
        assert rows["score"].to_list() == [0.0] * 4
    hidden = model.recommend(history=[], k=3, exclude=popular[:2])["item"].to_list()
    assert hidden[:2] == popular[2:]


def test_similar_items_have_the_largest_cosines(model: Any) -> None:
    V = model.item_vectors_.astype(np.float64)
    cosines = V @ V[9] / np.linalg.norm(V, axis=1) / np.linalg.norm(V[9])
    expected = [i for i in np.argsort(-cosines).tolist() if i != 9 and cosines[i] > 0][:5]
    table = model.similar_items(9, k=5)
    assert table["item"].to_list() == expected
    np.testing.assert_allclose(table["score"], cosines[expected], rtol=1e-5)
