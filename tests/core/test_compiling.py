"""Machine code is kept, found again, and never older than the sources."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec.core.kernels import compile as kernels
from mrfrec.models import ItemKNN

SORTS_A_LIST = """
import json, logging, os, sys
import numpy as np
sys.prefix = os.environ["PREFIX"]
from mrfrec.core.kernels import compile

if "READ_ONLY" in os.environ:
    compile.can_write = lambda folder: False
from mrfrec.core.kernels import blocks

notes = []
logging.getLogger("mrfrec").setLevel("INFO")
handler = logging.Handler()
handler.emit = lambda record: notes.append(record.getMessage())
logging.getLogger("mrfrec").addHandler(handler)
heads, neighbors = np.array([4], np.int32), np.array([9, 9, 9, 9, 7, 2], np.int32)
found = np.empty(3, np.int32)
blocks.list_dependents(heads, np.array([0, 3]), np.arange(6), neighbors, found)
long = np.random.default_rng(0).permutation(5000).astype(np.int32)
many = np.empty(5001, np.int32)
blocks.list_dependents(heads, np.array([0, 5001]), np.zeros(6, np.int64), long, many)
if len(sys.argv) < 2:
    assert (np.diff(many) >= 0).all()
print(json.dumps([found.tolist(), compile._compiled, notes]))
"""
RUNS_A_NIGHT = """
import importlib, json, pathlib, pkgutil, sys
import numpy as np
import mrfrec
from mrfrec import nightly
from mrfrec.core import kernels

folder = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(0)
events = [f"{u},{item}" for u in range(900) for item in set(rng.integers(0, 300, 12) % (u % 290 + 9))]
(folder / "events.csv").write_text("\\n".join(["user,item", *events]))
places = "\\n".join(f"{table}.to = '{table}.csv'" for table in ("recommendations", "similar"))
(folder / "job.toml").write_text(f"source.data = 'events.csv'\\n[publish]\\nmodel = 'shop.mrf'\\n{places}")
names = [found.name for found in pkgutil.iter_modules(kernels.__path__)]
modules = [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]

def known():
    functions = [f for module in modules for f in vars(module).values() if hasattr(f, "overloads")]
    return {f"{f.py_func.__name__}{signature}" for f in functions for signature in f.overloads}

mrfrec.compile_ahead()
ahead = known()
for _ in range(2):
    nightly.run(folder / "job.toml")
# What a service and a command ask of files.
for number, parameters in enumerate(({"sparsity": 0.05, "rank": 0}, {"rank": 8}, {"sparsity": None})):
    path = folder / f"{number}.mrf"
    mrfrec.MRF(measure=False, **parameters).fit(folder / "events.csv").save(path, include_histories=True)
    mrfrec.load(path).recommend(k=3)
    model = mrfrec.load(path)
    for people in ({"users": [5]}, {"history": [1, 2]}, {"history": [[1, 2]] * 40}):
        for options in ({}, {"novelty": 0.4}, {"allow": [3, 4, 5]}):
            model.recommend(**people, k=2, explain=2, **options)
    model.explain(4, user=5)
