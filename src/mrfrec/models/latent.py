"""Models that score by h(x)·Vᵀ + b: a vector for the history, times a vector for each item."""

from importlib import import_module
from typing import Any, ClassVar

import numpy.typing as npt

from mrfrec.checks import missing_extra
from mrfrec.engines.devices import chosen_device
from mrfrec.fitted.latent import LatentVectors
from mrfrec.models.recommender import Recommender


class Latent(Recommender):
    """A recommender by vectors. A subclass learns them in `_fit`."""

    _trained_by: ClassVar[tuple[str, str]]  # the module that training imports, and its library in words

    def check_ready(self) -> None:
        module, library = self._trained_by
        try:
            import_module(module)
        except ImportError as error:
            what = f"{type(self).__name__} needs {library} to be trained"
            raise missing_extra(what, str(self.extra)) from error
        chosen_device(self.device)

    @property
    def item_vectors_(self) -> npt.NDArray[Any]:
        """V, one row for each item."""
        learned = self.fitted_.learned
        assert isinstance(learned, LatentVectors)
        return learned.vectors.matrix()
