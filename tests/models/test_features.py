"""Features of items: how tables are read, the naive truth, new items, files, updates and explanations."""

import json
import sqlite3
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, DataError, Interactions, ParameterError, evaluation, read_item_features
from mrfrec.cli.app import run as run_command
from mrfrec.core import new_items
from mrfrec.core.fitting import sizes_of
from mrfrec.core.low_rank import sample
from mrfrec.core.plan import Settings
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.item_table import ItemFeatures
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MrfrecWarning
from mrfrec.io.features import read_more_features

import naive
from kinds import field
from matrices import random_matrix

Matrix = npt.NDArray[np.float64]
CATALOGUE = pl.DataFrame(
    {
        "item": range(40),
        "title": [f"{'Naruto' if i % 5 == 0 else 'Été'} part {i}" for i in range(40)],
        "genres": [["drama", "Action"][: 1 + i % 2] if i % 3 else [] for i in range(40)],
        "year": [1980 + i for i in range(40)],
        "free": [i % 7 == 0 for i in range(40)],
        "studio": [f"Studio {i % 6}" if i % 11 else None for i in range(40)],
    }
)


def with_features(
    seed: int, X: Matrix, unused: list[int] | None = None
) -> tuple[Matrix, ItemFeatures, Interactions]:
    """A matrix in which nobody uses some items, features as reading makes them, and both together.

    Without such items, only items that somebody uses have features.
    """
    X[:, unused or []] = 0.0
    F = np.random.default_rng(seed).random((25, X.shape[1])) < 0.1
    if unused is None:
        F &= X.any(axis=0)
    values = np.sqrt(1.0 + np.arange(len(F)))
    names = Texts.of(f"tag: {i}" for i in range(len(F)))
    features = ItemFeatures(Ids.range(F.shape[1]), sp.csr_array(values[:, None] * F), names, values, {})
    return X, features, Interactions(sp.csr_array(X)).with_features(features)


def load_mrf(path: Path) -> MRF:
    model = mrfrec.load(path)
    assert isinstance(model, MRF)
    return model


# ── the mathematics ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("user_weight", [0.0, 0.7])
@pytest.mark.parametrize("center", [True, False])
def test_a_dense_fit_with_features_equals_naive(real: bool, user_weight: float, center: bool) -> None:
    X, features, data = with_features(1, random_matrix(3, real=real))
    parameters: dict[str, Any] = {"user_weight": user_weight, "center": center}
    model = field(l2=2.0, dtype="float64", feature_weight=1.7, sparsity=None, **parameters).fit(data)
    B = naive.dense(X, 2.0, F=features.matrix.toarray(), feature_weight=1.7, **parameters)
    np.testing.assert_allclose(model.weights_, B, atol=1e-12)


@pytest.mark.parametrize("r", [0.0, 0.5])
@pytest.mark.parametrize("real", [False, True])
def test_a_sparse_fit_with_features_equals_naive(real: bool, r: float) -> None:
    X, features, data = with_features(1, random_matrix(3, real=real))
    F = features.matrix.toarray()
    share = naive.share_above(naive.moments(X, F=F, feature_weight=1.7).S, 0.4)
    model = field(l2=1.0, dtype="float64", feature_weight=1.7, sparsity=share, r=r).fit(data)
    assert model.threshold_ is not None
    B, A, n_blocks, _ = naive.sparse(X, 1.0, model.threshold_, r, F=F, feature_weight=1.7)
    assert model.pattern_ is not None
    np.testing.assert_array_equal(model.pattern_.toarray(), A)
    assert model.n_blocks_ == n_blocks
    np.testing.assert_allclose(model.weights_.toarray(), B, atol=1e-12)


def test_features_of_no_weight_leave_the_used_items_as_they_are() -> None:
    X, _, data = with_features(1, random_matrix(3))
    plain = MRF.paper(l2=2.0).fit(Interactions(sp.csr_array(X)))
    other = MRF.paper(l2=2.0, feature_weight=0.0).fit(data)
    assert np.array_equal(plain.weights_, other.weights_)


