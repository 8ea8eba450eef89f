"""Tables → interactions: formats, columns, bad rows, duplicates, titles; against plain Python."""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mrfrec import (
    DataError,
    Interactions,
    MrfrecError,
    MrfrecWarning,
    ParameterError,
    load,
    read_interactions,
    read_item_features,
)
from mrfrec.cli.app import run as run_command
from mrfrec.data.ids import Ids
from mrfrec.io import batches, text
from mrfrec.io.tables import read_users
from mrfrec.models import Popularity

Row = tuple[Any, ...]


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# ── the twin: who used what, in dictionaries ──────────────────────────────────────────────────────


def plain_id(value: Any) -> Any:
    """An id as it is compared: no form of a letter, no kind of space and no blank around it makes another."""
    if not isinstance(value, str):
        return value
    text = unicodedata.normalize("NFC", value)
    text = "".join(" " if letter in "\u00a0\u2007\u202f" else letter for letter in text)
    return "".join(letter for letter in text if letter not in "\u200b\u2060\ufeff").strip()


def naive(
    rows: list[Row], *, binary: bool = True, min_value: float | None = None, duplicates: str = "sum"
) -> dict[tuple[Any, Any], float]:
    """Values by user and item, of rows (user, item) or (user, item, value): rows are filtered first."""
    values: dict[tuple[Any, Any], list[float]] = {}
    for user, item, *given_value in rows:
        value = float(np.float32(given_value[0])) if given_value else 1.0
        if min_value is None or value >= np.float32(min_value):
            values.setdefault((plain_id(user), plain_id(item)), []).append(value)
    one = {pair: np.float32(math.fsum(v) if duplicates == "sum" else v[-1]) for pair, v in values.items()}
    return {pair: 1.0 if binary else float(v) for pair, v in one.items() if binary or v != 0}


def as_csv_ids(rows: list[Row], place: int) -> list[Row]:
    """The ids that a file without types gives: integers if every one reads as such.

    Floats are read as integers, too: 1.0 as 1.
    """
    texts = [plain_id(str(row[place])) for row in rows]
    plain = [text.removesuffix(".0") for text in texts]
    whole = all(re.fullmatch(r"0|-?[1-9][0-9]*", text) for text in plain)
    numbers = [int(text) for text in plain] if whole else []
    fits = whole and (all(-(2**63) <= n < 2**63 for n in numbers) or all(0 <= n < 2**64 for n in numbers))
    ids: list[Any] = [*numbers] if fits else [*texts]
    return [(*row[:place], id_, *row[place + 1 :]) for row, id_ in zip(rows, ids, strict=True)]


def naive_text(rows: list[Row], **options: Any) -> dict[tuple[Any, Any], float]:
    """The same for a file without types: the ids that are left decide which columns are integers."""
    least = options.get("min_value")
    left = [row for row in rows if least is None or np.float32(row[2]) >= np.float32(least)]
    return naive(as_csv_ids(as_csv_ids(left, 0), 1), **options)


def assert_is(data: Interactions, expected: dict[tuple[Any, Any], float], titles: Any = None) -> None:
    """The same pairs, values, ids with their types, titles, and fingerprint."""
    users, items = (sorted({pair[side] for pair in expected}) for side in (0, 1))
    places = [(users.index(u), items.index(i)) for u, i in expected]
    shape = (len(users), len(items))
    matrix = sp.csr_array(
        (np.array([*expected.values()], np.float32), tuple(zip(*places, strict=True))), shape
    )
    assert [(type(x), x) for x in data.users] == [(type(x), x) for x in users]
    assert [(type(x), x) for x in data.items] == [(type(x), x) for x in items]
    assert data.matrix.dtype == np.float32
    np.testing.assert_array_equal(data.matrix.toarray(), matrix.toarray())
    assert data.fingerprint == Interactions(matrix, users, items).fingerprint
    assert (data.titles is None and titles is None) or list(data.titles or []) == titles


# ── every way to store a table ────────────────────────────────────────────────────────────────────


def to_polars(names: list[str], rows: list[Row]) -> pl.DataFrame:
    columns = {}
    for place, name in enumerate(names):
        values = [row[place] for row in rows]
        known = [value for value in values if value is not None]
        wide = any(isinstance(value, int) and value >= 2**63 for value in known)
        columns[name] = pl.Series(values, dtype=pl.UInt64 if wide else None, strict=True)
    return pl.DataFrame(columns)


def to_csv(names: list[str], rows: list[Row], separator: str = ",", end: str = "\n") -> bytes:
    out = io.StringIO(newline="")
    # Python does not quote a carriage return where lines end without one.
    odd = any("\r" in str(value) for row in rows for value in row)
    writer = csv.writer(
        out, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
    )
    writer.writerow(names)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue().encode()


def to_json(names: list[str], rows: list[Row], **options: Any) -> bytes:
    lines = [json.dumps(dict(zip(names, row, strict=True)), **options) for row in rows]
    return "\n".join(lines).encode()


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


def saved(name: str, content: Callable[[list[str], list[Row]], bytes]) -> Callable[..., object]:
    def save(folder: Path, names: list[str], rows: list[Row]) -> Path:
        path = folder / name
        path.write_bytes(content(names, rows))
        return path

    return save


def written(name: str, write: Callable[[pl.DataFrame, Path], object]) -> Callable[..., object]:
    def save(folder: Path, names: list[str], rows: list[Row]) -> Path:
        write(to_polars(names, rows), folder / name)
        return folder / name

    return save


