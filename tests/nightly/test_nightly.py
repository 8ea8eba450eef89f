"""The nightly job: what it publishes, what it refuses, and that nothing is ever half done."""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest

import mrfrec
from asking import rows_for
from jobs import JOB, TABLES, UPDATE, events, report_of, write_job
from mrfrec import (
    MRF,
    BusyError,
    DataError,
    MrfrecWarning,
    ParameterError,
    RefusedError,
    nightly,
    read_interactions,
)
from mrfrec.cli.app import run as run_command
from mrfrec.io.databases import connect
from mrfrec.models import Popularity
from mrfrec.nightly.guard import bounds_of, drift, faults, limits, predicted_since
from mrfrec.nightly.job import Guard
from mrfrec.nightly.preflight import steps

from queries import fetch

# In the package, the name of this module is its function.
RUN = sys.modules["mrfrec.nightly.run"]
COLUMNS = '"user" text, item text, title text, score real, rank integer, source text'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    events().write_csv(tmp_path / "events.csv")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def test_a_job_reads_the_table_of_items_and_filters(folder: Path) -> None:
    with connect(f"sqlite:///{folder}/stock.db", write=True) as cursor:
        cursor.execute("create table p (sku text, stock integer)")
        cursor.executemany("insert into p values (?, ?)", [(f"i{i}", i % 2) for i in range(40)])
        cursor.connection.commit()
    source = 'items = "sqlite:///stock.db"\nitems_query = "select sku, stock > 0 as in_stock from p"'
    tables = TABLES.replace("k = 5", "k = 5\nwhere = {in_stock = true}")
    job = write_job(folder, ('data = "events.csv"', f'data = "events.csv"\n{source}'), more=tables)
    for _ in range(2):
        nightly.run(job)
        kept = mrfrec.load(folder / "shop.mrf").catalogue.table
        assert kept is not None
        assert kept.types == {"in_stock": "number"}
        items = fetch(f"sqlite:///{folder}/shop.db", "select distinct item from recs")
        assert {int(item[1:]) % 2 for (item,) in items} == {1}
    write_job(folder, ('data = "events.csv"', 'data = "events.csv"\nitems_query = "select 1"'))
    with pytest.raises(ParameterError, match="items_query must be left out without items"):
        nightly.read_job(job)
    more = TABLES.replace("k = 5", "k = 5\nwhere = {in_stock = {under = 3}}")
    with pytest.raises(ParameterError, match=r"where\.in_stock must be a condition with the words any"):
        nightly.read_job(write_job(folder, more=more))


def test_the_model_of_last_night_is_asked_what_came_since(folder: Path) -> None:
    early = events().with_columns(time=pl.col("time") * 86_400)
    early.write_csv(folder / "events.csv")
    job = write_job(folder, ("keep = 2", "keep = 2\nhistories = true"))
    first = nightly.run(job)
    assert "predicted" not in first
    assert first["latest"] == 5 * 86_400_000_000
    before: Any = mrfrec.load(folder / "shop.mrf")
    had = {user: set(items) for user, items in early.group_by("user").agg("item").iter_rows()}
    rng = np.random.default_rng(1)
    came = {f"u{u}": f"i{rng.integers(40)}" for u in range(0, 90, 3)}
    came = {user: item for user, item in came.items() if item not in had[user]}
    more = [(user, item, 6 * 86_400) for user, item in came.items()]
    more += [("new", "i1", 6 * 86_400), ("u1", "unknown", 6 * 86_400)]
    more += [(user, min(had[user]), 7 * 86_400) for user in ("u0", "u1", "u2")]  # once more: nothing to guess
    later = pl.concat([early, pl.DataFrame(more, schema=early.schema, orient="row")])
    later.write_csv(folder / "events.csv")
    found = nightly.run(job, accept=True)["predicted"]
    gains = []
    for user, item in came.items():
        lists = [row["item"] for row in rows_for(before, history=sorted(had[user]), k=5)]
        gains.append(1 / np.log2(lists.index(item) + 2) if item in lists else 0.0)
    assert found["asked"] == len(came) > 10
    assert found["value"] == pytest.approx(np.mean(gains))
    assert f"{found['value']:.4f}" in (folder / "shop.report.html").read_text()


def test_dislikes_since_then_are_not_asked_about() -> None:
    rng = np.random.default_rng(0)
    early = pl.DataFrame({"user": np.repeat(np.arange(30), 4), "item": rng.integers(0, 9, 120)})
    early = early.unique().with_columns(value=1.0, time=86_400 * 7_500)
    late = pl.DataFrame({"user": [1, 2, 3], "item": [90, 90, 90], "value": [2.0, -1.0, 0.0]})
    known = pl.DataFrame({"user": [9], "item": [90], "value": [1.0], "time": [86_400 * 7_499]})
    both = [early, known, late.with_columns(time=86_400 * 7_600)]
    both = [each.with_columns(pl.col("time").cast(pl.Int64)) for each in both]
    read = partial(read_interactions, binary=False, time=True)
    before = Popularity().fit(read(pl.concat(both[:2])))
    found = predicted_since(before, read(pl.concat(both)), 86_400_000_000 * 7_500, "recall@5")
    assert found is not None
    assert found["asked"] == 1


def test_page_names_every_field_of_a_run(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "job.md").read_text()
    named = {*re.findall(r"`(\w+)`", page.split("\n## The report")[1].split("\n## ")[0])}
    source = UPDATE[1] + '\non_bad = "skip"'
    job = write_job(folder, (UPDATE[0], source), more=TABLES)
    bad = pl.DataFrame({"user": ["u1"], "item": [None], "time": [1]}, schema=events().schema)
    later = events(seed=1).with_columns(pl.col("time") + 10).join(events(), on=["user", "item"], how="anti")
    for day, table in {"2026-11-14": events(), "2026-11-15": later}.items():
        pl.concat([table, bad]).write_csv(folder / f"{day}.csv")
        found = nightly.run(job, day=day, accept=True)
    assert {"skipped", "batch", "predicted", "unchanged", "rows", "drift"} <= found.keys()
    fields = found.keys() | found["seconds"].keys()
    assert fields - named == set()


# ── publishing ────────────────────────────────────────────────────────────────────────────────────


