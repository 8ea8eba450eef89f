"""What values show of themselves: short text, tables in notebooks in which nothing runs, data frames."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Interactions, MemoryPlanError, ParameterError, evaluation
from mrfrec.evaluation import Comparison, Split, Trial, Tuning
from mrfrec.evaluation.metrics import parse
from mrfrec.models import EASE, ItemKNN, Popularity
from mrfrec.shown import Section, Tabular, report_of

EVIL = "<script>alert('x')</script>"


def table(users: int = 300, items: int = 20) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((users, items)) < 0.3)
    return pl.DataFrame({"user": [f"u{EVIL}{u}" for u in user], "item": [f"i{EVIL}{i}" for i in item]})


@pytest.fixture(scope="module")
def split() -> Split:
    return evaluation.strong_generalisation(table(), heldout=40, min_items=2)


@pytest.fixture(scope="module")
def shown(split: Split) -> dict[str, Any]:
    data = mrfrec.read_interactions(table(3000))
    data = Interactions(data.matrix, data.users, data.items, [f"t{EVIL}"] * data.n_items)
    model = MRF(alpha=0.75).fit(data)
    models = {f"m{EVIL}": Popularity(), "knn": ItemKNN(neighbors=5)}
    comparison = evaluation.compare(models, split, "ndcg@5,recall@5")
    return {
        "comparison": comparison,
        "evaluation": comparison[f"m{EVIL}"],
        "tuning": evaluation.tune("EASE", split, trials=3, metric="ndcg@5"),
        "plan": model.plan_,
        "measured": model.measured_,
        "interactions": data,
        "model": model,
        "unfitted": EASE(l2=3.0),
    }


class _Cells(HTMLParser):
    """The names of the tags, and the texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


NAMES = ["comparison", "evaluation", "tuning", "plan", "measured", "interactions", "model", "unfitted"]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_short_text_and_a_table_in_which_nothing_runs(name: str, shown: dict[str, Any]) -> None:
    value = shown[name]
    text = repr(value)
    assert 1 <= len(text.splitlines()) <= 12
    assert " at 0x" not in text
    cells = _Cells(value._repr_html_())
    assert "table" in cells.tags
    assert {*cells.tags} <= {"div", "p", "br", "strong", "small", "table", "thead", "tbody", "tr", "th", "td"}
    assert (EVIL in "".join(cells.texts)) == (name in ("comparison", "evaluation", "interactions"))


def test_text_and_html_have_the_cells_of_the_shell(shown: dict[str, Any]) -> None:
    for name in ("comparison", "tuning", "plan", "measured"):
        report = report_of(shown[name])
        html = _Cells(shown[name]._repr_html_()).texts
        for row in (report.sections[0].columns, *report.sections[0].rows):
            assert " ".join(filter(None, row)) in " ".join(repr(shown[name]).split())
            assert {*filter(None, row)} <= {*html}


def test_a_comparison_shows_the_differences_after_the_means(shown: dict[str, Any]) -> None:
    found = shown["comparison"]
    assert str(found.paired("knn", "ndcg@5")) in " ".join(repr(found).split())
    titles = [section.title for section in report_of(found).sections]
    assert titles == ["", f"Difference from m{EVIL}, user by user"]
    alone = Comparison(found.evaluations[:1])
    assert len(report_of(alone).sections) == 1
    assert "Difference" not in repr(alone)


def test_a_comparison_is_a_frame_with_a_row_for_each_model_and_metric(shown: dict[str, Any]) -> None:
    found = shown["comparison"]
    frame = found.to_frame()
    assert isinstance(frame, pl.DataFrame)
    assert frame.select("model", "metric").rows() == [
        (model, metric) for model in found for metric in ("ndcg@5", "recall@5")
    ]
    row = frame.row(3, named=True)
    assert row["mean"], row["error"] == found["knn"].mean("recall@5")
    assert (row["difference"], row["difference_error"], row["p"]) == found.paired("knn", "recall@5")
    assert frame["difference"][:2].to_list() == [None, None]
    assert found["knn"].to_frame()["mean"].to_list() == frame["mean"][2:].to_list()
    assert "situation" not in frame.columns


def test_a_comparison_is_markdown_with_its_differences(shown: dict[str, Any]) -> None:
    found = shown["comparison"]
    text = found.to_markdown()
    assert f"| knn | {found['knn'].mean('ndcg@5')} |" in text
    assert f"## Difference from {found.evaluations[0].model}, user by user" in text
    assert f"| knn | {found.paired('knn', 'ndcg@5')} |" in text


def test_situations_are_rows_of_their_own() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    events = pl.DataFrame(
        {
            "user": rng.integers(900, size=n),
            "item": rng.integers(20, size=n),
            "time": np.arange(n) * 1000.0,
        }
    )
    split = evaluation.at_time(events, 0.8)
    found = evaluation.compare({"a": Popularity(), "b": ItemKNN()}, split, "ndcg@5")
    situations = list(found["a"].situations)
    assert situations
    frame = found.to_frame()
    assert frame["situation"].to_list() == [s for s in (None, *situations) for _ in "ab"]
    titles = [section.title for section in report_of(found).sections]
    assert titles[:3] == ["", "Difference from a, user by user", titles[2]]
    assert not titles[2].startswith("Difference")
    assert len(titles) == 2 * (1 + len(situations))
    pair = found.paired("b", "ndcg@5", situation=situations[-1])
    assert frame.row(-1, named=True)["difference"] == pair.difference