TEXT: dict[str, Callable[..., object]] = {
    "csv": saved("t.csv", to_csv),
    "csv, Windows": saved("t.CSV", lambda names, rows: b"\xef\xbb\xbf" + to_csv(names, rows, end="\r\n")),
    "tsv": saved("t.tsv", lambda names, rows: to_csv(names, rows, "\t")),
    "csv.gz": saved("t.csv.gz", lambda names, rows: gzip.compress(to_csv(names, rows))),
    "csv.zst": saved("t.csv.zst", lambda names, rows: zstd(to_csv(names, rows))),
}
TYPED: dict[str, Callable[..., object]] = {
    "json": saved("t.jsonl", to_json),
    "json, UTF-8": saved("u.jsonl", lambda names, rows: to_json(names, rows, ensure_ascii=False)),
    "json.gz": saved("t.ndjson.gz", lambda names, rows: gzip.compress(to_json(names, rows))),
    "parquet": written("t.parquet", lambda frame, path: frame.write_parquet(path, row_group_size=4)),
    "arrow": written("t.arrow", lambda frame, path: frame.write_ipc(path)),
    "arrow stream": written("s.arrow", lambda frame, path: frame.write_ipc_stream(path)),
    "polars": lambda folder, names, rows: to_polars(names, rows),
    "polars, lazy": lambda folder, names, rows: to_polars(names, rows).lazy(),
    "pyarrow": lambda folder, names, rows: to_polars(names, rows).to_arrow(),
    "pandas": lambda folder, names, rows: pd.DataFrame(
        {n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    ),
    "pandas, nullable": lambda folder, names, rows: to_polars(names, rows).to_pandas(
        types_mapper=pd.ArrowDtype
    ),
    "pandas, object": lambda folder, names, rows: pd.DataFrame(rows, columns=names, dtype=object),
}
FORMATS = {**TEXT, **TYPED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


integers = st.integers(-5, 30) | st.integers(-(2**63), 2**63 - 1) | st.integers(2**53, 2**53 + 3)
unsigned = st.integers(0, 9) | st.integers(2**63 - 2, 2**64 - 1)
texts = (
    st.text(st.sampled_from("ab019_. ,;\t|\"'\n\r\\/é漢😀\u2028\ufeff"), min_size=1, max_size=5)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=3)
).filter(lambda text: plain_id(text) and plain_id(text) not in batches.MISSING)
values = st.sampled_from([1.0, 2.0, 4.0, 5.0, 3.5, 0.1, 0.2, 0.3, 0.0, -1.0, 16777217.0])


@st.composite
def tables(draw: Any) -> list[Row]:
    """Rows (user, item, value), among them several of one pair."""
    users, items = (
        draw(st.lists(draw(st.sampled_from([integers, unsigned, texts])), min_size=1, max_size=4))
        for _ in "ui"
    )
    pair = st.tuples(st.sampled_from(users), st.sampled_from(items), values)
    return list(draw(st.lists(pair, min_size=1, max_size=12)))


@pytest.mark.parametrize("form", FORMATS)
@examples(10)
@given(tables(), st.data())
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*read as (integers|texts)", "ignore:.* has one (user|item) in all")
def test_every_format_gives_what_plain_python_does(
    folder: Path, form: str, rows: list[Row], data: Any
) -> None:
    given_names = data.draw(
        st.sampled_from([["user", "item", "rating"], ["^u.*$", "*", "x (y)"], ["ü id", "", 'v"a,l']])
    )
    options = data.draw(
        st.fixed_dictionaries(
            {
                "binary": st.booleans(),
                "min_value": st.sampled_from([None, 0.1, 2, 4.0]),
                "duplicates": st.sampled_from(["sum", "last"]),
            }
        )
    )
    expected = (naive_text if form in TEXT else naive)(rows, **options)
    source = FORMATS[form](folder, given_names, rows)
    if options["binary"] and options["min_value"] is None:
        given_names = [*given_names[:2], False]  # nothing uses the values
    with patch.object(batches, "BATCH_ROWS", data.draw(st.sampled_from([1, 3, 1000]))):
        if expected:
            assert_is(read_interactions(source, *given_names, **options), expected)
        else:
            with pytest.raises(DataError, match="no interactions are left"):
                read_interactions(source, *given_names, **options)


# ── bad rows ──────────────────────────────────────────────────────────────────────────────────────

# How a row is spoiled, and the reason that is told.
SPOILED: dict[str, tuple[Callable[[Any, Any, Any], Row], str]] = {
    "": (lambda user, item, value: (user, item, value), ""),
    "no user": (lambda user, item, value: (None, item, value), "no user id"),
    "no item": (lambda user, item, value: (user, None, value), "no item id"),
    "no value": (lambda user, item, value: (user, item, None), "no value"),
    "nan": (lambda user, item, value: (user, item, math.nan), "value not a finite number"),
    "inf": (lambda user, item, value: (user, item, -math.inf), "value not a finite number"),
    "large": (lambda user, item, value: (user, item, 1e39), "value beyond single precision"),
    "small": (lambda user, item, value: (user, item, 1e-50), "value beyond single precision"),
}
SPOILED_TEXT = {
    **SPOILED,
    "word": (lambda user, item, value: (user, item, "five"), "value not a finite number"),
    "fields": (lambda *row: (*row, "x"), "more than 3 fields"),
    "hidden fields": (lambda *row: (*row, None, None, "x"), "more than 3 fields"),
}


@pytest.mark.parametrize("form", sorted({*FORMATS} - {"pandas"}))  # it makes floats of integers
@examples(5)
@given(tables(), st.data())
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*read as (integers|texts)", "ignore:.* has one (user|item) in all")
def test_bad_rows_are_refused_by_number_or_skipped_and_counted(
    folder: Path, form: str, rows: list[Row], data: Any
) -> None:
    spoiled = SPOILED_TEXT if form in TEXT else SPOILED
    hows = st.sampled_from(["", "", *spoiled])
    marks = data.draw(st.lists(hows, min_size=len(rows), max_size=len(rows)))
    bad = [spoiled["no value" if "pandas" in form and how == "nan" else how][1] for how in marks if how]
    good = [row for row, how in zip(rows, marks, strict=True) if not how]
    expected = (naive_text if form in TEXT else naive)(good, binary=False)
    changed = [spoiled[how][0](*row) for row, how in zip(rows, marks, strict=True)]
    source = FORMATS[form](folder, ["user", "item", "value"], changed)
    with patch.object(batches, "BATCH_ROWS", data.draw(st.sampled_from([1, 2, 1000]))):
        if bad:
            first = next(i for i, how in enumerate(marks, 1) if how)
            with pytest.raises(DataError, match=rf"row {first}: .*(on_bad=\"skip\"|bad rows among)"):
                read_interactions(source, binary=False)
        if expected:
            kept = read_interactions(source, binary=False, on_bad="skip")
            assert_is(kept, expected)
            assert kept.skipped == Counter(bad)
        else:
            with pytest.raises(DataError, match="no interactions"):
                read_interactions(source, binary=False, on_bad="skip")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"user": 1, "item": 2', "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"user": 1, "item": "\\ud800"}', "not valid JSON"),
        ("[" * 5000, "not valid JSON"),
        ('{"item": 2}', "no user id"),
        ('{"user": true, "item": 2}', "user id neither a string nor a whole number of 64 bits"),
        ('{"user": 1.5, "item": 2}', "user id neither a string nor a whole number of 64 bits"),
        ('{"user": 18446744073709551616, "item": 2}', "user id not a whole number of 64 bits"),
    ],
)
def test_bad_line_of_json_is_refused_by_number_or_skipped(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(['{"user": 1, "item": 2}', line, '{"user": 3, "item": 2}']))
    with pytest.raises(DataError, match=rf"t\.jsonl, row 2: {reason}"):
        read_interactions(path)
    data = read_interactions(path, on_bad="skip")
    assert {1, 3} == set(data.users)
    assert next(iter(data.skipped)).startswith(reason)


