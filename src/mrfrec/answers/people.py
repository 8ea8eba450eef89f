"""Read whom a question is about: users and histories in any form become ids and rows, once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted, warn
from mrfrec.core.ages import BLIND, Recency, Times
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Training
from mrfrec.data.ids import Id, Ids, Texts, as_list, is_table
from mrfrec.data.interactions import Interactions, as_histories
from mrfrec.data.reading_options import LIMITS, RULES, moment
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.state import FittedState
from mrfrec.io.sources import SUFFIXES
from mrfrec.io.tables import RowsBefore, read_events

_LARGEST_VALUE = 1e30  # Sums of products of such values are finite in single precision.
_TIMES_FOR_ALL = "history must have times for all items, or for none."
_USERS_AT_ONCE = 4096  # users of a batch, who are ranked and written at once


class UnknownIds(NamedTuple):
    """The ids of one parameter that the model does not know."""

    parameter: str
    ids: list[Id]
    total: int  # number of ids of the parameter, known and unknown

    def warn(self) -> None:
        """Warn of how many there are."""
        count, first = f"{len(self.ids):,} of {self.total:,}", f"(the first is {self.ids[0]!r})"
        if self.parameter == "users":
            warn(f"{count} users are unknown to the model {first}; they get the most popular items.")
        else:
            text = f"{self.parameter}: {count} items are unknown to the model {first}; ignored."
            warn(f"{text} Find ids by title: search(…).")

    def refuse(self) -> NoReturn:
        """Raise an error that names the first of them."""
        rule = f"known to the model ({len(self.ids):,} of {self.total:,} are not), or strict left out"
        raise ParameterError(self.parameter, rule, self.ids[0])


class Batch(NamedTuple):
    """Some of the people, and their histories, whose values have been weighted by time."""

    start: int  # row of the first of them among all
    ids: list[Id]
    histories: Rows


@dataclass(frozen=True)
class People:
    """The users that a question is about: an id and a row of histories for each of them."""

    ids: Ids
    histories: Rows
    rows: npt.NDArray[np.int64] | None = None  # their rows in `histories`, −1 if unknown; None: all, in order
    library: str | None = None  # data frame library of the ids, for tables of answers
    unknown: tuple[UnknownIds, ...] = ()
    times: Times | None = None  # one for each entry of `histories`; None if these have no order
    are_times: bool = True  # False: `times` are numbers that only tell the order.
    recency: Recency = BLIND  # how the model weights values by time
    is_anonymous: bool = False  # True for one history without an id
    as_ones: int = 0  # number of values that were replaced by 1 or −1, since the training data has no others
    any_type: bool = False  # True: item ids of the wrong type are unknown. False: they are refused.

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def are_known(self) -> npt.NDArray[np.bool_]:
        """Boolean per user: the history has an item that the model knows."""
        ptr = self.histories.ptr
        if self.rows is None:
            return ptr[1:] > ptr[:-1]
        return (self.rows >= 0) & (ptr[self.rows + 1] > ptr[self.rows])

    def warn(self) -> None:
        """Warn of unknown ids, and of values that the model has no use for."""
        for unknown in self.unknown:
            unknown.warn()
        if self.as_ones:
            warn(
                f"history: {counted(self.as_ones, 'value')} other than 1 and -1: each counts 1, or -1 below "
                "0, as every pair of the training data does. To learn from values: binary=False (--values)."
            )

    def batches(self) -> Iterator[Batch]:
        """Yield a few thousand users at a time."""
        for start in range(0, len(self), _USERS_AT_ONCE):
            stop = min(start + _USERS_AT_ONCE, len(self))
            histories = self._span(self.histories, start, stop)
            if self.times is not None and not self.recency.is_blind:
                times = self._span(replace(self.histories, values=self.times, check=None), start, stop).values
                factors = self.recency.factors(histories.ptr, times, are_times=self.are_times)
                histories = replace(histories, values=histories.values * factors, check=None)
            yield Batch(start, self.ids[start:stop], histories)

    def _span(self, entries: Rows, start: int, stop: int) -> Rows:
        """Return the rows of the users `start` to `stop`; unknown users have empty ones."""
        if self.rows is None:
            return entries.span(start, stop)
        rows = self.rows[start:stop]
        known = entries.take(rows[rows >= 0])
        lengths = np.zeros(stop - start, np.int64)
        lengths[rows >= 0] = np.diff(known.ptr)
        return replace(known, ptr=np.concatenate([[0], np.cumsum(lengths)]))


def people_of(
    fitted: FittedState, users: object = None, history: object = None, *, any_type: bool = False
) -> People:
    """Return the people that a question is about: users or histories; all training users if both are None.

    A user who is named several times counts once, with a warning.

    Parameters
    ----------
    history
        In any form that `Recommender.recommend` takes. In a mapping from items to values, None stands for
        the usual value; a mapping to None alone has its items in order, as a list.
    any_type
        Item ids of the wrong type are unknown; otherwise they are refused.
    """
    recency = fitted.learned.recency
    if history is None:
        training = fitted.training_for("recommending by user id")
        people = replace(_people_of_users(users, training), any_type=any_type)
        times = None if training.origin is None else training.origin.times
        if times is None or recency.is_blind:
            return people
        return replace(people, times=times, recency=recency)
    if users is not None:
        raise ParameterError("history", "None when users are given", history, "One of them says for whom.")
    people = _people_of_histories(history, fitted, any_type)
    return replace(_as_ones(people) if fitted.size.binary else people, recency=recency, any_type=any_type)


def _as_ones(people: People) -> People:
    """Let every item of the histories count 1, or −1 if it is disliked."""
    values = people.histories.values
    if values.dtype.kind == "b" or not (changed := int((values != np.sign(values)).sum())):
        return people
    return replace(people, histories=replace(people.histories, values=np.sign(values)), as_ones=changed)


# ── users ─────────────────────────────────────────────────────────────────────────────────────────


def _people_of_users(users: object, training: Training) -> People:
    """Return training users by their ids; all of them if None."""
    if users is None:
        return People(training.users, training.histories)
    if isinstance(users, str | int | float | np.number):  # `find_ids` refuses floats.
        users = [users]
    listed = as_list(users, "user", "users")
    rows, unknown = find_ids(listed, training.users, "user", "users")
    if len(listed) > len(different := without_repetitions(listed, "user")):
        listed = different
        rows, unknown = find_ids(listed, training.users, "user", "users")
    try:
        ids = Ids(Texts.of(listed) if training.users.is_text else _integers(listed, training.users))
    except OverflowError:
        raise DataError("user ids must fit 64 bits, and not be both below 0 and above 2**63.") from None
    return People(ids, training.histories, rows, _library_of(users), unknown)


def without_repetitions(ids: list[Any], kind: str) -> list[Any]:
    """Return ids without repetitions; warn if there are any."""
    different = list(dict.fromkeys(ids))
    if repeated := len(ids) - len(different):
        warn(f"{repeated:,} of {len(ids):,} {kind} ids are repetitions; each {kind} counts once.")
    return different


def _integers(ids: list[int], known: Ids) -> npt.NDArray[Any]:
    """Return ids in the type of the known ones, or in another if an unknown id does not fit it."""
    wide = known.type == "uint64" and min(ids, default=0) >= 0
    return np.asarray(ids, np.uint64 if wide or max(ids, default=0) >= 2**63 else np.int64)


def length_of_history(fitted: FittedState, user: Id) -> int | None:
    """Return the number of items of a training user; None if there is no such user."""
    training = fitted.training_for("user")
    row = int(training.users.find([user], "user")[0])
    return int(training.histories.ptr[row + 1] - training.histories.ptr[row]) if row >= 0 else None


# ── histories ─────────────────────────────────────────────────────────────────────────────────────


def _people_of_histories(history: object, fitted: FittedState, any_type: bool) -> People:
    """Return people with histories in one of the forms that `Recommender.recommend` takes."""
    if isinstance(history, np.ndarray) and history.ndim == 0:
        history = history.item()
    if isinstance(history, str | bytes | int | float | np.generic):
        is_file = isinstance(history, str) and Path(history).suffix.lower() in SUFFIXES
        advice = f"A file is Path({history!r})." if is_file else f"Try [{history!r}]."
        raise ParameterError("history", "item ids in a list, not one alone", history, advice)
    if isinstance(history, PathLike) or is_table(history) or not isinstance(history, Iterable):
        return _people_of_table(history, fitted)
    if isinstance(history, Mapping):
        of_one = int | float | np.number | date | np.datetime64 | None
        if all(isinstance(value, of_one) for value in history.values()):
            people = _people_of_lists(Ids.range(1), [history], fitted, any_type)
            return replace(people, is_anonymous=True)
        if (text := next((x for x in history.values() if isinstance(x, str)), None)) is not None:
            rule = "a mapping from items to numbers or datetimes, or from people to histories"
            raise ParameterError("history", rule, text, "Convert a time by datetime.fromisoformat(…).")
        return _people_of_lists(Ids.of(history, "user"), list(history.values()), fitted, any_type)
    _refuse_index(history)
    listed = as_list(history, "item", "history")
    # The check for iterables is slow, and plain ids do not need it.
    several = not {*map(type, listed)} <= {int, str} and any(
        isinstance(x, Iterable) and not isinstance(x, str | bytes) for x in listed
    )
    histories = listed if several else [listed]
    people = _people_of_lists(Ids.range(len(histories)), histories, fitted, any_type)
    return replace(people, is_anonymous=not several, library=_library_of(history))


def _people_of_lists(ids: Ids, histories: list[Any], fitted: FittedState, any_type: bool) -> People:
    """Return people with histories that are lists of items, or mappings from items to values or times."""
    items, usual = fitted.catalogue.items, fitted.usual_value
    entries = [_entries(history) for history in histories]
    listed = [item for items_of_one, _, _ in entries for item in items_of_one]
    notes = [note for _, notes_of_one, _ in entries for note in notes_of_one]
    lengths = [len(items_of_one) for items_of_one, _, _ in entries]
    forms = {form for items_of_one, _, form in entries if items_of_one}
    if "times" in forms and len(forms) > 1:
        raise DataError(_TIMES_FOR_ALL)
    times = None
    values = np.full(len(listed), usual)
    if "times" in forms:
        times = np.array([_microseconds(time) for time in notes], np.int64)
    elif "values" not in forms:
        times = np.array([index for length in lengths for index in range(length)], np.int64)
    else:
        values = _checked_values(listed, [usual if x is None else x for x in notes])
    owners = np.repeat(np.arange(len(histories)), lengths)
    indices, unknown = find_ids(listed, items, "item", "history", any_type)
    rows, order = rows_of_pairs(owners, indices, values, len(histories), len(items))
    times = None if times is None else times[order]
    return People(ids, rows, None, None, unknown, times, are_times="times" in forms)


def _entries(history: Any) -> tuple[list[Id], list[Any], str]:
    """Return the items of a history, what it says of them, and what that is: order, values or times."""
    if isinstance(history, Mapping) and any(x is not None for x in history.values()):
        are_times = {isinstance(x, date | np.datetime64) for x in history.values()}
        if len(are_times) == 2:
            raise DataError(_TIMES_FOR_ALL)
        return [*history], [*history.values()], "times" if True in are_times else "values"
    _refuse_index(history)
    listed = [*history] if isinstance(history, Mapping) else as_list(history, "item", "history")
    try:  # An item that is listed twice counts where it comes last.
        listed = [*dict.fromkeys(reversed(listed))][::-1]
    except TypeError:  # Something in it cannot be an id.
        raise ParameterError("history", "a sequence of item ids", history) from None
    return listed, [None] * len(listed), "order"


def _refuse_index(history: Any) -> None:
    """Refuse a Series of pandas whose index may hold the items, as that of value_counts() does.

    Rows of a frame keep its index: the Series then has the name of a column, and the index has none.
    """
    if _library_of(history) != "pandas" or not hasattr(history, "index"):
        return
    is_column = history.name not in (None, "count") and history.index.name is None
    if not is_column and [*history.index] != [*range(len(history))]:
        rule = "a Series of items with the index 0, 1, …, or a list or a mapping"
        advice = (
            "If its values are items, give series.tolist(); if its index has the items, series.to_dict()."
        )
        raise ParameterError("history", rule, "a Series with another index", advice)


def _microseconds(time: Any) -> int:
    """Return a time of a history, in microseconds since 1970."""
    if isinstance(time, np.datetime64):
        if np.isnat(time) or not 1 <= time.astype("datetime64[Y]").astype(np.int64) + 1970 <= 9999:
            raise ParameterError("history", "with times in the years 1 to 9999", time)
        return int(time.astype("datetime64[us]").astype(np.int64))
    return moment("history", time)


def _checked_values(ids: Sequence[Id], given: list[Any]) -> npt.NDArray[np.float64]:
    """Return the values of a history as numbers; refuse what is none, or too large."""
    try:
        values = np.array(given, np.float64)
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if not (abs(values) <= _LARGEST_VALUE).all():
        wrong = np.flatnonzero(~(abs(values) <= _LARGEST_VALUE))[0] if len(values) == len(ids) else None
        got = "" if wrong is None else f"; got {values[wrong]:g} for {ids[wrong]!r}"
        limits = f"from -{_LARGEST_VALUE:g} to {_LARGEST_VALUE:g}"
        raise DataError(f"the values of a history must be finite numbers {limits}{got}.")
    return values


def read_histories(fitted: FittedState, source: object, **columns: Any) -> Interactions:
    """Read a table of users and items as the training data was read, without its limits on users and items.

    A table without values is read without `min_value`.
    """
    options = {name: x for name, x in fitted.rules.items() if name not in LIMITS}
    before = RowsBefore(fitted.columns)
    try:
        return read_events(source, before, **columns, **options)
    except ParameterError as error:
        if error.name != "min_value":
            raise
    return read_events(source, before, **columns, **{**options, "min_value": None})


def _people_of_table(table: Any, fitted: FittedState) -> People:
    """Return people with the histories of a data frame, a file, or a matrix with the model's columns."""
    items = fitted.catalogue.items
    if getattr(table, "shape", (0, 0))[1] == 1 and not hasattr(table, "tocsr"):
        raise DataError(
            "history must be a table of users and items, or the item ids of one person; got a "
            f'{type(table).__name__} with one column. Give that column, such as table["item"].'
        )
    if hasattr(table, "tocsr"):
        rows = matrix_rows(table, items, "history")
        return People(Ids.range(len(rows)), rows)
    data = table if isinstance(table, Interactions) else read_histories(fitted, table)
    _check_reading(data, fitted.rules)
    pairs = data.matrix.tocoo()
    indices, unknown = find_ids(data.items, items, "item", "history")
    rows, order = rows_of_pairs(
        pairs.coords[0], indices[pairs.coords[1]], pairs.data, data.n_users, len(items)
    )
    times = None if data.times is None else data.times[order]
    return People(data.users, rows, None, data.library, unknown, times)