def test_a_tuning_is_a_frame_with_a_row_for_each_trial(shown: dict[str, Any]) -> None:
    tuning = shown["tuning"]
    frame = tuning.to_frame()
    assert frame["l2"].to_list()[0] == 500.0
    assert frame["ndcg@5"].to_list() == [trial.value for trial in tuning.trials]
    mixed = Tuning("MRF", parse("ndcg@5"), "", (Trial({"l2": "auto"}, 0.1), Trial({"l2": 2.0}, 0.2)))
    assert mixed.to_frame()["l2"].to_list() == ["auto", "2.0"]


def test_plan_and_measured_are_frames(shown: dict[str, Any]) -> None:
    assert shown["plan"].to_frame()["kind"].to_list() == ["dense"]
    values = shown["measured"].to_frame()
    assert dict(values.select("parameter", "value").rows()) == shown["measured"].values


def test_frames_are_of_the_library_of_the_data_unless_told() -> None:
    events = table().to_dict(as_series=False)
    split = evaluation.strong_generalisation(pd.DataFrame(events), heldout=40, min_items=2)
    found = evaluation.compare({"a": Popularity(), "b": ItemKNN()}, split, "ndcg@5")
    tuning = evaluation.tune("EASE", split, trials=2, metric="ndcg@5")
    for value in (found, found["a"], tuning):
        assert isinstance(value.to_frame(), pd.DataFrame)
        assert isinstance(value.to_frame("polars"), pl.DataFrame)
    frame: Any = found.to_frame()
    assert frame["difference"].dtype == np.float64
    assert frame["difference"].isna().tolist() == [True, False]
    with pytest.raises(ParameterError, match="frames must be"):
        found.to_frame("excel")


def test_results_without_a_model_show_why() -> None:
    nothing = Comparison((), {"dense": MemoryPlanError("too large", 2, 1)})
    trials = Trial({"l2": 1.0}, 0.5), Trial({"l2": 0.0}, None, failure="singular")
    failed = Tuning("EASE", parse("ndcg@5"), "", trials)
    assert "too large" in repr(nothing)
    assert nothing.to_frame().is_empty()
    assert "of which 1 could not be fitted" in repr(failed)
    assert "singular" in failed._repr_html_()
    assert json.loads(report_of(failed).json())["best"]["l2"] == 1.0


def test_what_is_not_registered_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Tabular"):
        repr(Tabular())


def test_interactions_show_their_first_pairs_or_none() -> None:
    two = Interactions(sp.csr_array([[0, 0], [2, 0], [0, 1]]), ["a", "b", "c"], ["x", "y"])
    texts = _Cells(two._repr_html_()).texts
    assert texts[2:] == ["user", "item", "value", "b", "x", "2", "c", "y", "1"]
    assert "first pairs" not in Interactions(sp.csr_array((2, 3)))._repr_html_()


def test_interactions_show_their_columns_their_times_and_what_was_not_used() -> None:
    frame = pd.DataFrame(
        {
            "who": [1, 2],
            "product": [5, 6],
            "stars": [4, 5],
            "kind": ["a", "b"],
            "date": ["2013-04-03", "2013-04-04"],
        }
    )
    data = mrfrec.read_interactions(frame, user="who")
    assert repr(data) == (
        "Interactions(2 users × 2 items, 2 pairs, with times; not used: "
        "'kind' (event_weights={…} would use it), 'stars' (min_value=… or binary=False would use it))"
    )
    texts = _Cells(data.filtered(min_users=1)._repr_html_()).texts
    assert texts[0] == repr(data)
    assert texts[2:10] == ["who", "product", "value", "date", "1", "5", "1", "2013-04-03 00:00:00"]
    assert "not used" not in repr(
        mrfrec.read_interactions(frame, "who", min_value=1, event_weights={"other": 1})
    )


def test_a_model_shows_where_its_parameters_are_from(shown: dict[str, Any]) -> None:
    texts = _Cells(shown["model"]._repr_html_()).texts
    assert texts[texts.index("alpha") :][:3] == ["alpha", "0.75", "given"]
    for name, start, value in shown["measured"].choices:
        source = "measured" if value != start else "measured, as at the start"
        assert texts[texts.index(name) :][:3] == [name, f"{value:g}", source]
    assert _Cells(shown["unfitted"]._repr_html_()).texts[-3:-1] == ["3", "given"]


def test_columns_of_numbers_stand_to_the_right() -> None:
    html = Section(["model", "nDCG", "p"], [["MRF", "0.7 ± 0.1", "–"], ["3 nearest", "−0.2", ""]]).html()
    sides = re.findall(r"<td style=\"text-align: (\w+)\">", html)
    assert sides == ["left", "right", "right"] * 2


def test_where_nothing_goes_together_the_figure_and_the_reasons_say_so() -> None:
    X = sp.csr_array(np.ones((6, 4)))  # everybody has everything
    model = mrfrec.MRF().fit(X)
    figure = model.plot_neighbors(0)
    assert [text.get_text() for text in figure.axes[0].texts] == ["nothing"]
    parts = model.explain(1, history=[0])
    assert not np.signbit(parts["contribution"].to_numpy()).any()
