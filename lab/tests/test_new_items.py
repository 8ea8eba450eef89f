"""Ties in the experiment on new items: equal scores come in any order, whatever the ids are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import evaluation
from mrfrec_lab import new_items
from mrfrec_lab.lists import measure_lists, split_of


def test_ndcg_is_the_mean_over_orders_of_equal_scores() -> None:
    random = np.random.default_rng(0)
    scores = random.integers(0, 3, (6, 9)).astype(np.float64)
    targets = sp.csr_array((random.random((6, 9)) < 0.4).astype(np.float32))
    targets = targets[np.diff(targets.indptr) > 0]
    scores = scores[: targets.shape[0]]
    found = new_items.ndcg(new_items.expected_gains(scores, targets, 4), targets, 4)
    # Each user many times, as if they were others.
    often = np.repeat(np.arange(len(scores)), 4000)
    ranked = np.lexsort((random.random((len(often), 9)), -scores[often]), axis=1)[:, :4].astype(np.int32)
    values = measure_lists(ranked, split_of(targets, targets[often]), ["ndcg@4"])["ndcg@4"]
    np.testing.assert_allclose(found, values.reshape(-1, 4000).mean(axis=1), atol=0.02)


@pytest.mark.parametrize("order", ["by popularity", "rarest first", "any"])
def test_scores_of_zero_get_what_a_random_order_gets_whatever_the_ids(order: str) -> None:
    asked, popularity = _questions()
    columns = {
        "by popularity": np.argsort(-popularity),
        "rarest first": np.argsort(popularity),
        "any": np.random.default_rng(1).permutation(len(popularity)),
    }[order]
    assert asked.candidates is not None
    other: Any = replace(asked, targets=asked.targets[:, columns], candidates=asked.candidates[columns])
    found = new_items.of_new(np.zeros(other.targets.shape), other)
    count, targets = int(asked.candidates.sum()), np.diff(other.targets.indptr)
    discount = 1 / np.log2(np.arange(2, 22))
    best = np.array([discount[: min(number, 20)].sum() for number in targets])
    np.testing.assert_allclose(found, targets * discount[:20].sum() / count / best)


def _questions() -> tuple[evaluation.Questions, Any]:
    from mrfrec import datasets

    split = evaluation.strong_generalisation(datasets.load("debian"), 300)
    popularity = split.training.popularity
    return split.with_new_items(0.1)[1], popularity


def test_baselines_of_content_do_not_depend_on_the_order_of_the_ids() -> None:
    events, features = new_items.data_of("debian", None)
    split = evaluation.strong_generalisation(events, 300)
    plain, asked = split.with_new_items(0.1)
    columns = np.random.default_rng(0).permutation(plain.training.n_items)
    other, other_asked = _in_order(plain, asked, columns)
    for nearest, tolerance in ((None, 1e-9), (5, 0.01)):
        first = new_items.of_new(new_items.by_content(plain, asked, features, nearest, 0), asked)
        second = new_items.by_content(other, other_asked, features, nearest, 0)
        assert abs(new_items.of_new(second, other_asked).mean() - first.mean()) < tolerance


def _in_order(split: Any, asked: Any, columns: Any) -> tuple[Any, Any]:
    from mrfrec import Interactions

    X = split.training
    items = [X.items[int(i)] for i in columns]
    training = Interactions(sp.csr_array(X.matrix[:, columns]), X.users, items)
    matrices = {name: sp.csr_array(getattr(asked, name)[:, columns]) for name in ("shown", "targets")}
    other = replace(asked, **matrices, candidates=asked.candidates[columns], items=training.items)
    return replace(split, training=training), other
