"""What an MRF learns: its weights, and how they came about."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.data.catalogue import Catalogue
from mrfrec.data.item_table import ItemFeatures
from mrfrec.fitted import scorers
from mrfrec.fitted.files import shaped
from mrfrec.fitted.linear import LinearWeights, stored_weights
from mrfrec.fitted.measured import FitPlan, Measured
from mrfrec.fitted.state import Facts
from mrfrec.io.artifact import Stored
from mrfrec.models.mrf.parameters import RULES, is_measured

Array = npt.NDArray[Any]
_NOT_SAVED = ("needed", "least", "limit", "in_use", "device")  # fields of a plan about the machine


@dataclass(frozen=True, kw_only=True)
class MRFWeights(LinearWeights):
    """The weights of an MRF, and how they came about."""

    mean: npt.NDArray[np.float64]  # μ
    scale: npt.NDArray[np.float64]  # s
    offset: bool
    plan: FitPlan
    rank_weight: float  # λ
    threshold: float | None
    n_blocks: int | None
    new_scale: float = 0.0  # of the weights for items that nobody has used; 0 if there are none
    alike_scale: float = 0.0  # of what new items get of the weights of alike items
    pattern: "sp.csc_array | None" = None  # A; not saved

    def unknown_user_scores(self, catalogue: Catalogue) -> Array:
        # Without a history, the conditional mean is the mean.
        if not self.offset:
            return self.base_scores
        scores = self.mean * scorers.novelty_factors(catalogue.popularity, self.values["novelty"])
        return np.asarray(scores.astype(self.base_scores.dtype))

    def used_features(self, features: ItemFeatures | None) -> ItemFeatures | None:
        weight = self.values.get("feature_weight")
        return None if features is None or weight is None else replace(features, weight=weight)

    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Return row j of B' + λ·L', where all items have one scale: popular items are not near to all.

        A new item has no row: return its column, the items that add to it.
        """
        popularity = catalogue.popularity
        if not popularity[item] and catalogue.features is not None:
            column = self.weights.matrix()[:, [item]]
            column = column if isinstance(column, np.ndarray) else column.toarray()
            return np.arange(len(column)), column[:, 0] * np.where(popularity > 0, self.scale, 0.0)
        others, weights = super().neighbors(item, catalogue)
        scale = self.scale[others] * scorers.novelty_factors(popularity, self.values["novelty"], others)
        return others, np.divide(weights * self.scale[item], scale, out=np.zeros(len(scale)), where=scale > 0)

    def stored(self) -> tuple[dict[str, Array], Facts]:
        arrays, _ = super().stored()
        plan = {name: value for name, value in vars(self.plan).items() if name not in _NOT_SAVED}
        facts: Facts = {"plan": plan, "threshold": self.threshold, "blocks": self.n_blocks}
        facts |= {"rank_weight": self.rank_weight, "values": dict(self.values), "new_scale": self.new_scale}
        facts["alike_scale"] = self.alike_scale
        facts["measured"] = None if self.measured is None else asdict(self.measured)
        return {"mean": self.mean, "scale": self.scale, **arrays}, facts

    @classmethod
    def of_file(cls, arrays: Mapping[str, Stored], facts: Mapping[str, Any], m: int) -> Self:
        """Return the weights from the arrays and facts of `stored`, for m items, without an offset."""
        mean, scale = (shaped(arrays, name, m).read() for name in ("mean", "scale"))
        if (scale < 0).any():
            raise arrays["scale"].damaged()
        plan = FitPlan(**facts["plan"])
        str(plan)  # raises if what should be numbers are none
        if plan.kind != ("dense" if "weights" in arrays else "sparse"):
            raise KeyError("plan")
        return cls(
            **stored_weights(arrays, m), mean=mean, scale=scale, offset=False, plan=plan,
            threshold=facts["threshold"], n_blocks=facts["blocks"], rank_weight=facts["rank_weight"],
            new_scale=float(facts["new_scale"]), alike_scale=float(facts["alike_scale"]),
            values=_numbers(facts["values"]),
            measured=None if facts["measured"] is None else Measured.of_facts(facts["measured"]),
        )  # fmt: skip


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of parameters in a file; parameters of features and times may be missing."""
    names = [name for name in RULES if is_measured(name)]
    optional = [name for name in names if RULES[name].needs in ("features", "times")]
    numbers = {name: float(values[name]) for name in names if name not in optional or name in values}
    if not np.isfinite([*numbers.values()]).all():
        raise ValueError("values")
    return numbers
