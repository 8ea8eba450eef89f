"""Measure what variety costs: how accurate are lists whose items are unlike each other?

    python -m mrfrec_lab.variety ../data    # writes results/variety.md; a minute

Variety@10 is the mean of 1 − cosine of the items of a list, by who uses them. 400 users are not trained on.
"""

import argparse
import datetime
from pathlib import Path

from mrfrec import MRF, datasets, read_interactions
from mrfrec.evaluation import evaluate_rules, strong_generalisation
from mrfrec_lab.places import RESULTS, machine

VARIETIES, METRICS, USERS = (0.25, 0.5, 1.0), ("ndcg@10", "variety@10"), 400


def rows_of(name: str, folder: Path) -> list[str]:
    """Return the rows of a data set: without variety, and with more and more of it."""
    table = folder / f"{name}-5k-users" / "interactions.parquet"
    events = datasets.load(name) if name == "debian" else read_interactions(table, time=False)
    split = strong_generalisation(events, USERS, min_items=5)
    rows: list[str] = []
    for variety in VARIETIES:
        model = MRF(measure=False)
        found = evaluate_rules(model, split, {"variety": variety}, METRICS, name="MRF")
        for evaluation in found.evaluations[bool(rows) :]:
            is_varied = evaluation is found.evaluations[1]
            (accurate, error), (distance, _) = (evaluation.mean(metric) for metric in METRICS)
            change = found.paired("MRF, with rules", METRICS[0])
            cost = f"{change.difference:+.4f} ± {change.error:.4f}" if is_varied else "–"
            rows.append(
                f"| {name} | {variety if is_varied else 0} | {accurate:.4f} ± {error:.4f} | {cost} "
                f"| {distance:.4f} |"
            )
    return rows


def page(folder: Path) -> str:
    """Return the page of the results."""
    text = (__doc__ or "").split("\n\n")[2].strip() + " The model is `MRF(measure=False)`."
    rows = [row for name in ("anime", "debian") for row in rows_of(name, folder)]
    table = ["| data | `variety` | nDCG@10 | change | Variety@10 |", "|---|---|---|---|---|", *rows]
    made = f"`python -m mrfrec_lab.variety DATA`, {datetime.date.today()}, {machine()}."
    return "\n\n".join(["# What variety costs", text, "\n".join(table), made]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="with anime-5k-users/interactions.parquet")
    path = RESULTS / "variety.md"
    path.write_text(page(parser.parse_args().folder))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
