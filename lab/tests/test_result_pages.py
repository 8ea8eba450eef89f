"""What pages say of benchmarks/, lab/ and tools/: links, commands and results."""

import re
from pathlib import Path

import pytest

import mrfrec_lab.models  # noqa: F401 - commands in pages name them

from pages import PAGES, ROOT, faults, name_of, paths_linked
from results import LAB, check_claims, check_figures, check_index, check_results

PAGES = sorted([*PAGES, *LAB.glob("*.md"), *LAB.glob("docs/*.md"), *LAB.glob("results/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    paths = [path for scripts in (True, False) for path in paths_linked(page, scripts=scripts)]
    assert [path for path in paths if not path.exists()] == []


SCRIPT = re.compile(r"python3? (-m )?(benchmarks|lab|mrfrec_lab|tools)\b")


@pytest.mark.parametrize("page", [page for page in PAGES if SCRIPT.search(page.read_text())], ids=name_of)
def test_scripts_and_their_options_exist(page: Path) -> None:
    assert not faults(page.read_text())


def test_option_that_a_script_does_not_have_is_found() -> None:
    (fault,) = faults("Try `python -m benchmarks.living --dense`.")
    assert "no option --dense" in fault


def test_results_in_the_readme_are_on_the_pages_it_links_to() -> None:
    readme = (ROOT / "README.md").read_text()
    check_results(readme)
    for right, wrong in (
        ("0.2324 ±", "0.2325 ±"),
        ("| 24 |", "| 25 |"),
        ("| 10 to 30 |", "| 10 to 40 |"),
        ("behind (0.1554", "behind (0.1564"),
    ):
        assert right in readme
        with pytest.raises(AssertionError):
            check_results(readme.replace(right, wrong))


def test_results_in_the_index_are_on_the_pages_it_links_to() -> None:
    index = (LAB / "README.md").read_text()
    check_index(index)
    for right, wrong in (("Gowalla .1597", "Gowalla .1598"), ("(.0481, .0529)", "(.0481, .0530)")):
        assert right in index
        with pytest.raises(AssertionError):
            check_index(index.replace(right, wrong))


def test_results_in_the_claims_are_on_the_pages_they_link_to() -> None:
    claims = (LAB / "docs" / "claims.md").read_text()
    check_claims(claims)
    for right, wrong in (
        ("Gowalla .2076 ±", "Gowalla .2077 ±"),
        ("anime .5730", "Debian .5730"),  # of another data set
        ("2 min 53 s against", "61 s against"),
        ("r = 0 20.1 s", "r = 0 21.1 s"),
        ("27.7, 6.8,", "27.7, 6.9,"),
        ("21 times faster", "22 times faster"),
        ("(+9 %)", "(+8 %)"),
        ("loses 2.1 %", "loses 2.2 %"),
        ("Debian 5,178, 3,143", "Debian 5,178, 3,144"),
        ("(p = 0.032)", "(p = 0.132)"),
    ):
        assert right in claims
        with pytest.raises(AssertionError):
            check_claims(claims.replace(right, wrong))


FIGURES = [
    ROOT / "docs" / page for page in ("explanation/method.md", "how-to/new-items.md", "how-to/rules.md")
]


@pytest.mark.parametrize("page", FIGURES, ids=name_of)
def test_figures_of_quality_are_in_the_results_that_a_page_links_to(page: Path, tmp_path: Path) -> None:
    check_figures(page)
    wrong = ROOT / page.parent / page.name
    text = wrong.read_text()
    number = max(re.findall(r"(?<![\d.])0?\.\d{4}\b", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    linked = text.replace("](../../", f"]({ROOT}/")
    (changed := tmp_path / page.name).write_text(linked)
    check_figures(changed)
    changed.write_text(linked.replace(number, "0.9876"))
    with pytest.raises(AssertionError, match=r"0\.9876"):
        check_figures(changed)
