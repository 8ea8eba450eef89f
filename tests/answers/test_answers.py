"""Answers by id: forms of questions, filters for each user, evidence, unknown ids, threads, descriptions."""

import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

from asking import rows_and_unknown, rows_for
from mrfrec import MRF, DataError, Interactions, MrfrecWarning, ParameterError, load, read_interactions
from mrfrec.answers.tables import because_text
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.models.registry import build

from kinds import relearn
from matrices import random_matrix


def shop(users: int = 60, items: int = 30, text: bool = False) -> Interactions:
    X = random_matrix(3, users=users, items=items)
    X[:, 7] *= np.arange(users) % 7 > 0  # nobody has everything
    ids: list[Any] = [f"item {i:02}" for i in range(items)] if text else list(range(items))
    return Interactions(
        sp.csr_array(X), list(range(100, 100 + users)), ids, [f"Title {i}" for i in range(items)]
    )


def tiny(items: int) -> sp.csr_array:
    return sp.csr_array((np.arange(12 * items).reshape(12, items) % 7 % 3 == 0).astype(np.float64))


# ── forms of a history ────────────────────────────────────────────────────────────────────────────


def test_half_of_a_surrogate_pair_is_refused_by_name(tmp_path: Path) -> None:
    model = MRF.paper(l2=2.0).fit(shop(text=True))
    path = tmp_path / "\ud800.parquet"
    with pytest.raises(ParameterError, match="path must be"):
        model.recommend_to(path)
    with pytest.raises(ParameterError, match="path must be"):
        model.save(path)
    with pytest.raises(ParameterError, match="table must be"):
        model.recommend_to(f"sqlite:///{tmp_path}/s.db", table="\ud800")
    with pytest.raises(DataError, match="valid Unicode"):
        model.recommend(history={"\ud800": ["item 04"]})
    with pytest.raises(DataError, match="unknown"):
        model.similar_items("\ud800")


def test_a_series_of_pandas_whose_index_may_hold_the_items_is_refused() -> None:
    model = MRF.paper(l2=2.0).fit(shop())
    counts = pd.Series([5, 5, 7]).value_counts()
    orders = pd.DataFrame({"user": [1, 2, 2], "item": [9, 5, 7]})
    for history in (
        counts,
        {"Ann": counts},
        [counts],
        orders["item"].value_counts(),
        pd.Series({5: 1, 7: 2}),
    ):
        with pytest.raises(ParameterError, match=r"if its index has the items, series\.to_dict\(\)"):
            model.recommend(history=history)
    with pytest.raises(ParameterError, match=r"A file is Path\('hist\.csv'\)"):
        model.recommend(history="hist.csv")
    for history in (pd.Series([5, 7]), orders[orders["user"] == 2]["item"]):
        answer: Any = model.recommend(history=history)
        assert answer["item"].tolist() == model.recommend(history=[5, 7])["item"].to_list()


# ── filters for each user ─────────────────────────────────────────────────────────────────────────


def chosen(model: Any, user: int, k: int, allow: set[int] | None, exclude: set[int]) -> list[int]:
    """By sorting everything the user may get."""
    everything = model.recommend(user, k=40, exclude_seen=True)["item"].to_list()
    return [i for i in everything if i not in exclude and (allow is None or i in allow)][:k]


@pytest.mark.parametrize(
    "kind", [("MRF", {"l2": 2.0}), ("MRF", {"sparsity": 0.2}), ("ItemKNN", {"neighbors": 12})]
)
@pytest.mark.parametrize("count", [3, 60])
def test_each_user_has_their_own_filters(kind: tuple[str, dict[str, Any]], count: int) -> None:
    model = build(*kind).fit(shop())
    users = list(range(100, 100 + count))
    exclude = {100: [3, 4, 5], 102: range(20)}
    allow = {101: [9, 8, 20, 21, 9], 102: {25, 3, 26, 27}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)  # fewer than k
        table = model.recommend(users, k=4, exclude=exclude, allow=allow)
        for user in users:
            may, never = allow.get(user), exclude.get(user, ())
            wanted = chosen(model, user, 4, None if may is None else {*may}, {*never})
            assert table.filter(pl.col("user") == user)["item"].to_list() == wanted
        common = {None: [1, 2], 101: [3]}  # for everybody, and for one
        mixed = model.recommend(users, k=4, exclude=common, allow={None: range(1, 9)})
        for user in users:
            wanted = chosen(model, user, 4, {*range(1, 9)}, {1, 2, 3} if user == 101 else {1, 2})
            assert mixed.filter(pl.col("user") == user)["item"].to_list() == wanted
        both = model.recommend(users, k=4, exclude=[1, 2], allow=allow)
        wanted = chosen(model, 101, 4, {*allow[101]}, {1, 2})
        assert both.filter(pl.col("user") == 101)["item"].to_list() == wanted