def test_model_and_tables_are_those_of_a_fit_on_all_events(folder: Path) -> None:
    record = nightly.run(write_job(folder, more=TABLES))
    data = read_interactions(folder / "events.csv")
    model, truth = mrfrec.load(folder / "shop.mrf"), MRF(sparsity=0.2).fit(data)
    assert isinstance(model, MRF)
    assert (model.weights_ != truth.weights_).nnz == 0
    assert model.users_ is None  # histories are not stored unless asked for
    assert (record["users"], record["items"], record["pairs"]) == (400, 40, 3200)
    assert record["status"] == "published"
    assert record["value"] > 0.1
    assert report_of(folder) == [record]
    assert model.notes_["value"] == record["value"]
    assert set(record["seconds"]) == {"read", "measure", "fit", "compare", "publish", "total"}
    assert record["rows"] == {"recommendations": 2000, "similar items": 120}
    found = fetch(f"sqlite:///{folder}/shop.db", 'select "user", item, rank from recs order by "user", rank')
    assert found == truth.recommend(k=5).select("user", "item", "rank").sort("user", "rank").rows()
    near = pl.read_parquet(folder / "similar.parquet")
    assert (len(near), near.columns[:2]) == (120, ["sku", "item"])
    assert sorted(path.name for path in folder.iterdir()) == [
        ".shop.mrf.lock", ".shop.mrf.nightly.lock", "events.csv", "job.toml", "shop.db", "shop.mrf",
        "shop.report.html", "shop.report.json", "similar.parquet",
    ]  # fmt: skip


def test_values_are_measured_once_and_then_every_few_nights(folder: Path) -> None:
    write_job(folder, ("sparsity = 0.2", "sparsity = 0.2\nmeasure_every = 2"))
    kept = []
    for night in range(4):
        events(users=700 + night).write_csv(folder / "events.csv")
        record = nightly.run(folder / "job.toml", accept=True)
        model = mrfrec.load(folder / "shop.mrf")
        assert model.measured_ is not None
        assert record["values"] == str(model.measured_)
        assert str(model.measured_) in (folder / "shop.report.html").read_text()
        kept.append((record["measured"], model.measured_))
    assert [measured for measured, _ in kept] == [True, False, True, False]
    assert kept[0][1] == kept[1][1] != kept[2][1]


def test_earlier_models_are_kept_up_to_a_number(folder: Path) -> None:
    for name in ("shop.20010910T014640Z.mrf", "shop.20010911T014640Z.mrf", "shop.other.mrf"):
        (folder / name).write_bytes(b"an earlier one")
        (folder / f".{name}.lock").touch()
    nightly.run(folder / "job.toml")
    os.utime(folder / "shop.mrf", (1e9 + 86400 * 3,) * 2)
    nightly.run(folder / "job.toml")
    kept = sorted(path.name for path in folder.glob("shop.2*.mrf"))
    assert kept == ["shop.20010911T014640Z.mrf", "shop.20010912T014640.000000Z.mrf"]
    locks = sorted(path.name for path in folder.glob(".shop.*.mrf.lock"))
    assert locks == [".shop.20010911T014640Z.mrf.lock", ".shop.other.mrf.lock"]
    mrfrec.load(folder / kept[1])
    shutil.copy2(folder / kept[1], folder / "shop.mrf")  # put back, it is not kept twice
    nightly.run(write_job(folder, ("keep = 2", "keep = 4")))
    assert len(list(folder.glob("shop.2*.mrf"))) == 2
    nightly.run(write_job(folder, ("keep = 2", "keep = 0")))
    assert [path.name for path in folder.glob("shop.*.mrf")] == ["shop.other.mrf"]


def test_roll_back_publishes_an_earlier_model_by_the_rules_of_the_job(folder: Path) -> None:
    job = write_job(folder, ("keep = 2", "keep = 2\nhistories = true"), more=TABLES)
    first, before = nightly.run(job), (folder / "shop.mrf").read_bytes()
    recs = fetch(f"sqlite:///{folder}/shop.db", "select * from recs")
    os.utime(folder / "shop.mrf", (1e9, 1e9))
    events(410, seed=1).write_csv(folder / "events.csv")
    nightly.run(job, accept=True)
    second = (folder / "shop.mrf").read_bytes()
    (folder / "events.csv").unlink()
    earlier = folder / "shop.20010909T014640.000000Z.mrf"
    run_command(["nightly", str(job), "--from", str(earlier)], Event())
    assert (folder / "shop.mrf").read_bytes() == before
    assert (folder / "shop.mrf").stat().st_mtime == 1e9
    assert second in [path.read_bytes() for path in folder.glob("shop.2*.mrf")]
    assert fetch(f"sqlite:///{folder}/shop.db", "select * from recs") == recs
    last = report_of(folder)[-1]
    assert last["reasons"] == [f"rolled back to {earlier.name}"]
    same = ("users", "items", "pairs", "metric", "value", "asked", "rows")
    assert [last[name] for name in same] == [first[name] for name in same]
    MRF(sparsity=0.2).fit(events()).save(folder / "without.mrf")
    with pytest.raises(
        DataError, match=r"publish\.recommendations needs the .* histories.*a file with histories"
    ):
        nightly.run(job, earlier=folder / "without.mrf")
    assert (folder / "shop.mrf").read_bytes() == before
    events().write_csv(folder / "events.csv")
    assert nightly.run(job)["status"] == "published"


def test_a_model_from_a_backup_is_kept_when_it_is_replaced_however_old_it_is(folder: Path) -> None:
    for _ in range(3):
        nightly.run(folder / "job.toml")
    backup = (folder / "shop.mrf").read_bytes()
    os.utime(folder / "shop.mrf", (1e9, 1e9))  # older than all that are kept
    nightly.run(folder / "job.toml")
    kept = sorted(folder.glob("shop.2*.mrf"))
    assert len(kept) == 2
    assert kept[0].name.startswith("shop.20010909T")
    assert kept[0].read_bytes() == backup


def test_people_are_not_for_everybody_unless_asked_for(folder: Path) -> None:
    names = ("shop.mrf", "shop.report.json", "shop.report.html")
    old = os.umask(0o022)  # of cron
    try:
        for more, wanted in (
            ("", 0o644),
            ("histories = true\n", 0o600),
            ('mode = "0640"\n', 0o640),
            ("", 0o644),
        ):
            write_job(folder, more=more)
            nightly.run(folder / "job.toml")
            modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in names]
            report = 0o640 if "mode" in more else 0o600
            assert modes == [wanted, report, report]
    finally:
        os.umask(old)


def test_update_adds_each_batch_once(folder: Path) -> None:
    days = {"2026-11-14": events(200, seed=1), "2026-11-15": events(210, seed=2)}
    for day, table in days.items():
        table.write_csv(folder / f"{day}.csv")
    with pytest.raises(ParameterError, match=r"publish\.histories must be true"):
        nightly.run(write_job(folder, UPDATE, ("keep = 2", "histories = false")), day="2026-11-14")
    job = write_job(folder, UPDATE, ("keep = 2", "keep = 0"))
    for day in ("2026-11-14", "2026-11-14", "2026-11-15", "2026-11-15"):
        nightly.run(job, day=day)
    truth = MRF(sparsity=0.2).fit(read_interactions([folder / f"{day}.csv" for day in days]))
    model = mrfrec.load(folder / "shop.mrf")
    assert isinstance(model, MRF)
    assert (model.weights_ != truth.weights_).nnz == 0
    assert model.batches_ == tuple(days)
    pairs = [run["pairs"] for run in report_of(folder)]
    assert pairs[0] == pairs[1] < pairs[2] == pairs[3]


