"""Low rank is what numpy's decomposition gives; exposure is what counting gives."""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, MemoryPlanError, NotFittedError, ParameterError
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.evaluation.protocol import Comparison, compare, evaluate
from mrfrec.evaluation.splits import Questions, Split, leave_out
from mrfrec.io.tables import read_events
from mrfrec.paper import side_checks
from mrfrec.paper.side_checks import exposure, low_rank

import naive_evaluation as naive
from conftest import random_matrix

METRICS = ["ndcg@10", "recall@5"]
RANKS = [20, 3, 8]


def split_of(X: npt.NDArray[Any]) -> Split:
    user, item = np.nonzero(X)
    return leave_out(read_events(pl.DataFrame({"user": user, "item": item})), k=2)


@pytest.fixture(scope="module")
def split() -> Split:
    return split_of(random_matrix(4, users=150))


MODELS = [
    MRF.paper(sparsity=None, l2=5.0, dtype="float64"),
    MRF.paper(sparsity=None, l2=5.0, dtype="float64", offset=True),
    MRF.paper(sparsity=0.2, l2=5.0, dtype="float64"),
    MRF.paper(sparsity=None, l2=5.0),
]


def had(X: sp.csr_array, user: int) -> set[int]:
    return set(X.indices[X.indptr[user] : X.indptr[user + 1]].tolist())


def naive_low_rank(model: MRF, questions: Questions, rank: int) -> dict[str, list[float]]:
    B = model.weights_.toarray() if model.is_sparse else model.weights_
    U, s, Vt = np.linalg.svd(B.astype(np.float64))
    s[rank:] = 0.0
    cut = U @ np.diag(s) @ Vt
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for user in range(len(questions)):
        x = questions.shown[[user]].toarray()[0].astype(np.float64)
        scores = model.mean_ + (x - model.mean_) @ cut if model.offset else x @ cut
        shown, targets = had(questions.shown, user), had(questions.targets, user)
        ranked = naive.ranking(scores.tolist(), shown, 10)
        found["ndcg@10"].append(naive.ndcg(ranked, targets, 10))
        found["recall@5"].append(naive.recall(ranked, targets, 5))
    return found


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_low_rank_equals_the_decomposition_by_hand(model: MRF, split: Split) -> None:
    model.fit(split.training)
    found = low_rank(model, split.test, RANKS, METRICS)
    assert [evaluation.model for evaluation in found.evaluations] == [
        "full rank", "rank 20", "rank 8", "rank 3",
    ]  # fmt: skip
    for rank in RANKS:
        expected = naive_low_rank(model, split.test, rank)
        for metric in METRICS:
            # In float32 two items of a user may be too near to tell apart.
            close = np.isclose(found[f"rank {rank}"].per_user(metric), expected[metric])
            assert close.all() if model.dtype == "float64" else close.mean() > 0.98


def test_the_first_is_the_model_as_it_is(split: Split) -> None:
    model = MRF.paper(sparsity=0.2).fit(split.training)
    same = evaluate(model, split, METRICS)
    full = low_rank(model, split.test, [4], METRICS).evaluations[0]
    for metric in METRICS:
        np.testing.assert_array_equal(full.per_user(metric), same.per_user(metric))
    np.testing.assert_array_equal(full.recommended, same.recommended)


def test_all_ranks_together_are_the_model_as_it_is(split: Split) -> None:
    model = MRF.paper(sparsity=None, dtype="float64").fit(split.training)
    m = split.training.n_items
    found = low_rank(model, split.test, [m], METRICS)
    for metric in METRICS:
        np.testing.assert_allclose(found[f"rank {m}"].per_user(metric), found["full rank"].per_user(metric))
    assert found[f"rank {m}"].facts["energy"] == pytest.approx(1.0)


def test_each_rank_says_what_it_keeps_and_what_it_recommended(split: Split) -> None:
    model = MRF.paper(sparsity=None).fit(split.training)
    found = low_rank(model, split.test, RANKS, METRICS)
    s = np.linalg.svd(model.weights_.astype(np.float64), compute_uv=False)
    for rank in RANKS:
        evaluation = found[f"rank {rank}"]
        assert evaluation.facts["rank"] == rank
        assert evaluation.facts["energy"] == pytest.approx(np.sum(s[:rank] ** 2) / np.sum(s**2), rel=1e-5)
        assert evaluation.recommended.sum() == found.evaluations[0].recommended.sum()
        assert set(evaluation.seconds) == {"decomposition"}


