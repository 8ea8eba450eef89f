"""Tables of databases as sinks: replaced as a whole, by whoever may, and never by accident."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy import sparse

import mrfrec
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.databases import connect
from mrfrec.io.staging import parse_table, staged

from conftest import Matrix

SCHEMA = {"user": pl.Int64, "item": pl.String, "rank": pl.Int32}
QUERY = 'select "user", item, rank from recs order by "user", rank'


def fetch(url: str, query: str) -> list[Any]:
    with connect(url) as cursor:
        return list(cursor.execute(query).fetchall())


def execute(url: str, *statements: str) -> None:
    with connect(url, write=True) as cursor:
        for statement in statements:
            cursor.execute(statement)


def version(number: int, users: int = 10, k: int = 3) -> pl.DataFrame:
    """Rows that all tell which version they are of."""
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), k),
            "item": [f"item {number}"] * (users * k),
            "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), users),
        },
        SCHEMA,
    )


def publish(url: str, number: int, table: str = "recs", **size: int) -> None:
    rows = version(number, **size)
    with staged(url, table, SCHEMA, iter([rows[:7], rows[7:]])) as count:
        assert count == len(rows)


@pytest.fixture(scope="module")
def model() -> mrfrec.MRF:
    from conftest import random_matrix

    return mrfrec.MRF().fit(sparse.csr_matrix(random_matrix(1)))


def test_table_holds_what_recommend_returns(database: str, model: mrfrec.MRF) -> None:
    for k in (3, 5):
        expected = model.recommend(k=k)
        assert model.recommend_to(database, table="recs", k=k) == len(expected)
        columns = ", ".join(f'"{name}"' for name in expected.columns)
        rows = fetch(database, f'select {columns} from recs order by "user", rank')
        assert_frame_equal(pl.DataFrame(rows, expected.schema, orient="row"), expected)


def test_table_of_similar_items_holds_what_similar_items_returns(
    database: str, model: mrfrec.MRF, tmp_path: Path
) -> None:
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        expected = model.similar_items(model.items_, k=4)
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        model.similar_items_to(tmp_path / "near.parquet", k=4)
    assert_frame_equal(pl.read_parquet(tmp_path / "near.parquet"), expected)
    done: list[Any] = []
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        rows = model.similar_items_to(database, table="near", k=4, progress=lambda *at: done.append(at))
    assert rows == len(expected)
    assert done[-1] == ("similar", len(model.items_), len(model.items_))
    found = fetch(database, "select similar_to, item, title, score, rank from near order by similar_to, rank")
    assert_frame_equal(pl.DataFrame(found, expected.schema, orient="row"), expected)


def test_rows_appear_when_the_block_ends_and_not_if_it_raises(database: str, model: mrfrec.MRF) -> None:
    query = "select max(rank), count(*) from recs"
    model.recommend_to(database, table="recs", k=2)
    before = fetch(database, query)
    with suppress(ZeroDivisionError), model.staged_recommendations(database, table="recs", k=3) as rows:
        assert rows == 3 * 120
        if not database.startswith("duckdb"):  # which lets nobody else read meanwhile
            assert fetch(database, query) == before
        raise ZeroDivisionError
    assert fetch(database, query) == before
    with model.staged_recommendations(database, table="recs", k=3):
        pass
    assert fetch(database, query) == [(3, 3 * 120)]


def test_staged_file_appears_when_the_block_ends_and_not_if_it_raises(
    tmp_path: Path, model: mrfrec.MRF
) -> None:
    path = tmp_path / "recs.csv"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), model.staged_recommendations(path, k=2):
        (tmp_path / "none").read_text()
    assert path.read_text() == "old"
    with model.staged_recommendations(path, k=2) as rows:
        assert path.read_text() == "old"
    assert rows == len(pl.read_csv(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("recs", (None, "recs")),
        ("shop.recs", ("shop", "recs")),
        ('shop."to.day"', ("shop", "to.day")),
        ('"say ""hi"""', (None, 'say "hi"')),
        ("two words; drop table x", (None, "two words; drop table x")),
    ],
)
def test_names_of_tables_are_read_as_in_sql(table: str, parts: tuple[str | None, str]) -> None:
    assert parse_table(table) == parts


@pytest.mark.parametrize(
    "table", ["", ".", "a.b.c", 'a"b', "a.", '"', '""', "a\0b", "ä" * 32, "MRFREC_STAGING", 7]
)
def test_what_is_no_name_of_a_table_is_refused(table: Any) -> None:
    with pytest.raises(ParameterError, match="table must be a name"):
        parse_table(table)


def test_table_goes_with_databases_only(tmp_path: Path, model: mrfrec.MRF) -> None:
    with pytest.raises(ParameterError, match="table must be None with a file"):
        model.recommend_to(tmp_path / "x.csv", table="recs")
    with pytest.raises(ParameterError, match="table must be the name of a table, with a database"):
        model.similar_items_to(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(ParameterError, match="form must be None with a database"):
        model.recommend_to(f"sqlite:///{tmp_path}/x.db", table="recs", form="csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["Recs", "two words", "to.day", 'x"; drop table precious; --', "x'; --", "user", "naïve", "{text}"],
)
def test_odd_names_are_only_names(database: str, name: str) -> None:
    execute(database, "create table precious (x integer)")
    quoted = '"' + name.replace('"', '""') + '"'
    for number in (1, 2):
        publish(database, number, quoted)
    assert fetch(database, f"select distinct item from {quoted}") == [("item 2",)]
    assert fetch(database, "select * from precious") == []


def test_table_of_a_schema(database: str) -> None:
    if database.startswith("sqlite"):
        with pytest.raises(ParameterError, match="without a schema"):
            publish(database, 1, "shop.recs")
        return
    with pytest.raises(DataError, match="shop"):
        publish(database, 1, "shop.recs")
    execute(database, "create schema shop", "create table recs (mine integer)")
    publish(database, 1, "shop.recs")
    assert fetch(database, "select distinct item from shop.recs") == [("item 1",)]
    assert fetch(database, "select mine from recs") == []


@pytest.mark.parametrize(
    "kind", ["table recs (id integer, name text)", "view recs as select 1 as id", "table recs (item text)"]
)
def test_what_holds_something_else_is_not_replaced(database: str, kind: str) -> None:
    execute(database, f"create {kind}")
    before = fetch(database, "select * from recs")
    never = (pytest.fail("asked for rows") for _ in range(1))
    with (
        pytest.raises(DataError, match=r"table recs (has the columns|is a view)"),
        staged(database, "recs", SCHEMA, never),
    ):
        pass  # pragma: no cover
    assert fetch(database, "select * from recs") == before


def test_ids_that_fit_no_bigint_are_refused(database: str, binary: Matrix) -> None:
    users = np.arange(2**63, 2**63 + len(binary), dtype=np.uint64)
    model = mrfrec.MRF().fit(mrfrec.Interactions(sparse.csr_matrix(binary), users=users))
    with pytest.raises(DataError, match="do not fit a bigint"):
        model.recommend_to(database, table="recs")
