"""What the documentation shows works, and what it names exists."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from pydantic import BaseModel

import mrfrec
from mrfrec.io.columns import _NAMES as COLUMN_NAMES
from mrfrec.models.mrf.parameters import PAPER, RULES
from mrfrec.models.registry import MODELS, model_class
from mrfrec.nightly.job import (
    Guard,
    Machine,
    ModelRules,
    Publishing,
    RecommendationSink,
    Sink,
    SourceRules,
)
from mrfrec.service import ServiceSettings

from pages import PAGES, ROOT, faults, messages_in, name_of, paths_linked
from servers import asking

SOURCES = [*(ROOT / "src").rglob("*.py")]
# What docs/reference/promises.md promises in bold, and the tests that try to break it.
PROMISES = {
    "k recommendations.": [
        "test_exactly_k_rows_and_nothing_seen",
        "test_filters_are_kept",
        "test_too_few_items_are_fewer_rows_and_a_warning",
    ],
    "Explanations add up.": [
        "test_contributions_sum_to_the_score",
        "test_the_base_score_is_not_the_score_of_an_empty_history",
    ],
    "Ids keep their type": [
        "test_ids_come_back_with_their_type_and_are_found_where_they_are",
        "test_ids_are_the_same_in_every_table",
        "test_ids_and_titles_come_back",
        "test_string_ids_of_typed_formats_stay_strings_even_if_all_are_digits",
        "test_ids_from_text_keep_their_type_in_updates_and_when_users_are_forgotten",
    ],
    "Memory is planned.": [
        "test_dense_fit_that_does_not_fit_is_refused_with_a_sparsity_that_does",
        "test_sparse_fit_that_does_not_fit_names_the_largest_sparsity",
        "test_dense_fit_is_refused_by_what_the_machine_has",
        "test_container_limits_count_with_cache_as_free",
        "test_the_plan_does_not_depend_on_the_number_of_threads",
        "test_a_fit_holds_what_its_plan_says",
        "test_what_does_not_fit_on_the_device_is_refused_before_it_starts",
    ],
    "Bad input is refused.": [
        "test_any_bytes_give_interactions_or_an_error_of_ours",
        "test_bad_rows_are_refused_by_number_or_skipped_and_counted",
        "test_bad_parameter_is_named_with_its_rule_and_value",
        "test_bad_matrix_is_refused",
    ],
    "Model files are whole or refused.": [
        "test_any_edits_are_refused_or_make_no_difference",
        "test_every_length_but_the_whole_is_refused",
        "test_a_killed_writer_leaves_the_old_file_and_the_next_one_tidies_up",
        "test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else",
    ],
    "Whole answers.": [
        "test_answers_while_another_thread_fits_are_of_one_model",
        "test_a_change_that_is_interrupted_at_any_line_leaves_the_model_as_it_was",
    ],
    "Same input, same bits": [
        "test_threads_do_not_change_a_bit",
        "test_batches_and_threads_do_not_change_a_bit",
        "test_fitted_again_it_is_the_same_whatever_the_threads",
        "test_one_user_and_many_get_the_same_to_the_bit",
        "test_a_device_gives_the_lists_of_the_cpu",
    ],
    "Equal to the paper.": [
        "test_sparse_fit_equals_naive",
        "test_dense_fit_equals_naive_with_a_zero_diagonal",
        "test_weights_are_those_of_the_paper_as_written_with_its_unit_of_lambda",
    ],
    "Quiet.": [
        "test_a_fresh_process_prints_nothing_and_warns_of_nothing",
        "test_nothing_prints_pickles_sets_up_logging_or_reads_the_environment",
    ],
}


@pytest.mark.slow
@pytest.mark.usefixtures("small_debian")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_the_pages_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(block, namespace)


_OF_THE_READER = ("make", "mrfrec serve", "pip")  # commands that a test does not run


def play(page: str, folder: Path) -> int:
    """Run the Python and the commands of a page in their order, and compare what they print with the page.

    Times may differ. Return the number of outputs compared.
    """
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed, compared = "", 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL):
        if language == "text":
            found, wanted = (re.sub(r"(\d+ min )?\d+(\.\d+)? s\b", "… s", text) for text in (printed, block))
            words = (re.sub(r"\d+\.\d+|─+|═+", "#", " ".join(text.split())) for text in (found, wanted))
            assert next(words) == next(words), printed
            numbers = (re.findall(r"\d+\.\d+", text) for text in (found, wanted))
            for one, other in zip(*numbers, strict=True):  # rounding, on another kind of processor
                digits = len(other.partition(".")[2])
                assert abs(float(one) - float(other)) < 2.5 * 10**-digits, printed
            printed, compared = "", compared + 1
            continue
        assert printed == "", printed  # all output is on the page
        command = {"python": [sys.executable, "-c"], "sh": ["sh", "-ec"]}.get(language)
        if command is not None and not block.startswith(_OF_THE_READER):
            ran = subprocess.run([*command, block], cwd=folder, env=env, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            printed = ran.stdout
    return compared


@pytest.mark.slow
def test_the_shop_is_played_through_with_the_output_that_its_page_has(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "shop.md").read_text()
    assert play(page, tmp_path) == 6
    (address,) = re.findall(r"`(/history\?[^`]+)`", page)
    with asking(tmp_path / "shop.mrf") as client:
        html = client.get(address).text
    assert "110 of 160 items are left by the filter" in html
    assert html.count('<li class="card">') == 10


@pytest.mark.slow
def test_the_tutorial_has_the_output_that_its_commands_print(tmp_path: Path) -> None:
    assert play((ROOT / "docs" / "start" / "tutorial.md").read_text(), tmp_path) == 6


@pytest.mark.slow
def test_the_ten_lines_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    assert play(readme.split("## Ten lines")[1].split("```sh")[0], tmp_path) == 1


@pytest.mark.slow
def test_the_nights_of_the_page_have_the_output_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of each output are among those that are printed; folders, times and memory may differ."""
    page = (ROOT / "docs" / "how-to" / "nightly.md").read_text().split("\n## The report")[0]
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    namespace: dict[str, object] = {}
    printed, compared = "", 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL):
        if language == "python":
            exec(block, namespace)
        elif language == "toml":
            Path("shop.toml").write_text(block)
        elif language == "sh":
            ran = subprocess.run(
                ["sh", "-ec", f"exec 2>&1\n{block}"], env=env, capture_output=True, text=True
            )
            assert ran.returncode == 0, ran.stdout
            printed = ran.stdout
        else:
            varies = r"sqlite:/*\S*/|\d+\.\d s with \d+ MB"
            found, wanted = (re.sub(varies, "…", text).splitlines() for text in (printed, block))
            assert set(wanted) <= set(found), printed
            compared += 1
    assert compared == 2
    assert sorted(path.name for path in tmp_path.glob("shop.report.*")) == [
        "shop.report.html",
        "shop.report.json",
    ]


