"""Tuning one axis at a time: reaches the best of a grid and beyond, in time, and keeps the best so far."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, Interactions, MrfrecWarning, ParameterError
from mrfrec.core import blocks, closed_form
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids
from mrfrec.evaluation import climb, compare, splits, study, tuning
from mrfrec.evaluation.grids import ridges
from mrfrec.evaluation.report import of_comparison, of_tuning
from mrfrec.evaluation.splits import Questions, Split, popularity_differs
from mrfrec.models import EASE, Popularity
from mrfrec.models.axes import Ridges
from mrfrec.models.climbing import value_at
from mrfrec.models.registry import build

from conftest import random_matrix

Parameters = dict[str, Any]


@pytest.fixture(scope="module")
def split() -> Split:
    X = sp.coo_array(random_matrix(8, users=160))
    events = Events(Ids.range(160), Ids.range(45), *(where.astype(np.int32) for where in X.coords))
    return splits.strong_generalisation(events, 30)


@pytest.fixture
def valued(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Parameters], float]], list[Parameters]]:
    """Give trials a value by a function of their parameters, and record them."""

    def use(value: Callable[[Parameters], float]) -> list[Parameters]:
        tried: list[Parameters] = []

        def one(_: object, parameters: Parameters) -> study.Trial:
            tried.append(parameters)
            return study.Trial(parameters, value(parameters), 0.0, 1.0)

        monkeypatch.setattr(study.Study, "_try", one)
        return tried

    return use


def test_a_climb_finds_the_top_of_a_hill_and_goes_beyond_the_ends(split: Split, valued: Any) -> None:
    def value(x: Parameters) -> float:  # best at l1 = 81, far beyond the list, and l2 = 0.3
        height = 100 - abs(np.log(x["l1"] / 81)) - abs(np.log(x["l2"] / 0.3))
        return float(height - 0.1 * (x["l1"] > 10) * x["l2"])

    tried = valued(value)
    found = climb(split, "ndcg@10", model="SLIM", vary={"l1": [1.0, 3.0, 9.0], "l2": [0.03, 0.3, 3.0]})
    assert (found.best.parameters["l1"], found.best.parameters["l2"]) == (81.0, 0.3)
    assert len(tried) < 20
    assert len({json.dumps(point) for point in tried}) == len(tried)  # nothing is tried twice


def test_a_climb_starts_from_the_defaults_and_ends_where_no_step_is_better(split: Split, valued: Any) -> None:
    tried = valued(lambda _: 1.0)
    climb(split, "ndcg@10", fixed={"sparsity": None})
    assert tried[0] == {
        "sparsity": None, "measure": False, "novelty": 0.1, "rank_weight": 0.3, "l2": "auto",
        "user_weight": 0.25, "alpha": 0.5, "rank": 0,
    }  # fmt: skip
    for point in tried[1:]:  # one step along one axis
        assert sum(point[name] != x for name, x in tried[0].items()) <= 2  # l2 follows alpha
    assert {name for point in tried for name, x in point.items() if x != tried[0][name]} == {
        "novelty",
        "l2",
        "user_weight",
        "alpha",
        "rank",
    }  # fmt: skip; without a low-rank part, its weight does not matter


def test_l2_keeps_its_place_when_alpha_changes(split: Split, valued: Any) -> None:
    tried = valued(lambda x: (x["l2"] != "auto") + float(x["alpha"]))
    climb(split, "ndcg@10", fixed={"sparsity": None}, vary={"novelty": [0.0], "user_weight": [0.0]})
    numbers = {x["alpha"]: x["l2"] for x in tried if x["l2"] != "auto"}
    assert numbers[0.75] < numbers[0.5]  # the diagonal of S is smaller


def test_a_grid_is_tried_whole_and_then_left_where_it_ends(split: Split, valued: Any) -> None:
    tried = valued(lambda x: 10.0 + x["l1"] - x["l2"])
    found = climb(split, "ndcg@10", model="SLIM", vary={"l1": [1.0, 2.0], "l2": [1.0, 2.0]}, grid=True)
    assert [(x["l1"], x["l2"]) for x in tried[:4]] == [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]
    assert found.best.parameters["l1"] > 2.0
    assert found.best.parameters["l2"] < 1.0


def test_a_grid_has_numbers_alone_beside_the_default(split: Split, valued: Any) -> None:
    tried = valued(lambda point: 0.5)
    climb(split, fixed={"sparsity": None, "user_weight": 0.0, "rank": 0}, grid=True)
    assert sum(point["l2"] == "auto" for point in tried) == 1


def test_the_weight_of_a_low_rank_part_is_not_varied_without_one(split: Split, valued: Any) -> None:
    tried = valued(lambda point: 0.5)
    climb(split, fixed={"rank": 0}, vary={"l2": [1.0, 10.0], "rank_weight": [0.1, 0.3]})
    assert len({point["rank_weight"] for point in tried}) == 1


def test_values_beyond_an_end_keep_ratio_step_and_type() -> None:
    assert [value_at((1.0, 3.0), i) for i in (-2, -1, 0, 2, 3)] == [0.111, 0.333, 1.0, 9.0, 27.0]
    assert [value_at((0.0, 0.1, 0.2), i) for i in (-1, 3)] == [-0.1, 0.4]
    assert value_at((64, 128), 3) == 512
    assert isinstance(value_at((64, 128), 3), int)
    assert [value_at(values, len(values)) for values in ((), (1.0,), (False, True), ("auto", None))] == [
        None
    ] * 4
    assert value_at((1.0, 2.0), 50) is None


def test_a_step_that_the_model_refuses_is_no_step(split: Split, valued: Any) -> None:
    valued(lambda x: float(x["alpha"]))
    found = climb(split, "ndcg@10", fixed={"sparsity": None})
    assert found.best.parameters["alpha"] == 1.0


def test_a_value_that_the_data_is_too_small_for_is_refused_if_asked_for_and_else_no_step(
    split: Split,
) -> None:
    fixed = {"sparsity": 0.4, "l2": 3.0, "alpha": 0.5, "user_weight": 0.0}
    one = {"novelty": [0.0], "rank_weight": [0.3]}
    found = climb(split, "ndcg@10", fixed=fixed, vary={"rank": [10, 40], **one})
    assert {trial.parameters["rank"] for trial in found.trials} <= {2, 10, 40}
    for vary, message in (
        ({"rank": [10, 400]}, "rank must be at most"),
        ({"sparsity": [0.4, 0.001]}, "at least 1/"),
    ):
        with pytest.raises(ParameterError, match=message):
            climb(split, "ndcg@10", vary=vary)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model must be one of MRF"),
    ({"vary": {"l2": []}}, "l2 must be a list with at least one value"),
    ({"vary": ["l2"]}, "vary must be a mapping"),
    ({"machine": {"l2": 3}}, "machine must be of parameters that change no result"),
    ({"study": "."}, "study must be a file"),
    ({"progress": 3}, "progress must be a function"),
    ({"grid": "no"}, "grid must be True or False"),
    (
        {"metric": "ndcg@100"},
        r"metric must be of at most the 44 items there are; got 'ndcg@100'\. Use ndcg@44",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(list(wrong)) for wrong, _ in WRONG])
def test_wrong_arguments_are_named(split: Split, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        climb(split, **{"metric": "ndcg@10", **wrong})


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


class _Clock:
    """Every trial takes as long as its model says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Parameters], float]) -> None:
        self.now = 0.0
        monkeypatch.setattr("mrfrec.evaluation.study.time.monotonic", lambda: self.now)

        def one(_: object, parameters: Parameters) -> study.Trial:
            self.now += seconds(parameters)
            return study.Trial(parameters, self.now, 0.0, 1.0)  # always better

        monkeypatch.setattr(study.Study, "_try", one)


