"""The models that the paper compares the MRF with, and `Linear`, from which to derive your own.

    from mrfrec.models import SLIM

    SLIM(l1=1.0, l2=100.0).fit("events.csv").recommend(history=["milk", "bread"])

Each is a `Recommender`, as `MRF` is; WMF needs the extra `wmf`, the autoencoders need the extra `torch` to
be trained.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrfrec.models.baselines.autoencoders import CDAE, MultDAE, MultVAE
    from mrfrec.models.baselines.family import EASE, EDLAE
    from mrfrec.models.baselines.neighborhood import ItemKNN, Popularity
    from mrfrec.models.baselines.slim import SLIM, FsSLIM
    from mrfrec.models.baselines.wmf import WMF
    from mrfrec.models.linear import Linear

__all__ = [
    "CDAE",
    "EASE",
    "EDLAE",
    "SLIM",
    "WMF",
    "FsSLIM",
    "ItemKNN",
    "Linear",
    "MultDAE",
    "MultVAE",
    "Popularity",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mrfrec.models.registry import MODELS

        return getattr(import_module(MODELS.get(name, "mrfrec.models.linear")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
