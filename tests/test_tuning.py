"""Tuning: the same as fitting and measuring point by point, resumable, never on the test users."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import (
    MRF,
    DataError,
    Interactions,
    MrfrecWarning,
    ParameterError,
)
from mrfrec.core import blocks, closed_form, pattern, statistics
from mrfrec.data.catalogue import DataSize
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids
from mrfrec.evaluation import climb, grids, splits, tuning
from mrfrec.evaluation.protocol import evaluate
from mrfrec.evaluation.splits import Split
from mrfrec.models.axes import Ridges
from mrfrec.models.registry import MODELS, build, model_class

from conftest import random_matrix

POINTS = grids.grid(alpha=[0.5, 1.0], l2=[1.0, 4.0])
UNMEASURED = [{**point, "measure": False} for point in POINTS]


@pytest.fixture(scope="module")
def split() -> Split:
    X = sp.coo_array(random_matrix(8, users=160))
    events = Events(Ids.range(160), Ids.range(45), *(where.astype(np.int32) for where in X.coords))
    return splits.strong_generalisation(events, 30)


def test_the_usual_metric_has_no_more_places_than_there_are_items(split: Split) -> None:
    m = split.training.n_items
    assert m < 50
    assert str(tuning.tune(split, POINTS[:1]).metric) == f"ndcg@{m}"
    assert str(climb(split, model="ItemKNN", vary={"neighbors": [9]}).metric) == f"ndcg@{m}"
    found = evaluate(MRF(), split).values
    assert [str(metric) for metric in found] == [f"ndcg@{m}", "recall@20", f"recall@{m}"]


# ── what fits have in common ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [{"sparsity": None}, {"sparsity": 0.3}, {"threshold": 0.2, "r": 0.4}])
def test_fits_that_share_what_they_have_in_common_are_the_same_to_the_bit(kind: dict[str, Any]) -> None:
    data = Interactions(sp.csr_array(random_matrix(3, real=True)))
    reuse: dict[str, Any] = {}
    for parameters in (
        {"l2": 2.0}, {"l2": 5.0}, {"l2": 5.0, "alpha": 0.5}, {"l2": 5.0, "l2_flat": 1.0}, {"l2": 2.0},
        {"l2": 2.0, "user_weight": 0.5}, {"l2": 2.0, "dtype": "float64"}, {"l2": 3.0, "dtype": "float64"},
    ):  # fmt: skip
        alone, together = (MRF.paper(**kind, **parameters) for _ in range(2))
        alone.fit(data)
        together.fit(data, reuse=reuse)
        B, C = alone.weights_, together.weights_
        assert (B != C).sum() == 0
        assert together.timings_.keys() == alone.timings_.keys()


def test_r_and_sparsity_change_what_is_shared_and_nothing_is_mixed_up() -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    for r in (0.0, 0.5, 0.0):
        for sparsity in (0.2, 0.4, 0.2):
            alone = MRF.paper(l2=2.0, sparsity=sparsity, r=r).fit(data)
            together = MRF.paper(l2=2.0, sparsity=sparsity, r=r).fit(data, reuse=reuse)
            assert (alone.weights_ != together.weights_).nnz == 0
            assert alone.n_blocks_ == together.n_blocks_
            assert alone.pattern_ is not None
            assert (alone.pattern_ != together.pattern_).nnz == 0


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_a_new_l2_repeats_nothing_but_the_solution(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    MRF.paper(l2=1.0, sparsity=sparsity).fit(data, reuse=reuse)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    for module, name in (
        (statistics, "moments"),
        (pattern, "find_pattern"),
        (closed_form, "scaled_matrix"),
        (blocks, "gather_blocks"),
    ):
        monkeypatch.setattr(module, name, again)
    MRF.paper(l2=2.0, sparsity=sparsity).fit(data, reuse=reuse)
    with pytest.raises(AssertionError, match="done again"):
        MRF.paper(l2=2.0, alpha=0.1, sparsity=sparsity).fit(data, reuse=reuse)


def test_what_is_known_of_other_data_is_not_taken() -> None:
    reuse: dict[str, Any] = {}
    MRF.paper().fit(Interactions(sp.csr_array(random_matrix(3))), reuse=reuse)
    with pytest.raises(DataError, match="reuse holds results of other data"):
        MRF.paper().fit(Interactions(sp.csr_array(random_matrix(4))), reuse=reuse)


# ── grids ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_point_of_a_grid_is_measured_on_the_validation_users(split: Split) -> None:
    found = tuning.tune(split, POINTS, "ndcg@10")
    assert [trial.parameters for trial in found.trials] == UNMEASURED
    assert split.validation is not None
    asked = replace(split, test=split.validation)
    for trial in found.trials:
        expected = evaluate(MRF(**trial.parameters), asked, ["ndcg@10"]).mean("ndcg@10")
        assert (trial.value, trial.error) == pytest.approx((expected.mean, expected.error))
        assert trial.seconds is not None
        assert trial.seconds > 0
    assert found.best.value == max(trial.value or 0 for trial in found.trials)


def test_the_targets_of_the_test_users_change_nothing(split: Split) -> None:
    found = tuning.tune(split, POINTS[:2], "ndcg@10")
    other = replace(split, test=replace(split.test, targets=split.test.shown, shown=split.test.targets))
    with pytest.warns(MrfrecWarning, match=r"users show 11\.\d items in validation and 2\.\d+ in the test"):
        again = tuning.tune(other, POINTS[:2], "ndcg@10")
    assert [t.value for t in again.trials] == [t.value for t in found.trials]


def test_a_grid_is_all_combinations_the_last_varying_fastest() -> None:
    assert [{"alpha": a, "l2": b} for a in (0.5, 1.0) for b in (1.0, 4.0)] == POINTS
    with pytest.raises(ParameterError, match="alpha must be a list with at least one value"):
        grids.grid(alpha=[])
    with pytest.raises(ParameterError, match="points must be a list of parameters"):
        tuning.tune(None, [])  # type: ignore[arg-type]


def test_ridges_have_the_scale_of_what_they_are_added_to(split: Split) -> None:
    c, n = split.training.popularity.astype(float), split.training.n_users
    v = np.average(c - c**2 / n, weights=c)
    assert grids.ridges(split, 1.0, [0.5, 2.0]) == [0.5, 2.0]
    assert grids.ridges(split, 0.0, [1.0])[0] == pytest.approx(v, rel=0.05)
    assert grids.ridges(split, 0.5, [1.0])[0] == pytest.approx(v**0.5, rel=0.05)


def test_a_point_that_cannot_be_fitted_is_no_end(split: Split) -> None:
    points = [{"l2": 0.0, "alpha": 0.0}, {"l2": 1.0, "alpha": 0.5}]
    found = tuning.tune(split, points, "recall@5")  # twins among the items: singular without a ridge
    assert "not positive definite" in str(found.trials[0].failure)
    assert found.best.parameters == {**points[1], "measure": False}
    with pytest.raises(DataError, match=r"no trial succeeded: the item-item matrix .* raise l2"):
        _ = tuning.tune(split, points[:1], "recall@5").best


def test_a_point_that_would_be_refused_is_before_the_first_is_tried(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.evaluation.study.evaluate", lambda *_, **__: pytest.fail("tried"))
    with pytest.raises(ParameterError, match=r"dropout must be .*; got 1\.02"):
        tuning.tune(split, grids.grid(dropout=[0.1, 1.02]), "ndcg@10")


def test_wrong_parameters_are_refused_by_name(split: Split) -> None:
    with pytest.raises(ParameterError, match=r"parameters must be among l2, .*; got 'lambda'"):
        tuning.tune(split, [{"lambda": 1.0}], "ndcg@10")
    with pytest.raises(ParameterError, match="Did you mean alpha"):
        tuning.tune(split, [{"alhpa": 1.0}], "ndcg@10")
    with pytest.raises(ParameterError, match="model must be one of MRF"):
        tuning.tune(split, POINTS, "ndcg@10", model="SVD")
    with pytest.raises(ParameterError, match="at most the"):
        tuning.tune(split, POINTS, "ndcg@100")


# ── what is usual ─────────────────────────────────────────────────────────────────────────────────


def test_every_kind_has_a_grid_of_a_few_points_that_can_be_built(split: Split) -> None:
    for kind in MODELS:
        points = grids.usual_points(split, kind)
        assert 1 <= len(points) <= (25 if kind == "MRF" else 16), kind
        assert len({json.dumps(point) for point in points}) == len(points)
        for point in points:
            build(kind, point)


def test_the_page_about_measuring_has_the_usual_grids(split: Split) -> None:
    page = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text()
    for kind in MODELS:
        (row,) = re.findall(rf"^\| {kind} \| (.*) \| (\d+) \|$", page, re.MULTILINE)
        assert int(row[1]) == len(grids.usual_points(split, kind)), kind
        for name, axis in model_class(kind).tuning_grid.items():
            values = axis.multiples if isinstance(axis, Ridges) else axis
            if len(values) > 1:
                shown = (str(x).lower() if isinstance(x, bool) else f"{x:,g}" for x in values)
                assert f"`{name}` " + ", ".join(shown) in row[0], (kind, name)


def test_what_is_varied_takes_the_place_of_the_usual_and_what_is_fixed_has_none(split: Split) -> None:
    axes = grids.axes_of("SLIM", {"tolerance": [0.1, 0.2], "l1": [3.0]}, {"l2": 1.0})
    assert axes == {"tolerance": [0.1, 0.2], "l1": [3.0]}
    assert grids.usual_points(split, "slim", {"l1": [3.0, 4.0]}, {"l2": 1.0}) == [{"l1": 3.0}, {"l1": 4.0}]
    assert "r" not in grids.axes_of("MRF")
    assert grids.axes_of("MRF", {"sparsity": [0.1, 0.2]})["r"] == (0.0,)
    assert grids.axes_of("EASE", {"threshold": [0.1], "r": [0.5]})["r"] == [0.5]
    for vary, fixed in (({"l3": [1]}, {}), ({"threads": [1]}, {}), ({"l1": [1]}, {"l1": 2})):
        with pytest.raises(ParameterError, match="vary must be of parameters of SLIM that are not fixed"):
            grids.axes_of("SLIM", vary, fixed)


@pytest.mark.parametrize("kind", ["EASE", "ItemKNN", "SLIM", "WMF"])
def test_other_kinds_are_tuned_as_they_are_fitted_point_by_point(split: Split, kind: str) -> None:
    fixed = {"WMF": {"factors": 4}}.get(kind, {})
    points = grids.usual_points(split, kind, fixed=fixed)[:3]
    found = tuning.tune(split, points, "ndcg@10", model=kind.lower(), fixed=fixed)
    assert found.model == kind
    assert split.validation is not None
    asked = replace(split, test=split.validation)
    for trial in found.trials:
        expected = evaluate(build(kind, trial.parameters), asked, ["ndcg@10"]).mean("ndcg@10")
        assert trial.value == pytest.approx(expected.mean)


def test_what_is_about_the_machine_is_no_part_of_a_study(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    arguments: dict[str, Any] = {"metric": "ndcg@10", "study": study, "model": "ItemKNN"}
    points: list[dict[str, Any]] = [{"neighbors": 5}]
    first = tuning.tune(split, points, fixed={"shrink": 1.0, "threads": 1}, **arguments)
    again = tuning.tune(
        split, points, fixed={"shrink": 1.0}, machine={"threads": 2, "device": "cpu"}, **arguments
    )
    assert again.trials == first.trials
    assert first.best.parameters == {"shrink": 1.0, "neighbors": 5}


def test_tuning_warns_once_of_the_other_model_that_a_fit_to_all_data_would_be(split: Split) -> None:
    part = replace(split, whole=DataSize(50_000, 30_000, 1_000_000, True))
    with pytest.warns(MrfrecWarning, match="be a sparse model") as caught:
        found = tuning.tune(part, POINTS[:2], "ndcg@10")
    assert len(caught) == 1
    assert [str(trial.plan)[:14] for trial in found.trials] == ["dense model (l"] * 2
    tuning.tune(part, POINTS[:2], "ndcg@10", fixed={"sparsity": 0.3})  # warnings are errors
    with pytest.warns(MrfrecWarning, match=r"be refused: .*memory"):
        tuning.tune(part, POINTS[:1], "ndcg@10", fixed={"sparsity": None}, machine={"memory_limit": "1GB"})


# ── studies ───────────────────────────────────────────────────────────────────────────────────────


def test_a_study_goes_on_where_it_was(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "study.jsonl"
    first = tuning.tune(split, POINTS[:2], "ndcg@10", study=study)
    tried: list[object] = []

    def counted(model: MRF, *arguments: Any, **named: Any) -> Any:
        tried.append(model)
        return evaluate(model, *arguments, **named)

    monkeypatch.setattr("mrfrec.evaluation.study.evaluate", counted)
    whole = tuning.tune(split, POINTS, "ndcg@10", study=study)
    assert len(tried) == 2
    assert whole.trials[:2] == first.trials
    assert [trial.parameters for trial in whole.trials] == UNMEASURED
    tuning.tune(split, POINTS, "ndcg@10", study=study)
    assert len(tried) == 2


def test_the_best_parameters_are_written_for_others_to_take(split: Split, tmp_path: Path) -> None:
    found = tuning.tune(split, POINTS, "ndcg@10", fixed={"sparsity": 0.4})
    found.save(tmp_path / "best.json")
    written = json.loads((tmp_path / "best.json").read_text())
    assert written["model"] == "MRF"
    assert written["parameters"] == MRF(**{"sparsity": 0.4, **found.best.parameters}).parameters
    assert written["tuned"]["value"] == found.best.value
    MRF(**written["parameters"])


def test_a_study_of_something_else_or_no_study_at_all_is_refused(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    arguments: dict[str, Any] = {"metric": "ndcg@10", "study": study}
    tuning.tune(split, POINTS[:1], **arguments)
    before = study.read_bytes()
    changed: dict[str, Any]
    for changed in ({"metric": "recall@10"}, {"fixed": {"center": False}}, {"ties": "index"}):
        with pytest.raises(DataError, match="is a different study"):
            tuning.tune(split, POINTS[:1], **{**arguments, **changed})
    with pytest.raises(DataError, match="is a different study"):
        tuning.tune(replace(split, validation=split.test), POINTS[:1], **arguments)
    assert study.read_bytes() == before
    for content in ("user,item\n1,2\n", "", "3\n4\n", "[" * 100_000, '{}\n{"value": 3}\n'):
        study.write_text(content)
        with pytest.raises(DataError, match="not a study of mrfrec tune"):
            tuning.tune(split, POINTS[:1], **arguments)
        assert study.read_text() == content


def test_only_the_points_asked_for_compete(split: Split, tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    whole = tuning.tune(split, POINTS, "ndcg@10", study=study)
    worst = min(whole.trials, key=lambda trial: trial.value or 0.0)
    assert tuning.tune(split, [worst.parameters], "ndcg@10", study=study).best == worst


def test_numbers_of_numpy_are_numbers(split: Split, tmp_path: Path) -> None:
    points = grids.grid(l2=np.array([1.0, 2.0], np.float32), max_neighbors=[np.int64(20)])
    found = tuning.tune(
        split, points, "ndcg@10", fixed={"alpha": np.float64(0.5)}, study=tmp_path / "s.jsonl"
    )
    found.save(tmp_path / "best.json")
    assert json.loads((tmp_path / "best.json").read_text())["parameters"]["max_neighbors"] == 20


def test_wrong_arguments_are_refused_by_name(split: Split) -> None:
    with pytest.raises(DataError, match="split must be Split"):
        tuning.tune("ratings.csv", POINTS)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="alpha must be between 0 and 1"):
        grids.ridges(split, 2.0)
    with pytest.raises(ParameterError, match="multiples must be above 0"):
        grids.ridges(split, 0.5, [-1])
