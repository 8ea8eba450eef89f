"""The commands serve and key. docs/cli.md is generated from the texts here."""

import logging
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from mrfrec.errors import ParameterError

LogForm = Literal["lines", "json", "off"]


def serve(
    models: Annotated[
        list[str] | None, Argument(help="Model files, also with names: shop=shop.mrf.", metavar="MODEL")
    ] = None,
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", help="Port to listen at; a free one if 0.")] = 8000,
    uds: Annotated[
        Path | None,
        Option(metavar="FILE", help="Unix socket to listen at, in place of an address and a port."),
    ] = None,
    root_path: Annotated[
        str, Option(metavar="PATH", help="Prefix of all addresses behind a proxy: /recs.")
    ] = "",
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
    keys: Annotated[Path | None, Option(metavar="FILE", help="File of API keys; see mrfrec key.")] = None,
    no_auth: Annotated[
        bool, Option("--no-auth", help="Need no keys, although others can reach the address.")
    ] = False,
    rate: Annotated[
        float,
        Option(metavar="N", help="Requests per second of a key, or of an address without keys; 0 for any."),
    ] = 0.0,
    cors: Annotated[
        list[str] | None,
        Option(metavar="ORIGIN", help="Web origin whose pages may ask: https://shop.example. Repeatable."),
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Names by which requests may call this host, with commas between them.",
            show_default="any",
        ),
    ] = None,
    max_body: Annotated[int, Option(metavar="N", help="Bytes of a request.")] = 4_000_000,
    max_batch: Annotated[int, Option(metavar="N", help="Histories of a request.")] = 1000,
    queue: Annotated[
        int, Option(metavar="N", help="Requests at once in a process; more are refused with 503.")
    ] = 64,
    drain: Annotated[
        float,
        Option(
            metavar="SECONDS", help='Time between "not ready" and the end of connections, when told to stop.'
        ),
    ] = 0.3,
    log: Annotated[
        LogForm, Option(help="Form of the messages on stderr; off leaves out the line of each request.")
    ] = "lines",
    log_requests: Annotated[
        bool, Option("--log-requests", help="Log histories, ids and searches, too.")
    ] = False,
    log_clients: Annotated[bool, Option("--log-clients", help="Log the addresses of clients, too.")] = False,
    demo: Annotated[
        bool, Option("--demo", help="Fit a model of the built-in Debian data, and serve it.")
    ] = False,
) -> None:
    """Serve models over HTTP: an API and a page.

    A model file that is replaced, for example by mrfrec nightly, is opened, checked and answers from then on;
    SIGHUP opens all files and the keys anew. SIGTERM and Ctrl-C finish the requests under way.

    \b
    Examples:
      mrfrec serve shop.mrf
      mrfrec serve --demo
      mrfrec serve a=shop.mrf b=new.mrf --split a=0.9,b=0.1 --workers 2
      mrfrec serve shop.mrf --host 0.0.0.0 --keys keys.txt --rate 50 --log json
    """
    from mrfrec.service.server import serve as run
    from mrfrec.service.settings import ServiceSettings

    # Until the service can reload: it has not read the files yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if split_salt and split is None:
        raise ParameterError("--split-salt", "given with --split", split_salt)
    if demo == bool(models):
        raise ParameterError("MODEL", "a model file, or else --demo", " ".join(models or ()) or None)
    settings = ServiceSettings(
        keys=keys, rate=rate, origins=tuple(cors or ()), max_body=max_body, max_batch=max_batch, queue=queue,
        access_log=log != "off", log_requests=log_requests, log_clients=log_clients, root_path=root_path,
        hosts=tuple(name.strip() for name in (allowed_hosts or "").split(",") if name.strip()), drain=drain,
    )  # fmt: skip
    prepare = partial(set_up_log, log)
    prepare()
    with _demo_model() if demo else _given(models or []) as named:
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


@contextmanager
def _demo_model() -> Iterator[dict[str, Path]]:
    """Fit a model of the Debian data, and save it for as long as it is served."""
    from mrfrec import datasets
    from mrfrec.models.mrf import MRF

    with tempfile.TemporaryDirectory(prefix="mrfrec-") as folder:
        path = Path(folder) / "debian.mrf"
        MRF().fit(datasets.load("debian")).save(path, include_histories=True)
        yield {"debian": path}


@contextmanager
def _given(models: list[str]) -> Iterator[dict[str, Path]]:
    named = dict(_named(model) for model in models)
    if len(named) < len(models):
        raise ParameterError("MODEL", "models with different names", " ".join(models), "Say name=FILE.")
    yield named


def _named(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    return (name, Path(path)) if mark and name and path else (Path(text).stem, Path(text))


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    parts = [part.partition("=") for part in text.split(",")]
    try:
        shares = {name: float(share) for name, _, share in parts}
    except ValueError:
        shares = {}
    if len(shares) < len(parts):
        raise ParameterError("--split", "shares by model, each once, such as a=0.9,b=0.1", text)
    return shares
