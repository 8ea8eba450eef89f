"""Ordered pairs beside a device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec.core import fitting
from mrfrec.core.plan import Settings
from mrfrec.engines.gpu.dense import TorchAccelerator
from mrfrec.engines.local import LocalEngine

from matrices import places_of, random_matrix

SETTINGS = Settings(2.0, None, 1000, 0.0, "float32", 0.75, center=True, user_weight=0.25, order=0.4)


def fitted_by(engine: LocalEngine, settings: Settings) -> Any:
    X = np.hstack([random_matrix(seed, users=400, items=60) for seed in (3, 4, 5)])
    places = places_of(X)[np.nonzero(X)].astype(np.uint16)
    with engine:
        return fitting.fit(sp.csr_array(X), settings, engine, steps=places)


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 0.3, "rank": 8}], ids=["dense", "sparse"])
def test_beside_a_device_the_processor_solves(parameters: dict[str, Any]) -> None:
    settings = replace(SETTINGS, **parameters)
    device = TorchAccelerator("cpu")
    found, expected = (
        fitted_by(LocalEngine(2, accelerator=each), settings).weights for each in (device, None)
    )
    if "sparsity" in parameters:
        found, expected = (each.matrix().toarray() for each in (found, expected))
    else:
        found, expected = found.array, expected.array
    np.testing.assert_array_equal(found, expected)
