"""MRF() without parameters on odd data: few users, real values, one user who has everything."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, load
from mrfrec.models import Popularity


def _tastes(users: int, items: int, seed: int = 0) -> tuple[Any, Any]:
    """Users of four tastes: what each shows, half of a quarter of the items, and one hidden item of it."""
    rng = np.random.default_rng(seed)
    shown, hidden = np.zeros((users, items), np.float32), np.zeros(users, np.int64)
    for user in range(users):
        own = rng.permutation(np.arange(user % 4, items, 4))
        shown[user, own[: items // 8]] = 1
        hidden[user] = own[items // 8]
    return shown, hidden


def _hits(model: Any, shown: Any, hidden: Any) -> float:
    ranked, _ = model.top_k(sp.csr_array(shown), 5)
    return float((ranked == hidden[:, None]).any(axis=1).mean())


@pytest.mark.parametrize("values", ["ones", "ratings"])
@pytest.mark.parametrize("giant", [False, True])
@pytest.mark.parametrize("sparsity", ["auto", 0.4])
@pytest.mark.parametrize("users", [20, 50])
def test_defaults_learn_tastes_from_a_few_users(users: int, sparsity: Any, giant: bool, values: str) -> None:
    X, _ = _tastes(users, 48)
    asked, hidden = _tastes(200, 48, seed=1)
    if giant:
        X = np.vstack([X, np.ones((1, 48), np.float32)])
    if values == "ratings":
        X = X * np.random.default_rng(2).integers(1, 6, X.shape)
        asked = 3 * asked
    found = _hits(MRF(sparsity=sparsity).fit(sp.csr_array(X)), asked, hidden)
    popular = _hits(Popularity().fit(sp.csr_array(X)), asked, hidden)
    # Within a taste nothing is to be learnt: 5 of the 6 items that are left hit by chance.
    assert popular < 0.3
    assert found > (0.7 if users == 50 else 0.4)


def test_an_item_without_a_value_counts_as_much_as_others(tmp_path: Path) -> None:
    X, _ = _tastes(50, 48)
    rated = sp.csr_array(X * np.random.default_rng(2).integers(1, 6, X.shape))
    model = MRF().fit(rated)
    mean = float(rated.data.mean())
    assert mean > 2
    model.save(tmp_path / "rated.mrf")
    for each in (model, load(tmp_path / "rated.mrf")):
        plain = each.recommend(history=[0, 4, 8], k=5)
        assert plain.equals(each.recommend(history={0: mean, 4: mean, 8: mean}, k=5))
        assert set(plain["item"].to_list()) <= set(range(0, 48, 4))  # not the most popular
        assert not plain.equals(each.recommend(history={0: 1.0, 4: 1.0, 8: 1.0}, k=5))
