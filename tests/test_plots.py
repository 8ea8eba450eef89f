"""Figures: both files, whole or not at all, the same bytes each time; nothing left behind in matplotlib."""

import re
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
from mrfrec.evaluation import figures
from mrfrec.evaluation.metrics import parse
from mrfrec.evaluation.plots import plot_tuning
from mrfrec.evaluation.protocol import Evaluation
from mrfrec.paper.plots import plot_exposure, plot_tradeoff
from mrfrec.paper.side_checks import Exposure
from mrfrec.paper.tradeoff import Tradeoff, TradeoffPoint

Trials = list[tuple[dict[str, Any], float, float]]


def point(name: str, sparsity: float | None, r: float | None, seconds: float, value: float) -> TradeoffPoint:
    values = np.clip(np.random.default_rng(0).normal(value, 0.2, 400), 0, 1)
    evaluation = Evaluation(
        model=name,
        parameters={},
        split="strong generalisation, 400 + 400 users held out",
        users=Ids(np.arange(400)),
        left_out=0,
        values={parse("ndcg@100"): values, parse("coverage@100"): np.array([value])},
        seconds={"training": seconds},
        recommended=np.zeros(3, np.int64),
        popularity=np.ones(3, np.int64),
        facts={"places": 100},
    )
    return TradeoffPoint(evaluation, sparsity, r, sparsity or 1.0, None, 1000)


def made_tradeoff(dense: bool = True) -> Tradeoff:
    points = [point("dense", None, None, 945.0, 0.391)] if dense else []
    for sparsity, times in ((0.005, (1272, 207, 121)), (0.001, (187, 70, 39))):
        for r, seconds in zip((0.0, 0.1, 0.5), times, strict=True):
            name = f"{100 * sparsity:g} %, r = {r:g}"
            points.append(point(name, sparsity, r, float(seconds), 0.39 - 0.01 * r - 0.00001 / sparsity))
    return Tradeoff(tuple(points))


def made_exposure(smallest: float = 0.0001, groups: int = 10) -> Exposure:
    shares = np.geomspace(0.5, 0.0005, groups)
    steep = np.append(shares[:-1], smallest)
    return Exposure(
        split="leave two out",
        places=100,
        items=np.full(groups, 50),
        models={"dense": steep / steep.sum(), "sparse": shares / shares.sum()},
        training=np.full(groups, 1 / groups),
        targets=np.full(groups, 1 / groups),
    )


def made_trials(**varied: list[Any]) -> Trials:
    (name, choices), *_ = list(varied.items()) or [("user_weight", [0.0])]
    return [
        ({name: choice, "alpha": alpha, "l2": l2}, 0.3 + 0.01 * place - (alpha - 0.5) ** 2 / 10, 0.002)
        for place, choice in enumerate(choices)
        for alpha in (0.25, 0.5, 0.75)
        for l2 in (1.0, 10.0, 100.0)
    ]


