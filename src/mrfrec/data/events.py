"""Events: who used what, row by row, in the order in which it was written down."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.ids import Ids, Texts
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError

__all__ = ["Events", "Places"]

Places = npt.NDArray[np.integer[Any]]  # of rows, users or items, in a table of events


@dataclass(frozen=True)
class Events:
    """A table of events, of which splits are made: unlike a matrix, it keeps the order of its rows.

    No pair of user and item is in it twice: it stands where it stood first, with the time it had there.
    """

    users: Ids  # ascending
    items: Ids
    user: npt.NDArray[np.int32]  # of each row, its place among the users
    item: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32] | None = None
    time: npt.NDArray[Any] | None = None
    titles: Texts | None = None
    repeated: int = 0  # rows of pairs that were there before
    skipped: dict[str, int] = field(default_factory=dict)
    library: str | None = None

    def __post_init__(self) -> None:
        for name in ("item", "value", "time"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.user):
                raise DataError(
                    f"{name} must have one entry for each of {len(self.user):,} rows; got {len(column):,}."
                )

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        timed = ", with times" if self.time is not None else ""
        return f"Events({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items{timed})"

    @property
    def n_users(self) -> int:
        """Users with an id, whether or not a row is theirs."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """Items with an id, whether or not they are in a row."""
        return len(self.items)

    def take(self, rows: Places) -> "Events":
        """Some of the rows, and the users and items that are in them."""
        users, user = np.unique(self.user[rows], return_inverse=True)
        items, item = np.unique(self.item[rows], return_inverse=True)
        return replace(
            self,
            users=self.users.subset(users),
            items=self.items.subset(items),
            user=user.astype(np.int32),
            item=item.astype(np.int32),
            value=None if self.value is None else self.value[rows],
            time=None if self.time is None else self.time[rows],
            titles=None if self.titles is None else Texts.of(self.titles[i] for i in items.tolist()),
        )

    def first_of_each_pair(self) -> "Events":
        """Without the rows whose user and item stood together in a row before."""
        pair = self.user.astype(np.int64) * self.n_items + self.item
        order = np.argsort(pair, kind="stable")
        again = np.append(False, pair[order[1:]] == pair[order[:-1]])
        if not again.any():
            return self
        return replace(self.take(np.sort(order[~again])), repeated=self.repeated + int(again.sum()))

    def matrix(self, rows: Places, users: Places, items: Places) -> sp.csr_array:
        """These rows as a binary matrix of these users × these items; all of them must be among them."""
        places = []
        for column, chosen, count in ((self.user, users, self.n_users), (self.item, items, self.n_items)):
            place = np.full(count, -1)
            place[chosen] = np.arange(len(chosen))
            places.append(place[column[rows]])
        ones = np.ones(len(rows), np.float32)
        return sp.coo_array((ones, tuple(places)), shape=(len(users), len(items))).tocsr()

    def interactions(self) -> Interactions:
        """The same without an order: every pair counts 1."""
        everything = np.arange(len(self))
        X = self.matrix(everything, np.arange(self.n_users), np.arange(self.n_items))
        data = Interactions(X, self.users, self.items, self.titles)
        data.skipped, data.library = self.skipped, self.library
        return data
