"""Tables of databases as sinks: replaced as a whole, by whoever may, and never by accident."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy import sparse

import mrfrec
from mrfrec.answers.tables import staged_recommendations
from mrfrec.errors import DataError, MrfrecWarning, ParameterError
from mrfrec.fitted.state import Runtime
from mrfrec.io.databases import connect
from mrfrec.io.staging import open_staging, parse_table

from matrices import random_matrix
from queries import execute, fetch
from servers import eventually

SCHEMA = {"user": pl.Int64, "item": pl.String, "rank": pl.Int32}
QUERY = 'select "user", item, rank from recs order by "user", rank'


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
    with open_staging(url) as database:
        assert database.stage(table, SCHEMA, iter([rows[:7], rows[7:]])) == len(rows)


def stage(url: str, frames: Iterable[pl.DataFrame], table: str = "recs") -> None:
    with open_staging(url) as database:
        database.stage(table, SCHEMA, frames)


@pytest.fixture(scope="module")
def model() -> mrfrec.MRF:
    return mrfrec.MRF().fit(sparse.csr_matrix(random_matrix(1)))


def test_table_holds_what_recommend_returns(database: str, model: mrfrec.MRF) -> None:
    for k in (3, 5):
        expected = model.recommend(k=k)
        assert model.recommend_to(database, table="recs", k=k) == len(expected)
        columns = ", ".join(f'"{name}"' for name in expected.columns)
        rows = fetch(database, f'select {columns} from recs order by "user", rank')
        assert_frame_equal(pl.DataFrame(rows, expected.schema, orient="row"), expected)


def test_columns_get_other_names(database: str, model: mrfrec.MRF, tmp_path: Path) -> None:
    names = {"user": "user_id", "rank": "place"}
    model.recommend_to(tmp_path / "recs.csv", k=2, columns=names)
    for _ in range(2):  # the second time the table is there
        model.recommend_to(database, table="recs", k=2, columns=names)
    rows = fetch(database, "select user_id, place from recs order by 1, 2")
    assert rows == pl.read_csv(tmp_path / "recs.csv").select("user_id", "place").rows()
    assert len(rows) == 240


@pytest.mark.parametrize("columns", [{"usr": "x"}, {"user": "Item"}, {"user": "x" * 64}, "user=x"])
def test_names_that_columns_cannot_have_are_refused(tmp_path: Path, model: mrfrec.MRF, columns: Any) -> None:
    with pytest.raises(ParameterError, match="columns"):
        model.recommend_to(tmp_path / "x.csv", columns=columns)


def test_table_of_similar_items_holds_what_similar_items_returns(
    database: str, model: mrfrec.MRF, tmp_path: Path
) -> None:
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        expected = model.similar_items(model.items_, k=4)
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        model.similar_items_to(tmp_path / "near.parquet", k=4)
    # These items have no titles: files and tables have the column all the same.
    file = pl.read_parquet(tmp_path / "near.parquet")
    assert_frame_equal(file.drop("title"), expected)
    done: list[Any] = []
    with pytest.warns(mrfrec.MrfrecWarning, match="fewer than k=4"):
        rows = model.similar_items_to(database, table="near", k=4, progress=lambda *at: done.append(at))
    assert rows == len(expected)
    assert done[-1] == ("finding similar items", len(model.items_), len(model.items_))
    found = fetch(database, "select similar_to, item, title, score, rank from near order by similar_to, rank")
    assert_frame_equal(pl.DataFrame(found, file.schema, orient="row"), file)


def test_who_is_named_twice_counts_once(database: str, model: mrfrec.MRF) -> None:
    for named, write in (("user", model.recommend_to), ("item", model.similar_items_to)):
        with pytest.warns(
            MrfrecWarning, match=f"1 of 3 {named} ids are repetitions; each {named} counts once"
        ):
            assert write(database, [1, 1, 2], table=named, k=2) == 4


def test_rows_appear_when_the_block_ends_and_not_if_it_raises(
    database: str, model: mrfrec.MRF, tmp_path: Path
) -> None:
    path, count = tmp_path / "recs.csv", 3 * 120

    def staged(to: str | Path, table: str | None = None) -> Any:
        return staged_recommendations(model.fitted_, Runtime.of(model), to, target={"table": table}, k=3)

    def written() -> tuple[list[Any], str]:
        return fetch(database, "select max(rank), count(*) from recs"), path.read_text()

    model.recommend_to(database, table="recs", k=2)
    path.write_text("old")
    before = written()
    with suppress(FileNotFoundError), staged(database, "recs") as rows, staged(path) as lines:
        assert rows == lines == count
        assert written() == before
        (tmp_path / "none").read_text()
    assert written() == before
    with staged(database, "recs"), staged(path):
        pass
    assert written()[0] == [(3, count)]
    assert len(pl.read_csv(path)) == count
    assert not list(tmp_path.glob("*unfinished*"))


@pytest.mark.parametrize("table", ["", "a.b.c", 'a"b', '""', "a\0b", "ä" * 32, "MRFREC_STAGING", 7])
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


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "s3://k:hunter2@b/x.csv"])
def test_urls_of_nothing_that_can_be_written_to_are_refused(model: mrfrec.MRF, url: str) -> None:
    for path in (url, Path(url)):
        for table in (None, "recs"):
            with pytest.raises(
                ParameterError, match=r"path must be a file, or the URL of a database: postg"
            ) as caught:
                model.recommend_to(path, table=table)
            assert "hunter2" not in str(caught.value)
    with pytest.raises(ParameterError, match="path must be a file of this machine, not a URL") as caught:
        model.save(url)
    assert "hunter2" not in str(caught.value)


def test_odd_names_are_only_names(database: str) -> None:
    execute(database, "create table precious (x integer)")
    for name in ("Recs", "two words; drop table precious", 'x"; drop table precious; --', "x'; --", "{text}"):
        quoted = '"' + name.replace('"', '""') + '"'
        publish(database, 1, quoted)
        publish(database, 2, quoted if '"' in name else name)  # the same table
        assert fetch(database, f"select distinct item from {quoted}") == [("item 2",)]
        assert fetch(database, "select * from precious") == []


def test_table_of_a_schema_is_written_to_but_not_a_temporary_one(database: str) -> None:
    if database.startswith("sqlite"):
        for table in ("shop.recs", "temp.recs"):
            with pytest.raises(ParameterError, match="without a schema"):
                publish(database, 1, table)
        return
    with pytest.raises(ParameterError, match="one that lasts"):
        publish(database, 1, "pg_temp.recs")
    with pytest.raises(DataError, match="shop"):
        publish(database, 1, "shop.recs")
    execute(database, "create schema shop", "create table recs (mine integer)")
    for table in ("shop.recs", 'shop."to.day"'):
        publish(database, 1, table)
        assert fetch(database, f"select distinct item from {table}") == [("item 1",)]
    assert fetch(database, "select mine from recs") == []


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("table recs (id integer, name text)", "has the columns.*--columns"),
        ("view recs as select 1 as id", "is a view"),
        (
            'table recs ("user" varchar(9), item text, rank integer)',
            'column "user" is of type .*(char|text).*, but would get numbers. Give',
        ),
        (
            'table recs ("user" bigint, item integer, rank integer)',
            'column "item" is of type integer, but would get text. Give another name, or drop',
        ),
    ],
)
def test_what_holds_something_else_is_refused_before_the_work(
    database: str, there: str, message: str
) -> None:
    execute(database, f"create {there}")
    before = fetch(database, "select * from recs")
    never = (pytest.fail("asked for rows") for _ in range(1))
    with pytest.raises(DataError, match=f"table recs:? {message}"):
        stage(database, never)
    assert fetch(database, "select * from recs") == before


def test_columns_of_like_types_are_written_to(database: str) -> None:
    execute(database, 'create table recs ("user" numeric, item varchar(20), rank integer)')
    publish(database, 1)


def test_a_refused_write_leaves_no_empty_file(tmp_path: Path) -> None:
    users = np.array([7, 8, 2**63 + 5], np.uint64)
    model = mrfrec.MRF().fit(mrfrec.Interactions(sparse.csr_matrix([[1, 1], [1, 0], [0, 1]]), users=users))
    for name in ("missing.db", "empty.db"):
        if name == "empty.db":
            (tmp_path / name).touch()
        with pytest.raises(DataError, match="do not fit a bigint"):
            model.recommend_to(f"sqlite:///{tmp_path}/{name}", [7, 2**63 + 5], table="recs", k=1)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]  # which is somebody else's


# ── readers and writers at once ───────────────────────────────────────────────────────────────────

CENSUS = "select count(*), min(item), max(item) from recs"


def poll(url: str, stop: threading.Event, query: str, rows: list[Any]) -> None:
    """Send a query as often as can be, and once after the end; statements before it begin a transaction."""
    with connect(url, autocommit=True) as cursor:
        *before, query = query.split("; ")
        if query.startswith("execute"):
            cursor.execute(f"prepare census as {CENSUS}")
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": False})
        stopped = False
        while not stopped:
            stopped = stop.is_set()
            for statement in before:
                cursor.execute(statement)
            rows.append(cursor.execute(query).fetchone())
            if before:
                cursor.execute("commit")


@pytest.mark.slow
@pytest.mark.parametrize("wal", [True, False])
def test_readers_see_whole_versions_only(database: str, wal: bool) -> None:
    if database.startswith("sqlite"):
        with connect(database, write=True, autocommit=True) as cursor:
            cursor.execute(f"pragma journal_mode = {'wal' if wal else 'delete'}")
    elif not wal:
        pytest.skip("a journal is a matter of SQLite")
    publish(database, 1, users=2000)
    queries = [CENSUS, CENSUS, f"begin; {CENSUS}"]
    if database.startswith("postgres"):
        levels = ("repeatable read", "serializable")
        queries += [f"begin isolation level {level}; {CENSUS}" for level in levels]
        queries += ["begin; execute census"]
    stop, readers = threading.Event(), [list[Any]() for _ in queries]
    with ThreadPoolExecutor(len(queries)) as threads:
        pairs = zip(queries, readers, strict=True)
        polls = [threads.submit(poll, database, stop, *each) for each in pairs]
        try:
            eventually(lambda: all(readers) or any(each.done() for each in polls))
            for number in range(2, 8):
                publish(database, number, users=2000)
        finally:
            stop.set()
    for each in polls:
        each.result()
    for seen in readers:
        numbers = [int(first.removeprefix("item ")) for _, first, _ in seen]
        assert {(count, first == last) for count, first, last in seen} == {(6000, True)}
        assert numbers == sorted(numbers)
        assert numbers[-1] == 7


def test_a_transaction_keeps_the_rows_it_began_with(database: str) -> None:
    publish(database, 1)
    if database.startswith("sqlite"):
        with connect(database, write=True, autocommit=True) as cursor:
            cursor.execute("pragma journal_mode = wal")
    with connect(database, autocommit=True) as cursor:
        repeatable = " isolation level repeatable read" if database.startswith("postgres") else ""
        cursor.execute(f"begin{repeatable}")
        cursor.execute("select 1" if repeatable else CENSUS).fetchall()
        publish(database, 2)
        assert cursor.execute(CENSUS).fetchone() == (30, "item 1", "item 1")
        cursor.execute("commit")
        assert cursor.execute(CENSUS).fetchone() == (30, "item 2", "item 2")


def test_of_two_writers_one_waits_also_where_there_is_no_table_yet(database: str) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 3):
            publish(database, number, users=500)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, (10, 20, 30)))
    rows, first, last = fetch(database, CENSUS)[0]
    assert (rows, first) == (1500, last)


@pytest.mark.slow
def test_whoever_holds_the_table_is_not_waited_for_forever(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.io.staging._WAIT", 0.1)
    monkeypatch.setattr("mrfrec.io.staging._PATIENCE", 0.2)
    publish(database, 1)
    with connect(database, write=True) as cursor:
        cursor.execute("delete from recs where rank = 1")
        with pytest.raises(DataError, match="table recs is being changed by another transaction, which"):
            publish(database, 2)
    assert fetch(database, CENSUS) == [(20, "item 1", "item 1")]
    publish(database, 3)
    assert fetch(database, CENSUS) == [(30, "item 3", "item 3")]


@pytest.mark.slow
def test_killed_writer_leaves_a_whole_version(database: str) -> None:
    publish(database, 0, users=2000)
    rng, versions = np.random.default_rng(0), set()
    kills = 3 if database.startswith("postgres") else 2
    for kill in range(kills):
        arguments = [database, str(1000 * kill + 1)]
        with writer(*arguments) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "1\n"
            time.sleep(rng.uniform(0, 0.2))
            child.kill()
        rows, first, last = fetch(database, CENSUS)[0]
        assert (rows, first) == (6000, last)
        versions.add(first)
    assert len(versions) == kills
    publish(database, 10**6)
    assert fetch(database, CENSUS) == [(30, "item 1000000", "item 1000000")]
    if database.startswith("postgres"):
        assert fetch(database, "select relname::text from pg_class where relname like 'mrfrec%'") == []


def writer(*arguments: str, before: str = "") -> "subprocess.Popen[str]":
    """Start a process that writes one version after the other, and a line after each."""
    script = before + WRITER
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


WRITER = """
import sys
import polars as pl
from mrfrec.io.staging import open_staging

