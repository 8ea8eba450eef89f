"""Accuracy against training time over levels of sparsity and r: the paper's Table 2 for any data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mrfrec.checks import check_flag, check_number
from mrfrec.core.plan import round_up
from mrfrec.core.progress import Progress
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS
from mrfrec.evaluation.protocol import Comparison, Ties, evaluate_each
from mrfrec.evaluation.questions import Split
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender

AS_PUBLISHED: dict[str, Any] = {
    "dense": {"l2": 3.0}, "sparse": {"l2": 1.0, "max_neighbors": 1000}, "ties": "index"
}  # fmt: skip
"""The arguments of `tradeoff` with which its models are those of the paper's Table 2, on MSD."""


def tradeoff(
    split: Split,
    sparsities: Iterable[float] | None = None,
    rs: Iterable[float] = (0.0, 0.1, 0.5),
    *,
    dense: Mapping[str, Any] | None = None,
    sparse: Mapping[str, Any] | None = None,
    with_dense: bool = True,
    metrics: Iterable[str] | str = DEFAULTS,
    ties: Ties = "popularity",
    progress: Progress | None = None,
) -> Comparison:
    """Fit and evaluate the paper's MRF, sparse for each sparsity and each r, and dense for comparison.

    Each model is fitted from scratch, so that its training time is meaningful, and dropped once evaluated. A
    model that does not fit in memory is left out, and its error is among the `failures`.

    Returns the dense model, if any, then the sparse ones, by names such as "0.5 %, r = 0.1": sparsity
    descending, r ascending. Their `facts["weights"]` tells what they keep.

    Parameters
    ----------
    sparsities
        Shares of the m² entries to keep, such as 0.005. By default those of the paper's 0.001 and 0.005 that
        keep five entries a column; larger ones if there are too few items for either.
    rs
        Values of `r`: 0 is the most accurate, 1 the fastest.
    dense, sparse
        Further parameters of the dense model and of the sparse ones, such as {"l2": 6.0}.
    """
    m = split.training.n_items
    if sparsities is None:
        usual = [level for level in (0.001, 0.005) if level * m >= 5]
        sparsities = usual or [max(0.1, min(2 / m, 1.0)), max(0.3, min(3 / m, 1.0))]
    rule = f"at least 1/items, {round_up(1 / m):g} for this data (the diagonal is always kept), and at most 1"
    # 1e-9: a share typed as 0.333333333 counts as 1/3.
    sparsities = _ascending("sparsities", sparsities, rule, lambda x: (1 - 1e-9) / m <= x <= 1)[::-1]
    rs = _ascending("rs", rs, "between 0 and 1", lambda x: 0 <= x <= 1)
    # Build all models before fitting the first, so that a wrong parameter shows at once.
    models: dict[str, Recommender] = {}
    if check_flag("with_dense", with_dense):
        models["dense"] = _model("dense", dense, sparsity=None)
    for sparsity in sparsities:
        for r in rs:
            name = f"{100 * sparsity:g} %, r = {r:g}"
            models[name] = _model("sparse", sparse, sparsity=sparsity, r=r)
    comparison = evaluate_each(models, split, metrics, ties=ties, progress=progress, skip=(MemoryPlanError,))
    if not comparison:
        raise list(comparison.failures.values())[-1]
    return comparison


def _ascending(name: str, values: Iterable[float], rule: str, holds: Callable[[float], bool]) -> list[float]:
    """Return checked numbers, each once."""
    numbers = sorted({check_number(name, value, rule, holds) for value in values})
    if not numbers:
        raise ParameterError(name, "at least one number", numbers)
    return numbers


def _model(name: str, parameters: Mapping[str, Any] | None, **varied: Any) -> MRF:
    shared = dict(parameters or {})
    if not shared.keys() <= MRF.defaults().keys() - {"sparsity", "r"}:
        raise ParameterError(name, "parameters of MRF other than sparsity and r", shared)
    return MRF.paper(**shared, **varied)
