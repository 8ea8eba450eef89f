"""Attack the service alone, and two of them behind nginx, and print what holds.

    python -m benchmarks.attacks

Everything stays on this machine and has an end. Attackers come from 127.0.0.2. Meanwhile a visitor from
127.0.0.1 asks for recommendations five times a second: the service holds if 95 of 100 questions are answered
within three seconds, and if it needs less than 400 MB more. Also: keys under a prefix, and commands that
rewrite one model file at once. Needs nginx (apt-get install nginx-light).
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import scipy.sparse as sp

from benchmarks.behind_nginx import free_port, nginx
from mrfrec import MRF, load
from mrfrec.service.access_control import new_key

SECONDS = 15.0  # of each attack
Usage = Callable[[], float]  # tells the memory of a process, in MB

_APP = """
import sys
import uvicorn
from fastapi import FastAPI
from mrfrec.service import ServiceSettings, create_app
app = create_app(sys.argv[1], settings=ServiceSettings(keys=sys.argv[2] or None))
if sys.argv[4] == "mount":
    inner, app = app, FastAPI()
    app.mount("/recs", inner)
root = "/recs" if sys.argv[4] == "root" else ""
uvicorn.run(app, port=int(sys.argv[3]), root_path=root, log_level="critical")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _model(folder / "shop.mrf")
        for how in ("root", "mount"):
            _prefix(model, how, folder)
        with _service(model) as (url, usage):
            print("── the service alone", flush=True)
            _attack_all(url, [usage])
        with _service(model) as (first, usage), _service(model) as (second, other):
            ports = [int(str(urlsplit(url).port)) for url in (first, second)]
            with nginx(folder, ports) as url:
                print("── two services behind nginx", flush=True)
                _attack_all(url, [usage, other])
    _rewriting()


def _service(model: Path) -> Any:
    return _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off")


def _model(path: Path) -> Path:
    """Fit a model of 20,000 items, with a user who has 4,000 of them."""
    rng = np.random.default_rng(0)
    users = np.append(np.repeat(np.arange(1, 20_000), 50), np.zeros(4000, int))
    items = np.append((20_000 * rng.random(50 * 19_999) ** 2).astype(int), np.arange(4000))
    X = sp.csr_array((np.ones(len(users)), (users, items)), (20_000, 20_000))
    X.data[:] = 1.0
    MRF(sparsity=0.005, rank=0).fit(X).save(path, include_histories=True)
    return path


@contextmanager
def _process(*command: object) -> Iterator[tuple[str, Usage]]:
    """Start a service; gives its URL, and what tells its memory."""
    port = free_port()
    arguments = [str(port if one is ... else one) for one in command]
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def usage() -> float:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 1e6

    try:
        for _ in range(600):
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url, usage
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()


def _prefix(model: Path, how: str, folder: Path) -> None:
    (read, first), (manage, second) = new_key("web"), new_key("ops", "manage")
    keys = folder / "keys"
    keys.write_text(f"{first}\n{second}\n")
    with _process("-c", _APP, model, keys, ..., how) as (url, _):
        prefix = f"{url}/recs" if how == "mount" else url
        reload = f"{prefix}/v1/models/shop/reload"
        found = {
            "read key reloads": httpx.post(reload, headers={"X-API-Key": read}).status_code,
            "manage key by Basic": httpx.post(reload, auth=("me", manage)).status_code,
            "manage key": httpx.post(reload, headers={"X-API-Key": manage}, timeout=30).status_code,
            "health": httpx.get(f"{prefix}/health").status_code,
        }
    print(f"prefix by {how}: {found}", flush=True)


def _attack_all(url: str, usages: list[Usage]) -> None:
    attacks = {
        "batches beyond the limit of cost": _costly,
        "questions that cost much": _hard,
        "bodies of 4 MB, and of 5": _large,
        "40 clients that do not take 7 MB": _not_taken,
        "endless heads": _heads,
        "endless tiny chunks, and requests without a pause": _pieces,
        "2,000 silent connections": _silent,
        "100 bodies that drip": _dripping,
        "64 connections that ask without a pause": _flood,
        "24 clients that reload": _reloading,
    }
    for name, attack in attacks.items():
        _watch(name, attack, url, usages)


