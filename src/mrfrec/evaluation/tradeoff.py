"""Accuracy against training time, over levels of sparsity and r: Table 2 of the paper for any data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrfrec.checks import check_flag, check_number
from mrfrec.core.resources import Progress
from mrfrec.errors import MemoryPlanError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Mean, Metric, parse_all
from mrfrec.evaluation.protocol import Comparison, Evaluation, Ties, evaluate
from mrfrec.evaluation.splits import Split
from mrfrec.models.mrf import MRF

__all__ = ["Point", "Row", "Tradeoff", "tradeoff"]

_VARIED = ("sparsity", "threshold", "r")


@dataclass(frozen=True)
class Point:
    """One model of the trade-off, without the model itself."""

    evaluation: Evaluation
    sparsity: float | None  # the share of entries asked for; None for the dense model
    r: float | None
    share: float  # of the m² entries that the weights have, diagonal included
    blocks: int | None  # systems solved
    bytes: int  # of the weights

    @property
    def name(self) -> str:
        """Such as "0.5 %, r = 0.1"."""
        return self.evaluation.model

    @property
    def seconds(self) -> float:
        """Of training, from scratch."""
        return self.evaluation.seconds["training"]


class Row(NamedTuple):
    """A line of the table; what is held against the dense model is missing where there is none."""

    model: str
    means: dict[Metric, Mean]
    seconds: float
    speed_up: float | None
    of_dense: dict[Metric, float]  # the share of the dense model's accuracy


@dataclass(frozen=True)
class Tradeoff:
    """The dense model first, then the sparse ones: the denser first, r ascending."""

    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()  # models that did not fit in memory, and why

    @property
    def dense(self) -> Point | None:
        """The reference; None where it was left out, or did not fit."""
        return next((point for point in self.points if point.sparsity is None), None)

    @property
    def metrics(self) -> list[Metric]:
        """What was measured."""
        return list(self.points[0].evaluation.values)

    @property
    def comparison(self) -> Comparison:
        """The same models, to be compared user by user."""
        return Comparison(tuple(point.evaluation for point in self.points))

    def rows(self) -> list[Row]:
        """A table such as the paper's."""
        return [self._row(point) for point in self.points]

    def _row(self, point: Point) -> Row:
        means = {metric: point.evaluation.mean(metric) for metric in self.metrics}
        if self.dense is None:
            return Row(point.name, means, point.seconds, None, {})
        best = {metric: self.dense.evaluation.mean(metric).mean for metric in means if metric.is_accuracy}
        of_dense = {metric: means[metric].mean / value for metric, value in best.items() if value > 0}
        return Row(point.name, means, point.seconds, self.dense.seconds / point.seconds, of_dense)


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
    """Fit and measure a sparse model for each sparsity and each r, and the dense one for reference.

    `sparsities` are shares of the m² entries, such as 0.005; `dense` and `sparse` are further parameters of
    `MRF`, such as {"l2": 6.0}. Every model is fitted from scratch, since its time is what is asked for, and
    dropped once it is measured. One that does not fit in memory is noted and passed over.
    """
    least = 1 / split.training.n_items
    rule = f"at least 1/items = {least:.3g} for this data, since the diagonal is always kept, and at most 1"
    levels = _levels("sparsities", sparsities, rule, lambda x: (1 - 1e-9) * least <= x <= 1)[::-1]
    shares = _levels("rs", rs, "between 0 and 1", lambda x: 0 <= x <= 1)
    wanted = [str(metric) for metric in parse_all(metrics, split.training.n_items)]
    # All are built before the first is fitted: a parameter that breaks its rule shows at once.
    models = (
        [("dense", _model("dense", dense, sparsity=None))] if check_flag("with_dense", with_dense) else []
    )
    models += [
        (f"{100 * sparsity:g} %, r = {r:g}", _model("sparse", sparse, sparsity=sparsity, r=r))
        for sparsity in levels
        for r in shares
    ]

    points: list[Point] = []
    notes: list[str] = []
    refusal: MemoryPlanError | None = None
    total = len(models)
    for done in range(total):
        if progress is not None:
            progress("models", done, total)
        name, model = models.pop(0)  # the list must not keep it
        try:
            found = evaluate(model, split, wanted, name=name, ties=ties, progress=progress)
        except MemoryPlanError as error:
            notes.append(f"{name}: {error}")
            refusal = error.with_traceback(None)  # which would hold on to the fit's arrays
        else:
            points.append(_point(model, found))
    if progress is not None:
        progress("models", total, total)
    if not points and refusal is not None:
        raise refusal
    return Tradeoff(tuple(points), tuple(notes))


def _levels(name: str, values: Iterable[float], rule: str, holds: Callable[[float], bool]) -> list[float]:
    """In ascending order, each once."""
    given = [values] if isinstance(values, float | int) else list(values)
    levels = sorted(check_number(name, value, rule, holds) for value in given)
    if not levels or len(set(levels)) < len(levels):
        raise ParameterError(name, "at least one number, and none of them twice", given)
    return levels


def _model(name: str, parameters: Mapping[str, Any] | None, **varied: Any) -> MRF:
    given = dict(parameters or {})
    for parameter in given:
        if parameter in _VARIED:
            raise ParameterError(name, f"without {parameter}, which the trade-off itself sets", given)
        if parameter not in (MRF.__init__.__kwdefaults__ or {}):
            raise ParameterError(name, "parameters of MRF", given, f"It has no {parameter!r}.")
    return MRF(**given, **varied)


def _point(model: MRF, evaluation: Evaluation) -> Point:
    B, m = model.weights_, len(model.items_)
    if not model.is_sparse:
        return Point(evaluation, None, None, 1.0, None, B.nbytes)
    size = B.data.nbytes + B.indices.nbytes + B.indptr.nbytes
    sparsity = model.parameters["sparsity"]
    return Point(evaluation, sparsity, model.r, (B.nnz + m) / m**2, model.n_blocks_, size)
