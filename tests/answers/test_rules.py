"""The rules of a shop: quotas, boosts and variety, against choosing one by one from all scores."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

from asking import rows_and_unknown, rows_for
from mrfrec import MRF, DataError, Interactions, MrfrecWarning, ParameterError, load
from mrfrec.answers.question import Question
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.models.registry import build

import naive
from kinds import relearn
from matrices import random_matrix

ITEMS = 70
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "sparse": {"sparsity": 0.3, "r": 0.3},
    "offset": {"offset": True},
}


def shop(model: str = "dense", *, ties: bool = False, seed: int = 0, users: int = 20) -> Any:
    """A model with a table: brands, some missing; lists of tags; numbers to add and to multiply by."""
    rng = np.random.default_rng(seed)
    X = random_matrix(seed, users=users, items=ITEMS)
    names = [f"item {i:02}" for i in range(ITEMS)]
    data = Interactions(sp.csr_array(X), list(range(users)), names)
    fitted = MRF.paper(l2=2.0, dtype="float64", **MODELS[model]).fit(data)
    if ties:  # weights of a few values, so that sums are exact and nearly all scores tie
        B = rng.integers(-1, 2, (ITEMS, ITEMS)) * (rng.random((ITEMS, ITEMS)) < 0.2) / 4
        np.fill_diagonal(B, 0)
        rows = DenseRows(B) if model == "dense" else Rows.of(sp.csr_array(B))
        relearn(fitted, weights=rows, base_scores=rng.integers(-2, 3, ITEMS) / 2)
    tags = [[f"t{x}" for x in sorted(set(rng.integers(0, 6, rng.integers(0, 3)).tolist()))] for _ in names]
    fitted.set_items(
        pl.DataFrame(
            {
                "item": names,
                "brand": [None if x == 0 else f"brand {x}" for x in rng.integers(0, 8, ITEMS).tolist()],
                "tags": [None if i % 9 == 0 else x for i, x in enumerate(tags)],
                "margin": [
                    None if i % 5 == 0 else float(x) / 4 for i, x in enumerate(rng.integers(-2, 3, ITEMS))
                ],
                "season": [
                    None if i % 4 == 0 else 2.0 ** int(x) for i, x in enumerate(rng.integers(-2, 3, ITEMS))
                ],
                "own": np.arange(ITEMS),
                "kind": [None if i > 66 else "abc"[(i > 58) + (i > 64)] for i in range(ITEMS)],
            },
        )
    )
    return fitted


def groups_of(model: Any, column: str) -> list[set[int]]:
    """By the values, one by one."""
    cells = [x if isinstance(x, list) else [x] for x in model.catalogue.table.frame[column].to_list()]
    every = sorted({x for parts in cells for x in parts if x is not None})
    return [{every.index(x) for x in parts if x is not None} for parts in cells]


def expected(model: Any, question: dict[str, Any], k: int) -> list[list[str]]:
    """The lists of all users, chosen one by one."""
    histories = model.fitted_.training.histories.matrix()
    scores = model.scores(histories)
    boost = question.get("boost") or {}
    numbers = {}
    for way, of in boost.items():
        none = 0.0 if way == "add" else 1.0
        if isinstance(of, str):
            numbers[way] = [none if x is None else float(x) for x in model.catalogue.table.frame[of]]
        else:
            numbers[way] = [of.get(item, none) for item in model.items_]
    quotas = tuple((groups_of(model, name), most) for name, most in (question.get("at_most") or {}).items())
    B = model.fitted_.learned.weights_between(np.arange(ITEMS), np.ones(ITEMS), np.arange(ITEMS))
    lists = []
    for u in range(histories.shape[0]):
        lifts = zip(
            scores[u], numbers.get("add", [0.0] * ITEMS), numbers.get("multiply", [1.0] * ITEMS), strict=True
        )
        row = np.array([naive.lifted(*each) for each in lifts])
        seen = frozenset(histories[[u]].indices.tolist())
        found = naive.choose(
            row, model.popularity_, k, seen, quotas, question.get("variety", 0.0), np.asarray(B, np.float64)
        )
        lists.append([model.items_[i] for i in found])
    return lists


QUESTIONS: list[dict[str, Any]] = [
    {"at_most": {"brand": 1}},
    {"at_most": {"tags": 2}},
    {"at_most": {"brand": 2, "tags": 1, "own": 1}},
    {"at_most": {"kind": 2}},  # not enough among the first candidates
    {"at_most": {"kind": 1}, "variety": 0.5, "boost": {"multiply": "season"}},
    {"at_most": {"brand": 0}},
    {"at_most": {"own": 0}},
    {"boost": {"add": "margin"}},
    {"boost": {"multiply": "season"}},
    {"boost": {"add": {"item 03": 0.5, "item 40": -2.0}, "multiply": "season"}},
    {"boost": {"multiply": {"item 11": 64.0}}},
    {"variety": 0.5},
    {"variety": 1},
    {"variety": 0.25, "at_most": {"brand": 2, "tags": 3}, "boost": {"add": "margin", "multiply": "season"}},
    {"variety": 0.75, "at_most": {"brand": 1}},
]


def lists_of(model: Any, k: int, users: Any = None, **question: Any) -> list[list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)
        batches = rows_for(model, users, k=k, **question)
    found: dict[int, list[str]] = {}
    for row in batches:
        found.setdefault(row["user"], []).append(row["item"])
    return [found.get(user, []) for user in (model.users_ if users is None else users)]


@pytest.mark.parametrize("k", [1, 7, ITEMS + 10])
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
@pytest.mark.parametrize(
    ("kind", "ties"), [("dense", True), ("sparse", True), ("sparse", False), ("offset", False)]
)
def test_lists_are_chosen_one_by_one(kind: str, ties: bool, question: dict[str, Any], k: int) -> None:
    model = shop(kind, ties=ties, seed=len(str(question)))
    wanted = expected(model, question, k)
    assert lists_of(model, k, **question) == wanted
    # In numpy, and each alone: a batch changes nothing.
    assert lists_of(model, k, [3], **question) == [wanted[3]]
    assert lists_of(model, k, list(range(10)), **question) == wanted[:10]


def test_low_rank_models_tell_likeness_by_their_vectors() -> None:
    X = random_matrix(1, users=200, items=ITEMS)
    X[:, 20] = X[:, 21] = X[:, 22]  # three colours of one shirt
    model = MRF(measure=False, sparsity="dense", rank=8, rank_weight=0.5).fit(sp.csr_array(X))
    directions = model.fitted_.learned.directions(np.arange(ITEMS))
    alike = directions @ directions.T
    used = model.popularity_ > 0
    np.testing.assert_allclose(np.diag(alike)[used & (model.popularity_ < 200)], 1.0)
    assert min(alike[20, 21], alike[21, 22]) > 0.99 > np.sort(alike[20])[-4]
    history = [[item for item in range(ITEMS) if X[u, item] and item not in (20, 21, 22)] for u in range(200)]
    fans = [h for u, h in enumerate(history) if X[u, 20]]
    together = {0.0: 0, 0.5: 0}
    for variety in together:
        rows = rows_for(model, history=fans, k=10, variety=variety)
        for user in range(len(fans)):
            shown = {row["item"] for row in rows if row["user"] == user}
            together[variety] += len(shown & {20, 21, 22}) > 1
    assert together[0.5] < 0.2 * together[0.0]


@pytest.mark.parametrize("kind", ["ItemKNN", "Vectors"])
def test_every_kind_of_model_takes_all_rules(kind: str) -> None:
    from kinds import KINDS, named_data

    name, parameters = KINDS[kind]
    model = build(name, parameters).fit(named_data(text=True, positive=True))
    model.set_items(pl.DataFrame({"item": list(model.items_), "brand": [i % 4 for i in range(30)]}))
    rows = rows_for(model, "u20", k=8, at_most={"brand": 2}, boost={"add": {"item 21": 1000.0}}, variety=0.5)
    brands = [list(model.items_).index(row["item"]) % 4 for row in rows]
    assert rows[0]["item"] == "item 21"
    assert sorted(brands) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_without_rules_nothing_changes() -> None:
    model = shop()
    plain = rows_for(model, k=9, explain=2)
    assert rows_for(model, k=9, explain=2, at_most={}, boost={}, variety=0) == plain
    assert rows_for(model, k=9, explain=2, at_most={"own": 1}) == plain


def test_explanations_with_a_boost_add_up() -> None:
    model = shop("offset")
    boost = {"add": "margin", "multiply": "season"}
    scores = {
        row["item"]: row["score"] for row in rows_for(model, 5, k=ITEMS, exclude_seen=False, boost=boost)
    }
    plain = {row["item"]: row["score"] for row in rows_for(model, 5, k=ITEMS, exclude_seen=False)}
    assert min(plain.values()) < 0 < max(plain.values())
    for item, score in scores.items():
        table = model.explain(item, user=5, boost=boost)
        last = table.filter(pl.col("title") == "(boost)")["contribution"].to_list()
        assert sum(last) == pytest.approx(score - plain[item])
        assert table["contribution"].sum() == pytest.approx(score)
    table = model.recommend(5, k=3, explain=1, exclude_seen=False, boost={"add": {"item 30": 9.0}})
    assert [("boost +9.00" in text) for text in table["because"]] == [True, False, False]


def test_a_factor_above_1_lifts_scores_below_0() -> None:
    model = shop("offset")
    plain = {row["item"]: row["score"] for row in rows_for(model, 5, k=ITEMS)}
    low = min(plain, key=lambda item: plain[item])
    assert plain[low] < 0
    for factor in (0.5, 4.0):
        rows = rows_for(model, 5, k=ITEMS, boost={"multiply": {low: factor}})
        found = next(row["score"] for row in rows if row["item"] == low)
        assert found == pytest.approx(plain[low] / factor)


def test_few_items_are_warned_of_with_the_quota() -> None:
    model = shop()
    with pytest.warns(MrfrecWarning, match="1 of 1 users .* not excluded, with at most 0 of each 'own'"):
        assert len(model.recommend(5, at_most={"own": 0})) == 0


def test_a_boost_with_reasons_and_too_few_items_warns_of_the_items_alone() -> None:
    boost = {"add": "margin", "multiply": "season"}  # the empty places have no score to undo
    with pytest.warns(MrfrecWarning, match="1 of 1 users") as warned:
        rows = shop().recommend(5, k=ITEMS, explain=1, boost=boost, at_most={"kind": 1})
    assert 0 < len(rows) < ITEMS
    assert [each.category for each in warned] == [MrfrecWarning]


def test_unknown_items_of_a_boost_are_counted() -> None:
    model = shop()
    boost = {"add": {"item 01": 1, "who": 2}, "multiply": {"what": 2}}
    with pytest.warns(MrfrecWarning, match="boost: 2 of 3 items are unknown to the model .*; ignored"):
        model.recommend(5, boost=boost)
    assert rows_and_unknown(model, 5, boost=boost)[1] == {"boost": ["who", "what"]}


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"at_most": ["brand"]}, "at_most must be a mapping from up to 20 names of columns"),
        ({"at_most": {3: 1}}, "at_most must be"),
        ({"at_most": {"brand": -1}}, r"at_most\['brand'\] must be a whole number, 0 or more"),
        ({"at_most": {"brand": True}}, r"at_most\['brand'\]"),
        ({"at_most": {str(i): 1 for i in range(21)}}, "at_most must be"),
        ({"at_most": {"colour": 1}}, "at_most must be .*'colour'"),
        ({"boost": "margin"}, 'boost must be a mapping with "add" or "multiply"'),
        ({"boost": {"times": "margin"}}, "boost must be"),
        ({"boost": {"add": 3}}, r'boost\["add"\] must be the name of a column, or'),
        ({"boost": {"add": {"item 01": float("nan")}}}, r"'item 01'\] must be a number from -1e\+30 to"),
        ({"boost": {"multiply": {"item 01": 0}}}, r"boost\[.*'item 01'\] must be a number from 1e-06 to"),
        ({"boost": {"multiply": "margin"}}, r"numbers from 1e-06 .*; got 'margin'\. It has .* 'item "),
        ({"boost": {"multiply": "brand"}}, r"a column of numbers from .*; got 'brand'\. It is a text"),
        ({"boost": {"add": "brand"}}, r'boost\["add"\] must be a column of numbers'),
        ({"boost": {"add": "colour"}}, r'boost\["add"\] must be .*colour'),
        ({"variety": 1.5}, "variety must be between 0 and 1"),
        ({"variety": "half"}, "variety must be between 0 and 1"),
    ],
)  # fmt: skip
def test_other_rules_are_refused_by_name(question: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        shop().recommend(5, **question)


def test_a_model_without_a_table_says_so() -> None:
    model = MRF.paper().fit(sp.csr_array(random_matrix(0)))
    with pytest.raises(DataError, match="at_most needs a table of items"):
        model.recommend(at_most={"brand": 1})
    with pytest.raises(DataError, match="needs a table of items"):
        model.recommend(boost={"add": "margin"})
    assert len(model.recommend(0, boost={"add": {3: 1.0}}, variety=0.5)) == 10


def test_long_lists_with_variety_are_bounded() -> None:
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random((300, 3000)) < 0.02).astype(np.float64))
    model = MRF(measure=False, sparsity=0.01, rank=0).fit(X)
    rows = rows_for(model, 0, k=2000, variety=0.5)
    assert len({row["item"] for row in rows}) == 2000
    scores = [row["score"] for row in rows]
    assert scores[:500] != sorted(scores[:500], reverse=True)
    assert scores[500:] == sorted(scores[500:], reverse=True)
    assert Question.of(k=1000, variety=0.5).cost([5]) == Question.of(k=500, variety=0.5).cost([5]) + 500


def test_a_loaded_model_answers_the_same(tmp_path: Path) -> None:
    model = shop("sparse")
    question: dict[str, Any] = {"k": 6, "at_most": {"brand": 1}, "boost": {"add": "margin"}, "variety": 0.5}
    answers = rows_for(model, **question)
    model.save(tmp_path / "shop.mrf", include_histories=True)
    opened = load(tmp_path / "shop.mrf")
    assert rows_for(opened, **question) == answers
    opened.verify()
    opened.threads = 1
    assert rows_for(opened, **question) == answers
    assert opened.recommend_to(tmp_path / "all.csv", **question) == len(answers)
    assert pl.read_csv(tmp_path / "all.csv")["item"].to_list() == [row["item"] for row in answers]
