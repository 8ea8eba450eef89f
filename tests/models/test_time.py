"""Times: how events fade, how histories are asked, and how both are measured."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from asking import rows_for
from mrfrec import MRF, Interactions, ParameterError, read_interactions
from mrfrec.core.ages import Recency
from mrfrec.models import EASE
from mrfrec.models.mrf.held_out import HeldOut, held_out

import matrices
import naive
from matrices import random_matrix

DAY = 86_400_000_000
BLIND: dict[str, Any] = {"half_life": None, "recency": 1.0}
FIXED: dict[str, Any] = {"l2": 2.0, "user_weight": 0.3, "novelty": 0.0, "rank": 0, "measure": False}


def random_times(X: naive.Matrix, seed: int = 0) -> npt.NDArray[np.int64]:
    """Days, many of them the same."""
    return np.random.default_rng(seed).integers(0, 40, X.shape) * DAY


def timed(X: naive.Matrix, times: npt.NDArray[np.int64]) -> Interactions:
    matrix = sp.csr_array(X)
    return Interactions(matrix, times=times[X != 0].astype("datetime64[us]"))


def visits(users: int = 900) -> Interactions:
    return read_interactions(matrices.visits(users))


def asked_of(data: Interactions, **options: Any) -> HeldOut:
    asked = held_out(data, **options)
    assert asked is not None
    assert asked.times is not None
    return asked


# ── the fit ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dense_fit_with_a_half_life_equals_naive(real: bool, dtype: Any) -> None:
    X = random_matrix(4, real=real)
    times = random_times(X)
    model = MRF(**FIXED, sparsity=None, half_life="9d", recency=1.0, dtype=dtype).fit(timed(X, times))
    aged = naive.aged(X, times.astype(float), 9.0 * DAY)
    expected = naive.dense(X, 2.0, 0.5, user_weight=0.3, aged=aged)
    # Faded values are kept in single precision.
    np.testing.assert_allclose(model.weights_, expected, atol=2e-5 if dtype == "float32" else 2e-6)
    moments = naive.moments(X, 0.5, user_weight=0.3, aged=aged)
    np.testing.assert_allclose(model.mean_, moments.mu, rtol=1e-5, atol=1e-8)


def test_sparse_fit_keeps_the_largest_faded_covariances() -> None:
    X = random_matrix(4)
    times = random_times(X)
    data = timed(X, times)
    whole = MRF(**FIXED, sparsity=1.0, half_life="9d", dtype="float64").fit(data)
    dense = MRF(**FIXED, sparsity=None, half_life="9d", dtype="float64").fit(data)
    np.testing.assert_allclose(whole.weights_.toarray(), dense.weights_, atol=1e-9)


def test_only_differences_of_times_matter() -> None:
    X = random_matrix(4)
    times = random_times(X)
    one, other = (
        MRF(**FIXED, half_life="9d").fit(timed(X, times + shift)).weights_ for shift in (0, 400 * DAY)
    )
    assert np.array_equal(one, other)


def test_a_half_life_far_longer_than_the_data_is_none() -> None:
    X = random_matrix(4)
    data = timed(X, random_times(X))
    long = MRF(**FIXED, half_life="900000d", dtype="float64").fit(data).weights_
    blind = MRF(**FIXED, **BLIND, dtype="float64").fit(data).weights_
    some = np.arange(X.shape[1]) != 7  # which everybody has: it has no variance until it fades
    np.testing.assert_allclose(long[some][:, some], blind[some][:, some], atol=1e-4)


def test_blind_model_of_timed_data_is_that_of_data_without_times() -> None:
    X = random_matrix(4)
    data = timed(X, random_times(X))
    models = [MRF(**FIXED).fit(data), MRF(**FIXED).fit(sp.csr_array(X)), MRF(**FIXED, **BLIND).fit(data)]
    for model in models[1:]:
        assert np.array_equal(models[0].weights_, model.weights_)
    first, *others = (rows_for(model, history=[[1, 2, 3], [8]], k=5) for model in models)
    for other in others:
        assert first == other


def test_parameters_of_time_without_times_or_out_of_range_are_refused() -> None:
    with pytest.raises(ParameterError, match="half_life must be None for data without times"):
        MRF(half_life="9d").fit(sp.csr_array(random_matrix(4)))
    value: Any
    for value in (0, "nine days", -1, "0d"):
        with pytest.raises(ParameterError, match="half_life"):
            MRF(half_life=value)
    for value in (0, 1.5, "fast"):
        with pytest.raises(ParameterError, match="recency"):
            MRF(recency=value)
    assert MRF(half_life=timedelta(days=2)).parameters["half_life"] == "172800.000000s"


def test_models_of_the_paper_and_ease_do_not_fade() -> None:
    X = random_matrix(4)
    data = timed(X, random_times(X))
    make: Any
    for make in (MRF.paper, lambda: EASE(l2=3.0)):
        assert np.array_equal(make().fit(data).weights_, make().fit(sp.csr_array(X)).weights_)


def test_update_of_a_model_that_fades_equals_a_fit_to_all_events(tmp_path: Path) -> None:
    data = visits()
    pairs = data.matrix.tocoo()
    assert data.times is not None
    table = pl.DataFrame(
        {"user": pairs.coords[0], "item": data.items.take(pairs.coords[1]), "time": data.times // 1_000_000}
    ).sort("time")
    early, late = table.head(4000), table.tail(len(table) - 4000)
    parameters = {**FIXED, "half_life": "90d", "recency": 0.8}
    whole = MRF(**parameters).fit(read_interactions(table))
    model: Any = MRF(**parameters).fit(read_interactions(early))
    model.save(tmp_path / "m.mrf", include_histories=True)
    updated: Any
    for updated in (model, mrfrec.load(tmp_path / "m.mrf")):
        updated.update(late)
        assert np.array_equal(updated.weights_, whole.weights_)
        assert rows_for(updated, [0, 5, 7], k=8) == rows_for(whole, [0, 5, 7], k=8)
    users = [3, 4]
    model.forget(users)
    rest = MRF(**parameters).fit(read_interactions(table.filter(~pl.col("user").is_in(users))))
    assert np.array_equal(model.weights_, rest.weights_)


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_values_of_histories_equal_naive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, 30)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    times = rng.integers(0, 5, ptr[-1]) * DAY
    found = Recency(3.0 * DAY, 0.7).factors(ptr, times)
    for u in range(30):
        own = times[ptr[u] : ptr[u + 1]]
        if not len(own):
            continue
        places = naive.asked_values(list(range(len(own))), own.tolist(), 0.7)
        faded = 2.0 ** (-(own.max() - own) / (2 * 3.0 * DAY))
        wanted = np.array(list(places.values())) * faded
        np.testing.assert_allclose(found[ptr[u] : ptr[u + 1]], wanted, rtol=1e-5)


def test_a_list_is_oldest_first_and_a_mapping_has_no_order() -> None:
    model = MRF(**FIXED, recency=0.5).fit(visits())
    items = [3, 14, 25]
    there, back = (rows_for(model, history=order, k=5) for order in (items, items[::-1]))
    assert there != back
    assert rows_for(model, history=dict.fromkeys(items, 1.0), k=5) == rows_for(
        model, history=dict.fromkeys(items[::-1], 1.0), k=5
    )
    now = datetime(2026, 11, 1)
    by_time = {item: now - timedelta(days=3 - place) for place, item in enumerate(items)}
    assert rows_for(model, history=by_time, k=5) == there
    assert rows_for(model, history=dict(reversed(by_time.items())), k=5) == there


def test_explanations_of_a_recent_history_add_up() -> None:
    model = MRF(**FIXED, recency=0.6).fit(visits())
    history = [3, 14, 25, 7]
    best = rows_for(model, history=history, k=1)[0]
    parts = model.explain(best["item"], history=history)["contribution"]
    assert sum(parts) == pytest.approx(best["score"], rel=1e-5)


def test_training_users_are_asked_with_their_times() -> None:
    data = visits()
    model = MRF(**FIXED, recency=0.6).fit(data)
    assert data.times is not None
    user = 17
    span = slice(*data.matrix.indptr[user : user + 2])
    order = np.argsort(data.times[span])
    history = [data.items[int(item)] for item in data.matrix.indices[span][order]]
    by_id, by_list = rows_for(model, [user], k=6), rows_for(model, history=history, k=6)
    assert [row["item"] for row in by_id] == [row["item"] for row in by_list]
    np.testing.assert_allclose([row["score"] for row in by_id], [row["score"] for row in by_list], rtol=1e-5)


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_asked_lies_after_the_cut_and_what_is_shown_before_what_is_asked() -> None:
    data = visits()
    asked = asked_of(data)
    assert data.times is not None
    assert asked.times is not None
    assert asked.shown_times is not None
    cut = asked.times.max()
    time_of = {
        (u, i): t
        for u in range(data.n_users)
        for i, t in zip(
            data.matrix.indices[slice(*data.matrix.indptr[u : u + 2])],
            data.times[slice(*data.matrix.indptr[u : u + 2])],
            strict=True,
        )
    }
    training = asked.training.tocoo()
    assert len(asked.times) == training.nnz
    shown, hidden = asked.shown, asked.hidden
    for question in range(shown.shape[0]):
        own = slice(*shown.indptr[question : question + 2])
        wanted = asked.ranked[hidden.indices[slice(*hidden.indptr[question : question + 2])]]
        users = [
            u
            for u in range(data.n_users)
            if {*shown.indices[own], *wanted} <= {*data.matrix.indices[slice(*data.matrix.indptr[u : u + 2])]}
        ]
        assert any(
            all(time_of[u, i] > cut for i in wanted)
            and asked.shown_times[own].max() < min(time_of[u, i] for i in wanted)
            for u in users
        )


def test_tastes_that_change_get_a_half_life_and_times_at_random_none() -> None:
    data = visits(users=2500)
    model = MRF().fit(data)
    assert model.values_["half_life"] is not None
    assert np.array_equal(MRF(**model.values_).fit(data).weights_, model.weights_)
    assert data.times is not None
    shuffled = np.random.default_rng(1).permutation(data.times)
    of_nothing = Interactions(data.matrix, data.users, data.items, times=shuffled.astype("datetime64[us]"))
    assert MRF().fit(of_nothing).values_["half_life"] is None


def test_measured_values_of_time_are_kept_by_files_and_updates(tmp_path: Path) -> None:
    model = MRF().fit(visits(users=1500))
    model.save(tmp_path / "m.mrf", include_histories=True)
    loaded: Any = mrfrec.load(tmp_path / "m.mrf")
    assert loaded.values_ == model.values_
    assert loaded.fitted_.learned.recency == model.fitted_.learned.recency
    assert rows_for(loaded, [3, 4], k=5) == rows_for(model, [3, 4], k=5)


def test_order_of_rows_with_equal_times_does_not_matter() -> None:
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(60), 8),
            "item": np.tile(np.arange(8), 60) + np.repeat(np.arange(60) % 5, 8),
            "date": np.tile(np.repeat([100, 200], 4), 60) * 86_400,
        }
    )
    parameters = {**FIXED, "half_life": "30d", "recency": 0.7}
    one = MRF(**parameters).fit(read_interactions(frame))
    other = MRF(**parameters).fit(read_interactions(frame.sample(fraction=1.0, shuffle=True, seed=3)))
    assert np.array_equal(one.weights_, other.weights_)
    assert rows_for(one, [1, 2], k=3) == rows_for(other, [1, 2], k=3)


@pytest.mark.parametrize("time", ["NaT", "30000-01-01", "-2000-01-01"])
def test_a_history_with_impossible_times_is_refused(time: str) -> None:
    model = MRF(half_life="1d", order=0, measure=False).fit(
        timed(random_matrix(1), random_times(random_matrix(1)))
    )
    with pytest.raises(ParameterError, match="history must be with times in the years 1 to"):
        model.recommend(history={3: np.datetime64(time), 4: np.datetime64("2026-11-16")})
