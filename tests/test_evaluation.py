"""Splits and metrics against plain Python."""

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import DataError
from mrfrec.evaluation.holdout import hold_out
from mrfrec.evaluation.metrics import mean_of, ndcg, recall

import naive
from conftest import random_matrix


def test_metrics_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(5)
    targets = sp.csr_array(rng.random((40, 25)) < 0.2)
    targets = targets[np.flatnonzero(np.diff(targets.indptr))]
    n = targets.shape[0]
    ranked = np.array([rng.permutation(25)[:12] for _ in range(n)], np.int32)
    ranked[::3, 9:] = -1  # nothing left to recommend
    for k in (1, 5, 12, 20):
        for u in range(n):
            wanted = set(targets[[u]].indices.tolist())
            best = [i for i in ranked[u].tolist() if i >= 0]
            assert recall(ranked, targets, k)[u] == pytest.approx(naive.recall(best, wanted, k))
            assert ndcg(ranked, targets, k)[u] == pytest.approx(naive.ndcg(best, wanted, k))


def test_a_perfect_list_scores_one() -> None:
    targets = sp.csr_array(np.eye(4)[:, ::-1])
    ranked = np.array([[3, 0], [2, 0], [1, 0], [0, 1]], np.int32)
    assert recall(ranked, targets, 2).tolist() == ndcg(ranked, targets, 2).tolist() == [1.0] * 4


def test_mean_comes_with_its_standard_error() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0])
    assert mean_of(values).mean == 0.5
    assert mean_of(values).error == pytest.approx(np.std(values, ddof=1) / 2)
    assert np.isnan(mean_of(np.array([1.0])).error)


def test_held_out_users_keep_what_is_shown_apart_from_what_is_hidden() -> None:
    X = sp.csr_array(random_matrix(4))
    split = hold_out(X, 30, hidden=0.25, seed=3)
    assert split.training.shape[0] == X.shape[0] - 30
    both = split.shown + split.targets
    assert both.nnz == split.shown.nnz + split.targets.nnz  # nothing is in both
    for u in range(30):
        hidden, shown = (int(np.diff(part.indptr)[u]) for part in (split.targets, split.shown))
        assert hidden == min(max(round(0.25 * (hidden + shown)), 1), hidden + shown - 1)
    rows = {tuple(row) for row in X.toarray()}
    assert {tuple(row) for row in both.toarray()} <= rows
    assert split.training.nnz + both.nnz == X.nnz


def test_the_same_seed_gives_the_same_split() -> None:
    X = sp.csr_array(random_matrix(4))
    one, same, other = hold_out(X, 20, seed=1), hold_out(X, 20, seed=1), hold_out(X, 20, seed=2)
    assert (one.shown != same.shown).nnz == 0
    assert (one.shown != other.shown).nnz > 0


@pytest.mark.parametrize("users", [0, 1000])
def test_more_users_than_there_are_cannot_be_held_out(users: int) -> None:
    with pytest.raises(DataError, match=f"{users} users cannot be held out of"):
        hold_out(sp.csr_array(random_matrix(4)), users)
