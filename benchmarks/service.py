"""Load on the service: latency, throughput, overload, hot swaps. Loopback only, bounded in count and time.

    python -m benchmarks.service latency        one and eight connections: one process, and two behind nginx
    python -m benchmarks.service overload       two, five and, for 60 seconds, ten times what it can bear
    python -m benchmarks.service swaps          50 exchanges of the model under load
    python -m benchmarks.service rules          answers by the rules of a shop beside plain ones

The load comes from `wrk`, if it is installed, and from this process; on two cores it takes its share of
them. Two processes need nginx (apt-get install nginx-light wrk).
docs/explanation/performance.md has the results.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop

import mrfrec
from benchmarks.behind_nginx import nginx
from benchmarks.bench import CACHE
from benchmarks.product import shop_table

PORT = 8765
URL = f"http://127.0.0.1:{PORT}"


def models() -> dict[str, Path]:
    """Return the models of `python -m benchmarks.product answers`, which makes them."""
    names = {
        "41,140 items": "answers-41140.mrf", "41,140 items, rank 256": "answers-rank-256.mrf",
        "41,140 items, MRF()": "answers-default.mrf", "340,556 items": "books.mrf",
    }  # fmt: skip
    found = {name: CACHE / file for name, file in names.items() if (CACHE / file).exists()}
    if not found:
        raise SystemExit("first: python -m benchmarks.product answers")
    return found


def bodies(path: Path, count: int = 500) -> list[str]:
    """Histories of 3 to 60 items, popular ones more often; ten items with three reasons each."""
    model = mrfrec.load(path)
    rng = np.random.default_rng(0)
    share = model.popularity_ / model.popularity_.sum()
    histories = [np.unique(rng.choice(len(share), n, p=share)) for n in rng.integers(3, 60, count)]
    return [json.dumps({"history": model.items_.take(h), "k": 10, "reasons": 3}) for h in histories]


@contextmanager
def served(path: Path, port: int = PORT) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "mrfrec", "serve", f"m={path}", "--port", str(port)]
    # A file: a pipe that nobody reads is full after a thousand requests, and the service waits.
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stderr=log) as process:
        try:
            for _ in range(600):
                time.sleep(0.1)
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                        break
                except httpx.HTTPError:
                    continue
            time.sleep(1)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
            log.seek(0)
            lines = log.read().decode().splitlines()
            odd = [line for line in lines if "rror" in line or "Traceback" in line]
            print(f"    lines of errors in the log: {len(odd)} {odd[:3]}")


def wrk(questions: list[str], connections: int, seconds: int, port: int = PORT) -> str:
    """Ask as fast as the answers come; returns throughput and quantiles of latency."""
    lua = ",\n".join(f"'{question}'" for question in questions)
    script = (
        f"bodies = {{{lua}}}\ni = 0\nwrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n"
        "function request()\n"
        "i = i + 1; return wrk.format(nil, '/v1/recommend', nil, bodies[i % #bodies + 1])\nend\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "-s", file.name, "--latency"]
        command.append(f"http://127.0.0.1:{port}")
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(50%|99%|Requests/sec:|Non-2xx[^:]*:)\s+(\S+)", said))
    return ", ".join(f"{name.rstrip(':')} {value}" for name, value in found.items())


class _Load:
    """Questions asked at given moments, whether the answers come or not, over so many connections."""

    def __init__(self, questions: list[str], connections: int, port: int) -> None:
        self._port = port
        head = "POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        self._questions = [f"{head}{len(each)}\r\n\r\n{each}".encode() for each in questions]
        self._connections = connections
        self.free: deque[_Connection] = deque()
        self.seconds: dict[Any, list[float]] = {}  # of answers, by status
        self._opening: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Open a connection, first or after another was closed."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def run(self, rate: float, seconds: float) -> dict[str, Any]:
        for _ in range(self._connections):
            self.open()
        await self._all_free()
        start, asked, lacking, total = time.perf_counter(), 0, 0, int(rate * seconds)
        while asked < total:
            due = min(total, 1 + int((time.perf_counter() - start) * rate))
            for number in range(asked, due):
                if self.free:
                    self.free.popleft().ask(self._questions[number % len(self._questions)])
                else:
                    lacking += 1
            asked = due
            await asyncio.sleep(0.0005)
        took = time.perf_counter() - start
        await self._all_free()
        quantiles = {
            status: [round(1e3 * float(np.quantile(found, q)), 1) for q in (0.5, 0.99, 1)]
            for status, found in self.seconds.items()
        }
        counts = {status: len(found) for status, found in self.seconds.items()}
        return {
            "asked/s": round(total / took), "answered/s": round(counts.get(200, 0) / took),
            "statuses": {**counts, "no connection free": lacking}, "ms (p50, p99, max)": quantiles,
        }  # fmt: skip

    async def _all_free(self) -> None:
        for _ in range(1000):
            if len(self.free) == self._connections:
                return
            await asyncio.sleep(0.01)


class _Connection(asyncio.Protocol):
    """Asks one question at a time, and notes the status and the time of the answer."""

    def __init__(self, load: _Load) -> None:
        self._load, self._got, self._since = load, b"", 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._load.free.append(self)

    def ask(self, question: bytes) -> None:
        self._got, self._since = b"", time.perf_counter()
        self._transport.write(question)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if end and len(body) == int(_LENGTH.search(head)[1]):  # type: ignore[index]
            self._note(int(head[9:12]))
            if b"connection: close" not in head.lower():
                self._load.free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._since:
            self._note("lost")
        if self in self._load.free:
            self._load.free.remove(self)
        self._load.open()

    def _note(self, status: Any) -> None:
        self._load.seconds.setdefault(status, []).append(time.perf_counter() - self._since)
        self._since = 0.0


# The names of heads are in any case: nginx writes Content-Length, uvicorn content-length.
_LENGTH = re.compile(rb"(?i)content-length: (\d+)")


def at_rate(
    questions: list[str], rate: float, seconds: float, connections: int, port: int = PORT
) -> dict[str, Any]:
    """Ask at a rate, and return how many were answered and how fast."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Load(questions, connections, port).run(rate, seconds))


