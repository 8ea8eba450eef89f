"""Evaluate models: split data, rank held-out items, compute metrics, compare models, tune parameters.

from mrfrec import MRF, evaluation, read_interactions

data = read_interactions("ratings.csv", min_value=4)
split = evaluation.strong_generalisation(data, heldout=1000)
best = evaluation.tune(MRF(), split, trials=30).best
evaluation.evaluate(MRF(**best.parameters), split)
"""

from mrfrec.evaluation.metrics import Mean, Metric, Paired, paired
from mrfrec.evaluation.other_systems import evaluate_lists, write_split
from mrfrec.evaluation.protocol import (
    compare,
    evaluate,
    evaluate_fitted,
    evaluate_new_items,
    evaluate_rules,
)
from mrfrec.evaluation.questions import Folds, Questions, Split
from mrfrec.evaluation.results import Comparison, Evaluation
from mrfrec.evaluation.splits import at_time, by_hash, given, last, leave_out, strong_generalisation
from mrfrec.evaluation.tuning import Trial, Tuning, tune
from mrfrec.io.lists import RecommendedLists, read_lists

__all__ = [
    "Comparison",
    "Evaluation",
    "Folds",
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
    "compare",
    "evaluate",
    "evaluate_fitted",
    "evaluate_lists",
    "evaluate_new_items",
    "evaluate_rules",
    "given",
    "last",
    "leave_out",
    "paired",
    "read_lists",
    "strong_generalisation",
    "tune",
    "write_split",
]