def test_no_trial_begins_when_the_time_is_up(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch, lambda _: 50.0)
    found = climb(split, "ndcg@10", model="EASE", minutes=5)
    assert clock.now == 350.0
    assert found.out_of_time
    points = [{"l2": float(x)} for x in range(1, 20)]
    assert len(tuning.tune(split, points, "ndcg@10", model="EASE", minutes=0.001).trials) == 1
    with pytest.raises(ParameterError, match="minutes must be above 0"):
        climb(split, "ndcg@10", minutes=0)


def test_progress_shows_the_first_fit_and_follows_the_limit_of_time(split: Split) -> None:
    steps: list[tuple[str, int, int]] = []
    climb(split, "ndcg@10", model="EASE", minutes=5, progress=lambda *step: steps.append(step))
    first = [stage for stage, _, _ in steps if stage.startswith("trial 1: ")]
    assert {"trial 1: learning weights", "trial 1: measuring"} <= set(first)
    assert steps[0][1] < 1000 * 60  # from the start on, in milliseconds
    assert {total for _, _, total in steps} == {300_000}
    done = [done for _, done, _ in steps]
    assert done == sorted(done)
    assert (done[-2] < 300_000, done[-1]) == (True, 300_000)


def test_the_best_so_far_is_told_before_the_next_trial(split: Split, valued: Any) -> None:
    def value(x: Parameters) -> float:
        if len(tried) > 4:
            raise KeyboardInterrupt
        return float(x["l2"])

    tried, told = valued(value), []
    with pytest.raises(KeyboardInterrupt):
        climb(split, "ndcg@10", model="EASE", improved=lambda found: told.append(found.best.parameters["l2"]))
    assert told[-1] == max(point["l2"] for point in tried[:-1])
    assert told == sorted(told)


