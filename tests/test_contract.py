"""What every recommender keeps to, whatever its kind. A new model needs only a line in `KINDS`."""

import warnings
from collections.abc import Callable
from copy import copy
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import mrfrec
from mrfrec import DataError, Interactions, MrfrecWarning, NotFittedError, ParameterError, Recommender
from mrfrec.answers.recommending import explanation
from mrfrec.evaluation import evaluate, evaluate_fitted, strong_generalisation
from mrfrec.models.registry import MODELS, build
from mrfrec.testing import check_recommender

from kinds import KINDS, named_data
from matrices import pairs_of, random_matrix

Make = Callable[..., Recommender]  # takes parameters besides its own

COLUMNS = ["user", "item", "title", "score", "rank", "source"]
TAKE_NO_NEGATIVE_VALUES = ("Vectors",)


# Ids and values are read by code that all kinds share: some have both kinds of data, the others one.
BOTH = ("dense", "sparse", "ItemKNN", "Vectors")
CASES = [
    (name, text) for i, name in enumerate(KINDS) for text in (False, True) if name in BOTH or text == i % 2
]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case[0]}-{'texts' if case[1] else 'values'}"
)
def case(request: pytest.FixtureRequest) -> tuple[str, bool]:
    name, text = request.param
    return name, text


@pytest.fixture(scope="module")
def kind(case: tuple[str, bool]) -> tuple[str, dict[str, Any]]:
    return KINDS[case[0]]


@pytest.fixture(scope="module")
def make(kind: tuple[str, dict[str, Any]]) -> Make:
    name, parameters = kind
    return lambda **more: build(name, {**parameters, **more})


@pytest.fixture(scope="module")
def data(case: tuple[str, bool], kind: tuple[str, dict[str, Any]]) -> Interactions:
    text = case[1]
    return named_data(text, real=not text, positive=kind[0] in TAKE_NO_NEGATIVE_VALUES)


@pytest.fixture(scope="module")
def model(make: Make, data: Interactions) -> Recommender:
    return make().fit(data)


def test_exactly_k_rows_and_nothing_seen(model: Recommender, data: Interactions) -> None:
    k = 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)  # one of them may have seen nearly everything
        table = model.recommend(k=k)
    assert table.columns == COLUMNS
    had: dict[Any, set[Any]] = {}
    for u, user in enumerate(data.users):
        span = slice(data.matrix.indptr[u], data.matrix.indptr[u + 1])
        had[user] = {data.items[i] for i in data.matrix.indices[span].tolist()}
    for (user,), rows in table.group_by("user", maintain_order=True):
        assert len(rows) == min(k, data.n_items - len(had[user]))
        assert not had[user] & set(rows["item"])
        assert rows["item"].n_unique() == len(rows)
        assert rows["rank"].to_list() == list(range(1, len(rows) + 1))
        assert rows["score"].is_sorted(descending=True)
    assert table["user"].unique(maintain_order=True).to_list() == list(data.users)


def test_ids_and_titles_come_back(model: Recommender, data: Interactions) -> None:
    assert list(model.items_) == list(data.items)
    table = model.recommend(data.users[0], k=3)
    expected = pl.String if data.items.is_text else pl.Int64
    assert table.schema["item"] == expected
    assert data.titles is not None
    for item, title in table.select("item", "title").iter_rows():
        position = int(data.items.find([item], "item")[0])
        assert (title or "") == data.titles[position]


def test_one_user_many_users_and_all_agree(model: Recommender, data: Interactions) -> None:
    everybody = model.recommend(k=4)
    chosen = [data.users[i] for i in (7, 2)]
    several = model.recommend(chosen, k=4)
    assert several["user"].to_list() == [user for user in chosen for _ in range(4)]
    for user in chosen:
        one = model.recommend(user, k=4)
        assert one.equals(everybody.filter(pl.col("user") == user))
        assert one.equals(several.filter(pl.col("user") == user))
    scoring: Any = model
    scores = scoring.scores(data.matrix)
    for u in (7, 2, 3):
        np.testing.assert_array_equal(scoring.scores(data.matrix[[u]])[0], scores[u])


def test_histories_need_no_training(model: Recommender, data: Interactions) -> None:
    u = 4
    span = slice(data.matrix.indptr[u], data.matrix.indptr[u + 1])
    items = [data.items[i] for i in data.matrix.indices[span].tolist()]
    values = dict(zip(items, data.matrix.data[span].tolist(), strict=True))
    by_user = model.recommend(data.users[u], k=6).drop("user")
    for history in (values, {"somebody": values}, [values], data.matrix[[u]]):
        assert model.recommend(history=history, k=6).drop("user", strict=False).equals(by_user)
    assert model.recommend(history={"somebody": values}, k=1)["user"].to_list() == ["somebody"]
    if set(values.values()) == {1.0}:
        forms = (tuple(items), set(items), iter(items), np.array(items), pl.Series(items), {"x": iter(items)})
        for plain in (*forms, items, items[::-1], items * 2, [items], [iter(items)]):
            assert model.recommend(history=plain, k=6).drop("user", strict=False).equals(by_user)
        frame = pl.DataFrame({"user": ["x"] * len(items), "item": items})
        assert model.recommend(history=frame, k=6).drop("user").equals(by_user)


