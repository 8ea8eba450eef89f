"""Models of ids and titles that a page must escape or shorten."""

from pathlib import Path
from typing import Any

import polars as pl

from mrfrec import MRF, read_interactions

ODD = [
    "a/b?c=d&e#f",
    '"quotes" & <b>',
    "<script>alert(1)</script>",
    "🦊 emoji",
    "ünïcode",
    "100%",
    "a+b c",
    "../x",
]
TITLES = [
    "</title><script>alert(2)</script>",
    "it's",
    "",
    "日本語の題名はとても長いことがあります",
    "x" * 300,
    "=",
    "ok",
    "",
]


def fitted(items: list[Any], titles: list[str] | None, path: Path, model: Any = None) -> Path:
    """Fit a model of users who each have three items in a row, and save it."""
    rows = [
        (user, items[(user + step) % len(items)]) for user in range(40) for step in range(min(3, len(items)))
    ]
    table = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    if titles is not None:
        named = dict(zip(items, titles, strict=True))
        table = table.with_columns(title=pl.col("item").replace_strict(named))
    (model or MRF(threads=1)).fit(read_interactions(table)).save(path)
    return path
