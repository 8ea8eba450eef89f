"""The rules of the parameters of MRF, EASE and EDLAE, a row for each."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from mrfrec.checks import (
    check_count,
    check_device_name,
    check_dtype,
    check_flag,
    check_number,
    check_thread_count,
)
from mrfrec.data.reading_options import duration
from mrfrec.engines.machine import parse_bytes
from mrfrec.fitted.measured import check_measure

Automatic = Literal["auto"]
Check = Callable[[str, Any], Any]


class Rule(NamedTuple):
    """What a parameter may be."""

    check: Check  # returns a plain number, flag or text, or raises an error that says the rule
    words: tuple[str | None, ...] = ()  # what is allowed besides: "auto" is kept, anything else becomes None
    start: float | None = None  # where measuring and `tune` start if it is "auto"

    def checked(self, name: str, value: Any) -> Any:
        """Return the value that a model keeps."""
        if (value is None or isinstance(value, str)) and value in self.words:
            return "auto" if value == "auto" else None
        return self.check(name, value)


def _number(rule: str, holds: Callable[[float], bool]) -> Check:
    return lambda name, value: check_number(name, value, rule, holds)


_FROM_0_TO_1 = _number("between 0 and 1", lambda x: 0 <= x <= 1)
_WEIGHT = _number('a finite number, 0 or more, or "auto"', lambda x: x >= 0)
_SHARE = _number('above 0 and at most 1, "dense", or "auto"', lambda x: 0 < x <= 1)


def _duration(name: str, value: object) -> str:
    """Return a duration as a text, which files and jobs can hold."""
    seconds = duration(name, value) / 1e6
    return value if isinstance(value, str) else f"{seconds:.6f}s"


RULES: dict[str, Rule] = {
    "l2": Rule(_WEIGHT, ("auto",)),
    "rank": Rule(lambda name, value: check_count(name, value, least=0), ("auto",)),
    "rank_weight": Rule(_WEIGHT, ("auto",), start=0.3),
    "novelty": Rule(_number('between -1 and 1, or "auto"', lambda x: -1 <= x <= 1), ("auto",), start=0.1),
    "user_weight": Rule(_WEIGHT, ("auto",), start=0.25),
    "half_life": Rule(_duration, ("auto", None), start=0.0),
    "recency": Rule(_number('above 0 and at most 1, or "auto"', lambda x: 0 < x <= 1), ("auto",), start=1.0),
    "order": Rule(_WEIGHT, ("auto",), start=0.0),
    "feature_weight": Rule(_WEIGHT, ("auto",), start=0.7),
    "measure": Rule(lambda name, value: check_measure(value)),
    "sparsity": Rule(_SHARE, ("auto", "dense", None)),
    "max_neighbors": Rule(check_count),
    "r": Rule(_FROM_0_TO_1),
    "alpha": Rule(_FROM_0_TO_1),
    "offset": Rule(check_flag),
    "mean_constraint": Rule(check_flag),
    "dtype": Rule(lambda name, value: check_dtype(value)),
    "device": Rule(lambda name, value: check_device_name(value)),
    "threads": Rule(lambda name, value: check_thread_count(value), (None,)),
    "memory_limit": Rule(lambda name, value: parse_bytes(value), (None,)),
}
"""In the order of the parameters of `MRF`, whose docstring says what each means."""

TIMES = {"half_life": 0.0, "order": 0.0, "recency": 1.0}
"""The parameters that mean nothing without times, and the values with which times change nothing."""

STARTS = {name: rule.start for name, rule in RULES.items() if rule.start is not None}
"""The start values of the parameters that are measured besides l2, which starts from a formula."""


def number_of(name: str, value: Any) -> float:
    """Return a parameter as a number: durations in microseconds, 0 for none, and "auto" where it starts."""
    if value == "auto":
        return STARTS[name]
    if value is None:
        return 0.0
    return float(duration(name, value)) if isinstance(value, str) else float(value)
