"""Whoever was forgotten stays forgotten, by whatever way old rows, models and back-ups come in again."""

import json
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
import pytest

import mrfrec
from mrfrec import ModelFileError, MrfrecWarning, RefusedError, nightly, read_interactions
from mrfrec.cli.app import run as run_command
from mrfrec.data.erasures import Erasures
from mrfrec.models import Popularity
from mrfrec.models.recommender import Recommender
from mrfrec.service.served import ServedModels

TODAY = datetime.now(UTC).date()
JOB = """
[source]
data = "events.csv"
[model]
kind = "Popularity"
[guard]
metric = "hit@1"
max_shrink = 1
[publish]
model = "shop.mrf"
histories = true
"""


def events(*more: tuple[str, str, int], person: str = "cem", days_ago: int = 3) -> pl.DataFrame:
    """Six people, one of them with an item of their own; `more` has people, items and days from today."""
    goods = ["tea", "milk", "bread", "jam", "beer", "nuts"]
    rows = [(f"u{u}", goods[(u + i) % 6], -days_ago) for u in range(5) for i in range(5)]
    rows += [(person, "secret", -days_ago), (person, "tea", -days_ago), *more]
    return pl.DataFrame(rows, ["user", "item", "day"], orient="row").select(
        "user", "item", time=pl.lit(TODAY) + pl.duration(days=pl.col("day"))
    )


def nightly_from(folder: Path) -> None:
    nightly.run(folder / "job.toml", earlier=folder / "old.mrf")


def update_with_old_rows(folder: Path) -> None:
    events(("u1", "new", -1)).write_csv(folder / "more.csv")
    run_command(["update", str(folder / "shop.mrf"), str(folder / "more.csv")], Event())


def update_in_python(folder: Path) -> None:
    model = mrfrec.load(folder / "shop.mrf")
    model.update(read_interactions(events(("u1", "new", -1))))
    model.save(folder / "shop.mrf", include_histories=True)


def job_on_a_full_table(folder: Path) -> None:
    nightly.run(folder / "job.toml")


def fit_on_a_full_table(folder: Path) -> None:
    files = [str(folder / "events.csv"), "-o", str(folder / "shop.mrf")]
    run_command(["fit", *files, "--histories", "--model", "Popularity"], Event())


def restore_and_update(folder: Path) -> None:
    shutil.copy2(folder / "old.mrf", folder / "shop.mrf")
    pl.DataFrame({"user": ["u1"], "item": ["new"], "time": [TODAY]}).write_csv(folder / "more.csv")
    run_command(["update", str(folder / "shop.mrf"), str(folder / "more.csv")], Event())


def people(model: Recommender) -> list[object]:
    """The users of a model with histories."""
    assert model.users_ is not None
    return list(model.users_)


def restore_and_forget(folder: Path) -> None:
    shutil.copy2(folder / "old.mrf", folder / "shop.mrf")
    run_command(["forget", str(folder / "shop.mrf")], Event())


def restore_and_update_nightly(folder: Path) -> None:
    shutil.copy2(folder / "old.mrf", folder / "shop.mrf")
    pl.DataFrame({"user": ["u1"], "item": ["new"], "time": [TODAY]}).write_csv(folder / "events.csv")
    job = (
        (folder / "job.toml")
        .read_text()
        .replace('"events.csv"', '"events.csv"\nmode = "update"\nbatch = "{date}"')
    )
    (folder / "job.toml").write_text(job)
    nightly.run(folder / "job.toml", accept=True)


