"""Five nights of a shop with PostgreSQL: what goes wrong in each, and what the operator sees."""

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import mrfrec
from jobs import events, report_of
from mrfrec import RefusedError, nightly

from queries import execute, fetch
from servers import CLIENT, eventually

JOB = """
[source]
data = "{url}"
query = "select user_id, sku, paid_at from orders where created_at >= '{{since}}'"
time = "paid_at"
mode = "update"
window = "30d"
on_bad = "skip"

[model]
sparsity = 0.2

[guard]
metric = "ndcg@5"
max_drop = 1
heldout = 0.2

[publish]
model = "shop.mrf"

[publish.recommendations]
to = "{url}"
table = "recs"
k = 5
columns = {{ user = "user_id" }}
"""
TODAY = datetime.now(UTC).replace(hour=3, minute=0, second=0, microsecond=0)
MINUTE = timedelta(minutes=1)


def sell(url: str, night: int) -> None:
    """Add the orders of the day before a night."""
    rows = []
    for place, (user, item, _) in enumerate(events(100, seed=night).rows()):
        paid = TODAY - timedelta(days=8 - night) + place * MINUTE
        rows.append(f"({user[1:]}, '{item}', '{paid}', '{paid}')")
    execute(url, f"insert into orders values {', '.join(rows)}")


def order(url: str, user: str, paid: str, created: datetime) -> None:
    execute(url, f"insert into orders values ({user}, 'i1', {paid}, '{created}')")


