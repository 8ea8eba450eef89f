"""For whom to recommend: user ids, item ids, mappings, tables or matrices → rows of histories."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.checks import warn
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import Training
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.errors import DataError, ParameterError

__all__ = ["Query", "library_of_column", "of_histories", "of_users", "positions", "validation_of"]

_USERS_AT_ONCE = 4096  # ranked and written as one piece


@dataclass(frozen=True)
class Query:
    """For whom to recommend: a name for each row of histories."""

    names: Ids
    chosen: npt.NDArray[np.int64] | None  # positions of the training users asked for, −1 unknown; None: all
    histories: Rows
    library: str | None  # of the data frame that asked

    def __len__(self) -> int:
        return len(self.names)

    def pieces(self) -> Iterator[tuple[list[Id], Rows]]:
        """A few users at a time, with their histories."""
        for start in range(0, len(self.names), _USERS_AT_ONCE):
            stop = min(start + _USERS_AT_ONCE, len(self.names))
            if self.chosen is None:
                rows = self.histories.span(start, stop)
            else:
                chosen = self.chosen[start:stop]
                known = self.histories.take(chosen[chosen >= 0])
                lengths = np.zeros(stop - start, np.int64)
                lengths[chosen >= 0] = np.diff(known.ptr)
                rows = replace(known, ptr=np.concatenate([[0], np.cumsum(lengths)]))
            yield self.names[start:stop], rows


def of_users(users: object, training: Training) -> Query:
    """Training users by their ids; all of them if None."""
    if users is None:
        return Query(training.users, None, training.histories, None)
    if isinstance(users, str | int | np.integer):
        users = [users]
    if not isinstance(users, Iterable):
        raise ParameterError("users", "an id or a sequence of ids", users)
    ids = _as_list(users)
    found = training.users.find(ids, "user")
    if (found < 0).any():
        warn(
            f"{int((found < 0).sum()):,} of {len(found):,} users are unknown to the model; they get the most "
            "popular items."
        )
    # Names as they were asked for: in that order, and as often.
    wide = np.uint64 if not training.users.is_text and ids and max(ids) >= 2**63 else np.int64
    names = Ids(Texts.of(ids) if training.users.is_text else np.asarray(ids, wide))
    return Query(names, found, training.histories, library_of_column(users))


def of_histories(history: object, items: Ids, binary: bool) -> Query:
    """Histories in any of the forms `Recommender.recommend` takes, for a model of these items."""
    if isinstance(history, str):
        raise ParameterError("history", "item ids in a list, not one text", history, f"Try [{history!r}].")
    library = library_of_column(history)
    if isinstance(history, Mapping) and not all(
        isinstance(x, int | float | np.number) for x in history.values()
    ):
        return Query(Ids.of(history, "user"), None, _rows(list(history.values()), items), None)
    if library or isinstance(history, Mapping | set | frozenset | tuple | list | np.ndarray):
        nested = (list, tuple, set, frozenset, Mapping, np.ndarray)
        one = history if isinstance(history, Mapping) else _as_list(history)
        given = one if isinstance(one, list) and any(isinstance(each, nested) for each in one) else [one]
        return Query(Ids.range(len(given)), None, _rows(given, items), library)
    return _of_table(history, items, binary)


def _rows(histories: list[Any], items: Ids) -> Rows:
    """Histories given as item ids, or as mappings from these to values; unknown items are left out."""
    ids: list[Any] = []
    values: list[float] = []
    ptr = [0]
    for history in histories:
        if isinstance(history, str) or not isinstance(history, Iterable):
            raise ParameterError("history", "a sequence of item ids", history)
        given = history if isinstance(history, Mapping) else dict.fromkeys(history, 1.0)
        ids += given
        values += given.values()
        ptr.append(len(ids))
    try:
        x = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        x = np.array([np.nan])
    if not np.isfinite(x).all():
        raise DataError("the values of a history must be finite numbers.")
    owner = np.repeat(np.arange(len(histories)), np.diff(ptr))
    return _in_order(owner, positions(ids, items, "history"), x, len(histories), items)


def _of_table(table: object, items: Ids, binary: bool) -> Query:
    """Histories in a data frame or a file, or the rows of a matrix with the model's columns."""
    from mrfrec.data.interactions import Interactions, as_histories
    from mrfrec.io.tables import read_interactions

    if hasattr(table, "tocsr"):
        matrix = as_histories(table, "history")
        if matrix.shape[1] != len(items):
            raise DataError(
                f"history must have the {len(items)} items the model was fitted on, as columns in the same "
                f"order; got {matrix.shape[1]}."
            )
        return Query(Ids.range(matrix.shape[0]), None, Rows.of(matrix), None)
    data = table if isinstance(table, Interactions) else read_interactions(table, binary=binary)
    pairs = data.matrix.tocoo()
    place = positions(data.items, items, "history")[pairs.coords[1]]
    return Query(
        data.users, None, _in_order(pairs.coords[0], place, pairs.data, data.n_users, items), data.library
    )