WAYS: list[Callable[[Path], None]] = [
    nightly_from, update_with_old_rows, update_in_python, job_on_a_full_table, fit_on_a_full_table,
    restore_and_update, restore_and_forget, restore_and_update_nightly,
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A shop that has forgotten somebody, who is in its table and in an older model."""
    events().write_csv(tmp_path / "events.csv")
    (tmp_path / "job.toml").write_text(JOB)
    nightly.run(tmp_path / "job.toml", accept=True)
    shutil.copy2(tmp_path / "shop.mrf", tmp_path / "old.mrf")
    (tmp_path / "erased.txt").write_text("cem\n")
    run_command(["forget", str(tmp_path / "shop.mrf"), "--users", str(tmp_path / "erased.txt")], Event())
    assert is_forgotten(tmp_path)
    return tmp_path


def is_forgotten(folder: Path) -> bool:
    model = mrfrec.load(folder / "shop.mrf")
    content = (folder / "shop.mrf").read_bytes()
    return "cem" not in list(model.users_ or []) and b"cem" not in content and b"secret" not in content


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.filterwarnings("ignore::mrfrec.MrfrecWarning")
def test_nobody_comes_back(way: Callable[[Path], None], folder: Path) -> None:
    way(folder)
    assert is_forgotten(folder)
    content = (folder / "shop.mrf.erased").read_text()
    assert json.loads(content) == mrfrec.load(folder / "shop.mrf").fitted_.erased.days
    assert "cem" not in content


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
@pytest.mark.filterwarnings("ignore::mrfrec.MrfrecWarning")
def test_the_model_alone_knows_who_was_forgotten(way: Callable[[Path], None], folder: Path) -> None:
    content = (folder / "shop.mrf.erased").read_bytes()
    (folder / "shop.mrf.erased").unlink()
    way(folder)
    assert is_forgotten(folder)
    assert (folder / "shop.mrf.erased").read_bytes() == content


def test_rows_that_are_left_out_are_counted(folder: Path) -> None:
    said = "2 rows are left out: of a forgotten person, up to the day of the erasure or without a time"
    job_on_a_full_table(folder)
    (run,) = json.loads((folder / "shop.report.json").read_text())["runs"][1:]
    assert [note["text"].rstrip(".") for note in run["notes"]] == [said]
    with pytest.warns(MrfrecWarning, match=said.replace("rows", "pairs")):
        mrfrec.load(folder / "old.mrf").forget(mrfrec.load(folder / "shop.mrf").fitted_.erasures)
    shutil.copy2(folder / "old.mrf", folder / "shop.mrf")
    with pytest.warns(MrfrecWarning, match=r"shop\.mrf does not know of 1 erasure in the file beside it"):
        model = mrfrec.load(folder / "shop.mrf")
    model.set_items(pl.DataFrame({"item": ["tea"], "price": [1]})).save(
        folder / "shop.mrf", include_histories=True
    )
    with pytest.warns(MrfrecWarning, match="does not know of 1 erasure"):  # no fit has left them out
        mrfrec.load(folder / "shop.mrf")


def test_a_model_without_histories_is_not_rolled_back_to_unless_accepted(folder: Path) -> None:
    Popularity().fit(events()).save(folder / "old.mrf")
    with pytest.raises(RefusedError, match=r"old\.mrf has no histories and was written before 1 erasure"):
        nightly_from(folder)
    with pytest.warns(MrfrecWarning, match="the model was saved without histories, and stays as it is"):
        nightly.run(folder / "job.toml", earlier=folder / "old.mrf", accept=True)


def test_whoever_is_forgotten_in_a_model_without_histories_is_left_out_of_the_next_fit(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("histories = true", ""))
    events(person="17").write_csv(tmp_path / "events.csv")
    nightly.run(tmp_path / "job.toml", accept=True)
    (tmp_path / "erased.csv").write_text("user\n17\n")
    with pytest.warns(MrfrecWarning, match="left out when it is fitted again"):
        run_command(["forget", str(tmp_path / "shop.mrf"), "--users", str(tmp_path / "erased.csv")], Event())
    assert mrfrec.load(tmp_path / "shop.mrf").notes_["metric"] == "hit@1"
    (note,) = nightly.run(tmp_path / "job.toml")["notes"]
    assert note["text"].startswith("2 rows are left out")
    assert "secret" not in list(mrfrec.load(tmp_path / "shop.mrf").items_)


@pytest.mark.filterwarnings("ignore::mrfrec.MrfrecWarning")
def test_an_erasure_is_lifted_by_the_file_beside_the_model(folder: Path) -> None:
    (folder / "shop.mrf.erased").write_text("{}")
    update_with_old_rows(folder)
    model = mrfrec.load(folder / "shop.mrf")
    assert sorted(model.history("cem")["item"]) == ["secret", "tea"]
    assert not len(model.fitted_.erased)


# ── who returns, and how they are known ───────────────────────────────────────────────────────────


def test_who_returns_after_the_day_is_new(folder: Path) -> None:
    later = events(("cem", "nuts", 1), ("cem", "tea", 1)).with_columns(plays=2.0)[25:]
    model = mrfrec.load(folder / "shop.mrf")
    with pytest.warns(MrfrecWarning, match="2 rows are left out"):
        model.update(later.drop("plays"))
    notes = model.fitted_.data_for("a test").notes
    assert [each[:2] for each in notes if each.what != "looks like"] == [("erased people", 2)]
    assert sorted(model.history("cem")["item"]) == ["nuts", "tea"]
    model.save(folder / "shop.mrf", include_histories=True)
    model.forget("cem").save(folder / "shop.mrf", include_histories=True)  # a second time
    assert len(mrfrec.load(folder / "shop.mrf").fitted_.erased) == 1
    values = Popularity().fit(read_interactions(events(person="dee").with_columns(plays=2.0), binary=False))
    values.forget("dee")
    with pytest.warns(MrfrecWarning, match="2 rows are left out"):  # the old 2 plays of tea, too
        values.update(later.with_columns(pl.col("user").replace("cem", "dee")))
    assert dict(values.history("dee").select("item", "value").rows()) == {"nuts": 2.0, "tea": 2.0}


@pytest.mark.filterwarnings("ignore:.*left out:mrfrec.MrfrecWarning")
@pytest.mark.filterwarnings("ignore:user ids are floats:mrfrec.MrfrecWarning")
@pytest.mark.parametrize("old", [17, "17"], ids=["integer", "text"])
@pytest.mark.parametrize("new", [17, "17", "17.0"], ids=["integer", "text", "float"])
def test_ids_are_known_in_another_type(old: Any, new: Any, tmp_path: Path) -> None:
    def data(person: Any) -> pl.DataFrame:
        return pl.DataFrame({"user": [person, type(person)(1)], "item": ["secret", "tea"]}, strict=False)

    model = Popularity().fit(data(old)).forget(old)
    model.save(tmp_path / "shop.mrf")
    if new == "17.0":
        (tmp_path / "events.csv").write_text("user,item\n17.0,secret\n1.0,tea\n")
    else:
        data(new).write_parquet(tmp_path / "events.csv")
    form = ["--input-format", "csv" if new == "17.0" else "parquet"]
    run_command(["fit", str(tmp_path / "events.csv"), "-o", str(tmp_path / "shop.mrf"), *form], Event())
    assert list(mrfrec.load(tmp_path / "shop.mrf").items_) == ["tea"]


def test_rows_without_times_of_forgotten_people_are_left_out() -> None:
    rows = events(("cem", "nuts", 5)).drop("time")
    model = Popularity().fit(rows).forget("cem")
    with pytest.warns(MrfrecWarning, match="3 rows are left out"):
        model.update(rows)
    assert "cem" not in list(model.users_ or [])


def test_salts_are_random_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "shop.mrf"
    model = Popularity().fit(events()).forget("cem")
    other = Popularity().fit(events()).forget("cem")
    (salt,), (other_salt,) = model.fitted_.erased.days, other.fitted_.erased.days
    assert salt != other_salt
    model.save(path, include_histories=True)
    assert stat.S_IMODE((tmp_path / "shop.mrf.erased").stat().st_mode) == 0o600
    mrfrec.load(path).forget("u1").save(path, include_histories=True)
    assert [*json.loads((tmp_path / "shop.mrf.erased").read_text())] == [salt]
    both = model.fitted_.erased.joined(other.fitted_.erased)
    assert len(both) == 2
    assert [end is not None for end in (both.ends(["cem"]), both.ends(["ann"]))] == [True, False]
    kept = path.with_name("shop.20261115T030412.817302Z.mrf")  # as a job keeps it
    Popularity().fit(events()).save(kept, include_histories=True)
    with pytest.warns(MrfrecWarning, match="does not know of 2 erasures"):
        mrfrec.load(kept)
    (tmp_path / "shop.mrf.erased").write_text('{"salt": {"hash": "monday"}}')
    with pytest.raises(
        ModelFileError, match=r"shop\.mrf\.erased does not hold the people who were forgotten"
    ):
        mrfrec.load(path)


def test_the_day_of_the_erasure_ends_at_midnight_utc() -> None:
    erased = Erasures().including(["cem"])
    ends = erased.ends(["ann", "cem"])
    assert ends is not None
    midnight = datetime.combine(datetime.now(UTC).date() + timedelta(days=1), datetime.min.time(), UTC)
    assert ends[1] == midnight.timestamp() * 1e6


def test_person_with_an_event_ahead_of_the_clock_stays_forgotten(tmp_path: Path) -> None:
    table = events(("cem", "tea", 1))
    model = Popularity().fit(read_interactions(table)).forget("cem")
    with pytest.warns(MrfrecWarning, match="1 row is left out: of a forgotten person"):
        model.update(events(("cem", "jam", 1), person="dee"))
    assert "cem" not in people(model)


def test_list_of_the_forgotten_that_cannot_be_read_stops_whoever_rewrites_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.mrf"
    Popularity().fit(events()).forget("cem").save(path, include_histories=True)

    def refuse(model: Path) -> None:
        raise PermissionError(13, "Permission denied", f"{model}.erased")

    monkeypatch.setattr("mrfrec.fitted.files.read_erasures", refuse)
    model = mrfrec.load(path)
    assert len(model.recommend(k=1))
    for rewrite in (lambda: model.update(events()), lambda: model.forget("u1"), lambda: model.save(path)):
        with pytest.raises(ModelFileError, match=r"shop\.mrf\.erased cannot be read by this user"):
            rewrite()


def test_service_opens_no_back_up_with_people_who_were_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "shop.mrf"
    model = Popularity().fit(events())
    model.save(tmp_path / "old", include_histories=True)
    model.forget("cem").save(path, include_histories=True)
    models = ServedModels({"shop": path})
    (tmp_path / "old").replace(path)
    models.follow()
    assert models.stale == {"shop": "cannot be opened"}
    assert "cem" not in people(models.choose("shop").served.model)
    assert ServedModels({"shop": path}).stale == {"shop": "may have people who were forgotten"}
