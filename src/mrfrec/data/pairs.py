"""Pairs of users and items made from rows: their values, exact sums and times, and what reading noticed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import in_words, warn
from mrfrec.data.ids import Ids, Indices
from mrfrec.data.reading_options import LIMITS, ReadingOptions
from mrfrec.errors import DataError

_log = logging.getLogger("mrfrec")

What = Literal["skipped rows", "rows ahead", "missing times", "repeated pairs", "looks like", "erased people"]
# The caller asked for these by on_bad="skip", by missing_time="oldest" or by an update.
_ASKED_FOR = ("skipped rows", "missing times", "repeated pairs")


class DataNote(NamedTuple):
    """Something that reading noticed, for the log and the reports."""

    what: What
    # Number of rows or pairs that the note is about.
    count: int  # type: ignore[assignment]
    text: str

    def tell(self) -> None:
        """Warn, or log the note if the caller asked for what it tells."""
        if self.what in _ASKED_FOR:
            _log.info("%s", self.text)
        else:
            warn(self.text)


class Sums(NamedTuple):
    """The exact sums of the values of pairs, to which more values can be added.

    `values` is None if single precision holds all sums. Every value is a multiple of 2**grain; `grain` is
    None if the sums were rounded. The sizes of the values of a pair add up to at most `bound`.
    """

    values: npt.NDArray[np.float64] | None = None
    grain: int | None = 0
    bound: float = 1.0

    @property
    def are_exact(self) -> bool:
        """Whether double precision holds every sum of the values of a pair, whatever their order."""
        return self.grain is not None and self.bound * (1 + 1e-9) <= 2.0 ** (53 + self.grain)

    def shortened(self, rounded: npt.NDArray[Any]) -> "Sums":
        """Leave out the sums if they equal the `rounded` ones."""
        return self._replace(values=None) if self.values is None or (self.values == rounded).all() else self

    def only(self, keep: npt.NDArray[Any]) -> "Sums":
        return self if self.values is None else self._replace(values=self.values[keep])


def sums_of(data: npt.NDArray[np.float32], bound: float | None = None) -> Sums:
    """Describe values whose sums are at most `bound` in size; without `bound`, every value is a sum."""
    grain = 127
    for start in range(0, len(data), 1 << 20):
        bits = np.ascontiguousarray(data[start : start + (1 << 20)]).view(np.int32)
        # Zeros have no digits.
        bits = bits[bits << 1 != 0]
        exponent = (bits >> 23) & 0xFF
        digits = np.where(exponent > 0, bits & 0x7FFFFF | 0x800000, bits & 0x7FFFFF)
        last_one = np.frexp((digits & -digits).astype(np.float64))[1] - 1
        grain = min(grain, int((last_one + np.maximum(exponent, 1) - 150).min(initial=grain)))
    return Sums(None, grain, float(np.abs(data).max(initial=0.0)) if bound is None else bound)


def rules_of_matrix(binary: bool) -> dict[str, Any]:
    """Return the reading options that rows need to be added to a matrix."""
    return {} if binary else {"binary": False}


_ID_TYPES = ("integers", "strings", "untyped")


@dataclass(frozen=True)
class Origin:
    """How the pairs of a matrix were made from rows: reading options, types of ids, exact sums and times.

    `rules` has the reading options that differ from their defaults. The types of the ids are "integers",
    "strings", or "untyped" for ids read from text. `times` has the time of the last event of each pair, in
    microseconds since 1970. `batches` names the batches that were added, the first data included. `columns`
    names the columns of the first table by role.
    """

    rules: dict[str, Any] = field(default_factory=dict)
    users: str = "integers"
    items: str = "integers"
    sums: Sums = field(default_factory=Sums)
    times: npt.NDArray[np.int64] | None = None
    # Whether a pair was dropped because its last row has the value 0.
    sets_to_zero: bool = False
    batches: tuple[str, ...] = ()
    # Whether the pairs are the entries of a matrix, which was not read from rows.
    is_matrix: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

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
        """Restore what `facts` returned; raise a TypeError or LookupError if the facts are wrong."""
        rules, grain, bound, batches = (facts[name] for name in ("rules", "grain", "bound", "batches"))
        types = facts["users"], facts["items"]
        columns = {str(role): str(name) for role, name in facts["columns"].items()}
        if (
            not (grain is None or type(grain) is int)
            or type(bound) is not float
            or any(type(batch) is not str for batch in batches)
            or any(one not in _ID_TYPES for one in types)
        ):
            raise TypeError("origin")
        return cls(rules, *types, Sums(sums, grain, bound), times, batches=tuple(batches), columns=columns)

    def facts(self) -> dict[str, Any]:
        """Return what a file keeps beside the arrays of sums and times, as JSON can hold it."""
        sums = self.sums
        kept = {"rules": self.rules, "users": self.users, "items": self.items, "batches": list(self.batches)}
        return {**kept, "columns": dict(self.columns), "grain": sums.grain, "bound": float(sums.bound)}

    @property
    def is_binary(self) -> bool:
        """Whether every pair counts 1."""
        return not ReadingOptions.of(**self.rules).rows_have_weights

    def only(self, keep: npt.NDArray[Any]) -> "Origin":
        """Return the origin of some of the pairs; `keep` is a mask, or indices in the order wanted."""
        times = None if self.times is None else self.times[keep]
        return replace(self, sums=self.sums.only(keep), times=times)

    @property
    def moving_window(self) -> int | None:
        """The window in microseconds, if it ends at the latest time; else None."""
        options = ReadingOptions.of(**self.rules)
        return None if options.now is not None else options.microseconds("window")

    def check_can_shrink(self, keep: npt.NDArray[np.bool_]) -> None:
        """Refuse to remove the latest pairs if their time decides what the window leaves out."""
        if self.moving_window is not None and self.times is not None and (
            self.times[keep].max() < self.times.max()
        ):  # fmt: skip
            raise DataError(
                "a user cannot be removed from data that was read with window and without now if the latest "
                "time, which decides what is left out, is theirs. Fit again on the other events, or remove "
                "the user when there are later ones."
            )

    def check_can_grow(self) -> None:
        """Refuse data to which no rows can be added exactly."""
        limits = [name for name in LIMITS if name in self.rules]
        moves = self.moving_window is not None and not (self.is_binary and self.times is not None)
        why = "leaves out what later events may bring back" if limits else "goes by the latest time"
        if limits or moves:
            raise DataError(
                f"nothing can be added to data that was read with {in_words(limits or ['window'])}, which "
                f"{why}. Fit again on all events."
            )


# Rows that are combined at one time; a 16th of all rows if that is more.
_AT_ONCE = 1 << 19


def combine_in_ranges(
    columns: dict[str, npt.NDArray[Any]], users: Ids, items: Ids, duplicates: str
) -> tuple[sp.csr_array, Sums, npt.NDArray[np.int64] | None]:
    """Combine rows as `combine` does, one range of users after the other; also return the last times.

    Memory holds little more than the rows and the result. `columns` has "user", "item" and "value", and
    "time" if the last time of each pair is wanted. The dictionary is emptied, so that its arrays can be
    freed.
    """
    user = columns["user"]
    is_binary = columns["value"].dtype == np.bool_
    shape = len(users), len(items)
    step = max(_AT_ONCE, len(user) // 16)
    ends = np.cumsum(np.bincount(user, minlength=len(users)))
    cuts = np.searchsorted(ends, np.arange(step, len(user), step)).tolist()
    # Reserve room for as many pairs as rows. The system provides memory only for what is written.
    item = np.empty(len(user), np.int32)
    total = np.empty(len(user), np.float64)
    time = np.empty(len(user) if "time" in columns else 0, np.int64)
    indptr = np.zeros(len(users) + 1, np.int64)
    sums: list[Sums] = []
    done = 0
    for start, stop in pairwise(sorted({0, *cuts, len(users)})):
        rows = np.flatnonzero((user >= start) & (user < stop))
        part = {role: column[rows] for role, column in columns.items()}
        matrix, range_sums = combine(part["user"], part["item"], part["value"], users, items, duplicates)
        pairs = slice(done, done := done + matrix.nnz)
        item[pairs] = matrix.indices
        indptr[1:] += matrix.indptr[1:]
        if not is_binary:
            total[pairs] = matrix.data if range_sums.values is None else range_sums.values
        if "time" in part:
            time[pairs] = last_times(part["user"], part["item"], part["time"], matrix)
        sums.append(range_sums._replace(values=None))
    columns.clear()
    del user, part, rows
    for array in (item, total, time):
        array.resize(min(done, len(array)), refcheck=False)
    data = np.ones(done, np.bool_) if is_binary else total.astype(np.float32)
    bound = max(one.bound for one in sums)
    grains = [one.grain for one in sums if one.grain is not None]
    joined = Sums(None, min(grains) if len(grains) == len(sums) else None, bound)
    if not joined.are_exact:
        joined = Sums(None, None)
    elif duplicates == "sum" and not is_binary:
        joined = joined._replace(values=total).shortened(data)
    kind = np.int32 if done < 2**31 else np.int64
    matrix = sp.csr_array((data, item, indptr.astype(kind)), shape=shape)
    return matrix, joined, time if len(time) else None


def combine(
    rows: Indices, columns: Indices, data: npt.NDArray[Any], users: Ids, items: Ids, duplicates: str
) -> tuple[sp.csr_array, Sums]:
    """Build a matrix of users × items from rows; also return the exact sums, to which more can be added.

    `duplicates` says how several rows of a pair combine: "sum", "max", "last", "first", or "error" to refuse
    them. "max" and "first" pass over values of 0. Pairs with the value 0 stay as stored zeros. `data` has
    values in single precision, or only True if every pair counts 1.
    """
    shape = (len(users), len(items))
    counts_pairs = data.dtype == np.bool_
    if duplicates in ("max", "last", "first") and not counts_pairs:
        chosen = _row_of_each_pair(rows.astype(np.int64) * shape[1] + columns, data, duplicates)
        rows, columns, data = rows[chosen], columns[chosen], data[chosen]
    adds = duplicates == "sum" and not counts_pairs
    wide = data.astype(np.float64) if adds else data
    matrix = sp.coo_array((wide, (rows, columns)), shape=shape).tocsr()
    if duplicates == "error" and matrix.nnz < len(rows):
        pair = np.sort(rows.astype(np.int64) * shape[1] + columns)
        u, i = divmod(int(pair[1:][pair[1:] == pair[:-1]][0]), shape[1])
        raise DataError(
            f"some rows repeat an earlier pair, such as user {users[u]!r} and item {items[i]!r}. Combine "
            'them with duplicates="sum", "max", "last" or "first".'
        )
    if not adds:
        return matrix, Sums()
    # The order of the rows must not matter. Double precision holds most sums exactly; otherwise the values of
    # a pair are added in a fixed order.
    sizes = matrix.data
    if data.min() < 0:
        sizes = sp.coo_array((np.abs(wide), (rows, columns)), shape=shape).tocsr().data
    total = matrix.data
    sums = sums_of(data, float(sizes.max()))
    if sums.are_exact:
        sums = sums._replace(values=total)
    else:
        order = np.lexsort((data, columns, rows))
        ordered = rows[order], columns[order]
        new = np.append(True, (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1]))
        total = np.add.reduceat(data[order], np.flatnonzero(new), dtype=np.float64)
        sums = Sums(None, None)
    with np.errstate(over="ignore"):
        matrix = sp.csr_array((total.astype(np.float32), matrix.indices, matrix.indptr), shape=shape)
    if not np.isfinite(matrix.data).all():
        entry = np.flatnonzero(~np.isfinite(matrix.data))[0]
        user = int(np.searchsorted(matrix.indptr, entry, "right")) - 1
        raise DataError(
            f"the values of user {users[user]!r} and item {items[matrix.indices[entry]]!r} add up to "
            "more than single precision holds. Scale them."
        )
    return matrix, sums.shortened(matrix.data)


def last_times(
    rows: Indices, columns: Indices, times: npt.NDArray[np.int64], matrix: sp.csr_array
) -> npt.NDArray[np.int64]:
    """Return the last time of each pair that `combine` has stored in the matrix."""
    # If no pair repeats, this takes a fraction of the time of sorting.
    if matrix.nnz == len(rows):
        return np.asarray(sp.coo_array((times, (rows, columns)), shape=matrix.shape).tocsr().data)
    pair = rows.astype(np.int64) * matrix.shape[1] + columns
    order = np.argsort(pair, kind="stable")
    first = np.flatnonzero(np.append(True, pair[order[1:]] != pair[order[:-1]]))
    return np.asarray(np.maximum.reduceat(times[order], first))


def _row_of_each_pair(
    pair: npt.NDArray[np.int64], data: npt.NDArray[Any], duplicates: str
) -> npt.NDArray[np.int64]:
    """Return the row that counts for each pair, in ascending order of the pairs."""
    if duplicates == "last":
        _, last = np.unique(pair[::-1], return_index=True)
        return np.asarray(len(pair) - 1 - last)
    preference = data if duplicates == "max" else -np.arange(len(pair))
    order = np.lexsort((preference, data != 0, pair))
    return np.asarray(order[np.append(pair[order[1:]] != pair[order[:-1]], True)])
