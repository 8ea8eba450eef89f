"""Every extra alone: a fresh environment with just that extra runs what the pages show for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrfrec.core.kernels.compile import cache_folders
from mrfrec.io.databases import connect

ROOT = Path(__file__).parents[1]
# Nothing of this project's own environment, but machine code that is compiled already.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
ENVIRONMENT["NUMBA_CACHE_DIR"] = str(cache_folders()[0].parent)

pytestmark = pytest.mark.slow


def uv(*arguments: object) -> None:
    subprocess.run([Path(sys.executable).parent / "uv", *map(str, arguments), "--quiet"], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    uv("build", ROOT, "--wheel", "--out-dir", folder)
    (found,) = folder.glob("*.whl")
    return found


class Fresh:
    """An environment with the package and one extra, and a folder with events and a model."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder, self._bin = folder, folder / "environment" / "bin"
        python = self._bin / "python"
        uv("venv", folder / "environment", "--python", sys.executable)
        if extra == "torch":  # the build that the tests run with, which only pip finds (see Makefile)
            uv("pip", "install", "pip", "--python", python)
            pip = f"{python} -m pip install --quiet --no-compile --no-deps --requirement".split()
            subprocess.run([*pip, ROOT / "tests" / "constraints.txt"], check=True)
        uv("pip", "install", f"{wheel}[{extra}]" if extra else wheel, "--python", python)
        rows = [(user, item) for user in range(40) for item in range(30) if (user * item + user) % 7 < 3]
        (folder / "events.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in rows))
        self.run("mrfrec", "fit", "events.csv", "-o", "shop.mrf", "--histories", "--sparsity", "0.1")

    def run(self, program: str, *arguments: object) -> str:
        """What a program of the environment prints."""
        done = subprocess.run(
            [str(self._bin / program), *map(str, arguments)],
            cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path, wheel: Path) -> Fresh:
    return Fresh(tmp_path, wheel, request.param)


def alone(extra: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fresh", [extra], indirect=True, ids=[extra or "bare"])


@alone("")
def test_bare_package_fits_recommends_and_publishes_to_sqlite(fresh: Fresh) -> None:
    fresh.run("mrfrec", "recommend", "shop.mrf", "--history", "1,2", "--explain")
    fresh.run("mrfrec", "recommend", "shop.mrf", "--all", "-o", "sqlite:///shop.db", "--table", "recs")
    assert "not installed" in fresh.run("mrfrec", "doctor")


@alone("sql")
def test_job_of_the_page_and_its_roll_back_run_with_sql(fresh: Fresh, postgres: str) -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    job = page.split("```toml\n# shop.toml\n")[1].split("```")[0]
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
    with pytest.raises(AssertionError, match="pyarrow"):
        fresh.run("python", "-c", "import pyarrow")


@alone("serve")
def test_service_answers_with_serve(fresh: Fresh) -> None:
    code = """
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
    fresh.run("python", "-c", code)


@alone("client")
def test_client_is_made_with_client(fresh: Fresh) -> None:
    code = """
import mrfrec
try:
    mrfrec.Client("http://127.0.0.1:1").recommend(history=[1])
except mrfrec.ServiceError as error:
    assert "127.0.0.1" in str(error)
else:
    raise SystemExit("somebody answered")
"""
    fresh.run("python", "-c", code)


@alone("cluster")
def test_workers_share_a_fit_with_cluster(fresh: Fresh) -> None:
    code = """
import mrfrec
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            mrfrec.MRF(sparsity=0.1).fit(mrfrec.read_interactions("events.csv"), client=client)
"""
    (fresh.folder / "shared.py").write_text(code)
    fresh.run("python", "shared.py")


@alone("plot")
def test_trade_off_is_drawn_with_plot(fresh: Fresh) -> None:
    fresh.run(
        "mrfrec", "tune", "events.csv", "--heldout", "5", "--model", "ItemKNN", "--vary", "neighbors=3,5",
        "--plot", "tuning.png", "-o", "best.json",
    )  # fmt: skip
    assert (fresh.folder / "tuning.png").exists()


@alone("wmf")
def test_vectors_are_trained_with_wmf(fresh: Fresh) -> None:
    fresh.run("mrfrec", "fit", "events.csv", "-o", "wmf.mrf", "--model", "WMF")
    fresh.run("mrfrec", "recommend", "wmf.mrf", "--history", "1,2")


@alone("torch")
def test_networks_and_fits_on_a_device_run_with_torch(fresh: Fresh) -> None:
    fresh.run("mrfrec", "fit", "events.csv", "-o", "vae.mrf", "--model", "MultVAE: epochs=2")
    fresh.run("mrfrec", "recommend", "vae.mrf", "--history", "1,2")
    fresh.run("mrfrec", "fit", "events.csv", "-o", "device.mrf", "--device", "auto", "--sparsity", "0.1")
