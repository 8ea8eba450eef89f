"""The low-rank part beside B, the novelty exponent and the automatic ridge, against the naive truth."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, Interactions, MemoryPlanError, ParameterError, load
from mrfrec.answers.ranking import top_k
from mrfrec.core import low_rank as lanczos
from mrfrec.core.low_rank import LowRank, basis_size, leading_directions
from mrfrec.core.rows import Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.scorers import Base, LowRankScorer, Selection, WeightScorer
from mrfrec.fitted.state import Runtime
from mrfrec.models.registry import build

import naive
from kinds import field
from matrices import random_matrix
from vectors import Vectors

Matrix = npt.NDArray[np.float64]


def directions(X: Matrix, rank: int, threads: int = 1, dtype: str = "float64") -> Any:
    with LocalEngine(threads) as engine:
        return leading_directions(sp.csr_array(X), rank, dtype, engine)


def tastes(users: int = 300, items: int = 330, groups: int = 6) -> Matrix:
    """Users who mostly stay within one group of items: as many large singular values as there are groups."""
    random = np.random.default_rng(5)
    same = np.arange(users)[:, None] % groups == np.arange(items)[None, :] % groups
    return (random.random((users, items)) < np.where(same, 0.15, 0.01)).astype(np.float64)


# ── singular vectors ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rank", [1, 12, 25])
@pytest.mark.parametrize("values", [False, True])
def test_directions_equal_the_exact_svd(rank: int, values: bool) -> None:
    X = random_matrix(1, users=80, items=25)
    X = X * np.random.default_rng(0).normal(size=X.shape) if values else X
    X[3], X[:, 4] = 0.0, 0.0  # a user and an item without anything
    L = directions(X, rank)
    np.testing.assert_allclose(L.between(np.arange(25), np.arange(25)), naive.low_rank(X, rank), atol=1e-9)
    assert not L.vectors[4].any()


def test_lanczos_finds_what_stands_out() -> None:
    X = tastes()
    assert basis_size(6, 330) == (16, 144)
    L = directions(X, 6).between(np.arange(330), np.arange(330))
    np.testing.assert_allclose(L, naive.low_rank(X, 6), atol=1e-7, rtol=1e-6)


def test_directions_hold_nearly_all_there_is_where_nothing_stands_out() -> None:
    X = (np.random.default_rng(2).random((400, 350)) < 0.1).astype(np.float64)
    U = directions(X, 20).vectors.T / np.sqrt(X.sum(axis=0))
    np.testing.assert_allclose(U @ U.T, np.eye(20), atol=1e-9)
    N = X / np.sqrt(X.sum(axis=1, keepdims=True)) / np.sqrt(X.sum(axis=0))
    exact = np.linalg.svd(N, compute_uv=False)[:20]
    assert np.linalg.norm(N @ U.T) ** 2 > 0.95 * (exact**2).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_directions_do_not_depend_on_threads(dtype: str) -> None:
    one, four = (directions(tastes(), 20, threads, dtype).vectors for threads in (1, 4))
    np.testing.assert_array_equal(one, four)
    assert one.dtype == dtype


def test_many_users_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the users tells the directions of all; a rare item that none of them has is left out."""
    monkeypatch.setattr(lanczos, "_SAMPLE_USERS", 100)
    monkeypatch.setattr(lanczos, "_SAMPLE_PAIRS", 1)
    X, chosen = tastes(), lanczos.sample(300, 3)
    X[:, 0] = 0.0
    X[np.setdiff1d(np.arange(300), chosen)[0], 0] = 1.0
    found, sampled = directions(X, 6), X[chosen]
    U = found.vectors.T / np.sqrt(X.sum(axis=0))
    a = np.maximum(sampled.sum(axis=0), 1.0) ** -0.5
    expected = np.linalg.svd(sampled / np.sqrt(sampled.sum(axis=1, keepdims=True)) * a)[2][:6]
    np.testing.assert_allclose(U.T @ U, expected.T @ expected, atol=1e-7)
    assert np.abs(found.vectors[0]).max() < 1e-6
    assert lanczos.sample_step(399, 10, 10**6) == 3
    assert lanczos.sample_step(1000, 1000, 1999) == 1


