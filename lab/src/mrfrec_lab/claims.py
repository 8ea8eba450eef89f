"""Test claims of the paper that its tables do not; docs/explanation/claims.md quotes the results.

    python -m mrfrec_lab.claims debian                 # the data set of the package
    python -m mrfrec_lab.claims anime-5k-users ../data  # a data set of the folder

Every model is tuned alike: five values of l2 on the validation users, the best one on the test users. The
page results/claims-NAME.md has the accuracies and the differences from the closed form, user by user.
"""

import argparse
import datetime
import time
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec import register
from mrfrec.evaluation import Comparison, Split, evaluate_fitted, ridges, tune
from mrfrec.fitted.linear import LinearWeights
from mrfrec.models import Linear
from mrfrec.models.mrf.field import GaussianField
from mrfrec.models.mrf.model import PAPER
from mrfrec.models.recommender import FitContext
from mrfrec.models.registry import build
from mrfrec_lab.measured import split_of
from mrfrec_lab.places import RESULTS, machine

METRICS = ("ndcg@100", "recall@20", "recall@50")
DENSE, SPARSE = PAPER | {"sparsity": None}, PAPER | {"sparsity": 0.005}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "closed form, α = 3/4": ("MRF", DENSE),
    **{f"closed form, α = {alpha:g}": ("MRF", DENSE | {"alpha": alpha}) for alpha in (0, 0.25, 0.5, 1)},
    "not centered, α = 0 (EASE)": ("EASE", {"sparsity": None}),
    "mean constraint, α = 3/4": ("MRF", DENSE | {"mean_constraint": True}),
    "diagonal free, not centered, α = 0": ("Unconstrained", {}),
    **{f"0.5 %, r = {r:g}, α = 3/4": ("MRF", SPARSE | {"r": r}) for r in (0.0, 0.1, 0.5)},
    "0.1 %, r = 0, α = 3/4": ("MRF", SPARSE | {"sparsity": 0.001}),
    "0.5 %, r = 0, α = 0": ("MRF", SPARSE | {"alpha": 0.0}),
}


@register
class Unconstrained(Linear):
    """Regress all items on all items, themselves included: (XᵀX + λ)⁻¹·XᵀX, without its diagonal.

    The diagonal that was learned is left out afterwards, since it adds to the items of a history alone.
    """

    def __init__(self, l2: float = 100.0) -> None:
        self.l2 = l2

    def _fit(self, data: Any, context: FitContext) -> LinearWeights:
        G = (data.matrix.T @ data.matrix).toarray().astype(np.float64)
        B = np.linalg.solve(G + self.l2 * np.eye(len(G)), G)
        np.fill_diagonal(B, 0.0)
        return self.learned(B.astype(np.float32))


def measured(split: Split) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    found = []
    for name, (kind, fixed) in MODELS.items():
        fixed = {parameter: value for parameter, value in fixed.items() if parameter != "l2"}
        values = ridges(split, fixed.get("alpha", PAPER["alpha"] if kind == "MRF" else 0.0))
        tuned = tune(split, [{"l2": l2} for l2 in values], model=kind, fixed=fixed, ties="index")
        model = build(kind, tuned.best.parameters)
        began = time.perf_counter()
        model.fit(split.training)
        seconds = time.perf_counter() - began
        found.append(evaluate_fitted(model, split.test, METRICS, name=name, ties="index"))
        l2 = tuned.best.parameters["l2"]
        inside = values[0] < l2 < values[-1]
        rows.append({"model": name, "l2": l2, "inside": inside, "seconds": seconds, **facts(model)})
        print(found[-1], rows[-1], flush=True)
    comparison = Comparison(tuple(found))
    for row, evaluation in zip(rows, found, strict=True):
        row["values"] = [str(evaluation.mean(metric)) for metric in METRICS]
        if evaluation is not found[0]:
            row["difference"] = str(comparison.paired(evaluation.model, METRICS[0]))
    return rows


def facts(model: Any) -> dict[str, Any]:
    """Return the number of blocks, and the share of columns with as many entries as are allowed."""
    if not isinstance(model, GaussianField) or model.pattern_ is None:
        return {}
    entries = np.diff(model.pattern_.indptr)
    return {"blocks": model.n_blocks_, "capped": float((entries >= model.max_neighbors).mean())}


def page(name: str, split: Split, rows: list[dict[str, Any]]) -> str:
    """Assemble the page."""
    titles = ["model", "nDCG@100", "Recall@20", "Recall@50", "difference in nDCG@100", "l2", "training"]
    titles += ["blocks", "columns with 1,000 entries"]
    table = [titles, ["---"] * len(titles)]
    for row in rows:
        edge = "" if row["inside"] else ", at the edge"
        blocks = [f"{row['blocks']:,}", f"{row['capped']:.1%}"] if "blocks" in row else ["–", "–"]
        told = [f"{row['l2']:g}{edge}", f"{row['seconds']:.1f} s", *blocks]
        table.append([row["model"], *row["values"], row.get("difference", ""), *told])
    size = f"{split.training.n_users:,} training users × {split.training.n_items:,} items"
    parts = [
        f"# Claims of the paper, tested on {name}",
        f"{split.name}; {size}. Each model has the best of five l2 on the validation users. ± is the "
        "standard error; differences are from the first row, user by user.",
        "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        f"```sh\npython -m mrfrec_lab.claims {name}{'' if name == 'debian' else ' $DATA'}\n```",
        f"*{datetime.date.today()}, {machine()}*",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    asked = parser.parse_args()
    split, _ = split_of(asked.data, asked.name)
    text = page(asked.name, split, measured(split))
    (RESULTS / f"claims-{asked.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