def from_alike_items(model: Any, X: Any, F: Any, item: int, unused: list[int]) -> Any:
    """What a new item gets of the columns of alike items."""
    B = model.weights_.copy()
    B[:, unused] = 0.0
    return model.fitted_.learned.alike_scale * naive.column_of_alike(B, X, F, item)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("user_weight", [0.0, 0.7])
def test_the_weights_of_new_items_equal_naive(real: bool, user_weight: float) -> None:
    unused = [2, 9, 30]
    X, features, data = with_features(2, random_matrix(3, users=80, items=90, real=real), unused)
    model = MRF.paper(l2=2.0, dtype="float64", user_weight=user_weight, offset=True).fit(data)
    F = features.matrix.toarray()
    for item in unused:
        column = naive.new_column(X, F, item, user_weight=user_weight) * model.new_scale_
        column = column + from_alike_items(model, X, F, item, unused)
        weights = np.asarray(model.weights_[:, [item]])[:, 0]
        np.testing.assert_allclose(weights, column, atol=1e-10)
        expected = -model.mean_ @ column if column.any() else min(model.fitted_.learned.base_scores[unused])
        assert model.fitted_.learned.base_scores[item] == pytest.approx(expected)
        assert model.timings_["new items"] > 0 < model.memory_plan_["new items"]
        assert not np.any(model.weights_[item])


def test_a_used_item_taken_for_a_new_one_counts_its_features_alone() -> None:
    X, features, _ = with_features(2, random_matrix(3, users=80, items=90))
    settings = Settings(2.0, None, 1000, 0.0, "float64", 0.75, center=True)
    with LocalEngine(2) as engine:
        sizes = sizes_of(sp.csr_array(X), settings, engine.memory.limit, 0, features.matrix)
        found = new_items.new_columns(
            sp.csr_array(X), features.matrix, np.array([4, 7]), settings, sizes, engine
        )
    for place, item in enumerate([4, 7]):
        column = naive.new_column(X, features.matrix.toarray(), item)
        np.testing.assert_allclose(found[0].toarray()[:, place], column, atol=1e-10)


def test_of_many_users_a_part_tells_the_weights_of_new_items(monkeypatch: pytest.MonkeyPatch) -> None:
    X, features, data = with_features(2, random_matrix(3, users=90, items=90), [5])
    monkeypatch.setattr(new_items, "_SAMPLE_USERS", 30)
    model = MRF.paper(l2=2.0, dtype="float64").fit(data)
    some = X[sample(90, 3)]
    assert 10 < len(some) < 60
    expected = naive.new_column(
        some, features.matrix.toarray(), 5, feature_weight=7 / 3**0.5, ridge=10 / 3**0.5
    )
    column = np.asarray(model.weights_[:, [5]])[:, 0]
    alike = from_alike_items(model, some, features.matrix.toarray(), 5, [5])
    np.testing.assert_allclose(column, expected * model.new_scale_ + alike, atol=1e-10)
    assert column.any()


