"""Accuracy against training time over levels of sparsity and r: the paper's Table 2 for any data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mrfrec.checks import check_flag, check_number
from mrfrec.core.engine import Progress
from mrfrec.core.plan import round_up
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Metric, parse_all
from mrfrec.evaluation.protocol import Evaluation, Ties, fit_and_measure, of_model
from mrfrec.evaluation.splits import Split
from mrfrec.models.mrf import MRF

AS_PUBLISHED: dict[str, Any] = {
    "dense": {"l2": 3.0}, "sparse": {"l2": 1.0, "max_neighbors": 1000}, "ties": "index"
}  # fmt: skip
"""The arguments of `tradeoff` with which its models are those of the paper's Table 2, on MSD."""


@dataclass(frozen=True)
class TradeoffPoint:
    """The results of one model; the model itself is not kept."""

    evaluation: Evaluation
    sparsity: float | None  # requested share of entries; None for the dense model
    r: float | None
    share: float  # of the m² entries that are stored, diagonal included
    blocks: int | None  # number of systems solved
    bytes: int  # size of the weights

    @property
    def name(self) -> str:
        """A name such as "0.5 %, r = 0.1"."""
        return self.evaluation.model

    @property
    def seconds(self) -> float:
        """Training time, from scratch."""
        return self.evaluation.seconds["training"]


@dataclass(frozen=True)
class Tradeoff:
    """The dense model, if any, then the sparse ones: sparsity descending, r ascending."""

    points: tuple[TradeoffPoint, ...]
    notes: tuple[str, ...] = ()  # models that did not fit in memory, and why

    @property
    def dense(self) -> TradeoffPoint | None:
        """Return the dense model, or None if it was left out or did not fit in memory."""
        return next((point for point in self.points if point.sparsity is None), None)


def tradeoff(
    split: Split,
    sparsities: Iterable[float],
    rs: Iterable[float] = (0.0, 0.1, 0.5),
    *,
    dense: Mapping[str, Any] | None = None,
    sparse: Mapping[str, Any] | None = None,
    with_dense: bool = True,
    metrics: Iterable[str | Metric] | str = DEFAULTS,
    ties: Ties = "popularity",
    progress: Progress | None = None,
) -> Tradeoff:
    """Fit and measure the paper's MRF, sparse for each sparsity and each r, and dense for comparison.

    Each model is fitted from scratch, so that its training time is meaningful, and dropped once measured. A
    model that does not fit in memory is noted and skipped.

    Parameters
    ----------
    sparsities
        Shares of the m² entries to keep, such as 0.005.
    rs
        Values of `r`: 0 is the most accurate, 1 the fastest.
    dense, sparse
        Further parameters of the dense model and of the sparse ones, such as {"l2": 6.0}.
    """
    least = 1 / split.training.n_items
    rule = f"at least 1/items, {round_up(least):g} for this data (the diagonal is always kept), and at most 1"
    # 1e-9: a share typed as 0.333333333 counts as 1/3.
    levels = _levels("sparsities", sparsities, rule, lambda x: (1 - 1e-9) * least <= x <= 1)[::-1]
    shares = _levels("rs", rs, "between 0 and 1", lambda x: 0 <= x <= 1)
    wanted = [str(metric) for metric in parse_all(metrics, split.training.n_items)]
    # Build all models before fitting the first, so that a wrong parameter shows at once.
    models = {"dense": _model("dense", dense, sparsity=None)} if check_flag("with_dense", with_dense) else {}
    for sparsity in levels:
        for r in shares:
            name = f"{100 * sparsity:g} %, r = {r:g}"
            models[name] = _model("sparse", sparse, sparsity=sparsity, r=r)

    points: list[TradeoffPoint] = []
    notes: list[str] = []
    refusal: MemoryPlanError | None = None
    total = len(models)
    for number, name in enumerate(list(models), 1):
        model = models.pop(name)  # frees the model before the next one is fitted
        try:
            report = of_model(progress, name, number, total)
            evaluation = fit_and_measure(model, split, wanted, name=name, ties=ties, progress=report)
        except MemoryPlanError as error:
            notes.append(f"{name}: {error}")
            refusal = error.with_traceback(None)  # the traceback would keep the fit's arrays alive
            continue
        B, share = model.weights_, share_kept(model)
        if model.is_sparse:
            size, level = B.data.nbytes + B.indices.nbytes + B.indptr.nbytes, model.parameters["sparsity"]
            points.append(TradeoffPoint(evaluation, level, model.r, share, model.n_blocks_, size))
        else:
            points.append(TradeoffPoint(evaluation, None, None, share, None, B.nbytes))
    if not points and refusal is not None:
        raise refusal
    return Tradeoff(tuple(points), tuple(notes))


def share_kept(model: MRF) -> float:
    """Return the share of the m² entries that a fitted model stores, the diagonal included."""
    m = len(model.items_)
    return (model.weights_.nnz + m) / m**2 if model.is_sparse else 1.0


def _levels(name: str, values: Iterable[float], rule: str, holds: Callable[[float], bool]) -> list[float]:
    levels = sorted({check_number(name, value, rule, holds) for value in values})
    if not levels:
        raise ParameterError(name, "at least one number", levels)
    return levels


def _model(name: str, parameters: Mapping[str, Any] | None, **varied: Any) -> MRF:
    given = dict(parameters or {})
    if not given.keys() <= MRF.defaults().keys() - {"sparsity", "threshold", "r"}:
        raise ParameterError(name, "parameters of MRF other than sparsity, threshold and r", given)
    return MRF.paper(**given, **varied)
