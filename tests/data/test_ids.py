"""Ids and texts: kept exactly, found by bisection or by a table, refused where they are none."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrfrec import DataError
from mrfrec.data.ids import Ids, Texts

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
signed, unsigned = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
several = st.one_of(*(st.lists(ids, unique=True, max_size=90) for ids in (texts, signed, unsigned)))


@given(st.lists(texts))
def test_texts_come_back_as_they_were(strings: list[str]) -> None:
    kept = Texts.of(strings)
    assert list(kept) == strings
    assert [kept[i] for i in range(len(kept))] == strings
    assert kept[1:-1] == strings[1:-1]
    assert [kept.bytes_at(i).decode() for i in range(len(kept))] == strings
    if strings:
        assert kept[-1] == strings[-1]
    with pytest.raises(IndexError):
        kept[len(strings)]
    assert repr(Texts.of("abcd")) == "Texts(['a', 'b', 'c', …], 4)"


@given(several)
def test_ids_come_back_with_their_type_and_are_found_where_they_are(given_ids: list[Any]) -> None:
    ids = Ids.of(given_ids, "user")
    assert [(type(x), x) for x in ids] == [(type(x), x) for x in given_ids]
    assert [ids[i] for i in range(len(ids))] == given_ids == ids[:]
    assert ids == Ids.of(iter(given_ids), "user")
    assert ids.is_text == any(isinstance(x, str) for x in given_ids)
    unknown = "\x00 no such" if ids.is_text else 2**70
    for wanted in (given_ids, given_ids[:3], [unknown, *given_ids[:2]]):
        places = {x: i for i, x in enumerate(given_ids)}
        assert ids.find(wanted, "user").tolist() == [places.get(x, -1) for x in wanted]
    keep = np.arange(len(ids))[::2]
    assert list(ids.subset(keep)) == given_ids[::2]


@pytest.mark.parametrize(
    "given_ids",
    [
        np.array([3, 1, 2], np.int8),
        np.array(["c", "a", "b"]),
        np.array(["c", "a", "b"], object),
        [np.int64(3), np.uint8(1), 2],
        pd.Series([3, 1, 2]),
        pl.Series(["c", "a", "b"]),
        {"c": 1, "a": 2, "b": 3},
    ],
)
def test_any_sequence_of_one_type_gives_ids(given_ids: Any) -> None:
    ids = Ids.of(given_ids, "item")
    assert list(ids) in ([3, 1, 2], ["c", "a", "b"])
    assert ids.is_text or np.asarray(ids.values).dtype == np.int64
    assert {type(x) for x in ids} <= {int, str}


@pytest.mark.parametrize(
    ("given_ids", "message"),
    [
        ([1, "1"], "item ids must be all integers or all strings; got some of each"),
        ([1, 2.0], r"all integers or all strings; got 2\.0"),
        ([True, False], "got True"),
        (np.array([1.0]), r"got 1\.0"),
        (np.array([[1]]), "must be a list; got an array of 2 dimensions"),
        (
            np.array(["2020-01-01"], "datetime64[ns]"),
            r"integers or strings; got an array of datetime64\[ns\]",
        ),
        ("abc", "item ids must be a list; got 'abc'"),
        ([1, 2, 1], "item ids must be distinct; 1 appears more than once"),
        (["a", "b", "a"], "must be distinct; 'a' appears more than once"),
        ([2**64], "item ids must fit 64 bits; got 18446744073709551616"),
        ([-1, 2**63], "must fit 64 bits; got -1 to 9223372036854775808"),
        (["\ud800"], r"ids and titles must be valid Unicode; got '\\ud800'"),
        (["a", "b\0"], r"ids and titles must not contain NUL characters; got 'b\\x00'"),
    ],
)
def test_what_are_no_ids_is_refused(given_ids: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ids.of(given_ids, "item")


@pytest.mark.parametrize(
    ("known", "wanted", "message"),
    [
        ([1], ["1"], r"item ids are integers here; got '1' \(str\). Give them as integers"),
        (["1"], [1], r"item ids are strings here; got 1 \(int\)"),
        ([1], [1.0], r"got 1\.0 \(float\)"),
        (["a"], "a", "item ids must be a list; got 'a'"),
    ],
)
def test_ids_of_another_type_are_not_looked_for(known: list[Any], wanted: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ids.of(known, "item").find(wanted, "item")


def test_half_a_surrogate_pair_is_found_nowhere() -> None:
    ids = Ids.of(["a", "\ufffd"], "item")
    assert ids.find(["\ud800", "a"], "item").tolist() == [-1, 0]
    assert ids.find(["\ud800"] * 100, "item").tolist() == [-1] * 100


def test_what_a_person_types_becomes_an_id_of_the_type_there_is() -> None:
    numbers = Ids.of([1], "user")
    assert [numbers.parse(text, "user") for text in ("7", "-7", " 7 ", "007")] == [7, -7, 7, 7]
    for text in ("", "x", "1.0", "1_0", "٧", "9" * 5000):
        with pytest.raises(DataError, match="user ids are integers here; got"):
            numbers.parse(text, "user")
    assert Ids.of(["a"], "user").parse("007", "user") == "007"
