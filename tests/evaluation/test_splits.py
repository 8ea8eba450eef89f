"""Splits: equal to the naive ones, whatever the ids and the order of rows; and what holds for any table."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, assume, reject, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from mrfrec import DataError, Interactions, MrfrecError
from mrfrec.data.holdout import hashed, owners
from mrfrec.data.ids import Ids
from mrfrec.evaluation import at_time, by_hash, last
from mrfrec.evaluation.questions import SEED, Questions, Split
from mrfrec.evaluation.splits import given, leave_out, part_of, strong_generalisation, strong_parts
from mrfrec.io.features import read_item_features
from mrfrec.io.tables import read_interactions

import naive_evaluation as naive
from naive_evaluation import Pair, Sets

# Tables that are drawn have few users, items and times, which reading finds doubtful.
pytestmark = [
    pytest.mark.filterwarnings("ignore:column '(user|item)' has one"),
    pytest.mark.filterwarnings("ignore:all times of"),
    pytest.mark.filterwarnings("ignore:each of"),
]

SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Tables, and splits as sets of ids.


def table(rows: Sequence[Pair], times: Sequence[Any] | None = None) -> pl.DataFrame:
    columns = {"user": [user for user, _ in rows], "item": [item for _, item in rows]}
    return pl.DataFrame(columns if times is None else {**columns, "time": list(times)})


def interactions_of(rows: Sequence[Pair], times: Sequence[Any] | None = None) -> Interactions:
    return read_interactions(table(rows, times), time=times is not None)


def pairs_of(data: Interactions, chosen: Any) -> list[Pair]:
    places = zip(owners(data.matrix)[chosen], data.matrix.indices[chosen], strict=True)
    return [(data.users[int(user)], data.items[int(item)]) for user, item in places]


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


def asked_of(split: Split, questions: Questions | None = None) -> naive.Asked:
    """Return what is asked of the test users, or of others."""
    questions, items = questions or split.test, split.training.items
    shown, targets = (sets_of(X, questions.users, items) for X in (questions.shown, questions.targets))
    assert list(questions.users) == sorted(targets)
    return naive.Asked(shown, targets, questions.left_out)


def pairs(sets: Sets) -> set[Pair]:
    return {(user, item) for user, items in sets.items() for item in items}


def assert_is_strong(split: Split, expected: naive.Strong) -> None:
    assert trained(split) == expected.training
    assert list(split.training.items) == sorted(expected.items)
    assert asked_of(split, split.validation) == expected.validation
    assert asked_of(split) == expected.test


def random_rows(seed: int, users: int = 60, items: int = 40) -> list[Pair]:
    """Uneven users and items, rows in no order; some users have few items, some items one user."""
    rng = np.random.default_rng(seed)
    liked = rng.beta(0.5, 2.5, items)
    busy = rng.choice([0.3, 1.0, 2.0], users)
    used = rng.random((users, items)) < np.outer(busy, liked)
    found = [(int(u), int(i)) for u, i in zip(*np.nonzero(used), strict=True)]
    return [found[place] for place in rng.permutation(len(found))]


NAMES: dict[str, Callable[[int], Any]] = {
    "integers": int,
    "large integers of both signs": lambda number: (number - 5) * 2**40,
    "integers beyond 63 bits": lambda number: 2**63 - 5 + number,
    "digits as strings, some negative": lambda number: str(3 * number - 15),
    "strings with zeros before": lambda number: ["", "0", "00"][number % 3] + str(number),
    "letters of all kinds": lambda number: (
        "aZ~é_€Б\U0001f600"[number % 8] + "zA9"[number // 8 % 3] + str(number)
    ),
}


# Strong generalisation: equal to the naive one.


def parts_of_strong(data: Interactions, heldout: int, seed: int = SEED) -> dict[str, Any]:
    """Return which pairs are in each part."""
    drawn, held = strong_parts(data, heldout, seed=seed)
    found = {"training": held.training}
    for name, users in (("validation", drawn[-2 * heldout : -heldout]), ("test", drawn[-heldout:])):
        own = np.isin(owners(data.matrix), users)
        found |= {f"{name} shown": held.shown & own, f"{name} targets": held.hidden & own}
    return found


def test_the_published_random_numbers_on_a_table_small_enough_to_check() -> None:
    """Ten users with the items 0 to 9, in this order: `np.random.seed(98765)`, as the notebook draws."""
    rows = [(user, item) for user in range(10) for item in range(10)]
    data = interactions_of(rows)
    parts = parts_of_strong(data, 2)
    assert strong_parts(data, 2)[0].tolist() == [8, 7, 1, 2, 0, 6, 9, 4, 3, 5]
    assert naive.sets(pairs_of(data, parts["validation targets"])) == {4: {7, 8}, 9: {1, 3}}
    assert naive.sets(pairs_of(data, parts["test targets"])) == {3: {7, 8}, 5: {1, 3}}
    assert naive.sets(pairs_of(data, parts["test shown"])) == {
        3: {0, 1, 2, 3, 4, 5, 6, 9},
        5: {0, 2, 4, 5, 6, 7, 8, 9},
    }


def test_titles_go_with_the_items() -> None:
    rows = random_rows(13)
    frame = table(rows).with_columns(title=pl.format("item {}", "item"))
    split = strong_generalisation(frame, 12, min_users=3)
    assert split.training.titles is not None
    assert list(split.training.titles) == [f"item {item}" for item in split.training.items]


# What cannot be split.


WRONG: list[tuple[Callable[[Interactions], Split], str]] = [
    (lambda events: strong_generalisation(events, 30), "2 × 30 users cannot be held out of 60"),
    (lambda events: strong_generalisation(events, 0), "heldout must be a whole number"),
    (lambda events: strong_generalisation(events, 5, hidden=1.0), "hidden must be above 0 and below 1"),
    (lambda events: strong_generalisation(events, 5, hidden=0.01), "nothing to ask the 5 validation users"),
    (lambda events: strong_generalisation(events, 5, min_users=-1), "min_users must be a whole number"),
    (lambda events: strong_generalisation(events, 5, min_items=99), "no interactions are left without"),
    (lambda events: strong_generalisation(events, 5, seed=2**32), "seed must be a whole number from 0 to"),
    (lambda events: leave_out(events, seed=-1), "seed must be a whole number from 0 to"),
    (lambda events: leave_out(events, 0), "k must be a whole number, 1 or more"),
    (lambda events: last(events, 6), "no user has more than k=6 items"),
    (lambda events: leave_out("ratings.csv"), "ratings.csv"),
    (lambda _: last(interactions_of([(1, 1), (1, 2)])), "a split by time needs times"),
    (lambda _: at_time(interactions_of([(1, 1), (1, 2)])), "a split by time needs times"),
    (lambda _: at_time(interactions_of([(1, 1), (1, 2)], [3, 3])), "needs times, and all are the same"),
    (lambda events: at_time(events, 0), "at must be a date, a time, or above 0 and below 1"),
    (lambda events: at_time(events, 1.0), "at must be a date, a time, or above 0 and below 1"),
    (lambda events: at_time(events, True), "at must be a date, a time, or above 0 and below 1"),
    (lambda events: at_time(events, "0.1"), "at must be a date, 2026-11-16, or a time"),
    (lambda events: at_time(events, "1970-01-01"), "at must be after 1970-01-01 00:00 and no later than"),
    (lambda events: at_time(events, "1971-01-01"), "no later than 1970-01-01 00:05:59, the last event"),
    (
        lambda _: at_time(interactions_of([(1, 1), (1, 2)], [3, 4])),
        "nothing to ask about after 1970-01-01 00:00:04",
    ),
    (lambda _: by_hash(square(30, 3)), "0 test users can be held out of 30, of whom 0 have 5 items"),
    (lambda _: by_hash(square(3, 6), 0.999999), "users can be held out of 3, of whom 3 have 5 items"),
    (lambda _: by_hash(square(3, 6), 0.5, validation=True), r"heldout must be above 0 and below 0\.5"),
    (lambda _: by_hash(square(50, 6), hidden=0.1), "nothing to ask the held-out users"),
    (lambda _: given(square(4, 1), interactions_of([(0, 9)])).for_tuning(), "no training user has two items"),
]


def square(users: int, items: int) -> Interactions:
    return interactions_of([(user, item) for user in range(users) for item in range(items)])


@pytest.mark.parametrize(("split", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_split_is_refused(split: Callable[[Interactions], Split], message: str) -> None:
    events = interactions_of([(user, item) for user in range(60) for item in range(6)], range(360))
    with pytest.raises(MrfrecError, match=message):
        split(events)


@pytest.mark.parametrize("split", [strong_generalisation, leave_out, at_time, last, by_hash])
def test_the_order_of_rows_means_nothing(split: Callable[[Any], Split]) -> None:
    rows = random_rows(3)
    times = np.random.default_rng(1).integers(0, 12, len(rows))
    frame = table(rows, times.tolist())
    one, two = split(frame), split(frame.sample(fraction=1, shuffle=True, seed=2))
    assert one.training.fingerprint == two.training.fingerprint
    for name in ("shown", "targets"):
        assert (getattr(one.test, name) != getattr(two.test, name)).nnz == 0
    for name in ("shown_times", "situation"):
        assert np.array_equal(getattr(one.test, name), getattr(two.test, name))


@pytest.mark.parametrize("split", [strong_generalisation, leave_out, at_time, last, by_hash])
def test_a_table_is_split_as_what_is_read_from_it(split: Callable[[Any], Split], tmp_path: Path) -> None:
    rows = random_rows(3)
    frame = table(rows, list(range(len(rows))))
    frame.write_csv(tmp_path / "events.csv")
    made = [split(each) for each in (frame, tmp_path / "events.csv", read_interactions(frame))]
    assert len({each.training.fingerprint for each in made}) == 1
    assert asked_of(made[0]) == asked_of(made[1]) == asked_of(made[2])


# Leave k out.


def test_leave_out_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    events = interactions_of(random_rows(23))
    first, again, other = leave_out(events), leave_out(events, seed=SEED), leave_out(events, seed=1)
    assert asked_of(first) == asked_of(again) != asked_of(other)


def test_leave_out_hides_every_item_as_often() -> None:
    rows = [(user, item) for user in range(600) for item in range(4)]
    split = leave_out(interactions_of(rows), 1)
    often = np.bincount(split.test.targets.indices)
    assert often.sum() == 600
    assert (abs(often - 150) < 50).all()  # 4.7 standard deviations


# By time.


def days(numbers: Sequence[int]) -> list[datetime.date]:
    return [datetime.date(2019, 12, 30) + datetime.timedelta(days=number) for number in numbers]


def moments(numbers: Sequence[int]) -> list[datetime.datetime]:
    start = datetime.datetime(2019, 12, 31, 23, 59, 58)
    return [start + datetime.timedelta(milliseconds=300 * number) for number in numbers]


TIMES: dict[str, Callable[[Sequence[int]], list[Any]]] = {
    "integers": lambda numbers: [number - 4 for number in numbers],
    "milliseconds since 1970": lambda numbers: [1_575_801_000_123 + number for number in numbers],
    "floats": lambda numbers: [number / 3 - 1 for number in numbers],
    "dates": days,
    "moments": moments,
    "digits": lambda numbers: [str(number + 7) for number in numbers],  # "10" after "9"
    "ISO dates": lambda numbers: [day.isoformat() for day in days(numbers)],
    "ISO moments": lambda numbers: [when.isoformat(timespec="milliseconds") for when in moments(numbers)],
    "ISO moments with a blank": lambda numbers: [when.isoformat(" ", "seconds") for when in moments(numbers)],
}


@pytest.mark.parametrize("kind", TIMES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@forall(st.data(), st.integers(1, 3))
def test_split_by_time_of_any_table(kind: str, data: st.DataObject, k: int) -> None:
    """With many ties."""
    rows = data.draw(tables())
    times = TIMES[kind](data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows))))
    events = interactions_of(rows, times)
    training, asked = naive.last(rows, [int(time) for time in times] if kind == "digits" else times, k)
    if len(set(times)) == 1:
        with pytest.raises(DataError, match="all are the same"):
            last(events, k)
        return
    if asked.targets:
        split = last(events, k)
        assert (trained(split), asked_of(split)) == (training, asked)
    else:
        with pytest.raises(DataError, match=r"has a target|no user has more than"):
            last(events, k)


def test_a_pair_is_where_its_last_event_is() -> None:
    rows = [("a", "x", 1), ("a", "y", 2), ("b", "y", 2), ("b", "x", 3), ("a", "x", 9), ("a", "x", 1)]
    split = at_time(pl.DataFrame(rows, ["user", "item", "time"], orient="row"), "1970-01-01T00:00:05")
    assert pairs(trained(split)) == {("a", "y"), ("b", "y"), ("b", "x")}
    assert asked_of(split).targets == {"a": {"x"}}


# At one time.


def micros(times: Sequence[Any]) -> list[int]:
    """Return seconds in microseconds."""
    return [1_000_000 * time for time in times]


def times_of(data: Interactions) -> Any:
    """Return the times, also where all are the same."""
    return None if data.origin is None else data.origin.times


def timed_pairs(matrix: sp.csr_array, times: Any, users: Ids, items: Ids) -> dict[Pair, int]:
    assert times.dtype == np.int64
    assert len(times) == matrix.nnz
    where = zip(*matrix.tocoo().coords, strict=True)
    return {(users[int(u)], items[int(i)]): int(time) for (u, i), time in zip(where, times, strict=True)}


def assert_is_at(split: Split, expected: naive.InTime) -> None:
    X, test = split.training, split.test
    assert timed_pairs(X.matrix, times_of(X), X.users, X.items) == expected.training
    assert timed_pairs(test.shown, test.shown_times, test.users, X.items) == expected.shown
    assert sets_of(test.targets, test.users, X.items) == expected.targets
    assert test.situation is not None
    assert dict(zip(test.users, test.situation.tolist(), strict=True)) == expected.situation
    found = test.left_out, test.new_items, test.new_targets
    assert found == (expected.left_out, expected.new_items, expected.new_targets)


@SETTINGS
@forall(st.data(), st.sampled_from([2, 6, 100]), st.floats(0.01, 0.99), st.booleans())
def test_split_at_a_time_of_any_table(data: st.DataObject, most: int, share: float, dated: bool) -> None:
    """With few times that many events share, or many; once more to tune on."""
    rows = data.draw(tables(users=3))
    times = data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))
    assume(len(set(times)) > 1)
    events = interactions_of(rows, times)
    at: Any = share
    if dated:
        cut = data.draw(st.integers(min(times) + 1, max(times)))
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=cut)
        share = len([time for time in times if time >= cut]) / len(times)
    else:
        cut = naive.cut_after(times, share)
    expected = naive.at_time(rows, micros(times), 1_000_000 * cut)
    if not expected.targets:
        with pytest.raises(DataError, match="nothing to ask about after 1970-01-01 00:0"):
            at_time(events, at)
        return
    split = at_time(events, at)
    assert_is_at(split, expected)
    rows = [pair for pair, time in zip(rows, times, strict=True) if time < cut]
    times = [time for time in times if time < cut]
    if len(set(times)) == 1:
        with pytest.raises(DataError, match="all are the same"):
            split.for_tuning()
        return
    cut = naive.cut_after(times, share)
    expected = naive.at_time(rows, micros(times), 1_000_000 * cut)
    if expected.targets:
        assert_is_at(split.for_tuning(), expected)


@pytest.mark.parametrize("at", [0.1, datetime.datetime(1970, 1, 1, 0, 14)])
def test_several_cuts_ask_about_one_period_after_the_other(at: Any) -> None:
    rows = random_rows(11)
    times = np.random.default_rng(2).integers(0, 1000, len(rows)).tolist()
    folds = at_time(interactions_of(rows, times), at, folds=3)
    shares = [0.1 * number for number in (3, 2, 1)]
    cuts = [naive.cut_after(times, share) for share in shares]
    if at != 0.1:
        cuts = [840 - number * (max(times) - 840) for number in (2, 1, 0)]  # equally long
    ends = [*cuts[1:], max(times) + 1]
    for split, cut, end in zip(folds, cuts, ends, strict=True):
        until = [(pair, time) for pair, time in zip(rows, times, strict=True) if time < end]
        pairs, at_times = [pair for pair, _ in until], [time for _, time in until]
        expected = naive.at_time(pairs, micros(at_times), 1_000_000 * cut)
        assert expected.targets
        assert_is_at(split, expected)
    assert folds[-1].whole is not None
    assert folds[0].whole is None  # a fit to all the data would have what came after its end
    assert [split.name for split in folds[1:]] == [folds[1].name, folds[2].name]


def test_a_split_at_a_time_says_what_it_is() -> None:
    rows = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "x"), ("b", "new"), ("c", "x"), ("c", "y")]
    times = ["2018-03-01T11:00:00", "2018-03-01T12:00:00", *["2018-03-01"] * 2, *["2018-03-02"] * 2]
    with_z = [("c", "z"), *rows]
    split = at_time(interactions_of(with_z, ["2018-02-01", *times, "2018-03-03"]), "2018-03-01T12:00")
    assert split.name == "cut at 2018-03-01 12:00"
    assert str(split) == (
        "4 events before; 2 users who come back and 0 in a visit asked about what came after; "
        "1 item new since"
    )
    one = at_time(interactions_of(with_z[:-1], ["2018-02-01", *times]), "2018-03-02")
    assert "; 1 user who comes back and 0 in a visit asked" in str(one)
    late = datetime.datetime(2018, 3, 1, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert at_time(interactions_of(with_z, ["2018-02-01", *times, "2018-03-03"]), late).name == split.name


@pytest.mark.parametrize("tuned", [False, True])
def test_nothing_later_is_shown_than_is_asked_for_last(tuned: bool) -> None:
    rows = random_rows(5)
    times = np.random.default_rng(3).integers(0, 9, len(rows)).tolist()
    split = last(interactions_of(rows, times), 2)
    if tuned:
        split = split.for_tuning()
    when = dict(zip(rows, micros(times), strict=True))
    test, items = split.test, split.training.items
    X = split.training
    assert timed_pairs(X.matrix, times_of(X), X.users, X.items) == {
        pair: when[pair] for pair in pairs(trained(split))
    }
    shown = timed_pairs(test.shown, test.shown_times, test.users, items)
    assert shown == {pair: when[pair] for pair in shown}


def test_splits_that_hide_random_items_leave_out_times() -> None:
    """A model that learned from times what comes next would answer another question."""
    rows = hash_rows(texts=False)
    for split in (strong_generalisation, leave_out):
        found, plain = (split(interactions_of(rows, times), 20) for times in (range(len(rows)), None))
        assert times_of(found.training) is None
        assert found.test.shown_times is None
        assert (found.test.targets != plain.test.targets).nnz == 0
        assert found.name == f"{plain.name}; times left out"


def test_times_stay_with_what_is_shown() -> None:
    """By hash, given, with features, with new items, hidden once more to tune on: each pair has its time."""
    rows = hash_rows(texts=False)
    rows = [rows[place] for place in np.random.default_rng(4).permutation(len(rows))]
    when = {pair: 1_000_000 * place for place, pair in enumerate(rows)}
    data = interactions_of(rows, range(len(rows)))
    cut = at_time(data, 0.3)
    items = [*cut.training.items, 10**6]
    features = read_item_features(pl.DataFrame({"item": items, "kind": [f"kind {i % 5}" for i in items]}))
    parts = parts_of_strong(data, 20)
    shown, targets, without = (part_of(data, parts[x]) for x in ("test shown", "test targets", "training"))
    weak = by_hash(data, 0.15)
    splits = {
        "by hash": weak, "with validation": by_hash(data, 0.15, validation=True),
        "strong, as given": given(without, targets, shown), "features": cut.with_features(features),
        "new items": cut.with_new_items(0.2)[0], "to tune": weak.for_tuning(), "cut": cut,
    }  # fmt: skip
    for name, split in splits.items():
        X = split.training
        found = timed_pairs(X.matrix, times_of(X), X.users, X.items)
        assert found == {pair: when[pair] for pair in found}, name
        for asked in filter(None, (split.test, split.validation)):
            found = timed_pairs(asked.shown, asked.shown_times, asked.users, X.items)
            assert found == {pair: when[pair] for pair in found}, name
    assert splits["features"].training.n_items == cut.training.n_items + 1
    of_new = cut.with_new_items(0.2)[1]
    assert of_new.situation is not None
    situation = dict(zip(cut.test.users, cut.test.situation, strict=True))  # type: ignore[arg-type]
    assert [situation[user] for user in of_new.users] == of_new.situation.tolist()


def test_questions_with_other_times_than_entries_are_refused() -> None:
    X = sp.csr_array(np.eye(3, dtype=np.float32))
    for name in ("shown_times", "situation"):
        with pytest.raises(DataError, match=f"{name} must have 3 entries; got 2"):
            Questions(Ids.range(3), X, X, **{name: np.zeros(2, np.int64)})  # type: ignore[arg-type]


# Given.


TRAINING = [("a", "x"), ("a", "y"), ("b", "y"), ("c", "x"), ("c", "z")]


@pytest.mark.parametrize(
    ("targets", "shown", "expected"),
    [
        # Without what is shown, the test users are training users, and show their training rows.
        (["cy", "az"], None, naive.Asked({"a": {*"xy"}, "c": {*"xz"}}, {"a": {"z"}, "c": {"y"}}, 0)),
        # New users show what is given; "f" has no target.
        (
            ["dy", "ex", "ez"],
            ["ey", "dx", "dz", "fx"],
            naive.Asked({"d": {*"xz"}, "e": {"y"}}, {"d": {"y"}, "e": {*"xz"}}, 1),
        ),
        # Targets nobody is trained with stay targets; items that are only shown are left out.
        (["aN", "bx", "bA"], None, naive.Asked({"a": {*"xy"}, "b": {"y"}}, {"a": {"N"}, "b": {*"xA"}}, 0)),
        (["dy"], ["dx", "dO"], naive.Asked({"d": {"x"}}, {"d": {"y"}}, 0)),
    ],
)
def test_given_splits_are_taken_as_they_are(
    targets: list[str], shown: list[str] | None, expected: naive.Asked
) -> None:
    wanted, seen = ([(pair[0], pair[1]) for pair in part or ()] for part in (targets, shown))
    split = given(
        interactions_of(TRAINING), interactions_of(wanted), None if shown is None else interactions_of(seen)
    )
    assert (trained(split), asked_of(split)) == (naive.sets(TRAINING), expected)
    assert list(split.training.items) == [*"xyz", *sorted({item for _, item in wanted} - {*"xyz"})]
    assert split.validation is None


GIVEN: list[tuple[list[Pair], list[Pair] | None, str]] = [
    ([("a", "z"), ("d", "y"), ("e", "y")], None, "2 of 3 test users show no item .*first 'd'"),
    ([("g", "z"), ("d", "y")], [("d", "x")], "1 of 2 test users show no item .*first 'g'"),
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


@pytest.fixture(params=["leave out", "by time", "given"])
def weak(request: pytest.FixtureRequest) -> Split:
    """A split without validation users."""
    rows = random_rows(29)
    times = np.random.default_rng(0).integers(0, 9, len(rows)).tolist()
    if request.param == "leave out":
        return leave_out(interactions_of(rows), 2)
    if request.param == "by time":
        return last(interactions_of(rows, times), 2)
    training, asked = naive.last(rows, times, 2)
    return given(*(interactions_of(sorted(pairs(part))) for part in (training, asked.targets)))


def test_tuning_without_validation_users_hides_a_part_of_the_training_data(weak: Split) -> None:
    tuning = weak.for_tuning()
    had, kept, asked = trained(weak), trained(tuning), asked_of(tuning).targets

    def left(count: int) -> int:
        if weak.inner is not None:  # the same once more: two of each
            return count - 2 if count > 2 else count
        return count - max(int(0.1 * count), 1) if count >= 2 else count

    assert {user: len(items) for user, items in kept.items()} == {
        user: left(len(items)) for user, items in had.items()
    }
    assert pairs(kept) | pairs(asked) <= pairs(had)
    assert pairs(kept).isdisjoint(pairs(asked))
    assert asked_of(tuning) == naive.Asked({user: kept[user] for user in asked}, asked, len(had) - len(asked))
    assert all(asked.values())
    unknown = pairs(asked_of(weak).targets)
    assert unknown
    assert unknown.isdisjoint(pairs(kept) | pairs(asked))


# What must hold for any table.


@st.composite
def tables(draw: Any, users: int = 1, items: int = 1) -> list[Pair]:
    """So many users and items or a few more, with gaps that are few or many, in any order."""
    users, items = draw(st.integers(users, 12)), draw(st.integers(items, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    used = rng.random(users * items) < draw(st.sampled_from([0.3, 0.7, 0.9, 1.0]))
    name = NAMES[draw(st.sampled_from(list(NAMES)))]
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
    st.sampled_from([0.2, 0.29, 0.5, 0.9]),
    st.sampled_from([SEED, 0, 2**32 - 1]),
)
def test_strong_split_of_any_table(
    rows: list[Pair], heldout: int, min_users: int, min_items: int, hidden: float, seed: int
) -> None:
    def split() -> Split:
        return strong_generalisation(
            interactions_of(rows), heldout, min_users=min_users, min_items=min_items, hidden=hidden, seed=seed
        )

    left = naive.filtered(sorted(rows), min_users, min_items)
    n = len({user for user, _ in left})
    expected = naive.strong_generalisation(left, heldout, hidden, seed) if 2 * heldout < n else None
    if expected is None or not expected.validation.targets or not expected.test.targets:
        with pytest.raises(DataError):
            split()
        return
    found = split()
    assert_is_strong(found, expected)
    assert found.whole == interactions_of(rows).size  # before anything is left out
    assert found.validation is not None
    users = [set(part.users) for part in (found.training, found.validation, found.test)]
    assert sum(map(len, users)) == len(set.union(*users))
    for asked in (expected.validation, expected.test):
        assert pairs(asked.shown).isdisjoint(pairs(asked.targets))
    tuning = found.for_tuning()
    assert (trained(tuning), asked_of(tuning)) == (expected.training, expected.validation)
    assert asked_of(tuning, tuning.validation) == expected.validation  # to stop training by


@SETTINGS
@forall(tables(users=3), st.integers(1, 3), st.integers(1, 3))
def test_parts_of_a_strong_split_are_the_notebooks(rows: list[Pair], heldout: int, seed: int) -> None:
    data = interactions_of(rows)
    assume(2 * heldout < data.n_users)
    expected = naive.strong_rows(sorted(rows), heldout, seed=seed)
    drawn = strong_parts(data, heldout, seed=seed)[0].tolist()
    assert [data.users[user] for user in drawn] == expected.pop("users")
    found = parts_of_strong(data, heldout, seed)
    assert {name: pairs_of(data, chosen) for name, chosen in found.items()} == expected


@SETTINGS
@forall(tables(), st.integers(1, 3), st.integers(0, 5))
def test_leave_out_of_any_table(rows: list[Pair], k: int, seed: int) -> None:
    """Targets are of items that are trained with; nobody else's are hidden from users with k or fewer."""
    had, events = naive.sets(rows), interactions_of(rows)
    if all(len(items) <= k for items in had.values()):
        with pytest.raises(DataError, match="no user has more than"):
            leave_out(events, k, seed=seed)
        return
    try:
        split = leave_out(events, k, seed=seed)
    except DataError:  # nobody is trained with what is hidden
        reject()
    kept = trained(split)
    assert {user: len(items) for user, items in kept.items()} == {
        user: len(items) - k if len(items) > k else len(items) for user, items in had.items()
    }
    hidden = [(user, item) for user, item in rows if item not in kept[user]]
    assert asked_of(split) == naive.ask(sorted(pairs(kept)), hidden)
    assert set(split.training.items) == {item for _, item in pairs(kept)}
    assert split.validation is None


