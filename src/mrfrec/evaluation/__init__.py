"""Measure how well models predict held-out interactions: splits, metrics, comparisons and tuning.

from mrfrec import MRF, evaluation

events = evaluation.read_events("ratings.csv", min_value=4)
split = evaluation.strong_generalisation(events, heldout=1000)
best = evaluation.tune(split, evaluation.grid(alpha=[0.5, 0.75], l2=[1.0, 3.0, 6.0, 10.0])).best
evaluation.evaluate(MRF(**best.parameters), split)
"""

from mrfrec.evaluation.grids import grid, ridges, usual_points
from mrfrec.evaluation.metrics import Mean, Metric, Paired, paired
from mrfrec.evaluation.protocol import Comparison, Evaluation, compare, evaluate, measure
from mrfrec.evaluation.side_checks import Exposure, exposure, low_rank
from mrfrec.evaluation.splits import (
    Questions,
    Split,
    by_time,
    filtered,
    given,
    leave_out,
    strong_generalisation,
)
from mrfrec.evaluation.tradeoff import Tradeoff, tradeoff
from mrfrec.evaluation.tuning import Trial, Tuning, search, tune
from mrfrec.io.tables import read_events
from mrfrec.models.axes import Range

__all__ = [
    "Comparison",
    "Evaluation",
    "Exposure",
    "Mean",
    "Metric",
    "Paired",
    "Questions",
    "Range",
    "Split",
    "Tradeoff",
    "Trial",
    "Tuning",
    "by_time",
    "compare",
    "evaluate",
    "exposure",
    "filtered",
    "given",
    "grid",
    "leave_out",
    "low_rank",
    "measure",
    "paired",
    "read_events",
    "ridges",
    "search",
    "strong_generalisation",
    "tradeoff",
    "tune",
    "usual_points",
]
