"""Rules for parameters: each returns the value, or names the parameter, the rule and the value."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from mrfrec import ParameterError


def number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    """Check a finite number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not holds(float(value)):
        raise ParameterError(name, rule, value)
    return float(value)


def nonnegative(name: str, value: Any) -> float:
    return number(name, value, "a finite number, 0 or more", lambda x: x >= 0)


def whole(name: str, value: Any, least: int = 1) -> int:
    """Check a whole number."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ParameterError(name, f"a whole number, {least} or more", value)
    return int(value)


def one_of(name: str, value: Any, *allowed: Any) -> Any:
    """Check one of some values."""
    if not any(value is each or (isinstance(value, str) and value == each) for each in allowed):
        raise ParameterError(name, f"one of {', '.join(map(repr, allowed))}", value)
    return value


def precision(value: Any) -> Literal["float32", "float64"]:
    """Check the name of a dtype, or the dtype."""
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.floating))
    name: Literal["float32", "float64"] = one_of(
        "dtype", np.dtype(value).name if is_dtype else value, "float32", "float64"
    )
    return name
