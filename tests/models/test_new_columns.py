"""What the column of a new item minimises, as docs/explanation/method.md says."""

from typing import Any

import numpy as np

import naive


def test_a_new_column_predicts_no_difference_between_users_and_the_features_of_the_item() -> None:
    random = np.random.default_rng(0)
    X = (random.random((40, 9)) < 0.4).astype(np.float64)
    F = (random.random((6, 9)) < 0.5).astype(np.float64)
    item, alpha, weight, ridge = 4, 0.75, 7.0, 10.0
    b = naive.new_column(X, F, item, alpha, feature_weight=weight, ridge=ridge)
    used = np.flatnonzero(b)
    last, wide = np.hstack([X, np.zeros((40, 1))]), np.hstack([F, F[:, [item]]])
    s = naive.moments(last, alpha, True, 0.0, wide, weight).s
    l2 = ridge * naive.auto_l2(X, alpha)

    def loss(b: Any) -> float:
        users = ((X - X.mean(axis=0)) @ b) ** 2
        features = (F @ b - F[:, item] / s[-1]) ** 2
        return float(users.sum() + weight**2 * features.sum() + l2 * ((s[:-1] * b) ** 2).sum())

    assert len(used) > 3
    least = loss(b)
    for j in used:
        for change in (-1e-3, 1e-3):
            assert loss(b + change * np.eye(9)[j]) > least
    assert loss(0.9 * b) > least < loss(1.1 * b)