def test_an_exhausted_space_still_gives_directions() -> None:
    """With a few kinds of users, products soon lie within the basis, up to rounding."""
    X = np.repeat(np.kron(np.eye(3), np.ones((1, 120))), 50, axis=0)
    for dtype in ("float32", "float64"):
        U = directions(X, 3, dtype=dtype).vectors.T / np.sqrt(50)
        np.testing.assert_allclose(U @ U.T, np.eye(3), atol=1e-5)
        np.testing.assert_allclose(U.T @ U, X.T @ X / 50 / 120, atol=1e-6)


# ── scores ────────────────────────────────────────────────────────────────────────────────────────

SETTINGS: list[dict[str, Any]] = [
    {"sparsity": None, "offset": False, "novelty": 0.0, "rank": 4, "rank_weight": 0.5},
    {"sparsity": None, "offset": True, "novelty": 0.3, "rank": 0},
    {"sparsity": 0.2, "offset": True, "novelty": 0.3, "rank": 4, "rank_weight": 0.7},
    {"sparsity": 0.2, "offset": False, "novelty": -0.2, "rank": 7, "rank_weight": 2.0, "alpha": 0.0},
]


@pytest.mark.parametrize("parameters", SETTINGS)
def test_scores_are_those_of_the_formula(parameters: dict[str, Any]) -> None:
    X = random_matrix(3, users=90, items=30)
    model = MRF(l2=2.0, dtype="float64", **parameters).fit(sp.csr_array(X))
    plain = {**parameters, "novelty": 0.0, "rank": 0}
    B = MRF(l2=2.0, dtype="float64", **plain).fit(sp.csr_array(X))
    W = B.weights_.toarray() if B.is_sparse else B.weights_
    base = B.mean_ - B.mean_ @ W if parameters["offset"] else np.zeros(30)
    scores = X @ W + base
    if parameters["rank"]:
        L = naive.low_rank(X, parameters["rank"])
        weight = parameters["rank_weight"] * naive.low_rank_scale(scores, X @ L, X)
        assert model.rank_weight_ == pytest.approx(weight)
        scores = scores + weight * (X @ L)
    expected = scores * naive.novelty_factors(X.sum(axis=0), parameters["novelty"])
    np.testing.assert_allclose(model.scores(sp.csr_array(X)), expected, atol=1e-9)


def demo(**parameters: Any) -> Any:
    X = random_matrix(4, users=200, items=60)
    data = Interactions(sp.csr_array(X), range(200), range(100, 160))
    settings: dict[str, Any] = {"sparsity": 0.1, "rank": 6, "novelty": 0.15, "rank_weight": 0.5}
    return MRF(**{**settings, **parameters}).fit(data)


@pytest.fixture(scope="module", params=["float32", "float64"])
def ranked(request: pytest.FixtureRequest) -> Any:
    """A model of more vectors than lead, in which some items are alike in every respect."""
    X = tastes()
    X[:, 300:] = X[:, :30]
    X[7, :-2] = 1.0  # somebody with nearly everything
    return MRF(sparsity=0.05, rank=60, dtype=request.param).fit(sp.csr_array(X))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "novelty": 0.4, "exclude": list(range(0, 330, 3))},
        {"exclude_seen": False, "novelty": -0.3},
        {"k": 5, "allow": list(range(40))},
    ],
)
@pytest.mark.filterwarnings("ignore:.*fewer than k")
def test_one_answer_and_many_have_the_same_bits(ranked: MRF, options: dict[str, Any]) -> None:
    """One user and many are ranked by two ways of leaving items out."""
    every = ranked.recommend(**options)
    for user in range(0, 300, 7):
        expected = every.filter(every["user"] == user).rows()
        assert ranked.recommend([user], **options).rows() == expected


def test_one_answer_computes_the_scores_of_few_items(ranked: Any) -> None:
    rows = Rows.of(sp.csr_array(tastes()[:1]))
    scorer, base = ranked.fitted_.learned.scorer(rows, Runtime.of(ranked)), ranked.fitted_.learned.base_scores
    every = scorer.scores(0, 1, base)[0]
    some = scorer.scores(0, 1, base, Selection(5, rows))[0]
    found = np.flatnonzero(some > -np.inf)
    np.testing.assert_array_equal(some[found], every[found])
    assert 5 <= len(found) < 35  # of 330
    assert set(np.argsort(-np.where(tastes()[0] > 0, -np.inf, every))[:5]) <= set(found)


