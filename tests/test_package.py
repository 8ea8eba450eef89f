"""The package as others get it: built, and installed alone, with each extra, and with the lowest versions."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import mrfrec
from mrfrec.core.kernels.compile import cache_folders
from mrfrec.io.databases import connect
from tools import try_wheel

from servers import Command, posted

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KINDS = [kind.rpartition(" ")[2] for kind in PROJECT["classifiers"] if ":: Python :: 3." in kind]
# Nothing of this project's own environment, nor of the tests', but machine code that is compiled already.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
ENVIRONMENT["NUMBA_CACHE_DIR"] = str(cache_folders()[0].parent)

pytestmark = pytest.mark.slow  # builds, and installs in fresh environments


def run(*command: object, folder: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def uv(*arguments: object) -> str:
    return run(Path(sys.executable).parent / "uv", *arguments)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source archive of the repository, and a wheel of that."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", ROOT, "--out-dir", folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


class Fresh:
    """A folder outside of the repository with an empty environment, a table of events and, later, a model."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder, self.python = folder, folder / "environment" / "bin" / "python"
        uv("venv", folder / "environment", "--python", python)
        rows = [(user, item) for user in range(40) for item in range(30) if (user * item + user) % 7 < 3]
        (folder / "events.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in rows))

    def install(self, *what: object) -> None:
        uv("pip", "install", "--python", self.python, *what)

    def run(self, program: str, *arguments: object) -> str:
        return run(self.python.with_name(program), *arguments, folder=self.folder, env=ENVIRONMENT)

    def fit(self, sparsity: str = "dense") -> None:
        self.run("mrfrec", "fit", "events.csv", "-o", "shop.mrf", "--histories", "--sparsity", sparsity)

    def check_answers(self, sparsity: float | None = None) -> None:
        """Check that the model recommends what one does that is fitted here."""
        answer = self.run("mrfrec", "recommend", "shop.mrf", "--history", "1,2", "--format", "json")
        here = mrfrec.MRF(sparsity=sparsity).fit(self.folder / "events.csv").recommend(history=[1, 2])
        assert [row["item"] for row in json.loads(answer)] == here["item"].to_list()


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path, built: tuple[Path, Path]) -> Fresh:
    """The package with one extra, and a model where the test is about answers."""
    made, extra = Fresh(tmp_path), request.param
    if extra == "torch":  # the build that the tests run with, which only pip finds (see Makefile)
        made.install("pip")
        pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--requirement"]
        made.run("python", *pip, ROOT / "tests" / "constraints.txt")
    made.install(f"{built[1]}[{extra}]" if extra else built[1])
    if extra in ("", "sql", "serve"):
        made.fit()
    return made


