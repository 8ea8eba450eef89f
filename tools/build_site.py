"""Lay out the pages of the documentation and have Zensical build them into site/: `make docs`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "experiments/*.md",
    "experiments/results/*",
)


def lay(folder: Path) -> None:
    """Copy the pages of docs/ and those outside it into one folder, and make their links fit.

    README becomes the home page.
    """
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for page in pages.rglob("*.md"):
        to_docs = "../" * (len(page.relative_to(pages).parts) - 1)
        page.write_text(page.read_text().replace(f"]({to_docs}../", f"]({to_docs}"))
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        copy = pages / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if copy.suffix == ".md":
            links = r"(\]\(|src=\"|srcset=\")((?:\.\./)*)docs/"
            copy.write_text(re.sub(links, r"\1\2", copy.read_text()))
    (pages / "README.md").rename(pages / "index.md")
    config = (ROOT / "mkdocs.yml").read_text()
    (folder / "mkdocs.yml").write_text(config.replace("paths: [src]", f"paths: [{ROOT / 'src'}]"))


def build(folder: Path) -> None:
    """Build the pages in a folder into site/ there; raise `CalledProcessError` if a link leads nowhere."""
    zensical = Path(sys.executable).with_name("zensical")
    plain = {} if sys.stdout.isatty() else {"NO_COLOR": "1"}
    command = [zensical, "build", "--strict"]
    subprocess.run(command, cwd=folder, env={**os.environ, **plain}, check=True, timeout=600)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mrfrec-site-") as folder:
        lay(Path(folder))
        build(Path(folder))
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.move(Path(folder) / "site", ROOT / "site")


if __name__ == "__main__":
    main()
