"""Evaluate models: split data, rank held-out items, compute metrics, compare models, tune parameters.

from mrfrec import MRF, evaluation

events = evaluation.read_events("ratings.csv", min_value=4)
split = evaluation.strong_generalisation(events, heldout=1000)
best = evaluation.climb(split, minutes=10).best
evaluation.evaluate(MRF(**best.parameters), split)
"""

from mrfrec.evaluation.grids import grid, ridges, usual_points
from mrfrec.evaluation.metrics import Mean, Metric, Paired, paired
from mrfrec.evaluation.others import evaluate_lists, write_split
from mrfrec.evaluation.protocol import (
    Comparison,
    Evaluation,
    compare,
    evaluate,
    evaluate_fitted,
    evaluate_new_items,
    evaluate_rules,
)
from mrfrec.evaluation.questions import Questions, Split
from mrfrec.evaluation.report import of_comparison as _  # noqa: F401 - registers what results show
from mrfrec.evaluation.splits import by_hash, given, leave_out, strong_generalisation
from mrfrec.evaluation.splits_by_time import at_time, last
from mrfrec.evaluation.study import Trial, Tuning
from mrfrec.evaluation.tuning import climb, tune
from mrfrec.io.lists import RecommendedLists, read_lists
from mrfrec.io.tables import read_events

__all__ = [
    "Comparison",
    "Evaluation",
    "Mean",
    "Metric",
    "Paired",
    "Questions",
    "RecommendedLists",
    "Split",
    "Trial",
    "Tuning",
    "at_time",
    "by_hash",
    "climb",
    "compare",
    "evaluate",
    "evaluate_fitted",
    "evaluate_lists",
    "evaluate_new_items",
    "evaluate_rules",
    "given",
    "grid",
    "last",
    "leave_out",
    "paired",
    "read_events",
    "read_lists",
    "ridges",
    "strong_generalisation",
    "tune",
    "usual_points",
    "write_split",
]