def alone(extra: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fresh", [extra], indirect=True, ids=[extra or "bare"])


# ── archives ──────────────────────────────────────────────────────────────────────────────────────


def test_wheel_holds_the_package_and_nothing_else_and_is_licensed(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = message_from_bytes(texts["METADATA"])
    assert (about["Name"], about["Version"]) == ("mrfrec", mrfrec.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert b"Apache License" in texts["LICENSE"]
    assert wheel.name.endswith("-py3-none-any.whl")


def test_source_archive_holds_what_building_and_testing_take(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "docs/explanation/method.md",
    } <= names
    assert {"src/mrfrec/py.typed", "src/mrfrec/datasets/debian.parquet", "tests/test_package.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbc", ".nbi", ".mrf"))]


def test_wheel_alone_runs_the_lines_of_the_readme_and_the_index_can_show_it(
    built: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Path(sys.executable).parent / "twine", "check", "--strict", *built).count("PASSED") == 2
    try_wheel.main(built[1])
    assert re.findall(r"^README's lines.*: \d", capsys.readouterr().out, flags=re.MULTILINE)


# ── each extra alone runs what the pages show for it ──────────────────────────────────────────────


@alone("")
def test_bare_package_has_its_data_fits_recommends_and_publishes_to_sqlite(fresh: Fresh) -> None:
    assert fresh.run("mrfrec", "--version") == f"mrfrec {mrfrec.__version__}\n"
    code = "import mrfrec; print(mrfrec.__file__); print(mrfrec.datasets.load('debian'))"
    where, data = fresh.run("python", "-c", code).splitlines()
    assert Path(where).is_relative_to(fresh.folder)
    assert data == str(mrfrec.datasets.load("debian"))
    fresh.check_answers()
    fresh.run("mrfrec", "recommend", "shop.mrf", "--history", "1,2", "--explain")
    fresh.run("mrfrec", "recommend", "shop.mrf", "--all", "-k", "2", "-o", "all.parquet")
    code = "import polars; print(len(polars.read_parquet('all.parquet')))"
    assert fresh.run("python", "-c", code) == "68\n"  # the other six users have everything
    fresh.run("mrfrec", "recommend", "shop.mrf", "--all", "-o", "sqlite:///shop.db", "--table", "recs")
    assert "not installed" in fresh.run("mrfrec", "doctor")


@alone("sql")
def test_job_of_the_page_and_its_roll_back_run_with_sql(fresh: Fresh, postgres: str) -> None:
    page = (ROOT / "docs" / "how-to" / "nightly.md").read_text()
    job, other = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)[:2]
    sections: dict[str, str] = {}
    for block in (job, other):  # whose sections take the place of those of the first
        sections |= re.findall(r"^(\[[\w.]+\])\n(.*?)(?=^\[|\Z)", block, flags=re.MULTILINE | re.DOTALL)
    job = "".join(f"{head}\n{keys}" for head, keys in sections.items())
    assert "sqlite" not in job
    job = job.replace("postgresql://shop@db.example.com/shop", postgres).replace(
        '"shop.mrf"', '"nightly.mrf"'
    )
    (fresh.folder / "shop.toml").write_text(job)
    with connect(postgres, write=True) as cursor:
        cursor.execute("create table events (user_id bigint, sku text, kind text, created_at timestamptz)")
        cursor.execute(
            "insert into events select u, 'sku' || i, 'buy', now() - interval '1 day' "
            "from generate_series(1, 60) u, generate_series(1, 30) i where (u * i + u) % 7 < 3"
        )
    fresh.run("mrfrec", "nightly", "shop.toml", "--dry-run")
    fresh.run("mrfrec", "nightly", "shop.toml")
    target = ("-o", postgres, "--table", "rolled_back")
    fresh.run("mrfrec", "recommend", "shop.mrf", "--all", "-k", "20", *target)
    fresh.run("mrfrec", "similar", "shop.mrf", "--all", "-o", "sqlite:///x.db", "--table", "near")
    query = ("--query", "select similar_to as user_id, item as item_id from near", "-o", "near.mrf")
    fresh.run("mrfrec", "fit", "sqlite:///x.db", *query, "--model", "Popularity")
    with pytest.raises(AssertionError, match="pandas"):
        fresh.run("python", "-c", "import pandas")


SERVE = """
import json, re, subprocess, sys, urllib.request
command = [sys.executable, "-m", "mrfrec", "serve", "shop.mrf", "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    line = next(line for line in server.stderr if "listening at" in line)
    url = re.search(r"http://[^\\s\\"]+", line)[0]
    body = json.dumps({"history": [1, 2], "k": 3}).encode()
    asked = url.rstrip("/") + "/v1/recommend"
    asked = urllib.request.Request(asked, body, {"Content-Type": "application/json"})
    assert json.load(urllib.request.urlopen(asked, timeout=60))
    assert b"mrfrec" in urllib.request.urlopen(url, timeout=60).read()
finally:
    server.terminate()
    server.wait(30)
"""
TUNE = "mrfrec tune events.csv --heldout 5 --model ItemKNN --vary neighbors=3,5 -o best.json"
PLOT = "from mrfrec.models import EASE; EASE().fit('events.csv').plot_neighbors(1).savefig('near.png')"
# Extra: what is run with it, commands or a script in Python.
RUN_WITH = {
    "serve": SERVE,
    "plot": PLOT,
    "tune": TUNE,
    "tune,plot": f"{TUNE} --plot tuning.png",
    "torch": "mrfrec fit events.csv -o device.mrf --device auto --sparsity dense",
}


