"""Measured parameters: as the naive version finds them, for any number of threads, and kept by updates."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Interactions, ParameterError
from mrfrec.core import fitting, low_rank, statistics
from mrfrec.core.accuracy import of_ranks
from mrfrec.evaluation import by_hash, compare, evaluate
from mrfrec.evaluation.metrics import Lists, parse
from mrfrec.evaluation.results import of_comparison
from mrfrec.fitted.measured import Goal, Measured, MeasuredValue
from mrfrec.models import EASE, EDLAE
from mrfrec.models.climbing import Place, climb_along
from mrfrec.models.mrf import measuring, trials
from mrfrec.models.mrf.held_out import FEWEST_USERS, HeldOut, held_out
from mrfrec.models.mrf.parameters import start_of
from mrfrec.models.mrf.trials import Trials

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


def asked_of(data: Interactions, **options: Any) -> HeldOut:
    asked = held_out(data, **options)
    assert asked is not None
    return asked


def naive_ndcg(asked: HeldOut, values: dict[str, float]) -> naive.Matrix:
    """The nDCG of each held-out user of a dense model with these values, the mean over the questions."""
    X, shown, hidden = (Y.toarray().astype(float) for Y in (asked.training, asked.shown, asked.hidden))
    rank = min(X.shape) // 4
    found = naive.measured_ndcg(X, shown, hidden, rank, asked.places(100), **values)
    return np.array([found[asked.user == user].mean() for user in range(asked.user.max() + 1)])


def test_held_out_users_are_not_trained_on_and_show_the_rest(data: Interactions) -> None:
    asked = asked_of(data)
    assert asked.ranks_all
    hidden = asked.hidden.toarray()
    both = asked.shown.toarray() + hidden
    rows = {row.tobytes() for row in data.matrix.toarray().astype(np.float64)}
    assert all(row.astype(np.float64).tobytes() in rows for row in both)
    users = len(np.unique(asked.user))
    assert USERS * 0.03 < users < USERS * 0.2
    assert asked.training.shape[0] + users <= USERS
    lengths, kept = both.sum(axis=1), hidden.sum(axis=1)
    assert (kept <= np.maximum((0.2 * lengths).astype(int), 1)).all()
    for user in np.unique(asked.user):  # who is asked again, about other items of the same history
        times = asked.user == user
        assert (hidden[times].sum(axis=0) <= 1).all()
        assert (both[times] == both[times][0]).all()


def test_users_with_equal_histories_are_held_out_together_and_one_is_asked() -> None:
    X = random_matrix(5, users=USERS)
    doubled = np.vstack([X, X[::2]])
    asked = asked_of(Interactions(sp.csr_array(doubled)))
    trained = {row.tobytes() for row in asked.training.toarray().astype(np.float64)}
    both = (asked.shown.toarray() + asked.hidden.toarray()).astype(np.float64)
    assert not trained & {row.tobytes() for row in both}
    first = [both[asked.user == user][0].tobytes() for user in range(asked.user.max() + 1)]
    assert len({*first}) == len(first)


def test_doubled_users_do_not_make_a_small_ridge_look_right() -> None:
    """Users like three of 20 groups of items."""
    rng = np.random.default_rng(2)
    likes = rng.random((USERS, 20)).argsort(axis=1) < 3
    X = (np.repeat(likes, 6, axis=1) & (rng.random((USERS, 120)) < 0.5)).astype(np.float32)
    alone = measured(MRF().fit(sp.csr_array(X))).values["l2"]
    doubled = measured(MRF().fit(sp.csr_array(np.vstack([X, X[: USERS // 3]])))).values["l2"]
    assert doubled >= alone / 2


def test_values_are_those_of_the_naive_version(data: Interactions, model: MRF) -> None:
    asked, found = asked_of(data), measured(model)
    assert {choice.name for choice in found.choices} == set(STARTS)
    assert {choice.name: choice.start for choice in found.choices} == STARTS
    assert found.how == ""
    last = naive_ndcg(asked, found.values)
    assert found.value == pytest.approx(last.mean(), abs=2e-4)
    assert found.users == len(last)
    assert found.metric == f"nDCG@{data.n_items}"
    assert last.mean() > naive_ndcg(asked, STARTS).mean()
    # No step along an axis that needs no fit is better by more than its standard error.
    for name in ("rank_weight", "novelty"):
        axis = measuring.AXES[name]
        place = axis.index(found.values[name])
        for other in axis[max(place - 1, 0) : place + 2]:
            difference = naive_ndcg(asked, {**found.values, name: other}) - last
            assert difference.mean() <= difference.std(ddof=1) / len(last) ** 0.5 + 4e-4


@pytest.mark.parametrize("metric", ["ndcg@5", "recall@5", "recall@100"])
def test_a_metric_may_be_named_and_is_that_of_evaluations(
    data: Interactions, metric: str, model: MRF
) -> None:
    found = measured(MRF(measure=metric).fit(data))
    kind, k = metric.split("@")
    assert found.metric.lower() == f"{kind}@{min(int(k), data.n_items)}"
    rng = np.random.default_rng(0)
    lists = np.argsort(rng.random((40, data.n_items)), axis=1).astype(np.int32)
    targets = sp.csr_array(rng.random((40, data.n_items)) < 0.2)
    places = [np.flatnonzero(lists[u] == item)[0] + 1 for u, item in zip(*targets.nonzero(), strict=True)]
    mine = of_ranks(kind, int(k), np.array(places), np.diff(targets.indptr))
    wanted = parse(f"{kind}@{k}").per_user(Lists(lists, targets, model.popularity_, data.n_users))
    assert mine == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("measure", ["ndcg", "ndcg@0", "map@5", "ndcg@5x", 3, None])
def test_other_metrics_are_refused(measure: Any) -> None:
    with pytest.raises(ParameterError, match="measure must be True, False, or a metric"):
        MRF(measure=measure)


def fits_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The settings and the result of each fit from now on."""
    found: list[tuple[Any, Any]] = []
    fit = fitting.fit

    def noted(X: Any, settings: Any, *args: Any, **options: Any) -> Any:
        found.append((settings, fit(X, settings, *args, **options)))
        return found[-1][1]

    monkeypatch.setattr(fitting, "fit", noted)
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_every_trial_is_the_model_it_names_whatever_the_memory(
    data: Interactions, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    settings: dict[str, Any] = {"sparsity": 0.3} if sparse else {}
    least = MRF(**settings).planned(data).least
    outcomes = set()
    for limit in np.linspace(least, 2 * least, 9).astype(int).tolist():
        fits = fits_of(monkeypatch)
        model = MRF(**settings, memory_limit=limit).fit(data)
        monkeypatch.undo()
        trials = fits[:-1]
        outcomes.add(model.measured_ is None)
        if model.measured_ is None:
            assert "nothing measured, for which memory is too small" in model.plan_.reason
            continue
        assert len(trials) == measured(model).trials > 4
        assert all(fitted.low_rank is not None and fitted.plan.rank == 11 for _, fitted in trials)
        assert len({settings for settings, _ in trials}) == len(trials)  # none is fitted twice
    assert False in outcomes


def test_a_final_model_that_takes_too_long_to_try_has_a_stand_in(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = fits_of(monkeypatch)
    monkeypatch.setattr(measuring, "NEIGHBORS", 10)
    monkeypatch.setattr(measuring, "_LEAST_BUDGET", 1e-3)
    model = MRF().fit(data)
    found = measured(model)
    assert {fitted.plan.kind for _, fitted in fits[:-1]} == {"sparse"}
    assert model.plan_.kind == "dense"
    assert found.how == "with 10 neighbours per item"
    assert found.left_out
    assert f"{found.left_out[0]}" in str(found).rpartition(";")[2]
    assert "to take no longer than the fit" in model.plan_.reason


def test_trials_take_no_longer_than_the_budget_by_their_estimate(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for budget in (9.0, 0.5, 0.3, 1e-3):
        monkeypatch.setattr(measuring, "_LEAST_BUDGET", budget)
        found.append(measured(MRF().fit(data)))
    trials = [each.trials for each in found]
    assert trials == sorted(trials, reverse=True)
    assert trials[0] > trials[-1]
    assert [bool(each.left_out) for each in found] == [count < trials[0] for count in trials]


def test_trials_transpose_the_data_once(data: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    both_sides = statistics.both_sides

    def noted(*given: Any) -> Any:
        calls.append(given)
        return both_sides(*given)

    monkeypatch.setattr(statistics, "both_sides", noted)
    fits = fits_of(monkeypatch)
    MRF().fit(data)
    assert len({settings.user_weight for settings, _ in fits}) > 1
    assert len(calls) == 2  # for the trials, and for the fit


def test_a_gain_by_chance_is_not_quoted() -> None:
    rng = np.random.default_rng(0)
    naively, honest = [], []
    for _ in range(40):
        found = rng.random((30, 400))  # no trial is better than another
        naively.append(found.mean(axis=1).max() - found[0].mean())
        honest.append(trials.cross_checked(list(found)).mean())
    assert np.mean(naively) > 0.02
    assert abs(np.mean(honest)) < 0.01
    better = [*found, found[0] + 0.2]
    assert trials.cross_checked(better) == pytest.approx(np.full(400, 0.2))


def test_a_step_on_two_axes_finds_what_one_at_a_time_misses() -> None:
    def find(place: Place) -> float | None:
        x, y = place["x"], place["y"]
        return -((x - y) ** 2) * 10.0 - (x + y - 4) ** 2 if min(x, y) >= 0 and max(x, y) < 9 else None

    def is_better(one: float, other: float | None) -> bool:
        return other is None or one > other

    alone, steps = climb_along({"x": {"x": 1}, "y": {"y": 1}}, {"x": 0, "y": 0}, find, is_better, 5)
    assert (alone, steps) == ({"x": 0, "y": 0}, 0)
    both = {"x": {"x": 1}, "y": {"x": 1, "y": 1}}
    assert climb_along(both, {"x": 0, "y": 0}, find, is_better, 5) == ({"x": 2, "y": 2}, 2)


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
    X = random_matrix(5, users=FEWEST_USERS - 1)
    different = "20 different histories of 5 or more items"
    alike = np.repeat(X[:1], USERS, axis=0)
    for few, takes in ((X, "500 users"), (np.eye(USERS)[:, :30], different), (alike, different)):
        model = MRF().fit(sp.csr_array(few))
        assert model.measured_ is None
        assert f"nothing measured, which takes {takes}" in model.plan_.reason


def test_little_memory_is_no_measurement_and_the_plan_says_so(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldOut, "nbytes", lambda *_: 10**9)
    limited = MRF(memory_limit="900MB").fit(data)
    assert limited.measured_ is None
    assert "memory is too small" in limited.plan_.reason
    assert MRF(memory_limit="2GB").fit(data).plan_.needed > 10**9


def test_no_room_for_a_low_rank_part_leaves_rank_weight_out_and_the_plan_says_so(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "rank_weight not measured: memory is too small for a low-rank part"
    assert said not in MRF().fit(data).plan_.reason
    needed = low_rank.planned_bytes
    monkeypatch.setattr(low_rank, "planned_bytes", lambda *given: needed(*given) + 10**9)
    found = MRF(memory_limit="900MB").fit(data)
    assert "rank_weight" not in measured(found).values
    assert said in found.plan_.reason


def test_values_too_small_for_a_low_rank_part_have_none(data: Interactions) -> None:
    found = MRF().fit(1e-20 * data.matrix.astype(np.float64))  # warnings are errors
    assert found.rank_weight_ == 0
    assert np.isfinite(found.weights_).all()


def test_a_bad_start_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users like three of 20 groups of items, which a large ridge does not see."""
    rng = np.random.default_rng(1)
    likes = rng.random((USERS, 20)).argsort(axis=1) < 3
    X = np.repeat(likes, 6, axis=1) & (rng.random((USERS, 120)) < 0.6)
    monkeypatch.setattr("mrfrec.core.statistics._RIDGE", 5000.0)
    found = measured(MRF(rank=0).fit(sp.csr_array(X.astype(np.float32))))
    moved = found.choices[0]
    assert (moved.name, moved.start) == ("l2", 5000.0)
    assert moved.value < 1000.0
    assert found.gain > 3 * found.error > 0


def test_the_plan_and_the_log_tell_what_was_measured(
    data: Interactions, model: MRF, caplog: pytest.LogCaptureFixture
) -> None:
    said = str(measured(model))
    assert said.startswith(f"measured on {measured(model).users} held-out users: ")
    assert said in model.plan_.reason
    assert said in str(model.plan_)
    assert f"; nDCG@{data.n_items} +" in said
    assert "on users not used to choose" in said
    assert all(f"{name}={value:.3g}" in repr(model) for name, value in model.values_.items())
    with caplog.at_level("INFO", "mrfrec"):
        MRF().fit(data)
    assert said in caplog.text
    assert 0 < model.timings_["measure"] <= model.timings_["total"]


def test_a_comparison_says_which_defaults_were_measured(data: Interactions) -> None:
    found = compare({"a": MRF(), "b": EASE()}, by_hash(data), "ndcg@10")
    note = "a (which measured l2, user_weight, rank_weight, novelty on training users), b."
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
    assert first.fitted_.size.users == USERS + 199


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


def test_where_there_are_too_many_items_a_sample_is_ranked(data: Interactions) -> None:
    users = len(np.unique(asked_of(data).user))
    asked = asked_of(data, most_scores=30 * users)
    assert 20 <= len(asked.ranked) < data.n_items
    assert not asked.ranks_all
    assert asked.places(100) == len(asked.ranked)
    assert asked.places(20) == round(20 * len(asked.ranked) / data.n_items)
    assert asked.places(1) == 10  # at least
    assert (np.diff(asked.hidden.indptr) > 0).all()
    assert asked.hidden.shape == asked.seen.shape == (len(asked.user), len(asked.ranked))


def test_a_sample_of_items_is_told(data: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_SCORES", 30 * 60)
    found = measured(MRF().fit(data))
    assert found.how.startswith("among ")
    assert found.how in str(found)


def test_values_that_stayed_are_told_as_a_list() -> None:
    stayed = tuple(MeasuredValue(name, 1.0, 1.0) for name in "abc")
    said = str(Measured(1000, 3, "nDCG@100", 0.5, 0.0, 0.01, stayed))
    assert "users: a=1, b=1 and c=1 as at the start; nDCG@100 +0.0000 ± 0.0100" in said


@pytest.mark.slow
def test_trials_take_about_as_long_as_their_estimate_says() -> None:
    """As shares of the fit that follows, in processor time: the speed of the machine does not count."""
    rng = np.random.default_rng(0)
    clusters = rng.random((4000, 40)) < 0.1
    X = (np.repeat(clusters, 50, axis=1) & (rng.random((4000, 2000)) < 0.3)) | (
        rng.random((4000, 2000)) < 0.01
    )
    data = Interactions(sp.csr_array(X.astype(np.float32)))
    model = MRF(threads=1)
    model.fit(data)  # compile
    task = model._field.task(data)
    with task.engine() as engine:
        asked = asked_of(data)
        plan = measuring.prepare(asked, data.matrix, task.settings, task.free, engine, 0)
        trials = Trials(asked, plan.settings, plan.held, Goal(), engine)
        values = {**start_of(task.settings), "l2": 25.0, "feature_weight": 0.0}
        trials.fit(values)
        trials.rank(0.3, 0.1)
        took = {}
        for name, changed in (("l2", {"l2": 50.0}), ("user_weight", {"user_weight": 0.5})):
            began = time.process_time()
            trials.fit({**values, **changed})
            for novelty in (0.0, 0.03, 0.06, 0.1, 0.14, 0.18):
                trials.rank(0.3, novelty)
            took[name] = time.process_time() - began
    began = time.process_time()
    MRF(threads=1, measure=False).fit(data)
    after = time.process_time() - began
    for name, seconds in took.items():
        assert 1 / 3 < (seconds / after) / (plan.again[name] / plan.after) < 3, name
