"""Run the service with uvicorn, in one process or several."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import parent_process
from os import PathLike
from pathlib import Path
from typing import Any

from mrfrec.checks import check_count
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import DataError, MissingLibraryError, MrfrecError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.service.acceptor import Acceptor
from mrfrec.service.keys import read_keys
from mrfrec.service.settings import ServiceSettings
from mrfrec.service.workers import SECONDS_TO_STOP, Workers

_log = logging.getLogger("mrfrec.service")

_BACKLOG = 2048  # connections that wait to be accepted
_LOOK_AGAIN = 1.0  # seconds until a worker tries again to open a model
_UNTAKEN = 30_000  # milliseconds until the system ends a connection whose client takes nothing


def serve(
    models: "str | PathLike[str] | Mapping[str, str | PathLike[str]]",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: "str | PathLike[str] | None" = None,
    workers: int = 1,
    default: str | None = None,
    split: Mapping[str, float] | None = None,
    salt: str = "",
    settings: ServiceSettings | None = None,
    no_auth: bool = False,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Serve models until the process is told to stop by SIGTERM or SIGINT; SIGHUP opens the models anew.

    With several workers, each is a process; all map the same model files and listen to the same socket. One
    that dies is replaced. What is under way when the service is told to stop is finished, within ten seconds.

    Parameters
    ----------
    models, default, split, salt, settings
        As in `create_app`.
    host, port
        Where to listen; a free port if 0. Elsewhere than on this machine's own addresses keys are needed,
        unless `no_auth` says that they are not.
    uds
        Path of a Unix socket to listen at, in place of host and port. Its user and group may connect.
    workers
        Number of processes.
    prepare
        Called first in each worker process, for example to set up logging; importable by name.
    """
    settings = settings or ServiceSettings()
    if not no_auth and settings.keys is None and uds is None and not _is_loopback(host):
        raise ParameterError(
            "keys", f"given where others can reach the service, as at {host}", None,
            "Make one with mrfrec key, or say no_auth (--no-auth) if everybody may ask.",
        )  # fmt: skip
    if settings.keys is not None:
        read_keys(settings.keys)  # fail before anything takes time
    check_count("workers", workers)
    try:
        import uvicorn  # noqa: F401

        from mrfrec.service.app import create_app, paths_of
    except ImportError:
        raise MissingLibraryError('serving needs FastAPI and uvicorn: pip install "mrfrec[serve]".') from None
    paths = paths_of(models)
    make = partial(create_app, paths, default=default, split=split, salt=salt, settings=settings)
    # The workers share the cores.
    with _bound(host, port) if uds is None else _bound_at(expanded(uds)) as listening, LocalEngine(threads=1):
        app: Any = make()  # a model that cannot be opened is an error of the command, and nobody was let in
        listening.listen(_BACKLOG)
        _log.info("listening at %s", _url(listening))
        if workers == 1:
            _run(app, listening)
            return
        del app
        from mrfrec.service.metrics import shared_rows

        work = [partial(_work, make, row, listening, prepare) for row in shared_rows(len(paths), workers)]
        # Nobody waits to be accepted by this process.
        Workers(work, leave=listening.close, seconds=SECONDS_TO_STOP + settings.drain).run()


def _work(
    make: Callable[..., Any], row: Any, listening: socket.socket, prepare: Callable[[], None] | None
) -> None:
    """Serve in a worker process."""
    if prepare is not None:
        prepare()
    with LocalEngine(threads=1):
        _run(_opened(make, row), listening)


def _opened(make: Callable[..., Any], row: Any) -> Any:
    """Create the application of a worker.

    While a model cannot be opened, the worker waits as long as others answer; alone, it serves what it can.
    """
    from mrfrec.service.metrics import others_serve

    parent, told = parent_process(), ""
    while True:
        try:
            return make(row=row)
        except (MrfrecError, OSError) as error:
            if not others_serve(row):
                return make(row=row, strict=False)
            if str(error) != told:
                told = str(error)
                _log.error("this worker waits, while others serve what they can: %s", error)
        if parent is None or not parent.is_alive():
            raise SystemExit(1)
        parent.join(_LOOK_AGAIN)


def _run(app: Any, listening: socket.socket) -> None:
    """Serve until told to stop. `app` is a `Door`."""
    import uvicorn

    try:
        from mrfrec.service.heads import limits_for
    except ImportError:  # no httptools: h11, which has limits of its own
        protocol: Any = "h11"
    else:
        protocol = limits_for(app)
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="on", access_log=False, log_config=None, server_header=False,
        proxy_headers=False, backlog=_BACKLOG, timeout_keep_alive=30,
        timeout_graceful_shutdown=SECONDS_TO_STOP,
    )  # fmt: skip
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    # All workers share the socket and whether it blocks. If it did for a moment, a worker that another was
    # faster than to accept would wait for the next connection.
    listening.setblocking(False)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=[])
            kind: Any = config.http_protocol_class
            make = partial(kind, config=config, server_state=self.server_state, app_state=self.lifespan.state)
            self.servers = [Acceptor(listening, make, app.metrics.is_ahead)]  # type: ignore[list-item]

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Let the clients know before connections are closed, into which they might be sending."""
            leave = partial(super().handle_exit, sig, frame)
            if not app.is_closing:
                app.is_closing = True
                _log.info("stopping: connections end in %g s", app.drain)
                loop = runner.get_loop()
                loop.call_soon_threadsafe(loop.call_later, app.drain, leave)
            elif sig == signal.SIGINT:
                leave()

    # What was made until here stays. To look through it for garbage takes 80 ms, in which nobody is answered.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # and what answers leave behind is hardly ever garbage of this kind
    sys.setswitchinterval(0.0001)  # seconds that an answer waits for a thread that makes a page or a batch
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(Server(config), app))


async def _serve(server: Any, app: Any) -> None:
    loop = asyncio.get_running_loop()

    def apart(work: Callable[[], None]) -> Callable[[], None]:
        under_way: set[asyncio.Future[None]] = set()

        def start() -> None:
            if len(under_way) < 2:  # one is under way, and another will see what has changed since
                task = asyncio.ensure_future(asyncio.to_thread(work))
                under_way.add(task)
                task.add_done_callback(under_way.discard)

        return start

    def leave() -> None:
        server.should_exit = True

    # uvicorn stops at these two, and raises them once more in the end for those who listened before: nobody.
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)}
    loop.add_signal_handler(signal.SIGHUP, apart(app.reload))
    apart(app.catch_up)()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    parent = parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, leave)  # nobody would stop a worker whose parent was killed
    try:
        await server.serve()
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
        loop.remove_signal_handler(signal.SIGHUP)
        for each, handler in before.items():
            signal.signal(each, handler)


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
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # what is accepted here has it, too
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN)
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
