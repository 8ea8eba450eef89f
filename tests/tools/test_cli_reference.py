"""docs/reference/cli.md, which tools/cli_reference.py makes of the help texts."""

from tools.cli_reference import OUTPUT, reference


def test_the_reference_page_is_what_the_help_says() -> None:
    assert reference() == OUTPUT.read_text(encoding="utf-8"), "run: make reference"
