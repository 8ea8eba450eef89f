"""Compare dense and sparse `MRF` by the number of pairs per item: where is the default to be sparse?

    python -m mrfrec_lab.defaults_pairs ../data    # prints the table in results/defaults.md

Samples of users and items of real data change how many pairs an item has. Every row is one split by strong
generalisation, with nDCG@100 of its test users; the sparse models keep 100 and 200 neighbours per item.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mrfrec import MRF, Interactions, datasets, read_interactions
from mrfrec.evaluation import Evaluation, evaluate, paired, strong_generalisation
from mrfrec_lab.lists import some_pairs

METRIC = "ndcg@100"
HELDOUT = 0.09  # of the users, for validation and for test
SAMPLES: tuple[tuple[str, int | None, int | None, int], ...] = (  # data, items, users, least items of a user
    ("movietweetings-100k/interactions", None, None, 0),
    ("debian", None, 6500, 0),
    ("gowalla-lightgcn/train", 5000, None, 2),
    ("debian", None, 10_000, 0),
    ("yelp2018-lightgcn/train", 5000, None, 2),
    ("mtg-players/interactions", 5000, 6000, 2),
    ("debian", None, None, 0),
    ("anime-5k-users/interactions", 2000, None, 0),
    ("anime-5k-users/interactions", 3000, None, 0),
    ("anime-5k-users/interactions", None, None, 0),
    ("mtg-players/interactions", 5000, 12_000, 2),
    ("mtg-players/interactions", 5000, 25_000, 2),
)


def sampled(data: Interactions, items: int | None, users: int | None) -> Interactions:
    """Keep the pairs of some items and users, drawn at random."""
    random, keep = np.random.default_rng(1), np.ones(len(data), np.bool_)
    for count, column, n in (
        (items, data.matrix.indices, data.n_items), (users, data.matrix.tocoo().row, data.n_users)
    ):  # fmt: skip
        if count is not None:
            chosen = np.zeros(n, np.bool_)
            chosen[random.choice(n, count, replace=False)] = True
            keep &= chosen[column]
    return some_pairs(data, keep)


def rows(data: Path) -> Iterator[list[str]]:
    for name, items, users, least in SAMPLES:
        whole = (
            datasets.load(name)
            if name == "debian"
            else read_interactions(data / f"{name}.parquet", time=False)
        )
        some = sampled(whole, items, users).filtered(min_items=least)
        count = int((np.diff(some.matrix.indptr) > 0).sum())
        split = strong_generalisation(some, int(HELDOUT * count), min_items=0)
        X = split.training
        dense = evaluate(MRF(sparsity=None), split, METRIC)
        yield [
            name.partition("/")[0], f"{X.n_users:,} × {X.n_items:,}", f"{len(X) / X.n_items:.1f}",
            f"{dense.mean(METRIC).mean:.4f}",
            *(difference(evaluate(MRF(sparsity=k / X.n_items), split, METRIC), dense) for k in (100, 200)),
        ]  # fmt: skip


def difference(sparse: Evaluation, dense: Evaluation) -> str:
    found, mean = paired(sparse.per_user(METRIC), dense.per_user(METRIC)), dense.mean(METRIC).mean
    return f"{found.difference / mean:+.1%} ± {found.error / mean:.1%}"


if __name__ == "__main__":
    columns = ["data", "users × items", "pairs per item", "dense", "100 neighbours", "200 neighbours"]
    for row in (columns, ["---"] * len(columns), *rows(Path(sys.argv[1]))):
        print("| " + " | ".join(row) + " |", flush=True)
