"""The table of items: what it reads, how it is kept, and what replaces it."""

import datetime as dt
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import mrfrec
from mrfrec import MRF, DataError, ModelFileError, ParameterError, read_interactions, read_item_table
from mrfrec.data.item_table import ItemTable
from mrfrec.io.artifact import open_file, write_file
from mrfrec.models import Popularity

EVENTS = pl.DataFrame({"user": [1, 1, 2, 2, 3, 3], "item": ["a", "b", "b", "c", "a", "c"]})
ROWS: dict[str, list[Any]] = {
    "sku": ["a", "c", "x", "b"],
    "price": [1.5, None, 3.0, 2.0],
    "stock": [1, 2, None, 0],
    "sold": [True, False, None, True],
    "brand": ["zeta", "yps", "zeta", None],
    "tags": [["q", "p", "q"], None, ["r"], []],
    "day": [dt.date(2024, 1, 2), None, dt.date(2020, 1, 1), dt.date(1969, 12, 31)],
    "title": ["A", "C", "X", None],
}
TABLE = pl.DataFrame(ROWS)
KINDS = {
    "price": "number", "stock": "number", "sold": "flag", "brand": "text", "tags": "list", "day": "time",
    "title": "text",
}  # fmt: skip


def cells(table: ItemTable) -> dict[str, dict[Any, Any]]:
    """Return the value of each item that has one, by column."""
    return {
        column.name: {item: x for item, x in zip(table.items, column.to_list(), strict=True) if x is not None}
        for column in table.frame
    }


def expected(rows: dict[str, list[Any]], items: str) -> dict[str, dict[Any, Any]]:
    made: dict[str, dict[Any, Any]] = {name: {} for name in rows if name != "sku"}
    for i, item in enumerate(rows["sku"]):
        for name in made if item in items else ():
            x = rows[name][i]
            x = sorted({*x}) if isinstance(x, list) else x
            x = dt.datetime(x.year, x.month, x.day) if isinstance(x, dt.date) else x
            if x is not None:
                made[name][item] = x
    return made


def written(form: str, folder: Path) -> Any:
    if form == "polars":
        return TABLE
    if form == "pandas":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame({name: pandas.Series(column) for name, column in ROWS.items()})
    path = folder / f"items.{form}"
    if form == "parquet":
        TABLE.write_parquet(path)
    elif form == "jsonl":
        TABLE.write_ndjson(path)
    else:
        marked = TABLE.with_columns(pl.col("tags").list.eval(pl.element().replace({"": None})))
        lists = ['["q","p","q"]', None, '["r"]', "[]"]
        marked.with_columns(tags=pl.Series(lists)).write_csv(path)
    return path


@pytest.mark.parametrize("form", ["polars", "pandas", "parquet", "jsonl", "csv"])
def test_each_form_gives_the_same_typed_columns(form: str, tmp_path: Path) -> None:
    table = read_item_table(written(form, tmp_path))
    assert table.types == KINDS
    assert cells(table) == expected(ROWS, "abcx")
    assert list(table.titles or ()) == ["A", "", "C", "X"]
    assert [table.frame.schema[x] for x in ("price", "stock")] == [pl.Float64, pl.Int64] or (
        form == "pandas"  # whose integers are floats where one is missing
    )