def _in_order(
    owner: npt.NDArray[Any], place: npt.NDArray[Any], values: npt.NDArray[Any], count: int, items: Ids
) -> Rows:
    """Rows of known items, ascending, as everywhere."""
    keep = (place >= 0) & (values != 0)
    owner, place, values = owner[keep], place[keep], values[keep]
    order = np.lexsort((place, owner))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])
    return Rows(ptr, place[order].astype(np.int32), values[order], len(items))


def positions(ids: Iterable[Any], items: Ids, name: str) -> npt.NDArray[np.int64]:
    """Of items by their ids, −1 for unknown ones, which are counted in a warning."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ParameterError(name, "a sequence of item ids", ids)
    found = items.find(ids, "item")
    if (found < 0).any():
        warn(f"{name}: {int((found < 0).sum()):,} of {len(found):,} items are unknown to the model; ignored.")
    return found


def _as_list(given: Any) -> list[Any]:
    """A column or sequence as plain Python values."""
    for way in ("to_pylist", "to_list", "tolist"):  # pyarrow, pandas and polars, numpy
        if hasattr(given, way):
            return list(getattr(given, way)())
    return list(given)


def library_of_column(given: object) -> str | None:
    """The library of a column of a data frame; None for anything else."""
    library = type(given).__module__.split(".")[0]
    is_column = (
        hasattr(given, "__iter__") and not hasattr(given, "columns") and not isinstance(given, Mapping)
    )
    return library if library in ("pandas", "polars", "pyarrow") and is_column else None


def validation_of(validation: object, m: int) -> tuple[Rows, Rows]:
    """Two matrices of people × items, or what has them as `shown` and `targets`."""
    from mrfrec.data.interactions import as_histories

    pair = getattr(validation, "shown", None), getattr(validation, "targets", None)
    if pair == (None, None) and isinstance(validation, tuple | list) and len(validation) == 2:
        pair = validation[0], validation[1]
    if pair[0] is None or pair[1] is None:
        kind = type(validation).__name__
        raise DataError(
            f"validation must be two matrices, what people show and what is to be guessed; got {kind}."
        )
    shown, targets = (as_histories(X, "validation") for X in pair)
    if not shown.shape == targets.shape == (shown.shape[0], m):
        raise DataError(
            f"validation must be two matrices with a row for each person and the {m} items of the data as "
            f"columns; got {shown.shape[0]} × {shown.shape[1]} and {targets.shape[0]} × {targets.shape[1]}."
        )
    both = int((shown.astype(bool).multiply(targets.astype(bool))).nnz)
    if both:
        raise DataError(
            f"validation must not show what is to be guessed; {both:,} pairs are in both matrices."
        )
    return Rows.of(shown), Rows.of(targets)