@pytest.mark.parametrize(("fresh", "what"), RUN_WITH.items(), indirect=["fresh"], ids=[*RUN_WITH])
def test_each_extra_runs_what_it_is_for(fresh: Fresh, what: str) -> None:
    if not what.startswith("mrfrec"):
        fresh.run("python", "-c", what)
        return
    for line in what.splitlines():
        fresh.run(*shlex.split(line))


# ── what production installs ──────────────────────────────────────────────────────────────────────


def test_listed_versions_are_installed_by_their_hashes_and_answer(
    tmp_path: Path, built: tuple[Path, Path]
) -> None:
    fresh, listed = Fresh(tmp_path), tmp_path / "constraints.txt"
    run("make", "constraints", f"FILE={listed}")
    text = listed.read_text()
    assert "://" not in text
    named = re.findall(r"^(\S+)==\S+ \\\n    --hash=sha256:", text, flags=re.MULTILINE)
    assert named == re.findall(r"^([^\s#]\S*)==", text, flags=re.MULTILINE)
    assert {"numpy", "uvicorn", "adbc-driver-postgresql"} <= {*named}
    fresh.install("--require-hashes", "-r", listed)
    fresh.install("--no-deps", built[1])
    fresh.fit()
    fresh.check_answers()


# ── the lowest versions that pyproject.toml allows, on every Python it names that this machine has ──


def interpreter(kind: str) -> str:
    """Return a Python of this kind; skip the test if there is none."""
    installed = sorted(map(str, Path("~/.pyenv/versions").expanduser().glob(f"{kind}.*/bin/python")))
    named = [sys.executable, shutil.which(f"python{kind}"), *installed]
    for path in filter(None, named):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.stdout.strip() == kind:
            return path
    pytest.skip(f"Python {kind} is not installed")


@pytest.mark.parametrize("kind", KINDS)
def test_lowest_versions_fit_recommend_evaluate_and_serve(
    kind: str, tmp_path: Path, postgres: str, built: tuple[Path, Path]
) -> None:
    fresh, extras = Fresh(tmp_path, interpreter(kind)), ("serve", "sql")
    # Directly required here, not by way of the wheel; and not built from source.
    fresh.install(
        "--resolution", "lowest-direct", "--only-binary", ":all:", "-r", ROOT / "pyproject.toml",
        *(f"--extra={extra}" for extra in extras),
    )  # fmt: skip
    fresh.install("--no-deps", built[1])
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]
    listed = json.loads(uv("pip", "list", "--format", "json", "--python", fresh.python))
    installed = {package["name"]: Version(package["version"]) for package in listed}
    for one in wanted:
        assert installed[one.name] == Version(next(iter(one.specifier)).version), one
    if kind == KINDS[0]:  # compiling the sparse model takes half of the time of this test: once is enough
        fresh.fit("0.1")
        fresh.check_answers(0.1)
    fresh.fit()
    fresh.check_answers()
    if kind != KINDS[0]:  # the rest has no more to do with the version of Python
        return
    fresh.run("mrfrec", "recommend", "shop.mrf", "--all", "-k", "2", "-o", postgres, "--table", "recs")
    fresh.run("mrfrec", "fit", postgres, "--query", 'select "user", item from recs', "-o", "x.mrf")
    options = ("--split", "leave-out", "--min-items", "0", "--metrics", "ndcg@2", "--format", "json")
    found = fresh.run("mrfrec", "evaluate", "events.csv", *options)
    assert json.loads(found)["models"][0]["metrics"]["ndcg@2"]["mean"] > 0
    with Command(tmp_path, tmp_path / "shop.mrf", python=fresh.python) as service:
        answer = posted(f"{service.url}/v1/recommend", json={"history": [1, 2], "k": 2}, timeout=60)
        assert len(answer.json()["items"]) == 2
