"""Measure what `MRF()` measures: its test metrics and times, with and without measuring, and over seeds.

    python -m mrfrec_lab.measured ../data anime debian    # a row for each, in cache/measured.jsonl
    python -m mrfrec_lab.measured ../data anime debian --seeds 20
    python -m mrfrec_lab.measured                         # print the tables of results/defaults.md

A seed is another name for every item, and so other users are held out. The test users are always the same.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec import MRF, Interactions, datasets, read_interactions
from mrfrec.evaluation import Evaluation, Split, evaluate, given, paired, strong_generalisation
from mrfrec_lab.places import CACHE

ROWS = CACHE / "measured.jsonl"
PUBLISHED = ("gowalla-lightgcn", "yelp2018-lightgcn")  # with a split of their own
HELDOUT = 0.1  # of the users, for validation and for test


def split_of(folder: Path, name: str) -> tuple[Split, list[str]]:
    """Return the split of a data set, and its metrics."""
    if name in PUBLISHED:
        training, test = (read_interactions(folder / name / f"{part}.parquet") for part in ("train", "test"))
        return given(training, test), ["ndcg@20", "recall_all@20"]
    table = folder / name / "interactions.parquet"  # without times: items are hidden at random
    events = datasets.load(name) if name == "debian" else read_interactions(table, time=False)
    users = int((np.diff(events.matrix.indptr) >= 5).sum())
    rare = {"min_users": 5} if name == "book-crossing" else {}
    heldout = min(int(HELDOUT * users), 10_000)
    return strong_generalisation(events, heldout, min_items=5, **rare), ["ndcg@100", "recall@20"]


def row_of(name: str, what: str, found: Evaluation, metrics: list[str], start: Evaluation) -> dict[str, Any]:
    first = paired(found.per_user(metrics[0]), start.per_user(metrics[0]))
    return {
        "data": name, "what": what,
        "training": f"{found.facts['users']:,} × {found.facts['items']:,}", "pairs": found.facts["pairs"],
        "metrics": {metric: list(found.mean(metric)) for metric in metrics},
        "gain": [first.difference, first.error], "seconds": found.seconds, "plan": found.facts["plan"],
    }  # fmt: skip


def renamed(split: Split, seed: int) -> Split:
    """Give all items other names, by which other users are held out."""
    X = split.training
    training = Interactions(X.matrix, X.users, [f"{item} {seed}" for item in X.items])
    return Split(training, split.test, None, split.name)


def measure(folder: Path, name: str, seeds: int) -> None:
    """Append the rows of a data set."""
    split, metrics = split_of(folder, name)
    ROWS.parent.mkdir(exist_ok=True)
    start = evaluate(MRF(measure=False), split, metrics)
    models = {"start": (start, split)} if not seeds else {}
    for seed in range(1, max(seeds, 1) + 1):
        of = renamed(split, seed) if seeds else split
        models[f"seed {seed}" if seeds else "measured"] = (evaluate(MRF(), of, metrics), of)
        with ROWS.open("a") as file:
            for what, (found, _) in models.items():
                file.write(json.dumps(row_of(name, what, found, metrics, start)) + "\n")
        models = {}


def tables() -> str:
    """Return tables of all rows, the latest of each."""
    rows = {(row["data"], row["what"]): row for row in map(json.loads, ROWS.read_text().splitlines())}
    lines = [
        "| data | users × items | | nDCG | gain | recall | training | of that, measuring |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, what), row in rows.items():
        if what.startswith("seed"):
            continue
        ndcg, recall = (f"{mean:.4f} ± {error:.4f}" for mean, error in row["metrics"].values())
        gain = "" if what == "start" else f"{row['gain'][0]:+.4f} ± {row['gain'][1]:.4f}"
        seconds = row["seconds"]
        took = f"{seconds['measure']:.1f} s" if "measure" in seconds else ""
        lines.append(
            f"| {name} | {row['training']} | {what} | {ndcg} | {gain} | {recall} | "
            f"{seconds['training']:.1f} s | {took} |"
        )
    plans = [f"- {name}: {row['plan']}" for (name, what), row in rows.items() if what == "measured"]
    spread: dict[str, list[float]] = defaultdict(list)
    for (name, what), row in rows.items():
        if what.startswith("seed"):
            spread[name].append(next(iter(row["metrics"].values()))[0])
    spreads = [
        f"| {name} | {len(found)} | {np.mean(found):.4f} | {np.std(found, ddof=1) / np.mean(found):.2%} | "
        f"{min(found):.4f} | {max(found):.4f} |"
        for name, found in spread.items()
    ]
    head = ["| data | seeds | mean nDCG | standard deviation | least | most |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, "", *plans, "", *head, *spreads])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    for name in options.names:
        measure(options.folder, name, options.seeds)
    if not options.names:
        print(tables())


if __name__ == "__main__":
    main()
