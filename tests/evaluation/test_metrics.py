"""Metrics: by hand, equal to the naive ones, and through the evaluation of models."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import scipy.sparse as sp
import scipy.stats

from mrfrec import MRF, DataError, MrfrecWarning, ParameterError, read_item_features
from mrfrec.data.interactions import Interactions
from mrfrec.evaluation import protocol
from mrfrec.evaluation.metrics import NAMES, Lists, Metric, long_tail, mean_of, paired, parse
from mrfrec.evaluation.other_systems import write_split
from mrfrec.evaluation.protocol import Ties, compare, evaluate, evaluate_fitted, fit_and_evaluate
from mrfrec.evaluation.questions import Split
from mrfrec.evaluation.splits import leave_out, strong_generalisation
from mrfrec.models import Popularity
from mrfrec.models.registry import build

import naive_evaluation as naive
from matrices import pairs_of, random_matrix
from vectors import Vectors

Numbers = npt.NDArray[np.float64]
NONE: Any = None
TRUE: Any = True
TEXT: Any = "xx"
TYPE: Any = MRF
FUNCTION: Any = [len]


@dataclass
class Case:
    """Lists of some users, as plain lists and sets."""

    ranked: list[list[int]]
    targets: list[set[int]]
    popularity: list[int]
    training: Numbers | None = None
    users: int = 64

    def lists(self) -> Lists:
        """With each user's targets stored backwards: their order must not matter."""
        stored = [item for targets in self.targets for item in sorted(targets, reverse=True)]
        borders = np.cumsum([0, *map(len, self.targets)])
        shape = len(self.targets), len(self.popularity)
        targets = sp.csr_array((np.ones(len(stored)), stored, borders), shape=shape)
        ranked, popularity = np.array(self.ranked, np.int32), np.array(self.popularity, np.int64)
        return Lists(
            ranked,
            targets,
            popularity,
            self.users,
            lambda: Interactions(sp.csr_array(self.histories())),
        )

    def histories(self) -> Numbers:
        """The training data, or that of 20 users; nobody likes some items."""
        if self.training is not None:
            return self.training
        m = len(self.popularity)
        likes = np.random.default_rng(m).random((20, m)) < np.linspace(0, 0.6, m) ** 2
        return likes.astype(np.float64)

    def expected(self, name: str, k: int) -> list[float]:
        if name in naive.ACCURACY:
            metric = naive.ACCURACY[name]
            return [metric(*user, k) for user in zip(self.ranked, self.targets, strict=True)]
        if name in naive.OVERALL:
            return [naive.OVERALL[name](self.ranked, len(self.popularity), k)]
        if name == "novelty":
            return [naive.novelty(ranked, self.popularity, self.users, k) for ranked in self.ranked]
        if name == "variety":
            vectors = self.histories().T.tolist()
            return [naive.variety(ranked, vectors, k) for ranked in self.ranked]
        metric_of_items = {"popularity": naive.popularity, "tail": naive.tail}[name]
        return [metric_of_items(ranked, self.popularity, k) for ranked in self.ranked]


# By hand: ten items and three users.
#
#   popularity   item 0: 50 users, 1: 20, 2: 10, 3: 8, 4: 5, 5: 3, 6: 2, 7: 1, 8: 1, 9: 0; together 100
#   head         items 0, 1 and 2, who have 80 of the 100 interactions; the tail is items 3 to 9
#
#   user   recommended       targets              hits at places
#   0      4, 1, 7, 2, 9     1, 2, 3              2 and 4
#   1      0, 6, and no more 6                    2
#   2      5, 3, 8, 2, 1     0, 4, 6, 7, 9        none

