"""Users held out by hash: those of the naive version, and the same ones on another day."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import DataError, Interactions, ParameterError
from mrfrec.data.heldout import hashed
from mrfrec.data.ids import Ids
from mrfrec.evaluation import Questions, by_hash

import naive_evaluation as naive


def pairs(users: int = 300, items: int = 40, seed: int = 0, texts: bool = True) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    X = rng.random((users, items)) < rng.uniform(0.02, 0.5, users)[:, None]
    X[:, -1] = False
    X[0, -1] = True  # an item of one user
    name = (lambda kind, x: f"{kind}é{x}") if texts else (lambda kind, x: int(x) * 7)
    return [(name("u", u), name("i", i)) for u, i in zip(*X.nonzero(), strict=True)]


def interactions(rows: list[tuple[Any, Any]]) -> Interactions:
    users, items = (sorted({row[side] for row in rows}) for side in (0, 1))
    X = np.zeros((len(users), len(items)))
    for user, item in rows:
        X[users.index(user), items.index(item)] = 1
    return Interactions(sp.csr_array(X), users, items)


def sets(users: Any, items: Any, X: Any) -> dict[Any, set[Any]]:
    return {
        user: {items[i] for i in X.indices[X.indptr[row] : X.indptr[row + 1]].tolist()}
        for row, user in enumerate(users)
    }


def as_asked(questions: Questions, items: Any) -> naive.Asked:
    shown, targets = (sets(questions.users, items, X) for X in (questions.shown, questions.targets))
    return naive.Asked(shown, targets, questions.left_out)


@pytest.mark.parametrize("texts", [True, False], ids=["strings", "integers"])
@pytest.mark.parametrize("options", [{}, {"most": 20}, {"hidden": 0.5}], ids=str)
def test_split_is_that_of_the_naive_version(options: dict[str, Any], texts: bool) -> None:
    rows = pairs(texts=texts)
    split = by_hash(interactions(rows), 0.15, validation=True, **options)
    training, test, validation = naive.by_hash(rows, 0.15, **options)
    items = split.training.items
    assert sets(split.training.users, items, split.training.matrix) == training
    assert split.validation is not None
    assert as_asked(split.test, items) == test
    assert as_asked(split.validation, items) == validation
    assert len(test.targets) > 10
    without = by_hash(interactions(rows), 0.15, **options)
    assert without.validation is None
    assert list(without.test.users) == list(split.test.users)
    assert without.training.n_users > split.training.n_users


def test_same_users_are_held_out_on_another_day() -> None:
    """However many users and items are new; of those held out, who had no new items is asked the same."""
    rows = pairs()
    more = rows + [(f"new{user}", item) for user, item in pairs(seed=1)]
    before, after = by_hash(interactions(rows), 0.2), by_hash(interactions(more), 0.2)
    a, b = (as_asked(split.test, split.training.items) for split in (before, after))
    old = {user for user in b.targets if not user.startswith("new")}
    assert old == set(a.targets)
    assert all(a.targets[user] == b.targets[user] and a.shown[user] == b.shown[user] for user in old)


def test_hash_of_a_number_is_that_of_its_text() -> None:
    numbers = [0, 7, -5, 2**63 - 1]
    places = np.arange(4)
    found = hashed(Ids.of(numbers, "user"), places)
    assert (found == hashed(Ids.of([str(x) for x in numbers], "user"), places)).all()
    assert found.tolist() == [naive.text_hash(x) for x in numbers]


def test_hashes_are_even() -> None:
    found = hashed(Ids.range(100_000), np.arange(100_000)) / 2.0**64
    counts = np.histogram(found, 20, (0, 1))[0]
    assert abs(counts - 5000).max() < 5 * 5000**0.5


def test_too_little_data_is_refused() -> None:
    few = interactions([(u, i) for u in range(30) for i in range(3)])
    with pytest.raises(DataError, match="0 test users can be held out of 30, of whom 0 have 5 items"):
        by_hash(few)
    everybody = interactions([(u, i) for u in range(3) for i in range(6)])
    with pytest.raises(DataError, match="held out"):
        by_hash(everybody, 0.999999)
    with pytest.raises(ParameterError, match=r"heldout must be above 0 and below 0\.5"):
        by_hash(everybody, 0.5, validation=True)
    with pytest.raises(DataError, match="nothing to ask"):
        by_hash(interactions([(u, i) for u in range(50) for i in range(6)]), hidden=0.1)
