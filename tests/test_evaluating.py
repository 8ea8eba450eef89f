"""The commands that measure: from typed options to tables, JSON, Markdown, parameters and pictures."""

import json
import re
import shlex
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest

import mrfrec
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
from mrfrec.cli.models import parse_model
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
from mrfrec.models import SLIM, FsSLIM
from mrfrec.models.registry import build, load

from conftest import random_matrix

METRICS = "ndcg@10,recall@5"
TWO_MODELS = "events.csv --heldout 30 --model 'dense: sparsity=dense' --model 'small: sparsity=0.1'"
SMALL: dict[str, dict[str, Any]] = {"WMF": {"factors": 4}}  # so that training takes no time


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
    """Runs a command in the folder, typed as in a shell and with more arguments; gives its stdout."""
    monkeypatch.chdir(folder)

    def typed(command: str, *arguments: str) -> str:
        capsys.readouterr()
        run_command([*shlex.split(command), *arguments], Event())
        return capsys.readouterr().out

    return typed


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────


def test_evaluate_gives_what_python_gives(run: Any) -> None:
    typed = "evaluate events.csv --heldout 30 --model 'l2=2, sparsity=0.3' --format json --metrics"
    found = json.loads(run(typed, METRICS))["models"][0]
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
        out = run(*typed, "--model", "measure=False")
    assert json.loads(out)["models"][0]["plan"].startswith("sparse model (l2=")
    for least, model in (("0", "measure=False"), ("5", "sparsity=0.1, measure=False")):
        run(*typed, "--min-items", least, "--model", model)  # warnings are errors


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
    typed = "evaluate events.csv --metrics hit@10 --split"
    out = run(f"{typed} leave-out --leave 2 --min-items 0 --format json")
    expected = evaluate(MRF(), leave_out(events, 2), "hit@10").mean("hit@10").mean
    assert json.loads(out)["models"][0]["metrics"]["hit@10"]["mean"] == pytest.approx(expected)
    assert "the last 1 of each user" in run(f"{typed} time")


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
        (["--test", "actions.csv", "--half-life", "3d"], "now must be given with --test"),
        (["--event-weights", "view=a"], "event_weights"),
        (["--event-weights", "view=1,view=2,buy=1"], "event_weights must be pairs"),
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


