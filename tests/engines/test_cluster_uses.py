"""What a cluster does besides a fit: the fits of a tuning, and recommendations for many users."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
import pytest
import scipy.sparse as sp
from distributed import Client

import mrfrec
from mrfrec import MRF, Interactions, MrfrecError, ParameterError
from mrfrec.answers import cluster_parts as parts
from mrfrec.cli.app import run
from mrfrec.evaluation import climb, strong_generalisation
from mrfrec.evaluation.questions import Split

from matrices import events_of, random_matrix

pytestmark = pytest.mark.slow  # processes of a cluster


@pytest.fixture(scope="module")
def split() -> Split:
    return strong_generalisation(events_of(random_matrix(8, users=160)), 30)


def tasks_run(client: Client, name: str) -> set[str]:
    """Return the addresses of the workers that have run tasks of this name since they started."""

    def log(dask_worker: Any) -> list[str]:
        return [str(key) for key, *_ in dask_worker.state.log]

    found = client.run(log)
    return {address for address, keys in found.items() if any(key.startswith(f"{name}-") for key in keys)}


# ── tuning ────────────────────────────────────────────────────────────────────────────────────────


def test_a_climb_on_a_cluster_is_the_serial_one(split: Split, client: Client) -> None:
    given: dict[str, Any] = {"fixed": {"sparsity": 0.3, "rank": 0}, "minutes": None, "grid": True}
    vary = {"l2": [1.0, 4.0], "alpha": [0.5, 1.0]}
    both = [climb(split, "ndcg@10", vary=vary, **given, client=on) for on in (None, client)]
    here, there = (
        replace(found, trials=tuple(replace(trial, seconds=None) for trial in found.trials)) for found in both
    )
    assert there == here
    assert len(here.trials) > 4  # the grid, and steps after it
    assert tasks_run(client, "blocks")
    with pytest.raises(ParameterError, match="client must be None: SLIM"):
        climb(split, "ndcg@10", model="SLIM", client=client)


# ── recommending ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model() -> MRF:
    """Users have text ids; user 3 has no history."""
    data = Interactions(sp.csr_array(random_matrix(4, users=130)), users=[f"u{i:03}" for i in range(130)])
    return MRF(sparsity=0.3).fit(data)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_USERS_OF_A_PART", 40)


def read(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "part-*.parquet")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {"k": 4},
        {"k": 3, "users": [f"u{i:03}" for i in range(120, 0, -1)] + ["nobody"], "exclude_seen": False},
        {"k": 5, "novelty": 0.3, "explain": 2, "exclude": [2, 9]},
        {"k": 2, "allow": {"u050": [1, 2, 30, 31], "u099": [7, 8, 40]}, "exclude": {"u051": range(20)}},
    ],
)
@pytest.mark.filterwarnings("ignore::mrfrec.MrfrecWarning")
def test_the_parts_have_the_rows_of_one_file(
    model: MRF, client: Client, tmp_path: Path, small_parts: None, options: dict[str, Any]
) -> None:
    rows = model.recommend_to(tmp_path / "one.parquet", **options)
    steps: list[tuple[str, int, int]] = []
    folder, users = tmp_path / "parts", len(options.get("users", range(130)))
    told = model.recommend_to(folder, **options, client=client, progress=lambda *x: steps.append(x))
    one = pl.read_parquet(tmp_path / "one.parquet")
    assert read(folder).equals(one)
    assert read(folder).schema == one.schema
    assert told == rows
    assert steps == [("recommending", done, users) for done in (40, 80, 120, users)]
    assert names_in(folder) == [f"part-0000{i}.parquet" for i in range(4)]


def test_histories_and_a_loaded_model_go_to_the_workers(
    model: MRF, client: Client, tmp_path: Path, small_parts: None
) -> None:
    path = tmp_path / "a.mrf"
    model.save(path)
    opened = mrfrec.load(path)
    given = {f"h{i}": [i % 40, (i + 9) % 40] for i in range(50)}
    opened.recommend_to(tmp_path / "parts", history=given, client=client)
    assert read(tmp_path / "parts").equals(opened.recommend(history=given))
    assert names_in(tmp_path) == ["a.mrf", "parts"]


def test_no_users_make_an_empty_part(model: MRF, client: Client, tmp_path: Path) -> None:
    assert model.recommend_to(tmp_path / "none", [], client=client) == 0
    assert read(tmp_path / "none").columns == list(model.recommend([]).columns)


def test_an_interrupted_call_leaves_no_folder(
    model: MRF, client: Client, tmp_path: Path, small_parts: None
) -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done >= 80:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.recommend_to(tmp_path / "parts", k=4, client=client, progress=interrupt)
    assert names_in(tmp_path) == []


def test_what_cannot_be_a_folder_of_parts_is_refused(model: MRF, client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part-00000.parquet").write_text("mine")
    for name, rule in (
        ("file", "path must be a new or empty folder"),
        ("mine", "path must be a new or empty folder"),
        ("no/parts", "path must be in a folder that exists"),
    ):
        with pytest.raises(MrfrecError, match=rule):
            model.recommend_to(tmp_path / name, client=client)
    with pytest.raises(ParameterError, match="form must be None with a client, which writes Parquet files"):
        model.recommend_to(tmp_path / "parts", form="csv", client=client)
    with pytest.raises(ParameterError, match="client must be"):
        model.recommend_to(tmp_path / "parts", client=3)
    assert names_in(tmp_path) == ["file", "mine"]


# ── the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of 130 users, and a model fitted on it."""
    folder = tmp_path_factory.mktemp("shop")
    users, items = sp.coo_array(random_matrix(4, users=130)).coords
    pl.DataFrame({"user": users, "item": items}).write_csv(folder / "events.csv")
    here = MRF(sparsity=0.3).fit(mrfrec.read_interactions(folder / "events.csv"))
    here.save(folder / "here.mrf", include_histories=True)
    return folder


