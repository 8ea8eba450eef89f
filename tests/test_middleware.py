"""The middleware of the service: access, limits, and what every response carries; its queues and metrics."""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrfrec.cli.serving import JsonLines
from mrfrec.errors import DataError, ParameterError
from mrfrec.service import ServiceSettings, answers, create_app, metrics, middleware
from mrfrec.service.admission import Rates
from mrfrec.service.app import reload
from mrfrec.service.keys import KeyFile, new_key, read_keys
from mrfrec.service.metrics import ROUTES, route_of
from mrfrec.service.queue import QueueFullError, WorkQueue

from servers import serving

JSON = {"Content-Type": "application/json"}
ASK = {"history": ["milk"], "k": 3}


@pytest.fixture(scope="module")
def open_client(shop: Path) -> Iterator[httpx.Client]:
    settings = ServiceSettings(max_body=1000, body_seconds=0.5, origins=("https://shop.example",))
    with serving(create_app(shop, settings=settings)) as url, httpx.Client(base_url=url) as client:
        yield client


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


class Locked:
    """A service with a key to read and one to manage."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys"
        (self.read, first), (self.manage, second) = new_key("web"), new_key("ops", "manage")
        self.file.write_text(f"# who may ask\n{first}\n\n{second}\n")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Locked:
    return Locked(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def locked(shop: Path, keys: Locked) -> Iterator[httpx.Client]:
    with (
        serving(create_app(shop, settings=ServiceSettings(keys=keys.file))) as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


def test_a_key_is_needed_but_for_health(locked: httpx.Client) -> None:
    for path in ("/v1/models", "/metrics", "/v1/openapi.json", "/", "/static/none.css"):
        found = locked.get(path)
        assert found.status_code == 401
        assert found.headers["content-type"] == "application/problem+json"
        challenge = "Bearer" if path.startswith("/v1/") else "Basic"
        assert found.headers["www-authenticate"] == f'{challenge} realm="mrfrec"'
    assert locked.get("/health").status_code == locked.get("/ready").status_code == 200


@pytest.mark.parametrize("how", ["bearer", "header", "basic"])
def test_keys_are_sent_in_three_ways(locked: httpx.Client, keys: Locked, how: str) -> None:
    def ask(key: str) -> int:
        ways: dict[str, Any] = {
            "bearer": {"headers": {"Authorization": f"Bearer {key}"}},
            "header": {"headers": {"X-API-Key": key}},
            "basic": {"auth": ("anybody", key)},
        }
        return locked.post("/v1/recommend", json=ASK, **ways[how]).status_code

    assert ask(keys.read) == ask(keys.manage) == 200
    assert ask(keys.read[:-1]) == ask(keys.read + "x") == ask("x") == 401


@pytest.mark.parametrize("given", ["Bearer", "Basic", "Basic !!", "Basic eDp5", "Digest x", "Bearer \xe4"])
def test_bad_credentials_are_401(locked: httpx.Client, given: str) -> None:
    headers = {b"Authorization": given.encode("latin-1")}
    assert locked.get("/v1/models", headers=headers).status_code == 401


def test_reload_needs_the_role_manage(locked: httpx.Client, keys: Locked) -> None:
    def reload(**given: Any) -> int:
        return locked.post("/v1/models/shop/reload", **given).status_code

    assert reload(headers={"X-API-Key": keys.read}) == 403
    # A browser would send it for the form of another site, too.
    assert reload(auth=("me", keys.manage)) == 403
    assert reload(headers={"X-API-Key": keys.manage}) == 200


def test_the_file_of_keys_is_read_anew(shop: Path, tmp_path: Path) -> None:
    keys = Locked(tmp_path)
    app = create_app(shop, settings=ServiceSettings(keys=keys.file))
    with serving(app) as url:

        def ask(key: str) -> int:
            return httpx.get(f"{url}/v1/models", headers={"X-API-Key": key}).status_code

        new, line = new_key("new")
        keys.file.write_text(line)
        reload(app)
        assert (ask(new), ask(keys.read)) == (200, 401)
        keys.file.write_text("nonsense")
        reload(app)
        assert ask(new) == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "1 to 1,000 keys"),
        ("# none", "1 to 1,000 keys"),
        ("mrf_secret", "line 1"),
        ("a:read:" + "0" * 63, "line 1"),
        ("a:write:" + "0" * 64, "line 1"),
        ("a:read:" + "0" * 64 + ":x", "line 1"),
        ("a:read:" + "0" * 64 + "\na:read:" + "1" * 64, "line 2: there is another"),
    ],
)
def test_bad_files_of_keys_are_refused_without_showing_them(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(DataError, match=words) as error:
        read_keys(tmp_path / "keys")
    assert "mrf_secret" not in str(error.value)


def test_new_keys_are_random_and_only_their_hash_is_kept(tmp_path: Path) -> None:
    (one, line), (other, _) = new_key("a"), new_key("a")
    assert one != other
    assert one not in line
    (tmp_path / "keys").write_text(line)
    found = read_keys(tmp_path / "keys")
    keys = KeyFile(tmp_path / "keys")
    assert keys.find(one.encode()) == found[0]
    assert keys.find(other.encode()) is None
    for name, role in (("a:b", "read"), ("", "read"), ("a", "write")):
        with pytest.raises(ParameterError):
            new_key(name, role)


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


@given(
    rate=st.sampled_from([0.3, 1.0, 2.0, 3.0, 7.5, 100.0]),
    start=st.sampled_from([0.0, 1e5, 1e8]),  # three years
    asks=st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), max_size=60),
)
def test_rates_are_those_of_a_token_bucket(rate: float, start: float, asks: list[tuple[int, str]]) -> None:
    now, size = Fraction(start), max(Fraction(rate), Fraction(1))
    rates = Rates(rate, clock=lambda: float(now))
    buckets = dict.fromkeys("ab", (size, now))  # tokens, and when they were counted
    for eighths, caller in asks:
        now += Fraction(eighths, 8) / Fraction(rate)
        tokens, then = buckets[caller]
        tokens = min(size, tokens + (now - then) * Fraction(rate))
        wait = max(Fraction(0), (1 - tokens) / Fraction(rate))
        buckets[caller] = (tokens if wait else tokens - 1, now)
        assert rates.wait(caller) == pytest.approx(float(wait), abs=1e-5)


def test_rates_remember_a_bounded_number_of_callers() -> None:
    now = 0.0
    rates = Rates(1.0, clock=lambda: now)
    assert rates.wait("first") == 0.0
    now = 0.5
    for number in range(5000):
        assert rates.wait(str(number)) == 0.0
    assert rates.wait("first") == 0.5
    for number in range(100_000):
        rates.wait(f"other {number}")
    assert rates.wait("first") == 0.0  # forgotten


def test_too_many_requests_of_a_key_are_429(shop: Path, keys: Locked) -> None:
    settings = ServiceSettings(keys=keys.file, rate=0.5)
    with serving(create_app(shop, settings=settings)) as url, httpx.Client(base_url=url) as client:
        statuses = [
            client.get("/v1/models", headers={"X-API-Key": key}).status_code
            for key in (keys.read, keys.read, keys.manage)
        ]
        assert statuses == [200, 429, 200]
        refused = client.get("/v1/models", headers={"X-API-Key": keys.read})
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert client.get("/health").status_code == 200


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def _raw(url: str, text: bytes, pause: float = 0.0, rest: bytes = b"") -> bytes:
    """Send bytes and return everything that comes back until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(text)
        if rest:
            time.sleep(pause)
            connection.sendall(rest)
        found = b""
        with suppress(ConnectionResetError):  # it was closed before it took all that was sent
            while piece := connection.recv(65536):
                found += piece
        return found