def test_night_that_cannot_be_measured_is_refused_unless_accepted(folder: Path) -> None:
    nightly.run(folder / "job.toml")
    events().group_by("user").head(2).write_csv(folder / "events.csv")  # five items are enough to measure
    job = write_job(folder, ("heldout", "max_shrink = 1\nmax_growth = inf\nmin_again = 0\nheldout"))
    with pytest.raises(RefusedError, match="nothing can be measured"):
        nightly.run(job)
    assert "value" not in nightly.run(job, accept=True)
    events().write_csv(folder / "events.csv")
    assert nightly.run(job)["value"] > 0.1


# ── the guard ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_to_publish_is_refused(folder: Path) -> None:
    """Make events where all users have all items, so that nothing is left to recommend."""
    everything = [(user, item) for user in range(40) for item in range(6)]
    pl.DataFrame(everything, schema=["user", "item"], orient="row").write_csv(folder / "events.csv")
    job = write_job(folder, ('metric = "ndcg@5"\n', ""), more=TABLES.replace("similar.parquet", "s.csv"))
    with (
        pytest.warns(MrfrecWarning),
        pytest.raises(RefusedError, match=r"no (recommendations|similar items) to publish"),
    ):
        nightly.run(job)
    assert not (folder / "shop.mrf").exists()


@pytest.fixture
def published(folder: Path) -> Iterator[Path]:
    """A folder with a published version. Tests must not change it."""
    write_job(folder, more=TABLES)
    nightly.run(folder / "job.toml")
    names = ("shop.mrf", "shop.db", "similar.parquet")
    before = {name: (folder / name).read_bytes() for name in names}
    yield folder
    assert {name: (folder / name).read_bytes() for name in names} == before
    assert report_of(folder)[-1]["status"] == "refused"
    assert not list(folder.glob(".*.nightly"))


def with_robot(items: int) -> pl.DataFrame:
    """The events of `events`, and one user who has used many items that nobody else knows."""
    robot = [("robot", f"trap{item}", 1) for item in range(items)]
    return pl.concat([events(), pl.DataFrame(robot, schema=["user", "item", "time"], orient="row")])


def test_bad_days_are_refused_and_leave_what_was_published(published: Path) -> None:
    table = events()
    job = write_job(published, ("heldout", "min_again = 0\nheldout"), more=TABLES)
    for bad, message in (
        (table.filter(pl.col("user").str.slice(1).cast(int) < 200),
         r"200 users are 50\.0% fewer than 400 \(max_shrink = 0\.2\); 1,600 pairs"),
        (table.with_columns(item=table["item"].shuffle(seed=1)),
         r"ndcg@5 0\.\d+ ± 0\.\d+ is \d+\.\d% below 0\.\d+ \(max_drop = 0\.05\)"),
        # With other ids the metric is the same: only a comparison of the items tells.
        (table.with_columns(item="new" + pl.col("item")), r"100\.0% of the interactions have moved to other"),
        (with_robot(15), r"55 items are 37\.5% more than 40 \(max_growth = 0\.25\)"),
    ):  # fmt: skip
        bad.write_csv(published / "events.csv")
        with pytest.raises(RefusedError, match=message):
            nightly.run(job)
    runs = report_of(published)
    assert "value" not in runs[1]  # it was not fitted
    text = (published / "shop.report.html").read_text()  # which has the reasons before the numbers
    row = text[text.rindex("<tbody>") :]
    assert row.index("200 users are") < row.index(">1,600<")
    assert text.index("55 items are") < text.index("<table")


def test_guard_refuses_what_is_beyond_the_limits_of_the_page() -> None:
    guard = Guard(metric="ndcg@5", max_shrink=0.3, max_growth=0.1, max_drop=0.1, min_metric=0.2)
    recent = [{"users": 10, "items": 10, "pairs": 100}, {"users": 20, "items": 10, "pairs": 100}]
    bounds = bounds_of(guard, recent, {"metric": "ndcg@5", "value": 0.3})
    drawn = limits(bounds)
    assert drawn["users"] == pytest.approx([7, 22])
    assert drawn["value"] == [pytest.approx(0.27), None]
    assert drawn["drift"] == [None, guard.max_drift]
    assert limits(bounds_of(guard, [], {"metric": "recall@5", "value": 0.3}))["value"] == [0.2, None]
    allowed = {"users": 7, "items": 11, "pairs": 70, "value": 0.27, "drift": guard.max_drift}
    assert faults(bounds, allowed) == []
    for name, value, rule in (
        ("users", 6, "max_shrink"), ("users", 23, "max_growth"), ("value", 0.26, "max_drop"),
        ("value", 0.1, "min_metric"), ("drift", 0.6, "max_drift"),
    ):  # fmt: skip
        assert rule in faults(bounds, {**allowed, name: value})[-1]
    assert faults(bounds, {"drift": None}) == []


def test_refused_day_can_be_accepted_and_is_then_compared_with(folder: Path) -> None:
    nightly.run(folder / "job.toml")
    events(200).write_csv(folder / "events.csv")
    with pytest.raises(RefusedError):
        nightly.run(folder / "job.toml")
    record = nightly.run(folder / "job.toml", accept=True)
    assert record["status"] == "published"
    assert "fewer" in record["reasons"][0]
    assert nightly.run(folder / "job.toml")["status"] == "published"


def test_good_day_after_a_robot_was_published_is_not_refused(folder: Path) -> None:
    job = write_job(folder, ("heldout", "max_drop = 1\nmax_growth = inf\nheldout"))
    nightly.run(job)
    with_robot(30).write_csv(folder / "events.csv")
    for _ in range(2):
        assert nightly.run(job)["items"] == 70
    events().write_csv(folder / "events.csv")  # 43 % fewer items than the last time
    assert nightly.run(job)["status"] == "published"


def test_size_is_compared_with_seven_published_runs_and_no_more(folder: Path) -> None:
    job = write_job(folder, ("heldout", "max_drop = 1\nmin_again = 0\nheldout"))
    usual = nightly.run(job)
    small = {**usual, **dict.fromkeys(("users", "pairs"), 100)}
    path = folder / "shop.report.json"
    events(200).write_csv(folder / "events.csv")
    path.write_text(json.dumps({"runs": [small, *[usual] * 7]}))
    with pytest.raises(RefusedError, match="200 users are 50"):
        nightly.run(job)
    path.write_text(json.dumps({"runs": [small, *[usual] * 6]}))
    assert nightly.run(job)["status"] == "published"