print(json.dumps([len(ahead), sorted(known() - ahead)]))
"""


class Installation:
    """A copy of the package, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.prefix = folder / "home", folder / "environment"
        self.package = folder / "site-packages" / "mrfrec"
        ignored = shutil.ignore_patterns("__pycache__", "*.npz", "*.parquet", "*.csv*")
        shutil.copytree(Path(mrfrec.__file__).parent, self.package, ignore=ignored)

    def run(self, *arguments: object, writable: bool = True, **environment: str) -> Any:
        """Sort 4, 7 and 2 in a new process; return them, the kernels it compiled and what it logged."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        paths = {"HOME": self.home, "PREFIX": self.prefix, "PYTHONPATH": self.package.parent}
        no_files = None if writable else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        done = subprocess.run(
            [sys.executable, "-B", "-c", SORTS_A_LIST, *map(str, arguments)],
            env={**inherited, **{name: str(path) for name, path in paths.items()}, **environment},
            preexec_fn=no_files,
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)

    def kept(self) -> list[Path]:
        """Return the folders of machine code in the environment; there must be none in the package."""
        assert not list(self.package.rglob("*.nb[ci]"))
        return list(self.prefix.glob("lib/mrfrec/kernels/*/kernels-*"))


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


@pytest.mark.slow
def test_compiled_once_read_where_nothing_can_be_written_and_anew_when_a_callee_changes(
    installation: Installation,
) -> None:
    ordered, compiled, notes = installation.run()
    assert ordered == [2, 4, 7]
    assert {*compiled} == {"list_dependents", "sort"}
    assert len(notes) == 1
    assert "not run before" in notes[0]
    (folder,) = installation.kept()
    assert folder.stat().st_mode & 0o002 == 0

    assert installation.run(READ_ONLY="yes") == [[2, 4, 7], [], []]
    assert installation.kept() == [folder]

    callee = installation.package / "core" / "kernels" / "sorting.py"
    text = callee.read_text()
    assert text.count("values[s - 1] > value") == 1
    callee.write_text(text.replace("values[s - 1] > value", "values[s - 1] < value"))
    ordered, compiled, _ = installation.run("in another order")
    assert ordered == [7, 4, 2]
    assert {*compiled} == {"list_dependents", "sort"}
    (new,) = installation.kept()  # the old one is gone
    assert new.name != folder.name


@pytest.mark.slow
def test_another_folder_is_used_when_it_is_named_and_nothing_is_kept_where_nothing_can_be(
    installation: Installation, tmp_path: Path
) -> None:
    ordered, compiled, notes = installation.run(writable=False)
    assert ordered == [2, 4, 7]
    assert compiled
    assert notes

    chosen = tmp_path / "opt" / "kernels"
    assert installation.run(NUMBA_CACHE_DIR=str(chosen))[1]
    assert list(chosen.glob("kernels-*/*/*.nbi"))
    assert not [path for folder in installation.kept() for path in folder.iterdir()]
    assert installation.run(NUMBA_CACHE_DIR=str(chosen), READ_ONLY="yes")[1:] == [[], []]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment and a home without machine code."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(kernels, "_hash_of_sources", lambda: "of other sources")  # the true one is kept
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    return tmp_path


def test_the_home_folder_is_used_when_the_environment_cannot_be_written(elsewhere: Path) -> None:
    (elsewhere / "environment").write_text("a file where the folder should be")
    usable = [folder for folder in kernels.cache_folders() if kernels.can_write(folder)]
    assert len(usable) == 1
    assert usable[0].is_relative_to(elsewhere / "home" / ".cache" / "mrfrec" / "kernels")


only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")


def test_what_a_read_only_installation_has_compiled_is_linked_from_the_home_folder(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, own = kernels.cache_folders()
    (installed / "numba").mkdir(parents=True)
    (installed / "numba" / "sort.nbi").write_bytes(b"index")
    monkeypatch.setattr(kernels, "can_write", lambda folder: folder == own and not folder.mkdir(parents=True))
    assert kernels._folder.__wrapped__() == own
    assert (own / "numba" / "sort.nbi").read_bytes() == b"index"
    monkeypatch.setattr(kernels, "can_write", lambda folder: False)
    temporary = kernels._folder.__wrapped__()
    assert temporary is not None
    assert (temporary / "numba" / "sort.nbi").read_bytes() == b"index"
    shutil.rmtree(installed)
    shutil.rmtree(own)
    assert kernels._folder.__wrapped__() is None


@pytest.mark.parametrize("which", ["folder", "parent", "child", pytest.param("owner", marks=only_root)])
def test_a_folder_of_others_or_that_they_can_write_to_is_not_used(elsewhere: Path, which: str) -> None:
    before = os.umask(0)
    try:
        assert all(map(kernels.can_write, kernels.cache_folders()))
    finally:
        os.umask(before)
    first, second = kernels.cache_folders()  # safe, whatever the umask
    if which == "owner":
        os.chown(first, 4321, -1)
    else:
        (first / "child").mkdir()
        {"folder": first, "parent": first.parent, "child": first / "child"}[which].chmod(0o777)
    assert kernels.cache_folders() == [second]


def test_fits_and_rankings_compile_nothing_after_compiling_ahead() -> None:
    folder = mrfrec.compile_ahead()
    assert list(folder.rglob("*.nbi"))
    before = list(kernels._compiled)
    rng = np.random.default_rng(0)
    binary = sp.csr_array((rng.random((90, 50)) < 0.2).astype(np.float32))
    for X in (binary, sp.csr_array(binary * np.float64(0.5))):
        for model in (
            mrfrec.MRF.paper(sparsity=None),
            mrfrec.MRF.paper(sparsity=0.2),
            mrfrec.MRF.paper(sparsity=0.3, r=0.3),
            mrfrec.MRF(sparsity=None),
            mrfrec.MRF(sparsity=0.2),
            ItemKNN(neighbors=5),
        ):
            model.fit(X)
            model.scores(X)
            model.top_k(X, 3)
            model.recommend(k=3)
            model.recommend(history=[1, 2], k=3, explain=2)
    times = 1_700_000_000 + rng.integers(0, 9, binary.nnz) * 86_400
    for sparsity in (None, 0.2):
        mrfrec.MRF(sparsity=sparsity, half_life="3d", order=0.3, recency=0.5).fit(binary, times=times)
    assert kernels._compiled == before


@pytest.mark.slow
def test_a_night_with_the_defaults_compiles_nothing_after_compiling_ahead(tmp_path: Path) -> None:
    """In a fresh process, where a kernel knows only the types of arguments that it has met there."""
    done = subprocess.run(
        [sys.executable, "-c", RUNS_A_NIGHT, str(tmp_path)], capture_output=True, check=True
    )
    ahead, later = json.loads(done.stdout)
    assert ahead > 30
    assert later == []


def test_unknown_types_are_refused() -> None:
    with pytest.raises(mrfrec.ParameterError, match="dtypes"):
        mrfrec.compile_ahead(dtypes=["float16"])  # type: ignore[list-item]


def test_versions_of_numba_keep_their_code_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernels._hash_of_sources.__wrapped__()
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert kernels._hash_of_sources.__wrapped__() != before


def test_code_that_cannot_be_kept_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_folder", lambda: None)
    monkeypatch.setattr(kernels, "_compiled", [])
    function = type("Function", (), {"__module__": kernels.__package__, "__name__": "f"})
    event = type("Event", (), {"data": {"dispatcher": type("Dispatcher", (), {"py_func": function})}})
    with caplog.at_level("INFO", logger=kernels.__package__):
        kernels._Note().on_start(event)
    assert "it cannot be kept: name a folder as NUMBA_CACHE_DIR" in caplog.text