def _check_reading(data: Interactions, options: Mapping[str, Any]) -> None:
    """Refuse histories that were read unlike the training data: their values would not compare."""
    if data.origin is None or data.origin.is_matrix:
        return
    of_values = {*RULES} - {*LIMITS, "min_value"}  # the options that decide what a pair counts
    was, now = (
        {name: x for name, x in each.items() if name in of_values} for each in (options, data.origin.rules)
    )
    if was != now:
        raise DataError(
            f"the histories were read with {now or 'the defaults'}, the training data with "
            f"{was or 'the defaults'}. Read them alike: read_interactions(…, **model.reading_)."
        )


def _library_of(values: object) -> str | None:
    """Return the library of a column of a data frame; None for anything else."""
    library = type(values).__module__.split(".")[0]
    return library if library in ("pandas", "polars", "pyarrow") and not is_table(values) else None


# ── matrices of histories ─────────────────────────────────────────────────────────────────────────


def matrix_rows(matrix: object, items: Ids, name: str) -> Rows:
    """Return the rows of a `scipy.sparse` matrix whose columns are the items of a model."""
    histories = as_histories(matrix, name)
    if histories.shape[1] != len(items):
        raise DataError(
            f"{name} must have the {len(items)} items the model was fitted on, as columns in the same order; "
            f"got {histories.shape[1]}."
        )
    return Rows.of(histories)


