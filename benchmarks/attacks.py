"""Attack a service in a process of its own, and print what that costs.

    python -m benchmarks.attacks

Prefixes, a batch that is too large, requests that could stop the event loop, clients that do not read, a full
folder of metrics, signals while workers start, many reloads at once, endless heads, silent connections, the
share of each of two workers in the requests of a pool; and commands that rewrite one model file at once.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
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
        _full_memory(model, Path(folder))
        _early_signals(model, Path(folder))
        _many_reloads(model)
        _endless(model)
        _silent(model)
        _pools(model, Path(folder))
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


@contextmanager
def _workers(folder: Path, model: Path, memory: str = "/dev/shm") -> Iterator[tuple[int, str, Path]]:
    """Start a service of two workers with metrics in `memory`; gives its process id, its URL and its log."""
    code = (
        "import logging, sys\n"
        "from functools import partial\n"
        "from mrfrec.service import metrics, serve\n"
        "log = partial(logging.basicConfig, level=logging.INFO)\n"
        "log()\n"
        "metrics._MEMORY = sys.argv[3]\n"
        "serve(sys.argv[1], port=int(sys.argv[2]), workers=2, prepare=log)\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-c", code, str(model), str(port), memory]
        process = subprocess.Popen(command, stderr=file, stdout=file)
    try:
        for _ in range(600):
            if b"listening at" in log.read_bytes():
                break
            time.sleep(0.05)
        yield process.pid, f"http://127.0.0.1:{port}", log
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def _status(url: str, method: str = "GET", timeout: float = 10) -> int:
    """Return the status of an answer over a connection of its own; 0 if there is none."""
    try:
        return httpx.request(method, url, timeout=timeout).status_code
    except httpx.TransportError:
        return 0


def _wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, for at most as many seconds as given."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)


def _full_memory(model: Path, folder: Path) -> None:
    """Fill the file system of the metrics, one of 2 MB, and ask in ways that are counted anew."""
    memory = folder / "memory"
    memory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(memory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        print("full folder of metrics: skipped, since this user may not mount a file system", flush=True)
        return
    try:
        with _workers(folder, model, str(memory)) as (_, url, log):
            _wait_until(lambda: log.read_text().count("Application startup complete") == 2, 60)
            with suppress(OSError), (memory / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            paths = ["/v1/search?q=1", "/v1/item?item=1", "/v1/similar?item=1", "/v1/models", "/model", "/no"]
            paths += [f"{path}&k=x" for path in paths] + ["/v1/no", "/health", "/ready", "/static/no"]
            start, answers = time.monotonic(), []
            while time.monotonic() < start + 30:
                answers += [_status(url + path) for path in paths]
            text = log.read_text()
            found = httpx.get(f"{url}/metrics").text if answers[-1] else ""
            counted = sum(map(float, re.findall(r"mrfrec_requests_total{.*} ([\d.e+]+)", found)))
        warnings = len(re.findall(r"^WARNING", text, flags=re.MULTILINE))
        print(
            f"full folder of metrics, 30 s: {text.count('] died')} workers died, {warnings} warnings; "
            f"{answers.count(0)} of {len(answers)} requests unanswered, {counted:.0f} counted", flush=True,
        )  # fmt: skip
    finally:
        subprocess.run(["umount", str(memory)], check=True)


def _early_signals(model: Path, folder: Path) -> None:
    """Send SIGHUP while workers start, and reload while one is replaced."""

    def started(log: Path) -> list[int]:
        return [int(pid) for pid in re.findall(r"worker (\d+) starts", log.read_text())]

    for pause in (None, 0.25):
        with _workers(folder, model) as (pid, url, log):
            start = time.monotonic()
            while not _status(f"{url}/health", timeout=0.1) and time.monotonic() < start + 90:
                if pause is not None:
                    os.kill(pid, signal.SIGHUP)
                    time.sleep(pause)
            first = time.monotonic() - start
            died = log.read_text().count("] died")
        what = "no signal" if pause is None else "SIGHUP every 0.25 s"
        print(f"{what} during a start: first answer after {first:.1f} s, {died} workers died", flush=True)
    with _workers(folder, model) as (_, url, log):
        _wait_until(lambda: log.read_text().count("Application startup complete") == 2, 60)
        os.kill(started(log)[0], signal.SIGKILL)
        start = time.monotonic()
        time.sleep(0.8)
        status = _status(f"{url}/v1/models/shop/reload", "POST")
        _wait_until(lambda: log.read_text().count("Application startup complete") >= 3, 90)
        seconds, died = time.monotonic() - start, log.read_text().count("] died")
    print(
        f"a worker killed, a reload ({status}) 0.8 s later: two workers after {seconds:.1f} s, "
        f"{died} workers died", flush=True,
    )  # fmt: skip


def _many_reloads(model: Path) -> None:
    """Let 24 clients reload the model for ten seconds, again and again, and search meanwhile."""

    def reload(url: str, end: float) -> Counter[int]:
        found: Counter[int] = Counter()
        while time.monotonic() < end:
            found[_status(f"{url}/v1/models/shop/reload", "POST", 90)] += 1
            time.sleep(1)
        return found

    with _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off") as (url, _):
        with httpx.Client(timeout=90) as client, ThreadPoolExecutor(24) as pool:
            client.get(f"{url}/v1/search?q=1")
            reloading = [pool.submit(reload, url, time.monotonic() + 10) for _ in range(24)]
            time.sleep(0.5)
            searches: list[tuple[float, int]] = []
            while not all(one.done() for one in reloading):
                start = time.perf_counter()
                status = client.get(f"{url}/v1/search?q=1").status_code
                searches.append((time.perf_counter() - start, status))
                time.sleep(0.05)
        replies = sum((one.result() for one in reloading), Counter[int]())
    times = [seconds for seconds, _ in searches]
    print(
        f"24 clients that reload for 10 s: {dict(replies)}; {len(searches)} searches: "
        f"{dict(Counter(status for _, status in searches))}, median {np.median(times):.3f} s, "
        f"slowest {max(times):.2f} s", flush=True,
    )  # fmt: skip


def _endless(model: Path) -> None:
    """Send requests that go on for ever after their beginning, and ask for /health meanwhile."""
    post = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = {
        "header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 65_536),
        "number of headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n" * 10_000),
        "trailer": (post + b"1\r\n{\r\n0\r\nX: ", b"a" * 65_536),
        "number of pipelined requests": (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2000),
    }

    def send(url: str, beginning: bytes, rest: bytes) -> float:
        """Return how many MB are taken, at most 123, within 20 seconds."""
        host, port = url.removeprefix("http://").split(":")
        taken, end = 0, time.monotonic() + 20
        with suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(beginning)
            while taken < 123e6 and time.monotonic() < end:
                taken += connection.send(rest)
        return taken / 1e6

    for name, (beginning, rest) in endless.items():
        with _process("-m", "mrfrec", "serve", model, "--port", ..., "--log", "off") as (url, usage):
            before, waits = usage()[1], list[float]()
            new = {"Connection": "close"}  # so that each request has a connection of its own
            with ThreadPoolExecutor(1) as pool, httpx.Client(headers=new, timeout=30) as client:
                sending = pool.submit(send, url, beginning, rest)
                while not sending.done() or len(waits) < 10:
                    start = time.perf_counter()
                    with suppress(httpx.TransportError):
                        client.get(f"{url}/health")
                    waits.append(1000 * (time.perf_counter() - start))
            print(
                f"endless {name}: {sending.result():.1f} MB taken, {usage()[1] - before:.1f} s of processor "
                f"time; /health {statistics.median(waits):.0f} ms, at most {max(waits):.0f} ms", flush=True,
            )  # fmt: skip


def _silent(model: Path) -> None:
    """Open 400 connections to a service of 256 descriptors, say nothing, and ask as a new client."""
    code = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "runpy.run_module('mrfrec', run_name='__main__', alter_sys=True)"
    )
    with (
        _process("-c", code, "serve", model, "--port", ..., "--log", "off") as (url, usage),
        ExitStack() as kept,
    ):
        host, port = url.removeprefix("http://").split(":")
        answered, before = 0, usage()[1]
        for _ in range(400):
            kept.enter_context(socket.create_connection((host, int(port)), 5))
        time.sleep(0.5)
        for _ in range(20):
            with suppress(httpx.TransportError):
                answered += httpx.get(f"{url}/health", timeout=5).status_code == 200
        print(f"400 silent connections: {answered} of 20 new clients answered; ", end="")
        print(f"{usage()[1] - before:.1f} s of processor time", flush=True)


def _pools(model: Path, folder: Path) -> None:
    """Ask two workers over pools of connections; print the share of the busier one."""
    body = json.dumps({"history": list(range(20)), "k": 10, "reasons": 3}).encode()
    head = f"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    request = head + b"Content-Type: application/json\r\n\r\n" + body

    async def ask(port: int, workers: list[str], seconds: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(100):
            start = time.perf_counter()
            writer.write(request)
            said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(re.findall(r"content-length: (\d+)", said)[0]))
            seconds.append(time.perf_counter() - start)
            workers.append(
                re.findall(r"x-request-id: (\w{8})", said)[0]
            )  # which each worker begins otherwise
        writer.close()

    async def pool(port: int, size: int) -> str:
        workers, seconds = list[str](), list[float]()
        await asyncio.gather(*(ask(port, workers, seconds) for _ in range(size)))
        share = max(map(workers.count, set(workers))) / len(workers)
        return f"{share:.0%}, 99 % {1000 * statistics.quantiles(seconds, n=100)[98]:.0f} ms"

    options = ("--workers", "2", "--log", "off")
    with _process("-m", "mrfrec", "serve", model, "--port", ..., *options) as (url, _), ExitStack() as stack:
        ports = {"direct": int(url.rpartition(":")[2])}
        time.sleep(5)  # until both workers answer
        if shutil.which("nginx"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports["through nginx, keepalive 16"] = port = free.getsockname()[1]
            (folder / "nginx.conf").write_text(
                f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
                f"http {{ access_log off; upstream mrfrec {{ server {url[7:]}; keepalive 16; }}\n"
                f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://mrfrec;\n"
                'proxy_http_version 1.1; proxy_set_header Connection ""; } } }\n'
            )
            nginx = subprocess.Popen(["nginx", "-p", folder, "-c", folder / "nginx.conf"])
            stack.callback(nginx.wait)
            stack.callback(nginx.terminate)
            time.sleep(1)
        for name, port in ports.items():
            for size in (16, 20):
                found = [asyncio.run(pool(port, size)) for _ in range(3)]
                print(f"pool of {size}, {name}: one of two workers answers {'; '.join(found)}", flush=True)


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
