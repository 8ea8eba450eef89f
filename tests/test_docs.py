"""What the documentation shows works, and what it names exists."""

import re
from pathlib import Path

import pytest

import mrfrec
from mrfrec.models.registry import MODELS, model_class

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_pages_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(block, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_names_every_parameter() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in mrfrec.MRF.__init__.__kwdefaults__ or {}:
        assert f"`{name}`" in readme, name


def test_page_of_the_models_names_every_parameter_and_its_default() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")[1:]}
    shared = {"MultDAE": "MultVAE", "CDAE": "MultVAE", "FsSLIM": "SLIM"}
    for kind in MODELS.keys() - {"MRF"}:
        told = sections[kind] + sections.get(shared.get(kind, ""), "")
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
    page = (ROOT / "docs" / "method.md").read_text()
    for module, name in re.findall(r"`(statistics|closed_form)\.(\w+)`", page):
        source = (ROOT / "src" / "mrfrec" / "core" / f"{module}.py").read_text()
        assert f"def {name}(" in source, f"{module}.{name}"


def test_version_is_said_once_and_the_same() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{mrfrec.__version__}"' in project
    assert f"## {mrfrec.__version__}" in (ROOT / "CHANGELOG.md").read_text()
