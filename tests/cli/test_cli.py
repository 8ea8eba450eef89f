"""The command line as people and scripts use it: as a process, through its entry point."""

import contextlib
import csv
import inspect
import io
import json
import logging
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import mrfrec
import mrfrec.cli
from asking import rows_for
from mrfrec.answers.question import Question
from mrfrec.cli import inspecting
from mrfrec.cli.app import application
from mrfrec.io.artifact import describe
from mrfrec.io.databases import redacted
from mrfrec.models.registry import MODELS
from mrfrec.service import ServiceSettings

from queries import fetch

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent / "mrfrec"
LONG_TITLE = "A very " + "long " * 60 + "title"
TITLES = {
    0: "Godfather, The (1972)", 1: "Good, the Bad and the Ugly, The", 2: "Twin", 3: "Twin", 4: "TOY STORY",
    5: "[bold]Markup[/bold] :smile:", 6: "Two\nlines", 7: LONG_TITLE, 8: "Amélie", 9: "映画", 10: "1984",
    12: "\x1b[31mred\x07",
}  # fmt: skip
COLUMNS = ["user", "item", "title", "score", "rank", "source"]


# ── running it ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(json.loads(self.out))


def without_compiling(notes: str) -> str:
    """Leave out what the first test on a machine is told."""
    return re.sub("^mrfrec: compiling for this machine.*\n", "", notes, flags=re.M)


def run(*arguments: object, cwd: Path, code: int = 0) -> Done:
    """Run a command in this process, since there are many to be run."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    log, was = logging.getLogger("mrfrec"), sys.argv
    handlers, level = log.handlers[:], log.level
    signals = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    sys.argv = ["mrfrec", *map(str, arguments)]
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            with pytest.raises(SystemExit) as ended:
                mrfrec.cli.main()
        finally:
            sys.argv, log.handlers = was, handlers
            log.setLevel(level)
            for each, handler in signals.items():
                signal.signal(each, handler)
    for stream in (out, err):
        stream.seek(0)
    found = Done(int(str(ended.value.code or 0)), out.read(), without_compiling(err.read()))
    assert found.code == code, found
    return found


def run_all(cwd: Path, *commands: Sequence[object]) -> list[Done]:
    return [run(*arguments, cwd=cwd) for arguments in commands]


def refusal(done: Done) -> str:
    """The one line with which a command is refused."""
    assert done.out == ""
    assert re.fullmatch(r"mrfrec: .*\n", done.err)
    return done.err.removeprefix("mrfrec: ").rstrip("\n")


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ── data: a shop with texts as ids and titles of all sorts, films with integers and ratings ───────


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with events.csv, shop.mrf and shop-only.mrf, which holds no histories."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    with (folder / "events.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "item_id", "title"])
        for user in range(60):
            for item in range(24):
                if rng.random() < (0.5 if item % 3 == user % 3 else 0.1):
                    title = TITLES.get(item, f"Title {item}") if item != 11 else ""
                    writer.writerow([f"u{user:02d}", f"i{item:02d}", title])
    run("fit", "events.csv", "-o", "shop.mrf", "--histories", cwd=folder)
    run("fit", "events.csv", "-o", "shop-only.mrf", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ratings.csv, movies.csv and movies.mrf; a title that is also a number."""
    folder = tmp_path_factory.mktemp("films")
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((40, 15)) < 0.4)
    ratings = rng.integers(1, 6, len(users))
    pl.DataFrame({"userId": users + 1, "movieId": items * 10, "rating": ratings}).write_csv(
        folder / "ratings.csv"
    )
    titles = ["1984" if i == 3 else f"Film {i}" for i in range(15)]
    pl.DataFrame({"movieId": range(0, 150, 10), "title": titles}).write_csv(folder / "movies.csv")
    titled = ["--items", "movies.csv", "--histories"]
    run("fit", "ratings.csv", "-o", "movies.mrf", "--values", *titled, cwd=folder)
    return folder


