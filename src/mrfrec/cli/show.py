"""Write results to stdout or to a file as a table, JSON or CSV; show progress on stderr."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from mrfrec.answers.tables import columns_shown
from mrfrec.bars import showing
from mrfrec.cli import note, written
from mrfrec.core.engine import Progress
from mrfrec.data.catalogue import Catalogue
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import check_writable, refuse_own_input, writing
from mrfrec.io.databases import refuse_url
from mrfrec.io.frames import refuse_other_table
from mrfrec.io.sources import paths_of
from mrfrec.shown import Report, drawn_table, table_text

_BY_NAME = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "table"}
ONE_FORMATS = {".csv": "csv", ".json": "json", ".txt": "table"}
REPORT_FORMATS = {".json": "json", ".md": "markdown", ".txt": "table"}


def kind_of(form: str | None, output: str | Path | None, by_name: Mapping[str, str] = _BY_NAME) -> str:
    """Return the requested format, or the one that the suffix of the output file implies."""
    refuse_url(output)  # Its message hides passwords; those below would show them.
    if form == "parquet" and (output is None or form not in by_name.values()):
        advice = "Give -o FILE for Parquet." if form in by_name.values() else ""
        raise ParameterError("--format", "table, json or csv here", form, advice)
    found = form or ("table" if output is None else by_name.get(Path(output).suffix.lower()))
    if found not in by_name.values():
        rule = f"a name that ends in {', '.join(by_name)}"
        raise ParameterError("--output", rule, str(output), "Or give --format.")
    return str(found)


def progress_bar(results: bool = False) -> AbstractContextManager[Progress | None]:
    """Return a context manager with a callback that draws a progress bar; None if stderr is no terminal.

    A bar would garble results on the same terminal: with `results`, there is none if stdout is a terminal.
    """
    return showing(sys.stderr.isatty() and not (results and sys.stdout.isatty()))


def show_facts(facts: dict[str, Any], name: str, kind: str) -> None:
    """Write the facts about a model file."""
    if kind == "json":
        sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        print_table(_flat(facts), ["", name])


def _flat(facts: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list):
            yield before + name, f"{len(value):,} entries, which --format json shows"
        else:
            is_count = type(value) is int and not before.startswith("parameters.")
            yield before + name, f"{value:,}" if is_count else str(value)


def show_report(report: Report, form: str | None, output: Path | None) -> None:
    """Write a report as a table, JSON or Markdown, to stdout or to a file."""
    kind = kind_of(form, output, REPORT_FORMATS)
    with nullcontext(sys.stdout) if output is None else output_file(output) as file:
        if kind != "table":
            file.write(report.json() if kind == "json" else report.markdown())
            return
        _replace_letters(file)
        file.write("".join(f"{line}\n" for line in report.about))
        for section in report.sections:
            file.write("\n" + (f"{section.title}\n" if section.title else ""))
            print_table(section.rows, section.columns, file)
        file.write("".join(f"\n{line}\n" for line in report.notes))


def write_rows(
    rows: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    catalogue: Catalogue,
    kind: str,
    output: str | Path | None,
    of_one: bool = False,
) -> None:
    """Write rows as "table", "json" or "csv". JSON and CSV are streamed.

    A table has no titles if the items have none, and no user if all rows are `of_one`.
    """
    if output is not None and kind in ("csv", "json"):
        refuse_other_table(output, f".{kind}", names)
    with nullcontext(sys.stdout) if output is None else output_file(output) as file:
        if kind == "csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(row.values() for row in rows)
        elif kind == "json":
            before = "["
            for row in rows:
                file.write(f"{before}\n{json.dumps(row, ensure_ascii=False)}")
                before = ","
            file.write("[]\n" if before == "[" else "\n]\n")
        else:
            shown = columns_shown(catalogue, names, of_one)
            print_table(([row[name] for name in shown] for row in rows), shown, file)


@contextmanager
def output_file(path: str | Path) -> Iterator[TextIO]:
    """Open a file for writing; it appears under its name only when it is complete."""
    try:
        with writing(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}."
        raise DataError(f"{message} An earlier file is untouched.") from error
    note(written(path))


def print_table(rows: Iterable[Sequence[Any]], names: Sequence[str], file: TextIO | None = None) -> None:
    """Write a table: fitted to the terminal if the file is one, otherwise as wide as needed."""
    out = file or sys.stdout
    _replace_letters(out)
    if out.isatty():
        Console(file=out).print(drawn_table(rows, names))
    else:
        out.write(table_text(rows, names))


def _replace_letters(file: TextIO) -> None:
    """Escape characters that the encoding of stdout lacks, instead of raising an error."""
    if file is sys.stdout and isinstance(file, TextIOWrapper):
        file.reconfigure(errors="backslashreplace")


def check_output(path: Path | None, *inputs: str | Path | None) -> None:
    """Raise if a file cannot be written, or is one of the inputs, which are file names, patterns or URLs."""
    if path is not None:
        refuse_own_input(path, [file for name in inputs if name is not None for file in paths_of(str(name))])
        check_writable(path)
