"""Read for whom to recommend: user ids, item ids, mappings, tables or matrices become rows of histories."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from os import PathLike
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted, warn
from mrfrec.core.ages import BLIND, Recency, Times
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Columns, Training
from mrfrec.data.ids import Id, Ids, Texts, as_list, is_table
from mrfrec.data.interactions import Interactions, as_histories
from mrfrec.data.reading_options import LIMITS, RULES, moment
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.state import FittedState
from mrfrec.io.tables import RowsBefore, read_events

LARGEST_VALUE = 1e30  # of an item in a history: sums of its products are finite in single precision
_USERS_AT_ONCE = 4096  # ranked and written as one batch


class UnknownIds(NamedTuple):
    """The ids of one parameter that the model does not know."""

    parameter: str
    ids: list[Id]
    total: int  # ids of the parameter, known and unknown

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


@dataclass(frozen=True)
class People:
    """For whom to recommend: a name for each row of histories."""

    names: Ids
    chosen: npt.NDArray[np.int64] | None  # positions of training users, −1 if unknown; None: all of them
    histories: Rows
    library: str | None = None  # of the data frame that named them, for tables of answers
    unknown: tuple[UnknownIds, ...] = ()
    times: Times | None = None  # of the entries of `histories`; None if they have no order
    are_times: bool = True  # or else places, which tell the order alone
    recency: Recency = BLIND  # how values fall with time
    is_anonymous: bool = False  # whether it is one history without a name
    as_ones: int = 0  # values of histories that count 1, since every pair of the model does

    def __len__(self) -> int:
        return len(self.names)

    @property
    def are_known(self) -> npt.NDArray[np.bool_]:
        """Whether each has used something that the model knows; all others get the most popular items."""
        ptr = self.histories.ptr
        if self.chosen is None:
            return ptr[1:] > ptr[:-1]
        return (self.chosen >= 0) & (ptr[self.chosen + 1] > ptr[self.chosen])

    def warn(self) -> None:
        """Warn of ids that the model does not know, and of values that it has no use for."""
        for each in self.unknown:
            each.warn()
        if self.as_ones:
            warn(
                f"history: {counted(self.as_ones, 'value')} other than 1 and -1: each counts 1, or -1 below "
                "0, as every pair of the training data does. To learn from values: binary=False (--values)."
            )

    def batches(self) -> Iterator[tuple[int, list[Id], Rows]]:
        """Yield the row at which a batch of users starts, their names, and their histories."""
        for start in range(0, len(self), _USERS_AT_ONCE):
            stop = min(start + _USERS_AT_ONCE, len(self))
            rows = self._rows(self.histories, start, stop)
            if self.times is not None and not self.recency.is_blind:
                times = self._rows(replace(self.histories, values=self.times, check=None), start, stop).values
                factors = self.recency.factors(rows.ptr, times, are_times=self.are_times)
                rows = replace(rows, values=rows.values * factors, check=None)
            yield start, self.names[start:stop], rows

    def _rows(self, histories: Rows, start: int, stop: int) -> Rows:
        """Return the histories of some people."""
        if self.chosen is None:
            return histories.span(start, stop)
        chosen = self.chosen[start:stop]
        known = histories.take(chosen[chosen >= 0])
        lengths = np.zeros(stop - start, np.int64)
        lengths[chosen >= 0] = np.diff(known.ptr)
        return replace(known, ptr=np.concatenate([[0], np.cumsum(lengths)]))


def people_of(fitted: FittedState, users: object = None, history: object = None) -> People:
    """Return the people that a question is about: users or histories; all training users if both are None.

    Histories may be people already. A user who is named several times counts once, with a warning.
    """
    if users is not None and history is not None:
        raise ParameterError("history", "None when users are given", history, "One of them says for whom.")
    recency = fitted.learned.recency
    if history is not None:
        people = history if isinstance(history, People) else _people_of_histories(history, fitted)
        return replace(_as_ones(people) if fitted.size.binary else people, recency=recency)
    training = fitted.training_for("recommending by user id")
    people = _people_of_users(users, training)
    times = None if training.origin is None else training.origin.times
    if times is None or recency.is_blind:
        return people
    return replace(people, times=times, recency=recency)


def _as_ones(people: People) -> People:
    """Let every item of the histories count 1, or −1 if it is disliked."""
    values = people.histories.values
    if values.dtype.kind == "b" or not (changed := int((values != np.sign(values)).sum())):
        return people
    return replace(people, histories=replace(people.histories, values=np.sign(values)), as_ones=changed)


def _people_of_users(users: object, training: Training) -> People:
    """Return training users by their ids; all of them if None."""
    if users is None:
        return People(training.users, None, training.histories)
    if isinstance(users, str | int | float | np.number):  # `find_ids` refuses floats
        users = [users]
    ids = as_list(users, "user", "users")
    places, unknown = find_ids(ids, training.users, "user", "users")
    if len(ids) > len(different := each_once(ids, "user")):
        ids = different
        places, unknown = find_ids(ids, training.users, "user", "users")
    try:
        names = Ids(Texts.of(ids) if training.users.is_text else _integers(ids, training.users))
    except OverflowError:
        raise DataError("user ids must fit 64 bits, and not be both below 0 and above 2**63.") from None
    return People(names, places, training.histories, _library_of(users), unknown)


def each_once(ids: list[Any], kind: str) -> list[Any]:
    """Return ids without repetitions; warn if there are any."""
    different = list(dict.fromkeys(ids))
    if repeated := len(ids) - len(different):
        warn(f"{repeated:,} of {len(ids):,} {kind} ids are repetitions; each {kind} counts once.")
    return different


def _integers(ids: list[int], known: Ids) -> npt.NDArray[Any]:
    """Return ids in the type of the known ones, or in another if an unknown id does not fit it."""
    wide = known.type == "uint64" and min(ids, default=0) >= 0
    return np.asarray(ids, np.uint64 if wide or max(ids, default=0) >= 2**63 else np.int64)


def _people_of_histories(history: object, fitted: FittedState) -> People:
    """Return people with histories in any of the forms that `Recommender.recommend` takes.

    An item without a value gets the usual one. Tables are read as the training data was.
    """
    items, usual = fitted.catalogue.items, fitted.usual_value
    if isinstance(history, np.ndarray) and history.ndim == 0:
        history = history.item()
    if isinstance(history, str | bytes | int | float | np.generic):
        raise ParameterError("history", "item ids in a list, not one alone", history, f"Try [{history!r}].")
    if isinstance(history, PathLike) or is_table(history) or not isinstance(history, Iterable):
        return _people_of_table(history, fitted)
    if isinstance(history, Mapping):
        of_one = int | float | np.number | date | np.datetime64
        if all(isinstance(value, of_one) for value in history.values()):
            return replace(_people_of_lists(Ids.range(1), [history], items, usual), is_anonymous=True)
        if (text := next((x for x in history.values() if isinstance(x, str)), None)) is not None:
            rule = "a mapping from items to numbers or datetimes, or from people to histories"
            raise ParameterError("history", rule, text, "Convert a time by datetime.fromisoformat(…).")
        return _people_of_lists(Ids.of(history, "user"), list(history.values()), items, usual)
    ids = as_list(history, "item", "history")
    # The check for iterables is slow, and plain ids do not need it.
    several = not {*map(type, ids)} <= {int, str} and any(
        isinstance(each, Iterable) and not isinstance(each, str | bytes) for each in ids
    )
    histories = ids if several else [ids]
    people = _people_of_lists(Ids.range(len(histories)), histories, items, usual, _library_of(history))
    return replace(people, is_anonymous=not several)


def _people_of_lists(
    names: Ids, histories: list[Any], items: Ids, usual: float, library: str | None = None
) -> People:
    """Return people with histories of item ids, or of mappings from these to values."""
    mappings: list[Any] = []
    times: list[list[int]] = []
    for history in histories:
        ids = history if isinstance(history, Mapping) else as_list(history, "item", "history")
        if (
            isinstance(ids, Mapping)
            and ids
            and all(isinstance(x, date | np.datetime64) for x in ids.values())
        ):
            times.append([_microseconds(x) for x in ids.values()])
            ids = dict.fromkeys(ids, usual)
        try:
            mappings.append(ids if isinstance(ids, Mapping) else _last_of_each(ids, usual))
        except TypeError:  # something in it cannot be an id
            raise ParameterError("history", "a sequence of item ids", history) from None
    if times and len(times) < len(histories):
        raise ParameterError("history", "with times for everybody, or for nobody", histories)
    are_lists = not times and not any(isinstance(history, Mapping) for history in histories)
    order = times or ([list(range(len(ids))) for ids in mappings] if are_lists else None)
    people = people_with_values(items, mappings, order)
    return replace(people, names=names, library=library, are_times=bool(times))


def _last_of_each(ids: Sequence[Any], usual: float) -> dict[Any, float]:
    """Return a value for each item of a list, where an item that comes again has its last place."""
    return dict.fromkeys(reversed(dict.fromkeys(reversed(ids))), usual)


def _microseconds(time: Any) -> int:
    """Return a time of a history, in microseconds since 1970."""
    if isinstance(time, np.datetime64):
        if np.isnat(time) or not 1 <= time.astype("datetime64[Y]").astype(np.int64) + 1970 <= 9999:
            raise ParameterError("history", "with times in the years 1 to 9999", time)
        return int(time.astype("datetime64[us]").astype(np.int64))
    return moment("history", time)


def people_with_values(
    items: Ids,
    histories: Sequence[Mapping[Any, float]],
    times: Sequence[Sequence[int]] | None = None,
) -> People:
    """Return people with histories that are mappings from item ids to values, and the times of these."""
    ids = [item for history in histories for item in history]
    try:
        x = np.array([value for history in histories for value in history.values()], np.float64)
    except (TypeError, ValueError):
        x = np.array([np.nan])
    if not (abs(x) <= LARGEST_VALUE).all():
        wrong = np.flatnonzero(~(abs(x) <= LARGEST_VALUE))[0] if len(x) == len(ids) else None
        got = "" if wrong is None else f"; got {x[wrong]:g} for {ids[wrong]!r}"
        limits = f"from -{LARGEST_VALUE:g} to {LARGEST_VALUE:g}"
        raise DataError(f"the values of a history must be finite numbers {limits}{got}.")
    owners = np.zeros(len(ids), np.int64)
    if len(histories) > 1:
        owners = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    places, unknown = find_ids(ids, items, "item", "history")
    rows = rows_of_pairs(owners, places, x, len(histories), items)
    people = People(Ids.range(len(histories)), None, rows, None, unknown)
    if times is None:
        return people
    flat = np.array([time for each in times for time in each], np.int64)
    return replace(people, times=_times_of_pairs(owners, places, x, flat))


def read_histories(fitted: FittedState, source: object, **columns: Any) -> Interactions:
    """Read a table by the rules of the training data, without its limits on users and items.

    A table without values is read without `min_value`.
    """
    rules = {name: x for name, x in fitted.rules.items() if name not in LIMITS}
    before = RowsBefore(fitted.columns)
    try:
        return read_events(source, before, **columns, **rules)
    except ParameterError as error:
        if error.name != "min_value":
            raise
    return read_events(source, before, **columns, **{**rules, "min_value": None})


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
        return People(Ids.range(len(rows)), None, rows)
    data = table if isinstance(table, Interactions) else read_histories(fitted, table)
    _check_rules(data, fitted.rules)
    pairs = data.matrix.tocoo()
    places, unknown = find_ids(data.items, items, "item", "history")
    where = pairs.coords[0], places[pairs.coords[1]]
    rows = rows_of_pairs(*where, pairs.data, data.n_users, items)
    times = None if data.times is None else _times_of_pairs(*where, pairs.data, data.times)
    return People(data.users, None, rows, data.library, unknown, times)


def _check_rules(data: Interactions, rules: Mapping[str, Any]) -> None:
    """Refuse histories that were read by other rules than the training data: the values would not compare."""
    if data.origin is None or data.origin.is_matrix:
        return
    of_rows = {*RULES} - {*LIMITS, "min_value"}  # the rules that say what a pair counts
    was, now = (
        {name: x for name, x in each.items() if name in of_rows} for each in (rules, data.origin.rules)
    )
    if was != now:
        raise DataError(
            f"the histories were read with {now or 'the defaults'}, the training data with "
            f"{was or 'the defaults'}. Read them alike: read_interactions(…, **model.reading_)."
        )


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
    """Return the rows of a matrix of histories, whose values fall with time as the model has it.

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
    factors = recency.factors(rows.ptr, given.astype(np.int64))
    return replace(rows, values=rows.values * factors)


