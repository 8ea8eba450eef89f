"""`mrfrec serve`: processes that are killed, stopped and reloaded; models that are exchanged under load."""

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

import mrfrec
from mrfrec.errors import DataError
from mrfrec.service import ServiceSettings, create_app, serve
from mrfrec.service.keys import new_key

from servers import (
    ASK,
    CLIENT,
    Command,
    asking,
    eventually,
    got,
    is_running,
    post,
    posted,
    received,
    save_shop,
    sent,
    serving,
)


@pytest.mark.slow
def test_killed_workers_are_replaced_while_others_answer_and_end_with_their_parent(tmp_path: Path) -> None:
    file = save_shop(tmp_path / "shop.mrf")
    with Command(tmp_path, file, "--workers", "2", "--log", "off") as service:
        _wait_for_workers(service.url, 2)
        for _ in range(10):
            assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        first, second = service.workers
        file.rename(tmp_path / "elsewhere")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not is_running(first))
        for _ in range(10):  # connections that the dead one had not accepted, the other accepts
            assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        service.wait_for("waits: ")
        assert f"[{first}] died" in service.log
        for _ in range(50):  # each over a connection of its own: a worker without its model takes none
            assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        metrics = got(f"{service.url}/metrics").text
        assert "mrfrec_workers 1.0" in metrics
        (answered,) = re.findall(r'route="/v1/recommend",status="200"} ([\d.]+)', metrics)
        assert float(answered) >= 69  # those of the dead one, too; it may have died before the last
        (tmp_path / "elsewhere").rename(file)
        eventually(lambda: "mrfrec_workers 2.0" in got(f"{service.url}/metrics").text, 60)
        service.wait_for("starts", 3)
        assert is_running(second)
        assert is_running(service.workers[2])
        assert "Traceback" not in service.log
        service.process.kill()
        service.process.wait()
        eventually(lambda: not any(is_running(pid) for pid in service.workers))