def test_page_of_the_job_names_every_key_and_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "job.md").read_text().split("\n## Tables")[0]
    rows = {
        name: line.split("|")[2]
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    machine = re.findall(r"`(\w+)`", page.split("**`[machine]`**")[1])
    sections: list[type[BaseModel]] = [SourceRules, ModelRules, Guard, Publishing, RecommendationSink]
    assert set(machine) == set(Machine.model_fields)
    keys = {name for each in sections for name in each.model_fields}
    keys |= SourceRules.further_keys | RecommendationSink.further_keys
    assert rows.keys() == keys - {"recommendations", "similar"}
    described: list[type[BaseModel]] = [ModelRules, Guard, Publishing, Sink]
    for section in described:
        for name, field in section.model_fields.items():
            if type(field.default) in (int, float, str):
                shown = f'`"{field.default}"`' if isinstance(field.default, str) else f"{field.default:g}"
                assert rows[name].strip() == shown, name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    assert [path for path in paths_linked(page, scripts=False) if not path.exists()] == []


def test_page_of_the_mrf_has_every_parameter_and_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "mrf.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", page, flags=re.MULTILINE))
    told = {name: ast.literal_eval(default) for name, default in rows.items()}
    assert told == mrfrec.MRF.defaults()


def test_page_about_reading_has_every_option_and_every_name_of_a_column() -> None:
    page = (ROOT / "docs" / "reference" / "reading.md").read_text()
    for name in inspect.signature(mrfrec.read_interactions).parameters:
        assert name == "source" or f"`{name}`" in page, name
    for role, names in COLUMN_NAMES.items():
        (row,) = re.findall(rf"^\| {role} \| (.+?) \|", page, flags=re.MULTILINE)
        told = {re.sub(r"\W|_", "", name) for name in re.findall(r"`(\w+)`", row)}
        if "each also with `_id`" in row:
            told |= {f"{name}id" for name in told}
        assert set(names.split()) <= told, role


def test_every_promise_has_tests() -> None:
    page = (ROOT / "docs" / "reference" / "promises.md").read_text()
    assert re.findall(r"^- \*\*(.+?)\*\*", page, flags=re.MULTILINE) == list(PROMISES)
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in chain.from_iterable(PROMISES.values()):
        assert f"def {name}(" in sources, name