def _watch(name: str, attack: Callable[[str, float], object], url: str, usages: list[Usage]) -> None:
    """Run an attack for some seconds while a visitor asks, and print how both fare."""
    before, peak, seconds = sum(usage() for usage in usages), 0.0, []
    statuses: Counter[int | str] = Counter()
    end = time.monotonic() + SECONDS
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(attack, url, end)
        time.sleep(1)
        while time.monotonic() < end:
            start = time.monotonic()
            try:
                with httpx.Client(timeout=5) as visitor:
                    answer = visitor.post(f"{url}/v1/recommend", json={"history": [1, 2], "k": 10})
                status: int | str = answer.status_code
            except httpx.HTTPError as error:
                status = type(error).__name__
            took = time.monotonic() - start
            statuses[status] += 1
            seconds.append(took if status == 200 else np.inf)
            peak = max(peak, sum(usage() for usage in usages))
            time.sleep(max(0.0, 0.2 - took))
        what = running.result()
    share = float(np.mean(np.array(seconds) < 3))
    verdict = "holds" if share >= 0.95 and peak - before < 400 else "DOES NOT HOLD"
    slowest = max((one for one in seconds if one < np.inf), default=np.inf)
    print(
        f"{name}: {verdict}; attackers get {what}; the visitor {dict(statuses)}, slowest answer "
        f"{slowest:.2f} s; memory {before:.0f} → {peak:.0f} MB", flush=True,
    )  # fmt: skip
    time.sleep(2)  # until what the attack has left has ended


def _connected(url: str, text: bytes, room: int | None = None) -> socket.socket:
    """Connect as an attacker, with so many bytes of room for answers, and send bytes."""
    connection = socket.socket()
    if room is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.settimeout(5)
    connection.bind(("127.0.0.2", 0))
    connection.connect(("127.0.0.1", int(str(urlsplit(url).port))))
    connection.sendall(text)
    return connection


def _status(connection: socket.socket) -> str:
    """Return the status of an answer."""
    try:
        return connection.recv(100)[9:12].decode() or "an end"
    except OSError as error:
        return type(error).__name__


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _repeated(url: str, end: float, requests: list[bytes], at_once: int, pause: float) -> dict[str, int]:
    """Send requests in turn, over several connections at once; returns the statuses of the answers."""

    def ask(number: int) -> Counter[str]:
        found: Counter[str] = Counter()
        while time.monotonic() < end:
            try:
                with _connected(url, requests[(number + found.total()) % len(requests)]) as connection:
                    found[_status(connection)] += 1
            except OSError as error:
                found[type(error).__name__] += 1
            time.sleep(pause)
        return found

    with ThreadPoolExecutor(at_once) as pool:
        return dict(sum(pool.map(ask, range(at_once)), Counter[str]()))


def _costly(url: str, end: float) -> object:
    body = {"histories": [list(range(i, i + 500)) for i in range(1000)], "k": 100, "reasons": 100}
    return _repeated(url, end, [_post("/v1/recommend/batch", json.dumps(body).encode())], 4, 0.1)


def _hard(url: str, end: float) -> object:
    asked: list[tuple[str, Any]] = [
        ("recommend", {"user": 0, "k": 1000, "reasons": 100}),
        ("recommend", {"user": 0, "k": 1000, "reasons": 50}), ("explain", {"user": 0, "item": 4500}),
        ("recommend", {"history": list(range(700_000))}),
        ("recommend", {"history": [[1]] * 50_000}),
    ]  # fmt: skip
    requests = [_post(f"/v1/{path}", json.dumps(body).encode()) for path, body in asked]
    return _repeated(url, end, requests, 4, 0.2)


def _large(url: str, end: float) -> object:
    return _repeated(
        url, end, [_post("/v1/recommend", b" " * size) for size in (3_900_000, 5_000_000)], 4, 0.1
    )


def _flood(url: str, end: float) -> object:
    return _repeated(url, end, [_post("/v1/recommend", b'{"history": [1, 2, 3], "k": 10}')], 64, 0.0)


def _reloading(url: str, end: float) -> object:
    return _repeated(
        url, end, [_post("/v1/models/shop/reload", b"").replace(b"Host: x", b"Host: localhost")], 24, 0.5
    )


def _not_taken(url: str, end: float) -> object:
    request = _post(
        "/v1/recommend/batch", json.dumps({"histories": [[i] for i in range(1000)], "k": 100}).encode()
    )
    return _held(url, end, [request] * 40, 0.25, 4096)


def _silent(url: str, end: float) -> object:
    return _held(url, end, [b""] * 2000, 0.0)


