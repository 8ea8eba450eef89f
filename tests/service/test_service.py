"""The API of the service: what a model says, over HTTP; what is refused, and how."""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import polars as pl
import pytest

import mrfrec
from asking import rows_for
from mrfrec import MRF, DataError, MrfrecWarning, ParameterError
from mrfrec.cli.app import run as run_command
from mrfrec.data.ids import Ids
from mrfrec.service import answers

from servers import JSON, TABLE, asking


@pytest.fixture(scope="module")
def client(shop: Path) -> Iterator[httpx.Client]:
    with asking(shop, max_k=50, max_history=20, max_batch=3) as client:
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
    assert found.headers["mrfrec-model"] == f"shop; {found.json()['model']['file_hash']}"
    for row in items:
        parts = client.post("/v1/explain", json={**asked, "item": row["item"]}).json()["contributions"]
        base = [part["contribution"] for part in parts if part["item"] is None]
        assert row["base"] == pytest.approx(sum(base))
        assert len(row["reasons"]) <= 2
        for reason in row["reasons"]:
            assert reason["title"] == f"the {reason['item']}"


def test_unknown_people_get_the_same_from_python_shell_and_service(
    client: httpx.Client, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, names = mrfrec.load(shop), ["item", "title", "score", "rank", "source"]
    with pytest.warns(MrfrecWarning, match="1 of 1 users are unknown .* they get the most popular items"):
        rows = model.recommend(99, k=3).select(names).to_dicts()
    with pytest.warns(MrfrecWarning, match="1 of 1 users are unknown"):
        run_command(["recommend", str(shop), "--user", "99", "-k", "3", "--format", "json"], Event())
    shown = [{name: row[name] for name in names} for row in json.loads(capsys.readouterr().out)]
    for user in (99, 2**64 - 1, -(2**63)):
        answer = client.post("/v1/recommend", json={"user": user, "k": 3}).json()
        assert answer["known"] is False
        items = [{name: row[name] for name in names} for row in answer["items"]]
        for each in (rows, shown):
            assert items == [{**row, "score": pytest.approx(row["score"])} for row in each]
        assert {row["source"] for row in items} == {"popular"}
    told = client.post("/v1/explain", json={"user": 99, "item": "milk"}).json()
    assert (told["known"], [part["item"] for part in told["contributions"]]) == (False, [None])
    for history, known in (([], False), (["caviar"], False), (["caviar", "milk"], True)):
        assert client.post("/v1/recommend", json={"history": history}).json()["known"] is known
        batch = client.post("/v1/recommend/batch", json={"histories": [history]}).json()
        assert batch["answers"][0]["known"] is known
    assert client.post("/v1/recommend", json={"user": 4, "strict": True}).json()["known"] is True
    _check_problem(client.post("/v1/recommend", json={"user": 99, "strict": True}), 404, "not know this user")
    with pytest.raises(ParameterError, match=r"users must be known to the model \(1 of 2 are not\).* got 99"):
        model.recommend([4, 99], strict=True)
    with pytest.raises(ParameterError, match="users must be known to the model"):
        run_command(["recommend", str(shop), "--user", "99", "--strict"], Event())


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
        ({"history": ["milk"], "k": 0}, 422, "k: Input should be greater than or equal to 1; got 0."),
        ({"history": ["milk"], "k": 51}, 422, "k must be at most 50"),
        ({"history": ["milk"] * 21}, 422, "items of a history must be at most 20"),
        ({"history": ["milk"], "allow": ["x"] * 21}, 422, "items of allow must be at most 20"),
        ({"history": ["milk"], "k": True}, 422, "k: "),
        ({"history": ["milk"], "k": "3"}, 422, "k: "),
        ({"history": ["milk"], "reasons": True}, 422, "reasons: "),
        ({"history": ["milk"], "exclude_seen": 1}, 422, "exclude_seen: "),
        ({"history": ["milk"], "novelty": True}, 422, "novelty"),
        ({"history": ["milk"], "novelty": "0.1"}, 422, "novelty"),
        ({"history": ["milk"], "novelty": 3}, 422, "novelty"),
        ({"history": ["milk"], "colour": 3}, 422, "colour"),
        ({"history": ["milk"], "variety": 2}, 422, "variety"),
        (
            {"history": ["milk"], "at_most": {"brand": "2"}},
            422,
            "at_most['brand'] must be a whole number, 0 or more; got '2'.",
        ),
        ({"history": ["milk"], "at_most": {"brand": -1}}, 422, "a whole number, 0 or more"),
        ({"history": ["milk"], "at_most": {"brand": 2}}, 422, "this model has none. Whoever makes the model"),
        ({"history": ["milk"], "at_most": {str(i): 1 for i in range(900)}}, 422, "up to 20 names of columns"),
        ({"history": ["milk"], "boost": {"times": "x"}}, 422, "boost.times: no field of this name is known."),
        ({"history": ["milk"], "boost": {"add": "x"}}, 422, "needs a table of items"),
        ({"history": ["milk"], "boost": {"add": {"milk": 2}}}, 422, "boost.add"),
        (
            {"history": ["milk"], "boost": {"multiply": [{"item": "milk", "value": 0}]}},
            422,
            "a number from 1e-06",
        ),
        (
            {"history": ["milk"], "boost": {"add": [{"item": i, "value": 1} for i in range(21)]}},
            422,
            "boost must be at most 20",
        ),
        (
            {"boost": {"add": {"milk": 2}}},
            422,
            "boost.add: must be the name of a column, or a list such as [",
        ),
        (
            {"history": [], "boost": {"add": [{"item": 1, "value": 1}, {"item": 1, "value": 2}]}},
            422,
            "got 1 more than once",
        ),
        (
            {"where": "price < 5"},
            422,
            'where: must be an object such as {"price": {"most": 5}}, not SQL; got',
        ),
        ({"where": {"price": None}}, 422, "where.price: must be a text, a number, true or false, a list of"),
        ({"where": {"bool": [None]}}, 422, "where.bool.0: must be a text, a number, true or false."),
        ({"where": {"price": {"least": [1]}}}, 422, "where.price.least: must be a number, a date or a time."),
        (
            {"where": {"price": "a" * 1001}},
            422,
            "where.price: String should have at most 1000 characters",
        ),
        ({"where": {"price": {"any": 1}}}, 422, "where.price.any: Input should be a valid array; got 1."),
        ({"history": ["milk"], "model": "none"}, 404, "no model"),
        ({"user": "4"}, 422, "user ids are integers"),
        ({"exclude": [1, -(10**4000)]}, 422, "exclude.1: must be an id, an integer of 64 bits or a string."),
        ({"visitor": 10**4000}, 422, "visitor: must be an id, an integer of 64 bits or a string."),
        ({"history": [{"item": "milk", "value": 1e308}]}, 422, "finite numbers from -1e+30 to 1e+30"),
        ({"history": ["tea", {"item": "milk", "value": "x"}]}, 422, "history.1.value: Input should be a"),
        ({"history": [{"item": "milk"}]}, 422, "either a value or a time"),
        ({"history": [{"item": 1.5, "value": 1}]}, 422, "history.0.item: must be an id, an integer of"),
        ({"history": [{"item": 1, "value": 1, "str": 1}]}, 422, "history.0.str: no field of this name"),
        (
            {"history": [{"item": 1, "value": 1, "constrained-int": 1}]},
            422,
            "history.0.constrained-int: no field of",
        ),
        ({"history": [1.5]}, 422, 'an integer of 64 bits or a string, or {"item": …, "value": …}; got 1.5.'),
        ({"user": 1.5}, 422, "user: must be an id, an integer of 64 bits or a string; got 1.5."),
        ([], 422, "the body must be a JSON object."),
    ],
)
def test_bad_requests_are_problems(client: httpx.Client, body: Any, status: int, words: str) -> None:
    _check_problem(client.post("/v1/recommend", json=body), status, words)


