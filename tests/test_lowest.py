"""The lowest versions that pyproject.toml allows, on every Python it names that this machine has."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from mrfrec import MRF

from servers import TABLE, Command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KINDS = [kind.rpartition(" ")[2] for kind in PROJECT["classifiers"] if ":: Python :: 3." in kind]
UV = Path(sys.executable).parent / "uv"


def run(*command: object, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_lowest_versions_fit_recommend_evaluate_and_serve(
    kind: str, tmp_path: Path, postgres: str
) -> None:
    python, program = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "mrfrec"
    run(UV, "venv", tmp_path / "env", "--python", interpreter(kind))
    run(UV, "build", "--wheel", ROOT, "--out-dir", tmp_path)
    install = (UV, "pip", "install", "--python", python)
    # Directly required here, not by way of the wheel; and not built from source.
    extras = ("serve", "sql", "client")
    run(*install, "--resolution", "lowest-direct", "--only-binary", ":all:", "-r", "pyproject.toml",
        *(f"--extra={extra}" for extra in extras))  # fmt: skip
    run(*install, "--no-deps", next(tmp_path.glob("*.whl")))
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]
    lowest = {one.name: next(iter(one.specifier)).version for one in wanted}
    listed = json.loads(run(UV, "pip", "list", "--format", "json", "--python", python))
    installed = {package["name"]: package["version"] for package in listed}
    assert {name: Version(installed[name]) for name in lowest} == {
        name: Version(version) for name, version in lowest.items()
    }

    rows = "".join(f"{user},{item}\n" for user, item in TABLE)
    (tmp_path / "events.csv").write_text(f"user,item\n{rows}")
    # Compiling the sparse model takes half of the time of this test: once is enough.
    for sparsity in ("0.5", "dense") if kind == KINDS[0] else ("dense",):
        run(program, "fit", "events.csv", "-o", "shop.mrf", "--histories", "--sparsity", sparsity,
            folder=tmp_path)  # fmt: skip
    found = run(program, "recommend", "shop.mrf", "--history", "milk", "--format", "json", "-k", "2",
                folder=tmp_path)  # fmt: skip
    here = MRF(sparsity=None).fit(tmp_path / "events.csv").recommend(history=["milk"], k=2)
    assert [row["item"] for row in json.loads(found)] == here["item"].to_list()
    if kind != KINDS[0]:  # the rest has no more to do with the version of Python
        return
    run(program, "recommend", "shop.mrf", "--all", "-k", "2", "-o", postgres, "--table", "recs",
        folder=tmp_path)  # fmt: skip
    run(program, "fit", postgres, "--query", 'select "user", item from recs', "-o", "x.mrf", folder=tmp_path)
    options = ("--split", "leave-out", "--min-items", "0", "--metrics", "ndcg@2", "--format", "json")
    found = run(program, "evaluate", "events.csv", *options, folder=tmp_path)
    assert json.loads(found)["models"][0]["metrics"]["ndcg@2"]["mean"] > 0
    code = "import mrfrec, sys; print(mrfrec.Client(sys.argv[1]).recommend(history=['milk'], k=2)['item'][0])"
    with Command(tmp_path, tmp_path / "shop.mrf", python=python) as service:
        assert run(python, "-c", code, service.url, folder=tmp_path).strip() == here["item"][0]
