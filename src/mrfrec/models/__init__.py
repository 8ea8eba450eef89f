"""Models to compare the MRF with, and `Linear`, from which to derive your own.

    from mrfrec.models import EASE

    EASE(l2=100.0).fit("events.csv").recommend(history=["milk", "bread"])

Each is a `Recommender`, as `MRF` is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrfrec.models.baselines import EASE, EDLAE, ItemKNN, Popularity
    from mrfrec.models.linear import Linear

__all__ = [
    "EASE",
    "EDLAE",
    "ItemKNN",
    "Linear",
    "Popularity",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mrfrec.models.registry import MODELS

        return getattr(import_module(MODELS.get(name, "mrfrec.models.linear")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