def test_filters_are_kept(model: Recommender, data: Interactions) -> None:
    everything = model.recommend(data.users[0], k=data.n_items - 1 - data.matrix.indptr[1])["item"].to_list()
    allowed, excluded = everything[3:8], everything[4:6]
    found = model.recommend(data.users[0], k=3, allow=allowed, exclude=excluded)["item"].to_list()
    assert found == [item for item in allowed if item not in excluded]
    without = model.recommend(data.users[0], k=5, exclude=everything[:2])["item"].to_list()
    assert without == everything[2:7]
    seen = data.items[int(data.matrix.indices[0])]
    assert seen in model.recommend(data.users[0], k=data.n_items, exclude_seen=False)["item"].to_list()


def test_too_few_items_are_fewer_rows_and_a_warning(model: Recommender, data: Interactions) -> None:
    some = [data.items[i] for i in (0, 1, 2)]
    with pytest.warns(MrfrecWarning, match=r"1 of 1 users get fewer than k=5 items: .* that are allowed"):
        table = model.recommend(history=some[:1], k=5, allow=some)
    assert sorted(table["item"].to_list()) == sorted(some[1:])
    with pytest.warns(MrfrecWarning, match=f"fewer than k={data.n_items + 9}"):
        assert len(model.recommend(history=some, k=data.n_items + 9)) == data.n_items - 3
    with pytest.warns(MrfrecWarning, match="fewer"):
        nothing = model.recommend(history=some, k=2, allow=some)
    assert (nothing.shape, nothing.columns) == ((0, 5), COLUMNS[1:])


def test_nobody_knows_them_gets_the_most_popular(model: Recommender, data: Interactions) -> None:
    # With an offset and values, the largest means come first.
    means = model.mean_ if getattr(model, "offset", False) else np.zeros(data.n_items)  # type: ignore[attr-defined]
    order = np.lexsort((np.arange(data.n_items), -data.popularity, -means.astype(np.float32)))[:4]
    popular = [data.items[i] for i in order.tolist()]
    unknown: Any = "no such thing" if data.users.is_text else -5
    with pytest.warns(MrfrecWarning, match="1 of 1 users are unknown"):
        table = model.recommend(unknown, k=4)
    assert (table["user"].to_list(), set(table["source"])) == ([unknown] * 4, {"popular"})
    stranger: Any = "no such item" if data.items.is_text else -5
    with pytest.warns(MrfrecWarning, match="history: 2 of 2 items are unknown"):
        lost = model.recommend(history=[stranger, stranger * 2], k=4)
    assert lost["source"].to_list() == ["popular"] * 4
    nothing = model.recommend(history=[], k=4)
    assert nothing["item"].to_list() == table["item"].to_list() == lost["item"].to_list() == popular


def test_contributions_sum_to_the_score(model: Recommender, data: Interactions) -> None:
    assert model.explains == (type(model).__name__ != "Vectors")
    if not model.explains:
        explaining_is_refused(model, data)
        return
    for user in data.users[:6]:
        table = model.recommend(user, k=3)
        for item, score in table.select("item", "score").iter_rows():
            reasons = model.explain(item, user=user)
            assert reasons.columns == ["item", "title", "value", "weight", "contribution"]
            parts = reasons["contribution"].to_list()
            assert fsum(parts) == pytest.approx(score, abs=1e-5 * max(sum(map(abs, parts)), 1))
            history = reasons.filter(pl.col("item").is_not_null())
            assert history["contribution"].is_sorted(descending=True)
            found, base, _ = explanation(model.fitted_, item, user=user)
            assert fsum([base, *(c.amount for c in found)]) == fsum(parts)
            for contribution in found:
                assert contribution.amount == contribution.value * contribution.weight


def explaining_is_refused(model: Recommender, data: Interactions) -> None:
    user, item = data.users[0], data.items[0]
    refused: tuple[Callable[[], object], ...] = (
        lambda: model.explain(item, user=user),
        lambda: explanation(model.fitted_, item, history=[item]),
        lambda: model.recommend(user, k=1, explain=2),
        lambda: model.recommend_to("never.csv", user, k=1, explain=2),
    )
    for ask in refused:
        with pytest.raises(DataError, match=f"{type(model).__name__} cannot explain.*MRF, EASE.* can"):
            ask()
    assert not Path("never.csv").exists()


