"""`mrfrec serve`: processes that are killed, stopped and reloaded; models that are exchanged under load."""

import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import yaml

import mrfrec
from mrfrec.errors import DataError
from mrfrec.service import ServiceSettings, create_app, serve
from mrfrec.service.access_control import new_key
from mrfrec.service.server import lines_in_thread

from servers import (
    ASK,
    CLIENT,
    Command,
    asking,
    eventually,
    got,
    post,
    posted,
    received,
    save_shop,
    sent,
    serving,
)


@pytest.mark.slow
def test_sighup_while_it_starts_is_no_end(shop: Path, tmp_path: Path) -> None:
    service = Command(tmp_path, shop)
    eventually(lambda: _ignores(service.process.pid, signal.SIGHUP))
    while "opened" not in service.log:
        service.process.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    with service:
        service.wait_for("startup complete")
        assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        assert service.stop() == 0


def _ignores(pid: int, number: signal.Signals) -> bool:
    found = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return found is not None and bool(int(found[1], 16) >> number - 1 & 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_what_is_under_way_is_finished_when_told_to_stop(
    how: signal.Signals, shop: Path, tmp_path: Path
) -> None:
    request = post("/v1/recommend", json.dumps(ASK).encode())
    with Command(tmp_path, shop) as service:
        service.wait_for("startup complete")
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
def test_sighup_reloads_models_and_keys(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    (old, line), (new, other) = new_key("a"), new_key("b")
    file.write_text(line)
    with Command(tmp_path, shop, "--keys", file, "--log", "json") as service:
        service.wait_for("startup complete")

        def status(key: str) -> int:
            return got(f"{service.url}/v1/models", headers={"X-API-Key": key}).status_code

        assert (status(old), status(new)) == (200, 401)
        file.write_text(other)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for(" replaces ")
        eventually(lambda: (status(old), status(new)) == (401, 200))
        for entry in map(json.loads, service.log.splitlines()):
            assert {"time", "level"} <= entry.keys()


def test_a_port_in_use_is_an_error(shop: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            DataError, match=f"127.0.0.1:{port} cannot be listened to: address already in use"
        ):
            serve(shop, port=port)


def test_a_new_key_prints_the_line_for_the_file_and_the_key_beside_it(shop: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mrfrec", "serve", "--new-key", "web", "--role", "manage"]
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

    def wait_for(file_hash: str) -> None:
        eventually(lambda: client.get("/v1/models/shop").json()["file_hash"] == file_hash)

    put(kinds[0])
    stop, seen = Event(), set[str]()
    # With the file looked at all the time, besides the requests to reload.
    app = create_app(file, settings=ServiceSettings(poll=0.01))

    def ask() -> int:
        count = 0
        while not stop.is_set():
            found = client.post("/v1/recommend", json=ASK)
            assert found.status_code == 200, found.text
            file_hash = found.json()["model"]["file_hash"]
            assert found.headers["mrfrec-model"] == f"shop; {file_hash}"
            assert [(row["item"], row["score"]) for row in found.json()["items"]] == wanted[file_hash]
            seen.add(file_hash)
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
                    before = client.get("/v1/models/shop").json()["file_hash"]
                    refused = client.post("/v1/models/shop/reload")
                    assert refused.status_code == 422
                    assert str(tmp_path) not in refused.text
                    assert client.get("/v1/models/shop").json()["file_hash"] == before
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
        with (
            closing(names["service"]),
            pytest.raises(RuntimeError, match="404: the model does not know this item"),
        ):
            names["ask"]("GET", "similar", params={"item": "no"})
    assert found.json().keys() == wanted.keys()
    for row, shown in zip(found.json()["items"], wanted["items"], strict=True):
        reasons, shown_reasons = row.pop("reasons"), shown.pop("reasons")
        assert row == pytest.approx(shown, abs=6e-4)
        assert reasons == [pytest.approx(one, abs=6e-4) for one in shown_reasons]


def test_the_pages_name_every_setting_path_field_and_metric(shop: Path) -> None:
    for name in ServiceSettings.model_fields:
        assert re.search(rf"^\| `{name}`", SETTINGS, re.MULTILINE), name
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
        eventually(lambda: _answers(f"http://127.0.0.1:{port}/ready"), 60)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()


def _answers(url: str) -> bool:
    try:
        return got(url).status_code == 200
    except httpx.HTTPError:
        return False


def read_metrics(url: str) -> dict[str, float]:
    """Return the metrics of a service, by name and labels."""
    lines = got(f"{url}/metrics").text.splitlines()
    return {name: float(x) for name, _, x in (one.rpartition(" ") for one in lines if one[0] != "#")}


@pytest.mark.slow
def test_file_overwritten_in_place_under_load_ends_nothing_and_mixes_no_answers(tmp_path: Path) -> None:
    file, copies = tmp_path / "shop.mrf", tmp_path / "copies"
    other = save_shop(tmp_path / "other.mrf", l2=50.0).read_bytes()
    whole = save_shop(file, l2=0.5).read_bytes()
    stop, seen = Event(), set[tuple[str, str]]()

    def ask(url: str) -> int:
        count = 0
        with httpx.Client(base_url=url, timeout=60, **CLIENT) as client:
            while not stop.is_set():
                found = client.post("/v1/recommend", json=ASK)
                assert found.status_code == 200, found.text
                answer = found.json()
                seen.add((answer["model"]["file_hash"], str(answer["items"])))
                count += 1
        return count

    with (
        Command(tmp_path, file, "--copies", copies, "--log", "off") as service,
        ThreadPoolExecutor(2) as pool,
    ):
        asking = [pool.submit(ask, service.url) for _ in range(2)]

        def state() -> tuple[object, float]:
            ready = got(f"{service.url}/ready")
            assert ready.status_code == 200
            return ready.json()["stale"], read_metrics(service.url)['mrfrec_model_stale{model="shop"}']

        try:
            assert state() == ({}, 0)
            for number in range(3):
                file.write_bytes(b"")  # as cp does: to read a page of a mapped file would be SIGBUS
                time.sleep(0.2)
                file.write_bytes([b"nonsense", whole[:-99], whole[:-1] + b"?"][number])
                eventually(lambda: state() == ({"shop": "changed in place"}, 1))
            file.write_bytes(other)
            eventually(lambda: state() == ({}, 0))
        finally:
            stop.set()
        assert sum(each.result() for each in asking) > 100
        assert len([*copies.iterdir()]) == 1
        assert service.stop() == 0
    assert len(seen) == len({file_hash for file_hash, _ in seen}) == 2
    assert not [*copies.iterdir()]


@pytest.mark.slow
def test_reader_of_the_log_that_stops_stops_nothing_else(shop: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mrfrec", "serve", str(shop), "--port", str(port), "--log", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: _answers(f"{url}/ready"), seconds=60)
            with httpx.Client(base_url=url, timeout=20, **CLIENT) as client:
                for _ in range(4000):  # a pipe holds 300 lines, the queue 2,000
                    assert client.get("/v1/similar?item=gone").status_code == 404
            dropped = read_metrics(url)["mrfrec_log_lines_dropped_total"]
            assert 1000 < dropped < 2000
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr
            lines = process.stderr.read().splitlines()
            assert {"time", "level"} <= json.loads(lines[0]).keys()
        finally:
            process.kill()


def test_log_into_a_full_pipe_that_does_not_block_takes_no_time_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb") as stderr:
        monkeypatch.setattr(sys, "__stderr__", stderr)
        with lines_in_thread(["test.log"], logging.Formatter()):
            for number in range(100):
                logging.getLogger("test.log").error("%d %s", number, "x" * 10_000)
            time.sleep(0.1)
            before = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - before < 0.25
            lines = [reader.readline() for _ in range(100)]
    assert [int(line.split()[0]) for line in lines] == [*range(100)]


@pytest.mark.slow
def test_systemd_hears_of_the_start_of_an_event_loop_that_turns_and_of_the_end(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)

        def heard() -> set[bytes]:
            """What is said until there was silence for a second and a half."""
            said = set[bytes]()
            systemd.settimeout(1.5)
            with suppress(TimeoutError):
                while True:
                    said.add(systemd.recv(99))
            return said

        with Command(tmp_path, shop) as service:
            assert [systemd.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            service.process.send_signal(signal.SIGSTOP)  # as stuck as can be
            assert heard() <= {b"WATCHDOG=1"}  # and then silence
            service.process.send_signal(signal.SIGCONT)
            assert service.stop() == 0
            assert b"STOPPING=1" in heard()


def test_alerts_are_about_metrics_and_labels_that_exist(shop: Path) -> None:
    (group,) = yaml.safe_load((DOCS.parent / "deploy" / "alerts.yaml").read_text())["groups"]
    with asking(shop) as client:
        client.post("/v1/recommend", json=ASK)
        said = client.get("/metrics").text
    for rule in group["rules"]:
        names = re.findall(r"\b(?:mrfrec|process)_\w+", rule["expr"])
        assert names or rule["expr"].startswith("up{")
        for name in names:
            assert re.search(rf"^{name}[ {{]", said, flags=re.MULTILINE), name
        # An alert that compares with earlier days does not end by itself after a day.
        if "offset" in rule["expr"]:
            fixed, compared = rule["expr"].split(" or ")
            assert re.search(r"> 0\.\d+$", fixed)
            assert compared.count("[7d] offset 1d") == 2
        for label in re.findall(r"(\w+)=\"|\bby \((\w+)\)|\$labels\.(\w+)", str(rule)):
            label = "".join(label)
            assert label in ("job", "instance") or f'{label}="' in said, label


SWALLOWS = """
import os, signal, sys
from mrfrec.cli import main
from mrfrec.service import served
opened = served.load

def swallowing(*given):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
    except KeyboardInterrupt:
        pass
    return opened(*given)

if __name__ == "__main__":
    served.load = swallowing
    main()
"""


@pytest.mark.slow
def test_signal_to_stop_that_a_library_would_swallow_at_the_start_stops_all_the_same(
    shop: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SWALLOWS)
    command = [sys.executable, str(script), "serve", str(shop), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "Traceback" not in done.stderr