# By hash.


def hash_rows(users: int = 300, items: int = 40, seed: int = 0, texts: bool = True) -> list[Pair]:
    rng = np.random.default_rng(seed)
    X = rng.random((users, items)) < rng.uniform(0.02, 0.5, users)[:, None]
    X[:, -1] = False
    X[0, -1] = True  # an item of one user
    name = (lambda kind, x: f"{kind}é{x}") if texts else (lambda kind, x: int(x) * 7)
    return [(name("u", u), name("i", i)) for u, i in zip(*X.nonzero(), strict=True)]


@pytest.mark.parametrize("texts", [True, False], ids=["strings", "integers"])
@pytest.mark.parametrize("options", [{}, {"most": 20}, {"hidden": 0.5}], ids=str)
def test_split_by_hash_equals_naive(options: dict[str, Any], texts: bool) -> None:
    rows = hash_rows(texts=texts)
    split = by_hash(interactions_of(rows), 0.15, validation=True, **options)
    training, test, validation = naive.by_hash(rows, 0.15, **options)
    assert (trained(split), asked_of(split)) == (training, test)
    assert asked_of(split, split.validation) == validation
    assert len(test.targets) > 10
    without = by_hash(interactions_of(rows), 0.15, **options)
    assert without.validation is None
    assert list(without.test.users) == list(split.test.users)
    assert without.training.n_users > split.training.n_users