def test_saved_and_loaded_it_says_the_same(model: Recommender, data: Interactions, tmp_path: Path) -> None:
    path = tmp_path / "model.mrf"
    model.save(path, include_histories=True)
    loaded = mrfrec.load(path)
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model)
    assert loaded.parameters == model.parameters
    assert loaded.recommend(k=5).equals(model.recommend(k=5))
    assert list(loaded.users_ or []) == list(data.users)
    model.save(path)
    bare = mrfrec.load(path)
    assert bare.users_ is None
    items = list(data.items[:3])
    assert bare.recommend(history=items).equals(model.recommend(history=items))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)  # of some models, fewer than ten
        assert bare.similar_items(items[0]).equals(model.similar_items(items[0]))
    for refused in (lambda: bare.recommend(), lambda: bare.save(path, include_histories=True)):
        with pytest.raises(DataError, match="saved without"):
            refused()


def test_changed_parameters_wait_for_the_next_fit(
    model: Recommender, data: Interactions, tmp_path: Path
) -> None:
    model.save(tmp_path / "before.mrf")
    changed = copy(model)
    for name, value in model.parameters.items():
        new: Any = not value if isinstance(value, bool) else 7
        if name == "dtype":
            new = "float64" if value == "float32" else "float32"
        setattr(changed, name, "sigmoid" if name == "activation" else new)
    assert changed.fitted_.parameters == model.parameters
    for history in ([], list(data.items[:3])):
        for exclude in (None, list(data.items[4:6])):
            asked: dict[str, Any] = {"history": history, "exclude": exclude, "k": 4}
            assert changed.recommend(**asked).equals(model.recommend(**asked))
    if model.explains:
        assert changed.explain(data.items[9], history=history).equals(
            model.explain(data.items[9], history=history)
        )
    changed.save(tmp_path / "after.mrf")
    assert (tmp_path / "after.mrf").read_bytes() == (tmp_path / "before.mrf").read_bytes()


def test_files_hold_what_tables_do(model: Recommender, tmp_path: Path) -> None:
    explain = 2 if model.explains else 0
    texts = ("title", "because") if explain else ("title",)
    table = model.recommend(k=3, explain=explain)
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".parquet": pl.read_parquet,
        ".csv": pl.read_csv,
        ".jsonl": pl.read_ndjson,
    }
    for suffix, read in readers.items():
        path = tmp_path / f"all{suffix}"
        steps: list[tuple[int, int]] = []

        def progress(_: str, done: int, total: int, steps: list[tuple[int, int]] = steps) -> None:
            steps.append((done, total))

        rows = model.recommend_to(path, k=3, explain=explain, progress=progress)
        found = read(path).with_columns(
            pl.col("source").cast(pl.String),
            pl.col("score").cast(pl.Float32),
            *(pl.col(name).cast(pl.String) for name in texts),
        )
        assert rows == len(table) == len(found)
        for name in ("user", "item", "rank", "source"):
            assert found[name].cast(table.schema[name]).to_list() == table[name].to_list()
        np.testing.assert_allclose(found["score"].to_numpy(), table["score"].to_numpy(), rtol=1e-6)
        if explain:
            assert found["because"].fill_null("").to_list() == table["because"].to_list()
        assert steps[-1][0] == steps[-1][1] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.csv", "all.jsonl", "all.parquet"]