def test_new_events_may_double_the_data_unless_growth_is_limited(folder: Path) -> None:
    changes = [UPDATE, ("heldout", "max_drop = 1\nheldout")]
    for day, first in (("2026-11-14", 0), ("2026-11-15", 1000), ("2026-11-16", 2000)):
        table = events(200).with_columns(user="u" + (pl.col("user").str.slice(1).cast(int) + first).cast(str))
        table.write_csv(folder / f"{day}.csv")
    nightly.run(write_job(folder, *changes), day="2026-11-14")
    nightly.run(folder / "job.toml", day="2026-11-15")
    limited = write_job(folder, *changes, ("heldout", "max_growth = 0.4\nheldout"))
    with pytest.raises(RefusedError, match=r"600 users are 50\.0% more than 400"):
        nightly.run(limited, day="2026-11-16")


def test_first_run_is_compared_with_the_floor_and_with_a_model_from_elsewhere(folder: Path) -> None:
    with pytest.raises(RefusedError, match=r"below min_metric = 0\.99"):
        nightly.run(write_job(folder, ("heldout", "min_metric = 0.99\nheldout")))
    assert not (folder / "shop.mrf").exists()
    (folder / "shop.report.json").unlink()
    MRF().fit(read_interactions(folder / "events.csv")).save(folder / "shop.mrf")
    events(100).write_csv(folder / "events.csv")
    with pytest.raises(RefusedError, match="100 users are 75"):
        nightly.run(write_job(folder))


def test_drift_is_half_the_sum_of_differences(folder: Path) -> None:
    nightly.run(folder / "job.toml")
    before = mrfrec.load(folder / "shop.mrf")
    other = read_interactions(events(seed=3).with_columns(item=pl.col("item").replace("i7", "x")))
    p = {item: count / 3200 for item, count in zip(before.items_, before.popularity_.tolist(), strict=True)}
    q = {item: count / len(other) for item, count in zip(other.items, other.popularity.tolist(), strict=True)}
    wanted = sum(abs(p.get(item, 0) - q.get(item, 0)) for item in {*p, *q}) / 2
    found = drift(before, other)
    assert found == {"drift": pytest.approx(wanted, abs=1e-6), "new_items": 1, "gone_items": 1}
    numbers = read_interactions(events().with_columns(item=pl.col("item").str.slice(1).cast(int)))
    texts = Popularity().fit(read_interactions(events().with_columns(item=pl.col("item").str.slice(1))))
    assert drift(texts, numbers)["drift"] == 0


URL = "postgresql://shop:hunter22@db/shop?password=hunter22"
SINK = f'[publish.similar]\nto = "{URL}"\ntable = "t"\n'


# ── the job ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('data = "events.csv"', "", r"job\.toml: source\.data must be given\.$"),
        ('data = "events.csv"', "data = 3", r"source\.data must be the name .*, or a list of these; got 3"),
        ('data = "events.csv"', 'data = [""]', r"source\.data\.0 must be the name of a file"),
        ('data = "events.csv"', 'data = "{tommorow}.csv"', r"source\.data\.0 must .*\. \{tommorow\} is none"),
        ("[guard]", "[gard]", r"gard must be one of the keys guard.*got 'gard'"),
        ("metric =", "metrik =", r"guard\.metrik must be one of the keys"),
        ("metric =", 'colour = 1\nmetrik =', r"guard\.colour and metrik must be one of the keys"),
        ("[publish]\nmodel", "metrik = 1\n[publish]\nmodle", r"guard\.metrik must .*publish\.modle must"),
        ('metric = "ndcg@5"', 'metric = "ndgc@5"', r"guard\.metric must be .*ndcg"),
        ("[guard]", '[machine]\nthreads = "x"\n[guard]', r"machine\.threads must be a whole number"),
        ('data = "events.csv"', 'data = "x.csv"\nmode = "update"\nmin_items = 2', "min_items, which"),
        ('data = "events.csv"', 'data = "x.csv"\nmode = "update"\nwindow = "2d"\nbinary = false', "latest"),
        ('data = "events.csv"', 'data = "events.csv"\nbatch = "x"', r"batch must be a name, with mode"),
        ('data = "events.csv"', 'data = "x.csv"\nvalue = "n"', r"source\.value must be left out without"),
        ('data = "events.csv"', 'data = "x.csv"\ntime = 3', r"source\.time must be the name of a column"),
        ("keep = 2", 'recommendations = {to = "x.pdf"}', r"\.recommendations\.to must .*x\.pdf'\.$"),
        ("keep = 2", 'recommendations = {to = "no/x.csv"}', r"recommendations\.to must be in a folder that"),
        ('model = "shop.mrf"', 'model = "no/x.mrf"', r"publish\.model must be in a folder that exists"),
        ("keep = 2", 'recommendations = {to = "x.csv", novelty = 7}', r"novelty must be .* 1; got 7"),
        ("keep = 2", 'recommendations = {to = "events.csv"}', r"a place of its own.*source\.data is there"),
        ("[model]", 'items = "events.csv"\n[publish.similar]\nto = "events.csv"\n[model]', r"source\.items"),
        ("keep = 2", 'recommendations = {to = "a.csv"}\nsimilar = {to = "a.csv"}', r"similar\.to must"),
        ("keep = 2", 'similar = {to = "sqlite:///shop.mrf", table = "t"}', r"its own.*publish\.model"),
        ("keep = 2", 'recommendations = {to = "sqlite:///x.db"}', r"table must be given with a database"),
        ("keep = 2", "mode = 0o640", r'publish\.mode must be a mode in quotes such as "0640", .* got 416'),
        ("keep = 2", 'mode = "440"', r"publish\.mode must be .* got '440'"),
        ('[source]\ndata = "events.csv"', "", r"job\.toml: source must be given\. Write it as \[source\]"),
        ('data = "events.csv"', "data = []", r"source\.data must be the name of a file .*; got 'a list'"),
        ("[guard]", "[guard]\nmax_drop = nan", r"guard\.max_drop: .* a finite number; got nan"),
        ("keep = 2", "samples = 21", r"publish\.samples: .* equal to 20; got 21"),
        ("heldout = 0.2", "max_growth = nan", r"guard\.max_growth: .* 0; got nan"),
        ("sparsity = 0.2", "sparsity = 2", r"model\.sparsity"),
        ("sparsity = 0.2", "measure_every = 0", "measure_every"),
        ("sparsity = 0.2", 'kind = "MFR"', r"model\.kind must be one of MRF, EASE"),
        ("[model]\nsparsity = 0.2", 'features = "x"\n[model]\nkind = "EASE"', r"source\.features .* EASE"),
        ('data = "events.csv"', 'data = "sqlite:///x.db"', r"source\.query must be given with a database"),
        ("[model]", 'items = "p.csv"\nitems_query = "select 1"\n[model]', r"items_query must be given"),
        ("[model]", f'features = "{URL}"\n[model]', r"source\.features_query must be given with a"),
        ("[model]", 'feature_columns = ["brand"]\n[model]', r"source\.feature_columns .* without features"),
        ("[guard]", f"x = {'[' * 100_000}{']' * 100_000}\n[guard]", "is not a TOML file"),
        ("sparsity = 0.2", f"l2.{'a.' * 2000}a = 1", "nested too deeply"),
        ("keep = 2", f"keep = {'9' * 5000}", r"job\.toml is not a TOML file: .* digits"),
        ('model = "shop.mrf"', 'model = "job.toml"', r"publish\.model must be .* its own.*the job is there"),
        ('[source]\ndata = "events.csv"', f'source = "{URL}"', r"a table; got 'postgresql://db/shop'\."),
        ("[source]\ndata", f'[[source]]\nitems = "{URL}"\ndata', r"source: .* a table; got 'a list'\."),
        ('data = "events.csv"', f'data = {{url = "{URL}"}}', r"source\.data must be .*; got 'a table'\."),
        ('data = "events.csv"', f'data = [["{URL}"]]', r"source\.data\.0 must be .*; got 'a list'\."),
        ('data = "events.csv"', f'data = "x.csv"\nwindow = "{URL}"', r"source\.window must be"),
        ("keep = 2", f'recommendations = "{URL}"', r"a table; got 'postgresql://db/shop'\."),
        ("keep = 2", f'recommendations = {{to = ["{URL}"]}}', r"recommendations\.to must .*; got 'a list'"),
        ('"shop.mrf"\nkeep = 2', f'"a\\u0000b"\n{SINK}', r"publish\.model must be the name of a file"),
        ('metric = "ndcg@5"', f'metric = "{URL}"', r"guard\.metric must be"),
    ],
)  # fmt: skip
def test_bad_job_is_refused_before_anything_is_done(folder: Path, old: str, new: str, message: str) -> None:
    job = write_job(folder, (old, new))
    before = sorted(folder.iterdir())
    with pytest.raises((ParameterError, DataError), match=message) as caught:
        nightly.run(job)
    assert "hunter22" not in str(caught.value)
    assert sorted(folder.iterdir()) == before


