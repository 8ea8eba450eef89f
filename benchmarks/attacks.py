"""Attack a service in a process of its own, and print what that costs.

    python -m benchmarks.attacks

Prefixes, a batch that is too large, requests that could stop the event loop, clients that do not read; and
commands that rewrite one model file at the same time.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import scipy.sparse as sp

from mrfrec import MRF, load
from mrfrec.service.keys import new_key

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
    with tempfile.TemporaryDirectory() as folder:
        model = _model(Path(folder) / "shop.mrf")
        for how in ("root", "mount"):
            _prefix(model, how, Path(folder))
        _too_large(model)
        _loop(model)
        _stuck(model)
    _rewriting()


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
def _process(*command: object) -> Iterator[tuple[str, Callable[[], tuple[float, float]]]]:
    """Start a service; gives its URL, and what tells its memory in MB and its processor time in seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, *(str(port if one is ... else one) for one in command)])
    url = f"http://127.0.0.1:{port}"

    def usage() -> tuple[float, float]:
        folder = Path(f"/proc/{process.pid}")
        parts = (folder / "stat").read_text().rpartition(")")[2].split()
        return int(parts[21]) * 4096 / 1e6, (int(parts[11]) + int(parts[12])) / 100

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


def _too_large(model: Path) -> None:
    body = {"histories": [list(range(i, i + 500)) for i in range(1000)], "k": 100, "reasons": 100}
    with _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off") as (url, usage):
        before, peak, status, start = usage(), 0.0, "no answer in 30 s", time.monotonic()

        def ask() -> None:
            nonlocal status
            with suppress(httpx.TimeoutException):
                status = str(httpx.post(f"{url}/v1/recommend/batch", json=body, timeout=30).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive() or (status.startswith("no") and time.monotonic() < start + 60):
            peak = max(peak, usage()[0])
            time.sleep(0.05)
        seconds = usage()[1]
    print(
        f"batch of 1,000 × 500, k = 100, reasons = 100: {status}; memory {before[0]:.0f} → {peak:.0f} MB, "
        f"{seconds - before[1]:.1f} s of processor time within a minute", flush=True,
    )  # fmt: skip


def _loop(model: Path) -> None:
    asked: dict[str, tuple[str, Any]] = {
        "user of 4,000 items, k = 1,000, 100 reasons": ("recommend", {"user": 0, "k": 1000, "reasons": 100}),
        "the same, 50 reasons": ("recommend", {"user": 0, "k": 1000, "reasons": 50}),
        "explain to this user": ("explain", {"user": 0, "item": 4500}),
        "a body of 700,000 ids": ("recommend", {"history": list(range(700_000))}),
        "a history of 50,000 lists": ("recommend", {"history": [[1]] * 50_000}),
    }
    with _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off") as (url, _):
        for name, (path, body) in asked.items():
            longest = 0.0
            with httpx.Client(timeout=60) as client, ThreadPoolExecutor(1) as pool:
                client.get(f"{url}/health")
                asking = pool.submit(httpx.post, f"{url}/v1/{path}", json=body, timeout=60)
                while not asking.done():
                    start = time.perf_counter()
                    client.get(f"{url}/health")
                    longest = max(longest, time.perf_counter() - start)
            print(
                f"{name}: {asking.result().status_code}; /health waits {1000 * longest:.0f} ms at most",
                flush=True,
            )


def _stuck(model: Path) -> None:
    body = json.dumps({"histories": [[i] for i in range(1000)], "k": 100}).encode()
    head = f"POST /v1/recommend/batch HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    with (
        _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off") as (url, usage),
        ExitStack() as kept,
    ):
        before, (host, port) = usage()[0], url.removeprefix("http://").split(":")
        peak, start = 0.0, time.monotonic()
        for _ in range(40):
            connection = kept.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
            time.sleep(0.5)
            peak = max(peak, usage()[0])
        while time.monotonic() < start + 60:
            peak = max(peak, usage()[0])
            time.sleep(0.1)
        after = usage()[0]
    print(f"40 clients that do not read 7 MB: {before:.0f} → {peak:.0f} MB, after a minute {after:.0f} MB")


def _rewriting(rounds: int = 3) -> None:
    """Run commands that rewrite one model file at once, and count how often the work of one is lost."""
    job = '[source]\ndata = "b.csv"\nmode = "update"\nbatch = "b"\n[publish]\nmodel = "m.mrf"\nkeep = 0\n'
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
