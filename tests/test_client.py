"""`mrfrec.Client`: the same questions and the same tables as a model, over HTTP."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Client, DataError, Interactions, MrfrecWarning, ParameterError, ServiceError
from mrfrec.service import ServiceSettings, create_app
from mrfrec.service.keys import new_key

from conftest import random_matrix
from servers import save_shop, serving


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_shop(tmp_path_factory.mktemp("client") / "shop.mrf")


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Integers with titles, values, scores of 64 bits."""
    X = random_matrix(3, real=True)
    data = Interactions(
        sp.csr_array(X),
        items=[7 * item for item in range(X.shape[1])],
        titles=[f"Film {item}" if item % 5 else "" for item in range(X.shape[1])],
    )
    path = tmp_path_factory.mktemp("client") / "films.mrf"
    MRF(threads=1, dtype="float64").fit(data).save(path, include_histories=True)
    return path


@pytest.fixture(scope="module")
def url(shop: Path, films: Path) -> Iterator[str]:
    app = create_app({"shop": shop, "films": films}, settings=ServiceSettings(max_k=50, max_batch=5))
    with serving(app) as url:
        yield url


def _outcome(ask: Any) -> tuple[pl.DataFrame, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = ask()
    return table, [str(each.message) for each in caught if issubclass(each.category, MrfrecWarning)]


SHOP: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "a history": ("recommend", (), {"history": ["milk", "tea"], "k": 3}),
    "an empty history": ("recommend", (), {"history": [], "k": 3}),
    "values": ("recommend", (), {"history": {"milk": 2.0, "tea": 0.5}, "k": 2}),
    "histories by name": ("recommend", (), {"history": {"ann": ["milk"], "bob": {"tea": 1}}, "k": 2}),
    "several histories": ("recommend", (), {"history": [["milk"], [], ["beer", "nuts"]] * 4, "k": 2}),
    "a user": ("recommend", (4,), {"k": 3}),
    "several users": ("recommend", ([4, np.int64(7), 999],), {"k": 2}),
    "options": (
        "recommend",
        (),
        {"history": ["milk"], "k": 2, "exclude": ["bread"], "novelty": 0.4, "exclude_seen": False},
    ),
    "allowed": ("recommend", (), {"history": ["milk"], "allow": ["beer", "tea", "none"], "k": 2}),
    "reasons": ("recommend", (), {"history": ["milk", "tea"], "explain": 2, "k": 3}),
    "unknown items": ("recommend", (), {"history": ["milk", "caviar"], "k": 2}),
    "too many": ("recommend", (), {"history": ["milk"], "k": 40}),
    "similar": ("similar_items", ("milk",), {"k": 2}),
    "similar to several": ("similar_items", (["milk", "tea"],), {"k": 2}),
    "explain": ("explain", ("bread",), {"history": ["milk", "jam"]}),
    "explain a user's": ("explain", ("bread",), {"user": 4, "novelty": 0.2}),
    "search": ("search", ("mil",), {}),
}
FILMS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "reasons by title": ("recommend", (), {"history": [7, 14, 70], "explain": 3, "k": 4}),
    "values": ("recommend", (), {"history": {7: 3.5, np.int64(14): np.float32(1.5)}, "k": 4}),
    "arrays": ("recommend", (), {"history": np.array([7, 21]), "k": 4}),
    "similar": ("similar_items", (14,), {"k": 3}),
    "explain": ("explain", (21,), {"history": [7, 14]}),
    "search": ("search", ("film 3",), {"k": 3}),
}


