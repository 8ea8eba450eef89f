"""Small routines of the compiled code against NumPy."""

import numpy as np
import pytest
from numba import njit

from mrfrec.core.kernels.sorting import first_at_least, sort


@njit
def sort_range(values, start, stop, until):  # type: ignore[no-untyped-def]
    sort(values, start, stop, until)


@njit
def find(value, values, start, stop):  # type: ignore[no-untyped-def]
    return first_at_least(value, values, start, stop)


@pytest.mark.parametrize("different", [1, 3, 1000, 2**31 - 1])
@pytest.mark.parametrize("length", [0, 1, 2, 16, 17, 18, 40, 1000])
def test_sort_orders_the_range_as_far_as_asked_and_touches_nothing_else(length: int, different: int) -> None:
    rng = np.random.default_rng(length + different)
    start, stop = 3, 3 + length
    for until in sorted({start, start + 1, (start + stop) // 2, stop}):
        values = rng.integers(0, different, length + 7).astype(np.int32)
        ordered = values.copy()
        sort_range(ordered, start, stop, until)
        expected = np.sort(values[start:stop])
        shown = slice(0, max(until - start, 0))
        np.testing.assert_array_equal(ordered[start:stop][shown], expected[shown])
        np.testing.assert_array_equal(np.sort(ordered[start:stop]), expected)
        np.testing.assert_array_equal(
            np.delete(ordered, range(start, stop)), np.delete(values, range(start, stop))
        )


@pytest.mark.parametrize("order", ["ascending", "descending", "organ pipe"])
def test_sort_orders_what_is_ordered_already(order: str) -> None:
    values = np.arange(5000, dtype=np.int32)
    given = {
        "ascending": values,
        "descending": values[::-1].copy(),
        "organ pipe": np.concatenate([values[::2], values[1::2][::-1]]),
    }[order]
    sort_range(given, 0, len(given), len(given))
    np.testing.assert_array_equal(given, values)


def test_first_at_least_is_where_a_value_would_go() -> None:
    values = np.array([9, 1, 3, 3, 7, 0], np.int32)
    for value in range(9):
        assert find(value, values, 1, 5) == 1 + np.searchsorted(values[1:5], value)