@pytest.mark.parametrize("sparsity", [None, 1.0])
def test_items_added_later_get_the_weights_of_a_fit_with_them(sparsity: float | None, tmp_path: Path) -> None:
    unused = [86, 87, 88, 89]
    X, features, data = with_features(2, random_matrix(3, users=80, items=90), unused)
    whole = MRF(measure=False, sparsity=sparsity, rank=0).fit(data)
    part = Interactions(sp.csr_array(X[:, :86])).with_features(features.over(Ids.range(86)))
    grown = MRF(measure=False, sparsity=sparsity, rank=0).fit(part)
    grown.save(tmp_path / "a.mrf", include_histories=True)
    grown = load_mrf(tmp_path / "a.mrf")
    with pytest.warns(MrfrecWarning, match="86 of 90 items are known"):
        assert grown.add_items(features) == 4
    a, b = (np.asarray(m.weights_.todense() if m.is_sparse else m.weights_) for m in (whole, grown))
    np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(
        whole.fitted_.learned.base_scores, grown.fitted_.learned.base_scores, atol=1e-5
    )
    for mine, theirs in zip(whole.top_k(sp.csr_array(X), 5), grown.top_k(sp.csr_array(X), 5), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_the_values_of_a_column_tell_its_kind() -> None:
    found = read_item_features(CATALOGUE)
    kinds = {name: encoding.type for name, encoding in found.columns.items()}
    assert kinds == {
        "title": "words",
        "genres": "list",
        "year": "number",
        "free": "flag",
        "studio": "category",
    }
    names = set(found.names)
    assert {"title: naruto", "title: naruto part", "free: yes", "studio: studio 1"} <= names
    assert "title: ete" not in names  # more than a quarter of the items
    assert "genres: action" not in names
    assert "title: 7" not in names  # a single item
    assert "year: below 1983.9" in names
    row = list(found.names).index("studio: studio 1")
    assert found.matrix[[row]].indices.tolist() == [i for i in range(40) if i % 6 == 1 and i % 11]
    assert np.allclose(found.matrix[[row]].data, np.sqrt(np.log(40 / found.matrix[[row]].nnz)))


def test_codes_are_categories_as_they_are_texts_in_a_table_of_items() -> None:
    table = pl.DataFrame({"item": range(40), "code": [f"{i % 8:03}" for i in range(40)]})
    features = read_item_features(table)
    assert features.columns["code"].type == "category"
    assert features.table is not None
    assert features.table.types == {"code": "text"}
    assert list(features.names)[:2] == ["code: 000", "code: 001"]


def test_a_file_gives_the_features_of_its_frame(tmp_path: Path) -> None:
    table = CATALOGUE.with_columns(pl.col("genres").list.join("|"))
    table.write_csv(tmp_path / "items.csv")
    table.write_parquet(tmp_path / "items.parquet")
    wanted = read_item_features(CATALOGUE)
    for name in ("items.csv", "items.parquet"):
        found = read_item_features(tmp_path / name)
        assert list(found.names) == list(wanted.names)
        assert (found.matrix != wanted.matrix).nnz == 0
        assert found.items == wanted.items


def test_a_query_gives_the_features_of_its_table(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table products (sku text, studio text)")
        rows = zip(map(str, CATALOGUE["item"]), CATALOGUE["studio"], strict=True)
        database.executemany("insert into products values (?, ?)", list(rows))
    found = read_item_features(f"sqlite:///{tmp_path / 'shop.db'}", query="select sku, studio from products")
    assert list(found.names) == [f"studio: studio {i}" for i in range(6)]
    assert found.items[0] == "0"


def test_columns_can_be_chosen_and_typed() -> None:
    assert {*read_item_features(CATALOGUE, columns=["year", "free"]).columns} == {"year", "free"}
    years = read_item_features(
        pl.concat([CATALOGUE, CATALOGUE.with_columns(item=pl.col("item") + 40)]), columns={"year": "category"}
    )
    assert "year: 1980" in set(years.names)
    for columns, message in (
        (["colour"], "^columns must be columns of"),
        ({"year": "colour"}, "of the types category, list, words, number, flag"),
        ({"title": "number"}, "must hold numbers; got 'Naruto part 0' for item 0"),
        ("title", "a list of columns"),
    ):
        with pytest.raises((ParameterError, DataError), match=message):
            read_item_features(CATALOGUE, columns=columns)  # type: ignore[arg-type]


def test_odd_cells_are_read_or_refused(tmp_path: Path) -> None:
    texts = ["", "2001-05-06", "2010-01-02", "2020-07-08"] * 10
    found = read_item_features(pl.DataFrame({"item": range(40), "out": texts}))
    assert found.columns["out"].type == "number"
    same = read_item_features(pl.DataFrame({"sku": range(40), "item": texts}), item="sku")
    assert [name.partition(": ")[2] for name in same.names] == [n.partition(": ")[2] for n in found.names]
    with pytest.warns(MrfrecWarning, match="item ids are floats in column 'item' of the polars frame"):
        whole = read_item_features(pl.DataFrame({"item": [float(i) for i in range(40)], "out": texts}))
    assert whole.items[3] == 3
    (tmp_path / "odd.csv").write_text("item,title\n1,Hello, Dolly\n2,Hello\n")
    with pytest.raises(DataError, match="row 1: more than 2 fields"):
        read_item_features(tmp_path / "odd.csv")
    with pytest.raises(DataError, match="true or false; got 'maybe' for item 2"):
        read_item_features(pl.DataFrame({"item": [1, 2], "c": ["yes", "maybe"]}), columns={"c": "flag"})


@pytest.mark.parametrize("form", ["jsonl", "csv", "polars", "pandas", "arrays"])
def test_lists_are_not_split_at_commas_inside_their_parts(form: str, tmp_path: Path) -> None:
    cells: list[Any] = [["a, b", "c"], ["c"], None, ["a, b", "7", None]] * 10
    table: Any = tmp_path / f"items.{form}"
    if form == "jsonl":
        table.write_text("\n".join(json.dumps({"item": i, "tags": cell}) for i, cell in enumerate(cells)))
    elif form == "csv":
        texts = ["" if cell is None else json.dumps(cell) for cell in cells]
        pl.DataFrame({"item": range(40), "tags": texts}).write_csv(table)
    elif form == "polars":
        table = pl.DataFrame({"item": range(40), "tags": cells})
    else:
        arrays = [np.array(cell, object) if form == "arrays" and cell else cell for cell in cells]
        table = pd.DataFrame({"item": range(40), "tags": arrays})
    with mock.patch("mrfrec.io.features._MOST_ITEMS", 1.0):
        found = read_item_features(table)
    counts = dict(zip(found.names, np.diff(found.matrix.indptr).tolist(), strict=True))
    assert counts == {"tags: 7": 10, "tags: a b": 20, "tags: c": 20}


def test_lists_in_some_files_and_text_in_others_are_lists(tmp_path: Path) -> None:
    files: dict[str, list[Any]] = {"a": ["x, y", ["x, y"]], "b": ["z", "z"]}
    for name, cells in files.items():
        rows = [{"item": f"{name}{i}", "tags": cell} for i, cell in enumerate([*cells, *[None] * 9])]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(read_item_features(f"{tmp_path}/*.jsonl").names) == ["tags: x y", "tags: z"]


@pytest.mark.parametrize(
    ("column", "count", "some"),
    [
        (  # C and its relatives are different words
            [f"{('C', 'C++', 'C#', 'the')[i % 4]} book {i}, #{i}" for i in range(40)],
            8,
            {"c", "c++", "c#", "c++ book"},
        ),
        (pl.Series(range(0, 40 * 400, 400)).cast(pl.Date), 10, {"below 1974.27", "2008.44 and more"}),
        ([20240101 + i % 30 for i in range(40)], 10, {"below 20240103"}),  # all digits, to tell bins apart
    ],
)
def test_words_dates_and_large_numbers_are_told_apart(column: Any, count: int, some: set[str]) -> None:
    names = read_item_features(pl.DataFrame({"item": range(40), "x": column})).names
    assert len(names) == count
    assert {f"x: {name}" for name in some} <= {*names}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (CATALOGUE.select("item"), "no column beside"),
        (pl.DataFrame({"item": ["a", None], "x": ["p", "p"]}), r"row 2: no item id\. .* Correct it\.$"),
        (pl.DataFrame({"item": [], "x": []}), "the polars frame has no items"),
        (pl.DataFrame({"item": ["a", "b"], "x": ["p", "q"]}), "no feature that 2 items or more"),
        (pl.DataFrame({"item": [["a"], ["b"]], "c": ["x", "x"]}), "ids must be integers or strings"),
        (pl.DataFrame({"item": [0.5, 1.0], "c": ["x", "x"]}), "row 1: item id not a whole number, 0.5"),
        (CATALOGUE.with_columns(item=pl.col("item") + 10_000), "names none of the items"),
        (
            CATALOGUE.with_columns(item=pl.lit("x") + pl.col("item").cast(pl.String)),
            "integers in the data; got 'x0' in the table",
        ),
    ],
)
def test_bad_tables_are_told(table: pl.DataFrame, message: str) -> None:
    data = Interactions(sp.csr_array(random_matrix(1)))
    with pytest.raises(DataError, match=message):
        MRF().fit(data, item_features=table)
    with pytest.raises(DataError, match="what read_item_features returns"):
        data.with_features(table)  # type: ignore[arg-type]