def test_large_bodies_are_413_by_their_length_and_as_they_come(open_client: httpx.Client) -> None:
    large = json.dumps({"history": ["x" * 2000]}).encode()
    declared = open_client.post("/v1/recommend", content=large)
    streamed = open_client.post("/v1/recommend", content=iter([large[:900], large[900:]]))
    for found in (declared, streamed):
        assert found.status_code == 413
        assert found.json()["detail"] == "the body must have at most 1,000 bytes."
    small = json.dumps(ASK).encode()
    whole = open_client.post("/v1/recommend", content=iter([small[:5], small[5:]]), headers=JSON)
    assert whole.status_code == 200


def test_slow_bodies_are_408(open_client: httpx.Client) -> None:
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    start = time.monotonic()
    found = _raw(str(open_client.base_url), head)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - start < 3


def test_a_refused_body_that_drips_is_not_waited_for(shop: Path, keys: Locked) -> None:
    settings = ServiceSettings(keys=keys.file, rate=0.001, queue=1, max_body=1000)
    app = create_app(shop, settings=settings)
    bodies = (b"Content-Length: 100", b"Transfer-Encoding: chunked")
    with serving(app) as url:

        def status(path: str, key: str, body: bytes) -> bytes:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n".encode() + body
            found = _raw(url, head + b"\r\n\r\n")  # until the service closes the connection
            assert found.lower().count(b"connection: close") == 1
            return found.split()[1]

        for body in bodies:
            assert status("/v1/recommend", "none", body) == b"401"
        assert status("/v1/recommend", keys.read, b"Content-Length: 1001") == b"413"
        assert status("/v1/recommend", keys.read, bodies[0]) == b"429"
        without = httpx.get(f"{url}/v1/models")
        whole = httpx.post(f"{url}/health", json=ASK)
        assert (without.status_code, whole.status_code) == (401, 405)
        assert "connection" not in without.headers
        assert "connection" not in whole.headers