def _dripping(url: str, end: float) -> object:
    head = _post("/v1/recommend", b" " * 100)[:-100]
    return _held(url, end, [head] * 100, 0.0, drip=b" ")


def _held(
    url: str, end: float, requests: list[bytes], pause: float, room: int | None = None, drip: bytes = b""
) -> str:
    """Hold connections open, and ask anew where one has ended; returns how many were ended."""
    ended = 0
    with ExitStack() as stack:
        opened: list[tuple[bytes, socket.socket]] = []
        while time.monotonic() < end:
            for request in requests[len(opened) :]:
                if time.monotonic() > end:
                    break
                with suppress(OSError):
                    opened.append((request, stack.enter_context(_connected(url, request, room))))
                time.sleep(pause)
            time.sleep(1)
            left = []
            for request, connection in opened:
                try:
                    connection.setblocking(False)
                    if drip:
                        connection.send(drip)
                    if room is None and connection.recv(1000) == b"":
                        raise ConnectionError
                    left.append((request, connection))
                except BlockingIOError:
                    left.append((request, connection))
                except OSError:
                    connection.close()
                    ended += 1
            opened = left
    return f"{ended} ends"


_CHUNKED = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def _heads(url: str, end: float) -> object:
    endless = {
        "of a header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 65_536),
        "of headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n" * 10_000),
        "of a trailer": (_CHUNKED + b"1\r\n{\r\n0\r\nX: ", b"a" * 65_536),
    }
    return _endless(url, end, endless)


def _pieces(url: str, end: float) -> object:
    endless = {
        "of chunks": (_CHUNKED, b"1\r\n \r\n" * 10_000),
        "of requests": (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2000),
    }
    return _endless(url, end, endless)


def _endless(url: str, end: float, endless: dict[str, tuple[bytes, bytes]]) -> str:
    """Send requests that go on for ever after their beginning; returns how many MB of each are taken."""

    def send(beginning: bytes, rest: bytes) -> float:
        taken = 0
        with suppress(OSError), _connected(url, beginning) as connection:
            while taken < 100e6 and time.monotonic() < end:
                connection.sendall(rest)
                taken += len(rest)
        return taken / 1e6

    with ThreadPoolExecutor(len(endless)) as pool:
        taken = {name: pool.submit(send, *parts) for name, parts in endless.items()}
    return ", ".join(f"{one.result():.1f} MB {name}" for name, one in taken.items())


def _rewriting(rounds: int = 3) -> None:
    """Run commands that rewrite one model file at once, and count how often the work of one is lost."""
    source = 'data = "b.csv"\nmode = "update"\nbatch = "{date}"'
    job = f'[source]\n{source}\n[publish]\nmodel = "m.mrf"\nkeep = 0\n'
    update, forget = ["update", "m.mrf", "a.csv", "--batch", "a"], ["forget", "m.mrf", "--users", "gone.txt"]
    pairs: dict[str, tuple[list[str], list[str]]] = {
        "two updates": (update, ["update", "m.mrf", "b.csv", "--batch", "b"]),
        "forget beside update": (forget, ["update", "m.mrf", "b.csv", "--batch", "b"]),
        "forget during a nightly run": (forget, ["nightly", "job.toml", "--accept"]),
    }
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, first in (("first.csv", 0), ("a.csv", 3000), ("b.csv", 4000)):
            rows = (f"u{first + row // 20},{int(2000 * rng.random() ** 2)}\n" for row in range(20_000))
            (folder / file).write_text("user,item\n" + "".join(rows))
        (folder / "gone.txt").write_text("u7\n")
        (folder / "job.toml").write_text(job)
        for what, commands in pairs.items():
            lost = failed = 0
            for _ in range(rounds):
                MRF(rank=0).fit(folder / "first.csv").save(folder / "m.mrf", include_histories=True)
                running = [
                    subprocess.Popen(
                        [sys.executable, "-m", "mrfrec", *each], cwd=folder, stderr=subprocess.DEVNULL
                    )
                    for each in commands
                ]
                codes = [process.wait(300) for process in running]
                after = load(folder / "m.mrf")
                assert after.users_ is not None
                users = set(after.users_)
                done = ["u3000" in users if commands[0] is update else "u7" not in users, "u4000" in users]
                failed += sum(code != 0 for code in codes)
                lost += sum(not it and code == 0 for it, code in zip(done, codes, strict=True))
            print(f"{what}, {rounds} times: {lost} commands lost without a word, {failed} failed", flush=True)


if __name__ == "__main__":
    main()
