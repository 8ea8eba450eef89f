"""Progress: one bar that never goes backwards, words, `progress=True`, and Ctrl-C."""

import contextlib
import gzip
import io
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from nbclient import NotebookClient
from typer.testing import CliRunner

import mrfrec
from mrfrec import MRF, NotFittedError, ParameterError
from mrfrec.bars import showing
from mrfrec.cli.app import application
from mrfrec.core import costs
from mrfrec.core.engine import STAGE_NAMES
from mrfrec.evaluation import compare, given
from mrfrec.io.frames import writing_rows
from mrfrec.models.mrf import measuring

Steps = list[tuple[str, int, int]]


def data(users: int = 600, items: int = 120) -> sp.csr_array:
    rng = np.random.default_rng(0)
    return sp.csr_array((rng.random((users, items)) < 0.1).astype(np.float32))


@pytest.mark.parametrize(
    "model",
    [
        MRF(sparsity=None),
        MRF(sparsity=0.1, rank=4),
        MRF(sparsity=0.1, r=0.5, rank=0),
        MRF(sparsity=0.3),
        mrfrec.models.EASE(),
        mrfrec.models.ItemKNN(),
    ],
    ids=repr,
)
def test_progress_of_a_fit_is_that_of_the_whole_in_words(model: Any) -> None:
    steps: Steps = []
    model.fit(data(), progress=lambda *step: steps.append(step))
    done = [done for _, done, _ in steps]
    assert done == sorted(done)
    assert steps[-1][1] == steps[-1][2]
    assert all(done < total for _, done, total in steps[:-1])
    assert {stage for stage, _, _ in steps} <= {*STAGE_NAMES.values()}
    assert {"kinds", "schedule", "pattern", "gather"}.isdisjoint(STAGE_NAMES.values())
    assert model.timings_.keys() - {"total"} <= STAGE_NAMES.keys()


def test_stages_that_an_earlier_fit_has_done_are_not_expected() -> None:
    interactions, reuse = mrfrec.Interactions(data()), {}  # type: ignore[var-annotated]
    totals = []
    for l2 in (1.0, 2.0):
        steps: Steps = []
        model = MRF(sparsity=0.1, rank=4, l2=l2, measure=False)
        model.fit(interactions, reuse=reuse, progress=lambda *step, steps=steps: steps.append(step))
        totals.append(steps[-1][2])
    assert totals[1] < totals[0]


def test_true_draws_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    model = MRF(sparsity=0.1).fit(data())
    for nothing_is_drawn in (None, False, True):  # stderr is no terminal
        model.fit(data(), progress=nothing_is_drawn)
        model.recommend(k=2, progress=nothing_is_drawn)
    assert capsys.readouterr() == ("", "")


