"""Writes docs/cli.md from the help texts of the commands.

python tools/cli_reference.py [-o FILE]
"""

import argparse
from pathlib import Path

import typer
from typer.testing import CliRunner

from mrfrec.cli.app import app

OUTPUT = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = 100  # columns, whatever the terminal has

INTRODUCTION = """# The command line

What `mrfrec --help` and `mrfrec COMMAND --help` say; generated from there by `make reference`.

Results go to stdout, or to a file with `-o`, which appears when it is whole. Notes, progress and errors go to
stderr. The exit code is 0 when all went well, 2 for an error, 130 after Ctrl-C.
"""


def commands() -> list[str]:
    """Their names, in the order in which the help lists them; those of a group follow it."""
    found = []
    for name, command in vars(typer.main.get_command(app))["commands"].items():
        found += [name, *(f"{name} {inner}" for inner in vars(command).get("commands", ()))]
    return found


def help_text(*arguments: str) -> str:
    """What a command says with --help."""
    result = CliRunner().invoke(
        app, [*arguments, "--help"], prog_name="mrfrec", terminal_width=WIDTH, catch_exceptions=False
    )
    if result.exit_code != 0:
        raise RuntimeError(f"mrfrec {' '.join(arguments)} --help: {result.output}")
    return "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


def reference() -> str:
    """The page."""
    sections = [f"\n## mrfrec\n\n```text\n{help_text()}```\n"]
    sections += [f"\n## mrfrec {name}\n\n```text\n{help_text(*name.split())}```\n" for name in commands()]
    return INTRODUCTION + "".join(sections)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, help="default: %(default)s")
    output: Path = parser.parse_args().output
    output.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
