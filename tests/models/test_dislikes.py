"""Dislikes, values below 0: they take from what goes with them, and are neither popular nor to be guessed."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, Interactions, ParameterError, read_interactions, read_item_features
from mrfrec.cli.app import run as run_command
from mrfrec.evaluation import (
    Split,
    at_time,
    by_hash,
    given,
    last,
    leave_out,
    strong_generalisation,
)
from mrfrec.models import ItemKNN, Popularity
from mrfrec.models.mrf.held_out import held_out

import naive
from matrices import random_matrix


def likes_and_dislikes(seed: int, users: int = 120) -> Any:
    """Some items that everybody dislikes, and others that are disliked here and there."""
    X = random_matrix(seed, users=users)
    X[np.random.default_rng(seed).random(X.shape) < 0.15] *= -1
    X[:, 10] = -np.abs(X[:, 10])
    return X


@pytest.mark.parametrize("options", [{}, {"user_weight": 0.5}, {"alpha": 0.0}])
def test_a_dense_fit_to_dislikes_equals_naive(options: Any) -> None:
    X = likes_and_dislikes(1)
    model = MRF.paper(l2=4.0, dtype="float64", sparsity=None, **options).fit(sp.csr_array(X))
    np.testing.assert_allclose(model.weights_, naive.dense(X, 4.0, **options), atol=1e-10)


@pytest.fixture(scope="module")
def model() -> MRF:
    return MRF(measure=False).fit(sp.csr_array(np.abs(likes_and_dislikes(2))))


def test_a_dislike_takes_from_what_goes_with_it_and_is_not_recommended(model: MRF) -> None:
    """By as much as a like would add: scores are x·(B + λ·L)."""
    weights = model.scores(sp.csr_array(np.eye(45))) - model.scores(row({}))
    it = int(np.argmax((weights > 0.01).sum(axis=1)))  # an item that goes with many
    first = (it + 1) % 45
    nothing, liked, disliked = ({first: 1, **more} for more in ({}, {it: 1}, {it: -1}))
    (before,), (up,), (down,) = (model.scores(row(x)) for x in (nothing, liked, disliked))
    others = [item for item in range(45) if item not in (first, it)]
    np.testing.assert_allclose(down[others] - before[others], before[others] - up[others], atol=1e-5)
    assert (down[others] < before[others] - 1e-4).sum() > 5
    found = model.recommend(history=disliked, k=40)
    assert not {first, it} & {*found["item"]}
    explained = model.explain(int(found["item"][0]), history=disliked)
    assert explained["contribution"].sum() == pytest.approx(found["score"][0], abs=1e-5)
    assert explained.filter(item=it)["value"].to_list() == [-1]
    seen = model.recommend(history=disliked, k=45, exclude_seen=False)
    assert {first, it} <= {*seen["item"]}


def row(values: dict[int, int]) -> Any:
    out = np.zeros((1, 45))
    out[0, list(values)] = list(values.values())
    return sp.csr_array(out)


def test_dislikes_make_no_item_popular() -> None:
    X = likes_and_dislikes(3)
    data = Interactions(sp.csr_array(X))
    expected = [int((X[:, item] > 0).sum()) for item in range(45)]
    assert data.popularity.tolist() == expected
    assert data.used.tolist() == [bool((X[:, item] != 0).any()) for item in range(45)]
    assert expected[10] == 0 < (X[:, 10] != 0).sum()
    by_users = sorted(range(45), key=lambda item: (-expected[item], item))
    for made in (Popularity(), ItemKNN()):
        fitted = made.fit(data)
        assert fitted.popularity_.tolist() == expected
        assert fitted.recommend(history=[], k=45)["item"].to_list() == by_users


def test_an_item_that_is_only_disliked_is_not_new() -> None:
    """It has its own column of weights, also where items that nobody has used get theirs from features."""
    X = likes_and_dislikes(4)
    table = pl.DataFrame({"item": range(45), "kind": [f"k{item % 9}" for item in range(45)]})
    data = Interactions(sp.csr_array(X)).with_features(read_item_features(table))
    model = MRF.paper(l2=3.0, dtype="float64", sparsity=None, feature_weight=0.2).fit(data)
    F = data.features.of_used(np.ones(45, bool)).toarray()  # type: ignore[union-attr]
    used = X.any(axis=0)
    F[:, ~used] = 0
    expected = naive.dense(X, 3.0, F=F, feature_weight=0.2)
    np.testing.assert_allclose(model.weights_[:, 10], expected[:, 10], atol=1e-10)
    assert np.abs(expected[:, 10]).max() > 0.01
    assert model.similar_items(10, k=3).height == 3
    assert len(data.without_unused_items().items) == int(used.sum())


# ── nobody asks for dislikes ──────────────────────────────────────────────────────────────────────


def table(users: int = 400, seed: int = 5) -> pl.DataFrame:
    X = likes_and_dislikes(seed, users)
    user, item = np.nonzero(X)
    rng = np.random.default_rng(seed)
    times = (
        np.repeat(rng.integers(0, 400, users), 45).reshape(users, 45) * 86400
        + rng.integers(0, 20, X.shape) * 3600
    )
    return pl.DataFrame(
        {"user": user, "item": item, "value": X[user, item], "time": times[user, item] + 10**9}
    )


def timed_data() -> Interactions:
    return read_interactions(table(), binary=False)


def given_split() -> Split:
    rows = table().drop("time").with_row_index()
    hidden = pl.col("index") % 5 == 0
    parts = (rows.filter(~hidden), rows.filter(hidden))
    return given(*(read_interactions(part.drop("index"), binary=False) for part in parts))


@pytest.mark.parametrize(
    "made",
    [
        lambda: strong_generalisation(timed_data(), 60),
        lambda: leave_out(timed_data(), 3),
        lambda: last(timed_data(), 3),
        lambda: at_time(timed_data(), 0.2),
        lambda: by_hash(timed_data(), 0.2),
        given_split,
        lambda: given_split().for_tuning(),
        lambda: leave_out(timed_data(), 3).for_tuning(),
    ],
)
def test_a_hidden_dislike_is_no_target(made: Callable[[], Split]) -> None:
    split = made()
    values = {(user, item): value for user, item, value, _ in table().iter_rows()}
    asked, items = split.test, split.training.items
    pairs = [
        (user, items[int(item)])
        for place, user in enumerate(asked.users)
        for item in asked.targets[[place]].indices
    ]
    assert len(pairs) > 20
    assert {values[pair] for pair in pairs} == {1.0}
    assert np.diff(asked.targets.indptr).all()
    assert (asked.shown.data < 0).any()
    assert (split.training.matrix.data < 0).any()


def test_strong_generalisation_hides_the_same_pairs_and_asks_for_the_likes_among_them() -> None:
    liked = strong_generalisation(timed_data(), 60).test
    whole = strong_generalisation(read_interactions(table(), value=False), 60).test
    values = {(user, item): value for user, item, value, _ in table().iter_rows()}

    def pairs(asked: Any) -> set[tuple[Any, Any]]:
        return {
            (user, int(asked.items[int(item)]))
            for place, user in enumerate(asked.users)
            for item in asked.targets[[place]].indices
        }

    assert pairs(liked) == {pair for pair in pairs(whole) if values[pair] > 0} != pairs(whole)


@pytest.mark.parametrize("timed", [True, False])
def test_a_fit_measures_itself_on_likes(timed: bool) -> None:
    data = read_interactions(table(2000), binary=False, time=timed)
    asked = held_out(data)
    assert asked is not None
    assert (asked.hidden.data > 0).all()
    assert (asked.shown.data < 0).any()
    assert asked.popularity.tolist() == (asked.training > 0).sum(axis=0).tolist()
    assert asked.popularity[data.items.find([10], "item")] == 0


# ── in the shell ──────────────────────────────────────────────────────────────────────────────────


def test_dislikes_in_the_shell_are_values_below_0_in_python(
    model: MRF, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "model.mrf")
    model.save(file)

    def typed(*arguments: str) -> str:
        run_command([*arguments], Event())
        return capsys.readouterr().out

    out = typed("recommend", file, "--history", "0,3", "--dislike", "7", "-k", "5", "--format", "csv")
    items = [int(line.split(",")[1]) for line in out.splitlines()[1:]]
    assert items == model.recommend(history={0: 1, 3: 1, 7: -1}, k=5)["item"].to_list()
    assert items != model.recommend(history=[0, 3], k=5)["item"].to_list()
    out = typed("explain", file, "--history", "0,3", "--dislike", "7", "--item", "8", "--format", "csv")
    assert any(line.startswith("7,") and ",-1.0," in line for line in out.splitlines())
    for arguments in (["recommend", file, "--all"], ["explain", file, "--user", "1", "--item", "8"]):
        with pytest.raises(ParameterError, match="--dislike must be left out without --history; got '7'"):
            typed(*arguments, "--dislike", "7")
    with pytest.raises(DataError, match="item 3 is in --history and in --dislike"):
        typed("recommend", file, "--history", "0,3", "--dislike", "3")


@pytest.mark.parametrize("options", [{}, {"novelty": 0.5}, {"sparsity": 0.2}, {"rank": 4}])
def test_data_of_dislikes_alone_gives_finite_scores(options: Any) -> None:
    """Nothing is popular then, and no factor of novelty is 0 / 0."""
    X = -np.abs(likes_and_dislikes(3))
    model = MRF(measure=False, **options).fit(sp.csr_array(X))
    assert not model.popularity_.any()
    assert np.isfinite(model.scores(sp.csr_array(X))).all()
    assert model.recommend(history=[3, 4], k=5, novelty=0.7)["score"].is_finite().all()
