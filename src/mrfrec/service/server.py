"""Run the service with uvicorn, in one process or several."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import parent_process
from os import PathLike
from pathlib import Path
from typing import Any

from mrfrec.checks import check_count, missing_extra
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import DataError, MrfrecError, ParameterError, ServiceError
from mrfrec.io.atomic import expanded
from mrfrec.service.keys import read_keys
from mrfrec.service.settings import ServiceSettings

_log = logging.getLogger("mrfrec.service")

_TO_STOP = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048  # connections that wait to be accepted
_SECONDS_TO_STOP = 10  # for requests under way when the service is told to stop
_SECONDS_OF_SILENCE = 30  # that a worker may give no sign of life, as when it starts, before it is replaced
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

    With several workers, each is a process; all map the same model files and listen to the same socket. A
    worker that dies is replaced. Requests under way when the service is told to stop are finished, within ten
    seconds.

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
    if not hasattr(signal, "SIGHUP"):
        raise ServiceError("mrfrec serve needs Linux or macOS. On Windows, run it in WSL or a container.")
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
        import uvicorn

        from mrfrec.service.app import create_app, paths_of
        from mrfrec.service.connections import Connection, Connections
        from mrfrec.service.listening import Loop, Shares
        from mrfrec.service.metrics import shared_folder
        from mrfrec.service.served import ServedModels
    except ImportError:
        raise missing_extra("serving needs FastAPI and uvicorn", "serve") from None
    paths = paths_of(models)
    make = partial(create_app, paths, default=default, split=split, salt=salt, settings=settings)
    connections = Connections(settings.write_seconds)
    options: Any = {
        "http": partial(Connection, connections), "loop": partial(Loop, connections),
        "ws": "none", "lifespan": "on", "log_config": None, "access_log": False,
        "server_header": False, "proxy_headers": False, "backlog": _BACKLOG, "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": _SECONDS_TO_STOP, "timeout_worker_healthcheck": _SECONDS_OF_SILENCE,
    }  # fmt: skip
    # A model that cannot be opened is an error of the command, before anybody can connect.
    place = _bound(host, port) if uds is None else _bound_at(expanded(uds))
    with _noting_signals() as told, place as listening, LocalEngine(threads=1):
        if workers == 1:
            app = make()
            _prepare_process(app, settings.drain)
            app.state.on_start.append(lambda: signal.raise_signal(told[0]) if told else None)
            _listen(listening)
            # When it has stopped, the server raises the signal once more, for handlers set before.
            for number in _TO_STOP:
                signal.signal(number, lambda number, _: told.append(number))
            uvicorn.Server(uvicorn.Config(app, **options)).run([listening])
            return
        ServedModels(paths, default, split, salt=salt)
        _listen(listening)
        options["loop"] = partial(Loop, connections, Shares())
        with shared_folder(workers, len(paths)):
            worker = partial(_worker, make, settings.drain, prepare)
            _supervise(uvicorn.Config(worker, factory=True, workers=workers, **options), [listening], told)


@contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Yield a list that takes the signals that tell this process to stop; SIGHUP is blocked meanwhile.

    Without the list they could get lost: a library may swallow, in a callback, what a signal raises while the
    service starts.
    """
    told: list[int] = []
    before = {number: signal.getsignal(number) for number in _TO_STOP}

    def note(number: int, frame: Any) -> None:
        told.append(number)
        handler = before[signal.Signals(number)]
        assert callable(handler)
        handler(number, frame)

    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, note)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield told
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _listen(listening: socket.socket) -> None:
    """Let clients connect."""
    listening.listen(_BACKLOG)
    _log.info("listening at %s", _url(listening))


