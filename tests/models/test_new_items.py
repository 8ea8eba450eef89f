"""What new items get of the weights of alike items: the naive truth, files, updates and items added later."""

from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Interactions
from mrfrec.answers.recommending import explanation
from mrfrec.core import new_items
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.item_table import ItemFeatures
from mrfrec.engines.local import LocalEngine
from mrfrec.models.mrf.new_items import with_new_items
from mrfrec.models.mrf.scoring import sampled_histories

import naive
from matrices import random_matrix

Matrix = npt.NDArray[np.float64]
UNUSED = [2, 9, 30]


def features_of(F: Matrix) -> ItemFeatures:
    names = Texts.of(f"tag: {i}" for i in range(len(F)))
    return ItemFeatures(Ids.range(F.shape[1]), sp.csr_array(F), names, np.ones(len(F)), {})


def crowd(users: int = 1200, items: int = 160, new: int = 6) -> tuple[Matrix, Interactions]:
    """People like groups of items: each feature names a part of a group; nobody has the last items."""
    rng = np.random.default_rng(4)
    group = np.arange(items) % 10
    likes = np.where(group == rng.integers(0, 10, users)[:, None], 0.4, 0.01)
    X = (rng.random((users, items)) < likes).astype(np.float64)
    X[:, items - new :] = 0.0
    part = group * 4 + rng.integers(0, 4, items)
    F = (np.arange(40)[:, None] == part).astype(np.float64)
    return X, Interactions(sp.csr_array(X)).with_features(features_of(F))


@pytest.mark.parametrize("sparsity", ["dense", 0.2])
@pytest.mark.parametrize("offset", [False, True])
def test_weights_with_those_of_alike_items_equal_naive(sparsity: Any, offset: bool) -> None:
    X = random_matrix(3, users=80, items=90)
    X[:, UNUSED] = 0.0
    F = (np.random.default_rng(2).random((25, 90)) < 0.1).astype(float)
    F[0, UNUSED] = 1.0
    data = Interactions(sp.csr_array(X)).with_features(features_of(F))
    model = MRF.paper(l2=2.0, dtype="float64", offset=offset, sparsity=sparsity).fit(data)
    B = np.asarray(model.weights_.toarray() if model.is_sparse else model.weights_).copy()
    B[:, UNUSED] = 0.0
    learned: Any = model.fitted_.learned
    learned = replace(learned, new_scale=0.0)
    if not model.is_sparse:
        learned.weights.array[:, UNUSED] = 0.0
    else:
        learned = replace(learned, weights=Rows.of(sp.csr_array(B)))
    settings = model._field.settings
    with LocalEngine(2) as engine:
        found = with_new_items(learned, data, np.array(UNUSED), settings, engine)
    sample = new_items.sample_of_used(data.popularity, data.features.matrix)  # type: ignore[union-attr]
    taken = (*UNUSED, *sample)
    own = np.array([naive.new_column(X, F, i) for i in taken]).T
    alike = np.array([naive.column_of_alike(B, X, F, i) for i in taken]).T
    histories = sampled_histories(sp.csr_array(X)).toarray()
    seen = histories[:, sample]
    ratio = naive.low_rank_scale(histories @ own[:, 3:], histories @ alike[:, 3:], seen)
    both = own + ratio * alike
    real = histories @ B[:, sample] + learned.base_scores[sample]
    scale = naive.low_rank_scale(real, histories @ both[:, 3:], seen)
    assert (found.new_scale, found.alike_scale) == pytest.approx((scale, ratio * scale))
    weights = found.weights.matrix()
    weights = weights if isinstance(weights, np.ndarray) else weights.toarray()
    np.testing.assert_allclose(weights[:, UNUSED], scale * both[:, :3], atol=1e-10)
    np.testing.assert_array_equal(np.delete(weights, UNUSED, 1), np.delete(B, UNUSED, 1))
    expected = -model.mean_ @ (scale * both[:, :3]) if offset else np.zeros(3)
    np.testing.assert_allclose(found.base_scores[UNUSED], expected, atol=1e-10)