BY_HAND = Case(
    ranked=[[4, 1, 7, 2, 9], [0, 6, -1, -1, -1], [5, 3, 8, 2, 1]],
    targets=[{1, 2, 3}, {6}, {0, 4, 6, 7, 9}],
    popularity=[50, 20, 10, 8, 5, 3, 2, 1, 1, 0],
)
LOG3, LOG4, LOG5 = math.log2(3), 2.0, math.log2(5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # The best list of user 0 has its three targets at places 1, 2 and 3: 1 + 1/log₂3 + 1/log₂4 = 2.1309.
        ("ndcg@5", [(1 / LOG3 + 1 / LOG5) / (1 + 1 / LOG3 + 1 / LOG4), 1 / LOG3, 0]),
        ("ndcg@2", [(1 / LOG3) / (1 + 1 / LOG3), 1 / LOG3, 0]),
        ("ndcg@1", [0, 0, 0]),
        # Two of three targets are found; within two places, one of the two that could be.
        ("recall@5", [2 / 3, 1, 0]),
        ("recall@2", [1 / 2, 1, 0]),
        # Within two places, one of all three.
        ("recall_all@5", [2 / 3, 1, 0]),
        ("recall_all@2", [1 / 3, 1, 0]),
        # Places that are not filled count as places.
        ("precision@5", [2 / 5, 1 / 5, 0]),
        ("precision@2", [1 / 2, 1 / 2, 0]),
        ("hit@5", [1, 1, 0]),
        ("hit@1", [0, 0, 0]),
        ("mrr@5", [1 / 2, 1 / 2, 0]),
        ("mrr@1", [0, 0, 0]),
        # User 0: precision 1/2 at place 2 and 2/4 at place 4, together 1; ÷ 3 targets.
        ("map@5", [1 / 3, 1 / 2, 0]),
        ("map@2", [(1 / 2) / 2, 1 / 2, 0]),
        # (5 + 20 + 1 + 10 + 0)/5; (50 + 2)/2; (3 + 8 + 1 + 10 + 20)/5.
        ("popularity@5", [7.2, 26, 8.4]),
        ("popularity@1", [5, 50, 3]),
        # Items 4, 7 and 9 of five; item 6 of two; items 5, 3 and 8 of five.
        ("tail@5", [3 / 5, 1 / 2, 3 / 5]),
        ("tail@2", [1 / 2, 1 / 2, 1]),
        ("coverage@5", [10 / 10]),  # 4, 1, 7, 2, 9; 0, 6; 5, 3, 8
        ("coverage@3", [8 / 10]),  # 4, 1, 7; 0, 6; 5, 3, 8
        ("coverage@1", [3 / 10]),  # 4; 0; 5
    ],
)
def test_by_hand(name: str, expected: Sequence[float]) -> None:
    np.testing.assert_allclose(parse(name).per_user(BY_HAND.lists()), expected, atol=1e-6)


# Against the naive ones.


def random_case(seed: int, users: int = 50, items: int = 30, places: int = 12) -> Case:
    """Scores with many ties; some users have seen nearly all, some have more targets than places."""
    rng = np.random.default_rng(seed)
    case = Case([], [], rng.integers(0, 9, items).tolist())
    for _ in range(users):
        scores = rng.integers(0, 4, items).tolist()
        order = rng.permutation(items).tolist()
        shown = set(order[: rng.choice([0, 5, items - 8, items - 1])])
        rest = [item for item in order if item not in shown]
        case.ranked.append(naive.ranking(scores, shown, places))
        case.targets.append(set(rest[: int(rng.choice([1, 2, 7, 20]))]))
    return case


def test_variety_is_by_features_where_there_are_some() -> None:
    """Two of three items are of one kind: of three pairs, one is alike."""
    table = pl.DataFrame({"item": range(8), "kind": ["a", "a", "b", "b", "c", "c", "d", "d"]})
    X = sp.csr_array(np.ones((3, 8)))
    data = Interactions(X).with_features(read_item_features(table, columns={"kind": "category"}))
    targets = sp.csr_array(np.eye(3, 8))
    ranked = np.array([[0, 1, 2], [0, 2, 4], [0, 1, -1]], np.int32)
    found = parse("variety@3").per_user(Lists(ranked, targets, data.popularity, data.n_users, lambda: data))
    np.testing.assert_allclose(found, [2 / 3, 1, 0], atol=1e-12)
    without = parse("variety@3").per_user(
        Lists(ranked, targets, data.popularity, data.n_users, lambda: Interactions(X))
    )
    np.testing.assert_allclose(without, 0, atol=1e-12)
    with pytest.raises(DataError, match="needs the training data"):
        parse("variety@3").per_user(Lists(ranked, targets, data.popularity, data.n_users))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 2, 5, 11, 12, 13, 25, 30])
def test_metrics_equal_naive(name: str, k: int) -> None:
    """With k up to the items, beyond the twelve places that are filled."""
    for seed in range(5):
        case = random_case(seed)
        assert any(-1 in ranked for ranked in case.ranked)
        assert any(len(targets) > 12 for targets in case.targets)
        found = parse(f"{name}@{k}").per_user(case.lists())
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, case.expected(name, k), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(30))
def test_the_long_tail_equals_naive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    popularity = rng.integers(0, [2, 4, 50, 100_000][seed % 4], rng.integers(1, 60))
    assert set(np.flatnonzero(long_tail(popularity)).tolist()) == naive.long_tail(popularity.tolist())


