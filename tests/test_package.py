"""The package as others get it: built, installed in an empty environment, used there."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

import mrfrec
from mrfrec.core.kernels.compile import cache_folders

pytestmark = pytest.mark.slow  # builds, and installs in a fresh environment

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# Nothing of this project's own environment, nor of the tests', but machine code that is compiled already.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
ENVIRONMENT["NUMBA_CACHE_DIR"] = str(cache_folders()[0].parent)


@dataclass(frozen=True)
class Package:
    folder: Path  # outside of the repository
    sdist: Path
    wheel: Path
    bin: Path  # of the environment the wheel is installed in

    def run(self, program: str, *arguments: str) -> str:
        """What a program of that environment prints."""
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout


def uv(*arguments: object) -> None:
    subprocess.run([Path(sys.executable).parent / "uv", *map(str, arguments), "--quiet"], check=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """A source archive of the repository, a wheel of that, an environment with that."""
    folder = tmp_path_factory.mktemp("package")
    built, environment = folder / "built", folder / "environment"
    uv("build", ROOT, "--out-dir", built)
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    uv("venv", environment, "--python", sys.executable)
    uv("pip", "install", wheel, "--python", environment)
    return Package(folder, sdist, wheel, environment / "bin")


def test_the_wheel_holds_the_package_and_nothing_else_and_is_licensed(
    package: Package,
) -> None:
    with zipfile.ZipFile(package.wheel) as archive:
        texts = {Path(name).name: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == sources
    about = message_from_bytes(texts["METADATA"])
    assert (about["Name"], about["Version"]) == ("mrfrec", mrfrec.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert b"Apache License" in texts["LICENSE"]
    assert package.wheel.name.endswith("-py3-none-any.whl")


def test_the_source_archive_holds_what_building_and_testing_take(package: Package) -> None:
    with tarfile.open(package.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "docs/method.md"} <= names
    assert {"src/mrfrec/py.typed", "src/mrfrec/datasets/debian.parquet", "tests/test_package.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbc", ".nbi", ".mrf"))]


def test_the_installed_package_and_its_data_are_used(package: Package) -> None:
    assert package.run("mrfrec", "--version") == f"mrfrec {mrfrec.__version__}\n"
    where = package.run("python", "-c", "import mrfrec; print(mrfrec.__file__)")
    assert Path(where.strip()).is_relative_to(package.bin.parent)
    code = "import mrfrec; print(mrfrec.datasets.load('debian'))"
    assert package.run("python", "-c", code) == f"{mrfrec.datasets.load('debian')}\n"


def test_a_small_table_is_fitted_and_answers_come(package: Package) -> None:
    (package.folder / "events.csv").write_text(
        "user,item\n1,milk\n1,bread\n2,milk\n2,bread\n3,milk\n3,bread\n4,nails\n4,hammer\n5,nails\n5,hammer\n"
    )
    package.run("mrfrec", "fit", "events.csv", "-o", "shop.mrf", "--histories")
    answer = package.run(
        "mrfrec", "recommend", "shop.mrf", "--history", "milk", "-k", "1", "--format", "json"
    )
    assert [(row["item"], row["source"]) for row in json.loads(answer)] == [("bread", "model")]
    package.run("mrfrec", "recommend", "shop.mrf", "--all", "-k", "2", "-o", "all.parquet")
    code = "import polars; print(len(polars.read_parquet('all.parquet')))"
    assert package.run("python", "-c", code) == "10\n"
