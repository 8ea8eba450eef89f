"""Times that stay with the data of a table: recognised, of one meaning, all of them or none."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfrec import DataError, Interactions, MrfrecWarning, ParameterError, read_interactions
from mrfrec.io import batches
from mrfrec.io.tables import RowsBefore, read_events

START = datetime(2018, 3, 4, 5, 6, 7, tzinfo=UTC)
ROWS = pl.DataFrame({"user": [1, 1, 2, 1, 3], "item": [5, 6, 5, 5, 6]})
AT = [START + timedelta(days=days) for days in (9, 1, 2, 3, 4)]
LAST = {(1, 5): 9, (1, 6): 1, (2, 5): 2, (3, 6): 4}  # days after the start


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def days_of(data: Interactions, start: datetime = START) -> dict[tuple[Any, Any], float]:
    """The days after the start by user and item."""
    assert data.times is not None
    coo = data.matrix.tocoo()
    days = (data.times - micros(start)) / 86_400e6
    return {
        (data.users[u], data.items[i]): day
        for u, i, day in zip(*coo.coords, days.tolist(), strict=True)
    }  # fmt: skip


FORMS = {
    "datetimes": pl.Series(AT, dtype=pl.Datetime("us", "UTC")),
    "in Tokyo": pl.Series(AT, dtype=pl.Datetime("us", "UTC")).dt.convert_time_zone("Asia/Tokyo"),
    "nanoseconds": pl.Series(AT, dtype=pl.Datetime("us", "UTC")).dt.cast_time_unit("ns"),
    "seconds": pl.Series([int(at.timestamp()) for at in AT]),
    "float": pl.Series([at.timestamp() for at in AT]),
    "milliseconds": pl.Series([int(at.timestamp()) * 1000 for at in AT]),
    "text": pl.Series([f"{at:%Y-%m-%dT%H:%M:%S}" for at in AT]),
    "zoned text": pl.Series([at.astimezone(timezone(timedelta(hours=-7))).isoformat() for at in AT]),
    "numbers as text": pl.Series([str(int(at.timestamp())) for at in AT]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("library", ["polars", "pandas", "csv", "jsonl", "parquet"])
def test_every_form_of_a_time_means_the_same(form: str, library: str, tmp_path: Path) -> None:
    frame = ROWS.with_columns(Created_At=FORMS[form])
    source: Any = frame
    if library == "pandas":
        source = frame.to_pandas()
    elif library != "polars":
        source = tmp_path / f"t.{library}"
        write: Any = {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[
            library
        ]
        write(source)
    assert days_of(read_interactions(source)) == LAST
    assert read_interactions(source, time="Created_At").fingerprint == read_interactions(source).fingerprint


def test_numbers_in_json_lines_are_read_as_fast_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    from mrfrec.io import text

    lines = pl.Series([json.dumps({"user": 1, "item": 2, "ts": at}) for at in (1e9, 5, 1.25)])
    roles = {"user": "user", "item": "item", "time": "ts"}
    kinds = dict.fromkeys(("user", "item", "ts"), pl.Int128)
    rows = text._parse_fast(lines, roles, kinds)
    assert rows is not None
    assert [float(at) for at in rows["time"]] == [1e9, 5, 1.25]
    for odd in ("true", "[1]", '{"a": 1}'):
        line = pl.Series(['{"user": 1, "item": 2, "ts": ' + odd + "}"])
        assert text._parse_fast(line, roles, kinds) is None


@pytest.mark.parametrize("options", [{}, {"binary": False}, {"min_value": 2, "min_users": 2}], ids=str)
def test_matrix_does_not_change_because_times_are_read(options: dict[str, Any]) -> None:
    plain = ROWS.with_columns(plays=pl.Series([1.0, 2, 3, 4, 5]))
    timed = plain.with_columns(date=FORMS["text"])
    alone, off, on = (
        read_interactions(plain, **options),
        read_interactions(timed, time=False, **options),
        read_interactions(timed, **options),
    )
    assert alone.times is off.times is None
    assert alone.fingerprint == off.fingerprint != on.fingerprint
    assert on.times is not None
    for name in ("data", "indices", "indptr"):
        first, *others = (getattr(each.matrix, name) for each in (alone, off, on))
        for other in others:
            assert first.dtype == other.dtype
            np.testing.assert_array_equal(first, other)


ISO_8601 = r".* Texts must be written as 2013-04-03 .*pd\.to_datetime\(…, dayfirst=True\)"
NO_TIMES = r".* Without times: time=False \(--time-column no\)\.$"
# The times of five rows, what is said, and how many are bad rows; None where the whole column is refused.
ODD_TIMES: list[tuple[list[Any], str, int | None]] = [
    (
        ["2020-01-01", None, "", "2020-01-02", "2020-01-03"],
        "row 2: no time. It is the first of 2 bad rows",
        2,
    ),
    (
        ["2020-01-01", "soon", "x", "2020-01-02", "y"],
        f"row 2: time neither a number nor a date, 'soon'{ISO_8601}",
        3,
    ),
    (
        ["2020-01-01", "03.04.2013", *["2020-01-02"] * 3],
        f"row 2: time neither .*, '03\\.04\\.2013'{ISO_8601}",
        1,
    ),
    ([1.0, 2, 3, float("nan"), 5], f"row 4: no time. It is the only bad row among 5.{NO_TIMES}", 1),
    ([1, 2, 3, 4, 10**12], "row 5: time of another form than most, which are numbers of seconds, 10+", 1),
    (
        ["5", "2020-01-01", "6", "7", "8"],
        "row 2: time of another form than most, .* seconds, '2020-01-01'",
        1,
    ),
    (
        ["2026-03-29T02:30:00+02:00", "2026-03-29 02:30:00", "2026-03-29", *["2026-03-29T02:30Z"] * 2],
        "row 2: time of another form than most, which are times with an offset, '2026-03-29 02:30:00'",
        2,
    ),
    ([10**19, 1, 2, 3, 4], "row 1: time neither a number nor a date, 10+", 1),
    (
        [20200101, 20200102, 20200103, 20200104, 20200105],
        f"nanoseconds since 1970; got 20200105.*{NO_TIMES}",
        None,
    ),
    ([True, False, True, False, True], f"column 'date' is Boolean{NO_TIMES}", None),
    ([timedelta(1)] * 5, "column 'date' is Duration", None),
    ([[1]] * 5, "column 'date' is List", None),
    ([object()] * 5, "column 'date' is Object", None),
]


@pytest.mark.parametrize(("times", "why", "bad"), ODD_TIMES)
def test_times_are_given_up_by_nothing_but_time_false(times: list[Any], why: str, bad: int | None) -> None:
    frame = ROWS.with_columns(pl.Series("date", times, strict=False))
    for asked in (None, "date", True):
        with pytest.raises(DataError, match=why):
            read_interactions(frame, time=asked)
    without = read_interactions(frame, time=False)
    assert (without.times, without.fingerprint) == (None, read_interactions(ROWS).fingerprint)
    if bad is None:
        with pytest.raises(DataError, match=why):
            read_interactions(frame, on_bad="skip")
        return
    kept = read_interactions(frame, on_bad="skip")
    assert (sum(kept.skipped.values()), kept.share_skipped) == (bad, bad / 5)
    assert ("skipped rows", bad) in [note[:2] for note in kept.notes]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_of_a_time_is_read(unit: str) -> None:
    times = np.array(["2020-01-01T10:00:00", "2021-06-01", "2020-01-02"], f"M8[{unit}]")
    numbers = times.astype(np.int64)
    rows = {"user": [1, 2, 3], "item": [1, 2, 3]}
    expected = times.astype("M8[us]").astype(np.int64).tolist()
    texts = [str(number) for number in numbers]
    for column in (times, numbers, numbers.astype(float), texts):
        read = read_interactions(pd.DataFrame({**rows, "time": column})).times
        assert read is not None
        assert read.tolist() == expected
    matrix = Interactions(sp.csr_array(np.eye(3)), times=numbers)
    assert matrix.times is not None
    assert matrix.times.tolist() == expected


def test_what_postgresql_writes_is_a_time() -> None:
    texts = [
        "2026-03-29 02:30:00+00",
        "2026-03-29 02:30:00.5+05:30",
        "2026-03-29 02:30:00-03",
        "2026-03-29 02:30Z",
    ]
    frame = pl.DataFrame({"user": [1, 2, 3, 4], "item": [1, 2, 3, 4], "created_at": texts})
    start = datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
    seconds = {
        pair[0]: round(day * 86_400, 1) for pair, day in days_of(read_interactions(frame), start).items()
    }
    assert seconds == {1: 0, 2: 0.5 - 5.5 * 3600, 3: 3 * 3600, 4: 0}


def test_rows_of_unknown_time_may_count_as_the_oldest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mrfrec")
    (tmp_path / "a.csv").write_text("user,item,date\n1,2,2020-01-03\n2,2,\n3,3,soon\n4,2,2020-01-02\n")
    (tmp_path / "b.csv").write_text("user,item\n5,2\n")
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    data = read_interactions(paths, missing_time="oldest")
    days = {(1, 2): 1, (2, 2): 0, (3, 3): 0, (4, 2): 0, (5, 2): 0}
    assert days_of(data, datetime(2020, 1, 2, tzinfo=UTC)) == days
    assert data.notes[0][:2] == ("missing times", 3)
    assert "3 rows without a time count as the oldest, 2020-01-02" in caplog.messages
    assert len(read_interactions(paths, missing_time="oldest", since="2020-01-01")) == 2
    for options, message in (
        ({"missing_time": "newest"}, 'missing_time must be "oldest" or None'),
        ({"missing_time": "oldest", "time": False}, "time must be left out with .* missing_time"),
    ):
        with pytest.raises(ParameterError, match=message):
            read_interactions(paths, **options)
    with pytest.raises(
        ParameterError, match=r"missing_time must be left out for .*b\.csv, which has no column"
    ):
        read_interactions(paths[1], missing_time="oldest")


def test_rows_later_than_the_latest_time_allowed_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for times in (["2020-01-01", "2020-01-03", "2020-01-02"], ["1577836800", "1578009600", "1577923200"]):
        path.write_text("user,item,date\n" + "".join(f"{n},2,{at}\n" for n, at in enumerate(times)))
        before = RowsBefore(latest=micros(datetime(2020, 1, 2, tzinfo=UTC)))
        with pytest.raises(DataError, match="row 2: time in the future, '"):
            read_events(path, before)
        with pytest.warns(MrfrecWarning, match="left out 1 row: time in the future"):
            data = read_events(path, before, on_bad="skip")
        assert (list(data.users), data.notes[0].what) == ([0, 2], "rows ahead")


def test_a_bad_time_is_told_by_its_row_with_the_number_of_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 2)
    path = tmp_path / "t.csv"
    path.write_text(
        "user,item,ts\n" + "".join(f"{n},{n},{n if n not in (7, 9) else ''}\n" for n in range(1, 12))
    )
    with pytest.raises(DataError, match=r"row 7: no time\. It is the first of 2 bad rows among 11\."):
        read_interactions(path)
    kept = read_interactions(path, on_bad="skip")
    assert kept.skipped == {"no time": 2}
    assert days_of(kept, datetime(1970, 1, 1, tzinfo=UTC)) == {
        (n, n): n / 86_400 for n in range(1, 12) if n not in (7, 9)
    }


def test_files_with_and_without_times_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text("user,item,date\n1,2,2020-01-01\n")
    (tmp_path / "b.csv").write_text("user,item\n2,2\n")
    (tmp_path / "c.csv").write_text("user,item,timestamp\n1,2,1600000000\n")
    (tmp_path / "d.csv").write_text("user,item,time\n1,2,2020-01-05\n3,2,2020-01-03\n")
    paths = {name: tmp_path / f"{name}.csv" for name in "abcd"}
    with pytest.raises(DataError, match=r"b\.csv has no column of times, but other files have\..*time=False"):
        read_interactions([paths["a"], paths["b"]])
    with pytest.raises(DataError, match=r"c\.csv, row 1: time of another form than most"):
        read_interactions([paths["a"], paths["c"]])
    caplog.set_level("INFO", "mrfrec")
    new_year = datetime(2020, 1, 1, tzinfo=UTC)
    assert days_of(read_interactions([paths["a"], paths["d"]]), new_year) == {(1, 2): 4, (3, 2): 2}
    assert 'times from "date", "time": 2020-01-01 to 2020-01-05' in caplog.messages


def test_log_says_the_column_the_unit_and_the_range(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mrfrec")
    told = []
    for form in ("text", "seconds", "milliseconds"):
        read_interactions(ROWS.with_columns(orderedAt=FORMS[form]))
        told.append(caplog.messages[-1].removeprefix('times from "orderedAt"'))
    span = ": 2018-03-05 to 2018-03-13"
    assert told == [span, f" (seconds){span}", f" (milliseconds){span}"]
    assert read_interactions(ROWS.with_columns(date=pl.lit("2018-01-02"))).times is None
    assert caplog.messages[-1] == ('times from "date": all are 2018-01-02, which alone tells no order')


def test_of_several_columns_that_fit_one_is_to_be_named() -> None:
    frame = ROWS.with_columns(created_at=FORMS["text"], ordered_at=FORMS["seconds"], time=FORMS["in Tokyo"])
    assert days_of(read_interactions(frame, time="ordered_at")) == LAST
    for asked in (None, True):
        with pytest.raises(DataError, match="which column holds the times"):
            read_interactions(frame, time=asked)
    same = ROWS.with_columns(created_at=FORMS["text"], time=FORMS["text"])
    assert days_of(read_interactions(same)) == LAST


def test_options_about_times_change_no_time() -> None:
    frame = ROWS.with_columns(time=FORMS["text"])
    assert days_of(read_interactions(frame, until="2018-03-10")) == {**LAST, (1, 5): 3}
    assert days_of(read_interactions(frame, window="100d", now="2018-04-01")) == LAST
    assert days_of(read_interactions(frame, window="8d")) == {(1, 5): 9, (2, 5): 2, (3, 6): 4}
    assert days_of(read_interactions(frame, duplicates="first")) == LAST
    with pytest.raises(ParameterError, match=r"time must be left out with window, .*; got False"):
        read_interactions(frame, time=False, window="3d")


def test_times_after_the_clock_are_kept_with_one_warning() -> None:
    frame = ROWS.with_columns(
        date=pl.Series(["2018-01-01", "2019-01-01", "9000-01-02", "2018-01-01", "2017-01-01"])
    )
    with pytest.warns(MrfrecWarning, match="1 time in the future, the latest is 9000-01-02: they") as warned:
        assert read_interactions(frame)
    assert len(warned) == 1
    read_interactions(frame, until="2020-01-01")
    tomorrow = f"{datetime.now(UTC) + timedelta(hours=14):%Y-%m-%dT%H:%M:%S}"  # where the day begins first
    read_interactions(frame.with_columns(date=pl.lit(tomorrow)))


row = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=40), st.booleans())
def test_pairs_have_their_last_time(rows: list[Any], twice: bool) -> None:
    rows = rows if twice else list({(user, item): (user, item, at) for user, item, at in rows}.values())
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    last: dict[tuple[int, int], int] = {}
    for user, item, at in rows:
        last[user, item] = max(at, last.get((user, item), 0))
    data = read_interactions(frame)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    if len({*last.values()}) == 1:
        assert data.times is None
    else:
        assert days_of(data, epoch) == {pair: at / 86_400 for pair, at in last.items()}


def test_pandas_times_are_converted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame(
        {"user": [1, 2], "item": [1, 2], "time": pd.to_datetime(["2020-01-01", "2020-01-02"])}
    )
    for zone in (None, "Asia/Tokyo"):
        timed = frame.assign(time=frame["time"].dt.tz_localize(zone))
        data = read_interactions(timed)
        start = datetime(2020, 1, 1, tzinfo=UTC) - timedelta(hours=9 if zone else 0)
        assert days_of(data, start) == {(1, 1): 0, (2, 2): 1}
        timed.loc[1, "time"] = None
        with pytest.raises(DataError, match="row 2: no time"):
            read_interactions(timed)
