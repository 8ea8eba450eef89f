"""The command nightly. docs/cli.md is generated from the texts here."""

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option


def nightly(
    job: Annotated[Path, Argument(help="A TOML file that describes the job.", metavar="JOB")],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check the job and its tables, and list the steps of a run.")
    ] = False,
    accept: Annotated[
        bool, Option("--accept", help="Publish even if the guard refuses; compare later runs with this one.")
    ] = False,
    date: Annotated[
        str | None,
        Option(metavar="DAY", help="Date to put in place of {date} in the job.", show_default="today, UTC"),
    ] = None,
    log: Annotated[Literal["lines", "json"], Option(help="Form of the messages on stderr.")] = "lines",
) -> None:
    """Read, fit, measure, and publish a model if it is good enough.

    JOB names the source of events, the parameters of the model, the limits of the guard, and the places to
    publish to: a model file, tables of recommendations and similar items, a report.
    A new model is measured on held-out users, the same every night. If it is worse than the guard allows, or
    data is missing, nothing is published.

    Exit codes: 0 published, 2 failed, 3 refused by the guard, 4 another run is at work, 130 stopped by
    Ctrl-C, 143 by SIGTERM.

    \b
    Examples:
      mrfrec nightly shop.toml --dry-run
      mrfrec nightly shop.toml --log json
      mrfrec nightly shop.toml --date 2026-11-15
    """
    from mrfrec.cli.show import progress_bar
    from mrfrec.nightly.job import read_job
    from mrfrec.nightly.run import check_tables, run, steps

    if log == "json":
        for handler in logging.getLogger("mrfrec").handlers:
            handler.setFormatter(JsonLines())
    planned = read_job(job, date)
    if dry_run:
        check_tables(planned)
        sys.stdout.write("".join(f"{line}\n" for line in steps(planned)))
        return
    with progress_bar() as progress:
        run(planned, accept=accept, progress=progress if log == "lines" else None)


class JsonLines(logging.Formatter):
    """Each message as one line of JSON: time, level, and the message or its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content: dict[str, Any] = {"time": time, "level": record.levelname.lower()}
        content |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)  # in ASCII: no control character of a request reaches a terminal
