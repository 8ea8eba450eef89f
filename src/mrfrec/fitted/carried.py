"""What new items have of the weights of alike items, so that an explanation can name these."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from mrfrec.core.rows import Rows
from mrfrec.fitted.files import shaped, stored_rows

if TYPE_CHECKING:
    from mrfrec.io.artifact import Stored

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CarriedOver:
    """The parts of the weights of new items: B_ki = own_ki + Σ_j share_ij·B_kj.

    The j are the used items most like i, and these alone have own weights, too.
    """

    items: npt.NDArray[np.int64]  # the new items i, ascending
    shares: Rows  # new items × all items: η·κ, with the scales of both parts
    own: Rows  # the same entries

    def row(self, item: int) -> int | None:
        """Return the row of an item; None if it is not new."""
        place = int(np.searchsorted(self.items, item))
        return place if place < len(self.items) and self.items[place] == item else None

    def joined(self, later: "CarriedOver") -> "CarriedOver":
        """Return these and new items that come after them."""
        rows = [_joined(*pair) for pair in ((self.shares, later.shares), (self.own, later.own))]
        return CarriedOver(np.concatenate([self.items, later.items]), *rows)

    def verified(self) -> Self:
        """Return the same, after a check of all that was not checked."""
        self.shares.verify()
        self.own.verify()
        return self

    def stored(self) -> dict[str, Array]:
        """Return the arrays to save."""
        self.verified()
        names = {"ptr": self.shares.ptr, "items": self.shares.items, "shares": self.shares.values}
        return {
            f"carried.{name}": x for name, x in {"new": self.items, **names, "own": self.own.values}.items()
        }


def stored_carried(arrays: "Mapping[str, Stored]", m: int) -> CarriedOver | None:
    """Return what `CarriedOver.stored` gave; None for files without it."""
    if "carried.new" not in arrays:
        return None
    shares, own = (_rows(arrays, m, name) for name in ("shares", "own"))
    items = shaped(arrays, "carried.new", len(shares), kind="i").bound(m).read()
    if (np.diff(items) <= 0).any():
        raise arrays["carried.new"].damaged()
    return CarriedOver(items, shares, own)


def _rows(arrays: "Mapping[str, Stored]", m: int, name: str) -> Rows:
    shaped(arrays, f"carried.{name}", *arrays["carried.items"].array.shape)  # without it, they would be ones
    return stored_rows(arrays, "carried", m, name)


def _joined(one: Rows, other: Rows) -> Rows:
    one.verify()
    ptr = np.concatenate([one.ptr, one.ptr[-1] + other.ptr[1:]])
    items, values = (np.concatenate(pair) for pair in ((one.items, other.items), (one.values, other.values)))
    return Rows(ptr, items, values, other.width)
