"""Compare new data and a new model with those that are published: faults that the guard refuses, samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mrfrec.answers.columns import rows_of
from mrfrec.data.catalogue import name_with_id, shortened
from mrfrec.data.heldout import hashed
from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MrfrecError
from mrfrec.evaluation.metrics import Mean
from mrfrec.models.recommender import Recommender
from mrfrec.nightly.job import Guard

SIZES = ("users", "items", "pairs")
_ASKED, _FIRST = 1_000, 10  # users, and recommendations of each, that are compared
_SHOWN, _LONGEST = 5, 80  # items of a history, and recommended items; characters of a title


def drift(before: Recommender, data: Interactions) -> dict[str, Any]:
    """Return the share of the interactions that moved to other items, and how many items are new and gone.

    The share is ½ Σ |p − q|, where p and q are the shares of each item before and now. It is near 1 if
    the ids of items are no longer the same.
    """
    q = data.popularity / max(data.popularity.sum(), 1)
    p = before.popularity_ / max(before.popularity_.sum(), 1)
    places = {str(item): place for place, item in enumerate(data.items)}  # 7 and "7" are the same
    place = np.array([places.get(str(item), -1) for item in before.items_])
    both = place >= 0
    moved = round(float(1 - np.minimum(p[both], q[place[both]]).sum()), 6)
    kept = int(both.sum())
    return {"drift": moved, "new_items": data.n_items - kept, "gone_items": len(place) - kept}


def limits(
    guard: Guard, recent: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the least and the largest value that `data_faults` and `metric_faults` allow; None: no limit."""
    found: dict[str, list[float | None]] = {}
    for name in SIZES if recent else ():
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
    for name in SIZES if recent else ():
        least, most = min(run[name] for run in recent), max(run[name] for run in recent)
        count = f"{size[name]:,} {name} are"
        faults += _over(guard, "max_shrink", 1 - size[name] / least, f"{count} {{}} fewer than {least:,}")
        faults += _over(guard, "max_growth", size[name] / most - 1, f"{count} {{}} more than {most:,}")
    return faults + _over(guard, "max_drift", moved or 0, "{} of the interactions have moved to other items")


def metric_faults(guard: Guard, before: Mapping[str, Any] | None, found: Mean) -> list[str]:
    """Return the faults of the metric, compared with the published run."""
    faults = []
    if before is not None and before.get("metric") == guard.metric and before["value"] > 0:
        drop, text = 1 - found.mean / before["value"], f"{guard.metric} {found} is {{}} below"
        faults = _over(guard, "max_drop", drop, f"{text} {before['value']:.4f}")
    if found.mean < guard.min_metric:
        faults.append(f"{guard.metric} {found} is below min_metric = {guard.min_metric:g}")
    return faults


def _over(guard: Guard, name: str, share: float, text: str) -> list[str]:
    """Return the fault, if a share is above the limit of this name."""
    limit = getattr(guard, name)
    return [f"{text.format(f'{share:.1%}')} ({name} = {limit:g})"] if share > limit else []


def samples_of(
    model: Recommender, data: Interactions, users: Ids, count: int, before: Recommender | None, **options: Any
) -> dict[str, Any]:
    """Return samples for a number of these users, without their ids, and the share of unchanged answers.

    Up to 1,000 users are asked about, those with the lowest hashes: the same every night. The share is None
    without a model before, and if that cannot answer about the histories of now.
    """
    chosen = np.argsort(hashed(users, np.arange(len(users))), kind="stable")[:_ASKED]
    asked = data.matrix[data.users.find(users.take(chosen), "user")]
    histories = Interactions(asked, items=data.items, copy=False)
    rows = model.answer(history=histories, k=_FIRST, **options).rows
    samples = []
    for user in range(min(count, len(chosen))):
        had = asked[[user]].indices
        popular = had[np.argsort(-data.popularity[had], kind="stable")[:_SHOWN]]
        best = [row for row in rows if row["user"] == user][:_SHOWN]
        history = _names(rows_of(model.catalogue.columns(popular)))
        samples.append({"items": len(had), "history": history, "recommended": _names(best)})
    try:
        last = [] if before is None else before.answer(history=histories, k=_FIRST, **options).rows
    except MrfrecError:  # its ids are of another type, or it does not know an option
        last = []
    now, then = ({(row["user"], row["item"]) for row in some} for some in (rows, last))
    return {"samples": samples, "unchanged": len(now & then) / len(now) if now and then else None}


def _names(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [name_with_id(row["item"], shortened(row["title"] or "", _LONGEST)) for row in rows]