def test_report_that_is_damaged_stops_the_job(folder: Path) -> None:
    record = nightly.run(folder / "job.toml")
    before = (folder / "shop.mrf").read_bytes()
    wrong: list[dict[str, Any]] = [
        {"error": "x"}, {"seconds": {"total": "x"}}, {"users": 0}, {"value": None}, {"reasons": [3]},
        {"started": "today"}, {"limits": {"users": 3}}, {"metric": "luck"}, {"coverage": "x"},
        {"samples": [{"history": 3}]}, {"ids": 3}, {"missed": 3}, {"notes": [3]}, {"again": "x"},
    ]  # fmt: skip
    texts = [json.dumps({"runs": [record | each]}) for each in wrong]
    for text in (*texts, '{"runs": {}}', "[" * 100_000, ""):
        (folder / "shop.report.json").write_text(text)
        with pytest.raises(DataError, match="not the report of a nightly job"):
            nightly.run(folder / "job.toml")
    assert (folder / "shop.mrf").read_bytes() == before


def test_link_and_its_file_have_one_lock(folder: Path) -> None:
    nightly.run(folder / "job.toml")
    (folder / "link.mrf").symlink_to("shop.mrf")
    job = write_job(folder, ('model = "shop.mrf"', 'model = "link.mrf"'))
    with (folder / ".shop.mrf.nightly.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another run of this job is at work"):
            nightly.run(job)
    assert not (folder / "link.report.json").exists()
    with mrfrec.locked(folder / "shop.mrf"), pytest.raises(BusyError, match=r"is rewriting .*link\.mrf"):
        nightly.run(job, wait=0.1)
    (run,) = json.loads((folder / "link.report.json").read_text())["runs"]
    assert run["status"] == "failed"
    before = (folder / "shop.mrf").stat().st_ino
    nightly.run(job)
    assert (folder / "link.mrf").is_symlink()
    assert (folder / "shop.mrf").stat().st_ino != before


def test_model_that_another_process_replaces_during_a_run_is_not_overwritten(folder: Path) -> None:
    job = write_job(folder, more=TABLES)
    nightly.run(job)
    other = Popularity().fit(folder / "events.csv")
    before = fetch(f"sqlite:///{folder}/shop.db", "select score from recs")

    def replace(stage: str, done: float, total: float) -> None:
        if not stage.startswith("reading"):
            other.save(folder / "shop.mrf")

    with pytest.raises(mrfrec.ModelFileError, match=r"shop\.mrf was replaced, by another process or model"):
        nightly.run(job, progress=replace)
    assert mrfrec.load(folder / "shop.mrf").fitted_.file_hash == other.fitted_.file_hash
    assert fetch(f"sqlite:///{folder}/shop.db", "select score from recs") == before
    assert report_of(folder)[-1]["status"] == "failed"


def test_old_model_is_copied_where_it_cannot_be_linked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.run(folder / "job.toml")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    content = (folder / "shop.mrf").read_bytes()
    nightly.run(folder / "job.toml")
    (kept,) = folder.glob("shop.*.mrf")
    assert kept.read_bytes() == content


def test_night_whose_publishing_fails_leaves_the_earlier_models(folder: Path) -> None:
    job = write_job(folder, ("keep = 2", "keep = 1"), more=TABLES)
    nightly.run(job)
    nightly.run(job)
    with connect(f"sqlite:///{folder}/shop.db", write=True) as cursor:
        cursor.execute("create trigger t before insert on recs begin select raise(abort, 'full'); end")
    before = {path.name: path.read_bytes() for path in folder.glob("*.mrf")}
    assert len(before) == 2
    with pytest.raises(DataError, match="full"):
        nightly.run(job)
    assert {path.name: path.read_bytes() for path in folder.glob("*.mrf")} == before
    assert not list(folder.glob(".shop.mrf.*[!k]"))  # but locks


def test_run_killed_after_its_model_was_published_is_compared_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = folder / "shop.report.json"
    with monkeypatch.context() as patch:
        patch.setattr(
            "mrfrec.nightly.publishing._remove_old", lambda *_: shutil.copy(report, folder / "then")
        )
        nightly.run(folder / "job.toml")
    (folder / "then").replace(report)  # as if the process had ended there
    assert report_of(folder)[0]["status"] == "started"
    events(200).write_csv(folder / "events.csv")
    with pytest.raises(RefusedError, match=r"200 users are 50\.0% fewer"):
        nightly.run(folder / "job.toml")
    first, second = report_of(folder)
    assert (first["status"], first["users"]) == ("published", 400)
    assert second["limits"]["value"][0] == pytest.approx(0.95 * first["value"])


