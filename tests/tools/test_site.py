"""The site of the documentation, which tools/docs_hooks.py puts together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet, under which strict mode counts no warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text()
    assert "Ten lines" in home
    assert not re.findall(
        r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', home
    )  # nothing is fetched
    reference = (tmp_path / "api" / "index.html").read_text()
    for name in ("fit", "recommend", "explain", "save"):
        assert f'id="mrfrec.Recommender.{name}"' in reference
