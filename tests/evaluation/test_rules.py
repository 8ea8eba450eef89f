"""What rules cost: a model asked with them is judged as the lists that it recommends with them."""

import re
import shlex
import warnings
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import MRF, ParameterError, read_item_table
from mrfrec.cli.app import run as run_command
from mrfrec.evaluation import (
    Split,
    compare,
    evaluate,
    evaluate_lists,
    evaluate_rules,
    strong_generalisation,
)
from mrfrec.evaluation.results import by_column
from mrfrec.models import Popularity

from matrices import pairs_of, random_matrix

METRICS = "ndcg@6,variety@6,coverage@6"
TABLE = pl.DataFrame(
    {
        "item": range(45),
        "brand": [f"b{item % 7}" if item % 5 else None for item in range(45)],
        "price": [float(item % 4) for item in range(45)],
        "tags": [[f"t{item % 3}", f"t{item % 2}"] if item % 6 else [] for item in range(45)],
    }
)


@pytest.fixture(scope="module")
def split() -> Split:
    return strong_generalisation(pairs_of(random_matrix(3, users=120)), 30).with_table(read_item_table(TABLE))


@pytest.mark.parametrize(
    "rules",
    [
        {"at_most": {"brand": 1}},
        {"at_most": {"brand": 2, "tags": 2}, "variety": 0.4},
        {"boost": {"add": "price"}},
        {"where": {"price": (1, None), "tags": {"any": ["t0", "t2"]}}},
        {"where": "price > 0 AND brand IS NOT NULL", "at_most": {"brand": 2}},
        {"variety": 1.0},
        {"allow": [1, 2, 3, 4, 9], "novelty": 0.3},
    ],
    ids=str,
)
def test_a_model_asked_with_rules_is_judged_as_what_it_recommends(split: Split, rules: Any) -> None:
    asked, items = split.test, split.training.items
    histories = {user: items.take(asked.shown[[row]].indices) for row, user in enumerate(asked.users)}
    model = MRF(measure=False).fit(split.training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quotas may leave fewer than k
        lists = model.recommend(history=histories, k=6, **rules)
        expected = evaluate_lists(lists, split, METRICS, name="lists")
    found = evaluate(MRF(measure=False), split, METRICS, rules=rules)
    plain = evaluate(MRF(measure=False), split, METRICS)
    for metric in expected.values:
        np.testing.assert_array_equal(found.per_user(metric), expected.per_user(metric))
    assert not np.array_equal(found.per_user("variety@6"), plain.per_user("variety@6"))
    assert found.facts["rules"] == rules
    both = evaluate_rules(MRF(measure=False), split, rules, METRICS, name="m")
    assert list(both) == ["m", "m, with rules"]
    np.testing.assert_array_equal(both["m"].per_user("ndcg@6"), plain.per_user("ndcg@6"))
    np.testing.assert_array_equal(both["m, with rules"].per_user("ndcg@6"), found.per_user("ndcg@6"))
    models = compare(
        {"m": MRF(measure=False), "p": Popularity()}, split, METRICS, rules={"at_most": {"brand": 1}}
    )
    assert models["p"].facts["rules"] == {"at_most": {"brand": 1}}


def test_wrong_rules_are_refused_before_the_fit(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MRF, "_fit", lambda *_: pytest.fail("fitted"))
    for rules, message in (
        ({"k": 3}, "rules must be a mapping with names among"),
        ({"variety": 2}, "variety must be between 0 and 1"),
        ({}, "rules must be given"),
    ):
        with pytest.raises(ParameterError, match=message):
            evaluate_rules(MRF(), split, rules, METRICS)
    with pytest.raises(ParameterError, match='ties must be "popularity" with rules'):
        evaluate(MRF(), split, METRICS, rules={"variety": 0.1}, ties="index")


@pytest.mark.parametrize("column", ["brand", "price", "tags"])
def test_shares_of_groups_equal_naive(split: Split, column: str) -> None:
    found = evaluate(Popularity(), split, "hit@6", name="popular")
    section = by_column([found], split, column, most=3)
    items, popularity = list(split.training.items), split.training.popularity.tolist()
    values = dict(zip(TABLE["item"], TABLE[column].to_list(), strict=True))

    def parts(item: Any) -> list[str]:
        value = values[item]
        return [
            f"{x:g}" if isinstance(x, float) else x
            for x in (value if isinstance(value, list) else [value])
            if x is not None
        ]

    def share(counts: list[int], group: str) -> str:
        total = sum(count for item, count in zip(items, counts, strict=True) if group in {*parts(item)})
        return f"{100 * total / sum(counts):.1f} %"

    kinds = ([1] * len(items), popularity, found.recommended.tolist())
    for group, *cells in section.rows[:3]:
        assert cells == [share(counts, group) for counts in kinds]
    groups = {part for item in items for part in parts(item)}
    if len(groups) > 3:
        assert section.rows[3][0] == f"{len(groups) - 3} others"
    bare = [
        sum(c for i, c in zip(items, counts, strict=True) if not parts(i)) / sum(counts) for counts in kinds
    ]
    if any(bare):
        assert section.rows[-1] == ["without", *(f"{100 * x:.1f} %" for x in bare)]
    pairs = [
        sum(p for i, p in zip(items, popularity, strict=True) if row[0] in parts(i))
        for row in section.rows[:3]
    ]
    assert pairs == sorted(pairs, reverse=True)


def test_rules_in_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    user, item = np.nonzero(random_matrix(3, users=120))
    pl.DataFrame({"user": user, "item": item}).write_csv("events.csv")
    TABLE.select("item", "brand", "price").write_csv("products.csv")

    def typed(command: str) -> str:
        run_command(shlex.split(command), Event())
        return capsys.readouterr().out

    options = "events.csv --heldout 30 --metrics ndcg@6,variety@6 --items products.csv --by brand"
    out = typed(f"evaluate {options} --model 'm: measure=false' --at-most brand=1 --variety 0.3")
    assert re.search(r"^m, with rules +[-+]0\.\d+ ± .* \+0\.\d+", out, re.MULTILINE)
    assert re.search(r"^brand +catalogue +training +m +m, with rules$", out, re.MULTILINE)
    assert "Asked with at_most={'brand': 1}, variety=0.3" in out
    out = typed(f"evaluate {options} --model 'm: measure=false' --where \"brand = 'b1'\"")
    assert "Asked with where=brand = 'b1'" in out
    assert re.search(r"^b1 .* 100\.0 %$", out, re.MULTILINE), out
    out = typed(f"compare {options} --model Popularity --model ItemKNN --at-most brand=1")
    assert out.count("Asked with at_most={'brand': 1}") == 2
    for command, message in (
        ("evaluate events.csv --by brand", "--by must be left out without --items"),
        ("evaluate events.csv --variety 7", "variety must be between 0 and 1"),
        (f"evaluate {options} --variety 0.3 --ties index", 'ties must be "popularity" with rules'),
        (f"compare {options} --model MRF --model EASE --variety 0.3 --ties index", "ties must be"),
        (f"evaluate {options} --where 'colour = 1'", "where must be"),
        (
            "evaluate events.csv --item-features products.csv --cold-items 0.2 --at-most brand=1",
            "at_most must be left out with --cold-items",
        ),
        (
            "evaluate events.csv --item-features products.csv --cold-items 0.2 --where 'price > 1'",
            "where must be left out with --cold-items",
        ),
    ):
        with pytest.raises(ParameterError, match=message):
            typed(command)
