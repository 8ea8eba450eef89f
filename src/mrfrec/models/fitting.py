"""What every fit does before and after a model learns: read the data, check, and make the fitted state."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mrfrec.answers.people import validation_rows
from mrfrec.checks import counted
from mrfrec.core.engine import Progress
from mrfrec.core.rows import Rows
from mrfrec.data.interactions import Interactions
from mrfrec.data.item_table import ItemFeatures
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.measured import Measured
from mrfrec.fitted.state import FittedState, Learned
from mrfrec.io.features import read_item_features
from mrfrec.io.item_table import as_item_table
from mrfrec.io.tables import as_interactions


class FitContext(NamedTuple):
    """The arguments of a fit besides its data."""

    copied: int  # bytes of the matrix, unless the caller holds it
    progress: Progress | None
    reuse: dict[str, Any] | None
    validation: tuple[Rows, Rows] | None  # shown and hidden items of validation users
    measured: Measured | None = None  # values of an earlier fit, to keep


def read_data(data: object, times: object, items: object, item_features: object, kind: Any) -> Interactions:
    """Return the data of a fit, with its item table and features. `kind` is the class of the model."""
    interactions = as_interactions(data, times)
    table = interactions.table if items is None else as_item_table(items)
    if item_features is not None:
        interactions = with_features(interactions, item_features, kind)
    if table is not None:
        interactions = interactions.with_table(table)
    size = interactions.size
    if size.pairs == 0:
        raise DataError(
            f"the data must have at least one interaction; got {size.users} users × {size.items} items "
            "with none."
        )
    return interactions


def with_features(data: Interactions, item_features: object, kind: Any) -> Interactions:
    """Return the data with features of items; refuse them for a model that learns from none."""
    if not kind.uses_features:
        rule = f"None: {kind.__name__} learns from interactions alone"
        advice = "Use a model that learns from features, such as MRF."
        raise ParameterError("item_features", rule, type(item_features).__name__, advice)
    if not isinstance(item_features, ItemFeatures):
        item_features = read_item_features(item_features)
    return data.with_features(item_features)


def context_of(
    interactions: Interactions, given: object, reuse: object, validation: object, measured: object
) -> FitContext:
    """Check the other arguments of a fit. `given` is the data as the caller holds it."""
    if measured is not None and not isinstance(measured, Measured):
        raise ParameterError("measured", "the measured_ of a model, or None", measured)
    if not isinstance(reuse, dict | None):
        raise ParameterError("reuse", "a dict, which may be empty, or None", reuse)
    if reuse is not None and reuse.setdefault("data", interactions) is not interactions:
        raise DataError("reuse holds results of other data: pass the same Interactions to every fit.")
    matrix = interactions.matrix
    arrays = (matrix.data, matrix.indices, matrix.indptr, interactions.times)
    # The memory limit does not include what the caller already holds.
    is_held = isinstance(given, type(interactions))
    copied = 0 if is_held else sum(array.nbytes for array in arrays if array is not None)
    shown_and_hidden = None if validation is None else validation_rows(validation, interactions.size.items)
    return FitContext(copied, None, reuse, shown_and_hidden, measured)


def state_of(
    data: Interactions, learned: Learned, kind: str, parameters: Mapping[str, Any], start: float
) -> FittedState:
    """Return the fitted state of what a model has learned since the time `start`."""
    if (scored := len(learned.base_scores)) != data.size.items:
        rule = f"about the {counted(data.size.items, 'item')} of the data"
        raise ParameterError("what _fit returns", rule, counted(scored, "item"))
    if not learned.timings:
        learned = replace(learned, timings={"total": time.perf_counter() - start})
    return FittedState.of_data(data, learned, kind, parameters)
