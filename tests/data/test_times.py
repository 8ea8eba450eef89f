"""Times of pairs: those of a matrix, and what keeps them."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import Interactions, MrfrecError, MrfrecWarning, ParameterError
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.item_table import Encoding, ItemFeatures
from mrfrec.evaluation.splits import by_hash
from mrfrec.models import Popularity

MATRIX = sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 5.0, 6.0]]))
SECONDS = np.arange(6) * 86_400 + 1_500_000_000


def times_of(data: Interactions) -> dict[tuple[Any, Any], int]:
    """The times by user and item, in microseconds."""
    assert data.times is not None
    assert data.times.dtype == np.int64
    pairs = data.matrix.tocoo()
    users, items = (
        ids.take(where) for ids, where in zip((data.users, data.items), pairs.coords, strict=True)
    )
    return dict(zip(zip(users, items, strict=True), data.times.tolist(), strict=True))


@pytest.mark.parametrize(
    "times",
    [
        SECONDS,
        SECONDS.astype(np.float64),
        SECONDS * 1000,
        SECONDS.tolist(),
        SECONDS.astype("datetime64[s]"),
        SECONDS.astype("datetime64[s]").astype("datetime64[ns]"),
        sp.csr_array((SECONDS, MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape),
        sp.csr_array((SECONDS, MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape).tocsc(),
        sp.csr_array((SECONDS, MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape).tocoo(),
    ],
    ids=lambda times: f"{type(times).__name__} {getattr(times, 'dtype', '')}",
)
def test_times_of_a_matrix_have_one_meaning_in_every_form(times: Any) -> None:
    data = Interactions(MATRIX, times=times)
    assert data.times is not None
    assert data.times.tolist() == (SECONDS * 1_000_000).tolist()
    assert Popularity().fit(MATRIX, times=times).fitted_.fingerprint == data.fingerprint
    assert data.fingerprint != Interactions(MATRIX).fingerprint


@pytest.mark.filterwarnings("ignore:.*before 1990")
def test_times_of_zero_are_times() -> None:
    times = sp.csr_array((np.arange(6), MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape)
    data = Interactions(sp.coo_array(MATRIX), times=times.tocoo())
    assert data.times is not None
    assert data.times.tolist() == [n * 1_000_000 for n in range(6)]


@pytest.mark.filterwarnings("ignore:.*before 1990")
def test_equal_times_tell_nothing_but_stay_for_what_comes_later() -> None:
    data = Interactions(MATRIX, times=np.full(6, 86_400))
    assert data.times is None
    assert data.origin is not None
    assert data.origin.times is not None
    later = Interactions(MATRIX, times=np.full(6, 2 * 86_400))
    assert data.fingerprint != later.fingerprint  # they are other events


@pytest.mark.parametrize(
    ("first", "step", "looks"),
    [
        (
            45_000,
            1,
            "6 of 6 times of the matrix are before 1990, .*Excel writes days. Correct them, or give none",
        ),
        (1_700_000_000, 1, "all times of the matrix are within a minute"),
        (1_700_000_000, 86_400, None),
    ],
)
def test_numbers_beside_a_matrix_that_are_no_times_are_noted(
    first: int, step: int, looks: str | None
) -> None:
    times = first + np.arange(6) * step
    if looks is None:
        assert Interactions(MATRIX, times=times).notes == ()
        return
    with pytest.warns(MrfrecWarning, match=looks):
        assert Interactions(MATRIX, times=times).notes[0].what == "looks like"


TWICE = sp.coo_array((np.ones(3), ([0, 0, 1], [0, 0, 1])), shape=(2, 2))
UNSORTED = sp.csr_array((np.ones(2), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))


@pytest.mark.parametrize(
    ("matrix", "times", "message"),
    [
        (MATRIX, SECONDS[:5], r"times must be one for each of the 6 stored pairs .* shape \(5,\)"),
        (MATRIX, SECONDS[:, None], r"times must be one for each .* shape \(6, 1\)"),
        (MATRIX, 5, r"times must be one for each .* shape \(\)"),
        (
            MATRIX,
            [1.0, 2, np.nan, 4, 5, 6],
            "times must be within.* none missing; got 'nan'. It is .* pair 2",
        ),
        (MATRIX, np.array(["2020-01-01"] * 5 + ["NaT"], "M8[D]"), "none missing; got 'NaT'. It is .* pair 5"),
        (
            MATRIX,
            np.array(["2020-01-01"] * 5 + ["12020"], "M8[D]"),
            "times must be within the years 1 to 9999",
        ),
        (MATRIX, ["2020-01-01"] * 6, "times must be numbers .* or datetime64.* Convert texts"),
        (MATRIX, [True] * 6, "times must be numbers"),
        (MATRIX, [20200101] * 6, "times that are numbers must be all of one unit"),
        (MATRIX, np.array([1, 2, 3, 4, 5, 10**12]), "all of one unit"),
        (MATRIX.tocsc(), SECONDS, "times must be a sparse matrix .* not canonical CSR .* got ndarray"),
        (TWICE, np.arange(3), "times must be a sparse matrix with the same pairs"),
        (UNSORTED, np.arange(2), "times must be a sparse matrix with the same pairs"),
        (sp.csr_array((np.arange(2), ([0, 1], [0, 1]))), [1, 2], "times must be a sparse matrix"),
        (TWICE, TWICE, "times must have the stored pairs .*, each once: 2 × 2, 2 pairs .* 3 entries"),
        (MATRIX, MATRIX[::-1], "times must have the stored pairs of the matrix"),
        (MATRIX, MATRIX[:2], "times must have the stored pairs .* got a matrix of 2 × 3 with 3 entries"),
    ],
)
def test_times_that_do_not_fit_the_matrix_are_refused(matrix: Any, times: Any, message: str) -> None:
    for take in (Interactions, Popularity().fit):
        with pytest.raises(MrfrecError, match=message):
            take(matrix, times=times)


def test_data_that_has_its_own_times_takes_no_others() -> None:
    for data in (Interactions(MATRIX), {"user": [1]}, "events.csv"):
        with pytest.raises(
            ParameterError, match=r"times must be None unless .* scipy\.sparse.*; got 'ndarray'"
        ):
            Popularity().fit(data, times=SECONDS)


def test_times_after_the_clock_are_kept_with_a_warning() -> None:
    times = SECONDS.astype("datetime64[s]")
    times[3] = np.datetime64("9000-01-01")
    with pytest.warns(MrfrecWarning, match="1 time in the future, the latest is 9000-01-01: they are kept"):
        data = Interactions(MATRIX, times=times)
    assert data.times is not None
    assert str(data.times.max().astype("M8[us]"))[:10] == "9000-01-01"


def test_times_follow_their_pairs() -> None:
    rng = np.random.default_rng(4)
    X = sp.random_array((60, 20), density=0.4, rng=rng, format="csr")
    X.sum_duplicates()
    data = Interactions(
        X, [f"u{n:02d}" for n in range(60)], times=1_700_000_000 + rng.permutation(X.nnz) * 60
    )
    every = times_of(data)
    features = ItemFeatures(
        Ids.of([3, 99], "item"),
        sp.csr_array(np.ones((1, 2))),
        Texts.of(["c: x"]),
        np.ones(1),
        {"c": Encoding("category")},
    )
    changed = [
        data.filtered(max_history=9, min_users=10, min_items=4),
        data.with_features(features),
        data.with_features(features).without_unused_items(),
        data.with_features(features).filtered(min_items=6),
        by_hash(data, 0.3).training,
        Popularity().fit(data).fitted_.data_for("a test"),
        Popularity().fit(data).forget(["u03", "u07"]).fitted_.data_for("a test"),
    ]
    for each in changed:
        kept = times_of(each)
        assert kept.items() <= every.items()
        assert len(kept) == len(each)
    assert [len(each) < len(data) for each in changed] == [True, False, False, True, True, False, True]
