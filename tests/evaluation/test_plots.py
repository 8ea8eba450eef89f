"""Figures: lines and points of the results, one whole file or none, and nothing left behind in matplotlib."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import scipy.sparse as sp
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.style import context

from mrfrec import MRF, Interactions, MissingLibraryError, ParameterError
from mrfrec.data.ids import Ids
from mrfrec.evaluation.metrics import parse
from mrfrec.evaluation.results import Comparison, Evaluation
from mrfrec.figures import check_drawable, figure_class, write_figure


def evaluation(model: str, seconds: float = 1.0, **facts: Any) -> Evaluation:
    return Evaluation(
        model=model,
        parameters={},
        split="some users held out",
        users=Ids(np.arange(400)),
        left_out=0,
        values={parse("ndcg@100"): np.random.default_rng(0).random(400)},
        seconds={"training": seconds},
        recommended=np.zeros(3, np.int64),
        popularity=np.ones(3, np.int64),
        facts=facts,
    )


TIMES = [
    evaluation("dense", 945.0),
    *(evaluation(f"{s} %, r = {r}", 1e3 * s / (1 + r)) for s in (0.5, 0.1) for r in (0, 0.5)),
]


FIGURES: dict[str, Callable[[Path], None]] = {
    "neighbors": lambda path: write_figure(neighbors(), path),
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


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_file_and_leaves_no_trace_in_matplotlib(name: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams.items())
    FIGURES[name](tmp_path / "figure.png")
    assert [each.name for each in tmp_path.iterdir()] == ["figure.png"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert dict(mpl.rcParams.items()) == before


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", full)
    (tmp_path / "x.png").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        FIGURES["neighbors"](tmp_path / "x.png")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_what_can_be_drawn_is_known_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FIGURES["neighbors"](tmp_path / "x.SVG")  # the name says the format
    assert b"<svg" in (tmp_path / "x.SVG").read_bytes()
    for wrong, message in (("x.gif", "ends in"), ("x", "ends in"), ("no/x.png", "in a folder that exists")):
        with pytest.raises(ParameterError, match=message):
            check_drawable(tmp_path / wrong)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match=r"\[plot\]"):
        check_drawable(tmp_path / "x.png")


def neighbors() -> Figure:
    matrix = np.random.default_rng(0).random((200, 8)) < 0.4
    titles = ["the $x^2$ of it", "two\nlines", "a" * 200, *("" for _ in range(5))]
    data = Interactions(sp.csr_array(matrix.astype(np.float32)), titles=titles)
    return MRF(measure=False, rank=0).fit(data).plot_neighbors(0, k=7)


SHOWN: dict[str, Callable[[], Figure]] = {
    "neighbors": neighbors,
    "comparison": lambda: Comparison(TIMES).plot(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_the_same_bytes_each_time_and_pyplot_knows_nothing(name: str) -> None:
    before = dict(mpl.rcParams.items())
    figure = SHOWN[name]()
    assert isinstance(figure, Figure)
    content = figure._repr_png_()  # type: ignore[attr-defined]
    assert content.startswith(b"\x89PNG")
    assert content == SHOWN[name]()._repr_png_()  # type: ignore[attr-defined]
    assert len(content) < 60_000
    assert dict(mpl.rcParams.items()) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("style", ["default", "dark_background"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_figure_can_be_read_on_light_and_on_dark(name: str, style: str) -> None:
    """It brings its background, and all text and lines differ from that clearly."""
    with context(style):
        figure = SHOWN[name]()
        *ground, alpha = to_rgba(figure.get_facecolor())
        axes = figure.axes[0]
        lines = [line.get_color() for line in axes.lines] + [bar.get_facecolor() for bar in axes.patches]
        texts = [*figure.texts, axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    assert alpha == 1
    assert len(lines) > 0
    for color in [*lines, *(text.get_color() for text in texts)]:
        assert np.abs(np.array(to_rgba(color)[:3]) - ground).max() > 0.5


def test_neighbors_are_drawn_as_similar_items_has_them() -> None:
    figure = neighbors()
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert figure.get_suptitle() == "Goes with the $x^2$ of it [0]"
    assert all("\n" not in label and len(label) <= 50 for label in labels)
    widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == len(labels) > 1
    assert axes.get_ylim() == (len(labels) - 0.5, -0.5)  # the strongest at the top


def test_a_comparison_has_a_point_for_each_model_and_metric() -> None:
    found = Comparison(TIMES)
    axes = found.plot("ndcg@100").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [*found]
    assert np.array_equal(axes.lines[0].get_xdata(), [found[name].mean("ndcg@100").mean for name in found])
    with pytest.raises(ParameterError, match="metric must be among"):
        found.plot("recall@20")


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    figure_class.cache_clear()
    for draw in SHOWN.values():
        with pytest.raises(MissingLibraryError, match=r"\[plot\]"):
            draw()
