"""EASE and EDLAE: the field of the MRF with other ridges.

Without centering and rescaling, the field has the ridge `l2 + p/(1 − p)·diag(XᵀX)` on the diagonal of XᵀX. A
flat ridge is EASE; a ridge proportional to how often items are used is EDLAE.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mrfrec.checks import check_number
from mrfrec.models.mrf.field import GaussianField
from mrfrec.models.recommender import Range


class EASE(GaussianField):
    """Steck, *Embarrassingly Shallow Autoencoders for Sparse Data*, WWW 2019: an MRF with a flat ridge.

    C = (XᵀX + l2·I)⁻¹, B = −C ⊘ diag(C) per column, zero diagonal. Published: l2 = 500
    on ML-20M, 1000 on Netflix, 200 on MSD.

    The other parameters are those of `MRF`; with `sparsity`, the largest entries of XᵀX are kept.
    """

    search_space: ClassVar[Mapping[str, Range]] = {"l2": (1, 5000, "log")}

    def __init__(
        self,
        *,
        l2: float = 500.0,
        sparsity: float | Literal["auto"] | None = "auto",
        max_neighbors: int = 1000,
        r: float = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        self._set_parameters(locals())


class EDLAE(GaussianField):
    """Steck, *Autoencoders that don't overfit towards the Identity*, NeurIPS 2020, of full rank.

    Dropping each item of a history with probability p is, in expectation, a ridge proportional to how often
    the items are used: C = (XᵀX + p/(1 − p)·dMat(diag(XᵀX)) + l2·I)⁻¹, B = −C ⊘ diag(C) per column, zero
    diagonal.

    Parameters
    ----------
    dropout
        p, from 0 to below 1.
    l2
        The flat ridge.

    Notes
    -----
    The other parameters are those of `MRF`; with `sparsity`, the largest entries of XᵀX are kept.
    """

    search_space: ClassVar[Mapping[str, Range]] = {"dropout": (0.1, 0.8), "l2": (1, 1000, "log")}

    def __init__(
        self,
        *,
        dropout: float = 0.33,
        l2: float = 100.0,
        sparsity: float | Literal["auto"] | None = "auto",
        max_neighbors: int = 1000,
        r: float = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        self._set_parameters(locals())
        self.dropout = check_number("dropout", dropout, "at least 0 and below 1", lambda x: 0 <= x < 1)
