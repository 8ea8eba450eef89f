"""The guard of a nightly job: what is wrong with new data or a new model, in words and numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.evaluation.metrics import Mean
from mrfrec.models.registry import load
from mrfrec.nightly.job import Guard


class LastModel(NamedTuple):
    """What is known of the model that is published now."""

    size: dict[str, int]
    items: Ids
    popularity: npt.NDArray[np.int64]

    @classmethod
    def open(cls, path: Path) -> "LastModel | None":
        """Read a model file; None if there is none yet."""
        if not path.exists():
            return None
        model = load(path)
        size = {name: int(model._training_facts[name]) for name in ("users", "items", "pairs")}
        return cls(size, model.items_, np.array(model.popularity_))


def drift(before: LastModel, data: Interactions) -> float:
    """Return the share of the interactions that have moved to other items: ½ Σ |p − q|.

    p and q are the shares of each item before and now. Near 1 if the ids of items are no longer the same.
    """
    q = data.popularity / max(data.popularity.sum(), 1)
    p = before.popularity / max(before.popularity.sum(), 1)
    if data.items.is_text == before.items.is_text:
        place = data.items.find(list(before.items), "item")
    else:  # numbers became texts, or the other way round: 7 and "7" are the same
        places = {str(item): place for place, item in enumerate(data.items)}
        place = np.array([places.get(str(item), -1) for item in before.items])
    both = place >= 0
    shared = np.minimum(p[both], q[place[both]]).sum()
    return round(float(1 - shared), 6)


def data_faults(
    guard: Guard, before: Mapping[str, Any] | None, size: Mapping[str, int], moved: float | None
) -> list[str]:
    """Return what is wrong with new data, compared with the published run."""
    faults = []
    known = before or {}
    for name, was in ((name, known[name]) for name in size if name in known):
        lost = 1 - size[name] / was
        if lost > guard.max_shrink:
            faults.append(
                f"{size[name]:,} {name} are {lost:.1%} fewer than {was:,} (max_shrink = {guard.max_shrink:g})"
            )
    if moved is not None and moved > guard.max_drift:
        faults.append(
            f"{moved:.1%} of the interactions have moved to other items (max_drift = {guard.max_drift:g})"
        )
    return faults


def metric_faults(guard: Guard, before: Mapping[str, Any] | None, metric: str, found: Mean) -> list[str]:
    """Return what is wrong with the metric, compared with the published run."""
    faults = []
    if before is not None and before["metric"] == metric and before["value"] > 0:
        drop = 1 - found.mean / before["value"]
        if drop > guard.max_drop:
            faults.append(
                f"{metric} {found} is {drop:.1%} below {before['value']:.4f} (max_drop = {guard.max_drop:g})"
            )
    if found.mean < guard.min_metric:
        faults.append(f"{metric} {found} is below min_metric = {guard.min_metric:g}")
    return faults