HARD: dict[str, dict[str, Any]] = {
    "as usual": {},
    "all items alike": {"vectors": np.ones((400, 6)), "weights": 0.0},
    "no vectors": {"vectors": np.zeros((400, 6))},
    "some without vectors": {"vectors": np.where(np.arange(400)[:, None] % 3, 1.0, 0.0) * np.ones((1, 6))},
    "one item": {"items": 1, "had": 1},
    "one component": {"rank": 1},
    "a history of one": {"had": 1},
    "a history of nearly all": {"items": 12_000, "rank": 3, "had": 11_990},
    "vectors far above weights": {"scale": 1e6},
    "weights far above vectors": {"scale": 1e-6},
    "values near the end of float32": {"value": 1e-36, "weights": 0.0},
    "values whose squares are zero": {"value": 1e-25, "weights": 0.0},
    "negative values": {"value": -2.0},
    "other factors": {"factor": True},
    "nobody hidden": {"hides": False},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", HARD)
def test_the_best_of_hard_cases_are_those_of_all_scores(case: str, dtype: str) -> None:
    """One user, two and many, beside the scores of all items."""
    given = HARD[case]
    random, m = np.random.default_rng(7), given.get("items", 400)
    V = given.get("vectors", given.get("scale", 1.0) * random.normal(size=(m, given.get("rank", 12))))
    V = np.ascontiguousarray(np.repeat(V, 2, axis=0)[: len(V)], dtype)  # neighbours are alike
    low = LowRank(V, random.random(m).astype(dtype))
    W = sp.random_array((m, m), density=8 / (m + 7), format="csr", rng=random)
    W.data = given.get("weights", 1.0) * random.integers(-2, 3, W.nnz)
    W.indices, W.indptr = W.indices.astype(np.int32), W.indptr.astype(np.int32)  # as compiled ahead
    B, had = Rows.of(W.astype(dtype)), np.sort(random.choice(m, given.get("had", 20), replace=False))
    X = np.zeros((1, m))
    X[0, had] = given.get("value", 1.0)
    history = sp.csr_array(X)
    factor = random.random(m).astype(dtype) + 0.5 if "factor" in given else None
    base = Base(np.zeros(m, dtype), random.permutation(m).astype(np.int32), factor)

    def scorer(users: int) -> LowRankScorer:
        rows = Rows.of(sp.csr_array(sp.vstack([history] * users)))
        return LowRankScorer(rows, WeightScorer(rows, B, dtype), low)

    def best(of: LowRankScorer, k: int) -> list[Any]:
        hide = of.histories if given.get("hides", True) else None
        items, scores, _ = top_k(of, k, base, hidden=hide, runtime=Runtime(1))
        return [items[-1].tolist(), scores[-1].tolist()]

    scores = scorer(1).scores(0, 1, base.start)[0] * (1 if factor is None else factor)
    if given.get("hides", True):
        scores[history.indices] = -np.inf
    order = np.lexsort((base.order, -scores))
    for k in {1, min(10, m), min(400, m)}:
        there = scores[order[:k]] > -np.inf
        expected = [np.where(there, order[:k], -1).tolist(), scores[order[:k]].tolist()]
        for users in (1, 2, 17):
            assert best(scorer(users), k) == expected, (users, k)


@pytest.mark.parametrize("novelty", [None, 0.4])
@pytest.mark.parametrize("parameters", [{}, {"offset": False, "rank": 0}, {"sparsity": None}])
def test_reasons_add_up_to_the_score(novelty: float | None, parameters: dict[str, Any]) -> None:
    model = demo(dtype="float64", **parameters)
    for row in model.recommend([0, 1], k=5, novelty=novelty).rows(named=True):
        reasons = model.explain(row["item"], user=row["user"], novelty=novelty)
        assert reasons["contribution"].sum() == pytest.approx(row["score"], abs=1e-9)


def test_an_item_does_not_recommend_itself() -> None:
    model = demo(sparsity=None, dtype="float64")
    assert model.explain(100, history=[100])["contribution"].to_list()[0] == 0.0
    scores = model.scores(sp.csr_array(np.eye(60)))
    np.testing.assert_allclose(np.diag(scores), model.fitted_.learned.base_scores, atol=1e-9)


@pytest.mark.parametrize("kind", ["MRF", "ItemKNN"])
def test_novelty_when_asking_is_that_of_a_fit(kind: str) -> None:
    X = sp.csr_array(random_matrix(6, users=150, items=40))
    if kind == "MRF":
        for asked in (0.0, -0.1):
            new = demo(novelty=asked).recommend(k=10)
            asked_for = demo(novelty=0.15).recommend(k=10, novelty=asked)
            np.testing.assert_allclose(new["score"], asked_for["score"], rtol=2e-5, atol=1e-6)
    model = build(kind, {}).fit(X)
    plain, novel = model.recommend(k=5), model.recommend(k=5, novelty=0.5)
    popularity = model.popularity_
    assert popularity[novel["item"].to_numpy()].mean() < popularity[plain["item"].to_numpy()].mean()


def test_similar_items_have_the_low_rank_part_and_no_novelty() -> None:
    """With a few items per column, most similarities come from the low-rank part."""
    alone, both = demo(rank=0, sparsity=0.02), demo(sparsity=0.02)
    assert len(both.similar_items(100, k=20)) > 2
    with pytest.warns(UserWarning, match="fewer than k=20"):
        assert len(alone.similar_items(100, k=20)) < 20
    novel = demo(sparsity=0.02, novelty=0.5).similar_items(100, k=10)
    np.testing.assert_allclose(novel["score"], both.similar_items(100, k=10)["score"], rtol=1e-4)


def test_file_and_pickle_hold_the_low_rank_part(tmp_path: Path) -> None:
    model = demo()
    model.save(tmp_path / "m.mrf", include_histories=True)
    for other in (load(tmp_path / "m.mrf"), pickle.loads(pickle.dumps(model))):
        assert other.recommend(k=5, novelty=0.2).rows() == model.recommend(k=5, novelty=0.2).rows()
        assert getattr(other, "rank_weight_") == model.rank_weight_ > 0  # noqa: B009


def test_refusals() -> None:
    with pytest.raises(ParameterError, match=r"rank must be at most .*, 60 for this data; got 61"):
        demo(rank=61)
    with pytest.raises(ParameterError, match="novelty must be between -1 and 1; got 2"):
        demo().recommend(novelty=2)
    with pytest.raises(DataError, match="a Vectors takes no novelty"):
        Vectors(factors=4).fit(sp.csr_array(random_matrix(7))).recommend(novelty=0.1)
    with pytest.raises(MemoryPlanError, match=r"\(low rank\).*Use a smaller rank, or rank=0"):
        MRF(rank=1000, sparsity=0.0001, memory_limit="1GB").fit(sp.eye_array(100_000, format="csr"))


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("user_weight", [0.0, 0.5])
def test_the_automatic_ridge_is_that_of_the_formula(center: bool, alpha: float, user_weight: float) -> None:
    X = random_matrix(8, users=70, items=20) * np.random.default_rng(1).integers(1, 6, (70, 20))
    model = field(l2="auto", center=center, alpha=alpha, user_weight=user_weight).fit(sp.csr_array(X))
    assert model.plan_.l2 == pytest.approx(naive.auto_l2(X, alpha, center, user_weight))


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.2, "rank": 5}, {"alpha": 0.25, "offset": False}])
def test_defaults_do_not_depend_on_the_unit_of_values(parameters: dict[str, Any]) -> None:
    X = random_matrix(9, users=70, items=25)
    one, thousand = (MRF(dtype="float64", **parameters).fit(sp.csr_array(f * X)) for f in (1.0, 1000.0))
    np.testing.assert_allclose(
        thousand.scores(sp.csr_array(1000 * X)), 1000 * one.scores(sp.csr_array(X)), rtol=1e-7
    )


def test_the_papers_model_has_a_name() -> None:
    X = sp.csr_array(random_matrix(10))
    paper = MRF.paper(dtype="float64").fit(X)
    np.testing.assert_allclose(paper.weights_, naive.dense(X.toarray(), 6.0, 0.75), atol=1e-12)
    np.testing.assert_allclose(paper.scores(X), X @ paper.weights_, atol=1e-12)
    assert MRF.paper(l2=1.0).parameters["l2"] == 1.0
