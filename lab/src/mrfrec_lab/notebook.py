"""Compare mrfrec with the notebook that was published with the paper, from a copy of your own.

    python -m mrfrec_lab.notebook mrf_for_cf_NeurIPS_2019.ipynb debian
    python -m mrfrec_lab.notebook mrf_for_cf_NeurIPS_2019.ipynb anime/interactions.parquet --heldout 500

The notebook is that of github.com/hasteck/MRF_NeurIPS_2019. Its functions are executed from the file, so name
one that you trust. They run as they are; with what departs from the paper (docs/explanation/method.md,
"The author's notebook") replaced; and with ties broken as mrfrec breaks them, in float64, on which r > 0
depends. With --heldout, the data are the training users of a split.
"""

import argparse
import ast
import contextlib
import io
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from mrfrec import MRF, datasets, read_interactions
from mrfrec.evaluation import strong_generalisation

ALPHA, MAX_NEIGHBORS = 0.75, 1000
# What of the notebook is needed. Everything else, such as reading files, is left out.
NAMES = ("MyClock", "myClock", "XtX", "dense_solution", "calculate_sparsity_pattern",
         "sparse_parameter_estimation", "sparse_solution")  # fmt: skip
# What is replaced in the cells: departures from the paper by its rules, then choices that it leaves open by
# those of mrfrec.
DEPARTURES = {
    "max(1,int(np.ceil(len(nn)*rr)))": "1+int(np.rint(rr*(len(nn)-1)))",
    "nn=nn[kk]": "nn=np.concatenate(([ii],nn[kk][nn[kk]!=ii]))",
}
CHOICES = {
    "dtype = np.float32)": "dtype = np.float64)",
    "np.argsort(AAcountInColumns+ np.diag(XtX) /2.0/ np.max(np.diag(XtX))   )[::-1]": (
        "np.lexsort((np.arange(len(mu)), -mu, -AAcountInColumns))"
    ),
    "np.argsort(np.abs(vals))[::-1]": "np.lexsort(((nn-ii)%len(mu), -np.abs(vals)))",
}
VARIANTS = {"as it is": {}, "D as in the paper": DEPARTURES, "and ties as here": DEPARTURES | CHOICES}


class Fitted(NamedTuple):
    """Weights B (items × items) and the seconds they took."""

    weights: "sp.csr_array"
    seconds: float

    @property
    def empty(self) -> int:
        """Number of items whose column has no weight."""
        return int((np.bincount(self.weights.indices, minlength=self.weights.shape[1]) == 0).sum())


def cells_needed(notebook: Path, replaced: Mapping[str, str]) -> list[str]:
    """Return the cells that define what is needed, in their order, with some code replaced."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    missing, needed = set(NAMES), []
    for source in sources:
        defined = _defined(source) & missing
        if defined:
            needed.append(source)
            missing -= defined
    if missing:
        raise SystemExit(f"{notebook} defines no {', '.join(sorted(missing))}: is it the published notebook?")
    for old, new in replaced.items():
        if not any(old in source for source in needed):
            raise SystemExit(f"{notebook} has no {old!r}: is it the published notebook?")
        needed = [source.replace(old, new) for source in needed]
    return needed


def _defined(source: str) -> set[str]:
    """Return the names that a cell defines outside of functions."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # Python 2, or a magic command
        return set()
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


