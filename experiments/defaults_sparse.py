"""Try the defaults of the sparse `MRF`, and of the intercept, one parameter at a time.

    python -m experiments.defaults_sparse ../data debian        # one data set: results/defaults-sparse.csv
    python -m experiments.defaults_sparse ../data gowalla test  # one part of it

Every candidate differs from the default in one parameter, and is compared with it user by user on validation
and test users. Where both are asked of the same model (strong generalisation) it is fitted once; on Gowalla,
once without the hidden pairs of validation and once with them. `experiments.defaults` makes the page.
"""

import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peers import DATA
from experiments.run import RESULTS
from mrfrec import MRF
from mrfrec.evaluation import metrics, splits
from mrfrec.evaluation.protocol import measure
from mrfrec.evaluation.splits import Questions, Split
from mrfrec.io.tables import read_events

FILE = RESULTS / "defaults-sparse.csv"
FIELDS = ("data", "part", "kind", "parameter", "setting", "ndcg", "difference", "error")
USERS = 2000  # asked, at most
SMALL = 0.01  # the sparsity where the default would be dense
SPARSE: dict[str, tuple[Any, ...]] = {  # those that need no new weights first
    "novelty": (0.0, 0.05, 0.15, 0.2),
    "rank_weight": (0.1, 0.2, 0.6, 1.0),
    "rank": (0, 64, 128, 512),
    "l2": (0.25, 0.5, 2.0, 4.0),  # times the automatic one
    "user_weight": (0.0, 0.5),
    "sparsity": (0.25, 0.5, 2.0),  # times the default
}
LARGE = ("gowalla", "book-crossing")  # sparse by default
DENSE: dict[str, tuple[Any, ...]] = {
    "mean_constraint": (True,),
    "offset": (False,),
    "center": (False,),
}


def split_of(name: str, data: Path) -> Split:
    if name != "book-crossing":
        return DATA[name].split(data)
    events = read_events(data / name / "interactions.parquet")
    return splits.strong_generalisation(events, USERS, min_users=5)


def candidates(name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, parameter and setting; the default first, without a parameter."""
    dense = {} if name in LARGE else {"dense": DENSE}
    for kind, axes in {"sparse": SPARSE, **dense}.items():
        yield kind, "", ""
        for parameter, settings in axes.items():
            for setting in settings:
                yield kind, parameter, setting


def sweep(name: str, data: Path, only: str) -> list[tuple[Any, ...]]:
    """Return a line for each part and candidate; `only` a part, where parts have models of their own."""
    split = split_of(name, data)
    metric = "ndcg@20" if name == "gowalla" else "ndcg@100"
    tuned = split.for_tuning()
    if split.validation is not None:
        runs = [(tuned, {"validation": tuned.test, "test": split.test})]
    else:
        runs = [(tuned, {"validation": tuned.test}), (split, {"test": split.test})]
    lines: list[tuple[Any, ...]] = []
    for each, questions in runs:
        if only and only not in questions:
            continue
        reuse: dict[str, Any] = {}
        asked = {part: some(q) for part, q in questions.items()}
        defaults: dict[str, Any] = {}
        sparsity = 200 / each.training.n_items if name in LARGE else SMALL
        ridge = 0.0
        for kind, parameter, setting in candidates(name):
            start = time.perf_counter()
            parameters: dict[str, Any] = {"sparsity": sparsity if kind == "sparse" else None}
            if parameter:
                factor = {"l2": ridge, "sparsity": sparsity}.get(parameter)
                parameters[parameter] = setting if factor is None else factor * setting
            model = MRF(**parameters).fit(each.training, reuse=reuse)
            for part, some_questions in asked.items():
                values = measure(model, some_questions, metric).per_user(metric)
                if not parameter:
                    ridge, defaults[part] = float(model.plan_.l2), values
                found = metrics.paired(values, defaults[part])
                numbers = (
                    round(float(np.mean(values)), 5),
                    round(found.difference, 5),
                    round(found.error, 5),
                )
                lines.append((name, part, kind, parameter, setting, *numbers))
                print(*lines[-1], f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return lines


def some(questions: Questions) -> Questions:
    """Return the questions of evenly spaced users."""
    rows = np.unique(np.linspace(0, len(questions) - 1, min(USERS, len(questions))).astype(np.int64))
    return Questions(questions.users.subset(rows), questions.shown[rows], questions.targets[rows])


def tables() -> str:
    """Return a table of the sparse and one of the dense candidates: differences from the default."""
    found: dict[tuple[str, ...], tuple[float, float, float]] = {}
    with FILE.open(newline="") as file:
        for row in list(csv.reader(file))[1:]:
            found[tuple(row[:5])] = float(row[5]), float(row[6]), float(row[7])
    text = []
    for kind, axes in (("sparse", SPARSE), ("dense", DENSE)):
        names = sorted({key[0] for key in found if key[2] == kind})
        text += [f"| {kind} | " + " | ".join(names) + " | mean |", "|---|" + "---|" * (len(names) + 1)]
        rows = [("", ""), *((axis, str(setting)) for axis, settings in axes.items() for setting in settings)]
        for parameter, setting in rows:
            cells, shares = [], []
            for name in names:
                cell = []
                for part in ("validation", "test"):
                    ndcg, difference, error = found[name, part, kind, parameter, setting]
                    whole = found[name, part, kind, "", ""][0]
                    cell.append(f"{difference / whole:+.1%}" if parameter else f"{ndcg:.4f}")
                    if parameter and part == "validation":
                        shares.append(difference / whole)
                        cell[0] += f" ± {error / whole:.1%}"
                cells.append(f"{cell[0]} ({cell[1]})")
            times = "× " if parameter in ("l2", "sparsity") else ""
            label = f"{parameter} {times}{setting}" if parameter else "the default"
            text.append(
                f"| {label} | {' | '.join(cells)} | " + (f"{np.mean(shares):+.2%} |" if shares else "|")
            )
        text.append("")
    return "\n".join(text)


def main(data: Path, name: str, only: str = "") -> None:
    lines = sweep(name, data, only)
    new = {line[:2] for line in lines}
    if FILE.exists():
        with FILE.open(newline="") as file:
            lines = [*(tuple(row) for row in list(csv.reader(file))[1:] if tuple(row[:2]) not in new), *lines]
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([FIELDS, *sorted(lines, key=lambda row: str(row[0]))])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