def test_filters_go_by_the_names_of_histories() -> None:
    model = MRF.paper(l2=2.0).fit(shop())
    free = model.recommend(history={"ann": [1], "bob": [2]}, k=3)
    best = free.filter(pl.col("user") == "bob")["item"][0]
    table = model.recommend(history={"ann": [1], "bob": [2]}, k=3, exclude={"bob": [best]})
    assert table.filter(pl.col("user") == "ann").equals(free.filter(pl.col("user") == "ann"))
    assert best not in table.filter(pl.col("user") == "bob")["item"].to_list()
    numbered = model.recommend(history=[[1], [2]], k=3, exclude={1: [best]})
    assert numbered["item"].to_list() == table["item"].to_list()
    with pytest.warns(MrfrecWarning, match="^1 of 2 user ids are repetitions; each user counts once"):
        twice = model.recommend([101, 101], k=2, exclude={101: [best]})
    assert len(twice) == 2
    assert best not in twice["item"].to_list()
    with pytest.warns(MrfrecWarning, match="^1 of 2 item ids are repetitions; each item counts once"):
        assert len(model.similar_items([1, 1], k=1)) == 1


@pytest.mark.parametrize("name", ["allow", "exclude"])
def test_users_of_a_filter_who_are_not_asked_about_are_a_note(name: str) -> None:
    def by(mapping: dict[Any, Any]) -> dict[str, Any]:
        return {name: mapping}

    model = MRF.paper(l2=2.0).fit(shop())
    wanted: dict[Any, Any] = {101: [9, 8, 20], None: range(10)}
    expected = model.recommend([100, 101], k=1, **by(wanted))
    filters = by(wanted | {105: [1], 999: ["not even an id"]})
    ignored = rf"^2 of 3 users of {name} are not among those asked for; ignored \(the first is 105\)\.$"
    with pytest.warns(MrfrecWarning, match=ignored):
        assert model.recommend([100, 101], k=1, **filters).equals(expected)
    rows, unknown = rows_and_unknown(model, [100, 101], k=1, **filters)
    assert [row["item"] for row in rows] == expected["item"].to_list()
    assert unknown == {f"users of {name}": [105, 999]}
    with pytest.warns(MrfrecWarning, match=rf"1 of 1 users of {name} .* \(the first is 1\)"):
        model.recommend(history=[[2]], k=1, **by({1: [3]}))  # rows are numbered from 0
    with pytest.raises(ParameterError, match=rf"{name} must be .* keys are user ids, .* integers; got '7'"):
        model.recommend(101, **by({"7": [3]}))


# ── evidence and scales ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("count", [1, 20])
def test_weights_that_cancel_are_evidence_all_the_same(sparse: bool, count: int) -> None:
    model = MRF.paper(l2=2.0, sparsity=1.0 if sparse else None).fit(tiny(5))
    B = np.zeros((5, 5), np.float32)
    B[0, 2], B[1, 2] = 0.5, -0.5
    relearn(model, weights=Rows.of(sp.csr_array(B)) if sparse else DenseRows(B))
    table = model.recommend(history=[[0, 1]] * count, k=3)
    sources = dict(zip(table["item"].to_list(), table["source"].to_list(), strict=True))
    assert sources == {2: "model", 3: "popular", 4: "popular"}
    assert set(table["score"]) == {0.0}


def test_a_stored_weight_of_zero_is_no_evidence() -> None:
    model = MRF.paper(sparsity=1.0).fit(tiny(4))
    values = np.array([0.0, 0.5], np.float32)
    relearn(model, weights=Rows(np.array([0, 2, 2, 2, 2]), np.array([1, 2], np.int32), values, 4))
    for count in (1, 20):
        table = model.recommend(history=[[0]] * count, k=2)
        assert table["item"].to_list()[0] == 2
        assert table["source"].to_list() == ["model", "popular"] * count