FIGURES: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "tradeoff": lambda path: plot_tradeoff(made_tradeoff(), "ndcg@100", path),
    "exposure": lambda path: plot_exposure(made_exposure(), path),
    "tuning": lambda path: plot_tuning(made_trials(sparsity=[0.01, 0.1]), "ndcg@100", path, title="of data"),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures, as they would be saved."""
    found: list[Figure] = []

    def spy(figure: Figure, targets: Any) -> Any:
        figure.draw_without_rendering()
        found.append(figure)
        return targets

    monkeypatch.setattr(figures, "save_figure", spy)
    return found


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def title_of(figure: Figure) -> str:
    return str(figure.get_suptitle())


def labels_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def settings() -> dict[str, Any]:
    """Of matplotlib; to ask for its backend would be to choose one."""
    parameters: Any = mpl.rcParams  # its type has hundreds of overloads
    return {name: parameters[name] for name in parameters if name != "backend"}


# Files.


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_the_same_input_gives_the_same_bytes_whatever_the_settings(kind: str, tmp_path: Path) -> None:
    draw = FIGURES[kind]
    before = settings()
    first = draw(tmp_path / "first")
    assert settings() == before
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "svg.hashsalt": "x", "savefig.dpi": 50}):
        second = draw(tmp_path / "second")
        assert mpl.rcParams["font.size"] == 30
    assert first == (tmp_path / "first.png", tmp_path / "first.svg")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    png, svg = first[0].read_bytes(), first[1].read_text()
    assert png.startswith(b"\x89PNG")
    assert b"Matplotlib" not in png
    assert "<svg" in svg
    assert not re.search(r"Matplotlib v|dc:date", svg)
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(
    ("given", "stem"),
    [("a", "a"), ("a.png", "a"), ("a.SVG", "a"), ("sparsity-0.5", "sparsity-0.5")],
)
def test_both_files_are_written_whichever_is_named(given: str, stem: str, tmp_path: Path) -> None:
    expected = (tmp_path / f"{stem}.png", tmp_path / f"{stem}.svg")
    assert plot_exposure(made_exposure(), str(tmp_path / given)) == expected
    assert sorted(tmp_path.iterdir()) == sorted(expected)


def test_a_figure_that_fails_leaves_old_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = plot_exposure(made_exposure(), tmp_path / "figure")
    before = [path.read_bytes() for path in paths]
    save = Figure.savefig

    def failing(self: Figure, file: Any, **options: Any) -> None:
        if options["format"] == "svg":
            raise OSError("disk full")
        save(self, file, **options)

    monkeypatch.setattr(Figure, "savefig", failing)
    with pytest.raises(OSError, match="disk full"):
        plot_tradeoff(made_tradeoff(), "ndcg@100", tmp_path / "figure")
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize("path", ["", "nowhere/figure"])
def test_a_path_that_cannot_be_written_is_refused_before_drawing(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "new_figure", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ParameterError, match="path must be"):
        plot_exposure(made_exposure(), path)


@pytest.mark.parametrize("kind", FIGURES)
def test_without_matplotlib_the_error_says_what_to_install(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError, match=r'need matplotlib: pip install "mrfrec\[plot\]"'):
        FIGURES[kind](tmp_path / "figure")
    assert not list(tmp_path.iterdir())


# What they show.


def test_tradeoff_has_a_line_per_sparsity_and_a_label_per_point(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_tradeoff(made_tradeoff(), "ndcg@100", tmp_path / "figure")
    (axes,) = drawn[0].axes
    assert legend_of(drawn[0]) == ["dense", "sparsity 0.5 %", "sparsity 0.1 %"]
    colors = [line.lines[0].get_color() for line in axes.containers]  # type: ignore[attr-defined]
    assert colors == [figures.BLACK, *figures._COLORS[:2]]
    assert labels_of(axes) == ["r = 0", "r = 0.1", "r = 0.5"] * 2
    assert axes.get_xlabel() == "Training time (seconds)"
    assert axes.get_ylabel() == "nDCG@100 on 400 test users"
    assert axes.get_xscale() == "log"
    assert title_of(drawn[0]) == "strong generalisation, 400 + 400 users held out"


@pytest.mark.parametrize("spread", [1.0, 0.2])
def test_tradeoff_labels_stay_with_their_points_and_cover_nothing(
    spread: float, tmp_path: Path, drawn: list[Figure]
) -> None:
    points = made_tradeoff().points
    crowded = tuple(
        replace(p, evaluation=replace(p.evaluation, seconds={"training": 100 * (p.seconds / 100) ** spread}))
        for p in points
    )
    plot_tradeoff(Tradeoff(crowded), "ndcg@100", tmp_path / "figure")
    (axes,) = drawn[0].axes
    texts: list[Any] = list(axes.texts)
    boxes = [text.get_window_extent() for text in texts]
    markers = [axes.transData.transform(text.xy) for text in texts]
    for place, (box, (x, y)) in enumerate(zip(boxes, markers, strict=True)):
        assert box.count_overlaps(boxes[:place]) == 0
        assert not any(box.contains(*marker) for marker in markers)
        assert axes.bbox.x0 <= box.x0
        assert box.x1 <= axes.bbox.x1
        gap = max(box.x0 - x, x - box.x1, box.y0 - y, y - box.y1)
        assert gap <= figures._GAPS[-1] + 1
        assert texts[place].arrow_patch.get_visible() == (gap > figures._GAPS[0] + 1)  # a line leads back


def test_tradeoff_without_dense_without_errors_and_with_a_title(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_tradeoff(made_tradeoff(dense=False), "coverage@100", tmp_path / "figure", title="Books")
    assert legend_of(drawn[0]) == ["sparsity 0.5 %", "sparsity 0.1 %"]
    assert title_of(drawn[0]) == "Books"


def test_tradeoff_in_a_metric_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="metric must be among those measured"):
        plot_tradeoff(made_tradeoff(), "recall@20", tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_exposure_labels_groups_and_takes_a_log_scale_where_shares_need_it(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    plot_exposure(made_exposure(), tmp_path / "wide")
    plot_exposure(made_exposure(smallest=0.0), tmp_path / "zero")
    flat = np.full(10, 0.1)
    plot_exposure(replace(made_exposure(), models={"dense": flat}, targets=None), tmp_path / "flat")
    plot_exposure(made_exposure(groups=50), tmp_path / "many")
    axes = [figure.axes[0] for figure in drawn]
    assert [each.get_yscale() for each in axes] == ["log", "symlog", "linear", "log"]
    names = [text.get_text() for text in axes[0].get_xticklabels()]
    assert names == ["1\n(most popular)", *(str(group) for group in range(2, 11))]
    assert len(axes[3].get_xticklabels()) == 10
    assert legend_of(drawn[0]) == ["dense", "sparse", "of training data", "of test targets"]
    assert legend_of(drawn[2]) == ["dense", "of training data"]
    assert "(%)" in axes[0].get_ylabel()


def test_tuning_has_a_line_per_alpha_and_marks_the_best(tmp_path: Path, drawn: list[Figure]) -> None:
    trials = [*made_trials(), ({"user_weight": 0.0, "alpha": 0.5, "l2": 30.0}, 0.4, 0.0)]
    plot_tuning(trials, "ndcg@100", tmp_path / "figure", title="Books")
    (axes,) = drawn[0].axes
    assert legend_of(drawn[0]) == ["α = 0.25", "α = 0.5", "α = 0.75", "best: α = 0.5, l2 = 30"]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "l2", "nDCG@100 (validation)")
    assert title_of(drawn[0]) == "Books"
    line: Any = axes.containers[1]
    assert line.get_label() == "α = 0.5"
    assert line.lines[0].get_xdata().tolist() == [1.0, 10.0, 30.0, 100.0]
    assert [round(y, 3) for y in line.lines[0].get_ydata()] == [0.3, 0.3, 0.4, 0.3]


def test_tuning_of_many_combinations_draws_the_best_of_them(tmp_path: Path, drawn: list[Figure]) -> None:
    trials: Trials = [
        ({"alpha": a / 20, "sparsity": 0.01 if a % 2 else None, "l2": l2}, a / 100 + l2 / 1000, float("nan"))
        for a in range(1, 16)
        for l2 in (1.0, 2.0)
    ]
    plot_tuning(trials, "ndcg@100", tmp_path / "figure", title="Books")
    expected = [f"α = {a / 20:g}" + (", sparsity = 0.01" if a % 2 else "") for a in range(10, 16)]
    assert legend_of(drawn[0])[:-1] == expected
    assert title_of(drawn[0]) == "Books; the best 6 of 15 combinations"


def test_tuning_takes_an_l2_of_zero_and_trials_without_alpha(tmp_path: Path, drawn: list[Figure]) -> None:
    trials: Trials = [({"l2": l2}, 0.3 + l2 / 1000, 0.01) for l2 in (0.0, 1.0, 10.0, 100.0)]
    plot_tuning(trials, "ndcg@100", tmp_path / "figure")
    assert drawn[0].axes[0].get_xscale() == "symlog"
    assert legend_of(drawn[0]) == ["accuracy", "best: l2 = 100"]


def test_tuning_of_another_model_has_a_line_per_combination_of_what_varies(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    slim: Trials = [({"dtype": "float32", "l1": l1, "l2": l2}, l1 / 9 + l2 / 90, 0.01) for l1 in (1.0, 2.0)
                    for l2 in (1.0, 3.0, 9.0)]  # fmt: skip
    plot_tuning(slim, "ndcg@100", tmp_path / "slim")
    assert drawn[0].axes[0].get_xlabel() == "l2"
    assert legend_of(drawn[0]) == ["l1 = 1", "l1 = 2", "best: l1 = 2, l2 = 9"]
    knn: Trials = [({"l2": 1.0, "neighbors": k, "shrink": s, "center": c}, k / 99 + s / 9 + c, 0.0)
                   for k in (5, 10, 20) for s in (0.0, 1.0) for c in (False, True)]  # fmt: skip
    plot_tuning(knn, "ndcg@100", tmp_path / "knn")
    assert drawn[1].axes[0].get_xlabel() == "neighbors"
    assert legend_of(drawn[1]) == [
        *(f"shrink = {s}, center = {c}" for s in (0, 1) for c in (False, True)),
        "best: shrink = 1, center = True, neighbors = 20",
    ]
    assert title_of(drawn[1]) == ""


def test_tuning_where_all_trials_differ_in_everything_is_points_without_lines(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    trials: Trials = [({"l1": 1.0 + a, "l2": 9.0 - a}, a / 10, 0.0) for a in range(8)]
    plot_tuning(trials, "ndcg@100", tmp_path / "figure", title="Books")
    assert legend_of(drawn[0]) == ["accuracy", "best: l1 = 8, l2 = 2"]
    assert title_of(drawn[0]) == "Books"
    points: Any = drawn[0].axes[0].containers[0]
    assert points.lines[0].get_linestyle() == "None"
    assert len(points.lines[0].get_xdata()) == 8


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([], "trials must be at least one"),
        ([({"sparsity": "auto"}, 0.3, 0.1)], "trials must be with a number to draw them over"),
        ([({"alpha": 0.5, "l2": 1.0}, float("nan"), 0.1)], "trials must be with a finite value each"),
    ],
)
def test_trials_that_cannot_be_drawn_are_refused(trials: Trials, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=message):
        plot_tuning(trials, "ndcg@100", tmp_path / "figure")


@pytest.mark.parametrize("name", ["a.pdf", "a.JPG"])
def test_other_forms_of_pictures_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"path must be a name that ends in \.png or \.svg"):
        plot_exposure(made_exposure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_model_called_best_keeps_its_place_in_the_legend(tmp_path: Path, drawn: list[Figure]) -> None:
    shares = made_exposure()
    first = next(iter(shares.models.values()))
    plot_exposure(replace(shares, models={"best": first, "other": first}), tmp_path / "a")
    assert legend_of(drawn[0])[:2] == ["best", "other"]
