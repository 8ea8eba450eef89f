"""Weights of alike items that new items get, and how much of them: the naive truth, measuring and files."""

from dataclasses import asdict, replace
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
from mrfrec.answers.reasons import explanation
from mrfrec.core import new_items
from mrfrec.core.plan import Settings
from mrfrec.core.rows import Rows
from mrfrec.data.features import ItemFeatures
from mrfrec.data.ids import Ids, Texts
from mrfrec.engines.local import LocalEngine
from mrfrec.fitted.measured import Measured
from mrfrec.io.artifact import open_file, write_file
from mrfrec.models.mrf import carrying
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


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("offset", [False, True])
def test_weights_with_those_of_alike_items_equal_naive(threshold: float | None, offset: bool) -> None:
    X = random_matrix(3, users=80, items=90)
    X[:, UNUSED] = 0.0
    F = (np.random.default_rng(2).random((25, 90)) < 0.1).astype(float)
    F[0, UNUSED] = 1.0
    data = Interactions(sp.csr_array(X)).with_features(features_of(F))
    model = MRF.paper(l2=2.0, dtype="float64", offset=offset, threshold=threshold).fit(data)
    B = np.asarray(model.weights_.toarray() if threshold else model.weights_).copy()
    B[:, UNUSED] = 0.0
    learned: Any = model.fitted_.learned
    learned = replace(learned, values={**learned.values, "carry": 0.3}, new_scale=0.0)
    if threshold is None:
        learned.weights.array[:, UNUSED] = 0.0
    else:
        learned = replace(learned, weights=Rows.of(sp.csr_array(B)))
    settings = model._settings_of(model.fitted_)
    with LocalEngine(2) as engine:
        found = with_new_items(learned, data, np.array(UNUSED), settings, engine)
    sample = new_items.sample_of_used(data.popularity, data.features.matrix)  # type: ignore[union-attr]
    taken = (*UNUSED, *sample)
    own = np.array([naive.new_column(X, F, i) for i in taken]).T
    alike = np.array([naive.carried_column(B, X, F, i) for i in taken]).T
    histories = sampled_histories(sp.csr_array(X)).toarray()
    seen = histories[:, sample]
    ratio = 0.3 * naive.low_rank_scale(histories @ own[:, 3:], histories @ alike[:, 3:], seen)
    both = own + ratio * alike
    real = histories @ B[:, sample] + learned.base_scores[sample]
    scale = naive.low_rank_scale(real, histories @ both[:, 3:], seen)
    assert (found.new_scale, found.carry_scale) == pytest.approx((scale, ratio * scale))
    weights = found.weights.matrix()
    weights = weights if isinstance(weights, np.ndarray) else weights.toarray()
    np.testing.assert_allclose(weights[:, UNUSED], scale * both[:, :3], atol=1e-10)
    np.testing.assert_array_equal(np.delete(weights, UNUSED, 1), np.delete(B, UNUSED, 1))
    expected = -model.mean_ @ (scale * both[:, :3]) if offset else np.zeros(3)
    np.testing.assert_allclose(found.base_scores[UNUSED], expected, atol=1e-10)


