"""Lay out the pages of the documentation and have Zensical build them into site/: `make docs`."""

import base64
import json
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
    "lab/*.md",
    "lab/docs/*.md",
    "lab/results/*",
)

_LINK_TO_NOTEBOOK = re.compile(r"(\]\([\w./-]+)\.ipynb([#)])")


def lay(folder: Path) -> None:
    """Copy the pages of docs/ and those outside it into one folder, and make their links fit.

    README becomes the home page.
    """
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for notebook in list(pages.rglob("*.ipynb")):
        write_page(notebook)
        notebook.unlink()
    for page in pages.rglob("*.md"):
        to_docs = "../" * (len(page.relative_to(pages).parts) - 1)
        text = page.read_text().replace(f"]({to_docs}../", f"]({to_docs}")
        page.write_text(_LINK_TO_NOTEBOOK.sub(r"\1.md\2", text))
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        copy = pages / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if copy.suffix == ".md":
            # Only links to docs/ of the root change; lab has pages in a docs/ of its own.
            up = "../" * (len(path.relative_to(ROOT).parts) - 1)
            text = re.sub(rf'(\]\(|src="|srcset="){re.escape(up)}docs/', rf"\1{up}", copy.read_text())
            copy.write_text(_LINK_TO_NOTEBOOK.sub(r"\1.md\2", text))
    (pages / "README.md").rename(pages / "index.md")
    config = (ROOT / "mkdocs.yml").read_text().replace(".ipynb\n", ".md\n")
    (folder / "mkdocs.yml").write_text(config.replace("paths: [src]", f"paths: [{ROOT / 'src'}]"))


def write_page(notebook: Path) -> None:
    """Write a notebook with its outputs as a page, and its figures as files, beside it."""
    parts = []
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for data in (output["data"] for output in cell["outputs"]):
            if "image/png" in data:
                image = notebook.with_name(f"{notebook.stem}-{number}.png")
                image.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![The figure that the cell returns]({image.name})")
            elif "text/html" in data:  # in the style of the site, which scrolls wide tables
                html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
                html = re.sub(r' (?:border|class|style)="[^"]*"|\n\s*', "", html)
                parts.append(f'<div class="notebook">{html}</div>')
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    notebook.with_suffix(".md").write_text("\n\n".join(parts) + "\n")


def build(folder: Path) -> None:
    """Build the pages in a folder into site/ there; raise `CalledProcessError` if a link leads nowhere."""
    zensical = Path(sys.executable).with_name("zensical")
    plain = {} if sys.stdout.isatty() else {"NO_COLOR": "1"}
    command = [str(zensical), "build", "--strict"]
    subprocess.run(command, cwd=folder, env={**os.environ, **plain}, check=True, timeout=600)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mrfrec-site-") as folder:
        lay(Path(folder))
        try:
            build(Path(folder))
        except subprocess.CalledProcessError:
            sys.exit("The site was not built: see the warnings above.")
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.move(Path(folder) / "site", ROOT / "site")


if __name__ == "__main__":
    main()
