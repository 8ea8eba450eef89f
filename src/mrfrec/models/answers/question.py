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

    The fields are the parameters of `Recommender.recommend`, and options of the command line.
    """

    k: int = 10  # number of items
    exclude_seen: bool = True  # leave out the items of the history
    allow: ItemFilter = None  # recommend only these items
    exclude: ItemFilter = None  # never recommend these items
    novelty: float | None = None  # above 0, rarer items score higher; below, popular ones
    explain: int = 0  # number of reasons to give for each item

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
