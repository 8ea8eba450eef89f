"""The API of the service: what a model says, over HTTP; what is refused, and how."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import polars as pl
import pytest
import uvicorn

import mrfrec
from mrfrec import MRF, read_interactions
from mrfrec.service import ServiceSettings, create_app

TABLE = [
    (user, item)
    for user in range(60)
    for item in ("milk", "bread", "jam", "tea", "beer", "nuts", "crisps")[(user % 3) * 2 :][:3]
]


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application over a socket, in a thread; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "shop.mrf"
    table = pl.DataFrame(TABLE, schema=["user", "item"], orient="row")
    table = table.with_columns(title=pl.lit("the ") + pl.col("item"))
    MRF(threads=1).fit(read_interactions(table)).save(path, include_histories=True)
    return path


@pytest.fixture(scope="module")
def client(shop: Path) -> Iterator[httpx.Client]:
    settings = ServiceSettings(max_k=50, max_history=20, max_batch=3)
    with serving(create_app(shop, settings=settings)) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("asked", [{"history": ["milk", "tea"]}, {"history": []}, {"user": 4}], ids=str)
def test_recommendations_are_those_of_the_model(
    client: httpx.Client, shop: Path, asked: dict[str, Any]
) -> None:
    found = client.post("/v1/recommend", json={**asked, "k": 3, "reasons": 2})
    assert found.status_code == 200, found.text
    model = mrfrec.load(shop)
    wanted = model.recommend(asked.get("user"), history=asked.get("history"), k=3)
    names = ["item", "title", "score", "rank", "source"]
    items = found.json()["items"]
    assert [[row[name] for name in names] for row in items] == [
        pytest.approx(list(row)) for row in wanted.select(names).rows()
    ]
    assert found.headers["mrfrec-model"] == f"shop; {found.json()['model']['fingerprint']}"
    for row in items:
        assert len(row["reasons"]) <= 2


def test_unknown_items_are_reported(client: httpx.Client) -> None:
    found = client.post("/v1/recommend", json={"history": ["milk", "caviar", 7], "exclude": ["x"]}).json()
    assert found["unknown"] == ["caviar", 7, "x"]
    assert found["items"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "either history or user"),
        ({"history": ["milk"], "user": 3}, 422, "either history or user"),
        ({"history": ["milk"], "k": 0}, 422, "k: "),
        ({"history": ["milk"], "k": 51}, 422, "k must be at most 50"),
        ({"history": ["milk"] * 21}, 422, "at most 20 items"),
        ({"history": ["milk"], "novelty": 3}, 422, "novelty"),
        ({"history": ["milk"], "colour": 3}, 422, "colour"),
        ({"history": ["milk"], "model": "none"}, 404, "no model"),
        ({"user": 99}, 404, "does not know this user"),
        ({"user": "4"}, 422, "user ids are integers"),
    ],
)
def test_bad_requests_are_problems(client: httpx.Client, body: Any, status: int, words: str) -> None:
    found = client.post("/v1/recommend", json=body)
    assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["status"] == status
    assert words in found.json()["detail"]