@contextmanager
def service_whose_log_nobody_reads(model: Path) -> Iterator[httpx.Client]:
    """Serve a model in a process of its own; gives a client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ["--port", port, "--copies", str(model.parent / "copies"), "--log", "json"]
    command = [sys.executable, "-m", "mrfrec", "serve", str(model), *options]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, **CLIENT) as client,
    ):
        try:
            eventually(lambda: answers(client), seconds=60)
            yield client
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def answers(client: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        return client.get("/ready").status_code == 200
    return False


def file_hash(client: httpx.Client) -> str:
    """Return the file hash of the model that answers."""
    answer = client.post("/v1/recommend", json={"history": ["i1", "i2"]})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model"]["file_hash"])


def metric(client: httpx.Client, name: str) -> float:
    (line,) = (line for line in client.get("/metrics").text.splitlines() if line.startswith(name))
    return float(line.split()[-1])


@pytest.mark.slow
def test_five_nights_of_a_shop(tmp_path: Path, postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mrfrec")
    job = tmp_path / "shop.toml"
    job.write_text(JOB.format(url=postgres))
    times = "paid_at timestamptz, created_at timestamptz"
    execute(postgres, f"create table orders (user_id bigint, sku text, {times})")

    def night(*expected: str, refused: str = "") -> dict[str, Any]:
        """Run the job; check what the operator reads in the log, but for the end, and on the page."""
        caplog.clear()
        if refused:
            with pytest.raises(RefusedError, match=refused):
                nightly.run(job)
        else:
            nightly.run(job)
        told = [each.getMessage() for each in caplog.records]
        told = [line for line in told if not re.match("columns|times|now is|sparse model", line)]
        told = [re.sub(r"\d+\.\d+ ± .*", "#", line) for line in told]
        ends = [] if refused else [f"wrote {tmp_path / 'shop.mrf'}", "published in"]
        for line, wanted in zip(told, [*expected, *ends], strict=True):
            assert line.startswith(wanted)
        record = report_of(tmp_path)[-1]
        page = (tmp_path / "shop.report.html").read_text().replace("&#x27;", "'")
        assert all(text in page for text in [*record["reasons"], *(note["text"] for note in record["notes"])])
        assert f">{record['status']}</span>" in page
        return record

    def latest() -> list[datetime]:
        """Return the times of the published model."""
        data = mrfrec.load(tmp_path / "shop.mrf").fitted_.data_for("a test")
        assert data.times is not None
        return [datetime.fromtimestamp(time / 1e6, UTC) for time in data.times.tolist()]

    def published(pairs: str, rest: str = "the model before would have predicted what came") -> list[str]:
        """Return the lines of a night that is published."""
        since = [rest] if rest else []
        return [
            f"100 users, 40 items, {pairs} pairs",
            *since,
            "ndcg@5 #",
            "500 rows of recommendations for recs in",
        ]

    day = timedelta(days=1)
    sell(postgres, 1)
    night(*published("800", ""))
    with service_whose_log_nobody_reads(tmp_path / "shop.mrf") as client:
        # The collector of the log hangs from here on: 64 KB of lines would have frozen the service.
        for _ in range(4000):
            assert client.get("/v1/similar?item=unknown").status_code == 404
        assert client.get("/health").status_code == 200
        assert metric(client, "mrfrec_log_lines_dropped_total") > 1000
        # 2: an order that was never paid has no time. The others keep theirs.
        sell(postgres, 2)
        order(postgres, "7", "null", TODAY - 6 * day)
        record = night(
            f"reading the events since {TODAY - 8 * day + 799 * MINUTE:%Y-%m-%d %H:%M:%S}Z",
            "left out 1 row: no time",
            "637 of 1,437 new pairs are in the model already",
            *published("1,437"),
        )
        assert record["notes"] == [{"what": "skipped rows", "count": 1, "text": "left out 1 row: no time"}]
        assert min(latest()).date() == (TODAY - 7 * day).date()
        # 3: the clock of a cash desk is 60 days ahead. The window of 30 days stays where it is.
        sell(postgres, 3)
        order(postgres, "7", f"'{TODAY + 60 * day}'", TODAY - 5 * day)
        record = night(
            f"reading the events since {TODAY - 7 * day + 799 * MINUTE:%Y-%m-%d %H:%M:%S}Z",
            "left out 1 row: no time",
            "628 of 1,428 new pairs are in the model already",
            "left out 1 row: time in the future",
            *published("1,926"),
        )
        assert {note["what"]: note["count"] for note in record["notes"]} == {
            "skipped rows": 1,
            "rows ahead": 1,
        }
        assert min(latest()).date() == (TODAY - 7 * day).date()
        # 4: the machine is off, and nothing runs. 5: a migration has made texts of the ids.
        sell(postgres, 4)
        sell(postgres, 5)
        execute(postgres, "alter table orders alter column user_id type text")
        why = "the ids of users are strings, such as '0', and those published are integers: nobody would"
        since = f"reading the events since {TODAY - 6 * day + 799 * MINUTE:%Y-%m-%d %H:%M:%S}Z"
        before = (tmp_path / "shop.mrf").read_bytes()
        night(since, "left out 1 row: time in the future", refused=why)
        assert (tmp_path / "shop.mrf").read_bytes() == before
        # The migration is undone: the same night reads what two nights have not.
        execute(
            postgres,
            "alter table orders alter column user_id type bigint using user_id::bigint",
        )
        record = night(
            since,
            "517 of 1,949 new pairs are in the model already",
            "left out 1 row: time in the future",
            *published("2,682"),
        )
        assert (record["reasons"], record["missed"]) == ([], [])
        good = f"select distinct user_id, sku from orders where paid_at <= '{TODAY}'"
        assert fetch(postgres, f"select count(*) from ({good}) as pairs") == [(record["pairs"],)]
        assert fetch(postgres, "select count(distinct user_id) from recs where user_id <= 100") == [(100,)]
        # Somebody restores the model by cp, and the disk is full: the service answers as before, and says so.
        whole = (tmp_path / "shop.mrf").read_bytes()
        eventually(lambda: file_hash(client) == record["model"][:16])
        (tmp_path / "shop.mrf").write_bytes(whole[:-9999])
        eventually(lambda: client.get("/ready").json()["stale"] == {"shop": "changed in place"})
        assert metric(client, "mrfrec_model_stale") == 1
        assert file_hash(client) == record["model"][:16]
        (tmp_path / "new.mrf").write_bytes(whole)
        (tmp_path / "new.mrf").replace(tmp_path / "shop.mrf")
        eventually(lambda: client.get("/ready").json()["stale"] == {})
