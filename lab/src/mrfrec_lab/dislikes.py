"""Measure what dislikes are worth: are disliked items recommended less, and at what cost?

    python -m mrfrec_lab.dislikes ../data    # writes results/dislikes.md; two minutes

Anime ratings: 1 to 5 of 10 is a dislike; more, or watched without a rating, is a like. A fifth of the items
of 1,000 users who are not trained on is hidden: the likes among these are to be found, and the dislikes are
not. What a user is known to have watched is never recommended, whatever it counts.
"""

import argparse
import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec import MRF, Interactions, read_interactions
from mrfrec.evaluation import Questions, Split, paired, strong_generalisation
from mrfrec_lab.lists import mean_of, measure_lists, split_of
from mrfrec_lab.places import RESULTS, machine

LOWEST_LIKE, HELDOUT = 6, 1000
MEASURES = (
    ("liked", "ndcg@100"),
    ("liked", "recall_all@20"),
    ("disliked", "recall_all@20"),
    ("disliked", "recall_all@100"),
)
ROWS = (  # what a dislike counts in training, and when asked
    (1.0, 1.0), (1.0, 0.0), (1.0, -0.5), (1.0, -1.0), (0.0, 0.0), (0.0, -0.5), (0.0, -1.0), (-1.0, 0.0),
    (-1.0, -1.0),
)  # fmt: skip


def counting(X: sp.csr_array, dislike: float) -> sp.csr_array:
    """Return a matrix of 1 and −1 with another number for −1."""
    out = X.copy()  # `eliminate_zeros` works in place
    out.data = np.where(X.data < 0, dislike, 1.0).astype(np.float32)
    out.eliminate_zeros()
    return out


def values_of(
    model: MRF, X: sp.csr_array, asked: Questions, targets: dict[str, sp.csr_array], dislike: float
) -> list[Any]:
    """Return each measure, one number per user who has such a target."""
    scores = model.scores(counting(asked.shown, dislike))
    scores[asked.shown.nonzero()] = -np.inf
    # Of equal scores, the more popular item comes first.
    by_popularity = np.argsort(-model.popularity_, kind="stable")
    best = np.argsort(-scores[:, by_popularity], axis=1, kind="stable")[:, :100]
    lists = by_popularity[best].astype(np.int32)
    found = []
    for kind, name in MEASURES:
        some = np.diff(targets[kind].indptr) > 0
        found.append(measure_lists(lists[some], split_of(X, targets[kind][some]), [name])[name])
    return found


def of_values(data: Interactions, values: np.ndarray[Any, Any]) -> Interactions:
    """Return the same pairs with other values."""
    X = sp.csr_array((values, data.matrix.indices, data.matrix.indptr), shape=data.matrix.shape)
    return Interactions(X, data.users, data.items)


def splits_of(folder: Path) -> tuple[Split, dict[str, sp.csr_array], Questions]:
    data = read_interactions(folder / "anime-5k-users" / "interactions.parquet", binary=False, time=False)
    data = data.filtered(min_items=5)
    like = (data.matrix.data < 0) | (data.matrix.data >= LOWEST_LIKE)
    signs = np.where(like, 1, -1).astype(np.float32)
    # Only likes are targets: with all signs turned, the same pairs are hidden, and the dislikes are targets.
    split, turned = (strong_generalisation(of_values(data, x), HELDOUT) for x in (signs, -signs))
    everybody = strong_generalisation(of_values(data, abs(signs)), HELDOUT).test
    rows = {"liked": split.test, "disliked": turned.test}
    targets = {}
    shown = sp.lil_array(everybody.shown.shape, dtype=np.float32)
    for kind, asked in rows.items():
        place = everybody.users.find(list(asked.users), "user")
        pick = sp.csr_array(
            (np.ones(len(place)), (place, np.arange(len(place)))), shape=(len(everybody), len(place))
        )
        targets[kind] = sp.csr_array(pick @ asked.targets)
        shown[place] = asked.shown * (1 if kind == "liked" else -1)
    return split, targets, replace(everybody, shown=sp.csr_array(shown))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    split, targets, asked = splits_of(parser.parse_args().data)
    training = split.training
    models: dict[float, MRF] = {}
    found = {}
    for trained, asks in ROWS:
        if trained not in models:
            data = Interactions(counting(training.matrix, trained), training.users, training.items)
            models[trained] = MRF().fit(data)
        found[trained, asks] = values_of(models[trained], training.matrix, asked, targets, asks)
        print(trained, asks, *(mean_of(each) for each in found[trained, asks]), flush=True)
    first = found[ROWS[0]]
    lines = []
    for (trained, asks), values in found.items():
        cells = [f"{x:g}".replace("-", "−") if x else "left out" for x in (trained, asks)]
        for own, other in zip(values, first, strict=True):
            gain = paired(own, other)
            cells.append(
                f"{mean_of(own).mean:.4f}"
                + (f" ({gain.difference:+.4f} ± {gain.error:.4f})" if gain.difference else "")
            )
        lines.append(f"| {' | '.join(cells)} |")
    text = (__doc__ or "").split("\n\n")[2].strip()
    dislikes = int((training.matrix.data < 0).sum())
    head = "in training | asked | nDCG@100 of likes | Recall@20 of likes | dislikes in 20 | in 100"
    likes, hidden = int(targets["liked"].sum()), targets["disliked"]
    users = int((np.diff(hidden.indptr) > 0).sum())
    about = (
        f"{training.size}, of which {dislikes:,} are dislikes. {likes:,} hidden likes, and "
        f"{int(hidden.sum()):,} hidden dislikes of {users:,} users. The first two columns say what a dislike "
        "counts; the last two have the share of a user's hidden dislikes that is recommended, the less the "
        "better. In brackets the difference from the first row, user by user, with its standard error. The "
        "rows of one training are one `MRF()`, which measures its parameters."
    )
    table = "\n".join([f"| {head} |", "|---|---|---|---|---|---|", *lines])
    made = f"`python -m mrfrec_lab.dislikes DATA`, {datetime.date.today()}, {machine()}."
    page = ["# What dislikes are worth", text, about, table, made]
    (RESULTS / "dislikes.md").write_text("\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