# ── a model with features ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model() -> MRF:
    X = random_matrix(5, users=60, items=36)
    return MRF(measure=False).fit(Interactions(sp.csr_array(X)), item_features=CATALOGUE)


def test_new_items_are_in_the_model(model: MRF) -> None:
    assert list(model.items_)[36:] == [36, 37, 38, 39]
    assert model.titles_ is not None
    assert model.titles_[38] == "Été part 38"
    found = model.recommend(history=[0, 5, 10], k=4, allow=[36, 37, 38, 39], explain=3)
    assert sorted(found["item"]) == [36, 37, 38, 39]
    assert len(model.similar_items(38, k=3)) == 3
    assert model.search("part 38")["users"].to_list()[0] == 0


def test_explanations_add_up_and_name_features(model: MRF) -> None:
    history = list(range(0, 36, 2))
    found = model.recommend(history=history, k=4, allow=[36, 37, 38, 39])
    for row in found.iter_rows(named=True):
        reasons = model.explain(row["item"], history=history)
        assert sum(reasons["contribution"]) == pytest.approx(row["score"], abs=1e-5)
        shared = {(i, text) for i, text in zip(reasons["item"], reasons["both"], strict=True) if text}
        assert all(text == "studio 0" for i, text in shared if row["item"] == 36 and i in (6, 12, 18, 24))
    assert model.explain(36, history=history)["both"].drop_nulls().len() > 0
    because = model.recommend(history=history, k=4, allow=[36, 37, 38, 39], explain=2)["because"]
    assert any("(both: " in text for text in because)