def test_only_items_that_speak_for_a_recommendation_are_its_reasons() -> None:
    model = MRF.paper(sparsity=1.0).fit(tiny(5))
    B = np.zeros((5, 5), np.float32)
    B[0, 3], B[1, 3], B[2, 3] = 0.5, -0.25, 0.75
    relearn(model, weights=Rows.of(sp.csr_array(B)))
    (row,) = rows_for(model, history=[0, 1, 2], k=1, explain=3)
    assert (row["item"], row["because"]) == (3, "2 +0.75, 0 +0.50")
    assert because_text(-0.004, [("2", 0.75), ("0", 0.004)]) == "2 +0.75"
    assert because_text(0.0, [("2", 0.002), ("0", 0.001)]) == "2 +0.00, 0 +0.00"  # nothing else to say


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_with_an_offset_all_scores_are_means_on_one_scale(sparsity: float | None) -> None:
    data = shop()
    model = MRF.paper(l2=2.0, sparsity=sparsity, offset=True, dtype="float64").fit(data)
    B = model.weights_.toarray() if model.is_sparse else model.weights_
    mean = data.matrix.mean(axis=0)
    given = np.zeros(30)
    given[[3, 8]] = 1.0
    for history, expected in (([3, 8], mean + (given - mean) @ B), ([], mean)):
        table = model.recommend(history=history, k=28, exclude_seen=False)
        np.testing.assert_allclose(table["score"], np.sort(expected)[::-1][:28], rtol=1e-10)
        for item, score in table.select("item", "score").iter_rows():
            assert score == pytest.approx(expected[item], rel=1e-10)
            assert sum(model.explain(item, history=history)["contribution"]) == pytest.approx(score)
    # What is measured is what is served.
    nobody = sp.csr_array((1, 30))
    np.testing.assert_allclose(model.scores(nobody)[0], mean, rtol=1e-12)
    items = model.top_k(nobody, 5, ties="popularity")[0]
    assert items[0].tolist() == model.recommend(history=[], k=5)["item"].to_list()


# ── similar items, search ─────────────────────────────────────────────────────────────────────────


def test_similar_items_of_several_items_say_to_which() -> None:
    model = MRF.paper(l2=2.0).fit(shop(text=True))
    wanted = ["item 04", "item 09"]
    table = model.similar_items(wanted, k=3)
    assert table.columns == ["similar_to", "item", "title", "score", "rank"]
    for item in wanted:
        alone = model.similar_items(item, k=3)
        assert table.filter(pl.col("similar_to") == item).drop("similar_to").equals(alone)
    assert model.similar_items([], k=3).shape == (0, 5)
    with pytest.raises(DataError, match="item 'nothing' is unknown"):
        model.similar_items(["item 04", "nothing"])


def test_fewer_similar_items_than_asked_for_are_told() -> None:
    model = MRF.paper(l2=1.0).fit(sp.csr_array(np.array([[1.0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 1, 0]])))
    with pytest.warns(MrfrecWarning, match="item 0 has fewer than k=3 similar items"):
        assert model.similar_items(0, k=3)["item"].to_list() == [1]
    with pytest.warns(MrfrecWarning, match="2 of 2 items have fewer than k=2"):
        model.similar_items([0, 1], k=2)


def test_search_finds_items_by_title_as_a_table() -> None:
    X = sp.csr_array(np.array([[1.0, 1, 0], [0, 1, 1], [0, 1, 1]]))
    titles = ["The Godfather (1972)", "Amélie", "Godfather of the Kremlin"]
    model = MRF.paper(sparsity=1.0).fit(Interactions(X, [1, 2, 3], [10, 20, 30], titles))
    found = model.search("godfather")
    assert found.columns == ["item", "title", "users"]
    assert found["item"].to_list() == [30, 10]
    assert found["users"].to_list() == [2, 1]
    assert model.search("amelie")["item"].to_list() == [20]
    assert model.search("godfathr", k=1)["item"].to_list() == [30]
    assert model.search("")["item"].to_list() == []
    with pytest.raises(ParameterError, match="text must be a string; got 3"):
        model.search(3)  # type: ignore[arg-type]