def test_batches_of_users_change_nothing(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MRF.paper(sparsity=0.3, dtype="float64").fit(split.training)
    told: list[tuple[str, int, int]] = []
    whole = low_rank(model, split.test, RANKS, METRICS)
    monkeypatch.setattr(side_checks, "_USERS_AT_ONCE", 7)  # also below what is ranked in plain numpy
    parts = low_rank(model, split.test, RANKS, METRICS, progress=lambda *step: told.append(step))
    for one, other in zip(whole.evaluations, parts.evaluations, strict=True):
        for metric in METRICS:
            np.testing.assert_allclose(one.per_user(metric), other.per_user(metric))
    stage, done, total = told[-1]
    assert (stage, done) == ("measuring", total)
    assert {stage for stage, _, _ in told} == {"decomposing", "measuring"}


def test_ties_by_popularity_put_the_more_popular_first(split: Split) -> None:
    model = MRF.paper(sparsity=None).fit(split.training)
    model._weights.array[:] = 0.0  # type: ignore[union-attr]
    by_index = low_rank(model, split.test, [2], ["popularity@5"], ties="index")["rank 2"]
    by_popularity = low_rank(model, split.test, [2], ["popularity@5"])["rank 2"]
    assert by_popularity.mean("popularity@5").mean > by_index.mean("popularity@5").mean
    assert by_index.facts["energy"] == 0.0


@pytest.mark.parametrize("sparsity", [None, 0.1])
def test_the_randomized_decomposition_is_as_good_as_the_exact_one(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = split_of(random_matrix(7, users=300, items=200))
    model = MRF.paper(sparsity=sparsity, l2=20.0).fit(big.training)
    # The spectrum of noise is flat; that of data is not.
    fade = sp.diags_array(np.geomspace(1.0, 1e-6, len(model.items_), dtype=np.float32))
    B = fade @ model.weights_
    model._weights = Rows.of(B.tocsr()) if model.is_sparse else DenseRows(B)
    ranks = [5, 20, 40]
    exact = low_rank(model, big.test, ranks, METRICS)
    monkeypatch.setattr(side_checks, "_EXACT", 100)
    near = low_rank(model, big.test, ranks, METRICS)
    again = low_rank(model, big.test, ranks, METRICS)
    for rank in ranks:
        name = f"rank {rank}"
        assert near[name].facts["energy"] == pytest.approx(exact[name].facts["energy"], abs=1e-3)
        for metric in METRICS:
            assert near[name].mean(metric).mean == pytest.approx(exact[name].mean(metric).mean, abs=1e-3)
            np.testing.assert_array_equal(near[name].per_user(metric), again[name].per_user(metric))


def test_the_randomized_decomposition_works_up_to_full_rank(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_checks, "_EXACT", 1)
    m = split.training.n_items
    model = MRF.paper(sparsity=None, dtype="float64").fit(split.training)
    found = low_rank(model, split.test, [m, 3], METRICS)
    for metric in METRICS:
        np.testing.assert_allclose(found[f"rank {m}"].per_user(metric), found["full rank"].per_user(metric))
    model = MRF.paper(sparsity=0.05, dtype="float64").fit(split.training)  # many of its columns are empty
    assert low_rank(model, split.test, [m], METRICS)[f"rank {m}"].facts["energy"] == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [[], [0], [46], [2.5]])
def test_ranks_that_cannot_be_are_refused(ranks: list[Any], split: Split) -> None:
    model = MRF.paper(sparsity=0.2).fit(split.training)
    with pytest.raises(ParameterError, match="ranks must be"):
        low_rank(model, split.test, ranks, METRICS)


def test_what_low_rank_cannot_use_is_refused(split: Split) -> None:
    with pytest.raises(ParameterError, match="model must be an MRF"):
        low_rank("model", split.test, [2])  # type: ignore[arg-type]
    with pytest.raises(NotFittedError):
        low_rank(MRF.paper(), split.test, [2])
    other = split_of(random_matrix(5, items=60))
    with pytest.raises(DataError, match="the questions are about"):
        low_rank(MRF.paper(sparsity=None).fit(split.training), other.test, [2])


def test_factors_that_do_not_fit_in_memory_are_refused(split: Split) -> None:
    model = MRF.paper(sparsity=0.2).fit(split.training)
    model.memory_limit = 10_000
    with pytest.raises(MemoryPlanError, match=r"low_rank needs about .* Ask for smaller ranks"):
        low_rank(model, split.test, [2], METRICS)


# Exposure.


@pytest.fixture(scope="module")
def comparison(split: Split) -> Comparison:
    return compare({"dense": MRF.paper(sparsity=None), "sparse": MRF.paper(sparsity=0.1)}, split, ["ndcg@10"])


def naive_shares(popularity: list[int], counts: list[int], groups: int) -> list[float]:
    m = len(popularity)
    order = sorted(range(m), key=lambda item: (-popularity[item], item))
    shares = [0.0] * groups
    for place, item in enumerate(order):
        group = max(g for g in range(groups) if g * m <= place * groups)
        shares[group] += counts[item] / sum(counts)
    return shares


def test_exposure_equals_counting_item_by_item(split: Split, comparison: Comparison) -> None:
    groups = 10
    found = exposure(comparison, split.test)
    popularity = split.training.popularity.tolist()
    wanted = [0] * split.training.n_items
    for user in range(len(split.test)):
        for item in had(split.test.targets, user):
            wanted[item] += 1
    for evaluation in comparison.evaluations:
        expected = naive_shares(popularity, evaluation.recommended.tolist(), groups)
        np.testing.assert_allclose(found.models[evaluation.model], expected)
    np.testing.assert_allclose(found.training, naive_shares(popularity, popularity, groups))
    assert found.targets is not None
    np.testing.assert_allclose(found.targets, naive_shares(popularity, wanted, groups))
    assert (found.places, len(found.items), found.split) == (10, groups, split.name)
    assert found.items.sum() == split.training.n_items
    assert found.items.max() - found.items.min() <= 1
