"""Compile before the first fit: in container images, and before a fit is timed."""

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from mrfrec.core.kernels import compile as kernels
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.baselines import ItemKNN
from mrfrec.models.linear import Linear
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import MODELS

_log = logging.getLogger("mrfrec")


def compile_ahead(*, dtypes: Sequence[Literal["float32", "float64"]] = ("float32",)) -> Path:
    """Compile the kernels for fitting and ranking, so that later processes load them instead of compiling.

    This covers `ItemKNN` and `MRF`, dense and sparse, with binary data, values and times. Return the folder
    with the machine code: numba's NUMBA_CACHE_DIR if it is set, else `lib/mrfrec` of the Python environment
    if it is writable, else `~/.cache/mrfrec`. Machine code is for one model of processor; on another model,
    kernels are compiled again.
    """
    if not {*dtypes} <= {"float32", "float64"}:
        raise ParameterError("dtypes", 'some of "float32" and "float64"', dtypes)
    # The data has more items than a tile of the dense model, so that all its kernels run.
    binary = sp.csr_array((np.arange(300 * 130).reshape(300, 130) % 7 % 3 == 0).astype(np.float32))
    # XᵀX is counted in integers in the first case, in floats in the second.
    cases = ((binary, 0.0), (binary * np.float32(2.0), 0.5))
    many = sp.csr_array((np.random.default_rng(0).random((600, 20)) < 0.3).astype(np.float32))
    for dtype, sparsity in product(dtypes, (None, 0.5)):  # measured on held-out users
        MRF(l2=1.0, user_weight=0.0, sparsity=sparsity, dtype=dtype, threads=1).fit(many)
    times = np.arange(many.nnz) % 50 * 86_400
    for dtype, sparsity, half_life in product(dtypes, (None, 0.5), ("9d", None)):
        timed: dict[str, Any] = {"half_life": half_life, "order": 0.5, "recency": 0.5, "measure": False}
        MRF(l2=1.0, user_weight=0.0, sparsity=sparsity, dtype=dtype, threads=1, **timed).fit(
            many, times=times
        )
    for dtype, (X, user_weight) in product(dtypes, cases):
        shared: dict[str, Any] = {"threads": 1, "dtype": dtype}
        settings = {"l2": 1.0, "user_weight": user_weight, **shared}
        models: list[Recommender] = [
            MRF(sparsity=None, **settings),
            MRF(sparsity=0.5, max_neighbors=10, r=0.5, **settings),
            ItemKNN(neighbors=2, threads=1),
        ]
        for model in models:
            model.fit(X)
            model.scores(X)
            model.top_k(X, 2)
            model.recommend(history=model.items_[:1], k=1, explain=int(model.explains))
    for kept in kernels.cache_folders():
        if any(kept.rglob("*.nbi")):
            return kept
    raise DataError(
        "the machine code was compiled but could not be kept: neither the package's own folder nor "
        "~/.cache/mrfrec can be written. Name one that can, as NUMBA_CACHE_DIR."
    )


def warm_up(model: Recommender) -> None:
    """Compile or load the kernels that a model needs to fit and rank, so that timings do not include this.

    For a class of the user's own, the mrfrec class that it derives from is fitted, if there is one.
    """
    model.check_ready()
    kind: Any = next((each for each in type(model).__mro__ if each.__module__ in MODELS.values()), None)
    if kind is None or not isinstance(model, Linear):
        return
    X = sp.csr_array((np.arange(300 * 40).reshape(300, 40) % 7 % 3 == 0).astype(np.float32))
    level = _log.level
    _log.setLevel(max(level, logging.WARNING))  # The caller did not ask for these fits.
    try:
        for each in _with_the_same_code(kind, model):
            each.memory_limit = None
            each.fit(X).top_k(X, 1)
    finally:
        _log.setLevel(level)


def _with_the_same_code(kind: Any, model: Linear) -> list[Recommender]:
    """Return small models of a kind, dense and sparse, whose fits run the same code as this model's."""
    if "sparsity" not in kind.defaults():
        return [kind(**{name: getattr(model, name, default) for name, default in kind.defaults().items()})]
    shared: dict[str, Any] = {"l2": 1.0, "dtype": model.dtype, "threads": 1}
    return [kind(sparsity=None, **shared), kind(sparsity=0.5, r=0.5, max_neighbors=10, **shared)]
