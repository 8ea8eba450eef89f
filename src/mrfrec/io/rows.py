"""Read the rows of tables: refuse or skip bad ones, number the ids, combine the rows of each pair.

Of each row only two small integers, a value and a time are kept, in the order of the table.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.core.engine import Progress
from mrfrec.data.events import Events
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.interactions import combine, last_times
from mrfrec.data.origin import Sums
from mrfrec.errors import DataError
from mrfrec.io.batches import BLANK, FAULT, INT64_MAX, Roles, Source, Types
from mrfrec.io.weighting import Weighting, from_numbers, shown

_EXACT = {"Float16": 2**11, "Float32": 2**24, "Float64": 2**53}  # below, whole numbers are all distinct
_RULES = {
    "user": "user ids must be integers or strings",
    "item": "item ids must be integers or strings",
    "value": "values must be numbers",
    "title": "titles must be text",
    "time": "times must be numbers, dates, or texts such as 2019-12-08 or 2019-12-08T10:30:00",
    "event": "kinds of events must be text or integers",
}
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f%z")
_MIXED_TIMES = "times are numbers in some rows and dates in others. Make them the same."


class _Numbering:
    """Number ids as they come, and then 0, 1, 2, … in ascending order once all are known."""

    def __init__(self, role: str, as_text: bool) -> None:
        self.role = role
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]
        self._as_text = as_text  # some tables have no types: all ids are text until the last is known
        self._types: set[str] = set()  # in tables that have them
        # polars numbers strings itself, and forgets the numbers with the last column that has the type.
        self.texts = pl.Series(dtype=pl.Categorical(pl.Categories.random()))
        self._numbers = pl.DataFrame(schema={"id": pl.Int64, "code": pl.UInt32})

    def encode(self, ids: pl.Series, table: Source) -> npt.NDArray[np.int32]:
        is_integer = ids.dtype.is_integer()
        if not table.is_text:
            self._types.add("integers" if is_integer else "strings")
            self._check(len(self._types) < 2, f"{table.name}: ")
        if is_integer and not self._as_text:
            if ids.dtype == pl.UInt64 and not (ids > INT64_MAX).any():
                ids = ids.cast(pl.Int64)
            known = self._numbers
            if ids.dtype != known.schema["id"]:  # some are above the range of signed integers
                if (ids < 0).any() or (known["id"] < 0).any():
                    raise DataError(
                        f"{table.name}: {self.role} ids are both below 0 and above 2**63. Make them strings."
                    )
                ids, known = ids.cast(pl.UInt64), known.with_columns(pl.col("id").cast(pl.UInt64))
            new = ids.unique().to_frame("id").join(known, on="id", how="anti")
            codes = pl.int_range(len(known), len(known) + len(new), dtype=pl.UInt32, eager=True)
            self._numbers = pl.concat([known, new.with_columns(code=codes)])
            both = ids.to_frame("id").join(self._numbers, on="id", how="left", maintain_order="left")
            codes = both["code"]
        else:
            text = ids.cast(pl.String) if is_integer else ids
            codes = text.cast(self.texts.dtype).to_physical()
        return codes.to_numpy().astype(np.int32)

    def finish(self, parts: list[npt.NDArray[np.int32]]) -> None:
        used = np.zeros(max(int(part.max(initial=0)) for part in parts) + 1, np.bool_)
        for part in parts:
            used[part] = True
        codes = np.flatnonzero(used)  # not all of them, where an id stood only in rows that were left out
        if self._as_text or "strings" in self._types:
            ids = pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String)
        else:
            ids = self._numbers["id"].gather(codes)
        if self._as_text and "strings" not in self._types:
            for kind in (pl.Int64, pl.UInt64):
                numbers = ids.cast(kind, strict=False)
                if (numbers.cast(pl.String) == ids).fill_null(False).all():
                    ids = numbers
                    break
            else:
                self._check("integers" not in self._types, "")
        order = ids.arg_sort()
        self.rank = np.full(len(used), -1, np.int32)
        self.rank[codes[order.to_numpy()]] = np.arange(len(ids), dtype=np.int32)
        ids = ids.gather(order)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        del self._numbers, self.texts

    @property
    def kind(self) -> str:
        """The type of the ids: "integers", "strings", or "untyped" if they were read from text only."""
        return next(iter(self._types), "untyped")

    def _check(self, is_one_type: bool, where: str) -> None:
        if not is_one_type:
            raise DataError(
                f"{where}{self.role} ids are integers in some of the rows or files and strings in others. "
                "Make them the same."
            )


class RowReader:
    """Collects the rows of tables, some of which have no types if `as_text`.

    Rows with a value below `min_value` are left out before anything else is done with them, then those whose
    kind of event counts 0, then those of other times than `weighting` keeps.
    """

    def __init__(
        self,
        on_bad: str,
        *,
        as_text: bool = False,
        min_value: float | None = None,
        binary: bool = True,
        weighting: Weighting | None = None,
    ) -> None:
        self.on_bad = on_bad
        self.weighting = weighting or Weighting()
        self.binary = binary and not self.weighting.weighs  # whether every pair counts 1
        self.users, self.items = _Numbering("user", as_text), _Numbering("item", as_text)
        self.skipped: dict[str, int] = {}
        self.read_rows = 0
        self._min_value = min_value
        self._uses_values = not binary
        self._are_dates: bool | None = None
        self._time_scale: int | None = None  # microseconds in one of the numbers that are times
        self._span = INT64_MAX, -INT64_MAX  # the first and the last time
        self._parts: dict[str, list[npt.NDArray[Any]]] = {"user": [], "item": [], "value": [], "time": []}
        self._titles = pl.DataFrame(schema={"code": pl.Int32, "title": pl.String})

    def read(self, table: Source, roles: Roles, progress: Progress | None) -> None:
        types = {"user": self.users.texts.dtype, "item": self.items.texts.dtype}
        for batch in self.good(table, roles, types):
            if self._min_value is not None:
                batch = batch.filter(batch["value"].to_numpy() >= np.float32(self._min_value))
            times = self._times(batch["time"], table) if "time" in roles else None
            if times is not None and self.weighting.uses_times:
                keep = self.weighting.within(times)
                batch, times = (batch, times) if keep.all() else (batch.filter(keep), times[keep])
            weights = None
            if "event" in roles:
                where = f"{table.name}, column {roles['event']!r}"
                weights = self.weighting.of_kinds(batch["event"], where)
                counts = weights != 0
                batch, weights = batch.filter(counts), weights[counts]
                times = None if times is None else times[counts]
            if len(batch):
                self._parts["user"].append(self.users.encode(batch["user"], table))
                codes = self.items.encode(batch["item"], table)
                self._parts["item"].append(codes)
                values = batch["value"].to_numpy() if "value" in roles and self._uses_values else None
                if weights is not None:
                    values = _product(values, weights, table.name)
                if values is not None:
                    self._parts["value"].append(values)
                if times is not None:
                    self._parts["time"].append(times)
                if "title" in roles:
                    named = pl.DataFrame({"code": codes, "title": batch["title"]})
                    named = pl.concat([self._titles, named.filter(pl.col("title") != "")])
                    self._titles = named.group_by("code").min()
            if progress is not None:
                progress("read", self.read_rows, 0)

    def _times(self, column: pl.Series, table: Source) -> npt.NDArray[Any]:
        """Return times as microseconds since 1970, or as the numbers they are if only their order counts."""
        if self._are_dates not in (None, column.dtype.is_temporal()):
            raise DataError(f"{table.name}: {_MIXED_TIMES}")
        self._are_dates = column.dtype.is_temporal()
        times = (column.dt.epoch("us") if self._are_dates else column).to_numpy()
        if self.weighting.uses_times and len(times):
            scale = None
            if not self._are_dates:
                times, scale = from_numbers(times)
            if scale is not None and self._time_scale not in (None, scale):
                raise DataError(
                    f"{table.name}: times are seconds in some rows and milliseconds in others, or in other "
                    "files. Make them the same."
                )
            self._time_scale = scale or self._time_scale
            first, last = int(times.min()), int(times.max())
            self._span = min(first, self._span[0]), max(last, self._span[1])
        return times

    def good(
        self, table: Source, roles: Roles, types: Types | None = None, prefix: str = ""
    ) -> Iterator[pl.DataFrame]:
        """Yield the good rows in batches; raise at the first bad one, or count them in `skipped`."""
        row = 0
        for batch in table.batches(roles, types or {}):
            typed, faults = _typed(batch, table, roles, types or {})
            # What is wrong with each row, or null: the first thing only, so that a row counts once.
            no_fault = pl.repeat(None, len(batch), dtype=pl.String, eager=True)
            why = batch[FAULT] if FAULT in batch.columns else no_fault
            for reason, (where, _) in faults.items():
                if where.any():
                    first = pl.when(where & why.is_null()).then(pl.lit(reason)).otherwise(why)
                    why = pl.select(first).to_series()
            bad = (why != BLANK).fill_null(False)
            if bad.any() and self.on_bad == "refuse":
                place = int(bad.arg_true()[0])
                shown = why[place]
                if shown in faults:
                    texts = batch[place : place + 1].select(pl.col(*roles).cast(pl.String))
                    shown = faults[shown][1].format_map(texts.row(0, named=True))
                raise DataError(
                    f"{table.name}, row {row + place + 1:,}: {shown}. Correct it, or leave such rows out: "
                    'read_interactions(…, on_bad="skip"), or --on-bad skip at the command line.'
                )
            for reason, count in Counter(why.filter(bad).to_list()).items():
                self.skipped[prefix + reason] = self.skipped.get(prefix + reason, 0) + count
            row += len(batch)
            self.read_rows += len(batch) - int((why == BLANK).sum())
            yield typed.filter(why.is_null()) if why.null_count() < len(why) else typed

    def finish(self) -> None:
        """Number the ids in ascending order, once all tables are read."""
        if not self._parts["user"]:
            good = self.read_rows - sum(self.skipped.values())
            if good:
                least = None if self._min_value is None else f"a value below min_value={self._min_value:g}"
                kind = None if self.weighting.kinds is None else "a kind of event that counts 0"
                rules = {"since": self.weighting.since, "until": self.weighting.until}
                named = " and ".join(name for name, rule in rules.items() if rule is not None)
                span = " to ".join(map(shown, self._span)) if named else ""
                time = f"a time outside of {named} (the times are from {span})" if named else None
                why = " or ".join(reason for reason in (least, kind, time) if reason is not None)
                raise DataError(f"no interactions are left: all {good:,} rows have {why}.")
            skipped = f", of which {self.read_rows:,} were bad" if self.skipped else ""
            raise DataError(f"the table has no interactions: {self.read_rows:,} rows{skipped}.")
        if self.weighting.half_life is not None or self.weighting.window is not None:
            self._weigh_times()
        self.users.finish(self._parts["user"])
        self.items.finish(self._parts["item"])

    def _weigh_times(self) -> None:
        """Leave out rows by their times; with a half-life, multiply the values of the others."""
        parts = self._parts
        for i, (keep, factor) in enumerate(self.weighting.of_times(parts["time"])):
            if factor is not None:
                if i == len(parts["value"]):
                    parts["value"].append(np.ones(len(keep), np.float32))
                parts["value"][i] = _product(parts["value"][i], factor, "the table")
            if not keep.all():
                for columns in parts.values():
                    if columns:
                        columns[i] = columns[i][keep]

    def _column(self, role: str) -> npt.NDArray[Any]:
        parts = self._parts.pop(role)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pairs(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return user, item and value of each row; ones where the table has no values."""
        user, item = self.users.rank[self._column("user")], self.items.rank[self._column("item")]
        # Booleans take the least memory while the rows are sorted; their sums stay 1.
        kind = np.bool_ if self.binary else np.int32
        return user, item, self._column("value") if self._parts["value"] else np.ones(len(user), kind)

    def to_matrix(self, duplicates: str) -> tuple[sp.csr_array, Sums, npt.NDArray[np.int64] | None]:
        """Return users × items, the exact sums, and the latest time of each pair if the window moves.

        Zeros are stored where a pair has the value 0.
        """
        moves = self.binary and self.weighting.window is not None and self.weighting.now is None
        if not moves:
            self._parts["time"].clear()
        user, item, value = self._pairs()
        matrix, sums = combine(user, item, value, self.users.ids, self.items.ids, duplicates)
        return matrix, sums, last_times(user, item, self._column("time"), matrix) if moves else None

    def to_events(self, duplicates: str) -> Events:
        """Return the first row of each pair, in the order of the table; with the value `to_matrix` gives."""
        user, item, value = self._pairs()
        time = self._column("time") if self._parts["time"] else None
        pair = user.astype(np.int64) * len(self.items.ids) + item
        _, first = np.unique(pair, return_index=True)
        rows, values = np.sort(first), None
        if not self.binary or duplicates == "error":
            matrix, _ = combine(user, item, value, self.users.ids, self.items.ids, duplicates)
            if not self.binary:
                values = np.empty(len(user), np.float32)
                values[first] = matrix.data  # which are ordered by user and item, too
                rows = rows[values[rows] != 0]
        events = Events(self.users.ids, self.items.ids, user, item, values, time, self.titles())
        if not len(rows):
            raise DataError(f"no interactions are left: all {len(first):,} pairs have a value that is 0.")
        events = events.take(rows) if len(rows) < len(user) else events
        return replace(events, repeated=len(user) - len(first))

    def titles(self) -> Texts | None:
        """Return the title of each item, of several the first in alphabetical order."""
        texts = [""] * len(self.items.ids)
        rank = self.items.rank
        for code, text in self._titles.iter_rows():
            if code < len(rank) and rank[code] >= 0:  # not of rows that were left out
                texts[rank[code]] = text
        return Texts.of(texts) if any(texts) else None


