"""Measure what times are worth: one cut for everybody, or the last item of each user hidden.

    python -m experiments.times ../data steam-100k amazon-beauty   # rows of each set, into cache/time.jsonl
    python -m experiments.times                                    # print the tables of results/time.md

Each model is fitted to the nine tenths of the events before a cut, and asked what people took after it.
People who come back and people in the middle of a visit are reported apart. *beauty-bert4rec* has an order
and no times: the last item of every user is hidden, and the models are tuned on the item before.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mrfrec import MRF
from mrfrec.evaluation import Evaluation, at_time, evaluate, last, paired, read_events
from mrfrec.models import EASE, ItemKNN, Popularity

ROWS = Path(__file__).parent / "cache" / "time.jsonl"
SEQUENCE = "beauty-bert4rec"
BLIND: dict[str, Any] = {"half_life": None, "order": 0.0, "recency": 1.0, "pause": None}
MODELS: dict[str, Any] = {
    "MRF, blind": lambda: MRF(**BLIND),
    "MRF()": MRF,
    "most popular": Popularity,
    "item-kNN": ItemKNN,
    "EASE": lambda: EASE(l2=200.0),
}
SEQUENCES: dict[str, dict[str, Any]] = {
    "MRF, blind": BLIND,
    "recency=0.5": {**BLIND, "recency": 0.5},
    **{
        f"order={order:g}, recency=0.5": {**BLIND, "order": order, "recency": 0.5}
        for order in (0.3, 1.0, 3.0)
    },
}


def row_of(name: str, model: str, found: Evaluation, blind: Evaluation, metric: str) -> dict[str, Any]:
    """Return what the tables show of one model."""
    groups: dict[str, Any] = {"all": None}
    groups |= dict.fromkeys(found.situations or {})
    values = {}
    for group in groups:
        some = {} if group == "all" else {"situation": group}
        own, other = (each.per_user(metric, **some) for each in (found, blind))
        gain = paired(own, other)
        mean, error = found.mean(metric, **some)
        base = float(np.mean(other))
        values[group] = [len(own), mean, error, gain.difference / base, gain.error / base]
    seconds = found.seconds["training"]
    return {"data": name, "model": model, "values": values, "seconds": seconds, "plan": found.facts["plan"]}


def keep(row: dict[str, Any]) -> None:
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def measure(folder: Path, name: str) -> None:
    """Append the rows of a data set with times."""
    split = at_time(read_events(folder / name / "interactions.parquet"), 0.1)
    blind: Evaluation | None = None
    for label, make in MODELS.items():
        found = evaluate(make(), split, ["ndcg@20"])
        blind = blind or found
        keep(row_of(name, label, found, blind, "ndcg@20"))


def sequences(folder: Path, tune: bool) -> None:
    """Append the rows of the data without times, whose rows are in order."""
    table = pl.read_parquet(folder / SEQUENCE / "interactions.parquet")
    order = pl.int_range(pl.len()).over("user")
    split = last(read_events(table.with_columns(timestamp=order * 86_400)))
    split = split.for_tuning() if tune else split
    blind: Evaluation | None = None
    for label, parameters in SEQUENCES.items():
        found = evaluate(MRF(**parameters, measure=False), split, ["ndcg@10"])
        blind = blind or found
        keep(row_of(f"{SEQUENCE}{', tuning' if tune else ''}", label, found, blind, "ndcg@10"))


def tables() -> str:
    """Return a table of all rows, the latest of each."""
    rows = {(row["data"], row["model"]): row for row in map(json.loads, ROWS.read_text().splitlines())}
    lines = [
        "| data | model | all | gain | come back | gain | in a visit | gain | training |",
        "|---" * 9 + "|",
    ]
    for (name, model), row in rows.items():
        cells = []
        for group in ("all", "return", "visit"):
            count, mean, error, gain, of_gain = row["values"].get(group, [0, 0.0, 0.0, 0.0, 0.0])
            shown = f"{mean:.4f} ± {error:.4f} ({count:,})" if count else ""
            cells += [shown, f"{gain:+.1%} ± {of_gain:.1%}" if count else ""]
        lines.append(f"| {name} | {model} | {' | '.join(cells)} | {row['seconds']:.0f} s |")
    plans = [f"- {name}: {row['plan']}" for (name, model), row in rows.items() if model == "MRF()"]
    return "\n".join([*lines, "", *plans])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tune", action="store_true", help="hide the item before the last")
    options = parser.parse_args()
    for name in options.names:
        if name == SEQUENCE:
            sequences(options.folder, options.tune)
        else:
            measure(options.folder, name)
    if not options.names:
        print(tables())


if __name__ == "__main__":
    main()
