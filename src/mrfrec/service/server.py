"""Run the service with uvicorn, in one process or several."""

import functools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrfrec.errors import DataError, MissingLibraryError
from mrfrec.service.settings import ServiceSettings


def serve(
    models: Mapping[str, Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    default: str | None = None,
    split: Mapping[str, float] | None = None,
    settings: ServiceSettings | None = None,
) -> None:
    """Serve models until the process is told to stop.

    With several workers, each is a process; all map the same model files. One that dies is replaced.
    """
    try:
        import uvicorn
        from uvicorn.supervisors import Multiprocess

        from mrfrec.service.app import create_app
    except ImportError:
        raise MissingLibraryError('serving needs FastAPI and uvicorn: pip install "mrfrec[serve]".') from None
    make = functools.partial(create_app, dict(models), default=default, split=split, settings=settings)
    # One process opens the models before it listens: what cannot be opened is an error of the command.
    app: Any = make() if workers == 1 else make
    config = uvicorn.Config(
        app, host=host, port=port, factory=workers > 1, workers=workers, access_log=False, log_config=None,
        server_header=False, timeout_graceful_shutdown=10,
    )  # fmt: skip
    with _bound(config, host, port) as listening:
        server = uvicorn.Server(config)
        if workers == 1:
            server.run(sockets=[listening])
        else:
            Multiprocess(config, sockets=[listening]).run()


def _bound(config: Any, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise DataError(
            f"{host}:{port} cannot be listened to: {error.strerror}. Try another --port."
        ) from error
    listening.set_inheritable(True)
    return listening
