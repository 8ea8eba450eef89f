"""Databases as sources of tables: URLs, passwords that nobody sees, rows that stream."""

import contextlib
import gc
import io
import logging
import os
import signal
import socket
import sqlite3
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, load, read_interactions
from mrfrec.cli.app import run as run_command
from mrfrec.errors import DataError, MissingLibraryError, ParameterError
from mrfrec.io import batches, databases
from mrfrec.io.databases import connect, open_query, redacted

from queries import execute, fetch
from servers import eventually

SECRET = "se/cr@t%"  # of the role guest
ENCODED = "se%2Fcr%40t%25"


def as_guest(url: str, password: str = "", parameters: str = "") -> str:
    return url.replace("//postgres:@", f"//guest{password and ':' + password}@") + parameters


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("postgresql://u:hunter2@host:5432/shop", "postgresql://host:5432/shop"),
        ("postgres://u:hun%74er2@a,b:1/shop?sslmode=off&password=hunter2", "postgres://a,b:1/shop"),
        ("postgresql://[::1]:5432/shop?host=/run", "postgresql://[::1]:5432/shop"),
        ("postgresql://u:hunter@2@host/shop", "postgresql://…"),
        ("postgresql://u:hunter/2@host/shop", "postgresql://…"),
        ("postgresql://host/shop?password=hunter@2", "postgresql://…"),
        ("https://u:hunter2@host/rows.csv?signature=hunter2", "https://host/rows.csv"),
        ("mysql://u:hunter2?hunter2@host/shop", "mysql://…"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_url_is_shown_without_its_password(url: str, safe: str) -> None:
    assert redacted(url) == safe


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@2@localhost/shop",
        "postgresql://u:hunter2",
        "postgresql://u:hunter2%zz@localhost/shop",
        "postgresql://localhost/shop?password=hunter2&hunter2",
        "postgresql://u:hunter2%00@localhost/shop",
        "postgresql://u:hunter2@localhost:1/shop?passwrod=hunter2",
        "postgresql://u@localhost:1/shop?password=hunter2&port=hunter2",
        "postgresql://u:h%75nter2@localhost:1/shop?options=hunter2",
    ],
)
def test_password_is_in_no_error(url: str) -> None:
    with pytest.raises((DataError, ParameterError)) as caught, connect(url):
        pass
    assert "hunter" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_password_comes_from_the_url_the_environment_or_a_file(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def user(url: str) -> str:
        return str(fetch(url, "select current_user::text")[0][0])

    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    assert user(as_guest(postgres, ENCODED)) == "guest"
    assert user(as_guest(postgres, "", f"&password={ENCODED}")) == "guest"
    with pytest.raises(DataError, match="no password supplied"):
        user(as_guest(postgres))
    with pytest.raises(DataError, match="password authentication failed") as caught:
        user(as_guest(postgres, "hunter2"))
    assert "hunter2" not in str(caught.value)
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:guest:{SECRET}\n")
    file.chmod(stat.S_IRUSR)
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert user(as_guest(postgres)) == "guest"


def test_block_is_one_transaction(database: str) -> None:
    execute(database, "create table t (x integer)", "insert into t values (1)")
    with suppress(ZeroDivisionError), connect(database, write=True) as cursor:
        cursor.execute("delete from t")
        cursor.execute("create table other (x integer)")
        raise ZeroDivisionError
    assert fetch(database, "select x from t") == [(1,)]
    with pytest.raises(DataError, match="other"):
        fetch(database, "select x from other")


def test_files_are_created_only_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no file shop\.db"):
        fetch("sqlite:///shop.db", "select 1")
    with pytest.raises(DataError, match="no folder none"), connect("sqlite:///none/shop.db", write=True):
        pass
    with pytest.raises(ParameterError, match="sqlite:///file"):
        fetch("sqlite://shop.db", "select 1")
    assert not list(tmp_path.iterdir())
    execute("sqlite:///shop.db", "create table t (x integer)")
    assert fetch(f"sqlite:///{tmp_path}/shop.db", "select * from t") == []
    with pytest.raises(DataError, match=r"read.?only"), connect("sqlite:///shop.db") as cursor:
        cursor.execute("insert into t values (1)")


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(MissingLibraryError, match=r"\[sql\]"), connect("postgresql://host/shop"):
        pass


# ── servers that say nothing ──────────────────────────────────────────────────────────────────────


def test_server_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(databases._LIMITS, "connect_timeout", 2.0)  # the least that libpq takes
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/shop"
        closing = threading.Timer(20, silent.close)
        closing.start()  # then the error is another one
        with pytest.raises(DataError, match="timeout expired"), connect(url):
            pass
        closing.cancel()


@pytest.mark.slow
def test_server_that_falls_silent_between_rows_is_given_up(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_SECONDS_TO_CANCEL", 0.2)
    threads = set(threading.enumerate())
    query = "select generate_series(1, 100000000) as user_id"
    rows = open_query(f"{postgres}&answer_timeout=5", query).batches({"user": "user_id"}, {})
    next(rows)
    others = "datname = current_database() and pid <> pg_backend_pid()"
    ((pid,),) = fetch(postgres, f"select pid from pg_stat_activity where {others}")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DataError, match="answer_timeout="):
            for _ in rows:
                pass
    finally:
        os.kill(pid, signal.SIGCONT)
    for thread in set(threading.enumerate()) - threads:  # those that still waited
        thread.join(30)


def test_statement_that_takes_too_long_is_stopped_on_the_server(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(databases._LIMITS, "answer_timeout", 1.0)
    start = time.monotonic()
    query = "select 1 as user_id, 2 as item_id, pg_sleep(60)::text as nap"
    with pytest.raises(DataError, match="answer_timeout="):
        read_interactions(postgres, query=query)
    assert time.monotonic() - start < 30
    running = (
        "select count(*) from pg_stat_activity where query like '%pg_sleep%' and pid <> pg_backend_pid()"
    )
    eventually(lambda: fetch(postgres, running) == [(0,)])


ORDERS = """create table orders (user_id bigint, sku varchar(20), ts timestamp{zone}, amount {number},
    kind varchar(9), ref {ref}, raw {raw})"""
ROWS = [
    (1, "ab", "2020-01-01 10:00:00", 2.5, "view", "0f8fad5b-d9cb-469f-a165-70867728950e"),
    (1, "cd", "2020-01-02 10:00:00", 1.5, "buy", "0f8fad5b-d9cb-469f-a165-70867728950e"),
    (2, "ab", "2020-01-03 10:00:00", 3, "buy", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    (2, "ab", "2020-01-04 10:00:00", 7, "view", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
]


@pytest.fixture
def shop(database: str) -> str:
    """The URL of a database with a table of orders."""
    is_postgres = database.startswith("postgres")
    raw, ref, number = ("bytea", "uuid", "numeric(9, 2)") if is_postgres else ("blob", "text", "real")
    with connect(database, write=True) as cursor:
        cursor.execute(ORDERS.format(zone="tz" if is_postgres else "", number=number, ref=ref, raw=raw))
        cursor.execute("set timezone to 'UTC'") if is_postgres else None
        for row in ROWS:
            values = ", ".join(f"'{x}'" if isinstance(x, str) else str(x) for x in row)
            null = "'\\x01'::bytea" if is_postgres else "x'01'"
            cursor.execute(f"insert into orders values ({values}, {null})")
    return database


def test_table_of_a_database_is_read_as_the_same_table_of_a_file(shop: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    lines = [",".join(map(str, row)) for row in ROWS]
    file.write_text("\n".join(["user_id,sku,ts,amount,kind,ref", *lines]))
    query = "select * from orders order by ts"
    for options in (
        {},
        {"user": "ref", "value": "amount", "binary": False},
        {"value": "amount", "binary": False, "duplicates": "last"},
        {"event_weights": {"view": 0.5, "buy": 2}, "time": "ts", "window": "900d"},
    ):
        given: dict[str, Any] = {"item": "sku", **options}
        got, want = read_interactions(shop, query=query, **given), read_interactions(file, **given)
        assert list(got.users) == list(want.users)
        assert list(got.items) == list(want.items)
        assert (got.matrix != want.matrix).nnz == 0
    data = read_interactions(shop, time="ts", query=query)
    assert np.array_equal(data.times, read_interactions(file, time="ts").times)  # type: ignore[arg-type]


def test_batches_are_bounded_and_in_order(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 1_000)
    monkeypatch.setattr(databases, "_SQLITE_ROWS", 1_000)
    rows = ", ".join(f"({n})" for n in range(3_500))
    execute(database, "create table t (n integer)", f"insert into t values {rows}")
    source = open_query(database, "select n as user_id from t order by n desc -- the last first")
    parts = list(source.batches({"user": "user_id"}, {}))
    assert [len(part) for part in parts] == [1_000, 1_000, 1_000, 500]
    assert [n for part in parts for n in part["user"]] == list(range(3_500))[::-1]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select user_id, sku from nowhere", "nowhere"),
        ("delete from orders", r"(?i)read.?only|a single select"),
        ("select user_id, sku from orders; select 1", "one statement at a time|multiple|a single select"),
        ("select user_id, sku, sku from orders", "several columns 'sku'"),
        ("select user_id, sku from orders where 1 = 2", "no interactions: 0 rows"),
        ("select user_id, raw as sku from orders", "item|binary|bytea"),
        ("select user_id, nullif(sku, 'cd') as sku from orders order by ts", "row 2: no item id"),
    ],
)
def test_query_that_cannot_be_used_is_refused(shop: str, query: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_interactions(shop, query=query)
    assert redacted(shop) in str(caught.value) or "0 rows" in message
    assert len(read_interactions(shop, query="select user_id, sku from orders ;;\n")) == 3


@pytest.mark.parametrize("query", [None, "select user, item from t"])
def test_other_databases_are_refused_with_a_way_that_works(query: str | None) -> None:
    for url in ("mysql://u:hunter2@h/d", "duckdb:///f.db"):
        with pytest.raises(DataError, match=r"postgresql, sqlite.*polars\.read_database") as caught:
            read_interactions(url, query=query)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(DataError, match="Write postgresql://…"):  # as SQLAlchemy names it
        read_interactions("postgresql+psycopg2://h/d", query=query)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for source in (connection, connection.cursor()):
            with pytest.raises(DataError, match=r"got C.*sqlite:///….*polars\.read_database"):
                read_interactions(source, query=query)
        connection.executescript("create table t (user, item); insert into t values ('a', 'x'), ('b', 'y')")
        frame = pl.read_database("select user, item from t", connection)
        assert list(read_interactions(frame).users) == ["a", "b"]


def test_query_and_database_need_each_other(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("user,item\n1,2\n")
    for query in (None, " ; "):
        with pytest.raises(ParameterError, match=r"query must be SQL.*postgresql://h/d; got") as caught:
            read_interactions("postgresql://u:hunter2@h/d", query=query)
        assert "hunter2" not in str(caught.value)
    for source in (tmp_path / "x.csv", [str(tmp_path / "x.csv"), "sqlite:///x.db"], sp.eye(3).tocsr()):
        with pytest.raises(ParameterError, match="query must be left out"):
            read_interactions(source, query="select 1")
    for name in ("separator", "columns", "input_format"):
        value: Any = ["a"] if name == "columns" else "csv" if name == "input_format" else ","
        with pytest.raises(ParameterError, match=f"{name} must be left out for a database"):
            read_interactions("sqlite:///x.db", query="select 1", **{name: value})


def test_types_of_postgresql_are_understood_or_refused(postgres: str) -> None:
    def ids(of: str) -> list[Any]:
        return list(read_interactions(postgres, query=f"select {of} as user_id, 1 as item_id").users)

    assert ids("'a'::text") == ids("'a'::varchar") == ids("'a'::char(1)") == ids("'a'::name") == ["a"]
    assert ids("2::smallint") == ids("2::int") == ids("2::bigint") == ids("'2'::oid") == [2]
    assert ids("'7C9E6679-7425-40de-944b-e07fc1f90ae7'::uuid") == ["7c9e6679-7425-40de-944b-e07fc1f90ae7"]
    for odd in ("2::numeric", "'\\x01'::bytea", "interval '1 day'", "inet '1.1.1.1'"):
        with pytest.raises(DataError, match=r"column 'user_id' \(user\) is .*cast"):
            ids(odd)
    for odd in ("now()", "array[1]", "true"):
        with pytest.raises(DataError, match="user ids must be integers or strings; column 'user_id' is"):
            ids(odd)
    priced = "select 1 as user_id, 2 as item_id, 12.34::money as price"
    with pytest.raises(DataError, match=r"'price' \(value\) is money\. .* cast\(… as numeric\)\.$"):
        read_interactions(postgres, query=priced, value="price", binary=False)
    query = "select 1 as user_id, 2 as item_id, interval '1 day' as unused, extract(epoch from now()) as time"
    assert read_interactions(postgres, time=True, query=query).origin is not None
    odd_time = "select n as user_id, n as item_id, {} as time from generate_series(1, 3) n"
    for odd in ("interval '1 day'", "'\\x01'::bytea", "'infinity'::timestamp", "array[n]", "'[5]'::json"):
        with pytest.raises(DataError, match="time"):
            read_interactions(postgres, query=odd_time.format(odd))
        assert read_interactions(postgres, query=odd_time.format(odd), time=False).times is None
    for right in (
        "'2020-01-01'::date + n",
        "n::numeric",
        "'2020-01-01+00'::timestamptz + n * interval '1 h'",
    ):
        assert read_interactions(postgres, query=odd_time.format(right)).times is not None
    execute(postgres, "create type kind as enum ('view', 'buy')")
    query = "select 1 as user_id, 2 as item_id, 'buy'::kind as kind"
    weighted = read_interactions(postgres, query=query, event_weights={"buy": 3})
    assert weighted.matrix.data.tolist() == [3]


def test_numeric_columns_of_a_table_of_items_are_numbers(postgres: str) -> None:
    execute(
        postgres,
        "create table products (sku text, price numeric(10, 2), grams numeric, code numeric(8))",
        "insert into products values ('a', 49.90, 1.5, 17), ('b', null, 2, 18)",
    )
    table = mrfrec.read_item_table(postgres, query="select * from products order by sku")
    assert table.types == dict.fromkeys(("price", "grams", "code"), "number")
    model = MRF.paper(sparsity=None).fit(
        pl.DataFrame({"user": [1, 1, 2], "item": ["a", "b", "b"]}), items=table
    )
    assert model.recommend(history=["b"], k=1, where="price < 50 AND code = 17")["item"].to_list() == ["a"]
    sums = "select sku, sum(price) as price from products group by 1 order by 1"
    assert mrfrec.read_item_table(postgres, query=sums).column("price", "").to_list() == [49.9, None]
    with pytest.raises(
        DataError, match=r"column 'sku' \(item\) is numeric\..*cast\(… as text\), or as bigint"
    ):
        mrfrec.read_item_table(postgres, query="select 1::numeric as sku, 2 as price")


@pytest.mark.parametrize(
    ("kind", "odd"), [("date", "infinity"), ("timestamp", "-infinity"), ("timestamptz", "4000-01-01 BC")]
)
def test_times_beyond_the_calendar_are_bad_rows(postgres: str, kind: str, odd: str) -> None:
    query = (
        f"select n as user_id, n as item_id, (case n when 2 then '{odd}' else '2020-01-01' end)::{kind} as ts"
        " from generate_series(1, 3) n"
    )
    given: dict[str, Any] = {"query": query, "time": "ts", "window": "9d"}
    with pytest.raises(DataError, match="row 2: time beyond the years 1 to 9999"):
        read_interactions(postgres, **given)
    data = read_interactions(postgres, **given, on_bad="skip")
    assert (list(data.users), data.matrix.data.tolist()) == ([1, 3], [1, 1])
    assert data.skipped == {"time beyond the years 1 to 9999": 1}


def test_query_writes_no_files(database: str, tmp_path: Path) -> None:
    execute(database, "create table t (user_id integer)")
    before = sorted(tmp_path.iterdir())
    file = tmp_path / "out"
    for query in (
        f"copy (select 1 as user_id, 2 as item_id) to '{file}'",
        f"-- a copy\n/* of it */ COPY t to '{file}'",
        f"export database '{file}'",
        f"attach database '{file}' as other",
        f"vacuum into '{file}'",
        f"copy (select 1) to '{file}'; select 1 as user_id, 2 as item_id",
        "explain select 1",
    ):
        with pytest.raises(DataError):
            read_interactions(database, query=query)
    assert sorted(tmp_path.iterdir()) == before


def test_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("user,item\n" * 200)
    with pytest.raises(DataError, match=r"x\.db: .*not a database"):
        read_interactions(f"sqlite:///{tmp_path}/x.db", query="select 1 as user_id, 2 as item_id")


def test_query_that_fails_on_the_way_says_where(postgres: str) -> None:
    query = "select 1 as user_id, 10 / (n - 500000) as item_id from generate_series(1, 600000) n"
    with pytest.raises(DataError, match=r"after row \d+.*: division by zero\.$"):
        read_interactions(postgres, query=query)


def test_values_of_several_types_are_told_apart_as_sqlite_stores_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    rows = f"(1, 2, 1), (2, 3, 2.5), (3, {2**62}, '4')"
    execute(url, "create table t (user_id, item_id, rating)", f"insert into t values {rows}")
    data = read_interactions(url, query="select * from t", binary=False)
    assert data.matrix.data.tolist() == [1, 2.5, 4]
    assert list(data.items) == [2, 3, 2**62]
    execute(url, "insert into t values ('four', 2, 1)")
    with pytest.raises(DataError, match="numbers in some rows and strings in others"):
        read_interactions(url, query="select * from t")


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [True, False])
def test_abandoned_reading_lets_the_database_go(postgres: str, is_begun: bool) -> None:
    source = open_query(postgres, "select generate_series(1, 10000000) as user_id")
    rows = source.batches({"user": "user_id"}, {})
    if is_begun:
        assert len(next(rows)) == batches.BATCH_ROWS
    del rows, source
    gc.collect()
    running = "query like '%generate_series%' and pid <> pg_backend_pid()"
    query = f"select count(*) from pg_stat_activity where {running}"
    eventually(lambda: fetch(postgres, query) == [(0,)])


def command(*arguments: object) -> None:
    run_command(list(map(str, arguments)), threading.Event())


def test_commands_read_from_a_database_and_keep_the_password_to_themselves(
    postgres: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    rows = ", ".join(f"({n % 40}, {n * n % 23}, {n})" for n in range(400))
    with connect(postgres, write=True) as cursor:
        cursor.execute("create table events (user_id int, item_id int, ts int)")
        cursor.execute(f"insert into events values {rows}")
        cursor.execute("grant select on events to guest")
    url = as_guest(postgres, ENCODED)
    query = "select * from events where ts {} 300"
    model, report = tmp_path / "shop.mrf", tmp_path / "report.json"
    common = ("--model", "Popularity")
    command("fit", url, "--query", query.format("<"), "-o", model, "--histories", *common)
    command("update", model, url, "--query", query.format(">="))
    everything = read_interactions(postgres, query="select user_id, item_id from events")
    assert load(model).fitted_.size.pairs == len(everything)
    measured = (url, "--query", "select * from events", "--heldout", 5)
    command("evaluate", *measured, *common, "-o", report)
    assert redacted(url) in report.read_text()
    with pytest.raises(DataError, match="nowhere"):
        command("fit", url, "--query", "select * from nowhere", "-o", model)
    with pytest.raises(ParameterError, match="query"):
        command("fit", url, "-o", model)
    said = caplog.text + "".join(capfd.readouterr())
    for text in (said.encode(), *(file.read_bytes() for file in tmp_path.iterdir())):
        assert SECRET.encode() not in text
        assert ENCODED.encode() not in text


def test_standard_input_is_read_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(*arguments: object, rows: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"user,item\n{rows}".encode())))
        command(*arguments)

    rows = "".join(f"{n % 40},{n * n % 23}\n" for n in range(400))
    form, model = ("--input-format", "csv"), tmp_path / "shop.mrf"
    typed("fit", "-", *form, "-o", model, "--histories", "--model", "Popularity", rows=rows)
    typed("update", model, "-", *form, rows="1000,1\n")
    assert 1000 in list(load(model).users_ or ())
    measured = ("--heldout", 5, "--model", "Popularity", "-o", tmp_path / "report.md")
    typed("evaluate", "-", *form, *measured, rows=rows)