def validation_rows(validation: object, m: int) -> tuple[Rows, Rows]:
    """Return the shown and the hidden items of validation users, for a model of m items.

    `validation` holds two matrices of users × items: in a pair, or as the attributes `shown` and `targets`.
    """
    pair = getattr(validation, "shown", None), getattr(validation, "targets", None)
    if pair == (None, None) and isinstance(validation, tuple | list) and len(validation) == 2:
        pair = validation[0], validation[1]
    if pair[0] is None or pair[1] is None:
        kind = type(validation).__name__
        raise DataError(f"validation must be two matrices, of shown and of hidden items; got {kind}.")
    shown, targets = (as_histories(X, "validation") for X in pair)
    if not shown.shape == targets.shape == (shown.shape[0], m):
        raise DataError(
            f"validation must be two matrices with a row for each person and the {m} items of the data as "
            f"columns; got {shown.shape[0]} × {shown.shape[1]} and {targets.shape[0]} × {targets.shape[1]}."
        )
    if both := int(shown.astype(bool).multiply(targets.astype(bool)).nnz):
        raise DataError(f"validation must not show the hidden items; {both:,} pairs are in both matrices.")
    return Rows.of(shown), Rows.of(targets)


def find_ids(
    ids: Iterable[Any], known: Ids, kind: str, parameter: str
) -> tuple[npt.NDArray[np.int64], tuple[UnknownIds, ...]]:
    """Return the positions of ids, −1 for unknown ones, and which these are."""
    wanted = ids if type(ids) is list else as_list(ids, kind, parameter)
    try:
        places = known.find(wanted, kind)
    except DataError as error:
        raise DataError(f"{parameter}: {error}") from None
    missing = [wanted[i] for i in (places < 0).nonzero()[0].tolist()]
    return places, (UnknownIds(parameter, missing, len(wanted)),) if missing else ()


