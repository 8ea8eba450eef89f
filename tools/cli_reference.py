"""Write docs/cli.md from the help texts of the commands.

python tools/cli_reference.py [-o FILE]
"""

import argparse
from collections.abc import Iterator
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
    """Return the names of all commands, in the order of the help; those of a group follow the group."""

    def names(group: object, prefix: str = "") -> Iterator[str]:
        for name, command in vars(group).get("commands", {}).items():
            yield prefix + name
            yield from names(command, f"{prefix}{name} ")

    return list(names(typer.main.get_command(app)))


def help_text(*arguments: str) -> str:
    """Return the help of a command."""
    result = CliRunner().invoke(
        app, [*arguments, "--help"], prog_name="mrfrec", terminal_width=WIDTH, catch_exceptions=False
    )
    if result.exit_code != 0:
        raise RuntimeError(f"mrfrec {' '.join(arguments)} --help: {result.output}")
    return "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


def reference() -> str:
    """Return the page."""
    sections = [f"\n## mrfrec\n\n```text\n{help_text()}```\n"]
    sections += [f"\n## mrfrec {name}\n\n```text\n{help_text(*name.split())}```\n" for name in commands()]
    return INTRODUCTION + "".join(sections)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, help="default: %(default)s")
    output: Path = parser.parse_args().output
    output.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