def test_no_redirect_follows_the_host_of_a_request(open_client: httpx.Client) -> None:
    for path in ("/v1/models/", "/health/", "/static"):
        found = open_client.get(path, headers={"Host": "evil.example"})
        assert found.status_code == 404
        assert "location" not in found.headers


def test_load_balancers_may_ask_for_the_head_alone(open_client: httpx.Client) -> None:
    for path in ("/health", "/ready"):
        found = open_client.head(path)
        assert (found.status_code, found.content) == (200, b"")
    assert "head" not in open_client.get("/v1/openapi.json").json()["paths"]["/health"]


def test_what_was_sent_is_not_repeated_at_length(shop: Path) -> None:
    long = "x" * 100_000
    with serving(create_app(shop)) as url, httpx.Client(base_url=url) as client:
        for body, status in (({**ASK, "model": long}, 404), ({**ASK, long: 1}, 422)):
            found = client.post("/v1/recommend", json=body)
            assert (found.status_code, found.json()["detail"][-1]) == (status, "…")
            assert len(found.content) < 600
        page = client.get("/", params={"model": long[:50_000]})
        assert page.status_code == 414
        assert "x" * 1000 not in page.text


def test_a_client_that_leaves_harms_nobody(open_client: httpx.Client) -> None:
    host, port = open_client.base_url.host, open_client.base_url.port
    for _ in range(5):
        with socket.create_connection((host, port)) as connection:
            connection.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert open_client.post("/v1/recommend", json=ASK).status_code == 200


