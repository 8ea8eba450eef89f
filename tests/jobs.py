"""Nightly jobs: a shop of two tastes, its job, and what a run reports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

JOB = """
[source]
data = "events.csv"

[model]
sparsity = 0.2

[guard]
metric = "ndcg@5"
heldout = 0.2

[publish]
model = "shop.mrf"
keep = 2
"""
TABLES = """
[publish.recommendations]
to = "sqlite:///shop.db"
table = "recs"
k = 5

[publish.similar]
to = "similar.parquet"
k = 3
columns = { similar_to = "sku" }
"""
UPDATE = ('data = "events.csv"', 'data = "{date}.csv"\nmode = "update"\nbatch = "{date}"')


def events(users: int = 400, items: int = 40, seed: int = 0) -> pl.DataFrame:
    """Users like one half of the items or the other, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    likes = rng.integers(0, 2, users)
    rows = []
    for user in range(users):
        kept = rng.choice(items // 2, 8, replace=False) + likes[user] * (items // 2)
        rows += [(f"u{user}", f"i{item}", 1 + user % 5) for item in kept]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def report_of(folder: Path) -> list[dict[str, Any]]:
    runs = json.loads((folder / "shop.report.json").read_text())["runs"]
    assert isinstance(runs, list)
    return runs


def write_job(folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    text = JOB
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "job.toml").write_text(text + more)
    return folder / "job.toml"