def rows_of_pairs(
    owners: npt.NDArray[Any], places: npt.NDArray[Any], values: npt.NDArray[Any], count: int, items: Ids
) -> Rows:
    """Return `count` rows of items in ascending order, without unknown items (−1) and values of 0."""
    keep = (places >= 0) & (values != 0)
    if not keep.all():
        owners, places, values = owners[keep], places[keep], values[keep]
    if count == 1:  # as in nearly every request to a service
        order, ptr = places.argsort(kind="stable"), np.array([0, len(places)])
    else:
        order = np.lexsort((places, owners))
        ptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))])
    return Rows(ptr, places[order].astype(np.int32), values[order], len(items))


def _times_of_pairs(
    owners: npt.NDArray[Any], places: npt.NDArray[Any], values: npt.NDArray[Any], times: Times
) -> Times:
    """Return the times of the entries of `rows_of_pairs`, in their order."""
    keep = (places >= 0) & (values != 0)
    return np.asarray(times[keep][np.lexsort((places[keep], owners[keep]))])


def _library_of(values: object) -> str | None:
    """Return the library of a column of a data frame; None for anything else."""
    library = type(values).__module__.split(".")[0]
    return library if library in ("pandas", "polars", "pyarrow") and not is_table(values) else None


# ── what training users have, as the model keeps it ───────────────────────────────────────────────


