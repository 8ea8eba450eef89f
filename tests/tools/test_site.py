"""The site of the documentation, which tools/build_site.py puts together."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tools.build_site import OUTSIDE, build, lay

from pages import ROOT


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    lay(tmp_path)
    build(tmp_path)
    home = (tmp_path / "site" / "index.html").read_text()
    assert "Ten lines" in home
    assert not re.findall(
        r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', home
    )  # nothing is fetched
    reference = (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
    for name in ("fit", "recommend", "explain", "save"):
        assert f'id="mrfrec.Recommender.{name}"' in reference
    tour = (tmp_path / "site" / "tour.html").read_text()
    images = re.findall(r'<img[^>]+src="(tour-\d+\.png)"', tour)
    assert len(images) > 2
    assert all((tmp_path / "site" / image).is_file() for image in images)
    assert tour.count("<table>") > 5
    assert "<td>python3-scipy</td>" in tour
    assert 'href="tour.html"' in home


@pytest.mark.parametrize("bad", [[], ["nowhere.md", "other.md#nowhere"]], ids=["good", "bad"])
def test_a_link_that_leads_nowhere_fails_the_build(
    bad: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text("\n\n".join(f"[A link]({target})" for target in ["other.md", *bad]))
    (pages / "other.md").write_text("# Other")
    config = re.sub(r"(?s)\nnav:.*?\n\n|\nplugins:.*?\n\n", "\n", (ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text(config)
    if bad:
        with pytest.raises(subprocess.CalledProcessError):
            build(tmp_path)
    else:
        build(tmp_path)
    assert "".join(capfd.readouterr()).count("Warning:") == len(bad)


def test_every_page_is_in_the_menu_and_the_menu_has_only_pages() -> None:
    def pages(entry: object) -> list[str]:
        children = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
        return [entry] if isinstance(entry, str) else [page for child in children for page in pages(child)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = (path for form in ("*.md", "*.ipynb") for path in (ROOT / "docs").rglob(form))
    inside = {str(path.relative_to(ROOT / "docs")) for path in written}
    outside = {str(path.relative_to(ROOT)) for pattern in OUTSIDE for path in ROOT.glob(pattern)}
    outside = {page for page in outside if page.endswith(".md") and "/results/" not in page}
    assert sorted(listed) == sorted(inside | outside - {"README.md"} | {"index.md"})
