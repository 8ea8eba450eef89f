"""The middleware of the service: access, limits, what every response carries, and its metrics."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrfrec.cli.serving import JsonLines
from mrfrec.errors import DataError, ParameterError
from mrfrec.service import ServiceSettings, answers, create_app
from mrfrec.service.access_control import Rates, new_key, read_keys
from mrfrec.service.app import reload
from mrfrec.service.monitoring import ROUTES, route_of

from servers import ASK, JSON, asking, eventually, got, posted, raw, save_keys, sent, serving


@pytest.fixture(scope="module")
def open_client(shop: Path) -> Iterator[httpx.Client]:
    with asking(shop, max_body=1000, body_seconds=0.5, origins=("https://shop.example",)) as client:
        yield client


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


class Keys(NamedTuple):
    file: Path
    read: str
    manage: str


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return Keys(file, *save_keys(file))


@pytest.fixture(scope="module")
def locked(shop: Path, keys: Keys) -> Iterator[httpx.Client]:
    with asking(shop, keys=keys.file) as client:
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
def test_keys_are_sent_in_three_ways(locked: httpx.Client, keys: Keys, how: str) -> None:
    def ask(key: str, path: str = "/v1/recommend") -> int:
        ways: dict[str, Any] = {
            "bearer": {"headers": {"Authorization": f"Bearer {key}"}},
            "header": {"headers": {"X-API-Key": key}},
            "basic": {"auth": ("anybody", key)},
        }
        return locked.post(path, json=ASK, **ways[how]).status_code

    assert ask(keys.read) == ask(keys.manage) == 200
    assert ask(keys.read[:-1]) == ask(keys.read + "x") == ask("x") == 401
    assert ask(keys.read, "/v1/models/shop/reload") == 403
    # A browser would send it for the form of another site, too.
    assert ask(keys.manage, "/v1/models/shop/reload") == (403 if how == "basic" else 200)


@pytest.mark.parametrize("given", ["Bearer", "Basic", "Basic !!", "Basic eDp5", "Digest x", "Bearer \xe4"])
def test_bad_credentials_are_401(locked: httpx.Client, given: str) -> None:
    headers = {b"Authorization": given.encode("latin-1")}
    assert locked.get("/v1/models", headers=headers).status_code == 401


def test_the_file_of_keys_is_read_anew(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    old, _ = save_keys(file)
    app = create_app(shop, settings=ServiceSettings(keys=file))
    with serving(app) as url:

        def ask(key: str) -> int:
            return got(f"{url}/v1/models", headers={"X-API-Key": key}).status_code

        new, _ = save_keys(file)
        reload(app)
        assert (ask(new), ask(old)) == (200, 401)
        file.write_text("nonsense")
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
        ("a:read:" + "0" * 64 + "\na:read:" + "1" * 64, "line 2: another key has the name a"),
        ("a:read:" + hashlib.sha256(b"").hexdigest(), "line 1: this is the hash of an empty key"),
    ],
)
def test_bad_files_of_keys_are_refused_without_showing_them(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(DataError, match=words) as error:
        read_keys(tmp_path / "keys")
    assert "mrf_secret" not in str(error.value)


def test_new_keys_are_random_and_only_their_hash_is_kept() -> None:
    (one, line), (other, _) = new_key("a"), new_key("a")
    assert one != other
    assert one not in line
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


def test_too_many_requests_of_a_key_are_429(shop: Path, keys: Keys) -> None:
    with asking(shop, keys=keys.file, rate=0.5) as client:
        given = [{"X-API-Key": key} for key in (keys.read, keys.read, keys.manage)]
        found = [client.get("/v1/models", headers=headers) for headers in given]
        assert [one.status_code for one in found] == [200, 429, 200]
        assert 1 <= int(found[1].headers["retry-after"]) <= 2
        assert client.get("/health").status_code == 200


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


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
    assert raw(str(open_client.base_url), head).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - start < 3
    for _ in range(5):  # a client that leaves harms nobody
        sent(str(open_client.base_url), head).close()
    assert open_client.post("/v1/recommend", json=ASK).status_code == 200


def test_a_refused_body_that_drips_is_not_waited_for(shop: Path, keys: Keys) -> None:
    bodies = (b"Content-Length: 100", b"Transfer-Encoding: chunked")
    with asking(shop, keys=keys.file, rate=0.001, queue=1, max_body=1000) as client:

        def status(key: str, body: bytes) -> bytes:
            head = f"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n".encode() + body
            found = raw(str(client.base_url), head + b"\r\n\r\n")  # until the service closes the connection
            assert found.lower().count(b"connection: close") == 1
            return found.split()[1]

        for body in bodies:
            assert status("none", body) == b"401"
        assert status(keys.read, b"Content-Length: 1001") == b"413"
        assert status(keys.read, bodies[0]) == b"429"
        without = client.get("/v1/models")
        assert without.status_code == 401
        assert "connection" not in without.headers
        assert client.post("/health", json=ASK).status_code == 413


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
    with asking(shop) as client:
        for body, status in (({**ASK, "model": long}, 404), ({**ASK, long: 1}, 422)):
            found = client.post("/v1/recommend", json=body)
            assert (found.status_code, found.json()["detail"][-1]) == (status, "…")
            assert len(found.content) < 600
        for length, status in ((50_000, 414), (7000, 404)):
            page = client.get("/", params={"model": long[:length]})
            assert page.status_code == status
            assert "x" * 1000 not in page.text


def test_beyond_the_queue_it_is_503_at_once(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = Event()
    monkeypatch.setattr(answers, "search", lambda *_: [] if go_on.wait(20) else None)
    app = create_app(shop, settings=ServiceSettings(queue=2))
    with serving(app) as url, ThreadPoolExecutor(2) as pool:
        held = [pool.submit(httpx.get, f"{url}/v1/search?q=x", timeout=60) for _ in range(2)]
        try:
            eventually(lambda: app.state.load.requests == 2)
            start = time.monotonic()
            refused = posted(f"{url}/v1/recommend", content=b"not even JSON")
            assert time.monotonic() - start < 1
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            assert "1 refused since" in caplog.text
            assert got(f"{url}/ready").status_code == 503
            assert got(f"{url}/health").status_code == 200
            assert "mrfrec_queue 2.0" in got(f"{url}/metrics").text
        finally:
            go_on.set()
        assert [each.result().status_code for each in held] == [200, 200]
        assert got(f"{url}/ready").status_code == 200


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
    with asking(shop) as client:
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=ours).headers


def test_errors_show_neither_paths_nor_tracebacks(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError(f"secret {shop}")

    monkeypatch.setattr("mrfrec.service.answers.search", broken)
    with asking(shop) as client:
        found = client.get("/v1/search", params={"q": "milk"})
    assert found.status_code == 500
    assert found.json()["title"] == "Internal Server Error"
    assert "secret" not in found.text
    assert "Traceback" not in found.text
    assert "secret" in caplog.text  # the log has it, once
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1


@pytest.fixture
def access_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, "mrfrec.service.access")
    with caplog.filtering(logging.Filter("mrfrec.service.access")):
        yield caplog


@pytest.mark.parametrize("asked_for", [False, True])
def test_the_log_has_histories_ids_and_clients_only_if_asked_for(
    shop: Path, keys: Keys, asked_for: bool, access_log: pytest.LogCaptureFixture
) -> None:
    with asking(shop, keys=keys.file, log_requests=asked_for, log_clients=asked_for) as client:
        client.headers["X-API-Key"] = keys.read
        client.post("/v1/recommend", json={"history": ["milk"]}, headers={"X-Request-Id": "mine"})
        client.post("/v1/recommend", json={"user": 4})
        client.get("/v1/search", params={"q": "jam"})
        client.post("/v1/models/shop/reload")
    lines = [vars(record)["fields"] for record in access_log.records]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/recommend", 200), ("POST", "/v1/recommend", 200),
        ("GET", "/v1/search", 200), ("POST", "/v1/models/{name}/reload", 403),
    ]  # fmt: skip
    assert (lines[0]["request"], lines[0]["model"]) == ("mine", "shop")
    for line in lines:
        assert 0 < line["ms"] < 10_000
        assert (line["pid"], line["key"]) == (os.getpid(), "web")
        assert line["client"] == ("127.0.0.1" if asked_for else "")
    for text in (json.dumps(lines), *(record.getMessage() for record in access_log.records[::2])):
        assert ("jam" in text or "milk" in text) is asked_for


def test_what_is_sent_cannot_look_like_a_line_of_the_log(
    shop: Path, access_log: pytest.LogCaptureFixture
) -> None:
    with asking(shop, log_requests=True) as client:
        client.get("/v1/sea%0Arch%1b%5b31m%E2%80%A8?q=%0a")
        client.post("/v1/recommend", content=b'{\n"history": ["\xc3\xa4"]}', headers=JSON)
    texts = [record.getMessage() for record in access_log.records]
    assert len(texts) == 2
    assert all(text.isprintable() for text in texts)
    assert "/v1/sea\\nrch\\x1b[31m\\u2028" in texts[0]
    assert texts[1].endswith('{\\n"history": ["ä"]}')
    lines = [JsonLines().format(record) for record in access_log.records]
    assert all(line.isprintable() for line in lines)
    assert json.loads(lines[0])["path"] == "/v1/sea\nrch\x1b[31m\u2028"


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────


def test_metrics_count_what_happened(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "shop.mrf"
    file.write_bytes(shop.read_bytes())
    with asking(file, poll=0) as client:
        for _ in range(3):
            answer = client.post("/v1/recommend", json={"history": ["milk", "caviar"], "k": 4}).json()
        client.post("/v1/recommend", json={"history": [], "k": 2})
        client.post("/v1/recommend", content=b"{", headers=JSON)
        client.get("/nothing/at/all")
        (tmp_path / "bad").write_bytes(b"nonsense")
        (tmp_path / "bad").replace(file)  # written in place, it would change what is mapped
        assert client.post("/v1/models/shop/reload").status_code == 422
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
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
    file_hash = answer["model"]["file_hash"]
    assert found[f'mrfrec_model_info{{file_hash="{file_hash}",model="shop"}}'] == 1
    assert 0 <= found['mrfrec_model_age_seconds{model="shop"}'] < 600
    assert found["mrfrec_queue"] == 0
    assert any(name.startswith('mrfrec_build_info{python="') for name in found)
    assert found["process_resident_memory_bytes"] > 0


def test_every_path_of_the_api_is_counted_by_its_name(shop: Path) -> None:
    with asking(shop) as client:
        paths = client.get("/v1/openapi.json").json()["paths"]
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


# ── connections ───────────────────────────────────────────────────────────────────────────────────


def test_header_upgrade_changes_nothing(open_client: httpx.Client) -> None:
    head = b"%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    body = json.dumps(ASK).encode()
    typed = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    found = raw(str(open_client.base_url), head % b"POST /v1/recommend" + typed + body, 0.2, last)
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert b'"items":' in found


@pytest.mark.parametrize("prefix", ["", "/recs"])
def test_connection_goes_on_after_a_refusal_for_lack_of_room(shop: Path, prefix: str) -> None:
    app = create_app(shop, settings=ServiceSettings(queue=1, root_path=prefix))
    request = f"POST {prefix}/v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n{{}}".encode()
    health = f"  GET {prefix}/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    with serving(app) as url:
        app.state.load.requests = 1
        found = raw(url, request, 0.2, health)  # with the rest of the body
        app.state.load.requests = 0
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"x-frame-options: DENY" in found
        assert b"HTTP/1.1 200 " in found
        counted = got(f"{url}/metrics").text
    assert 'mrfrec_requests_total{model="",route="/v1/recommend",status="503"} 1.0' in counted
