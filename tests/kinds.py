"""A small model of every kind, and data with names to fit it to."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from mrfrec import MRF, Interactions
from mrfrec.models.mrf.parameters import PAPER

from matrices import random_matrix
from vectors import Vectors

MRFS: dict[str, dict[str, Any]] = {
    "dense": {"l2": 2.0},
    "sparse": {"l2": 2.0, "sparsity": 0.3, "r": 0.3},
    "offset": {"l2": 2.0, "offset": True},
    "sparse float64": {"l2": 1.0, "sparsity": 0.15, "dtype": "float64"},
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("MRF", parameters) for name, parameters in MRFS.items()},
    "EASE": ("EASE", {"l2": 20.0}),
    "EDLAE": ("EDLAE", {"l2": 5.0}),
    "Popularity": ("Popularity", {}),
    "ItemKNN": ("ItemKNN", {"neighbors": 12}),
    Vectors.__name__: ("Vectors", {"factors": 4}),
}


def named_data(text: bool, *, real: bool = False, positive: bool = False, items: int = 30) -> Interactions:
    X = random_matrix(3, users=60, items=items, real=real)
    X = np.abs(X) if positive else X
    X[:, 7] *= np.arange(60) % 7 > 0  # nobody has everything
    users = [f"u{i:02}" for i in range(60)] if text else list(range(1000, 1060))
    # Not in ascending order: the model must not rely on it.
    names: list[Any] = [f"item {(7 * i) % items:02}" for i in range(items)]
    ids = names if text else [2**40 + (7 * i) % items for i in range(items)]
    titles = [None if i == 4 else f"Title, of {i}" for i in range(items)]
    return Interactions(sp.csr_array(X), users, ids, titles)


def field(**settings: Any) -> MRF:
    """Return the paper's MRF, with settings of the core among its parameters that are no parameters."""
    names = {"center": "_center", "dropout": "dropout"}
    own = {names[name]: settings.pop(name) for name in names.keys() & settings.keys()}
    kind: type[MRF] = type("MRF", (MRF,), own)
    return kind(**{**PAPER, **settings})


def relearn(model: Any, **parts: Any) -> None:
    """Replace parts of what a model has learned, such as its weights."""
    fitted = model.fitted_
    model._fitted = replace(fitted, learned=replace(fitted.learned, **parts))