@pytest.mark.parametrize("case", [*(("shop", case) for case in SHOP), *(("films", case) for case in FILMS)])
def test_a_client_answers_as_the_model_does(url: str, shop: Path, films: Path, case: tuple[str, str]) -> None:
    name, key = case
    method, given, options = {"shop": SHOP, "films": FILMS}[name][key]
    model = mrfrec.load({"shop": shop, "films": films}[name])
    with Client(url, model=name, batch=5) as client:
        found, said = _outcome(lambda: getattr(client, method)(*given, **options))
    wanted, expected = _outcome(lambda: getattr(model, method)(*given, **options))
    assert found.schema == wanted.schema
    assert found.equals(wanted) or (found.to_dicts() == [pytest.approx(row) for row in wanted.to_dicts()])
    assert len(said) == len(expected)
    if method == "recommend":
        assert said == expected


def test_info_describes_the_model(url: str) -> None:
    with Client(url) as client, Client(url, model="films") as other:
        assert client.info()["name"] == "shop"
        assert other.info()["data"]["items"] == 45


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda c: c.recommend(), ParameterError, "users must be given, or else history"),
        (lambda c: c.recommend(1, history=["milk"]), ParameterError, "users must be given"),
        (lambda c: c.recommend(history="milk"), ParameterError, "history must be item ids"),
        (lambda c: c.recommend(history=pl.DataFrame({"item": ["milk"]})), ParameterError, "history must be"),
        (lambda c: c.recommend(history=["milk"], k=0), ParameterError, "k must be"),
        (lambda c: c.recommend(history=["milk"], k=51), DataError, "k must be at most 50"),
        (lambda c: c.recommend(history=["milk"], exclude={"a": ["b"]}), ParameterError, "exclude must be"),
        (lambda c: c.recommend(history={"milk": float("nan")}), DataError, "finite"),
        (lambda c: c.similar_items("caviar"), DataError, "does not know this item"),
        (lambda c: c.similar_items(7), DataError, "does not know this item"),
        (lambda c: c.explain("milk"), ParameterError, "user must be given, or else a history"),
        (lambda c: c.explain("caviar", history=["milk"]), DataError, "does not know this item"),
        (lambda c: c.search(3), ParameterError, "text must be a string"),
    ],
)
def test_wrong_questions_are_errors(url: str, ask: Any, error: type[Exception], words: str) -> None:
    with Client(url) as client, pytest.raises(error, match=words):
        ask(client)


def test_no_such_model_is_an_error(url: str) -> None:
    with Client(url, model="none") as client:
        for ask in (
            lambda: client.recommend(3),
            lambda: client.recommend(history=["milk"]),
            lambda: client.info(),
        ):
            with pytest.raises(DataError, match="there is no model 'none'"):
                ask()


def test_a_key_is_sent(shop: Path, tmp_path: Path) -> None:
    key, line = new_key("me")
    (tmp_path / "keys").write_text(line)
    with serving(create_app(shop, settings=ServiceSettings(keys=tmp_path / "keys"))) as url:
        with Client(url, key) as client:
            assert len(client.search("milk")) >= 1
        with Client(url) as client, pytest.raises(ServiceError, match="says 401: a key is needed") as error:
            client.search("milk")
    assert error.value.status == 401


@contextmanager
def _answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers, one after another, and the last for ever."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_busy_service_is_asked_again_a_few_times() -> None:
    busy = (503, b'{"detail": "too many requests at once; try again."}')
    good = (200, b'{"models": [{"name": "a", "default": true}]}')
    with _answering(busy, busy, good) as (url, asked), Client(url) as client:
        assert client.info()["name"] == "a"
        assert len(asked) == 3
    with _answering(busy) as (url, asked), Client(url, retries=1) as client:
        with pytest.raises(ServiceError, match="says 503: too many requests at once"):
            client.info()
        assert len(asked) == 2


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"3"), (500, b"oops"), (404, b"[]")])
def test_what_is_no_service_is_an_error(answer: tuple[int, bytes]) -> None:
    with (
        _answering(answer) as (url, _),
        Client(url) as client,
        pytest.raises((ServiceError, DataError), match="not one of mrfrec serve"),
    ):
        client.info()


def test_nobody_there_is_an_error() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(ServiceError, match="cannot be asked"):
        client.info()
