"""Splits: equal to the naive ones, whatever the ids and the order of rows; and what holds for any table."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, assume, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from mrfrec import DataError, Interactions, MrfrecError
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids
from mrfrec.evaluation.splits import (
    SEED,
    Questions,
    Split,
    by_time,
    given,
    leave_out,
    strong_generalisation,
    strong_rows,
)
from mrfrec.io.tables import read_events, read_interactions

import naive_evaluation as naive
from naive_evaluation import Pair, Sets

SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Tables, and splits as sets of ids.


def table(rows: Sequence[Pair], times: Sequence[Any] | None = None) -> pl.DataFrame:
    columns = {"user": [user for user, _ in rows], "item": [item for _, item in rows]}
    return pl.DataFrame(columns if times is None else {**columns, "time": list(times)})


def events_of(rows: Sequence[Pair], times: Sequence[Any] | None = None) -> Events:
    return read_events(table(rows, times), time=times is not None)


def interactions_of(rows: Sequence[Pair]) -> Interactions:
    return read_interactions(table(rows))


def pairs_of(events: Events, rows: Any = None) -> list[Pair]:
    chosen = range(len(events)) if rows is None else rows.tolist()
    return [(events.users[int(events.user[row])], events.items[int(events.item[row])]) for row in chosen]


def sets_of(matrix: sp.csr_array, users: Ids, items: Ids) -> Sets:
    """User → items, also of users who have none."""
    assert matrix.shape == (len(users), len(items))
    assert (matrix.data == 1).all()
    borders = matrix.indptr.tolist()
    return {
        user: {items[i] for i in matrix.indices[borders[u] : borders[u + 1]].tolist()}
        for u, user in enumerate(users)
    }


def trained(split: Split) -> Sets:
    return sets_of(split.training.matrix, split.training.users, split.training.items)


def shown(split: Split, questions: Questions | None = None) -> Sets:
    questions = questions or split.test
    return sets_of(questions.shown, questions.users, split.training.items)


def targets(split: Split, questions: Questions | None = None) -> Sets:
    questions = questions or split.test
    return sets_of(questions.targets, questions.users, split.training.items)


def pairs(sets: Sets) -> set[Pair]:
    return {(user, item) for user, items in sets.items() for item in items}


def assert_asks(split: Split, questions: Questions | None, expected: naive.Asked) -> None:
    assert questions is not None
    assert shown(split, questions) == expected.shown
    assert targets(split, questions) == expected.targets
    assert list(questions.users) == sorted(expected.targets)
    assert questions.left_out == expected.left_out


def assert_is_strong(split: Split, expected: naive.Strong) -> None:
    assert trained(split) == expected.training
    assert list(split.training.items) == sorted(expected.items)
    assert_asks(split, split.validation, expected.validation)
    assert_asks(split, split.test, expected.test)


def random_rows(seed: int, name: Callable[[int], Any] = int, users: int = 60, items: int = 40) -> list[Pair]:
    """Uneven users and items, rows in no order; some users have few items, some items one user."""
    rng = np.random.default_rng(seed)
    liked = rng.beta(0.5, 2.5, items)
    busy = rng.choice([0.3, 1.0, 2.0], users)
    used = rng.random((users, items)) < np.outer(busy, liked)
    found = [(name(int(u)), name(int(i))) for u, i in zip(*np.nonzero(used), strict=True)]
    return [found[place] for place in rng.permutation(len(found))]


NAMES: dict[str, Callable[[int], Any]] = {
    "integers": lambda number: number,
    "negative integers": lambda number: 7 * (20 - number),
    "integers beyond 32 bits": lambda number: 2**31 - 15 + number,
    "large integers of both signs": lambda number: (number - 20) * 2**40,
    "integers beyond 63 bits": lambda number: 2**63 - 15 + number,
    "digits as strings": lambda number: str(number + 85),
    "digits as strings, some negative": lambda number: str(3 * number - 60),
    "strings with zeros before": lambda number: ["", "0", "00"][number % 3] + str(number),
    "letters of all kinds": lambda number: (
        "aZ~é_€Б\U0001f600"[number % 8] + "zA9"[number // 8 % 3] + str(number)
    ),
}
named = pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))


# Strong generalisation: equal to the naive one.


def test_the_published_random_numbers_on_a_table_small_enough_to_check() -> None:
    """Ten users with the items 0 to 9, in this order: `np.random.seed(98765)`, as the notebook draws."""
    rows = [(user, item) for user in range(10) for item in range(10)]
    events = events_of(rows)
    found = strong_rows(events, 2)
    assert found["users"].tolist() == [8, 7, 1, 2, 0, 6, 9, 4, 3, 5]
    assert naive.sets(pairs_of(events, found["validation targets"])) == {4: {7, 8}, 9: {1, 3}}
    assert naive.sets(pairs_of(events, found["test targets"])) == {3: {7, 8}, 5: {1, 3}}
    assert naive.sets(pairs_of(events, found["test shown"])) == {
        3: {0, 1, 2, 3, 4, 5, 6, 9},
        5: {0, 2, 4, 5, 6, 7, 8, 9},
    }


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_rows_decides_what_is_hidden(seed: int) -> None:
    rows = random_rows(7)
    shuffled = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]
    split = strong_generalisation(events_of(rows), 15, min_items=0)
    other = strong_generalisation(events_of(shuffled), 15, min_items=0)
    assert_is_strong(other, naive.strong_generalisation(shuffled, 15))
    assert trained(other) == trained(split)
    assert targets(other) != targets(split)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("hidden", [0.1, 0.29, 0.99])
def test_other_seeds_and_shares_equal_naive(seed: int, hidden: float) -> None:
    rows = random_rows(9)
    split = strong_generalisation(events_of(rows), 20, min_items=0, hidden=hidden, seed=seed)
    assert_is_strong(split, naive.strong_generalisation(rows, 20, hidden, seed))


def test_titles_go_with_the_items() -> None:
    rows = random_rows(13)
    frame = table(rows).with_columns(title=pl.format("item {}", "item"))
    split = strong_generalisation(read_events(frame), 12, min_users=3)
    assert split.training.titles is not None
    assert list(split.training.titles) == [f"item {item}" for item in split.training.items]


# Strong generalisation: users and items that drop out.


def test_repeated_rows_count_once_where_they_stood_first() -> None:
    rows = random_rows(15)
    rng = np.random.default_rng(0)
    again = [rows[place] for place in rng.choice(len(rows), 80)]
    repeated = rows[:200] + again + rows[200:]
    events = events_of(repeated)
    unique = naive.first_of_each_pair(repeated)
    assert pairs_of(events) == unique
    assert events.repeated == 80
    assert_is_strong(
        strong_generalisation(events, 12, min_users=3, min_items=6),
        naive.strong_generalisation(naive.filtered(unique, 3, 6), 12),
    )


# What cannot be split.


WRONG: list[tuple[Callable[[Events], Split], str]] = [
    (lambda events: strong_generalisation(events, 30), "2 × 30 users cannot be held out of 60"),
    (lambda events: strong_generalisation(events, 0), "heldout must be a whole number"),
    (lambda events: strong_generalisation(events, 5, hidden=1.0), "hidden must be above 0 and below 1"),
    (
        lambda events: strong_generalisation(events, 5, hidden=0.01),
        "nothing to ask the 5 validation users",
    ),
    (lambda events: strong_generalisation(events, 5, min_users=-1), "min_users must be a whole number"),
    (lambda events: strong_generalisation(events, 5, min_items=99), "no interactions are left without"),
    (lambda events: strong_generalisation(events, 5, seed=2**32), "seed must be a whole number from 0 to"),
    (lambda events: leave_out(events, seed=-1), "seed must be a whole number from 0 to"),
    (lambda events: leave_out(events, 0), "k must be a whole number, 1 or more"),
    (lambda events: by_time(events, 6), "no user has more than k=6 items"),
    (lambda events: leave_out("ratings.csv"), "events must be Events; got str"),  # type: ignore[arg-type]
    (lambda _: by_time(events_of([(1, 1), (1, 2)])), "a split by time needs times"),
]


@pytest.mark.parametrize(("split", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_split_is_refused(split: Callable[[Events], Split], message: str) -> None:
    events = events_of([(user, item) for user in range(60) for item in range(6)], range(360))
    with pytest.raises(MrfrecError, match=message):
        split(events)


# Tables in files.


@pytest.mark.parametrize("min_items", [0, 5])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@named
def test_strong_split_of_a_file_equals_naive(
    name: Callable[[int], Any], suffix: str, min_items: int, tmp_path: Path
) -> None:
    """In CSV files, ids that are all integers as integers are written become integers."""
    rows = random_rows(17, name)
    path = write(table(rows), tmp_path / f"events{suffix}")
    if suffix == ".csv":
        rows = as_csv_reads(rows)
    expected = naive.strong_generalisation(naive.filtered(rows, 2, min_items), 12)
    assert min_items or expected.test.left_out  # some have too few items
    assert_is_strong(strong_generalisation(read_events(path), 12, min_users=2, min_items=min_items), expected)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_order_of_many_rows_is_kept(suffix: str, tmp_path: Path) -> None:
    """More than one batch of rows."""
    rng = np.random.default_rng(0)
    pair = rng.permutation(600_000)
    frame = pl.DataFrame({"user": pair // 1000, "item": pair % 1000})
    events = read_events(write(frame, tmp_path / f"many{suffix}"))
    np.testing.assert_array_equal(events.user, pair // 1000)
    np.testing.assert_array_equal(events.item, pair % 1000)


def write(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def as_csv_reads(rows: Sequence[Pair]) -> list[Pair]:
    def column(ids: list[Any]) -> list[Any]:
        texts = [str(name) for name in ids]
        is_integer = all(text.lstrip("-").isdigit() and str(int(text)) == text for text in texts)
        return [int(text) for text in texts] if is_integer else texts

    users, items = column([user for user, _ in rows]), column([item for _, item in rows])
    return list(zip(users, items, strict=True))


# Leave k out.


@named
@pytest.mark.parametrize("k", [1, 3])
def test_leave_out_hides_k_of_every_user_with_more(name: Callable[[int], Any], k: int) -> None:
    rows = random_rows(22, name)
    split = leave_out(events_of(rows), k)
    had, kept = naive.sets(rows), trained(split)
    assert {user: len(items) for user, items in kept.items()} == {
        user: len(items) - k if len(items) > k else len(items) for user, items in had.items()
    }
    assert any(len(items) <= k for items in had.values())
    hidden = [(user, item) for user, item in rows if item not in kept[user]]
    assert_asks(split, split.test, naive.ask([pair for pair in rows if pair not in set(hidden)], hidden))
    assert set(split.training.items) == {item for _, item in pairs(kept)}
    assert split.validation is None


def test_leave_out_drops_targets_nobody_is_trained_with() -> None:
    """Both have "x"; one of "x" and what is their own is hidden, and what is their own is no target."""
    rows = [(user, item) for user in "abcdefgh" for item in ("x", f"of {user}")]
    split = leave_out(events_of(rows), 1)
    kept = trained(split)
    assert pairs(targets(split)) == {(user, "x") for user in kept if kept[user] == {f"of {user}"}}
    assert split.test.left_out == 8 - len(split.test) > 0


def test_leave_out_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    events = events_of(random_rows(23))
    first, again, other = leave_out(events), leave_out(events, seed=SEED), leave_out(events, seed=1)
    assert targets(first) == targets(again)
    assert targets(first) != targets(other)


def test_leave_out_hides_every_item_as_often() -> None:
    rows = [(user, item) for user in range(600) for item in range(4)]
    split = leave_out(events_of(rows), 1)
    often = np.bincount(split.test.targets.indices)
    assert often.sum() == 600
    assert (abs(often - 150) < 50).all()  # 4.7 standard deviations


def test_users_with_k_items_or_fewer_keep_them_all() -> None:
    rows = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("b", "z"), ("c", "z")]
    for split in (leave_out(events_of(rows), 2), by_time(events_of(rows, range(6)), 2)):
        kept = trained(split)
        assert (kept["a"], kept["c"], len(kept["b"])) == ({"x", "y"}, {"z"}, 1)
        assert list(split.test.users) == ["b"]
        assert split.test.left_out == 2


def test_nothing_hidden_that_is_known_is_refused() -> None:
    """The latest of each is an item only they have."""
    rows = [("a", "x"), ("b", "x"), ("a", "of a"), ("b", "of b")]
    with pytest.raises(DataError, match="none of 2 test users has a target"):
        by_time(events_of(rows, [1, 1, 2, 2]))


# By time.


def days(numbers: Sequence[int]) -> list[datetime.date]:
    return [datetime.date(2019, 12, 30) + datetime.timedelta(days=number) for number in numbers]


def moments(numbers: Sequence[int]) -> list[datetime.datetime]:
    start = datetime.datetime(2019, 12, 31, 23, 59, 58)
    return [start + datetime.timedelta(milliseconds=300 * number) for number in numbers]


TIMES: dict[str, Callable[[Sequence[int]], list[Any]]] = {
    "integers": list,
    "integers before 1970": lambda numbers: [number - 4 for number in numbers],
    "seconds since 1970": lambda numbers: [1_575_801_000 + number for number in numbers],
    "milliseconds since 1970": lambda numbers: [1_575_801_000_123 + number for number in numbers],
    "floats": lambda numbers: [number / 3 - 1 for number in numbers],
    "dates": days,
    "moments": moments,
    "digits": lambda numbers: [str(number + 7) for number in numbers],  # "10" after "9"
    "ISO dates": lambda numbers: [day.isoformat() for day in days(numbers)],
    "ISO moments": lambda numbers: [when.isoformat(timespec="milliseconds") for when in moments(numbers)],
    "ISO moments with a blank": lambda numbers: [when.isoformat(" ", "seconds") for when in moments(numbers)],
}


@pytest.mark.parametrize("suffix", [None, ".csv"])
@pytest.mark.parametrize("kind", TIMES)
def test_split_by_time_equals_naive(kind: str, suffix: str | None, tmp_path: Path) -> None:
    """With many ties."""
    rows = random_rows(25)
    numbers = np.random.default_rng(0).integers(0, 12, len(rows)).tolist()
    times = TIMES[kind](numbers)
    frame = table(rows, times)
    split = by_time(
        read_events(frame if suffix is None else write(frame, tmp_path / f"a{suffix}"), time=True), 2
    )
    order = [int(time) for time in times] if kind == "digits" else times
    training, asked = naive.by_time(rows, order, 2)
    assert trained(split) == training
    assert_asks(split, split.test, asked)
    assert asked.left_out


@pytest.mark.parametrize("options", [{"binary": False}, {"half_life": "30s"}])
def test_split_by_time_refuses_values_from_after_the_cut(options: dict[str, Any]) -> None:
    rows = [("1", "A", 1, 1.0), ("1", "B", 50, 1.0), ("1", "A", 100, 9.0), ("2", "B", 1, 1.0)]
    table = pl.DataFrame(rows, ["user", "item", "time", "rating"], orient="row")
    with pytest.raises(DataError, match="1 pairs have values that include later rows"):
        by_time(read_events(table, time=True, **options))
    first = by_time(read_events(table, time=True, duplicates="first", **options))
    assert first.test.shown.data == pytest.approx([1.0 if "binary" in options else 2 ** (-99 / 30)])
    assert len(leave_out(read_events(table, time=True, **options)).test)  # which knows no earlier and later


# Given.


TRAINING = [("a", "x"), ("a", "y"), ("b", "y"), ("c", "x"), ("c", "z")]


def test_given_test_users_are_shown_their_training_rows() -> None:
    split = given(interactions_of(TRAINING), interactions_of([("c", "y"), ("a", "z")]))
    assert trained(split) == naive.sets(TRAINING)
    assert shown(split) == {"a": {"x", "y"}, "c": {"x", "z"}}
    assert targets(split) == {"a": {"z"}, "c": {"y"}}
    assert split.test.left_out == 0
    assert split.validation is None


def test_given_new_users_are_shown_what_is_given() -> None:
    new = [("e", "y"), ("d", "x"), ("d", "z"), ("f", "x")]
    split = given(
        interactions_of(TRAINING), interactions_of([("d", "y"), ("e", "x"), ("e", "z")]), interactions_of(new)
    )
    assert trained(split) == naive.sets(TRAINING)
    assert shown(split) == {"d": {"x", "z"}, "e": {"y"}}
    assert targets(split) == {"d": {"y"}, "e": {"x", "z"}}
    assert split.test.left_out == 1


def test_given_targets_nobody_is_trained_with_stay_targets() -> None:
    split = given(interactions_of(TRAINING), interactions_of([("a", "new"), ("b", "x"), ("b", "aaa")]))
    assert targets(split) == {"a": {"new"}, "b": {"x", "aaa"}}
    assert set(split.training.items) == {"x", "y", "z", "new", "aaa"}
    assert list(split.training.items)[:3] == ["x", "y", "z"]
    assert trained(split) == naive.sets(TRAINING)
    assert shown(split) == {"a": {"x", "y"}, "b": {"y"}}


def test_given_items_that_are_only_shown_are_left_out() -> None:
    split = given(
        interactions_of(TRAINING), interactions_of([("d", "y")]), interactions_of([("d", "x"), ("d", "odd")])
    )
    assert list(split.training.items) == ["x", "y", "z"]
    assert shown(split) == {"d": {"x"}}


GIVEN: list[tuple[list[Pair], list[Pair] | None, str]] = [
    (
        [("a", "z"), ("d", "y"), ("e", "y")],
        None,
        "2 of 3 test users are not in the training data, the f",
    ),
    ([("a", "z"), ("d", "y")], [("d", "x")], "1 of 2 test users are not in what is shown, the first 'a'"),
    ([("d", "y"), ("b", "x")], [("d", "x"), ("b", "z")], "1 of 2 test users are also training users, the f"),
    ([("a", "z"), ("c", "y"), ("c", "z")], None, "1 pairs are both shown and to be guessed, the first 'c'"),
    ([("d", "new")], [("d", "new"), ("d", "x")], "1 pairs are both shown and to be guessed, the first 'd'"),
    ([("d", "y"), ("e", "y")], [("d", "x"), ("e", "odd")], "1 of 2 test users show no item .*first 'e'"),
    ([(2, "z")], None, "the ids of users must be strings, or integers"),
    ([("a", 2)], None, "the ids of items must be strings, or integers"),
    ([("d", "y")], [("d", 2)], "the ids of items must be strings, or integers"),
]


@pytest.mark.parametrize(("asked", "history", "message"), GIVEN)
def test_given_splits_that_make_no_sense_are_refused(
    asked: list[Pair], history: list[Pair] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        given(
            interactions_of(TRAINING), interactions_of(asked), interactions_of(history) if history else None
        )


# Tuning.


def test_a_strong_split_is_tuned_on_its_validation_users() -> None:
    rows = random_rows(28)
    split = strong_generalisation(events_of(rows), 12)
    tuning = split.for_tuning()
    expected = naive.strong_generalisation(naive.filtered(rows, 0, 5), 12)
    assert trained(tuning) == expected.training
    assert_asks(tuning, tuning.test, expected.validation)
    assert_asks(tuning, tuning.validation, expected.validation)  # to stop training by
    test_users = set(expected.users[-12:])
    assert test_users.isdisjoint(tuning.training.users)
    assert test_users.isdisjoint(tuning.test.users)


@pytest.fixture(params=["leave out", "by time", "given"])
def weak(request: pytest.FixtureRequest) -> Split:
    """A split without validation users."""
    rows = random_rows(29)
    times = np.random.default_rng(0).integers(0, 9, len(rows)).tolist()
    if request.param == "leave out":
        return leave_out(events_of(rows), 2)
    if request.param == "by time":
        return by_time(events_of(rows, times), 2)
    training, asked = naive.by_time(rows, times, 2)
    return given(*(interactions_of(sorted(pairs(part))) for part in (training, asked.targets)))


def test_tuning_without_validation_users_hides_a_part_of_the_training_data(weak: Split) -> None:
    tuning = weak.for_tuning()
    had, kept, asked = trained(weak), trained(tuning), targets(tuning)

    def left(count: int) -> int:
        if weak.inner is not None:  # the same once more: two of each
            return count - 2 if count > 2 else count
        return count - max(int(0.1 * count), 1) if count >= 2 else count

    assert {user: len(items) for user, items in kept.items()} == {
        user: left(len(items)) for user, items in had.items()
    }
    assert pairs(kept) | pairs(asked) <= pairs(had)
    assert pairs(kept).isdisjoint(pairs(asked))
    assert shown(tuning) == {user: kept[user] for user in asked}
    assert all(asked.values())
    assert tuning.test.left_out == len(had) - len(asked)
    unknown = pairs(targets(weak))
    assert unknown
    assert unknown.isdisjoint(pairs(kept) | pairs(asked) | pairs(shown(tuning)))


# What must hold for any table.


@st.composite
def tables(draw: Any, users: int = 1, items: int = 1) -> list[Pair]:
    """So many users and items or a few more, with gaps that are few or many, in any order."""
    users, items = draw(st.integers(users, 12)), draw(st.integers(items, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    used = rng.random(users * items) < draw(st.sampled_from([0.3, 0.7, 0.9, 1.0]))
    name = draw(st.sampled_from([int, str, lambda number: f"{10 - number}", lambda number: 3 - number]))
    return [
        (name(pair // items), name(pair % items))
        for pair in rng.permutation(users * items).tolist()
        if used[pair] or pair == 0
    ]


@SETTINGS
@forall(
    tables(users=3, items=5),
    st.integers(1, 2),
    st.integers(0, 3),
    st.integers(0, 6),
    st.sampled_from([0.2, 0.5, 0.9]),
)
def test_strong_split_of_any_table(
    rows: list[Pair], heldout: int, min_users: int, min_items: int, hidden: float
) -> None:
    def split() -> Split:
        return strong_generalisation(
            events_of(rows), heldout, min_users=min_users, min_items=min_items, hidden=hidden
        )

    left = naive.filtered(rows, min_users, min_items)
    n = len({user for user, _ in left})
    expected = naive.strong_generalisation(left, heldout, hidden) if 2 * heldout < n else None
    if expected is None or not expected.validation.targets or not expected.test.targets:
        with pytest.raises(DataError):
            split()
        return
    found = split()
    assert_is_strong(found, expected)
    assert found.validation is not None
    users = [set(part.users) for part in (found.training, found.validation, found.test)]
    assert sum(map(len, users)) == len(set.union(*users))
    for questions in (found.validation, found.test):
        assert pairs(shown(found, questions)).isdisjoint(pairs(targets(found, questions)))


@SETTINGS
@forall(tables(users=3), st.integers(1, 3), st.integers(1, 3))
def test_rows_of_a_strong_split_part_the_table(rows: list[Pair], heldout: int, seed: int) -> None:
    events = events_of(rows)
    assume(2 * heldout < events.n_users)
    found = strong_rows(events, heldout, seed=seed)
    drawn = found.pop("users").tolist()
    assert sorted(drawn) == list(range(events.n_users))
    together = np.concatenate(list(found.values()))
    assert len(np.unique(together)) == len(together)
    known = set(events.item[found["training"]].tolist())
    lost = set(range(len(events))) - set(together.tolist())
    assert all(int(events.item[row]) not in known for row in lost)
    n = len(drawn)
    for part, users in (
        ("training", drawn[: n - 2 * heldout]),
        ("validation shown", drawn[n - 2 * heldout : n - heldout]),
        ("validation targets", drawn[n - 2 * heldout : n - heldout]),
        ("test shown", drawn[n - heldout :]),
        ("test targets", drawn[n - heldout :]),
    ):
        assert set(events.user[found[part]].tolist()) <= set(users)


@SETTINGS
@forall(tables(), st.integers(1, 3), st.data())
def test_split_by_time_of_any_table(rows: list[Pair], k: int, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(-2, 2), min_size=len(rows), max_size=len(rows)))
    events = events_of(rows, times)
    training, asked = naive.by_time(rows, times, k)
    if asked.targets:
        split = by_time(events, k)
        assert trained(split) == training
        assert_asks(split, split.test, asked)
    else:
        with pytest.raises(DataError, match=r"has a target|no user has more than"):
            by_time(events, k)


@SETTINGS
@forall(tables(), st.integers(1, 3), st.integers(0, 5))
def test_leave_out_of_any_table(rows: list[Pair], k: int, seed: int) -> None:
    """Every item has a user with nothing else besides, so that all items stay in the training data."""
    for number, item in enumerate(sorted({item for _, item in rows})):
        rows = [*rows, (type(item)(1000 + number), item)]
    had = naive.sets(rows)
    if all(len(items) <= k for items in had.values()):
        with pytest.raises(DataError, match="no user has more than"):
            leave_out(events_of(rows), k, seed=seed)
        return
    split = leave_out(events_of(rows), k, seed=seed)
    kept = trained(split)
    assert pairs(kept) | pairs(targets(split)) == set(rows)
    assert pairs(kept).isdisjoint(pairs(targets(split)))
    assert {user: len(items) for user, items in targets(split).items()} == {
        user: k for user, items in had.items() if len(items) > k
    }
    assert shown(split) == {user: kept[user] for user in targets(split)}
    assert split.test.left_out == len(had) - len(split.test)


# ── times, seeds and edges ────────────────────────────────────────────────────────────────────────


def timed(times: list[Any]) -> pl.DataFrame:
    return pl.DataFrame({"user": [1] * len(times), "item": range(len(times)), "time": times})


@pytest.mark.parametrize("odd", ["oops", "", "2019-13-40", "nan"])
def test_a_time_that_is_none_is_a_bad_row_among_numbers_and_among_dates(odd: str, tmp_path: Path) -> None:
    for others in (["5", "7"], ["2019-12-08", "2019-12-09T10:30:00+02:00"]):
        path = tmp_path / "a.csv"
        timed([others[0], odd, others[1]]).write_csv(path)
        with pytest.raises(DataError, match=r"row 2: (no time|time neither a number nor a date)"):
            read_events(path, time=True)
        assert len(read_events(path, time=True, on_bad="skip")) == 2
        assert len(read_events(path)) == 3  # nobody asked for times


@pytest.mark.parametrize("batches", [1, 2])
def test_numbers_and_dates_cannot_be_compared(batches: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    timed(["2019-12-08", "1575801000"] if batches == 1 else ["2019-12-08"]).write_csv(paths[0])
    timed(["1575801000"]).write_csv(paths[1])
    with pytest.raises(DataError, match="times are numbers in some rows and dates in others"):
        read_events(paths[:batches], time=True)


def test_short_histories_are_tuned_on_too() -> None:
    training = Interactions(sp.csr_array(np.tri(4)))  # of one to four items
    targets_ = Interactions(sp.csr_array(np.ones((4, 1))), items=[4])
    inner = given(training, targets_).for_tuning()
    assert np.diff(inner.test.targets.indptr).tolist() == [1, 1, 1]
    assert inner.test.left_out == 1
    alone = given(Interactions(sp.csr_array(np.eye(4))), targets_)
    with pytest.raises(DataError, match="nothing to tune on: no training user has two items"):
        alone.for_tuning()


def test_titles_of_items_that_only_targets_have_are_kept() -> None:
    training = Interactions(sp.csr_array([[1, 1]]), [1], ["a", "b"], ["A", "B"])
    targets = Interactions(sp.csr_array([[1]]), [1], ["c"], ["C"])
    split = given(training, targets)
    assert list(split.training.items) == ["a", "b", "c"]
    assert list(split.training.titles or []) == ["A", "B", "C"]
