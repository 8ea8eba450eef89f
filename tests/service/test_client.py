"""`mrfrec.Client`: the same questions and the same tables as a model, over HTTP."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Client, DataError, Interactions, MrfrecWarning, ParameterError, ServiceError
from mrfrec.service import ServiceSettings, create_app

from matrices import random_matrix
from servers import posted, save_carried, save_keys, save_shop, save_tagged, serving


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
def files(shop: Path, films: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tagged = save_tagged(tmp_path_factory.mktemp("client") / "tagged.mrf")
    carried = save_carried(tmp_path_factory.mktemp("client") / "carried.mrf")
    return {"shop": shop, "films": films, "tagged": tagged, "carried": carried}


@pytest.fixture(scope="module")
def url(files: dict[str, Path]) -> Iterator[str]:
    with serving(create_app(files, settings=ServiceSettings(max_k=50, max_batch=5))) as url:
        yield url


def _outcome(ask: Any) -> tuple[pl.DataFrame, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = ask()
    return table, [str(each.message) for each in caught if issubclass(each.category, MrfrecWarning)]


Asked = tuple[str, dict[str, Any]]
SHOP: dict[str, Asked] = {
    "a history": ("recommend", {"history": ["milk", "tea"], "k": 3}),
    "an empty history": ("recommend", {"history": [], "k": 3}),
    "values": ("recommend", {"history": {"milk": 2.0, "tea": 0.5}, "k": 2}),
    "histories by name": ("recommend", {"history": {"ann": ["milk"], "bob": {"tea": 1}}, "k": 2}),
    "several histories": ("recommend", {"history": [["milk"], [], ["beer", "nuts"]] * 4, "k": 2}),
    "a user": ("recommend", {"users": 4, "k": 3}),
    "several users": ("recommend", {"users": [4, np.int64(7), 999], "k": 2}),
    "rarer items": ("recommend", {"history": ["milk"], "k": 2, "novelty": 0.4}),
    "excluded": ("recommend", {"history": ["milk"], "k": 2, "exclude": ["bread"], "exclude_seen": False}),
    "allowed": ("recommend", {"history": ["milk"], "allow": np.array(["beer", "tea", "none"]), "k": 2}),
    "reasons": ("recommend", {"history": ["milk", "tea"], "explain": 2, "k": 3}),
    "unknown items": ("recommend", {"history": ["milk", "caviar"], "k": 2}),
    "unknown options": ("recommend", {"history": [["milk"], ["tea"]], "exclude": ["caviar"], "k": 2}),
    "too many": ("recommend", {"history": ["milk"], "k": 40}),
    "counts of numpy": ("recommend", {"history": ["milk"], "k": np.int64(2), "explain": np.int8(1)}),
    "values of numpy": ("recommend", {"history": {"milk": np.int8(1)}, "novelty": np.float32(0.5), "k": 2}),
    "boosted": ("recommend", {"history": ["milk"], "k": 3, "boost": {"add": {"beer": 0.5, "caviar": 1}}}),
    "boosted, several": ("recommend", {"history": [["milk"], ["tea"]], "boost": {"multiply": {"beer": 9}}}),
    "boosted, with reasons": (
        "recommend",
        {"history": ["milk"], "boost": {"add": {"beer": 1}}, "explain": 1},
    ),
    "varied": ("recommend", {"history": ["milk", "tea"], "k": 4, "variety": 0.7}),
    "half a character": ("recommend", {"history": ["milk", "\ud800"], "k": 2}),
    "similar": ("similar_items", {"item": "milk", "k": 2}),
    "similar to several": ("similar_items", {"item": ["milk", "tea"], "k": 2}),
    "explain": ("explain", {"item": "bread", "history": ["milk", "jam"]}),
    "explain a user's": ("explain", {"item": "bread", "user": 4, "novelty": 0.2}),
    "explain a boost": (
        "explain",
        {
            "item": "bread",
            "history": ["milk"],
            "boost": {"add": {"bread": 1, "caviar": 2}, "multiply": {"bread": 2}},
        },
    ),
    "explain a history with unknown items": ("explain", {"item": "bread", "history": ["caviar", "milk"]}),
    "too many similar": ("similar_items", {"item": "milk", "k": 40}),
    "too many similar to several": ("similar_items", {"item": ["milk", "tea"], "k": 40}),
    "search": ("search", {"text": "mil"}),
}
FILMS: dict[str, Asked] = {
    "reasons by title": ("recommend", {"history": [7, 14, 70], "explain": 3, "k": 4}),
    "values": ("recommend", {"history": {7: 3.5, np.int64(14): np.float32(1.5)}, "k": 4}),
    "arrays": ("recommend", {"history": np.array([7, 21]), "k": 4}),
    "boosted": ("recommend", {"history": [7], "boost": {"multiply": {28: 3}, "add": {np.int64(35): 0.5}}}),
    "similar": ("similar_items", {"item": 14, "k": 3}),
    "explain": ("explain", {"item": 21, "history": [7, 14]}),
    "search": ("search", {"text": "film 3", "k": 3}),
}
TAGGED: dict[str, Asked] = {
    "quotas": ("recommend", {"history": ["p0", "p1"], "k": 3, "at_most": {"tags": 1}}),
    "reasons": ("recommend", {"history": ["p0", "p1"], "allow": ["p12"], "explain": 2, "k": 1}),
    "explain": ("explain", {"item": "p12", "history": ["p0", "p1"]}),
    "explain an empty history": ("explain", {"item": "p12", "history": []}),
}
CARRIED: dict[str, Asked] = {
    "reasons": ("recommend", {"history": ["g7", "g17", "g38"], "allow": ["g87"], "explain": 3, "k": 1}),
    "explain": ("explain", {"item": "g87", "history": ["g7", "g17", "g38"], "novelty": 0.3}),
    "explain a used item": ("explain", {"item": "g27", "history": ["g7", "g17", "g38"]}),
    "explain an empty history": ("explain", {"item": "g87", "history": []}),
}
CASES = {"shop": SHOP, "films": FILMS, "tagged": TAGGED, "carried": CARRIED}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, cases in CASES.items() for key in cases])
def test_a_client_answers_as_the_model_does(url: str, files: dict[str, Path], name: str, key: str) -> None:
    method, given = CASES[name][key]
    model = mrfrec.load(files[name])
    with Client(url, model=name, batch=5) as client:
        found, said = _outcome(lambda: getattr(client, method)(**given))
    wanted, expected = _outcome(lambda: getattr(model, method)(**given))
    assert found.schema == wanted.schema
    assert found.equals(wanted) or (found.to_dicts() == [pytest.approx(row) for row in wanted.to_dicts()])
    assert len(said) == len(expected)
    assert ("both" in found.columns) == (name in ("tagged", "carried") and method == "explain")
    assert ("through" in found.columns) == (name == "carried" and key == "explain")


def test_alike_items_are_named_in_every_answer(url: str, files: dict[str, Path]) -> None:
    asked = {"model": "carried", "history": ["g7", "g17"]}
    (row,) = posted(f"{url}/v1/recommend", json={**asked, "allow": ["g87"], "k": 1, "reasons": 2}).json()[
        "items"
    ]
    for reason in row["reasons"]:
        assert reason["carried"] > reason["contribution"] / 2
        assert 1 <= len(reason["through"]) <= 2
    *parts, base = posted(f"{url}/v1/explain", json={**asked, "item": "g87"}).json()["contributions"]
    assert [part["through"][:2] for part in parts] == [reason["through"] for reason in row["reasons"]]
    assert parts[0]["through"][0].keys() == {"item", "title", "contribution"}
    assert parts[0]["through"][0]["title"].startswith("<b>G")
    assert "carried" not in base
    used = posted(f"{url}/v1/explain", json={**asked, "item": "g37"}).json()["contributions"]
    assert not any({"carried", "through"} & part.keys() for part in used)
    page = httpx.get(f"{url}/history?model=carried&item=g7&item=g17&k=100").text
    assert "&lt;b&gt;G" in page
    card = page.partition(">&lt;b&gt;G87&lt;/b&gt;</a>")[2].partition("</li>")[0]
    assert card.count('class="through"') == 2


def test_features_in_common_are_lists_in_every_answer(url: str) -> None:
    asked = {"model": "tagged", "history": ["p0"]}
    body = {**asked, "allow": ["p12"], "k": 1, "reasons": 1}
    reasons = posted(f"{url}/v1/recommend", json=body).json()["items"][0]["reasons"]
    parts = posted(f"{url}/v1/explain", json={**asked, "item": "p12"}).json()["contributions"]
    assert reasons[0]["both"] == parts[0]["both"]
    assert parts[0]["both"][0].startswith("<b>tag ")
    assert "both" not in parts[-1]  # the base score


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
        (lambda c: c.recommend(history=["milk"], allow=pl.DataFrame({"item": []})), DataError, "a table"),
        (lambda c: c.recommend(pl.DataFrame({"user": [1]})), DataError, "users must be ids, not a table"),
        (lambda c: c.similar_items(pl.DataFrame({"item": ["tea"]})), DataError, "item must be ids, not a"),
        (lambda c: c.recommend(history={"milk": float("nan")}), DataError, "finite"),
        (lambda c: c.recommend(history=[b"milk"]), DataError, "must be an id"),
        (lambda c: c.recommend(history=[object()]), DataError, "cannot be sent"),
        (lambda c: c.recommend(history=[10**5000]), DataError, "cannot be sent"),
        (lambda c: c.recommend(history={"ann": ["milk"], 3: ["tea"]}), DataError, "got some of each"),
        (lambda c: c.recommend([1.5]), DataError, "user"),
        (lambda c: c.recommend(history=["milk"], novelty=2), ParameterError, "novelty must be between"),
        (lambda c: c.explain("tea", history=["milk"], novelty="x"), DataError, "novelty"),
        (lambda c: c.similar_items("caviar"), DataError, "does not know this item"),
        (lambda c: c.explain("milk"), ParameterError, "user must be given, or else a history"),
        (lambda c: c.explain("milk", history=[["tea"], []]), ParameterError, "history must be of one person"),
        (lambda c: c.explain("milk", user=99), DataError, "does not know this user"),
    ],
)
def test_wrong_questions_are_errors(url: str, ask: Any, error: type[Exception], words: str) -> None:
    with Client(url) as client, pytest.raises(error, match=words) as raised:
        ask(client)
    assert type(raised.value) is error
    assert not str(raised.value).endswith("..")


@pytest.mark.parametrize(("name", "items"), [("films", ["7", "14"]), ("shop", [7, 14])])
def test_ids_of_the_wrong_type_are_unknown(url: str, name: str, items: list[Any]) -> None:
    with (
        Client(url, model=name) as client,
        pytest.warns(MrfrecWarning, match=f"2 items are unknown to the model; .* {items[0]!r}"),
    ):
        found = client.recommend(history=items, k=3)
    assert found["source"].to_list() == ["popular"] * 3


def test_the_model_is_asked_about_once(url: str) -> None:
    asked: list[str] = []
    with Client(url, model="films") as client:
        client._http.event_hooks = {"request": [lambda request: asked.append(request.url.path)]}
        for history in ([7], [21], [14]):
            client.recommend(history=history, k=3)
    assert sorted(asked) == ["/v1/models/films", *["/v1/recommend"] * 3]


def test_a_visitor_chooses_the_model_of_a_split(shop: Path, tmp_path: Path) -> None:
    files = {"old": shop, "new": save_shop(tmp_path / "new.mrf", novelty=0.5)}
    models = {name: mrfrec.load(path) for name, path in files.items()}
    app = create_app(files, split={"old": 0.5, "new": 0.5})
    choose = app.state.models.choose
    chosen = {visitor: choose(None, visitor).served.name for visitor in ("a", "b", "c", "d", 99)}
    assert {*chosen.values()} == {"old", "new"}
    with serving(app) as url, Client(url) as client:
        for visitor, name in chosen.items():
            found = client.recommend(history=["milk"], k=3, visitor=visitor)
            assert found.equals(models[name].recommend(history=["milk"], k=3))
            found = client.explain("bread", history=["milk"], visitor=visitor)
            assert found.equals(models[name].explain("bread", history=["milk"]))
        with pytest.warns(MrfrecWarning, match="user 99 is unknown"):
            found = client.recommend(99, k=3)
        assert found["score"].equals(models[chosen[99]].recommend(history=[], k=3)["score"])


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "localhost:8000", None, 3, "", "http://", "\ud800", "ftp://me:secret@a"],
)  # fmt: skip
def test_wrong_urls_are_refused(url: Any) -> None:
    with pytest.raises(ParameterError, match=r'url must be .* such as "http://127.0.0.1:8000"') as error:
        Client(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("key", ["", " \n", "mrf_sec\nret", "mrf_sec ret", "mrf_secrét"])
def test_wrong_keys_are_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(ParameterError, match="key must be one word") as error:
        Client("http://127.0.0.1:1", key)
    assert "sec" not in f"{error.value} {error.value.value}"


def test_no_such_model_is_an_error(url: str) -> None:
    with Client(url, model="none") as client:
        for ask in ASKS:
            with pytest.raises(DataError, match="there is no model 'none'"):
                ask(client)


def test_a_key_is_sent(shop: Path, tmp_path: Path) -> None:
    key, _ = save_keys(tmp_path / "keys")
    with serving(create_app(shop, settings=ServiceSettings(keys=tmp_path / "keys"))) as url:
        password = url.replace("://", f"://me:{key}@")
        for client in (Client(url, key), Client(url, f" {key}\r\n"), Client(password)):
            with client:
                assert len(client.search("milk")) >= 1
        with Client(url) as client, pytest.raises(ServiceError, match="says 401: a key is needed") as error:
            client.search("milk")
        with (
            Client(url, f"{key}x") as client,
            pytest.raises(ServiceError, match="401: this key is not known"),
        ):
            client.search("milk")
    assert error.value.status == 401


@contextmanager
def _answering(
    *answers: tuple[int, bytes], kind: str = "application/problem+json", **options: Any
) -> Iterator[tuple[Client, list[str]]]:
    """A client of a service that gives these answers, one after another, and the last for ever."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        status, body = answers[min(len(asked), len(answers) - 1)]
        asked.append(request.url.path)
        headers = {"Content-Type": "application/json" if status == 200 else kind, "Retry-After": "0"}
        return httpx.Response(status, content=body, headers=headers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
        with Client("http://there", **options) as client:
            yield client, asked


def test_a_busy_service_is_asked_again_a_few_times() -> None:
    busy = (503, b'{"detail": "too many requests at once; try again."}')
    good = (200, b'{"models": [{"name": "a", "default": true}]}')
    with _answering(busy, busy, good) as (client, asked):
        assert client.info()["name"] == "a"
        assert len(asked) == 3
    with _answering(busy, retries=1) as (client, asked):
        with pytest.raises(ServiceError, match="says 503: too many requests at once"):
            client.info()
        assert len(asked) == 2


ASKS: list[Callable[[Client], Any]] = [
    lambda c: c.info(),
    lambda c: c.recommend(history=[1], explain=2),
    lambda c: c.recommend(history=[[1], [2]]),
    lambda c: c.recommend([1, 2]),
    lambda c: c.recommend([]),
    lambda c: c.similar_items(1),
    lambda c: c.explain(1, history=[2]),
    lambda c: c.explain(1, user=2),
    lambda c: c.search("x"),
]


ODD = '{"model": {}, "models": [3], "items": 3, "answers": [1], "unknown": 7, "contributions": null}'


@pytest.mark.parametrize("kind", ["application/problem+json", "application/json"])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>"),
        (200, "3"),
        (200, "{}"),
        (200, "[" * 100_000),
        (200, ODD),
        (200, '{"model": 1, "models": 2, "item": 1, "items": 3, "answers": 2, "unknown": []}'),
        (500, "oops"),
        (404, "[]"),
        (404, '{"detail": "there is nothing at this address."}'),
        (301, ""),
    ],
    ids=range(10),
)
def test_what_is_no_service_is_an_error(status: int, body: str, kind: str) -> None:
    with _answering((status, body.encode()), kind=kind) as (client, _):
        for ask in ASKS:
            with pytest.raises(ServiceError, match=r"http://there .*check the URL") as error:
                ask(client)
            assert not str(error.value).endswith("..")
            assert error.value.status in (status, None)