# ── rows as data ──────────────────────────────────────────────────────────────────────────────────


def test_rows_are_those_of_the_table_and_come_with_the_unknown_ids() -> None:
    model = MRF.paper(l2=2.0).fit(shop(text=True))
    options: dict[str, Any] = {"k": 3, "exclude": ["item 09", "gone"], "allow": None}
    history = ["item 01", "nothing", "item 02", "nowhere"]
    rows, unknown = rows_and_unknown(model, history=history, explain=1, **options)  # without a warning
    assert unknown == {"history": ["nothing", "nowhere"], "exclude": ["gone"]}
    with pytest.warns(MrfrecWarning) as caught:
        table = model.recommend(history=history, explain=1, **options)
    assert len(caught) == 2
    found = [{**row, "score": pytest.approx(row["score"], rel=1e-6), "user": 0} for row in rows]
    assert found == [{"user": 0, **row} for row in table.to_dicts()]
    assert json.loads(json.dumps(rows)) == rows
    assert rows_and_unknown(model, [100, 5], k=2)[1] == {"users": [5]}
    assert rows_and_unknown(model, 100, k=2)[1] == {}
    assert len(rows_for(model, history=["item 00"], k=99)) == 29


def test_unknown_ids_are_counted_in_an_explanation() -> None:
    model = MRF.paper(l2=2.0).fit(shop())
    with pytest.warns(MrfrecWarning, match="history: 1 of 2 items are unknown"):
        model.explain(3, history=[1, 99])


@pytest.mark.parametrize(
    "kind", [("MRF", {"l2": 2.0}), ("MRF", {"sparsity": 0.2}), ("ItemKNN", {"neighbors": 12})]
)
def test_eight_threads_get_the_answers_of_one(kind: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    build(*kind).fit(shop(text=True)).save(tmp_path / "m.mrf", include_histories=True)

    def questions(model: Any) -> list[Callable[[], Any]]:
        names = [f"item {i:02}" for i in range(30)]
        return [
            *(lambda i=i: model.recommend(history=names[i : i + 3], k=4, explain=1) for i in range(0, 27, 3)),
            *(lambda u=u: model.recommend(u, k=3, exclude={u: names[:2]}) for u in range(100, 106)),
            lambda: model.recommend(range(100, 130), k=3),
            lambda: model.similar_items(names[3], k=2),
            lambda: model.search("title 1", k=3),
            lambda: model.explain(names[1], user=101),
            lambda: model.recommend(history=names[:20] + names[21:], k=1),
            lambda: pl.DataFrame(model.scores(sp.eye_array(30, format="csr"))),
        ]

    wanted = [ask() for ask in questions(load(tmp_path / "m.mrf"))]
    for _ in range(3):
        fresh = load(tmp_path / "m.mrf")  # so that whatever is built once is built by eight at a time
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda ask: ask(), questions(fresh) * 4))
        for place, table in enumerate(found):
            assert table.equals(wanted[place % len(wanted)])


# ── descriptions and parameters ───────────────────────────────────────────────────────────────────


def test_a_model_says_what_it_was_fitted_on() -> None:
    assert repr(MRF(l2=2.0)) == "MRF(l2=2.0)"
    data = shop(users=1200)
    about = "fitted on 1,200 users × 30 items, dense"
    assert repr(MRF(l2=2.0).fit(data)).startswith(f"MRF(l2=2.0) {about}, user_weight=")
    assert repr(MRF(measure=False).fit(data)) == f"MRF(measure=False) {about}"
    model = MRF.paper(sparsity=0.2).fit(data)
    assert repr(model).endswith("items, sparse")
    assert repr(model.set_params(l2=2.0)).endswith("sparse, before parameters were changed")
    for kind in ("Vectors", "Popularity", "ItemKNN"):
        assert repr(build(kind, {}).fit(data)) == f"{kind}() fitted on 1,200 users × 30 items"


