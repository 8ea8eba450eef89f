"""The options of a recommendation, checked once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from mrfrec.answers.where import Where, check_where
from mrfrec.checks import check_count, check_flag, check_number, counted, warn
from mrfrec.data.reading_options import Moment, moment
from mrfrec.options import option

ItemFilter = Iterable[int | str] | Mapping[Any, Iterable[int | str]] | None
"""Ids of items, or ids by user; None for no filter."""


@dataclass(frozen=True)
class Question:
    """How many items to recommend, which ones, and how to rank and explain them.

    The fields are the parameters of `Recommender.recommend`, options of the command line and fields of the
    requests to a service, which show their help and their limits.
    """

    k: int = option(10, "Number of items.", least=1)
    exclude_seen: bool = option(True, "Leave out the items of the history.")
    allow: ItemFilter = option(None, "Recommend only these items.")
    exclude: ItemFilter = option(None, "Never recommend these items.")
    novelty: float | None = option(
        None, "Above 0 favors rarer items, below 0 popular ones; as fitted by default.", least=-1, most=1
    )
    explain: int = option(
        0, "Number of reasons for each item: items of the history that add most to its score.", least=0
    )
    at: Moment | None = option(
        None, "When the question is asked, if not at the last event: 2026-11-16 or 2026-11-16T10:30:00."
    )

    where: Where = option(None, "Recommend only items of which this is true: price < 50 AND in_stock.")

    def __post_init__(self) -> None:
        checked = {
            "k": check_count("k", self.k, _LIMITS["k"]["least"]),
            "exclude_seen": check_flag("exclude_seen", self.exclude_seen),
            "novelty": check_novelty(self.novelty),
            "explain": check_count("explain", self.explain, _LIMITS["explain"]["least"]),
            "at": check_at(self.at),
            "where": check_where(self.where),
        }
        self.__dict__.update(checked)  # numbers of numpy become plain ones

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the cost of answers to histories of these lengths: their rows, and the work of reasons."""
        rows = len(lengths) * self.k * (1 + self.explain)
        return rows + (sum(lengths) * self.k // 100 if self.explain else 0)

    def warn_of_few(self, shortage: str, left: int | None = None) -> None:
        """Warn that there are fewer than k items, and why; `shortage` says for how many users.

        `left` is how many items `where` leaves, if it holds for everybody.
        """
        why = "allowed" if self.allow is not None or self.where is not None else "not excluded"
        text = "" if left is None else f" where leaves {counted(left, 'item')}."
        warn(f"{shortage}: no more items are left that they have not seen and that are {why}.{text}")


_LIMITS: Mapping[str, Mapping[str, Any]] = {each.name: each.metadata for each in fields(Question)}


def check_novelty(novelty: object) -> float | None:
    """Return γ, checked by its limits, or None for that of the fit."""
    if novelty is None:
        return None
    least, most = _LIMITS["novelty"]["least"], _LIMITS["novelty"]["most"]
    return check_number("novelty", novelty, f"between {least} and {most}", lambda x: least <= x <= most)


def check_at(at: object) -> str | None:
    """Return when a question is asked, as text; None for the time of the last event."""
    if at is not None:
        moment("at", at)
    return at.isoformat() if isinstance(at, date) else None if at is None else str(at)