def expected(folder: Path, users: object = None, **arguments: Any) -> list[dict[str, Any]]:
    """What the package itself answers."""
    return list(mrfrec.load(folder / "shop.mrf").recommend(users, **arguments).to_dicts())


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The same rows, in the columns that a table has; scores of 32 bits."""
    for rows in (found, wanted):
        rows[:] = [{name: row[name] for name in wanted[0]} for row in rows]
    assert [row | {"score": np.float32(row["score"])} for row in found] == [
        row | {"score": np.float32(row["score"])} for row in wanted
    ]


# ── help ──────────────────────────────────────────────────────────────────────────────────────────


def help_of(*names: str) -> str:
    """The help of a command, from the page that holds the help of all."""
    return PAGE.split(f"\n## {' '.join(['mrfrec', *names])}\n")[1].split("```")[1]


def commands() -> list[str]:
    return re.findall("^## mrfrec (.*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help_with_examples_of_itself(name: str) -> None:
    text = help_of(*name.split())
    assert text.isascii()  # whatever the terminal can show
    examples, options = text.split("Examples:\n")[1].split("\n\n", 1)
    assert all(line.startswith(f"    mrfrec {name}") for line in examples.splitlines())
    for option in re.findall(r"(?<= )--?[a-z][a-z0-9-]*", examples):
        assert re.search(rf"^  (-., )?{option}\b", options, re.MULTILINE), option


def test_the_list_of_commands_has_the_first_sentence_of_each() -> None:
    listed = vars(typer.main.get_command(application(())))["commands"]
    loaded = vars(typer.main.get_command(application()))["commands"]
    sentences = {name: command.help.splitlines()[0] for name, command in listed.items()}
    assert sentences == {name: command.help.splitlines()[0] for name, command in loaded.items()}


def test_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path) == Done(0, f"mrfrec {mrfrec.__version__}\n", "")


def test_every_parameter_of_the_mrf_is_an_option_of_fit_with_its_default() -> None:
    section = help_of("fit")
    shown = {}
    for option in re.split(r"^  --", section, flags=re.MULTILINE)[1:]:
        default = re.search(r"\[default:\s+(\S+)\]", option)
        shown[option.split()[0]] = default and default[1]
    for name, default in mrfrec.MRF.defaults().items():
        if name not in mrfrec.MRF.machine_parameters:
            expected = name if default is True else None if default in (None, False) else str(default)
            expected = str(default) if isinstance(default, float) else expected
            expected = "yes" if name == "measure" else expected  # or no, or a metric
            assert shown[name.replace("_", "-")] == expected, name


def test_every_parameter_of_reading_and_asking_is_an_option_and_help_names_every_model() -> None:
    shown = {
        name: re.findall(r"^  --?([a-z-]+)", help_of(name), re.MULTILINE) for name in ("fit", "recommend")
    }
    for name in inspect.signature(mrfrec.read_interactions).parameters:
        if name not in ("source", "progress"):
            assert {name.replace("_", "-"), f"{name}-column"} & {*shown["fit"]}, name
    assert {name.replace("_", "-") for name in Question.model_fields} <= {*shown["recommend"]}
    assert all(re.search(rf"\b{kind}\b", help_of("fit")) for kind in MODELS)


# ── fit and info ──────────────────────────────────────────────────────────────────────────────────


def test_fit_says_what_it_does_on_stderr_and_leaves_one_file(shop: Path, tmp_path: Path) -> None:
    done = run("fit", shop / "events.csv", "-o", "new.mrf", "--sparsity", "0.3", "--l2", "2", cwd=tmp_path)
    assert done.out == ""
    lines = done.err.splitlines()
    assert all(line.startswith("mrfrec: ") for line in lines)
    assert re.fullmatch(r"mrfrec: 60 users × 24 items, \d+ pairs", lines[0])
    assert lines[1].startswith("mrfrec: sparse model (l2=2, sparsity=0.3, rank=6)")
    assert re.search(r"; memory: .+ in use with the data, up to .+ more, limit .+B$", lines[1])
    assert re.fullmatch(r"mrfrec: fitted MRF in \d+\.\d s; wrote new\.mrf \([\d.]+ KB\)", lines[2])
    assert len(lines) == 3
    assert listing(tmp_path) == ["new.mrf"]
    assert describe(tmp_path / "new.mrf")["parameters"]["l2"] == 2.0


def test_fit_passes_every_option_on(films: Path, tmp_path: Path) -> None:
    numbers = {
        "l2": 3.0, "alpha": 0.5, "max_neighbors": 50, "r": 0.0,
        "user_weight": 0.2, "novelty": 0.2, "rank": 3, "rank_weight": 0.4, "feature_weight": 0.6,
        "order": 0.0, "recency": 0.9,
    }  # fmt: skip
    run(
        "fit", films / "ratings.csv", "-o", "m.mrf", "--user-column", "userId", "--item-column", "movieId",
        "--value-column", "rating", "--values", "--min-value", "2", "--duplicates", "last", "--on-bad=skip",
        *(f"--{name.replace('_', '-')}={x}" for name, x in numbers.items()), "--sparsity", "dense",
        "--half-life", "none", "--mean-constraint", "--no-offset", "--measure", "no", "--dtype", "float64",
        "--threads", "1", "--memory-limit", "2GB", "--items", films / "movies.csv", cwd=tmp_path,
    )  # fmt: skip
    facts = describe(tmp_path / "m.mrf")
    flags: dict[str, Any] = {"mean_constraint": True, "offset": False, "measure": False}
    flags |= {"half_life": None}
    chosen = {"sparsity": None, "dtype": "float64"}
    assert facts["parameters"] == {**numbers, **flags, **chosen}
    assert facts["data"]["binary"] is False
    titles = mrfrec.load(tmp_path / "m.mrf").titles_
    assert titles is not None
    assert titles[3] == "1984"


def test_serve_passes_every_option_on(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "mrfrec.cli.serving.run", lambda models, **options: given.update(options, models=models)
    )
    run(
        "serve", "a=shop.mrf", "b=shop-only.mrf", "--host", "::1", "--port", "81", "--uds", "x.sock",
        "--default", "b", "--split", "a=0.9,b=0.1", "--split-salt", "june", "--no-auth",
        "--copies", "mine", "--keys", "keys.txt", "--rate", "50", "--cors", "https://a.example,https://b.example",
        "--allowed-hosts", "a.example,localhost", "--root-path", "/recs", "--max-body", "9",
        "--max-batch", "8", "--queue", "7", "--drain", "3", "--log-requests", "--log-clients",
        "--log", "off", cwd=shop,
    )  # fmt: skip
    assert given.pop("settings") == ServiceSettings(
        copies="mine", keys="keys.txt", rate=50.0, origins=("https://a.example", "https://b.example"),
        hosts=("a.example", "localhost"), root_path="/recs", max_body=9, max_batch=8, queue=7, drain=3.0,
        log_requests=True, log_clients=True, access_log=False,
    )  # fmt: skip
    assert given == {
        "models": {"a": Path("shop.mrf"), "b": Path("shop-only.mrf")}, "host": "::1", "port": 81,
        "uds": Path("x.sock"), "default": "b", "split": {"a": 0.9, "b": 0.1}, "salt": "june",
        "no_auth": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kind", "changed"),
    [
        (["--model", "EDLAE: l2=9, dropout=0.5", "--l2", "7"], "EDLAE", {"dropout": 0.5, "l2": 7.0}),
        (["--model", "EASE: sparsity=dense", "--sparsity", "0.2"], "EASE", {"sparsity": 0.2}),
        (["--model", "Popularity", "--threads", "1", "--memory-limit", "1GB"], "Popularity", {}),
        (["--model", "alpha=0.5"], "MRF", {"alpha": 0.5}),
    ],
)
def test_fit_learns_any_model_by_name(
    shop: Path, tmp_path: Path, options: list[str], kind: str, changed: dict[str, Any]
) -> None:
    run("fit", shop / "events.csv", "-o", "m.mrf", *options, cwd=tmp_path)
    model = mrfrec.load(tmp_path / "m.mrf")
    usual = {name: x for name, x in model.defaults().items() if name not in model.machine_parameters}
    assert type(model).__name__ == kind
    assert model.parameters == {**usual, **changed}


def test_fit_reads_several_files_without_a_header_and_counts_what_it_skips(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1|x|3\n2|y|4\n1|y|1\n")
    (tmp_path / "b.txt").write_text("3|x|oops\n3|z|2\n|z|2\n")
    done = run(
        "fit", "*.txt", "-o", "m.mrf", "--columns", "user, item, value", "--separator", "|", "--values",
        "--on-bad", "skip",
        cwd=tmp_path,
    )  # fmt: skip
    assert "3 users × 3 items, 4 pairs" in done.err
    assert done.err.count("left out 1 row:") == 2
    (tmp_path / "c.tsv").write_text("user\titem\n1\tx\n2\ty\n2\tx\n")
    done = run("fit", "c.tsv", "-o", "m.mrf", "--separator", "\\t", cwd=tmp_path)
    assert "2 users × 2 items, 3 pairs" in done.err


def test_info_tells_the_facts_for_people_and_for_programs(shop: Path, tmp_path: Path) -> None:
    mrfrec.load(shop / "shop.mrf").save(tmp_path / "m.mrf", include_histories=True, notes={"days": [1, 2]})
    table, facts = run_all(tmp_path, ["info", "m.mrf", "--all"], ["info", "m.mrf", "--format", "json"])
    assert json.loads(facts.out) == describe(tmp_path / "m.mrf")
    assert re.search(r"^notes\.days +2 entries, which --format json shows$", table.out, re.MULTILINE)
    assert re.search(r"^data\.users +60$", table.out, re.MULTILINE)
    assert re.search(r"^histories +True$", table.out, re.MULTILINE)
    assert re.search(r"^file\.format_version +3$", table.out, re.MULTILINE)
    assert (table.err, facts.err) == ("", "")


def test_info_counts_features_and_new_items(shop: Path, tmp_path: Path) -> None:
    rows = [f"i{item:02d},kind {item % 5}" for item in range(26)]
    (tmp_path / "products.csv").write_text("\n".join(["item,kind", *rows]))
    run("fit", shop / "events.csv", "-o", "m.mrf", "--item-features", "products.csv", cwd=tmp_path)
    found = run("info", "m.mrf", cwd=tmp_path).out
    assert re.search(r"^features +5, and 2 new items$", found, re.MULTILINE)


def test_info_and_help_fit_a_screen(shop: Path) -> None:
    assert len(run("info", "shop.mrf", cwd=shop).out.splitlines()) <= 17
    for name in commands():
        shown = CliRunner().invoke(application(), [name, "--help"], terminal_width=100).output
        assert len(shown.splitlines()) <= 50, name


@pytest.mark.slow  # imports every library
def test_doctor_finds_this_machine_well(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert done.err == ""
    assert re.search(rf"^mrfrec +{re.escape(mrfrec.__version__)} in .* ok$", done.out, re.MULTILINE)
    assert re.search(r"^self-test +dense and sparse fit within .* ok$", done.out, re.MULTILINE)
    for extra in ("torch", "matplotlib", "pyarrow"):
        assert re.search(rf"^{extra} +(\d+\.\d+|not installed \(the extra \w+\)).* ok$", done.out, re.M)
    assert re.search(r"^GPU.* (on the CPU|free) +ok$", done.out, re.MULTILINE)
    assert listing(tmp_path) == []


def test_doctor_counts_compiled_functions_after_its_test_has_compiled_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    tested = ("self-test", "", "")
    monkeypatch.setattr(inspecting, "_libraries", dict)

    def test() -> inspecting.Finding:
        compiled.append("f")
        return tested

    monkeypatch.setattr(inspecting, "_self_test", test)
    counted = ("compiled code", "1 functions", "")
    monkeypatch.setattr(inspecting, "_machine_code", lambda: counted if compiled else tested)
    assert list(inspecting.examine())[-2:] == [counted, tested]


def test_doctor_finds_a_library_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('libfoo.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr("mrfrec.cli.inspecting._libraries", lambda: {"matplotlib": "plot"})
    monkeypatch.setattr("mrfrec.engines.devices.devices", list)  # imports PyTorch
    done = run("doctor", cwd=tmp_path, code=2)
    wanted = r"^matplotlib +\d\S+ +cannot be imported: libfoo\.so: no such file$"
    assert re.search(wanted, done.out, re.MULTILINE)
    assert done.err == "mrfrec: something needs attention: see the last column.\n"


# ── for whom ──────────────────────────────────────────────────────────────────────────────────────


def test_users_come_by_id_by_file_and_all_together(shop: Path, tmp_path: Path) -> None:
    ids = ["u07", "u02", "u07"]
    (tmp_path / "users.txt").write_text("\ufeffu07\r\n\r\n  u02\nu07", encoding="utf-8")
    pl.DataFrame({"name": ["x", "y", "z"], "user_id": ids}).write_csv(tmp_path / "users.csv")
    pl.DataFrame({"who": ids, "user_id": [1, 2, 3]}).write_csv(tmp_path / "who.csv")
    base = ["recommend", shop / "shop.mrf", "-k", 3, "--format", "json"]
    ways = (
        ["--user", "u07", "--user=u02", "--user=u07"],
        ["--users", "users.txt"],
        ["--users", "users.csv"],
        ["--users", "who.csv", "--user-column", "who"],
    )
    for done in run_all(tmp_path, *([*base, *way] for way in ways)):  # who is named twice gets one list
        same(done.rows, expected(shop, ids[:2], k=3))
        assert "note: 1 of 3 user ids are repetitions" in done.err
    same(run(*base, "--all", cwd=tmp_path).rows, expected(shop, k=3))


def test_histories_come_in_every_form(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "had.txt").write_text("\ufeffi05\n\n Godfather, The (1972) \r\ni01\n", encoding="utf-8")
    wanted = expected(shop, history=["i05", "i00", "i01"], k=4)
    ways = [
        ["--history", "i05,i00,i01"],
        ["--history", " i05 , i00,,i01,"],
        ["--history", "i05", "--history", "i00", "--history", "i01"],
        ["--history", TITLES[0], "--history", "good, THE bad and the ugly, the", "--history=i05"],
        ["--history", "@had.txt"],
    ]
    commands = [["recommend", shop / "shop-only.mrf", *way, "-k", 4, "--format", "json"] for way in ways]
    for way, done in zip(ways, run_all(tmp_path, *commands), strict=True):
        assert done.rows[0]["user"] == 0, way
        same(done.rows, wanted)


def test_a_history_file_holds_people_the_model_does_not_know(shop: Path, tmp_path: Path) -> None:
    people = pl.DataFrame({"who": [9, None, 9, 4], "what": ["i01", "i05", "i02", "i08"]})
    people.write_csv(tmp_path / "people.log", separator="~")
    (tmp_path / "clicks.csv").write_text("user,item,did\n1,10,view\n1,20,buy\n2,10,buy\n2,30,view\n")
    kinds = ["--event-column", "did"]
    run("fit", "clicks.csv", "-o", "m.mrf", *kinds, "--event-weights", "view=0.1,buy=1", cwd=tmp_path)
    names, end = ["--user-column", "who", "--item-column", "what"], ["-k", 1, "--format", "json"]
    names += ["--input-format", "csv", "--separator", "~", "--on-bad", "skip"]
    texts, weighed = run_all(
        tmp_path,
        ["recommend", shop / "shop-only.mrf", "--history-file", "people.log", *names, *end],
        ["recommend", "m.mrf", "--history-file", "clicks.csv", *kinds, *end],
    )
    same(texts.rows, expected(shop, history={4: ["i08"], 9: ["i01", "i02"]}, k=1))
    assert "left out 1 row: no user id" in texts.err
    histories = {1: {10: 0.1, 20: 1.0}, 2: {10: 1.0, 30: 0.1}}
    same(weighed.rows, mrfrec.load(tmp_path / "m.mrf").recommend(history=histories, k=1).to_dicts())


def test_an_item_may_begin_with_the_sign_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(
        "user,item\n1,@types/node\n1,react\n2,@types/node\n2,react\n3,vue\n3,@types/vue\n4,vue\n4,react\n"
    )
    run("fit", "events.csv", "-o", "m.mrf", cwd=tmp_path)
    for typed, wanted in (("@types/node", {"react"}), ("@types/node,@types/vue", {"react", "vue"})):
        found = ["--history", typed, "-k", len(wanted), "--format", "json"]
        rows = run("recommend", "m.mrf", *found, cwd=tmp_path).rows
        assert {row["item"] for row in rows} == wanted


def test_allow_exclude_and_seen_do_what_they_say(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "sold-out.txt").write_text("i00\nGood, the Bad and the Ugly, The\ngone\n")
    (tmp_path / "nothing.txt").write_text("")
    base = ["recommend", shop / "shop.mrf", "--user", "u05", "-k", 4, "--format", "json"]
    allowed, excluded, seen, all_of_it = run_all(
        tmp_path,
        [*base, "--allow", "i01,i02,i03,i04,i05,i06,i07,i08", "--allow", "i09"],
        [*base, "--exclude", "@sold-out.txt", "--exclude", "i13,title 14,lost"],
        [*base, "--seen"],
        [*base, "--exclude", "@nothing.txt"],
    )
    same(allowed.rows, expected(shop, "u05", k=4, allow=[f"i0{i}" for i in range(1, 10)]))
    same(excluded.rows, expected(shop, "u05", k=4, exclude=["i00", "i01", "i13", "i14"]))
    assert "note: exclude: 2 of 6 items are unknown to the model" in excluded.err
    same(seen.rows, expected(shop, "u05", k=4, exclude_seen=False))
    same(all_of_it.rows, expected(shop, "u05", k=4))


def test_a_table_excludes_items_for_each_user(shop: Path, films: Path, tmp_path: Path) -> None:
    best = {who: [row["item"] for row in expected(shop, who, k=2)] for who in ("u05", "u01")}
    lines = [f"{who},{item}" for who, items in best.items() for item in items]
    (tmp_path / "returned.csv").write_text("\n".join(["user,item", *lines, "u02,i01", "u05,gone"]))
    (tmp_path / "people.csv").write_text("user,item\n7,i01\n8,i01\n")
    first = expected(shop, history=["i01"], k=1)[0]["item"]
    (tmp_path / "not.csv").write_text(f"user,item\n8,{first}\n")
    (tmp_path / "odd.csv").write_text("user,item\nann,20\n")
    model, end = shop / "shop.mrf", ["-k", 4, "--format", "json", "--exclude-file"]
    known, new = run_all(
        tmp_path,
        ["recommend", model, "--user", "u05", "--user", "u01", *end, "returned.csv", "--exclude", "i07"],
        ["recommend", model, "--history-file", "people.csv", *end, "not.csv"],
    )
    same(known.rows, expected(shop, ["u05", "u01"], k=4, exclude={**best, None: ["i07"]}))
    assert "note: returned.csv: 1 of 3 users are not among those asked for; ignored" in known.err
    assert "note: exclude: 1 of 6 items are unknown to the model" in known.err
    same(new.rows, expected(shop, history={7: ["i01"], 8: ["i01"]}, k=4, exclude={8: [first]}))
    for typed, wrong in (
        ([model, "--history", "i01", "--exclude-file", "not.csv"], "is for users by their ids"),
        ([films / "movies.mrf", "--user", 1, "--exclude-file", "odd.csv"], "odd.csv: user ids .* got 'ann'"),
        ([shop / "shop-only.mrf", "--all", "--exclude-file", "not.csv"], "histories"),
        ([model, "--all", "--exclude-file", "not.csv", "-o", "not.csv"], "another file than the input"),
    ):
        assert re.search(wrong, refusal(run("recommend", *typed, cwd=tmp_path, code=2)))


def test_ids_of_another_type_are_told_with_their_file(films: Path, tmp_path: Path) -> None:
    told = refusal(run("recommend", "movies.mrf", "--user", "ann", cwd=films, code=2))
    assert "user ids are integers here; got 'ann'" in told
    for line, wrong in (("1,milk", "'milk'"), ("1,", "row 2")):
        (tmp_path / "people.csv").write_text(f"user,item\n1,10\n{line}\n")
        typed = ["recommend", films / "movies.mrf", "-k", 1, "--history-file", "people.csv"]
        told = refusal(run(*typed, cwd=tmp_path, code=2))
        assert told.startswith("people.csv")
        assert wrong in told


# ── formats ───────────────────────────────────────────────────────────────────────────────────────


def from_csv(text: str) -> list[dict[str, Any]]:
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    return [
        {**row, "title": row["title"] or None, "score": float(row["score"]), "rank": int(row["rank"])}
        for row in rows
    ]


def from_table(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_every_format_has_the_same_rows(shop: Path, tmp_path: Path) -> None:
    who = ["--user", "u05", "--user", "u01"]
    base = ["recommend", shop / "shop.mrf", *who, "-k", "24", "--seen", "--explain"]
    outputs = ["o.parquet", "o.csv", "o.json", "o.jsonl", "o.txt"]
    as_json, as_csv, as_table, *_ = run_all(
        tmp_path,
        [*base, "--format", "json"],
        [*base, "--format", "csv"],
        base,
        *([*base, "-o", output] for output in outputs),
    )
    wanted = expected(shop, ["u05", "u01"], k=24, exclude_seen=False, explain=3)
    assert {row["title"] for row in wanted} >= {None, "Two\nlines", LONG_TITLE, "映画", "\x1b[31mred\x07"}
    assert list(as_json.rows[0]) == [*COLUMNS, "because"]
    same(as_json.rows, wanted)
    same(from_csv(as_csv.out), wanted)
    frame = pl.read_parquet(tmp_path / "o.parquet")
    assert frame.schema["score"] == pl.Float32
    same(frame.with_columns(pl.col("source").cast(pl.String)).to_dicts(), wanted)
    same(from_csv((tmp_path / "o.csv").read_text(encoding="utf-8")), wanted)
    assert (tmp_path / "o.json").read_text(encoding="utf-8") == as_json.out
    lines = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    same([json.loads(line) for line in lines], wanted)
    assert (tmp_path / "o.txt").read_text(encoding="utf-8") == as_table.out
    header, *rows = from_table(as_table.out)
    assert header == [*COLUMNS, "because"]
    assert [row[:2] for row in rows] == [[row["user"], row["item"]] for row in wanted]


def test_similar_has_the_rows_of_python(shop: Path, tmp_path: Path) -> None:
    base = ["similar", shop / "shop.mrf", "toy story", "-k", "6"]
    as_json, as_table, _ = run_all(tmp_path, [*base, "--format", "json"], base, [*base, "-o", "o.csv"])
    wanted = mrfrec.load(shop / "shop.mrf").similar_items("i04", k=6).to_dicts()
    assert len(wanted) == 6
    same(as_json.rows, wanted)
    same(from_csv((tmp_path / "o.csv").read_text(encoding="utf-8")), wanted)
    assert from_table(as_table.out)[0] == ["item", "title", "score", "rank"]


def test_the_rules_of_a_shop_are_options(shop: Path, tmp_path: Path) -> None:
    model = mrfrec.load(shop / "shop.mrf")
    items = [*model.items_]
    table = pl.DataFrame({"item": items, "brand": [f"b{i % 3}" for i in range(len(items))]})
    model.set_items(table.with_columns(margin=pl.Series(range(len(items))) / 10))
    model.save(tmp_path / "shop.mrf")
    options = ["--at-most", "brand=2", "--boost", "add=margin", "--variety", "0.4"]
    (found, explained, shown) = run_all(
        tmp_path,
        ["recommend", "shop.mrf", "--history", "i01", "-k", "5", *options, "--format", "json"],
        [
            "explain",
            "shop.mrf",
            "--history",
            "i01",
            "--item",
            "i05",
            "--boost",
            "add=margin",
            "--format",
            "json",
        ],
        ["explain", "shop.mrf", "--history", "i01", "--item", "i05", "--boost", "add=margin"],
    )
    rules: dict[str, Any] = {"at_most": {"brand": 2}, "boost": {"add": "margin"}, "variety": 0.4}
    wanted = rows_for(model, history=["i01"], k=5, **rules)
    assert [row["item"] for row in found.rows] == [row["item"] for row in wanted]
    parts = model.explain("i05", history=["i01"], boost={"add": "margin"})
    assert explained.rows == parts.to_dicts()
    assert parts["title"][-1] == "(boost)"
    boost, score = from_table(shown.out)[-2:]
    assert (boost[0], score[0]) == ("(boost)", "(score)")
    assert score[-1] == f"{parts['contribution'].sum():.4f}"


def test_explain_adds_up_in_every_format(shop: Path, tmp_path: Path) -> None:
    base = ["explain", shop / "shop.mrf", "--history", "i01,i02,i07", "--item", "Amélie"]
    as_json, as_table, by_user, *_ = run_all(
        tmp_path,
        [*base, "--format", "json"],
        base,
        ["explain", shop / "shop.mrf", "--user", "u05", "--item", "i08", "--format", "json"],
        [*base, "-o", "o.csv"],
        [*base, "--novelty", "0.4", "-o", "rare.json"],
    )
    model = mrfrec.load(shop / "shop.mrf")
    rare = model.explain("i08", history=["i01", "i02", "i07"], novelty=0.4).to_dicts()
    assert json.loads((tmp_path / "rare.json").read_text()) == rare
    wanted = model.explain("i08", history=["i01", "i02", "i07"]).to_dicts()
    assert as_json.rows == wanted
    assert by_user.rows == model.explain("i08", user="u05").to_dicts()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "o.csv").read_text())))
    assert [float(row["contribution"]) for row in rows] == [row["contribution"] for row in wanted]
    assert wanted[-1]["title"] == "(base score)"  # which has a row of its own
    base_row, last = from_table(as_table.out)[-2:]
    assert (base_row[0], last[0]) == ("(base score)", "(score)")
    assert last[-1] == f"{sum(row['contribution'] for row in wanted):.4f}"


def test_no_rows_are_a_result_too(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,item\n1,a\n2,b\n3,c\n")
    (tmp_path / "nobody.txt").write_text("")
    run("fit", "events.csv", "-o", "m.mrf", "--histories", cwd=tmp_path)
    nobody = ["recommend", "m.mrf", "--users", "nobody.txt", "-o"]
    table, as_json, *_ = run_all(
        tmp_path,
        ["similar", "m.mrf", "a"],
        ["similar", "m.mrf", "a", "--format", "json"],
        [*nobody, "r.parquet"],
        [*nobody, "r.json"],
    )
    assert table.out.split() == ["item", "score", "rank"]
    assert as_json.rows == []
    assert table.err == as_json.err == "mrfrec: no item goes with a, says this MRF\n"
    assert pl.read_parquet(tmp_path / "r.parquet").columns == COLUMNS
    assert json.loads((tmp_path / "r.json").read_text()) == []


@pytest.mark.parametrize("command", ["recommend", "similar"])
def test_tables_of_databases_have_the_rows_of_files(shop: Path, tmp_path: Path, command: str) -> None:
    database = f"sqlite:///{tmp_path}/shop.db"
    typed = [command, shop / "shop.mrf", "--all", "-k", 4, "-o"]
    run(*typed, "o.parquet", cwd=tmp_path)
    done = run(*typed, database, "--table", "mine", "--columns", "item=sku", cwd=tmp_path)
    wanted = pl.read_parquet(tmp_path / "o.parquet")
    assert f"wrote {len(wanted)} rows to table mine of {redacted(database)}\n" in done.err
    names = ", ".join(f'"{name}"' for name in wanted.rename({"item": "sku"}).columns)
    found = fetch(database, f"select {names} from mine order by 1, rank")
    assert pl.DataFrame(found, wanted.schema, orient="row").equals(wanted)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


REFUSED = r"""
learn => No such command 'learn'\. See mrfrec --help
fti => No such command 'fti'\. Did you mean 'fit'\? See mrfrec --help
similar shop.mrf i01 --top 3 => --top.* See mrfrec similar --help
fit events.csv => Missing option '-o' / '--output'\. See mrfrec fit --help
similar nope.mrf i01 => there is no model file nope\.mrf\. Relative paths start from /
info events.csv => events\.csv is not a model of mrfrec, or not a whole one
fit events.csv -o prod.csv => --output must be the name of a model, such as shop\.mrf; got 'prod\.csv'
fit '' -o x.mrf => '' names no file to read
fit debian events.csv -o x.mrf => debian is a data set of the package: give it alone
fit events.csv ./events.csv -o x.mrf => events\.csv is the same file as events\.csv: .* Name it once
evaluate events.csv --metrics ndcg@0 => metrics must be such as ndcg@20, over at least 1 item; got 'ndcg@0'
fit nope.csv -o x.mrf => nope\.csv
fit debain -o x.mrf => no file or data set debain\. Did you mean debian\?
evaluate events.csv --cold-items 0.1 => --cold-items must be left out without features.* --item-features
recommend shop.mrf --user u01 -k abc => '-k': 'abc' is not a whole number\. See mrfrec recommend --help
recommend shop.mrf --user u01 --at-most brand => at_most must be pairs such as a=1,b=2
recommend shop.mrf --user u01 --boost times=x => boost must be a mapping with .add. or
recommend shop.mrf --user u01 --variety 2 => variety must be between 0 and 1
recommend shop.mrf --user u01 --novelty x => '--novelty': 'x' is not a number\. See
info shop.mrf --format yaml => '--format': 'yaml' is not one of 'table', 'json'\. See
recommend shop.mrf --all --format csv -o - => ^the file must be .*; got .-.\. Results go to stdout
fit events.csv -o x.mrf --l2 six => l2 must be a finite number, 0 or more, or \"auto\"; got 'six'
fit events.csv -o x.mrf --dtype int8 => '--dtype'.*'int8' is not one of 'float32', 'float64'
fit events.csv -o x.mrf --params '' => \. cannot be read: Is a directory
fit events.csv -o no/x.mrf => ^the file must be in a folder that exists; got 'no/x\.mrf'
recommend shop.mrf => give exactly one of --history, --user, --users, --all, --history-file; got none
recommend shop.mrf --all --history i01 => give exactly one of .*; got --history and --all
explain shop.mrf --item i01 --user u01 --history i02 => exactly one of --history and --user
similar shop.mrf Ameli => no item has the id or the title 'Ameli'\. Did you mean Amélie \[i08\]
recommend shop.mrf --history i01,twin => several items have the title 'twin': i02, i03
recommend shop.mrf --history ' ,' => ' ,' names no item
recommend shop.mrf --history @~nobody/x => ~nobody/x cannot be read: No such file
recommend shop-only.mrf --user u01 => saved without\. Give histories, or save it with
recommend shop.mrf --users no.txt => no\.txt cannot be read: No such
recommend shop.mrf --history @shop.mrf => it is not text in UTF-8
similar shop.mrf i01 --format parquet => --format must be table, json or csv here; got 'parquet'\.$
explain shop.mrf --item i01 --user u01 --format parquet => '--format': 'parquet' is not one of
similar shop.mrf i01 -o x.xlsx => --output must be a name that ends in \.csv, .*; got 'x\.xlsx'
similar shop.mrf i01 -o mysql://u:hunter2@h/d => ^(?!.*hunter2)
similar shop.mrf i01 -o /proc/x.csv => /proc/x\.csv could not be written
recommend shop.mrf --all -o postgresql://u:hunter2@127.0.0.1:1/x --table=t => ^postg(?!.*hunter2).*refused
recommend shop.mrf --all -o x.csv --columns user => --columns must be pairs
similar shop.mrf => give either an item or --all
similar shop.mrf --all => with --all, give -o FILE\.parquet
similar shop.mrf i01 -o sqlite:///x.db --table near => give --all with --table
serve shop.mrf --host 0.0.0.0 => ^keys must be given where others can reach the service, as at 0\.0\.0\.0
serve shop.mrf --port 0 --keys none.txt => none\.txt cannot be read as a file
serve shop.mrf shop.mrf => MODEL must be models with different names
serve shop.mrf --split shop=x => split must be shares above 0
serve => name a model file to serve
serve --new-key a:b => name must be up to 64 letters
serve shop.mrf --new-key web => MODEL must be left out with --new-key; got 'shop\.mrf'
serve shop.mrf --role read => --role must be left out without --new-key
update shop.mrf => nothing to update: give DATA, --item-features or --items
update shop.mrf --items events.csv --again => again must be left out with an update without DATA
update shop.mrf --items events.csv --threads 1 => threads must be left out with an update without DATA
evaluate events.csv --write-split parts --model EASE => model must be left out with --write-split
recommend shop.mrf --all => 60 users are too many for a table: give -o FILE\.csv
"""  # command => pattern of the message


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_wrong_input_is_refused_in_one_line(shop: Path, case: str) -> None:
    before = listing(shop)
    command, message = case.split(" => ")
    assert re.search(message, refusal(run(*shlex.split(command), cwd=shop, code=2)))
    assert listing(shop) == before


def test_a_fit_that_would_not_fit_is_refused_after_the_table_is_read(shop: Path) -> None:
    done = run("fit", "events.csv", "-o", "x.mrf", "--memory-limit", "1KB", cwd=shop, code=2)
    assert re.fullmatch(r"mrfrec: 60 users .*\nmrfrec: the fit needs .* 1\.0 KB is what .*\n", done.err)
    assert not (shop / "x.mrf").exists()


def test_an_argument_that_is_no_text_is_refused_too(shop: Path) -> None:
    done = subprocess.run(
        [str(BIN), "similar", "shop.mrf", b"\xff"], cwd=shop, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode() == "mrfrec: no item has the id or the title '\\udcff'.\n"


def test_running_out_of_memory_is_no_fault_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr("mrfrec.cli.inspecting.describe", fail)
    wanted = r"there is not enough memory \(Unable to allocate 9 GiB\)\. .*--sparsity"
    assert re.match(wanted, refusal(run("info", "shop.mrf", cwd=tmp_path, code=2)))


@pytest.mark.parametrize("place", [0, 3])
def test_debug_adds_the_traceback_wherever_it_stands(shop: Path, place: int) -> None:
    arguments = ["similar", "shop.mrf", "qqqq"]
    arguments.insert(place, "--debug")
    done = run(*arguments, cwd=shop, code=2)
    assert done.out == ""
    assert done.err.startswith("Traceback (most recent call last):\n")
    assert done.err.splitlines()[-1] == "mrfrec: no item has the id or the title 'qqqq'."


def in_a_shell(command: str, cwd: Path, **settings: Any) -> Done:
    environment = os.environ | {"PATH": f"{BIN.parent}:{os.environ['PATH']}"} | settings
    done = subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "command", ["recommend shop.mrf --all", "recommend shop.mrf --history i01", "similar shop.mrf i01"]
)
@pytest.mark.parametrize("name", ["o.csv", "o.json"])
def test_a_table_of_events_is_not_replaced(shop: Path, tmp_path: Path, command: str, name: str) -> None:
    events = "user,item\na,i01\n" if name == "o.csv" else '[{"user": "a", "item": "i01"}]'
    (tmp_path / name).write_text(events)
    done = in_a_shell(f"mrfrec {command} -o {tmp_path / name}", shop)
    assert (done.code, done.out) == (2, "")
    assert "It is a table of user, item. Remove it first" in done.err
    assert (tmp_path / name).read_text() == events


def test_a_full_disk_leaves_the_old_output_and_nothing_else(shop: Path, tmp_path: Path) -> None:
    command, name = "recommend shop.mrf --history i01", "o.parquet"
    (tmp_path / name).write_text("old")
    done = in_a_shell(f"ulimit -f 0; mrfrec {command} -o {tmp_path / name}", shop)
    assert (done.code, done.out) == (2, "")
    # Machine code cannot be kept either: where it cannot be read, this process compiles its own.
    compiled = r"(mrfrec: compiling .*\n)?"
    assert re.fullmatch(compiled + r"mrfrec: .*/o\.\w+ could not be written: .*File too large.*\n", done.err)
    assert listing(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "old"


# ── terminals, pipes, signals ─────────────────────────────────────────────────────────────────────


def on_a_terminal(arguments: Sequence[object], cwd: Path, *, stdout: bool) -> Done:
    """With stderr on a terminal, and stdout on the same one or a pipe."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(BIN), *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=slave if stdout else subprocess.PIPE,
        stderr=slave,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "70"},
    )
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while True:
            seen += os.read(master, 65536)
    out = process.communicate()[0] or b""
    os.close(master)
    return Done(process.returncode, out.decode(), seen.decode().replace("\r\n", "\n"))


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal_and_notes_stay_whole(shop: Path, tmp_path: Path) -> None:
    done = on_a_terminal(["fit", shop / "events.csv", "-o", "m.mrf"], tmp_path, stdout=False)
    assert (done.code, done.out) == (0, "")
    assert "━" in done.err
    assert "\x1b[" in done.err
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", done.err).replace("\r", "\n")
    assert re.search(r"^mrfrec: 60 users × 24 items, \d+ pairs$", plain, re.MULTILINE)
    assert re.search(r"^reading +━+ ", plain, re.MULTILINE)
    assert re.search(r"^(finishing|learning weights) +━+ ", plain, re.MULTILINE)


