"""mrfrec: recommendations from a Gaussian Markov random field of items.

    import mrfrec

    model = mrfrec.MRF().fit("events.csv")                 # or a data frame, or a scipy.sparse matrix
    model.recommend(history=["milk", "bread"], k=5)        # a table: user, item, title, score, rank, source
    model.save("shop.mrf"); mrfrec.load("shop.mrf")        # one file, no pickle

The method is that of Steck, "Markov Random Fields for Collaborative Filtering", NeurIPS 2019.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrfrec import baselines, datasets, evaluation
    from mrfrec.errors import (
        DataError,
        MemoryPlanError,
        MissingLibraryError,
        ModelFileError,
        MrfrecError,
        MrfrecWarning,
        NotFittedError,
        NumericalError,
        ParameterError,
    )
    from mrfrec.interactions import Interactions
    from mrfrec.io.tables import read_interactions
    from mrfrec.model import MRF
    from mrfrec.recommender import Recommender
    from mrfrec.saving import load

__version__ = "0.1.0"

__all__ = [
    "MRF",
    "DataError",
    "Interactions",
    "MemoryPlanError",
    "MissingLibraryError",
    "ModelFileError",
    "MrfrecError",
    "MrfrecWarning",
    "NotFittedError",
    "NumericalError",
    "ParameterError",
    "Recommender",
    "__version__",
    "baselines",
    "datasets",
    "evaluation",
    "load",
    "read_interactions",
]

# numpy, scipy, numba and polars load on first use, so that importing the package costs next to nothing.
_HOMES = {
    "MRF": "model",
    "Interactions": "interactions",
    "Recommender": "recommender",
    "load": "saving",
    "read_interactions": "io.tables",
}


def __getattr__(name: str) -> Any:
    if name in ("baselines", "datasets", "evaluation"):
        return import_module(f"mrfrec.{name}")
    if name in __all__:
        return getattr(import_module(f"mrfrec.{_HOMES.get(name, 'errors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
