"""Rankings of Popularity and the MRF, against plain numpy; reasons, similar items and tables."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, Interactions, MrfrecWarning, ParameterError
from mrfrec.answers import ranking
from mrfrec.core.rows import Rows
from mrfrec.fitted import scorers
from mrfrec.fitted.state import Runtime
from mrfrec.models.registry import build

import naive
from kinds import MRFS, named_data

# ── the most popular items ────────────────────────────────────────────────────────────────────────


def test_popularity_scores_by_the_number_of_users_whatever_the_history() -> None:
    data = named_data(text=True)
    model = build("Popularity", {}).fit(data)
    table = model.recommend(k=6)
    assert set(table["source"]) == {"popular"}
    users = dict(zip(data.items, data.popularity.tolist(), strict=True))
    assert table["score"].to_list() == [users[item] for item in table["item"]]
    with pytest.warns(MrfrecWarning, match="30 of 30 items have fewer than k=10 similar items"):
        assert model.similar_items(data.items).shape == (0, 5)
    reasons = model.explain(data.items[0], user=data.users[0])
    assert (
        reasons.filter(pl.col("item").is_not_null())["contribution"].to_list()
        == [0.0] * data.matrix.indptr[1]
    )


# ── the MRF's own ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "r": 0.5}])
def test_ranking_is_that_of_plain_numpy(parameters: dict[str, Any], offset: bool, exclude_seen: bool) -> None:
    data = named_data(text=False)
    model = MRF.paper(l2=2.0, dtype="float64", offset=offset, **parameters).fit(data)
    B = model.weights_.toarray() if model.is_sparse else model.weights_
    base = model.mean_ - model.mean_ @ B if offset else np.zeros(data.n_items)
    hidden = [3, 9, 12]
    table = model.recommend(k=8, exclude_seen=exclude_seen, exclude=[data.items[i] for i in hidden])
    for u, (_, rows) in enumerate(table.group_by("user", maintain_order=True)):
        expected = naive.recommend(
            data.matrix[[u]].toarray()[0],
            B,
            base,
            data.popularity.astype(np.float64),
            8,
            exclude_seen=exclude_seen,
            hidden=frozenset(hidden),
        )
        assert rows["item"].to_list() == [data.items[i] for i, _, _ in expected]
        np.testing.assert_allclose(rows["score"], [score for _, score, _ in expected], rtol=1e-5, atol=1e-7)
        assert rows["source"].to_list() == [source for _, _, source in expected]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_one_user_and_many_get_the_same_to_the_bit(kind: str, exclude_seen: bool) -> None:
    data = named_data(text=False, real=True)
    model = MRF.paper(**MRFS[kind]).fit(data)
    hidden = np.isin(np.arange(30), [2, 8])
    learned: Any = model.fitted_.learned
    base = scorers.Base(learned.base_scores, model.catalogue.popularity_rank).without(hidden)
    rows = Rows.of(data.matrix)
    assert len(rows) > scorers.FEW

    def best(some: Rows, k: int) -> tuple[Any, ...]:
        scorer = scorers.WeightScorer(some, learned.weights, model.dtype)
        return ranking.top_k(scorer, k, base, hidden=some if exclude_seen else None, runtime=Runtime(2))

    for k in (1, 7, 30):
        many = best(rows, k)
        for u in range(len(rows)):
            for one, all_ in zip(best(rows.span(u, u + 1), k), many, strict=True):
                np.testing.assert_array_equal(one[0], all_[u])


def test_items_the_history_says_nothing_about_come_by_popularity() -> None:
    # Two small worlds that never meet among many users of neither: a sparse model keeps nothing between them.
    X = np.vstack([np.kron(np.eye(2), np.ones((10, 6))), np.zeros((500, 12))])
    X[np.arange(20), np.arange(20) % 12] = 0.0
    X[10:14, 9] = 0.0
    model = MRF.paper(sparsity=0.2).fit(sp.csr_array(X))
    table = model.recommend(history=[0], k=9)
    known = table.filter(pl.col("source") == "model")["item"].to_list()
    assert set(known) <= set(range(6))
    popular = table.filter(pl.col("source") == "popular")
    assert set(popular["score"]) == {0.0}
    counts = [int(X[:, i].sum()) for i in popular["item"].to_list()]
    assert counts == sorted(counts, reverse=True)


def test_similar_items_are_the_strongest_of_a_row_in_one_scale() -> None:
    data = named_data(text=True)
    for sparsity in (None, 0.2):
        model = MRF.paper(l2=2.0, dtype="float64", sparsity=sparsity).fit(data)
        B = model.weights_.toarray() if model.is_sparse else model.weights_
        for position in range(data.n_items):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MrfrecWarning)  # item 5, which nobody has, is near to nothing
                table = model.similar_items(data.items[position], k=5)
            scale = model.scale_
            strength = {
                data.items[i]: B[position, i] * scale[position] / scale[i]
                for i in range(data.n_items)
                if scale[i] > 0 and B[position, i] > 0
            }
            expected = sorted(strength, key=lambda item: -strength[item])[:5]
            assert table["item"].to_list() == expected
            np.testing.assert_allclose(table["score"], [strength[item] for item in expected], rtol=1e-6)
            assert table.columns == ["item", "title", "score", "rank"]


def test_items_that_take_away_are_in_explain_only() -> None:
    model = MRF.paper(l2=2.0, offset=True).fit(named_data(text=True))
    history = ["item 03", "item 10"]
    table = model.recommend(history=history, k=28, explain=2)
    takes_away = 0
    for item, because in table.select("item", "because").iter_rows():
        parts = model.explain(item, history=history)["contribution"].to_list()[:-1]
        takes_away += min(parts) < 0
        assert because.count("[") == sum(part >= 0.005 for part in parts)
    assert takes_away


def test_the_base_score_is_not_the_score_of_an_empty_history() -> None:
    table = {"user": [1, 1, 1, 2, 2, 3, 3], "item": ["milk", "bread", "jam", "milk", "jam", "tea", "jam"]}
    model = MRF.paper(l2=2.0, offset=True).fit(pl.DataFrame(table))
    some, none = (model.explain("tea", history=history)["contribution"][-1] for history in (["milk"], []))
    assert none == pytest.approx(1 / 3)  # the mean
    assert some != pytest.approx(none)
    item, score = model.recommend(history=[], k=1).select("item", "score").row(0)
    assert sum(model.explain(item, history=[])["contribution"]) == score > 0


@pytest.mark.parametrize("novelty", [None, 0.4])
@pytest.mark.parametrize("history", [[], ["item 03", "item 10"]], ids=["nobody", "somebody"])
def test_reasons_begin_with_the_base_score(history: list[str], novelty: float | None) -> None:
    model = MRF.paper(l2=2.0, offset=True).fit(named_data(text=True))
    for item, because in (
        model.recommend(history=history, k=4, explain=2, novelty=novelty)
        .select("item", "because")
        .iter_rows()
    ):
        parts = model.explain(item, history=history, novelty=novelty)["contribution"].to_list()
        assert because.split(", ")[0] == f"base {parts[-1]:+.2f}"
        assert ("Title" in because) == any(part >= 0.005 for part in parts[:-1])


# ── the caller's frame library ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_rows_come_back_in_the_library_of_the_question(library: str) -> None:
    model = MRF.paper(l2=2.0).fit(named_data(text=False))
    users: dict[str, Any] = {
        "pandas": pd.Series([1003, 1001]),
        "polars": pl.Series([1003, 1001]),
        "pyarrow": pa.chunked_array([[1003, 1001]]),
    }
    table = model.recommend(users[library], k=2)
    assert type(table).__module__.split(".")[0] == library
    frames: dict[str, Any] = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
    histories = frames[library]({"user": ["x", "y"], "item": [2**40, 2**40 + 3]})
    table = model.recommend(history=histories, k=2)
    assert type(table).__module__.split(".")[0] == library


def test_unknown_items_are_counted_once_for_all_histories() -> None:
    model = MRF.paper(l2=2.0).fit(named_data(text=False))
    with pytest.warns(
        MrfrecWarning, match="history: 2 of 4 items are unknown to the model .*; ignored"
    ) as caught:
        model.recommend(history=[[2**40, 5], [6, 2**40 + 1]], k=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_values_of_histories_count_1_where_every_pair_does() -> None:
    data = named_data(text=True)
    a, b = data.items[0], data.items[1]
    model = MRF.paper(l2=2.0).fit(Interactions(data.matrix != 0, data.users, data.items))
    wanted = model.recommend(history={a: 1, b: -1}, k=3)
    histories: list[Any] = [{a: 3, b: -0.5}, {"ann": {a: 7, b: -7}}]
    for history in histories:
        with pytest.warns(MrfrecWarning, match=r"history: 2 values other than 1 and -1: each counts 1"):
            assert model.recommend(history=history, k=3).select(wanted.columns).equals(wanted)
    with pytest.warns(MrfrecWarning, match="2 values other than 1"):
        parts = model.explain(wanted["item"][0], history={a: 3, b: -2})
    assert {*parts["value"].to_list()} <= {1.0, -1.0, None}


def test_tables_have_no_column_that_says_nothing(tmp_path: Path) -> None:
    data = named_data(text=False)
    plain = MRF.paper(l2=2.0).fit(Interactions(data.matrix, data.users, data.items))
    titled, item = MRF.paper(l2=2.0).fit(data), data.items[0]
    told = ["item", "score", "rank", "source"]
    assert plain.recommend(history=[item], k=2).columns == told
    assert plain.recommend(history={item: 1}, k=2).columns == told
    assert titled.recommend(history=[item], k=2).columns == ["item", "title", *told[1:]]
    for whose in ({"users": data.users[0]}, {"history": [[item]]}, {"history": {"ann": [item]}}):
        assert plain.recommend(**whose, k=2).columns == ["user", *told]
    for frame in (plain.history(data.users[0]), plain.search(str(item)), plain.similar_items(item, k=1)):
        assert "title" not in frame.columns
    assert "title" in plain.explain(item, user=data.users[0]).columns  # which names the base score
    plain.recommend_to(tmp_path / "all.csv", history=[item], k=2)  # for programs, always the same
    assert pl.read_csv(tmp_path / "all.csv").columns == ["user", "item", "title", *told[1:]]


def test_scores_keep_the_precision_of_the_model() -> None:
    data = named_data(text=False)
    assert MRF.paper().fit(data).recommend(k=1).schema["score"] == pl.Float32
    model = MRF.paper(dtype="float64").fit(data)
    table = model.recommend(k=1)
    assert table.schema["score"] == pl.Float64
    np.testing.assert_array_equal(table["score"].to_numpy(), model.top_k(data.matrix, 1)[1][:, 0])


def test_a_title_or_a_time_as_text_in_place_of_an_id_or_a_number_says_what_to_do() -> None:
    data = named_data(text=False)
    model = MRF.paper(l2=2.0).fit(data)
    by_title = r"item ids are integers here; .* Find ids by title: search\(…\)\."
    with pytest.raises(DataError, match=by_title):
        model.recommend(history=["Iron Man Three (2013)"])
    with pytest.raises(DataError, match=by_title):
        model.similar_items("Alien")
    wanted = r"numbers or datetimes, .*; got '2013-08-01'\. Convert a time by datetime\.fromisoformat"
    with pytest.raises(ParameterError, match=wanted):
        model.recommend(history={data.items[0]: "2013-08-01"})
    with pytest.warns(
        MrfrecWarning, match=r"1 of 1 users are unknown to the model \(the first is 999999\); they get"
    ):
        model.recommend(999999, k=1)
    with pytest.warns(
        MrfrecWarning, match=r"model \(the first is 999999\); ignored\. Find ids by title: search\(…\)"
    ):
        model.recommend(history=[999999], k=1)


@pytest.mark.parametrize("text", [True, False], ids=["texts", "integers"])
def test_reasons_name_items_by_title_and_id(text: bool) -> None:
    data = named_data(text)
    because = MRF.paper(l2=2.0).fit(data).recommend(data.users[1], k=1, explain=1)["because"][0]
    ((place, item),) = re.findall(r"^Title, of (\d+) \[(.*)\] \+\d\.\d\d$", because)
    assert str(data.items[int(place)]) == item


def test_names_in_reasons_are_cut() -> None:
    names = [f"{letter} " * 5000 for letter in "abc"]
    X = sp.csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]))
    model = MRF.paper(l2=1.0).fit(Interactions(X, items=names, titles=names[::-1]))
    because = model.recommend(history=names[:1], k=1, explain=1)["because"][0]
    assert because.count("…") == 2
    assert len(because) < 200
