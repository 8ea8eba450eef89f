"""The models that the paper compares the MRF with, registered: `mrfrec.load` and the shell know them."""

from collections.abc import Mapping
from typing import Any

import mrfrec.models
from mrfrec import Recommender, register
from mrfrec_lab.models.autoencoders import CDAE, MultDAE, MultVAE
from mrfrec_lab.models.slim import SLIM, FsSLIM
from mrfrec_lab.models.wmf import WMF

__all__ = ["CDAE", "SLIM", "WMF", "FsSLIM", "MultDAE", "MultVAE", "build"]

for _model in (SLIM, FsSLIM, WMF, CDAE, MultDAE, MultVAE):
    register(_model)


def build(kind: str, parameters: Mapping[str, Any]) -> Recommender:
    """Return a model of mrfrec or of the lab by the name of its class."""
    own = {model.__name__: model for model in (SLIM, FsSLIM, WMF, CDAE, MultDAE, MultVAE)}
    known = mrfrec.MRF if kind == "MRF" else own.get(kind) or getattr(mrfrec.models, kind)
    model: Recommender = known(**parameters)
    return model
