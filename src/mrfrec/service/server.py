"""Run the service with uvicorn, in one process, and write its log."""

import asyncio
import gc
import ipaddress
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import FileIO
from logging.handlers import QueueHandler
from os import PathLike
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from mrfrec.checks import check_count, missing_extra
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.service.settings import ServiceSettings

_log = logging.getLogger("mrfrec.service")

_TO_STOP = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048  # connections that wait to be accepted
_SECONDS_TO_STOP = 10  # time for requests under way when the service is told to stop
_SECONDS_OF_SILENCE = 30  # time between an answer and the next request of a connection
_MOST_HEAD = 65_536  # bytes of the head of a request
# This bound is far above the queue. Of the usual 1,024 open files, it leaves 100 for everything else.
_MOST_CONNECTIONS = 900
# Lines of the log that wait. With --log-requests, a line may have 60,000 bytes.
_MOST_LINES = 2000
_SECONDS_TO_WRITE = 1.0  # time at the end to write the lines of the log that wait


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
    """Serve models until SIGTERM or SIGINT. SIGHUP opens the models anew.

    The service is one process. Several services behind a proxy map the same model file, which is in memory
    once. When the service is told to stop, it finishes the requests under way, within ten seconds.

    Parameters
    ----------
    models, default, split, salt, settings
        As in `create_app`.
    host, port
        The address to listen at; port 0 is a free port. If other machines can reach the address, keys are
        needed.
    uds
        Path of a Unix socket to listen at, in place of host and port. Its user and group may connect.
    no_auth
        Need no keys, although other machines can reach the address.
    """
    settings = settings or ServiceSettings()
    if not no_auth and settings.keys is None and uds is None and not _is_loopback(host):
        raise ParameterError(
            "keys", f"given where others can reach the service, as at {host}", None,
            "Make one with mrfrec serve --new-key, or say no_auth (--no-auth) if everybody may ask.",
        )  # fmt: skip
    try:
        import uvicorn

        from mrfrec.service.access_control import read_keys
        from mrfrec.service.app import create_app
    except ImportError:
        raise missing_extra("serving needs FastAPI and uvicorn", "serve") from None
    if settings.keys is not None:
        # Fail before anything takes time.
        read_keys(settings.keys)
    # Nobody can connect before all models are open: a model that cannot be opened ends the command.
    bound = _bound(host, port) if uds is None else _bound_at(expanded(uds))
    with _signals_of_a_start(), bound as listening, LocalEngine(threads=1):
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
    """Let SIGTERM and SIGINT end the process, and ignore SIGHUP, until the event loop handles signals.

    A handler that raises is not enough: while models are opened, a library may swallow its error in a
    callback.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _TO_STOP}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_process(app: Any) -> None:
    """Do slow work now, and keep the interpreter from pausing the event loop later."""
    # FastAPI makes the description once, which takes a tenth of a second.
    app.openapi()
    # All objects made so far stay. A search for garbage among them would stop all answers for 80 ms, and
    # answers leave hardly any cyclic garbage.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    # An answer waits at most this time, in seconds, for a thread that makes a page or a batch.
    sys.setswitchinterval(0.0001)


def _hear_signals(app: Any, server: Any, drain: float) -> None:
    """Reload on SIGHUP. On SIGTERM or SIGINT, say "not ready" for `drain` seconds, then stop the server.

    systemd is told that the service is ready, that its event loop turns, and that it stops.
    """
    from mrfrec.service.app import reload

    loop = asyncio.get_running_loop()
    reloading: set[asyncio.Task[None]] = set()

    def start_reload(every: bool = True) -> None:
        # One reload is under way, and one more will see later changes.
        if len(reloading) < 2:
            task = asyncio.ensure_future(asyncio.to_thread(reload, app, every))
            reloading.add(task)
            task.add_done_callback(reloading.discard)

    def stop() -> None:
        server.should_exit = True

    def start_to_stop(number: signal.Signals) -> None:
        if app.state.load.is_closing:
            # A second Ctrl-C stops the server at once.
            if number == signal.SIGINT:
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
    # Files may have changed since they were read, and SIGHUP was ignored meanwhile.
    start_reload(every=False)
    _notify("READY=1")
    _keep_notifying(loop)


def _notify(state: str) -> None:
    """Send systemd a state, such as READY=1: see sd_notify(3).

    systemd names its socket in the environment. Without systemd, nothing is sent.
    """
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
            sending.setblocking(False)
            sending.sendto(state.encode(), f"\0{name[1:]}" if name.startswith("@") else name)


def _keep_notifying(loop: asyncio.AbstractEventLoop) -> None:
    """Let the event loop send WATCHDOG=1 twice in the time after which systemd considers it stuck."""
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
                # A process that was killed has left it behind.
                path.unlink()
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
        # Only a socket with its protocol makes asyncio send small answers at once.
        listening = socket.socket(family, kind, protocol)
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


# ── the log ───────────────────────────────────────────────────────────────────────────────────────


class LineQueue(QueueHandler):
    """Formats records and puts them into a queue; drops a record if the queue is full."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put the line of a record into the queue."""
        try:
            self.queue.put_nowait(record.getMessage())
        except Full:
            self.dropped += 1


@contextmanager
def lines_in_thread(names: Sequence[str], formatter: logging.Formatter) -> Iterator[None]:
    """Let a thread write the lines of these loggers. At the end they get their own handlers back.

    The program that reads stderr may stop, and a pipe holds only 64 KB: then the service would wait for ever
    in the middle of a request. With a queue, only the thread waits. While the queue is full, lines are
    dropped and counted.
    """
    lines: Queue[str | None] = Queue(_MOST_LINES)
    thread = Thread(target=_write, args=(lines,), name="log", daemon=True)
    thread.start()
    handler = LineQueue(lines)
    handler.setFormatter(formatter)
    own = {name: _exchange(name, [handler]) for name in names}
    try:
        yield
    finally:
        for name, handlers in own.items():
            _exchange(name, handlers)
        with suppress(Full):
            lines.put(None, timeout=_SECONDS_TO_WRITE)
        # The thread may wait for ever, but a daemon does not keep the process from ending.
        thread.join(_SECONDS_TO_WRITE)


def _exchange(name: str, handlers: Sequence[logging.Handler]) -> list[logging.Handler]:
    """Set the handlers of a logger and return its earlier handlers."""
    logger = logging.getLogger(name)
    before = logger.handlers[:]
    for handler in before:
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    return before


def _write(lines: "Queue[str | None]") -> None:
    """Write lines to the stderr of this process until None comes.

    This uses neither the buffer of `sys.stderr` nor the lock of a handler: at its end, Python would wait for
    the thread that holds them.
    """
    own = os.devnull if sys.__stderr__ is None else sys.__stderr__.fileno()
    with FileIO(own, "w", closefd=isinstance(own, str)) as stderr:
        while (line := lines.get()) is not None:
            rest = f"{line}\n".encode(errors="backslashreplace")
            # The program that reads stderr may have closed it.
            with suppress(OSError):
                while rest:
                    written = stderr.write(rest)
                    # Somebody has made the pipe non-blocking, and it is full.
                    if written is None:
                        select.select([], [stderr], [])
                    rest = rest[written or 0 :]
