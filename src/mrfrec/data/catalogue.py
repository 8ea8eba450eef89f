"""The items of a model with their titles, popularity and features, and the users it was trained on."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted, shortened
from mrfrec.core.rows import Rows
from mrfrec.data.features import ItemFeatures
from mrfrec.data.ids import Id, Ids, Texts, positions_in
from mrfrec.data.item_table import ItemTable
from mrfrec.data.provenance import Origin
from mrfrec.data.search import NameIndex
from mrfrec.errors import DataError

Columns = dict[str, Any]
_NAMED_FEATURES = 3  # of those that two items have in common


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
    """The items of a model; the order by popularity and the search index are built when first needed."""

    items: Ids
    titles: Texts | None
    popularity: npt.NDArray[np.int64]  # users of each item
    n_users: int
    features: ItemFeatures | None = None
    table: ItemTable | None = None  # of the same items

    @cached_property
    def by_popularity(self) -> npt.NDArray[np.int32]:
        """The place of each item in the order of popularity, most popular first; ties by index."""
        return positions_in(np.argsort(-self.popularity, kind="stable"), len(self.items))

    @cached_property
    def index(self) -> NameIndex:
        return NameIndex(self.items, self.titles, self.by_popularity)

    def search(self, text: str, k: int) -> list[int]:
        """Return the positions of up to k items whose id or title matches the text, the best match first.

        An id that is a number matches only as a whole.
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
        """Return the title, cut to 80 characters for lists of several titles."""
        return None if (title := self.title(item)) is None else shortened(title, 80)

    def name(self, item: int) -> str:
        """Return the title, or the id of an item without one."""
        title = self.title(item)
        return title if title and title.strip() else str(self.items[item])

    def columns(self, items: npt.NDArray[Any]) -> Columns:
        """Return the ids and titles of items, by position."""
        titles = [""] * len(items) if self.titles is None else self.titles.take(items)
        return {"item": self.items.take(items), "title": [title or None for title in titles]}

    def in_common(self, item: int, other: int) -> list[str]:
        """Return the rarest features that two items share, if these carry most of the weight between them.

        They do where they add more to the products of S than the users could: at most all users of the less
        popular item have both.
        """
        if self.features is None:
            return []
        names, squares = self.features.shared(item, other)
        users = int(min(self.popularity[item], self.popularity[other]))
        return names[:_NAMED_FEATURES] if self.features.weight**2 * squares > users else []


def name_with_id(item: Id, title: str | None) -> str:
    """Return "title [id]", or the id of an item that has no other title."""
    name = shortened(str(item), 80)
    return f"{title} [{name}]" if title and title != name else name


@dataclass(frozen=True)
class Training:
    """The users a model was trained on and their histories."""

    users: Ids
    histories: Rows
    origin: Origin | None = None  # how the histories were made from rows