@pytest.mark.parametrize(
    "body", [{"novelty": 0}, {"novelty": 0.5}, {"history": ["milk", "milk", {"item": "milk", "value": 2}]}]
)
def test_integers_are_numbers_and_items_may_be_repeated(client: httpx.Client, body: Any) -> None:
    assert client.post("/v1/recommend", json={"history": ["milk"], **body}).status_code == 200


def test_options_are_described_with_their_limits(client: httpx.Client) -> None:
    schemas = client.get("/v1/openapi.json").json()["components"]["schemas"]
    for name in ("RecommendRequest", "BatchRequest"):
        options = schemas[name]["properties"]
        assert options["k"] == {
            "title": "K", "type": "integer", "default": 10, "minimum": 1, "description": "Number of items."
        }  # fmt: skip
        assert (options["reasons"]["minimum"], options["reasons"]["maximum"]) == (0, 100)
        novelty = options["novelty"]["anyOf"][0]
        assert (novelty["minimum"], novelty["maximum"]) == (-1, 1)


@pytest.mark.parametrize(("count", "words"), [(0, "at least one"), (4, "histories must be at most 3; got 4")])
def test_batches_are_bounded(client: httpx.Client, count: int, words: str) -> None:
    _check_problem(client.post("/v1/recommend/batch", json={"histories": [[]] * count}), 422, words)


def _check_problem(found: httpx.Response, status: int, words: str) -> None:
    assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["status"] == status
    assert words in found.json()["detail"]


