"""Tables that can be read in two ways are refused or noted, and so are long lines."""

import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mrfrec import DataError, MrfrecWarning, ParameterError, read_interactions
from mrfrec.io import text
from mrfrec.models import Popularity

ROWS = [(str(n % 150), str(n // 10)) for n in range(300)] + [("3", "none yet"), ("unknown", "5")]


def as_numbers(rows: list[Any]) -> list[Any]:
    return [tuple(int(x) if x.isdigit() else x for x in row) for row in rows]


SOURCES: dict[str, Callable[[Path, pl.DataFrame], Any]] = {
    "csv": lambda folder, frame: frame.write_csv(folder / "t.csv") or folder / "t.csv",
    "parquet": lambda folder, frame: frame.write_parquet(folder / "t.parquet") or folder / "t.parquet",
    "polars": lambda folder, frame: frame,
    "pandas": lambda folder, frame: frame.to_pandas(),
    "objects": lambda folder, frame: pd.DataFrame(
        as_numbers(frame.rows()), columns=frame.columns, dtype=object
    ),
    "jsonl": lambda folder, frame: io.StringIO(
        "\n".join(json.dumps(dict(zip(frame.columns, row, strict=True))) for row in as_numbers(frame.rows()))
    ),
}


@pytest.mark.parametrize("form", SOURCES)
def test_few_ids_that_are_no_integers_are_refused_by_row_or_skipped(form: str, tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, schema=["user", "item"], orient="row")

    def read(**options: Any) -> Any:
        source = SOURCES[form](tmp_path, frame)
        return read_interactions(source, input_format="jsonl" if form == "jsonl" else None, **options)

    with pytest.raises(DataError, match=r'row 30[12]\b.*on_bad="skip".*If ids are texts: ids="text"'):
        read()
    data = read(on_bad="skip")
    assert (len(data), sum(data.skipped.values()), data.share_skipped) == (300, 2, 2 / 302)
    assert {*data.skipped} == {f"{role} id not an integer, as nearly all are" for role in ("user", "item")}
    texts = read(ids="text")
    assert (len(texts), texts.users.type, texts.items.type) == (302, "string", "string")
    with pytest.raises(DataError, match=r"item id.*row 301\b|row 301: item id"):
        read(ids="users")


@pytest.mark.parametrize("form", [form for form in SOURCES if form != "objects"])
@pytest.mark.parametrize("share", [1, 0.1])
@pytest.mark.parametrize("prefix", ["", "u"])
@pytest.mark.parametrize("spelling", ["NULL", "None", "n/a", " NA", "-", r"\N"])
def test_ids_written_as_missing_are_bad_rows_whatever_their_share(
    form: str, share: float, prefix: str, spelling: str, tmp_path: Path
) -> None:
    users = [f"{prefix}{n}" for n in range(20)] + [spelling] * int(20 * share)
    frame = pl.DataFrame({"user": users, "item": [str(n % 5) for n in range(len(users))]})

    def read(**options: Any) -> Any:
        source = SOURCES[form](tmp_path, frame)
        return read_interactions(source, input_format="jsonl" if form == "jsonl" else None, **options)

    with pytest.raises(DataError, match=r'row 21: user id written as missing.*on_bad="skip".*ids="text"'):
        read()
    data = read(on_bad="skip")
    assert (data.n_users, data.skipped) == (
        20,
        {"user id written as missing (NULL, NA, None, -)": int(20 * share)},
    )
    assert data.users.is_text == bool(prefix or form in ("parquet", "polars", "pandas"))
    assert read(ids="users").n_users == 21


def test_a_mixed_column_of_integers_is_noted_by_its_rows(tmp_path: Path) -> None:
    rows = [(str(n % 150), str(n // 10)) for n in range(300)] + [("guest", "5")] * 40
    path = tmp_path / "t.csv"
    pl.DataFrame(rows, schema=["user", "item"], orient="row").write_csv(path)
    with pytest.warns(MrfrecWarning, match="user ids are read as texts: in 40 of 340 rows .*'guest'"):
        assert read_interactions(path).notes[0].count == 40
    assert read_interactions(path, ids="users").notes == ()


@pytest.mark.parametrize("form", ["csv", "polars"])
def test_a_header_line_again_is_a_bad_row(form: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["a", "user", "user"], "item": ["1", "item", "2"]})
    with pytest.raises(DataError, match=r"row 2: the names of the columns again\. It is the only bad row"):
        read_interactions(SOURCES[form](tmp_path, frame))
    assert len(read_interactions(SOURCES[form](tmp_path, frame), on_bad="skip")) == 2


def test_an_update_keeps_the_texts_among_integers_where_the_ids_are_texts(tmp_path: Path) -> None:
    model = Popularity().fit(pl.DataFrame({"user": ["g-1", "2"], "item": ["a", "b"]}))
    rows = [(str(n), "a") for n in range(3, 303)] + [("g-5", "b"), ("g-6", "b")]
    path = tmp_path / "t.csv"
    pl.DataFrame(rows, schema=["user", "item"], orient="row").write_csv(path)
    model.update(path)
    assert len(model.users_ or ()) == 304


def test_ids_that_are_texts_stay_so_in_an_update() -> None:
    first = pl.DataFrame({"user": [1, 2], "item": ["7", "8"]})
    model = Popularity().fit(read_interactions(first, ids="users"))
    model.update(pl.DataFrame({"user": [3], "item": ["9"]}))
    assert (list(model.users_ or []), list(model.items_)) == (["1", "2", "3"], ["7", "8", "9"])
    with pytest.raises(ParameterError, match='ids must be "text", "users", "items" or None'):
        read_interactions(first, ids="numbers")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["csv", "parquet", "polars", "pandas"])
def test_blanks_and_forms_of_letters_make_no_other_id(form: str, tmp_path: Path) -> None:
    users = ["é", "e\u0301 ", "\u200bé\u00a0", "x y", " x\u00a0y", " \u200b", "10 "]
    source = SOURCES[form](tmp_path, pl.DataFrame({"user": users, "item": [*"abcdefg"]}))
    with pytest.raises(DataError, match="row 6: no user id"):
        read_interactions(source)
    data = read_interactions(source, on_bad="skip")
    assert list(data.users) == ["10", "x y", "é"]
    assert data.users.find(["e\u0301", " 10", "x y", "y"], "user").tolist() == [2, 0, 1, -1]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            "user_id customer_id item",
            {},
            r"the users\? It may be 'user_id' or 'customer_id', .* row 1 .* '1' and '2'",
        ),
        ("user sku product", {}, r"the items\? It may be 'sku' or 'product', which differ.*Name it: item=…"),
        (
            "user item created_at ordered_at",
            {},
            r"the times\? It may be 'created_at' or 'ordered_at', which differ",
        ),
        (
            "user item stars plays",
            {"min_value": 0},
            r"the values\? It may be 'stars' or 'plays', which differ",
        ),
        ("user_id customer_id item", {"user": "user_id"}, None),
        ("user item created_at ordered_at", {"time": False}, None),
        ("user item units plays", {}, None),
    ],
)
def test_two_columns_for_one_thing_must_not_differ(columns: str, options: Any, message: str | None) -> None:
    names = columns.split()
    frame = pl.DataFrame({name: [n + 1, n + 2] for n, name in enumerate(names)})
    if message is None:
        assert len(read_interactions(frame, **options)) == 2
        return
    with pytest.raises(DataError, match=message):
        read_interactions(frame, **options)


def test_two_columns_for_one_thing_may_have_the_same_values() -> None:
    frame = pl.DataFrame({"customer": [1, 2, None], "uid": [1.0, 2.0, None], "sku": ["a", "b", "c"]})
    data = read_interactions(frame.with_columns(product="sku"), on_bad="skip")
    assert (list(data.users), list(data.items)) == ([1, 2], ["a", "b"])


LIKES = pl.DataFrame({"user": [1, 1, 2, 2, 3, 3], "item": [1, 2, 1, 3, 2, 3]})


@pytest.mark.parametrize(
    ("name", "values", "looks"),
    [
        (
            "rating",
            [1, 5, 4, 3, 2.5, 5],
            r"looks like ratings from 1 to 5, .*value='rating', min_value=4 .*value=False",
        ),
        ("score", [1, 10, 4, 3, 2, 5], "looks like ratings from 1 to 10, .*min_value=8"),
        ("quantity", [1, -1, 4, 3, 2, 5], "returns or dislikes: 1 of 6 values are below 0, .*min_value=1"),
        ("value", [1, 0, 0, 1, 1, 1], "looks like labels: 2 of 6 values are 0, the others 1"),
        ("views", [1, 0, 4, 3, 2, 5], "has values of 0: 1 of 6 values"),
        ("rating", ["1", "5", "good", "", "3", "4"], "looks like ratings from 1 to 5"),
        ("rating", [1.7, 4.9, 3.2, 4.4, 2, 5], "looks like ratings from 1.7 to 5, .*min_value=4"),
        ("rating", [20, 100, 60, 80, 80, 100], "looks like ratings from 20 to 100, .*min_value=80"),
        ("rating", [-1, 10, 9, 8, -1, 7], "looks like ratings from -1 to 10, .*min_value=8"),
        (
            "rating",
            ["4,0", "5,0", "1,0", "2,5", "3,0", "4,0"],
            "has 6 of 6 values that are no numbers, such as '4,0'",
        ),
        (
            "rating",
            ["up", "down", "up", "up", "", "up"],
            "has 5 of 6 values that are no numbers, such as 'up'",
        ),
        ("rating", [None, 1, 1, 1, None, 1], "has 2 of 6 values that are missing"),
        ("value", [1, 5, 4, 3, 2, 5], "looks like ratings from 1 to 5"),
        ("overall", [1, 5, 4, 3, 2, 5], "looks like ratings from 1 to 5"),
        ("Book-Rating", [0, 10, 4, 3, 2, 5], "looks like ratings from 0 to 10"),
        ("Rating (1-5)", [1, 5, 4, 3, 2, 5], "looks like ratings from 1 to 5"),
        ("my_star_ratings", [1, 5, 4, 3, 2, 5], "looks like ratings from 1 to 5"),
        ("is_return", [True, False, False, False, False, False], "looks like labels: 5 of 6 values are 0"),
        ("clicked", [1, 0, 0, 1, 1, 1], "looks like labels: 2 of 6 values are 0, the others 1"),
        ("event", ["view", "refund", "view", "view", "buy", "refund"], "has 2 events such as 'refund'"),
        ("event", ["view", "buy", "view", "view", "buy", "buy"], None),
        ("relevance", ["up", "down", "up", "up", "", "up"], None),
        ("quantity", [1, 2, 4, 3, 2, 5], None),
        ("rating", [1, 1, 1, 1, 1, 1], None),
        ("plays", [1.5, 20, 4, 3, 2, 5], None),
    ],
)
@pytest.mark.parametrize("form", ["csv", "polars", "pandas"])
def test_values_that_are_no_likes_are_noted(
    form: str, name: str, values: list[Any], looks: str | None, tmp_path: Path
) -> None:
    source = SOURCES[form](tmp_path, LIKES.with_columns(pl.Series(name, values, strict=False)))
    if looks is None:
        assert read_interactions(source).notes == ()
    else:
        with pytest.warns(MrfrecWarning, match=rf"column '{re.escape(name)}' .*{looks}") as warned:
            data = read_interactions(source)
        assert (len(warned), data.notes[0].what, data.notes[0].text) == (
            1,
            "looks like",
            str(warned[0].message),
        )
        assert data.fingerprint == read_interactions(LIKES).fingerprint
    read_interactions(source, value=False)
    for options in ({"value": False, "min_value": 1}, {"value": True}):
        with pytest.raises(ParameterError, match="value must be "):
            read_interactions(source, **options)


@pytest.mark.parametrize(
    ("titles", "why"),
    [
        (["A", "B", "A", "C", "B", "C"], None),
        (["A", "B", "A", "B", "B", "B"], "it has two values for 3 items"),
        (["1", "2", "1", "3.5", "2", "3.5"], "it holds numbers"),
        (["A", "B", "A", "C", "X", "C"], "it differs within 1 of 3 items"),
    ],
)
def test_a_column_that_is_no_title_is_not_read_as_one(titles: list[str], why: str | None) -> None:
    frame = LIKES.with_columns(label=pl.Series(titles))
    named = read_interactions(frame, title="label")
    assert named.titles is not None
    if why is None:
        assert list(read_interactions(frame).titles or []) == list(named.titles)
        return
    with pytest.warns(MrfrecWarning, match=f"column 'label' is not read as titles: {why}.*title='label'"):
        assert read_interactions(frame).titles is None


@pytest.mark.parametrize(
    ("times", "looks"),
    [
        ([45_000, 45_001, 45_002, 45_003, 45_004, 45_005], "6 of 6 times of 'time' are before 1990.*Excel"),
        ([0, *[1_700_000_000 + n * 999 for n in range(5)]], "1 of 6 times of 'time' are before 1990"),
        ([1_700_000_000 + n for n in range(6)], "all times of 'time' are within a minute, from 2023-11-14"),
        (["1970-01-01", *["2020-01-01"] * 5], "1 of 6 times of 'time' are before 1990"),
        ([1_700_000_000 + n * 999 for n in range(6)], None),
        ([f"2020-01-01T10:00:0{n}" for n in range(6)], None),
    ],
)
def test_numbers_that_are_no_times_are_noted(times: list[Any], looks: str | None) -> None:
    frame = LIKES.with_columns(time=pl.Series(times))
    if looks is None:
        assert read_interactions(frame).notes == ()
        return
    with pytest.warns(MrfrecWarning, match=looks):
        assert read_interactions(frame).times is not None


def test_a_table_with_a_row_for_every_pair_is_noted() -> None:
    pairs = [(user, item) for user in range(10) for item in range(12)]
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    with pytest.warns(MrfrecWarning, match="each of 10 users has each of 12 items: .*min_value=1"):
        read_interactions(frame)
    assert read_interactions(frame[:119]).notes == ()


def test_one_user_in_all_rows_is_noted() -> None:
    frame = pl.DataFrame({"member": ["cashier"] * 12, "item": range(12)})
    with pytest.warns(MrfrecWarning, match="column 'member' has one user in all 12 rows: .*user=…"):
        read_interactions(frame)
    assert read_interactions(frame[:9]).notes == ()


def test_a_column_of_lists_says_how_to_write_rows(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1, 2], "items": [["a", "b"], ["c"]]})
    for source, message in (
        (frame, r"column 'items' is List.* Write a row for each part of a list: explode\('items'\)"),
        (
            frame.to_pandas(),
            r"row 1: item id a list: write a row for each part \(explode\)\. It is the first of 2",
        ),
    ):
        with pytest.raises(DataError, match=message):
            read_interactions(source)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda content: bytes(pa.Codec("zstd").compress(content)),
}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("t.csv", "user,item\n1,2\n3,"),
        ("t.csv", ""),
        ("t.csv", 'user,item\n1,2\n3,"'),
        ("t.dat", "user::item\n1::2\n3::"),
        ("t.jsonl", '{"user": 1, "item": 2}\n{"user": 3, "item": 2}\n{"user": "'),
    ],
)
def test_a_line_of_many_letters_is_refused_before_it_is_in_memory(
    name: str, start: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    pieces = text._pieces

    def counted(path: Path) -> Any:
        nonlocal most
        for piece in pieces(path):
            most += len(piece)
            yield piece

    monkeypatch.setattr(text, "_pieces", counted)
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKED[packing](start.encode() + b"a" * 5_000_000))
    line = start.count("\n") + 1
    with pytest.raises(DataError, match=rf"{name}{packing}, line {line}: it is longer than 100,000 bytes"):
        read_interactions(path)
    assert 100_000 < most < 500_000


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize(
    ("name", "row"), [("x.csv", "user,item\na,1\n"), ("x.jsonl", '{"user":"a","item":1}\n')]
)
@pytest.mark.parametrize("empty", ["\n", "\r\n"])
def test_a_text_of_empty_lines_is_refused(
    name: str, row: str, packing: str, empty: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKED[packing]((row + empty * 1_500_000).encode()))
    with pytest.raises(DataError, match="lines are empty, most of the file"):
        read_interactions(path)
    path.write_bytes(PACKED[packing]((row + empty * 1000).encode()))
    assert len(read_interactions(path)) == 1


def test_an_id_of_many_letters_is_a_bad_row(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["a", "b" * 100_001], "item": [1, 2]})
    frame.write_parquet(tmp_path / "t.parquet")
    for source in (frame, frame.to_pandas(), tmp_path / "t.parquet"):
        with pytest.raises(DataError, match="row 2: user id of more than 100,000 bytes") as raised:
            read_interactions(source)
        assert len(str(raised.value)) < 500
        assert len(read_interactions(source, on_bad="skip")) == 1
