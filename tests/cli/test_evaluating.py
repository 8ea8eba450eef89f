"""The commands that measure: from typed options to tables, JSON, Markdown, parameters and pictures."""

import json
import re
import shlex
from collections.abc import Callable
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
    Interactions,
    MrfrecError,
    MrfrecWarning,
    ParameterError,
    datasets,
    read_interactions,
)
from mrfrec.cli.app import run as run_command
from mrfrec.cli.named import parse_model
from mrfrec.evaluation import (
    Split,
    at_time,
    compare,
    evaluate,
    given,
    last,
    leave_out,
    strong_generalisation,
    tune,
)
from mrfrec.models import EASE, ItemKNN, Popularity
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load

from matrices import random_matrix

# The ratings of events.csv count as likes where no test says otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:column 'rating'")

METRICS = "ndcg@10,recall@5"
TWO_MODELS = "events.csv --heldout 30 --model 'dense: sparsity=dense' --model 'small: sparsity=0.1'"


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


def events(*, values: bool = False) -> Interactions:
    return read_interactions("events.csv", binary=not values)


def strong() -> Split:
    return strong_generalisation(events(), 30)


def at_noon(min_items: int) -> Split:
    return at_time(events().filtered(min_items=min_items), "1970-01-10 12:00")


def as_given(targets: str, *shown: str) -> Split:
    return given(*(read_interactions(f"{name}.parquet") for name in ("train", targets, *shown)))


