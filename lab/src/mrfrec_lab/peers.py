"""Measure other libraries beside mrfrec: same split, same metrics, same machine, as many trials for each.

    python -m mrfrec_lab.peers ../data anime                  # everything not measured yet, then the page
    python -m mrfrec_lab.peers ../data anime --only mrfrec    # this library again, then the page

Each library is installed into an environment of its own in lab/cache/environments, and each trial is
a process in it (peer_models.py), which is stopped after a time limit. Trials are drawn from the
grids below with a fixed seed and compared on the validation questions; the best is measured on the test
questions. Trials are cached in lab/cache/peers, so that an interrupted run can be continued. SANSA
needs SuiteSparse (Debian: libsuitesparse-dev).
"""

import argparse
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from mrfrec import datasets, read_interactions
from mrfrec.evaluation import Metric, Split, given, paired, strong_generalisation
from mrfrec_lab.lists import mean_of
from mrfrec_lab.peer_trials import (
    Row,
    best_of,
    cached_trial,
    measure_row,
    parameters_text,
    value_text,
    write_split,
)
from mrfrec_lab.places import CACHE, RESULTS, seconds_text

TRIALS = 10
_RIDGES = (10.0, 30.0, 60.0, 100.0, 200.0, 350.0, 600.0, 1000.0, 2000.0, 5000.0)
_DENSITIES = (0.0003, 0.001, 0.003, 0.01)
REVISED = (
    "These grids were revised after first runs, that of item-kNN on Gowalla, in its favour, after a weak "
    "result on the test pairs, the others by validation on MovieTweetings: item-kNN, ALS, "
    "SANSA and MRF, tuned, had up to 20 more trials there, with values no longer listed."
)
ROWS = (
    Row("mrfrec", "Popularity", {"kind": "Popularity"}),
    Row(
        "mrfrec", "item-kNN", {"kind": "ItemKNN", "user_weight": 0.5},
        {"neighbors": [50, 100, 200], "shrink": [0.0, 10.0], "normalize": [False, True]},
    ),
    Row(
        "mrfrec", "WMF", {"kind": "WMF", "iterations": 10},
        {"factors": [64, 128, 256], "weight": [2.0, 10.0, 50.0], "l2": [3.0, 10.0, 30.0, 100.0]},
    ),
    Row(
        "mrfrec", "SLIM", {"kind": "SLIM"},
        {"l1": [0.1, 0.5, 1.0, 3.0], "l2": [10.0, 30.0, 100.0, 300.0, 1000.0]},
    ),
    Row(
        "mrfrec", "fsSLIM", {"kind": "FsSLIM", "neighbors": 200},
        {"l1": [0.1, 0.5, 1.0, 3.0], "l2": [10.0, 30.0, 100.0, 300.0, 1000.0]},
    ),
    Row("mrfrec", "EASE", {"kind": "EASE", "sparsity": None}, {"l2": _RIDGES}),
    Row("mrfrec", "MRF()", {"kind": "MRF"}),
    Row(
        "mrfrec", "MRF, tuned", {"kind": "MRF", "measure": False},
        {
            "l2_times": [0.7, 1.0, 1.4, 2.0], "alpha": [0.4, 0.5], "user_weight": [0.25, 0.4],
            "novelty": [0.0, 0.1, 0.15, 0.2], "rank": ["auto", 512], "rank_weight": [0.1, 0.3, 0.6],
        },
        defaults=True,
    ),
    Row(
        "sansa", "SANSA (CHOLMOD)", {"factorizer": "CHOLMOD"},
        {"l2": [10.0, 30.0, 100.0, 300.0, 1000.0], "density": _DENSITIES},
    ),
    Row(
        "sansa", "SANSA (ICF)", {"factorizer": "ICF"},
        {"l2": [1.0, 3.0, 10.0, 30.0, 100.0], "density": _DENSITIES},
    ),
    Row(
        "implicit", "ALS", {"iterations": 10},
        {
            "factors": [64, 128, 256], "alpha": [2.0, 10.0, 50.0],
            "regularization": [3.0, 10.0, 30.0, 100.0],
        },
    ),
    Row(
        "implicit", "BM25", {},
        {"K": [20, 50, 100, 200, 500], "K1": [0.3, 1.2, 10.0, 100.0], "B": [0.0, 0.25, 0.5, 0.75]},
    ),
    Row(
        "lenskit", "ALS", {"epochs": 10},
        {
            "embedding_size": [64, 128, 256], "weight": [2.0, 10.0, 50.0],
            "regularization": [3.0, 10.0, 30.0, 100.0],
        },
    ),
    Row(
        "lenskit", "item-kNN", {},
        {"max_nbrs": [10, 20, 50, 100, 200, 500], "min_sim": [1e-6, 0.01, 0.03]},
    ),
    Row(
        "lenskit", "SLIM", {},
        {"l1_reg": [0.1, 0.5, 1.0, 3.0], "l2_reg": [10.0, 30.0, 100.0, 300.0, 1000.0]},
    ),
    Row("irspack", "EASE", {}, {"reg": _RIDGES}),
    Row(
        "irspack", "SLIM", {},
        {"alpha": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1], "l1_ratio": [0.001, 0.01, 0.1]},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Data:
    """A data set, how it is split and measured, and models that are left out with the reason."""

    title: str
    about: str
    split: Callable[[Path], Split]
    metrics: tuple[str, ...]  # the first is tuned
    closing: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


_HELD_OUT = "Strong generalisation: {0:,} users are held out for validation and {0:,} for test."


def _strong(title: str, folder: str, heldout: int, closing: str = "") -> Data:
    def split(data: Path) -> Split:
        events = read_interactions(data / folder / "interactions.parquet", time=False)
        return strong_generalisation(events, heldout)

    return Data(title, _HELD_OUT.format(heldout), split, ("ndcg@100", "recall@20"), closing)


def _gowalla(data: Path) -> Split:
    folder = data / "gowalla-lightgcn"
    return given(*(read_interactions(folder / f"{part}.parquet") for part in ("train", "test")))


_TOO_LARGE = (
    "not tried: dense algebra takes 20 s of CPU time with MovieTweetings' 8,728 items, and would take an "
    "estimated 17 min on two cores with 40,981"
)
DATA = {
    "debian": Data(
        "Debian packages, the data set in mrfrec",
        _HELD_OUT.format(300),
        lambda _: strong_generalisation(datasets.load("debian"), 300),
        ("ndcg@100", "recall@20"),
    ),
    "movietweetings": _strong(
        "MovieTweetings, 100,000 ratings",
        "movietweetings-100k",
        500,
        "LensKit's ALS takes two minutes with 256 factors, and had 4 of its 10 trials: three as drawn, and "
        "the one that was best of all 10 on 2026-11-16, with the same version and split. Then and now the "
        "accuracy of all models is the same, but for those of MRF and the SLIM of irspack, whose two best "
        "trials differ by less than 0.0001 on the validation questions.",
    ),
    "anime": _strong(
        "Anime, 5,000 users",
        "anime-5k-users",
        500,
        "Where fewer than 10 trials were run, the one that was best of all 10 on 2026-11-16, with the same "
        "version and split, is among them; the others were not run again, to save time. Then and now the "
        "accuracy of all models is the same within 0.0005, but for those of MRF.",
    ),
    "mtg-players": _strong("Magic: The Gathering players", "mtg-players", 10_000),
    "gowalla": Data(
        "Gowalla, the split of NGCF and LightGCN",
        "All users are training users, and the rest of what they have is asked for. For validation, a tenth "
        "of each training history is hidden. Recall counts hits ÷ all targets.",
        _gowalla,
        ("ndcg@20", "recall_all@20"),
        "Other processes took part of the cores during the trials, so that one that took more than 10 min "
        "here may take less on free cores. The SLIM of irspack has no useful result: with alpha=0.1 it "
        "reaches 0.003 on the validation questions, and alpha=0.001 takes longer than the limit. From "
        "MovieTweetings, LensKit's ALS with 256 factors is estimated to take 14 min. On two free cores of "
        "another machine a fit of mrfrec's SLIM takes 3 min; with l1=0.5 it reached 0.1453 and 0.1763 there "
        "([table 1](table1-gowalla.md)).\n\n"
        "No trial of MRF, tuned, was better on the validation questions than its defaults. The best "
        "item-kNN of the grid has 100 neighbors, shrink=0 and normalize=True, and reaches 0.1220 and 0.1594. "
        "It is among the trials of table 1, but not among those drawn here.\n\n"
        "## EASE on a GPU\n\n"
        "With the l2 that is best on the validation questions, 60, EASE has nDCG@20 0.1462 ± 0.0010 and "
        "Recall@20 0.1760 ± 0.0012. It was fitted in 4.4 s on an NVIDIA H200 (float64), after as many trials "
        "as the others, by a script that tried l2 = 60, 2000, 30, 350 and 100. This command measures "
        "the best:\n\n```sh\nmrfrec evaluate $DATA/gowalla-lightgcn/train.parquet --test "
        "$DATA/gowalla-lightgcn/test.parquet --metrics ndcg@20,recall_all@20 "
        "--model 'EASE: l2=60, sparsity=dense, dtype=float64' --device cuda\n```\n\n"
        "Others have [published results](published.md) for this split.",
        {
            "EASE (mrfrec)": f"{_TOO_LARGE}; see below for EASE on a GPU",
            "EASE (irspack)": _TOO_LARGE,
            "SANSA (CHOLMOD) (sansa)": "not tried: the exact factor is expected to fill in, and to take as "
            "long as dense algebra",
        },
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure other libraries beside mrfrec.")
    parser.add_argument("data", type=Path, help="folder with one folder per data set")
    parser.add_argument("name", choices=DATA)
    libraries = list(dict.fromkeys(row.library for row in ROWS))
    parser.add_argument(
        "--only", action="append", choices=libraries, help="measure this library again; may be repeated"
    )
    parser.add_argument(
        "--trials", type=int, default=TRIALS, help=f"points tried per model (default {TRIALS})"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of a trial (default 10)")
    asked = parser.parse_args(arguments)
    folder = CACHE / "peers" / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    for library in asked.only or ():
        shutil.rmtree(folder / library, ignore_errors=True)
    if not (folder / "test-targets.npz").exists():
        write_split(DATA[asked.name].split(asked.data), folder)
    for row in ROWS:
        if row.library in (asked.only or libraries) and row.name not in DATA[asked.name].left_out:
            measure_row(row, folder, DATA[asked.name].metrics, asked.trials, asked.minutes)
    text = page(asked.name, folder, asked.trials, asked.minutes)
    (RESULTS / f"peers-{asked.name}.md").write_text(text, encoding="utf-8")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def page(name: str, folder: Path, trials: int, minutes: float) -> str:
    """Assemble the page from the cached trials: what was measured, best first, and what was not."""
    data = DATA[name]
    kinds = [metric.split("@") for metric in data.metrics]
    first, *_ = wanted = [Metric(kind, int(places)) for kind, places in kinds]
    rows, missing = [], [f"- {model}: {reason}." for model, reason in data.left_out.items()]
    for row in ROWS:
        points = [cached_trial(row, point, "validation", folder) for point in row.points(trials)]
        tried = [found for found in points if found is not None]
        best = best_of(tried, str(first))
        test = None if best is None else cached_trial(row, best["parameters"], "test", folder)
        reasons = sorted({found["failure"] for found in [*tried, test or {}] if "failure" in found})
        failed = sum("failure" in found for found in tried)
        remarks = [f"{failed} of {len(tried)} trials failed: {'; '.join(reasons)}"] if failed else []
        if 0 < len(tried) < len(points):
            remarks.append(f"{len(tried)} of {len(points)} trials were run")
        if test is not None and "failure" not in test:
            rows.append((row, test, remarks))
        elif row.name not in data.left_out:
            missing.append(f"- {row.name}: {'; '.join(remarks or reasons) or 'not measured yet'}.")
    rows.sort(key=lambda found: -float(np.mean(found[1]["values"][str(first)])))
    own = next((test for row, test, *_ in rows if row.model == "MRF, tuned"), None)
    head = ["model", "library", *(metric.title for metric in wanted), f"{first.title} − MRF, tuned", "fit",
            "CPU", "memory", "file", "parameters"]  # fmt: skip
    table = [head, ["---"] * len(head)]
    for row, test, remarks in rows:
        values = {metric: np.array(test["values"][metric]) for metric in data.metrics}
        difference = "–" if own is None or test is own else str(
            paired(values[str(first)], np.array(own["values"][str(first)]))
        )  # fmt: skip
        table.append(
            [
                row.model, f"{row.library} {test['version']}",
                *(str(mean_of(values[metric])) for metric in data.metrics), difference,
                seconds_text(test["seconds"]), seconds_text(test["cpu_seconds"]), _size(test["peak_bytes"]),
                _size(test["file_bytes"]),
                "; ".join([parameters_text(row, test["parameters"]) or _unchanged(row), *remarks]),
            ]
        )  # fmt: skip
    shape = sp.load_npz(folder / "test-training.npz").shape
    users = sp.load_npz(folder / "test-shown.npz").shape[0]
    parts = [
        f"# {data.title}: other libraries beside mrfrec",
        f"{shape[0]:,} training users × {shape[1]:,} items. {data.about}",
        f"Mean over {users:,} test users ± standard error; differences user by user. Each model was tuned on "
        f"the validation questions with {trials} trials of at most {minutes:g} min. Popularity has no "
        "parameters. MRF() is not tuned: it measures its parameters on held-out users of the training data, "
        "in the time given. MRF, tuned, measures nothing: its first trial has the start values of MRF(), "
        "which were chosen on validation data of five data sets, this one among them "
        "([defaults](defaults.md)); l2_times multiplies the start value of l2.",
        _table(table),
        "Fit: wall-clock time from the matrix in memory to the model, imports and compiling excluded. CPU: "
        "the sum over threads. Memory: the most that the process used until the model was fitted, with "
        "Python, the library and the data. File: as the library saves the model, or its weights as "
        "uncompressed arrays; – where it is saved by pickling only.",
        "Of items with equal scores, mrfrec recommends the more popular first and implicit has an order of "
        "its own; those of the other libraries come at random.",
    ]
    if missing:
        parts += ["Not in the table:", "\n".join(missing)]
    if rows:
        load = max(test["load"] for _, test, *_ in rows)
        parts.append(
            f"The load average before these fits was up to {load:.1f}. Unless that is far below the number "
            "of cores, other processes took part of them, and wall-clock times are too long."
        )
    parts += [data.closing] if data.closing else []
    tried_text = [["model", "tried"], ["---"] * 2]
    for row in ROWS:
        axes = "; ".join(
            f"{name} in {', '.join(map(value_text, values))}" for name, values in row.grid.items()
        )
        tried_text.append([row.name, axes or "–"])
    option = f" --trials {trials}" if trials != TRIALS else ""
    parts += ["## Grids", _table(tried_text), REVISED]
    parts.append(f"```sh\npython -m mrfrec_lab.peers $DATA {name}{option}\n```")
    if rows:
        parts.append(f"*{max(test['date'] for _, test, *_ in rows)}, {rows[0][1]['machine']}*")
    return "\n\n".join(parts) + "\n"


def _unchanged(row: Row) -> str:
    return "start values" if row.defaults else "defaults"


def _size(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    main()
