"""Recommend items with a Gaussian Markov random field.

    import mrfrec

    model = mrfrec.MRF().fit("events.csv")                 # or a data frame, or a scipy.sparse matrix
    model.recommend(history=["milk", "bread"], k=5)        # a table: user, item, title, score, rank, source
    model.save("shop.mrf"); mrfrec.load("shop.mrf")        # one file, no pickle

The method: Steck, "Markov Random Fields for Collaborative Filtering", NeurIPS 2019.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import mrfrec.checks  # noqa: F401 - notes forks, which break the library that reads and writes tables
from mrfrec import errors
from mrfrec.errors import *  # noqa: F403

if TYPE_CHECKING:
    from mrfrec import datasets, evaluation, extending, models, nightly, service, testing
    from mrfrec.data.interactions import Interactions
    from mrfrec.io.atomic import locked
    from mrfrec.io.features import read_item_features
    from mrfrec.io.item_table import read_item_table
    from mrfrec.io.tables import read_interactions
    from mrfrec.models.compiling import compile_ahead
    from mrfrec.models.mrf.model import MRF
    from mrfrec.models.recommender import Recommender
    from mrfrec.models.registry import load, register

__version__ = "0.1.0"

__all__ = [
    "MRF",
    "Interactions",
    "Recommender",
    "__version__",
    "compile_ahead",
    "datasets",
    "evaluation",
    "extending",
    "load",
    "locked",
    "models",
    "nightly",
    "read_interactions",
    "read_item_features",
    "read_item_table",
    "register",
    "service",
    "testing",
]
__all__ += errors.__all__

# Loaded on first use: `import mrfrec` imports neither numpy, scipy, numba nor polars.
_HOMES = {
    "MRF": "models.mrf.model",
    "Interactions": "data.interactions",
    "Recommender": "models.recommender",
    "compile_ahead": "models.compiling",
    "load": "models.registry",
    "locked": "io.atomic",
    "register": "models.registry",
    "read_interactions": "io.tables",
    "read_item_features": "io.features",
    "read_item_table": "io.item_table",
}


def __getattr__(name: str) -> Any:
    if name in ("datasets", "evaluation", "extending", "models", "nightly", "service", "testing"):
        return import_module(f"mrfrec.{name}")
    if name in _HOMES:
        return getattr(import_module(f"mrfrec.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
