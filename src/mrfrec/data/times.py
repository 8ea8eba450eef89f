"""Times of events, in microseconds since 1970, UTC: from numbers and from those of a matrix."""

import logging
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import counted
from mrfrec.data.notes import DataNote
from mrfrec.errors import DataError, ParameterError

_log = logging.getLogger("mrfrec")

Times = npt.NDArray[np.int64]

# Numbers from here on are milliseconds: as seconds, this is the year 5138; as milliseconds, 1973.
_MILLISECONDS_FROM = 1e11
_LARGEST = 1e14  # number that can be a time
_DAY = 86_400_000_000
_RULE = (
    "numbers (seconds or milliseconds since 1970) or datetime64, a time for each stored pair of the matrix"
)


def from_numbers(times: npt.NDArray[Any]) -> tuple[Times, int | None]:
    """Convert seconds or milliseconds since 1970 to microseconds; also return the factor, None for zeros."""
    sizes = np.abs(times[times != 0].astype(np.float64))
    least, most = float(sizes.min(initial=math.inf)), float(sizes.max(initial=0.0))
    looks_like_a_date = 19000101 <= most <= 20991231
    if most >= _LARGEST or least < _MILLISECONDS_FROM <= most or looks_like_a_date:
        raise DataError(
            "times that are numbers must be all seconds or all milliseconds since 1970; got numbers "
            f"from {least:.15g} to {most:.15g}. Or write them as 2026-11-16 or 2026-11-16T10:30:00."
        )
    scale = 1000 if most >= _MILLISECONDS_FROM else 1_000_000
    whole = times.astype(np.int64) * scale if times.dtype.kind in "iu" else np.rint(times * float(scale))
    return whole.astype(np.int64), scale if most else None


def as_moments(times: Times | None) -> npt.NDArray[np.datetime64] | None:
    """Return microseconds as `Interactions` takes them: numbers would count as seconds or milliseconds."""
    return None if times is None else times.view("datetime64[us]")


def times_of_pairs(times: Any, given: Any, matrix: sp.csr_array) -> Times:
    """Return the times of the stored pairs of `matrix`, the canonical form of the matrix that was given.

    `times` is a sparse matrix with the same pairs, or an array in the order of a given canonical CSR matrix.
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
        place = int(np.argmax(odd))
        advice = f"It is that of pair {place:,}. Leave out pairs without a time, or give no times."
        raise ParameterError("times", "within the years 1 to 9999, none missing", str(values[place]), advice)
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").astype(np.int64)
    return from_numbers(values)[0]


def note_on_future(times: Times) -> DataNote | None:
    """Return a note if some times are more than a day after that of the machine's clock."""
    count = int((times > datetime.now(UTC).timestamp() * 1e6 + _DAY).sum())
    if not count:
        return None
    text = (
        f"{counted(count, 'time')} in the future, the latest is {shown(int(times.max()))}: they are kept. If "
        "they are wrong, correct them, or leave out these events (until)."
    )
    return DataNote("rows ahead", count, text)


def shown(time: int) -> str:
    """Return a time as text, to the second, or as a date if it is midnight."""
    return str(np.datetime64(time, "us").astype("datetime64[s]")).removesuffix("T00:00:00")


def tell(times: Times, columns: list[str], unit: str) -> None:
    """Log which columns the times come from, and their range."""
    named = ", ".join(f'"{name}"' for name in columns)
    first, last = int(times.min()), int(times.max())
    span = f"{str(np.datetime64(first, 'us'))[:10]} to {str(np.datetime64(last, 'us'))[:10]}"
    if first == last:
        span = f"all are {shown(first)}, which tells no order: they are not used"
    _log.info("times from %s%s: %s", named, unit, span)