def test_failed_runs_are_in_the_report_beside_the_last_published_one_and_leave_its_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.nightly.report._KEPT", 3)
    job = folder / "job.toml"
    first = nightly.run(job)
    before = (folder / "shop.mrf").read_bytes()
    (folder / "events.csv").write_text("user,item\n1,\n")
    for _ in range(5):
        with pytest.raises(DataError, match=r"no item id.*on_bad="):
            nightly.run(job)
    runs = report_of(folder)
    assert [run["status"] for run in runs] == ["published", "failed", "failed", "failed"]
    assert runs[0] == first
    assert "no item id" in runs[-1]["reasons"][0]
    assert (folder / "shop.mrf").read_bytes() == before


def test_dry_run_says_what_would_be_done_and_writes_nothing(folder: Path) -> None:
    source = 'data = "events.csv"\nitems = "sqlite:///p.db"\nitems_query = "select sku from p"'
    rules = TABLES.replace("k = 5", "k = 5\nat_most = {brand = 2}")
    job = write_job(folder, ('data = "events.csv"', source), more=rules)
    before = sorted(folder.iterdir())
    text = "\n".join(steps(nightly.read_job(job)))
    wanted = ("events.csv", "20% of the users", "MRF(sparsity=0.2)", "ndcg@5", "recs in sqlite", ".html",
              "p.db by items_query: select sku from p", "at_most = {'brand': 2}")  # fmt: skip
    assert all(words in text for words in wanted)
    assert sorted(folder.iterdir()) == before
    for day in ("today", "0001-01-01"):  # which no day comes before
        with pytest.raises(ParameterError, match="date must be a date such as"):
            nightly.read_job(job, day)


def test_page_shows_the_runs_and_escapes_what_it_is_told(folder: Path) -> None:
    job = folder / "<b>&.toml"
    job.write_text(JOB)
    nightly.run(job)
    assert "<figure" not in (folder / "shop.report.html").read_text()  # a chart takes two runs
    (folder / "events.csv").write_text("<script>,x\n")
    with pytest.raises(DataError):
        nightly.run(job)
    text = (folder / "shop.report.html").read_text()
    assert not re.search("<(b|script)[ >]", text)
    assert text[text.rindex("<table>") :].count("<tr>") == 3
    assert "&lt;b&gt;&amp;" in text
    assert "http" not in text  # nothing is loaded from elsewhere


def test_page_has_dates_limits_changes_and_the_meaning_of_the_metric(folder: Path) -> None:
    job = write_job(folder, ("heldout", "max_drop = 0.5\nheldout"))
    first = nightly.run(job)
    path = folder / "shop.report.json"
    path.write_text(path.read_text().replace(first["started"], "2026-11-14T03:00:00+00:00"))
    kept = events().with_columns(item=pl.col("item").replace("i7", "i8")).unique(maintain_order=True)
    pl.concat([kept, with_robot(4).tail(4)]).write_csv(folder / "events.csv")
    record = nightly.run(job)
    assert record["limits"]["users"] == [320, 500]
    assert record["limits"]["value"] == [first["value"] / 2, None]
    assert 0.5 < record["coverage"] <= 1
    text = (folder / "shop.report.html").read_text()
    assert f"(2026-11-14 to {record['started'][:10]}, between" in text
    assert text.count("<figure>") == 6
    assert text.count("<polyline class='limit'") == 7  # two of users, items and pairs, one of the metric
    assert "A hit of rank p counts 1/log₂(p + 1)" in text
    assert "4 items are new, 1 are gone" in text
    assert f"{record['unchanged']:.1%} of the first 10 recommendations" in text
    cells = re.findall("<td[^>]*>([^<]*)</td>", text)
    assert cells[(at := cells.index("items")) : at + 4] == ["items", "40", "43", "+7.5%"]


def test_model_like_the_last_recommends_the_same(folder: Path) -> None:
    assert nightly.run(folder / "job.toml")["unchanged"] is None  # there was none before
    assert nightly.run(folder / "job.toml")["unchanged"] == 1
    fewer = events().filter((pl.col("item") != "i3") | (pl.col("time") > 1))  # from some users
    fewer.write_csv(folder / "events.csv")
    assert 0.5 < nightly.run(folder / "job.toml", accept=True)["unchanged"] < 1
    events().with_columns(item=pl.col("item").str.slice(1).cast(int)).write_csv(folder / "events.csv")
    assert nightly.run(folder / "job.toml", accept=True)["unchanged"] is None  # other ids


def test_samples_have_titles_and_no_ids_of_users(folder: Path) -> None:
    long = "Title & <i>all</i> of " + "very " * 20 + "long "
    events().with_columns(title=long + pl.col("item"), user="person-" + pl.col("user")).write_csv(
        folder / "events.csv"
    )
    titled = ('data = "events.csv"', 'data = "events.csv"\ntitle = "title"')
    record = nightly.run(write_job(folder, titled, more=TABLES))
    assert len(record["samples"]) == 3
    model = MRF(sparsity=0.2).fit(read_interactions(folder / "events.csv", title="title"))
    lists = model.recommend(k=5).group_by("user", maintain_order=True).agg("item")["item"].to_list()
    for sample in record["samples"]:
        assert [name.rpartition("[")[2].rstrip("]") for name in sample["recommended"]] in lists
        assert {len(name.rpartition(" [")[0]) for name in sample["recommended"]} == {80}
        assert (sample["items"], len(sample["history"])) == (8, 5)
    page = (folder / "shop.report.html").read_text()
    assert "1. Title &amp; &lt;i&gt;all&lt;/i&gt; of very" in page
    assert "person-" not in (folder / "shop.report.json").read_text() + page
    nightly.run(folder / "job.toml")
    assert ["samples" in run for run in report_of(folder)] == [False, True]
    (folder / "events.csv").unlink()
    with pytest.raises(DataError):  # whatever becomes of the run
        nightly.run(write_job(folder, titled, ("keep = 2", "samples = 0"), more=TABLES))
    assert "Title" not in (folder / "shop.report.json").read_text()


