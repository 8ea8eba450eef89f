"""Users who come back and users in a visit, apart; and what models are told of times."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import ParameterError
from mrfrec.evaluation import Split, at_time, compare, evaluate, leave_out
from mrfrec.models import ItemKNN, Popularity
from mrfrec.models.recommender import Recommender

import naive_evaluation as naive


@pytest.fixture(scope="module")
def split() -> Split:
    """More users than are ranked at one time."""
    rng = np.random.default_rng(1)
    user = np.repeat(np.arange(12_000), 4)
    item = rng.integers(0, 50, len(user))
    start = np.repeat(rng.integers(0, 100_000, 12_000), 4)
    time = start + rng.integers(0, 50_000, len(user))
    return at_time(pl.DataFrame({"user": user, "item": item, "time": time}), 0.4)


def test_means_and_differences_of_each_situation(split: Split) -> None:
    both = compare({"knn": ItemKNN(), "top": Popularity()}, split, "ndcg@10,coverage@10")
    found = both["knn"]
    situation = split.test.situation
    assert situation is not None
    values = dict(zip(found.users, found.per_user("ndcg@10").tolist(), strict=True))
    others = dict(zip(found.users, both["top"].per_user("ndcg@10").tolist(), strict=True))
    assert set(found.situations) == {"return", "visit"}
    for name, count in found.situations.items():
        users = [user for user, own in zip(found.users, situation, strict=True) if own == name]
        assert len(users) == count
        assert found.mean("ndcg@10", name) == pytest.approx(
            naive.mean_and_error([values[user] for user in users])
        )
        pair = both.paired("top", "ndcg@10", situation=name)
        expected = naive.mean_and_error([others[user] - values[user] for user in users])
        assert pair[:2] == pytest.approx(expected)
    for metric, name, message in (
        ("ndcg@10", "home", "situation must be that of a user: return, visit; got 'home'"),
        ("coverage@10", "visit", "metric must be one that each user has"),
    ):
        with pytest.raises(ParameterError, match=message):
            found.mean(metric, name)
    table = pl.DataFrame({"user": [1, 1, 2, 2, 3, 3], "item": [1, 2, 1, 2, 1, 2]})
    plain = evaluate(Popularity(), leave_out(table), "ndcg@1")
    assert plain.situations == {}
    with pytest.raises(ParameterError, match="situation must be None for a split without situations"):
        plain.mean("ndcg@1", "visit")


def test_models_are_told_the_times_of_what_is_shown(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, Any]] = []
    top_k = Recommender.top_k

    def recorded(self: Recommender, X: Any, *others: Any, **options: Any) -> Any:
        told.append((X, options.get("times")))
        return top_k(self, X, *others, **options)

    monkeypatch.setattr(Recommender, "top_k", recorded)
    evaluate(Popularity(), split, "ndcg@10")
    asked = split.test
    calls = [call for call in told if call[1] is not None]  # the others compile
    assert len(calls) > 1
    for X, times in calls:
        assert len(times) == X.nnz
    assert np.array_equal(np.concatenate([times for _, times in calls]), asked.shown_times)  # type: ignore[arg-type]


def test_models_that_do_not_know_of_time_ignore_it(split: Split) -> None:
    model = ItemKNN().fit(split.training)
    X, known = split.test.shown[:9], split.test.times_of(slice(0, 9))
    assert np.array_equal(model.scores(X), model.scores(X, **known))
    for one, other in zip(model.top_k(X, 5), model.top_k(X, 5, **known), strict=True):
        assert np.array_equal(one, other)
