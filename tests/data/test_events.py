"""Events: rows in their order, each pair once; the same matrix as that of interactions."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfrec import DataError, ParameterError, read_interactions
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids
from mrfrec.io.tables import read_events

ROWS = pl.DataFrame(
    {
        "user": ["b", "a", "b", "a", "c", "b"],
        "item": [30, 10, 20, 10, 10, 30],
        "rating": [5.0, 1.0, 4.0, 5.0, 3.0, 2.0],
        "time": [6, 5, 4, 3, 2, 1],
        "title": ["C", "A", "B", "A", "A", "C"],
    }
)


def pairs(events: Events) -> list[tuple[object, object]]:
    return [(events.users[u], events.items[i]) for u, i in zip(events.user, events.item, strict=True)]


def test_rows_keep_their_order_and_each_pair_its_first_place_and_earliest_time() -> None:
    events = read_events(ROWS, time=True)
    assert pairs(events) == [("b", 30), ("a", 10), ("b", 20), ("c", 10)]
    assert events.time is not None
    assert events.time.tolist() == [1_000_000, 3_000_000, 4_000_000, 2_000_000]
    assert events.repeated == 2
    assert list(events.titles or []) == ["A", "B", "C"]
    assert repr(events) == "Events(4 rows, 3 users, 3 items, with times)"


def test_rows_below_the_least_value_go_before_repeated_ones_are_counted() -> None:
    events = read_events(ROWS, min_value=3)
    assert pairs(events) == [("b", 30), ("b", 20), ("a", 10), ("c", 10)]
    assert events.repeated == 0
    with pytest.raises(DataError, match="none of 6 rows passes min_value=9"):
        read_events(ROWS, min_value=9)


def test_some_of_the_rows_have_the_users_and_items_that_are_in_them() -> None:
    some = read_events(ROWS, time=True).take(np.array([2, 0]))
    assert pairs(some) == [("b", 20), ("b", 30)]
    assert (list(some.users), list(some.items), list(some.titles or [])) == (["b"], [20, 30], ["B", "C"])
    assert some.time is not None
    assert some.time.tolist() == [4_000_000, 1_000_000]


row = st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([-1.0, 0, 1, 2, 3.5, 4, 0.1]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(row, min_size=1, max_size=15),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "min_value": st.sampled_from([None, 0.1, 2.0, 4.0]),
            "binary": st.booleans(),
            "duplicates": st.sampled_from(["sum", "max", "last", "first", "error"]),
        }
    ),
)
def test_fit_and_evaluate_read_the_same_matrix(
    rows: list[Any], valued: bool, options: dict[str, Any]
) -> None:
    frame = pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row")
    frame = frame if valued else frame.drop("rating")
    results = []
    for read in (read_interactions, lambda *given, **named: read_events(*given, **named).interactions()):
        try:
            results.append(read(frame, **options).fingerprint)
        except (DataError, ParameterError) as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_value_of_a_pair_is_combined_and_its_place_and_time_are_the_first_of_the_rows_kept() -> None:
    events = read_events(ROWS, time=True, binary=False)
    assert events.value is not None
    assert dict(zip(pairs(events), events.value.tolist(), strict=True)) == {
        ("b", 30): 7, ("a", 10): 6, ("b", 20): 4, ("c", 10): 3
    }  # fmt: skip
    last = read_events(ROWS, time=True, binary=False, duplicates="last", min_value=2)
    assert last.value is not None
    assert last.time is not None
    assert pairs(last) == [("b", 30), ("b", 20), ("a", 10), ("c", 10)]
    assert last.value.tolist() == [2, 4, 5, 3]
    assert last.time.tolist() == [1_000_000, 4_000_000, 3_000_000, 2_000_000]


def test_unused_column_of_values_is_mentioned_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mrfrec")
    for read in (read_interactions, read_events):
        read(ROWS.drop("time"))
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("column 'rating' of the polars frame is not used")
        caplog.clear()
        read(ROWS.drop("time"), binary=False)
        read(ROWS.drop("time"), min_value=2)
        read(ROWS.drop("rating", "time"))
        assert caplog.messages == []


def test_columns_of_different_lengths_are_refused() -> None:
    one = np.zeros(1, np.int32)
    with pytest.raises(DataError, match="time must have one entry for each of 1 rows; got 2"):
        Events(Ids.range(1), Ids.range(1), one, one, time=np.zeros(2, np.int64))
