"""The API of the service: what a model says, over HTTP; what is refused, and how."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mrfrec
from mrfrec import MRF, DataError, Interactions, ModelFileError
from mrfrec.data.ids import Ids
from mrfrec.models import EASE, SLIM, WMF, ItemKNN, Popularity
from mrfrec.models.answers.question import Question
from mrfrec.service import ServiceSettings, answers, create_app
from mrfrec.service.quick import QuickAnswers
from mrfrec.service.shelf import Served

from conftest import random_matrix
from servers import save_shop, serving

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_shop(tmp_path_factory.mktemp("service") / "shop.mrf")


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
        parts = client.post("/v1/explain", json={**asked, "item": row["item"]}).json()["contributions"]
        base = [part["contribution"] for part in parts if part["item"] is None]
        assert row["base"] == pytest.approx(sum(base))
        assert len(row["reasons"]) <= 2
        for reason in row["reasons"]:
            assert reason["title"] == f"the {reason['item']}"


def test_unknown_items_are_reported(client: httpx.Client) -> None:
    found = client.post("/v1/recommend", json={"history": ["milk", "caviar", 7], "exclude": ["x"]}).json()
    assert found["unknown"] == ["caviar", 7, "x"]
    assert found["items"]


def test_ids_of_any_characters_come_back_as_they_were(client: httpx.Client) -> None:
    odd = ["\ud800", "\x00", "\u2028", "店", ""]
    for path, body in (("", {"history": odd}), ("/batch", {"histories": [odd]})):
        # Half a character is sent as an escape, which is all that JSON has for it.
        found = client.post(f"/v1/recommend{path}", content=json.dumps(body), headers=JSON)
        answer = found.json()["answers"][0] if path else found.json()
        assert answer["unknown"] == odd


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
        ({"user": 2**64}, 404, "does not know this user"),
        ({"user": -(2**64)}, 404, "does not know this user"),
        ({"history": [{"item": "milk", "value": 1e308}]}, 422, "finite numbers from -1e+30 to 1e+30"),
        ({"history": ["tea", {"item": "milk", "value": "x"}]}, 422, "history.1.value: Input should be a"),
        ({"history": [{"item": "milk", "value": True}]}, 422, "history.0.value: Input should be a valid"),
        ({"history": [{"item": "milk"}]}, 422, "history.0.value: Field required."),
        ({"history": [{"item": 1.5, "value": 1}]}, 422, "history.0.item: must be an id, an integer or"),
        ({"history": [{"item": 1, "value": 1, "int": 1}]}, 422, "history.0.int: Extra inputs are not"),
        ({"history": [1.5]}, 422, 'an integer or a string, or {"item": …, "value": …}.'),
        ({"user": 1.5}, 422, "user: must be an id, an integer or a string."),
        ([], 422, "the body must be a JSON object."),
    ],
)
def test_bad_requests_are_problems(client: httpx.Client, body: Any, status: int, words: str) -> None:
    _check_problem(client.post("/v1/recommend", json=body), status, words)


def _check_problem(found: httpx.Response, status: int, words: str) -> None:
    assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["status"] == status
    assert words in found.json()["detail"]


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"history": ["\xff"]}', b"[" * 100_000], ids=len)
def test_what_is_not_json_is_a_problem(client: httpx.Client, body: bytes) -> None:
    _check_problem(client.post("/v1/recommend", content=body, headers=JSON), 400, "the body is not JSON.")


def test_compressed_bodies_are_a_problem(client: httpx.Client) -> None:
    body = gzip.compress(b'{"history": ["milk"]}')
    found = client.post("/v1/recommend", content=body, headers={**JSON, "Content-Encoding": "gzip"})
    _check_problem(found, 415, "send JSON as it is")


def test_unknown_addresses_and_methods_are_problems(client: httpx.Client) -> None:
    _check_problem(client.get("/v1/nothing"), 404, "there is nothing at this address.")
    _check_problem(client.get("/v1/recommend"), 405, "GET is not allowed here.")


@pytest.mark.parametrize("binary", [True, False], ids=["pairs", "values"])
@pytest.mark.parametrize("texts", [True, False], ids=["strings", "integers"])
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "plain"])
@pytest.mark.parametrize("make", [
    lambda: MRF(sparsity=0.2, rank=0), lambda: MRF(sparsity=None), lambda: MRF(sparsity=0.2, rank=3),
    lambda: MRF(sparsity=0.05, rank=40, novelty=0.2),
    lambda: MRF(sparsity=0.2, rank=0, offset=False, novelty=0.3), lambda: MRF(sparsity=None, novelty=-0.3),
    lambda: MRF(sparsity=0.2, rank=0, center=False), lambda: EASE(l2=5.0, dtype="float64"), ItemKNN, SLIM,
    Popularity,
])  # fmt: skip
def test_quick_answers_are_those_of_the_model(
    make: Callable[[], Any], texts: bool, binary: bool, prepared: bool
) -> None:
    """To the bit, for any history, k, number of reasons and excluded items; ties among them."""
    X = random_matrix(3, real=not binary)
    name = (lambda i: f"i{i}") if texts else (lambda i: 7 * i)
    items = [name(i) for i in range(X.shape[1])]
    titles = [f"Title {i} " + "of many words " * 10 if i % 3 else "" for i in range(X.shape[1])]
    data = Interactions(sp.csr_array(X.astype(np.float32)), items=items, titles=titles)
    model = make().fit(data)
    quick = QuickAnswers.of(model)
    assert quick is not None
    if prepared:
        model.prepare_answers()
    served = Served("m", model, "", 0.0, None)
    rng = np.random.default_rng(0)
    for _ in range(150):
        some = rng.choice(len(items), rng.integers(1, 12), replace=False).tolist()
        drawn = rng.choice([9.0, 1.0, 0.0, -2.5, 1e-50], len(some), p=[0.6, 0.1, 0.1, 0.1, 0.1]).tolist()
        values = [None if x == 9 else x for x in drawn]
        history = {items[i]: x for i, x in zip(some, values, strict=True)} | {"none": None, -1: None}
        exclude = [*(items[i] for i in rng.choice(len(items), 3)), "nothing"]
        asked = Question(int(rng.integers(1, 60)), exclude=exclude, explain=int(rng.integers(0, 5)))
        found = quick.recommend(history, asked.k, exclude, asked.explain)
        if found is None:  # nothing is known
            assert all(x == 0.0 for item, x in history.items() if item in items)
            continue
        wanted = answers.recommend_one(served, history, asked)
        quickly = answers.recommend_one(replace(served, quick=quick), history, asked)
        assert quickly.items == wanted.items
        assert sorted(map(str, found[1])) == sorted(map(str, wanted.unknown))


def test_models_of_more_than_weights_have_no_quick_answers() -> None:
    X = sp.csr_array(random_matrix(4).astype(np.float32))
    assert QuickAnswers.of(WMF(factors=3).fit(X)) is None


@pytest.mark.parametrize("rank", [0, 5])
def test_prepared_answers_are_the_same(rank: int, tmp_path: Path) -> None:
    X = sp.csr_array(random_matrix(4).astype(np.float32))
    MRF(sparsity=0.2, rank=rank, threads=1).fit(X).save(tmp_path / "m.mrf")
    plain, prepared = (mrfrec.load(tmp_path / "m.mrf") for _ in range(2))
    prepared.prepare_answers()
    for history in ([1], [4, 9, 30], []):
        one, other = (model.answer(history=history, k=8, explain=3) for model in (plain, prepared))
        assert one == other
        assert plain.explain(2, history=[1, 8]).equals(prepared.explain(2, history=[1, 8]))


def test_damaged_file_is_found_before_it_answers(shop: Path, tmp_path: Path) -> None:
    content = bytearray(shop.read_bytes())
    content[-3] ^= 1
    (tmp_path / "bad.mrf").write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged"):
        mrfrec.load(tmp_path / "bad.mrf").prepare_answers()


@pytest.mark.parametrize("text", ["--5", "-", "", "1e3", "٣", "9" * 30])
def test_text_that_is_no_integer_is_no_item(text: str) -> None:
    assert answers.find_item(Ids.range(10), text) is None
    assert answers.find_item(Ids.range(10), "7") == 7


def test_user_beyond_64_bits_is_refused(shop: Path) -> None:
    with pytest.raises(DataError, match="64 bits"):
        mrfrec.load(shop).recommend(2**64)


_ids = st.one_of(st.sampled_from(["milk", "tea", "beer"]), st.integers(), st.text(max_size=3), st.none())
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 99),
    st.floats(),
    st.text(max_size=3),
    st.lists(_ids, max_size=3),
)
_histories = st.lists(
    st.one_of(_ids, st.fixed_dictionaries({"item": _ids}, optional={"value": _values})), max_size=25
)


@given(
    asked=st.fixed_dictionaries(
        {"history": st.one_of(_histories, _values)},
        optional=dict.fromkeys(
            ("k", "exclude", "allow", "exclude_seen", "novelty", "reasons", "user", "visitor", "x"), _values
        ),
    ),
    is_ascii=st.booleans(),
)
@example(asked={"history": ["\ud800"]}, is_ascii=True)
@example(asked={"history": ["milk", "milk", {"item": "milk", "value": 2}]}, is_ascii=True)
@example(asked={"history": [2**70, 1.0, True]}, is_ascii=True)
@settings(max_examples=150, deadline=None)
def test_answers_at_the_door_are_those_of_the_framework(
    client: httpx.Client, asked: dict[str, Any], is_ascii: bool
) -> None:
    """Only what is said to be exactly application/json is answered at the door."""
    body = json.dumps(asked, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    door, framework = (
        client.post("/v1/recommend", content=body, headers={"Content-Type": kind})
        for kind in ("application/json", "application/json; charset=utf-8")
    )
    assert door.content == framework.content
    assert door.status_code == framework.status_code
    assert {*door.headers} == {*framework.headers}
    assert door.headers.get("mrfrec-model") == framework.headers.get("mrfrec-model")


def test_the_framework_is_not_asked_for_recommendations(shop: Path) -> None:
    async def framework(*_: Any) -> None:
        raise RuntimeError

    door = create_app(shop)
    with serving(door) as url:
        door.app = framework
        assert httpx.post(f"{url}/v1/recommend", json={"history": ["milk"]}).status_code == 200
        assert httpx.post(f"{url}/v1/recommend", json={"history": 1}).status_code == 500
