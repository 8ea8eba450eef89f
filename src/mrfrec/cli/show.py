"""Results on stdout or in a file, as a table for people, JSON or CSV; progress on stderr."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from mrfrec.core.resources import Progress
from mrfrec.io.atomic import writing

__all__ = ["print_table", "progress_bar", "write_rows"]


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A progress callback that draws bars, on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done)

        yield show


def write_rows(
    rows: Iterable[Sequence[Any]], names: Sequence[str], form: str, path: Path | None, title: str = ""
) -> None:
    """Rows as "table", "json" or "csv", one by one as they come (a table is drawn at the end)."""
    with nullcontext() if path is None else writing(path) as unfinished:
        file = sys.stdout if unfinished is None else unfinished.open("w", encoding="utf-8", newline="")
        try:
            if form == "csv":
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(names)
                writer.writerows(rows)
            elif form == "json":
                _write_json(rows, names, file)
            else:
                print_table(rows, names, file=file, title=title)
        finally:
            if file is not sys.stdout:
                file.close()


def _write_json(rows: Iterable[Sequence[Any]], names: Sequence[str], file: TextIO) -> None:
    first = True
    for row in rows:
        file.write(
            ("[" if first else ",")
            + "\n"
            + json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        )
        first = False
    file.write("[]\n" if first else "\n]\n")


def print_table(
    rows: Iterable[Sequence[Any]], names: Sequence[str], *, file: TextIO | None = None, title: str = ""
) -> None:
    """A table for people; nothing is cut off where the reader is not a terminal."""
    drawn = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in names:
        drawn.add_column(name, justify="left", overflow="fold")
    numeric = set(range(len(names)))
    for row in rows:
        drawn.add_row(*(_text(value) for value in row))
        numeric -= {place for place, value in enumerate(row) if not isinstance(value, int | float)}
    for place in numeric if drawn.row_count else ():
        drawn.columns[place].justify = "right"
    out = file or sys.stdout
    buffer = io.StringIO()
    wide = None if out.isatty() else 10_000
    Console(file=buffer if wide else out, width=wide, highlight=False).print(drawn)
    if wide:
        out.write("".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines()))


def _text(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else escape(str(value))