@pytest.mark.parametrize("kind", ["SLIM", "WMF"])
def test_models_are_evaluated_by_name_as_python_does_it(run: Any, kind: str) -> None:
    typed = f"{kind}: " + ", ".join(f"{name}={value}" for name, value in SMALL.get(kind, {}).items())
    machine = ("--threads", "1", "--memory-limit", "1GB", "--metrics", METRICS, "--format", "json")
    found = json.loads(run("evaluate events.csv --heldout 30 --model", typed, *machine))["models"][0]
    split = strong_generalisation(read_events("events.csv"), 30)
    model = build(kind, SMALL.get(kind, {}), {"threads": 1})
    assert (found["name"], found["kind"], found["parameters"]) == (kind, kind, model.parameters)
    expected = evaluate(model, split, METRICS)
    for metric in METRICS.split(","):
        assert found["metrics"][metric]["mean"] == pytest.approx(expected.mean(metric).mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics", "recall@46"], "of at most the 44 items there are"),
        (["--min-items", "400"], "no interactions are left without users with fewer than 400 items"),
        (["--model", "l2"], "--model must be a model such as"),
        (["--model", "lambda=3"], r"parameters must be among l2, .* \(MRF\); got 'lambda'"),
        (["--model", "SLIM", "--model", "WMF"], "--model must be given once; got 'SLIM and WMF'"),
        (["--model", ""], "--model must be a model such as SLIM, or left out; got ''"),
        (["--threads", "-2"], "threads must be a whole number, 1 or more; got -2"),
        (["--model", "nothing.json"], "nothing.json cannot be read: No such file"),
        (["--model", "SLIM", "--device", "cpu"], "got 'cpu'. It is for .*MRF.*MultDAE, MultVAE."),
        (["--shown", "shown.parquet"], "shown must be left out with a split of DATA"),
        (["--test", "later.parquet", "--split", "time"], "split must be left out with --test"),
        (["--leave", "2"], "leave must be left out with --split strong"),
        (["--split", "time", "--heldout", "9"], "heldout must be left out with --split time"),
        (["-o", "events.csv", "--format", "json"], "another file than the input"),
        (["--test", "nothing.csv"], "there is no file nothing.csv"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_fitted(
    run: Any, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(MrfrecError, match=message):
        run("evaluate", "events.csv", *options)


def test_what_the_refusal_of_small_data_advises_works(run: Any, tmp_path: Path) -> None:
    small = tmp_path / "small.csv"
    small.write_text("user,item\n" + "".join(f"{u},{(u + i) % 6}\n" for u in range(20) for i in range(4)))
    with pytest.raises(DataError, match="--min-items") as refused:
        run("evaluate", str(small))
    advice = re.search(r"--split leave-out[^.]*-items \d", str(refused.value))
    assert advice is not None
    out = run("evaluate", str(small), *advice[0].split(), "--metrics", "ndcg@2", "--format", "json")
    assert json.loads(out)["models"][0]["test_users"] == 20


# ── compare ───────────────────────────────────────────────────────────────────────────────────────


def test_compare_gives_what_python_gives_and_the_differences(run: Any) -> None:
    found = json.loads(run(f"compare {TWO_MODELS} --format json --metrics", METRICS + ",coverage@5"))
    split = strong_generalisation(read_events("events.csv"), 30)
    expected = compare({"dense": MRF(sparsity=None), "small": MRF(sparsity=0.1)}, split, METRICS)
    assert [model["name"] for model in found["models"]] == ["dense", "small"]
    pair = expected.paired("small", "ndcg@10")
    difference = found["differences"][0]["metrics"]["ndcg@10"]
    assert difference == pytest.approx({"difference": pair.difference, "error": pair.error, "p": pair.p})
    assert "coverage@5" not in found["differences"][0]["metrics"]


def test_exposure_adds_shares_by_popularity_to_a_comparison(run: Any, folder: Path) -> None:
    typed = f"paper exposure {TWO_MODELS} --plot exposure.svg --format json --metrics"
    found = json.loads(run(typed, METRICS))
    assert [model["name"] for model in found["models"]] == ["dense", "small"]
    assert sum(found["exposure"]["shares"]["recommended by small"]) == pytest.approx(1)
    assert "strong generalisation, 30 + 30 users held out" in (folder / "exposure.svg").read_text()


def test_numbers_of_each_user_go_to_a_file(run: Any, folder: Path) -> None:
    typed = "compare events.csv --heldout 30 --model 'a: l2=1' --model 'b: l2=9' --per-user users.csv"
    run(typed, "--metrics", METRICS + ",coverage@5")
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
    typed = "compare events.csv --heldout 30 --model 'MRF: l2=3' --model popularity --device cpu --metrics"
    out = run(typed, METRICS)
    for name in ("MRF", "popularity"):
        assert re.search(rf"^{name} +0\.", out, re.MULTILINE)
    assert "popularity: Popularity, default parameters" in out
    assert "MRF: MRF, l2=3. Fitted: dense model" in out
    with pytest.raises(ParameterError, match="--device must be left out with SLIM, Popularity"):
        run("compare", "events.csv", "--model", "SLIM", "--model", "Popularity", "--device", "cpu")


# ── tune, and what takes its parameters ───────────────────────────────────────────────────────────


def test_tune_writes_what_fit_evaluate_and_compare_take(run: Any, folder: Path) -> None:
    typed = "tune events.csv --heldout 30 --metric ndcg@10 --method grid -o best.json --study study.jsonl"
    varied = "--vary alpha=0.5,1 --vary l2=1,4 --vary sparsity=0.2 --vary r=0,0.5"
    found = json.loads(run(f"{typed} {varied} --plot tuned.png --format json"))
    tried = [trial["parameters"] for trial in found["trials"]]
    points = grid(measure=[False], sparsity=[0.2], r=[0.0, 0.5], alpha=[0.5, 1.0], l2=[1.0, 4.0])
    assert tried[:8] == [MRF(**point).parameters for point in points]
    assert {point["l2"] for point in tried[8:]} >= {16.0} or found["best"]["l2"] != 4.0
    best = max(found["trials"], key=lambda trial: trial["value"] or 0.0)
    assert json.loads((folder / "best.json").read_text())["parameters"] == best["parameters"]
    assert (folder / "tuned.png").exists()
    run("fit", "events.csv", "-o", "tuned.mrf", "--params", "best.json", "--alpha", "0.25")
    parameters = load(folder / "tuned.mrf").parameters
    assert parameters == {**parameters, **best["parameters"], "alpha": 0.25}
    shown = run("evaluate", "events.csv", "--heldout", "30", "--model", "best.json", "--metrics", METRICS)
    assert re.search(r"^best +0\.", shown, re.MULTILINE)


def test_tune_finds_the_parameters_of_any_model_for_fit(run: Any, folder: Path) -> None:
    typed = "tune events.csv --heldout 30 --metric ndcg@10 --model 'FsSLIM: l1=0.5' --vary neighbors=5,20"
    found = json.loads(run(f"{typed} --method grid -o slim.json --format json"))
    tried = [trial["parameters"] for trial in found["trials"]]
    split = strong_generalisation(read_events("events.csv"), 30)
    assert tried[:6] == [
        FsSLIM(l1=0.5, neighbors=neighbors, l2=l2).parameters
        for neighbors in (5, 20)
        for l2 in ridges(split, 0.0, [0.003, 0.03, 0.3])
    ]
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
    with pytest.raises(ParameterError, match="of one kind, not FsSLIM and WMF"):
        run("fit", "events.csv", "-o", "no.mrf", "--params", "slim.json", "--model", "WMF")


def test_result_files_have_all_parameters_and_the_version(run: Any, folder: Path) -> None:
    """So that they mean the same if a default changes."""
    few = "events.csv --heldout 30"
    found = {
        "tune": run(f"tune {few} --metric ndcg@10 --model 'alpha=1' --vary l2=1,4 -o all.json --format json"),
        "evaluate": run(f"evaluate {few} --metrics ndcg@10 --model SLIM --format json"),
        "tradeoff": run(f"paper tradeoff {few} --metrics ndcg@10 --sparsity 0.3 --r 0 --format json"),
        "lowrank": run(f"paper lowrank {few} --metrics ndcg@10 --ranks 2 --format json"),
    }
    pages = {name: json.loads(text) for name, text in found.items()}
    best = json.loads((folder / "all.json").read_text())
    assert {page["mrfrec"] for page in (*pages.values(), best)} == {mrfrec.__version__}
    for point in (best["parameters"], pages["tune"]["best"], pages["tune"]["trials"][0]["parameters"]):
        assert point.keys() == MRF().parameters.keys()
    assert (best["parameters"]["alpha"], best["parameters"]["max_neighbors"]) == (1.0, 1000)
    assert pages["evaluate"]["models"][0]["parameters"] == SLIM().parameters
    for name in ("tradeoff", "lowrank"):
        assert pages[name]["models"][0]["parameters"] == MRF.paper(sparsity=None).parameters
    assert pages["lowrank"]["models"][0]["values"]["l2"] == 6.0


def test_tradeoff_takes_files_of_tune(run: Any, folder: Path) -> None:
    tuned = MRF(alpha=1.0, l2=2.0, user_weight=0.5, sparsity=0.2).parameters
    (folder / "whole.json").write_text(json.dumps({"model": "MRF", "parameters": tuned}))
    typed = "paper tradeoff events.csv --heldout 30 --metrics ndcg@10 --sparsity 0.3 --r 0 --format json"
    for page in (
        json.loads(run(f"{typed} --dense whole.json --sparse whole.json")),
        json.loads(run(f"{typed} --preset paper --dense whole.json --sparse whole.json")),
    ):
        dense, sparse = (model["parameters"] for model in page["models"])
        assert dense == {**tuned, "sparsity": None}
        assert sparse == {**tuned, "sparsity": 0.3}


def test_typed_sparsity_takes_the_place_of_a_threshold_in_the_file(run: Any, folder: Path) -> None:
    (folder / "threshold.json").write_text('{"parameters": {"threshold": 0.2, "l2": 3}}')
    run("fit", "events.csv", "-o", "typed.mrf", "--params", "threshold.json", "--sparsity", "0.3")
    parameters = load(folder / "typed.mrf").parameters
    assert (parameters["threshold"], parameters["sparsity"], parameters["l2"]) == (None, 0.3, 3.0)


@pytest.mark.parametrize(
    "command", ["compare missing.csv --model MRF", "fit events.csv -o w.mrf --user-column nobody"]
)
def test_a_missing_library_is_told_before_the_data_is_read(
    run: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    with pytest.raises(MissingLibraryError, match=r"pip install \"mrfrec\[wmf\]\""):
        run(f"{command} --model WMF")


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
    with pytest.raises(ParameterError, match="another one than --study"):
        run("tune", "events.csv", "-o", "same.json", "--study", "same.json", *small)


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
def test_options_of_files_are_refused_with_a_data_set(run: Any, command: tuple[str, ...]) -> None:
    with pytest.raises(ParameterError, match="min_value must be left out with the data set debian"):
        run(*command, "debian", "--min-value", "4")
    with pytest.raises(ParameterError, match="min_users must be left out with the data set ml-20m"):
        run(*command, "ml-20m", "--min-users", "4")


def test_a_model_is_fitted_to_a_data_set_by_name(run: Any, folder: Path) -> None:
    run("fit", "debian", "-o", "popular.mrf", "--model", "Popularity", "--min-users", "300")
    data = datasets.load("debian").filtered(min_users=300)
    model = load(folder / "popular.mrf")
    assert list(model.items_) == list(data.items)
    assert list(model.titles_ or []) == list(data.titles or [""])
    assert model.popularity_.tolist() == data.popularity.tolist()
    with pytest.raises(DataError, match=r"MovieLens 20M is not prepared: there is no none\Wml-20m"):
        run("fit", "ml-20m", "-o", "popular.mrf", "--folder", "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "alpha=half"], "alpha must be between 0 and 1; got 'half'"),
        (["--vary", "r=0.5"], "vary must be without r, which belongs to sparse models"),
        (["--metric", "ndcg@10,recall@10"], "metric must be"),
        (["--study", "nowhere/study.jsonl"], "must be in a folder that exists"),
        (["--plot", "a.gif"], r"plot must be a name that ends in \.png"),
        (["--model", "SLIM", "--vary", "l1"], "--vary must be PARAMETER=VALUE"),
        (["--model", "SLIM", "--vary", "pases=1"], "vary must be of parameters of SLIM"),
        (["--model", "SLIM", "--vary", "l1=1", "--vary", "l1=2"], "once for each parameter"),
        (["--model", "SLIM: l1=1", "--vary", "l1=2"], "vary must be of parameters of SLIM that are not"),
        (["--vary", f"l2=1,{'9' * 400}"], "l2 must be a finite number"),
        (["--model", "SLIM", "--device", "cpu"], "--device must be left out with SLIM"),
    ],
)
def test_tune_refuses_what_makes_no_sense(run: Any, options: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        run("tune", "events.csv", "--metric", "ndcg@10", "--heldout", "30", "-o", "no.json", *options)


# ── trade-off, low rank, reproduction ─────────────────────────────────────────────────────────────


def test_tradeoff_has_a_row_for_each_level_and_r_and_the_dense_model(run: Any, folder: Path) -> None:
    typed = f"paper tradeoff events.csv --heldout 30 --metrics {METRICS}"
    levels = "--sparsity 0.1,0.3 --r 0,0.5 --dense l2=2 --sparse l2=1"
    run(f"{typed} {levels} --plot tradeoff.png -o tradeoff.md")
    rows = re.findall(r"^\| (.*?) \|", (folder / "tradeoff.md").read_text(), re.MULTILINE)
    assert rows[2:] == ["dense", "30 %, r = 0", "30 %, r = 0.5", "10 %, r = 0", "10 %, r = 0.5"]
    assert (folder / "tradeoff.png").exists()
    assert "dense" not in run(f"{typed} --sparsity 0.3 --r 0 --dense none")


def test_tradeoff_has_the_settings_of_the_paper_as_a_preset(run: Any) -> None:
    typed = f"paper tradeoff events.csv --heldout 30 --metrics {METRICS} --sparsity 0.3 --r 0"
    page = json.loads(run(f"{typed} --preset paper --format json"))
    dense, sparse = (model["parameters"] for model in page["models"])
    assert dense == MRF.paper(l2=3.0, sparsity=None).parameters
    assert sparse == MRF.paper(l2=1.0, sparsity=0.3).parameters
    assert page["ties"] == "index"
    shown = run(f"{typed} --preset paper --ties popularity --dense l2=6")
    assert "ties: by popularity" in shown
    assert re.search(r"^dense: l2=6, alpha=0.75, .*^sparse: l2=1, alpha=0.75, ", shown, re.M | re.S)
    assert json.loads(run(f"{typed} --format json"))["ties"] == "popularity"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["tradeoff", "--dense", "EASE"], "must be an MRF"),
        (["tradeoff", "--sparse", "l2=-1", "--heldout", "20"], "l2 must be a finite number"),
        (["lowrank", "--model", "SLIM"], "--model must be an MRF, EASE or EDLAE, whose weights can be cut"),
        (["lowrank", "--ranks", "2,x"], "--ranks must be numbers"),
        (["lowrank", "--ranks", "inf"], "--ranks must be a whole number"),
        (["lowrank", "--ranks", "2,nan"], "--ranks must be a whole number"),
    ],
)
def test_what_is_about_mrfs_refuses_other_models(run: Any, command: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        run("paper", command[0], "events.csv", *command[1:])


def test_lowrank_says_what_is_lost(run: Any) -> None:
    typed = f"paper lowrank events.csv --heldout 30 --ranks 2,20 --metrics {METRICS} --plot lowrank.svg"
    out = run(typed)
    assert Path("lowrank.svg").exists()
    assert re.findall(r"^(full rank|rank \d+) ", out, re.MULTILINE) == ["full rank", "rank 20", "rank 2"]
    assert "strong generalisation, 30 + 30 users held out" in out


# ── models as they are typed ──────────────────────────────────────────────────────────────────────


def test_models_are_typed_with_or_without_a_name(tmp_path: Path) -> None:
    assert parse_model("")[:3] == ("MRF", "MRF", {})
    assert parse_model("a b: l2=1,alpha=.5 , center=no")[:3] == (
        "a b", "MRF", {"l2": 1, "alpha": 0.5, "center": False}
    )  # fmt: skip
    assert parse_model("sparsity=dense").parameters == {"sparsity": None}
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
    tuned = tmp_path / "tuned.json"
    tuned.write_text('{"model": "SLIM", "parameters": {"l1": 7.0, "l2": 1.0}}')
    assert parse_model(str(tuned))[:3] == ("tuned", "SLIM", {"l1": 7.0, "l2": 1.0})
    assert parse_model(f"mine: {tuned}, l1=1")[:3] == ("mine", "SLIM", {"l1": 1, "l2": 1.0})
    assert parse_model("SLIM: l2=5", tuned)[:3] == ("SLIM", "SLIM", {"l1": 7.0, "l2": 5})
    assert parse_model("", tuned)[1:3] == ("SLIM", {"l1": 7.0, "l2": 1.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SLIN", r"a model such as .*; got 'SLIN'\. Did you mean 'SLIM'\?"),
        ("SLIM l1=1", "must be a model such as 'SLIM: l1=1'"),
        ("SLIM: model=WMF", "of one kind, not SLIM and WMF"),
        ("a: mrf.json, model=SLIM", "of one kind, not MRF and SLIM"),
        ("a: model=SLIN", r"model must be one of MRF, EASE, .*; got 'SLIN'"),
        ("odd.json", "model must be one of MRF, EASE, .*; got 'SVD'"),
    ],
)
def test_a_model_that_is_none_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrf.json").write_text('{"model": "MRF", "parameters": {}}')
    (tmp_path / "odd.json").write_text('{"model": "SVD", "parameters": {}}')
    with pytest.raises(MrfrecError, match=message):
        parse_model(text)
