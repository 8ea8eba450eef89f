"""Read the rows of tables: refuse or skip bad ones, number the ids, combine the rows of each pair.

For each row, only two small integers, a value and a time are kept, in the order of the table.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import counted, in_words, warn
from mrfrec.core.progress import Progress
from mrfrec.data.erasures import NEVER, Erasures, are_erased, text_of
from mrfrec.data.ids import Texts, first_titles
from mrfrec.data.pairs import combine_in_ranges
from mrfrec.data.provenance import Sums
from mrfrec.data.reading_options import ReadingOptions
from mrfrec.data.times import Times, from_numbers, tell, warn_of_future
from mrfrec.errors import DataError, EmptyTableError
from mrfrec.io.batches import (
    BLANK,
    FAULT,
    ID_ROLES,
    INT64_MAX,
    POSSIBLE_TIME,
    Roles,
    Source,
    Types,
    reading,
)
from mrfrec.io.columns import name_list
from mrfrec.io.id_numbering import IdNumbering, warn_of_floats
from mrfrec.io.typed_columns import MIXED_TIMES, advice_on, typed_columns

_log = logging.getLogger("mrfrec")

_ROOM = 1 << 23  # rows to reserve at first: the system provides memory only where something is written
_SLICE = 1 << 18  # rows that are handled at one time
_OR_SKIP = ', or leave such rows out: on_bad="skip" of read_interactions (--on-bad skip)'


class RowReader:
    """Collects the rows of tables.

    Rows with a value below `min_value` are left out first, then rows before `since` or from `until` on, then
    rows whose kind of event counts 0, then rows that are older than the window.

    The times of the role "time" must be good ones. Those of the role `POSSIBLE_TIME` are kept if all are.
    """

    def __init__(self, options: ReadingOptions | None = None, erased: Erasures | None = None) -> None:
        self.options = options or ReadingOptions()
        self._erased = erased or Erasures()
        self._ends = np.empty(0, np.int64)  # for the number of each user: see `Erasures.ends`
        self.erased_rows, self._erased_users = 0, set[int]()
        self._or_skip = "" if options is None else _OR_SKIP
        self.users = IdNumbering("user")
        self.items = IdNumbering("item")
        self.is_binary = not self.options.rows_have_weights  # whether every pair counts 1
        self.skipped: dict[str, int] = {}  # reason → rows
        self.unused: dict[str, str] = {}  # column → the parameters that would use it
        self._warned_of: set[tuple[str, str]] = set()  # columns of ids that are floats
        self.read_rows = self.expected = 0  # numbers of rows; `expected` is 0 if unknown
        self._drops_times = False
        self._time_columns: dict[str, None] = {}  # in the order of the tables
        self._are_dates: bool | None = None
        self._time_scale: int | None = None  # microseconds per unit, of times that are numbers
        self._latest = -INT64_MAX  # time of a row that `since` and `until` keep
        self._rows = _GrowingColumns()
        # For each item, the first title in alphabetical order.
        self._titles = pl.DataFrame(schema={"code": pl.Int32, "title": pl.String})

    def read(self, table: Source, roles: Roles, progress: Progress | None) -> None:
        self._time_columns |= {roles[role]: None for role in ("time", POSSIBLE_TIME) if role in roles}
        types = {"user": self.users.texts.dtype, "item": self.items.texts.dtype}
        for batch in self.good_rows(table, roles, types):
            if self.options.min_value is not None:
                batch = batch.filter(batch["value"].to_numpy() >= np.float32(self.options.min_value))
            if "time" in roles:
                batch = batch.with_columns(time=self._times(batch["time"], table))
                batch = batch.filter(_are_within(batch["time"].to_numpy(), self.options))
            if "event" in roles:
                where = f"{table.name}, column {roles['event']!r}"
                weights = _weights_of_kinds(batch["event"], self.options.event_weights or {}, where)
                batch = batch.with_columns(weight=weights).filter(pl.col("weight") != 0)
            if len(batch):
                rows: dict[str, npt.NDArray[Any]] = {
                    "user": self.users.encode(batch["user"], table, roles["user"]),
                    "item": self.items.encode(batch["item"], table, roles["item"]),
                }
                if "value" in roles and not self.options.binary:
                    rows["value"] = batch["value"].to_numpy()
                if "event" in roles:
                    rows["value"] = _product(rows.get("value"), batch["weight"].to_numpy(), table.name)
                if "time" in roles:
                    rows["time"] = batch["time"].to_numpy()
                elif (times := self._possible_times(batch, table, roles)) is not None:
                    rows["time"] = times
                if "title" in roles:
                    named = pl.DataFrame({"code": rows["item"], "title": batch["title"]})
                    named = pl.concat([self._titles, named.filter(pl.col("title") != "")])
                    self._titles = named.group_by("code").agg(pl.min("title"))
                self._append(rows)
            if progress is not None:
                # The expected number is an estimate and may be too small.
                progress("reading", self.read_rows, self.expected and max(self.expected, self.read_rows + 1))

    def _without_erased(self, rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Leave out and count what forgotten people did up to the day of the erasure."""
        user = rows["user"]
        if len(new := np.arange(len(self._ends), int(user.max(initial=-1)) + 1)):
            ends = self._erased.ends(self.users.texts_of(new))
            self._ends = np.append(self._ends, np.full(len(new), NEVER) if ends is None else ends)
        erased = are_erased(self._ends[user], rows.get("time"))
        self.erased_rows += int(erased.sum())
        self._erased_users |= {*np.unique(user[erased]).tolist()}
        return {role: column[~erased] for role, column in rows.items()} if erased.any() else rows

    def _append(self, rows: dict[str, npt.NDArray[Any]]) -> None:
        """Keep rows, except those that the window leaves out whatever rows come later."""
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

    def _possible_times(self, batch: pl.DataFrame, table: Source, roles: Roles) -> Times | None:
        """Return the times of rows; None from the first batch on in which not every row has a time."""
        name = roles.get(POSSIBLE_TIME)
        if name is None or self._drops_times:
            return None
        try:
            if POSSIBLE_TIME not in batch.columns:
                raise DataError(f"{table.name}: a type that cannot be read.")
            raw = batch[POSSIBLE_TIME]
            with reading(table.name):
                typed, faults = typed_columns(raw.to_frame("time"), table, {"time": name}, {})
            for fault, (bad, role) in faults.items():
                if bad.any():
                    first = raw[int(bad.arg_true()[0])] if role else None  # others cannot always be shown
                    got = f", such as {first!r}" if role else ""
                    count = f"{int(bad.sum()):,} of the first {counted(self.read_rows, 'row')}"
                    raise DataError(f"{table.name}: {fault} in {count}{got}.{advice_on(fault, first)}")
            return self._times(typed["time"], table)
        except DataError as error:
            self.drop_times(f"column {name!r}: {error}")
            self.unused[name] = f'time={name!r}, on_bad="skip"'
            return None

    def drop_times(self, why: str) -> None:
        """Keep no times, those read so far included, and warn why."""
        warn(
            f"no times are kept: {why} Name the column, time=… of read_interactions (--time-column), to have "
            'such rows refused; add on_bad="skip" (--on-bad skip) to leave them out. time=False reads none.'
        )
        self._drops_times = True
        self._rows.drop("time")

    def _times(self, column: pl.Series, table: Source) -> Times:
        """Return times as microseconds since 1970."""
        if self._are_dates not in (None, column.dtype.is_temporal()):
            raise DataError(f"{table.name}: {MIXED_TIMES}")
        self._are_dates = column.dtype.is_temporal()
        if self._are_dates:
            return column.dt.epoch("us").to_numpy()
        times, scale = from_numbers(column.to_numpy())
        if scale is not None and self._time_scale not in (None, scale):
            raise DataError(
                f"{table.name}: times are seconds in some rows and milliseconds in others, or in other "
                "files. Make them the same."
            )
        self._time_scale = scale or self._time_scale
        return times

    def good_rows(
        self, table: Source, roles: Roles, types: Types | None = None, prefix: str = ""
    ) -> Iterator[pl.DataFrame]:
        """Yield the good rows in batches; raise at the first bad one, or count them in `skipped`."""
        row = 0
        for batch in table.batches(roles, types or {}):
            with reading(table.name):
                typed, faults = typed_columns(batch, table, roles, types or {})
            # The first fault of each row, or null.
            faults_of_rows = [
                pl.when(rows).then(pl.lit(why)) for why, (rows, _) in faults.items() if rows.any()
            ]
            shape = batch[FAULT] if FAULT in batch.columns else pl.repeat(None, len(batch), dtype=pl.String)
            why = pl.select(pl.coalesce(shape, *faults_of_rows)).to_series()
            bad = (why != BLANK).fill_null(False)
            if bad.any() and self.options.on_bad == "refuse":
                place = int(bad.arg_true()[0])
                fault = why[place]
                role = faults.get(fault, (None, None))[1]
                got = f", {batch[role][place]!r}" if role is not None else ""
                raise DataError(
                    f"{table.name}, row {row + place + 1:,}: {fault}{got}. Correct it{self._or_skip}."
                    + advice_on(fault, batch[role][place] if role else None)
                )
            for reason, count in Counter(why.filter(bad).to_list()).items():
                self.skipped[prefix + reason] = self.skipped.get(prefix + reason, 0) + count
            for role in (role for role in ID_ROLES if role in roles and batch[role].dtype.is_float()):
                where = f"column {roles[role]!r} of {table.name}"
                if (role, where) not in self._warned_of:
                    self._warned_of.add((role, where))
                    warn_of_floats(role, where)
            row += len(batch)
            self.read_rows += len(batch) - int((why == BLANK).sum())
            yield typed.filter(why.is_null()) if why.null_count() < len(why) else typed

    def finish(self) -> None:
        """Number the ids in ascending order, once all tables are read."""
        if self.erased_rows:
            warn(f"{text_of(self.erased_rows, len(self._erased_users))}.")
        if not self._rows.size:
            raise self._nothing_left()
        rows = self._rows
        if self.options.window is not None:
            if self.options.now is None:
                latest = np.datetime64(self._latest, "us")
                _log.info("now is %s, the latest time that was read", str(latest)[:19])
            rows.keep(lambda some: _are_recent(rows["time"][some], self.options, self._latest))
        if "value" not in rows:
            rows.fill("value", np.bool_ if self.is_binary else np.float32)
        if "time" in rows:
            unit = {None: "", 1000: " (milliseconds)"}.get(self._time_scale, " (seconds)")
            tell(rows["time"], list(self._time_columns), unit)
            warn_of_future(rows["time"])
        self.users.finish(rows["user"])
        self.items.finish(rows["item"])

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
        """Return users × items, the exact sums, and the latest time of each pair, None without times.

        Pairs with the value 0 are stored zeros.
        """
        return combine_in_ranges(self._rows.release(), self.users.ids, self.items.ids, duplicates)

    def titles(self) -> Texts | None:
        """Return the title of each item, of several the first in alphabetical order."""
        rank = self.items.rank
        named = ((rank[code], text) for code, text in self._titles.iter_rows() if code < len(rank))
        return first_titles(len(self.items.ids), named)


class _GrowingColumns:
    """Columns that grow in place, since many small arrays would fragment the memory."""

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
        """Return the columns, and keep no reference to them."""
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

_OTHER = "other"  # the name under which a weight counts for all kinds that are not named


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
    """Return which times are from `since` on and before `until`."""
    since = options.microseconds("since")
    until = options.microseconds("until")
    keep = np.ones(len(times), np.bool_)
    if since is not None:
        keep &= times >= since
    if until is not None:
        keep &= times < until
    return keep


def _are_recent(times: Times, options: ReadingOptions, latest: int) -> npt.NDArray[np.bool_]:
    """Return which times the window keeps; `latest` is the latest time that `since` and `until` keep."""
    window = options.microseconds("window")
    if window is None:
        return np.ones(len(times), np.bool_)
    now = options.microseconds("now")
    return times > (latest if now is None else now) - window
