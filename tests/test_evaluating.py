"""The commands that measure: from typed options to tables, JSON, Markdown, parameters and pictures."""

import json
import re
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import (
    MRF,
    DataError,
    MissingLibraryError,
    MrfrecError,
    MrfrecWarning,
    ParameterError,
    datasets,
    read_interactions,
)
from mrfrec.cli.app import run as run_command
from mrfrec.cli.models import parse_model, parse_models
from mrfrec.evaluation import (
    compare,
    evaluate,
    given,
    grid,
    leave_out,
    read_events,
    ridges,
    strong_generalisation,
)
from mrfrec.models.registry import MODELS, build, load

from conftest import random_matrix

METRICS = "ndcg@10,recall@5"
SMALL: dict[str, dict[str, Any]] = {  # so that training takes no time
    "WMF": {"factors": 4},
    **{kind: {"hidden": 6, "epochs": 1} for kind in ("CDAE", "MultDAE")},
    "MultVAE": {"hidden": 6, "latent": 3, "epochs": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """events.csv with times and ratings; train, shown and test of a split that is given."""
    folder = tmp_path_factory.mktemp("evaluating")
    rng = np.random.default_rng(2)
    user, item = np.nonzero(random_matrix(6, users=150))
    order = rng.permutation(len(user))
    events = pl.DataFrame(
        {
            "user": user[order],
            "item": [f"i{place:02d}" for place in item[order]],
            "rating": rng.integers(1, 6, len(user)),
            "time": rng.integers(0, 10**6, len(user)),
        }
    )
    events.write_csv(folder / "events.csv")
    pairs = events.select("user", "item")
    known, new = pairs.filter(pl.col("user") < 100), pairs.filter(pl.col("user") >= 100)
    known[:-300].write_parquet(folder / "train.parquet")
    trained = known[:-300]["user"].unique()
    known[-300:].filter(pl.col("user").is_in(trained.implode())).write_parquet(folder / "later.parquet")
    new[::2].write_parquet(folder / "shown.parquet")
    asked = new[::2]["user"].unique()
    new[1::2].filter(pl.col("user").is_in(asked.implode())).write_parquet(folder / "test.parquet")
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in the folder; gives what it wrote to stdout."""
    monkeypatch.chdir(folder)

    def typed(*arguments: str) -> str:
        capsys.readouterr()
        run_command(list(arguments), Event())
        return capsys.readouterr().out

    return typed


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────


def test_evaluate_gives_what_python_gives(run: Any) -> None:
    out = run(
        "evaluate", "events.csv", "--heldout", "30", "--model", "l2=2, sparsity=0.3", "--metrics", METRICS,
        "--format", "json",
    )  # fmt: skip
    found = json.loads(out)["models"][0]
    split = strong_generalisation(read_events("events.csv"), 30)
    expected = evaluate(MRF(l2=2.0, sparsity=0.3), split, METRICS)
    for metric in METRICS.split(","):
        assert found["metrics"][metric]["mean"] == pytest.approx(expected.mean(metric).mean)
        assert found["metrics"][metric]["error"] == pytest.approx(expected.mean(metric).error)
    assert found["test_users"] == len(split.test)
    assert found["parameters"]["sparsity"] == 0.3
    assert found["seconds"]["training"] > 0


def test_evaluate_warns_of_the_other_model_that_fit_would_write(
    run: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the users of four items, there are fewer users than items."""
    rng = np.random.default_rng(3)
    counts = np.repeat([36, 4], [1100, 2000])
    items = np.concatenate([rng.choice(1200, count, replace=False) for count in counts])
    pl.DataFrame({"user": np.repeat(np.arange(len(counts)), counts), "item": items}).write_csv("many.csv")
    typed = ("evaluate", "many.csv", "--heldout", "50", "--metrics", "ndcg@10", "--format", "json")
    assert MRF().planned("many.csv").kind == "dense"
    with pytest.warns(MrfrecWarning, match=r"measured is a sparse model.*all the data.*be a dense model"):
        out = run(*typed)
    assert json.loads(out)["models"][0]["plan"].startswith("sparse model (l2=")
    for same in (("--min-items", "0"), ("--model", "sparsity=0.1")):
        run(*typed, *same)  # warnings are errors


def test_the_plan_is_printed(run: Any) -> None:
    typed = ("events.csv", "--heldout", "30", "--metrics", "ndcg@10")
    assert "Fitted: dense model (l2=" in run("evaluate", *typed)
    out = run("compare", *typed, "--model", "MRF", "--model", "few: sparsity=0.3", "--model", "Popularity")
    assert "few: MRF, sparsity=0.3. Fitted: sparse model (l2=" in out
    assert out.count("Fitted:") == 2
    out = run("tune", "events.csv", "-o", "best.json", "--vary", "l2=1,2", "--method", "grid")
    assert "The best: dense model (l2=" in out
    assert json.loads(Path("best.json").read_text())["tuned"]["plan"].startswith("dense model (l2=")


def test_a_split_that_is_given_is_taken_as_it_is(run: Any, folder: Path) -> None:
    training = read_interactions(folder / "train.parquet")
    later, shown, test = (
        read_interactions(folder / f"{name}.parquet") for name in ("later", "shown", "test")
    )
    for options, split in (
        (["--test", "later.parquet"], given(training, later)),
        (["--test", "test.parquet", "--shown", "shown.parquet"], given(training, test, shown)),
    ):
        out = run("evaluate", "train.parquet", *options, "--metrics", "recall_all@20", "--format", "json")
        expected = evaluate(MRF(), split, "recall_all@20").mean("recall_all@20").mean
        assert json.loads(out)["models"][0]["metrics"]["recall_all@20"]["mean"] == pytest.approx(expected)


def test_leave_out_and_time_split_every_user(run: Any) -> None:
    events = read_events("events.csv")
    out = run("evaluate", "events.csv", "--split", "leave-out", "--leave", "2", "--metrics", "hit@10",
              "--min-items", "0", "--format", "json")  # fmt: skip
    expected = evaluate(MRF(), leave_out(events, 2), "hit@10").mean("hit@10").mean
    assert json.loads(out)["models"][0]["metrics"]["hit@10"]["mean"] == pytest.approx(expected)
    assert "the last 1 of each user" in run(
        "evaluate", "events.csv", "--split", "time", "--metrics", "hit@10"
    )


@pytest.mark.parametrize("split", ["strong", "leave-out"])
def test_values_are_trained_on_and_targets_stay_ones(run: Any, split: str) -> None:
    options = ("--split", split, "--values", "--min-items", "0", "--metrics", METRICS, "--format", "json")
    events = read_events("events.csv", binary=False)
    made = leave_out(events) if split == "leave-out" else strong_generalisation(events, 15, min_items=0)
    assert set(made.training.matrix.data) == set(made.test.shown.data) == {1, 2, 3, 4, 5}
    assert set(made.test.targets.data) == {1}
    expected = evaluate(MRF(), made, METRICS)
    metrics = json.loads(run("evaluate", "events.csv", *options))["models"][0]["metrics"]
    assert all(metrics[name]["mean"] == pytest.approx(expected.mean(name).mean) for name in metrics)


def test_weights_of_events_are_the_same_in_fit_evaluate_compare_and_tune(run: Any, folder: Path) -> None:
    rows = pl.read_csv("events.csv").with_row_index("place")
    action = pl.when(pl.col("place") % 3 == 0).then(pl.lit("buy")).otherwise(pl.lit("view"))
    rows = rows.select("user", "item", action=action, time=pl.col("place") * 3600)
    rows.write_csv(folder / "actions.csv")
    typed = ["--event-weights", "view=0.2,buy=1", "--half-life", "10d", "--since", "1970-01-03"]
    named: dict[str, Any] = {
        "event_weights": {"view": 0.2, "buy": 1}, "half_life": "10d", "since": "1970-01-03"
    }  # fmt: skip
    run("fit", "actions.csv", "-o", "actions.mrf", *typed)
    data = read_interactions("actions.csv", **named)
    assert load("actions.mrf").fingerprint_ == data.fingerprint
    split = strong_generalisation(read_events("actions.csv", **named), 15, min_items=0)
    expected = evaluate(MRF(), split, "ndcg@10").mean("ndcg@10").mean
    shared = [*typed, "--min-items", "0", "--heldout", "15", "--format", "json"]
    for command in ("evaluate", "compare"):
        models = [["--model", "MRF"], ["--model", "Popularity"]][: 1 + (command == "compare")]
        out = run(command, "actions.csv", *shared, "--metrics", "ndcg@10", *(x for m in models for x in m))
        assert json.loads(out)["models"][0]["metrics"]["ndcg@10"]["mean"] == pytest.approx(expected)
    run("tune", "actions.csv", "-o", "b.json", *shared, "--model", "Popularity", "--study", "trials.jsonl")
    assert "Popularity" in Path("b.json").read_text()
    for options, message in (
        (["--test", "actions.csv", "--half-life", "3d"], "--now must be given with --test"),
        (["--event-weights", "view=a"], "--event-weights must be a list of kinds"),
        (["--event-weights", "view=1,view=2,buy=1"], "--event-weights must be a list of kinds"),
        (["--half-life", "3"], "--half-life must be a number and one of the units"),
        (["--event-column", "action"], "--event-column must be left out without event_weights"),
    ):
        with pytest.raises(MrfrecError, match=message):
            run("evaluate", "actions.csv", *options)


def test_results_go_to_files_by_their_names(run: Any, folder: Path) -> None:
    command = ("evaluate", "events.csv", "--heldout", "20", "--metrics", METRICS, "-o")
    for name in ("out.json", "out.md", "out.txt"):
        assert run(*command, name) == ""
    assert json.loads((folder / "out.json").read_text())["models"]
    assert "| model | nDCG@10 | Recall@5 | training |" in (folder / "out.md").read_text()
    assert re.search(r"^model +nDCG@10", (folder / "out.txt").read_text(), re.MULTILINE)
    with pytest.raises(ParameterError, match=r"--output must be a name that ends in \.json, \.md, \.txt"):
        run(*command, "out.pdf")


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_is_evaluated_by_name_as_python_does_it(run: Any, kind: str) -> None:
    typed = f"{kind}: " + ", ".join(f"{name}={value}" for name, value in SMALL.get(kind, {}).items())
    out = run(
        "evaluate", "events.csv", "--heldout", "30", "--model", typed, "--metrics", METRICS, "--threads", "1",
        "--memory-limit", "1GB", "--format", "json",
    )  # fmt: skip
    found = json.loads(out)["models"][0]
    split = strong_generalisation(read_events("events.csv"), 30)
    model = build(kind, SMALL.get(kind, {}), {"threads": 1})
    assert (found["name"], found["kind"], found["parameters"]) == (kind, kind, model.parameters)
    expected = evaluate(model, split, METRICS)
    for metric in METRICS.split(","):
        assert found["metrics"][metric]["mean"] == pytest.approx(expected.mean(metric).mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics", "ndgc@10"], "Did you mean ndcg@10"),
        (["--metrics", "ndcg"], "followed by the number of places, as ndcg@20"),
        (["--metrics", "recall@46"], "of at most the 44 items there are"),
        (["--heldout", "75"], "2 × 75 users cannot be held out"),
        (["--min-items", "400"], "no interactions are left without users with fewer than 400 items"),
        (["--model", "l2"], "--model must be a model such as"),
        (["--model", "lambda=3"], r"--model 'lambda=3': MRF has no parameter lambda \(it has l2, .*\)\.$"),
        (["--model", "l2=-1"], "--model 'l2=-1': l2 must be a finite number, 0 or more, or \"auto\"; got -1"),
        (["--model", "MultVAE: device=gpu"], r"--model 'MultVAE: device=gpu': device must be .*; got 'gpu'"),
        (
            ["--model", "SLIM", "--model", "WMF"],
            "--model must be given once; got 'SLIM and WMF'. mrfrec comp",
        ),
        (["--model", ""], "--model must be a model such as SLIM, or left out; got ''"),
        (["--model", "Popularity", "--threads", "-2"], "--threads must be a whole number, 1 or more; got -2"),
        (["--model", "Popularity", "--memory-limit", "foo"], "--memory-limit must be .*; got 'foo'"),
        (["--model", "nothing.json"], "nothing.json cannot be read: No such file"),
        (["--model", "SLIM", "--device", "cpu"], "got 'cpu'. It is for .*MRF.*MultDAE, MultVAE."),
        (["--shown", "shown.parquet"], "--shown must be given together with --test"),
        (["--test", "later.parquet", "--split", "time"], "--split must be left out with --test"),
        (["--leave", "2"], "--leave must be left out with --split strong"),
        (["--split", "time", "--heldout", "9"], "--heldout must be left out with --split time"),
        (["-o", "events.csv", "--format", "json"], "another file than the input"),
        (["--test", "nothing.csv"], "there is no file nothing.csv"),
        (["--value-column", "stars", "--min-value", "3"], "--value-column must be a column of"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_fitted(
    run: Any, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(MrfrecError, match=message):
        run("evaluate", "events.csv", *options)


@pytest.mark.parametrize("options", [[], ["--min-items", "3"]], ids=["as it is", "with fewer items"])
def test_what_the_refusal_of_small_data_advises_works(run: Any, tmp_path: Path, options: list[str]) -> None:
    small = tmp_path / "small.csv"
    small.write_text("user,item\n" + "".join(f"{u},{(u + i) % 6}\n" for u in range(20) for i in range(4)))
    with pytest.raises(DataError, match="--min-items") as refused:
        run("evaluate", str(small), *options)
    advice = re.search(r"--split leave-out[^.]*-items \d", str(refused.value))
    assert advice is not None
    out = run("evaluate", str(small), *advice[0].split(), "--metrics", "ndcg@2", "--format", "json")
    assert json.loads(out)["models"][0]["test_users"] == 20


# ── compare ───────────────────────────────────────────────────────────────────────────────────────


def test_compare_gives_what_python_gives_and_the_differences(run: Any) -> None:
    out = run(
        "compare", "events.csv", "--heldout", "30", "--model", "dense: sparsity=dense", "--model",
        "small: sparsity=0.1", "--metrics", METRICS + ",coverage@5", "--format", "json",
    )  # fmt: skip
    found = json.loads(out)
    split = strong_generalisation(read_events("events.csv"), 30)
    expected = compare({"dense": MRF(sparsity=None), "small": MRF(sparsity=0.1)}, split, METRICS)
    assert [model["name"] for model in found["models"]] == ["dense", "small"]
    pair = expected.paired("small", "ndcg@10")
    difference = found["differences"][0]["metrics"]["ndcg@10"]
    assert difference == pytest.approx({"difference": pair.difference, "error": pair.error, "p": pair.p})
    assert "coverage@5" not in found["differences"][0]["metrics"]


def test_exposure_adds_shares_by_popularity_to_a_comparison(run: Any, folder: Path) -> None:
    out = run(
        "paper", "exposure", "events.csv", "--heldout", "30", "--model", "dense: sparsity=dense", "--model",
        "small: sparsity=0.1", "--metrics", METRICS, "--format", "json", "--plot", "exposure",
    )  # fmt: skip
    found = json.loads(out)
    assert [model["name"] for model in found["models"]] == ["dense", "small"]
    assert sum(found["exposure"]["shares"]["recommended by small"]) == pytest.approx(1)
    figure = (folder / "exposure.svg").read_text()
    for line in ("events", "strong generalisation, 30 + 30 users held out"):  # of the title
        assert f"<!-- {line} -->" in figure


def test_numbers_of_each_user_go_to_a_file(run: Any, folder: Path) -> None:
    run(
        "compare", "events.csv", "--heldout", "30", "--model", "a: l2=1", "--model", "b: l2=9", "--metrics",
        METRICS + ",coverage@5", "--per-user", "users.csv",
    )  # fmt: skip
    table = pl.read_csv(folder / "users.csv")
    split = strong_generalisation(read_events("events.csv"), 30)
    expected = compare({"a": MRF(l2=1.0), "b": MRF(l2=9.0)}, split, METRICS)
    assert table.columns == ["model", "user", *METRICS.split(",")]
    for name in ("a", "b"):
        mine = table.filter(pl.col("model") == name)
        assert mine["user"].to_list() == list(split.test.users)
        assert mine["ndcg@10"].to_list() == pytest.approx(expected[name].per_user("ndcg@10").tolist())


def test_compare_needs_two_models_with_names_of_their_own(run: Any) -> None:
    for models in (["a: l2=1"], ["a: l2=1", "a: l2=2"], ["l2=1", "l2=1"]):
        typed = [part for model in models for part in ("--model", model)]
        with pytest.raises(
            ParameterError, match="--model must be given at least twice, with different names"
        ):
            run("compare", "events.csv", *typed)


def test_models_of_all_kinds_are_compared_and_the_device_is_for_those_that_have_one(run: Any) -> None:
    vae = "Mult-VAE: hidden=6, latent=3, epochs=1"
    out = run(
        "compare", "events.csv", "--heldout", "30", "--model", "MRF", "--model", "popularity", "--model", vae,
        "--device", "cpu", "--metrics", METRICS,
    )  # fmt: skip
    for name in ("MRF", "popularity", "Mult-VAE"):
        assert re.search(rf"^{name} +0\.", out, re.MULTILINE)
    assert "popularity: Popularity, default parameters" in out
    assert "Mult-VAE: MultVAE, hidden=6, latent=3, epochs=1" in out
    with pytest.raises(ParameterError, match="--device must be left out with SLIM, Popularity"):
        run("compare", "events.csv", "--model", "SLIM", "--model", "Popularity", "--device", "cpu")


# ── tune, and what takes its parameters ───────────────────────────────────────────────────────────


def test_tune_writes_what_fit_evaluate_and_compare_take(run: Any, folder: Path) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "ndcg@10", "--method", "grid", "--vary",
        "alpha=0.5,1", "--vary", "l2=1,4", "--vary", "sparsity=0.2", "--vary", "r=0,0.5", "-o", "best.json",
        "--study", "study.jsonl", "--plot", "tuned.png", "--format", "json",
    )  # fmt: skip
    found = json.loads(out)
    tried = [trial["parameters"] for trial in found["trials"]]
    assert tried[:8] == grid(sparsity=[0.2], r=[0.0, 0.5], alpha=[0.5, 1.0], l2=[1.0, 4.0])
    assert {point["l2"] for point in tried[8:]} >= {16.0} or found["best"]["l2"] != 4.0
    best = max(found["trials"], key=lambda trial: trial["value"] or 0.0)
    assert json.loads((folder / "best.json").read_text())["parameters"] == best["parameters"]
    assert (folder / "tuned.png").exists()
    assert (folder / "tuned.svg").exists()
    run("fit", "events.csv", "-o", "tuned.mrf", "--params", "best.json", "--alpha", "0.25")
    parameters = load(folder / "tuned.mrf").parameters
    assert parameters == {**parameters, **best["parameters"], "alpha": 0.25}
    shown = run("evaluate", "events.csv", "--heldout", "30", "--model", "best.json", "--metrics", METRICS)
    assert re.search(r"^best +0\.", shown, re.MULTILINE)


def test_tune_finds_the_parameters_of_any_model_for_fit(run: Any, folder: Path) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "ndcg@10", "--model", "FsSLIM: l1=0.5", "--vary",
        "neighbors=5,20", "--method", "grid", "-o", "slim.json", "--plot", "slim.png", "--format", "json",
    )  # fmt: skip
    found = json.loads(out)
    tried = [trial["parameters"] for trial in found["trials"]]
    split = strong_generalisation(read_events("events.csv"), 30)
    assert tried[:6] == [
        {"l1": 0.5, "neighbors": neighbors, "l2": l2}
        for neighbors in (5, 20)
        for l2 in ridges(split, 0.0, [0.003, 0.03, 0.3])
    ]
    assert (folder / "slim.svg").exists()
    written = json.loads((folder / "slim.json").read_text())
    assert (written["model"], written["parameters"]) == ("FsSLIM", found["best"])
    for more, changed in (
        ([], {}),
        (["--l2", "7"], {"l2": 7.0}),
        (["--model", "fsslim: l1=2"], {"l1": 2.0}),
        (["--model", "l1=2", "--l2", "7"], {"l1": 2.0, "l2": 7.0}),
    ):
        run("fit", "events.csv", "-o", "slim.mrf", "--params", "slim.json", *more)
        fitted = load(folder / "slim.mrf")
        assert type(fitted).__name__ == "FsSLIM"
        assert fitted.parameters == {**fitted.parameters, **found["best"], **changed}
    with pytest.raises(
        ParameterError, match=r"of one kind; .* It is WMF by its name and FsSLIM by slim\.json"
    ):
        run("fit", "events.csv", "-o", "no.mrf", "--params", "slim.json", "--model", "WMF")


def test_any_parameter_of_an_mrf_is_varied_beside_the_usual_ones(run: Any) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "ndcg@10", "--model", "MRF: alpha=0.5",
        "--vary", "user_weight=0,0.5", "--vary", "sparsity=dense,0.2", "--vary", "l2=2", "-o", "weight.json",
        "--format", "json", "--method", "grid",
    )  # fmt: skip
    assert [trial["parameters"] for trial in json.loads(out)["trials"]][:4] == [
        {"alpha": 0.5, "user_weight": beta, "sparsity": sparsity, "l2": 2.0}
        for beta in (0.0, 0.5)
        for sparsity in (None, 0.2)
    ]


def test_typed_sparsity_takes_the_place_of_a_threshold_in_the_file(run: Any, folder: Path) -> None:
    (folder / "threshold.json").write_text('{"threshold": 0.2, "l2": 3}')
    run("fit", "events.csv", "-o", "typed.mrf", "--params", "threshold.json", "--sparsity", "0.3")
    parameters = load(folder / "typed.mrf").parameters
    assert (parameters["threshold"], parameters["sparsity"], parameters["l2"]) == (None, 0.3, 3.0)


def test_wrong_values_are_said_to_be_of_the_file_unless_they_were_typed(run: Any, folder: Path) -> None:
    (folder / "values.json").write_text('{"model": "SLIM", "parameters": {"l1": -1, "l2": 2}}')
    fit = ("fit", "events.csv", "-o", "values.mrf", "--params", "values.json")
    with pytest.raises(ParameterError, match=r"^values\.json: l1 must be a finite number"):
        run(*fit)
    with pytest.raises(ParameterError, match=r"^--model 'l1=-2': l1 must be a finite number"):
        run(*fit, "--model", "l1=-2")
    with pytest.raises(ParameterError, match=r"^--l2 must be a finite number"):
        run(*fit, "--model", "l1=1", "--l2", "-1")


@pytest.mark.parametrize("command", ["evaluate", "compare", "tune", "fit"])
def test_a_missing_library_is_told_before_the_data_is_read(
    run: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    more = {"compare": ["--model", "MRF"], "tune": ["-o", "w.json"], "fit": ["-o", "w.mrf"]}
    with pytest.raises(MissingLibraryError, match=r"pip install \"mrfrec\[wmf\]\""):
        run(command, "missing.csv" if command != "fit" else "events.csv", "--model", "WMF",
            *more.get(command, []), *(["--user-column", "nobody"] if command == "fit" else []))  # fmt: skip


def test_a_device_that_is_missing_is_named_where_it_was_typed(run: Any) -> None:
    with pytest.raises(
        ParameterError, match=r"^--model 'MultVAE: device=cuda:77': device must be a device th"
    ):
        run("evaluate", "missing.csv", "--model", "MultVAE: device=cuda:77")
    with pytest.raises(ParameterError, match=r"^--device must be a device that PyTorch finds; got 'cuda:77'"):
        run("evaluate", "missing.csv", "--model", "MultVAE: device=cpu", "--device", "cuda:77")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_results_say_of_which_kind_the_models_are(run: Any, form: str) -> None:
    small = ("--heldout", "30", "--format", form)
    out = run("compare", "events.csv", *small, "--metrics", "ndcg@10", "--model", "käse: model=SLIM, l1=3",
              "--model", "SLIM", "--model", "MRF: l2=3", "--model", "sparsity=0.3")  # fmt: skip
    lines = [line.split(". Fitted: ")[0].removeprefix("- ") for line in out.splitlines() if line.strip()]
    assert lines[-1].startswith("Untuned")
    assert lines[-5:-1] == ["käse: SLIM, l1=3", "SLIM, default parameters", "MRF, l2=3", "MRF, sparsity=0.3"]
    out = run("tune", "events.csv", *small, "--metric", "ndcg@10", "--model", "SLIM: l1=1", "--vary",
              "l2=1,9", "-o", "kinds.json")  # fmt: skip
    assert re.search(r"SLIM: \d+ points tried", out)


@pytest.mark.parametrize(
    ("content", "message"), [("[]", "is not a file of parameters"), ("{", "is not a file of parameters"),
                             ("[" * 100_000, "is not a file of parameters"),
                             ('{"parameters": {"alhpa": 1}}', "Did you mean alpha")]
)  # fmt: skip
def test_a_file_that_holds_no_parameters_is_refused(
    run: Any, folder: Path, content: str, message: str
) -> None:
    (folder / "odd.json").write_text(content)
    with pytest.raises(MrfrecError, match=message):
        run("fit", "events.csv", "-o", "odd.mrf", "--params", "odd.json")
    assert not (folder / "odd.mrf").exists()


def test_tune_leaves_out_of_the_grid_what_the_model_fixes(run: Any, folder: Path) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "ndcg@10", "--model", "alpha=0.3, sparsity=0.2",
        "--vary", "l2=1,4", "--method", "grid", "-o", "fixed.json", "--format", "json",
    )  # fmt: skip
    tried = [trial["parameters"] for trial in json.loads(out)["trials"]]
    assert all(point["alpha"] == 0.3 and point["sparsity"] == 0.2 for point in tried)
    assert tried[:2] == [{"alpha": 0.3, "sparsity": 0.2, "r": 0.0, "l2": l2} for l2 in (1.0, 4.0)]


def test_nothing_is_written_over_what_is_read(run: Any, folder: Path) -> None:
    (folder / "copy.csv").write_bytes((folder / "events.csv").read_bytes())
    before = (folder / "copy.csv").read_bytes()
    small = ("--metric", "ndcg@10", "--model", "l2=1, alpha=1")
    for command in (
        ("tune", "copy.csv", "-o", "copy.csv", *small),
        ("tune", "copy.csv", "-o", "x.json", "--study", "copy.csv", *small),
        ("compare", "copy.csv", "--model", "l2=1", "--model", "l2=2", "--format", "json", "-o", "copy.csv"),
        ("evaluate", "events.csv", "--test", "copy.csv", "--format", "json", "-o", "copy.csv"),
    ):
        with pytest.raises(ParameterError):
            run(*command)
        assert (folder / "copy.csv").read_bytes() == before
    with pytest.raises(ParameterError, match="--study must be another file than --output"):
        run("tune", "events.csv", "-o", "same.json", "--study", "same.json", *small)


def test_defaults_fit_a_small_catalogue(run: Any, folder: Path) -> None:
    assert "nDCG@44" in run("evaluate", "events.csv", "--heldout", "20")
    assert "rank 22" in run("paper", "lowrank", "events.csv", "--heldout", "20")
    assert "10 %, r = 0" in run("paper", "tradeoff", "events.csv", "--heldout", "20", "--r", "0")
    run("tune", "events.csv", "--heldout", "20", "--model", "SLIM: l1=1, l2=1", "-o", "small.json")
    assert json.loads((folder / "small.json").read_text())["tuned"]["metric"] == "ndcg@44"


@pytest.mark.parametrize("items", [3, 9])
def test_a_handful_of_items_can_be_measured_or_is_refused_before_training(
    run: Any, tmp_path: Path, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "few.csv"
    pairs = [f"{user},i{(user + step) % items}" for user in range(30) for step in (0, 1, 2)[: items - 1]]
    table.write_text("user,item\n" + "\n".join(pairs) + "\n")
    split = ("--split", "leave-out", "--min-items", "0")
    models = ("--model", "MRF", "--model", "Popularity")
    page = json.loads(run("paper", "exposure", str(table), *split, *models, "--format", "json"))
    assert list(page["models"][0]["metrics"]) == [f"ndcg@{items}", f"recall@{items}"]
    assert page["exposure"]["items"] == [1] * items
    run("paper", "tradeoff", str(table), *split)
    run("paper", "lowrank", str(table), *split)
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(ParameterError, match=f"of at most the {items} items there are; got 'ndcg@"):
        run("compare", str(table), *split, *models, "--metrics", f"ndcg@{items + 1}")


@pytest.mark.parametrize("command", [("evaluate",), ("fit", "-o", "debian.mrf")])
def test_a_name_that_is_nearly_that_of_a_data_set_is_recognised(run: Any, command: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=r"no data set of that name: did you mean debian\?"):
        run(*command, "debain")
    with pytest.raises(ParameterError, match="--min-value must be left out with the data set debian"):
        run(*command, "debian", "--min-value", "4")
    with pytest.raises(ParameterError, match="--min-users must be left out with the data set ml-20m"):
        run(*command, "ml-20m", "--min-users", "4")


def test_a_model_is_fitted_to_a_data_set_by_name(run: Any, folder: Path) -> None:
    run("fit", "debian", "-o", "popular.mrf", "--model", "Popularity", "--min-users", "300")
    data = datasets.load("debian").filtered(min_users=300)
    model = load(folder / "popular.mrf")
    assert list(model.items_) == list(data.items)
    assert list(model.titles_ or []) == list(data.titles or [""])
    assert model.popularity_.tolist() == data.popularity.tolist()
    with pytest.raises(ParameterError, match="--items must be left out with the data set debian"):
        run("fit", "debian", "-o", "popular.mrf", "--items", "events.csv")
    with pytest.raises(DataError, match=r"MovieLens 20M is not prepared: there is no none\Wml-20m"):
        run("fit", "ml-20m", "-o", "popular.mrf", "--folder", "none")


def test_a_search_is_a_method_of_tune(run: Any, folder: Path) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "recall@5", "--method", "search", "--trials",
        "4", "--vary", "sparsity=0.1,0.3", "-o", "searched.json", "--max-seconds", "60",
    )  # fmt: skip
    assert "Recall@5 (validation)" in out
    assert json.loads((folder / "searched.json").read_text())["parameters"]["sparsity"] in (0.1, 0.3)


def test_a_search_goes_through_ranges_on_a_scale_that_fits_them(run: Any) -> None:
    out = run(
        "tune", "events.csv", "--heldout", "30", "--metric", "recall@5", "--method", "search", "--trials",
        "8", "--model", "ItemKNN", "--vary", "neighbors=2..40", "--vary", "shrink=0..100", "-o", "knn.json",
        "--format", "json",
    )  # fmt: skip
    tried = [trial["parameters"] for trial in json.loads(out)["trials"]]
    assert len(tried) == 8
    assert all(isinstance(point["neighbors"], int) and 2 <= point["neighbors"] <= 40 for point in tried)
    assert all(isinstance(point["shrink"], float) and 0 <= point["shrink"] <= 100 for point in tried)
    assert sum(point["neighbors"] < 15 for point in tried) >= 4  # the middle, on a logarithmic scale, is 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "alpha=half"], "--vary alpha=half: alpha must be between 0 and 1; got 'half'"),
        (["--vary", "r=0.5"], "--vary must be without r, which belongs to sparse models"),
        (["--metric", "ndcg@10,recall@10"], "--metric must be one metric"),
        (["--metric", "speed"], "--metric must be among"),
        (["--study", "nowhere/study.jsonl"], "--study must be in a folder that exists"),
        (["--plot", "nowhere/a.png"], "--plot must be in a folder that exists"),
        (["--plot", "a.pdf"], r"--plot must be a name that ends in \.png or \.svg"),
        (["--trials", "3"], "--trials must be left out with --method climb"),
        (["--model", "SLIM", "--vary", "l1"], "--vary must be PARAMETER=VALUE"),
        (
            ["--model", "SLIM", "--vary", "pases=1"],
            r"--vary must be of a parameter of SLIM .* Did you mean passes\?",
        ),
        (["--model", "SLIM", "--vary", "threads=1,2"], "--vary must be of a parameter of SLIM that changes"),
        (
            ["--model", "SLIM", "--vary", "l1=1", "--vary", "l1=2"],
            "--vary must be the only option that varies l1",
        ),
        (["--model", "SLIM: l1=1", "--vary", "l1=2"], "--model must be without l1 when --vary l1=2 is"),
        (
            ["--model", "SLIM", "--vary", "l1=1..2"],
            r"--vary must be a list of .*; got 'l1=1\.\.2'\. Ranges need --method search",
        ),
        (["--method", "search", "--vary", "l2=3..1"], r"--vary l2=3\.\.1: the range must be low ≤ high"),
        (["--method", "search", "--vary", "max_neighbors=1.5..3"], "must be between whole numbers"),
        (
            ["--method", "search", "--vary", "dropout=0..1.02"],
            r"--vary dropout=0\.\.1\.02: dropout must be .*; got 1\.02",
        ),
        (["--vary", "alpha=0.5,2"], r"--vary alpha=0\.5,2: alpha must be between 0 and 1; got 2\.0"),
        (["--method", "search", "--model", "Popularity"], "--method must be climb with Popularity"),
        (["--model", "Popularity", "--plot", "a.png"], "--plot must be left out where no number varies"),
        (["--model", "SLIM", "--device", "cpu"], "--device must be left out with SLIM"),
    ],
)
def test_tune_refuses_what_makes_no_sense(run: Any, options: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        run("tune", "events.csv", "--metric", "ndcg@10", "--heldout", "30", "-o", "no.json", *options)


# ── trade-off, low rank, reproduction ─────────────────────────────────────────────────────────────


def test_tradeoff_has_a_row_for_each_level_and_r_and_the_dense_model(run: Any, folder: Path) -> None:
    run(
        "paper", "tradeoff", "events.csv", "--heldout", "30", "--sparsity", "0.1,0.3", "--r", "0,0.5",
        "--metrics", METRICS, "--dense", "l2=2", "--sparse", "l2=1", "--plot", "tradeoff", "-o",
        "tradeoff.md",
    )  # fmt: skip
    rows = re.findall(r"^\| (.*?) \|", (folder / "tradeoff.md").read_text(), re.MULTILINE)
    assert rows[2:] == ["dense", "30 %, r = 0", "30 %, r = 0.5", "10 %, r = 0", "10 %, r = 0.5"]
    assert (folder / "tradeoff.png").exists()
    without = run(
        "paper", "tradeoff", "events.csv", "--heldout", "30", "--sparsity", "0.3", "--r", "0", "--metrics",
        METRICS, "--dense", "none",
    )  # fmt: skip
    assert "dense" not in without


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["lowrank", "--model", "MRF", "--model", "EASE"], "--model must be given once; got 'MRF and EASE'"),
        (
            ["tradeoff", "--dense", "EASE"],
            "--dense must be an MRF",
        ),
        (["tradeoff", "--dense", "l2=-1"], "--dense 'l2=-1': l2 must be a finite number"),
        (["lowrank", "--model", "SLIM"], "--model must be an MRF, EASE or EDLAE, whose weights can be cut"),
        (["tradeoff", "--sparse", "model=EASE"], "--sparse must be an MRF"),
        (["tradeoff", "--sparse", "l2"], "--sparse must be a model such as"),
    ],
)
def test_what_is_about_mrfs_refuses_other_models(run: Any, command: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        run("paper", command[0], "events.csv", *command[1:])


def test_the_weights_of_ease_can_be_cut_too(run: Any) -> None:
    out = run("paper", "lowrank", "events.csv", "--heldout", "30", "--model", "EASE: l2=10", "--ranks", "9",
              "--metrics", METRICS)  # fmt: skip
    assert re.findall(r"^(full rank|rank \d+) ", out, re.MULTILINE) == ["full rank", "rank 9"]


def test_lowrank_says_what_is_lost(run: Any) -> None:
    out = run("paper", "lowrank", "events.csv", "--heldout", "30", "--ranks", "2,20", "--metrics", METRICS)
    assert re.findall(r"^(full rank|rank \d+) ", out, re.MULTILINE) == ["full rank", "rank 20", "rank 2"]
    assert "strong generalisation, 30 + 30 users held out" in out


def test_reproduce_without_the_data_says_what_to_put_where(run: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        run("paper", "reproduce", "table1", "--folder", str(tmp_path))
    for words in (
        "ml-20m.zip",
        "mrfrec paper datasets prepare netflix --from PATH",
        "train_triplets.txt.zip",
    ):
        assert words in str(error.value)
    with pytest.raises(ParameterError, match="--data must be among msd for table2"):
        run("paper", "reproduce", "table2", "--data", "ml-20m", "--folder", str(tmp_path))
    with pytest.raises(ParameterError, match=r"--model must be among MRF, .* for table1; got 'EASE'"):
        run("paper", "reproduce", "table1", "--model", "ease", "--folder", str(tmp_path))


@pytest.mark.parametrize("given", ["inf", "nan", "2,1e999", "2,", "-inf"])
def test_a_list_of_numbers_holds_finite_numbers(given: str, run: Any) -> None:
    for command, option in (("lowrank", "--ranks"), ("tradeoff", "--sparsity"), ("tradeoff", "--r")):
        with pytest.raises(ParameterError, match=f"{option} must be finite numbers"):
            run("paper", command, "events.csv", f"{option}={given}")


def test_numbers_of_hundreds_of_digits_are_refused(run: Any) -> None:
    many = "9" * 400
    for vary in (f"l2=1,{many}", f"max_neighbors=1,{many}"):
        with pytest.raises(ParameterError, match="--vary"):
            run("tune", "events.csv", "-o", "best.json", "--method", "grid", "--vary", vary)


# ── models as they are typed ──────────────────────────────────────────────────────────────────────


def test_models_are_typed_with_or_without_a_name(tmp_path: Path) -> None:
    assert parse_model("")[:3] == ("MRF", "MRF", {})
    assert parse_model("a b: l2=1,alpha=.5 , center=no")[:3] == (
        "a b", "MRF", {"l2": 1, "alpha": 0.5, "center": False}
    )  # fmt: skip
    assert parse_model("sparsity=dense").parameters == {"sparsity": None}
    assert parse_model("sparsity=auto;dtype=float64").parameters == {"sparsity": "auto", "dtype": "float64"}
    path = tmp_path / "best.json"
    path.write_text('{"parameters": {"l2": 7.0, "sparsity": 0.1}}')
    assert parse_model(str(path))[:3] == ("best", "MRF", {"l2": 7.0, "sparsity": 0.1})
    changed = parse_model(f"dense: {path}, sparsity=dense")[:3]
    assert changed == ("dense", "MRF", {"l2": 7.0, "sparsity": None})


def test_models_are_typed_by_their_kind(tmp_path: Path) -> None:
    assert parse_model("SLIM")[:3] == ("SLIM", "SLIM", {})
    assert parse_model(" mult-vae ")[:3] == ("mult-vae", "MultVAE", {})
    assert parse_model("Item KNN: neighbors=9")[:3] == ("Item KNN", "ItemKNN", {"neighbors": 9})
    assert parse_model("MRF: l2=3")[:3] == ("MRF", "MRF", {"l2": 3})
    assert parse_model("model=SLIM, l1=9")[:3] == ("model=SLIM, l1=9", "SLIM", {"l1": 9})
    assert parse_model("other: model=item-knn, shrink=0")[:3] == ("other", "ItemKNN", {"shrink": 0})
    assert parse_model("slow: l2=3")[:3] == ("slow", "MRF", {"l2": 3})
    tuned, bare = tmp_path / "tuned.json", tmp_path / "bare.json"
    tuned.write_text('{"model": "SLIM", "parameters": {"l1": 7.0, "l2": 1.0}}')
    bare.write_text('{"l1": 2.0}')
    assert parse_model(str(tuned))[:3] == ("tuned", "SLIM", {"l1": 7.0, "l2": 1.0})
    assert parse_model(f"mine: {tuned}, l1=1")[:3] == ("mine", "SLIM", {"l1": 1, "l2": 1.0})
    assert parse_model(f"SLIM: {bare}")[:3] == ("SLIM", "SLIM", {"l1": 2.0})
    assert parse_model("SLIM: l2=5", tuned)[:3] == ("SLIM", "SLIM", {"l1": 7.0, "l2": 5})
    assert parse_model("", tuned)[1:3] == ("SLIM", {"l1": 7.0, "l2": 1.0})
    bare.write_text('{"model": "slim"}')
    assert parse_model(str(bare))[:3] == ("bare", "SLIM", {})
    bare.write_text('{"model": "slim", "l1": 2.0}')
    assert parse_model(str(bare))[:3] == ("bare", "SLIM", {"l1": 2.0})


def test_models_of_one_kind_are_told_apart_by_what_was_typed() -> None:
    typed = ["SLIM: l1=1", "SLIM", "EASE: l2=9", "a: model=EASE"]
    assert [spec.name for spec in parse_models(typed)] == ["SLIM: l1=1", "SLIM", "EASE", "a"]
    assert [spec.name for spec in parse_models(["a: l2=1", "a: l2=2"])] == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SLIN: l1=1", r"of a kind that knows l1, which MRF does not; .* Did you mean SLIM\?"),
        ("SLIN", r"a model such as .*; got 'SLIN'\. Did you mean 'SLIM'\?"),
        ("SLIM l1=1", r"must be a model such as 'SLIM: l1=1'"),
        ("SLIM: alpha=1", r"SLIM has no parameter alpha \(it has l1, l2, .*\)\."),
        ("Popularity: factors=1", r"Popularity has no parameter factors \(it has none\)\."),
        (
            "SLIM: model=WMF",
            "of one kind; got 'SLIM: model=WMF'. It is SLIM by its name and WMF by model=WMF",
        ),
        ("a: mrf.json, model=SLIM", r"It is MRF by mrf\.json and SLIM by model=SLIM"),
        ("a: model=SLIN", r"model must be one of MRF, EASE, .*; got 'SLIN'\. Did you mean SLIM\?"),
        ("wrong.json", r"wrong\.json: SLIM has no parameter dampning"),
        ("odd.json", r"odd\.json is for a model 'SVD'; this mrfrec knows MRF, EASE"),
    ],
)
def test_a_model_that_is_none_is_refused_with_help(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrf.json").write_text('{"model": "MRF", "parameters": {}}')
    (tmp_path / "odd.json").write_text('{"model": "SVD", "parameters": {}}')
    (tmp_path / "wrong.json").write_text('{"model": "SLIM", "parameters": {"dampning": 1}}')
    with pytest.raises(MrfrecError, match=message):
        parse_model(text)