class Notebook:
    """The functions of the notebook, with the covariances of a matrix of users × items."""

    def __init__(self, path: Path, X: "sp.csr_array", replaced: Mapping[str, str]) -> None:
        bottleneck = SimpleNamespace(argpartition=np.argpartition)
        self._names: dict[str, Any] = {
            "np": np, "sparse": sp, "bn": bottleneck, "time": time, "deepcopy": deepcopy, "alpha": ALPHA,
            "train_data": sp.csr_matrix(X, dtype=np.float64),
        }  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            for source in cells_needed(path, replaced):
                exec(source, self._names)

    def threshold(self, sparsity: float) -> float:
        """Return a threshold that keeps about this share of the covariances.

        It is in the widest gap nearby, so that rounding decides on no pair.
        """
        sizes = np.abs(self._names["XtX"]).ravel()
        least, most = (max(round(share * sparsity * sizes.size), 2) for share in (0.98, 1.02))
        near = np.sort(np.partition(sizes, -most)[-most:])[: most - least + 2]
        widest = int(np.argmax(near[1:] / near[:-1]))
        return float(near[widest : widest + 2].mean())

    def share_above(self, threshold: float) -> float:
        """Return the share of the covariances above a threshold, with the diagonal."""
        above = np.abs(self._names["XtX"]) > threshold
        np.fill_diagonal(above, True)
        return float(above.mean())

    def sparse(self, threshold: float, r: float, l2: float) -> Fitted:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scipy, about the speed of what the notebook does
            B = self._names["sparse_solution"](r, threshold, MAX_NEIGHBORS, l2)
        return self._rescaled(B, start)

    def dense(self, l2: float) -> Fitted:
        start = time.perf_counter()
        XtX = self._names["XtX"].copy()
        XtX[self._names["ii_diag"]] = self._names["XtXdiag"] + l2
        return self._rescaled(self._names["dense_solution"](XtX), start)

    def _rescaled(self, B: Any, start: float) -> Fitted:
        scaling, rescaling = (sp.diags_array(self._names[name]) for name in ("scaling", "rescaling"))
        weights = sp.csr_array(scaling @ sp.csr_array(B) @ rescaling)
        weights.eliminate_zeros()
        return Fitted(weights, time.perf_counter() - start)


def ours(X: "sp.csr_array", l2: float, **parameters: Any) -> Fitted:
    start = time.perf_counter()
    model = MRF.paper(l2=l2, alpha=ALPHA, max_neighbors=MAX_NEIGHBORS, **parameters).fit(X)
    return Fitted(sp.csr_array(model.weights_), time.perf_counter() - start)


def compare(
    path: Path, X: "sp.csr_array", sparsities: Sequence[float], rs: Sequence[float], l2: float
) -> str:
    """Return a table of both models at some settings."""
    head = ["model", "notebook", "largest difference", "empty columns", "mrfrec", "seconds", "mrfrec"]
    rows = [head, ["---"] * len(head)]
    for what, replaced in VARIANTS.items():
        notebook = Notebook(path, X, replaced)
        for sparsity in sparsities:
            threshold = notebook.threshold(sparsity)
            for r in rs:
                mine = ours(X, l2, sparsity=notebook.share_above(threshold), r=r)
                rows.append(
                    [f"{sparsity:.1%}, r = {r:g}", what, *_cells(notebook.sparse(threshold, r, l2), mine)]
                )
        if not replaced:  # what is replaced is in the sparse model
            rows.append(["dense", what, *_cells(notebook.dense(l2), ours(X, l2, sparsity=None))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(notebook: Fitted, mine: Fitted) -> list[str]:
    difference = abs(notebook.weights - mine.weights).max()
    seconds = [f"{each.seconds:.1f}" for each in (notebook, mine)]
    return [f"{difference:.0e}", f"{notebook.empty:,}", f"{mine.empty:,}", *seconds]


def matrix(data: str, heldout: int) -> "sp.csr_array":
    """Read users × items, without items that all users have: the notebook divides by their variance, 0."""
    events = datasets.load(data) if data == "debian" else read_interactions(data, time=False)
    split = strong_generalisation(events, heldout) if heldout else None
    X = events.matrix if split is None else split.training.matrix
    users = np.bincount(X.indices, minlength=X.shape[1])
    return sp.csr_array(X[:, np.flatnonzero((users > 0) & (users < X.shape[0]))])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("data", help="debian, or a table that mrfrec fit reads")
    parser.add_argument("--heldout", type=int, default=0, help="users held out for validation, and for test")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.001, 0.005])
    parser.add_argument("--r", type=float, nargs="+", default=[0.0, 0.1, 0.5])
    parser.add_argument("--l2", type=float, default=1.0)
    asked = parser.parse_args(arguments)
    X = matrix(asked.data, asked.heldout)
    print(f"{X.shape[0]:,} users × {X.shape[1]:,} items\n")
    print(compare(asked.notebook, X, asked.sparsity, asked.r, asked.l2))


if __name__ == "__main__":
    main()
