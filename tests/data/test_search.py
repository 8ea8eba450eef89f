"""Search by id and title: against a naive search, and what it forgives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrfrec.data.catalogue import Catalogue, NameIndex
from mrfrec.data.ids import Ids, Texts


def catalogue(
    titles: list[str], popularity: list[int] | None = None, ids: list[Any] | None = None
) -> Catalogue:
    counts = np.array(popularity or [1] * len(titles), np.int64)
    return Catalogue(Ids.of(ids or range(len(titles)), "item"), Texts.of(titles), counts, 10)


BOOKS = [
    "The Godfather (1972)", "Amélie", "Harry Potter and the Chamber of Secrets", "Harry Potter: a Biography",
    "The Potter's Wheel", "Godfather", "c++ in a nutshell", "!!!", "", "Ünïcode",
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("godfather", [5, 0]),  # the whole name before a part
        ("the", [0, 4, 2]),  # beginnings before words
        ("harry potter", [2, 3]),
        ("potter harry", [2, 3]),  # in any order
        ("POTTER", [2, 3, 4]),
        ("amelie", [1]),
        ("Amélie", [1]),
        ("unicode", [9]),
        ("otter", [2, 3, 4]),  # near spellings
        ("biograf", [3]),
        ("hary poter", [2, 3]),
        ("c++", [6]),
        ("!!!", [7]),
        ("zzzz", []),
        ("", []),
        ("   ", []),
    ],
)
def test_matches_come_in_order_of_kind_and_popularity(query: str, expected: list[int]) -> None:
    popularity = [5, 5, 9, 8, 3, 1, 1, 1, 1, 1]
    found = catalogue(BOOKS, popularity).search(query, 10)
    assert found[: len(expected)] == expected
    assert len(found) == len(expected) or query in ("otter", "biograf", "c++", "the", "hary poter")


def test_ids_that_are_text_are_found_too() -> None:
    packages = catalogue(["numeric arrays", ""], ids=["python3-numpy", "libgtk-3-dev"])
    assert packages.search("numpy", 5) == [0]
    assert packages.search("python3-numpy", 5) == [0]
    assert packages.search("gtk", 5) == [1]
    assert packages.search("pyton3", 5) == [0]


words = st.text(alphabet="abcé -X", max_size=12)


@given(st.lists(words, min_size=1, max_size=30), st.text(alphabet="abce", min_size=1, max_size=3))
def test_every_item_with_the_word_is_found_and_no_other(titles: list[str], query: str) -> None:
    counts = list(range(len(titles)))
    found = catalogue(titles, counts).search(query, len(titles))
    names = [title.lower().replace("é", "e").replace("-", " ") for title in titles]
    holding = {i for i, name in enumerate(names) if f" {query}" in f" {name}"}
    if holding:
        assert set(found) == holding
    assert len(found) == len(set(found))


@given(st.lists(words, min_size=1, max_size=30))
def test_k_cuts_the_list_of_all(titles: list[str]) -> None:
    items = catalogue(titles)
    everything = items.search("a", len(titles))
    for k in (1, 2, 5):
        assert items.search("a", k) == everything[:k]


def test_exact_names_but_for_capitals_accents_and_punctuation() -> None:
    index = catalogue(["Amélie", "AMELIE!", "Amélie 2"]).names
    assert index.exact("amelie") == [0, 1]
    assert index.exact("ameli") == []


def test_without_names_nothing_is_found() -> None:
    nothing = NameIndex(Ids.range(3), None, np.arange(3, dtype=np.int32))
    assert nothing.search("x", 5) == []
    assert nothing.exact("x") == []


def test_a_query_of_many_words_is_answered_as_quickly() -> None:
    items = catalogue([f"word{i} the a of {i % 7}" for i in range(300)])
    assert items.search("the a of " * 3000, 3) == items.search("the a of", 3) == [0, 1, 2]


def test_a_number_finds_the_item_with_this_id_before_titles() -> None:
    catalogue = Catalogue(
        Ids.of([7, 12, 1984], "item"), Texts.of(["12 Monkeys", "Alien", ""]), np.ones(3, int), 5
    )
    assert catalogue.search("12", 5) == [1, 0]
    assert catalogue.search("1984", 5) == [2]
    assert catalogue.search("99999999999999999999", 5) == []
