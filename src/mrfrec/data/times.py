"""Times of events, in microseconds since 1970, UTC: from a matrix, or from a column of a table."""

import logging
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import counted
from mrfrec.data.pairs import DataNote
from mrfrec.errors import DataError, ParameterError

_log = logging.getLogger("mrfrec")

Times = npt.NDArray[np.int64]

# Units of numbers: the number from which each is taken, and how to multiply and divide for microseconds. As
# seconds, 1e11 is the year 5138; as milliseconds, 1973.
UNITS = {
    "seconds": (0.0, 1_000_000, 1),
    "milliseconds": (1e11, 1000, 1),
    "microseconds": (1e14, 1, 1),
    "nanoseconds": (1e17, 1, 1000),
}
# Numbers from here on, in the year 2261, are no times.
_LARGEST = 9.2e18
_IN_1990 = int(np.datetime64("1990-01-01", "us").astype(np.int64))
_MINUTE = 60_000_000
_DAY = 86_400_000_000
_KNOWN_UNITS = "seconds, milliseconds, microseconds or nanoseconds since 1970"
_RULE = f"numbers ({_KNOWN_UNITS}) or datetime64, a time for each stored pair of the matrix"


def _unit_of(size: float) -> str:
    return next(unit for unit in reversed(UNITS) if size >= UNITS[unit][0])


def _from_numbers(times: npt.NDArray[Any]) -> Times:
    """Convert seconds, milliseconds, microseconds or nanoseconds since 1970 to microseconds."""
    sizes = np.abs(times[times != 0].astype(np.float64))
    most = float(sizes.max(initial=0.0))
    least = float(sizes.min(initial=most))
    looks_like_a_date = 19000101 <= most <= 20991231
    if most >= _LARGEST or _unit_of(least) != _unit_of(most) or looks_like_a_date:
        raise DataError(
            f"times that are numbers must be all of one unit: {_KNOWN_UNITS}; got numbers "
            f"from {least:.15g} to {most:.15g}. Or write them as 2026-11-16 or 2026-11-16T10:30:00."
        )
    _, factor, divisor = UNITS[_unit_of(most)]
    if times.dtype.kind in "iu":
        return times.astype(np.int64) * factor // divisor
    return np.rint(times * (factor / divisor)).astype(np.int64)


def as_datetimes(times: Times | None) -> npt.NDArray[np.datetime64] | None:
    """Return microseconds as `datetime64`; `Interactions` would take integers for seconds."""
    return None if times is None else times.view("datetime64[us]")


def times_of_pairs(times: Any, given: Any, matrix: sp.csr_array) -> Times:
    """Return the times of the stored pairs of `matrix`, which is the canonical form of `given`.

    `times` is a sparse matrix with the same pairs, or an array in the order of `given` if that is canonical.
    """
    if sp.issparse(times):
        as_given = sp.csr_array(times)
        if times.nnz > as_given.nnz or not as_given.has_canonical_format:
            as_given = as_given.copy()
            as_given.sum_duplicates()
        same = as_given.shape == matrix.shape and times.nnz == as_given.nnz == matrix.nnz
        same = same and np.array_equal(as_given.indptr, matrix.indptr)
        if not (same and np.array_equal(as_given.indices, matrix.indices)):
            got = f"a matrix of {times.shape[0]:,} × {times.shape[1]:,} with {times.nnz:,} entries"
            pairs = f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} pairs without zeros"
            raise DataError(f"times must have the stored pairs of the matrix, each once: {pairs}; got {got}.")
        values = as_given.data
    else:
        values = np.asarray(times)
        canonical = given.format == "csr" and given.has_canonical_format and given.nnz == matrix.nnz
        if not canonical:
            raise DataError(
                "times must be a sparse matrix with the same pairs where the matrix is not canonical CSR "
                f"(sorted, without duplicates and zeros); got {type(times).__name__}. Or bring the matrix "
                "into that form first: tocsr(), sum_duplicates(), eliminate_zeros()."
            )
        if values.shape != (matrix.nnz,):
            raise DataError(
                f"times must be one for each of the {matrix.nnz:,} stored pairs of the matrix, in their "
                f"order; got an array of shape {values.shape}."
            )
    return _as_microseconds(values)


def _as_microseconds(values: npt.NDArray[Any]) -> Times:
    if values.dtype.kind not in "iufM":
        raise ParameterError("times", _RULE, str(values.dtype), "Convert texts to datetime64.")
    odd = ~np.isfinite(values)
    if values.dtype.kind == "M":
        year = values.astype("datetime64[Y]").astype(np.int64) + 1970
        odd |= (year < 1) | (year > 9999)
    if odd.any():
        pair = int(np.argmax(odd))
        advice = f"It is the time of pair {pair:,}. Leave out pairs without a time, or give no times."
        raise ParameterError("times", "within the years 1 to 9999, none missing", str(values[pair]), advice)
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").astype(np.int64)
    return _from_numbers(values)


