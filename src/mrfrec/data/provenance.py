"""The provenance of a matrix: how its pairs were made from rows, so that more rows can be added later."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.checks import in_words
from mrfrec.data.ids import Ids
from mrfrec.data.reading_options import LIMITS, ReadingOptions
from mrfrec.errors import DataError


class Sums(NamedTuple):
    """The sums of each pair's values, to which more can be added."""

    values: npt.NDArray[np.float64] | None = None  # exact; None if single precision holds all of them
    grain: int | None = 0  # every value is a multiple of 2**grain; None if the sums were rounded
    bound: float = 1.0  # the sizes of the values of a pair add up to at most this

    @property
    def are_exact(self) -> bool:
        """Whether double precision holds every sum of the values of a pair, in any order."""
        return self.grain is not None and self.bound * (1 + 1e-9) <= 2.0 ** (53 + self.grain)

    def shortened(self, rounded: npt.NDArray[Any]) -> "Sums":
        """Leave out the sums if they are these numbers."""
        return self._replace(values=None) if self.values is None or (self.values == rounded).all() else self

    def only(self, keep: npt.NDArray[Any]) -> "Sums":
        return self if self.values is None else self._replace(values=self.values[keep])


def sums_of(data: npt.NDArray[np.float32], bound: float | None = None) -> Sums:
    """Describe values whose sums are at most `bound` in size; without it, none is a sum of several."""
    grain = 127
    for start in range(0, len(data), 1 << 20):
        bits = np.ascontiguousarray(data[start : start + (1 << 20)]).view(np.int32)
        bits = bits[bits << 1 != 0]  # not of zeros
        exponent = (bits >> 23) & 0xFF
        digits = np.where(exponent > 0, bits & 0x7FFFFF | 0x800000, bits & 0x7FFFFF)
        last = np.frexp((digits & -digits).astype(np.float64))[1] - 1  # place of the last digit that is 1
        grain = min(grain, int((last + np.maximum(exponent, 1) - 150).min(initial=grain)))
    return Sums(None, grain, float(np.abs(data).max(initial=0.0)) if bound is None else bound)


def rules_of_matrix(binary: bool) -> dict[str, Any]:
    """Return the rules by which rows must be read to be added to a matrix."""
    return {} if binary else {"binary": False}


_KINDS = ("integers", "strings", "untyped")


@dataclass(frozen=True)
class Origin:
    """The rules by which the pairs of a matrix were made from rows, and their exact sums and times."""

    rules: dict[str, Any] = field(default_factory=dict)  # parameters of the reader that are not its defaults
    users: str = "integers"  # the type of the ids: "integers", "strings", or "untyped" if read from text
    items: str = "integers"
    sums: Sums = field(default_factory=Sums)
    times: npt.NDArray[np.int64] | None = None  # of each pair's last event, in microseconds since 1970
    sets_to_zero: bool = False  # whether a pair was dropped because its last row has the value 0
    batches: tuple[str, ...] = ()  # ids of the batches that were added, the first data included
    is_matrix: bool = False  # whether the pairs are the entries of a matrix, which no rules have made
    columns: Mapping[str, str] = field(default_factory=dict)  # of the first table, by what they hold

    @classmethod
    def of_matrix(
        cls, values: npt.NDArray[Any], users: Ids, items: Ids, times: npt.NDArray[np.int64] | None = None
    ) -> "Origin":
        """Return the origin of a matrix whose entries count as events."""
        single = values.astype(np.float32)
        sums = sums_of(single) if np.array_equal(single, values) else Sums(None, None)
        user, item = ("strings" if ids.is_text else "integers" for ids in (users, items))
        rules = rules_of_matrix(bool((values == 1).all()))
        return cls(rules, user, item, sums, times, is_matrix=True)

    @classmethod
    def of_facts(
        cls,
        facts: Mapping[str, Any],
        sums: npt.NDArray[np.float64] | None,
        times: npt.NDArray[np.int64] | None,
    ) -> "Origin":
        """Read what `facts` wrote; raise a TypeError or LookupError if it is something else."""
        rules, grain, bound, batches = (facts[name] for name in ("rules", "grain", "bound", "batches"))
        kinds = facts["users"], facts["items"]
        columns = {str(role): str(name) for role, name in facts["columns"].items()}
        if (
            not (grain is None or type(grain) is int)
            or type(bound) is not float
            or any(type(batch) is not str for batch in batches)
            or any(kind not in _KINDS for kind in kinds)
        ):
            raise TypeError("origin")
        return cls(rules, *kinds, Sums(sums, grain, bound), times, batches=tuple(batches), columns=columns)

    def facts(self) -> dict[str, Any]:
        """Return what a file keeps beside the exact sums and the times, as JSON can hold it."""
        sums = self.sums
        kept = {"rules": self.rules, "users": self.users, "items": self.items, "batches": list(self.batches)}
        return {**kept, "columns": dict(self.columns), "grain": sums.grain, "bound": float(sums.bound)}

    @property
    def is_binary(self) -> bool:
        """Whether every pair counts 1."""
        return not ReadingOptions(**self.rules).rows_have_weights

    def only(self, keep: npt.NDArray[Any]) -> "Origin":
        """Return the origin of some of the pairs, in the order given if `keep` are positions."""
        times = None if self.times is None else self.times[keep]
        return replace(self, sums=self.sums.only(keep), times=times)

    @property
    def moving_window(self) -> int | None:
        """The window, in microseconds, if it ends at the latest time; else None."""
        options = ReadingOptions(**self.rules)
        return None if options.now is not None else options.microseconds("window")

    def check_can_shrink(self, keep: npt.NDArray[np.bool_]) -> None:
        """Refuse to remove pairs whose time decides which others are left out."""
        if self.moving_window is not None and self.times is not None and (
            self.times[keep].max() < self.times.max()
        ):  # fmt: skip
            raise DataError(
                "a user cannot be removed from data that was read with window and without now if the latest "
                "time, which decides what is left out, is theirs. Fit again on the other events, or remove "
                "the user when there are later ones."
            )

    def check_can_grow(self) -> None:
        """Refuse data to which nothing can be added exactly."""
        limits = [name for name in LIMITS if name in self.rules]
        moves = self.moving_window is not None and not (self.is_binary and self.times is not None)
        why = "leaves out what later events may bring back" if limits else "goes by the latest time"
        if limits or moves:
            raise DataError(
                f"nothing can be added to data that was read with {in_words(limits or ['window'])}, which "
                f"{why}. Fit again on all events."
            )
