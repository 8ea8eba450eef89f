"""The trade-off of accuracy and training time: its points are plain evaluations, in order, from scratch."""

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, MemoryPlanError, ParameterError
from mrfrec.evaluation.protocol import Evaluation, fit_and_measure
from mrfrec.evaluation.splits import Split, leave_out
from mrfrec.io.tables import read_events
from mrfrec.paper.tables import of_tradeoff
from mrfrec.paper.tradeoff import Tradeoff, tradeoff

from conftest import random_matrix

MODULE = sys.modules["mrfrec.paper.tradeoff"]  # whose name in the package is that of its function
METRICS = ["ndcg@10", "recall@5", "coverage@10"]


@pytest.fixture(scope="module")
def split() -> Split:
    import polars as pl

    user, item = np.nonzero(random_matrix(4))
    return leave_out(read_events(pl.DataFrame({"user": user, "item": item})), k=2)


@pytest.fixture(scope="module")
def found(split: Split) -> Tradeoff:
    return tradeoff(
        split, [0.1, 0.5], (0.5, 0.0), dense={"l2": 5.0}, sparse={"l2": 2.0, "alpha": 0.5}, metrics=METRICS
    )


def test_points_come_dense_first_then_by_sparsity_and_r(found: Tradeoff) -> None:
    assert [(point.name, point.sparsity, point.r) for point in found.points] == [
        ("dense", None, None),
        ("50 %, r = 0", 0.5, 0.0),
        ("50 %, r = 0.5", 0.5, 0.5),
        ("10 %, r = 0", 0.1, 0.0),
        ("10 %, r = 0.5", 0.1, 0.5),
    ]
    assert found.notes == ()
    assert found.dense is found.points[0]


def test_points_equal_evaluations_of_the_same_models(split: Split, found: Tradeoff) -> None:
    m = split.training.n_items
    for point in found.points:
        if point.sparsity is None:
            model = MRF.paper(l2=5.0, sparsity=None)
        else:
            model = MRF.paper(l2=2.0, alpha=0.5, sparsity=point.sparsity, r=point.r or 0.0)
        same = fit_and_measure(model, split, METRICS)
        B = model.weights_
        assert point.evaluation.parameters == same.parameters
        assert point.evaluation.split == split.name
        assert point.blocks == model.n_blocks_
        for metric in METRICS:
            np.testing.assert_array_equal(point.evaluation.per_user(metric), same.per_user(metric))
        if sp.issparse(B):
            assert point.share == (B.nnz + m) / m**2 <= (point.sparsity or 0.0) + 1 / m
            assert point.bytes == B.data.nbytes + B.indices.nbytes + B.indptr.nbytes
        else:
            assert (point.share, point.bytes) == (1.0, B.nbytes)


def test_every_model_is_fitted_from_scratch_with_the_times_of_its_own_fit(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def spy(model: MRF, *args: Any, **options: Any) -> Evaluation:
        given.append(options)
        return fit_and_measure(model, *args, **options)

    monkeypatch.setattr(MODULE, "fit_and_measure", spy)
    result = tradeoff(split, [0.2], [0.0, 1.0], metrics=["ndcg@10"], ties="index")
    assert len(given) == 3
    assert all("reuse" not in options and options["ties"] == "index" for options in given)
    for point in result.points:
        assert point.seconds == point.evaluation.seconds["training"] == point.evaluation.seconds["total"]


def test_report_compares_each_model_with_the_dense_one(found: Tradeoff) -> None:
    dense = found.points[0]
    (section,) = of_tradeoff(found).sections
    assert section.columns[4:7] == ["training", "speed-up", "nDCG@10 of dense"]
    for row, point in zip(section.rows, found.points, strict=True):
        share = point.evaluation.mean("ndcg@10").mean / dense.evaluation.mean("ndcg@10").mean
        assert row[0] == point.name
        assert row[5:7] == [f"{dense.seconds / point.seconds:.1f} ×", f"{100 * share:.1f} %"]


def test_report_without_the_dense_model_has_no_speed_up(split: Split) -> None:
    result = tradeoff(split, [0.2], [0.0], with_dense=False, metrics=["ndcg@10"])
    assert result.dense is None
    (section,) = of_tradeoff(result).sections
    assert section.columns == ["model", "nDCG@10", "training", "weights kept", "size"]


def test_a_dense_model_that_does_not_fit_is_a_note_and_the_rest_goes_on(split: Split) -> None:
    result = tradeoff(split, [0.2], [0.0], dense={"memory_limit": 1000}, metrics=["ndcg@10"])
    assert [point.name for point in result.points] == ["20 %, r = 0"]
    assert len(result.notes) == 1
    assert result.notes[0].startswith("dense: the fit needs about")


def test_when_nothing_fits_the_reason_is_raised(split: Split) -> None:
    little = {"memory_limit": 1000}
    with pytest.raises(MemoryPlanError, match="memory_limit"):
        tradeoff(split, [0.2], [0.0], dense=little, sparse=little, metrics=["ndcg@10"])


def test_progress_tells_which_of_the_models(split: Split) -> None:
    told: list[tuple[str, int, int]] = []
    tradeoff(split, [0.2], [0.0], metrics=["ndcg@10"], progress=lambda *step: told.append(step))
    assert {stage.partition(",")[0] for stage, _, _ in told} == {"1 of 2", "2 of 2"}


@pytest.mark.parametrize(
    ("sparsities", "options", "message"),
    [
        ([], {}, "sparsities must be at least one number"),
        ([0.0], {}, "sparsities must be at least 1/items"),
        ([1.5], {}, "sparsities must be .* at most 1; got 1.5"),
        ([0.001], {}, r"0\.0228 for this data \(the diagonal is always kept\), and at most 1; got 0.001"),
        ([0.1], {"rs": []}, "rs must be at least one number"),
        ([0.1], {"rs": [1.1]}, "rs must be between 0 and 1; got 1.1"),
        ([0.1], {"dense": {"l3": 1}}, "dense must be parameters of MRF other than"),
        ([0.1], {"sparse": {"r": 0.1}}, "sparse must be parameters of MRF other than"),
        ([0.1], {"sparse": {"l2": -1}}, "l2 must be"),
        ([0.1], {"metrics": ["ndgc@10"]}, "metrics must be"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_fitted(
    split: Split, monkeypatch: pytest.MonkeyPatch, sparsities: Any, options: Any, message: str
) -> None:
    monkeypatch.setattr(MODULE, "fit_and_measure", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(ParameterError, match=message):
        tradeoff(split, sparsities, **{"metrics": METRICS, **options})
