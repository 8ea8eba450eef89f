"""Weights of events by kind and age, and rules about times; against plain Python."""

import inspect
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfrec import DataError, Interactions, MrfrecError, read_interactions
from mrfrec.data import pairs
from mrfrec.data.reading_options import ReadingOptions
from mrfrec.io import batches, row_reader

import naive

DAY = 86400
EVENTS = pl.DataFrame(
    {
        "user": ["a", "a", "a", "b", "b", "c"],
        "item": [1, 1, 2, 1, 3, 2],
        "event": ["view", "buy", "cart", "view", "buy", "view"],
        "time": [0, 10 * DAY, 20 * DAY, 30 * DAY, 40 * DAY, 0],
    }
)


def values(data: Interactions) -> dict[tuple[Any, Any], float]:
    coo = data.matrix.tocoo()
    places = zip(coo.row.tolist(), coo.col.tolist(), coo.data.tolist(), strict=True)
    return {(data.users[u], data.items[i]): value for u, i, value in places}


def read(source: object, **options: Any) -> dict[tuple[Any, Any], float]:
    return values(read_interactions(source, **options))


event = st.tuples(
    st.integers(0, 3),
    st.sampled_from("xyz"),
    st.sampled_from(["view", "cart", "buy", "return"]),
    st.integers(0, 100),  # days
    st.sampled_from([0.0, 1.0, 2.5, -1.0]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(event, min_size=1, max_size=25),
    st.fixed_dictionaries(
        {
            "duplicates": st.sampled_from(["sum", "max", "last", "first"]),
            "binary": st.booleans(),
            "event_weights": st.sampled_from(
                [None, {"view": 0.2, "buy": 1, "other": 0}, {"return": -1.5, "other": 0.1}]
            ),
            "now": st.sampled_from([None, 50, 100]),
            "since": st.sampled_from([None, 20, 40]),
            "until": st.sampled_from([None, 90]),
            "window": st.sampled_from([None, "40d", timedelta(days=7)]),
        }
    ),
    st.integers(1, 30),
)
# Drawn tables have what reading finds doubtful.
@pytest.mark.filterwarnings("ignore:column '")
@pytest.mark.filterwarnings("ignore:all times of")
@pytest.mark.slow
def test_weights_equal_plain_python(rows: list[Any], options: dict[str, Any], batch: int) -> None:
    if options["window"] is None:
        options["now"] = None
    names = ["user", "item", "event", "time", "rating"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(pl.col("time") * DAY)
    days = {"40d": 40.0, timedelta(days=7): 7.0, None: None}
    moments = {name: options[name] for name in ("now", "since", "until")}
    expected = naive.weighted(
        [(*row[:3], float(row[3]), row[4]) for row in rows],
        kinds=options["event_weights"],
        **moments,
        window=days[options["window"]],
        duplicates=options["duplicates"],
        binary=options["binary"],
    )
    start = datetime(1970, 1, 1)
    options |= {name: start + timedelta(days=day) for name, day in moments.items() if day is not None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_ROWS", batch)
        if not expected:
            with pytest.raises(DataError, match="no interactions are left"):
                read_interactions(frame, **options)
        else:
            assert read(frame, **options) == expected


def test_kinds_of_events_in_any_column_and_file_count_their_weight(tmp_path: Path) -> None:
    weights = {"view": 0.25, "cart": 0.5, "buy": 1}
    expected = {("a", 1): 1.25, ("a", 2): 0.5, ("b", 1): 0.25, ("b", 3): 1, ("c", 2): 0.25}
    assert read(EVENTS, event_weights=weights) == expected
    renamed = EVENTS.rename({"event": "what"})
    assert read(renamed, event="what", event_weights=weights) == expected
    numbered = EVENTS.with_columns(event=pl.col("event").replace_strict({"view": 1, "cart": 2, "buy": 3}))
    assert read(numbered, event_weights={"1": 0.25, "2": 0.5, "3": 1}) == expected
    EVENTS.write_csv(tmp_path / "a.csv")
    EVENTS.write_parquet(tmp_path / "a.parquet")
    EVENTS.write_ndjson(tmp_path / "a.jsonl")
    for name in ("a.csv", "a.parquet", "a.jsonl"):
        assert read(tmp_path / name, event_weights=weights) == expected
    spaced = tmp_path / "spaced.csv"
    spaced.write_text("user,item,event\na,1, view\na,2,buy \n")
    assert read(spaced, event_weights=weights) == {("a", 1): 0.25, ("a", 2): 1}


@pytest.mark.parametrize(
    "times",
    [
        lambda seconds: seconds,
        lambda seconds: seconds.cast(pl.Float64),
        lambda seconds: seconds * 1000,
        lambda seconds: pl.from_epoch(seconds, "s"),
        lambda seconds: pl.from_epoch(seconds, "s").dt.date(),
        lambda seconds: pl.from_epoch(seconds, "s").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda seconds: (
            pl.from_epoch(seconds, "s").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
        ),
    ],
)
def test_times_of_every_form_give_the_same(times: Callable[[pl.Series], pl.Series]) -> None:
    start = 18_000 * DAY
    seconds = EVENTS["time"] + start
    frame = EVENTS.with_columns(time=times(seconds))
    assert read(frame, window="25d").keys() == {("a", 2), ("b", 1), ("b", 3)}
    # The latest time that is left is now.
    assert read(frame, window="15d", until="2019-05-05").keys() == {("a", 1), ("a", 2)}


def test_now_since_and_until_take_dates_and_times() -> None:
    day = 18_000 * DAY  # 2019-04-14
    frame = EVENTS.with_columns(pl.col("time") + day)
    moments = (
        "2019-05-04", "2019-05-04T00:00:00Z", "2019-05-04 02:00+02:00", date(2019, 5, 4),
        datetime(2019, 5, 4), datetime(2019, 5, 4, 3, tzinfo=timezone(timedelta(hours=3))),
    )  # fmt: skip
    for moment in moments:
        assert read(frame, since=moment).keys() == {("a", 2), ("b", 1), ("b", 3)}
        assert read(frame, until=moment).keys() == {("a", 1), ("c", 2)}
        assert read(frame, window="15d", now=moment).keys() == {("a", 1), ("a", 2), ("b", 1), ("b", 3)}


def test_latest_time_is_now_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mrfrec")
    assert read(EVENTS, window="1w") == read(EVENTS, window="1w", now="1970-02-10")
    told = [message for message in caplog.messages if message.startswith("now is")]
    assert told == ["now is 1970-02-10T00:00:00, the latest time that was read"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_weights": {"view": 1}}, r"event_weights .* no weight for 'buy', 'cart'\. Add"),
        ({"event_weights": ["view"]}, "event_weights must be weights by kind, such as"),
        ({"event_weights": {"view": math.inf}}, "event_weights: view must be a number"),
        ({"event_weights": {1: 1, "1": 2}}, "event_weights must be .* with distinct names"),
        ({"event_weights": {"\ud800": 1}}, "event_weights must be .* valid Unicode"),
        ({"event_weights": {"other": 0}}, "none of 6 rows passes event_weights="),
        ({"event": "event"}, "event must be left out without event_weights; got 'event'"),
        ({"window": "30"}, "window must be a number and one of the units .* such as 30d.* got '30'"),
        ({"window": "0d"}, "window must be"),
        ({"window": 30}, "window must be"),
        ({"window": "-3d"}, "window must be a number and one of the units"),
        ({"window": "1000001d"}, r"window must be .* from 1e-6s to 1000000d; got '1000001d'"),
        ({"since": "yesterday"}, "since must be a date, 2026-11-16, or a time.* got 'yesterday'"),
        ({"since": "20261116"}, "since must be a date"),
        ({"until": 1700000000}, "until must be a date"),
        ({"since": "2026-01-02", "until": "2026-01-02"}, "until must be after since, 2026-01-02"),
        ({"since": "2026-01-01"}, "no interactions are left: none of 6 rows passes since='2026-01-01'"),
        ({"window": "1d", "now": "2026-01-01"}, "none of 6 rows passes window='1d'"),
        ({"now": "2026-01-01"}, "now must be left out without window"),
        ({"binary": False}, r"which column holds the values\? .*'event'"),
        ({"event_weights": {"other": 1e-60}}, "values times their weights are beyond single precision"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MrfrecError, match=message):
        read_interactions(EVENTS, **options)


@pytest.mark.parametrize(
    ("times", "batch", "message"),
    [
        ([1, 10**12], 9, "row 2: time of another form than most, which are numbers of seconds, 10+"),
        ([10**19, 10**19], 9, "row 1: time neither a number nor a date, 10+"),
        ([20240101, 20250101], 9, "nanoseconds since 1970; got 20250101"),
        ([10**12, 10**9], 1, "row 2: time of another form than most, which are numbers of milliseconds, 10+"),
    ],
)
def test_numbers_that_are_no_times_of_one_unit_are_refused(
    times: list[int], batch: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", batch)
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": times})
    with pytest.raises(DataError, match=message):
        read_interactions(frame, window="3d")


def test_row_without_a_kind_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,item,event\n1,2,view\n3,4,\n")
    with pytest.raises(DataError, match="row 2: no kind of event"):
        read_interactions(path, event_weights={"view": 1})
    data = read_interactions(path, event_weights={"view": 1}, on_bad="skip")
    assert data.skipped == {"no kind of event": 1}


def test_values_beyond_single_precision_are_refused() -> None:
    frame = EVENTS.with_columns(rating=pl.lit(3e38))
    with pytest.raises(DataError, match="values times their weights are beyond single precision"):
        read_interactions(frame, event_weights={"other": 1000}, binary=False)


@pytest.mark.parametrize("options", [
    {"binary": False}, {"duplicates": "last", "binary": False}, {"window": "300d"},
    {"window": "300d", "binary": False, "duplicates": "first"},
], ids=str)  # fmt: skip
def test_ranges_and_slices_of_rows_change_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({
        "user": rng.integers(0, 40, 500), "item": rng.integers(0, 10, 500),
        "rating": rng.choice([1e-9, -0.1, 0.0, 3.7, 1e6, 1e30], 500), "time": rng.integers(0, 10**8, 500),
    })  # fmt: skip
    options = options if "binary" in options else {**options, "value": False}
    whole = read_interactions(frame, **options)
    monkeypatch.setattr(pairs, "_AT_ONCE", 7)
    monkeypatch.setattr(row_reader, "_ROOM", 3)
    monkeypatch.setattr(row_reader, "_SLICE", 5)
    monkeypatch.setattr(batches, "BATCH_ROWS", 11)
    parts = read_interactions(frame, **options)
    assert parts.fingerprint == whole.fingerprint
    a, b = parts.origin, whole.origin
    assert a is not None and b is not None  # noqa: PT018
    assert a.facts() == b.facts()
    np.testing.assert_array_equal(a.times, b.times)
    np.testing.assert_array_equal(a.sums.values, b.sums.values)


def test_reading_options_are_parameters_of_read_interactions_with_the_same_defaults() -> None:
    parameters = inspect.signature(read_interactions).parameters
    for name, option in ReadingOptions.model_fields.items():
        assert parameters[name].default == option.default, name
