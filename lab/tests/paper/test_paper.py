"""Low rank as numpy decomposes, exposure as counting gives, the trade-off as plain evaluations."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, MemoryPlanError, NotFittedError, ParameterError
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.evaluation import protocol
from mrfrec.evaluation.protocol import Comparison, compare, evaluate, fit_and_evaluate
from mrfrec.evaluation.questions import Questions, Split
from mrfrec.evaluation.splits import leave_out
from mrfrec_lab.paper import exposure, low_rank, side_checks, tradeoff
from mrfrec_lab.paper.results import of_tradeoff

import naive_evaluation as naive
from kinds import relearn
from matrices import events_of, random_matrix

METRICS = ["ndcg@10", "recall@5"]
RANKS = [20, 3, 8]


@pytest.fixture(scope="module")
def split() -> Split:
    return leave_out(events_of(random_matrix(4, users=150)), k=2)


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


@pytest.mark.parametrize("model", MODELS, ids=["dense", "offset", "sparse", "float32"])
def test_low_rank_equals_the_decomposition_by_hand(model: MRF, split: Split) -> None:
    """The first is the model as it is; so is the one of all ranks together."""
    m = split.training.n_items
    found = low_rank(model.fit(split.training), split.test, [*RANKS, m], METRICS)
    assert list(found) == ["full rank", f"rank {m}", "rank 20", "rank 8", "rank 3"]
    full, same = found["full rank"], evaluate(model, split, METRICS)
    assert full.recommended.tolist() == same.recommended.tolist()
    assert all((full.per_user(metric) == same.per_user(metric)).all() for metric in METRICS)
    B = model.weights_.toarray() if model.is_sparse else model.weights_
    squares = np.linalg.svd(B.astype(np.float64), compute_uv=False) ** 2
    for rank in RANKS if model.is_sparse else (m, *RANKS):  # all ranks of few weights: many scores are 0
        cut, expected = found[f"rank {rank}"], naive_low_rank(model, split.test, rank)
        for metric in METRICS:
            # In float32 two items of a user may be too near to tell apart.
            close = np.isclose(cut.per_user(metric), expected[metric])
            assert close.all() if model.dtype == "float64" else close.mean() > 0.98
        assert cut.facts["energy"] == pytest.approx(squares[:rank].sum() / squares.sum(), rel=1e-5)
        assert (cut.facts["rank"], cut.recommended.sum()) == (rank, full.recommended.sum())
        assert set(cut.seconds) == {"decomposition"}


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
    assert (stage, done) == ("ranking", total)
    assert {stage for stage, _, _ in told} == {"decomposing", "ranking"}


def test_ties_by_popularity_put_the_more_popular_first(split: Split) -> None:
    model = MRF.paper(sparsity=None).fit(split.training)
    model.weights_[:] = 0.0
    by_index = low_rank(model, split.test, [2], ["popularity@5"], ties="index")["rank 2"]
    by_popularity = low_rank(model, split.test, [2], ["popularity@5"])["rank 2"]
    assert by_popularity.mean("popularity@5").mean > by_index.mean("popularity@5").mean
    assert by_index.facts["energy"] == 0.0


@pytest.mark.parametrize("sparsity", [None, 0.1])
def test_the_randomized_decomposition_is_as_good_as_the_exact_one(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = leave_out(events_of(random_matrix(7, users=300, items=200)), k=2)
    model = MRF.paper(sparsity=sparsity, l2=20.0).fit(big.training)
    # The spectrum of noise is flat; that of data is not.
    fade = sp.diags_array(np.geomspace(1.0, 1e-6, len(model.items_), dtype=np.float32))
    B = fade @ model.weights_
    relearn(model, weights=Rows.of(B.tocsr()) if model.is_sparse else DenseRows(B))
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


def test_what_low_rank_cannot_use_is_refused(split: Split) -> None:
    model = MRF.paper(sparsity=0.2).fit(split.training)
    wrong: Any
    for wrong in ([], [0], [46], [2.5]):
        with pytest.raises(ParameterError, match="ranks must be"):
            low_rank(model, split.test, wrong, METRICS)
    with pytest.raises(ParameterError, match="model must be an MRF"):
        low_rank("model", split.test, [2])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="without a low-rank part"):
        low_rank(MRF(rank=2).fit(split.training), split.test, [2])
    with pytest.raises(NotFittedError):
        low_rank(MRF.paper(), split.test, [2])
    other = leave_out(events_of(random_matrix(5, items=60)), k=2)
    with pytest.raises(DataError, match="the questions are about"):
        low_rank(model, other.test, [2])
    model.memory_limit = 10_000
    with pytest.raises(MemoryPlanError, match=r"low_rank needs about .* Ask for smaller ranks"):
        low_rank(model, split.test, [2])


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
    counts = {f"recommended by {name}": x.recommended.tolist() for name, x in comparison.items()}
    counts |= {side_checks.TRAINING: popularity, side_checks.TARGETS: wanted}
    assert list(found.shares) == list(counts)
    for name, share in found.shares.items():
        np.testing.assert_allclose(share, naive_shares(popularity, counts[name], groups))
    assert (found.places, len(found.items), found.split) == (10, groups, split.name)
    assert found.items.sum() == split.training.n_items
    assert found.items.max() - found.items.min() <= 1


# Trade-off.


MEASURED = ["ndcg@10", "recall@5", "coverage@10"]


@pytest.fixture(scope="module")
def found(split: Split) -> Comparison:
    return tradeoff(
        split, [0.1, 0.5], (0.5, 0.0), dense={"l2": 5.0}, sparse={"l2": 2.0, "alpha": 0.5}, metrics=MEASURED
    )


def test_points_are_evaluations_of_the_dense_model_then_by_sparsity_and_r(
    split: Split, found: Comparison
) -> None:
    sparse: dict[str, Any] = {"l2": 2.0, "alpha": 0.5}
    models = {"dense": MRF.paper(l2=5.0, sparsity=None)} | {
        f"{100 * level:g} %, r = {r:g}": MRF.paper(**sparse, sparsity=level, r=r)
        for level in (0.5, 0.1)
        for r in (0.0, 0.5)
    }
    assert (list(found), found.failures) == (list(models), {})
    m = split.training.n_items
    for point, model in zip(found.values(), models.values(), strict=True):
        same = fit_and_evaluate(model, split, MEASURED)
        B, weights = model.weights_, point.facts["weights"]
        assert (point.parameters, point.split) == (same.parameters, split.name)
        assert weights["blocks"] == model.n_blocks_
        for metric in MEASURED:
            np.testing.assert_array_equal(point.per_user(metric), same.per_user(metric))
        if sp.issparse(B):
            assert weights["share"] == (B.nnz + m) / m**2 <= model.parameters["sparsity"] + 1 / m
            assert weights["bytes"] == B.data.nbytes + B.indices.nbytes + B.indptr.nbytes
        else:
            assert (weights["share"], weights["bytes"]) == (1.0, B.nbytes)


def test_report_compares_each_model_with_the_dense_one(split: Split, found: Comparison) -> None:
    dense = found["dense"]
    page = of_tradeoff(found)
    (section,) = page.sections
    assert section.columns[4:7] == ["training", "speed-up", "nDCG@10 of dense"]
    for row, point in zip(section.rows, found.values(), strict=True):
        share = point.mean("ndcg@10").mean / dense.mean("ndcg@10").mean
        faster = dense.seconds["training"] / point.seconds["training"]
        assert row[0] == point.model
        assert row[5:7] == [f"{faster:.1f} ×", f"{100 * share:.1f} %"]
    assert [(x["sparsity"], x["r"]) for x in page.data["models"][:3]] == [
        (None, None),
        (0.5, 0.0),
        (0.5, 0.5),
    ]
    alone = tradeoff(split, [0.2], [0.0], with_dense=False, metrics=["ndcg@10"])
    (section,) = of_tradeoff(alone).sections
    assert section.columns == ["model", "nDCG@10", "training", "weights kept", "size"]


def test_a_dense_model_that_does_not_fit_is_a_note_and_the_rest_goes_on(split: Split) -> None:
    little = {"memory_limit": 1000}
    result = tradeoff(split, [0.2], [0.0], dense=little, metrics=["ndcg@10"])
    assert list(result) == ["20 %, r = 0"]
    (note,) = of_tradeoff(result).data["notes"]
    assert note.startswith("Left out: dense: the fit needs about")
    with pytest.raises(MemoryPlanError, match="memory_limit"):
        tradeoff(split, [0.2], [0.0], dense=little, sparse=little, metrics=["ndcg@10"])


@pytest.mark.parametrize(
    ("sparsities", "options", "message"),
    [
        ([], {}, "sparsities must be at least one number"),
        ([0.0], {}, "sparsities must be at least 1/items"),
        ([1.5], {}, "sparsities must be .* at most 1; got 1.5"),
        ([0.001], {}, r"0\.0228 for this data \(the diagonal is always kept\), and at most 1; got 0.001"),
        ([0.1], {"rs": []}, "rs must be at least one number"),
        ([0.1], {"rs": [1.1]}, "rs must be between 0 and 1; got 1.1"),
        ([0.1], {"dense": {"l3": 1}}, "dense must be parameters of MRF other than"),
        ([0.1], {"sparse": {"r": 0.1}}, "sparse must be parameters of MRF other than"),
        ([0.1], {"sparse": {"l2": -1}}, "l2 must be"),
        ([0.1], {"metrics": ["ndgc@10"]}, "metrics must be"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_fitted(
    split: Split, monkeypatch: pytest.MonkeyPatch, sparsities: Any, options: Any, message: str
) -> None:
    monkeypatch.setattr(protocol, "fit_and_evaluate", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(ParameterError, match=message):
        tradeoff(split, sparsities, **{"metrics": MEASURED, **options})