def test_a_query_gives_the_columns_of_its_table(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("create table p (sku text, stock integer, price real, name text)")
        shop.executemany("insert into p values (?, ?, ?, ?)", [("a", 3, 1.5, "7"), ("b", 0, None, "8")])
    query = "select sku, stock > 0 as in_stock, price, name from p"
    table = read_item_table(f"sqlite:///{tmp_path}/shop.db", query=query)
    assert table.types == {"in_stock": "number", "price": "number", "name": "text"}
    assert cells(table) == {"in_stock": {"a": 1, "b": 0}, "price": {"a": 1.5}, "name": {"a": "7", "b": "8"}}


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (["007", "12"], "text", ["007", "12"]),
        (["12", "-7"], "number", [12, -7]),
        ([f"{2**63 - 1}", f"{2**53 + 1}"], "number", [2**63 - 1, 2**53 + 1]),
        (["1" + "0" * 18 + "1", "1" + "0" * 18 + "3"], "text", ["1" + "0" * 18 + "1", "1" + "0" * 18 + "3"]),
        (["1.0", "2e3"], "number", [1.0, 2000.0]),
        (["Yes", "no"], "flag", [True, False]),
        (["y", "n"], "text", ["y", "n"]),
        (["2024-01-02", "2024-01-02T03:04:05Z"], "time",
         [dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 2, 3, 4, 5)]),
        (["2024-13-02", "2024-01-02"], "text", ["2024-13-02", "2024-01-02"]),
        (["nan", "1"], "text", ["nan", "1"]),
        (["a|b", "b"] * 6, "list", [["a", "b"], ["b"]] * 6),
        (["a,b", "b"] * 6, "text", ["a,b", "b"] * 6),
    ],
)  # fmt: skip
def test_the_values_of_a_text_file_tell_the_kind(
    column: list[str], kind: str, values: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item,x\n" + "".join(f'i{i:02},"{x}"\n' for i, x in enumerate(column)))
    table = read_item_table(path)
    assert table.types == {"x": kind}
    assert list(cells(table)["x"].values()) == values


def test_empty_parts_of_lists_count_for_nothing() -> None:
    table = read_item_table(pl.DataFrame({"item": [1, 2, 3], "x": [["a", "", None, " ", "a"], [""], []]}))
    assert cells(table) == {"x": {1: ["a"], 2: [], 3: []}}


def test_kinds_can_be_said() -> None:
    table = pl.DataFrame(
        {"item": [1, 2], "x": ["12", "7"], "y": [1, 0], "z": ["a,b", "b"], "day": ["1", "2"]}
    )
    kinds: Any = {"x": "number", "y": "flag", "z": "list"}
    assert cells(read_item_table(table, columns=kinds)) == {
        "x": {1: 12, 2: 7}, "y": {1: True, 2: False}, "z": {1: ["a,b"], 2: ["b"]},
    }  # fmt: skip
    assert read_item_table(table, columns=["y"]).types == {"y": "number"}
    for column, kind, message in (
        ("z", "number", r"column 'z' must hold a number in each cell; got 'a,b'"),
        ("x", "flag", r"column 'x' must hold a flag in each cell; got '12'"),
        ("z", "time", r"column 'z' must hold a time in each cell; got 'a,b'"),
        ("day", "time", r"column 'day' must hold a time in each cell; got '1'"),
        ("none", "time", "columns must be columns of the polars frame: 'x', 'y', 'z', 'day'; got 'none'"),
        ("x", "what", "columns must be of the types number, flag, text, list, time; got 'x=what'"),
    ):
        some: Any = {column: kind}
        with pytest.raises((DataError, ParameterError), match=message):
            read_item_table(table, columns=some)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, np.inf], "must hold a number in each cell; got inf"),
        (["a\0", "b"], r"column 'x' must hold texts without NUL characters; got 'a\\x00'"),
        ([["a"], ["b\0"]], r"column 'x' must hold texts without NUL characters; got 'b\\x00'"),
        ([b"x", b"y"], "column 'x' must hold texts, numbers, flags, times or lists; it is Binary"),
        ([{"a": 1}, {"a": 2}], "it is Struct"),
    ],
)
def test_columns_of_other_types_are_refused(column: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_item_table(pl.DataFrame({"item": [1, 2], "x": column}))


def test_several_rows_of_an_item_must_agree() -> None:
    rows = {"item": ["a", "b", "a", "b"], "x": [None, 2, 1, 2], "y": [["p"], None, ["p", "p"], ["q"]]}
    assert cells(read_item_table(pl.DataFrame(rows))) == {
        "x": {"a": 1, "b": 2},
        "y": {"a": ["p"], "b": ["q"]},
    }
    for name, odd in (("x", [1, 2, 3, 2]), ("y", [["p"], None, ["p", "q"], ["q"]])):
        with pytest.raises(
            DataError, match=f"column '{name}' must have one value for .* rows of 'a' differ.*drop_duplicates"
        ):
            read_item_table(pl.DataFrame({**rows, name: odd}))


def test_a_model_keeps_the_columns_of_its_items(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mrfrec"):
        model = Popularity().fit(EVENTS, items=TABLE)
    assert caplog.text.count("3 of 3 items have a row in the table of items; it has 1 of other items") == 1
    caplog.clear()
    with caplog.at_level(logging.INFO, "mrfrec"):
        data = read_interactions(EVENTS).with_table(read_item_table(TABLE))
        Popularity().fit(Popularity().fit(data).fitted_.data_for("a fit"))
        assert caplog.text.count("have a row") == 1
        Popularity().fit(EVENTS, items=TABLE.filter(pl.col("sku") != "x"))
        assert caplog.text.count("have a row") == 1
    assert repr(read_item_table(TABLE[:1])).startswith("ItemTable(1 item, ")
    model.save(tmp_path / "a.mrf", include_histories=True)
    loaded = mrfrec.load(tmp_path / "a.mrf")
    for table in (model.catalogue.table, loaded.catalogue.table):
        assert table is not None
        assert table.types == KINDS
        assert cells(table) == expected(ROWS, "abc")
        assert table.groups("brand", "").values.to_list() == ["yps", "zeta"]
    assert list(loaded.titles_ or ()) == ["A", "", "C"]
    again = loaded.update(pl.DataFrame({"user": [4], "item": ["new"]}))
    forgot = mrfrec.load(tmp_path / "a.mrf").forget([1])
    for changed in (again, forgot):
        assert changed.catalogue.table is not None
        assert cells(changed.catalogue.table) == expected(ROWS, "abc")
        changed.save(tmp_path / "b.mrf", include_histories=True)
    model.update(pl.DataFrame({"user": [4], "item": ["x"]}))
    assert model.catalogue.table is not None
    assert cells(model.catalogue.table) == expected(ROWS, "abc")  # as of a loaded model
    model.update(pl.DataFrame({"user": [5], "item": ["x"]}), items=TABLE)
    assert cells(model.catalogue.table) == expected(ROWS, "abcx")


def test_a_table_is_replaced_without_a_fit(tmp_path: Path) -> None:
    model = Popularity().fit(EVENTS)
    scores = model.recommend(history=["a"], k=2)
    model.save(tmp_path / "a.mrf")
    assert model.catalogue.table is None
    model.set_items(TABLE.select("sku", "stock"))
    model.save(tmp_path / "a.mrf")
    old = mrfrec.load(tmp_path / "a.mrf")
    assert cells(mrfrec.load(tmp_path / "a.mrf").set_items(TABLE).catalogue.table) == expected(ROWS, "abc")  # type: ignore[arg-type]
    assert old.catalogue.table is not None
    assert old.catalogue.table.types == {"stock": "number"}
    assert old.recommend(history=["a"], k=2).equals(scores)
    with pytest.raises(DataError, match="names none of the items"):
        old.set_items(pl.DataFrame({"item": ["q"], "x": [1]}))
    assert old.catalogue.table.types == {"stock": "number"}


def test_ids_are_those_of_the_model() -> None:
    integers = pl.DataFrame({"item": [1, 2], "x": [10, 20]})
    strings = pl.DataFrame({"item": ["1", "2"], "x": [10, 20]})
    for events, table, ids in ((integers, strings, [1, 2]), (strings, integers, ["1", "2"])):
        data = pl.DataFrame({"user": [1, 1], "item": events["item"]})
        kept = Popularity().fit(data, items=table).catalogue.table
        assert kept is not None
        assert cells(kept) == {"x": dict(zip(ids, [10, 20], strict=True))}


def test_tables_of_features_and_of_titles_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    titled = mrfrec.read_interactions(EVENTS, items=TABLE)
    kept = Popularity().fit(titled).catalogue.table
    assert kept is not None
    assert cells(kept) == expected(ROWS, "abc")
    untitled = mrfrec.read_interactions(EVENTS, items=TABLE.select("sku", "stock"))
    assert untitled.titles is None
    assert Popularity().fit(untitled).catalogue.table is not None
    table = pl.DataFrame({"item": list("abcdefgh"), "brand": list("xxyyzzxy"), "price": range(8)})
    table = pl.concat([table, table[:1].with_columns(price=pl.lit(9, pl.Int64))])
    model = MRF(measure=False).fit(
        EVENTS, item_features=mrfrec.read_item_features(table, columns={"brand": "category"})
    )
    assert model.catalogue.table is not None
    assert model.catalogue.table.types == {"brand": "text"}
    model.add_items(pl.DataFrame({"item": ["new"], "brand": ["z"]}))
    assert cells(model.catalogue.table)["brand"]["new"] == "z"
    with caplog.at_level(logging.INFO, "mrfrec"):
        mrfrec.read_item_features(table, columns=["brand"])
    assert "column 'price' must have one value for each item; the rows of 'a' differ" in caplog.text


def test_groups_are_the_values_of_items() -> None:
    table = Popularity().fit(EVENTS, items=TABLE).catalogue.table
    assert table is not None
    found = {name: [x.tolist() for x in table.groups(name, "")[:2]] for name in KINDS}
    assert found == {
        "price": [[0, 1, 2, 2], [0, 1]],
        "stock": [[0, 1, 2, 3], [1, 0, 2]],
        "sold": [[0, 1, 2, 3], [1, 1, 0]],
        "brand": [[0, 1, 1, 2], [1, 0]],
        "tags": [[0, 2, 2, 2], [0, 1]],
        "day": [[0, 1, 2, 2], [1, 0]],
        "title": [[0, 1, 1, 2], [0, 1]],
    }
    assert all(table.groups(name, "").codes.dtype == np.int32 for name in KINDS)
    with pytest.raises(ParameterError, match=r"columns of the table of items: 'price', .*; got 'size'"):
        table.groups("size", "at_most")


@pytest.mark.parametrize(
    ("column", "part", "change"),
    [
        (1, "values", lambda x: x.astype(np.int32)),
        (1, "values", lambda x: x[:-1]),
        (2, "values", lambda x: x + 2),
        (2, "missing", lambda x: x + 7),
        (3, "values", lambda x: x + 9),
        (3, "values", lambda x: x - 9),
        (4, "values", lambda x: x + 9),
        (4, "ptr", lambda x: x[::-1].copy()),
        (4, "ptr", lambda x: x[1:]),
        (4, "missing", lambda x: x[1:]),
        (3, "texts.data", lambda x: x | 0x80),
    ],
)
def test_a_forged_column_is_refused(column: int, part: str, change: Any, tmp_path: Path) -> None:
    Popularity().fit(EVENTS, items=TABLE.filter(pl.col("sku") != "b")).save(tmp_path / "a.mrf")
    facts, stored = open_file(tmp_path / "a.mrf")
    arrays = {name: np.array(x.read()) for name, x in stored.items()}
    name = f"table.{column}.{part}"
    write_file(tmp_path / "b.mrf", {**arrays, name: change(arrays[name])}, facts)
    with pytest.raises(ModelFileError):
        mrfrec.load(tmp_path / "b.mrf")
    for table in ([{"name": "x"}], 7, [{"name": "x", "type": "what"}], [*facts["table"], facts["table"][0]]):
        write_file(tmp_path / "c.mrf", arrays, json.loads(json.dumps({**facts, "table": table})))
        with pytest.raises(ModelFileError):
            mrfrec.load(tmp_path / "c.mrf")


AFTER_A_FORK = """
import os, signal, sys
import mrfrec

model = mrfrec.load("a.mrf")
child = os.fork()
if child == 0:
    signal.alarm(30)  # instead of hanging for ever
    try:
        if sys.argv[1] == "load":
            mrfrec.load("a.mrf")
        model.recommend(history=["a"], k=1, where={"stock": 1})
    except mrfrec.DataError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["load", "filter"])
def test_a_table_in_a_fork_of_a_process_that_has_opened_one_is_refused(tmp_path: Path, what: str) -> None:
    Popularity().fit(EVENTS, items=TABLE).save(tmp_path / "a.mrf")
    command = [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK, what]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "3\n"
