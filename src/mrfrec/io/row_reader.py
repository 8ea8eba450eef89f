"""Read the rows of tables: refuse or skip bad rows, number the ids, combine the rows of a pair.

A row takes two small integers, a value and a time in memory, in the order of the table.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import counted, in_words, shortened
from mrfrec.core.engine import Progress
from mrfrec.data.erasures import NEVER, Erasures, are_erased, text_of
from mrfrec.data.ids import Texts, first_titles
from mrfrec.data.pairs import DataNote, Sums, combine_in_ranges
from mrfrec.data.reading_options import ReadingOptions
from mrfrec.data.times import (
    MICROSECONDS_UNKNOWN,
    UNITS,
    UNKNOWN,
    Faults,
    TimeColumn,
    Times,
    advice_on_time,
    note_on_future,
    notes_on_times,
    shown,
    tell,
)
from mrfrec.errors import DataError, EmptyTableError
from mrfrec.io.batches import (
    BLANK,
    FAULT,
    ID_ROLES,
    INT64_MAX,
    UNREAD,
    Roles,
    Source,
    Types,
    not_an_integer,
    reading,
    typed_columns,
    written_as_missing,
)
from mrfrec.io.columns import (
    UnreadColumn,
    UnreadEvents,
    check_that_columns_agree,
    name_list,
    note_on_titles,
)
from mrfrec.io.id_numbering import TEXT_IDS, IdNumbering, note_on_floats

_log = logging.getLogger("mrfrec")

# Rows to reserve at first; the system provides memory only for what is written.
_ROOM = 1 << 23
# Rows that are handled at one time.
_SLICE = 1 << 18
_OR_SKIP = ', or leave such rows out: on_bad="skip" of read_interactions (--on-bad skip)'


class RowReader:
    """Collects the rows of tables.

    Rows with a value below `min_value` are left out first, then rows before `since` or from `until` on, then
    rows whose kind of event counts 0, then rows that are older than the window.

    Rows later than `latest` are bad. With `missing_time="oldest"`, a row without a time gets the oldest time
    of all rows and of `oldest`. Both times are microseconds since 1970.
    """

    def __init__(
        self,
        options: ReadingOptions | None = None,
        *,
        latest: int | None = None,
        oldest: int | None = None,
        erased: Erasures | None = None,
    ) -> None:
        self.options = options or ReadingOptions.of()
        self._erased = erased or Erasures()
        # The end of the erasure for the number of each user; see `Erasures.ends`.
        self._ends = np.empty(0, np.int64)
        self.erased_rows, self._erased_users = 0, set[int]()
        self._or_skip = "" if options is None else _OR_SKIP
        # Tables of events are checked for ids such as NULL, unless their ids are said to be texts.
        self._with_missing = () if options is None else {*ID_ROLES} - {*options.text_ids}
        self.users = IdNumbering("user", is_text="user" in self.options.text_ids)
        self.items = IdNumbering("item", is_text="item" in self.options.text_ids)
        self.is_binary = not self.options.rows_have_weights
        # Reason → number of skipped rows, and column → the parameters that would use it.
        self.skipped: dict[str, int] = {}
        self.unused: dict[str, str] = {}
        # Columns of ids that are floats; a note about a column comes once.
        self._warned_of: set[tuple[str, str]] = set()
        # Numbers of rows. `expected` is 0 if it is unknown.
        self.read_rows = self.kept_rows = self.expected = 0
        self.notes: list[DataNote] = []
        # Columns that are only looked at.
        self.unread: dict[str, UnreadColumn | UnreadEvents] = {}
        # Whether rows of a table without a column of times count as the oldest.
        self.fills_times = False
        self._oldest = oldest
        self._times = TimeColumn(latest)
        # The columns of times in the order of the tables.
        self._time_columns: dict[str, None] = {}
        # The latest time that `since` and `until` keep.
        self._latest = -INT64_MAX
        self._rows = _GrowingColumns()
        # The first and the last title of each item in alphabetical order.
        self._titles = pl.DataFrame(schema={"code": pl.Int32, "first": pl.String, "last": pl.String})

    def read(self, table: Source, roles: Roles, progress: Progress | None) -> None:
        self._time_columns |= {roles[role]: None for role in ("time",) if role in roles}
        types = {"user": self.users.texts.dtype, "item": self.items.texts.dtype}
        for batch in self.good_rows(table, roles, types):
            for name, column in self.unread.items():
                if f"{UNREAD}{name}" in roles:
                    column.add(batch[f"{UNREAD}{name}"])
            if self.options.min_value is not None:
                batch = batch.filter(batch["value"].to_numpy() >= np.float32(self.options.min_value))
            if self.fills_times and "time" not in roles:
                batch = batch.with_columns(time=pl.lit(MICROSECONDS_UNKNOWN))
            if "time" in batch.columns:
                batch = batch.filter(_are_within(batch["time"].to_numpy(), self.options))
            if "event" in roles:
                where = f"{table.name}, column {roles['event']!r}"
                weights = _weights_of_kinds(batch["event"], self.options.event_weights or {}, where)
                batch = batch.with_columns(weight=weights).filter(pl.col("weight") != 0)
            if len(batch):
                rows: dict[str, npt.NDArray[Any]] = {
                    "user": self.users.encode(batch["user"], table, roles["user"], batch["row"]),
                    "item": self.items.encode(batch["item"], table, roles["item"], batch["row"]),
                }
                if "value" in roles and not self.options.binary:
                    rows["value"] = batch["value"].to_numpy()
                if "event" in roles:
                    rows["value"] = _product(rows.get("value"), batch["weight"].to_numpy(), table.name)
                if "time" in batch.columns:
                    rows["time"] = batch["time"].to_numpy()
                if "title" in roles:
                    named = pl.DataFrame(
                        {"code": rows["item"], "first": batch["title"], "last": batch["title"]}
                    )
                    named = pl.concat([self._titles, named.filter(pl.col("first") != "")])
                    self._titles = named.group_by("code").agg(pl.min("first"), pl.max("last"))
                self._append(rows)
            if progress is not None:
                # The expected number is an estimate and may be too small.
                progress("reading", self.read_rows, self.expected and max(self.expected, self.read_rows + 1))

    def _without_erased(self, rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Leave out, and count, the rows of forgotten people up to the day of the erasure."""
        user = rows["user"]
        if len(new := np.arange(len(self._ends), int(user.max(initial=-1)) + 1)):
            ends = self._erased.ends(self.users.texts_of(new))
            self._ends = np.append(self._ends, np.full(len(new), NEVER) if ends is None else ends)
        erased = are_erased(self._ends[user], rows.get("time"))
        self.erased_rows += int(erased.sum())
        self._erased_users |= {*np.unique(user[erased]).tolist()}
        return {role: column[~erased] for role, column in rows.items()} if erased.any() else rows

    def _append(self, rows: dict[str, npt.NDArray[Any]]) -> None:
        """Keep rows, except rows that the window leaves out whatever comes later."""
        if len(self._erased):
            rows = self._without_erased(rows)
        if not len(rows["user"]):
            return
        if self.options.window is not None:
            times = rows["time"]
            self._latest = max(self._latest, int(times.max()))
            recent = _are_recent(times, self.options, self._latest)
            rows = rows if recent.all() else {role: column[recent] for role, column in rows.items()}
        self._rows.append(rows)

    def good_rows(
        self, table: Source, roles: Roles, types: Types | None = None, prefix: str = ""
    ) -> Iterator[pl.DataFrame]:
        """Yield the good rows in batches. Count bad rows in `skipped`, or raise an error about the first."""
        row = passed = bad_rows = 0
        refused: tuple[str, str] | None = None
        for batch in table.batches(roles, types or {}):
            with reading(table.name):
                check_that_columns_agree(table, roles, batch, row)
                typed, faults = typed_columns(batch, table, roles, types or {}, self._with_missing)
                if "time" in roles:
                    typed = self._with_times(typed, faults, table, roles["time"])
            # Keep the first fault of each row, or null.
            faults_of_rows = [
                pl.when(rows).then(pl.lit(why)) for why, (rows, _) in faults.items() if rows.any()
            ]
            shape = batch[FAULT] if FAULT in batch.columns else pl.repeat(None, len(batch), dtype=pl.String)
            why = pl.select(pl.coalesce(shape, *faults_of_rows)).to_series()
            bad = (why != BLANK).fill_null(False)
            if self.options.on_bad == "refuse":
                if bad.any() and not refused:
                    refused = _refusal(table, row, batch, why, int(bad.arg_true()[0]), faults)
                bad_rows += int(bad.sum())
            else:
                for reason, count in Counter(why.filter(bad).to_list()).items():
                    self.skipped[prefix + reason] = self.skipped.get(prefix + reason, 0) + count
            for role in (role for role in ID_ROLES if role in roles and not refused):
                if not batch[role].dtype.is_float():
                    continue
                where = f"column {roles[role]!r} of {table.name}"
                if (role, where) not in self._warned_of:
                    self._warned_of.add((role, where))
                    self.note(note_on_floats(role, where, len(batch)))
            typed = typed.with_columns(row=pl.int_range(row + 1, row + len(batch) + 1))
            row += len(batch)
            passed += int((why == BLANK).sum())
            self.read_rows += len(batch) - int((why == BLANK).sum())
            if not refused:
                yield typed.filter(why.is_null()) if why.null_count() < len(why) else typed
        if refused:
            message, advice = refused
            first = f"It is the first of {bad_rows:,} bad rows" if bad_rows > 1 else "It is the only bad row"
            or_skip = "" if bad_rows == row - passed > 1 else self._or_skip
            raise DataError(f"{message} {first} among {row - passed:,}. Correct it{or_skip}.{advice}")

    def _with_times(self, typed: pl.DataFrame, faults: Faults, table: Source, name: str) -> pl.DataFrame:
        """Return rows with times in microseconds, and add the faults of rows without a time."""
        times, of_times = self._times.read(typed["time"], table.name, name)
        if self.options.missing_time == "oldest":
            unknown = pl.any_horizontal([of_times.pop(fault)[0] for fault in UNKNOWN if fault in of_times])
            times = pl.select(pl.when(unknown).then(MICROSECONDS_UNKNOWN).otherwise(times)).to_series()
        faults |= of_times
        return typed.with_columns(time=times)

    def note(self, note: DataNote) -> None:
        """Keep a note about the data, and tell it."""
        self.notes.append(note)
        note.tell()

    def finish(self) -> None:
        """Number the ids in ascending order, once all tables are read."""
        if self.erased_rows:
            text = text_of(self.erased_rows, len(self._erased_users))
            self.note(DataNote("erased people", self.erased_rows, text))
        if not self._rows.size:
            raise self._nothing_left()
        rows = self._rows
        for ids in (self.users, self.items):
            self._leave_out_doubtful(ids)
        if self.options.window is not None:
            if self.options.now is None:
                latest = np.datetime64(self._latest, "us")
                _log.info("now is %s, the latest time that was read", str(latest)[:19])
            rows.keep(lambda some: _are_recent(rows["time"][some], self.options, self._latest))
        if "value" not in rows:
            rows.fill("value", np.bool_ if self.is_binary else np.float32)
        if "time" in rows:
            self._note_times(rows["time"])
        self.kept_rows = rows.size
        self.number(self.users, rows["user"])
        self.number(self.items, rows["item"])

    def number(self, ids: IdNumbering, column: npt.NDArray[np.int32]) -> None:
        """Number the ids of a column in ascending order, in place."""
        ids.finish(column)
        if ids.note is not None:
            self.note(ids.note)

    def _leave_out_doubtful(self, ids: IdNumbering) -> None:
        """Leave out, or refuse, the few rows whose ids are no integers while nearly all ids are."""
        doubtful = ids.doubtful(self._rows[ids.role])
        if doubtful is None:
            return
        if self.options.on_bad == "refuse":
            raise ids.refusal(doubtful, self._rows[ids.role])
        fault = not_an_integer(ids.role)
        self.skipped[fault] = self.skipped.get(fault, 0) + int(doubtful.sum())
        self._rows.keep(lambda some: ~doubtful[some])

    def _note_times(self, times: Times) -> None:
        """Give rows of unknown time the oldest time, and note what is odd about the times."""
        unknown = times == MICROSECONDS_UNKNOWN
        if count := int(unknown.sum()):
            oldest = int(times[~unknown].min(initial=INT64_MAX if self._oldest is None else self._oldest))
            if oldest == INT64_MAX:
                raise DataError(f"none of {counted(count, 'row')} has a time that can be read.")
            times[unknown] = oldest
            text = f"{counted(count, 'row')} without a time count as the oldest, {shown(oldest)}"
            self.note(DataNote("missing times", count, text))
        unit = f" ({self._times.form})" if self._times.form in UNITS else ""
        tell(times, list(self._time_columns), unit)
        names, are_numbers = in_words(map(repr, self._time_columns)), bool(unit)
        for note in (note_on_future(times), *notes_on_times(times, names, are_numbers=are_numbers)):
            if note is not None:
                self.note(note)

    def _nothing_left(self) -> DataError:
        """Return an error that says why there are no rows."""
        good = self.read_rows - sum(self.skipped.values())
        if not good:
            skipped = f", all of them bad: {'; '.join(self.skipped)}" if self.skipped else ""
            error = DataError if self.read_rows else EmptyTableError
            return error(f"the table has no interactions: {counted(self.read_rows, 'row')}{skipped}.")
        if self.erased_rows:
            return EmptyTableError(
                f"no interactions are left: {text_of(self.erased_rows, len(self._erased_users))}."
            )
        names = ("min_value", "event_weights", "since", "until", "window")
        rules = [f"{name}={value!r}" for name in names if (value := getattr(self.options, name)) is not None]
        return DataError(
            f"no interactions are left: none of {counted(good, 'row')} passes {in_words(rules)}."
        )

    def to_matrix(self, duplicates: str) -> tuple[sp.csr_array, Sums, npt.NDArray[np.int64] | None]:
        """Return users × items, the exact sums, and the last time of each pair, or None without times.

        Pairs with the value 0 are stored zeros.
        """
        return combine_in_ranges(self._rows.release(), self.users.ids, self.items.ids, duplicates)

    def titles(self, recognised: str | None = None) -> Texts | None:
        """Return the title of each item; the first in alphabetical order if rows differ.

        Return None if the column was only recognised by its name and holds no titles.
        """
        rank = self.items.rank
        if recognised is not None and (note := note_on_titles(recognised, self._titles)):
            self.note(note)
            return None
        named = ((rank[code], text) for code, text, _ in self._titles.iter_rows() if code < len(rank))
        return first_titles(len(self.items.ids), named)