def length_of_history(fitted: FittedState, user: Id) -> int | None:
    """Return the number of items of a training user; None if there is no such user."""
    training = fitted.training_for("user")
    place = int(training.users.find([user], "user")[0])
    return int(training.histories.ptr[place + 1] - training.histories.ptr[place]) if place >= 0 else None


def history_columns(fitted: FittedState, users: object) -> tuple[Columns, People]:
    """Return user, item, title, value unless all are 1, and time where it is known; and whose they are.

    The items of a user are in the order of their times, and at the same time in that of the model.
    """
    training = fitted.training_for("history", "Fit it again, and")
    people = people_of(fitted, users)
    if people.unknown:
        rule = "training users, whose ids users_ has"
        raise ParameterError("users", rule, people.unknown[0].ids[0], "Give recommend the history instead.")
    chosen = np.arange(len(people)) if people.chosen is None else people.chosen
    rows, times = training.histories, None if training.origin is None else training.origin.times
    lengths = np.diff(rows.ptr)[chosen]
    owner = np.repeat(np.arange(len(chosen)), lengths)
    entry = np.arange(len(owner)) + np.repeat(rows.ptr[chosen] - (np.cumsum(lengths) - lengths), lengths)
    if times is not None:
        entry = entry[np.lexsort((times[entry], owner))]  # which is stable
    columns = {"user": people.names.take(owner), **fitted.catalogue.columns(rows.items[entry])}
    if not fitted.size.binary:
        columns["value"] = rows.values[entry].astype(np.float64)
    if times is not None and times.min() != times.max():
        columns["time"] = times[entry].astype("datetime64[us]")
    return columns, people
