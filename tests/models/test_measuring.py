"""Measured parameters: as the naive version finds them, for any number of threads, and kept by updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Interactions, ParameterError
from mrfrec.evaluation import by_hash, compare, evaluate
from mrfrec.evaluation.report import of_comparison
from mrfrec.fitted.measured import Measured, MeasuredValue
from mrfrec.models import EASE, EDLAE
from mrfrec.models.mrf import measuring

import naive
from matrices import random_matrix

USERS = 600
STARTS: dict[str, Any] = {"l2": 25.0, "user_weight": 0.25, "novelty": 0.1, "rank_weight": 0.0}


@pytest.fixture(scope="module")
def data() -> Interactions:
    return Interactions(sp.csr_array(random_matrix(5, users=USERS)))


@pytest.fixture(scope="module")
def model(data: Interactions) -> MRF:
    return MRF().fit(data)


def same_answers(model: Any, other: Any) -> None:
    """The models have the same weights and recommend the same, to the bit."""
    assert np.array_equal(model.weights_, other.weights_)
    X = random_matrix(8, users=50)[:, : len(model.items_)]
    for found, wanted in zip(model.top_k(sp.csr_array(X), 9), other.top_k(sp.csr_array(X), 9), strict=True):
        assert np.array_equal(found, wanted)


def measured(model: Any) -> Measured:
    assert model.measured_ is not None
    return model.measured_  # type: ignore[no-any-return]


def naive_ndcg(asked: measuring.HeldOut, values: dict[str, float]) -> naive.Matrix:
    """The nDCG of each held-out user of a dense model with these values."""
    X, shown, hidden = (Y.toarray().astype(float) for Y in (asked.training, asked.shown, asked.hidden))
    rank = min(X.shape) // 4
    return naive.measured_ndcg(X, shown, hidden, rank, asked.places, **values)


def test_held_out_users_are_not_trained_on_and_show_the_rest(data: Interactions) -> None:
    asked = measuring.held_out(data)
    assert asked is not None
    whole = data.matrix.toarray()
    hidden = np.zeros((asked.hidden.shape[0], data.n_items))
    hidden[:, asked.ranked] = asked.hidden.toarray()
    both = asked.shown.toarray() + hidden
    rows = {row.tobytes() for row in whole.astype(np.float64)}
    assert all(row.astype(np.float64).tobytes() in rows for row in both)
    assert asked.training.shape[0] + len(both) <= USERS
    assert USERS * 0.03 < len(both) < USERS * 0.2
    lengths, kept = both.sum(axis=1), hidden.sum(axis=1)
    assert (kept == np.maximum((0.2 * lengths).astype(int), 1)).all()


def test_values_are_those_of_the_naive_version(data: Interactions, model: MRF) -> None:
    asked, found = measuring.held_out(data), measured(model)
    assert asked is not None
    assert {choice.name for choice in found.choices} == set(STARTS)
    assert {choice.name: choice.start for choice in found.choices} == STARTS
    last = naive_ndcg(asked, found.values)
    assert found.ndcg == pytest.approx(last.mean(), abs=2e-4)
    assert found.users == len(last)
    gain = sum(choice.gain for choice in found.choices)
    assert gain == pytest.approx(last.mean() - naive_ndcg(asked, STARTS).mean(), abs=4e-4)
    assert gain > 0
    # No step along an axis that needs no fit is better by more than its standard error.
    for name in ("rank_weight", "novelty"):
        axis = measuring.AXES[name]
        place = axis.index(found.values[name])
        for other in axis[max(place - 1, 0) : place + 2]:
            difference = naive_ndcg(asked, {**found.values, name: other}) - last
            assert difference.mean() <= difference.std(ddof=1) / len(last) ** 0.5 + 4e-4


def test_model_is_that_of_a_fit_with_the_values(data: Interactions, model: MRF, tmp_path: Path) -> None:
    same_answers(MRF(**model.values_).fit(data), model)
    for threads in (1, 3):
        again = MRF(threads=threads).fit(data)
        assert again.measured_ == model.measured_
        same_answers(again, model)
    path = tmp_path / "m.mrf"
    model.save(path, include_histories=True)
    loaded: Any = mrfrec.load(path)
    assert (loaded.measured_, loaded.values_) == (model.measured_, model.values_)
    assert loaded.l2 == loaded.novelty == "auto"
    same_answers(loaded, model)


def test_given_numbers_are_never_changed(data: Interactions) -> None:
    given = MRF(l2=1000.0, novelty=-0.3).fit(data)
    assert (given.values_["l2"], given.values_["novelty"]) == (1000.0, -0.3)
    assert set(measured(given).values) == {"user_weight", "rank_weight"}
    kept = MRF(l2=2.0).fit(data, measured=measured(MRF().fit(data)))
    assert kept.values_["l2"] == kept.plan_.l2 == 2.0


def test_what_has_its_numbers_is_not_measured(data: Interactions) -> None:
    for model in (MRF.paper(), EASE(), EDLAE(), MRF(**STARTS)):
        assert model.fit(data).measured_ is None
        assert "measure" not in model.timings_
    assert MRF(rank=0, l2=1.0, user_weight=0.0, novelty=0.0).fit(data).measured_ is None


def test_without_measuring_the_start_values_are_used(data: Interactions) -> None:
    model = MRF(measure=False).fit(data)
    assert model.measured_ is None
    assert model.values_ == STARTS
    same_answers(MRF(**STARTS).fit(data), model)


def test_few_users_or_nothing_to_hide_is_no_measurement_and_the_plan_says_so() -> None:
    X = random_matrix(5, users=measuring.FEWEST_USERS - 1)
    for few in (X, np.eye(USERS)[:, :30], np.ones((USERS, 3))):
        model = MRF().fit(sp.csr_array(few))
        assert model.measured_ is None
        assert "nothing measured, which takes 500 users and some with 5 items" in model.plan_.reason


def test_little_memory_is_no_measurement_and_the_plan_says_so(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring.HeldOut, "nbytes", lambda *_: 10**9)
    limited = MRF(memory_limit="900MB").fit(data)
    assert limited.measured_ is None
    assert "memory is too small" in limited.plan_.reason
    assert MRF(memory_limit="2GB").fit(data).plan_.needed > 10**9


def test_a_bad_start_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users like three of 20 groups of items, which a large ridge does not see."""
    rng = np.random.default_rng(1)
    likes = rng.random((USERS, 20)).argsort(axis=1) < 3
    X = np.repeat(likes, 6, axis=1) & (rng.random((USERS, 120)) < 0.6)
    monkeypatch.setattr("mrfrec.core.statistics._RIDGE", 5000.0)
    found = measured(MRF().fit(sp.csr_array(X.astype(np.float32))))
    moved = found.choices[0]
    assert (moved.name, moved.start) == ("l2", 5000.0)
    assert moved.value < 1000.0
    assert moved.gain > 3 * moved.error > 0


