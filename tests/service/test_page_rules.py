"""Filters, quotas and variety of the page: what its address says is what the model is asked."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import rows_for

import mrfrec
from checked_pages import Checked, get
from mrfrec.service import ServiceSettings, create_app

from servers import CLIENT, asking, products, save_products, save_shop, serving

ODD = 'odd "name" & <b>'
CASES: list[tuple[list[tuple[str, str]], dict[str, Any]]] = [
    ([("any.category", "shoes")], {"where": {"category": "shoes"}}),
    (
        [("any.category", "<b>hats</b>"), ("any.category", "shirts & ties"), ("any.tags", "tag 2")],
        {"where": {"category": ["<b>hats</b>", "shirts & ties"], "tags": "tag 2"}},
    ),
    ([("least.price", "10"), ("most.price", "20.5")], {"where": {"price": (10, 20.5)}}),
    ([("any.in_stock", "true"), ("any.on_sale", "false")], {"where": {"in_stock": True, "on_sale": False}}),
    ([("any.tags", "tag 2")], {"where": {"tags": "tag 2"}}),
    ([("least.added", "2026-02-01"), ("most.added", "2026-03-01T12:00:00")],
     {"where": {"added": {"least": "2026-02-01", "most": "2026-03-01T12:00:00"}}}),
    ([(f"any.{ODD}", "1")], {"where": {ODD: 1}}),
    ([("at_most.category", "1"), ("at_most.tags", "3")], {"at_most": {"category": 1, "tags": 3}}),
    ([("at_most", "brand"), ("each", "1")], {"at_most": {"brand": 1}}),
    ([("at_most.brand", "3"), ("at_most", "brand"), ("each", "1")], {"at_most": {"brand": 1}}),
    ([("variety", "0.7")], {"variety": 0.7}),
    ([("any.in_stock", "true"), ("at_most.brand", "1"), ("variety", "0.4"), ("novelty", "0.5")],
     {"where": {"in_stock": True}, "at_most": {"brand": 1}, "variety": 0.4, "novelty": 0.5}),
    # What a form sends of controls that are left alone.
    ([("any.category", ""), ("least.price", ""), ("most.price", ""), ("at_most", ""), ("each", "2")], {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    files = {"products": save_products(folder / "products.mrf"), "shop": save_shop(folder / "shop.mrf")}
    app = create_app(files, settings=ServiceSettings(poll=0))
    with serving(app) as url, httpx.Client(base_url=url, timeout=60, **CLIENT) as client:
        yield client


def shown(html: str) -> list[tuple[str, float, float]]:
    """Return each card: the id of its item, its score, and the sum of its bars."""
    cards = html.split('<li class="card">')[1:]
    numbers = [[float(x) for x in re.findall(r'<data value="([^"]+)"', card)] for card in cards]
    ids = [re.findall(r'href="/item\?item=([^"&]+)', card)[0] for card in cards]
    return [(item, score, sum(parts)) for item, (score, *parts) in zip(ids, numbers, strict=True)]


@pytest.mark.parametrize(("address", "options"), CASES, ids=str)
def test_an_address_is_a_question_to_the_model(
    client: httpx.Client, folder: Path, address: list[tuple[str, str]], options: dict[str, Any]
) -> None:
    history = ["p1", "p10"]
    html = client.get("/history", params=[*(("item", item) for item in history), *address]).text
    model = mrfrec.load(folder / "products.mrf")
    wanted = rows_for(model, history=history, k=10, **options)
    found = shown(html)
    assert [item for item, *_ in found] == [row["item"] for row in wanted]
    for (_, score, total), row in zip(found, wanted, strict=True):
        assert score == pytest.approx(row["score"], abs=1e-6)
        assert total == pytest.approx(score, abs=1e-6)
    said = re.search(r"([\d,]+) of ([\d,]+) items? (?:is|are) left by the filter", html)
    if "where" in options:
        assert said is not None
        everything = rows_for(model, history=[], k=200, exclude_seen=False, where=options["where"])
        assert (int(said[1]), int(said[2])) == (len(everything), model.fitted_.size.items)
    else:
        assert said is None


@pytest.mark.parametrize(("address", "options"), CASES, ids=str)
def test_links_forms_and_search_keep_the_rules(
    client: httpx.Client, address: list[tuple[str, str]], options: dict[str, Any]
) -> None:
    """Each link and form leads to the same rules; taking a filter away leaves the others."""
    page = get(client, f"/history?{urlencode([('item', 'p1'), ('k', '3'), *address])}")

    def rules(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        pairs = [
            pair for pair in pairs if pair[1] and pair[0] not in ("item", "k", "model", "q", "add", "each")
        ]
        return sorted((name, value) for name, value in pairs if (name, value) != ("variety", "0.0"))

    same = dict(address)
    named = [(f"at_most.{same['at_most']}", same["each"])] if same.get("at_most") else []
    wanted = rules(
        [pair for pair in address if pair[0] not in ("at_most", *(name for name, _ in named))] + named
    )
    links = [urlsplit(link) for link in page.links]
    found = [rules(parse_qsl(link.query)) for link in links if link.path == "/history" and link.query]
    taken = [next(iter({*wanted} - {*each})) for each in found if each != wanted]
    assert len(found) - len(taken) >= 5  # three items to add, one to remove, and more
    chips = [has for tag, has in page.tags if (has.get("aria-label") or "").startswith("Remove")][1:]
    assert len({*taken}) == len(taken) == len(chips)
    forms: list[list[tuple[str, str]]] = []
    for tag, has in page.tags:
        if tag == "form":
            forms.append([])
        elif tag == "input" and (has.get("type") != "checkbox" or "checked" in has):
            forms[-1].append((str(has.get("name")), str(has.get("value"))))
    box, ours = forms[1:]
    assert rules(box) == wanted
    assert [pair for pair in rules(ours) if pair[0] != "novelty"] == [
        pair for pair in wanted if pair[0] != "novelty"
    ]
    found_there = client.get("/suggest", params=[*box, ("q", "product 5")]).text
    link = re.findall(r'data-href="([^"]+)"', found_there)[0].replace("&amp;", "&").replace("&#39;", "'")
    assert rules(parse_qsl(urlsplit(link).query)) == wanted


def test_controls_are_those_of_the_columns(client: httpx.Client, folder: Path) -> None:
    page = get(client, "/history?any.brand=brand+3")
    names = [
        attributes["name"]
        for tag, attributes in page.tags
        if tag in ("select", "input") and attributes.get("name")
    ]
    for name in ("any.category", "least.price", "most.price", "any.in_stock", f"any.{ODD}", "least.added"):
        assert names.count(name) == 1
    assert not {"any.sku", "any.nothing"} & {*names}  # all are different, or missing
    table = mrfrec.load(folder / "products.mrf").catalogue.table
    assert table is not None
    rows = products().filter(pl.col("item").is_in([*table.items]))
    text = "".join(page.text)
    for category, count in rows["category"].drop_nulls().value_counts().iter_rows():
        assert f"{category} ({count})" in text
    assert f"from {min(rows['price'].drop_nulls()):.6g}" in [
        attributes.get("placeholder") for _, attributes in page.tags
    ]
    options = [attributes.get("value") for tag, attributes in page.tags if tag == "option"]
    assert "brand 2" in options
    assert "brand 3" not in options  # it is chosen
    assert "brand: brand 3" in text
    assert options[-4:] == ["", "category", "brand", "tags"]  # of which a list may have at most so many
    on = get(
        client, f"/history?{urlencode({'any.in_stock': 'true', f'any.{ODD}': 1, 'least.price': 7})}"
    ).tags
    assert [attributes["name"] for _, attributes in on if "checked" in attributes] == [
        "any.in_stock",
        f"any.{ODD}",
    ]
    assert [attributes["value"] for _, attributes in on if attributes.get("name") == "least.price"][1:] == [
        "7"
    ]
    assert [
        attributes for tag, attributes in on if tag == "details" and "open" in attributes
    ]  # the last columns


def test_columns_of_many_values_offer_the_most_frequent(folder: Path) -> None:
    model = mrfrec.load(folder / "products.mrf")
    items = [*model.items_]

    def options(values: list[str]) -> list[str | None]:
        model.set_items(pl.DataFrame({"item": items, "x": values}))
        model.save(folder / "many.mrf")
        with asking(folder / "many.mrf") as client:
            tags = get(client, "/history").tags
        return [attributes.get("value") for tag, attributes in tags if tag == "option"][1:]  # of the slider

    values = [f"x{i}" for i in range(len(items) - 20)] + ["z"] * 12 + ["y" * 1000] * 8
    found = options(values)
    assert found[:3] == ["", "z", "x0"]
    assert len(found) == 1 + 50 + 2  # and those of the quota
    assert options([f"x{i}" for i in range(len(items))]) == []


def test_pages_of_models_without_a_table_have_no_filters(client: httpx.Client) -> None:
    page = get(client, "/history?model=shop&item=milk")
    names = [attributes["name"] for _, attributes in page.tags if attributes.get("name")]
    assert not [name for name in names if name and ("." in name or name in ("variety", "at_most", "each"))]
    varied = get(client, "/history?model=shop&item=milk&variety=0.5")
    assert [attributes["value"] for _, attributes in varied.tags if attributes.get("type") == "range"][
        1:
    ] == ["0.5"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("any.colour=red", "Any.colour must be about columns of the table of items: 'title', 'cat"),
        ("at_most.colour=1", "At_most must be about columns"),
        ("at_most.brand=x", "At_most.brand must be a whole number; got 'x'"),
        ("at_most.brand=-1", "0 or more"),
        ("at_most=brand&each=", "Each: Input should be a valid integer"),
        ("at_most=brand&each=101", "Each: Input should be less than or equal to 100"),
        ("variety=2", "Variety: Input should be less than or equal to 1"),
        ("least.price=cheap", "Least.price must be a number; got 'cheap'"),
        ("least.price=nan", "Where.price must be"),
        ("least.price=1&least.price=2", "Least.price must be given once"),
        ("least.brand=a", "where.brand must be a condition without least"),
        ("any.in_stock=1", "Any.in_stock must be true or false; got '1'"),
        ("least.added=soon", "Where.added must be"),
        ("none.brand=a", "about one of the words any, least, most"),
        ("any.brand=" + "x" * 201, "up to 200 characters"),
        ("any." + "x" * 200 + "=a", "up to 200 characters"),
        ("&".join(f"any.brand={i}" for i in range(101)), "up to 20 conditions and quotas, with 100 values"),
        ("&".join(f"any.x{i}=1" for i in range(21)), "up to 20 conditions and quotas"),
        ("model=shop&any.brand=a", "the model has no table of items"),
        ("model=shop&at_most.brand=1", "this model has none"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(client: httpx.Client, address: str, words: str) -> None:
    text = "".join(get(client, f"/history?{address}", 422).text)
    assert words.lower() in text.lower()


def test_nothing_left_is_said(client: httpx.Client) -> None:
    text = "".join(get(client, "/history?any.category=shoes&least.price=1000").text)
    assert "0 of 103 items are left by the filter." in text
    assert "Nothing is left to recommend." in text
    assert "1 of 103 items is left" in "".join(get(client, "/history?any.sku=sku-1").text)


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(
            st.tuples(
                st.sampled_from(["any", "least", "most", "all", "at_most", "each", "variety", "x", ""]),
                st.sampled_from(["", ".", ".brand", ".price", ".in_stock", ".added", ".tags", f".{ODD}"]),
            ).map("".join),
            st.text(max_size=20) | st.integers().map(str) | st.sampled_from(["true", "shoes", "2026-02-01"]),
        ),
        max_size=6,
    )
)
def test_any_rules_are_answered_or_refused(client: httpx.Client, pairs: list[tuple[str, str]]) -> None:
    found = client.get(f"/history?{urlencode(pairs, errors='replace')}")
    assert found.status_code in (200, 422), found.text
    Checked(found.text)
