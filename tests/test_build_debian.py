"""The parts of tools/build_debian.py that read and shape the index; the download itself is not tested."""

import importlib.util
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


debian = _load(Path(__file__).parents[1] / "tools" / "build_debian.py")


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
    ],
)
def test_clauses_give_bare_names(relation: str, expected: list[str] | None) -> None:
    assert list(debian.names(relation)) == (relation.split(", ") if expected is None else expected)


@pytest.mark.parametrize(
    ("profiles", "counts"),
    [
        ("<!nocheck !nodoc>", True),
        ("<cross> <!nocheck>", True),
        ("<cross> <stage1>", False),
        ("<cross !nocheck>", False),
    ],
)
def test_clauses_count_where_they_hold_in_an_ordinary_build(profiles: str, counts: bool) -> None:
    assert list(debian.names(f"a (<< 2) {profiles}, b")) == ["a"] * counts + ["b"]


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
