"""Models that score by vectors: rankings against plain numpy, and what does not change them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec.answers import selection
from mrfrec.core.rows import Rows
from mrfrec.fitted import scorers
from mrfrec_lab.models import MultDAE
from mrfrec_lab.models.latent import VectorScorer

from matrices import random_matrix

M, D = 40, 6
Array = npt.NDArray[Any]


def problem(n: int, dtype: str = "float32", seed: int = 0) -> tuple[Rows, Array, Array, Array]:
    """Histories, users' vectors, items' vectors, and what scores start from."""
    rng = np.random.default_rng(seed)
    histories = Rows.of(sp.csr_array((rng.random((n, M)) < 0.2).astype(dtype)))
    users, vectors = (rng.normal(size=(rows, D)).astype(dtype) for rows in (n, M))
    return histories, users, vectors, rng.normal(size=M).astype(dtype)


def scores_of(users: Array, vectors: Array, start: Array) -> Array:
    nobody = Rows.empty(len(users), len(vectors))
    return selection.score(VectorScorer(nobody, users, vectors), start, 2)


def top_k(
    histories: Rows, users: Array, vectors: Array, start: Array, k: int, order: Array,
    exclude_seen: bool = True, threads: int = 2,
) -> tuple[Array, Array]:  # fmt: skip
    hidden = histories if exclude_seen else None
    scorer = VectorScorer(histories, users, vectors)
    return selection.top_k(scorer, k, scorers.Base(start, order), hide=hidden, threads=threads)[:2]


def naive_top_k(
    histories: Rows, scores: Array, k: int, order: Array, exclude_seen: bool
) -> tuple[Array, Array]:
    items, best = np.full((len(scores), k), -1), np.full((len(scores), k), -np.inf)
    for u, row in enumerate(scores):
        seen = set(histories.items[histories.ptr[u] : histories.ptr[u + 1]].tolist()) if exclude_seen else ()
        left = [i for i in range(len(row)) if i not in seen and row[i] > -np.inf]
        chosen = sorted(left, key=lambda i: (-row[i], order[i]))[:k]
        items[u, : len(chosen)], best[u, : len(chosen)] = chosen, row[chosen]
    return items, best


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("k", [1, 7, M])
@pytest.mark.parametrize("n", [5, 70])
def test_the_best_are_those_of_plain_numpy(n: int, k: int, exclude_seen: bool) -> None:
    histories, users, vectors, start = problem(n)
    start[[3, 20]] = -np.inf
    order = np.random.default_rng(1).permutation(M).astype(np.int32)
    found = top_k(histories, users, vectors, start, k, order, exclude_seen=exclude_seen)
    scores = scores_of(users, vectors, start)
    items, best = naive_top_k(histories, scores, k, order, exclude_seen)
    np.testing.assert_array_equal(found[0], items)
    np.testing.assert_array_equal(found[1], best.astype(np.float32))


@pytest.mark.parametrize("d", [1, 100])
def test_a_user_alone_among_few_and_among_many_gets_the_same_to_the_bit(d: int) -> None:
    rng = np.random.default_rng(2)
    m, n = 700, 90
    users, vectors = (rng.normal(size=(rows, d)).astype(np.float32) for rows in (n, m))
    start, order = np.zeros(m, np.float32), np.arange(m, dtype=np.int32)
    nothing = Rows(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), m)

    def best(chosen: Array, threads: int = 2) -> tuple[Array, Array]:
        rows = nothing.take(chosen)
        return top_k(rows, users[chosen], vectors, start, 20, order, threads=threads)

    items, scores = best(np.arange(n))
    assert n > scorers.FEW
    mixed = rng.permutation(n)
    for chosen in (mixed, mixed[:16], mixed[:17], mixed[40:41], np.repeat(mixed[:3], 30)):
        for threads in (1, 2):
            found = best(chosen, threads)
            np.testing.assert_array_equal(found[0], items[chosen])
            np.testing.assert_array_equal(found[1], scores[chosen])
        whole = scores_of(users[chosen], vectors, start)
        np.testing.assert_array_equal(np.take_along_axis(whole, items[chosen], 1), scores[chosen])


@pytest.mark.parametrize("n", [2, 40])
def test_ties_go_by_the_order(n: int) -> None:
    histories = Rows(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), 5)
    order = np.array([4, 2, 0, 3, 1], np.int32)
    vectors = np.array([[1.0], [2], [2], [1], [2]], np.float32)
    items, scores = top_k(histories, np.ones((n, 1), np.float32), vectors, np.zeros(5, np.float32), 4, order)
    assert items.tolist() == [[2, 4, 1, 3]] * n
    assert scores.tolist() == [[2.0, 2.0, 2.0, 1.0]] * n


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