def timed_rows(matrix: object, fitted: FittedState, times: object) -> Rows:
    """Return the rows of a matrix of histories, whose values the model weights by time.

    `times` are those of its stored entries, in microseconds.
    """
    rows = matrix_rows(matrix, fitted.catalogue.items, "X_history")
    if times is None:
        return rows
    given, count = np.asarray(times), len(rows.items)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise ParameterError("times", f"{count:,} whole numbers of microseconds, one for each entry", times)
    recency = fitted.learned.recency
    if recency.is_blind:
        return rows
    return replace(rows, values=rows.values * recency.factors(rows.ptr, given.astype(np.int64)))


def validation_rows(validation: object, m: int) -> tuple[Rows, Rows]:
    """Return the shown and the hidden items of validation users, for a model of m items.

    `validation` holds two matrices of users × items: in a pair, or as the attributes `shown` and `targets`.
    """
    pair = getattr(validation, "shown", None), getattr(validation, "targets", None)
    if pair == (None, None) and isinstance(validation, tuple | list) and len(validation) == 2:
        pair = validation[0], validation[1]
    if pair[0] is None or pair[1] is None:
        got = type(validation).__name__
        raise DataError(f"validation must be two matrices, of shown and of hidden items; got {got}.")
    shown, targets = (as_histories(X, "validation") for X in pair)
    if not shown.shape == targets.shape == (shown.shape[0], m):
        raise DataError(
            f"validation must be two matrices with a row for each person and the {m} items of the data as "
            f"columns; got {shown.shape[0]} × {shown.shape[1]} and {targets.shape[0]} × {targets.shape[1]}."
        )
    if both := int(shown.astype(bool).multiply(targets.astype(bool)).nnz):
        raise DataError(f"validation must not show the hidden items; {both:,} pairs are in both matrices.")
    return Rows.of(shown), Rows.of(targets)