def test_api_reference_shows_every_public_name() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE))
    names = [getattr(mrfrec, name) for name in mrfrec.__all__]  # packages are imported when first used
    packages = [each for each in names if isinstance(each, ModuleType)]
    public = {f"{package.__name__}.{name}" for package in (mrfrec, *packages) for name in package.__all__}
    assert shown == public - {"mrfrec.__version__", *(package.__name__ for package in packages)}


def test_page_of_the_models_names_every_parameter_and_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "models.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")[1:]}
    for kind in MODELS.keys() - {"MRF"}:
        told = sections[kind]
        for name, default in model_class(kind).defaults().items():
            if name in ("threads", "memory_limit"):
                assert f"`{name}`" in page
                continue
            assert f"`{name}`" in told, f"{kind}: {name}"
            rows = [
                line for line in sections[kind].split("\n") if line.startswith("|") and f"`{name}`" in line
            ]
            for row in rows:
                if "as `" not in row and default is not None:
                    shown = f'"{default}"' if isinstance(default, str) else f"{default:g}"
                    shown = str(default).lower() if isinstance(default, bool) else shown
                    cell = row.split("|")[2]
                    numbers = [part.strip() for part in cell.split(",")]
                    assert shown in numbers or str(default) in numbers, f"{kind}: {name}={default}, {cell}"


def test_method_page_names_functions_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "method.md").read_text()
    for module, name in re.findall(r"`(statistics|closed_form)\.(\w+)`", page):
        source = (ROOT / "src" / "mrfrec" / "core" / f"{module}.py").read_text()
        assert f"def {name}(" in source, f"{module}.{name}"


def test_method_page_lists_every_parameter_in_which_the_default_is_not_the_papers() -> None:
    page = (ROOT / "docs" / "explanation" / "method.md").read_text()
    section = page.split("## Beyond the paper")[1].split("\n## ")[0]
    number = {8: "eight", 9: "nine", 10: "ten", 11: "eleven"}[len(PAPER)]
    assert f"differs in {number} ways" in section
    bullets = re.findall(r"^- \*\*", section, flags=re.MULTILINE)
    times = [name for name, rule in RULES.items() if rule.needs == "times"]
    assert len(bullets) == len(PAPER) - (len(times) - 1)  # parameters of time share one bullet


def test_version_is_said_once_and_the_same() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{mrfrec.__version__}"' in project
    assert f"## {mrfrec.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_readme_is_short_and_names_the_versions_of_python_that_the_package_does() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 132
    named = re.findall(r":: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert sorted(set(re.findall(r"\b3\.1\d\b", readme))) == named


# ── what people are told to type ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_commands_and_options_in_the_pages_exist(page: Path) -> None:
    assert not faults(page.read_text(), scripts=False)


@pytest.mark.parametrize("package", sorted({path.parent for path in SOURCES}), ids=name_of)
def test_messages_say_nothing_that_pages_must_not(package: Path) -> None:
    for path in package.glob("*.py"):
        assert not faults(messages_in(path.read_text())), path


def test_messages_that_pages_quote_are_those_of_the_package() -> None:
    """The parts between values, from three words on: a name that "must be" something is a value, too."""
    said = " ".join(" ".join(messages_in(path.read_text()) for path in SOURCES).split())
    table = re.compile(r"^\| (?:message|warning|error) \| what to do \|\n((?:\|.*\n)+)", re.MULTILINE)
    rows = "".join("".join(table.findall(page.read_text())) for page in PAGES)
    quoted = re.findall(r"^\| (?!---)(.+?) \|", rows, flags=re.MULTILINE)
    assert len(quoted) > 40
    parts = [part.strip() for row in quoted for part in re.split(r"^\w+ must be|…|\d+|'.*'", row)]
    assert [part for part in parts if len(part.split()) > 2 and part not in said] == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("mrfrec fitt", "no command fitt"),
        ("mrfrec fit e.csv --half-live 30d", "No such option: --half-live"),
        ("mrfrec evaluate e.csv --split search", "'search' is not one of"),
        ("mrfrec evaluate e.csv --model 'EASE: l3=1'", "l3"),
        ("mrfrec tune e.csv --vary l3=1,2", "no parameter l3"),
        ("mrfrec evaluate e.csv --metrics gain@5", "gain@5"),
        ("tune --epochs", "No such option: --epochs"),
        ("--dry-run --rate 5", "no command takes"),  # each exists, but not together
        ("```sh\nmrfrec fit events.csv\n```\n", "output"),  # in a block it must be whole
        ("```sh\ncurl URL | mrfrec fit - \\\n    -o m.mrf --no && ls  # mrfrec\n```\n", "option: --no"),
        ("```sh\n5 3 * * *  cd /srv && chronic mrfrec nightly x --no\n```\n", "option: --no"),
        ("```sh\nsudo -u mrfrec env A=/var/mrfrec /opt/mrfrec/bin/mrfrec doctor --no\n```\n", "--no"),
        ('```python\ncommand = "mrfrec nightly x --no {{ ds }}"\n```\n', "option: --no"),
        ("```text\nUsage: mrfrec fit [OPTIONS]\n\nOptions:\n  --r X  Of --no.\n```\n", "--no"),
        ("make tests", "no target tests"),
        ("make bench GROUP=dense", "no variable GROUP"),
        ("python -m mrfrec_lab.gone", "no mrfrec_lab.gone"),
        ('pip install "mrfrec[serve]"', "in no index"),
        (messages_in("raise Error(f'{x} needs it: pip install mrfrec[{y}]')"), "in no index"),
        (messages_in("log('%s: leave them out', f'{x}:,', 'by --no')"), "option: --no"),
    ],
)
def test_what_does_not_exist_is_found_in_a_page_or_message(wrong: str, reason: str) -> None:
    (fault,) = faults(wrong if "```" in wrong else f"Try `{wrong}`.")
    assert reason in fault