def latency() -> None:
    for name, path in models().items():
        questions = bodies(path)
        with served(path) as process:
            _ask(f"{name}, one process, {memory(process.pid):.0f} MB", questions, PORT)
        ports = [PORT, PORT + 1]
        with tempfile.TemporaryDirectory() as folder, served(path) as first, served(path, ports[1]) as second:
            held = sum(memory(process.pid) for process in (first, second))
            with nginx(Path(folder), ports, limits=False) as url:
                _ask(f"{name}, two behind nginx, {held:.0f} MB", questions, int(url.rpartition(":")[2]))


def _ask(what: str, questions: list[str], port: int) -> None:
    print(what, flush=True)
    if shutil.which("wrk"):
        for connections in (1, 8):
            print(f"    {connections} connections: {wrk(questions, connections, 10, port)}", flush=True)
    for rate in (500, 900):
        print(f"    {rate}/s over 8 connections: {at_rate(questions, rate, 10, 8, port)}", flush=True)


def rules() -> None:
    """Ask plain questions and such with rules in turn, over one and four connections: p50 and p99 of each."""
    path = CACHE / "answers-rules.mrf"
    model = mrfrec.load(models()["41,140 items, rank 256"])
    model.set_items(shop_table(model)).save(path)
    m = len(model.items_)
    one_percent, quotas = {"own": {"below": 24 * m // 100}}, {"brand": 2, "type": 3, "few": 5}
    asked: dict[str, Any] = {
        "plain": {}, "where, 1 % of the items": {"where": one_percent},
        "where, another each time": None, "at_most, three columns": {"at_most": quotas},
        "variety": {"variety": 0.5}, "all three": {"where": one_percent, "at_most": quotas, "variety": 0.5},
    }  # fmt: skip
    questions = [json.loads(question) for question in bodies(path)]

    def ask(first: int, connections: int, spent: dict[str, list[float]]) -> None:
        with httpx.Client(base_url=URL) as client:
            for number in range(first, 400, connections):
                for name, options in asked.items():
                    other = {"where": {"own": {"least": 24 * (m - m // 100) - number}}}
                    body = json.dumps({**questions[number % len(questions)], **(options or {})})
                    body = body if options is not None else json.dumps({**json.loads(body), **other})
                    start = time.perf_counter()
                    assert client.post("/v1/recommend", content=body, headers=_JSON).status_code == 200
                    spent[name].append(1e3 * (time.perf_counter() - start))

    for connections in (1, 4):
        spent: dict[str, list[float]] = {name: [] for name in asked}
        with served(path), ThreadPoolExecutor(connections) as pool:
            for each in [pool.submit(ask, first, connections, spent) for first in range(connections)]:
                each.result()
        for name, found in spent.items():
            p50, p99 = np.quantile(found, (0.5, 0.99))
            print(f"{connections} connections, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(found)}")


_JSON = {"Content-Type": "application/json"}


def overload(seconds: float = 60) -> None:
    path = next(iter(models().values()))
    questions = bodies(path)
    with served(path) as process:
        alone = at_rate(questions, 3000, 5, 64)
        capacity = alone["answered/s"]
        print(f"capacity {capacity}/s; memory {memory(process.pid):.0f} MB", flush=True)
        for times, length in ((2, seconds / 3), (5, seconds / 3), (10, seconds)):
            found = at_rate(questions, times * capacity, length, 1000)
            share = found["answered/s"] / capacity
            print(f"{times} ×: {share:.0%} of it; {found}; memory {memory(process.pid):.0f} MB", flush=True)
        print(f"afterwards {at_rate(questions, 100, 5, 8)}", flush=True)


def swaps(count: int = 50) -> None:
    """Exchange two models that differ in every score, and compare answers with those of both."""
    from benchmarks.synthetic import interactions

    X = interactions(20_000, 5_000, 4e5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, l2 in enumerate((1.0, 30.0)):
            mrfrec.MRF(sparsity=0.01, rank=0, l2=l2).fit(X).save(folder / f"{number}.mrf")
        loaded = [mrfrec.load(folder / f"{number}.mrf") for number in (0, 1)]
        history = [int(i) for i in np.argsort(-loaded[0].popularity_)[:20]]
        wanted = {
            model.fitted_.file_hash[:16]: [
                (row["item"], row["score"]) for row in model.recommend(history=history).to_dicts()
            ]
            for model in loaded
        }
        assert len({str(rows) for rows in wanted.values()}) == 2
        shutil.copy(folder / "0.mrf", folder / "m.mrf")
        with served(folder / "m.mrf") as process:
            before = memory(process.pid)
            found = asyncio.run(_swaps(folder, history, wanted, count))
            time.sleep(3)
            print(
                f"{dict(found)}; memory {before:.0f} MB before, {memory(process.pid):.0f} after", flush=True
            )


async def _swaps(folder: Path, history: list[int], wanted: dict[str, Any], count: int) -> "Counter[str]":
    found: Counter[str] = Counter()
    done = asyncio.Event()

    async def asking() -> None:
        async with httpx.AsyncClient(base_url=URL) as client:
            while not done.is_set():
                answer = await client.post("/v1/recommend", json={"history": history})
                if answer.status_code != 200:
                    found[f"status {answer.status_code}"] += 1
                    continue
                body = answer.json()
                file_hash = body["model"]["file_hash"]
                same = [(row["item"], row["score"]) for row in body["items"]] == wanted[file_hash]
                agrees = file_hash in answer.headers["mrfrec-model"]
                found["answers of one model" if same and agrees else "MIXED"] += 1

    tasks = [asyncio.create_task(asking()) for _ in range(4)]
    async with httpx.AsyncClient(base_url=URL, timeout=30) as client:
        for number in range(1, count + 1):
            shutil.copy(folder / f"{number % 2}.mrf", folder / "next.mrf")
            os.replace(folder / "next.mrf", folder / "m.mrf")  # noqa: PTH105
            reply = await client.post("/v1/models/m/reload")
            assert reply.status_code == 200, reply.text
            found["swaps"] += 1
            await asyncio.sleep(0.2)
    done.set()
    await asyncio.gather(*tasks)
    return found


def memory(pid: int) -> float:
    """Return the memory of a process that is not shared files, in MB."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["latency", "overload", "swaps", "rules"])
    groups = {"latency": latency, "overload": overload, "swaps": swaps, "rules": rules}
    groups[parser.parse_args().what]()
