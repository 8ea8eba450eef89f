"""The page: what it shows is what the model says, whatever the ids are; and it works in a browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mrfrec
from asking import rows_for
from checked_pages import Checked, get
from mrfrec import MRF, models
from mrfrec.checks import shortened
from mrfrec.service import ServiceSettings, create_app
from mrfrec.service.graph import NARROW, WIDE, draw

from odd_models import ODD, TITLES, fitted
from servers import CLIENT, asking, save_keys, save_products, save_shop, save_tagged, serving
from vectors import Vectors

# One of the models has a single item.
pytestmark = pytest.mark.filterwarnings("ignore:column 'item' has one item")

NAMES = ["shop", "odd", "numbers", "untitled", "one", "popular", "vectors", "tagged"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    files = {
        "shop": save_shop(folder / "shop.mrf"),
        "odd": fitted(ODD, TITLES, folder / "odd.mrf"),
        "numbers": fitted([-3, 0, 7, 2**62], ["minus three", "", "seven", "large"], folder / "numbers.mrf"),
        "untitled": fitted([*range(30)], None, folder / "untitled.mrf", MRF(threads=1, sparsity=0.3)),
        "one": fitted(["only"], None, folder / "one.mrf", models.EASE(threads=1)),
        "popular": fitted(ODD, None, folder / "popular.mrf", models.Popularity()),
        "tagged": save_tagged(folder / "tagged.mrf"),
        "vectors": fitted([*range(12)], None, folder / "vectors.mrf", Vectors(factors=3)),
    }
    with serving(create_app(files, settings=ServiceSettings(max_history=20, poll=0))) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60, **CLIENT) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_page(client: httpx.Client, name: str) -> None:
    """Follow all links from the start page of a model."""
    seen: set[str] = set()
    left = [f"/?model={name}", f"/search?model={name}&q=e", f"/suggest?model={name}&q=a"]
    while left and len(seen) < 60:
        at = left.pop(0)
        seen.add(at)
        found = client.get(at)
        assert found.status_code == 200, (at, found.text)
        if "text/html" in found.headers["content-type"]:
            links = [urljoin(at, link) for link in Checked(found.text).links if not link.startswith("#")]
            assert not any(urlsplit(link).netloc for link in links)
            left += [link for link in dict.fromkeys(links) if link not in seen and link not in left]


@pytest.mark.parametrize("item", ODD, ids=ascii)
def test_odd_ids_are_found_shown_and_escaped(client: httpx.Client, item: str) -> None:
    page = get(client, "/item", model="odd", item=item)
    title = TITLES[ODD.index(item)]
    assert (f"[{item}]" if title else item) in "".join(page.text)
    assert title in "".join(page.text)
    history = get(client, "/history", model="odd", item=[item, "ünïcode"])
    assert ("a", f"Remove {shortened(title or item, 120)}") in [
        (tag, given.get("aria-label")) for tag, given in history.tags
    ]
    hidden = [given["value"] for tag, given in history.tags if tag == "input" and given.get("name") == "item"]
    assert hidden.count(item) == 2  # of the search box and of the slider
    assert "No items" not in "".join(get(client, "/search", model="odd", q=item).text)


def test_features_of_an_item_are_shown_and_escaped(client: httpx.Client) -> None:
    text = "".join(get(client, "/item", model="tagged", item="p12").text)
    assert text.count("<b>tag ") == 20
    assert "Features: <b>tag " in text
    assert "Features" not in "".join(get(client, "/item", item="milk").text)


def test_integer_ids_and_missing_titles(client: httpx.Client) -> None:
    page = get(client, "/item", model="numbers", item=2**62)
    assert "large" in "".join(page.text)
    assert f"[{2**62}]" in "".join(page.text)
    tags = get(client, "/suggest", model="numbers", q="large").tags
    options = [given["data-href"] for tag, given in tags if tag == "li"]
    assert parse_qs(urlsplit(str(options[0])).query)["item"] == [str(2**62)]
    get(client, "/item", 404, model="numbers", item="seven")


def _shown(client: httpx.Client, **query: Any) -> list[tuple[str, list[float]]]:
    """Return the cards of a page with recommendations, and their numbers: the score, then its parts."""
    cards = client.get("/history", params=query).text.split('<li class="card">')[1:]
    return [(card, [float(x) for x in re.findall(r'<data value="([^"]+)"', card)]) for card in cards]


@pytest.mark.parametrize("given", [{}, {"novelty": 0.6}], ids=str)
def test_the_reasons_are_exact(client: httpx.Client, folder: Path, given: dict[str, Any]) -> None:
    """The numbers on the page add up to the score of the model."""
    history = ["milk", "tea"]
    wanted = rows_for(mrfrec.load(folder / "shop.mrf"), history=history, k=10, **given)
    shown = _shown(client, item=history, **given)
    assert len(shown) == len(wanted) == 5
    for (card, (score, *parts)), row in zip(shown, wanted, strict=True):
        assert f">{row['title']}</a>" in card
        assert score == pytest.approx(row["score"], abs=1e-6)
        assert sum(parts) == pytest.approx(score, abs=1e-6)
        assert len(parts) == len(history) + 1


def test_of_many_items_of_a_history_the_largest_are_visible(client: httpx.Client) -> None:
    card, (score, *parts) = _shown(client, model="untitled", item=[*range(20)])[0]
    assert "<details>" in card
    assert len(parts) == 21
    assert sum(parts) == pytest.approx(score, abs=1e-6)


def test_addresses_are_bounded(client: httpx.Client) -> None:
    """All links of a page contain its history, so the page must not grow with its square."""
    for path in ("/history", "/search", "/suggest"):
        get(client, path, 422, item=[*range(101)])
        assert client.get(path, params={"q": "x" * 8000}).status_code == 414
    items = ["🦊" * 6 + str(i) for i in range(98)] + ODD[:2]
    longest: dict[str, Any] = {"item": items, "k": 100, "q": "e", "model": "odd"}
    for path in ("/history", "/search"):
        assert len(client.get(path, params=longest).content) < 2_000_000


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(["/", "/search", "/suggest", "/item", "/history", "/model", "/static/x", "/x"]),
    model=st.sampled_from([None, "", "x", *NAMES]),
    item=st.lists(
        st.text() | st.integers().map(str) | st.sampled_from([*ODD, "3", "milk", "only"]), max_size=5
    ),
    others=st.dictionaries(
        st.sampled_from(["q", "k", "novelty", "add", "x"]),
        st.text() | st.floats().map(str) | st.sampled_from(["1", "a"]),
    ),
)
def test_any_query_is_answered_or_refused(
    client: httpx.Client, path: str, model: str | None, item: list[str], others: dict[str, str]
) -> None:
    query = {"item": item, **others, **({} if model is None else {"model": model})}
    found = client.get(f"{path}?{urlencode(query, doseq=True, errors='replace')}")
    assert found.status_code in (200, 404, 422), found.text
    Checked(found.text)


def test_neighbors_are_those_of_the_model_with_their_signs(client: httpx.Client) -> None:
    page = client.get("/item", params={"item": "milk"}).text
    api = client.get("/v1/similar", params={"item": "milk", "k": 3}).json()["items"]
    table = page[page.index("More likely together") :]
    for row in api:
        at = table.index(f">{row['title']}</a>")
        assert f"{row['score']:+.3f}" in table[at : at + 400]
    assert "Less likely together (−)" in page
    assert 'class="edge negative' in page
    assert 'class="node negative"' in page


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nothing/here", 404, "There is nothing at this address."),
        ("/item?item=caviar", 404, "does not know this item"),
        ("/item", 422, "which item"),
        ("/?model=none", 404, "no model"),
        ("/history?novelty=very", 422, "Novelty: Input should be a valid number"),
        ("/history?novelty=nan", 422, "Novelty: Input should be"),
        ("/history?k=0", 422, "K: Input should be greater than or equal to 1"),
        ("/static/none.css", 404, "no such file"),
        ("/history?item=milk&item=%3Ccaviar%3E", 200, "Unknown to the model: <caviar>"),
        ("/item?model=popular&item=100%25", 200, "no graph"),
        ("/item?model=vectors&item=3", 200, "cosine"),
        ("/item?model=one&item=only", 200, "no graph"),
        ("/history?model=one&item=only", 200, "Nothing is left"),
        ("/history?model=vectors&item=1&item=2", 200, "A Vectors gives no reasons"),
    ],
)
def test_pages_say_what_is_wrong_or_missing(client: httpx.Client, path: str, status: int, words: str) -> None:
    assert words in "".join(get(client, path, status).text)


def test_a_model_that_takes_no_novelty_has_no_slider(client: httpx.Client) -> None:
    tags = get(client, "/history", model="vectors").tags
    assert not [given for _, given in tags if given.get("type") == "range"]


def test_a_full_queue_is_a_page_that_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrfrec.service.app._MOST_LOOKUPS", 0)
    with asking(folder / "shop.mrf") as client:
        assert "Too many requests at once" in "".join(get(client, "/", 503).text)


def test_what_was_noted_of_the_training_is_on_the_page_of_the_model(tmp_path: Path) -> None:
    path, shop = tmp_path / "noted.mrf", save_shop(tmp_path / "shop.mrf")
    notes: dict[str, Any] = {"started": "2026-11-16T02:00:00", "metric": "ndcg@10", "value": 0.5}
    notes |= {"error": 0.01, "fit_seconds": 2.5, "asked": 1200, "by": "<me>"}
    mrfrec.load(shop).save(path, notes=notes)
    with asking(path) as client:
        text = " ".join(" ".join(get(client, "/model").text).split())
        for words in ("2026-11-16 02:00 UTC", "2.5 s", "ndcg@10 0.5000 ± 0.0100", "1,200 users", "by <me>"):
            assert words in text
    mrfrec.load(shop).save(path, notes={"started": None})
    with asking(path) as client:
        assert "Trained" not in "".join(get(client, "/model").text)


def test_files_are_kept_by_browsers_and_change_their_address(client: httpx.Client) -> None:
    for link in get(client, "/").links:
        if "static" in link:
            found = client.get(link)
            assert "immutable" in found.headers["cache-control"]
            assert re.fullmatch(r"/static/[a-z]+\.[a-z]+\?[0-9a-f]{12}", link)


@pytest.mark.parametrize("canvas", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("n", [1, 2, 3, 13, 25])
def test_boxes_of_a_graph_are_inside_and_apart(n: int, canvas: Any) -> None:
    n = min(n, 1 + canvas.positive + canvas.negative)
    for seed in range(5):
        random = np.random.default_rng(seed)
        weights = random.normal(size=(n, n)) * random.integers(0, 2, (n, n))
        weights += weights.T
        np.fill_diagonal(weights, 0)
        weights[0, 1:] = weights[1:, 0] = random.normal(size=n - 1)
        names = ["".join(random.choice([*"abc 日🦊"], random.integers(1, 40))) for _ in range(n)]
        items = [{"name": name, "id": place} for place, name in enumerate(names)]
        nodes, edges = draw(items, weights, canvas)
        assert (nodes, edges) == draw(items, weights, canvas)
        middle = nodes[0]
        assert (middle.x, middle.y) == (canvas.width / 2, canvas.height / 2)
        for place, node in enumerate(nodes):
            assert 0 <= node.x - node.width / 2 <= node.x + node.width / 2 <= canvas.width
            for other in nodes[:place]:
                across = abs(node.x - other.x) >= (node.width + other.width) / 2
                assert across or abs(node.y - other.y) >= 26, (seed, node, other)
        assert sum(edge.is_inner for edge in edges) == n - 1
        strongest = [edge for edge in edges if edge.width == 7.0]
        assert bool(strongest) == (n > 1)


def test_names_of_a_graph_that_are_cut_alike_give_way_to_ids() -> None:
    names = ["x", "Development files of the y library", "Development files of the z library"]
    items = [{"name": name, "id": item} for name, item in zip(names, ["a", "b", 7], strict=True)]
    assert [node.label for node in draw(items, np.ones((3, 3)), NARROW)[0]] == ["x", "b", "7"]


def test_names_of_a_graph_are_cut_in_the_middle() -> None:
    items = [{"name": name, "id": name} for name in ("x", "scientific tools for Python 3", "x" * 10_000)]
    labels = [node.label for node in draw(items, np.ones((3, 3)), NARROW)[0]]
    assert labels[:2] == ["x", "scien…hon 3"]
    assert len(labels[2]) < 20


def test_a_graph_draws_the_strongest_line_of_each_neighbor() -> None:
    weights = np.array([[0, 1, 1, 1], [1, 0, 0.5, 0.2], [1, 0.5, 0, 0.3], [1, 0.2, 0.3, 0]])
    items = [{"name": name, "id": name} for name in "abcd"]
    nodes, edges = draw(items, weights, WIDE)
    at = {(node.x, node.y): node.label for node in nodes}
    lines = {at[edge.x1, edge.y1] + at[edge.x2, edge.y2] for edge in edges if not edge.is_inner}
    assert lines == {"bc", "cd"}


# ── a user ────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_a_user_shows_what_they_have_and_get_and_why(folder: Path) -> None:
    model = mrfrec.load(folder / "shop.mrf")
    assert model.users_ is not None
    user = model.users_[3]
    with asking(folder / "shop.mrf", user_page=True) as client:
        html = client.get("/user", params={"id": user}).text
        assert "The model keeps" not in html
        panel = html[html.index('aria-labelledby="history"') :]
        assert set(re.findall(r'href="/item\?item=([^"&]+)', panel)) == set(model.history([user])["item"])
        cards = html[: html.index('aria-labelledby="history"')].split('<li class="card">')[1:]
        rows = rows_for(model, [user], k=10)
        for card, row in zip(cards, rows, strict=True):
            score, *parts = (float(x) for x in re.findall(r'<data value="([^"]+)"', card))
            assert score == pytest.approx(row["score"], abs=1e-6)
            assert sum(parts) == pytest.approx(score, abs=1e-6)
        assert "User" in get(client, "/").text
        get(client, "/user")
        assert "does not know this user" in "".join(get(client, "/user", 404, id="x").text)


def test_users_are_shown_only_where_the_setting_says_so_and_to_who_may_manage(
    folder: Path, tmp_path: Path
) -> None:
    with asking(folder / "shop.mrf") as client:
        get(client, "/user", 404, id=3)
        assert 'href="/user' not in client.get("/").text
    with asking(folder / "shop.mrf", user_page=True) as client:
        for headers in ({"Host": "shop.example"}, {"Origin": "http://shop.example"}):
            found = client.get("/user", params={"id": 3}, headers=headers)
            assert found.status_code == 403
            assert "<h1>A key with the role manage is needed" in found.text
            assert 'href="/user' not in client.get("/", headers=headers).text
    read, manage = save_keys(tmp_path / "keys")
    with asking(folder / "shop.mrf", user_page=True, keys=tmp_path / "keys") as client:
        assert client.get("/user", params={"id": 3}, auth=("support", read)).status_code == 403
        assert client.get("/user", params={"id": 3}, auth=("support", manage)).status_code == 200
        assert client.post("/v1/models/shop/reload", auth=("support", manage)).status_code == 403


def test_a_model_without_histories_has_no_pages_of_users(folder: Path) -> None:
    with asking(folder / "tagged.mrf", user_page=True) as client:
        assert "saved without" in "".join(get(client, "/user", 422, id=3).text)


def test_of_a_long_history_of_a_user_a_hundred_bars_are_shown(tmp_path: Path) -> None:
    pairs = [
        (user, item) for user in range(40) for item in range(150) if (user * item + user) % 5 or not user
    ]
    table = pl.DataFrame(pairs[1:], schema=["user", "item"], orient="row")
    MRF(threads=1, measure=False).fit(table).save(tmp_path / "long.mrf", include_histories=True)
    with asking(tmp_path / "long.mrf", user_page=True) as client:
        html = client.get("/user", params={"id": 0}).text
    card = html.split('<li class="card">')[1]
    score, *parts = (float(x) for x in re.findall(r'<data value="([^"]+)"', card))
    assert len(parts) == 102
    assert sum(parts) == pytest.approx(score, abs=1e-5)
    assert "The last 100 items" in html


# ── rules in the address ──────────────────────────────────────────────────────────────────────────

RULES: list[dict[str, Any]] = [
    {"where": {"category": "shoes"}},
    {"where": {"category": ["<b>hats</b>", "shirts & ties"], 'odd "name" & <b>': 1}},
    {"where": {"price": {"least": 10, "most": 20.5}, "added": {"least": "2026-01-05"}, "in_stock": True}},
    {"at_most": {"category": 1, "tags": 3}},
    {"where": {"in_stock": True}, "at_most": {"brand": 1}, "variety": 0.4, "novelty": 0.5},
]


@pytest.fixture(scope="module")
def products(folder: Path) -> Iterator[httpx.Client]:
    files = {"products": save_products(folder / "products.mrf"), "shop": save_shop(folder / "bare.mrf")}
    with asking(files) as client:
        yield client


def _address(rules: dict[str, Any], **more: Any) -> str:
    texts = {name: x if isinstance(x, float) else json.dumps(x) for name, x in rules.items()}
    return f"/history?{urlencode({'item': ['p1', 'p10'], **texts, **more}, doseq=True)}"


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_rules_of_an_address_are_those_of_the_api_and_every_link_and_form_keeps_them(
    products: httpx.Client, folder: Path, rules: dict[str, Any]
) -> None:
    model = mrfrec.load(folder / "products.mrf")
    wanted = rows_for(model, history=["p1", "p10"], k=10, **rules)
    page = get(products, _address(rules))
    html = products.get(_address(rules)).text
    cards = html.split('<li class="card">')[1:]
    assert [re.findall(r'href="/item\?item=([^"&]+)', card)[0] for card in cards] == [
        row["item"] for row in wanted
    ]
    for card, row in zip(cards, wanted, strict=True):
        score, *parts = (float(x) for x in re.findall(r'<data value="([^"]+)"', card))
        assert score == pytest.approx(row["score"], abs=1e-6)
        assert sum(parts) == pytest.approx(score, abs=1e-6)
    said = re.search(r"([\d,]+) of ([\d,]+) items? (?:is|are) left by the filter", html)
    if "where" in rules:
        everything = rows_for(model, history=[], k=200, exclude_seen=False, where=rules["where"])
        assert said is not None
        assert (int(said[1]), int(said[2])) == (len(everything), model.fitted_.size.items)
    else:
        assert said is None
    without = {name: x for name, x in rules.items() if name not in ("where", "at_most")}
    texts = [{name: json.loads(text) for name, text in _query(link).items() if name in rules}
             for link in page.links if urlsplit(link).path == "/history" and "item=" in link]  # fmt: skip
    assert texts.count(rules) == len(texts) - (rules != without)
    assert len(texts) > len(wanted)
    hidden = [(has["name"], has["value"]) for tag, has in page.tags if tag == "input" and "value" in has]
    for name in rules.keys() & {"where", "at_most"}:
        assert [json.loads(str(text)) for other, text in hidden if other == name] == [rules[name]] * 2


def _query(link: str) -> dict[str, str]:
    return {name: texts[0] for name, texts in parse_qs(urlsplit(link).query).items()}


def test_variety_has_a_slider_where_items_have_a_table_or_it_is_asked_for(products: httpx.Client) -> None:
    def sliders(address: str) -> list[str | None]:
        return [has["name"] for _, has in get(products, address).tags if has.get("type") == "range"]

    assert sliders("/history?item=p1") == ["novelty", "variety"]
    assert sliders("/history?model=shop&item=milk") == ["novelty"]
    assert sliders("/history?model=shop&item=milk&variety=0.5") == ["novelty", "variety"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ('where={"colour":"red"}', "Where must be about columns of the table of items"),
        ("where=price < 3", "Where: Invalid JSON"),
        ('where={"price":{"least":"cheap"}}', "Where.price must be"),
        ('where={"price":{"over":1}}', "no field of this name is known"),
        ('where={"brand":{"least":"a"}}', "where.brand must be a condition without least"),
        ('at_most={"colour":1}', "At_most must be about columns"),
        ('at_most={"brand":-1}', "0 or more"),
        ('at_most={"brand":"x"}', "At_most.brand"),
        ("variety=2", "Variety: Input should be less than or equal to 1"),
        ('model=shop&where={"brand":"a"}', "the model has no table of items"),
        ('model=shop&at_most={"brand":1}', "this model has none"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(products: httpx.Client, address: str, words: str) -> None:
    text = "".join(get(products, f"/history?{address}", 422).text)
    assert words.lower() in text.lower()


def test_nothing_left_is_said(products: httpx.Client) -> None:
    text = "".join(get(products, '/history?where={"category":"shoes","price":{"least":1000}}').text)
    assert "0 of 103 items are left by the filter." in text
    assert "Nothing is left to recommend." in text


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(["where", "at_most", "variety"]), value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["shoes", "2026-02-01"]),
    lambda x: st.lists(x) | st.dictionaries(
        st.sampled_from(["brand", "price", "in_stock", "added", "tags", "least", "any", "x"]), x
    ),
    max_leaves=6,
))  # fmt: skip
def test_any_rules_are_answered_or_refused(products: httpx.Client, name: str, value: Any) -> None:
    found = products.get(f"/history?{urlencode({name: json.dumps(value)})}")
    assert found.status_code in (200, 422), found.text
    Checked(found.text)