def test_a_share_of_exactly_four_fifths_is_enough_for_the_head() -> None:
    """80 % as a float is a little more than 80 %."""
    for total in range(5, 3000, 5):
        head = total * 4 // 5
        assert long_tail(np.array([head, total - head])).tolist() == [False, True]


def test_users_times_items_may_be_beyond_32_bits() -> None:
    many = 2**30
    targets = sp.csr_array((np.ones(5), [0, 7, many - 1, 0, 7], [0, 1, 2, 3, 4, 5]), shape=(5, many))
    ranked = np.array([[0, 7], [0, 7], [0, many - 1], [7, many - 1], [7, 0]], np.int32)
    found = parse("mrr@2").per_user(Lists(ranked, targets, np.zeros(1, np.int64), 1))
    assert found.tolist() == [1, 0.5, 0.5, 0, 1]


def test_names_of_metrics() -> None:
    for text, metric in {
        "ndcg@100": Metric("ndcg", 100),
        " NDCG@100 ": Metric("ndcg", 100),
        "Recall_All@20": Metric("recall_all", 20),
        "recall-all@20": Metric("recall_all", 20),
        "coverage@1": Metric("coverage", 1),
    }.items():
        assert parse(text) == parse(str(metric)) == metric
        assert parse(metric) is metric
    places = (f"ndcg@{k}" for k in ("0", "1.5", "10@20", "²", "٣"))
    wrong: Any
    for wrong in ("", None, "ndgc@10", "ndcg 10", "ndcg", *places):
        with pytest.raises(ParameterError, match=r"metrics must be (such as|names, such as) ndcg@20.*; got"):
            parse(wrong)


# Means and differences.


@pytest.mark.parametrize("n", [2, 3, 50, 1000])
def test_means_and_errors_equal_naive(n: int) -> None:
    values = np.random.default_rng(n).random(n)
    np.testing.assert_allclose(mean_of(values), naive.mean_and_error(values.tolist()), rtol=1e-12)
    np.testing.assert_allclose(mean_of(values).error, scipy.stats.sem(values), rtol=1e-12)
    np.testing.assert_allclose(mean_of(values, np.arange(n)), mean_of(values), rtol=1e-12)


@pytest.mark.parametrize("n", [3, 50, 1000])
def test_errors_of_users_with_several_numbers_equal_naive(n: int) -> None:
    rng = np.random.default_rng(n)
    user = np.append(rng.integers(0, n // 2 + 1, n), n)
    values = rng.random(n + 1) + user % 3
    expected = naive.clustered([*zip(user.tolist(), values.tolist(), strict=True)])
    np.testing.assert_allclose(mean_of(values, user), expected, rtol=1e-12)
    found = paired(values, np.zeros(n + 1), user)
    np.testing.assert_allclose(found[:2], expected, rtol=1e-12)
    statistic = expected[0] / expected[1]
    assert found.p == pytest.approx(2 * scipy.stats.t.sf(abs(statistic), len({*user.tolist()}) - 1))
    assert np.isnan(mean_of(values, np.zeros(n + 1, np.int64)).error)


@pytest.mark.parametrize("n", [2, 3, 10, 500])
@pytest.mark.parametrize("shift", [0.0, 0.02, -0.3])
def test_paired_differences_equal_scipy(n: int, shift: float) -> None:
    rng = np.random.default_rng(n)
    first = rng.random(n)
    second = np.where(rng.random(n) < 0.3, first, rng.random(n) + shift)
    found = paired(first, second)
    expected = scipy.stats.ttest_rel(first, second)
    np.testing.assert_allclose(found.p, expected.pvalue, rtol=1e-9)
    np.testing.assert_allclose(
        (found.difference, found.error), naive.mean_and_error((first - second).tolist()), rtol=1e-12
    )
    np.testing.assert_allclose(found.difference / found.error, expected.statistic, rtol=1e-9)


# Through models.


@pytest.fixture(scope="module")
def split() -> Split:
    """Strong generalisation; some held-out users have too few items to be asked about."""
    used = random_matrix(3)
    used[::3, 4:] = 0.0
    return strong_generalisation(pairs_of(used), 25, min_items=1)


def sets_of(matrix: sp.csr_array) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in matrix.toarray()]


def case_of(model: MRF, split: Split, k: int, *, ties: str = "popularity") -> Case:
    """Rank naively, from the scores of all items."""
    shown = sets_of(split.test.shown)
    scores = model.scores(split.test.shown).tolist()
    popularity = [len(users) for users in sets_of(split.training.matrix.T.tocsr())]
    users_of = popularity if ties == "popularity" else None
    ranked = [naive.ranking(row, seen, k, users_of) for row, seen in zip(scores, shown, strict=True)]
    return Case(
        ranked,
        sets_of(split.test.targets),
        popularity,
        split.training.matrix.toarray(),
        split.training.n_users,
    )


MODELS = {
    "dense": lambda: MRF.paper(l2=2.0, sparsity=None),
    "sparse": lambda: MRF.paper(l2=2.0, sparsity=0.2),
    "double": lambda: MRF.paper(l2=2.0, sparsity=None, dtype="float64"),
    "all scores equal": lambda: MRF.paper(l2=2.0, sparsity=0.034),
    "scores by popularity": lambda: MRF.paper(l2=2.0, sparsity=0.034, offset=True),
}
models = pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))


