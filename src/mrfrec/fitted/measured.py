"""What a fit has measured: values and their gains, as text and as facts of a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrfrec.checks import in_words


class MeasuredValue(NamedTuple):
    """A parameter that was measured; the gain is the mean over users of the nDCG it adds."""

    name: str
    start: float
    value: float
    gain: float
    error: float  # standard error of the gain


@dataclass(frozen=True)
class Measured:
    """The values that a fit has measured, and on how many users; as a string, part of a sentence."""

    users: int
    trials: int
    ndcg: float  # of the stand-in with these values
    choices: tuple[MeasuredValue, ...]
    places: int  # of the lists whose nDCG it is

    @property
    def values(self) -> dict[str, float]:
        """The value of each parameter that was measured."""
        return {choice.name: choice.value for choice in self.choices}

    def __str__(self) -> str:
        moved = [
            f"{name}={value:.3g} (not {start:.3g}, nDCG@{self.places} {gain:+.4f} ± {error:.4f})"
            for name, start, value, gain, error in self.choices
            if value != start
        ]
        stayed = [
            f"{choice.name}={choice.value:.3g}" for choice in self.choices if choice.value == choice.start
        ]
        unmoved = [f"{in_words(stayed)} as at the start"] if stayed else []
        return f"measured on {self.users:,} held-out users: {', '.join([*moved, *unmoved])}"

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Measured":
        """Return it from the facts of a file, which `asdict` made."""
        return cls(**{**facts, "choices": tuple(MeasuredValue(*choice) for choice in facts["choices"])})
