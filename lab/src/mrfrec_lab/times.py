"""Measure what times are worth: one cut for everybody, or the last item of each user hidden.

    python -m mrfrec_lab.times ../data steam-100k amazon-beauty   # rows of each set, in cache/time.jsonl
    python -m mrfrec_lab.times --cuts ../data steam-100k   # three successive cuts
    python -m mrfrec_lab.times   # print the tables of results/time.md

Each model is fitted to the nine tenths of the events before a cut, and asked what people took after it.
People who come back and people in the middle of a visit are reported apart. *beauty-bert4rec* has an order
and no times: the last item of every user is hidden, and the models are tuned on the item before.
`mrfrec_lab.times_peers` adds tuned models and other libraries.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mrfrec import MRF, Interactions, read_interactions
from mrfrec.evaluation import Split, at_time, evaluate, last, paired
from mrfrec.models import Popularity
from mrfrec_lab.lists import Numbers, mean_of, some_pairs
from mrfrec_lab.places import CACHE

ROWS = CACHE / "time.jsonl"
SEQUENCE = "beauty-bert4rec"
BLIND: dict[str, Any] = {"half_life": None, "order": 0.0, "recency": 1.0}
MODELS: dict[str, Any] = {"MRF, blind": lambda: MRF(**BLIND), "MRF()": MRF, "most popular": Popularity}
SEQUENCES: dict[str, dict[str, Any]] = {
    "MRF, blind": BLIND,
    "recency=0.5": {**BLIND, "recency": 0.5},
    **{
        f"order={order:g}, recency=0.5": {**BLIND, "order": order, "recency": 0.5}
        for order in (0.3, 1.0, 3.0)
    },
}
CUTS = (0.7, 0.8, 0.9)  # shares of the events before a cut; the next tenth is to be predicted
Row = dict[str, Any]


def metric_of(name: str) -> str:
    return "ndcg@10" if name == SEQUENCE else "ndcg@20"


def split_of(folder: Path, name: str) -> Split:
    """Return the cut of a data set or, without times, the split that hides the last items."""
    path = folder / name / "interactions.parquet"
    if name != SEQUENCE:
        return at_time(path, 0.1)
    order = pl.int_range(pl.len()).over("user")
    return last(pl.read_parquet(path).with_columns(timestamp=order * 86_400))


def cut_at(data: Interactions, share: float) -> Split:
    """Return the split that trains on a share of the events, and asks about the next tenth."""
    assert data.times is not None
    count = round((share + 0.1) * len(data))
    later = np.append(np.sort(data.times), np.iinfo(np.int64).max)[count]
    return at_time(some_pairs(data, data.times < later), 0.1 / (share + 0.1))


def keep(name: str, model: str, values: Numbers, split: Split, seconds: float, about: str) -> None:
    """Append a row, with one number per user."""
    situation = split.test.situation
    row = {
        "data": name, "model": model, "values": np.round(values, 6).tolist(),
        "visit": None if situation is None else (situation == "visit").astype(int).tolist(),
        "seconds": seconds, "about": about,
    }  # fmt: skip
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def measure(split: Split, name: str, metric: str, models: dict[str, Any]) -> None:
    for label, make in models.items():
        found = evaluate(make(), split, [metric])
        keep(name, label, found.per_user(metric), split, found.seconds["training"], found.facts["plan"])


def cuts(folder: Path, name: str) -> None:
    """Append the rows of three successive cuts of a data set with times."""
    data = read_interactions(folder / name / "interactions.parquet")
    for share in CUTS:
        models = {label: MODELS[label] for label in ("MRF, blind", "MRF()")}
        measure(cut_at(data, share), f"{name}, {share:.0%}", metric_of(name), models)


def sequences(folder: Path, tune: bool) -> None:
    """Append the rows of the data without times, whose rows are in order."""
    split = split_of(folder, SEQUENCE)
    name = f"{SEQUENCE}, tuning" if tune else SEQUENCE
    models = {
        label: lambda parameters=parameters: MRF(**parameters, measure=False)
        for label, parameters in SEQUENCES.items()
    }
    measure(split.for_tuning() if tune else split, name, metric_of(SEQUENCE), models)


def groups_of(row: Row) -> list[np.ndarray[Any, Any]]:
    """Return the places of all users, of those who come back, and of those in a visit."""
    everybody = np.ones(len(row["values"]), np.bool_)
    if row["visit"] is None:
        return [everybody]
    return [everybody, np.array(row["visit"]) == 0, np.array(row["visit"]) == 1]


def gain(row: Row, other: Row | None, users: np.ndarray[Any, Any]) -> str:
    """Return the paired gain over another row, as a share of what that has."""
    if other is None or other is row or users.sum() < 2:
        return ""
    own, base = (np.array(each["values"])[users] for each in (row, other))
    found = paired(own, base)
    return f"{found.difference / base.mean():+.1%} ± {found.error / base.mean():.1%}"


def table(rows: list[Row]) -> str:
    """Return a table of the rows of some data sets."""
    by_name = {(row["data"], row["model"]): row for row in rows}
    timed = any(row["visit"] for row in rows)
    head = ["data", "model", "all", "gain", *(("come back", "gain", "in a visit", "gain") if timed else ())]
    head += ["beside `MRF()`" if timed else "training"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        blind, ours = (by_name.get((row["data"], model)) for model in ("MRF, blind", "MRF()"))
        cells = []
        for users in groups_of(row):
            own = np.array(row["values"])[users]
            cells += [f"{mean_of(own)} ({len(own):,})" if len(own) else "", gain(row, blind, users)]
        cells.append(gain(row, ours, groups_of(row)[0]) if timed else f"{row['seconds']:.0f} s")
        lines.append([row["data"], row["model"], *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables() -> str:
    """Return the tables of all rows, the latest of each, and what was chosen."""
    rows = {(row["data"], row["model"]): row for row in map(json.loads, ROWS.read_text().splitlines())}
    kinds: dict[str, list[Row]] = {"cut": [], "cuts": [], "sequence": []}
    for name in dict.fromkeys(name for name, _ in rows):
        kind = "sequence" if name.startswith(SEQUENCE) else "cuts" if name.endswith("%") else "cut"
        kinds[kind] += [row for (of, _), row in rows.items() if of == name]
    chosen = [
        f"- {row['data']}, {row['model']}: {row['about']}"
        for row in rows.values()
        if row["about"] and not row["data"].startswith(SEQUENCE) and row["model"] != "MRF, blind"
    ]
    return "\n\n".join([*(table(each) for each in kinds.values() if each), "\n".join(chosen)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tune", action="store_true", help="hide the item before the last")
    parser.add_argument("--cuts", action="store_true", help="three cuts instead of the last one")
    options = parser.parse_args()
    for name in options.names:
        if name == SEQUENCE:
            sequences(options.folder, options.tune)
        elif options.cuts:
            cuts(options.folder, name)
        else:
            measure(split_of(options.folder, name), name, metric_of(name), MODELS)
    if not options.names:
        print(tables())


if __name__ == "__main__":
    main()