@models
@pytest.mark.slow
@pytest.mark.parametrize("ties", ["popularity", "index"])
def test_evaluation_equals_naive(split: Split, make: Any, ties: Ties) -> None:
    if ties == "index":
        split = leave_out(pairs_of(random_matrix(4)), 2)
    model = make()
    n_items = split.training.n_items
    metrics = [f"{name}@{k}" for name in NAMES for k in (1, 5, 20, n_items)]
    found = fit_and_evaluate(model, split, metrics, ties=ties)
    case = case_of(model, split, n_items, ties=ties)
    assert [str(metric) for metric in found.values] == metrics
    for metric in found.values:
        expected = case.expected(metric.kind, metric.k)
        np.testing.assert_allclose(found.per_user(metric), expected, rtol=1e-12, err_msg=str(metric))
        np.testing.assert_allclose(found.mean(metric), naive.mean_and_error(expected), rtol=1e-9, atol=1e-15)
    assert found.users == split.test.users
    assert found.left_out == split.test.left_out > 0
    assert found.popularity.tolist() == case.popularity
    listed = [item for ranked in case.ranked for item in ranked if item >= 0]
    assert found.recommended.tolist() == np.bincount(listed, minlength=n_items).tolist()


@models
def test_top_k_is_the_naive_ranking(split: Split, make: Any) -> None:
    model = make().fit(split.training)
    for k in (1, 7, split.training.n_items):
        for ties in ("index", "popularity"):
            ranked, _ = model.top_k(split.test.shown, k, ties=ties)
            assert ranked.tolist() == case_of(model, split, k, ties=ties).ranked


@pytest.mark.parametrize("kind", ["MRF", "EASE", "Popularity", "ItemKNN", Vectors.__name__])
def test_what_is_measured_is_what_is_served(split: Split, kind: str) -> None:
    model = build(kind, {"sparsity": 0.3} if kind == "MRF" else {}).fit(split.training)
    ranked = protocol.rank(model, split.test, 10)
    histories = Interactions(split.test.shown, split.test.users, split.training.items)
    served = model.recommend(history=histories, k=10)
    position = {item: place for place, item in enumerate(split.training.items)}
    expected = [[position[item] for item in served.filter(pl.col("user") == user)["item"].to_list()]
                for user in split.test.users]  # fmt: skip
    assert [[item for item in row if item >= 0] for row in ranked.tolist()] == expected


