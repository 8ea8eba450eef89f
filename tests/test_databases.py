"""Databases as sources of tables: URLs, passwords that nobody sees, rows that stream."""

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mrfrec.errors import DataError, MissingLibraryError, ParameterError
from mrfrec.io.databases import connect, is_database, shown

SECRET = "se/cr@t%"  # of the role guest
ENCODED = "se%2Fcr%40t%25"


def fetch(url: str, query: str) -> list[Any]:
    with connect(url) as cursor:
        return list(cursor.execute(query).fetchall())


def as_guest(url: str, password: str = "", parameters: str = "") -> str:
    return url.replace("//postgres:@", f"//guest{password and ':' + password}@") + parameters


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("postgresql://u:hunter2@host:5432/shop", "postgresql://host:5432/shop"),
        ("postgres://u:hun%74er2@a,b:1/shop?sslmode=off&password=hunter2", "postgres://a,b:1/shop"),
        ("postgresql://[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql:///shop?host=/run", "postgresql:///shop"),
        ("postgresql://u:hunter@2@host/shop", "postgresql://…"),
        ("postgresql://u:hunter/2@host/shop", "postgresql://…"),
        ("postgresql://u:hunter2", "postgresql://…"),
        ("postgresql://host/shop?password=hunter@2", "postgresql://…"),
        ("postgresql://host/shop?hunter2", "postgresql://…"),
        ("https://u:hunter2@host/rows.csv?signature=hunter2", "https://host/rows.csv"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("rows.csv", "rows.csv"),
    ],
)
def test_url_is_shown_without_its_password(url: str, safe: str) -> None:
    assert shown(url) == safe


def test_urls_of_databases_are_recognised() -> None:
    urls = ["postgresql://h/d", "postgres://h/d", "sqlite:///x.db", "duckdb:////x.duckdb"]
    assert all(map(is_database, urls))
    assert not any(
        map(is_database, ["x.db", "s3://b/x.csv", "sqlite.csv", Path("sqlite:/x"), None, "duckdb"])
    )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@2@localhost/shop",
        "postgresql://u:hunter2/2@localhost/shop",
        "postgresql://u:hunter2",
        "postgresql://u:hunter2%zz@localhost/shop",
        "postgresql://localhost/shop?password=hunter2&hunter2",
        "postgresql://localhost/shop?password=hunter2=",
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
    with monkeypatch.context() as patch:
        patch.setenv("PGPASSWORD", SECRET)
        assert user(as_guest(postgres)) == "guest"
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:guest:{SECRET}\n")
    file.chmod(stat.S_IRUSR)
    assert user(as_guest(postgres, "", f"&passfile={file}")) == "guest"
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert user(as_guest(postgres)) == "guest"


def test_block_is_one_transaction(database: str) -> None:
    with connect(database, write=True) as cursor:
        cursor.execute("create table t (x integer)")
        cursor.execute("insert into t values (1)")
    with suppress(ZeroDivisionError), connect(database, write=True) as cursor:
        cursor.execute("delete from t")
        cursor.execute("create table other (x integer)")
        raise ZeroDivisionError
    assert fetch(database, "select x from t") == [(1,)]
    with pytest.raises(DataError, match="other"):
        fetch(database, "select x from other")


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_files_are_created_only_for_writing(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no file shop\.db"):
        fetch(f"{scheme}:///shop.db", "select 1")
    with pytest.raises(DataError, match="no folder none"), connect(f"{scheme}:///none/shop.db", write=True):
        pass
    with pytest.raises(ParameterError, match=f"{scheme}:///file"):
        fetch(f"{scheme}://shop.db", "select 1")
    assert not list(tmp_path.iterdir())
    with connect(f"{scheme}:///shop.db", write=True) as cursor:
        cursor.execute("create table t (x integer)")
    assert fetch(f"{scheme}:///{tmp_path}/shop.db", "select * from t") == []
    with pytest.raises(DataError, match=r"read.?only"), connect(f"{scheme}:///shop.db") as cursor:
        cursor.execute("insert into t values (1)")


@pytest.mark.parametrize(
    ("scheme", "library"), [("postgresql", "adbc_driver_postgresql"), ("duckdb", "duckdb")]
)
def test_missing_driver_names_the_extra(
    scheme: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.db").touch()
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(MissingLibraryError, match=r"mrfrec\[sql\]"), connect(f"{scheme}:///{tmp_path}/x.db"):
        pass