def command(*arguments: str, cwd: Path) -> str:
    """Run a command in a process of its own; returns what it writes to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "mrfrec", *arguments], cwd=cwd, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def test_fit_on_a_cluster_that_is_started_for_it(shop: Path) -> None:
    options = ("--sparsity", "0.3", "--histories", "--cluster", "local:2")
    said = command("fit", "events.csv", "-o", "there.mrf", *options, cwd=shop)
    assert re.search(r"^mrfrec: fitted MRF in .* wrote there\.mrf", said, flags=re.M)
    assert (shop / "there.mrf").read_bytes() == (shop / "here.mrf").read_bytes()


def test_recommend_on_a_cluster(shop: Path, client: Client) -> None:
    assert client.scheduler is not None
    address = str(client.scheduler.address)
    said = command("recommend", "here.mrf", "--all", "-k", "3", "-o", "parts", "--cluster", address, cwd=shop)
    assert "wrote 390 rows to parts" in said
    assert read(shop / "parts").equals(mrfrec.load(shop / "here.mrf").recommend(k=3))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("fit events.csv -o x.mrf --cluster host:8786", "cluster must be an address such as"),
        ("fit events.csv -o x.mrf --cluster local:1 --model SLIM", "SLIM is fitted on this machine"),
        ("recommend here.mrf --all --cluster local:1", "for a database, or a file with -o"),
        ("recommend here.mrf --all --cluster local:1 -o x --format csv", "form must be None with a client"),
    ],
)
def test_options_of_a_cluster_are_checked(
    shop: Path, monkeypatch: pytest.MonkeyPatch, line: str, rule: str
) -> None:
    monkeypatch.chdir(shop)
    with pytest.raises(MrfrecError, match=rule):
        run(line.split(), Event())
    assert not any((shop / name).exists() for name in ("x", "x.mrf", "x.json"))
