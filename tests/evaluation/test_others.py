"""Other systems: their lists are judged as the naive version judges them; splits are written for them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import MRF, DataError, EmptyTableError, MrfrecWarning, ParameterError, read_interactions
from mrfrec.evaluation import (
    Comparison,
    Split,
    at_time,
    evaluate,
    evaluate_fitted,
    evaluate_lists,
    given,
    leave_out,
    paired,
    read_lists,
    strong_generalisation,
    write_split,
)
from mrfrec.evaluation.metrics import NAMES

import naive_evaluation as naive
from matrices import pairs_of, random_matrix


@pytest.fixture(scope="module")
def split() -> Split:
    return strong_generalisation(pairs_of(random_matrix(3, users=120)), 30)


def shown_by(split: Split) -> naive.Sets:
    asked, items = split.test, split.training.items
    return {user: set(items.take(asked.shown[[row]].indices)) for row, user in enumerate(asked.users)}


def odd_table(split: Split, seed: int) -> pl.DataFrame:
    """Lists of all lengths: of most test users and of strangers, with items that are seen or unknown."""
    rng = np.random.default_rng(seed)
    users = [*split.test.users][: 5 - seed] + [*split.test.users][8:] + [10_001, 10_002]
    items = [*split.training.items, 777, 778, 779]
    rows = [
        (user, int(item), float(score))
        for user in users
        for item, score in zip(
            rng.permutation(items)[: rng.integers(1, 30)], rng.permutation(30) / 7, strict=False
        )
    ]
    return pl.DataFrame(rows, ["user", "item", "score"], orient="row").sample(
        fraction=1, shuffle=True, seed=seed
    )


@pytest.mark.parametrize("drop_seen", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_lists_are_judged_as_the_naive_version_does(split: Split, name: str, drop_seen: bool) -> None:
    items = split.training.items
    number = {item: place for place, item in enumerate(items)} | {None: -1}
    for seed, k in ((0, 3), (1, 10), (2, 12)):
        table = odd_table(split, seed)
        rows = [(user, item, -score) for user, item, score in table.iter_rows()]
        judged = naive.lists_of_others(rows, shown_by(split), {*items}, k, drop_seen)
        with pytest.warns(MrfrecWarning, match=f"{judged.without:,} test users without a list"):
            found = evaluate_lists(table, split, f"{name}@{k}", name="other", drop_seen=drop_seen)
        assert min(judged.without, judged.not_asked, judged.unknown, judged.seen) > 0
        assert found.facts["lists"] == {
            "order": "column 'score', highest first", "users_without_list": judged.without,
            "users_not_asked": judged.not_asked, "unknown_items": judged.unknown,
            "seen_items": judged.seen, "drop_seen": drop_seen,
        }  # fmt: skip
        ranked = [[number[item] for item in judged.lists[user]] for user in split.test.users]
        targets = [{*split.test.targets[[row]].indices.tolist()} for row in range(len(ranked))]
        popularity = split.training.popularity.tolist()
        if name in naive.ACCURACY:
            each = zip(ranked, targets, strict=True)
            expected = [naive.ACCURACY[name](*user, k) for user in each]
        elif name == "variety":
            vectors = split.training.matrix.toarray().T.tolist()
            expected = [naive.variety(user, vectors, k) for user in ranked]
        elif name in naive.OVERALL:
            expected = [naive.OVERALL[name](ranked, len(items), k)]
        elif name == "novelty":
            users = split.training.n_users
            expected = [naive.novelty(user, popularity, users, k) for user in ranked]
        else:
            of_items = {"popularity": naive.popularity, "tail": naive.tail}[name]
            expected = [of_items(user, popularity, k) for user in ranked]
        np.testing.assert_allclose(found.per_user(f"{name}@{k}"), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", ["rank", "score", "rows"])
def test_what_a_model_recommends_is_judged_as_the_model_is(split: Split, order: str, tmp_path: Path) -> None:
    model = MRF(measure=False).fit(split.training)
    recommended = model.recommend(history={user: [*items] for user, items in shown_by(split).items()}, k=12)
    if order != "rows":
        recommended = recommended.sample(fraction=1, shuffle=True, seed=1)
    left_out = {"rank": ["score"], "score": ["rank"], "rows": ["rank", "score"]}[order]
    recommended.drop(left_out).write_csv(tmp_path / "lists.csv")
    expected = evaluate_fitted(model, split.test, "ndcg@10,recall@12,coverage@5", name="model")
    found = evaluate_lists(tmp_path / "lists.csv", split, "ndcg@10,recall@12,coverage@5")
    for metric in expected.values:
        np.testing.assert_array_equal(found.per_user(metric), expected.per_user(metric))
    np.testing.assert_array_equal(found.recommended, expected.recommended)
    assert found.model == "lists"
    pair = Comparison([expected, found]).paired("lists", "ndcg@10")
    assert (pair.difference, pair.p) == (0, 1)


def test_lists_are_compared_user_by_user_with_a_model(split: Split) -> None:
    model = evaluate(MRF(measure=False), split, "ndcg@5")
    popular = np.argsort(-split.training.popularity)[:20]
    rows = [(user, split.training.items[int(item)]) for user in split.test.users for item in popular]
    table = pl.DataFrame(rows, ["user", "item"], orient="row")
    with pytest.warns(MrfrecWarning, match="already seen, each a miss. To judge .* drop_seen=True"):
        kept = evaluate_lists(table, split, "ndcg@5", name="popular, seen kept")
    dropped = evaluate_lists(table, split, "ndcg@5", name="popular", drop_seen=True)
    assert dropped.mean("ndcg@5").mean > kept.mean("ndcg@5").mean
    found = Comparison([model, dropped, kept]).paired("popular", "ndcg@5")
    assert found == paired(dropped.per_user("ndcg@5"), model.per_user("ndcg@5"))


def test_evaluations_of_other_users_or_metrics_are_not_compared(split: Split) -> None:
    def of(questions: Any, metric: str, name: str) -> Any:
        return evaluate_fitted(model, questions, metric, name=name)

    model = MRF(measure=False).fit(split.training)
    first = of(split.test, "ndcg@5", "a")
    for other in (of(split.test, "ndcg@4", "b"), of(split.test.only(np.arange(30) < 9), "ndcg@5", "b")):
        with pytest.raises(DataError, match="a and b were evaluated on other users or with other metrics"):
            Comparison([first, other])
    with pytest.raises(ParameterError, match="different names"):
        Comparison([first, first])


def test_ids_that_look_like_integers_in_the_lists_alone_are_strings(tmp_path: Path) -> None:
    pairs = [(user, item) for user in ("1", "2", "x") for item in ("7", "8", "9", "y")]
    split = leave_out(pl.DataFrame(pairs, ["user", "item"], orient="row"))
    hidden = {user: split.training.items[int(split.test.targets[[row]].indices[0])]
              for row, user in enumerate(split.test.users)}  # fmt: skip
    lists = "".join(f"{user},{item}\n" for user in ("1", "2") for item in ("7", "8", "9"))
    (tmp_path / "lists.csv").write_text(f"user,item\n{lists}")
    with pytest.warns(MrfrecWarning, match="1 test user without a list"):
        found = evaluate_lists(tmp_path / "lists.csv", split, "hit@3", drop_seen=True)
    expected = [user != "x" and hidden[user] != "y" for user in split.test.users]
    assert found.per_user("hit@3").tolist() == expected
    assert any(expected)


READ = [
    ("user,item,rank\n1,a,2\n1,b,1\n", "column 'rank', lowest first", ["b", "a"]),
    ("user,item,score\n1,a,2\n1,b,1\n1,c,2\n", "column 'score', highest first", ["a", "c", "b"]),
    ("user,item,score,rank\n1,a,2,2\n1,b,1,1\n", "column 'rank', lowest first", ["b", "a"]),
    ("user,item,prediction\n1,a,1e-300\n1,b,2e-300\n", "column 'prediction', highest first", ["b", "a"]),
    ("user,item,note\n1,b,9\n1,a,8\n", "the rows", ["b", "a"]),
]


@pytest.mark.parametrize(("text", "order", "items"), READ)
def test_lists_are_ordered_by_rank_or_score_or_as_the_rows_come(
    text: str, order: str, items: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lists.csv").write_text(text)
    with caplog.at_level("INFO", "mrfrec"):
        found = read_lists(tmp_path / "lists.csv")
    assert found.order == order
    assert found.items.take(found.item) == items
    assert f"in the order of {order}" in caplog.text


def test_named_columns_go_before_recognised_ones(tmp_path: Path) -> None:
    table = pl.DataFrame({"who": [7, 7], "what": [1, 2], "rank": [1, 2], "p": [0.1, 0.2]})
    found = read_lists(table, user="who", item="what", score="p")
    assert (found.order, found.item.tolist()) == ("column 'p', highest first", [1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\n1,a\n2,a\n1,b\n1,a\n", "row 4: user 1 has the item 'a' already, in row 1"),
        ("user,item,rank\n1,a,1\n1,b,2\n2,a,1\n2,b,1\n", "row 4: user 2 has the rank 1.0 already, in row 3"),
        ("user,item,score\n1,a,1\n1,b,high\n", "row 2: rank or score not a finite number, 'high'"),
        ("user,item,score\n1,a,nan\n", "row 1: rank or score not a finite number"),
        ("user,item\n1,a\n1,\n", "row 2: no item id"),
        ("whom,item\n1,a\n", "which column holds the users"),
        ("user,item\n", "no recommendations"),
    ],
)
def test_bad_tables_of_lists_are_refused_by_row(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "lists.csv").write_text(text)
    with pytest.raises((DataError, EmptyTableError), match=message):
        read_lists(tmp_path / "lists.csv")


def test_lists_about_nobody_or_nothing_are_refused(split: Split) -> None:
    user, item = split.test.users[0], split.training.items[0]
    with pytest.raises(DataError, match=r"none of its 1 users are test users\. Are the ids the same"):
        evaluate_lists(pl.DataFrame({"user": [999_999], "item": [item]}), split)
    with pytest.raises(DataError, match="none of its 1 items are in the training data"):
        evaluate_lists(pl.DataFrame({"user": [user], "item": [999_999]}), split)
    with pytest.raises(DataError, match="item ids are integers in the data; got 'x'"):
        evaluate_lists(pl.DataFrame({"user": [user], "item": ["x"]}), split)
    with pytest.raises(ParameterError, match="score must be None with rank"):
        read_lists(pl.DataFrame({"user": [user], "item": [item]}), rank="a", score="b")


# ── the data for others ───────────────────────────────────────────────────────────────────────────


def test_a_written_split_is_the_same_split_when_it_is_given(split: Split, tmp_path: Path) -> None:
    names = [path.name for path in write_split(split, tmp_path / "folder")]
    assert names == [
        f"{name}.parquet" for name in ("train", "shown", "test", "validation-shown", "validation")
    ]
    for test in ("test", "validation"):
        files = ("train", test, "shown" if test == "test" else "validation-shown")
        again = given(*(read_interactions(tmp_path / "folder" / f"{name}.parquet") for name in files))
        asked = split.test if test == "test" else split.validation
        assert asked is not None
        assert (again.training.matrix != split.training.matrix).nnz == 0
        assert (again.test.shown != asked.shown).nnz == (again.test.targets != asked.targets).nnz == 0
        assert again.test.users == asked.users


def test_a_written_split_has_values_and_times(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "user,item,rating,time\nann,tea,2,2026-10-01\nann,jam,5,2026-10-02\nann,milk,1,2026-11-02\n"
        "bob,milk,3,2026-10-09\nbob,jam,4,2026-10-12\neve,tea,5,2026-11-03\neve,jam,2,2026-11-04\n"
    )
    split = at_time(read_interactions(log, binary=False), "2026-11-01")
    write_split(split, tmp_path)
    train, shown, test = (
        pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("train", "shown", "test")
    )
    assert train.columns == shown.columns == ["user", "item", "value", "time"]
    row = train.filter(user="ann", item="jam").row(0)
    assert (row[2], str(row[3])) == (5, "2026-10-02 00:00:00")
    assert shown.filter(user="eve").select("item", "value").rows() == [("tea", 5)]
    assert sorted(test.rows()) == [("ann", "milk"), ("eve", "jam")]