def note_on_future(times: Times) -> DataNote | None:
    """Return a note if some times are more than a day after the machine's clock."""
    count = int((times > datetime.now(UTC).timestamp() * 1e6 + _DAY).sum())
    if not count:
        return None
    text = (
        f"{counted(count, 'time')} in the future, the latest is {shown(int(times.max()))}: they are kept. If "
        "they are wrong, correct them, or leave out these events (until)."
    )
    return DataNote("rows ahead", count, text)


def notes_on_times(
    times: Times,
    columns: str,
    *,
    are_numbers: bool,
    without: str = "read none: time=False (--time-column no)",
) -> list[DataNote]:
    """Return notes on times that are early, or close to each other, as numbers are that are no times.

    `without` says how to do without times.
    """
    early, first, last = int((times < _IN_1990).sum()), int(times.min()), int(times.max())
    ways = f"Correct them, or {without}."
    if are_numbers:
        ways = f"Numbers must be {_KNOWN_UNITS}; Excel writes days. {ways}"
    if early:
        count = f"{early:,} of {len(times):,} times of {columns}"
        text = f"{count} are before 1990, the first is {shown(first)}. {ways}"
        return [DataNote("looks like", early, text)]
    if are_numbers and first < last < first + _MINUTE:
        text = f"all times of {columns} are within a minute, from {shown(first)}. {ways}"
        return [DataNote("looks like", len(times), text)]
    return []


def shown(time: int) -> str:
    """Return a time as text, to the second; midnight is shown as a date."""
    return str(np.datetime64(time, "us").astype("datetime64[s]")).removesuffix("T00:00:00")


def tell(times: Times, columns: list[str], unit: str) -> None:
    """Log which columns the times come from, and their range."""
    named = ", ".join(f'"{name}"' for name in columns)
    first, last = int(times.min()), int(times.max())
    span = f"{str(np.datetime64(first, 'us'))[:10]} to {str(np.datetime64(last, 'us'))[:10]}"
    if first == last:
        span = f"all are {shown(first)}, which alone tells no order"
    _log.info("times from %s%s: %s", named, unit, span)


MICROSECONDS_UNKNOWN = -(2**63)
"""Stands for the time of a row without one until the oldest time is known."""
IN_THE_FUTURE = "time in the future"
"""The fault of a row later than the latest time that is allowed."""
_NO_TIME, _NO_DATE = "no time", "time neither a number nor a date"
_BEYOND = "time beyond the years 1 to 9999"
UNKNOWN = (_NO_TIME, _NO_DATE, _BEYOND)
"""The faults of rows whose time is missing or cannot be read."""
_RULE_OF_COLUMN = "times must be numbers, dates, or texts such as 2019-12-08 or 2019-12-08T10:30:00"
_WITHOUT_TIMES = " Without times: time=False (--time-column no)."
_FORMS = {
    **{unit: f"numbers of {unit}" for unit in UNITS},
    "naive": "dates and times without an offset",
    "zoned": "times with an offset",
}
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f")
_OFFSET = r"\d:\d\d.*[+-]\d\d:?\d\d$"

# Fault → its rows, and the role whose value an error quotes.
Faults = dict[str, tuple[pl.Series, str | None]]


class TimeColumn:
    """Converts the times of all tables. The form of most times in the first batch is the form of all.

    A row is bad if its time has another form, cannot be read or is later than `latest`.
    """

    def __init__(self, latest: int | None = None) -> None:
        self.latest = latest
        self.form: str | None = None

    def read(self, raw: pl.Series, table: str, name: str) -> tuple[pl.Series, Faults]:
        """Return microseconds since 1970, null for a missing time, and the rows of each fault."""
        faults: Faults = {_NO_TIME: (raw.is_null(), None)}
        forms: dict[str, pl.Series] = {}
        if raw.dtype in (pl.Date, pl.Datetime):
            zone = getattr(raw.dtype, "time_zone", None)
            micros = self._dates(raw, faults, quoted=None)
            forms["naive" if zone is None else "zoned"] = micros.is_not_null()
        elif raw.dtype == pl.String:
            text = raw.str.strip_chars()
            faults[_NO_TIME] = (text == "").fill_null(True), None
            number = text.cast(pl.Float64, strict=False).fill_nan(None)
            micros = _parsed_numbers(number, text.cast(pl.Int64, strict=False), forms, table)
            if number.null_count():
                dates, zoned = parsed_dates(text)
                dates = self._dates(dates, faults, quoted="time")
                forms["zoned"], forms["naive"] = dates.is_not_null() & zoned, dates.is_not_null() & ~zoned
                micros = micros.fill_null(dates)
        elif raw.dtype.is_integer() or raw.dtype.is_float():
            number = raw.cast(pl.Float64).fill_nan(None)
            faults[_NO_TIME] = number.is_null(), None
            whole = raw if raw.dtype.is_integer() else pl.repeat(None, len(raw), dtype=pl.Int64, eager=True)
            micros = _parsed_numbers(number, whole, forms, table)
        else:
            raise DataError(f"{table}: {_RULE_OF_COLUMN}; column {name!r} is {raw.dtype}.{_WITHOUT_TIMES}")
        counts = {form: int(rows.sum()) for form, rows in forms.items()}
        if self.form is None and any(counts.values()):
            self.form = max(counts, key=counts.__getitem__)
        # A zero may be of any unit.
        if "seconds" in forms and self.form not in [*UNITS][1:]:
            forms["seconds"] |= (micros == 0).fill_null(False) & (number == 0).fill_null(False)
        if self.form is not None:
            others = pl.any_horizontal([False, *(rows for form, rows in forms.items() if form != self.form)])
            fault = f"time of another form than most, which are {_FORMS[self.form]}"
            faults[fault] = pl.select(others.fill_null(False)).to_series(), "time"
        faults[_NO_DATE] = micros.is_null(), "time"
        if self.latest is not None:
            faults[IN_THE_FUTURE] = (micros > self.latest).fill_null(False), "time"
        return micros, faults

    @staticmethod
    def _dates(times: pl.Series, faults: Faults, quoted: str | None) -> pl.Series:
        # The infinities of PostgreSQL have no year and cannot be shown.
        beyond = ~times.dt.year().is_between(1, 9999).fill_null(times.is_null())
        faults[_BEYOND] = beyond, quoted
        return pl.select(pl.when(~beyond).then(times)).to_series().cast(pl.Datetime("us")).dt.epoch("us")


