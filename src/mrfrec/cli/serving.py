"""The commands serve and key. docs/cli.md is generated from the texts here."""

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from mrfrec.cli.derived import ServedSettings, parse_pairs
from mrfrec.cli.options import takes_options
from mrfrec.errors import ParameterError

LogForm = Literal["lines", "json", "off"]


@takes_options
def serve(
    models: Annotated[
        list[str], Argument(help="Model files, also with names: shop=shop.mrf.", metavar="MODEL")
    ],
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", help="Port to listen at; a free one if 0.")] = 8000,
    uds: Annotated[
        Path | None,
        Option(metavar="FILE", help="Unix socket to listen at, in place of an address and a port."),
    ] = None,
    workers: Annotated[int, Option(metavar="N", help="Number of processes.")] = 1,
    default: Annotated[
        str | None,
        Option(metavar="NAME", help="Model that answers where none is named.", show_default="the first"),
    ] = None,
    split: Annotated[
        str | None, Option(metavar="SHARES", help="Shares of visitors by model: a=0.9,b=0.1.")
    ] = None,
    split_salt: Annotated[
        str,
        Option(metavar="TEXT", help="Name of the experiment: another name splits the visitors anew."),
    ] = "",
    no_auth: Annotated[
        bool, Option("--no-auth", help="Need no keys, although others can reach the address.")
    ] = False,
    *,
    limits: ServedSettings,
    log: Annotated[
        LogForm, Option(help="Form of the messages on stderr; off leaves out the line of each request.")
    ] = "lines",
) -> None:
    """Serve models over HTTP: an API and a page.

    A model file that is replaced, for example by mrfrec nightly, is opened, checked and answers from then on;
    SIGHUP opens all files and the keys anew. SIGTERM and Ctrl-C finish the requests under way.

    \b
    Examples:
      mrfrec serve shop.mrf
      mrfrec serve a=shop.mrf b=new.mrf --split a=0.9,b=0.1 --workers 2
      mrfrec serve shop.mrf --host 0.0.0.0 --keys keys.txt --rate 50 --log json
    """
    from mrfrec.service.server import serve as run
    from mrfrec.service.settings import ServiceSettings

    # Until the service can reload: it has not read the files yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if split_salt and split is None:
        raise ParameterError("--split-salt", "given with --split", split_salt)
    named = dict(_named(model) for model in models)
    if len(named) < len(models):
        raise ParameterError("MODEL", "models with different names", " ".join(models), "Say name=FILE.")
    settings = ServiceSettings(**limits, access_log=log != "off")
    prepare = partial(set_up_log, log)
    prepare()
    run(
        named, host=host, port=port, uds=uds, workers=workers, default=default, split=_shares(split),
        salt=split_salt, settings=settings, no_auth=no_auth, prepare=prepare,
    )  # fmt: skip


def key(
    name: Annotated[str, Argument(help="Name of the key, for the log.", metavar="NAME")],
    role: Annotated[
        Literal["read", "manage"], Option(help="Rights of the key: ask, or also reload models.")
    ] = "read",
) -> None:
    """Make a new API key for mrfrec serve --keys.

    The key is shown on stderr, once. The line for the file of keys, which has only its hash, goes to stdout.

    \b
    Examples:
      mrfrec key web >> keys.txt
      mrfrec key ops --role manage >> keys.txt
    """
    from mrfrec.cli.show import note
    from mrfrec.service.keys import new_key

    secret, line = new_key(name, role)
    sys.stdout.write(f"{line}\n")
    note(f"the key, which is not shown again: {secret}")


def set_up_log(form: LogForm) -> None:
    """Write the messages of this process, and of the server, to stderr."""
    from mrfrec.cli import Stderr
    from mrfrec.cli.nightly import JsonLines

    for name in ("mrfrec", "uvicorn.error"):
        log = logging.getLogger(name)
        log.setLevel(logging.INFO)
        for handler in log.handlers[:]:
            log.removeHandler(handler)
        handler = Stderr()
        handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("mrfrec: %(message)s"))
        log.addHandler(handler)


def _named(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    return (name, Path(path)) if mark and name and path else (Path(text).stem, Path(text))


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name: float(share) for name, share in parse_pairs("--split", text).items()}
    except ValueError:
        raise ParameterError("--split", "shares by model, such as a=0.9,b=0.1", text) from None
