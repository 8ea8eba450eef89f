"""The items and users of a model, and answers about them as columns and rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted
from mrfrec.core.rows import Rows
from mrfrec.data.features import ItemFeatures
from mrfrec.data.ids import Id, Ids, Texts, positions_in
from mrfrec.data.provenance import Origin
from mrfrec.data.search import NameIndex
from mrfrec.errors import DataError

Columns = dict[str, Any]
_NAMED = 3  # features that an explanation names, the rarest

RECOMMENDATION_COLUMNS = ("user", "item", "title", "score", "rank", "source")
NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
SIMILAR_COLUMNS = ("similar_to", *NEIGHBOR_COLUMNS)
REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
SEARCH_COLUMNS = ("item", "title", "users")


class DataSize(NamedTuple):
    """The size of a matrix; it decides between a dense and a sparse model."""

    users: int
    items: int
    pairs: int
    binary: bool  # every value is 1

    def __str__(self) -> str:
        users, items = counted(self.users, "user"), counted(self.items, "item")
        return f"{users} × {items}, {counted(self.pairs, 'pair')}"


@dataclass(frozen=True)
class Catalogue:
    """The items of a model. The order by popularity and the search index are built when first needed."""

    items: Ids
    titles: Texts | None
    popularity: npt.NDArray[np.int64]  # users of each item
    n_users: int
    features: ItemFeatures | None = None

    def __getstate__(self) -> dict[str, Any]:  # without cached properties
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

    def position(self, item: Id) -> int:
        """Return the position of an item; raise if it is unknown."""
        return int(self.positions([item])[0])

    def positions(self, items: Iterable[Id]) -> npt.NDArray[np.int64]:
        """Return the positions of items; raise if one is unknown."""
        wanted = list(items)
        places = self.items.find(wanted, "item")
        if (places < 0).any():
            item = wanted[int(np.argmax(places < 0))]
            raise DataError(f"item {item!r} is unknown to the model. Find items by id or title: search(…).")
        return places

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
        if batch.base is not None and batch.reasons is not None and batch.amounts is not None:
            arrays = batch.items, batch.reasons, batch.amounts
            items, reasons, amounts = (array[there].tolist() for array in arrays)
            names = {
                item: name_with_id(self.items[item], self.short_title(item))
                for item in np.unique(batch.reasons[batch.reasons >= 0]).tolist()
            }
            columns["because"] = because = list[str]()
            for i, base, others, each in zip(
                items, as_python(batch.base[there]), reasons, amounts, strict=True
            ):
                parts = [(j, amount) for j, amount in zip(others, each, strict=True) if j >= 0]
                named = [(names[j] + said_of(self.in_common(i, j)), amount) for j, amount in parts]
                because.append(because_text(base, named))
        return columns

    def in_common(self, item: int, other: int) -> list[str]:
        """Return the rarest features that two items share, if features carry more of their weight than users.

        Shared features then count more than all users of the rarer item would, if they shared these too.
        """
        if self.features is None:
            return []
        names, squares = self.features.shared(item, other)
        users = int(min(self.popularity[item], self.popularity[other]))
        return names[:_NAMED] if self.features.weight**2 * squares > users else []

    def search_columns(self, text: str, k: int) -> Columns:
        """Return item, title and users of up to k items that match a text, the best match first."""
        items = np.array(self.search(text, k), np.int64)
        return {**self.columns(items), "users": self.popularity[items]}

    def neighbor_columns(self, items: npt.NDArray[Any], strengths: npt.NDArray[Any]) -> Columns:
        """Return item, title, score and rank of the items that go with an item, nearest first."""
        ranks = np.arange(1, len(items) + 1, dtype=np.int32)
        return {**self.columns(items), "score": strengths, "rank": ranks}

    def reason_columns(self, item: int, reasons: "list[Contribution]", base: float) -> Columns:
        """Return item, title, value, weight and contribution; a base score other than 0 is the last row.

        With features there is a column `both`: those that the items have in common, where they carry the
        weight.
        """
        columns: Columns = {
            **self.columns(np.array([c.item for c in reasons], np.int64)),
            "value": [c.value for c in reasons],
            "weight": [c.weight for c in reasons],
            "contribution": [c.amount for c in reasons],
        }
        if self.features is not None:
            columns["both"] = [
                (", ".join(self.in_common(item, c.item)) or None) if c.weight else None for c in reasons
            ]
        if base:
            last = {"title": "(base score)", "contribution": base}
            columns = {name: [*values, last.get(name)] for name, values in columns.items()}
        return columns


def name_with_id(item: Id, title: str | None) -> str:
    """Return "title [id]", or the id of an item that has no other title."""
    name = shortened(str(item), 80)
    return f"{title} [{name}]" if title and title != name else name


def said_of(features: Sequence[str]) -> str:
    """Return " (both: naruto, shounen)" of the features that two items have in common; "" of none."""
    return f" (both: {', '.join(features)})" if features else ""


def because_text(base: float, parts: Iterable[tuple[str, float]]) -> str:
    """Return the parts of a score as text: "base +0.74, cython3 +0.01"; 0.00 only where all are."""
    each = [(name, f"{amount:+.2f}") for name, amount in (("base", base), *parts) if amount]
    return ", ".join(f"{name} {text}" for name, text in [x for x in each if float(x[1])] or each)


def shortened(text: str, most: int) -> str:
    """Cut a text to a number of characters, an ellipsis included."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Turn columns into rows of plain Python values, for JSON and for people."""
    lists = [as_python(values) for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def as_python(values: Any) -> list[Any]:
    """Return a column as a list of plain Python values."""
    if not isinstance(values, np.ndarray):
        return list(values)
    # The shortest digits of a 32-bit number, 0.1, instead of those of the same 64-bit number, 0.10000000149.
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
    reasons: npt.NDArray[np.int32] | None = None  # items of the history, users × k × reasons, −1: no more
    amounts: npt.NDArray[np.float64] | None = None  # that each of these adds to the score


class Contribution(NamedTuple):
    """The contribution of one item of a history to a score: `value · weight`."""

    item: int
    value: float
    weight: float

    @property
    def amount(self) -> float:
        """The product, exact in 64 bits for factors of 32 bits."""
        return self.value * self.weight
