"""The guard of a nightly job: find faults of new data or a new model, in words and numbers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.evaluation.metrics import Mean
from mrfrec.models.measured import Measured
from mrfrec.models.registry import load
from mrfrec.nightly.job import Guard

_SIZES = ("users", "items", "pairs")


class LastModel(NamedTuple):
    """Size, items and measured values of the model that is published now."""

    size: dict[str, int]
    items: Ids
    popularity: npt.NDArray[np.int64]
    measured: Measured | None = None
    run: str | None = None  # when the run began that published it

    @classmethod
    def open(cls, path: Path) -> "LastModel | None":
        """Read a model file; None if there is none yet."""
        if not path.exists():
            return None
        model = load(path)
        size = {name: getattr(model.data_size_, name) for name in _SIZES}
        return cls(
            size, model.items_, np.array(model.popularity_), model.measured_, model.notes_.get("started")
        )


def drift(before: LastModel, data: Interactions) -> dict[str, Any]:
    """Return the share of the interactions that moved to other items, and how many items are new and gone.

    The share is ½ Σ |p − q|, where p and q are the shares of each item before and now. It is near 1 if
    the ids of items are no longer the same.
    """
    q = data.popularity / max(data.popularity.sum(), 1)
    p = before.popularity / max(before.popularity.sum(), 1)
    places = {str(item): place for place, item in enumerate(data.items)}  # 7 and "7" are the same
    place = np.array([places.get(str(item), -1) for item in before.items])
    both = place >= 0
    moved = round(float(1 - np.minimum(p[both], q[place[both]]).sum()), 6)
    kept = int(both.sum())
    return {"drift": moved, "new_items": data.n_items - kept, "gone_items": len(place) - kept}


def limits(
    guard: Guard, recent: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the least and the largest value that `data_faults` and `metric_faults` allow; None: no limit."""
    found: dict[str, list[float | None]] = {}
    for name in _SIZES if recent else ():
        counts = [run[name] for run in recent]
        most = max(counts) * (1 + guard.max_growth)
        found[name] = [min(counts) * (1 - guard.max_shrink), most if math.isfinite(most) else None]
    last = before["value"] if before is not None and before.get("metric") == guard.metric else 0
    return {**found, "value": [max(guard.min_metric, last * (1 - guard.max_drop)) or None, None]}


def data_faults(
    guard: Guard, recent: Sequence[Mapping[str, Any]], size: Mapping[str, int], moved: float | None
) -> list[str]:
    """Return the faults of new data, compared with the runs published recently.

    Smaller data is compared with the smallest of these runs, larger data with the largest. So the night after
    an odd one that was published is not refused for being as usual.
    """
    faults = []
    for name in _SIZES if recent else ():
        least, most = min(run[name] for run in recent), max(run[name] for run in recent)
        count = f"{size[name]:,} {name}"
        lost, grown = 1 - size[name] / least, size[name] / most - 1
        if lost > guard.max_shrink:
            faults.append(f"{count} are {lost:.1%} fewer than {least:,} (max_shrink = {guard.max_shrink:g})")
        if grown > guard.max_growth:
            faults.append(f"{count} are {grown:.1%} more than {most:,} (max_growth = {guard.max_growth:g})")
    if moved is not None and moved > guard.max_drift:
        faults.append(
            f"{moved:.1%} of the interactions have moved to other items (max_drift = {guard.max_drift:g})"
        )
    return faults


def metric_faults(guard: Guard, before: Mapping[str, Any] | None, metric: str, found: Mean) -> list[str]:
    """Return the faults of the metric, compared with the published run."""
    faults = []
    if before is not None and before.get("metric") == metric and before["value"] > 0:
        drop = 1 - found.mean / before["value"]
        if drop > guard.max_drop:
            faults.append(
                f"{metric} {found} is {drop:.1%} below {before['value']:.4f} (max_drop = {guard.max_drop:g})"
            )
    if found.mean < guard.min_metric:
        faults.append(f"{metric} {found} is below min_metric = {guard.min_metric:g}")
    return faults
