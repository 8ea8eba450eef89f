"""The guard knows the users, items, columns and tables of the night before."""

from pathlib import Path

import polars as pl
import pytest

from jobs import events, report_of, write_job
from mrfrec import MrfrecWarning, RefusedError, nightly, read_interactions
from mrfrec.nightly.continuity import sample_of, share_again

LOOSE = ("heldout", "max_drop = 1\nheldout")
SHELF = """
[publish.recommendations]
to = "recs.csv"
k = 5
where = "in_stock"
"""


def test_share_of_pairs_that_are_there_again() -> None:
    data, number = events(3000), pl.col("user").str.slice(1).cast(int)
    sample = sample_of(read_interactions(data))
    assert share_again(sample, read_interactions(data)) == 1
    more = data.with_columns(user="new" + pl.col("user"))
    assert share_again(sample, read_interactions(pl.concat([data, more]))) == 1
    third = data.sample(fraction=2 / 3, seed=1)
    assert share_again(sample, read_interactions(third)) == pytest.approx(2 / 3, abs=0.05)
    for other in (number + 3000, (number + 1) % 3000):
        renumbered = read_interactions(data.with_columns(user=other))
        assert share_again(sample, renumbered) < 0.3


def test_renumbered_users_are_refused_and_the_last_published_run_has_the_sample(tmp_path: Path) -> None:
    table = events()
    table.write_csv(tmp_path / "events.csv")
    job = write_job(tmp_path, LOOSE)
    first = nightly.run(job)
    assert (first["same_pairs"], first["reasons"]) == (None, [])
    again = nightly.run(job)
    assert again["same_pairs"] == 1
    assert again["reasons"] == [
        "the events are those of the last published run: does the source still get new ones?"
    ]
    assert ["sample" in run for run in report_of(tmp_path)] == [False, True]
    user = "u" + ((pl.col("user").str.slice(1).cast(int) + 1) % 400).cast(str)
    table.with_columns(user=user).write_csv(tmp_path / "events.csv")
    with pytest.raises(RefusedError, match=r"only \d.*% of a sample of the published .*min_again"):
        nightly.run(job)
    assert nightly.run(job, accept=True)["same_pairs"] < 0.5
    assert nightly.run(job)["same_pairs"] == 1


@pytest.mark.parametrize("mode", ["fit", "update"])
def test_lost_column_of_times_is_refused(tmp_path: Path, mode: str) -> None:
    more = "" if mode == "fit" else '\nmode = "update"\nbatch = "{date}"'
    job = write_job(tmp_path, LOOSE, ('data = "events.csv"', f'data = "events.csv"{more}'))
    table = events()
    table.write_csv(tmp_path / "events.csv")
    first = nightly.run(job, day="2026-11-14")
    assert first["columns"] == {"user": "user", "item": "item", "time": "time"}
    bad = [table.drop("time"), table.rename({"time": "zeit"})]
    bad += [table.with_columns(time=pl.lit(7))] if mode == "fit" else []
    for one in bad:
        one.write_csv(tmp_path / "events.csv")
        with pytest.raises(RefusedError, match=r"the events have no times any more.* the column 'time'"):
            nightly.run(job, day="2026-11-15")
    if mode == "fit":
        nightly.run(job, accept=True)
        assert nightly.run(job)["status"] == "published"


def test_lost_column_of_values_is_refused(tmp_path: Path) -> None:
    table = events().rename({"time": "qty"})
    table.write_csv(tmp_path / "events.csv")
    job = write_job(tmp_path, LOOSE, ('data = "events.csv"', 'data = "events.csv"\nbinary = false'))
    nightly.run(job)
    table.drop("qty").write_csv(tmp_path / "events.csv")
    with pytest.raises(RefusedError, match="the events have no values any more"):
        nightly.run(job)


def test_table_of_few_rows_is_refused(tmp_path: Path) -> None:
    events().write_csv(tmp_path / "events.csv")
    items = pl.DataFrame({"item": [f"i{i}" for i in range(40)], "in_stock": [True] * 40})
    items.write_csv(tmp_path / "items.csv")
    job = write_job(
        tmp_path, LOOSE, ('data = "events.csv"', 'data = "events.csv"\nitems = "items.csv"'), more=SHELF
    )
    nightly.run(job)
    published = (tmp_path / "recs.csv").read_bytes()
    items.with_columns(in_stock=pl.col("item") == "i3").write_csv(tmp_path / "items.csv")
    few = pytest.warns(MrfrecWarning, match="fewer than k=5")
    with few, pytest.raises(RefusedError, match=r"rows of recommendations are \d\d\.\d% fewer than 2,000"):
        nightly.run(job)
    assert (tmp_path / "recs.csv").read_bytes() == published
    with pytest.warns(MrfrecWarning, match="fewer than k=5"):
        assert nightly.run(job, accept=True)["rows"]["recommendations"] < 400