@pytest.mark.parametrize("at_once", [1 << 22, 50])
def test_of_sparse_columns_the_largest_entries_are_carried_over(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    B = rng.integers(-3, 4, (40, 40)) * (rng.random((40, 40)) < 0.3)  # with entries that are equal
    shares = rng.integers(0, 2, (40, 12)).astype(np.float64)
    monkeypatch.setattr(new_items, "MOST_CARRIED", 9)
    monkeypatch.setattr(new_items, "_CARRIED_AT_ONCE", at_once)
    found = new_items.carried(Rows.of(sp.csr_array(B.astype(np.float64))), sp.csc_array(shares))
    assert not isinstance(found, np.ndarray)
    for column, own in zip((B @ shares).T, found.toarray().T, strict=True):
        best = sorted(range(40), key=lambda j: (-abs(column[j]), j))[:9]
        np.testing.assert_array_equal(own, np.where(np.isin(range(40), best), column, 0.0))
    dense = new_items.carried(mrfrec.core.rows.DenseRows(B.astype(np.float64)), sp.csc_array(shares))
    np.testing.assert_allclose(dense, B @ shares)


def test_measuring_equals_naive_whatever_the_threads() -> None:
    X = random_matrix(6, users=400, items=60)
    F = (np.random.default_rng(2).random((12, 60)) < 0.3).astype(float)
    F[:2] = [np.arange(60) % 2, 1 - np.arange(60) % 2]  # all items are alike some other
    data = Interactions(sp.csr_array(X)).with_features(features_of(F))
    asked = carrying.left_out(data)
    assert asked is not None
    left = asked.items
    rest = asked.training.toarray()
    assert len(left) == 5  # of 57 that are used
    assert not rest[:, left].any()
    assert not asked.shown.toarray()[:, left].any()
    whole = asked.shown.toarray()
    whole[:, left] = asked.hidden.toarray()
    everybody = {row.tobytes() for row in X}
    assert {row.tobytes() for row in whole} < everybody
    X[:, left] = 0.0
    trained = {row.tobytes() for row in rest}
    assert trained <= {row.tobytes() for row in X}
    assert len(rest) + len(whole) <= len(X)
    settings = Settings(2.0, 0.75, 0.0, 0.0, 0.4, True, 1.0, None, 128, 0.0, False, "float64")
    settings = replace(settings, feature_weight=0.7)
    found = []
    for threads in (1, 2):
        with LocalEngine(threads) as engine:
            found.append(carrying.metrics_of_carries(asked, data, settings, 0.1, True, engine, 0))
    np.testing.assert_array_equal(found[0], found[1])
    popularity = (rest != 0).sum(axis=0)
    G = F * (popularity > 0)
    B = naive.dense(rest, 2.0, user_weight=0.4, F=G, feature_weight=0.7)
    B = B * naive.novelty_factors(popularity, 0.1)
    sample = new_items.sample_of_used(popularity, data.features.matrix)  # type: ignore[union-attr]
    taken = (*left, *sample)
    own = np.array([naive.new_column(rest, F, i, user_weight=0.4) for i in taken]).T
    alike = np.array([naive.carried_column(B, rest, F, i) for i in taken]).T
    histories = sampled_histories(asked.training).toarray()
    n = len(left)
    ratio = naive.low_rank_scale(histories @ own[:, n:], histories @ alike[:, n:], histories[:, sample])
    mu = naive.moments(rest, 0.75, True, 0.4).mu
    for carry, metrics in zip((0.0, 0.1, 0.3, 1.0, 3.0), found[0], strict=True):
        scores = (asked.shown.toarray() - mu) @ (own + carry * ratio * alike)[:, :n]
        expected = [
            naive.ndcg(np.argsort(-row, kind="stable").tolist(), set(np.flatnonzero(had).tolist()), 20)
            for row, had in zip(scores, asked.hidden.toarray(), strict=True)
        ]
        np.testing.assert_allclose(metrics, expected, atol=1e-9)


def test_a_step_must_gain_more_than_its_error() -> None:
    noise = np.tile([-0.1, 0.1], 50)
    metrics = [np.full(100, 0.1), np.full(100, 0.2), 0.201 + noise, np.full(100, 0.9), np.full(100, 0.9)]
    assert carrying.chosen_carry(metrics) == 1
    assert carrying.chosen_carry([metrics[0], metrics[0], metrics[3]]) == 0
    assert carrying.chosen_carry(metrics[2:]) == 1


@pytest.mark.parametrize("threshold", [None, 0.05])
def test_a_measured_carry_is_kept_by_files_updates_and_items_added_later(
    threshold: float | None, tmp_path: Path
) -> None:
    X, data = crowd()
    assert data.features is not None
    whole = MRF(threshold=threshold, rank=0).fit(data)
    assert whole.measured_ is not None
    carry = whole.measured_.carry
    assert carry is not None
    assert carry.value == whole.carry_ > 0
    assert MRF(**whole.values_).get_params()["l2"] == whole.values_["l2"]
    assert f"for new items carry={carry.value:.3g} (not 0); nDCG@20 +" in str(whole.plan_)
    assert Measured.of_facts(asdict(whole.measured_)) == whole.measured_
    known = Interactions(sp.csr_array(X[:, :-6])).with_features(data.features.over(Ids.range(154)))
    grown = MRF(threshold=threshold, rank=0).fit(known)
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
    assert again.fitted_.learned.carry_scale == loaded.fitted_.learned.carry_scale > 0  # type: ignore[attr-defined]
    again.update(pl.DataFrame({"user": [5000, 5000], "item": [0, 10]}))
    assert loaded.measured_ is not None
    assert again.measured_ is not None
    assert again.measured_.carry == loaded.measured_.carry
    assert again.fitted_.learned.carry_scale > 0  # type: ignore[attr-defined]
    reasons = again.explain(159, history=[0, 9, 19, 29])
    found = again.recommend(history=[0, 9, 19, 29], allow=[159], k=1)
    assert sum(reasons["contribution"]) == pytest.approx(found["score"][0], abs=1e-5)
    assert MRF(measure=False).fit(data).fitted_.learned.carry_scale == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("threshold", [None, 0.05])
@pytest.mark.parametrize("most", [300, 1])
def test_what_is_carried_over_is_told_as_naive_says(
    threshold: float | None, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, data = crowd()
    assert data.features is not None
    monkeypatch.setattr(new_items, "MOST_CARRIED", most)
    model = MRF(threshold=threshold, rank=0, dtype="float64").fit(data)
    learned: Any = model.fitted_.learned
    assert learned.carry_scale > 0
    model.save(tmp_path / "a.mrf")
    loaded = mrfrec.load(tmp_path / "a.mrf").fitted_.learned
    B = np.asarray(model.weights_.todense() if threshold else model.weights_).copy()
    B[:, 154:] = 0.0
    F = data.features.matrix.toarray()
    missing = 0
    for item in range(154, 160):
        alike = [*naive.alike_items(data.matrix.toarray(), F, item)][
            :3
        ]  # which have weights of their own, too
        history = np.array([0, 1, *alike, 77])
        x = np.zeros(160)
        x[history] = [1.0, 2.0, -1.0, 0.5, 3.0, 1.0][: len(history)]
        weights = learned.entries(history, np.array([item]))[:, 0]
        X = data.matrix.toarray()
        wanted = naive.parts_through(x, B, X, F, item, learned.carry_scale, most if threshold else None)
        missing += len(history) - len(wanted)
        for each in (learned, loaded):
            assert each.carried_between(history, 5) is None  # known from use
            carried = each.carried_between(history, item)
            assert carried is not None
            for place, k in enumerate(history.tolist()):
                parts = x[k] * weights[place] * carried.through[place]
                found = {int(j): part for j, part in zip(carried.items, parts, strict=True) if part}
                assert found == pytest.approx(wanted.get(k, {}), abs=1e-12)
                assert carried.total[place] == pytest.approx(carried.through[place].sum(), abs=1e-9)
    assert (missing > 6) == (most == 1 and threshold is not None)


def named_crowd(kind: type) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The events and the items of the crowd, with titles, as tables; ids are integers or strings."""
    X, data = crowd()
    assert data.features is not None
    users, places = np.nonzero(X)
    ids = [kind(f"7{item:03}") for item in range(160)]
    parts = data.features.matrix.tocsc().indices
    titles = [f"Item {item}" if item % 2 else None for item in range(160)]
    items = pl.DataFrame({"item": ids, "title": titles, "part": [f"part {part}" for part in parts]})
    return pl.DataFrame({"user": users, "item": [ids[place] for place in places]}), items


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("later", [False, True])
def test_explanations_name_the_items_that_weights_were_carried_over_from(
    kind: type, later: bool, tmp_path: Path
) -> None:
    events, items = named_crowd(kind)
    features = items.select("item", "part")
    model = MRF(rank=0).fit(events, item_features=features[:-6] if later else features)
    if later:
        with pytest.warns(mrfrec.errors.MrfrecWarning, match="are known"):
            assert model.add_items(features) == 6
    model.set_items(items)
    model.save(tmp_path / "a.mrf")  # without histories
    loaded = mrfrec.load(tmp_path / "a.mrf")
    ids, place = items["item"].to_list(), model.catalogue.position
    history, new, used = [ids[9], ids[19], ids[28], ids[40]], ids[159], ids[49]
    for each in (model, loaded):
        assert "carried" not in each.explain(used, history=history).columns
        for novelty in (None, 0.7):
            asked: Any = {"history": history, "novelty": novelty}
            parts, base, _ = explanation(each.fitted_, new, **asked)
            (score,) = each.recommend(**asked, k=1, allow=[new])["score"]
            assert base + fsum(part.amount for part in parts) == pytest.approx(score, abs=1e-5)
            for part in parts:
                assert part.through is not None
                assert len(part.through.items) <= 5
                sizes = [abs(amount) for _, amount in part.through.items]
                assert sizes == sorted(sizes, reverse=True)
                assert all(each.popularity_[item] for item, _ in part.through.items)
                weights = each.fitted_.learned.weights_between(
                    np.array([part.item]), np.ones(1), np.array([item for item, _ in part.through.items], int)
                )
                assert (np.sign(weights[0]) == np.sign([x for _, x in part.through.items])).all()
            table = each.explain(new, **asked)
            assert table["carried"].to_list()[: len(parts)] == [p.through.amount for p in parts]  # type: ignore[union-attr]
        (because,) = each.recommend(history=history, k=1, allow=[new], explain=2)["because"]
        best = next(part for part in parts if part.item == place(ids[19]))
        alike = best.through.items[0][0]  # type: ignore[union-attr]
        name = f"Item {alike} [{ids[alike]}]" if alike % 2 else str(ids[alike])
        assert f"Item 19 [{ids[19]}]" in because
        assert f"(through: {name}" in because
        assert because.count("through") == 1  # item 9 has most of its weight from the features of both
    assert "through" not in loaded.explain(new, history=[]).columns


@pytest.mark.parametrize("name", ["new", "ptr", "items", "shares", "own"])
def test_parts_carried_over_that_do_not_go_together_are_refused(name: str, tmp_path: Path) -> None:
    _, data = crowd()
    MRF(rank=0).fit(data).save(path := tmp_path / "a.mrf")
    facts, stored = open_file(path)
    arrays = {each: x.read().copy() for each, x in stored.items()}
    whole = arrays[f"carried.{name}"]
    wrong = {"shorter": whole[:-1].copy(), "missing": None}
    wrong |= {"backwards": whole[::-1].copy()} if name in ("new", "ptr") else {}
    wrong |= {"beyond": whole + 160} if name in ("new", "items") else {}
    for change in wrong.values():
        kept = {each: x for each, x in arrays.items() if each != f"carried.{name}"}
        write_file(path, kept if change is None else {**kept, f"carried.{name}": change}, facts)
        if name == "new" and change is None:  # as in files of before
            assert "carried" not in mrfrec.load(path).explain(159, history=[9, 19]).columns
            continue
        with pytest.raises(mrfrec.ModelFileError):
            mrfrec.load(path).explain(159, history=[9, 19])


def test_nothing_goes_through_alike_items_that_do_not_go_with_the_history() -> None:
    events, items = named_crowd(str)
    model = MRF(threshold=2.0, rank=0).fit(events, item_features=items.select("item", "part"))
    ids, new = items["item"].to_list(), items["item"][159]
    assert not model.weights_[[28], [159]].any()  # nobody who likes that item likes those of the other group
    table = model.explain(new, history=[ids[28], ids[19]])
    assert table["carried"].to_list()[:2] == [pytest.approx(table["contribution"][0]), 0.0]
    assert "7" in table["through"][0]
    assert table["through"][1] is None
    (row,) = model.recommend(history=[ids[28]], k=1, allow=[new], explain=2).to_dicts()
    assert "through" not in row["because"]
