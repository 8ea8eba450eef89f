"""Recommendations of a new model for a few users, and the share of them that the old model would give."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import Id, Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MrfrecError
from mrfrec.evaluation.heldout import hashed
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load

_ASKED, _FIRST = 1_000, 10  # users and recommendations of each that are compared
_SHOWN = 5  # items of a history, and recommended items


def sampled_users(users: Ids) -> list[Id]:
    """Return up to 1,000 of the users, those with the lowest hashes: the same every night."""
    everybody = np.arange(len(users))
    return list(users.take(np.argsort(hashed(users, everybody), kind="stable")[:_ASKED]))


def samples(
    model: Recommender, data: Interactions, users: list[Id], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return recommendations and the most popular items of the history for each user, without user ids."""
    if not users:
        return []
    found: dict[Id, list[dict[str, Any]]] = {user: [] for user in users}
    for row in model.answer(users, k=min(_SHOWN, data.n_items), **options).rows:
        found[row["user"]].append({"item": row["item"], "title": row["title"]})
    sampled = []
    for place, recommended in zip(_places(data, users), found.values(), strict=True):
        items = data.matrix[[place]].indices
        best = items[np.argsort(-data.popularity[items], kind="stable")[:_SHOWN]]
        sampled.append({"items": len(items), "history": _named(data, best), "recommended": recommended})
    return sampled


def unchanged_share(
    model: Recommender, before: Path, data: Interactions, users: list[Id], options: dict[str, Any]
) -> float | None:
    """Return the share of the first 10 recommendations that the model before would give, too.

    Both models are asked about the histories of now. None if the model before cannot be asked about them.
    """
    try:
        old = load(before)
        if old.items_.is_text != data.items.is_text:
            return None
        histories = {
            user: _history(data, place) for user, place in zip(users, _places(data, users), strict=True)
        }
        then = _pairs(old.answer(history=histories, k=min(_FIRST, len(old.items_)), **options).rows)
    except MrfrecError:  # a damaged file, or a kind of model that does not know an option
        return None
    now = _pairs(model.answer(users, k=min(_FIRST, data.n_items), **options).rows)
    return len(now & then) / len(now) if now else None


def _pairs(rows: Iterable[dict[str, Any]]) -> set[tuple[Id, Id]]:
    return {(row["user"], row["item"]) for row in rows}


def _places(data: Interactions, users: list[Id]) -> npt.NDArray[Any]:
    return data.users.find(users, "user")


def _history(data: Interactions, place: int) -> dict[Id, float]:
    row = data.matrix[[place]]
    return dict(zip(data.items.take(row.indices), row.data.tolist(), strict=True))


def _named(data: Interactions, items: npt.NDArray[Any]) -> list[dict[str, Any]]:
    titles = [""] * len(items) if data.titles is None else data.titles.take(items)
    return [
        {"item": item, "title": title or None}
        for item, title in zip(data.items.take(items), titles, strict=True)
    ]