@pytest.mark.parametrize(
    ("typed", "split", "model"),
    [
        ("events.csv --heldout 30 --model 'l2=2, sparsity=0.3'", strong, MRF(l2=2.0, sparsity=0.3)),
        ("events.csv --heldout 30 --model EASE --threads 1 --memory-limit 1GB", strong, EASE()),
        ("events.csv --heldout 30 --model 'ItemKNN: neighbors=4' --threads 1", strong, ItemKNN(neighbors=4)),
        ("train.parquet --test later.parquet", lambda: as_given("later"), MRF()),
        ("train.parquet --test test.parquet --shown shown.parquet", lambda: as_given("test", "shown"), MRF()),
        ("events.csv --split leave-out --leave 2 --min-items 0", lambda: leave_out(events(), 2), MRF()),
        ("events.csv", lambda: at_time(events()), MRF()),
        ("events.csv --split time --at .3", lambda: at_time(events(), 0.3), MRF()),
        ("events.csv --at 1970-01-10T12:00 --min-items 9", lambda: at_noon(9), MRF()),
        ("events.csv --split time --time-column time --at 1970-01-10T12:00", lambda: at_noon(0), MRF()),
        ("events.csv --split last --min-items 0", lambda: last(events()), MRF()),
        ("events.csv --split last --leave 2", lambda: last(events().filtered(min_items=5), 2), MRF()),
        ("events.csv --heldout 30 --time-column time --since 1970-01-01", strong, MRF()),
        (
            "events.csv --split leave-out --values --min-items 0",
            lambda: leave_out(events(values=True)),
            MRF(),
        ),
        ("events.csv --values --heldout 9", lambda: strong_generalisation(events(values=True), 9), MRF()),
    ],
)
def test_evaluate_gives_what_python_gives(
    run: Any, typed: str, split: Callable[[], Split], model: Recommender
) -> None:
    page = json.loads(run(f"evaluate {typed} --metrics {METRICS} --format json"))
    (found, popular), made = page["models"], split()
    assert page["mrfrec"] == mrfrec.__version__
    values = {1, 2, 3, 4, 5} if "--values" in typed else {1}
    assert set(made.training.matrix.data) == set(made.test.shown.data) == values
    assert set(made.test.targets.data) == {1}
    expected = evaluate(model, made, METRICS)
    for metric, mean in ((name, expected.mean(name)) for name in METRICS.split(",")):
        assert found["metrics"][metric] == pytest.approx({"mean": mean.mean, "error": mean.error})
    assert (found["kind"], found["parameters"]) == (type(model).__name__, model.parameters)
    assert (popular["name"], popular["kind"]) == ("most popular", "Popularity")
    assert found["test_users"] == len(made.test)
    assert found["seconds"]["training"] > 0


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        (
            "events.csv --at 1970-01-10",
            "split: cut at 1970-01-10 00:00; {} events before; .* asked about what",
        ),
        ("train.parquet", "split: strong generalisation, 9 [+] 9 users held out; "),
        ("events.csv --heldout 30", "split: strong generalisation, 30 [+] 30 users held out; "),
        ("events.csv --split leave-out", "split: 1 random items of each user left out; "),
    ],
)
def test_the_first_line_says_how_the_data_is_split(
    run: Any, typed: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = int((pl.read_csv("events.csv")["time"] < 9 * 86400).sum())
    for command in (
        "evaluate --model Popularity --metrics ndcg@5",
        "compare --model ItemKNN --model Popularity --metrics ndcg@5",
        "tune -o best.json --model ItemKNN --vary neighbors=5,6 --trials 2 --metric ndcg@5",
    ):
        capsys.readouterr()
        run_command([*command.split(), *shlex.split(typed)], Event())
        lines = capsys.readouterr().err.splitlines()
        assert re.match("mrfrec: " + first.format(f"{before:,}"), lines[0])


def test_the_shell_can_leave_times_unread(run: Any) -> None:
    typed = f"evaluate events.csv --model Popularity --metrics {METRICS}"
    assert "split: cut at" in run(typed)
    assert "split: strong generalisation" in run(f"{typed} --time-column no")


def test_both_situations_are_reported_apart(run: Any, folder: Path) -> None:
    """In tables, as JSON, and for each user; also differences."""
    user = np.repeat(np.arange(3000), 8)
    rng = np.random.default_rng(8)
    item = np.concatenate([rng.choice(30, 8, replace=False) for _ in range(3000)])
    latest = np.where(np.arange(3000) % 5, 1000, 1500)
    start = np.repeat(rng.integers(latest - 1000, latest), 8)
    table = pl.DataFrame(
        {"user": user, "item": item, "time": start + rng.integers(0, 50, len(user)) * (1 + 9 * (user % 2))}
    )
    table = table.vstack(table[:1].with_columns(item=99, time=2000).cast(table.schema))
    table.write_csv(folder / "visits.csv")
    typed = f"compare visits.csv --model ItemKNN --model Popularity --metrics {METRICS},coverage@5"
    page = json.loads(run(f"{typed} --format json --per-user users.csv"))
    split = at_time("visits.csv")
    found = compare({"ItemKNN": ItemKNN(), "Popularity": Popularity()}, split, METRICS)
    users = pl.read_csv("users.csv")
    assert users.columns == ["model", "user", "situation", *METRICS.split(",")]
    assert set(users["situation"]) == {"return", "visit"}
    (difference,) = page["differences"]
    for situation, count in found["ItemKNN"].situations.items():
        some = users.filter(pl.col("situation") == situation)
        assert len(some) == 2 * count
        for model in page["models"]:
            mean = some.filter(pl.col("model") == model["name"])["ndcg@10"].mean()
            apart = model["situations"][situation]
            assert apart["users"] == count
            assert list(apart["metrics"]) == METRICS.split(",")
            assert apart["metrics"]["ndcg@10"]["mean"] == pytest.approx(mean)
            expected = found[model["name"]].mean("ndcg@10", situation)
            assert apart["metrics"]["ndcg@10"] == pytest.approx(expected._asdict())
        pair = found.paired("Popularity", "ndcg@10", situation=situation)
        assert difference["situations"][situation]["ndcg@10"] == pytest.approx(pair._asdict())
    assert page["models"][0]["new_items"] == 1
    out = run(typed)
    sizes = found["ItemKNN"].situations
    for title in (f"{sizes['return']} users who come back", f"{sizes['visit']} users in a visit"):
        assert re.search(rf"^{title}\nmodel +nDCG@10 +Recall@5\nItemKNN", out, re.MULTILINE)
        assert f"Difference from ItemKNN, user by user: {title}" in out
    assert "1 item new since the cut, which no model knows: " in out


def test_several_cuts_are_rows_of_the_report_and_of_the_numbers_of_users(run: Any) -> None:
    typed = f"compare events.csv --folds 3 --model ItemKNN --model Popularity --metrics {METRICS}"
    page = json.loads(run(f"{typed} --format json --per-user users.csv"))
    models = {"ItemKNN": ItemKNN(), "Popularity": Popularity()}
    expected = compare(models, at_time(events(), folds=3), METRICS)
    pair = expected.paired("Popularity", "ndcg@10")
    assert page["differences"][0]["metrics"]["ndcg@10"] == pytest.approx(pair._asdict())
    (one, _), cuts = page["models"], expected["ItemKNN"].cuts
    assert one["metrics"]["ndcg@10"] == pytest.approx(expected["ItemKNN"].mean("ndcg@10")._asdict())
    assert [cut["split"] for cut in one["cuts"]] == [cut.split for cut in cuts]
    users = pl.read_csv("users.csv").filter(pl.col("model") == "ItemKNN")
    assert users.columns == ["model", "cut", "user", "situation", *METRICS.split(",")]
    assert users["ndcg@10"].to_list() == pytest.approx(expected["ItemKNN"].per_user("ndcg@10").tolist())
    assert users["cut"].n_unique() == 3
    out = run(f"evaluate events.csv --folds 3 --model ItemKNN --metrics {METRICS}")
    assert re.search(r"^At each cut\ncut +users +model +nDCG@10 +Recall@5\n", out, re.MULTILINE)
    assert len(re.findall(r"^\d{4}-\d\d-\d\d .* most popular +0\.", out, re.MULTILINE)) == 3


def test_models_and_their_plans_are_printed_and_the_device_is_for_those_that_have_one(run: Any) -> None:
    typed = "events.csv --heldout 30 --metrics ndcg@10 --device cpu"
    assert "Fitted: dense model (l2=" in run(f"evaluate {typed}")
    out = run(f"compare {typed} --model 'MRF: l2=3' --model 'few: sparsity=0.3' --model popularity")
    for name in ("MRF", "few", "popularity"):
        assert re.search(rf"^{name} +0\.", out, re.MULTILINE)
    assert "popularity: Popularity, default parameters" in out
    assert "MRF: MRF, l2=3. Fitted: dense model" in out
    assert "few: MRF, sparsity=0.3. Fitted: sparse model (l2=" in out
    assert out.count("Fitted:") == 2
    out = run("tune events.csv -o best.json --vary l2=1,2 --trials 2")
    assert re.search(r"The best of \d+ points tried: dense model \(l2=", out)
    assert json.loads(Path("best.json").read_text())["tuned"]["plan"].startswith("dense model (l2=")


def test_weights_of_events_are_the_same_in_fit_evaluate_and_tune(run: Any, folder: Path) -> None:
    rows = pl.read_csv("events.csv").with_row_index("place")
    action = pl.when(pl.col("place") % 3 == 0).then(pl.lit("buy")).otherwise(pl.lit("view"))
    rows = rows.select("user", "item", action=action, time=pl.col("place") * 3600)
    rows.write_csv(folder / "actions.csv")
    typed = "actions.csv --event-weights view=0.2,buy=1 --window 300d --since 1970-01-03"
    weights = {"view": 0.2, "buy": 1}
    named: dict[str, Any] = {"event_weights": weights, "window": "300d", "since": "1970-01-03"}
    run(f"fit {typed} -o actions.mrf")
    assert load("actions.mrf").fitted_.fingerprint == read_interactions("actions.csv", **named).fingerprint
    split = strong_generalisation(read_interactions("actions.csv", **named), 15, min_items=0)
    shared = f"{typed} --min-items 0 --heldout 15 --format json"
    page = json.loads(run(f"evaluate {shared} --metrics ndcg@10"))
    expected = evaluate(MRF(), split, "ndcg@10").mean("ndcg@10").mean
    assert page["models"][0]["metrics"]["ndcg@10"]["mean"] == pytest.approx(expected)
    run(f"tune {shared} -o b.json --model ItemKNN --trials 2 --storage trials.journal")
    assert "ItemKNN" in Path("b.json").read_text()
    for options, message in (
        ("--test actions.csv --window 3d", "now must be given with --test"),
        ("--event-weights view=a", "event_weights"),
        ("--event-weights view=1,view=2,buy=1", "event_weights must be pairs"),
    ):
        with pytest.raises(MrfrecError, match=message):
            run(f"evaluate actions.csv {options}")


def test_results_go_to_files_by_their_names(run: Any, folder: Path) -> None:
    command = ("evaluate", "events.csv", "--heldout", "20", "--metrics", METRICS, "-o")
    for name in ("out.json", "out.md", "out.txt"):
        assert run(*command, name) == ""
    assert json.loads((folder / "out.json").read_text())["models"]
    assert "| model | nDCG@10 | Recall@5 | training |" in (folder / "out.md").read_text()
    assert re.search(r"^model +nDCG@10", (folder / "out.txt").read_text(), re.MULTILINE)
    with pytest.raises(ParameterError, match=r"--output must be a name that ends in \.json, \.md, \.txt"):
        run(*command, "out.pdf")


def test_lists_of_others_trained_on_the_written_split_are_compared(run: Any, folder: Path) -> None:
    """A most-popular list, made from what --write-split writes, by two roads."""
    typed = "events.csv --heldout 30"
    run(f"evaluate {typed} --write-split parts")
    train, shown = (pl.read_parquet(folder / "parts" / f"{name}.parquet") for name in ("train", "shown"))
    shown = shown.select("user", "item")
    best = train.group_by("item").len("users").sort("users", "item", descending=[True, False])
    lists = shown.select(pl.col("user").unique()).join(best.select("item", score="users"), how="cross")
    lists = lists.join(shown, ["user", "item"], how="anti")
    lists.write_csv(folder / "lists.csv")
    lists.sort("user", "score", descending=[False, True]).select("user", "item").write_parquet("rows.parquet")
    more = "--recommendations lists.csv --recommendations 'by rows: rows.parquet' --per-user users.csv"
    page = json.loads(run(f"evaluate {typed} --model Popularity --metrics {METRICS} --format json {more}"))
    popular, *others = page["models"]
    assert [each["name"] for each in others] == ["lists", "by rows"]
    for each, difference in zip(others, page["differences"], strict=True):
        for metric, mean in popular["metrics"].items():
            assert each["metrics"][metric] == pytest.approx(mean)
        assert (each["kind"], each["lists"]["users_without_list"]) == ("lists", 0)
        assert difference["against"] == "Popularity"
        assert difference["metrics"]["ndcg@10"] == {"difference": 0, "error": 0, "p": 1}
    assert len(pl.read_csv("users.csv")) == 3 * popular["test_users"]
    lists.vstack(shown.with_columns(score=pl.lit(9999, pl.UInt32))).write_csv(folder / "seen.csv")
    models = "--model Popularity --model ItemKNN --recommendations seen.csv"
    with pytest.warns(MrfrecWarning, match=r"seen\.csv: .* already seen, each a miss"):
        out = run(f"compare {typed} --metrics ndcg@10 {models}")
    assert re.search(
        r"seen: lists in the order of column 'score', highest first; \d+ places with an item", out
    )
    assert re.search(r"^seen +-0\.\d+ ± 0\.\d+ \(p < 0\.001\)", out, re.MULTILINE)
    out = run(f"compare {typed} --metrics ndcg@10 {models} --drop-seen")
    assert re.search(r"^seen +\+0\.0000 ± 0\.0000 \(p = 1\.000\)", out, re.MULTILINE)


TUNE = "tune events.csv --metric ndcg@10 --heldout 30 -o no.json"
NAMED_TWICE = "--model must be given at least twice, with different names"
REFUSED = {
    "evaluate events.csv --min-items 400": "no interactions are left without users with fewer than 400 items",
    "evaluate events.csv --model l2": "--model must be one of MRF",
    "evaluate events.csv --model EASE --model ItemKNN": "--model must be given once; got 'EASE and ItemKNN'",
    "evaluate events.csv --model ''": "--model must be a model such as EASE, or left out; got ''",
    "evaluate events.csv --model nothing.json": "nothing.json cannot be read: No such file",
    "evaluate events.csv --model ItemKNN --device cpu": "got 'cpu'. It is for .*MRF.*EDLAE.",
    "evaluate events.csv --shown shown.parquet": "shown must be left out with a split of DATA",
    "evaluate events.csv --test later.parquet --split time": "split must be left out with --test",
    "evaluate events.csv --test later.parquet --at 0.2": "at must be left out with --test",
    "evaluate events.csv --leave 2": "leave must be left out with --split time",
    "evaluate train.parquet --leave 2": "leave must be left out with --split strong",
    "evaluate events.csv --split time --heldout 9": "heldout must be left out with --split time",
    "evaluate events.csv --split last --at 0.2": "at must be left out with --split last",
    "evaluate events.csv --heldout 9 --at 0.2": "at must be left out with --split strong",
    "evaluate train.parquet --at 0.2": "which column holds the times?",
    "evaluate train.parquet --split last": "which column holds the times?",
    "evaluate events.csv --split last --folds 3": "folds must be left out with --split last",
    "evaluate events.csv --folds 1": "folds must be from 2 to 10; got 1",
    "evaluate events.csv --folds 3 --write-split f": "folds must be left out with --write-split",
    "evaluate events.csv --folds 3 --recommendations 'a: train.parquet'": "left out with --recommendations",
    "evaluate train.parquet --test later.parquet --folds 3": "folds must be left out with --test",
    f"{TUNE.replace(' --heldout 30', '')} --folds 3": "folds must be left out with mrfrec tune",
    "evaluate events.csv --at 1.5": "at must be a date, a time, or above 0 and below 1; got 1.5",
    "evaluate events.csv --at yesterday": "at must be a date, 2026-11-16, or a time",
    "evaluate events.csv --time-column when": "time must be a column of events.csv",
    "evaluate train.parquet --test later.parquet --time-column t": "time must be a column of train.parquet",
    "evaluate events.csv --value-column rating": r"value must be left out without .*\(--values\); got 'rat",
    "evaluate debian --min-value 4": "min_value must be left out with the data set debian",
    "compare events.csv --model 'a: l2=1'": NAMED_TWICE,
    "compare events.csv --model 'a: l2=1' --model 'a: l2=2'": NAMED_TWICE,
    "compare events.csv --model ItemKNN --model Popularity --device cpu": "left out with ItemKNN, Popularity",
    f"{TUNE} --vary alpha=half": "alpha must be between 0 and 1; got 'half'",
    f"{TUNE} --metric ndcg@10,recall@10": "metric must be",
    f"{TUNE} --storage nowhere/trials.journal": "must be in a folder that exists",
    f"{TUNE} --storage no.json": "another one than --storage",
    f"{TUNE} --model EASE --vary l2": "--vary must be NAME=LOW:HIGH",
    f"{TUNE} --model EASE --vary l2=1 --vary l2=2": "once for each name",
    "evaluate events.csv --drop-seen": "--drop-seen must be left out without --recommendations",
    "evaluate events.csv --recommendations 'MRF: a.csv'": "--recommendations must be different names",
    "evaluate events.csv --recommendations a.csv --recommendations b/a.csv": "must be different names",
    "evaluate events.csv --recommendations nothing.csv": "there is no file nothing.csv",
    "evaluate events.csv --recommendations train.parquet -o train.parquet": "train.parquet",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_wrong_input_is_refused_before_anything_is_fitted(
    run: Any, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(MrfrecError, match=REFUSED[typed]):
        run(typed)


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


def test_compare_gives_what_python_gives_the_differences_and_the_numbers_of_each_user(run: Any) -> None:
    typed = f"compare {TWO_MODELS} --per-user users.csv --format json --metrics {METRICS},coverage@5"
    found, table = json.loads(run(typed)), pl.read_csv("users.csv")
    expected = compare({"dense": MRF(sparsity=None), "small": MRF(sparsity=0.1)}, strong(), METRICS)
    assert [model["name"] for model in found["models"]] == list(expected)
    pair = expected.paired("small", "ndcg@10")
    difference = found["differences"][0]["metrics"]["ndcg@10"]
    assert difference == pytest.approx({"difference": pair.difference, "error": pair.error, "p": pair.p})
    assert "coverage@5" not in found["differences"][0]["metrics"]
    assert table.columns == ["model", "user", *METRICS.split(",")]
    for name, evaluation in expected.items():
        mine = table.filter(pl.col("model") == name)
        assert mine["user"].to_list() == list(evaluation.users)
        assert mine["ndcg@10"].to_list() == pytest.approx(evaluation.per_user("ndcg@10").tolist())


# ── tune, and what takes its parameters ───────────────────────────────────────────────────────────


def test_tune_writes_what_fit_evaluate_and_compare_take(run: Any, folder: Path) -> None:
    typed = "tune events.csv --heldout 30 --metric ndcg@10 --trials 6 -o best.json --storage trials.journal"
    varied = "--vary alpha=0.5:1 --vary l2=1:16:log --vary sparsity=dense,0.2 --vary novelty=no"
    found = json.loads(run(f"{typed} {varied} --plot tuned.png --format json"))
    tried = [trial["parameters"] for trial in found["trials"]]
    assert len(tried) == 6
    assert all(0.5 <= x["alpha"] <= 1 and 1 <= x["l2"] <= 16 for x in tried[1:])
    assert {x["sparsity"] for x in tried[1:]} == {None, 0.2}
    assert {x["novelty"] for x in tried} == {tried[0]["novelty"]}
    best = max(found["trials"], key=lambda trial: trial["value"] or 0.0)
    written = json.loads((folder / "best.json").read_text())
    assert written["parameters"] == best["parameters"] == found["best"]
    assert written["mrfrec"] == found["mrfrec"] == mrfrec.__version__
    assert (folder / "tuned.png").exists()
    space: Any = {
        "alpha": (0.5, 1), "l2": (1, 16, "log"), "sparsity": [None, 0.2], "novelty": None,
    }  # fmt: skip
    same = tune(MRF(), strong(), trials=6, space=space, metric="ndcg@10", seed=98765)
    assert same.best.value == best["value"]
    run("fit", "events.csv", "-o", "tuned.mrf", "--params", "best.json", "--alpha", "0.25")
    parameters = load(folder / "tuned.mrf").parameters
    assert parameters == {**parameters, **best["parameters"], "alpha": 0.25}
    shown = run("evaluate", "events.csv", "--heldout", "30", "--model", "best.json", "--metrics", METRICS)
    assert re.search(r"^best +0\.", shown, re.MULTILINE)


def test_tune_finds_the_parameters_of_any_model_for_fit(run: Any, folder: Path) -> None:
    typed = "tune events.csv --heldout 30 --metric ndcg@10 --model 'ItemKNN: shrink=5' --vary neighbors=5,20"
    found = json.loads(run(f"{typed} --trials 4 -o knn.json --format json"))
    tried = [trial["parameters"] for trial in found["trials"]]
    assert {x["shrink"] for x in tried} == {5}
    assert {x["neighbors"] for x in tried[1:]} <= {5, 20}
    written = json.loads((folder / "knn.json").read_text())
    assert (written["model"], written["parameters"]) == ("ItemKNN", found["best"])
    run("fit events.csv -o knn.mrf --params knn.json --model shrink=2")
    fitted = load(folder / "knn.mrf")
    assert type(fitted).__name__ == "ItemKNN"
    assert fitted.parameters == {**fitted.parameters, **found["best"], "shrink": 2.0}
    with pytest.raises(ParameterError, match="of one kind, not EASE and ItemKNN"):
        run("fit", "events.csv", "-o", "no.mrf", "--params", "knn.json", "--model", "EASE")


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, '{"parameters": {"alhpa": 1}}'])
def test_a_file_that_holds_no_parameters_is_refused(run: Any, content: str) -> None:
    Path("odd.json").write_text(content)
    with pytest.raises(MrfrecError, match=r"is not a file of parameters|Did you mean alpha"):
        run("fit events.csv -o odd.mrf --params odd.json")
    assert not Path("odd.mrf").exists()


@pytest.mark.parametrize("items", [3, 9])
def test_a_handful_of_items_can_be_measured_or_is_refused_before_training(
    run: Any, tmp_path: Path, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "few.csv"
    pairs = [f"{user},i{(user + step) % items}" for user in range(30) for step in (0, 1, 2)[: items - 1]]
    table.write_text("user,item\n" + "\n".join(pairs) + "\n")
    split = ("--split", "leave-out", "--min-items", "0")
    models = ("--model", "MRF", "--model", "Popularity")
    page = json.loads(run("compare", str(table), *split, *models, "--format", "json"))
    assert list(page["models"][0]["metrics"]) == [f"ndcg@{items}", f"recall@{items}"]
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(ParameterError, match=f"of at most the {items} items there are; got 'ndcg@"):
        run("compare", str(table), *split, *models, "--metrics", f"ndcg@{items + 1}")


def test_a_model_is_fitted_to_a_data_set_by_name(run: Any, folder: Path) -> None:
    run("fit", "debian", "-o", "popular.mrf", "--model", "Popularity", "--min-users", "300")
    data = datasets.load("debian").filtered(min_users=300)
    model = load(folder / "popular.mrf")
    assert list(model.items_) == list(data.items)
    assert list(model.titles_ or []) == list(data.titles or [""])
    assert model.popularity_.tolist() == data.popularity.tolist()


# ── models as they are typed ──────────────────────────────────────────────────────────────────────


TYPED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "": ("MRF", "MRF", {}),
    "a b: l2=1,alpha=.5 , offset=no": ("a b", "MRF", {"l2": 1, "alpha": 0.5, "offset": False}),
    "sparsity=dense": ("sparsity=dense", "MRF", {"sparsity": None}),
    "best.json": ("best", "MRF", {"l2": 7.0, "sparsity": 0.1}),
    "dense: best.json, sparsity=dense": ("dense", "MRF", {"l2": 7.0, "sparsity": None}),
    "EASE": ("EASE", "EASE", {}),
    " item-knn ": ("item-knn", "ItemKNN", {}),
    "Item KNN: neighbors=9": ("Item KNN", "ItemKNN", {"neighbors": 9}),
    "MRF: l2=3": ("MRF", "MRF", {"l2": 3}),
    "model=EDLAE, l1=9": ("model=EDLAE, l1=9", "EDLAE", {"l1": 9}),
    "other: model=item-knn, shrink=0": ("other", "ItemKNN", {"shrink": 0}),
    "slow: l2=3": ("slow", "MRF", {"l2": 3}),
    "tuned.json": ("tuned", "EASE", {"l1": 7.0, "l2": 1.0}),
    "mine: tuned.json, l1=1": ("mine", "EASE", {"l1": 1, "l2": 1.0}),
}


def test_models_are_typed_by_kind_name_parameters_and_files_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("best.json").write_text('{"parameters": {"l2": 7.0, "sparsity": 0.1}}')
    tuned = Path("tuned.json")
    tuned.write_text('{"model": "EASE", "parameters": {"l1": 7.0, "l2": 1.0}}')
    assert {text: parse_model(text)[:3] for text in TYPED} == TYPED
    assert parse_model("EASE: l2=5", tuned)[:3] == ("EASE", "EASE", {"l1": 7.0, "l2": 5})
    assert parse_model("", tuned)[1:3] == ("EASE", {"l1": 7.0, "l2": 1.0})
    Path("odd.json").write_text('{"model": "SVD", "parameters": {}}')
    for text, message in {
        "EASY": r"one of MRF, .*; got 'EASY'\. Did you mean 'EASE'\?",
        "EASE l2=1": "must be one of MRF, .*; got 'EASE l2=1'",
        "EASE: model=EDLAE": "of one kind, not EASE and EDLAE",
        "a: tuned.json, model=MRF": "of one kind, not EASE and MRF",
        "a: model=SLIN": r"model must be one of MRF, EASE, .*; got 'SLIN'",
        "odd.json": "model must be one of MRF, EASE, .*; got 'SVD'",
    }.items():
        with pytest.raises(MrfrecError, match=message):
            parse_model(text)
