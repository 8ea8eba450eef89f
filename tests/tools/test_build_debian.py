"""The parts of tools/build_debian.py that read and shape the index; the download itself is not tested."""

import polars as pl
import pytest

from tools import build_debian as debian


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (" , ,\n", []),
        ("a | b | c, d|e", ["a", "d"]),
        ("a (>= 1:2.0~rc1-3+b1), b(<< 2), c (<< 3) <!nocheck>", ["a", "b", "c"]),
        ("a [amd64 !i386], b[linux-any], c (= 1) [any] <!nodoc>", ["a", "b", "c"]),
        ("a:any, b:native (>= 3), c:any<!nocheck>", ["a", "b", "c"]),
        ("libstdc++-12-dev, librust-syn-1+full-dev, 0ad, lua5.1", None),
        ("a\n(>=\n1)\n[any\nall]\n<!x\n!y>,\nb", ["a", "b"]),
        ("a <!nocheck !nodoc>, b <cross> <!nocheck>, c", ["a", "b", "c"]),
        ("a <cross> <stage1>, b <cross !nocheck>, c", ["c"]),
    ],
)
def test_clauses_of_an_ordinary_build_give_bare_names(relation: str, expected: list[str] | None) -> None:
    assert list(debian.names(relation)) == (relation.split(", ") if expected is None else expected)


def test_core_is_filtered_until_nothing_changes() -> None:
    """Without user 4, item d has one user left; without d, user 3 has one item; and so on to a square."""
    rows = ["1a", "1b", "2a", "2b", "3b", "3d", "4d"]
    pairs = pl.DataFrame([tuple(row) for row in rows], schema=["user", "item"], orient="row")
    assert ["".join(row) for row in debian.core(pairs, 2).rows()] == ["1a", "1b", "2a", "2b"]
    assert debian.core(pairs, 3).is_empty()


def test_table_is_sorted_joins_the_fields_and_titles_an_item_once() -> None:
    sources = [
        {"Package": "t", "Build-Depends": "old"},
        {"Package": "t", "Build-Depends": "b, a, b", "Build-Depends-Indep": "c", "Build-Conflicts": "no"},
        {"Package": "s", "Build-Depends-Arch": "b:any", "Build-Depends": "c | a"},
        {"Package": "none"},
    ]
    packages = [{"Package": "a", "Description": "A"}, {"Package": "b", "Description": "B"}]
    assert debian.table(sources, packages, least=1).rows() == [
        ("s", "b", "B"),
        ("s", "c", None),
        ("t", "a", "A"),
        ("t", "b", None),
        ("t", "c", None),
    ]


def test_the_file_in_the_package_is_what_the_script_builds() -> None:
    data = pl.read_parquet(debian.OUTPUT)
    pairs = data.select("user", "item")
    assert data.schema == {"user": pl.String, "item": pl.String, "title": pl.String}
    assert pairs.equals(pairs.unique().sort("user", "item"))
    assert debian.core(pairs, debian.LEAST).height == pairs.height
    assert data.filter(pl.col("title").is_not_null())["item"].is_unique().all()
    assert debian.OUTPUT.stat().st_size < 1_000_000
