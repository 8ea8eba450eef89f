"""What goes between the parts of a recommender: its items, the users it was trained on, its answers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import Rows
from mrfrec.data.ids import Id, Ids, Texts

__all__ = [
    "NEIGHBOR_COLUMNS",
    "REASON_COLUMNS",
    "Catalogue",
    "Contribution",
    "Recommendations",
    "Training",
    "because_text",
]

NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")


@dataclass(frozen=True)
class Catalogue:
    """The items of a model."""

    items: Ids
    titles: Texts | None
    popularity: npt.NDArray[np.int64]  # users of each item
    n_users: int

    @cached_property
    def by_popularity(self) -> npt.NDArray[np.int32]:
        """The place of each item in the list of the most popular; ties by index."""
        place = np.empty(len(self.items), np.int32)
        place[np.argsort(-self.popularity, kind="stable")] = np.arange(len(self.items), dtype=np.int32)
        return place

    def title(self, item: int) -> str | None:
        """The title of an item, by its position."""
        return (self.titles[item] or None) if self.titles is not None else None

    def neighbor_rows(self, found: list[tuple[int, float]]) -> list[list[Any]]:
        """Positions and strengths as rows of `NEIGHBOR_COLUMNS`."""
        return [[self.items[i], self.title(i), score, place] for place, (i, score) in enumerate(found, 1)]

    def reason_rows(self, found: "list[Contribution]", base: float) -> list[list[Any]]:
        """Contributions as rows of `REASON_COLUMNS`; a base score other than 0 is the last."""
        rows: list[list[Any]] = [
            [self.items[c.item], self.title(c.item), c.value, c.weight, c.amount] for c in found
        ]
        return [*rows, [None, "(base score)", None, None, base]] if base else rows


@dataclass(frozen=True)
class Training:
    """The users a model was trained on and what they had."""

    users: Ids
    histories: Rows
    library: str | None  # of data frames, in which results go back


@dataclass(frozen=True)
class Recommendations:
    """Recommendations for a few users: users × k, item −1 where there is nothing left."""

    users: list[Id]
    items: npt.NDArray[np.int32]
    scores: npt.NDArray[Any]
    informed: npt.NDArray[np.bool_]  # whether the history speaks for or against the item at all
    because: list[list[list["Contribution"]]] | None = None


@dataclass(frozen=True)
class Contribution:
    """What one item of a history adds to a score: `value · weight`."""

    item: int
    value: float
    weight: float

    @property
    def amount(self) -> float:
        """Exact: a product of two numbers of 32 bits fits one of 64."""
        return self.value * self.weight


def because_text(reasons: list[Contribution], catalogue: Catalogue) -> str:
    """Reasons on one line: "numpy (+0.31), scipy (+0.12)"; items that are only numbered, by title."""

    def name(item: int) -> object:
        return (None if catalogue.items.is_text else catalogue.title(item)) or catalogue.items[item]

    return ", ".join(f"{name(c.item)} ({c.amount:+.2f})" for c in reasons)
