"""Parameter checks, and warnings attributed to the caller's line."""

import math
import re
import sys
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Literal

from mrfrec.errors import MrfrecWarning, ParameterError


def check_number(name: str, value: object, rule: str, holds: Callable[[float], bool]) -> float:
    """Return `value` as a float if it is finite and `holds(value)`; otherwise raise with `rule`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, rule, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise ParameterError(name, rule, value)
    return number


def check_count(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ParameterError(name, f"a whole number, {least} or more", value)
    if int(value) >= 2**63:
        raise ParameterError(name, "a whole number below 2^63", value)
    return int(value)


def check_seed(value: object) -> int:
    """Return a 32-bit seed. None is refused: an unseeded run could not be repeated."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**32:
        raise ParameterError("seed", "a whole number from 0 to 4294967295", value)
    return int(value)


def check_dtype(value: Literal["float32", "float64"]) -> Literal["float32", "float64"]:
    if value not in ("float32", "float64"):
        raise ParameterError("dtype", '"float32" or "float64"', value)
    return value


def check_flag(name: str, value: object) -> bool:
    """Return a bool; other truthy or falsy values are refused."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise ParameterError(name, "True or False", value)
    return bool(value)


def check_device_name(device: object) -> str:
    """Return the name of a device; whether it exists is seen when it is used."""
    if not isinstance(device, str) or re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device) is None:
        rule = '"auto", "cpu", "cuda", or a numbered device such as "cuda:1"'
        raise ParameterError("device", rule, device)
    return device


def warn(message: str) -> None:
    """Issue a `MrfrecWarning` for the nearest calling line outside this package."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("mrfrec."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, MrfrecWarning, stacklevel=depth + 1)
