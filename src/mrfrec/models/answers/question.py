"""The options of a recommendation, checked once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.data.ids import Id

ItemFilter = Iterable[Id] | Mapping[Any, Iterable[Id]] | None


@dataclass(frozen=True)
class Question:
    """How many items to recommend, which ones, and how to rank and explain them.

    The fields are the parameters of `Recommender.recommend`.
    """

    k: int = 10
    exclude_seen: bool = True
    allow: ItemFilter = None
    exclude: ItemFilter = None
    novelty: float | None = None
    explain: int = 0

    def __post_init__(self) -> None:
        checked = {
            "k": check_count("k", self.k),
            "exclude_seen": check_flag("exclude_seen", self.exclude_seen),
            "novelty": check_novelty(self.novelty),
            "explain": check_count("explain", self.explain, least=0),
        }
        self.__dict__.update(checked)  # numbers of numpy become plain ones

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the cost of answers to histories of these lengths: their rows, and the work of reasons."""
        rows = len(lengths) * self.k * (1 + self.explain)
        return rows + (sum(lengths) * self.k // 100 if self.explain else 0)


def check_novelty(novelty: object) -> float | None:
    """Return γ, between -1 and 1, or None for that of the fit."""
    if novelty is None:
        return None
    return check_number("novelty", novelty, "between -1 and 1", lambda x: -1 <= x <= 1)
