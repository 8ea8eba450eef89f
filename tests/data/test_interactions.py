"""Interactions: a matrix with names; pairs combined, left out, and told apart by a fingerprint."""

import tracemalloc
from dataclasses import FrozenInstanceError, fields
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfrec import DataError, Interactions, ParameterError, read_interactions
from mrfrec.data import pairs
from mrfrec.data.ids import Ids, Texts
from mrfrec.io.tables import as_interactions
from mrfrec.models import EASE

import naive_evaluation

MATRIX = sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]))


# ── a value ───────────────────────────────────────────────────────────────────────────────────────


def test_no_attribute_of_interactions_can_be_set() -> None:
    data = read_interactions(pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "title": ["x", "y"]}))
    before = {field.name: getattr(data, field.name) for field in fields(data)}
    for name in [*before, "n_users", "something"]:
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(data, name, None)
        with pytest.raises((FrozenInstanceError, AttributeError)):
            delattr(data, name)
    changed = data.replace(library="pandas", titles=None)
    assert (changed.library, changed.titles, changed.matrix is data.matrix) == ("pandas", None, True)
    assert all(getattr(data, name) is value for name, value in before.items())
    with pytest.raises(TypeError, match="got matrix"):
        data.replace(matrix=MATRIX)


# ── from a matrix ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "titles", [["x", None, "z"], ["x", "", "z"], {"a": "x", "c": "z", "d": "w"}, Texts.of(["x", "", "z"])]
)
def test_titles_come_by_place_or_by_id(titles: Any) -> None:
    data = Interactions(MATRIX, ["u", "v"], ["a", "b", "c"], titles)
    assert list(data.titles or []) == ["x", "", "z"]
    assert repr(data).endswith(", with titles)")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"users": [1]}, "users must have one id for each of the 2; got 1"),
        ({"items": [1, 2, 3, 4]}, "items must have one id for each of the 3; got 4"),
        ({"titles": ["x"]}, "titles must be one for each of the 3 items; got 1"),
        ({"titles": Texts.of(["x"])}, "titles must be one for each of the 3 items; got 1"),
        ({"titles": ["x", 5, None]}, "titles must be strings or None; got 5"),
        ({"titles": "xyz"}, "titles must be a list or a mapping from item ids; got str"),
        ({"titles": 5}, "titles must be a list or a mapping"),
        ({"titles": {"0": "x"}}, "titles names none of the items: are the ids the same"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions(MATRIX, **names)


def test_sum_that_overflows_is_refused() -> None:
    twice = sp.csr_array((np.array([1e308, 1e308]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    with pytest.raises(DataError, match="matrix must be finite; row 0"):
        Interactions(twice)


@pytest.mark.parametrize("form", ["coo_array", "csr_array", "csc_array"])
def test_large_unsigned_numbers_do_not_turn_negative(form: str) -> None:
    X = getattr(sp, form)(sp.coo_array((np.array([2**63, 2**63], np.uint64), ([0, 0], [0, 1])), shape=(1, 2)))
    assert (Interactions(X).matrix.data.astype(np.float64) == 2.0**63).all()


@pytest.mark.parametrize("form", ["coo_array", "csr_array"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_that_add_up_beyond_what_is_exact_are_refused(form: str, dtype: type) -> None:
    twice: Any = np.array([2**62, 2**62 + 1], dtype)
    X = sp.coo_array((twice, ([0, 0], [0, 0])), shape=(1, 1))
    if form == "csr_array":
        X = sp.csr_array((twice, [0, 0], [0, 2]), shape=(1, 1))
    with pytest.raises(DataError, match="several integers for one user and item"):
        Interactions(X)
    X.data[:] = 5
    assert Interactions(X).matrix.data.tolist() == [10]


def test_changing_the_callers_arrays_changes_nothing() -> None:
    X, users = MATRIX.copy(), np.array([7, 9])
    data, read = Interactions(X, users), as_interactions(X)
    model = EASE(l2=1.0).fit(X)
    before = model.recommend(k=1, exclude_seen=False)["score"].to_list()
    X.data[:], X.indices[:], X.indptr[1:] = 50.0, 1, 1
    users[:] = 0
    for kept in (data, read):
        assert kept.matrix.toarray().tolist() == MATRIX.toarray().tolist()
    assert list(data.users) == [7, 9]
    assert model.recommend(k=1, exclude_seen=False)["score"].to_list() == before
    with pytest.raises(ParameterError, match="copy"):
        Interactions(X, copy=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["csc_array", "csr_array"])
def test_corrupt_indices_are_refused_and_not_followed(form: str) -> None:
    X = getattr(sp, form)(MATRIX)
    X.indices = X.indices.copy()
    X.indices[0] = 10_000_000
    with pytest.raises(DataError, match="not a valid CSR matrix"):
        Interactions(X)


def test_fingerprint_changes_with_any_id_pair_or_value() -> None:
    users = np.array([2**64 - 1, 5], np.uint64)
    same = [Interactions(MATRIX, [1, 2]), Interactions(MATRIX.astype(np.float32), np.array([1, 2], np.int8))]
    others = [
        Interactions(MATRIX),
        Interactions(MATRIX, [2, 1]),
        Interactions(MATRIX, ["1", "2"]),
        Interactions(MATRIX, ["12", ""]),
        Interactions(MATRIX, users),
        Interactions(MATRIX, users.view(np.int64)),
        Interactions(MATRIX, [1, 2], [0, 1, 3]),
        Interactions(MATRIX * 2, [1, 2]),
        Interactions(MATRIX != 0, [1, 2]),
        Interactions(MATRIX[:, [0, 2, 1]], [1, 2]),
        Interactions(MATRIX[:, [0, 2]], [1, 2]),
    ]
    assert len({data.fingerprint for data in same}) == 1
    assert len({data.fingerprint for data in same + others}) == 1 + len(others)


@pytest.mark.parametrize("limits", [(None, 0, 0), (12, 0, 0), (None, 13, 6), (15, 8, 4)])
def test_filters_equal_naive_while_reading_and_afterwards(limits: tuple[int | None, int, int]) -> None:
    rng = np.random.default_rng(3)
    rows = [(u, i) for u in range(40) for i in rng.permutation(30)[: rng.integers(1, 20)].tolist()]
    names: dict[str, Any] = dict(zip(("max_history", "min_users", "min_items"), limits, strict=True))
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    expected = set(naive_evaluation.filtered(rows, limits[1], limits[2], limits[0]))
    for data in (read_interactions(frame, **names), read_interactions(frame).filtered(**names)):
        pairs = data.matrix.tocoo().coords
        assert {(data.users[u], data.items[i]) for u, i in zip(*pairs, strict=True)} == expected
        assert data.n_users == len({user for user, _ in expected})
        assert len(data.left_out) == sum(limit not in (None, 0) for limit in limits)


# ── several rows of one pair ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("duplicates", "expected"), [("sum", [2.0, 1.0]), ("last", [1.0, 1.0])])
def test_rows_are_counted_where_there_are_no_values(
    duplicates: Literal["sum", "last"], expected: list[float]
) -> None:
    frame = pl.DataFrame({"user": [1, 1, 2], "item": ["a", "a", "a"], "timestamp": [5, 6, 7]})
    data = read_interactions(frame, binary=False, duplicates=duplicates)
    assert (data.matrix.data.tolist(), data.matrix.dtype) == (expected, np.float32)
    with pytest.raises(ParameterError, match=r"min_value must be left out for .* no column of values; got 2"):
        read_interactions(frame, min_value=2)


@pytest.mark.parametrize("columns", [["user", "item"], ["user", "item", "rating"]])
def test_pair_that_comes_twice_is_named_where_it_is_an_error(columns: list[str]) -> None:
    frame = pl.DataFrame({"user": [1, 2, 1, 2], "item": list("abab"), "rating": [1.0, 0.0, 1.0, 0.0]})
    with pytest.raises(
        DataError, match=r"^some rows repeat an earlier pair.* user 1 and item 'a'.*\"sum\", "
    ):
        read_interactions(frame.select(columns), duplicates="error")
    assert len(read_interactions(frame[:1].select(columns), duplicates="error")) == 1


def test_pairs_that_add_up_to_nothing_are_left_out_with_their_users_and_items() -> None:
    frame = pl.DataFrame({"user": [1, 1, 2, 3], "item": list("aabc"), "rating": [1.0, -1.0, 5.0, 0.0]})
    data = read_interactions(frame, binary=False)
    assert (list(data.users), list(data.items)) == ([2], ["b"])
    assert list(read_interactions(frame, value=False).users) == [
        1,
        2,
        3,
    ]  # who counts pairs need not look at values
    with pytest.raises(DataError, match=r"no interactions are left: all 1 pairs have a value that is 0\."):
        read_interactions(frame[:2], binary=False)


def test_values_that_add_up_beyond_single_precision_are_refused() -> None:
    frame = pl.DataFrame({"user": ["u", "u"], "item": ["i", "i"], "rating": [3e38, 3e38]})
    with pytest.raises(DataError, match="user 'u' and item 'i' add up to more than single precision holds"):
        read_interactions(frame, binary=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 1),
            st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
        ),
        min_size=1,
        max_size=30,
    ),
    st.randoms(),
)
def test_order_of_rows_changes_nothing_to_the_last_bit(
    rows: list[tuple[int, int, float]], random: Any
) -> None:
    results = []
    for given_rows in (rows, random.sample(rows, len(rows)), sorted(rows)):
        frame = pl.DataFrame(given_rows, schema=["user", "item", "value"], orient="row")
        try:
            results.append(read_interactions(frame, binary=False).fingerprint)
        except DataError as error:
            results.append(str(error))
    assert len(set(results)) == 1


def test_counts_beyond_single_precision_are_summed_before_they_are_rounded() -> None:
    frame = pl.DataFrame({"user": 1, "item": 1, "count": [2.0**24, 1.0, 1.0, 1.0, 1.0]})
    assert read_interactions(frame, binary=False).matrix.data.tolist() == [2.0**24 + 4]


@pytest.mark.parametrize("least", [0.7, np.float64(0.7), np.float32(0.7)])
def test_least_value_is_compared_in_the_precision_of_the_values(least: Any) -> None:
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": ["0.7", "0.6"]})
    assert list(read_interactions(frame, min_value=least).users) == [1]


def test_rows_are_combined_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_AT_ONCE", 1 << 12)
    rng, count = np.random.default_rng(0), 400_000
    users, items = Ids.range(5_000), Ids.range(3_000)
    columns = {
        "user": rng.integers(0, 5_000, count, dtype=np.int32),
        "item": rng.integers(0, 3_000, count, dtype=np.int32),
        "value": rng.choice(np.array([0.2, 0.5, 3.7], np.float32), count),
        "time": rng.integers(0, 10**15, count),
    }
    tracemalloc.start()
    matrix, sums, times = pairs.combine_in_ranges(columns, users, items, "sum")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sums.values is not None
    assert times is not None
    kept = sum(x.nbytes for x in (matrix.data, matrix.indices, matrix.indptr, sums.values, times))
    assert peak < 1.4 * kept  # sorting all rows at once takes three times as much


# ── as a data frame ───────────────────────────────────────────────────────────────────────────────

TIMED = pl.DataFrame(
    {"who": ["b", "a", "a"], "movieId": [1, 3, 1], "rating": [5.0, 1.0, 2.0], "ts": [30, 20, 10]}
)


def test_frame_of_a_matrix_has_its_ids_values_and_titles() -> None:
    frame = Interactions(MATRIX, ["u", "v"], ["a", "b", "c"], {"c": "Sea"}).to_frame()
    assert frame.to_dict(as_series=False) == {
        "user": ["u", "u", "v"], "item": ["a", "c", "c"], "value": [1.0, 2.0, 3.0],
        "title": [None, "Sea", "Sea"],
    }  # fmt: skip


def test_frame_has_the_names_of_the_table_and_reads_back_as_the_same_data() -> None:
    data = read_interactions(TIMED, user="who", binary=False)
    frame = data.to_frame()
    assert frame.columns == ["who", "movieId", "rating", "ts"]
    assert frame["who"].to_list() == ["a", "a", "b"]
    again = read_interactions(frame, user="who", binary=False)
    assert again.fingerprint == data.fingerprint
    assert data.filtered(min_items=2).to_frame().columns == frame.columns


def test_frame_names_columns_plainly_where_the_names_of_the_table_would_be_the_same_twice() -> None:
    table = pl.DataFrame({"title": ["ann"], "item": ["tea"]})
    titles = pl.DataFrame({"item": ["tea"], "title": ["Tea"]})
    frame = read_interactions(table, user="title", items=titles).to_frame()
    assert frame.to_dict(as_series=False) == {"user": ["ann"], "item": ["tea"], "title": ["Tea"]}


def test_frame_of_no_pairs_has_columns() -> None:
    frame = Interactions(sp.csr_array((0, 2)), [], ["a", "b"]).to_frame()
    assert (frame.columns, len(frame)) == (["user", "item"], 0)
