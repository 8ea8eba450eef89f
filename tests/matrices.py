"""Small matrices with the traits that break things."""

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec import Interactions, read_interactions

Matrix = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def random_matrix(seed: int, users: int = 120, items: int = 45, *, real: bool = False) -> Matrix:
    """Uneven popularity, an item nobody has, one everybody has, two twins, a user without history."""
    rng = np.random.default_rng(seed)
    used = rng.random((users, items)) < rng.beta(0.7, 3.0, items)
    # A few clusters, so that covariances of all sizes occur.
    for start in range(0, items, 9):
        fans = rng.random(users) < 0.25
        used[fans, start : start + 9] |= rng.random((users, items))[fans, start : start + 9] < 0.6
    X = used.astype(np.float64)
    if real:
        X *= rng.normal(1.0, 0.7, X.shape)
    X[3] = 0.0
    X[:, 5] = 0.0
    X[:, 7] = 1.0
    X[:, 11] = X[:, 12]
    return X


def places_of(X: Matrix, seed: int = 0, *, at_once: bool = False) -> Places:
    """The place of each entry: times are drawn from a few, so that some are equal; `at_once` from two."""
    rng = np.random.default_rng(seed)
    places = np.zeros(X.shape, np.int64)
    for x, place in zip(X, places, strict=True):
        had = np.flatnonzero(x)
        times = rng.integers(0, 2 if at_once else max(2 * len(had), 1), len(had))
        place[had] = np.unique(times, return_inverse=True)[1]
    return places


def clusters(seed: int, users: int) -> Matrix:
    """Everybody likes one of six groups of ten items, and a few others."""
    rng = np.random.default_rng(seed)
    group = np.arange(60) // 10
    likely = np.where(group == rng.integers(0, 6, users)[:, None], 0.6, 0.04)
    return (rng.random((users, 60)) < likely).astype(np.float64)


def pairs_of(X: Matrix) -> Interactions:
    """The pairs that are not 0, user by user."""
    user, item = np.nonzero(X)
    return read_interactions(pl.DataFrame({"user": user, "item": item}))


def visits(users: int, seed: int = 0) -> pl.DataFrame:
    """Tastes that change halfway, in visits that go on as they ended."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        start = int(rng.integers(0, 1000))
        group = int(rng.integers(0, 6))
        length = int(rng.integers(6, 12))
        for step in range(length):
            partner = (group + (3 if start < 600 else 1)) % 6
            of = group if step < length / 2 else partner
            item = 10 * of + int(rng.integers(0, 10))
            rows.append((user, item, 86_400 * start + 60 * step))
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    return frame.unique(["user", "item"], keep="first", maintain_order=True)