def test_files_keep_features(model: MRF, tmp_path: Path) -> None:
    model.save(tmp_path / "a.mrf", include_histories=True)
    loaded = mrfrec.load(tmp_path / "a.mrf")
    assert loaded.catalogue.features is not None
    assert model.catalogue.features is not None
    assert loaded.catalogue.features.columns == model.catalogue.features.columns
    assert (loaded.catalogue.features.matrix != model.catalogue.features.matrix).nnz == 0
    asked: dict[str, Any] = {"history": [0, 5], "k": 10, "explain": 2}
    assert loaded.recommend(**asked).equals(model.recommend(**asked))
    loaded.save(tmp_path / "b.mrf")
    bare = load_mrf(tmp_path / "b.mrf")
    with pytest.raises(DataError, match="add_items needs the training users' histories"):
        bare.add_items(CATALOGUE.with_columns(item=pl.col("item") + 5))


def test_updates_and_forgetting_keep_features(model: MRF, tmp_path: Path) -> None:
    model.save(tmp_path / "a.mrf", include_histories=True)
    loaded = load_mrf(tmp_path / "a.mrf")
    loaded.update(pl.DataFrame({"user": [100, 101], "item": [38, 0]}))
    assert loaded.popularity_[list(loaded.items_).index(38)] == 1
    data = model.fitted_.data_for("a test")
    both = sp.vstack([data.matrix, sp.csr_array(([1.0, 1.0], ([0, 1], [38, 0])), shape=(2, 40))])
    again = Interactions(both, [*data.users, 100, 101], list(data.items), list(data.titles or []))
    fresh = MRF(measure=False).fit(again.replace(features=data.features))
    assert np.array_equal(fresh.weights_, loaded.weights_)
    loaded.forget([100])
    assert loaded.catalogue.features is not None
    assert 38 in loaded.items_