# ── ids and pairs ─────────────────────────────────────────────────────────────────────────────────


def find_ids(
    ids: Iterable[Any], known: Ids, kind: str, parameter: str, any_type: bool = False
) -> tuple[npt.NDArray[np.int64], tuple[UnknownIds, ...]]:
    """Return the index of every id, −1 for unknown ones, and which ones are unknown.

    With `any_type`, ids of the wrong type are unknown; otherwise they are refused.
    """
    wanted = ids if type(ids) is list else as_list(ids, kind, parameter)
    right = str if known.is_text else int
    try:
        if any_type and any(type(x) is not right for x in wanted):
            indices = np.full(len(wanted), -1, np.int64)
            indices[[type(x) is right for x in wanted]] = known.find(
                [x for x in wanted if type(x) is right], kind
            )
        else:
            indices = known.find(wanted, kind)
    except DataError as error:
        raise DataError(f"{parameter}: {error}") from None
    missing = [wanted[i] for i in (indices < 0).nonzero()[0].tolist()]
    return indices, (UnknownIds(parameter, missing, len(wanted)),) if missing else ()


def rows_of_pairs(
    owners: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], count: int, width: int
) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Return `count` rows of items in ascending order, and the pair that each entry comes from.

    Pairs with an unknown item (−1) or the value 0 are left out.
    """
    kept = np.flatnonzero((indices >= 0) & (values != 0))
    if count == 1:  # Nearly all requests to a service have one history.
        order, ptr = kept[indices[kept].argsort(kind="stable")], np.array([0, len(kept)])
    else:
        order = kept[np.lexsort((indices[kept], owners[kept]))]
        ptr = np.concatenate([[0], np.cumsum(np.bincount(owners[kept], minlength=count))])
    return Rows(ptr, indices[order].astype(np.int32), values[order], width), order
