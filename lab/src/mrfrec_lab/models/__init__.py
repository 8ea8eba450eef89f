"""The models that the paper compares the MRF with, registered: `mrfrec.load` and the shell know them."""

from mrfrec import register
from mrfrec_lab.models.autoencoders import CDAE, MultDAE, MultVAE
from mrfrec_lab.models.slim import SLIM, FsSLIM
from mrfrec_lab.models.wmf import WMF

__all__ = ["CDAE", "SLIM", "WMF", "FsSLIM", "MultDAE", "MultVAE"]

for _model in (SLIM, FsSLIM, WMF, CDAE, MultDAE, MultVAE):
    register(_model)
