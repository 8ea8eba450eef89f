"""The items and users of a model, and answers about them as columns and rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.core.sparse import Rows
from mrfrec.data.ids import Id, Ids, Texts, positions_in
from mrfrec.data.origin import Origin
from mrfrec.data.search import NameIndex

Columns = dict[str, Any]


@dataclass(frozen=True)
class Catalogue:
    """The items of a model. What takes time to build is built once, when it is first needed."""

    items: Ids
    titles: Texts | None
    popularity: npt.NDArray[np.int64]  # users of each item
    n_users: int

    def __getstate__(self) -> dict[str, Any]:  # without what can be built again
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def by_popularity(self) -> npt.NDArray[np.int32]:
        """The place of each item in the list of the most popular; ties by index."""
        return positions_in(np.argsort(-self.popularity, kind="stable"), len(self.items))

    @cached_property
    def index(self) -> NameIndex:
        return NameIndex(self.items, self.titles, self.by_popularity)

    def search(self, text: str, k: int) -> list[int]:
        """Return up to k items by position whose id or title matches the text, the best match first.

        An id that is a number matches as a whole only.
        """
        number = text.strip()
        if self.items.is_text or not (number.isascii() and number.isdigit()):
            return self.index.search(text, k)
        known = [place for place in self.items.find([int(number)], "item").tolist() if place >= 0]
        return list(dict.fromkeys([*known, *self.index.search(text, k)]))[:k]

    def title(self, item: int) -> str | None:
        return (self.titles[item] or None) if self.titles is not None else None

    def short_title(self, item: int) -> str | None:
        """Return the title, cut to 80 characters, for places where many titles stand together."""
        return None if (title := self.title(item)) is None else shortened(title, 80)

    def name(self, item: int) -> str:
        """Return a name for people: the title, or the id of an item without one."""
        title = self.title(item)
        return title if title and title.strip() else str(self.items[item])

    # ── columns of answers ────────────────────────────────────────────────────────────────────────

    def columns(self, items: npt.NDArray[Any]) -> Columns:
        """Return the ids and titles of items, by position."""
        titles = [""] * len(items) if self.titles is None else self.titles.take(items)
        return {"item": self.items.take(items), "title": [title or None for title in titles]}

    def recommendation_columns(self, batch: "Recommendations") -> Columns:
        """Return user, item, title, score, rank, source and, if there are reasons, because."""
        there = batch.items >= 0
        owner, place = np.nonzero(there)
        columns = {
            "user": [batch.users[u] for u in owner.tolist()],
            **self.columns(batch.items[there]),
            "score": batch.scores[there],
            "rank": (place + 1).astype(np.int32),
            "source": ["model" if known else "popular" for known in batch.evidence[there].tolist()],
        }
        if batch.base is not None and batch.because is not None:
            reasons = [batch.because[u][p] for u, p in zip(owner.tolist(), place.tolist(), strict=True)]
            names = {
                item: name_with_id(self.items[item], self.short_title(item))
                for item in {c.item for each in reasons for c in each}
            }
            columns["because"] = [
                because_text(base, ((names[c.item], c.amount) for c in each))
                for base, each in zip(_plain(batch.base[there]), reasons, strict=True)
            ]
        return columns

    def neighbor_columns(self, items: npt.NDArray[Any], strengths: npt.NDArray[Any]) -> Columns:
        """Return item, title, score and rank of the items that go with an item, nearest first."""
        ranks = np.arange(1, len(items) + 1, dtype=np.int32)
        return {**self.columns(items), "score": strengths, "rank": ranks}

    def reason_columns(self, reasons: "list[Contribution]", base: float) -> Columns:
        """Return item, title, value, weight and contribution; a base score other than 0 is the last row."""
        columns: Columns = {
            **self.columns(np.array([c.item for c in reasons], np.int64)),
            "value": [c.value for c in reasons],
            "weight": [c.weight for c in reasons],
            "contribution": [c.amount for c in reasons],
        }
        if base:
            last = {"title": "(base score)", "contribution": base}
            columns = {name: [*values, last.get(name)] for name, values in columns.items()}
        return columns


def name_with_id(item: Id, title: str | None) -> str:
    """Return "title [id]", or the id of an item that has no other title."""
    name = shortened(str(item), 80)
    return f"{title} [{name}]" if title and title != name else name


def because_text(base: float, parts: Iterable[tuple[str, float]]) -> str:
    """Say what a score is made of, such as "base +0.74, cython3 +0.01"; a base score of 0 is left out."""
    each = [*([("base", base)] if base else []), *parts]
    return ", ".join(f"{name} {amount:+.2f}" for name, amount in each)


def shortened(text: str, most: int) -> str:
    """Cut a text to a number of characters, an ellipsis included."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Turn columns into rows of plain Python values, for JSON and for people."""
    lists = [_plain(values) for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def _plain(values: Any) -> list[Any]:
    if not isinstance(values, np.ndarray):
        return list(values)
    # A number of 32 bits with the digits it has, and not those of its neighbour of 64 bits.
    return [float(str(x)) for x in values] if values.dtype == np.float32 else list(values.tolist())


@dataclass(frozen=True)
class Training:
    """The users a model was trained on and their histories."""

    users: Ids
    histories: Rows
    library: str | None  # of data frames, in which results go back
    origin: Origin | None = None  # how the histories were made from rows


@dataclass(frozen=True)
class Recommendations:
    """Recommendations for a batch of users: arrays of users × k, item −1 where there is nothing left."""

    users: list[Id]
    items: npt.NDArray[np.int32]
    scores: npt.NDArray[Any]
    evidence: npt.NDArray[np.bool_]  # whether some item of the history has a weight for the item
    base: npt.NDArray[Any] | None = None  # base scores of the items, if there are reasons
    because: list[list[list["Contribution"]]] | None = None


class Contribution(NamedTuple):
    """What one item of a history adds to a score: `value · weight`."""

    item: int
    value: float
    weight: float

    @property
    def amount(self) -> float:
        """The product, exact in 64 bits for factors of 32 bits."""
        return self.value * self.weight
