"""The commands of production: nightly and serve. Their texts become docs/reference/cli.md."""

import json
import logging
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mrfrec.checks import missing_extra
from mrfrec.cli import note
from mrfrec.cli.derived import parse_weights
from mrfrec.cli.options import ServedSettings
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import WAIT
from mrfrec.options import USUAL, Options, Shell
from mrfrec.service.server import lines_in_thread
from mrfrec.service.server import serve as run
from mrfrec.service.settings import ServiceSettings


class NightlyOptions(Options):
    """Which job to run, and how."""

    job: Annotated[Path, Shell(value="JOB", argument=True)] = Field(
        description="A TOML file that describes the job."
    )
    dry_run: Annotated[bool, USUAL] = Field(
        False, description="Check the job, its columns, tables and rules, and list the steps of a run."
    )
    accept: Annotated[bool, USUAL] = Field(
        False, description="Publish even if the guard refuses; compare later runs with this one."
    )
    accept_missed: Annotated[bool, USUAL] = Field(
        False,
        description="In mode update: name no longer the days or times that no night has read up to now.",
    )
    date: Annotated[str | None, Shell(value="DAY", usual=True)] = Field(
        None, description="Date to put in place of {date} in the job.  [default: today, UTC]"
    )
    source: Annotated[Path | None, Shell("--from", usual=True)] = Field(
        None,
        description="Roll back: publish this earlier model, and tables as the job says; read, fit and guard "
        "nothing.",
    )
    wait: Annotated[float, Shell(value="SECONDS", usual=True)] = Field(
        WAIT, description="Time to wait for a command that rewrites the model, such as mrfrec forget."
    )
    log: Annotated[Literal["lines", "json"], USUAL] = Field(
        "lines", description="Form of the messages on stderr."
    )


class ServeOptions(Options):
    """Which models to serve, where, and to whom."""

    group: ClassVar[str] = "Service"

    models: Annotated[list[str] | None, Shell(value="MODEL", argument=True)] = Field(
        None, description="Model files, also with names: shop=shop.mrf."
    )
    host: Annotated[str, Shell(value="ADDRESS", usual=True)] = Field(
        "127.0.0.1", description="Address to listen at."
    )
    port: Annotated[int, USUAL] = Field(8000, description="Port to listen at; a free one if 0.")
    uds: Path | None = Field(None, description="Unix socket to listen at, in place of an address and a port.")
    default: Annotated[str | None, Shell(value="NAME")] = Field(
        None, description="Model that answers where none is named.  [default: the first]"
    )
    split: Annotated[str | None, Shell(value="SHARES", usual=True)] = Field(
        None, description="Shares of visitors by model: a=0.9,b=0.1."
    )
    split_salt: str = Field("", description="Name of the experiment: another name splits the visitors anew.")
    no_auth: bool = Field(False, description="Need no keys, although others can reach the address.")
    new_key: Annotated[str | None, Shell(value="NAME", usual=True)] = Field(
        None, description="Make a key with this name, for the log and the file of --keys; serve nothing."
    )
    role: Literal["read", "manage"] | None = Field(
        None, description="With --new-key: ask, or also reload models.  [default: read]"
    )
    log: Annotated[Literal["lines", "json", "off"], USUAL] = Field(
        "lines",
        description="Form of the messages on stderr; off leaves out the line of each request.",
    )


