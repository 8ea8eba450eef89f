"""Tuning: by points and by climbing; equal to plain fits, resumable, in time, never on the test users."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, Interactions, MrfrecError, MrfrecWarning, ParameterError, register
from mrfrec.cli.models import read_parameters
from mrfrec.core import blocks, closed_form, pattern, statistics
from mrfrec.data.catalogue import DataSize
from mrfrec.data.ids import Ids
from mrfrec.evaluation import at_time, climb, compare, grids, read_events, strong_generalisation, study, tune
from mrfrec.evaluation.protocol import Comparison, evaluate, evaluate_fitted
from mrfrec.evaluation.questions import Questions, Split, popularity_differs
from mrfrec.evaluation.report import of_comparison, of_tuning
from mrfrec.models import EASE, Popularity
from mrfrec.models.climbing import Axis, RidgeMultiples, value_at
from mrfrec.models.registry import MODELS, build, model_class

from matrices import events_of, random_matrix, visits

Parameters = dict[str, Any]

POINTS = grids.grid(alpha=[0.5, 1.0], l2=[1.0, 4.0])
UNMEASURED = [{**point, "measure": False} for point in POINTS]


@register
class Ridged(Popularity):
    """A model with two penalties to tune, which change nothing."""

    tuning_grid: ClassVar[Mapping[str, Axis]] = {
        "l1": (0.1, 0.5, 1.0, 5.0),
        "l2": RidgeMultiples((0.003, 0.03, 0.3)),
    }

    def __init__(self, l1: float = 1.0, l2: float = 100.0, tolerance: float = 0.001) -> None:
        self.l1, self.l2, self.tolerance = l1, l2, tolerance


def split_of(users: int, heldout: int) -> Split:
    return strong_generalisation(events_of(random_matrix(8, users=users)), heldout)


@pytest.fixture(scope="module")
def split() -> Split:
    return split_of(160, 30)


def test_the_usual_metric_has_no_more_places_than_there_are_items(split: Split) -> None:
    m = split.training.n_items
    assert m < 50
    assert str(tune(split, POINTS[:1]).metric) == f"ndcg@{m}"
    assert str(climb(split, model="ItemKNN", vary={"neighbors": [9]}).metric) == f"ndcg@{m}"
    found = evaluate(MRF(), split).values
    assert [str(metric) for metric in found] == [f"ndcg@{m}", "recall@20", f"recall@{m}"]


# ── what fits have in common ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [{"sparsity": None}, {"sparsity": 0.3}, {"sparsity": 0.2, "r": 0.4}])
def test_fits_that_share_what_they_have_in_common_are_the_same_to_the_bit(kind: dict[str, Any]) -> None:
    """Also where r or the sparsity changes: nothing is mixed up."""
    data = Interactions(sp.csr_array(random_matrix(3, real=True)))
    reuse: dict[str, Any] = {}
    double: list[dict[str, Any]] = [{"l2": 2.0, "dtype": "float64"}, {"l2": 3.0, "dtype": "float64"}]
    others: list[dict[str, Any]] = [
        {"l2": 2.0, "r": r, "sparsity": level} for r in (0.0, 0.5, 0.0) for level in (0.2, 0.4, 0.2)
    ]
    for parameters in (
        {"l2": 2.0}, {"l2": 5.0}, {"l2": 5.0, "alpha": 0.5}, {"l2": 5.0, "offset": True}, {"l2": 2.0},
        {"l2": 2.0, "user_weight": 0.5}, *double, *(others if kind == {"sparsity": 0.3} else ()),
    ):  # fmt: skip
        alone, together = (MRF.paper(**{**kind, **parameters}) for _ in range(2))
        alone.fit(data)
        together.fit(data, reuse=reuse)
        assert (alone.weights_ != together.weights_).sum() == 0
        assert together.timings_.keys() == alone.timings_.keys()
        assert alone.n_blocks_ == together.n_blocks_
        if alone.pattern_ is not None:
            assert (alone.pattern_ != together.pattern_).nnz == 0


def done_again(*_: object, **__: object) -> None:
    raise AssertionError("done again")


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_a_new_l2_repeats_nothing_but_the_solution(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    MRF.paper(l2=1.0, sparsity=sparsity).fit(data, reuse=reuse)
    for module, name in (
        (statistics, "moments"),
        (pattern, "find_pattern"),
        (closed_form, "scaled_matrix"),
        (blocks, "gather_blocks"),
    ):
        monkeypatch.setattr(module, name, done_again)
    MRF.paper(l2=2.0, sparsity=sparsity).fit(data, reuse=reuse)
    with pytest.raises(AssertionError, match="done again"):
        MRF.paper(l2=2.0, alpha=0.1, sparsity=sparsity).fit(data, reuse=reuse)


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
    monkeypatch.setattr(closed_form, "closed_form", done_again)
    monkeypatch.setattr(blocks, "estimate_weights", done_again)
    for one, more in zip(expected, settings, strict=True):
        model = MRF(sparsity=sparsity, **more).fit(data, reuse=reuse)
        assert (model.weights_ != one.weights_).sum() == 0
        assert np.array_equal(model.scores(data.matrix), one.scores(data.matrix))
    with pytest.raises(AssertionError, match="done again"):
        MRF(sparsity=sparsity, l2=2.0).fit(data, reuse=reuse)


def test_what_is_known_of_other_data_is_not_taken() -> None:
    """Nor of the same numbers in other Interactions."""
    X = sp.csr_array(random_matrix(3))
    reuse: dict[str, Any] = {}
    MRF.paper().fit(X, reuse=reuse)
    with pytest.raises(DataError, match="reuse holds results of other data: pass the same Interactions"):
        MRF.paper().fit(X, reuse=reuse)


# ── grids ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["MRF", "EASE", "ItemKNN"])
def test_every_point_is_measured_on_the_validation_users(split: Split, kind: str) -> None:
    shared: dict[str, dict[str, Any]] = {"MRF": {"measure": False}}
    fixed = shared.get(kind, {})
    points = POINTS if kind == "MRF" else grids.usual_points(split, kind, fixed=fixed)[:3]
    found = tune(split, points, "ndcg@10", model=kind.lower(), fixed=fixed)
    assert found.model == kind
    assert [trial.parameters for trial in found.trials] == [{**fixed, **point} for point in points]
    assert split.validation is not None
    asked = replace(split, test=split.validation)
    for trial in found.trials:
        expected = evaluate(build(kind, trial.parameters), asked, ["ndcg@10"]).mean("ndcg@10")
        assert (trial.value, trial.error) == pytest.approx((expected.mean, expected.error))
        assert (trial.seconds or 0) > 0
    assert found.best.value == max(trial.value or 0 for trial in found.trials)


def test_the_targets_of_the_test_users_change_nothing(split: Split) -> None:
    found = tune(split, POINTS[:2], "ndcg@10")
    other = replace(split, test=replace(split.test, targets=split.test.shown, shown=split.test.targets))
    with pytest.warns(MrfrecWarning, match=r"users show 11\.\d items in validation and 2\.\d+ in the test"):
        again = tune(other, POINTS[:2], "ndcg@10")
    assert [t.value for t in again.trials] == [t.value for t in found.trials]


def test_a_grid_is_all_combinations_the_last_varying_fastest() -> None:
    assert [{"alpha": a, "l2": b} for a in (0.5, 1.0) for b in (1.0, 4.0)] == POINTS


def test_ridges_have_the_scale_of_what_they_are_added_to(split: Split) -> None:
    c, n = split.training.popularity.astype(float), split.training.n_users
    v = np.average(c - c**2 / n, weights=c)
    assert grids.ridges(split, 1.0, [0.5, 2.0]) == [0.5, 2.0]
    assert grids.ridges(split, 0.0, [1.0])[0] == pytest.approx(v, rel=0.05)
    assert grids.ridges(split, 0.5, [1.0])[0] == pytest.approx(v**0.5, rel=0.05)


def test_a_point_that_cannot_be_fitted_is_no_end(split: Split) -> None:
    points = [{"l2": 0.0, "alpha": 0.0}, {"l2": 1.0, "alpha": 0.5}]
    found = tune(split, points, "recall@5")  # twins among the items: singular without a ridge
    assert "not positive definite" in str(found.trials[0].failure)
    assert found.best.parameters == {**points[1], "measure": False}
    with pytest.raises(DataError, match=r"no trial succeeded: the item-item matrix .* raise l2"):
        _ = tune(split, points[:1], "recall@5").best


def test_a_point_that_would_be_refused_is_before_the_first_is_tried(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.evaluation.study.evaluate", lambda *_, **__: pytest.fail("tried"))
    with pytest.raises(ParameterError, match=r"dropout must be .*; got 1\.02"):
        tune(split, grids.grid(dropout=[0.1, 1.02]), "ndcg@10")


# ── what is usual ─────────────────────────────────────────────────────────────────────────────────


def test_every_kind_has_a_grid_of_a_few_points_which_the_page_about_measuring_lists(split: Split) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "evaluation.md").read_text()
    for kind in MODELS:
        points = grids.usual_points(split, kind)
        assert 1 <= len({json.dumps(build(kind, x).parameters) for x in points}) == len(points) <= 25, kind
        (row,) = re.findall(rf"^\| {kind} \| (.*) \| (\d+) \|$", page, re.MULTILINE)
        assert int(row[1]) == len(points), kind
        for name, axis in model_class(kind).tuning_grid.items():
            values = axis.multiples if isinstance(axis, RidgeMultiples) else axis
            if len(values) > 1:
                shown = (str(x).lower() if isinstance(x, bool) else f"{x:,g}" for x in values)
                assert f"`{name}` " + ", ".join(shown) in row[0], (kind, name)


def test_what_is_varied_takes_the_place_of_the_usual_and_what_is_fixed_has_none(split: Split) -> None:
    axes = grids.axes_of("Ridged", {"tolerance": [0.1, 0.2], "l1": [3.0]}, {"l2": 1.0})
    assert axes == {"tolerance": [0.1, 0.2], "l1": [3.0]}
    assert grids.usual_points(split, "ridged", {"l1": [3.0, 4.0]}, {"l2": 1.0}) == [
        {"l1": 3.0},
        {"l1": 4.0},
    ]
    for vary, fixed in (({"l3": [1]}, {}), ({"threads": [1]}, {}), ({"l1": [1]}, {"l1": 2})):
        with pytest.raises(ParameterError, match="vary must be of parameters of Ridged that are not fixed"):
            grids.axes_of("Ridged", vary, fixed)


def test_what_is_about_the_machine_is_no_part_of_a_study(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    arguments: dict[str, Any] = {"metric": "ndcg@10", "study": study, "model": "ItemKNN"}
    points: list[dict[str, Any]] = [{"neighbors": 5}]
    first = tune(split, points, fixed={"shrink": 1.0, "threads": 1}, **arguments)
    again = tune(split, points, fixed={"shrink": 1.0}, machine={"threads": 2, "device": "cpu"}, **arguments)
    assert again.trials == first.trials
    assert first.best.parameters == {"shrink": 1.0, "neighbors": 5}


def test_a_warning_tells_of_the_other_model_that_a_fit_to_all_data_would_be(
    split: Split,
) -> None:
    part = replace(split, whole=DataSize(50_000, 30_000, 1_000_000, True))
    with pytest.warns(MrfrecWarning, match=r"evaluated is a dense model.*all the data.*be a sparse model"):
        evaluate(MRF(), part, "ndcg@10")
    with pytest.warns(MrfrecWarning, match="be a sparse model") as caught:
        found = tune(part, POINTS[:2], "ndcg@10")
    assert len(caught) == 1
    assert [str(trial.plan)[:14] for trial in found.trials] == ["dense model (l"] * 2
    tune(part, POINTS[:2], "ndcg@10", fixed={"sparsity": 0.3})  # warnings are errors
    with pytest.warns(MrfrecWarning, match=r"be refused: .*memory"):
        tune(part, POINTS[:1], "ndcg@10", fixed={"sparsity": None}, machine={"memory_limit": "1GB"})


# ── studies ───────────────────────────────────────────────────────────────────────────────────────


def test_a_study_goes_on_where_it_was(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "study.jsonl"
    first = tune(split, POINTS[:2], "ndcg@10", study=study)
    tried: list[object] = []

    def counted(model: MRF, *arguments: Any, **named: Any) -> Any:
        tried.append(model)
        return evaluate(model, *arguments, **named)

    monkeypatch.setattr("mrfrec.evaluation.study.evaluate", counted)
    whole = tune(split, POINTS, "ndcg@10", study=study)
    assert len(tried) == 2
    assert whole.trials[:2] == first.trials
    assert [trial.parameters for trial in whole.trials] == UNMEASURED
    worst = min(whole.trials, key=lambda trial: trial.value or 0.0)
    assert tune(split, [worst.parameters], "ndcg@10", study=study).best == worst  # others do not compete
    assert len(tried) == 2


def test_the_best_parameters_are_written_for_others_to_take(split: Split, tmp_path: Path) -> None:
    points = grids.grid(l2=np.array([1.0, 2.0], np.float32), max_neighbors=[np.int64(20)])  # numpy's numbers
    fixed = {"sparsity": 0.4, "alpha": np.float64(0.5)}
    found = tune(split, points, "ndcg@10", fixed=fixed, study=tmp_path / "s.jsonl")
    found.save(tmp_path / "best.json")
    written = json.loads((tmp_path / "best.json").read_text())
    assert (written["model"], written["tuned"]["value"]) == ("MRF", found.best.value)
    assert written["parameters"] == MRF(**found.best.parameters).parameters
    assert (written["parameters"]["max_neighbors"], written["parameters"]["sparsity"]) == (20, 0.4)


def test_a_study_of_something_else_or_no_study_at_all_is_refused(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    arguments: dict[str, Any] = {"metric": "ndcg@10", "study": study}
    tune(split, POINTS[:1], **arguments)
    before = study.read_bytes()
    changed: dict[str, Any]
    for changed in ({"metric": "recall@10"}, {"fixed": {"offset": False}}, {"ties": "index"}):
        with pytest.raises(DataError, match="is a different study"):
            tune(split, POINTS[:1], **{**arguments, **changed})
    with pytest.raises(DataError, match="is a different study"):
        tune(replace(split, validation=split.test), POINTS[:1], **arguments)
    assert study.read_bytes() == before
    for content in ("user,item\n1,2\n", "", "3\n4\n", "[" * 100_000, '{}\n{"value": 3}\n'):
        study.write_text(content)
        with pytest.raises(DataError, match="not a study of mrfrec tune"):
            tune(split, POINTS[:1], **arguments)
        assert study.read_text() == content


# ── climbing ──────────────────────────────────────────────────────────────────────────────────────


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
    found = climb(split, "ndcg@10", model="Ridged", vary={"l1": [1.0, 3.0, 9.0], "l2": [0.03, 0.3, 3.0]})
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
    moved = {name for point in tried for name, x in point.items() if x != tried[0][name]}
    assert moved == {
        "novelty",
        "l2",
        "user_weight",
        "alpha",
        "rank",
    }  # the weight of no low-rank part is left


def test_l2_keeps_its_place_when_alpha_changes_up_to_the_last_that_the_model_takes(
    split: Split, valued: Any
) -> None:
    tried = valued(lambda x: (x["l2"] != "auto") + float(x["alpha"]))
    found = climb(split, "ndcg@10", fixed={"sparsity": None}, vary={"novelty": [0.0], "user_weight": [0.0]})
    numbers = {x["alpha"]: x["l2"] for x in tried if x["l2"] != "auto"}
    assert numbers[0.75] < numbers[0.5]  # the diagonal of S is smaller
    assert found.best.parameters["alpha"] == 1.0


def test_a_grid_is_tried_whole_and_then_left_where_it_ends(split: Split, valued: Any) -> None:
    tried = valued(lambda x: 10.0 + x["l1"] - x["l2"])
    found = climb(split, "ndcg@10", model="Ridged", vary={"l1": [1.0, 2.0], "l2": [1.0, 2.0]}, grid=True)
    assert [(x["l1"], x["l2"]) for x in tried[:4]] == [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]
    assert found.best.parameters["l1"] > 2.0
    assert found.best.parameters["l2"] < 1.0


def test_a_grid_has_numbers_alone_beside_the_default(split: Split, valued: Any) -> None:
    tried = valued(lambda point: 0.5)
    climb(split, fixed={"sparsity": None, "user_weight": 0.0, "rank": 0}, grid=True)
    assert sum(point["l2"] == "auto" for point in tried) == 1


def test_values_beyond_an_end_keep_ratio_step_and_type() -> None:
    assert [value_at((1.0, 3.0), i) for i in (-2, -1, 0, 2, 3)] == [0.111, 0.333, 1.0, 9.0, 27.0]
    assert [value_at((0.0, 0.1, 0.2), i) for i in (-1, 3)] == [-0.1, 0.4]
    assert value_at((64, 128), 3) == 512
    assert isinstance(value_at((64, 128), 3), int)
    assert [value_at(values, len(values)) for values in ((), (1.0,), (False, True), ("auto", None))] == [
        None
    ] * 4
    assert value_at((1.0, 2.0), 50) is None


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


WRONG: list[tuple[Callable[[Split], Any], str]] = [
    (lambda _: grids.grid(alpha=[]), "alpha must be a list with at least one value"),
    (lambda split: grids.ridges(split, 2.0), "alpha must be between 0 and 1"),
    (lambda split: grids.ridges(split, 0.5, [-1]), "multiples must be above 0"),
    (lambda _: tune("ratings.csv", POINTS), "split must be Split"),  # type: ignore[arg-type]
    (lambda split: tune(split, []), "points must be a list of parameters"),
    (lambda split: tune(split, [{"lambda": 1.0}]), r"parameters must be among l2, .*; got 'lambda'"),
    (lambda split: tune(split, [{"alhpa": 1.0}]), "Did you mean alpha"),
    (lambda split: tune(split, POINTS, model="SVD"), "model must be one of MRF"),
    (lambda split: climb(split, model=None), "model must be one of MRF"),  # type: ignore[arg-type]
    (lambda split: climb(split, vary={"l2": []}), "l2 must be a list with at least one value"),
    (lambda split: climb(split, vary=["l2"]), "vary must be a mapping"),  # type: ignore[arg-type]
    (lambda split: climb(split, machine={"l2": 3}), "machine must be of parameters that change no result"),
    (lambda split: climb(split, study="."), "study must be a file"),
    (lambda split: climb(split, progress=3), "progress must be a function"),  # type: ignore[arg-type]
    (lambda split: climb(split, grid="no"), "grid must be True or False"),  # type: ignore[arg-type]
    (lambda split: climb(split, minutes=0), "minutes must be above 0"),
    (lambda split: climb(split, "ndcg@100"), "metric must be of at most the 44 items there are"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments_are_named(split: Split, wrong: Callable[[Split], Any], message: str) -> None:
    with pytest.raises(MrfrecError, match=message):
        wrong(split)


def test_a_model_is_given_by_its_class_or_as_it_is(split: Split, valued: Any) -> None:
    valued(lambda _: 1.0)
    assert climb(split, "ndcg@10", model=Ridged).model == "Ridged"
    found = climb(split, "ndcg@10", model=Ridged(l1=7.0), vary={"l2": [1.0]})
    assert [trial.parameters for trial in found.trials] == [{"l1": 7.0, "l2": 1.0}]

    class Unknown(Ridged):
        pass

    for model in (Unknown, Unknown()):
        with pytest.raises(ParameterError, match=r"Call mrfrec\.register with your own class first"):
            tune(split, POINTS, model=model)


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


def test_no_trial_begins_when_the_time_is_up(
    split: Split, valued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("mrfrec.evaluation.study.time.monotonic", lambda: now[0])

    def value(_: Parameters) -> float:  # always better, after 50 seconds
        now[0] += 50.0
        return now[0]

    valued(value)
    assert climb(split, "ndcg@10", model="EASE", minutes=5).out_of_time
    assert now == [350.0]
    points = [{"l2": float(x)} for x in range(1, 20)]
    assert len(tune(split, points, "ndcg@10", model="EASE", minutes=0.001).trials) == 1


def test_as_many_points_are_compared_as_asked_for(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "trials.jsonl"
    for count in (1, 3, 2):  # those of the file count
        found = climb(split, "ndcg@10", model="EASE", minutes=None, trials=count, study=study)
        assert len(found.trials) == count
    assert len(study.read_text().splitlines()) == 1 + 3
    of_two = of_tuning(found)
    assert of_two.about[1] == "EASE: 2 points tried"
    assert of_two.notes[0].startswith("The best of 2 points tried: ")
    assert not found.out_of_time
    alone = of_tuning(tune(split, POINTS, "ndcg@10", trials=1))
    assert alone.notes[0].startswith("The best of 1 point tried: ")
    with pytest.raises(ParameterError, match="trials must be a whole number, 1 or more"):
        climb(split, trials=0)


def test_progress_shows_the_first_fit_and_follows_the_limit_of_time(split: Split) -> None:
    steps: list[tuple[str, int, int]] = []
    climb(split, "ndcg@10", model="EASE", minutes=5, progress=lambda *step: steps.append(step))
    first = [stage for stage, _, _ in steps if stage.startswith("trial 1: ")]
    assert {"trial 1: learning weights", "trial 1: ranking"} <= set(first)
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


def test_a_climb_starts_from_what_the_model_measures(valued: Any) -> None:
    split = split_of(900, 100)
    measured = MRF().fit(split.training).measured_
    assert measured is not None
    tried = valued(lambda _: 1.0)
    climb(split, "ndcg@10")
    assert any(choice.value != choice.start for choice in measured.choices)
    assert all(tried[0][choice.name] == choice.value for choice in measured.choices if tried[0]["rank"])
    ridges = {point["l2"] for point in tried if point["alpha"] == tried[0]["alpha"]}
    l2 = measured.values["l2"]
    assert sorted(ridges) == pytest.approx([l2 / 2, l2, 2 * l2], rel=0.05)
    tried.clear()
    climb(split, "ndcg@10", fixed={"measure": False})  # measures nothing
    assert tried[0]["l2"] == "auto"


@pytest.fixture(scope="module")
def timed() -> Split:
    return at_time(read_events(visits(2500), time=True))


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [{}, {"half_life": "90d"}])
def test_a_climb_keeps_what_times_have_taught(timed: Split, fixed: Parameters, tmp_path: Path) -> None:
    within = timed.for_tuning()
    model = MRF(**fixed).fit(within.training)
    assert model.measured_ is not None
    found = climb(timed, "ndcg@20", fixed=fixed, minutes=0.001)
    start = found.trials[0]
    assert start.value == evaluate_fitted(model, within.test, "ndcg@20").mean("ndcg@20").mean
    assert found.default == start == found.best
    measured = {*model.measured_.values} - {"rank_weight"}
    assert measured > {"l2", "novelty", "order", "recency"}
    assert {name: start.parameters[name] for name in measured} == {n: model.values_[n] for n in measured}
    assert model.values_["half_life"] is not None
    found.save(tmp_path / "best.json")
    _, parameters = read_parameters(tmp_path / "best.json")
    assert evaluate(MRF(**parameters), within, "ndcg@20").mean("ndcg@20").mean == start.value


def test_durations_of_results_are_texts(timed: Split) -> None:
    found = evaluate(MRF(half_life="90d", measure=False), timed, "ndcg@10")
    values = of_comparison(Comparison([found])).data["models"][0]["values"]
    assert values["half_life"] == "90d"


def test_a_climb_varies_what_fades(timed: Split, valued: Any) -> None:
    tried = valued(lambda _: 1.0)
    climb(timed, "ndcg@10")
    assert {name for name in tried[0] if len({point[name] for point in tried}) > 1} > {"half_life", "recency"}
    assert tried[0]["half_life"] != "auto"


def test_ridges_of_auto_are_multiples_of_what_a_fit_takes_for_it(split: Split) -> None:
    X = np.random.default_rng(3).random((60, 12)) < 0.7  # popular items, whose squares are not their variance
    training = Interactions(sp.csr_array(X.astype(np.float32)))
    fixed: Parameters = {"measure": False, "user_weight": 0.0, "alpha": 0.0}
    points = grids.usual_points(Split(training, split.test, None, "dense"), fixed=fixed)
    l2 = float(MRF(**fixed).fit(training).plan_.l2)
    numbers = [l2 if point["l2"] == "auto" else point["l2"] for point in points]
    assert numbers == pytest.approx([l2 / 4, l2 / 2, l2, 2 * l2, 4 * l2], rel=0.02)


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
    again = tune(split, points, "ndcg@10", fixed={"sparsity": 0.4, "r": 0.0})
    assert [trial.value for trial in again.trials] == [trial.value for trial in found.trials]
    start = next(trial for trial in again.trials if trial.parameters["l2"] == "auto")
    assert (found.best.value or 0) >= (start.value or 1)
    resumed = climb(split, "ndcg@10", fixed={"sparsity": 0.4, "r": 0.0}, minutes=None, study=study)
    assert resumed.best == found.best


@pytest.mark.parametrize(("model", "grid"), [("MRF", False), ("Ridged", True)])
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
    found = climb(split, "ndcg@10", model="Ridged", vary={"l1": [2.0, 3.0]}, fixed={"l2": 1.0})
    report = of_tuning(found)
    assert found.default is None
    assert "over the default, unpaired" not in report.sections[0].columns
    assert any("default" in note for note in report.notes)
    fixed = climb(split, "ndcg@10", model="Ridged", vary={"l1": [1.0, 3.0]}, fixed={"l2": 1.0})
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
