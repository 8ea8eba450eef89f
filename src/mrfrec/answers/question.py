"""The options of a recommendation, checked once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrfrec.checks import check_count, check_flag, check_number, warn
from mrfrec.data.ids import Id

LEAST, MOST = {"k": 1, "novelty": -1, "explain": 0}, {"novelty": 1}  # that numbers may be
ItemFilter = Iterable[Id] | Mapping[Any, Iterable[Id]] | None


@dataclass(frozen=True)
class Question:
    """How many items to recommend, which ones, and how to rank and explain them.

    The fields are the parameters of `Recommender.recommend`, options of the command line and, with their
    `LEAST` and `MOST`, fields of the requests to a service. The comments beside them describe them there.
    """

    k: int = 10  # number of items
    exclude_seen: bool = True  # leave out the items of the history
    allow: ItemFilter = None  # recommend only these items
    exclude: ItemFilter = None  # never recommend these items
    novelty: float | None = None  # above 0 favors rarer items, below 0 popular ones; as fitted by default
    explain: int = 0  # number of reasons for each item: items of the history that add most to its score

    def __post_init__(self) -> None:
        checked = {
            "k": check_count("k", self.k, LEAST["k"]),
            "exclude_seen": check_flag("exclude_seen", self.exclude_seen),
            "novelty": check_novelty(self.novelty),
            "explain": check_count("explain", self.explain, LEAST["explain"]),
        }
        self.__dict__.update(checked)  # numbers of numpy become plain ones

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the cost of answers to histories of these lengths: their rows, and the work of reasons."""
        rows = len(lengths) * self.k * (1 + self.explain)
        return rows + (sum(lengths) * self.k // 100 if self.explain else 0)

    def warn_of_few(self, found: str) -> None:
        """Warn that there are fewer than k items, and why; `found` says for how many users."""
        why = "allowed" if self.allow is not None else "not excluded"
        warn(f"{found}: no more items are left that they have not seen and that are {why}.")


def check_novelty(novelty: object) -> float | None:
    """Return γ, between -1 and 1, or None for that of the fit."""
    if novelty is None:
        return None
    return check_number(
        "novelty", novelty, "between -1 and 1", lambda x: LEAST["novelty"] <= x <= MOST["novelty"]
    )
