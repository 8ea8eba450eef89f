"""mrfrec: recommendations from a Gaussian Markov random field of items.

    import mrfrec

    model = mrfrec.MRF(l2=1.0, sparsity=0.005).fit(X)      # X: scipy.sparse, users × items
    items, scores = model.top_k(X, k=10)

The method is that of Steck, "Markov Random Fields for Collaborative Filtering", NeurIPS 2019.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrfrec.errors import (
        DataError,
        MemoryPlanError,
        MrfrecError,
        NotFittedError,
        NumericalError,
        ParameterError,
    )
    from mrfrec.model import MRF

__version__ = "0.1.0"

__all__ = [
    "MRF",
    "DataError",
    "MemoryPlanError",
    "MrfrecError",
    "NotFittedError",
    "NumericalError",
    "ParameterError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # numba and scipy load on first use, so that importing the package costs next to nothing.
    if name == "MRF":
        return import_module("mrfrec.model").MRF
    if name in __all__:
        return getattr(import_module("mrfrec.errors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