def test_beyond_the_queue_it_is_503_at_once(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate, waiting = asyncio.Event(), []
    passes = middleware.RequestLimits._pass_on

    async def slow(self: Any, scope: Any, receive: Any, send: Any, is_bounded: bool) -> None:
        async def waits(*given: Any) -> None:
            if scope["path"] == "/v1/models":
                waiting.append(asyncio.get_running_loop())
                await gate.wait()
            await self._app(*given)

        held: Any = SimpleNamespace(**{**vars(self), "_app": waits})
        await passes(held, scope, receive, send, is_bounded)

    monkeypatch.setattr(middleware.RequestLimits, "_pass_on", slow)
    with serving(create_app(shop, settings=ServiceSettings(queue=2))) as url, ThreadPoolExecutor(2) as pool:
        held = [pool.submit(httpx.get, f"{url}/v1/models") for _ in range(2)]
        while len(waiting) < 2:
            time.sleep(0.01)
        try:
            start = time.monotonic()
            refused = httpx.post(f"{url}/v1/recommend", content=b"not even JSON")
            assert time.monotonic() - start < 1
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            assert "1 refused since" in caplog.text
            assert httpx.get(f"{url}/ready").status_code == 503
            assert httpx.get(f"{url}/health").status_code == 200
            assert "mrfrec_queue 2.0" in httpx.get(f"{url}/metrics").text
        finally:
            waiting[0].call_soon_threadsafe(gate.set)
        assert [each.result().status_code for each in held] == [200, 200]
        assert httpx.get(f"{url}/ready").status_code == 200


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


def test_every_response_has_the_security_headers(open_client: httpx.Client) -> None:
    for found in (
        open_client.get("/health"),
        open_client.get("/nothing"),
        open_client.post("/v1/recommend", json=ASK),
        open_client.post("/v1/recommend", content=b"{"),
        open_client.post("/v1/recommend", content=b"x" * 2000),
        open_client.get("/metrics"),
    ):
        headers = found.headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert "geolocation=()" in headers["permissions-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-request-id"]
        assert "access-control-allow-origin" not in headers


def test_request_ids_are_kept_if_they_are_harmless(open_client: httpx.Client) -> None:
    def answered(given: str) -> str:
        return open_client.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"]

    assert answered("abc-123") == "abc-123"
    for odd in ("a b", "x" * 65, '{"a":1}', ""):
        assert answered(odd) != odd
    assert answered("") != answered("")


def test_cors_is_for_named_origins_only(open_client: httpx.Client, shop: Path) -> None:
    preflight = {"Access-Control-Request-Method": "POST"}
    ours, other = {"Origin": "https://shop.example"}, {"Origin": "https://evil.example"}
    found = open_client.options("/v1/recommend", headers={**ours, **preflight})
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] == "https://shop.example"
    assert "Authorization" in found.headers["access-control-allow-headers"]
    found = open_client.post("/v1/recommend", json=ASK, headers=ours)
    assert found.headers["access-control-allow-origin"] == "https://shop.example"
    assert found.headers["vary"] == "Origin"
    found = open_client.options("/v1/recommend", headers={**other, **preflight})
    assert found.status_code == 400
    assert "access-control-allow-origin" not in found.headers
    with serving(create_app(shop)) as url:
        found = httpx.get(f"{url}/v1/models", headers=ours)
        assert "access-control-allow-origin" not in found.headers