@pytest.mark.parametrize("path", ["/foo", "/v1"])
def test_a_wrong_path_is_an_error(url: str, path: str) -> None:
    with Client(url + path) as client:
        for ask in ASKS:
            with pytest.raises(ServiceError, match=f"{url}{path} answers 404, .* check the URL"):
                ask(client)


def _answer(model: str, item: Any) -> tuple[int, bytes]:
    row = {"item": item, "title": "", "score": 1.0, "rank": 1, "source": "model", "users": 3}
    about = {"name": "shop", "fingerprint": model}
    return 200, json.dumps({"model": about, "items": [row], "unknown": []}).encode()


def _described(model: str, kind: str) -> tuple[int, bytes]:
    ids = "strings" if kind == "string" else "integers"
    types = {"item": kind, "score": "float32"}
    return 200, json.dumps({"name": "shop", "fingerprint": model, "item_ids": ids, "types": types}).encode()


def test_a_model_that_is_replaced_between_two_questions() -> None:
    answers = [_answer("a", "milk"), _described("b", "int64"), _answer("b", 7)]
    with _answering(*answers) as (client, asked):
        with pytest.raises(ServiceError, match=r"http://there .* has just been replaced .* ask again"):
            client.recommend(history=["milk"], k=1)
        assert client.recommend(history=[7], k=1)["item"].to_list() == [7]
        assert len(asked) == 3
    answers = [_answer("a", 5), _described("b", "int64"), _answer("a", 5), _described("a", "int64")]
    with _answering(*answers) as (client, asked):  # by one with the same type of ids
        for _ in range(2):
            assert client.recommend(history=[7], k=1)["item"].to_list() == [5]
        assert len(asked) == 4


def test_nobody_there_is_an_error() -> None:
    with (
        Client("http://me:secret@127.0.0.1:1") as client,
        pytest.raises(
            ServiceError, match=r"^http://127.0.0.1:1 cannot be asked: .*refused. Check that"
        ) as error,
    ):
        client.info()
    assert "secret" not in str(error.value)


def test_a_closed_client_is_an_error(url: str) -> None:
    client = Client(url)
    client.close()
    with pytest.raises(ServiceError, match="closed"):
        client.search("milk")