# ── a stand-in for the dense model ────────────────────────────────────────────────────────────────


def test_a_climb_starts_from_what_the_model_measures(valued: Any) -> None:
    X = sp.coo_array(random_matrix(8, users=900))
    events = Events(Ids.range(900), Ids.range(45), *(where.astype(np.int32) for where in X.coords))
    split = splits.strong_generalisation(events, 100)
    measured = MRF().fit(split.training).measured_
    assert measured is not None
    tried = valued(lambda _: 1.0)
    climb(split, "ndcg@10")
    moved = [choice for choice in measured.choices if choice.value != choice.start]
    assert moved
    assert all(tried[0][choice.name] == choice.value for choice in moved)


def test_a_climb_starts_next_to_what_was_measured_where_auto_counts_as_what_it_stands_for(
    split: Split, valued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, twice = ridges(split, 0.5, Ridges((0.5, 1.0, 2.0), of_auto=True))
    for factor, start in ((0.45, "auto"), (0.8, twice)):
        monkeypatch.setattr(study.Study, "measured", lambda _, x=factor: {"l2": x * twice})
        tried = valued(lambda _: 1.0)
        climb(split, "ndcg@10", fixed={"sparsity": None})
        assert [x["l2"] for x in tried[:2]] == [factor * twice, start]


# ── free parameters ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_novelty_and_the_weight_of_the_low_rank_part_need_no_fit(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    settings: list[Any] = [
        {"novelty": g, "rank": k, "rank_weight": w}
        for g, k, w in ((0.1, 4, 0.3), (0.3, 4, 0.6), (0.0, 0, 0.3))
    ]
    expected = [MRF(sparsity=sparsity, **more).fit(data) for more in settings]
    MRF(sparsity=sparsity).fit(data, reuse=reuse)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(closed_form, "closed_form", again)
    monkeypatch.setattr(blocks, "estimate_weights", again)
    for one, more in zip(expected, settings, strict=True):
        model = MRF(sparsity=sparsity, **more).fit(data, reuse=reuse)
        assert (model.weights_ != one.weights_).sum() == 0
        assert np.array_equal(model.score(data.matrix), one.score(data.matrix))
    with pytest.raises(AssertionError, match="done again"):
        MRF(sparsity=sparsity, l2=2.0).fit(data, reuse=reuse)


# ── validation users that are unlike the test users ───────────────────────────────────────────────


