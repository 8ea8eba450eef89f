"""Which events a night reads, and that no night and no warning about data is lost."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import polars as pl
import pytest

import mrfrec
from jobs import UPDATE, events, report_of, write_job
from mrfrec import MRF, DataError, ParameterError, RefusedError, nightly, read_interactions
from mrfrec.cli.app import run as run_command

from queries import execute

DAY = 86_400
START = int(datetime.now(UTC).timestamp()) // DAY * DAY - 10 * DAY
SINCE = ('data = "events.csv"', 'data = "events.parquet"\nmode = "update"\nsince = "{since}"')
LOOSE = ("heldout", "max_drop = 1\nheldout")


def on_day(day: int, seed: int | None = None, users: int = 200) -> pl.DataFrame:
    """The events of a day, all over its hours."""
    table = events(users, seed=day if seed is None else seed)
    hours = pl.int_range(pl.len()) * DAY // len(table)
    return table.with_columns(time=START + day * DAY + hours)


def write(folder: Path, *days: int) -> pl.DataFrame:
    table = pl.concat([on_day(day) for day in days])
    table.write_parquet(folder / "events.parquet")
    return table


def test_a_night_reads_what_lost_nights_did_not(tmp_path: Path) -> None:
    job = write_job(tmp_path, SINCE, LOOSE)
    write(tmp_path, 0, 1)
    first = nightly.run(job)
    assert "since" not in first
    write(tmp_path, 0, 1, 2)
    (tmp_path / "events.parquet").rename(tmp_path / "away")
    with pytest.raises(DataError, match="there is no file"):  # a night that fails, and others that do not run
        nightly.run(job)
    whole = write(tmp_path, 0, 1, 2, 3, 4)
    found = nightly.run(job)
    latest = datetime.fromtimestamp(max(on_day(1)["time"].to_list()) - DAY, UTC)
    assert found["since"] == f"{latest:%Y-%m-%d %H:%M:%SZ}"
    assert (found["missed"], found["reasons"]) == ([], [])
    last = whole.filter(pl.col("time") >= latest.timestamp()).group_by("user", "item").agg(pl.max("time"))
    assert found["again"] == (last["time"] <= latest.timestamp() + DAY).sum() > 500
    model, truth = mrfrec.load(tmp_path / "shop.mrf"), MRF(sparsity=0.2).fit(read_interactions(whole))
    assert isinstance(model, MRF)
    assert (model.weights_ != truth.weights_).nnz == 0
    old, new = (x.fitted_.data_for("a test") for x in (model, truth))
    assert old.times is not None
    assert (old.times == new.times).all()
    again = nightly.run(job)
    assert (again["reasons"], again["pairs"]) == (["no new events"], found["pairs"])
    assert mrfrec.load(tmp_path / "shop.mrf").batches_ == model.batches_


def test_events_that_the_source_has_no_longer_are_a_reason_until_that_is_accepted(tmp_path: Path) -> None:
    job = write_job(tmp_path, SINCE, LOOSE)
    write(tmp_path, 0)
    assert nightly.run(job)["reasons"] == []
    write(tmp_path, 3)
    (why,) = nightly.run(job)["reasons"]
    assert "no night has read the events of " in why
    gap = report_of(tmp_path)[-1]["missed"]
    write(tmp_path, 3, 4)
    last = nightly.run(job)
    assert (last["missed"], last["reasons"]) == (gap, [why])
    assert why in (tmp_path / "shop.report.html").read_text().replace("&#x27;", "'")
    assert nightly.run(job, accept=True)["missed"] == gap
    assert nightly.run(job, accept_missed=True)["reasons"] == ["no new events", why]
    assert nightly.run(job)["reasons"] == ["no new events"]


def test_a_day_that_was_not_read_is_a_reason_until_the_job_runs_for_it(tmp_path: Path) -> None:
    job = write_job(tmp_path, (UPDATE[0], 'data = "{yesterday}.csv"\nmode = "update"'), LOOSE)
    for day in range(5):
        on_day(day).write_csv(tmp_path / f"2026-11-1{day}.csv")
    assert nightly.run(job, day="2026-11-11")["missed"] == []
    late = nightly.run(job, day="2026-11-14")
    assert late["missed"] == ["2026-11-11", "2026-11-12"]
    assert "of 2026-11-11 and 2026-11-12: run the job for each of these days" in late["reasons"][0]
    assert nightly.run(job, day="2026-11-15")["missed"] == late["missed"]
    assert nightly.run(job, day="2026-11-12")["missed"] == ["2026-11-12"]
    accepted = nightly.run(job, day="2026-11-15", accept=True, accept_missed=True)
    assert (accepted["missed"], accepted["accepted"]) == ([], ["2026-11-12"])
    again = ["the batch 2026-11-14 is in the model already: its events are not added again"]
    assert nightly.run(job, day="2026-11-15")["reasons"] == again
    shutil.copy(tmp_path / "2026-11-14.csv", tmp_path / "2026-11-16.csv")
    assert nightly.run(job, day="2026-11-17")["missed"] == ["2026-11-15"]


def test_days_lost_before_a_roll_back_are_named_until_they_are_accepted_by_name(tmp_path: Path) -> None:
    job = write_job(
        tmp_path, (UPDATE[0], 'data = "{yesterday}.csv"\nmode = "update"'), LOOSE, ("keep = 2", "keep = 7")
    )
    for day in range(7):
        on_day(day).write_csv(tmp_path / f"2026-11-1{day}.csv")
    nightly.run(job, day="2026-11-11")
    nightly.run(job, day="2026-11-13", accept_missed=True)
    os.utime(tmp_path / "shop.mrf", (1e9, 1e9))
    assert nightly.run(job, day="2026-11-15")["missed"] == ["2026-11-13"]
    nightly.run(job, day="2026-11-16", accept=True)
    rolled = nightly.run(job, earlier=tmp_path / "shop.20010909T014640.000000Z.mrf")
    assert (rolled["missed"], rolled["accepted"]) == ([], ["2026-11-11"])
    late = nightly.run(job, day="2026-11-17")
    assert (late["missed"], late["accepted"]) == (["2026-11-13", "2026-11-14", "2026-11-15"], ["2026-11-11"])


def test_date_after_tomorrow_is_refused(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    nightly.read_job(job, str(tomorrow))
    with pytest.raises(ParameterError, match=r"date must be at most tomorrow \(UTC\)"):
        nightly.read_job(job, str(tomorrow + timedelta(days=1)))


def test_event_ahead_of_the_clock_hides_no_events_that_come_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(tmp_path, (SINCE[0], f'{SINCE[1]}\noverlap = "1h"'), LOOSE)
    now = int(datetime.now(UTC).timestamp())
    ahead = pl.DataFrame([("u1", "i39", now + 20 * 3600)], schema=on_day(0).schema, orient="row")
    first = pl.concat([on_day(0), ahead])
    first.write_parquet(tmp_path / "events.parquet")
    nightly.run(job)
    noted = datetime.fromisoformat(mrfrec.load(tmp_path / "shop.mrf").notes_["read_at"])
    came = pl.DataFrame([("u2", "i38", now + 3600)], schema=first.schema, orient="row")
    pl.concat([first, came]).write_parquet(tmp_path / "events.parquet")
    monkeypatch.setattr("mrfrec.nightly.job.time.time_ns", lambda: (now + DAY) * 10**9)
    record = nightly.run(job)
    assert record["since"] == f"{noted - timedelta(hours=1):%Y-%m-%d %H:%M:%S}Z"
    data = mrfrec.load(tmp_path / "shop.mrf").fitted_.data_for("a test")
    assert len(data) == len(read_interactions(pl.concat([first, came])))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('mode = "update"', r"source\.batch must be a name with \{date\} or .* in mode .* got None"),
        ('mode = "update"\nbatch = "x"', r"source\.batch must be a name with \{date\}"),
        ('since = "{since}"', r"source\.mode must be \"update\" where the source names \{since\}"),
        ('mode = "update"\nsince = "{since}"\nbatch = "{date}"', r"source\.batch must be left out where"),
        ('mode = "update"\nsince = "{since}"\nbinary = false', r"source must be without \{since\}.*days"),
        ('mode = "update"\nsince = "{since}"\nduplicates = "error"', r"source must be without \{since\}"),
        ('mode = "update"\nsince = "{since}"\noverlap = "a day"', r"source\.overlap must be a number and"),
        ('overlap = "1d"', r"source\.overlap must be left out where the source does not name \{since\}"),
        ('window = "9d"\nnow = "9999-01-01"', r"source\.now must be at most a day later than the clock"),
    ],
)  # fmt: skip
def test_range_that_would_lose_or_count_events_twice_is_refused(
    tmp_path: Path, source: str, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        nightly.read_job(write_job(tmp_path, (UPDATE[0], f'data = "events.csv"\n{source}')))


def test_values_that_would_count_twice_are_refused(tmp_path: Path) -> None:
    table = on_day(0)
    table.write_csv(tmp_path / "2026-11-14.csv")
    pl.concat([table.tail(7), on_day(1)]).write_csv(tmp_path / "2026-11-15.csv")
    for more, refused in (
        ("binary = false", True),
        ('binary = false\nduplicates = "max"', False),
        ("", False),
    ):
        for path in tmp_path.glob("shop.*"):
            path.unlink()
        job = write_job(tmp_path, (UPDATE[0], f"{UPDATE[1]}\n{more}"), LOOSE)
        assert nightly.run(job, day="2026-11-14")["reasons"] == []
        if refused:
            with pytest.raises(RefusedError, match=r"\d of .* are in the model already, with the same time"):
                nightly.run(job, day="2026-11-15")
        else:
            assert nightly.run(job, day="2026-11-15")["again"] > 0


@pytest.mark.parametrize("role", ["user", "item"])
@pytest.mark.parametrize("mode", ["fit", "update"])
def test_ids_of_another_kind_than_those_published_are_refused(tmp_path: Path, role: str, mode: str) -> None:
    number = pl.col("user", "item").str.slice(1).cast(pl.Int64)
    batch = "" if mode == "fit" else '\nmode = "update"\nbatch = "{date}"'
    job = write_job(tmp_path, (UPDATE[0], f'data = "events.parquet"{batch}'), LOOSE)
    numbered = events().with_columns(number)
    numbered.write_parquet(tmp_path / "events.parquet")
    assert nightly.run(job, day="2026-11-14")["ids"] == {"users": "integers", "items": "integers"}
    odd = {"user": "unknown", "item": "x7"}[role]
    other = numbered.with_columns(pl.col(role).cast(str))
    few = other.head(100).with_columns(pl.lit(odd).alias(role))  # fewer are bad rows
    other = pl.concat([other, few])
    other.write_parquet(tmp_path / "events.parquet")
    with pytest.raises(
        RefusedError, match=f"ids of {role}s are strings, such as '{odd}', and those published"
    ):
        nightly.run(job, day="2026-11-15")
    assert report_of(tmp_path)[-1]["status"] == "refused"
    if mode == "fit":
        assert nightly.run(job, accept=True)["ids"][f"{role}s"] == "strings"
        assert nightly.run(job)["status"] == "published"


def test_event_ahead_of_the_clock_is_a_bad_row_and_moves_no_window(tmp_path: Path) -> None:
    source = 'data = "events.parquet"\nwindow = "30d"'
    table = on_day(0)
    wrong = pl.concat([table, table.tail(1).with_columns(pl.col("time") + 60 * DAY)])
    wrong.write_parquet(tmp_path / "events.parquet")
    with pytest.raises(DataError, match=r"events\.parquet, row 1,601: time in the future"):
        nightly.run(write_job(tmp_path, (UPDATE[0], source)))
    job = write_job(tmp_path, (UPDATE[0], f'{source}\non_bad = "skip"'))
    record = nightly.run(job)
    assert record["pairs"] == len(table)
    assert record["bad"] == 1 / 1601
    ((note, count),) = ((note["what"], note["count"]) for note in record["notes"])
    assert (note, count) == ("rows ahead", 1)
    text = record["notes"][0]["text"]
    assert text in (tmp_path / "shop.report.html").read_text()
    table = pl.concat([table, table.head(20).with_columns(pl.lit(None, pl.Int64).alias("time"))])
    table.write_parquet(tmp_path / "events.parquet")
    with pytest.raises(RefusedError, match=r"1\.23% of the rows are bad .* \(max_bad = 0\.01\)"):
        nightly.run(job)
    assert report_of(tmp_path)[-1]["notes"][0]["count"] == 20


def test_killed_roll_back_is_settled_like_a_killed_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(tmp_path)
    events().write_csv(tmp_path / "events.csv")
    nightly.run(job)
    os.utime(tmp_path / "shop.mrf", (1e9, 1e9))
    events(410, seed=1).write_csv(tmp_path / "events.csv")
    nightly.run(job, accept=True)
    with monkeypatch.context() as patch:
        patch.setattr(
            "mrfrec.nightly.publishing._remove_old",
            lambda *_: shutil.copy(tmp_path / "shop.report.json", tmp_path / "then"),
        )
        nightly.run(job, earlier=tmp_path / "shop.20010909T014640.000000Z.mrf")
    (tmp_path / "then").replace(tmp_path / "shop.report.json")  # as if the process had ended there
    assert report_of(tmp_path)[-1]["status"] == "started"
    events().write_csv(tmp_path / "events.csv")
    last = nightly.run(job)
    assert [run["status"] for run in report_of(tmp_path)] == ["published"] * 4
    assert last["limits"]["value"][0] == pytest.approx(0.95 * report_of(tmp_path)[0]["value"])


def test_what_is_published_is_flushed_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(tmp_path)
    events().write_csv(tmp_path / "events.csv")
    nightly.run(job)
    os.utime(tmp_path / "shop.mrf", (1e9, 1e9))
    done: list[tuple[str, int]] = []
    flush, rename = os.fsync, Path.replace

    def noting_flush(file: int) -> None:
        flush(file)
        done.append(("flush", os.fstat(file).st_ino))

    def noting_rename(old: Path, new: Path) -> Path:
        done.append(("rename", old.stat().st_ino))
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", noting_flush)
    monkeypatch.setattr(Path, "replace", noting_rename)
    for earlier in (None, tmp_path / "shop.20010909T014640.000000Z.mrf"):
        done.clear()
        nightly.run(job, earlier=earlier)
        model, folder = ((path.stat().st_ino) for path in (tmp_path / "shop.mrf", tmp_path))
        place = done.index(("rename", model))
        assert ("flush", model) in done[:place]
        assert ("flush", folder) in done[place:]
        for what, file in done:  # whatever was renamed had been flushed
            assert what == "flush" or ("flush", file) in done


def test_dry_run_checks_columns_and_rules_and_says_what_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    execute(url, "create table p (sku text, price integer)", "insert into p values ('i1', 3)")
    pl.DataFrame({"item": ["i1", "i2"], "brand": ["a", "b"], "price": [1, 2]}).write_csv(tmp_path / "p.csv")
    sink = '\n[publish.recommendations]\nto = "recs.csv"\n'

    def rehearse(source: str, rules: str = "") -> str:
        job = write_job(tmp_path, (UPDATE[0], f'data = "events.csv"\n{source}'), more=f"{sink}{rules}\n")
        run_command(["nightly", str(job), "--dry-run"], Event())
        return capsys.readouterr().out

    with pytest.raises(DataError, match=r"job\.toml: source\.data: there is no file .*events\.csv"):
        rehearse("")
    dated = write_job(tmp_path, (UPDATE[0], 'data = "{yesterday}.csv"'))
    run_command(["nightly", str(dated), "--dry-run"], Event())
    assert "not checked: the columns of the events: there is no file" in capsys.readouterr().out
    events().write_csv(tmp_path / "events.csv")
    said = rehearse('items = "p.csv"', "where = \"brand = 'a' AND price < 3\"")
    assert "not checked: the rows of the events" in said
    assert "not checked: the columns" not in said
    query = f'items = "{url}"\nitems_query = "select * from p"'
    for source, rules, message in (
        ('user = "buyer"', "", "user must be a column of .*got 'buyer'"),
        ('items = "p.csv"', "where = {brnad = 'a'}", "where must be about columns of the table.*'brnad'"),
        ('items = "p.csv"', "where = {brand = {most = 3}}", "the column is a text"),
        ('items = "p.csv"', 'boost = {add = "brand"}', "must be a column of numbers"),
        (query, "where = \"price < 'x'\"", "recommendations.where must be an expression"),
        ("", "where = {brand = 'a'}", "source.items must be a table of items"),
    ):
        with pytest.raises(ParameterError, match=message):
            rehearse(source, rules)
    assert not list(tmp_path.glob("*.report.*"))