def _refusal(
    table: Source,
    before: int,
    batch: pl.DataFrame,
    why: pl.Series,
    index: int,
    faults: Mapping[str, tuple[pl.Series, str | None]],
) -> tuple[str, str]:
    """Say what is wrong with a row of a batch, and what to do; `before` is the number of earlier rows."""
    fault = why[index]
    role = faults.get(fault, (None, None))[1]
    value = None if role is None else batch[role][index]
    got = "" if value is None else f", {shortened(repr(value), 80)}"
    advice = advice_on_time(fault, value)
    if fault in (why(role) for why in (not_an_integer, written_as_missing) for role in ID_ROLES):
        advice = f" {TEXT_IDS}"
    if role == "value" and re.fullmatch(r"\s*-?\d+(,\d+)+\s*", str(value)):
        advice = " Numbers have a decimal point and nothing between thousands: write 4.5 for 4,5."
    return f"{table.name}, row {before + index + 1:,}: {fault}{got}.", advice


class _GrowingColumns:
    """Columns that grow in place, since many small arrays would fragment memory."""

    def __init__(self) -> None:
        self.size = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def __contains__(self, role: str) -> bool:
        return role in self._arrays

    def __getitem__(self, role: str) -> npt.NDArray[Any]:
        return self._arrays[role][: self.size]

    def append(self, rows: dict[str, npt.NDArray[Any]]) -> None:
        size = self.size + len(rows["user"])
        for role, values in rows.items():
            array = self._arrays.setdefault(role, np.empty(_ROOM, values.dtype))
            if (kind := np.result_type(array, values)) != array.dtype:
                array = self._arrays[role] = array.astype(kind)
            if size > len(array):
                array.resize(size + size // 8, refcheck=False)
            array[self.size : size] = values
        self.size = size

    def fill(self, role: str, kind: type) -> None:
        """Add a column of ones."""
        self._arrays[role] = np.ones(self.size, kind)

    def slices(self) -> Iterator[slice]:
        for start in range(0, self.size, _SLICE):
            yield slice(start, min(start + _SLICE, self.size))

    def keep(self, are_kept: Callable[[slice], npt.NDArray[np.bool_]]) -> None:
        """Keep only the rows that `are_kept` selects from each slice."""
        done = 0
        for rows in self.slices():
            keep = are_kept(rows)
            count = int(keep.sum())
            for array in self._arrays.values():
                array[done : done + count] = array[rows][keep]
            done += count
        self.size = done

    def drop(self, role: str) -> None:
        self._arrays.pop(role, None)

    def release(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns without keeping a reference to them."""
        arrays = self._arrays
        self._arrays = {}
        for array in arrays.values():
            array.resize(self.size, refcheck=False)
        return arrays


def _product(
    values: npt.NDArray[np.float32] | None, weights: npt.NDArray[np.float64], where: str
) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        product = (weights if values is None else values * weights).astype(np.float32)
    vanished = (product == 0) & (weights != 0) & (True if values is None else values != 0)
    if vanished.any() or not np.isfinite(product).all():
        raise DataError(f"{where}: values times their weights are beyond single precision. Scale them.")
    return product


# ── weights of events, and times: microseconds since 1970 ─────────────────────────────────────────

# A weight under this name counts for all kinds that are not named.
_OTHER = "other"


def _weights_of_kinds(column: pl.Series, kinds: Mapping[str, float], where: str) -> pl.Series:
    """Return the weight of each row by its kind; refuse kinds without a weight."""
    unknown = sorted(kind for kind in column.unique().to_list() if kind not in kinds)
    if unknown and _OTHER not in kinds:
        raise DataError(
            f"{where}: event_weights has no weight for {name_list(unknown)}. Add it; {_OTHER}=0 leaves out "
            "all kinds that are not named."
        )
    weights = list(kinds.values())
    return column.replace_strict(list(kinds), weights, default=kinds.get(_OTHER), return_dtype=pl.Float64)


def _are_within(times: Times, options: ReadingOptions) -> npt.NDArray[np.bool_]:
    """Return a mask of the times from `since` on and before `until`."""
    since = options.microseconds("since")
    until = options.microseconds("until")
    keep = np.ones(len(times), np.bool_)
    if since is not None:
        keep &= times >= since
    if until is not None:
        keep &= times < until
    return keep


def _are_recent(times: Times, options: ReadingOptions, latest: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the times that the window keeps; `latest` is the latest time read."""
    window = options.microseconds("window")
    if window is None:
        return np.ones(len(times), np.bool_)
    now = options.microseconds("now")
    return times > (latest if now is None else now) - window