@pytest.mark.slow
def test_results_on_the_terminal_are_not_broken_by_progress(shop: Path) -> None:
    done = on_a_terminal(["recommend", "shop.mrf", "--all", "-k", 2, "--format", "json"], shop, stdout=True)
    # colorama, which numba uses where it is installed, resets the colours of a terminal at exit.
    shown = without_compiling(done.err.removesuffix("\x1b[0m"))
    assert "\x1b" not in shown
    same(json.loads(shown), expected(shop, k=2))


def test_tables_through_a_pipe_are_not_cut_off_and_titles_are_as_they_are(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = run("recommend", "shop.mrf", "--history", "i01", "-k", 23, "--seen", cwd=shop)
    assert LONG_TITLE in done.out
    assert "[bold]Markup[/bold] :smile:" in done.out
    assert "Two lines" in done.out
    assert " [31mred" in done.out
    assert "\x1b" not in done.out  # a title cannot move the cursor
    assert len(done.out.splitlines()) == 24
    assert not [line for line in done.out.splitlines() if line.endswith(" ")]


def test_a_reader_that_has_gone_is_no_error(shop: Path) -> None:
    command = "recommend shop.mrf --history i01 --format csv"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [str(BIN), *shlex.split(command)], cwd=shop, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("end", "settings", "message"),
    [
        ("> /dev/full", {}, r"No space left on device\."),
        ("", {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
         r"'.*' cannot be shown in the encoding ascii: set PYTHONIOENCODING=utf-8, .*"),
        (">&-", {}, "standard output is closed: the results could not be written\\."),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_one_line(
    shop: Path, end: str, settings: dict[str, str], message: str
) -> None:
    done = in_a_shell(f"mrfrec recommend shop.mrf --user u01 -k 20 --format csv {end}", shop, **settings)
    assert done.code == 2
    assert re.fullmatch(rf"mrfrec: {message}\n", done.err)


@pytest.mark.parametrize("end", [">&-", "2> /dev/full", "> /dev/full"])
def test_a_file_is_written_whatever_becomes_of_the_streams(shop: Path, tmp_path: Path, end: str) -> None:
    command = f"mrfrec recommend {shop}/shop.mrf --all -o o.csv {end}"
    assert in_a_shell(command, tmp_path).code == 0
    assert (tmp_path / "o.csv").exists()


def test_a_table_shows_letters_that_the_encoding_lacks_as_stderr_does(shop: Path) -> None:
    done = in_a_shell(
        "mrfrec similar shop.mrf i08 -k 23; mrfrec recommend shop.mrf --history i01 --seen -k 23",
        shop,
        PYTHONIOENCODING="ascii",
    )
    assert done.code == 0
    assert "Am\\xe9lie" in done.out


def test_ctrl_c_before_the_command_line_is_there_shows_no_traceback() -> None:
    code = (
        "import os, signal, sys; from mrfrec.__main__ import main\n"
        "class Late:\n"
        "    def find_spec(self, *_): os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Late()); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of many items, and a model of many users."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30_000), 10)
    items = (rng.beta(0.7, 3.0, len(users)) * 4000).astype(np.int64)
    pl.DataFrame({"user": users, "item": items}).write_parquet(folder / "many.parquet")
    run("fit", "many.parquet", "-o", "many.mrf", "--histories", "--sparsity", "0.002", cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "seconds"),
    [
        ("fit many.parquet --sparsity dense --dtype float64 --threads 1", "old.mrf", 600),
        ("recommend many.mrf --all --explain", "o.parquet", 2),
        ("recommend many.mrf --all --explain", "o.json", 2),
    ],
)
def test_an_interrupted_command_leaves_the_old_file(
    many: Path, command: str, name: str, seconds: float
) -> None:
    (many / name).write_text("old")
    before = listing(many)
    process = subprocess.Popen(
        [str(BIN), *command.split(), "-o", name], cwd=many, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    said, end = b"", time.monotonic() + 600
    while b"dense model" not in said and not list(many.glob(f".{name}.*.unfinished")):
        assert process.poll() is None, said
        assert time.monotonic() < end, said
        said += process.stderr.read() or b""
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)  # Ctrl-C
    start = time.monotonic()
    os.set_blocking(process.stderr.fileno(), True)
    out, rest = process.communicate(timeout=600)
    assert time.monotonic() - start < seconds
    assert (process.returncode, out) == (130, b""), rest
    last = (said + rest).decode().splitlines()[-1]  # polars may speak of the exception before
    assert last == "mrfrec: interrupted; nothing was left half-written."
    assert listing(many) == before
    assert (many / name).read_text() == "old"


# ── start-up ──────────────────────────────────────────────────────────────────────────────────────


OTHERS = "pandas pyarrow torch matplotlib fastapi optuna"


@pytest.mark.parametrize(
    ("arguments", "needed", "absent"),
    [
        (["-c", "import mrfrec"], "mrfrec", "numpy scipy numba polars narwhals safetensors rich typer"),
        (["-m", "mrfrec", "--help"], "mrfrec typer", "numpy scipy polars numba rich"),
        (["-m", "mrfrec", "fit", "--help"], "mrfrec typer", f"numba {OTHERS}"),
        (["-m", "mrfrec", "recommend", "shop.mrf", "--history", "i01,i02"], "numba", OTHERS),
        (["-m", "mrfrec", "similar", "shop.mrf", "i01", "--format", "csv"], "numpy", f"numba {OTHERS}"),
    ],
)
def test_start_up_loads_nothing_heavy(shop: Path, arguments: list[str], needed: str, absent: str) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=shop, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "|" in line]
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in lines}
    assert {*needed.split()} <= loaded
    assert not loaded & {*absent.split()}