def test_users_are_ranked_in_parts_with_the_same_result(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MRF.paper(l2=2.0).fit(split.training)
    whole = protocol.rank(model, split.test, 9)
    monkeypatch.setattr(protocol, "_USERS_AT_ONCE", 8)
    assert len(split.test) % 8
    calls: list[tuple[str, int, int]] = []
    parts = protocol.rank(model, split.test, 9, progress=lambda *call: calls.append(call))
    np.testing.assert_array_equal(parts, whole)
    n = len(split.test)
    assert calls == [("ranking", min(done, n), n) for done in range(8, n + 8, 8)]


def test_models_are_compared_user_by_user(split: Split) -> None:
    makes = {name: MODELS[name]() for name in ("dense", "sparse", "all scores equal")}
    found = compare(makes, split, ["ndcg@10", "recall@5"])
    assert list(found) == list(makes)
    assert not any(hasattr(model, "timings_") for model in makes.values())  # copies were fitted
    assert [evaluation.model for evaluation in found.values()] == list(makes)
    assert "other" not in found
    assert [str(metric) for metric in found.metrics] == ["ndcg@10", "recall@5"]
    for name in makes:
        alone = evaluate(MODELS[name](), split, ["ndcg@10", "recall@5"])
        np.testing.assert_array_equal(found[name].per_user("ndcg@10"), alone.per_user("ndcg@10"))
    for name, against, other in (
        ("sparse", None, "dense"),
        ("all scores equal", None, "dense"),
        ("dense", "all scores equal", "all scores equal"),
    ):
        values, others = found[name].per_user("ndcg@10"), found[other].per_user("ndcg@10")
        difference, _, p = found.paired(name, "ndcg@10", against)
        assert difference == pytest.approx(values.mean() - others.mean(), abs=1e-12)
        assert p == pytest.approx(scipy.stats.ttest_rel(values, others).pvalue)
    assert tuple(found.paired("dense", "ndcg@10")) == (0.0, 0.0, 1.0)
    for parameter, names in {"model": ("dens",), "against": ("dense", "dens")}.items():
        rule = rf"{parameter} must be one of those compared: dense, .*; got 'dens'. Did you mean 'dense'"
        with pytest.raises(ParameterError, match=rule):
            found.paired(names[0], "ndcg@10", *names[1:])


def test_metrics_of_more_places_than_items_or_not_measured_are_refused(split: Split) -> None:
    model = MRF.paper(l2=2.0)
    m = split.training.n_items
    with pytest.raises(ParameterError, match=rf"at most the {m} items there are; got 'ndcg@{m + 1}'"):
        evaluate(model, split, ["recall@1", f"ndcg@{m + 1}"])
    assert not hasattr(model, "timings_")  # not fitted
    found = evaluate(model, split, [f"ndcg@{m}", "recall@5"])
    with pytest.raises(ParameterError, match=rf"among those evaluated: ndcg@{m}, recall@5; got 'ndcg@5'"):
        found.mean("ndcg@5")


def test_a_model_that_was_fitted_to_the_targets_is_measured_with_a_warning(split: Split) -> None:
    questions, X = split.test, split.training
    told = sp.vstack([X.matrix, questions.shown + questions.targets])
    model = MRF.paper().fit(Interactions(told, [*X.users, *questions.users], X.items))
    with pytest.warns(MrfrecWarning, match=f"fitted to {questions.targets.nnz} of the .* what it was told"):
        evaluate_fitted(model, questions, ["ndcg@5"])


def _other_items(split: Split, names: list[str] | None) -> MRF:
    """Return a model of fewer items, or of items with other names."""
    X = split.training.matrix
    return MRF.paper().fit(X[:, :-1] if names is None else Interactions(X, items=names))


WRONG: list[tuple[Callable[[Split], Any], str]] = [
    (lambda split: evaluate(Popularity(), split, NONE), "metrics must be names such as ndcg@20"),
    (lambda split: evaluate(Popularity(), split, TRUE), "metrics must be names such as ndcg@20"),
    (lambda split: evaluate(Popularity(), split, "ndcg@0"), "such as ndcg@20, over at least 1 item"),
    (lambda split: evaluate(Popularity(), split, FUNCTION), r"must be names, such as ndcg@20 \(ndcg,"),
    (lambda split: evaluate(TYPE, split), r"model must be a model, not its class; .* Write MRF\(\)"),
    (lambda split: compare([MRF(), TYPE], split), r"a model, not its class; .* Write MRF\(\)"),
    (lambda split: compare(NONE, split), "models must be models in a list, or by name; got None"),
    (lambda split: compare(TEXT, split), "models must be models in a list"),
    (lambda split: compare([NONE], split), r"models must be a model such as MRF\(\); got None"),
    (lambda split: compare({"a": MRF()}, split, ["ndcg@5"]), "at least two, with different names"),
    (lambda split: compare([MRF(), MRF()], split, ["ndcg@5"]), "at least two, with different names"),
    (lambda split: evaluate_fitted(_other_items(split, None), split.test), "questions are about"),
    (
        lambda split: evaluate_fitted(
            _other_items(split, [f"z{i}" for i in range(split.training.n_items)]), split.test
        ),
        "others or in another order",
    ),
    (lambda _: Case([[0, 1], [1, 0]], [{1}, set()], [1, 1]).lists(), "every user must have a target"),
    (lambda split: write_split(split, __file__), "folder must be the name of a folder; this is a file; got"),
    (lambda split: write_split(split, ""), "folder must be the name of a folder; got ''"),
    (lambda split: write_split(split, NONE), "folder must be the name of a folder; got None"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_arguments_are_named(split: Split, call: Callable[[Split], Any], message: str) -> None:
    with pytest.raises((ParameterError, DataError), match=message):
        call(split)