def test_questions_of_other_popularity_are_worth_a_warning(split: Split) -> None:
    assert popularity_differs(split.for_tuning(), split) is None
    X = split.training
    rare = np.argsort(X.popularity)[:5]
    hidden = np.zeros((40, X.n_items), np.float32)
    hidden[np.arange(40), np.resize(rare, 40)] = 1
    shown = split.training.matrix[:40]
    odd = Split(X, Questions(Ids.range(40), shown, sp.csr_array(hidden)), split.validation, "odd")
    with pytest.warns(
        MrfrecWarning, match=r"the hidden items have [\d.]+ users each in validation and [\d.]+"
    ):
        climb(odd, "ndcg@10", model="Popularity")


def test_a_climb_is_measured_as_any_other_tuning(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    found = climb(split, "ndcg@10", fixed={"sparsity": 0.4, "r": 0.0}, minutes=None, study=study)
    points = [trial.parameters for trial in found.trials]
    again = tuning.tune(split, points, "ndcg@10", fixed={"sparsity": 0.4, "r": 0.0})
    assert [trial.value for trial in again.trials] == [trial.value for trial in found.trials]
    start = next(trial for trial in again.trials if trial.parameters["l2"] == "auto")
    assert (found.best.value or 0) >= (start.value or 1)
    resumed = climb(split, "ndcg@10", fixed={"sparsity": 0.4, "r": 0.0}, minutes=None, study=study)
    assert resumed.best == found.best


@pytest.mark.parametrize(("model", "grid"), [("MRF", False), ("SLIM", True)])
def test_the_default_and_the_gain_over_it_are_in_the_table(
    split: Split, valued: Any, model: str, grid: bool
) -> None:
    usual = build(model, {}).parameters
    start = {} if grid else build(model, {}).tuning_route(split.for_tuning().training).start
    default = {**usual, **start, **({"measure": False} if "measure" in usual else {})}

    def value(x: Parameters) -> float:  # the default is the worst of many
        return 0.2 if {**default, **x} == default else 0.25 + (crc32(json.dumps(x).encode()) % 100) / 1e6

    valued(value)
    found = climb(split, "ndcg@10", model=model, grid=grid)
    assert found.default is not None
    assert {**default, **found.default.parameters} == default
    report = of_tuning(found, most=3)
    assert report.about[1] == f"{model}: {len(found.trials)} points tried"
    assert "measure" not in report.sections[0].columns
    place = report.sections[0].columns.index("over the default, unpaired")
    cells = [row[place] for row in report.sections[0].rows]
    assert len(cells) == 4
    assert cells[-1] == "default"
    gain = (found.best.value or 0.0) - 0.2
    assert cells[0] == f"{gain:+.4f} (+{100 * gain / 0.2:.1f} %)"
    assert report.data["default"] == build(model, found.default.parameters).parameters


def test_a_default_that_was_not_tried_has_no_row(split: Split, valued: Any) -> None:
    valued(lambda x: x["l1"] / 10)
    found = climb(split, "ndcg@10", model="SLIM", vary={"l1": [2.0, 3.0]}, fixed={"l2": 1.0})
    report = of_tuning(found)
    assert found.default is None
    assert "over the default, unpaired" not in report.sections[0].columns
    assert any("default" in note for note in report.notes)
    fixed = climb(split, "ndcg@10", model="SLIM", vary={"l1": [1.0, 3.0]}, fixed={"l2": 1.0})
    assert fixed.default is not None
    assert fixed.default.parameters == {"l1": 1.0, "l2": 1.0}


def test_a_comparison_notes_which_models_are_untuned(split: Split) -> None:
    models = {
        "as it is": MRF(), "dense": MRF(sparsity=None), "tuned": MRF(l2=3.0), "novel": MRF(novelty=0.2),
        "ridge": EASE(), "another": EASE(l2=7.0), "popular": Popularity(),
    }  # fmt: skip
    report = of_comparison(compare(models, split, "ndcg@10"))
    assert report.data["untuned"] == ["as it is", "ridge"]
    (note,) = [note for note in report.notes if note.startswith("Untuned")]
    assert all(name in note for name in ("as it is", "ridge"))
    tuned = compare({name: models[name] for name in ("tuned", "another")}, split, "ndcg@10")
    assert not [note for note in of_comparison(tuned).notes if "ntuned" in note]
