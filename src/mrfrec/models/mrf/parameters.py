"""The parameters of MRF, EASE and EDLAE in one table: what is allowed, and where measuring starts."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from mrfrec.checks import (
    check_count,
    check_device_name,
    check_dtype,
    check_flag,
    check_number,
    check_thread_count,
)
from mrfrec.core.plan import Settings
from mrfrec.data.reading_options import duration
from mrfrec.engines.machine import parse_bytes
from mrfrec.errors import ParameterError
from mrfrec.fitted.measured import check_measure

Automatic = Literal["auto"]
Check = Callable[[str, Any], Any]

_AS_DEFAULT = object()


class Rule(NamedTuple):
    """What a parameter may be, and what it means to a fit."""

    check: Check  # returns a plain number, flag or text, or raises an error that says the rule
    words: tuple[str | None, ...] = ()  # allowed besides numbers: "auto" is kept, another word becomes None
    start: float | None = None  # the value of "auto" where measuring and `tune` start
    paper: Any = _AS_DEFAULT  # the value in the paper, where it is not the default
    needs: str = ""  # "times", "features" or "rank": without it the parameter means nothing
    off: str = ""  # the only value that data without times allows; any value if empty

    def checked(self, name: str, value: Any) -> Any:
        """Return the value that a model keeps."""
        if (value is None or isinstance(value, str)) and value in self.words:
            return "auto" if value == "auto" else None
        return self.check(name, value)


def _number(rule: str, holds: Callable[[float], bool]) -> Check:
    return lambda name, value: check_number(name, value, rule, holds)


_FROM_0_TO_1 = _number("between 0 and 1", lambda x: 0 <= x <= 1)
_NOVELTY = _number('between -1 and 1, or "auto"', lambda x: -1 <= x <= 1)
_RECENCY = _number('above 0 and at most 1, or "auto"', lambda x: 0 < x <= 1)
_SHARE = _number('above 0 and at most 1, "dense", or "auto"', lambda x: 0 < x <= 1)
_WEIGHT = _number('a finite number, 0 or more, or "auto"', lambda x: x >= 0)


def _duration(name: str, value: object) -> str:
    """Return a duration as a text, which files and jobs can hold."""
    seconds = duration(name, value) / 1e6
    return value if isinstance(value, str) else f"{seconds:.6f}s"


RULES: dict[str, Rule] = {
    "l2": Rule(_WEIGHT, ("auto",), paper=6.0),
    "rank": Rule(lambda name, value: check_count(name, value, least=0), ("auto",), paper=0),
    "rank_weight": Rule(_WEIGHT, ("auto",), start=0.3, needs="rank"),
    "novelty": Rule(_NOVELTY, ("auto",), start=0.1, paper=0.0),
    "user_weight": Rule(_WEIGHT, ("auto",), start=0.25, paper=0.0),
    "half_life": Rule(_duration, ("auto", None), start=0.0, paper=None, needs="times", off="None"),
    "recency": Rule(_RECENCY, ("auto",), start=1.0, paper=1.0, needs="times"),
    "order": Rule(_WEIGHT, ("auto",), start=0.0, paper=0.0, needs="times", off="0"),
    "feature_weight": Rule(_WEIGHT, ("auto",), start=0.7, paper=0.7, needs="features"),
    "measure": Rule(lambda name, value: check_measure(value)),
    "sparsity": Rule(_SHARE, ("auto", "dense", None)),
    "max_neighbors": Rule(check_count),
    "r": Rule(_FROM_0_TO_1),
    "alpha": Rule(_FROM_0_TO_1, paper=0.75),
    "offset": Rule(check_flag, paper=False),
    "mean_constraint": Rule(check_flag),
    "dtype": Rule(lambda name, value: check_dtype(value)),
    "device": Rule(lambda name, value: check_device_name(value)),
    "threads": Rule(lambda name, value: check_thread_count(value), (None,)),
    "memory_limit": Rule(lambda name, value: parse_bytes(value), (None,)),
}
"""In the order of the parameters of `MRF`, whose docstring says what they mean."""

PAPER = {name: rule.paper for name, rule in RULES.items() if rule.paper is not _AS_DEFAULT}
"""The parameters of the paper, where they are not the defaults."""


def is_measured(name: str) -> bool:
    """Return whether a fit can measure a parameter. The ridge starts from a formula, not from a number."""
    return name in RULES and (RULES[name].start is not None or name == "l2")


def keep(model: object, values: Mapping[str, Any]) -> None:
    """Check the parameters among the arguments of a constructor, and keep them as attributes."""
    checked = {name: rule.checked(name, values[name]) for name, rule in RULES.items() if name in values}
    for name, value in checked.items():
        setattr(model, name, value)
    r, sparsity = checked.get("r", 0.0), checked.get("sparsity")
    if r > 0 and sparsity is None:
        raise ParameterError("r", "0 for a dense model", values["r"])
    if checked.get("mean_constraint") and (sparsity not in (None, "auto") or r > 0):
        rule = "False for a sparse model"
        raise ParameterError("mean_constraint", rule, values["mean_constraint"], "Drop sparsity and r.")


def number_of(name: str, value: Any) -> Any:
    """Return a parameter as settings have it: a duration in microseconds, "auto" where measuring starts.

    The other words of `sparsity`, `rank`, `l2` and `rank_weight` stay: the size of the data decides them.
    """
    rule = RULES.get(name)
    if rule is None or rule.start is None:
        return value
    if value == "auto":
        return rule.start if rule.needs != "rank" else value
    if value is None:
        return 0.0
    return float(duration(name, value)) if isinstance(value, str) else float(value)


def start_of(settings: Settings) -> dict[str, Any]:
    """Return the numbers where measuring starts; only l2 may stay "auto"."""
    values = {name: getattr(settings, name) for name in RULES if is_measured(name)}
    return {name: RULES[name].start or x if x == "auto" else x for name, x in values.items()}
