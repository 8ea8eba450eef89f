"""Events: rows in their order, each pair once."""

import numpy as np
import polars as pl
import pytest

from mrfrec import DataError, read_interactions
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


def test_rows_keep_their_order_and_each_pair_its_first_place_and_time() -> None:
    events = read_events(ROWS, time=True)
    assert pairs(events) == [("b", 30), ("a", 10), ("b", 20), ("c", 10)]
    assert events.time is not None
    assert events.time.tolist() == [6, 5, 4, 2]
    assert events.repeated == 2
    assert list(events.titles or []) == ["A", "B", "C"]
    assert repr(events) == "Events(4 rows, 3 users, 3 items, with times)"


def test_rows_below_the_least_value_go_before_repeated_ones_are_counted() -> None:
    events = read_events(ROWS, min_value=3)
    assert pairs(events) == [("b", 30), ("b", 20), ("a", 10), ("c", 10)]
    assert events.repeated == 0
    with pytest.raises(DataError, match="all 6 rows have a value below min_value=9"):
        read_events(ROWS, min_value=9)


def test_some_of_the_rows_have_the_users_and_items_that_are_in_them() -> None:
    some = read_events(ROWS, time=True).take(np.array([2, 0]))
    assert pairs(some) == [("b", 20), ("b", 30)]
    assert (list(some.users), list(some.items), list(some.titles or [])) == (["b"], [20, 30], ["B", "C"])
    assert some.time is not None
    assert some.time.tolist() == [4, 6]


def test_without_the_order_they_are_interactions() -> None:
    matrix, same = read_events(ROWS).interactions(), read_interactions(ROWS)
    assert (matrix.matrix != same.matrix).nnz == 0
    assert (matrix.users, matrix.items) == (same.users, same.items)


def test_columns_of_different_lengths_are_refused() -> None:
    one = np.zeros(1, np.int32)
    with pytest.raises(DataError, match="time must have one entry for each of 1 rows; got 2"):
        Events(Ids.range(1), Ids.range(1), one, one, time=np.zeros(2))
