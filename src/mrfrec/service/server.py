"""Run the service with uvicorn, in one process or several."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from mrfrec.checks import check_count
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import DataError, MissingLibraryError, ParameterError
from mrfrec.service.acceptor import Acceptor
from mrfrec.service.keys import read_keys
from mrfrec.service.settings import ServiceSettings
from mrfrec.service.workers import SECONDS_TO_STOP, Workers

_log = logging.getLogger("mrfrec.service")

_BACKLOG = 2048  # connections that wait to be accepted
_FAREWELL = 0.3  # seconds in which all answers say that their connection will be closed


def serve(
    models: Mapping[str, Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    default: str | None = None,
    split: Mapping[str, float] | None = None,
    settings: ServiceSettings | None = None,
    no_auth: bool = False,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Serve models until the process is told to stop by SIGTERM or SIGINT; SIGHUP opens the models anew.

    With several workers, each is a process; all map the same model files and listen to the same socket. One
    that dies is replaced. What is under way when the service is told to stop is finished, within ten seconds.

    Parameters
    ----------
    models, default, split, settings
        As in `create_app`.
    host, port
        Where to listen; a free port if 0. Elsewhere than on this machine's own addresses keys are needed,
        unless `no_auth` says that they are not.
    workers
        Number of processes.
    prepare
        Called first in each worker process, for example to set up logging; importable by name.
    """
    settings = settings or ServiceSettings()
    if not no_auth and settings.keys is None and not _is_loopback(host):
        raise ParameterError(
            "keys", f"given where others can reach the service, as at {host}", None,
            "Make one with mrfrec key, or say no_auth (--no-auth) if everybody may ask.",
        )  # fmt: skip
    if settings.keys is not None:
        read_keys(settings.keys)  # fail before anything takes time
    check_count("workers", workers)
    try:
        import uvicorn  # noqa: F401

        from mrfrec.service.app import create_app
    except ImportError:
        raise MissingLibraryError('serving needs FastAPI and uvicorn: pip install "mrfrec[serve]".') from None
    make = partial(create_app, dict(models), default=default, split=split, settings=settings)
    with closing(_bound(host, port)) as listening, LocalEngine(threads=1):  # the workers share the cores
        app: Any = make()  # what cannot be opened is an error of the command, and nobody was let in
        listening.listen(_BACKLOG)
        _log.info("listening at %s", _url(listening))
        if workers == 1:
            _run(app, listening)
            return
        del app
        from mrfrec.service.metrics import Row, size_of_rows

        with tempfile.TemporaryDirectory(prefix="mrfrec-") as folder:
            counts = Path(folder) / "counts"
            counts.write_bytes(bytes(size_of_rows(len(models), workers)))
            rows = [Row(counts, worker, workers) for worker in range(workers)]
            work = [partial(_work, make, row, listening, prepare) for row in rows]
            Workers(work, leave=listening.close).run()  # nobody waits to be accepted by this process


def _work(
    make: Callable[..., Any], row: Any, listening: socket.socket, prepare: Callable[[], None] | None
) -> None:
    """Serve in a worker process."""
    if prepare is not None:
        prepare()
    with LocalEngine(threads=1):
        _run(make(row=row), listening)


def _run(app: Any, listening: socket.socket) -> None:
    """Serve until told to stop. `app` is a `Door`."""
    import uvicorn

    try:
        from mrfrec.service.heads import HeadLimits as Protocol
    except ImportError:  # no httptools: h11, which has limits of its own
        Protocol = "h11"  # type: ignore[assignment, misc]
    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="on", access_log=False, log_config=None, server_header=False,
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
                loop = runner.get_loop()
                loop.call_soon_threadsafe(loop.call_later, _FAREWELL, leave)
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
    handled = {signal.SIGHUP: apart(app.reload), signal.SIGIO: apart(app.shelf.give_way)}
    for each, handle in handled.items():
        loop.add_signal_handler(each, handle)
    app.shelf.lease()
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
        app.shelf.end_leases()
        for each in handled:
            loop.remove_signal_handler(each)
        for each, handler in before.items():
            signal.signal(each, handler)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    if check_count("port", port, least=0) > 65_535:
        raise ParameterError("port", "from 0 to 65535", port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # with these, asyncio sends small answers at once
    except (OSError, OverflowError, UnicodeError) as error:
        raise DataError(f"{host}:{port} is no address to listen at: {error}.") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setblocking(False)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{host}:{port} cannot be listened to: {reason}. Try another --port.") from error
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