schema = {"user": pl.Int64, "item": pl.String, "rank": pl.Int32}
first = int(sys.argv[2])
for number in range(first, first + 1000):
    rows = pl.DataFrame({"user": range(6000), "item": [f"item {number}"] * 6000, "rank": [1] * 6000}, schema)
    with open_staging(sys.argv[1]) as database:
        database.stage("recs", schema, [rows[:7], rows[7:]])
    print(1, flush=True)
"""


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────


def test_table_keeps_what_belongs_to_it(postgres: str) -> None:
    publish(postgres, 1)
    execute(
        postgres,
        "create index by_item on recs (item)",
        "create view top as select item from recs where rank = 1",
        "comment on table recs is 'for the shop'",
        "grant select on recs to guest",
        "create publication news for table recs",
    )
    publish(postgres, 2)
    assert fetch(postgres, "select distinct item from top") == [("item 2",)]
    assert fetch(postgres, "select obj_description('recs'::regclass)") == [("for the shop",)]
    assert fetch(postgres, "select has_table_privilege('guest', 'recs', 'select')") == [(True,)]
    indexes = fetch(postgres, "select indexname::text from pg_indexes where tablename = 'recs' order by 1")
    assert indexes == [("by_item",), ("recs_pkey",)]


def test_what_a_role_may_not_do_is_refused_before_the_work(postgres: str) -> None:
    guest = postgres.replace("//postgres:@", "//guest:se%2Fcr%40t%25@")
    publish(postgres, 1)
    execute(postgres, "grant insert on recs to guest")
    never = (pytest.fail("asked for rows") for _ in range(1))
    for table in ("recs", "fresh"):
        with pytest.raises(DataError, match="permission denied") as caught:
            stage(guest, never, table)
        assert "cr@t" not in str(caught.value)
    execute(postgres, "grant delete on recs to guest")
    publish(guest, 2)
    execute(
        postgres,
        "alter table recs enable row level security",
        "create policy p on recs to guest using (rank = 1)",
    )
    with pytest.raises(DataError, match="row-level security"):
        publish(guest, 3)
    execute(postgres, "grant select on recs to guest")
    with pytest.raises(DataError, match="row-level security"):
        fetch(guest, CENSUS)
    assert fetch(postgres, CENSUS) == [(30, "item 2", "item 2")]


def test_table_that_does_not_take_every_row_keeps_the_old_ones(database: str) -> None:
    publish(database, 1)
    if database.startswith("sqlite"):
        execute(
            database,
            "create trigger fewer before insert on recs when new.rank = 3 begin select raise(ignore); end",
        )
    else:
        execute(
            database,
            "create function nothing() returns trigger language plpgsql as 'begin return null; end'",
            "create trigger fewer before insert on recs for each row when (new.rank = 3) "
            "execute function nothing()",
        )
    with pytest.raises(DataError, match=r"table recs took 20 of 30 rows\. Nothing was changed"):
        publish(database, 2)
    assert fetch(database, CENSUS) == [(30, "item 1", "item 1")]


def test_lost_connection_leaves_the_old_rows(postgres: str) -> None:
    publish(postgres, 1)
    rows = version(2)

    def frames(lost_after: int) -> Iterator[pl.DataFrame]:
        for number, frame in enumerate((rows[:7], rows[7:])):
            yield frame
            if number == lost_after:
                others = "pg_stat_activity where pid <> pg_backend_pid()"
                execute(postgres, f"select pg_terminate_backend(pid) from {others}")

    for number in (0, 1):
        with pytest.raises(DataError, match="terminat"):
            stage(postgres, frames(number))
    assert fetch(postgres, CENSUS) == [(30, "item 1", "item 1")]


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────


def test_full_disk_leaves_the_old_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    publish(url, 1, users=10)
    size = (tmp_path / "x.db").stat().st_size
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 4096}, {size + 4096}))"
    with writer(url, "2", before=limit) as child:
        _, err = child.communicate()
    assert "mrfrec.errors.DataError: " in err
    assert fetch(url, CENSUS) == [(30, "item 1", "item 1")]