def test_the_plan_and_the_log_tell_what_was_measured(
    data: Interactions, model: MRF, caplog: pytest.LogCaptureFixture
) -> None:
    said = str(measured(model))
    assert said.startswith(f"measured on {measured(model).users} held-out users: ")
    assert said in model.plan_.reason
    assert said in str(model.plan_)
    assert measured(model).places == data.n_items < 100
    assert f", nDCG@{data.n_items} +" in said
    assert all(f"{name}={value:.3g}" in repr(model) for name, value in model.values_.items())
    with caplog.at_level("INFO", "mrfrec"):
        MRF().fit(data)
    assert said in caplog.text
    assert 0 < model.timings_["measure"] <= model.timings_["total"]


def test_a_comparison_says_which_defaults_were_measured(data: Interactions) -> None:
    found = compare({"a": MRF(), "b": EASE()}, by_hash(data), "ndcg@10")
    note = "a (which measured l2, rank_weight, novelty, user_weight on training users), b."
    assert of_comparison(found).notes[-1].endswith(note)


def test_updates_keep_the_values_and_measure_again_when_asked(data: Interactions) -> None:
    names = [f"new {i}" for i in range(200)]
    more = Interactions(sp.csr_array(random_matrix(6, users=200)), names, data.items)
    first = MRF().fit(Interactions(data.matrix, [f"old {i}" for i in range(USERS)], data.items))
    kept = measured(first)
    first.update(more)
    assert first.measured_ == kept
    assert "kept what was measured on" in first.plan_.reason
    everything = first.fitted_.data_for("a test")
    same_answers(MRF(**first.values_).fit(everything), first)
    first.update(more, batch="twice", measure_again=True)
    assert measured(first).users != kept.users
    first.forget(["new 3"])
    assert first.data_size_.users == USERS + 199


def test_wrong_values_to_keep_are_refused(data: Interactions) -> None:
    with pytest.raises(ParameterError, match="measured must be the measured_ of a model"):
        MRF().fit(data, measured={"l2": 3.0})  # type: ignore[arg-type]


def test_test_users_are_not_looked_at(data: Interactions) -> None:
    split = by_hash(data, 0.1)
    model = MRF()
    found = evaluate(model, split, "ndcg@10")
    alone = MRF().fit(split.training)
    assert str(measured(alone)) in found.facts["plan"]
    assert not hasattr(model, "plan_")


def test_progress_of_measuring_and_fitting_is_one(data: Interactions) -> None:
    reports: list[tuple[str, int, int]] = []
    MRF().fit(data, progress=lambda *report: reports.append(report))
    shares = [done / total for _, done, total in reports]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert reports[0][0] == "measuring parameters"


def test_many_items_are_measured_by_a_sparse_stand_in_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.hstack([random_matrix(seed, users=USERS, items=45) for seed in range(4)])
    monkeypatch.setattr(measuring, "DENSE_UP_TO", 50)
    monkeypatch.setattr(measuring, "_ITEMS", 100)
    data = Interactions(sp.csr_array(X))
    asked = measuring.held_out(data)
    assert asked is not None
    assert len(asked.ranked) == 100
    assert asked.places == round(100 * 100 / 180)
    assert (np.diff(asked.hidden.indptr) > 0).all()
    model = MRF().fit(data)
    assert measured(model).users == asked.hidden.shape[0]
    assert model.plan_.kind == "dense"


def test_dear_trials_are_left_out() -> None:
    final, trial = {"pattern": 90.0}, {"low rank": 10.0, "pattern": 20.0, "solve": 5.0}
    assert measuring.affordable(["l2", "user_weight"], final, trial) == ["l2"]
    assert measuring.affordable(["l2", "user_weight"], {"pattern": 150.0}, trial) == ["l2", "user_weight"]
    assert measuring.affordable(["user_weight"], {}, {"solve": 1.0}) == ["user_weight"]


def test_values_that_stayed_are_told_as_a_list() -> None:
    stayed = tuple(MeasuredValue(name, 1.0, 1.0, 0.0, 0.0) for name in "abc")
    assert str(Measured(1000, 3, 0.5, stayed, places=100)).endswith("users: a=1, b=1 and c=1 as at the start")