@examples(40)
@given(st.text(st.sampled_from('ab",\n'), max_size=14), st.booleans())
@example('"the ""best"" one",b', True)
@example('"the "best" one",b', True)
@example('5"disk,b\na,"b"', True)
@example('a,b,,"x\ny",5"\na,b', False)
@example('"a\nb",c\n"a,b', False)
def test_quotes_are_read_as_python_does_or_refused(folder: Path, text: str, closed: bool) -> None:
    content = "user,item\n" + text + "\n" * closed
    path = folder / "quotes.csv"
    path.write_text(content)
    rows = [*csv.reader(io.StringIO(content, newline=""))][1:]
    good = [(row[0], row[1]) for row in rows if len(row) >= 2 and all(row[:2]) and not any(row[2:])]
    try:
        data = read_interactions(path, on_bad="skip")
    except DataError as error:
        refused = str(error)
        assert "quotation" in refused or not good
    else:
        assert_is(data, naive(good))


@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz", ".jsonl", ".json.zst", ".parquet", ".arrow"])
@examples(15)
@given(
    st.binary(max_size=60), st.sampled_from([b"", b"PAR1", b"ARROW1", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
)
def test_any_bytes_give_interactions_or_an_error_of_ours(
    folder: Path, suffix: str, content: bytes, magic: bytes
) -> None:
    path = folder / f"fuzz{suffix}"
    path.write_bytes(magic + content + magic)
    with pytest.raises(MrfrecError):
        read_interactions(path, on_bad="skip")


def test_the_columns_that_were_read_are_named_where_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mrfrec")
    (tmp_path / "t.csv").write_text("shop,user,item\n1,2,3\n")
    data = read_interactions(tmp_path / "t.csv")
    assert caplog.messages[0].endswith("t.csv: user 'user', item 'item'; not read: 'shop'")
    assert list(data.users) == [2]


def test_a_table_of_bad_rows_only_says_why_they_are_bad() -> None:
    with pytest.raises(DataError, match=r"2 rows, all of them bad: no user id; no item id\.$"):
        read_interactions(pl.DataFrame({"user": [None, 1], "item": [1, None]}), on_bad="skip")


pieces = st.sampled_from([b'"', b",", b"\n", b"{", b"[", b"\\", b"\xff", b"\x00", b"nul", b"1e999"])


@pytest.mark.parametrize("form", ["csv", "json"])
@examples(40)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2), pieces), min_size=1, max_size=4))
@example([(34, 2, b"\n")])  # in CSV, a line begins with 2.0, which is read as an integer, with a warning
@pytest.mark.filterwarnings("ignore::mrfrec.MrfrecWarning")
def test_damaged_text_gives_interactions_or_an_error_of_ours(
    folder: Path, form: str, damages: list[tuple[int, int, bytes]]
) -> None:
    names, rows = ["user", "item", "value", "title"], [(1, "a", 1.5, "x"), (2, "b", 2.0, "y")]
    content = bytearray((to_csv if form == "csv" else to_json)(names, rows))
    for number, length, piece in damages:
        place = number % (len(content) + 1)
        content[place : place + length] = piece
    path = folder / f"damaged.{form}"
    path.write_bytes(content)
    with contextlib.suppress(MrfrecError):
        assert read_interactions(path, on_bad="skip").n_users > 0