def test_same_users_are_held_out_on_another_day() -> None:
    """However many users and items are new; of those held out, who had no new items is asked the same."""
    rows = hash_rows()
    more = rows + [(f"new{user}", item) for user, item in hash_rows(seed=1)]
    a, b = (asked_of(by_hash(interactions_of(each), 0.2)) for each in (rows, more))
    old = {user for user in b.targets if not user.startswith("new")}
    assert old == set(a.targets)
    assert all(a.targets[user] == b.targets[user] and a.shown[user] == b.shown[user] for user in old)


def test_hash_of_a_number_is_that_of_its_text() -> None:
    numbers = [0, 7, -5, 2**63 - 1]
    places = np.arange(4)
    found = hashed(Ids.of(numbers, "user"), places)
    assert (found == hashed(Ids.of([str(x) for x in numbers], "user"), places)).all()
    assert found.tolist() == [naive.text_hash(x) for x in numbers]


def test_hashes_are_even() -> None:
    found = hashed(Ids.range(100_000), np.arange(100_000)) / 2.0**64
    counts = np.histogram(found, 20, (0, 1))[0]
    assert abs(counts - 5000).max() < 5 * 5000**0.5


# ── times, seeds and edges ────────────────────────────────────────────────────────────────────────


def timed(times: list[Any]) -> pl.DataFrame:
    return pl.DataFrame({"user": [1] * len(times), "item": range(len(times)), "time": times})


