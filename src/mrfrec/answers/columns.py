"""Answers as columns, and columns as rows: the one way to tables, JSON, the terminal and the page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.data.catalogue import Catalogue, Columns, name_with_id
from mrfrec.data.ids import Id

RECOMMENDATION_COLUMNS = ("user", "item", "title", "score", "rank", "source")
NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
SIMILAR_COLUMNS = ("similar_to", *NEIGHBOR_COLUMNS)
REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
SEARCH_COLUMNS = ("item", "title", "users")


class ScoreParts(NamedTuple):
    """What the scores of recommended items consist of."""

    base: npt.NDArray[Any]  # base scores, users × k
    items: npt.NDArray[np.int32]  # of the history, users × k × reasons; −1 where there are no more
    amounts: npt.NDArray[np.float64]  # that each of these adds to the score
    boost: npt.NDArray[np.float64] | None = None  # that a boost adds to the score, users × k


@dataclass(frozen=True)
class Recommendations:
    """Recommendations for a batch of users: arrays of users × k, item −1 where there is nothing left."""

    users: list[Id]
    items: npt.NDArray[np.int32]
    scores: npt.NDArray[Any]
    evidence: npt.NDArray[np.bool_]  # whether some item of the history has a weight for the item
    parts: ScoreParts | None = None


class Contribution(NamedTuple):
    """The contribution of one item of a history to a score: `value · weight`."""

    item: int
    value: float
    weight: float

    @property
    def amount(self) -> float:
        """The product, exact in 64 bits for factors of 32 bits."""
        return self.value * self.weight


def recommendation_columns(catalogue: Catalogue, batch: Recommendations) -> Columns:
    """Return user, item, title, score, rank, source and, if there are reasons, because."""
    there = batch.items >= 0
    owner, place = np.nonzero(there)
    columns = {
        "user": [batch.users[u] for u in owner.tolist()],
        **catalogue.columns(batch.items[there]),
        "score": batch.scores[there],
        "rank": (place + 1).astype(np.int32),
        "source": ["model" if known else "popular" for known in batch.evidence[there].tolist()],
    }
    if batch.parts is not None:
        base, items, amounts, boost = batch.parts
        boosts = None if boost is None else boost[there]
        parts = ScoreParts(base[there], items[there], amounts[there], boosts)
        columns["because"] = _because(catalogue, batch.items[there].tolist(), parts)
    return columns


def _because(catalogue: Catalogue, items: list[int], parts: ScoreParts) -> list[str]:
    """Return the parts of the score of each item as text."""
    names = {item: short_name(catalogue, item) for item in np.unique(parts.items[parts.items >= 0]).tolist()}
    texts = []
    boosts = np.zeros(len(items)) if parts.boost is None else parts.boost
    rows = zip(
        items,
        as_python(parts.base),
        parts.items.tolist(),
        parts.amounts.tolist(),
        boosts.tolist(),
        strict=True,
    )
    for item, base, *others, boost in rows:
        named = (
            (names[other] + shared_features_text(catalogue.in_common(item, other)), amount)
            for other, amount in zip(*others, strict=True)
            if other >= 0
        )
        texts.append(because_text(base, named, boost))
    return texts


def shared_features_text(features: Sequence[str]) -> str:
    """Return " (both: naruto, shounen)" for the features that two items have in common; "" for none."""
    return f" (both: {', '.join(features)})" if features else ""


def short_name(catalogue: Catalogue, item: int) -> str:
    """Return the title and id of an item, both cut, for lists of several."""
    return name_with_id(catalogue.items[item], catalogue.short_title(item))


def because_text(base: float, parts: Iterable[tuple[str, float]], boost: float = 0.0) -> str:
    """Return the parts of a score as text: "base +0.74, boost +0.20, cython3 +0.01".

    Parts that round to 0.00 are left out, unless all do.
    """
    named = (("base", base), ("boost", boost), *parts)
    texts = [(name, f"{amount:+.2f}") for name, amount in named if amount]
    shown = [each for each in texts if float(each[1])] or texts
    return ", ".join(f"{name} {amount}" for name, amount in shown)


def search_columns(catalogue: Catalogue, text: str, k: int) -> Columns:
    """Return item, title and users of up to k items that match a text, the best match first."""
    items = np.array(catalogue.search(text, k), np.int64)
    return {**catalogue.columns(items), "users": catalogue.popularity[items]}


def neighbor_columns(catalogue: Catalogue, items: npt.NDArray[Any], strengths: npt.NDArray[Any]) -> Columns:
    """Return item, title, score and rank of the items that go with an item, nearest first."""
    ranks = np.arange(1, len(items) + 1, dtype=np.int32)
    return {**catalogue.columns(items), "score": strengths, "rank": ranks}


def reason_columns(
    catalogue: Catalogue, item: int, reasons: list[Contribution], base: float, boost: float = 0.0
) -> Columns:
    """Return item, title, value, weight and contribution; a base score and a boost other than 0 are last.

    With features there is a column `both`: the features that two items have in common, where these carry the
    weight.
    """
    columns: Columns = {
        **catalogue.columns(np.array([c.item for c in reasons], np.int64)),
        "value": [c.value for c in reasons],
        "weight": [c.weight + 0.0 for c in reasons],  # not −0.0
        "contribution": [c.amount + 0.0 for c in reasons],
    }
    if catalogue.features is not None:
        columns["both"] = [
            (", ".join(catalogue.in_common(item, c.item)) or None) if c.weight else None for c in reasons
        ]
    for title, amount in (("(base score)", base), ("(boost)", boost)):
        if amount:
            last = {"title": title, "contribution": amount}
            columns = {name: [*values, last.get(name)] for name, values in columns.items()}
    return columns


def columns_shown(catalogue: Catalogue, names: Iterable[str], without_user: bool = False) -> list[str]:
    """Return the columns of a table to look at: no titles if there are none, and perhaps no user.

    Files, tables of databases and JSON have all columns, whatever the model.
    """
    left_out = ("title" if catalogue.titles is None else "", "user" if without_user else "")
    return [name for name in names if name not in left_out]


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Turn columns into rows of plain Python values."""
    lists = [as_python(values) for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def as_python(values: Any) -> list[Any]:
    """Return a column as a list of plain Python values."""
    if not isinstance(values, np.ndarray):
        return list(values)
    # The shortest digits of a 32-bit number, 0.1, instead of those of the same 64-bit number, 0.10000000149.
    return [float(str(x)) for x in values] if values.dtype == np.float32 else list(values.tolist())
