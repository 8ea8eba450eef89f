"""Tables keep ids and types in every data frame library."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mrfrec
from mrfrec import MRF
from mrfrec.errors import MissingLibraryError, ParameterError
from mrfrec.models.recommender import Recommender

LARGE = 2**53  # above which not every whole number has a float64 of its own
IDS: dict[str, list[Any]] = {
    "integers": [LARGE + 2 * place + 1 for place in range(6)],
    "unsigned": [2**64 - 2 * place - 1 for place in range(6)],
    "texts": [f"sku-{place}" for place in range(6)],
}
LIBRARIES: dict[str, Any] = {"polars": pl.DataFrame, "pandas": pd.DataFrame, "pyarrow": pa.Table}
TABLES: dict[str, Callable[[Any, list[Any]], Any]] = {
    "recommend": lambda model, ids: model.recommend(ids[:2], k=2),
    "recommend with reasons": lambda model, ids: model.recommend(ids[:2], k=2, explain=2),
    "recommend by history": lambda model, ids: model.recommend(history={ids[0]: ids[1:3]}, k=2),
    "similar_items": lambda model, ids: model.similar_items(ids[0], k=1),
    "similar_items of several": lambda model, ids: model.similar_items(ids[:2], k=1),
    "explain": lambda model, ids: model.explain(ids[4], history=ids[:3]),
    "explain without a history": lambda model, ids: model.explain(ids[4], history=[]),
    "search": lambda model, ids: model.search(str(ids[0])),
    "search for nothing": lambda model, ids: model.search("~"),
}


def made(library: str, columns: dict[str, list[Any]]) -> Any:
    return pl.DataFrame(columns).to_arrow() if library == "pyarrow" else LIBRARIES[library](columns)


def fitted(library: str, ids: list[Any], titles: bool, **parameters: Any) -> Recommender:
    """Fit on users and items with the same ids; the last user has all items."""
    pairs = [(u, i) for u in range(6) for i in range(6) if (u * i + u + i) % 3 or u == 5]
    columns = {"user": [ids[u] for u, _ in pairs], "item": [ids[i] for _, i in pairs]}
    if titles:
        columns["title"] = [f"Item {i}" if i % 2 else None for _, i in pairs]
    return MRF(threads=1, **parameters).fit(made(library, columns))


def contents(table: Any) -> dict[str, list[Any]]:
    """Return columns as lists; what pandas has for a missing value is None."""
    if isinstance(table, pd.DataFrame):
        return {name: [None if pd.isna(x) else x for x in table[name].tolist()] for name in table}
    columns = table.to_pydict() if isinstance(table, pa.Table) else table.to_dict(as_series=False)
    return dict(columns)


def types(table: Any) -> dict[str, str]:
    if isinstance(table, pd.DataFrame):
        return {name: str(kind) for name, kind in table.dtypes.items()}
    columns = zip(table.schema.names, table.schema.types, strict=True) if isinstance(table, pa.Table) else ()
    return {name: str(kind) for name, kind in columns or table.schema.items()}


@pytest.mark.parametrize("titles", [True, False], ids=["titles", "no titles"])
@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_ids_are_the_same_in_every_table(library: str, kind: str, titles: bool) -> None:
    ids = IDS[kind]
    model, in_polars = fitted(library, ids, titles), fitted("polars", ids, titles)
    for name, ask in TABLES.items():
        table = ask(model, ids)
        assert type(table) is LIBRARIES[library], name
        found = contents(table)
        assert found == contents(ask(in_polars, ids)), name
        for column in {"user", "item", "similar_to"} & found.keys():
            assert {*found[column]} <= {*ids, None}, name
            assert None not in found[column][:-1], name  # only the base score, which comes last, has no item


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_has_one_type_in_every_table(library: str, kind: str) -> None:
    ids = IDS[kind]
    for dtype in ("float32", "float64"):
        seen: dict[str, set[str]] = {}
        for titles in (True, False):
            model = fitted(library, ids, titles, dtype=dtype)
            for ask in TABLES.values():
                for column, kind_of_column in types(ask(model, ids)).items():
                    seen.setdefault(column, set()).add(kind_of_column)
        assert {column: kinds for column, kinds in seen.items() if len(kinds) > 1} == {}
        assert {*seen["user"]} == {*seen["item"]} == {*seen["similar_to"]}


def test_pandas_has_whole_numbers_that_may_be_missing() -> None:
    model = fitted("pandas", IDS["integers"], titles=True)
    table = TABLES["explain"](model, IDS["integers"])
    assert table["item"].dtype == pd.Int64Dtype()
    assert table["item"].isna().tolist() == [False] * (len(table) - 1) + [True]
    assert table["title"].dtype == pd.Series([""]).dtype
    again: Any = model.recommend(history=table["item"].dropna(), k=1)
    assert again["item"].iloc[0] in IDS["integers"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_can_be_chosen(library: str, tmp_path: Path) -> None:
    ids, path = IDS["integers"], tmp_path / "model.mrf"
    model = fitted("pandas" if library == "polars" else "polars", ids, titles=False)
    model.save(path, include_histories=True)
    loaded = mrfrec.load(path)
    for one in (model, loaded):
        one.frames = library
        for ask in TABLES.values():
            assert type(ask(one, ids)) is LIBRARIES[library]
    for asked_with in (pd.Series(ids[:2]), pl.Series(ids[:2])):
        assert type(model.recommend(asked_with, k=1)) is LIBRARIES[library]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_file_keeps_the_library_of_the_frame_that_was_fitted_on(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, again = tmp_path / "model.mrf", tmp_path / "again.mrf"
    ids = IDS["integers"]
    fitted(library, ids, titles=False).save(path, include_histories=True)
    loaded = mrfrec.load(path)
    assert type(loaded.recommend(ids[0], k=1)) is LIBRARIES[library]
    loaded.forget([ids[-1]])
    assert type(loaded.recommend(ids[0], k=1)) is LIBRARIES[library]
    if library != "polars":
        monkeypatch.setitem(sys.modules, library, None)
    assert type(mrfrec.load(path).recommend(ids[0], k=1)) is pl.DataFrame
    mrfrec.load(path).save(again, include_histories=True)
    assert again.read_bytes() == path.read_bytes()


def test_a_library_that_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.mrf"
    model = fitted("polars", IDS["texts"], titles=False)
    model.save(path)
    with pytest.raises(ParameterError, match=r"frames must be.*pandas.*got 'excel'"):
        model.frames = "excel"
    with pytest.raises(ParameterError, match="frames"):
        mrfrec.load(path, frames="excel")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibraryError, match="pip install pandas"):
        mrfrec.load(path, frames="pandas")
    assert model.frames is None


@pytest.mark.parametrize(
    ("name", "form"), [("o.csv", None), ("o.jsonl", None), ("o.parquet", None), ("o.txt", "csv")]
)
def test_a_table_with_other_columns_is_not_replaced(tmp_path: Path, name: str, form: Any) -> None:
    model = fitted("polars", IDS["texts"], titles=False)
    events, path = pl.DataFrame({"user": ["a"], "item": ["sku-1"], "time": [7]}), tmp_path / name
    write: dict[str, Any] = {".jsonl": events.write_ndjson, ".parquet": events.write_parquet}
    write.get(path.suffix, events.write_csv)(path)
    before = path.read_bytes()
    for call in (model.recommend_to, model.similar_items_to):
        with pytest.raises(ParameterError, match=r"It is a table of user, item, time\. Remove it first"):
            call(path, form=form)
    assert path.read_bytes() == before
    path.unlink()
    for _ in range(2):
        assert model.recommend_to(path, form=form, k=1, exclude_seen=False) == 6


@pytest.mark.parametrize("name", ["bom.csv", "bom.csv.gz", "bom.parquet", "bom.JSONL"])
def test_a_model_has_no_name_of_a_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match=r"path must be the name of a model, such as shop\.mrf"):
        fitted("polars", IDS["texts"], titles=False).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