def nightly(own: NightlyOptions) -> None:
    """Read, fit, evaluate, and publish a model if it is good enough.

    JOB names the source of events, the parameters of the model, the limits of the guard, and the places to
    publish to: a model file, tables of recommendations and similar items, a report.
    A new model is evaluated on held-out users, the same every night. If it is worse than the guard allows, or
    data is missing, nothing is published.

    Exit codes: 0 published, 2 failed, 3 refused by the guard, 4 another run is at work, or another command
    rewrites the model, 130 stopped by Ctrl-C, 143 by SIGTERM.

    \b
    Examples:
      mrfrec nightly shop.toml --dry-run
      mrfrec nightly shop.toml --log json
      mrfrec nightly shop.toml --date 2026-11-15
      mrfrec nightly shop.toml --from shop.20261115T030412.817302Z.mrf
    """
    from mrfrec.cli.show import progress_bar
    from mrfrec.nightly.job import read_job
    from mrfrec.nightly.preflight import rehearse, steps
    from mrfrec.nightly.run import run

    if own.log == "json":
        for handler in logging.getLogger("mrfrec").handlers:
            handler.setFormatter(JsonLines())
    checked = read_job(own.job, own.date)
    if own.dry_run and own.source is not None:
        raise ParameterError("--dry-run", "left out with --from", True)
    if own.dry_run:
        unchecked = [f"not checked: {each}" for each in rehearse(checked)]
        sys.stdout.write("".join(f"{line}\n" for line in (*steps(checked), *unchecked)))
        return
    with progress_bar() as progress:
        shown = progress if own.log == "lines" else None
        run(
            checked,
            accept=own.accept,
            accept_missed=own.accept_missed,
            wait=own.wait,
            earlier=own.source,
            progress=shown,
        )


def serve(own: ServeOptions, limits: ServedSettings) -> None:
    """Serve models over HTTP: an API and a page.

    A model file that is replaced, for example by mrfrec nightly, is opened, checked and answers from then on;
    SIGHUP opens all files and the keys anew. SIGTERM and Ctrl-C finish the requests under way.

    --new-key shows the new key on stderr, once. The line for the file of keys, which has only its hash, goes
    to stdout.

    \b
    Examples:
      mrfrec serve shop.mrf
      mrfrec serve a=shop.mrf b=new.mrf --split a=0.9,b=0.1
      mrfrec serve shop.mrf --host 0.0.0.0 --keys keys.txt --rate 50 --log json
      mrfrec serve --new-key web >> keys.txt
      mrfrec serve --new-key ops --role manage >> keys.txt
    """
    if own.new_key is not None:
        _make_key(own.new_key, own.role or "read", own.models)
        return
    if own.role is not None:
        raise ParameterError("--role", "left out without --new-key", own.role)
    if not own.models:
        raise DataError("name a model file to serve.")
    # Until the service has read the files.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if own.split_salt and own.split is None:
        raise ParameterError("--split-salt", "given with --split", own.split_salt)
    named = dict(_named(model) for model in own.models)
    if len(named) < len(own.models):
        raise ParameterError("MODEL", "models with different names", " ".join(own.models), "Say name=FILE.")
    shares = None if own.split is None else parse_weights("--split", own.split)
    settings = ServiceSettings(**limits, access_log=own.log != "off")
    formatter = JsonLines() if own.log == "json" else logging.Formatter("mrfrec: %(message)s")
    for handler in logging.getLogger("mrfrec").handlers:  # its lines say why the service could not start
        handler.setFormatter(formatter)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    with lines_in_thread(("mrfrec", "uvicorn.error", "asyncio"), formatter):
        run(
            named, host=own.host, port=own.port, uds=own.uds, default=own.default, split=shares,
            salt=own.split_salt, settings=settings, no_auth=own.no_auth,
        )  # fmt: skip


def _make_key(name: str, role: str, models: list[str] | None) -> None:
    """Write the line for the file of keys to stdout, and the key to stderr."""
    if models:
        raise ParameterError("MODEL", "left out with --new-key", " ".join(models))
    try:
        from mrfrec.service.access_control import new_key
    except ImportError:
        raise missing_extra("keys of a service need FastAPI", "serve") from None
    secret, line = new_key(name, role)
    sys.stdout.write(f"{line}\n")
    note(f"the key, which is not shown again: {secret}")


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


def _named(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    return (name, Path(path)) if mark and name and path else (Path(text).stem, Path(text))
