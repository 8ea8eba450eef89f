"""The lab's models keep to what all models promise, with public names of mrfrec alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mrfrec
from mrfrec.testing import check_recommender
from mrfrec_lab.models import CDAE, SLIM, WMF, FsSLIM, MultDAE, MultVAE

from kinds import named_data

SOURCE = Path(mrfrec.__file__).parents[2] / "lab" / "src"
QUICK: dict[str, Any] = {"hidden": 8, "epochs": 3, "batch": 16, "validation": 0, "device": "cpu"}
KINDS: dict[str, tuple[type[mrfrec.Recommender], dict[str, Any]]] = {
    "SLIM": (SLIM, {"l1": 0.5, "l2": 5.0}),
    "FsSLIM": (FsSLIM, {"neighbors": 10, "l1": 0.5, "l2": 5.0}),
    "WMF": (WMF, {"factors": 6, "l2": 2.0, "weight": 5.0, "iterations": 4}),
    "CDAE": (CDAE, QUICK),
    "MultDAE": (MultDAE, QUICK),
    "MultVAE": (MultVAE, {"latent": 4, **QUICK}),
}


@pytest.mark.parametrize("text", [True, False], ids=["text", "integers"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "AE" in name else name for name in KINDS]
)
def test_models_keep_the_contract(name: str, text: bool) -> None:
    kind, parameters = KINDS[name]
    data = named_data(text, positive=True)
    check_recommender(lambda **changed: kind(**{**parameters, **changed}), data)


def test_a_model_that_breaks_a_promise_is_caught() -> None:
    class Forgetful(SLIM):
        def _fit(self, data: Any, context: Any) -> Any:
            weights = super()._fit(data, context).weights.matrix()
            return self.learned(weights * np.random.default_rng().random())

    mrfrec.register(Forgetful)
    with pytest.raises(AssertionError, match="fitted again it is the same file"):
        check_recommender(lambda **changed: Forgetful(**{"l1": 0.5, "l2": 5.0, **changed}), named_data(False))


def test_negative_values_are_refused_where_they_mean_nothing() -> None:
    data = named_data(text=False, real=True)
    for name in ("WMF", "MultDAE"):
        kind, parameters = KINDS[name]
        with pytest.raises(mrfrec.DataError, match="negative"):
            kind(**parameters).fit(data)
