"""Events: who used what, row by row, in the order of the table."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.catalogue import DataSize
from mrfrec.data.ids import Ids, Places, Texts, positions_in
from mrfrec.data.interactions import Interactions, filter_pairs
from mrfrec.data.times import as_moments
from mrfrec.errors import DataError


@dataclass(frozen=True)
class Events:
    """A table for splits: unlike a matrix, it keeps the order of its rows.

    Each pair of user and item has one row. A pair with several rows in the source has the place of the first
    and the earliest of their times.
    """

    users: Ids  # ascending
    items: Ids  # ascending
    user: npt.NDArray[np.int32]  # position in `users`, for each row
    item: npt.NDArray[np.int32]  # position in `items`, for each row
    value: npt.NDArray[np.float32] | None = None  # None: every pair counts 1
    time: npt.NDArray[np.int64] | None = None  # microseconds since 1970, UTC
    titles: Texts | None = None
    repeated: int = 0  # number of rows whose pair occurred before
    revised: int = 0  # number of pairs whose value is not that of their first row
    skipped: dict[str, int] = field(default_factory=dict)  # number of bad rows, by reason
    left_out: dict[str, int] = field(default_factory=dict)  # number of users or items, by rule
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
        """Number of user ids, including those without a row."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """Number of item ids, including those without a row."""
        return len(self.items)

    @property
    def size(self) -> DataSize:
        """The size of `interactions()`."""
        binary = self.value is None or bool((self.value == 1).all())
        return DataSize(self.n_users, self.n_items, len(self), binary)

    def take(self, rows: Places) -> "Events":
        """Return some of the rows, with the users and items that occur in them."""
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
            titles=None if self.titles is None else Texts.of(self.titles.take(items)),
        )

    def filtered(self, *, max_history: int | None = None, min_users: int = 0, min_items: int = 0) -> "Events":
        """Leave out users with giant histories, rare items and users with few items; see `Interactions`."""
        keep, left_out = filter_pairs(
            self.user, self.item, max_history=max_history, min_users=min_users, min_items=min_items
        )
        return replace(self.take(np.flatnonzero(keep)), left_out=left_out) if left_out else self

    def matrix(self, rows: Places, users: Places, items: Places, *, binary: bool = False) -> sp.csr_array:
        """Return rows as a matrix of these users × these items: of values, or of ones without the dislikes.

        `users` and `items` must contain all users and items of the rows. A dislike has a value below 0.
        """
        if binary and self.value is not None:
            rows = rows[self.value[rows] > 0]
        user = positions_in(users, self.n_users)[self.user[rows]]
        item = positions_in(items, self.n_items)[self.item[rows]]
        data = np.ones(len(rows), np.float32) if binary or self.value is None else self.value[rows]
        return sp.coo_array((data, (user, item)), shape=(len(users), len(items))).tocsr()

    def times(self, rows: Places, users: Places, items: Places) -> npt.NDArray[np.int64] | None:
        """Return the times of rows in the order of the stored entries of `matrix`."""
        if self.time is None:
            return None
        user = positions_in(users, self.n_users)[self.user[rows]]
        item = positions_in(items, self.n_items)[self.item[rows]]
        return self.time[rows][np.lexsort((item, user))]

    def interactions(self) -> Interactions:
        """Return all rows as a matrix, the one that `read_interactions` reads from the same table."""
        everything = np.arange(len(self)), np.arange(self.n_users), np.arange(self.n_items)
        X, times = self.matrix(*everything), self.times(*everything)
        data = Interactions(X, self.users, self.items, self.titles, times=as_moments(times), copy=False)
        data.skipped = self.skipped
        data.left_out = self.left_out
        data.library = self.library
        return data
