"""The experiments of Steck (2019): its tables, its side checks, and the same on your own data."""

from mrfrec_lab.paper.reproduce import reproduce
from mrfrec_lab.paper.side_checks import Exposure, exposure, low_rank
from mrfrec_lab.paper.tradeoff import tradeoff

__all__ = ["Exposure", "exposure", "low_rank", "reproduce", "tradeoff"]
