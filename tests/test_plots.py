"""Figures: lines and points of the results, one whole file or none, and nothing left behind in matplotlib."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mrfrec import MissingLibraryError, ParameterError
from mrfrec.data.ids import Ids
from mrfrec.evaluation.figures import check_drawable
from mrfrec.evaluation.metrics import parse
from mrfrec.evaluation.plots import plot_tuning
from mrfrec.evaluation.protocol import Comparison, Evaluation
from mrfrec.evaluation.study import Trial, Tuning
from mrfrec.paper.plots import plot_exposure, plot_low_rank, plot_tradeoff
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff, TradeoffPoint


def point(sparsity: float | None, r: float | None, seconds: float) -> TradeoffPoint:
    evaluation = Evaluation(
        model=f"{sparsity}, {r}",
        parameters={},
        split="some users held out",
        users=Ids(np.arange(400)),
        left_out=0,
        values={parse("ndcg@100"): np.random.default_rng(0).random(400)},
        seconds={"training": seconds},
        recommended=np.zeros(3, np.int64),
        popularity=np.ones(3, np.int64),
        facts={"places": 100},
    )
    return TradeoffPoint(evaluation, sparsity, r, sparsity or 1.0, None, 1000)


TRADEOFF = Tradeoff(
    (point(None, None, 945.0), *(point(s, r, 1e5 * s / (1 + r)) for s in (0.005, 0.001) for r in (0.0, 0.5)))
)
LOW_RANK = Comparison(
    (
        TRADEOFF.points[0].evaluation,
        *(replace(point(None, None, 1.0).evaluation, facts={"rank": rank}) for rank in (3000, 200)),
    )
)
EXPOSURE = Exposure(
    split="leave two out",
    places=100,
    items=np.full(10, 50),
    models={"dense": np.geomspace(0.5, 0.0005, 10), "sparse": np.full(10, 0.1)},
    training=np.full(10, 0.1),
    targets=np.full(10, 0.1),
)


def tuned(*points: dict[str, Any]) -> Tuning:
    trials = [Trial(x, 0.3 + 0.01 * place, None if place else 0.002) for place, x in enumerate(points)]
    failed = Trial({"l2": 0.0}, None, failure="singular")
    return Tuning("MRF", parse("ndcg@100"), "validation", (*trials, failed))


FIGURES: dict[str, Callable[[Path], None]] = {
    "tradeoff": lambda path: plot_tradeoff(TRADEOFF, "ndcg@100", path),
    "lowrank": lambda path: plot_low_rank(LOW_RANK, "ndcg@100", path),
    "exposure": lambda path: plot_exposure(EXPOSURE, path),
    "tuning": lambda path: plot_tuning(tuned({"l2": 1.0}, {"l2": 100.0}), path),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Path], None]], Axes]:
    """Return the axes of a figure as it would be saved."""
    found: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))

    def draw(plot: Callable[[Path], None]) -> Axes:
        plot(tmp_path / "x.png")
        return found[-1].axes[0]

    return draw


def legend_of(axes: Axes) -> set[str]:
    legend = axes.get_legend()
    assert legend is not None
    return {text.get_text() for text in legend.get_texts()}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_file_and_leaves_no_trace_in_matplotlib(name: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams.items())
    FIGURES[name](tmp_path / "figure.png")
    assert [each.name for each in tmp_path.iterdir()] == ["figure.png"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert dict(mpl.rcParams.items()) == before


def test_the_name_says_the_format(tmp_path: Path) -> None:
    FIGURES["tuning"](tmp_path / "x.SVG")
    assert b"<svg" in (tmp_path / "x.SVG").read_bytes()
    for wrong in ("x.gif", "x"):
        with pytest.raises(ParameterError, match="ends in"):
            FIGURES["tuning"](tmp_path / wrong)


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", full)
    (tmp_path / "x.png").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        FIGURES["tradeoff"](tmp_path / "x.png")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_what_cannot_be_drawn_is_known_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ParameterError, match="in a folder that exists"):
        check_drawable(tmp_path / "no" / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match=r"mrfrec\[plot\]"):
        check_drawable(tmp_path / "x.png")


def test_a_tradeoff_has_a_line_for_each_sparsity_and_a_label_for_each_r(drawn: Any) -> None:
    axes = drawn(FIGURES["tradeoff"])
    assert legend_of(axes) == {"dense", "sparsity 0.5 %", "sparsity 0.1 %"}
    assert [text.get_text() for text in axes.texts] == ["r = 0", "r = 0.5"] * 2
    assert (axes.get_xscale(), axes.get_title()) == ("log", "some users held out")


def test_low_rank_has_a_point_for_each_rank_and_a_line_for_all_weights(drawn: Any) -> None:
    axes = drawn(FIGURES["lowrank"])
    assert legend_of(axes) == {"cut to a rank", "full rank"}
    assert list(axes.lines[0].get_xdata()) == [3000, 200]
    assert axes.get_xscale() == "log"


def test_exposure_has_a_line_for_each_model_and_for_what_they_are_compared_with(drawn: Any) -> None:
    axes = drawn(FIGURES["exposure"])
    assert legend_of(axes) == {"dense", "sparse", "of training data", "of test targets"}
    assert np.allclose(axes.lines[1].get_ydata(), 10.0)
    fewer = drawn(lambda path: plot_exposure(replace(EXPOSURE, targets=None), path))
    assert "of test targets" not in legend_of(fewer)


def test_trials_are_drawn_over_l2_with_a_line_for_each_of_the_best_combinations(drawn: Any) -> None:
    points = [{"alpha": a / 10, "l2": l2, "r": 0.0} for a in range(9) for l2 in (1.0, 10.0, 100.0)]
    axes = drawn(lambda path: plot_tuning(tuned(*points), path))
    assert (axes.get_xlabel(), axes.get_xscale()) == ("l2", "log")
    assert legend_of(axes) == {"best", *(f"alpha={a / 10:g}" for a in range(3, 9))}
    assert axes.lines[-1].get_xdata() == [100.0]
    ranks: list[dict[str, Any]] = [{"l2": "auto", "alpha": 0.5, "rank": rank} for rank in (0, 64)]
    assert drawn(lambda path: plot_tuning(tuned(*ranks), path)).get_xlabel() == "rank"


def test_trials_in_which_no_number_varies_are_drawn_in_their_order(drawn: Any) -> None:
    axes = drawn(lambda path: plot_tuning(tuned({"center": True}, {"center": False}), path))
    assert axes.get_xlabel() == "trial"
    assert legend_of(axes) == {"accuracy", "best"}