def test_an_executed_notebook_keeps_the_last_line_of_each_call() -> None:
    cells = [
        "import numpy as np, scipy.sparse as sp, mrfrec\n"
        "from mrfrec import bars\n"
        "X = sp.csr_array((np.random.default_rng(0).random((600, 120)) < 0.1).astype(np.float32))",
        "model = mrfrec.MRF(sparsity=0.1).fit(X, progress=True)\n"
        "answer = model.recommend(k=2, progress=True)",
        "with bars.showing(True) as report:  # two calls, the second of which is interrupted\n"
        "    report('reading', 2, 2)\n"
        "    report('learning', 0, 4)\n"
        "    report('learning', 2, 4)",
    ]
    new: Any = nbformat.v4  # which has no types
    notebook = new.new_notebook(cells=[new.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120).execute()
    nothing, calls, interrupted = (cell.outputs for cell in notebook.cells)
    assert nothing == []
    lines = [output.data["text/plain"].split()[:2] for output in calls]
    assert lines == [["100%", "finishing"], ["100%", "recommending"]]
    (only,) = interrupted
    assert only.data["text/plain"].split()[:2] == ["50%", "learning"]


def test_true_draws_a_bar_for_each_call_on_a_terminal_and_its_share_never_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with showing(True) as report:
        assert report is not None
        for step in [("reading", 3, 0), ("reading", 4, 4), ("reading", 4, 4), ("[weights]", 1, 4)]:
            report(*step)
        report("[weights]", 1, 8)  # there is more to do than it seemed
    drawn = terminal.getvalue().split("\r")[-2]
    assert re.findall(r"(reading|\[weights\]) .*━.*?(\d+%)", drawn) == [
        ("reading", "100%"),
        ("[weights]", "25%"),
    ]


def test_wrong_arguments_are_told_as_the_caller_gave_them() -> None:
    model: Any = MRF(l2=1.0, rank=0).fit(data())
    calls: dict[str, Callable[[], object]] = {
        r"from 1 to 2 positional arguments but 3 were given\. Write recommend\(0, k=5\)": lambda: (
            model.recommend(0, 5)
        ),
        r"'factors'\. Did you mean MRF\(rank=64\)": lambda: MRF(factors=64),  # type: ignore[call-arg]
        r"Did you mean MRF\(max_neighbors=5\)": lambda: MRF(max_neighbours=5),  # type: ignore[call-arg]
        r"fit\(read_interactions\(data, user='who'\)\)": lambda: MRF().fit("x.csv", user="who"),  # type: ignore[call-arg]
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(ParameterError, match=r"'kk'\. Did you mean k"):
        model.recommend(0, kk=5)
    with pytest.raises(NotFittedError, match="call fit first, or load a model"):
        MRF().recommend(0)
    with pytest.raises(TypeError, match="takes from 1 to 5 positional arguments but 6 were given"):
        mrfrec.read_interactions("x.csv", "a", "b", "c", "d", "e")  # type: ignore[call-arg]


def test_the_plan_is_the_first_thing_a_fit_says(caplog: pytest.LogCaptureFixture) -> None:
    said: list[int] = []
    caplog.set_level(logging.INFO, "mrfrec")
    MRF(sparsity=0.1, rank=4).fit(data(), progress=lambda *_: said.append(len(caplog.records)))
    assert said[0] == 1
    assert "sparse model (l2=auto" in caplog.messages[0]
    assert caplog.messages[1].startswith("measured on ")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow", "polars"])
def test_reading_has_a_total_where_it_can_be_known(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.io.batches.BATCH_ROWS", 5000)
    n = 40_000  # ids get longer, so that the first lines are shorter than the others
    table = pl.DataFrame({"user": np.arange(n) // 4, "item": np.arange(n) % 100})
    writers: dict[str, Any] = {
        "csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet,
        "arrow": table.write_ipc,
    }  # fmt: skip
    source: Any = table
    if form in writers:
        source = tmp_path / f"t.{form}"
        writers[form](source)
    steps: Steps = []
    mrfrec.read_interactions(source, progress=lambda *step: steps.append(step))
    assert len(steps) > 2
    assert all(abs(total - n) < 0.02 * n for _, _, total in steps)
    assert all(done < total for _, done, total in steps[:-1])
    assert steps[-1] == ("reading", n, n)


def test_reading_of_packed_text_has_no_total_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"user,item\n1,2\n3,4\n"))
    steps: Steps = []
    mrfrec.read_interactions(tmp_path / "t.csv.gz", progress=lambda *step: steps.append(step))
    assert steps == [("reading", 2, 0), ("reading", 2, 2)]


def test_a_comparison_has_one_bar_and_says_which_model_it_is_at() -> None:
    X = data()
    is_hidden = np.arange(X.nnz) % 5 == 0
    training, targets = (
        sp.csr_array((X.data[part], (X.nonzero()[0][part], X.indices[part])), shape=X.shape)
        for part in (~is_hidden, is_hidden)
    )
    split = given(mrfrec.Interactions(training), mrfrec.Interactions(targets))
    steps: Steps = []
    models = {"near": mrfrec.models.ItemKNN(), "top": mrfrec.models.Popularity()}
    compare(models, split, ["ndcg@5"], progress=lambda *step: steps.append(step))
    assert "1 of 2, near: comparing items" in {stage for stage, _, _ in steps}
    assert "2 of 2, top: ranking" in {stage for stage, _, _ in steps}
    shares = [done / total for _, done, total in steps]
    assert shares == sorted(shares)
    assert [share for share in shares if share == 1.0] == [1.0]
    assert max(done / total for stage, done, total in steps if stage.startswith("1 of 2")) == 0.5


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "t.csv", "-o", "t.mrf"],
        ["compare", "t.csv", "--model", "EASE", "--model", "MRF"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_has_a_bar_for_reading_and_one_for_the_rest(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    users, items = data(3000).nonzero()
    pl.DataFrame({"user": users, "item": items}).write_csv("t.csv")
    steps: Steps = []
    bar = contextlib.nullcontext(lambda *step: steps.append(step))
    for module in ("data", "fitting"):
        monkeypatch.setattr(f"mrfrec.cli.{module}.progress_bar", lambda: bar)
    assert CliRunner().invoke(application(), command).exit_code == 0
    read = sum(stage == "reading" for stage, *_ in steps)  # whose speed says nothing of the rest
    for bar_steps in (steps[:read], steps[read:]):
        shares = [done / total for _, done, total in bar_steps]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert {stage for stage, *_ in steps[:read]} == {"reading"}


def test_measuring_counts_its_share_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for added in (5e-10, 1.0):  # beside the second, all else is nothing
        monkeypatch.setattr(measuring, "_ADDED", added)
        monkeypatch.setattr(measuring, "_EACH", 1e-4)
        steps: Steps = []
        MRF().fit(data(), progress=lambda *step, steps=steps: steps.append(step))
        shares.append(min(done / total for stage, done, total in steps if stage != STAGE_NAMES["measure"]))
    assert 0.1 < shares[0] < 0.98 < shares[1]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_ctrl_c_stops_the_batch_that_is_being_made(form: str, tmp_path: Path) -> None:
    ended: list[bool] = []

    def batches() -> Iterator[dict[str, Any]]:
        yield {"item": [1, 2]}
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(500):  # a batch takes long
            time.sleep(0.01)
        ended.append(True)
        yield {"item": [3]}

    with (
        pytest.raises(KeyboardInterrupt),
        writing_rows(batches(), ["item"], {"item": "int64"}, tmp_path / f"t.{form}"),
    ):
        pass
    assert not ended
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_blocks_that_take_the_same_time_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SOLVED", "_SOLVED_CUBE"):  # all other stages are nothing beside it
        monkeypatch.setattr(costs, name, 1.0)
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random((600, 120)) < np.linspace(0.02, 0.4, 120)).astype(np.float32))
    steps: Steps = []
    MRF(sparsity=0.3, r=0.0, rank=0, threads=1).fit(X, progress=lambda *step: steps.append(step))
    added = np.diff([done / total for stage, done, total in steps if stage == STAGE_NAMES["solve"]])
    added = added[added > 1e-6]
    assert len(added) > 20
    # The blocks differ in size. The last report also ends the stage, and may count two of them.
    assert added[:-1].max() < 1.5 * added[:-1].min()