def test_errors_show_neither_paths_nor_tracebacks(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError(f"secret {shop}")

    monkeypatch.setattr("mrfrec.service.answers.search", broken)
    with serving(create_app(shop)) as url:
        found = httpx.get(f"{url}/v1/search", params={"q": "milk"})
    assert found.status_code == 500
    assert found.json()["title"] == "Internal Server Error"
    assert "secret" not in found.text
    assert "Traceback" not in found.text
    assert "secret" in caplog.text  # the log has it, once
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1


@pytest.mark.parametrize("asked_for", [False, True])
def test_the_log_has_histories_and_ids_only_if_asked_for(
    shop: Path, asked_for: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServiceSettings(log_requests=asked_for)
    with (
        caplog.at_level(logging.INFO, "mrfrec.service.access"),
        serving(create_app(shop, settings=settings)) as url,
        httpx.Client(base_url=url) as client,
    ):
        client.post("/v1/recommend", json={"history": ["milk"]}, headers={"X-Request-Id": "mine"})
        client.post("/v1/recommend", json={"user": 4})
        client.get("/v1/search", params={"q": "jam"})
        client.get("/v1/models/shop")
    records = [record for record in caplog.records if record.name == "mrfrec.service.access"]
    fields = [record.fields for record in records]  # type: ignore[attr-defined]
    assert [(each["method"], each["route"], each["status"]) for each in fields] == [
        ("POST", "/v1/recommend", 200), ("POST", "/v1/recommend", 200),
        ("GET", "/v1/search", 200), ("GET", "/v1/models/{name}", 200),
    ]  # fmt: skip
    assert fields[0]["request"] == "mine"
    assert fields[0]["model"] == "shop"
    assert all(0 < each["ms"] < 10_000 for each in fields)
    text = json.dumps(fields) + caplog.text
    assert ("jam" in text) is asked_for
    assert ('"milk' in text or "milk" in caplog.text) is asked_for


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────


def _metrics(url: str) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_folder_of_a_killed_service_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_MEMORY", str(tmp_path))
    used, abandoned = tmp_path / "mrfrec-workers-1", tmp_path / "mrfrec-workers-2"
    used.mkdir()
    abandoned.mkdir()
    with metrics._locked(used), metrics.shared_folder():
        mine = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        assert {*tmp_path.iterdir()} == {used, mine}
        metrics._remove_abandoned(str(tmp_path))
        assert mine.exists()
    assert [*tmp_path.iterdir()] == [used]


def test_metrics_count_what_happened(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "shop.mrf"
    file.write_bytes(shop.read_bytes())
    with serving(create_app(file, settings=ServiceSettings(poll=0))) as url:
        for _ in range(3):
            answer = httpx.post(f"{url}/v1/recommend", json={"history": ["milk", "caviar"], "k": 4}).json()
        httpx.post(f"{url}/v1/recommend", json={"history": [], "k": 2})
        httpx.post(f"{url}/v1/recommend", content=b"{", headers=JSON)
        httpx.get(f"{url}/nothing/at/all")
        (tmp_path / "bad").write_bytes(b"nonsense")
        (tmp_path / "bad").replace(file)  # written in place, it would change what is mapped
        assert httpx.post(f"{url}/v1/models/shop/reload").status_code == 422
        found = _metrics(url)
    popular = sum(row["source"] == "popular" for row in answer["items"])
    assert found['mrfrec_requests_total{model="shop",route="/v1/recommend",status="200"}'] == 4
    assert found['mrfrec_requests_total{model="",route="/v1/recommend",status="400"}'] == 1
    assert found['mrfrec_requests_total{model="",route="page",status="404"}'] == 1
    assert found['mrfrec_request_seconds_count{route="/v1/recommend"}'] == 5
    assert found['mrfrec_request_seconds_bucket{le="+Inf",route="/v1/recommend"}'] == 5
    assert 0 < found['mrfrec_request_seconds_sum{route="/v1/recommend"}'] < 50
    assert found['mrfrec_recommended_items_total{model="shop",source="popular"}'] == 3 * popular + 2
    assert found['mrfrec_recommended_items_total{model="shop",source="model"}'] == 3 * (4 - popular)
    assert found['mrfrec_history_items_total{model="shop"}'] == 6
    assert found['mrfrec_unknown_items_total{model="shop"}'] == 3
    assert found['mrfrec_reload_failures_total{model="shop"}'] == 1
    fingerprint = answer["model"]["fingerprint"]
    assert found[f'mrfrec_model_info{{fingerprint="{fingerprint}",model="shop"}}'] == 1
    assert 0 <= found['mrfrec_model_age_seconds{model="shop"}'] < 600
    assert found["mrfrec_queue"] == 0
    assert found["mrfrec_workers"] == 1
    assert any(name.startswith('mrfrec_build_info{python="') for name in found)
    assert found[f'process_resident_memory_bytes{{pid="{os.getpid()}"}}'] > 0


def test_every_path_of_the_api_is_counted_by_its_name(shop: Path) -> None:
    with serving(create_app(shop)) as url:
        paths = httpx.get(f"{url}/v1/openapi.json").json()["paths"]
    assert set(paths) <= set(ROUTES)
    for path in paths:
        assert route_of(path.replace("{name}", "shop")) == path
    assert route_of("/v1/../../etc/passwd") == "other"


@pytest.mark.parametrize(
    ("name", "value"),
    [("queue", 0), ("rate", -1.0), ("rate", 1e-320), ("seconds", 0.0), ("drain", -1.0), ("access_log", "no"),
     ("max_body", 1.5), ("origins", ("shop.example/path",)), ("hosts", ("a:80",)), ("root_path", "recs"),
     ("root_path", "/recs/"), ("root_path", "/a b")],
)  # fmt: skip
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        ServiceSettings(**{name: value})


# ── the queue ──────────────────────────────────────────────────────────────────────────────────────


def test_the_queue_answers_in_order_refuses_what_is_too_much_and_forgets_who_left() -> None:
    async def main() -> None:
        queue, done = WorkQueue(30, 5.0), []
        waiting = [asyncio.create_task(queue.run(lambda n=n: done.append(n) or n)) for n in range(30)]  # type: ignore[func-returns-value, misc]
        await asyncio.sleep(0)  # all are in the line
        waiting[3].cancel()
        with pytest.raises(QueueFullError):
            await queue.run(lambda: done.append(99))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert done == [n for n in range(30) if n != 3]
        assert [one for one in found if isinstance(one, int)] == done
        with pytest.raises(ZeroDivisionError):
            await queue.run(lambda: 1 // 0)
        assert await queue.run(lambda: 7) == 7

    asyncio.run(main())


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_loop_turns_every_2_milliseconds() -> None:
    async def turns(count: int, seconds: float) -> int:
        """Return how often something else had its turn while answers were made."""
        queue, others, over = WorkQueue(count, 5.0), 0, False

        async def other() -> None:
            nonlocal others
            while not over:
                others += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await asyncio.gather(*(queue.run(lambda: _work(seconds)) for _ in range(count)))
        over = True
        await beside
        return others

    assert asyncio.run(turns(5, 0.03)) >= 5
    assert asyncio.run(turns(60, 0.0002)) >= 60 / 11  # up to ten in a row


def test_requests_that_wait_too_long_are_refused() -> None:
    async def main() -> None:
        queue = WorkQueue(10, 0.05)
        first = asyncio.create_task(queue.run(lambda: time.sleep(0.2)))
        second = asyncio.create_task(queue.run(lambda: 1))
        await first
        with pytest.raises(QueueFullError):
            await second

    asyncio.run(main())


def test_what_is_sent_cannot_look_like_a_line_of_the_log(
    shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mrfrec.service.access")
    with serving(create_app(shop, settings=ServiceSettings(log_requests=True))) as url:
        httpx.get(f"{url}/v1/sea%0Arch%1b%5b31m%E2%80%A8?q=%0a")
        httpx.post(f"{url}/v1/recommend", content=b'{\n"history": ["\xc3\xa4"]}', headers=JSON)
    texts = [record.getMessage() for record in caplog.records if record.name == "mrfrec.service.access"]
    assert len(texts) == 2
    assert all(text.isprintable() for text in texts)
    assert "/v1/sea\\nrch\\x1b[31m\\u2028" in texts[0]
    assert texts[1].endswith('{\\n"history": ["ä"]}')
    lines = [JsonLines().format(record) for record in caplog.records]
    assert all(line.isprintable() for line in lines)
    assert "/v1/sea\nrch\x1b[31m\u2028" in [json.loads(line).get("path") for line in lines]


@pytest.mark.slow
def test_much_work_does_not_keep_others_waiting(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = answers.recommend

    def waits(*given: Any) -> Any:
        if given[2].k > 1:
            time.sleep(4.0)
        return slow(*given)

    monkeypatch.setattr(answers, "recommend", waits)
    with serving(create_app(shop)) as url, ThreadPoolExecutor(1) as pool:
        asked = {"history": ["milk"], "k": 40, "reasons": 30}
        large = pool.submit(httpx.post, f"{url}/v1/recommend", json=asked)
        time.sleep(0.3)
        start = time.monotonic()
        assert httpx.post(f"{url}/v1/recommend", json={**ASK, "k": 1}).status_code == 200
        assert time.monotonic() - start < 2.5
        assert large.result().status_code == 200


def test_upgrade_ends_the_connection_and_with_a_body_it_is_refused(shop: Path) -> None:
    """The parser of the server reads nothing after it: the body would be taken for the next request."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"%s /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    app = create_app(shop, settings=ServiceSettings(queue=1))
    with serving(app, ws="none") as url:
        for requests, without_body in ((0, b"200"), (1, b"503")):
            app.state.load.requests = requests
            for rest, status in ((b"", without_body), (b"Content-Length: %d\r\n" % len(inner), b"400")):
                method = b"POST" if rest else b"GET"
                found = _raw(url, head % method + rest + b"\r\n", 0.1, inner if rest else b"")
                assert found.split()[1] == status
                assert found.count(b"HTTP/1.1 ") == 1
        app.state.load.requests = 0


@pytest.mark.parametrize("prefix", ["", "/recs"])
def test_connection_goes_on_after_a_refusal_for_lack_of_room(shop: Path, prefix: str) -> None:
    app = create_app(shop, settings=ServiceSettings(queue=1, root_path=prefix))
    request = f"POST {prefix}/v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n{{}}".encode()
    health = f"  GET {prefix}/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    with serving(app) as url:
        app.state.load.requests = 1
        found = _raw(url, request, 0.2, health)  # with the rest of the body
        app.state.load.requests = 0
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"x-frame-options: DENY" in found
        assert b"HTTP/1.1 200 " in found
        counted = httpx.get(f"{url}/metrics").text
    assert 'mrfrec_requests_total{model="",route="/v1/recommend",status="503"} 1.0' in counted
