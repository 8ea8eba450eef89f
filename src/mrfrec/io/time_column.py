"""Read columns of times: dates, texts and numbers become microseconds since 1970."""

import polars as pl

from mrfrec.errors import DataError
from mrfrec.io.batches import Source

MICROSECONDS_UNKNOWN = -(2**63)
"""Stands for the time of a row that has none, until the oldest time is known."""
IN_THE_FUTURE = "time in the future"
"""The fault of a row later than the latest time that is allowed."""
_NO_TIME, _NO_DATE = "no time", "time neither a number nor a date"
_BEYOND = "time beyond the years 1 to 9999"
UNKNOWN = (_NO_TIME, _NO_DATE, _BEYOND)
"""The faults of rows whose time is missing or cannot be read."""
_RULE = "times must be numbers, dates, or texts such as 2019-12-08 or 2019-12-08T10:30:00"
_WITHOUT_TIMES = " Without times: time=False (--time-column no)."
_FORMS = {
    "seconds": "numbers of seconds",
    "milliseconds": "numbers of milliseconds",
    "naive": "dates and times without an offset",
    "zoned": "times with an offset",
}
_MILLISECONDS_FROM = 1e11  # as seconds, this is the year 5138; as milliseconds, 1973
_LARGEST = 1e14  # number that can be a time
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f")
_OFFSET = r"\d:\d\d.*[+-]\d\d:?\d\d$"

Faults = dict[str, tuple[pl.Series, str | None]]  # fault → its rows, and the role to quote


class TimeColumn:
    """Converts the times of all tables. They have the form of most of the first batch.

    A row whose time has another form or cannot be read is a bad row, and so is one after `latest`.
    """

    def __init__(self, latest: int | None = None) -> None:
        self.latest = latest
        self.form: str | None = None

    def read(self, raw: pl.Series, table: Source, name: str) -> tuple[pl.Series, Faults]:
        """Return microseconds since 1970, null where there are none; and for each fault its rows."""
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
            micros = _from_numbers(number, text.cast(pl.Int64, strict=False), forms, table.name)
            if number.null_count():
                dates, zoned = parsed_dates(text)
                dates = self._dates(dates, faults, quoted="time")
                forms["zoned"], forms["naive"] = dates.is_not_null() & zoned, dates.is_not_null() & ~zoned
                micros = micros.fill_null(dates)
        elif raw.dtype.is_integer() or raw.dtype.is_float():
            number = raw.cast(pl.Float64).fill_nan(None)
            faults[_NO_TIME] = number.is_null(), None
            whole = raw if raw.dtype.is_integer() else pl.repeat(None, len(raw), dtype=pl.Int64, eager=True)
            micros = _from_numbers(number, whole, forms, table.name)
        else:
            raise DataError(f"{table.name}: {_RULE}; column {name!r} is {raw.dtype}.{_WITHOUT_TIMES}")
        counts = {form: int(rows.sum()) for form, rows in forms.items()}
        if self.form is None and any(counts.values()):
            self.form = max(counts, key=counts.__getitem__)
        if self.form != "milliseconds" and "seconds" in forms:  # zeros have either unit
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
    def _dates(moment: pl.Series, faults: Faults, quoted: str | None) -> pl.Series:
        # The infinities of PostgreSQL have no year, and cannot be shown.
        beyond = ~moment.dt.year().is_between(1, 9999).fill_null(moment.is_null())
        faults[_BEYOND] = beyond, quoted
        return pl.select(pl.when(~beyond).then(moment)).to_series().cast(pl.Datetime("us")).dt.epoch("us")


def advice_on_time(fault: str, value: object) -> str:
    """Return what else to say of a time that cannot be read: how texts are written, and the ways on."""
    iso = (
        " Texts must be in ISO 8601, such as 2013-04-03 or 2013-04-03T10:30:00: convert others by "
        "pd.to_datetime(…, dayfirst=True) or dayfirst=False."
    )
    unknown = ' Rows of unknown time may count as the oldest: missing_time="oldest" (--missing-time oldest).'
    advice = iso if fault == _NO_DATE and isinstance(value, str) else ""
    return advice + unknown + _WITHOUT_TIMES if fault in UNKNOWN else ""


def _from_numbers(number: pl.Series, whole: pl.Series, forms: dict[str, pl.Series], name: str) -> pl.Series:
    """Return microseconds from seconds or milliseconds; `whole` has the numbers that are integers."""
    size = number.abs()
    most = size.filter(size < _LARGEST).max()
    if isinstance(most, float) and 19000101 <= most <= 20991231:
        raise DataError(
            f"{name}: times that are numbers must be seconds or milliseconds since 1970; got {most:.15g}. "
            f"Write dates as 2026-11-16 or 2026-11-16T10:30:00.{_WITHOUT_TIMES}"
        )
    forms["seconds"] = ((size < _MILLISECONDS_FROM) & (size > 0)).fill_null(False)
    forms["milliseconds"] = ((size >= _MILLISECONDS_FROM) & (size < _LARGEST)).fill_null(False)
    frame = pl.DataFrame({"number": number, "whole": whole, "size": size})
    factor = pl.when(pl.col("size") < _MILLISECONDS_FROM).then(1_000_000).otherwise(1000)
    exact = (pl.col("whole").cast(pl.Int64, strict=False) * factor).cast(pl.Int64)
    rounded = (pl.col("number") * factor).round().cast(pl.Int64, strict=False)
    can_be = pl.col("size") < _LARGEST
    return frame.select(pl.when(can_be).then(pl.coalesce(exact, rounded)).alias("time")).to_series()


def parsed_dates(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Parse texts as dates or times, null where they are none; also return which texts have an offset.

    Only ISO 8601 is recognised, and what PostgreSQL writes: 01/12 may be in January or in December.
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
