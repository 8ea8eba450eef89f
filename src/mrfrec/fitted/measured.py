"""What a fit has decided and measured: its plan, values, what they gain, and how this is said and saved."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mrfrec.checks import in_words
from mrfrec.core.plan import Plan
from mrfrec.data.reading_options import duration_text
from mrfrec.errors import ParameterError
from mrfrec.shown import Report, Section, Tabular, report_of

_NAMES = {"ndcg": "nDCG", "recall": "Recall"}


class Goal(NamedTuple):
    """nDCG or Recall of the first k items, the metric by which values are compared."""

    kind: str = "ndcg"
    k: int = 100

    @classmethod
    def of(cls, measure: bool | str, *, by_time: bool = False) -> "Goal":
        """Return the metric that the parameter `measure` names, the default one for True.

        By time, people are asked what they take next, which is for the top of a list to say.
        """
        if isinstance(measure, bool):
            return cls(k=20) if by_time else cls()
        kind, _, k = measure.partition("@")
        return cls(kind, int(k))

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]}@{self.k}"


def check_measure(value: object) -> bool | str:
    """Return True, False, or the name of a metric such as "ndcg@20"."""
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if not isinstance(value, str) or re.fullmatch(r"(ndcg|recall)@[1-9]\d{0,5}", value) is None:
        raise ParameterError("measure", 'True, False, or a metric such as "ndcg@20" or "recall@50"', value)
    return value


DURATIONS = ("half_life",)
"""Parameters that are durations: texts such as "90d", and microseconds in computations."""


def as_parameter(name: str, value: float) -> float | str | None:
    """Return a value as a parameter: a duration, kept in microseconds, as a text, or None for none."""
    if name not in DURATIONS:
        return value
    return duration_text(value) if value else None


def number_text(name: str, value: float) -> str:
    """Return a value for people."""
    shown = as_parameter(name, value)
    return f"{shown:.3g}" if isinstance(shown, float | int) else str(shown)


@dataclass(frozen=True, repr=False)
class FitPlan(Tabular, Plan):
    """The plan of a fit, which shows itself as a table; as a string, one line."""


@report_of.register
def of_plan(plan: FitPlan) -> Report:
    """Report a plan."""
    decided = {name: getattr(plan, name) for name in ("l2", "sparsity", "rank")}
    rows = [(name, x if isinstance(x, str) else f"{x:.3g}") for name, x in decided.items() if x is not None]
    rows += [("memory", plan.memory)] if plan.limit else []
    rows += [("device", plan.device)] if plan.device else []
    about = [f"{plan.kind} model: {plan.reason}"]
    return Report(about, [Section(["", "plan"], rows)], records=[asdict(plan)])


class MeasuredValue(NamedTuple):
    """A parameter that was measured."""

    name: str
    start: float
    value: float


@dataclass(frozen=True, repr=False)
class Measured(Tabular):
    """The values that a fit has measured, and on how many users; as a string, part of a sentence."""

    users: int
    trials: int  # fits, each with several rankings
    metric: str  # such as "nDCG@100"
    value: float  # of the metric, with these values
    gain: float  # over the start, of the values that one half of the users prefers, on the other half
    error: float  # standard error of the gain
    choices: tuple[MeasuredValue, ...]
    how: str = ""  # the models that were tried differ from the final one; "" if they do not
    left_out: tuple[str, ...] = ()  # parameters that were not varied, or not to the end, for lack of time

    @property
    def values(self) -> dict[str, float]:
        """The values of the parameters that were measured."""
        return {choice.name: choice.value for choice in self.choices}

    def __str__(self) -> str:
        shown = [(name, *(number_text(name, x) for x in of)) for name, *of in self.choices]
        moved = [f"{name}={value} (not {start})" for name, start, value in shown if value != start]
        stayed = [f"{name}={value}" for name, start, value in shown if value == start]
        values = ", ".join([*moved, *([f"{in_words(stayed)} as at the start"] if stayed else [])])
        return "; ".join([f"measured on {self.asked}: {values}", *self.results])

    @property
    def asked(self) -> str:
        """Who was asked, in words."""
        return f"{self.users:,} held-out users" + (f" {self.how}" if self.how else "")

    @property
    def results(self) -> list[str]:
        """What it has gained, and what was not tried for lack of time."""
        said = [f"{self.metric} {self.gain:+.4f} ± {self.error:.4f} on users not used to choose"]
        if self.left_out:
            said.append(f"{in_words(self.left_out)} not tried further, to take no longer than the fit")
        return said

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Measured":
        """Return what `asdict` has made of it, and JSON of that."""
        choices = tuple(MeasuredValue(*choice) for choice in facts["choices"])
        return cls(**{**facts, "choices": choices, "left_out": tuple(facts["left_out"])})


@report_of.register
def of_measured(measured: Measured) -> Report:
    """Report the values that were measured."""
    rows = [(name, *(number_text(name, x) for x in values)) for name, *values in measured.choices]
    records: list[dict[str, Any]] = [
        {"parameter": name, "start": as_parameter(name, start), "value": as_parameter(name, value)}
        for name, start, value in measured.choices
    ]
    table = Section(["parameter", "start", "measured"], rows)
    return Report([f"measured on {measured.asked}", *measured.results], [table], records=records)