def test_bad_questions_are_refused(make: Make, model: Recommender, data: Interactions) -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        make().recommend(history=[1])
    item, user = data.items[0], data.users[0]
    wrong_type: Any = 5 if data.items.is_text else "5"
    unknown: Any = "?" if data.items.is_text else -1
    odd_user: Any = 5 if data.users.is_text else "5"
    users, items = pl.DataFrame({"user": [user]}), pl.DataFrame({"item": [item]})
    ask: Any = model.recommend
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ParameterError, "k must be a whole number, 1 or more; got 0", lambda: ask(user, k=0)),
        (ParameterError, "k must be", lambda: ask(user, k=2.5)),
        (ParameterError, "history must be None when users", lambda: ask(user, history=[item])),
        (ParameterError, "history must be item ids in a list", lambda: ask(history="abc")),
        (ParameterError, "history must be item ids in a list", lambda: ask(history=b"abc")),
        (ParameterError, "history must be item ids in a list", lambda: ask(history=7)),
        (ParameterError, "history must be a sequence of item ids", lambda: ask(history=[[["x"]]])),
        (DataError, "item ids are", lambda: ask(history=[wrong_type])),
        (DataError, "item ids are", lambda: ask(user, exclude=[wrong_type])),
        (ParameterError, "allow must be a sequence", lambda: ask(user, allow=7)),
        (ParameterError, "allow must be a mapping.*5", lambda: ask(user, allow={odd_user: [item]})),
        (ParameterError, r"exclude\[.*must be a sequence.*got 3", lambda: ask(user, exclude={user: 3})),
        (ParameterError, "users must be a sequence of user ids", lambda: ask(object())),
        (ParameterError, "users must be a sequence of user ids", lambda: ask({user: [item]})),
        (ParameterError, "items must be a sequence", lambda: model.similar_items_to("x.csv", "milk")),
        (DataError, "users must be ids, not a table.*column of users", lambda: ask(users)),
        (DataError, "users must be ids, not a table.*column of users", lambda: model.forget(users)),
        (DataError, "exclude must be ids, not a table.*column of items", lambda: ask(user, exclude=items)),
        (DataError, r"allow\[.*must be ids, not a table", lambda: ask(user, allow={user: items})),
        (DataError, "item must be ids, not a table", lambda: model.similar_items(items.lazy())),  # type: ignore[arg-type]
        (DataError, "history must be .*with one column.*table", lambda: ask(history=items)),
        (ParameterError, "y must be None", lambda: model.fit(data, data.matrix)),
        (DataError, "user ids are", lambda: ask(4.5)),
        (DataError, "user ids are", lambda: ask(np.float32(1))),
        (DataError, "user ids are", lambda: ask([None])),
        (DataError, "user ids are", lambda: model.forget([1.0])),
        (DataError, "finite", lambda: ask(history={item: float("nan")})),
        (DataError, "must have the", lambda: ask(history=data.matrix[:, :2])),
        (DataError, "unknown to the model.*search", lambda: model.similar_items(unknown)),
        (ParameterError, "path must be a name that ends in", lambda: model.recommend_to("x.xlsx")),
        (ParameterError, "a folder that exists", lambda: model.recommend_to("no/such/x.csv")),
        (ParameterError, "progress must be a function", lambda: model.fit(data, progress=1)),  # type: ignore[arg-type]
    ]
    if model.explains:
        cases += [(ParameterError, "Exactly one", lambda: model.explain(item))]
        cases += [(DataError, "unknown to the model.*search", lambda: model.explain(unknown, history=[]))]
    for kind, message, question in cases:
        with pytest.raises(kind, match=message):
            question()


def test_every_model_keeps_what_a_model_of_ones_own_is_checked_for(make: Make, data: Interactions) -> None:
    check_recommender(make, data)


def test_threads_and_precision_may_be_given_as_other_libraries_do(make: Make) -> None:
    if "threads" in make().defaults():
        assert make(threads=-1).parameters == make().parameters
        assert make(threads=-1).get_params()["threads"] is None
    if "dtype" in make().defaults():
        assert make(dtype=np.float32).get_params()["dtype"] == "float32"
        assert make(dtype=np.dtype("float64")).get_params()["dtype"] == "float64"


def test_fitted_again_it_is_the_same_whatever_the_threads(
    make: Make, model: Recommender, data: Interactions, tmp_path: Path
) -> None:
    threads = (1, 2) if "threads" in model.defaults() else (None, None)
    model.save(tmp_path / "model", include_histories=True)
    for count in threads:
        again = make() if count is None else make(threads=count)
        again.fit(data).save(tmp_path / "again", include_histories=True)
        assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
        assert again.recommend(k=5).equals(model.recommend(k=5))
        assert again.timings_["total"] > 0


def test_it_can_be_evaluated(make: Make) -> None:
    X = random_matrix(4, users=90, items=30)
    split = strong_generalisation(pairs_of(X), heldout=20)
    half = Interactions(split.training.matrix[::2])
    model = make().fit(half)
    before = model.recommend(k=4)
    found = evaluate(model, split, "ndcg@10,recall@5")
    assert model.recommend(k=4).equals(before)
    assert 0 < found.mean("ndcg@10").mean <= 1
    assert found.parameters == model.parameters
    assert found.facts["kind"] == type(model).__name__
    assert found.seconds["training"] > 0
    model.fit(split.training, validation=split.validation)
    again = evaluate_fitted(model, split.test, "ndcg@10")
    np.testing.assert_array_equal(again.per_user("ndcg@10"), found.per_user("ndcg@10"))


@pytest.mark.parametrize("name", TAKE_NO_NEGATIVE_VALUES)
def test_negative_values_are_refused_where_they_mean_nothing(name: str) -> None:
    data = named_data(text=False, real=True)
    assert data.matrix.data.min() < 0
    model = build(*KINDS[name]).fit(abs(data.matrix))
    before = model.recommend(k=4)
    with pytest.raises(DataError, match=r"negative|0 or more"):
        model.fit(data)
    assert model.recommend(k=4).equals(before)


def test_every_kind_of_model_keeps_the_contract() -> None:
    assert {name for name, _ in KINDS.values()} == {*MODELS, "Vectors"}
