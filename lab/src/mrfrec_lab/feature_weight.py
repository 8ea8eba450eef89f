"""Measure what the users' part of the small systems of new items is worth.

    python -m mrfrec_lab.feature_weight    # writes results/feature-weight.md, on the data of the package

A tenth of the items of Debian is made new. In the system of a new item the features count 7; where they count
more, what is known of how people use the items like it counts less. The weights of alike items
are left out.
"""

import datetime
from unittest import mock

from mrfrec import MRF
from mrfrec.core import new_items
from mrfrec.evaluation import evaluate_new_items, paired, strong_generalisation
from mrfrec_lab.new_items import data_of
from mrfrec_lab.places import RESULTS, machine

WEIGHTS, SEEDS, USERS, METRIC = (7.0, 70.0, 700.0), (1, 2), 1000, "ndcg@20"


def rows_of(seed: int) -> list[str]:
    """Return the rows of a seed, one for each weight."""
    events, features = data_of("debian", None)
    split = strong_generalisation(events, USERS, min_items=5, seed=seed).with_features(features)
    rows, first = [], None
    for weight in WEIGHTS:
        with mock.patch.multiple(
            new_items, FEATURE_WEIGHT=weight, shares_of_alike=lambda nearest: 0 * nearest
        ):
            model = MRF(measure=False, rank=0)
            among_new, _ = evaluate_new_items(model, split, 0.1, METRIC, seed=seed)
        values, (mean, error) = among_new.per_user(METRIC), among_new.mean(METRIC)
        change = "–"
        if first is None:
            first = values
        else:
            gain = paired(values, first)
            change = f"{gain.difference:+.4f} ± {gain.error:.4f}"
        rows.append(f"| {seed} | {weight:g} | {mean:.4f} ± {error:.4f} | {change} |")
    return rows


def main() -> None:
    rows = [row for seed in SEEDS for row in rows_of(seed)]
    head = "| seed | weight of features | nDCG@20 among new items | change |\n|---|---|---|---|"
    text = (__doc__ or "").split("\n\n")[2].strip()
    made = f"`python -m mrfrec_lab.feature_weight`, {datetime.date.today()}, {machine()}."
    page = ["# What users say of new items", text, "\n".join([head, *rows]), made]
    path = RESULTS / "feature-weight.md"
    path.write_text("\n\n".join(page) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