GOOD, BAD = b'{"history": ["milk"]}', (b"{", b"\xff", b'{"history": ["\xff"]}', b"[" * 100_000)
JSON_TYPES = ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"]
OTHER_TYPES = ["text/plain; x=application/json", "application/x-www-form-urlencoded", ""]


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        *((GOOD, kind, 200, "") for kind in JSON_TYPES),
        *((b'{"history": ["%b' % (70_000 * b"a"), kind, 400, "the body is not JSON.") for kind in JSON_TYPES),
        *((body, "application/json", 400, "the body is not JSON.") for body in BAD),
        *((GOOD, kind, 415, "Content-Type: application/json") for kind in OTHER_TYPES),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, bytes) else None,
)
def test_json_is_read_in_one_step_if_it_is_said_to_be_json(
    client: httpx.Client, body: bytes, kind: str, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starlette.requests.Request.json", None)  # which FastAPI's own steps call
    found = client.post("/v1/recommend", content=body, headers={"Content-Type": kind})
    assert found.status_code == status, found.text
    if status != 200:
        _check_problem(found, status, words)


def test_compressed_bodies_are_a_problem(client: httpx.Client) -> None:
    for body in (gzip.compress(GOOD), GOOD):
        found = client.post("/v1/recommend", content=body, headers={**JSON, "Content-Encoding": "gzip"})
        _check_problem(found, 415, "send JSON as it is")


def test_items_are_told_and_unknown_ones_are_problems(client: httpx.Client) -> None:
    found = client.get("/v1/item", params={"item": "milk"}).json()
    assert (found["item"], found["title"], found["users"]) == ("milk", "the milk", 20)
    for answer in (
        client.get("/v1/item", params={"item": "caviar"}),
        client.get("/v1/similar", params={"item": "caviar"}),
        client.post("/v1/explain", json={"item": "caviar", "history": []}),
    ):
        _check_problem(answer, 404, "does not know this item")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("similar?item=milk&kk=3", "kk: no field of this name is known; known are item, k and model."),
        ("similar?item=milk&item=jam", "item must be given once; got it 2 times."),
        ("similar?item=milk&k=0", "k: Input should be greater than or equal to 1; got"),
        ("search?q=milk&item=jam", "item: no field of this name is known; known are q, k and model."),
        ("search", "q: must be given."),
        ("models?name=shop", "name: no field of this name is known; none is."),
    ],
)
def test_fields_of_an_address_are_known_and_given_once(
    client: httpx.Client, address: str, words: str
) -> None:
    _check_problem(client.get(f"/v1/{address}"), 422, words)


def test_no_histories_are_a_problem(client: httpx.Client) -> None:
    found = client.post("/v1/recommend/batch", json={"histories": []})
    _check_problem(found, 422, "histories: must have at least one entry.")


def test_unknown_addresses_and_methods_are_problems(client: httpx.Client) -> None:
    _check_problem(client.get("/v1/nothing"), 404, "there is nothing at this address.")
    _check_problem(client.get("/v1/recommend"), 405, "GET is not allowed here.")


@pytest.mark.parametrize("text", ["--5", "-", "", "1e3", "٣", "9" * 30])
def test_text_that_is_no_integer_is_no_item(text: str) -> None:
    assert answers.find_item(Ids.range(10), text) is None
    assert answers.find_item(Ids.range(10), "7") == 7


def test_user_beyond_64_bits_is_refused(shop: Path) -> None:
    with pytest.raises(DataError, match="64 bits"):
        mrfrec.load(shop).recommend(2**64)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to which the order of a history matters."""
    path = tmp_path_factory.mktemp("timed") / "timed.mrf"
    days = [datetime(2026, 1, 1 + (2 * user + place) % 30) for user in range(60) for place in range(3)]
    table = pl.DataFrame(TABLE, schema=["user", "item"], orient="row").with_columns(timestamp=pl.Series(days))
    settings: dict[str, Any] = {"half_life": None, "order": 0, "recency": 0.5}
    model = MRF(**settings, measure=False, threads=1).fit(mrfrec.read_interactions(table))
    model.save(path, include_histories=True)
    return path


def test_explanations_of_lists_and_times_add_up_to_the_scores(timed: Path) -> None:
    times = {"tea": "2026-11-01", "jam": "2026-11-16T10:00:00Z", "milk": "2026-11-15"}
    lists = {"history": list(times)}
    dated = {"history": [{"item": item, "time": time} for item, time in times.items()]}
    scores = []
    with asking(timed) as client:
        for asked in (lists, dated):
            rows = client.post("/v1/recommend", json={**asked, "k": 4}).json()["items"]
            for row in rows:
                found = client.post("/v1/explain", json={**asked, "item": row["item"]}).json()
                assert found["score"] == pytest.approx(row["score"], rel=1e-5)
            scores.append({row["item"]: row["score"] for row in rows})
    model = mrfrec.load(timed)
    histories = (list(times), {item: datetime.fromisoformat(time) for item, time in times.items()})
    for found, history in zip(scores, histories, strict=True):
        wanted = rows_for(model, history=history, k=4)
        assert found == pytest.approx({row["item"]: row["score"] for row in wanted}, rel=1e-5)
    assert scores[0] != pytest.approx(scores[1])  # the times say another order than the list


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([{"item": "milk", "time": "2026-01-01", "value": 1}], "either a value or a time"),
        ([{"item": "milk", "time": "soon"}], "a date"),
        ([{"item": "milk", "time": "9999-01-01"}], "at most a day later than the clock"),
        ([{"item": "milk", "time": "2026-01-01"}, "tea"], "times for all items, or for none"),
    ],
    ids=str,
)
def test_histories_with_odd_times_are_refused(timed: Path, history: list[Any], words: str) -> None:
    with asking(timed) as client:
        found = client.post("/v1/recommend", json={"history": history})
    assert found.status_code == 422
    assert words in found.json()["detail"]
