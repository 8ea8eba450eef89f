"""What an attacker or a mishap tries on the service: prefixes, huge requests, foreign pages."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import scipy.sparse as sp
from fastapi import FastAPI

from mrfrec import MRF
from mrfrec.errors import DataError, ModelFileError, MrfrecWarning
from mrfrec.io.artifact import open_file, write_file
from mrfrec.service import ServiceSettings, answers, create_app, schemas, serve
from mrfrec.service.app import reload

from servers import (
    ASK,
    CLIENT,
    Command,
    asking,
    eventually,
    post,
    posted,
    raw,
    save_keys,
    save_shop,
    sent,
    serving,
)

# ── prefixes ──────────────────────────────────────────────────────────────────────────────────────

# How a service gets its prefix: a setting, an option of the server, and what clients put before a path.
PREFIXES: dict[str, tuple[str, dict[str, str], str]] = {
    "the server is told, and a proxy removes it": ("", {"root_path": "/recs"}, ""),
    "the settings tell, and a proxy removes it": ("/recs", {}, ""),
    "the settings tell, and a proxy passes it on": ("/recs", {}, "/recs"),
    "another application has it mounted, and does not start it": ("", {}, "/recs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PREFIXES)
def test_keys_roles_metrics_links_and_hot_swaps_are_the_same_under_a_prefix(
    case: str, tmp_path: Path
) -> None:
    read, manage = save_keys(tmp_path / "keys")
    model = save_shop(tmp_path / "shop.mrf", l2=1.0)
    setting, options, before = PREFIXES[case]
    settings = ServiceSettings(keys=tmp_path / "keys", poll=0.05, root_path=setting)
    app = create_app(model, settings=settings)
    if "mounted" in case:
        inner, app = app, FastAPI()
        app.mount("/recs", inner)
    with serving(app, **options) as url, httpx.Client(base_url=url + before, **CLIENT) as client:

        def reload(**given: Any) -> int:
            return client.post("/v1/models/shop/reload", **given).status_code

        assert reload(headers={"X-API-Key": read}) == 403
        assert reload(auth=("me", manage)) == 403  # a browser would send it for the form of another site, too
        assert reload() == 401
        assert reload(headers={"X-API-Key": manage}) == 200
        for path in ("/health", "/ready"):
            assert client.get(path).status_code == 200
        for path in ("/", "/v1/models", "/metrics", "/healthy", "/health/x", f"{url}{before}//health"):
            assert client.get(path).status_code == 401
        client.headers["X-API-Key"] = read
        metrics = client.get("/metrics").text
        assert 'mrfrec_requests_total{model="",route="/v1/models/{name}/reload",status="403"} 2.0' in metrics
        assert 'route="/health",status="200"} 1.0' in metrics
        page = client.get("/").text
        assert client.get(url + before, follow_redirects=True).text == page
        for text in (page, client.get("/item?item=milk").text, client.get("/none").text):
            assert 'action="/recs/search"' in text
            assert [link for link in _links(text) if not link.startswith(("/recs/", "#"))] == []
        assert client.get("/v1/none").headers["content-type"] == "application/problem+json"
        before_swap = client.get("/v1/models/shop").json()["file_hash"]
        save_shop(tmp_path / "new.mrf", l2=50.0).replace(model)
        eventually(lambda: client.get("/v1/models/shop").json()["file_hash"] != before_swap)


def _links(page: str) -> list[str]:
    parts = page.replace('src="', 'href="').replace('action="', 'href="').split('href="')[1:]
    return [part.partition('"')[0] for part in parts]


# ── the cost of a request ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 5,000 items, and a user who has 4,000 of them."""
    rng = np.random.default_rng(0)
    users, items = np.repeat(np.arange(1, 2000), 30), rng.integers(0, 5000, 30 * 1999)
    users, items = np.append(users, np.zeros(4000, int)), np.append(items, np.arange(4000))
    X = sp.csr_array((np.ones(len(users)), (users, items)), (2000, 5000))
    X.data[:] = 1.0
    with pytest.warns(MrfrecWarning, match="one user has 4,000 items"):
        model = MRF(sparsity=0.01, rank=0, threads=1).fit(X)
    path = tmp_path_factory.mktemp("large") / "large.mrf"
    model.save(path, include_histories=True)
    return path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/recommend/batch", {"histories": [list(range(500))] * 100, "k": 100, "reasons": 100}),
        ("/v1/recommend/batch", {"histories": [[1]] * 1000, "k": 101}),
        ("/v1/recommend", {"history": [1], "k": 1000, "reasons": 100}),
        ("/v1/recommend", {"history": list(range(5000)), "k": 1000, "reasons": 51}),
        ("/v1/recommend", {"user": 0, "k": 1000, "reasons": 100}),
    ],
    ids=["batch", "batch without reasons", "reasons", "history", "user"],
)
def test_cost_of_an_answer_is_limited_before_work_begins(
    large: Path, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(*given: Any) -> Any:
        raise AssertionError("work began")

    for name in ("recommend", "recommend_to_user"):
        monkeypatch.setattr(answers, name, works)
    with asking(large) as client:
        found = client.post(path, json=body)
        assert found.status_code == 422
        assert "must be at most 100,000" in found.json()["detail"]


def test_unknown_ids_of_the_options_are_told_once_for_a_batch(large: Path) -> None:
    unknown = [f"x{i}" for i in range(2000)]
    body = {"histories": [["y", 1]] * 500, "k": 1, "exclude": unknown, "allow": [7, "z"]}
    with asking(large) as client:
        found = client.post("/v1/recommend/batch", json=body)
        one = client.post("/v1/recommend", json={"history": ["y"], "exclude": unknown[:2]}).json()
    assert found.json()["unknown"] == ["z", *unknown]
    assert {tuple(answer["unknown"]) for answer in found.json()["answers"]} == {("y",)}
    assert len(found.content) < 100_000
    assert one["unknown"] == ["y", "x0", "x1"]


def test_values_of_a_body_are_counted_before_it_is_parsed(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parses(*given: Any) -> Any:
        raise AssertionError("the body was parsed")

    with asking(large) as client:
        monkeypatch.setattr(schemas.RecommendRequest, "model_validate_json", parses)
        for many in (b"1," * 700_000, b"[]" * 100_001, b"{}" * 100_001):
            found = client.post("/v1/recommend", content=b'{"history": [%b' % many)
            assert found.status_code == 413
            assert b"at most 100,000 values" in found.content


def test_work_for_a_batch_stops_when_its_client_leaves(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, recommend, left = [], answers.recommend, threading.Event()

    def counted(*given: Any) -> Any:
        calls.append(len(given[1]))
        if len(calls) == 2:
            assert left.wait(20)
            time.sleep(0.3)  # until the service has read that nobody is there
        return recommend(*given)

    monkeypatch.setattr(answers, "recommend", counted)
    body = json.dumps({"histories": [list(range(50))] * 500, "k": 10, "reasons": 5}).encode()
    with asking(large) as client:
        with sent(str(client.base_url), post("/v1/recommend/batch", body)):
            eventually(lambda: len(calls) == 2)
        left.set()
        name = 'mrfrec_requests_total{model="",route="/v1/recommend/batch",status="499"} 1.0'
        eventually(lambda: name in client.get("/metrics").text)
    assert len(calls) == 2
    assert sum(calls) < 500


HARD: list[tuple[str, Any]] = [
    ("/v1/recommend", {"user": 0, "k": 1000, "reasons": 50}),
    ("/v1/recommend", {"user": 0, "k": 1000, "reasons": 50, "exclude_seen": False, "novelty": 0.5}),
    ("/v1/explain", {"user": 0, "item": 4500}),
    ("/v1/explain", {"history": list(range(5000)), "item": 4999}),
    ("/v1/recommend", {"history": [{"item": i, "value": 1.5} for i in range(5000)], "k": 900, "reasons": 1}),
    ("/v1/recommend", {"history": [10**4000 + i for i in range(900)]}),
    (
        "/v1/recommend/batch",
        {"histories": [[1]] * 1000, "k": 1, "exclude": [f"{i:99}" for i in range(8000)]},
    ),
    ("/v1/openapi.json", None),
    ("/v1/recommend", {"history": [[1]] * 50_000}),
    ("/v1/recommend", {"history": [{"item": "a", "value": 1, **{f"k{i}": 1 for i in range(49_000)}}]}),
    ("/v1/explain", {"item": 1, "history": [1], **{f"k{i}": 1 for i in range(49_000)}}),
    ("/v1/recommend", {"history": list(range(700_000))}),
    ("/v1/recommend/batch", {"histories": [list(range(45))] * 1000, "k": 100}),
    ("/v1/recommend/batch", {"histories": [list(range(500))] * 20, "k": 50, "reasons": 90}),
    ("/v1/search?q=" + "x " * 400, None),
    ("/v1/similar?item=1&k=1000", None),
    ("/item?item=1", None),
]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs the waiting times of Linux")
def test_no_request_keeps_the_event_loop_from_turning(large: Path, tmp_path: Path) -> None:
    """The loop looks at the clock every 5 ms, in a process of its own.

    The time that the process takes counts, not that of others on the machine: neither what is beyond the
    processor time of the process, nor what the loop waits for a processor.
    """
    code = (
        "import asyncio, sys, time\n"
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from mrfrec.service import app as module, serve\n"
        "def waited():\n"
        "    return int(open('/proc/thread-self/schedstat').read().split()[1]) / 1e9\n"
        "async def look(longest=0.02):\n"
        "    while True:\n"
        "        start, cpu = time.perf_counter() - waited(), time.process_time()\n"
        "        await asyncio.sleep(0.005)\n"
        "        gap = min(time.perf_counter() - waited() - start, time.process_time() - cpu)\n"
        "        if gap > longest:\n"
        "            longest = gap\n"
        "            print(f'longest {longest:.4f}', flush=True)\n"
        "watch = []\n"
        "create = module.create_app\n"
        "def watched(*given, **options):\n"
        "    app = create(*given, **options)\n"
        "    app.state.on_start.append(lambda: watch.append(asyncio.ensure_future(look())))\n"
        "    return app\n"
        "module.create_app = watched\n"
        "serve(sys.argv[1], port=0)\n"
    )
    with Command(tmp_path, large, code=code) as service, httpx.Client(timeout=60, **CLIENT) as client:
        for path, body in HARD:
            if body is None:
                client.get(service.url + path)
            else:
                answer = client.post(service.url + path, json=body)
                assert answer.status_code in (200, 413, 422), answer.text[:300]
        with ThreadPoolExecutor(20) as pool:  # several at a time: each has its turn
            ids = list(range(5000))
            several = {"history": ids, "allow": ids, "exclude": ids[:100], "k": 1}
            url = f"{service.url}/v1/recommend"
            found = [pool.submit(client.post, url, json=several) for _ in range(20)]
            assert {one.result().status_code for one in found} <= {200, 503}
        lines = service.log.splitlines()
    assert max((float(line.split()[1]) for line in lines if line.startswith("longest")), default=0.0) < 0.1


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/explain"])
def test_unknown_names_are_told_one_by_one(shop: Path, path: str) -> None:
    many = {f"k{i}": 1 for i in range(40_000)}
    with asking(shop) as client:
        for body in ({"history": [], **many}, {"history": [{"item": "a", "value": 1, **many}]}):
            found = client.post(path, json=body if "recommend" in path else {"item": "jam", **body})
            assert found.status_code == 422
            assert "k0: " in found.json()["detail"]


@pytest.mark.parametrize("method", ["OPTIONS", "GET"])
def test_request_for_no_path_is_a_problem(shop: Path, method: str) -> None:
    with asking(shop) as client:
        request = f"{method} * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        found = raw(str(client.base_url), request)
    assert found.startswith(b"HTTP/1.1 404 ")
    assert b"application/problem+json" in found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipe_in_place_of_a_model_or_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    model, keys = save_shop(tmp_path / "shop.mrf"), tmp_path / "keys"
    save_keys(keys)
    app = create_app(model, settings=ServiceSettings(keys=keys))
    for path in (model, keys):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(ModelFileError):
        app.state.models.reload("shop")
    reload(app)  # the old model and the old keys stay
    with pytest.raises(DataError, match="cannot be read as a file of keys"):
        create_app(save_shop(tmp_path / "other.mrf"), settings=ServiceSettings(keys=keys))


# ── connections before their requests ─────────────────────────────────────────────────────────────

HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"


SERVER: dict[str, Any] = {"h11_max_incomplete_event_size": 65_536}  # as `mrfrec serve` starts it


@pytest.mark.parametrize(
    "request_of",
    [
        lambda size: HEAD + b"X: " + b"a" * size + b"\r\nConnection: close\r\n\r\n",
        lambda size: HEAD + (b"X: " + b"a" * 515 + b"\r\n") * (size // 520) + b"Connection: close\r\n\r\n",
        lambda size: b"GET /%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (b"a" * size),
    ],
    ids=["header", "headers", "path"],
)
def test_head_of_a_request_has_a_limit(shop: Path, request_of: Any) -> None:
    with serving(create_app(shop), **SERVER) as url:
        assert raw(url, request_of(60_000)).split()[1] in (b"200", b"404")
        assert raw(url, request_of(200_000)).startswith(b"HTTP/1.1 400 ")


def test_bodies_to_open_addresses_take_no_room_from_others(shop: Path) -> None:
    app = create_app(shop, settings=ServiceSettings(max_body=100_000))
    with ExitStack() as stack:
        url = stack.enter_context(serving(app))
        for path in (b"/health", b"/ready", b"/metrics"):
            head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" % path
            assert raw(url, head).startswith(b"HTTP/1.1 413 ")
        # Sixteen large bodies that never end, and yet a small request has room.
        large = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b" " * 99_999
        for _ in range(16):
            stack.enter_context(sent(url, large))
        time.sleep(0.5)
        found = posted(f"{url}/v1/recommend", json={"history": ["milk"], "k": 1})
        assert found.status_code == 200
        assert posted(f"{url}/v1/recommend", content=b" " * 90_000).status_code in (413, 415, 503)


def test_address_with_a_line_break_is_refused(shop: Path) -> None:
    with serving(create_app(shop)) as url:
        for path in ("/v1/models/shop/reload%0A", "/v1/models/shop%2Freload%0A", "/health%0D"):
            assert posted(url + path).status_code == 400


@pytest.mark.parametrize(
    "beginning", [HEAD + b"X: ", b"GET /", CHUNKS + b"1;", CHUNKS + b"0\r\nX: "],
    ids=["header", "path", "extension of a chunk", "trailer"],
)  # fmt: skip
def test_request_without_an_end_is_cut_off(shop: Path, beginning: bytes) -> None:
    app = create_app(shop)
    with (
        serving(app, **SERVER) as url,
        sent(url, beginning) as connection,
        pytest.raises(OSError, match=r"reset|pipe"),
    ):
        connection.sendall(b"a" * 20_000_000)  # more than systems buffer


def test_trailers_are_no_headers(shop: Path, tmp_path: Path) -> None:
    key, _ = save_keys(tmp_path / "keys")
    app = create_app(shop, settings=ServiceSettings(keys=tmp_path / "keys"))
    with serving(app) as url:
        request = CHUNKS + f"0\r\nX-API-Key: {key}\r\n\r\n".encode() + HEAD + b"Connection: close\r\n\r\n"
        found = raw(url, request)
    assert found.startswith(b"HTTP/1.1 401 ")
    assert b"HTTP/1.1 200 " in found  # the connection goes on after them


@pytest.mark.parametrize(
    ("lines", "path", "says"),
    [
        (b"Host: x\r\nX-API-Key: a\r\nx-api-key: b\r\n", b"/v1/models", b"one header x-api-key"),
        (b"Host: x\r\nAuthorization: a\r\nAuthorization: b\r\n", b"/v1/models", b"one header authorization"),
        (b"Host: 127.0.0.1\r\n", b"/v1/models/shop%2freload", b"encoded by %"),
        (b"Host: 127.0.0.1\r\n", b"/v1/models/shop%2Freload", b"encoded by %"),
        (b"Host: 127.0.0.1\r\n", b"/v1%2fmodels/shop/reload", b"encoded by %"),
        (b"Host: 127.0.0.1\r\n", b"/v1/models/shop/re%6coad", b"encoded by %"),
    ],
)
def test_request_that_a_proxy_may_read_otherwise_is_refused(
    shop: Path, lines: bytes, path: bytes, says: bytes
) -> None:
    with asking(shop) as client:
        request = b"POST %b HTTP/1.1\r\n%bConnection: close\r\n\r\n" % (path, lines)
        found = raw(str(client.base_url), request)
        assert client.post("/v1/models/sho%70/reload").status_code == 200
    assert found.startswith(b"HTTP/1.1 400 ")
    assert says in found
    assert b"application/problem+json" in found


@pytest.mark.parametrize("lines", [b"Host: x\r\nHost: x\r\n", b""], ids=["twice", "none"])
def test_host_is_named_once(shop: Path, lines: bytes) -> None:
    with asking(shop) as client:
        request = b"GET /health HTTP/1.1\r\n%bConnection: close\r\n\r\n" % lines
        assert raw(str(client.base_url), request).startswith(b"HTTP/1.1 400 ")


def test_old_http_needs_no_host(shop: Path) -> None:
    with asking(shop) as client:
        assert raw(str(client.base_url), b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


# ── pages of other sites ──────────────────────────────────────────────────────────────────────────


def test_pages_of_other_sites_change_nothing(shop: Path) -> None:
    with asking(shop, origins=("https://ops.example", "*")) as client:
        url = str(client.base_url).rstrip("/")
        own = url.removeprefix("http://")
        for origin, host, status in (
            (None, own, 200),
            (url, own, 200),
            ("https://ops.example", own, 200),
            ("https://evil.example", own, 403),  # though it may ask
            ("null", own, 403),
            ("http://evil.example:80", "evil.example:80", 403),  # its name leads here: DNS rebinding
            (None, "evil.example", 403),
            (None, "localhost:1", 200),
            (None, "[::1]:1", 200),
            (None, "localhost:1@evil.example", 403),
            (None, "[::1].evil.example", 403),
        ):
            headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
            assert client.post("/v1/models/shop/reload", headers=headers).status_code == status, headers
            assert client.post("/v1/recommend", json=ASK, headers=headers).status_code == 200


def test_hosts_are_those_that_are_allowed_and_one(shop: Path) -> None:
    with asking(shop, hosts=("Shop.example", "[::1]")) as client:
        for host, status in (
            ("shop.EXAMPLE:81", 200), ("[::1]:8", 200), ("127.0.0.1", 421), ("evil", 421),
            ("shop.example:1@evil", 421), ("[::1].evil", 421),
        ):  # fmt: skip
            found = client.post("/v1/recommend", json=ASK, headers={"Host": host})
            assert found.status_code == status
            assert client.get("/health", headers={"Host": host}).status_code == 200
        assert "[::1].evil" in found.json()["detail"]
        reload = client.post("/v1/models/shop/reload", headers={"Host": "shop.example"})
        assert reload.status_code == 200
        two = b"GET /v1/models HTTP/1.1\r\nHost: evil\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
        assert raw(str(client.base_url), two).split()[1] == b"400"


# ── what the service says of itself ───────────────────────────────────────────────────────────────


def test_description_names_keys_and_the_media_type_of_errors(shop: Path) -> None:
    with asking(shop) as client:
        found = client.get("/v1/openapi.json").json()
        assert client.get("/v1/openapi.json").json() == found
    assert {"bearer", "header", "basic"} == set(found["components"]["securitySchemes"])
    reload = found["paths"]["/v1/models/{name}/reload"]["post"]
    assert {"bearer": []} in reload["security"]
    assert {"basic": []} not in reload["security"]
    assert found["paths"]["/health"]["get"]["security"] == []
    assert "503" in found["paths"]["/ready"]["get"]["responses"]
    for path, methods in found["paths"].items():
        for operation in methods.values():
            if path.startswith("/v1/"):
                assert {"401", "403", "408", "414"} <= set(operation["responses"])
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert list(response["content"]) == ["application/problem+json"]


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


def test_single_file_is_served_and_messages_of_every_level_may_be_logged(shop: Path, tmp_path: Path) -> None:
    code = (
        "import logging, sys\n"
        "from mrfrec import service\n"
        "logging.basicConfig(level=0)\n"
        "service.serve(sys.argv[1], port=0)\n"
    )
    with Command(tmp_path, shop, code=code) as service:
        assert posted(f"{service.url}/v1/recommend", json=ASK).status_code == 200
        assert service.stop() == 0
        assert "stopping: connections end in 0.3 s" in service.log


@pytest.mark.slow
def test_unix_socket_is_listened_at_and_removed(shop: Path, tmp_path: Path) -> None:
    path = tmp_path / "mrfrec.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))  # by a process that was killed
    left.close()
    command = [sys.executable, "-m", "mrfrec", "serve", str(shop), "--uds", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if f"listening at unix:{path}" in line:
                    break
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
                assert client.post("http://shop/v1/recommend", json=ASK, timeout=90).status_code == 200
            assert path.stat().st_mode & 0o777 == 0o660
            with pytest.raises(DataError, match="cannot be listened at: address already in use"):
                serve(shop, uds=path)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
        assert process.wait(20) == 0
    assert not path.exists()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_forged_numbers_of_a_file_give_valid_answers(tmp_path: Path) -> None:
    path = save_shop(tmp_path / "shop.mrf")
    facts, stored = open_file(path)
    arrays = {name: each.read().copy() for name, each in stored.items()}
    arrays["weights"][:] = 3e38
    write_file(path, arrays, {**facts, "notes": {"metric": "m", "value": 10**400, "error": 10**400}})
    with asking(path) as client:
        found = client.post("/v1/recommend", json={"history": ["milk", "jam"], "k": 1}).text
        assert json.loads(found, parse_constant=pytest.fail)["items"][0]["score"] is None
        assert client.get("/model").status_code == 200
