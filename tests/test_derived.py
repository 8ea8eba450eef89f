"""Help and the API come from signatures, docstrings and metadata, not from comments."""

import io
import json
import os
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Any

import mrfrec

PACKAGE = Path(mrfrec.__file__).parent
SCRIPT = """
import json, sys
import mrfrec
from mrfrec.cli.app import application
from mrfrec.service import create_app
from typer.testing import CliRunner

helps = [CliRunner().invoke(application(), [name, "--help"]).output for name in ("fit", "recommend", "serve")]
print(json.dumps([mrfrec.__file__, helps, create_app(sys.argv[1]).openapi()]))
"""


def shown_by(package: Path, model: Path) -> Any:
    """The help of commands and the description of the service, of a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model], env=environment, capture_output=True, text=True, check=True
    )
    file, *shown = json.loads(done.stdout)
    assert file == str(package / "__init__.py")
    return shown


def without_comments(source: str) -> str:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines) + "\n"


def test_comments_change_neither_the_help_nor_the_description_of_the_service(
    shop: Path, tmp_path: Path
) -> None:
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.rglob("*.py"):
        file.write_text(without_comments(file.read_text(encoding="utf-8")), encoding="utf-8")
    helps, description = shown_by(copy, shop)
    assert "Number of items." in helps[1]
    assert [helps, description] == shown_by(PACKAGE, shop)
