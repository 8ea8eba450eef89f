"""The site of the documentation, which tools/docs_hooks.py puts together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # Not --quiet, under which strict mode counts no warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text()
    assert "Ten lines" in home
    assert not re.findall(
        r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', home
    )  # nothing is fetched
    reference = (tmp_path / "reference" / "api" / "index.html").read_text()
    for name in ("fit", "recommend", "explain", "save"):
        assert f'id="mrfrec.Recommender.{name}"' in reference


@pytest.mark.parametrize("bad", [[], ["nowhere.md", "other.md#nowhere", "/other.md"]], ids=["good", "bad"])
def test_a_link_that_leads_nowhere_fails_the_build(bad: list[str], tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text(" ".join(f"[A link]({target})" for target in ["other.md", *bad]))
    (pages / "other.md").write_text("# Other")
    only = "nav: [index.md, other.md]\nhooks: []\nplugins: []\nnot_in_nav: ''"
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {pages}\n{only}\n")
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert (done.returncode, done.stderr.count("WARNING -")) == (bool(bad), len(bad)), done.stderr
