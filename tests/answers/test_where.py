"""`where`: conditions on the table of items, as a naive filter of its rows has them."""

import copy
import json
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from asking import rows_for
from mrfrec import MRF, DataError, Interactions, MrfrecWarning, ParameterError
from mrfrec.answers.where import check_where, mask_of
from mrfrec.cli.app import run as run_command
from mrfrec.models import Popularity
from mrfrec.service import create_app

import naive
from matrices import random_matrix
from servers import asking, posted, serving

M = 24
NOON = datetime(2026, 11, 16, 12)
KINDS = ("price", "stock", "sold", "brand", "tags", "day", "moment")


def random_rows(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row for each item, with None for missing values."""

    def cell(make: Any) -> Any:
        return None if rng.random() < 0.2 else make()

    return [
        {
            "item": f"i{i:02}",
            "price": cell(lambda: float(rng.integers(0, 8)) / 2),
            "stock": cell(lambda: int(rng.integers(-2, 3))),
            "sold": cell(lambda: bool(rng.random() < 0.5)),
            "brand": cell(lambda: str(rng.choice(list("abcd")))),
            "tags": cell(lambda: [str(x) for x in rng.choice(list("pqrs"), rng.integers(0, 4))]),
            "day": cell(lambda: date(2026, 11, 16) + timedelta(days=int(rng.integers(-3, 4)))),
            "moment": cell(lambda: NOON + timedelta(hours=int(rng.integers(-60, 60)))),
        }
        for i in range(M)
    ]


def random_condition(rng: np.random.Generator, column: str) -> Any:
    makes: dict[str, Any] = {
        "price": lambda: float(rng.integers(-1, 9)) / 2,
        "stock": lambda: [int(rng.integers(-3, 4)), float(rng.integers(-6, 7)) / 2][rng.integers(2)],
        "sold": lambda: bool(rng.random() < 0.5),
        "brand": lambda: str(rng.choice(list("abcde"))),
        "tags": lambda: str(rng.choice(list("pqrst"))),
        "day": lambda: date(2026, 11, 16) + timedelta(days=int(rng.integers(-4, 5))),
        "moment": lambda: NOON + timedelta(hours=int(rng.integers(-60, 60))),
    }
    make = makes[column]
    if column == "moment" and rng.random() < 0.5:
        make = makes["day"]
    several = [make() for _ in range(rng.integers(0, 4))]
    forms: list[Any] = [
        make(),
        several,
        {"any": several},
        {"none": several},
        {"missing": bool(rng.integers(2))},
    ]
    if column == "tags":
        forms += [{"all": several}, {"all": several, "none": [make()]}]
    if column in ("price", "stock", "day", "moment"):
        forms += [tuple(sorted([make(), make()])), (None, make()), (make(), None)]
        forms += [{word: make()} for word in ("least", "most", "above", "below")]
        forms += [{"above": make(), "most": make(), "none": several}]
    return forms[rng.integers(len(forms))]


@cache
def events() -> Interactions:
    X = random_matrix(3, users=60, items=M)
    return Interactions(sp.csr_array(X), list(range(100, 160)), [f"i{i:02}" for i in range(M)])


def table_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    types: Any = {
        "day": pl.Date,
        "moment": pl.Datetime("us"),
        "tags": pl.List(pl.String),
        "price": pl.Float64,
    }
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=types)


@pytest.mark.parametrize("seed", range(150))
def test_a_filter_keeps_the_rows_that_a_naive_one_keeps(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng)
    model: Any = Popularity().fit(events(), items=table_of(rows))
    if seed % 5 == 0:
        model.save(tmp_path / "a.mrf")
        model = mrfrec.load(tmp_path / "a.mrf")
    for count in (1, 1, 1, 2, 3):
        columns = [str(x) for x in rng.choice(KINDS, count, replace=False)]
        where = {column: random_condition(rng, column) for column in columns}
        mask = mask_of(check_where(where), model.catalogue)
        assert mask is not None
        assert mask.tolist() == [naive.holds(row, where) for row in rows], where
        again = json.loads(json.dumps(check_where(where), default=str))  # as from a service: texts for times
        mask = mask_of(check_where(again), model.catalogue)
        assert mask is not None
        assert mask.tolist() == [naive.holds(row, where) for row in rows], where


SQL: list[tuple[str, dict[str, Any]]] = [
    ("price < 2 AND brand = 'a'", {"price": {"below": 2}, "brand": "a"}),
    ("price BETWEEN 1 AND 2.5", {"price": (1, 2.5)}),
    ("brand IN ('a', 'b') AND NOT sold", {"brand": ["a", "b"], "sold": False}),
    ("brand != 'a'", {"brand": {"none": "a"}}),
    ("sold IS NULL", {"sold": {"missing": True}}),
    ("stock = 1", {"stock": True}),
    ("array_contains(tags, 'p')", {"tags": "p"}),
    ("NOT array_contains(tags, 'p')", {"tags": {"none": "p"}}),
    ("day >= DATE '2026-11-16'", {"day": {"least": date(2026, 11, 16)}}),
    ("moment > TIMESTAMP '2026-11-16 12:00:00'", {"moment": {"above": NOON}}),
    ("brand ILIKE 'A%'", {"brand": "a"}),
    ("lower(brand) = 'a'", {"brand": "a"}),
    ("price IN (1, " + "0.5, " * 20_000 + "2)", {"price": [0.5, 1, 2]}),
    ("moment > TIMESTAMP '2026-11-16 12:00:00'", {"moment": {"above": np.datetime64(NOON, "ns")}}),
    ("\"brand\" = 'select (1'", {"brand": []}),
]


@pytest.mark.parametrize(("text", "where"), SQL)
def test_an_expression_in_sql_keeps_the_same(text: str, where: dict[str, Any]) -> None:
    for seed in range(3):
        rows = random_rows(np.random.default_rng(seed))
        catalogue = Popularity().fit(events(), items=table_of(rows)).catalogue
        kept = mask_of(text, catalogue)
        assert kept is not None
        assert kept.tolist() == [naive.holds(row, check_where(where)) for row in rows]  # type: ignore[arg-type]


@cache
def fitted() -> tuple[Any, list[dict[str, Any]]]:
    rows = random_rows(np.random.default_rng(1))
    return MRF.paper(l2=2.0, threads=1).fit(events(), items=table_of(rows)), rows


def everything(model: Any, user: int) -> list[str]:
    with pytest.warns(MrfrecWarning, match="fewer than"):
        found: list[str] = model.recommend(user, k=M)["item"].to_list()
    return found


@pytest.mark.parametrize("users", [[100], [100, 101, 102], list(range(100, 160))])
def test_recommendations_are_the_best_of_what_is_left(users: list[int]) -> None:
    model, rows = fitted()
    where = {"price": (0.5, 3), "sold": {"missing": False}}
    kept = {row["item"] for row in rows if naive.holds(row, where)}
    assert 3 < len(kept) < M - 3
    some = [*sorted(kept)[1:], "i00"]
    for options, left in (
        ({}, kept),
        ({"allow": some}, kept & {*some}),
        ({"exclude": some[:2]}, kept - {*some[:2]}),
    ):
        found = rows_for(model, users, k=3, where=where, **options)
        for user in users:
            wanted = [item for item in everything(model, user) if item in left][:3]
            assert [row["item"] for row in found if row["user"] == user] == wanted


def test_each_user_may_have_a_filter() -> None:
    model, rows = fitted()
    users = [100, 101, 102, 103]
    own: dict[Any, Any] = {None: {"sold": {"missing": False}}, 101: {"price": (1, None)}, 103: "price >= 1"}
    found = rows_for(model, users, k=3, where=own, allow={103: [f"i{i:02}" for i in range(0, M, 2)]})
    for user in users:
        left = {
            row["item"] for row in rows
            if naive.holds(row, own[None]) and (user % 2 == 0 or naive.holds(row, {"price": (1, None)}))
            and (user != 103 or int(row["item"][1:]) % 2 == 0)
        }  # fmt: skip
        wanted = [item for item in everything(model, user) if item in left][:3]
        assert [row["item"] for row in found if row["user"] == user] == wanted
    with pytest.warns(MrfrecWarning, match="1 of 1 users of where are not among those asked for"):
        model.recommend(100, where={None: None, 7: {"sold": True}}, k=1)
    with pytest.raises(ParameterError, match="where must be a mapping whose keys are user ids"):
        model.recommend(100, where={None: None, "ann": {"sold": True}})


def test_a_filter_that_keeps_nothing_says_so() -> None:
    model, _ = fitted()
    with pytest.warns(MrfrecWarning, match=r"that are allowed\. where leaves 0 items\."):
        assert len(model.recommend(100, where={"price": (99, None)})) == 0
    model = copy.copy(model)
    model.set_items(pl.DataFrame({"item": ["i00", "i01"], "brand": ["Alder", "Birch"]}))
    with pytest.warns(
        MrfrecWarning, match=r"where leaves 0 items\. No item has the brand 'ALDER': try 'Alder'\."
    ):
        model.recommend(100, where={"brand": "ALDER"})
    with pytest.warns(MrfrecWarning, match=r"No item has the brand 'x'\.$"):
        model.recommend(100, where={"brand": ["x"]})
    model, _ = fitted()
    with pytest.warns(MrfrecWarning, match="where leaves 0 items"):
        assert len(model.recommend(100, where={"brand": "nobody's", "tags": []})) == 0
    for k in (1, 2):
        assert rows_for(model, [100, 101], where={"brand": []}, k=k) == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"price": (5, 1)}, r"where\.price must be the least and the most, in this order; got \(5, 1\)"),
        ({"size": 1}, r"where must be about columns of the table of items: 'price', .*; got 'size'"),
        ("size < 1", r"where must be about columns of the table of items: 'price', .*; got 'size'"),
        ({"price": "a"}, r"where\.price must be a number, since the column is a number; got 'a'"),
        ({"sold": 1}, r"where\.sold must be True or False, since the column is a flag; got 1"),
        ({"brand": 1}, r"where\.brand must be a text, since the column is a text; got 1"),
        ({"tags": ["a", 1]}, r"where\.tags must be texts, since the column is a list; got 1"),
        ({"day": 5}, r"where\.day must be a date or a time, .*; got 5"),
        ({"day": "16.11."}, r"where\.day must be a date, 2026-11-16, or a time, .*; got '16.11.'"),
        ({"day": "0001-01-01T00:00:00+14:00"}, r"where\.day must be a date, 2026-11-16, or .*; got '0001"),
        ({"day": (None, "9999-12-31T23:00:00-10:00")}, r"where\.day must be a date, 2026-11-16, or a time"),
        ({"day": pd.NaT}, r"where\.day must be a date, 2026-11-16, or a time, .*; got NaT"),
        ({"day": np.datetime64("NaT")}, r"where\.day must be about texts, numbers, flags, dates"),
        ({"brand": {"least": "a"}}, r"where\.brand must be a condition without least, .* is a text"),
        ({"brand": {"all": ["a"]}}, r"where\.brand must be a condition without all: the column is a text"),
        ({"price": {"under": 3}}, r"where\.price must be a condition with the words any, .*; got 'under'"),
        ({"price": {"missing": 1}}, r"where\.price\.missing must be True or False; got 1"),
        ({"price": (1, 2, 3)}, r"where\.price must be a pair of the least and the most"),
        ({"price": float("nan")}, r"where\.price must be about texts, numbers, .*; got nan"),
        ({"price": None}, r"where\.price must be about texts, numbers, .*; got None"),
        ({"price": 10**400}, r"where\.price must be a number"),
        ({7: 1}, r"where must be a mapping from names of columns .*; got 7\. By user, say what holds for"),
        ({None: {None: {}}}, r"where must be a mapping from names of columns"),
        (7, r"where must be an expression in SQL, or a mapping"),
        (" ", r"where must be an expression in SQL, or a mapping"),
        ("price", r"where must be an expression that is true or false for each item"),
        ("sum(price) > 1", r"where must be an expression that is true or false for each item"),
        ("1 < 2", r"and that names a column: 'price', "),
        ('brand = "A"', "Texts stand in single quotes, numbers in none: brand = 'A' AND"),
        ("brand = A", "got 'A'. Texts stand in single quotes"),
        ("price > '5'", "Texts stand in single quotes, numbers in none"),
        ("price < ", r"where must be an expression in SQL that polars knows; got 'price < '\. polars says"),
        ("price < 'a'", r"cannot compare"),
        ("day >= '2026-11-16'", r"day >= DATE '2026-11-16'"),
        ("price < (select 1)", r"without a query or a comment inside"),
        ("price in (  SELECT a from read_csv('/etc/passwd'))", r"without a query or a comment inside"),
        ("price in (/* */ select 1)", r"without a query or a comment inside"),
        ("price IN (SELECT 1)", r"without a query or a comment inside"),
        ("price < 3 -- or all", r"without a query or a comment inside"),
        ("read_csv('/etc/passwd') = 1", r"with the functions abs, .*\. It has read_csv"),
        ("rpad(brand, 1000000000, 'x') = 'a'", r"with the functions abs, .*\. It has rpad"),
        ("brand" + " || brand" * 1000 + " = 'a'", r"up to 500 names and signs, .* It has 3,002"),
        (" OR ".join(["sold"] * 1250), r"up to 500 names and signs, .* It has 2,499"),
        ("price < 3; drop table x", r"in SQL that polars knows"),
    ],
)  # fmt: skip
def test_filters_that_make_no_sense_are_refused(where: Any, message: str) -> None:
    model, _ = fitted()
    with pytest.raises((ParameterError, DataError), match=message):
        model.recommend(100, where=where)


def test_a_model_without_a_table_refuses_filters() -> None:
    model = Popularity().fit(events())
    with pytest.raises(
        ParameterError, match="where must be left out: the model has no table of items; got 'price'"
    ):
        model.recommend(history=["i00"], where={"price": 1})


def test_a_filter_that_is_a_column_is_named_by_its_type() -> None:
    with pytest.raises(ParameterError, match=r"got 'Series'\."):
        fitted()[0].recommend(history=["i00"], where=pl.Series([1, 2]))


def test_whole_numbers_are_compared_exactly() -> None:
    big = 2**53
    table = pl.DataFrame({"item": [f"i{i:02}" for i in range(3)], "x": [big, big + 1, -big - 1]})
    catalogue = Popularity().fit(events(), items=table).catalogue
    for condition, kept in (
        (big + 1, [1]), ({"above": big}, [1]), ({"least": big + 1}, [1]), ((None, -big - 1), [2]),
        ({"any": [0.5, 2**70, big]}, [0]), ({"below": 2**64}, [0, 1, 2]), ({"above": -(2**64)}, [0, 1, 2]),
        ({"least": 0.5}, [0, 1]), ({"below": -0.5}, [2]),
    ):  # fmt: skip
        mask = mask_of(check_where({"x": condition}), catalogue)
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == kept, condition


def test_columns_may_have_names_that_polars_takes_for_patterns() -> None:
    rows: dict[str, list[Any]] = {"*": [1, 2, None], "^.*$": ["a", "b", "b"], "^x": [["p"], [], None]}
    rows["item"] = ["i00", "i01", "i02"]
    model = Popularity().fit(events(), items=pl.DataFrame(rows))
    for where, kept in (
        ({"*": (2, None)}, [1]), ({"^.*$": "b"}, [1, 2]), ({"^x": "p"}, [0]), ({"*": 1, "^.*$": "b"}, []),
        ({"*": {"missing": True}}, range(2, M)),
    ):  # fmt: skip
        mask = mask_of(check_where(where), model.catalogue)
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [*kept], where
    for at_most in ({"^.*$": 1}, {"*": 1}, {"^x": 0}):
        assert len(model.recommend(history=["i05"], k=3, at_most=at_most)) == 3
    more = pl.DataFrame({"item": ["i03"], "*": [0.5], "^.*$": ["c"]})
    joined = mrfrec.read_item_table(pl.DataFrame(rows)).joined(mrfrec.read_item_table(more))
    assert joined.frame["*"].to_list() == [1, 2, None, 0.5]
    assert joined.frame["^x"].to_list() == [["p"], [], None, None]


def test_the_shell_and_the_service_filter_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*words: object) -> str:
        run_command([str(word) for word in words], Event())
        return capsys.readouterr().out

    model, rows = fitted()
    path = tmp_path / "shop.mrf"
    model.save(path, include_histories=True, notes={"by": "test"})
    since = date(2026, 11, 14)
    where = {
        "price": {"least": 0.5, "most": 3.5},
        "sold": {"missing": False},
        "tags": {"none": ["q"]},
        "day": {"least": str(since)},
    }
    kept = {row["item"] for row in rows if naive.holds(row, {**where, "day": (since, None)})}
    history = ["i00", "i01"]
    wanted = [row["item"] for row in rows_for(model, history=history, k=2, where=where)]
    assert len(wanted) == 2
    assert {*wanted} <= kept
    sql = "price BETWEEN .5 AND 3.5 AND sold IS NOT NULL AND day >= DATE '2026-11-14'"
    sql += " AND NOT array_contains(tags, 'q')"
    out = command("recommend", path, "--history", "i00,i01", "-k", 2, "--format", "json", "--where", sql)
    assert [row["item"] for row in json.loads(out)] == wanted
    with serving(create_app({"shop": path})) as url:
        body = {"history": history, "k": 2, "where": {**where, "day": {"least": str(since)}}}
        found = posted(f"{url}/v1/recommend", json=body).json()
        assert [row["item"] for row in found["items"]] == wanted
    assert model.recommend_to(tmp_path / "all.csv", k=2, where=where, exclude_seen=False) == 2 * len(
        model.users_
    )
    assert {*pl.read_csv(tmp_path / "all.csv")["item"]} <= kept
    table_of(rows).with_columns(price=pl.lit(1000.0)).drop("tags").write_csv(tmp_path / "new.csv")
    command("update", path, "--items", tmp_path / "new.csv")
    changed = mrfrec.load(path)
    assert changed.fitted_.has_histories
    assert changed.notes_ == {"by": "test"}
    assert changed.catalogue.table is not None
    assert [*changed.catalogue.table.types] == [name for name in KINDS if name != "tags"]
    assert len(rows_for(changed, history=["i00"], k=3, where={"price": 1000})) == 3
    assert "moment" in command("info", path)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"price": "x"}, "where.price must be a number"),
        ("price < 3", "where: "),
        ({"price": {"under": 3}}, "under"),
        ({"price": None}, "where.price"),
        ({"price": [[1]]}, "where.price"),
        ({"price": list(range(21))}, "the number of values of a condition must be at most 20; got 21"),
        ({"price": {"none": list(range(21))}}, "the number of values of a condition must be at most 20"),
        ({f"c{i}": 1 for i in range(21)}, "where"),
        ({"brand": "x" * 1001}, "where.brand"),
    ],
)
def test_the_service_bounds_filters(where: Any, words: str, tmp_path: Path) -> None:
    fitted()[0].save(tmp_path / "shop.mrf")
    with asking(tmp_path / "shop.mrf", max_history=20) as client:
        found = client.post("/v1/recommend", json={"history": ["i00"], "where": where})
    assert found.status_code == 422
    assert words in found.json()["detail"]
