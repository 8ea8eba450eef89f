"""Two services behind nginx, with the configuration that the repository ships."""

import json
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest

from benchmarks.behind_nginx import nginx, take_out

from servers import ASK, Command, eventually, got, post, posted, raw, received, sent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="needs nginx"),
]


@pytest.fixture
def services(shop: Path, tmp_path: Path) -> Iterator[list[Command]]:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        yield [stack.enter_context(each) for each in [Command(folder, shop) for folder in folders]]


def ports(services: list[Command]) -> list[int]:
    return [int(str(urlsplit(service.url).port)) for service in services]


def asked_only(service: Command, other: Command) -> bool:
    """Whether the other one answers nothing while this one answers a dozen."""
    answered = "/v1/recommend 200"
    before = other.log.count(answered)
    service.wait_for(answered, times=service.log.count(answered) + 12)
    return other.log.count(answered) == before


def test_both_answer_and_one_that_is_taken_out_and_stops_loses_no_answer(
    services: list[Command], tmp_path: Path
) -> None:
    """As the page says: `down` in the configuration, reload, stop."""
    stop, answered = Event(), "/v1/recommend 200"
    with nginx(tmp_path, ports(services), limits=False) as url, ThreadPoolExecutor(4) as pool:

        def ask() -> list[int]:
            statuses = []
            while not stop.is_set():
                statuses.append(posted(f"{url}/v1/recommend", json=ASK, timeout=60).status_code)
            return statuses

        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for service in services:
                service.wait_for(answered, times=6)
                service.process.send_signal(signal.SIGHUP)
            for service in services:
                service.wait_for(" replaces ")
            take_out(tmp_path, ports(services)[0])
            eventually(lambda: asked_only(services[1], services[0]), 60)
            assert services[0].stop() == 0
            services[1].wait_for(answered, times=services[1].log.count(answered) + 6)
        finally:
            stop.set()
        statuses = [status for one in asking for status in one.result()]
    assert {*statuses} == {200}


def test_request_that_ends_a_service_is_not_sent_to_the_other(
    services: list[Command], tmp_path: Path
) -> None:
    with nginx(tmp_path, ports(services), limits=False) as url:
        services[0].process.send_signal(signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(8) as pool:
                waiting = [pool.submit(posted, f"{url}/v1/recommend", json=ASK, timeout=60) for _ in range(8)]
                time.sleep(1)  # nginx has sent some to the one that stands still
                services[0].process.kill()
                statuses = [one.result().status_code for one in waiting]
        finally:
            services[0].process.kill()
        assert 502 in statuses
        assert {*statuses} == {200, 502}
        assert services[1].log.count("/v1/recommend 200") == statuses.count(200)
        assert posted(f"{url}/v1/recommend", json=ASK, timeout=60).status_code == 200


def test_limits_hold_and_what_is_inside_stays_there(services: list[Command], tmp_path: Path) -> None:
    with nginx(tmp_path, ports(services)) as url:
        assert got(f"{url}/metrics").status_code == 404
        assert posted(f"{url}/v1/models/shop/reload").status_code == 403
        assert posted(f"{url}/v1/models/sho%70/reload").status_code == 403
        assert raw(url, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000).startswith(b"HTTP/1.1 400 ")
        assert posted(f"{url}/v1/recommend", content=b" " * 4_200_000).status_code == 413
        with sent(url, b"GET / HTTP/1.1\r\nHost: x\r\n") as slow:
            begin = time.monotonic()
            received(slow)
            assert 5 < time.monotonic() - begin < 16
        body = json.dumps(ASK).encode()
        with ThreadPoolExecutor(30) as pool:
            many = [pool.submit(posted, f"{url}/v1/recommend", json=ASK, timeout=60) for _ in range(300)]
            statuses = {one.result().status_code for one in many}
        assert statuses <= {200, 429}
        assert 200 in statuses
        time.sleep(1)
        with sent(url, post("/v1/recommend", body)[:-1]) as dripping:  # which no service sees
            time.sleep(0.5)
            assert all("mrfrec_queue 0.0" in got(f"{service.url}/metrics").text for service in services)
            dripping.shutdown(socket.SHUT_WR)