# ── how to run it ─────────────────────────────────────────────────────────────────────────────────


def test_nginx_lets_through_what_the_service_takes() -> None:
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", (ROOT / "deploy" / "nginx.conf").read_text())
    assert int(megabytes) * 2**20 >= ServiceSettings().max_body


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_units_are_valid_and_as_safe_as_the_pages_say(tmp_path: Path) -> None:
    said = set()
    units = {"behind-nginx.md": "mrfrec-serve@.service", "nightly.md": "mrfrec-nightly.service"}
    for page in units:
        text = (ROOT / "docs" / "how-to" / page).read_text()
        assert "deploy/systemd/" in text
        said |= {float(x) for x in re.findall(r"systemd-analyze security .*?\s(\d\.\d)\b", text, re.DOTALL)}
    (level,) = said
    installed = shutil.copytree(ROOT / "deploy" / "systemd", tmp_path, dirs_exist_ok=True)
    for unit in units.values():
        content = (installed / unit).read_text()
        (command,) = re.findall(r"^ExecStart=(.*)", content, flags=re.MULTILINE)
        assert not faults(f"```sh\n{command.replace('%i', '8001')}\n```")
        (installed / unit).write_text(content.replace("/opt/mrfrec/bin/mrfrec", "/bin/true"))
    options: dict[str, Any] = {
        "env": {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        "capture_output": True,
        "text": True,
    }
    names = [unit.replace("@", "@8001") for unit in units.values()]
    valid = subprocess.run(
        ["systemd-analyze", "verify", *names, "mrfrec-nightly.timer", "failed-mail@x.service"], **options
    )
    assert (valid.returncode, valid.stderr) == (0, "")
    for unit in names:
        threshold = f"--threshold={level * 10:.0f}"
        command = ["systemd-analyze", "security", "--offline=true", threshold, unit]
        rated = subprocess.run(command, **options)
        assert rated.returncode == 0, rated.stdout[-200:]


@pytest.mark.parametrize("library", ["polars", "pandas"])
@pytest.mark.parametrize("named", [str, int], ids=["strings", "integers"])
def test_a_customer_reads_titles_of_what_they_have_and_no_base_score(library: str, named: Any) -> None:
    page = (ROOT / "docs/how-to/explain.md").read_text()
    (code,) = re.findall(r"## Explain to a customer\n.*?```python\n(.*?)```", page, flags=re.DOTALL)
    X = sp.csr_array(np.random.default_rng(0).random((60, 8)) < 0.5)
    model = mrfrec.MRF(measure=False).fit(
        mrfrec.Interactions(X, items=[named(i) for i in range(8)], titles=[f"T{i}" for i in range(8)])
    )
    seen = 0
    for item in map(named, range(3, 8)):
        history = [named(i) for i in range(3)]
        model.frames = "polars"
        rows = model.explain(item, history=history).to_dicts()
        model.frames = library
        namespace: dict[str, Any] = {"model": model, "history": history}
        exec(code.replace('"python3-all-dev"', repr(item)), namespace)
        assert namespace["titles"] == [
            row["title"] for row in rows if row["item"] is not None and row["contribution"] > 0
        ]
        seen += any(row["item"] is None and row["contribution"] > 0 for row in rows)
    assert seen  # a base score that adds
