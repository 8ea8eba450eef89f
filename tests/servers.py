"""Services that tests ask over a socket."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import uvicorn

from mrfrec import MRF, read_interactions

TABLE = [
    (user, item)
    for user in range(60)
    for item in ("milk", "bread", "jam", "tea", "beer", "nuts", "crisps")[(user % 3) * 2 :][:3]
]


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application over a socket, in a thread; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def save_shop(path: Path, **parameters: Any) -> Path:
    """Fit a model of a few groceries, with titles and histories."""
    table = pl.DataFrame(TABLE, schema=["user", "item"], orient="row")
    table = table.with_columns(title=pl.lit("the ") + pl.col("item"))
    MRF(threads=1, **parameters).fit(read_interactions(table)).save(path, include_histories=True)
    return path