def _supervise(config: Any, sockets: list[socket.socket], told: list[int]) -> None:
    """Run workers until told to stop; a worker that dies is replaced, SIGHUP is passed on to all.

    `told` are the signals that came before. SIGHUP is blocked here except for a moment in each round. Workers
    inherit that, and unblock it once they can handle it: while they start, it would end them.
    """
    from uvicorn.supervisors import Multiprocess

    class Supervisor(Multiprocess):
        def handle_signals(self) -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # one that has arrived is handled now
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
            super().handle_signals()

        def handle_hup(self) -> None:
            for process in self.processes:
                if process.pid is not None and process.process.is_alive():
                    os.kill(process.pid, signal.SIGHUP)

        def keep_subprocess_alive(self) -> None:
            before = list(self.processes)
            for process in before:
                # If the worker's end of the pipe were open here, too, a dead worker would be waited for.
                process.child_conn.close()
            super().keep_subprocess_alive()
            for process in before:
                if process not in self.processes:
                    _log.warning("worker %d died (%s) and is replaced", process.pid, _end_of(process))

        def terminate_all(self) -> None:
            for each in sockets:  # this process accepts no connection
                each.close()
            super().terminate_all()

    supervisor = Supervisor(config, sockets)  # which hears signals from now on
    if not told:
        supervisor.run()


def _end_of(process: Any) -> str:
    """Return how a process ended: SIGKILL, or exit code 1."""
    try:
        return signal.Signals(-process.exitcode).name
    except ValueError:  # it was no signal, or one without a name
        return f"exit code {process.exitcode}"


def _worker(make: Callable[[], Any], drain: float, prepare: Callable[[], None] | None) -> Any:
    """Create the application of a worker process, which waits until all its models can be opened."""
    if prepare is not None:
        prepare()
    LocalEngine(threads=1).__enter__()  # for as long as the process lives
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which the server would hear only later
    parent = parent_process()
    said = ""
    while parent is not None and parent.is_alive():
        try:
            app = make()
            break
        except (MrfrecError, OSError) as error:
            if str(error) != said:
                said = str(error)
                _log.error("worker %d waits: %s", os.getpid(), error)
            time.sleep(_LOOK_AGAIN)
    else:
        raise SystemExit(1)
    signal.signal(signal.SIGTERM, before)
    _prepare_process(app, drain)
    _log.info("worker %d starts", os.getpid())
    return app


def _prepare_process(app: Any, drain: float) -> None:
    """Let the application hear signals, and keep the event loop from waiting for the interpreter."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the event loop hears it
    app.openapi()  # made once, in a tenth of a second in which no request should wait
    app.state.on_start.append(partial(_hear_signals, app, drain))
    # All objects made so far stay. To look through them for garbage would stop all answers for 80 ms.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # and answers leave hardly any garbage of this kind
    sys.setswitchinterval(0.0001)  # seconds that an answer waits for a thread that makes a page or a batch


def _hear_signals(app: Any, drain: float) -> None:
    """Reload on SIGHUP; say "not ready" for `drain` seconds before the server stops on SIGTERM or SIGINT."""
    from mrfrec.service.app import reload

    loop = asyncio.get_running_loop()
    stop = signal.getsignal(signal.SIGTERM)
    assert callable(stop)
    reloading: set[asyncio.Task[None]] = set()

    def start_reload(every: bool = True) -> None:
        if len(reloading) < 2:  # one under way, and one that sees later changes
            task = asyncio.ensure_future(asyncio.to_thread(reload, app, every))
            reloading.add(task)
            task.add_done_callback(reloading.discard)

    def start_to_stop(number: int, frame: Any) -> None:
        if app.state.load.is_closing:
            if number == signal.SIGINT:
                stop(number, frame)
            return
        app.state.load.is_closing = True
        _log.info("stopping: connections end in %g s", drain)
        loop.call_soon_threadsafe(loop.call_later, drain, stop, number, frame)

    loop.add_signal_handler(signal.SIGHUP, start_reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    start_reload(every=False)  # changes since the files were read
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, start_to_stop)
    parent = parent_process()
    if parent is not None:

        def tell_others() -> None:
            if parent.is_alive() and parent.pid is not None:
                os.kill(parent.pid, signal.SIGHUP)

        def stop_alone() -> None:
            loop.remove_reader(parent.sentinel)
            signal.raise_signal(signal.SIGTERM)

        app.state.tell_others = tell_others
        loop.add_reader(parent.sentinel, stop_alone)  # a worker whose parent was killed would serve for ever


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
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
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
