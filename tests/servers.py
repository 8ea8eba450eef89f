"""Services that tests ask over a socket."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Self

import httpx
import polars as pl
import uvicorn

from mrfrec import MRF, read_interactions, read_item_features
from mrfrec.data.ids import Texts
from mrfrec.service import ServiceSettings, create_app
from mrfrec.service.access_control import new_key

ASK = {"history": ["milk", "tea"], "k": 3}
JSON = {"Content-Type": "application/json"}
TABLE = [
    (user, item)
    for user in range(60)
    for item in ("milk", "bread", "jam", "tea", "beer", "nuts", "crisps")[(user % 3) * 2 :][:3]
]


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """Serve an application over a socket, in a thread; yield its URL."""
    options = {"http": "h11", "ws": "none", **options}
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, **options))
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


# Services of tests speak plain HTTP: httpx need not read all certificates, which takes 40 ms for each client.
CLIENT: dict[str, Any] = {"verify": False}


def got(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, **CLIENT, **options)


def posted(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, **CLIENT, **options)


@contextmanager
def asking(models: Any, **settings: Any) -> Iterator[httpx.Client]:
    """Serve models with these settings; yield a client of the service."""
    app = create_app(models, settings=ServiceSettings(**settings))
    with serving(app) as url, httpx.Client(base_url=url, timeout=60, **CLIENT) as client:
        yield client


def sent(url: str, text: bytes, room: int | None = None) -> socket.socket:
    """Connect to a service, with a receive buffer of `room` bytes, and send bytes."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    connection = socket.socket()
    if room is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    connection.sendall(text)
    return connection


def post(path: str, body: bytes) -> bytes:
    """Return the bytes of a request with JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def raw(url: str, text: bytes, pause: float = 0.0, rest: bytes = b"") -> bytes:
    """Send bytes and return everything that comes back until the server closes the connection."""
    with sent(url, text) as connection:
        if rest:
            time.sleep(pause)
            connection.sendall(rest)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """Return everything that comes until the server closes the connection."""
    found = b""
    with suppress(ConnectionResetError):  # it was closed before it took all that was sent
        while piece := connection.recv(1_000_000):
            found += piece
    return found


def save_shop(path: Path, **parameters: Any) -> Path:
    """Fit a model of a few groceries, with titles and histories."""
    table = pl.DataFrame(TABLE, schema=["user", "item"], orient="row")
    table = table.with_columns(title=pl.lit("the ") + pl.col("item"))
    MRF(threads=1, **parameters).fit(read_interactions(table)).save(path, include_histories=True)
    return path


def save_tagged(path: Path) -> Path:
    """Fit a model of items with tags, which look like HTML: p0 and p12 have 30, and p12 has no users."""
    pairs = [(user, f"p{item}") for user in range(40) for item in range(12) if (user + item) % 3 == 0]
    table = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    tags = [[f"tag {n}" for n in range(30)] if item % 12 == 0 else ["plain"] for item in range(13)]
    items = pl.DataFrame({"item": [f"p{item}" for item in range(13)], "tags": tags})
    features = read_item_features(items)
    names = Texts.of(name.replace(": ", ": <b>") for name in features.names)
    MRF(threads=1, measure=False).fit(table, item_features=replace(features, names=names)).save(path)
    return path


PRODUCTS = 120


def products() -> pl.DataFrame:
    """Return a table of items with columns of all kinds, some with odd names and values, some empty."""
    n = range(PRODUCTS)
    return pl.DataFrame(
        {
            "item": [f"p{i}" for i in n],
            "title": [f"the product {i}" for i in n],
            "category": [["shoes", "shirts & ties", "<b>hats</b>", None][i % 4] for i in n],
            "brand": [f"brand {i % 12}" for i in n],
            "price": [5.0 + i / 4 if i % 7 else None for i in n],
            "in_stock": [i % 3 > 0 for i in n],
            "on_sale": [i % 5 == 0 for i in n],
            "tags": [[f"tag {i % 2}", f"tag {i % 3}"] if i % 4 else [] for i in n],
            "added": [date(2026, 1, 1) + timedelta(days=i) for i in n],
            "sku": [f"sku-{i}" for i in n],
            'odd "name" & <b>': [i % 2 for i in n],
            "nothing": [None for _ in n],
        },
        schema_overrides={"nothing": pl.String},
    )


def save_products(path: Path) -> Path:
    """Fit a model of a shop with the table of `products`."""
    pairs = [
        (user, f"p{item}") for user in range(90) for item in range(PRODUCTS) if (user * item + user) % 7 == 1
    ]
    table = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    rows = products()
    data = read_interactions(table, items=rows)
    MRF(threads=1, measure=False).fit(data).save(path)
    return path


def save_keys(file: Path) -> tuple[str, str]:
    """Write a file of two keys; return the key web, which may read, and the key ops, which may manage."""
    (read, first), (manage, second) = new_key("web"), new_key("ops", "manage")
    file.write_text(f"# who may ask\n{first}\n\n{second}\n")
    return read, manage


class Command:
    """`mrfrec serve …` in a process of its own, with a free port; stopped when the block ends."""

    def __init__(
        self, folder: Path, *arguments: object, code: str = "", python: object = sys.executable
    ) -> None:
        """Start the command, or Python code that serves with these arguments."""
        self._log = folder / "log"
        start = ["-c", code] if code else ["-m", "mrfrec", "serve", "--port", "0"]
        command = [str(python), *start, *map(str, arguments)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def __enter__(self) -> Self:
        self.wait_for("listening at")
        self.url = re.findall(r"listening at (http://[^\s\"]+)", self.log)[0]
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, words: str, times: int = 1, seconds: float = 60) -> None:
        """Wait until words stand in the log."""
        end = time.monotonic() + seconds
        while self.log.count(words) < times:
            assert time.monotonic() < end, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(how)
        return self.process.wait(20)


def eventually(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