@pytest.mark.parametrize("at_once", [1 << 22, 50])
def test_sparse_columns_get_the_largest_entries_of_alike_items(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    B = rng.integers(-3, 4, (40, 40)) * (rng.random((40, 40)) < 0.3)  # with entries that are equal
    shares = rng.integers(0, 2, (40, 12)).astype(np.float64)
    monkeypatch.setattr(new_items, "MOST_OF_ALIKE", 9)
    monkeypatch.setattr(new_items, "_COLUMNS_AT_ONCE", at_once)
    found = new_items.columns_of_alike(Rows.of(sp.csr_array(B.astype(np.float64))), sp.csc_array(shares))
    assert not isinstance(found, np.ndarray)
    for column, own in zip((B @ shares).T, found.toarray().T, strict=True):
        best = sorted(range(40), key=lambda j: (-abs(column[j]), j))[:9]
        np.testing.assert_array_equal(own, np.where(np.isin(range(40), best), column, 0.0))
    dense = new_items.columns_of_alike(DenseRows(B.astype(np.float64)), sp.csc_array(shares))
    np.testing.assert_allclose(dense, B @ shares)


@pytest.mark.parametrize("sparsity", ["dense", 1.0])
@pytest.mark.parametrize("measure", [True, False])
def test_items_added_later_get_the_weights_that_a_fit_with_them_gives(
    sparsity: Any, measure: bool, tmp_path: Path
) -> None:
    X, data = crowd()
    assert data.features is not None
    own = {"sparsity": sparsity, "rank": 0, "measure": measure}
    whole = MRF(**own).fit(data)
    known = Interactions(sp.csr_array(X[:, :-6])).with_features(data.features.over(Ids.range(154)))
    grown = MRF(**own).fit(known)
    assert grown.new_scale_ == 0
    grown.save(tmp_path / "a.mrf", include_histories=True)
    loaded = mrfrec.load(tmp_path / "a.mrf")
    assert isinstance(loaded, MRF)
    for step in (157, 160):  # the second time, the scales are known
        with pytest.warns(mrfrec.errors.MrfrecWarning, match="are known"):
            assert loaded.add_items(data.features.over(Ids.range(step))) == 3
    a, b = (np.asarray(m.weights_.todense() if m.is_sparse else m.weights_) for m in (whole, loaded))
    np.testing.assert_allclose(a, b, atol=1e-5)
    assert a[:, -6:].any(axis=0).all()
    loaded.save(tmp_path / "b.mrf", include_histories=True)
    again = mrfrec.load(tmp_path / "b.mrf")
    assert isinstance(again, MRF)
    scales = [each.fitted_.learned.alike_scale for each in (loaded, again)]  # type: ignore[attr-defined]
    assert scales[0] == scales[1] > 0
    again.update(pl.DataFrame({"user": [5000, 5000], "item": [0, 10]}))
    assert again.fitted_.learned.alike_scale > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("later", [False, True])
def test_explanations_of_new_items_name_the_history_alone_and_add_up(later: bool, tmp_path: Path) -> None:
    X, data = crowd()
    assert data.features is not None
    users, places = np.nonzero(X)
    ids = [f"7{item:03}" for item in range(160)]
    events = pl.DataFrame({"user": users, "item": [ids[place] for place in places]})
    parts_of = data.features.matrix.tocsc().indices
    features = pl.DataFrame({"item": ids, "part": [f"part {part}" for part in parts_of]})
    model = MRF(rank=0).fit(events, item_features=features[:-6] if later else features)
    if later:
        with pytest.warns(mrfrec.errors.MrfrecWarning, match="are known"):
            assert model.add_items(features) == 6
    model.save(tmp_path / "a.mrf")  # without histories
    loaded = mrfrec.load(tmp_path / "a.mrf")
    history, new, used = [ids[9], ids[19], ids[28], ids[40]], ids[159], ids[49]
    for each in (model, loaded):
        for novelty in (None, 0.7):
            asked: Any = {"history": history, "novelty": novelty}
            parts, base, _ = explanation(each.fitted_, new, **asked)
            (score,) = each.recommend(**asked, k=1, allow=[new])["score"]
            assert base + fsum(part.amount for part in parts) == pytest.approx(score, abs=1e-5)
            table = each.explain(new, **asked)
            assert table.columns == each.explain(used, **asked).columns
            assert set(table["item"].drop_nulls()) == set(history)


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