def test_password_is_nowhere(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are neither in the plan nor in the error, the log, the report or its page."""
    url = "postgresql://shop:hunter22@127.0.0.1:1/shop?connect_timeout=2"
    tables = TABLES.replace("sqlite:///shop.db", url)
    for changes, more in (
        ([('data = "events.csv"', f'data = "{url}"\nquery = "select 1"')], ""),
        ([], tables),
    ):
        job = write_job(folder, *changes, more=more)
        text = repr(nightly.read_job(job)) + "\n".join(steps(nightly.read_job(job)))
        with pytest.raises(DataError) as caught:
            nightly.run(job)
        for file in ("shop.report.json", "shop.report.html"):
            text += (folder / file).read_text()
        assert "127.0.0.1" in text
        assert "hunter22" not in text + str(caught.value) + caplog.text


# ── tables of databases ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shop(folder: Path, postgres: str) -> str:
    """The URL of a PostgreSQL with events, and a job that reads and publishes there."""
    with connect(postgres, write=True) as cursor:
        cursor.execute("create table events (user_id text, sku text)")
        rows = ", ".join(f"('{user}', '{item}')" for user, item, _ in events(60).rows())
        cursor.execute(f"insert into events values {rows}")
    write_shop(folder, postgres)
    return postgres


def write_shop(folder: Path, url: str, recs: str = "recs") -> Path:
    tables = f"""
recommendations = {{ to = "{url}", table = "{recs}", k = 5 }}
similar = {{ to = "{url}", table = "near", k = 3 }}
"""
    source = f'data = "{url}"\nquery = "select user_id, sku from events"'
    changes = [('data = "events.csv"', source), ("heldout", "max_drop = 1\nheldout")]
    return write_job(folder, *changes, more=tables)


def never_read(*_: object, **__: object) -> None:
    pytest.fail("read the source")


def check_refused(job: Path, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a job is refused, also with --dry-run, before anything is read."""
    monkeypatch.setattr("mrfrec.nightly.reading.read_events", never_read)
    for attempt in (
        lambda: run_command(["nightly", str(job), "--dry-run"], Event()),
        lambda: nightly.run(job),
    ):
        with pytest.raises((DataError, ParameterError, PermissionError), match=message):
            attempt()


def of_guest(url: str) -> str:
    return url.replace("//postgres:@", "//guest:se%2Fcr%40t%25@")


def test_table_that_cannot_be_replaced_is_found_before_anything_is_read(
    folder: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = "grant select on events to guest; grant create on schema public to guest"
    for statements, table, message in (
        (f"{grants}; create schema shut", "shut.recs",
         r"table shut\.recs cannot be created: permission denied for schema shut; .*grant create"),
        ("create table recs (id integer, note text)", "recs", r"recs has the columns id, note"),
        (f"drop table recs; create table recs ({COLUMNS}); grant insert on recs to guest", "recs",
         "needs the grant delete"),
    ):  # fmt: skip
        with connect(shop, write=True) as cursor:
            for statement in statements.split("; "):
                cursor.execute(statement)
        check_refused(write_shop(folder, of_guest(shop), recs=table), message, monkeypatch)


def test_folder_of_a_sqlite_output_that_cannot_be_written_is_found_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as place:  # which others than root can reach
        folder, shut = Path(place), Path(place, "shut")
        shut.mkdir()
        with connect(f"sqlite:///{shut}/shop.db", write=True) as cursor:
            cursor.execute(f"create table recs ({COLUMNS})")
        job = write_job(folder, more=TABLES.replace("shop.db", "shut/shop.db"))
        for path, mode in ((shut / "shop.db", 0o666), (shut, 0o555), (folder, 0o777)):
            path.chmod(mode)
        try:
            os.seteuid(os.getuid() or 65534)  # root may write anywhere
            check_refused(job, "Permission denied: .*shop.db", monkeypatch)
        finally:
            os.seteuid(os.getuid())


@pytest.mark.parametrize("sink", ['{to = "near.csv"}', '{to = "sqlite:///new.db", table = "near"}'])
def test_query_that_fails_is_found_before_anything_is_read(
    folder: Path, database: str, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sqlite = database.startswith("sqlite")
    with connect(database, write=True) as cursor:
        cursor.execute(f"create table {'others' if is_sqlite else 'orders'} (user_id text, sku text)")
    source = f'data = "{of_guest(database)}"\nquery = "select * from orders"'
    job = write_job(folder, ('data = "events.csv"', source), ("keep = 2", f"similar = {sink}"))
    check_refused(job, "no such table" if is_sqlite else "permission denied", monkeypatch)


@pytest.mark.parametrize(
    ("query", "items_query", "rules", "message"),
    [
        ("select 1 as buyer, 2 as thing", "", "", "which column holds the items"),
        ("select 1 as a, 2 as b", "", "", "which column holds the users"),
        ("", "select * from nowhere", "", "nowhere"),
        ("", "select price from p", "", "which column holds the items"),
        ("", "select * from p;", "at_most = {brnad = 4}", r"at_most must be about columns of items_q"),
        ("", "select * from p", "where = {brnad = 4}", r"s\.where must be .* got 'brnad'"),
        ("", "select * from p", 'where = "brnad = 4 OR price < 3"', r"s\.where must be .*'brnad'"),
        ("", "select * from p", 'boost = {add = "brnad"}', r's\.boost\["add"\] must be .*brnad'),
    ],
)  # fmt: skip
def test_queries_and_rules_that_do_not_fit_are_found_before_anything_is_read(
    folder: Path, database: str, query: str, items_query: str, rules: str, message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with connect(database, write=True) as cursor:
        cursor.execute("create table p (sku text, price integer)")
    source = f'data = "{database}"\nquery = "{query}"' if query else 'data = "events.csv"'
    source += f'\nitems = "{database}"\nitems_query = "{items_query}"' if items_query else ""
    sink = f'\n[publish.recommendations]\nto = "recs.csv"\n{rules}\n'
    check_refused(write_job(folder, ('data = "events.csv"', source), more=sink), message, monkeypatch)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("at_most = {brnad = 4}", r"job\.toml: publish\.recommendations\.at_most must be .*brnad"),
        ("where = {brand = {most = 5}}", r"recommendations\.where\.brand must be .* the column is a text"),
        ('where = "brand < 5"', r"recommendations\.where must be an expression"),
        ('boost = {add = "brand"}', r'recommendations\.boost\["add"\] must be a column of numbers'),
    ],
)
def test_rules_that_do_not_fit_the_table_of_items_are_found_before_the_fit(
    folder: Path, rules: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUN, "fit_and_evaluate", never_read)
    brands = [f"brand {i % 3}" for i in range(40)]
    pl.DataFrame({"item": [f"i{i}" for i in range(40)], "brand": brands}).write_csv(folder / "p.csv")
    sink = f'\n[publish.recommendations]\nto = "recs.csv"\n{rules}\n'
    with pytest.raises(ParameterError, match=r"source\.items must be a table of items"):
        nightly.run(write_job(folder, more=sink))
    source = 'data = "events.csv"\nitems = "p.csv"'
    with pytest.raises(ParameterError, match=message):
        nightly.run(write_job(folder, ('data = "events.csv"', source), more=sink))


def test_table_that_the_query_reads_is_not_published_to(
    folder: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database, write=True) as cursor:
        cursor.execute(f"create table recs ({COLUMNS})")
        cursor.execute('create view seen as select "user", item from recs')
    tables = f'\n[publish.recommendations]\nto = "{database}"\ntable = "recs"\n'
    for query in ("select * from recs", "select * from seen"):
        source = f'data = "{database}"\nquery = "{query}"'
        job = write_job(folder, ('data = "events.csv"', source), more=tables)
        check_refused(job, r"recommendations\.table must be a table of its own.*query reads", monkeypatch)


def test_ids_that_do_not_fit_a_table_are_found_before_the_fit(
    folder: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(shop, write=True) as cursor:
        cursor.execute(f"create table recs ({COLUMNS.replace('text', 'bigint', 1)})")
    monkeypatch.setattr(RUN, "fit_and_evaluate", never_read)
    with pytest.raises(DataError, match='column "user" is of type bigint, but would get text'):
        nightly.run(folder / "job.toml")


def test_tables_of_one_database_are_replaced_in_one_transaction(folder: Path, shop: str) -> None:
    nightly.run(folder / "job.toml")
    with connect(shop, write=True) as cursor:
        for table in ("recs", "near"):
            cursor.execute(f"create table {table}_writers (written xid8)")
            cursor.execute(
                f"create function note_{table}() returns trigger language plpgsql as "
                f"'begin insert into {table}_writers values (pg_current_xact_id()); return null; end'"
            )
            cursor.execute(
                f"create trigger t after insert on {table} for each statement execute function note_{table}()"
            )
    nightly.run(folder / "job.toml")
    query = "select written::text from {}_writers order by written desc limit 1"
    assert fetch(shop, query.format("recs")) == fetch(shop, query.format("near"))


def test_night_without_events_is_a_success_that_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mrfrec")
    job = write_job(folder, UPDATE)
    (folder / "2026-11-14.csv").write_text("user,item\n")
    with pytest.raises(DataError, match="no interactions"):  # there is no model to add nothing to
        nightly.run(job, day="2026-11-14")
    events().write_csv(folder / "2026-11-14.csv")
    nightly.run(job, day="2026-11-14")
    (folder / "2026-11-15.csv").write_text("user,item\n")
    record = nightly.run(job, day="2026-11-15")
    assert (record["status"], record["pairs"]) == ("published", 3200)
    assert "no new events" in " ".join([*record["reasons"], caplog.text])
    assert mrfrec.load(folder / "shop.mrf").batches_ == ("2026-11-14",)  # they may still come
    events(410, seed=2).write_csv(folder / "2026-11-15.csv")
    assert nightly.run(job, day="2026-11-15")["pairs"] > 3200


# ── in the shell ──────────────────────────────────────────────────────────────────────────────────


def shell(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mrfrec", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.slow
def test_exit_codes_tell_published_refused_failed_and_busy(folder: Path) -> None:
    job = folder / "job.toml"
    done = shell("nightly", job, "--log", "json", cwd="/")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert any("ndcg@5" in line["message"] for line in lines)
    with (folder / ".shop.mrf.nightly.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = shell("nightly", job)
    assert busy.returncode == 4
    assert "another run of this job is at work" in busy.stderr
    events(100).write_csv(folder / "events.csv")
    refused = shell("nightly", job, "--log", "json")
    assert refused.returncode == 3
    last = json.loads(refused.stderr.splitlines()[-1])
    assert last["level"] == "error"
    assert "100 users are 75.0% fewer than 400" in last["message"]
    (folder / "events.csv").unlink()
    failed = shell("nightly", job)
    assert failed.returncode == 2
    assert "there is no file" in failed.stderr
    assert shell("nightly", job, "--dry-run").returncode == 2
    events().write_csv(folder / "events.csv")
    dry = shell("nightly", job, "--dry-run")
    assert dry.returncode == 0
    assert "write" in dry.stdout


@contextmanager
def started(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start a run that waits for its data; it has written that it started."""
    job = write_job(folder, ('data = "events.csv"', 'data = "-"\ninput_format = "csv"'))
    command = [sys.executable, "-m", "mrfrec", "nightly", str(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 60
            while not (folder / "shop.report.html").exists():
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_run_stopped_by_sigterm_is_in_the_report_and_lets_the_next_one_begin(folder: Path) -> None:
    with started(folder) as process:
        process.terminate()
        assert process.wait(60) == 143
        assert process.stderr is not None
        assert "interrupted" in process.stderr.read()
    (last,) = report_of(folder)
    assert last["status"] == "failed"
    assert "SIGTERM" in last["reasons"][0]
    assert "total" in last["seconds"]
    assert not list(folder.glob(".*.nightly")) + list(folder.glob("*.unfinished"))
    write_job(folder)
    assert nightly.run(folder / "job.toml")["status"] == "published"


@pytest.mark.slow
def test_signal_that_comes_when_all_is_done_changes_no_exit_code(folder: Path) -> None:
    code = """
import os, signal, sys
from mrfrec.cli import main
class End:
    def __del__(self, kill=os.kill, pid=os.getpid()):  # when Python takes its modules apart
        kill(pid, 15)
end = End()
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "nightly", str(folder / "job.toml")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("published in")) == (0, 1)


@pytest.mark.slow
def test_killed_run_is_known_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with started(folder) as process:
        assert "has not ended" in (folder / "shop.report.html").read_text()
        process.send_signal(signal.SIGKILL)
    assert report_of(folder)[-1]["status"] == "started"
    write_job(folder)
    nightly.run(folder / "job.toml")
    assert [run["status"] for run in report_of(folder)] == ["killed", "published"]
    assert "did not end" in report_of(folder)[0]["reasons"][0]
    assert "did not end" in caplog.text
    text = (folder / "shop.report.html").read_text()
    assert "killed</td>" in text
    assert "has not ended" not in text


@pytest.mark.slow
def test_killed_runs_leave_a_whole_version_and_the_next_one_succeeds(folder: Path) -> None:
    """`python -m benchmarks.living kills` does this a hundred times, with PostgreSQL."""
    job = write_job(folder, more=TABLES)
    nightly.run(job)
    rng = np.random.default_rng(0)
    for attempt in range(4):
        events(seed=attempt).write_csv(folder / "events.csv")
        with subprocess.Popen([sys.executable, "-m", "mrfrec", "nightly", str(job)]) as process:
            time.sleep(rng.uniform(0.3, 3.0))
            process.send_signal(signal.SIGKILL)
        mrfrec.load(folder / "shop.mrf").recommend(history=["i1"])
        counts = "select count(*), count(distinct user) from recs"
        assert fetch(f"sqlite:///{folder}/shop.db", counts) == [(2000, 400)]
    nightly.run(job, accept=True)
    assert not list(folder.glob(".*.nightly"))
