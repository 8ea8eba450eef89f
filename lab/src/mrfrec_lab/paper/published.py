"""The published tables: their numbers, and the models that they are of.

The numbers are from Tables 1 and 2 of Steck (2019); those of the other models stem from Liang et al. (2018).
The parameters of the MRF are from the notebook published with the paper, those of Mult-VAE and Mult-DAE from
Liang et al., written out even where they are mrfrec's defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mrfrec.models.mrf.model import PAPER
from mrfrec_lab.paper.tradeoff import AS_PUBLISHED

Values = tuple[float, float, float]


@dataclass(frozen=True)
class Published:
    """A row of a table of the paper, and how to train its model here."""

    model: str
    values: Values | None  # nDCG@100, Recall@20, Recall@50; None: did not finish
    training: str = "–"
    kind: str = "MRF"
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _dense(values: Values, training: str, l2: float) -> Published:
    parameters = {**PAPER, "l2": l2, "sparsity": None}
    return Published("MRF, dense", values, training, "MRF", parameters)


def _sparse(sparsity: float, r: float, values: Values, training: str) -> Published:
    parameters = {**PAPER, **AS_PUBLISHED["sparse"], "sparsity": sparsity, "r": r}
    return Published(f"MRF, {100 * sparsity:g} % sparse, r = {r:g}", values, training, "MRF", parameters)


# Liang et al. train for 200 epochs and keep the one that is best on the validation users.
_EPOCHS: dict[str, Any] = {"epochs": 200, "patience": None}
_LIANG: dict[str, Any] = {**_EPOCHS, "dropout": 0.5, "learning_rate": 1e-3, "batch": 500}
_DAE: dict[str, Any] = {"kind": "MultDAE", "parameters": {**_LIANG, "hidden": 200, "l2": 0.01}}


def _vae(values: Values, training: str, steps: int) -> Published:
    """Mult-VAE: β grows by 1/200,000 in each step to 0.2; `steps` make an epoch."""
    layers = {"hidden": 600, "latent": 200, "l2": 0.0}
    parameters = {**_LIANG, **layers, "kl_cap": 0.2, "kl_epochs": 40_000 / steps}
    return Published("Mult-VAE", values, training, "MultVAE", parameters)


TABLE_1 = {
    "ml-20m": (
        _dense((0.423, 0.392, 0.522), "2 min 0 s", 6.0),
        _vae((0.426, 0.395, 0.537), "28 min 10 s", 234),
        Published("Mult-DAE", (0.419, 0.387, 0.524), **_DAE),
        Published("CDAE", (0.418, 0.391, 0.523), kind="CDAE", parameters=_EPOCHS),
        Published("SLIM", (0.401, 0.370, 0.495), kind="SLIM"),
        Published("WMF", (0.386, 0.360, 0.498), kind="WMF"),
    ),
    "netflix": (
        _dense((0.397, 0.364, 0.448), "1 min 30 s", 6.0),
        _vae((0.386, 0.351, 0.444), "1 h 26 min", 767),
        Published("Mult-DAE", (0.380, 0.344, 0.438), **_DAE),
        Published("CDAE", (0.376, 0.343, 0.428), kind="CDAE", parameters=_EPOCHS),
        Published("SLIM", (0.379, 0.347, 0.428), kind="SLIM"),
        Published("WMF", (0.351, 0.316, 0.404), kind="WMF"),
    ),
    "msd": (
        _dense((0.391, 0.334, 0.430), "15 min 45 s", AS_PUBLISHED["dense"]["l2"]),
        _vae((0.316, 0.266, 0.364), "4 h 30 min", 943),
        Published("Mult-DAE", (0.313, 0.266, 0.363), **_DAE),
        Published("CDAE", (0.237, 0.188, 0.283), kind="CDAE", parameters=_EPOCHS),
        Published("SLIM", None, kind="SLIM"),
        Published("WMF", (0.257, 0.211, 0.312), kind="WMF"),
    ),
}
TABLE_2 = {
    "msd": (
        TABLE_1["msd"][0],
        _sparse(0.005, 0.0, (0.390, 0.333, 0.427), "21 min 12 s"),
        _sparse(0.005, 0.1, (0.387, 0.331, 0.424), "3 min 27 s"),
        _sparse(0.005, 0.5, (0.385, 0.330, 0.424), "2 min 1 s"),
        _sparse(0.001, 0.0, (0.385, 0.330, 0.421), "3 min 7 s"),
        _sparse(0.001, 0.1, (0.382, 0.327, 0.417), "1 min 10 s"),
        _sparse(0.001, 0.5, (0.381, 0.327, 0.417), "39 s"),
        TABLE_1["msd"][1],
    )
}
WITHOUT_PARAMETERS = ("CDAE", "SLIM", "WMF")  # models whose parameters are not published
_TIMES = "Published times: 16 vCPUs; those of Mult-VAE with a GPU, of 50 epochs, its accuracy of 200."
NOTES = {
    "table1": f"Published standard errors: about 0.002 (ML-20M), 0.001 (Netflix), 0.001 (MSD). {_TIMES}",
    "table2": f"Published standard error: about 0.001. {_TIMES}",
    "lowrank": "Published: on MSD even 3,000 dimensions give about 10 % less nDCG@100.",
    "exposure": "Published, in words: on MSD the full-rank model recommends long-tail items considerably "
    "more often than Mult-VAE does.",
}  # fmt: skip
"""What else is published, by experiment."""