@pytest.mark.parametrize("form", ["csv.gz", "csv.zst", "parquet", "arrow", "arrow stream"])
def test_file_cut_short_is_refused(folder: Path, form: str) -> None:
    rows = [(f"user {i}", f"item {i * 7919 % 101}") for i in range(200)]
    path = Path(str(FORMATS[form](folder, ["user", "item"], rows)))
    whole = path.read_bytes()
    for length in range(1, len(whole) - 1, max(1, len(whole) // 25)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_interactions(path)


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────


def test_ids_of_csv_are_integers_only_if_all_of_a_column_reads_as_such(folder: Path) -> None:
    most = 2**64 - 1
    for given_ids, expected in (
        (["10", "9", "-3"], [-3, 9, 10]), (["10", "007"], ["007", "10"]), (["10", "9 "], [9, 10]),
        (["10", "+9"], ["+9", "10"]), (["0", "-0"], ["-0", "0"]), (["1.0", "1.5"], ["1.0", "1.5"]),
        ([str(most), "1"], [1, most]), ([str(most), "-1"], ["-1", str(most)]), ([str(2**64)], [str(2**64)]),
    ):  # fmt: skip
        source = TEXT["csv"](folder, ["user", "item"], [(x, 1) for x in given_ids])
        assert list(read_interactions(source).users) == expected


def test_string_ids_of_typed_formats_stay_strings_even_if_all_are_digits(folder: Path) -> None:
    for form, save in TYPED.items():
        data = read_interactions(save(folder, ["user", "item"], [("7", "10"), ("8", "9")]))
        assert (list(data.users), list(data.items)) == (["7", "8"], ["10", "9"]), form


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("first", [7, "7"])
def test_json_ids_of_both_types_are_refused(tmp_path: Path, first: object, batch: int) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(to_json(["user", "item"], [(first, 1), ("7", 1), (7, 1)]))
    with patch.object(batches, "BATCH_ROWS", batch), patch.object(text, "_SAMPLE", 1):
        for on_bad in ("refuse", "skip"):
            with pytest.raises(DataError, match=r"user ids are .* strings in other"):
                read_interactions(path, on_bad=on_bad)


@pytest.mark.parametrize("form", ["json", "parquet", "polars", "pandas"])
def test_booleans_are_values(folder: Path, form: str) -> None:
    source = TYPED[form](folder, ["user", "item", "value"], [("a", 1, True), ("b", 1, False), ("b", 2, True)])
    assert_is(read_interactions(source, binary=False), {("a", 1): 1.0, ("b", 2): 1.0})


FLOATS = "ids are floats in .*, such as 1.0: they are read as integers"


@pytest.mark.parametrize("form", FORMATS)
def test_floats_are_integer_ids_with_one_warning_each_in_every_format(folder: Path, form: str) -> None:
    source = FORMATS[form](folder, ["user", "item"], [(1.0, -10.0), (1.0, 20.0), (2.0, -10.0)])
    with patch.object(batches, "BATCH_ROWS", 1), pytest.warns(MrfrecWarning, match=FLOATS) as told:
        data = read_interactions(source)
    assert_is(data, {(1, -10): 1.0, (1, 20): 1.0, (2, -10): 1.0})
    assert [str(warning.message)[:4] for warning in told] == ["user", "item"]


def test_texts_of_one_number_are_one_id(tmp_path: Path) -> None:
    rows = [("2", "b", 1, "B"), ("10.0", "a", 2, "A"), ("1.0", "b", 4, "B"), ("10", "a", 8, "A")]
    source = TEXT["csv"](tmp_path, ["user", "item", "value", "title"], rows)
    with pytest.warns(MrfrecWarning, match=rf"^user {FLOATS}"):
        data = read_interactions(source, binary=False)
    assert_is(data, {(1, "b"): 4.0, (2, "b"): 1.0, (10, "a"): 10.0}, ["A", "B"])
    (tmp_path / "t.csv").write_text("user,item\n9007199254740993,1\n1.0,1\n")
    with pytest.warns(MrfrecWarning, match=FLOATS):
        assert list(read_interactions(tmp_path / "t.csv").users) == [1, 2**53 + 1]
    (tmp_path / "t.csv").write_text("user,item\n9007199254740992.0,1\n1,1\n")
    with pytest.raises(DataError, match=r"user id too large for a float to be exact, '9007199254740992\.0'"):
        read_interactions(tmp_path / "t.csv")


@pytest.mark.filterwarnings("ignore:.*fewer than k")
@pytest.mark.parametrize("form", ["csv", "pandas"])
def test_floats_are_read_alike_wherever_a_table_is_read(folder: Path, form: str) -> None:
    def table(rows: list[Row], *names: str) -> Any:
        return FORMATS[form](folder, list(names), rows)

    data = read_interactions(pl.DataFrame({"user": [1, 1, 2, 2, 3], "item": [10, 20, 10, 30, 20]}))
    model = Popularity().fit(data)
    with pytest.warns(MrfrecWarning, match=FLOATS):
        asked = model.recommend(history=table([(7.0, 10.0)], "user", "item"), k=1)
    assert (list(asked["user"]), list(asked["item"])) == ([7], [20])
    with pytest.warns(MrfrecWarning, match=FLOATS):
        model.update(table([(3.0, 30.0), (4.0, 40.0)], "user", "item"))
    assert (list(model.users_ or ()), list(model.items_)) == ([1, 2, 3, 4], [10, 20, 30, 40])
    with pytest.warns(MrfrecWarning, match=FLOATS):
        titled = read_interactions(
            pl.DataFrame({"user": [1], "item": [10]}), items=table([(10.0, "ten")], "item", "title")
        )
    assert list(titled.titles or ()) == ["ten"]
    brands = [(10.0 + n, "abcd"[n // 2]) for n in range(8)]
    with pytest.warns(MrfrecWarning, match=FLOATS):
        features = read_item_features(table(brands, "item", "brand"), columns={"brand": "category"})
    assert list(features.items)[:2] == [10, 11]


def test_ids_written_as_floats_are_not_added_to_strings(folder: Path) -> None:
    model = Popularity().fit(pl.DataFrame({"user": ["1.0", "x"], "item": [1, 2]}))
    with pytest.warns(MrfrecWarning, match=FLOATS), pytest.raises(DataError, match="integers in the new"):
        model.update(TEXT["csv"](folder, ["user", "item"], [(1.0, 2)]))


@pytest.mark.filterwarnings("ignore:.*read as (integers|texts)")
def test_whole_floats_are_integer_ids_but_not_beyond_what_is_exact() -> None:
    frame = pd.DataFrame({"user": [1.0, 2.0, None, 2.0**53, 1.5, math.inf], "item": [1, 2, 3, 4, 5, 6]})
    data = read_interactions(frame, on_bad="skip")
    assert list(data.users) == [1, 2]
    assert data.skipped == {
        "no user id": 1,
        "user id not a whole number": 1,
        "user id too large for a float to be exact": 2,
    }
    with pytest.raises(DataError, match=r"row 1: item id too large for a float to be exact, 16777216\.0"):
        read_interactions(pl.DataFrame({"user": [1], "item": pl.Series([2.0**24], dtype=pl.Float32)}))


@pytest.mark.parametrize("odd", [True, 1.5, 2**70, pd.Timestamp(0)])
def test_object_that_is_no_id_is_a_bad_row(odd: object) -> None:
    frame = pd.DataFrame(
        {"user": [np.int64(1), odd, None, math.nan, pd.NA], "item": list("abcde")}, dtype=object
    )
    data = read_interactions(frame, on_bad="skip")
    assert list(data.users) == [1]
    assert data.skipped == {"no user id": 3, "user id neither a string nor a whole number of 64 bits": 1}


def test_signed_and_unsigned_ids_are_told_apart_or_refused(folder: Path) -> None:
    small = pl.DataFrame({"user": pl.Series([3], dtype=pl.UInt64), "item": ["a"]})
    assert np.asarray(read_interactions(small).users.values).dtype == np.int64
    for user in (-1, 1, 2**63):
        to_polars(["user", "item"], [(user, "a")]).write_parquet(folder / f"{user}.parquet")
    low, one, large = (folder / f"{user}.parquet" for user in (-1, 1, 2**63))
    for fitting in ([one, large], [large, one]):
        assert list(read_interactions(fitting).users) == [1, 2**63]
    for paths in ([low, large], [large, low]):
        with pytest.raises(DataError, match=r"both below 0 and above 2\*\*63"):
            read_interactions(paths)


# ── several files ─────────────────────────────────────────────────────────────────────────────────


def test_pattern_and_list_read_several_files_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(i, f"item {i % 3}") for i in range(9)]
    for n, form in enumerate(["csv", "json", "parquet", "tsv"]):
        part = tmp_path / f"part {n}"
        part.mkdir()
        FORMATS[form](part, ["user", "item"], rows[2 * n : 2 * n + 3])
    (tmp_path / "part 0" / "more.csv").mkdir()
    paths = [path for path in sorted(tmp_path.glob("*/*")) if path.is_file()]
    monkeypatch.chdir(tmp_path)
    for source in (f"{tmp_path}/*/*", "part */t.*", paths, [str(path) for path in paths[::-1]]):
        assert_is(read_interactions(source), naive(rows))


def test_integers_beside_text_that_is_none_are_refused(folder: Path) -> None:
    typed = FORMATS["parquet"](folder, ["user", "item"], [(1, 1)])
    text = FORMATS["csv"](folder, ["user", "item"], [("x", 2)])
    for both in ([typed, text], [text, typed]):
        with pytest.raises(DataError, match=r"user ids are integers in .*t\.parquet, and strings in .*'x'"):
            read_interactions(both)
    strings = FORMATS["json"](folder, ["user", "item"], [("1", 1)])
    with pytest.raises(DataError, match=r"integers in .*t\.parquet, and strings in .*t\.jsonl\. Make"):
        read_interactions([typed, strings])


def of_user(user: object) -> pl.DataFrame:
    return pl.DataFrame({"user": [user], "item": [1]})


def test_values_that_are_not_asked_for_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('user,item,rating\n1,a,0\n1,b,"4,5"\n2,b,\n2,c,-1\n')
    data = read_interactions(path, value=False)
    assert_is(data, {(1, "a"): 1.0, (1, "b"): 1.0, (2, "b"): 1.0, (2, "c"): 1.0})
    with pytest.raises(DataError, match="row 2: value not a finite number, '4,5'"):
        read_interactions(path, min_value=0)
    zeros = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "rating": [0.0, 3.0, -1.0]})
    assert_is(read_interactions(zeros, min_value=0), {(1, 1): 1.0, (1, 2): 1.0})


@pytest.mark.parametrize("form", FORMATS)
def test_returns_and_zeros_count_alike_in_every_format(folder: Path, form: str) -> None:
    rows = [(1, "a", 2), (1, "a", -2), (1, "b", 0), (2, "a", 3), (2, "a", -1), (2, "c", -1), (2, "b", 1)]
    source = FORMATS[form](folder, ["user", "item", "qty"], rows)
    bought = {(1, "a"): 1.0, (2, "a"): 1.0, (2, "b"): 1.0}
    net = {(2, "a"): 2.0, (2, "b"): 1.0, (2, "c"): -1.0}  # what adds up to 0 is no interaction
    for options, expected in (({"min_value": 1}, bought), ({"binary": False}, net)):
        assert_is(read_interactions(source, value="qty", **options), expected)
    with pytest.raises(ParameterError, match=r"value must be left out without .*'qty'\. binary=False"):
        read_interactions(source, value="qty")


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder of Parquet files, one for each day, beside files that others leave there."""
    folder = tmp_path / "run=3" / "events[1]"
    for day, user in (("2026-11-02", "ann"), ("2026-11-01", "bob"), ("2026-11-03", "ann")):
        part = folder / f"day={day}"
        part.mkdir(parents=True)
        pl.DataFrame({"user": [user, "cem"], "item": [1, 2]}).write_parquet(part / "part-0.parquet")
        (part / ".part-0.parquet.crc").touch()
    (folder / "_SUCCESS").touch()
    return folder


def test_names_that_shops_use_are_recognised() -> None:
    table = pl.DataFrame(
        {"Buyer ID": ["ann", "bob"], "StockCode": ["a", "b"], "Qty": [2, 3], "Ordered On": [10, 20]}
    )
    data = read_interactions(table, binary=False)
    assert data.to_frame().columns == table.columns
    assert data.matrix.data.tolist() == [2, 3]


def test_folder_of_parquet_files_is_one_table_whose_days_are_a_column(days: Path) -> None:
    data = read_interactions(days, time="day")
    assert data.to_frame().rows() == [
        ("ann", 1, datetime(2026, 11, 3)),
        ("bob", 1, datetime(2026, 11, 1)),
        ("cem", 2, datetime(2026, 11, 3)),
    ]
    assert read_interactions([str(days)]).times is None  # not recognised
    assert len(read_interactions(days, time="day", since="2026-11-02")) == 2
    with pytest.raises(
        ParameterError, match=r"time must be a column of .*: 'user', 'item', 'day'; got 'run'"
    ):
        read_interactions(days, time="run")


def test_folder_of_other_files_or_of_none_is_refused(days: Path, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="separator must be left out for a folder of Parquet files"):
        read_interactions(days, separator=";")
    (days / "notes.csv").touch()
    with pytest.raises(
        DataError, match=r"and no others; .*\[1\] has notes.csv. Name files, or give a pattern"
    ):
        read_interactions(days)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no files. Name files"):
        read_interactions(tmp_path / "empty")
    pl.DataFrame({"user": ["x"], "item": ["y"]}).write_parquet(tmp_path / "empty" / "a.parquet")
    pl.DataFrame({"user": ["x"], "item": [1]}).write_parquet(tmp_path / "empty" / "b.parquet")
    with pytest.raises(
        DataError, match=r"empty cannot be read after row .*data type mismatch for column item"
    ):
        read_interactions(tmp_path / "empty")


def test_folder_is_read_in_the_shell(days: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "m.mrf")
    run_command(["fit", str(days), "-o", target, "--model", "Popularity", "--time-column", "day"], Event())
    assert list(load(tmp_path / "m.mrf").items_) == [1, 2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.csv", "there is no file nowhere.csv. Relative paths start from /"),
        ("no*.csv", "no file matches the pattern"),
        (["a\0.csv"], "there is no file"),
        ("/", r"a folder must have Parquet files \(.parquet\) and no others; / has .*, or give a pattern"),
        ("x" * 5000, "cannot be read: .*too long"),
        (5, "must be a path, .*; got int"),
        ([], "got list"),
        (sp.eye_array(2), r"got dia_array\. A matrix becomes Interactions"),
        (pd.DataFrame([[1, 2]], columns=["user", "user"]), "the data frame cannot be read: .*unique"),
        (pd.DataFrame({1: [1], "1": [2]}), "several columns of one name"),
        (pl.LazyFrame({"a": [1]}).select("b"), "the polars frame cannot be read: unable to find column"),
        (pl.LazyFrame({"user": ["x"], "item": 1}).cast({"user": pl.Int64}), "cannot be read after row 0"),
        (pl.DataFrame({"user": [], "item": []}), "no interactions: 0 rows"),
        (of_user(True), "user ids must be integers or strings; column 'user' is Boolean"),
        (of_user(b"a"), "column 'user' is Binary"),
        (of_user("1").cast({"user": pl.Decimal(9, 2)}), "column 'user' is Decimal"),
        (of_user(2**70), "row 1: user id not a whole number of 64 bits"),
        (of_user(None), "row 1: no user id"),
        (of_user(""), "row 1: no user id"),
    ],
)
def test_what_cannot_be_read_is_refused(source: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_interactions(source)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"", r"cannot tell the format from the name. Use one that ends in"),
        ("t.parquet.gz", b"", "cannot tell the format"),
        ("t.csv", b"", r"t\.csv is empty"),
        ("t.jsonl", b"", r"t\.jsonl is empty"),
        ("t.csv", b"user,item\n", "no interactions: 0 rows"),
        ("t.csv", b"user,item\n\xff,1\n", "the text is not UTF-8. Convert it"),
        ("t.csv", "user,item\n1,2\n".encode("utf-16"), r"t\.csv is text in UTF-16.*iconv -f utf-16"),
        ("t.csv", b"\x00\x01\xff", r"t\.csv is not a text file: it contains NUL bytes"),
        ("t.csv", b"\n\n1,2\n", r"line 1: it must name the columns"),
        ("t.jsonl", b'{"user": "\xff"}', "the text is not UTF-8"),
        ("t.csv", b"user,item\r1,2\r", "line 1: it must .*without line breaks"),
        ("t.csv", b"u" * 200_000, "line 1: it is longer than 100,000 bytes"),
        ("t.parquet", b"PAR1 something else PAR1", r"t\.parquet .* it is damaged, or not Parquet"),
        ("t.arrow", b"something else", r"t\.arrow cannot be read: it is damaged, or not Arrow"),
        ("u.data", b"196\t242\t3\n186\t302\t3\n", "The columns are '196', '242', '3'.*columns=…"),
        ("t.csv", b"user,item\na\r,2\n", "row 1: .*a carriage return outside"),
        ("t.csv", b'user,item\n1,a\n2,"7" disk"\n', "row 2: quotation marks"),
        ("t.json", b' \n[{"user": 1, "item": 2}]', "one JSON array"),
        ("t.txt", b"user\titem\n1\t2\n1\t  \n", "row 2: no item id"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_interactions(path)


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["userId", "movieId", "rating", "timestamp"], "user item value"),
        (["Item_ID", "USER ID", "Play-Count"], "item user value"),
        (["customer", "sku", "title"], "user item title"),
        (["uid", "user_id", "item", "product"], "user user item item"),
        (["session", "track_id", "name"], "user item -"),
    ],
)
def test_obvious_columns_are_recognised(names: list[str], roles: str) -> None:
    cells = {"user": "a user", "item": "an item", "value": "2.5", "title": "a title", "-": "0"}
    frame = pl.DataFrame({name: [cells[role]] for name, role in zip(names, roles.split(), strict=False)})
    data = read_interactions(frame, binary="value" not in roles)
    assert (list(data.users), list(data.items)) == (["a user"], ["an item"])
    assert data.matrix.data.tolist() == ([2.5] if "value" in roles else [1.0])
    assert (data.titles is not None) == ("title" in roles)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["who", "item"], {}, r"which column holds the users\? .*'who', 'item'.* Name it: user=…"),
        (["user", "song", "artist"], {}, r"the items\? It may be 'song' or 'artist', .* Name it: item=…"),
        (["user", "item", "user"], {}, r"'user \(column 1\)', 'item', 'user \(column 3\)'"),
        (["user", "item", "n"], {"binary": False}, r"which column holds the values\? It may be one of 'n'"),
        (["user", "item", "stars", "plays"], {"min_value": 1}, "It may be 'stars' or 'plays', which differ"),
        (["user", "item"], {"user": "usr"}, "user must be a column of .*; got 'usr'"),
        (["user", "item"], {"title": "item", "item": "item"}, "item must be another column than title"),
        (["user", "item"], {"separator": ""}, "separator must be ASCII characters"),
        (["user", "item"], {"separator": '":'}, "separator must be ASCII characters, no quotation mark"),
        (["user", "item"], {"input_format": "xml"}, 'input_format must be "csv", "tsv", "jsonl"'),
        (["user", "item"], {"columns": "user"}, "columns must be a list of distinct names; got 'user'"),
        (["user", "item"], {"columns": ["user", "user"]}, "columns must be a list of distinct names"),
        (["user", "item"], {"columns": ["user"]}, "columns must be a name for each of the 2 .*Line 1"),
        (
            ["user", "item"],
            {"duplicates": "least"},
            'duplicates must be "sum", "max", "last", "first" or "error"',
        ),
        (["user", "item"], {"on_bad": None}, 'on_bad must be "refuse" or "skip"; got None'),
        (["user", "item"], {"binary": "yes"}, "binary must be True or False; got 'yes'"),
        (["user", "item"], {"min_value": math.nan}, r"min_value must be above -3e\+38 .*; got nan"),
        (["user", "item", "n"], {"value": "n"}, "value must be left out without min_value or binary=False"),
        (["user", "item", "n"], {"time": 5}, "time must be the name of a column, True, False or None; got 5"),
        (
            ["user", "item", "time"],
            {"time": False, "since": "2020-01-01"},
            "time must be left out with window",
        ),
        (["user", "item", "n"], {"time": True}, "which column holds the times"),
        (
            ["buyer", "client", "item"],
            {},
            r"users\? It may be 'buyer' or 'client', which differ: .* or update",
        ),
        (["user", "item"], {"progress": 1}, "progress must be a function .*; got 1"),
    ],
)
def test_columns_and_parameters_that_are_not_clear_are_asked_for(
    tmp_path: Path, names: list[str], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv(names, [tuple(range(len(names)))]))
    with pytest.raises((DataError, ParameterError), match=message):
        read_interactions(path, **options)


@pytest.mark.parametrize("option", [{"separator": ","}, {"columns": ["user", "item"]}])
@pytest.mark.parametrize("form", ["json", "polars"])
def test_separator_and_columns_are_refused_where_there_are_types(
    folder: Path, form: str, option: dict[str, Any]
) -> None:
    with pytest.raises(ParameterError, match=f"{next(iter(option))} must be left out for"):
        read_interactions(FORMATS[form](folder, ["user", "item"], [(1, 2)]), **option)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.dat", b"1::10::5::978300760\n1:: 20::3::978302109\r\n2::10::4::978301968\n\n"),
        ("u.data", b"1\t10\t5\t978300760\n1\t20\t3\t978302109\n2\t10\t4\t978301968\n"),
    ],
)
def test_movielens_files_without_header_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    columns = ["user", "item", "rating", "timestamp"]
    data = read_interactions(tmp_path / name, columns=columns, binary=False)
    assert data.times is not None
    assert data.times.tolist() == [978300760000000, 978302109000000, 978301968000000]
    data = read_interactions(tmp_path / name, columns=columns, binary=False, time=False)
    assert_is(data, {(1, 10): 5.0, (1, 20): 3.0, (2, 10): 4.0})


@pytest.mark.parametrize(("packed", "end"), [(bytes, "\n"), (gzip.compress, "\r\n")])
@pytest.mark.parametrize("empty", ["", ",", '"",""'])
def test_rows_without_content_are_passed_over_and_keep_their_number(
    tmp_path: Path, packed: Callable[[bytes], bytes], end: str, empty: str
) -> None:
    path = tmp_path / ("t.csv" if packed is bytes else "t.csv.gz")
    path.write_bytes(packed(end.join(["user,item", "1,a", empty, "1,b", "2,b", empty, ""]).encode()))
    assert_is(read_interactions(path), {(1, "a"): 1.0, (1, "b"): 1.0, (2, "b"): 1.0})
    path.write_bytes(packed(end.join(["user,item", "1,a", empty, ",b", ""]).encode()))
    with pytest.raises(DataError, match="row 3: no user id"):
        read_interactions(path)


def test_blank_lines_of_json_are_passed_over_and_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"user": 1, "item": 2}\n\n{"user": 1, "item": 3}\n  \n\n')
    assert_is(read_interactions(path), {(1, 2): 1.0, (1, 3): 1.0})
    path.write_text('{"user": 1, "item": 2}\n\n{"user": 1\n\n')
    with pytest.raises(DataError, match="row 3: not valid JSON"):
        read_interactions(path)


def test_streams_are_read_and_leave_nothing_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {(1, "a"): 1.0, (2, "b"): 1.0}
    before = len([*Path("/proc/self/fd").iterdir()])
    name: Any
    for form, name in {"csv": "csv", "tsv": "tsv", "csv.gz": "csv", "json": "jsonl", "parquet": "parquet",
                       "arrow": "arrow", "arrow stream": "arrow"}.items():  # fmt: skip
        content = Path(str(FORMATS[form](folder, ["user", "item"], [(1, "a"), (2, "b")]))).read_bytes()
        assert_is(read_interactions(io.BytesIO(content), input_format=name), expected)
    text = io.StringIO("user,item\n1,a\n2,b\n")
    with pytest.raises(DataError, match="the stream: cannot tell the format from the name"):
        read_interactions(text)
    assert_is(read_interactions(text, input_format="csv"), expected)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"user,item\n1,a\n2,b\n")))
    assert_is(read_interactions("-", input_format="csv"), expected)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        read_interactions("-", input_format="csv")
    with Path(str(FORMATS["csv"](folder, ["user", "item"], [(1, "a"), (2, "b")]))).open() as file:
        assert_is(read_interactions(file), expected)
    reader, writer = os.pipe()
    os.write(writer, b"user,item\n1,a\n2,\n")
    os.close(writer)
    with pytest.raises(DataError, match=f"/dev/fd/{reader}, row 2: no item id"):
        read_interactions(f"/dev/fd/{reader}", input_format="csv")
    os.close(reader)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


# ── titles ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "pandas"])
def test_titles_are_read_and_the_order_of_rows_does_not_matter(folder: Path, form: str) -> None:
    rows = [(1, 30, 'c, the "third"'), (1, 10, None), (2, 20, "b"), (2, 10, "a\n"), (3, 20, "ä")]
    rows.append((3, 40, None))
    expected = {(user, item): 1.0 for user, item, _ in rows}
    for some in (rows, rows[::-1]):
        source = FORMATS[form](folder, ["user", "item", "name"], some)
        with patch.object(batches, "BATCH_ROWS", 2):
            assert_is(read_interactions(source, title="name"), expected, ["a\n", "b", 'c, the "third"', ""])
            assert read_interactions(source).titles is None


@pytest.mark.parametrize("items_form", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [[7, 2**63 + 1, 11], ["7", "007", "ü"]])
def test_table_of_items_gives_their_titles(tmp_path: Path, items_form: str, ids: list[Any]) -> None:
    unused = 99 if isinstance(ids[0], int) else "99"
    rows = [(ids[1], "second"), (unused, "unused"), (ids[0], "first"), (ids[2], "")]
    table = FORMATS[items_form](tmp_path, ["id", "title"], rows)
    used = to_polars(["user", "item", "title"], [(1, x, "own") for x in ids])
    data = read_interactions(used, items=table)
    titles = dict(zip(data.items, data.titles or [], strict=True))
    assert titles == {ids[0]: "first", ids[1]: "second", ids[2]: ""}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"item": [8], "title": ["x"]}, "names none of the items that were used"),
        (
            {"item": [7]},
            "the polars frame has no column beside 'item'",
        ),
        ({"what": [7], "title": ["x"]}, "which column holds the items"),
        ({"item": [7.5], "title": ["x"]}, "the polars frame, row 1: item id not a whole number, 7.5"),
        ({"item": [7], "title": [[1]]}, "titles must be text; column 'title' is List"),
    ],
)
def test_table_of_items_that_does_not_fit_is_refused(items: dict[str, Any], message: str) -> None:
    used = pl.DataFrame({"user": [1], "item": [7]})
    with pytest.raises(DataError, match=message):
        read_interactions(used, items=pl.DataFrame(items))
    with pytest.raises(ParameterError, match="title must be a column of the polars frame"):
        read_interactions(used, items=pl.DataFrame(items), title="t")


def test_bad_row_in_a_table_of_items_is_refused_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("id,title\n7,Hello, World\n,nothing\n7,Hello\n")
    used = pl.DataFrame({"user": [1, None], "item": [7, 7]})
    with pytest.raises(DataError, match=r"items\.csv, row 1: more than 2 fields"):
        read_interactions(used[:1], items=path)
    data = read_interactions(used, items=path, on_bad="skip")
    assert list(data.titles or []) == ["Hello"]
    assert data.skipped == {"no user id": 1, "items: more than 2 fields": 1, "items: no item id": 1}


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────


def test_polars_is_not_given_the_name_of_an_unfinished_file(tmp_path: Path) -> None:
    """A thread of polars that opens it by name after an interrupt would create it again."""
    model = Popularity().fit(pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1]}))
    sink = pl.LazyFrame.sink_parquet
    with patch.object(pl.LazyFrame, "sink_parquet", autospec=True, side_effect=sink) as noted:
        model.recommend_to(tmp_path / "all.parquet", k=1, exclude_seen=False)
    assert len(pl.read_parquet(tmp_path / "all.parquet")) == 2
    assert hasattr(noted.call_args.args[1], "fileno")


def test_users_of_a_file_are_read_as_the_type_of_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user,rating\n7,x\n8,\n7,1\n")
    assert read_users(path, Ids.of([7], "user")) == [7, 8, 7]
    assert read_users(path, Ids.of(["7"], "user")) == ["7", "8", "7"]
    path.write_text("user\n7.0\n8\n")
    assert read_users(path, Ids.of(["7"], "user")) == ["7.0", "8"]
    with pytest.warns(MrfrecWarning, match=FLOATS):
        assert read_users(path, Ids.of([7], "user")) == [7, 8]
    path.write_text("user\nseven\n")
    with pytest.raises(DataError, match="user ids are integers here; got 'seven'"):
        read_users(path, Ids.of([7], "user"))
    path.write_text('user,x\n7,1\n"",1\n')
    with pytest.raises(DataError, match=r"users\.csv, row 2: no user id"):
        read_users(path, Ids.of([7], "user"))


AFTER_A_FORK = """
import os, signal, sys
import mrfrec

(sys.argv[1:] == ["before"]) and mrfrec.read_interactions("a.csv")
child = os.fork()
if child == 0:
    signal.alarm(30)  # instead of hanging for ever
    try:
        mrfrec.read_interactions("a.csv")
    except mrfrec.DataError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "code"), [("before", 3), ("after", 0)])
def test_reading_in_a_fork_of_a_process_that_has_read_is_refused(
    tmp_path: Path, argument: str, code: int
) -> None:
    (tmp_path / "a.csv").write_text("user,item\n1,2\n3,4\n")
    command = [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK, argument]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{code}\n"


def test_names_for_columns_that_the_first_line_has_already_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("user,item\n1,2\n1,3\n")
    with pytest.raises(ParameterError, match=r"columns must be left out for .*first line has these names"):
        read_interactions(path, columns=["user", "item"])
    assert read_interactions(path).n_items == 2
