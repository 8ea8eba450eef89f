"""MkDocs hooks: publish the pages that lie outside docs/ and make their links work in the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "experiments/*.md",
    "experiments/results/*",
)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages outside docs/ to the site; the README becomes its home page."""
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        uri = path.relative_to(ROOT).as_posix()
        files.append(
            File.generated(config, "index.md" if uri == "README.md" else uri, abs_src_path=str(path))
        )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and the rest of the repository; in the site both lie in one folder."""
    if Path(str(page.file.abs_src_path)).is_relative_to(config.docs_dir):
        to_docs = "../" * page.file.src_uri.count("/")
        return markdown.replace(f"]({to_docs}../", f"]({to_docs}")
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