# ── the demo ──────────────────────────────────────────────────────────────────────────────────────


def test_demo_shows_accuracy_and_recommendations_and_what_it_says_to_try_next_works(
    tmp_path: Path, small_debian: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    bar = contextlib.nullcontext(lambda *step: steps.append(step))
    monkeypatch.setattr("mrfrec.cli.inspecting.progress_bar", lambda **_: bar)
    done = run("demo", "-o", "it's [red].mrf", cwd=tmp_path)
    assert {"MRF, 2 % of the weights: ranking", "finishing"} <= {stage for stage, *_ in steps}
    assert done.err == ""
    assert listing(tmp_path) == ["it's [red].mrf"]
    accuracy = {
        row[0]: float(row[1].split()[0])
        for row in from_table(done.out)
        if re.match(r"(most popular|MRF)", row[0])
    }
    assert accuracy["MRF, dense"] > accuracy["MRF, 2 % of the weights"] > 2 * accuracy["most popular"] > 0.2
    assert re.search(r"^ +\d  python3-\S+ .*base \+0\.\d\d, .*\+0\.\d\d", done.out, re.MULTILINE)
    commands = [line.strip() for line in done.out.split("Try next:")[1].splitlines() if line.startswith("  ")]
    assert len(commands) == 8
    for command in commands[:-2]:  # the last are for a table of one's own, and to serve
        program, *arguments = shlex.split(command)
        assert Path(program).name == "mrfrec"
        tried = run(*arguments, cwd=tmp_path)
        assert tried.out or "wrote" in tried.err


def test_demo_writes_a_file_only_where_told(tmp_path: Path, small_debian: None) -> None:
    done = run("demo", cwd=tmp_path)
    assert listing(tmp_path) == []
    assert "fit debian -o debian.mrf --histories" in done.out.split("Done.")[1]


# ── not over one's own input ──────────────────────────────────────────────────────────────────────


def test_output_over_the_input_is_refused(shop: Path, tmp_path: Path) -> None:
    table = tmp_path / "events.csv"
    table.write_text("user,item\n1,i01\n1,i02\n2,i02\n")
    (tmp_path / "products.csv").write_text("user,item\n")
    features = ["--item-features", "products.csv", "-o", "products.csv"]
    as_json = ["--format", "json", "-o", "events.csv"]
    for arguments in (
        ["evaluate", "events.csv", "--format", "json", *features],
        ["evaluate", "products.csv", "--test", "events.csv", *as_json],
        ["compare", "*.csv", "--model", "l2=1", "--model", "l2=2", *as_json],
        ["recommend", shop / "shop.mrf", "--history-file", "events.csv", "-o", "events.csv"],
    ):
        done = run(*arguments, cwd=tmp_path, code=2)
        assert "another file than the input" in refusal(done)
    for arguments in (["fit", "events.csv", *features], ["fit", "*.csv", "-o", "events.csv"]):
        assert "--output must be the name of a model" in refusal(run(*arguments, cwd=tmp_path, code=2))
    assert table.read_text().startswith("user,item")