def advice_on_time(fault: str, value: object) -> str:
    """Return advice about a time that cannot be read: how to write texts, and what else to do."""
    iso = (
        " Texts must be written as 2013-04-03 or 2013-04-03T10:30:00, in ISO 8601: convert others by "
        "pd.to_datetime(…, dayfirst=True) or dayfirst=False."
    )
    unknown = ' Rows of unknown time may count as the oldest: missing_time="oldest" (--missing-time oldest).'
    advice = iso if fault == _NO_DATE and isinstance(value, str) else ""
    return advice + unknown + _WITHOUT_TIMES if fault in UNKNOWN else ""


def _parsed_numbers(number: pl.Series, whole: pl.Series, forms: dict[str, pl.Series], name: str) -> pl.Series:
    """Return microseconds from numbers of any unit; `whole` has the integers among the numbers."""
    size = number.abs()
    most = size.filter(size < UNITS["microseconds"][0]).max()
    if isinstance(most, float) and 19000101 <= most <= 20991231:
        raise DataError(
            f"{name}: times that are numbers must be {_KNOWN_UNITS}; got {most:.15g}. Write dates as "
            f"2026-11-16 or 2026-11-16T10:30:00.{_WITHOUT_TIMES}"
        )
    frame = pl.DataFrame({"number": number, "whole": whole})
    times = pl.lit(None, dtype=pl.Int64)
    for unit, (start, factor, divisor) in UNITS.items():
        end = min((other for other, _, _ in UNITS.values() if other > start), default=_LARGEST)
        forms[unit] = ((size >= start) & (size < end) & (size > 0)).fill_null(False)
        if not forms[unit].any():
            continue
        exact = pl.col("whole").cast(pl.Int64, strict=False) * factor // divisor
        rounded = (pl.col("number") * (factor / divisor)).round().cast(pl.Int64, strict=False)
        times = pl.when(forms[unit]).then(pl.coalesce(exact, rounded)).otherwise(times)
    return frame.select(pl.when(size == 0).then(pl.lit(0)).otherwise(times).alias("time")).to_series()


def parsed_dates(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Parse texts as dates or times, null where that fails; also return which texts have an offset.

    Only ISO 8601 and the form of PostgreSQL are recognised, since 01/12 may be in January or in December.
    """
    plain = text.str.replace(r"^(\S{10})T", "$1 ").str.replace(r" ?(Z|UTC)$", "+00:00")
    plain = plain.str.replace(r"(:\d\d(?:\.\d+)?[+-]\d\d)$", "$1:00")
    zoned = plain.str.contains(_OFFSET).fill_null(False)
    dates = pl.repeat(None, len(text), dtype=pl.Datetime("us"), eager=True)
    if zoned.any():
        with_seconds = plain.str.replace(r"^(\S+ \d\d:\d\d)([+-])", "$1:00$2")
        parsed = with_seconds.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_unit="us", strict=False)
        dates = parsed.cast(pl.Datetime("us"))
    first = plain.drop_nulls()[:1].str
    # Try the format of the first text first; the others usually share it.
    for form in sorted(_DATES, key=lambda form: first.to_datetime(form, strict=False).null_count()):
        if not dates.null_count():
            break
        dates = dates.fill_null(plain.str.to_datetime(form, time_unit="us", strict=False))
    return dates, zoned