@pytest.mark.parametrize("odd", ["oops", "", "2019-13-40", "nan"])
def test_a_time_that_is_none_is_a_bad_row_among_numbers_and_among_dates(odd: str, tmp_path: Path) -> None:
    for others in (["5", "7"], ["2019-12-08", "2019-12-09T10:30:00"]):
        path = tmp_path / "a.csv"
        timed([others[0], odd, others[1]]).write_csv(path)
        with pytest.raises(DataError, match=r"row 2: (no time|time neither a number nor a date)"):
            read_interactions(path, time=True)
        assert len(read_interactions(path, time=True, on_bad="skip")) == 2


@pytest.mark.parametrize("batches", [1, 2])
def test_numbers_and_dates_cannot_be_compared(batches: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    timed(["2019-12-08", "1575801000"] if batches == 1 else ["2019-12-08"]).write_csv(paths[0])
    timed(["1575801000"]).write_csv(paths[1])
    with pytest.raises(DataError, match="time of another form than most, which are"):
        read_interactions(paths[:batches], time=True)


def test_titles_of_items_that_only_targets_have_are_kept() -> None:
    training = Interactions(sp.csr_array([[1, 1]]), [1], ["a", "b"], ["A", "B"])
    targets = Interactions(sp.csr_array([[1]]), [1], ["c"], ["C"])
    split = given(training, targets)
    assert list(split.training.items) == ["a", "b", "c"]
    assert list(split.training.titles or []) == ["A", "B", "C"]


def test_a_tenth_of_the_users_who_are_left_is_held_out_by_default() -> None:
    events = interactions_of([(user, item) for user in range(60) for item in range(9 if user < 40 else 3)])
    made = strong_generalisation(events)
    assert (len(made.test.users), made.training.n_users) == (4, 32)
    assert made.test.users == strong_generalisation(events, 4).test.users
