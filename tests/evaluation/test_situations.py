"""Situations and several cuts in time: what models are told, and what reports show."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import DataError, ParameterError
from mrfrec.data.ids import Ids
from mrfrec.evaluation import Split, at_time, compare, evaluate, leave_out, tune
from mrfrec.models import ItemKNN, Popularity
from mrfrec.models.recommender import Recommender
from mrfrec.shown import report_of

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


# ── several cuts ──────────────────────────────────────────────────────────────────────────────────


def events(users: int = 400, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, 8 * users)
    item = (user % 4 * 10 + rng.integers(0, 12, len(user))) % 40
    return pl.DataFrame({"user": user, "item": item, "time": rng.permutation(len(user)) * 60.0})


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "folds must be from 2 to 10; got 1"),
        (11, "folds must be from 2 to 10; got 11"),
        (True, "folds must be a whole number"),
        (10, "folds must be fewer: the data does not reach back that far; got 10"),
    ],
)
def test_numbers_of_cuts_that_cannot_be_are_refused(folds: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        at_time(events(), folds=folds)


def test_several_cuts_are_one_result_with_a_row_for_each() -> None:
    folds = at_time(events(), 0.1, folds=3)
    models = {"knn": ItemKNN(), "top": Popularity()}
    both = compare(models, folds, "ndcg@10,coverage@10")
    alone = [compare(models, split, "ndcg@10,coverage@10") for split in folds]
    values = [
        (user, one - other)
        for each in alone
        for user, one, other in zip(
            each["top"].users, each["top"].per_user("ndcg@10"), each["knn"].per_user("ndcg@10"), strict=True
        )
    ]
    assert len(values) > len({user for user, _ in values})  # some are asked at two cuts
    assert both.paired("top", "ndcg@10")[:2] == pytest.approx(naive.clustered(values))
    assert both["knn"].per_user("coverage@10").tolist() == [
        x for each in alone for x in each["knn"].per_user("coverage@10").tolist()
    ]
    report = report_of(both)
    table = next(section for section in report.sections if section.title == "At each cut")
    assert [row[2] for row in table.rows] == ["knn", "top"] * 3
    assert [row[3] for row in table.rows[::2]] == [str(each["knn"].mean("ndcg@10")) for each in alone]
    assert report.about[0] == f"split: {folds.name}"
    frame = both.to_frame()
    assert set(frame["cut"]) == {None, *(split.name for split in folds)}
    one = evaluate(ItemKNN(), folds, "ndcg@10,coverage@10")
    assert one.mean("ndcg@10") == both["knn"].mean("ndcg@10")
    assert one.popular is not None
    assert one.popular.mean("ndcg@10") == both["top"].mean("ndcg@10")
    with pytest.raises(DataError, match=r"several cuts in time. Give one of them: split\[-1\]"):
        tune("EASE", folds)  # type: ignore[arg-type]


# ── what a report shows ───────────────────────────────────────────────────────────────────────────


def test_the_most_popular_items_are_shown_beside_a_model(split: Split) -> None:
    found = evaluate(ItemKNN(), split, "ndcg@10")
    assert found.popular is not None
    assert found.popular.per_user("ndcg@10").tolist() == (
        evaluate(Popularity(), split, "ndcg@10").per_user("ndcg@10").tolist()
    )
    assert [row[0] for row in report_of(found).sections[0].rows] == ["ItemKNN()", "most popular"]
    assert evaluate(Popularity(), split, "ndcg@10").popular is None


@pytest.mark.parametrize(
    ("visits", "shown", "line"),
    [
        (99, ["return"], "99 users in a visit, too few"),
        (100, ["return", "visit"], None),
        (19_100, ["return"], "19,100 users in a visit, 95.5% of all"),
    ],
)
def test_a_situation_of_few_or_of_nearly_all_has_no_table(
    split: Split, visits: int, shown: list[str], line: str | None
) -> None:
    found = evaluate(Popularity(), split, "ndcg@10")
    total = 900 + visits
    situation = np.repeat(["return", "visit"], [900, visits])
    values = {metric: np.zeros(total) for metric in found.values}
    report = report_of(replace(found, values=values, situation=situation, users=Ids.range(total)))
    titles = [section.title for section in report.sections[1:]]
    assert [("visit" if "visit" in title else "return") for title in titles] == shown
    assert (report.about[-1] == f"without a table of their own: {line}") == (line is not None)