def test_new_items_stay_when_events_leave_the_window(tmp_path: Path) -> None:
    days = ["2024-01-01", "2024-01-20", "2024-01-21", "2024-01-22", "2024-01-25", "2024-01-25"]
    events = pl.DataFrame({"user": list("aabbcc"), "item": list("xyxyyz"), "time": days})
    table = pl.DataFrame({"item": [*"xyz", *(f"n{i}" for i in range(8))], "genre": [*"gghhhkkllmm"]})
    data = mrfrec.read_interactions(events, window="30d")
    model = MRF(measure=False).fit(data, item_features=table)
    model.update(pl.DataFrame({"user": ["d"], "item": ["y"], "time": ["2024-02-10"]}))
    assert {*model.items_} == {*"xyz", *(f"n{i}" for i in range(8))}
    model.update(
        pl.DataFrame({"user": ["e"], "item": ["y"], "time": ["2024-02-11"]}), item_features=table[:5]
    )
    assert {*model.items_} == {*"xyz", "n0", "n1"}


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("sparsity", [None, 0.4])
def test_the_source_of_a_new_item_is_the_model_where_the_history_has_a_weight(
    sparsity: float | None, rank: int, count: int
) -> None:
    data = Interactions(sp.csr_array(random_matrix(5, users=60, items=36)))
    model = MRF(measure=False, sparsity=sparsity, rank=rank, rank_weight=0.3)
    of_nobody = pl.when(pl.col("item") == 39).then(pl.lit("Nobody")).otherwise("studio").alias("studio")
    model.fit(data, item_features=CATALOGUE.select("item", of_nobody))
    found = model.recommend(history=[[0, 6]] * count, k=4, allow=range(36, 40))
    weights = model.weights_[[0, 6]] if sparsity is None else model.weights_[[0, 6]].toarray()
    sources = ["model" if weights[:, item].any() else "popular" for item in found["item"]]
    assert found["source"].to_list() == sources
    assert {*sources} == {"model", "popular"}


@pytest.mark.parametrize("kind", [mrfrec.models.EASE, mrfrec.models.EDLAE])
def test_ease_and_edlae_learn_from_interactions_alone(kind: Any) -> None:
    data = Interactions(sp.csr_array(random_matrix(5, users=60, items=36)))
    model = kind().fit(data.with_features(read_item_features(CATALOGUE)))
    assert (model.catalogue.features, len(model.items_)) == (None, 40)
    assert not model.weights_[:, 36:].any()
    with pytest.raises(ParameterError, match=f"{kind.__name__} learns from interactions alone"):
        kind().fit(data, item_features=CATALOGUE)
    assert not {"add_items", "paper"} & {*dir(model)}


def test_items_of_which_nothing_is_known_come_last(model: MRF) -> None:
    more = CATALOGUE.with_columns(item=pl.col("item") + 40, studio=pl.lit("Nobody"), title=pl.lit("qqq"))
    more = more.with_columns(
        year=pl.lit(None, pl.Int64), free=pl.lit(False), genres=pl.lit([], pl.List(pl.String))
    )
    known = CATALOGUE[1:2].with_columns(item=pl.lit(99))
    model.add_items(pl.concat([more[:1], known], how="vertical_relaxed"))
    for history in ([0, 5], [1, 7], [3]):
        found = model.recommend(history=history, k=2, allow=[40, 99])
        assert found["item"].to_list() == [99, 40]


def test_known_items_are_left_as_they_are(model: MRF) -> None:
    before = model.weights_.copy()
    more = CATALOGUE.with_columns(item=pl.col("item") + 3)
    with pytest.warns(MrfrecWarning, match="37 of 40 items are known"):
        assert model.add_items(more) == 3
    assert np.array_equal(model.weights_[:40, :40], before)
    weights = model.weights_.copy()
    with pytest.warns(MrfrecWarning, match="40 of 40 items are known, and left as they are"):
        assert model.add_items(more.with_columns(pl.col("studio").reverse())) == 0  # a second time
    assert np.array_equal(model.weights_, weights)
    assert len(model.items_) == 43
    plain = MRF(measure=False).fit(model.fitted_.data_for("a test").matrix)
    with pytest.raises(DataError, match="fitted with item_features"):
        plain.add_items(CATALOGUE)


