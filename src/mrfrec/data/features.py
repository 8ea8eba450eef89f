"""Features of items: a sparse matrix of features × items, and how each column of a table is read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.heldout import only_entries
from mrfrec.data.ids import Ids, Places, Texts
from mrfrec.data.item_table import ItemTable
from mrfrec.errors import DataError

Kind = Literal["category", "list", "words", "number", "flag"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Encoding:
    """How one column of a table becomes features."""

    kind: Kind
    separator: str | None = None  # between the parts of a list that is text
    edges: tuple[float, ...] = ()  # between bins of numbers, ascending

    def bin_name(self, number: int) -> str:
        """Return the name of a bin of numbers."""
        if not self.edges:
            return "any number"
        # The fewest digits that tell the edges apart.
        rounded = ([f"{edge:.{digits}g}" for edge in self.edges] for digits in range(6, 18))
        edges = next((texts for texts in rounded if len({*texts}) == len(texts)), [*map(repr, self.edges)])
        if number == 0:
            return f"below {edges[0]}"
        if number == len(edges):
            return f"{edges[-1]} and more"
        return f"{edges[number - 1]} to {edges[number]}"

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Encoding":
        """Restore an encoding from the facts of a model file; raise a ValueError if they are not one."""
        edges = tuple(float(edge) for edge in facts["edges"])
        if facts["kind"] not in KINDS or not isinstance(facts["separator"], str | None):
            raise ValueError("features")
        return cls(facts["kind"], facts["separator"], edges)


@dataclass(frozen=True)
class ItemFeatures:
    """Features of items, read from a table by `read_item_features`.

    Attributes
    ----------
    items
        Ids of the items of the table.
    matrix
        `csr_array` of features × items. All entries of a row are equal: the rarer the feature, the larger.
    names
        The name of each feature, which begins with its column: "genre: comedy".
    values
        The entries of each feature.
    columns
        How each column of the table was read.
    titles
        Titles of the items, if a column holds titles.
    weight
        How much a feature counts in the model it was fitted with.
    table
        All columns of the table as they are, of its items; a model keeps them in `catalogue.table`.
    """

    items: Ids
    matrix: sp.csr_array
    names: Texts
    values: npt.NDArray[np.float64]
    columns: Mapping[str, Encoding]
    titles: Texts | None = None
    weight: float = 0.0
    table: ItemTable | None = None

    def __repr__(self) -> str:
        read = ", ".join(f"{name} ({encoding.kind})" for name, encoding in self.columns.items())
        return f"ItemFeatures({len(self.items):,} items, {len(self.names):,} features from {read})"

    def over(self, items: Ids) -> "ItemFeatures":
        """Return the features of these items, in their order; leave out other items."""
        place = items.find(list(self.items), "item")
        matrix = self._placed(np.arange(len(self.names)), place, self.values, len(items))
        return replace(self, items=items, matrix=matrix, titles=None, table=None)

    def named_like(self, known: "ItemFeatures") -> "ItemFeatures":
        """Return these features with the names and entries of those of a fit; leave out all others."""
        for name, encoding in known.columns.items():
            own = self.columns.get(name)
            if own is None or (own.kind, own.edges) != (encoding.kind, encoding.edges):
                raise DataError(
                    f"column {name!r} is {encoding.kind} in the features of the fit, and missing, of another "
                    "kind or in other bins here. Give the table itself: it is read by the rules of the fit."
                )
        number = {name: row for row, name in enumerate(known.names)}
        rows = np.array([number.get(name, -1) for name in self.names])
        matrix = self._placed(rows, np.arange(len(self.items)), known.values, len(self.items))
        return replace(known, items=self.items, matrix=matrix, titles=self.titles, table=self.table)

    def _placed(self, row: Places, column: Places, values: npt.NDArray[np.float64], m: int) -> sp.csr_array:
        """Return the matrix with feature f in row[f] and item i in column[i]; leave out those with −1."""
        entries = self.matrix.tocoo()
        row = row[entries.coords[0]]
        column = column[entries.coords[1]]
        kept = (row >= 0) & (column >= 0)
        place = row[kept], column[kept]
        return sp.csr_array((values[place[0]], place), shape=(len(values), m))

    def with_ids_like(self, items: Ids) -> "ItemFeatures":
        """Return these features with ids of the type of `items`: integers may become strings."""
        return replace(self, items=self.items.like(items, "item", "features"))

    def joined(self, more: "ItemFeatures") -> "ItemFeatures":
        """Return these features and those of other items; both must have the same names."""
        more = more.with_ids_like(self.items)
        new = np.flatnonzero(self.items.find(list(more.items), "item") < 0)
        items = Ids.of([*self.items, *more.items.take(new)], "item")
        titles = None
        if more.titles is not None:
            titles = Texts.of([*(self.titles or [""] * len(self.items)), *more.titles.take(new)])
        matrix = sp.csr_array(sp.hstack([self.matrix, more.matrix[:, new]]))
        return replace(self, items=items, matrix=matrix, titles=titles)

    def of_table_items(self, titles: Texts | None, used: npt.NDArray[np.bool_]) -> "ItemFeatures":
        """Return the features of the items that came from a table: those with features or without users."""
        count = np.bincount(self.matrix.indices, minlength=len(self.items))
        places = np.flatnonzero((count > 0) | ~used)
        kept_titles = None if titles is None else Texts.of(titles.take(places))
        matrix = self.matrix[:, places]
        return replace(self, items=self.items.subset(places), matrix=matrix, titles=kept_titles)

    def of_used(self, used: npt.NDArray[np.bool_]) -> sp.csr_array:
        """Return the matrix without the features of items that nobody has used."""
        return only_entries(self.matrix, used[self.matrix.indices])

    def shared(self, item: int, other: int) -> tuple[list[str], float]:
        """Return the names of the features that two items share, rarest first, and Σ entry² of these."""
        ptr, features = self._of_item
        first, second = (features[ptr[i] : ptr[i + 1]] for i in (item, other))
        common = np.intersect1d(first, second, assume_unique=True)
        common = common[np.argsort(-self.values[common], kind="stable")]
        names = dict.fromkeys(self.names[i].partition(": ")[2] for i in common.tolist())
        return list(names), float((self.values[common] ** 2).sum())

    @cached_property
    def _of_item(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        by_item = self.matrix.tocsc()
        return by_item.indptr, by_item.indices


def rarity(counts: npt.NDArray[np.int64], items: int) -> npt.NDArray[np.float64]:
    """Return the entries of features, √log(items / count), where `counts` says how many items have each."""
    return np.asarray(np.sqrt(np.log(items / counts)))