def test_scikit_learn_clones_a_model() -> None:
    base = pytest.importorskip("sklearn.base")
    for model in (
        MRF.paper(l2=2, sparsity=0.5, r=0.5, memory_limit="1GB", threads=2, dtype="float64"),
        *(build(kind, {}) for kind in ("EASE", "EDLAE", "ItemKNN", "Vectors")),
    ):
        copy = base.clone(model)
        assert type(copy) is type(model)
        assert copy.get_params() == model.get_params(deep=False) == model.get_params()
    assert base.clone(MRF.paper().fit(shop()))._fitted is None


def test_parameters_are_set_under_the_rules_of_the_constructor() -> None:
    model = MRF.paper(l2=2.0)
    assert model.set_params(l2=3, alpha=0.5) is model
    assert (model.parameters["l2"], model.parameters["alpha"]) == (3.0, 0.5)
    with pytest.raises(ParameterError, match="l2 must be a finite number"):
        model.set_params(alpha=0.1, l2=-1)
    assert (model.parameters["l2"], model.parameters["alpha"]) == (3.0, 0.5)
    with pytest.raises(ParameterError, match=r"parameters must be among those of MRF.*'l3'"):
        model.set_params(l3=1)
    with pytest.raises(ParameterError, match="r must be 0 for a dense model"):
        model.set_params(r=0.1, sparsity=None)


def test_histories_that_were_read_by_other_rules_are_refused() -> None:
    rows = pl.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 2, 3], "qty": [5, -5, 2, 1]})
    rated = MRF.paper().fit(read_interactions(rows, value="qty", binary=False))
    plain = MRF.paper().fit(read_interactions(rows, value=False))
    with pytest.raises(DataError, match=r"histories were read with the defaults.*\*\*model\.reading_"):
        rated.recommend(history=read_interactions(rows, value=False), k=1)
    with pytest.raises(DataError, match="training data with the defaults"):
        plain.recommend(history=read_interactions(rows, value="qty", binary=False), k=1)
    alike = read_interactions(rows.rename({"user": "who"}), user="who", value="qty", **rated.reading_)
    assert len(rated.recommend(history=alike, k=1)) == 2


# ── what a user has ───────────────────────────────────────────────────────────────────────────────

BOUGHT = {"user": ["b", "a", "a"], "item": [1, 1, 3], "rating": [5.0, 1.0, 2.0], "time": [30, 20, 10]}


@pytest.mark.parametrize("kept", ["in memory", "in a file"])
def test_history_is_what_a_user_has_in_the_order_of_the_times(kept: str, tmp_path: Path) -> None:
    data = read_interactions(pl.DataFrame(BOUGHT), binary=False)
    model = build("ItemKNN", {}).fit(data)
    if kept == "in a file":
        model.save(tmp_path / "m.mrf", include_histories=True)
        model = load(tmp_path / "m.mrf")
    history = model.history("a")
    assert history.columns == ["user", "item", "value", "time"]
    assert history["item"].to_list() == [3, 1]
    assert history["value"].to_list() == [2.0, 1.0]
    assert history["time"].dt.epoch("s").to_list() == [10, 20]
    assert model.history(["b", "a"])["user"].to_list() == ["b", "a", "a"]
    model.frames = "pandas"
    table: Any = model.history("a")
    assert [str(kind) for kind in table.dtypes[["item", "time"]]] == ["Int64", "datetime64[us]"]


def test_history_of_a_matrix_is_in_the_order_of_the_items() -> None:
    matrix = sp.csr_array([[1, 0, 1], [0, 1, 1]])
    model = build("ItemKNN", {}).fit(Interactions(matrix, ["u", "v"], [9, 5, 7]))
    assert model.history("u").to_dict(as_series=False) == {
        "user": ["u", "u"], "item": [9, 7],
    }  # fmt: skip
    assert len(model.history([])) == 0


def test_history_of_nobody_known_and_of_a_model_without_histories_is_refused(tmp_path: Path) -> None:
    model = build("ItemKNN", {}).fit(Interactions(sp.csr_array([[1, 0, 1], [0, 1, 1]]), ["u", "v"]))
    with pytest.raises(ParameterError, match=r"users must be training users.*got 'w'. Give recommend the"):
        model.history(["u", "w"])
    with pytest.raises(DataError, match="user ids are strings here; got 5"):
        model.history(5)
    model.save(tmp_path / "m.mrf")
    with pytest.raises(DataError, match=r"history needs the training users' histories.*include_histories"):
        load(tmp_path / "m.mrf").history("u")