@pytest.mark.slow
@pytest.mark.parametrize("is_unix", [False, True], ids=["port", "Unix socket"])
def test_connections_of_a_pool_are_spread_over_the_workers(is_unix: bool, shop: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    code = (
        "import logging, sys\nfrom functools import partial\nfrom mrfrec.service import serve\n"
        "log = partial(logging.basicConfig, level=logging.INFO)\nlog()\n"
        "logging.info('listening at http://none')\n"
        "serve(sys.argv[1], port=0, uds=sys.argv[2] or None, workers=2, prepare=log)\n"
    )
    with Command(tmp_path, shop, place if is_unix else "", code=code) as service:
        service.wait_for("Application startup complete", 2)
        urls = re.findall(r"listening at (http://127\S+)", service.log)

        def worker_of(connection: socket.socket) -> bytes:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            return bytes(re.findall(rb"x-request-id: (\w{8})", connection.recv(10_000))[0])

        def pool(size: int) -> list[int]:
            """Open connections at once; return how many each worker has."""
            with ExitStack() as stack:
                opened = [
                    stack.enter_context(sent(urls[0], b"") if urls else socket.socket(socket.AF_UNIX))
                    for _ in range(size)
                ]
                for connection in opened if is_unix else ():
                    connection.settimeout(20)
                    connection.connect(str(place))
                return sorted(Counter(map(worker_of, opened)).values())

        for size in (16, 20):
            # Where other programs take the processors, a worker may be stuck.
            eventually(lambda size=size: pool(size)[0] >= 0.4 * size)  # type: ignore[misc]
        for pid in service.workers:
            # A worker may not yet have read that the last connections are closed.
            eventually(lambda pid=pid: len([*Path(f"/proc/{pid}/fd").iterdir()]) < 40)  # type: ignore[misc]
        os.kill(service.workers[0], signal.SIGSTOP)
        try:  # the other one waits for a moment, and takes them
            begin = time.monotonic()
            assert pool(16) == [16]
            assert time.monotonic() < begin + 5
        finally:
            os.kill(service.workers[0], signal.SIGCONT)
        assert service.stop() == 0
        assert "Traceback" not in service.log


@pytest.mark.slow
def test_sighup_while_it_starts_is_no_end(shop: Path, tmp_path: Path) -> None:
    service = Command(tmp_path, shop, "--workers", 2)
    eventually(lambda: _ignores(service.process.pid, signal.SIGHUP))
    while "opened" not in service.log:
        service.process.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    with service:
        service.wait_for("opened", 3)
        assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        assert service.stop() == 0


@pytest.mark.slow
def test_sighup_ends_no_worker_that_starts(shop: Path, tmp_path: Path) -> None:
    with Command(tmp_path, shop, "--workers", 2) as service:

        def all_have_started() -> bool:
            service.process.send_signal(signal.SIGHUP)
            return service.log.count("startup complete") >= 2

        eventually(all_have_started, 60)
        service.wait_for(" replaces ", 2)  # each has heard it in the end
        assert "died" not in service.log
        assert len(service.workers) == 2
        assert service.stop() == 0


# A service that does not look at its files, of as many workers as are asked for.
NO_LOOKS = (
    "import logging, sys\nfrom functools import partial\nfrom pathlib import Path\n"
    "from mrfrec.service import ServiceSettings\nfrom mrfrec.service.server import serve\n"
    "log = partial(logging.basicConfig, level=logging.INFO)\nlog()\nmodel, workers = sys.argv[1:]\n"
    "settings = ServiceSettings(poll=0)\n"
    "serve({'m': Path(model)}, port=0, workers=int(workers), settings=settings, prepare=log)\n"
)


@pytest.mark.slow
def test_worker_that_starts_during_a_reload_has_the_new_model(tmp_path: Path) -> None:
    file, new = save_shop(tmp_path / "m.mrf", l2=0.5), save_shop(tmp_path / "new.mrf", l2=50.0)
    fingerprint = mrfrec.load(new).fitted_.file_hash[:16]
    with Command(tmp_path, file, 2, code=NO_LOOKS) as service:
        service.wait_for("startup complete", 2)
        _kill_and_wait_for_another(service, service.workers[0])
        new.replace(file)
        assert posted(f"{service.url}/v1/models/m/reload").json()["fingerprint"] == fingerprint
        service.wait_for("startup complete", 3, seconds=25)

        def answering() -> set[str]:
            answers = (posted(f"{service.url}/v1/recommend", json=ASK) for _ in range(30))
            return {answer.headers["mrfrec-model"] for answer in answers}

        eventually(lambda: answering() == {f"m; {fingerprint}"})
        assert f"worker {service.workers[0]} died (SIGKILL) and is replaced" in service.log
        assert service.log.count("and is replaced") == 1


@pytest.mark.slow
def test_worker_that_is_killed_while_it_starts_is_replaced_at_once(shop: Path, tmp_path: Path) -> None:
    with Command(tmp_path, shop, "--workers", 2) as service:
        service.wait_for("startup complete", 2)
        second = _kill_and_wait_for_another(service, service.workers[0])
        time.sleep(1)  # the supervisor waits for its sign of life
        third = _kill_and_wait_for_another(service, second)
        service.wait_for(f"worker {third} starts")


def _kill_and_wait_for_another(service: Command, pid: int) -> int:
    """Kill a worker; return the one that is started in its place, at the latest after 15 s."""
    known = _workers_of(service.process.pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: bool(_workers_of(service.process.pid) - known), 15)
    (other,) = _workers_of(service.process.pid) - known
    return other


def _workers_of(pid: int) -> set[int]:
    """Return the workers of a service, also those that have only begun to start."""
    found = set()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it may have ended
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(int(child))
    return found


def _ignores(pid: int, number: signal.Signals) -> bool:
    found = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return found is not None and bool(int(found[1], 16) >> number - 1 & 1)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "how"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_what_is_under_way_is_finished_when_told_to_stop(
    workers: int, how: signal.Signals, shop: Path, tmp_path: Path
) -> None:
    request = post("/v1/recommend", json.dumps(ASK).encode())
    with Command(tmp_path, shop, "--workers", workers) as service:
        _wait_for_workers(service.url, workers)
        connections = [sent(service.url, request[:-5]) for _ in range(8)]
        time.sleep(0.5)  # all have been accepted, and are being read
        service.process.send_signal(how)
        time.sleep(0.5)
        for connection in connections:
            connection.sendall(request[-5:])
        for connection in connections:
            with connection:
                found = received(connection)
            assert found.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b'"items":' in found
        assert service.process.wait(10) == 0
        assert "Traceback" not in service.log
        with pytest.raises(httpx.ConnectError):
            got(f"{service.url}/health")


@pytest.mark.slow
def test_nobody_loses_an_answer_while_connections_drain(shop: Path, tmp_path: Path) -> None:
    with (
        Command(tmp_path, shop, "--drain", 3) as service,
        httpx.Client(base_url=service.url, **CLIENT) as client,
    ):
        assert client.get("/ready").status_code == 200
        answers = [client.post("/v1/recommend", json=ASK)]
        service.process.send_signal(signal.SIGTERM)
        while "connection" not in answers[-1].headers:  # which says that it ends
            answers.append(client.post("/v1/recommend", json=ASK))
        assert "connections end in 3 s" in service.log
        assert client.get("/ready").status_code == 503
        answers.append(client.post("/v1/recommend", json=ASK))
        assert {answer.status_code for answer in answers} == {200}
        assert answers[-1].headers["connection"] == "close"
        assert service.process.wait(10) == 0


@pytest.mark.slow
def test_sighup_reloads_models_and_keys_in_all_workers(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    (old, line), (new, other) = new_key("a"), new_key("b")
    file.write_text(line)
    with Command(tmp_path, shop, "--workers", "2", "--keys", file, "--log", "json") as service:
        service.wait_for("starts", 2)

        def statuses(key: str) -> set[int]:
            return {
                got(f"{service.url}/v1/models", headers={"X-API-Key": key}).status_code for _ in range(10)
            }

        assert (statuses(old), statuses(new)) == ({200}, {401})
        file.write_text(other)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for(" replaces ", 2)
        eventually(lambda: (statuses(old), statuses(new)) == ({401}, {200}))
        assert len(service.workers) == 2
        for entry in map(json.loads, service.log.splitlines()):
            assert {"time", "level"} <= entry.keys()


@pytest.mark.slow
def test_a_reload_reaches_all_workers_without_a_look_at_the_file(tmp_path: Path) -> None:
    file, new = save_shop(tmp_path / "m.mrf", l2=0.5), save_shop(tmp_path / "new.mrf", l2=50.0)
    fingerprint = mrfrec.load(new).fitted_.file_hash[:16]
    stop = Event()

    def ask(url: str) -> int:
        count = 0
        while not stop.is_set():  # over connections of their own, which any worker accepts
            assert posted(f"{url}/v1/recommend", json=ASK).status_code == 200
            count += 1
        return count

    with Command(tmp_path, file, 3, code=NO_LOOKS) as service, ThreadPoolExecutor(1) as asking:
        service.wait_for("Application startup complete", 3)
        asked = asking.submit(ask, service.url)
        try:
            new.replace(file)
            assert posted(f"{service.url}/v1/models/m/reload").json()["fingerprint"] == fingerprint
            service.wait_for(f"{fingerprint} replaces", 4)  # the one that was asked, and all three
            new.write_bytes(b"nonsense")
            new.replace(file)
            assert posted(f"{service.url}/v1/models/m/reload").status_code == 422
            time.sleep(1)  # the others would have heard of it
            assert service.log.count("stays as it is") == 1
            assert posted(f"{service.url}/v1/models/other/reload").status_code == 404
        finally:
            stop.set()
        assert asked.result() > 0
        assert len(service.workers) == 3


def _wait_for_workers(url: str, count: int) -> None:
    """Wait until as many workers have answered, by the beginning of the ids that they give to requests."""
    seen: set[str] = set()

    def all_have() -> bool:
        seen.add(client.get(f"{url}/health").headers["x-request-id"][:8])
        return len(seen) == count

    with httpx.Client(headers={"Connection": "close"}, timeout=60, **CLIENT) as client:
        eventually(all_have, 60)


def test_a_port_in_use_is_an_error(shop: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            DataError, match=f"127.0.0.1:{port} cannot be listened to: address already in use"
        ):
            serve(shop, port=port)


def test_key_prints_the_line_for_the_file_and_the_key_beside_it(shop: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mrfrec", "key", "web", "--role", "manage"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    secret = done.stderr.split()[-1]
    assert secret not in done.stdout
    (tmp_path / "keys").write_text(done.stdout)
    with asking(shop, keys=tmp_path / "keys") as client:
        found = client.post("/v1/models/shop/reload", headers={"X-API-Key": secret})
        assert found.status_code == 200


# ── hot swap ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_models_are_exchanged_under_load_without_a_failed_or_mixed_answer(tmp_path: Path) -> None:
    file, kinds, wanted = tmp_path / "shop.mrf", [], {}
    for l2 in (0.5, 50.0):
        model = mrfrec.load(save_shop(file, l2=l2))
        kinds.append(file.read_bytes())
        rows = model.recommend(history=ASK["history"], k=3).rows(named=True)
        wanted[model.fitted_.file_hash[:16]] = [(row["item"], pytest.approx(row["score"])) for row in rows]

    def put(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(file)

    def wait_for(fingerprint: str) -> None:
        eventually(lambda: client.get("/v1/models/shop").json()["fingerprint"] == fingerprint)

    put(kinds[0])
    stop, seen = Event(), set[str]()
    # With the file looked at all the time, besides the requests to reload.
    app = create_app(file, settings=ServiceSettings(poll=0.01))

    def ask() -> int:
        count = 0
        while not stop.is_set():
            found = client.post("/v1/recommend", json=ASK)
            assert found.status_code == 200, found.text
            fingerprint = found.json()["model"]["fingerprint"]
            assert found.headers["mrfrec-model"] == f"shop; {fingerprint}"
            assert [(row["item"], row["score"]) for row in found.json()["items"]] == wanted[fingerprint]
            seen.add(fingerprint)
            count += 1
        return count

    served = app.state.models
    models = [weakref.ref(served.choose("shop").served.model)]
    with (
        serving(app) as url,
        ThreadPoolExecutor(4) as pool,
        httpx.Client(base_url=url, timeout=60, **CLIENT) as client,
    ):
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for number in range(1, 31):
                if number % 10 == 0:
                    put(b"nonsense" if number % 20 else kinds[0][:-100])
                    before = client.get("/v1/models/shop").json()["fingerprint"]
                    refused = client.post("/v1/models/shop/reload")
                    assert refused.status_code == 422
                    assert str(tmp_path) not in refused.text
                    assert client.get("/v1/models/shop").json()["fingerprint"] == before
                put(kinds[number % 2])
                if number % 3:
                    assert client.post("/v1/models/shop/reload").status_code == 200
                else:
                    wait_for(list(wanted)[number % 2])
                models.append(weakref.ref(served.choose("shop").served.model))
        finally:
            stop.set()
        assert sum(each.result() for each in asking) > 50
    assert seen == set(wanted)
    assert len(seen) == 2
    gc.collect()
    alive = {id(model()) for model in models if model() is not None}
    assert alive <= {id(served.choose("shop").served.model)}


DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "how-to" / "serve.md").read_text()
REQUESTS = (DOCS / "reference" / "service-api.md").read_text()
SETTINGS = (DOCS / "reference" / "settings.md").read_text()


def test_the_requests_of_the_pages_are_answered(shop: Path) -> None:
    text = f"{GUIDE}{REQUESTS}".replace("\\\n", " ")
    here = re.findall(r"^curl '?http://127\.0\.0\.1:8000(/v1/[^ '\n]+)'?([^\n]*)$", text, flags=re.MULTILINE)
    assert len(here) == 6
    with asking(shop) as client:
        for path, rest in here:
            body = re.findall("-d '(.*)'", rest)
            asked: Any = {"json": json.loads(body[0])} if body else {}
            found = client.request("POST" if body else "GET", path, **asked)
            assert found.status_code == 200, (path, found.text)
            assert found.json()["model"]["name"] == "shop"


def test_the_first_answer_of_the_guide_is_that_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)[0], {})
    (body,) = re.findall(r"^  -d '(.*)'\n```$", GUIDE, flags=re.MULTILINE)
    (answer,) = re.findall(r"```json\n(.*?)```", GUIDE, flags=re.DOTALL)
    (lines,) = re.findall(r"```py\n(.*?)```", GUIDE, flags=re.DOTALL)
    wanted = json.loads(answer)
    with asking("shop.mrf") as client:
        found = client.post("/v1/recommend", json=json.loads(body))
        lines = lines.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
        # A value behind a line is a check of it: `model.f()  # 0.94: its score`.
        checks = re.sub(r"^(\S.+)  # ([\[\d][^:\n]*).*", r"assert \1 == about(\2)", lines, flags=re.MULTILINE)
        assert checks.count("about") == 4
        names: dict[str, Any] = {"about": lambda x: pytest.approx(x, abs=6e-3) if isinstance(x, float) else x}
        exec(checks, names)
        with names["service"], pytest.raises(RuntimeError, match="404: the model does not know this item"):
            names["ask"]("GET", "similar", params={"item": "no"})
    assert found.json().keys() == wanted.keys()
    for row, shown in zip(found.json()["items"], wanted["items"], strict=True):
        reasons, shown_reasons = row.pop("reasons"), shown.pop("reasons")
        assert row == pytest.approx(shown, abs=6e-4)
        assert reasons == [pytest.approx(one, abs=6e-4) for one in shown_reasons]


def test_the_pages_name_every_setting_path_field_and_metric(shop: Path) -> None:
    for field in fields(ServiceSettings):
        assert re.search(rf"^\| `{field.name}`", SETTINGS, re.MULTILINE), field.name
    with asking(shop) as client:
        api = client.get("/v1/openapi.json").json()
        for path in api["paths"]:
            assert path in REQUESTS
        for kind in (
            "RecommendRequest",
            "BatchRequest",
            "ExplainRequest",
            "RecommendResponse",
            "Recommended",
        ):
            for name in api["components"]["schemas"][kind]["properties"]:
                assert re.search(rf"^\|.*`{name}`", REQUESTS, re.MULTILINE), name
        for name in re.findall(r"^# TYPE (\w+)", client.get("/metrics").text, flags=re.MULTILINE):
            assert f"`{name}" in REQUESTS


@pytest.mark.slow
def test_it_serves_though_nobody_listens_to_its_messages(shop: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mrfrec", "serve", str(shop), "--port", str(port)]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *command])
    try:
        eventually(lambda: _answers(f"http://127.0.0.1:{port}/ready"))
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()


def _answers(url: str) -> bool:
    try:
        return got(url).status_code == 200
    except httpx.HTTPError:
        return False


SWALLOWS = """
import os, signal, sys
from mrfrec.cli import main
from mrfrec.service import served
opened = served._opened

def swallowing(*given):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
    except KeyboardInterrupt:
        pass
    return opened(*given)

if __name__ == "__main__":
    served._opened = swallowing
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_signal_to_stop_that_a_library_swallows_at_the_start_stops_all_the_same(
    shop: Path, tmp_path: Path, workers: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SWALLOWS)
    command = [sys.executable, str(script), "serve", str(shop), "--port", "0", "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 143), done.stderr
    assert "Traceback" not in done.stderr
