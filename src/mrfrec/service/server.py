"""Run the service with uvicorn, in one process."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from mrfrec.checks import check_count, missing_extra
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.service.keys import read_keys
from mrfrec.service.settings import ServiceSettings

_log = logging.getLogger("mrfrec.service")

_TO_STOP = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048  # connections that wait to be accepted
_SECONDS_TO_STOP = 10  # for requests under way when the service is told to stop
_SECONDS_OF_SILENCE = 30  # between an answer and the next request of a connection
_MOST_HEAD = 65_536  # bytes of the head of a request
# A last bound, far above the queue: with the usual 1,024 open files, 100 are left for all else.
_MOST_CONNECTIONS = 900


def serve(
    models: "str | PathLike[str] | Mapping[str, str | PathLike[str]]",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: "str | PathLike[str] | None" = None,
    default: str | None = None,
    split: Mapping[str, float] | None = None,
    salt: str = "",
    settings: ServiceSettings | None = None,
    no_auth: bool = False,
) -> None:
    """Serve models until the process is told to stop by SIGTERM or SIGINT; SIGHUP opens the models anew.

    The service is one process. Several of them behind a proxy map the same model file, which is in memory
    once. Requests under way when the service is told to stop are finished, within ten seconds.

    Parameters
    ----------
    models, default, split, salt, settings
        As in `create_app`.
    host, port
        Where to listen; a free port if 0. Elsewhere than on this machine's own addresses keys are needed,
        unless `no_auth` says that they are not.
    uds
        Path of a Unix socket to listen at, in place of host and port. Its user and group may connect.
    """
    settings = settings or ServiceSettings()
    if not no_auth and settings.keys is None and uds is None and not _is_loopback(host):
        raise ParameterError(
            "keys", f"given where others can reach the service, as at {host}", None,
            "Make one with mrfrec serve --new-key, or say no_auth (--no-auth) if everybody may ask.",
        )  # fmt: skip
    if settings.keys is not None:
        read_keys(settings.keys)  # fail before anything takes time
    try:
        import uvicorn

        from mrfrec.service.app import create_app
    except ImportError:
        raise missing_extra("serving needs FastAPI and uvicorn", "serve") from None
    # A model that cannot be opened is an error of the command, before anybody can connect.
    place = _bound(host, port) if uds is None else _bound_at(expanded(uds))
    with _signals_of_a_start(), place as listening, LocalEngine(threads=1):
        app = create_app(models, default=default, split=split, salt=salt, settings=settings)
        _prepare_process(app)
        server = uvicorn.Server(
            uvicorn.Config(
                app, http="h11", ws="none", lifespan="on", log_config=None, access_log=False,
                server_header=False, proxy_headers=False, backlog=_BACKLOG,
                h11_max_incomplete_event_size=_MOST_HEAD, limit_concurrency=_MOST_CONNECTIONS,
                timeout_keep_alive=_SECONDS_OF_SILENCE, timeout_graceful_shutdown=_SECONDS_TO_STOP,
            )
        )  # fmt: skip
        app.state.on_start.append(partial(_hear_signals, app, server, settings.drain))
        listening.listen(_BACKLOG)
        _log.info("listening at %s", _url(listening))
        server.run(sockets=[listening])


@contextmanager
def _signals_of_a_start() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the process until the event loop hears them, and pass over SIGHUP.

    A handler that raises would not do: a library may swallow, in a callback, what a signal raises while
    models are opened.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _TO_STOP}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_process(app: Any) -> None:
    """Keep the event loop from waiting for the interpreter."""
    app.openapi()  # made once, in a tenth of a second in which no request should wait
    # All objects made so far stay. To look through them for garbage would stop all answers for 80 ms.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # and answers leave hardly any garbage of this kind
    sys.setswitchinterval(0.0001)  # seconds that an answer waits for a thread that makes a page or a batch


def _hear_signals(app: Any, server: Any, drain: float) -> None:
    """Reload on SIGHUP; say "not ready" for `drain` seconds before the server stops on SIGTERM or SIGINT.

    Tell systemd of the start, the end, and that the event loop turns in between.
    """
    from mrfrec.service.app import reload

    loop = asyncio.get_running_loop()
    reloading: set[asyncio.Task[None]] = set()

    def start_reload(every: bool = True) -> None:
        if len(reloading) < 2:  # one under way, and one that sees later changes
            task = asyncio.ensure_future(asyncio.to_thread(reload, app, every))
            reloading.add(task)
            task.add_done_callback(reloading.discard)

    def stop() -> None:
        server.should_exit = True

    def start_to_stop(number: signal.Signals) -> None:
        if app.state.load.is_closing:
            if number == signal.SIGINT:  # a second Ctrl-C
                server.force_exit = True
                stop()
            return
        app.state.load.is_closing = True
        _notify("STOPPING=1")
        _log.info("stopping: connections end in %g s", drain)
        loop.call_later(drain, stop)

    loop.add_signal_handler(signal.SIGHUP, start_reload)
    for number in _TO_STOP:
        loop.add_signal_handler(number, start_to_stop, number)
    start_reload(every=False)  # changes since the files were read, of which SIGHUP may have told
    _notify("READY=1")
    _keep_notifying(loop)


def _notify(state: str) -> None:
    """Send a state, such as READY=1, in one datagram."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
            sending.setblocking(False)
            sending.sendto(state.encode(), f"\0{name[1:]}" if name.startswith("@") else name)


def _keep_notifying(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop send WATCHDOG=1, twice in the time after which systemd takes it for stuck."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6

    def send() -> None:
        _notify("WATCHDOG=1")
        loop.call_later(seconds, send)

    if seconds:
        send()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _bound_at(path: Path) -> Iterator[socket.socket]:
    """Bind a Unix socket, and remove its file in the end."""
    with closing(socket.socket(socket.AF_UNIX)) as other, closing(socket.socket(socket.AF_UNIX)) as listening:
        try:
            if path.is_socket() and other.connect_ex(str(path)) != 0:
                path.unlink()  # left behind by a process that was killed
            listening.setblocking(False)
            listening.bind(str(path))
            path.chmod(0o660)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(f"{path} cannot be listened at: {reason}. Give another --uds.") from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    if check_count("port", port, least=0) > 65_535:
        raise ParameterError("port", "from 0 to 65535", port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # with these, asyncio sends small answers at once
    except (OSError, OverflowError, UnicodeError) as error:
        raise DataError(f"{host}:{port} is no address to listen at: {error}.") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setblocking(False)
    with closing(listening):
        try:
            listening.bind(address)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(f"{host}:{port} cannot be listened to: {reason}. Try another --port.") from error
        yield listening


def _url(listening: socket.socket) -> str:
    if listening.family == socket.AF_UNIX:
        return f"unix:{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
