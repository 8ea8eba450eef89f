"""The data set that comes with the package: source packages of Debian 12 and what they are built with."""

from pathlib import Path

import polars as pl

from mrfrec.data.interactions import Interactions
from mrfrec.data.item_table import ItemFeatures
from mrfrec.errors import ParameterError
from mrfrec.io.features import read_item_features
from mrfrec.io.tables import read_interactions

__all__ = ["item_features", "load"]

NAMES = ("debian",)
"""The names of the data sets."""


def load(name: str) -> Interactions:
    """Load a data set as `Interactions`.

    The users of "debian" are the source packages of Debian 12, the items the packages they are built with,
    and the titles their one-line descriptions. Every user has at least five items and every item at least
    five users. tools/build_debian.py builds it from Debian's package index.
    """
    return read_interactions(_table(name))


def item_features(name: str) -> ItemFeatures:
    """Read features of the items of "debian": the words of their descriptions."""
    events = pl.read_parquet(_table(name), columns=["item", "title"])
    return read_item_features(events.unique(maintain_order=True), columns={"title": "words"})


def _table(name: str) -> Path:
    if not isinstance(name, str) or name not in NAMES:
        raise ParameterError("name", f"one of {', '.join(NAMES)}", name)
    return Path(__file__).with_name(f"{name}.parquet")