def test_added_cells_of_another_form_than_in_the_fit_are_refused_or_told(model: MRF) -> None:
    more = CATALOGUE.with_columns(item=pl.col("item") + 40)
    with pytest.raises(DataError, match=r"column 'year' must hold numbers; got 'old' for item 40\. Correct"):
        model.add_items(more.with_columns(year=pl.lit("old")))
    with pytest.raises(DataError, match=r"must hold cells of the type category; got \['a'\] for item 40"):
        model.add_items(more.with_columns(studio=pl.lit(["a"])))
    with pytest.raises(DataError, match="column 'studio' must hold text, numbers, times or lists; it is Str"):
        model.add_items(more.with_columns(studio=pl.struct("item")))
    with pytest.warns(MrfrecWarning, match=r"column 'studio': the fit knows no feature of its 40 cells"):
        assert model.add_items(more.with_columns(studio=pl.lit("Other"))) == 40
    numbers = pl.DataFrame({"item": range(40), "shelf": [i % 5 for i in range(40)]})
    known = read_item_features(numbers, columns={"shelf": "category"})
    floats = read_more_features(numbers.cast({"shelf": pl.Float64}), known)  # as beside a missing cell
    assert (floats.matrix != known.matrix).nnz == 0


def test_items_are_added_by_features_that_were_read_already(model: MRF, tmp_path: Path) -> None:
    columns: Any = {"studio": "category", "title": "words", "free": "flag"}
    model = MRF(measure=False).fit(
        model.fitted_.data_for("a test").matrix[:, :36],
        item_features=read_item_features(CATALOGUE, columns=columns),
    )
    model.save(tmp_path / "a.mrf", include_histories=True)
    both = pl.concat([CATALOGUE, CATALOGUE.with_columns(item=pl.col("item") + 40)])
    by_table = load_mrf(tmp_path / "a.mrf")
    by_table.add_items(both[40:])
    with pytest.warns(MrfrecWarning, match="40 of 80 items are known"):
        model.add_items(read_item_features(both, columns=columns))
    assert np.array_equal(model.weights_, by_table.weights_)
    assert list(model.titles_ or []) == list(by_table.titles_ or [])
    with pytest.raises(DataError, match="column 'title' is words in the features of the fit, and missing"):
        model.add_items(read_item_features(both, columns={**columns, "title": "category"}))
    with pytest.raises(ParameterError, match="query must be None for features that were read already"):
        model.add_items(read_item_features(both, columns=columns), query="select 1")


def test_features_are_measured_with_the_other_parameters() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 8, 200)
    likes = rng.integers(0, 8, 700)
    X = (rng.random((700, 200)) < np.where(group[None, :] == likes[:, None], 0.3, 0.01)).astype(float)
    table = pl.DataFrame({"item": range(200), "group": [f"g{g}" for g in group]})
    model = MRF().fit(Interactions(sp.csr_array(X)), item_features=table)
    assert model.measured_ is not None
    assert "feature_weight" in model.measured_.values
    assert "feature_weight" not in MRF().fit(Interactions(sp.csr_array(X))).measured_.values  # type: ignore[union-attr]


# ── measuring, the command line and the nightly job ───────────────────────────────────────────────


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of people who like one of eight brands, and the brands of all items, four of them unused."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    brand, likes = np.arange(120) % 8, rng.integers(0, 8, 400)
    X = rng.random((400, 120)) < np.where(brand[None, :] == likes[:, None], 0.5, 0.02)
    X[:, 116:] = False
    user, item = np.nonzero(X)
    events = pl.DataFrame({"user": user, "item": pl.Series(item).map_elements(lambda i: f"p{i}", pl.String)})
    events.write_csv(folder / "events.csv")
    names = pl.DataFrame({"item": [f"p{i}" for i in range(120)], "brand": [f"brand {b}" for b in brand]})
    names = names.with_columns(title=pl.lit("Thing ") + pl.col("item"))
    names.write_csv(folder / "products.csv")
    more = pl.DataFrame({"item": ["q1", "q2"], "brand": ["brand 3", "brand 9"], "title": ["New", "Odd"]})
    more.write_csv(folder / "new.csv")
    return folder


