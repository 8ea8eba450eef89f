"""What models of others build on, beside `Recommender`, `register` and `mrfrec.models.Linear`.

A model that scores by item-item weights derives from `Linear` and returns `learned(…)`, a `LinearWeights`.
Any other derives from `Recommender`: its `_fit(data, context)` returns a subclass of `Learned`, whose
`scorer` scores histories, and its `_restore(arrays, facts, m)` reads the same from a file. `mrfrec.testing`
checks that a model keeps to what all models promise.
"""

from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue
from mrfrec.engines.machine import memory_budget
from mrfrec.fitted.files import shaped
from mrfrec.fitted.linear import LinearWeights
from mrfrec.fitted.scorers import Scorer, Selection
from mrfrec.fitted.state import Learned, Runtime
from mrfrec.io.artifact import Stored
from mrfrec.models.recommender import FitContext

__all__ = [
    "Catalogue",
    "FitContext",
    "Learned",
    "LinearWeights",
    "Rows",
    "Runtime",
    "Scorer",
    "Selection",
    "Stored",
    "memory_budget",
    "shaped",
]