def _product(
    values: npt.NDArray[np.float32] | None, weights: npt.NDArray[np.float64], where: str
) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        product = (weights if values is None else values * weights).astype(np.float32)
    if not np.isfinite(product).all():
        raise DataError(f"{where}: values times their weights are beyond single precision. Scale them.")
    return product


def _typed(
    batch: pl.DataFrame, table: Source, roles: Roles, types: Types
) -> tuple[pl.DataFrame, dict[str, tuple[pl.Series, str]]]:
    """Return the columns as they are stored, and by reason which rows are bad and what to say of them."""
    columns: dict[str, pl.Series] = {}
    faults: dict[str, tuple[pl.Series, str]] = {}
    for role, name in roles.items():
        raw = batch[role]
        is_numbered = role in types and raw.dtype == types[role]
        if isinstance(raw.dtype, pl.Categorical | pl.Enum | pl.Null) and not is_numbered:
            raw = raw.cast(pl.String)
        kind = raw.dtype
        is_text = kind == pl.String
        of_role = {"value": (pl.Boolean, pl.Decimal), "time": (pl.Date, pl.Datetime)}.get(role, ())
        if not (is_text or is_numbered or kind.is_integer() or kind.is_float() or kind in of_role):
            raise DataError(f"{table.name}: {_RULES[role]}; column {name!r} is {kind}.")
        if role == "title":
            columns[role] = raw.cast(pl.String)
            continue
        if role == "event":
            raw, is_text = raw.cast(pl.String).str.strip_chars(), True
        noun = {"value": "value", "time": "time", "event": "kind of event"}.get(role, f"{role} id")
        missing = raw.is_null() | (raw == "") if is_text else raw.is_null()
        wrong: list[tuple[pl.Series, str]] = []
        if role == "value":
            number = raw.cast(pl.Float64, strict=False)
            if is_text and number.null_count():
                stripped = raw.str.strip_chars()
                number, missing = stripped.cast(pl.Float64, strict=False), missing | (stripped == "")
            columns[role] = small = number.cast(pl.Float32)
            wrong = [
                (number.is_null() | ~number.is_finite(), "not a finite number"),
                (~small.is_finite() | ((small == 0) & (number != 0)), "beyond single precision"),
            ]
        elif role == "time":
            columns[role] = moment = _moments(raw, table)
            odd = moment.is_null() if moment.dtype.is_temporal() else moment.is_null() | ~moment.is_finite()
            wrong = [(odd, "neither a number nor a date")]
        elif is_text or is_numbered:
            columns[role] = raw
        else:
            columns[role] = raw.cast(pl.UInt64 if kind == pl.UInt64 else pl.Int64, strict=False)
            if kind.is_float():  # what pandas makes of integers as soon as one is missing
                missing |= raw.is_nan()
                wrong = [
                    (raw != raw.round(), "not a whole number"),
                    (raw.abs() >= _EXACT[str(kind)], "too large for a float to be exact"),
                ]
            wrong.append((columns[role].is_null(), "not a whole number of 64 bits"))
        faults[f"no {noun}"] = missing.fill_null(False), f"no {noun}"
        for where, what in wrong:
            faults[f"{noun} {what}"] = where.fill_null(False), f"{noun} {{{role}}} is {what}"
    return pl.DataFrame(columns), faults


def _moments(raw: pl.Series, table: Source) -> pl.Series:
    """Parse times as numbers or dates, null where they are neither.

    Only dates in ISO 8601 are recognised: 01/12 may be in January or in December.
    """
    if raw.dtype != pl.String:
        return raw.cast(pl.Datetime("us")) if raw.dtype.is_temporal() else raw
    text = raw.str.strip_chars()
    whole, number = text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False).fill_nan(None)
    dates = pl.repeat(None, len(text), dtype=pl.Datetime("us"), eager=True)
    if number.null_count():
        plain = text.str.replace(r"^(\S{10})T", "$1 ").str.replace(r"Z$", "+00:00")
        for form in _DATES:
            parsed = plain.str.to_datetime(form, time_unit="us", strict=False)
            dates = dates.fill_null(parsed.cast(pl.Datetime("us")))
    if dates.null_count() == len(dates):
        return whole if whole.null_count() == number.null_count() else number
    if number.null_count() < len(number):
        raise DataError(f"{table.name}: {_MIXED_TIMES}")
    return dates