def test_new_items_are_measured_among_themselves_and_among_all(shop: Path) -> None:
    events = shop / "events.csv"
    split = evaluation.strong_generalisation(events, 40)
    features = read_item_features(shop / "products.csv")
    model = MRF(measure=False)
    wide = split.with_features(features)
    assert wide.training.n_items == 120
    among_new, among_all = evaluation.evaluate_new_items(model, wide, 0.2, "ndcg@10")
    plain = evaluation.evaluate_new_items(model, split, 0.2, "ndcg@10")
    assert among_new.mean("ndcg@10").mean > 0.55 > 0.4 > plain[0].mean("ndcg@10").mean
    assert among_all.mean("ndcg@10").mean > plain[1].mean("ndcg@10").mean
    changed, asked = wide.with_new_items(0.2)
    assert asked.candidates is not None
    new = np.flatnonzero(asked.candidates)
    assert len(new) == 23
    assert not changed.training.popularity[new].any()
    assert not changed.test.shown[:, new].nnz
    both = split.test.shown + split.test.targets
    assert changed.test.targets[:, new].nnz == both[:, new[new < 116]].nnz
    assert asked.targets.nnz == changed.test.targets[:, new].nnz


def test_the_command_line_fits_evaluates_and_adds_items(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mrfrec_command(*arguments: object) -> str:
        run_command([str(argument) for argument in arguments], Event())
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    table = ("--item-features", shop / "products.csv", "--feature-columns", "brand=category,title")
    mrfrec_command("fit", shop / "events.csv", "-o", "a.mrf", *table, "--measure", "no", "--histories")
    model = load_mrf(tmp_path / "a.mrf")
    assert len(model.items_) == 120
    mrfrec_command("update", "a.mrf", "--item-features", shop / "new.csv", "-o", "b.mrf")
    grown = load_mrf(tmp_path / "b.mrf")
    assert list(grown.items_)[-2:] == ["q1", "q2"]
    written = (tmp_path / "b.mrf").stat()
    for more in ((), ("-o", "same.mrf")):
        with pytest.warns(MrfrecWarning, match="2 of 2 items are known"):
            run_command(["update", "b.mrf", "--item-features", str(shop / "new.csv"), *more], Event())
        assert "added 0 items" in capsys.readouterr().err
    assert (tmp_path / "b.mrf").stat() == written  # not written again
    assert load_mrf(tmp_path / "same.mrf").items_ == grown.items_
    found = grown.recommend(history=["p3", "p11"], k=2, allow=["q1", "q2"])
    assert found["item"].to_list()[0] == "q1"
    out = mrfrec_command("explain", "b.mrf", "--item", "q1", "--history", "p3,p11")
    assert "brand 3" in out
    out = mrfrec_command(
        "evaluate", shop / "events.csv", *table, "--cold-items", "0.2", "--metrics", "ndcg@10",
        "--model", "measure=false",
    )  # fmt: skip
    assert "new items" in out
    assert "all items" in out
    with pytest.raises(ParameterError, match="left out without --item-features"):
        mrfrec_command("fit", shop / "events.csv", "-o", "c.mrf", "--feature-columns", "brand")
    with pytest.raises(ParameterError, match=r"^--feature-columns must be columns of"):
        mrfrec_command("fit", shop / "events.csv", "-o", "c.mrf", *table[:3], "colour")


def test_the_nightly_job_reads_features(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        f"""
        [source]
        data = "{shop / "events.csv"}"
        features = "{shop / "products.csv"}"
        feature_columns = {{brand = "category"}}
        [model]
        measure = false
        [publish]
        model = "shop.mrf"
        """
    )
    mrfrec.nightly.run(tmp_path / "job.toml")
    model = load_mrf(tmp_path / "shop.mrf")
    assert len(model.items_) == 120
    assert model.catalogue.features is not None
    assert set(model.catalogue.features.columns) == {"brand"}


def test_an_item_whose_rows_differ_is_refused() -> None:
    table = pl.DataFrame({"item": ["a", "a", "b", "c", "d"], "kind": ["x", None, "x", "y", "y"]})
    assert read_item_features(table).items.take(np.arange(4)) == ["a", "b", "c", "d"]
    for cells in (["x", "y", "x", "y", "y"], [["x"], ["y"], ["x"], ["y"], ["y"]]):
        with pytest.raises(
            DataError,
            match=r"'kind' must have one value for each item; the rows of 'a' differ.*drop_duplicates",
        ):
            read_item_features(table.with_columns(kind=pl.Series(cells)))
