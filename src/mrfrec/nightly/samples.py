"""What a new model recommends to some users: samples to look at, and the share that is as before."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec.data.catalogue import name_with_id, rows_of, shortened
from mrfrec.data.heldout import hashed
from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MrfrecError
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load

_ASKED, _FIRST = 1_000, 10  # users, and recommendations of each, that are compared
_SHOWN, _LONGEST = 5, 80  # items of a history, and recommended items; characters of a title


def samples_of(
    model: Recommender, data: Interactions, users: Ids, count: int, before: Path | None, **options: Any
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
        last = [] if before is None else load(before).answer(history=histories, k=_FIRST, **options).rows
    except MrfrecError:  # its ids are of another type, or it does not know an option
        last = []
    now, then = ({(row["user"], row["item"]) for row in some} for some in (rows, last))
    return {"samples": samples, "unchanged": len(now & then) / len(now) if now and then else None}


def _names(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [name_with_id(row["item"], shortened(row["title"] or "", _LONGEST)) for row in rows]
