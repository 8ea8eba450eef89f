"""The experiments of Steck (2019): its tables, its side checks, and the same on your own data."""

from mrfrec.paper.reproduce import reproduce
from mrfrec.paper.side_checks import Exposure, exposure, low_rank
from mrfrec.paper.tradeoff import Tradeoff, tradeoff

__all__ = ["Exposure", "Tradeoff", "exposure", "low_rank", "reproduce", "tradeoff"]
