"""What pages say of benchmarks/, experiments/ and tools/: links, commands and results."""

import re
from pathlib import Path

import pytest

from experiments.run import EXPERIMENTS

from pages import PAGES, ROOT, check_results, faults, name_of, paths_linked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_experiments_and_scripts_lead_somewhere(page: Path) -> None:
    assert [path for path in paths_linked(page, scripts=True) if not path.exists()] == []


SCRIPT = re.compile(r"python3? (-m )?(benchmarks|experiments|tools)\b")


@pytest.mark.parametrize("page", [page for page in PAGES if SCRIPT.search(page.read_text())], ids=name_of)
def test_scripts_and_their_options_exist(page: Path) -> None:
    assert not faults(page.read_text())


def test_option_that_a_script_does_not_have_is_found() -> None:
    (fault,) = faults("Try `python -m benchmarks.living --dense`.")
    assert "no option --dense" in fault


def test_commands_of_the_experiments_exist() -> None:
    folders = {"data": "data", "results": "results", "cache": "cache"}
    steps = [step.command.format_map(folders) for each in EXPERIMENTS.values() for step in each.steps]
    assert not faults("```sh\n" + "\n".join(steps) + "\n```\n")


def test_results_in_the_readme_are_on_the_pages_it_links_to() -> None:
    readme = (ROOT / "README.md").read_text()
    check_results(readme)
    for right, wrong in (
        ("0.2324 ±", "0.2325 ±"),
        ("| 42 s", "| 43 s"),
        ("UltraGCN 0.186", "UltraGCN 0.188"),
    ):
        assert right in readme
        with pytest.raises(AssertionError):
            check_results(readme.replace(right, wrong))
