"""About how long the stages of a fit take compared with each other, for progress that tells the time left.

The constants are seconds of one core, measured on data of 7,000 to 41,000 items (Anime, MovieTweetings,
Gowalla, MTG). Only their ratios matter.
"""

import numpy as np
import numpy.typing as npt

from mrfrec.core.lanczos import basis_size
from mrfrec.core.plan import Plan, Settings, Sizes

_ADDITION = 1.6e-9  # of a product of two values to an entry of S
_ENTRY = 1.0e-9  # to look at an entry of a row of S
_CUBE = 5.3e-12  # per m³, of each of the three steps of the closed form
_GATHERED = 3.0e-9  # per entry of a block
_SOLVED = 2.5e-10  # per k^2.5, for a block of k items
_COLUMN = 3.0e-11  # per k², for a column that a block estimates
_PAIR = 5.0e-8  # to count and transpose a pair
_KEPT = 5.0e-8  # to bring an entry of B into its place
_ON_DEVICE = 0.05  # what a GPU takes of the time of a stage
_BESIDE_DEVICE = 0.25  # and what a processor with several cores takes beside it
SOLVING = ("solve", "rows", "factorise", "invert factor", "multiply factor", "weights")
"""The stages of a fit that another ridge changes."""
_UNKNOWN_NEIGHBORS = 100  # of an item, before a threshold has shown how many there are


def of_fit(plan: Plan, settings: Settings, sizes: Sizes, additions: float, device: bool) -> dict[str, float]:
    """Return the costs of all stages, as far as they can be told before the data has been looked at.

    `additions` is Σ|x_u|², the products that a pass over the data adds up.
    """
    m = sizes.items
    here = _ON_DEVICE if device else 1.0
    beside = on_processor(device)
    costs = {"statistics": beside * _PAIR * sizes.pairs}
    if plan.rank:
        columns = basis_size(plan.rank, m)[1]
        costs["low rank"] = here * 6e-10 * columns * (sizes.pairs + m * columns)
        costs["finish"] = beside * 1.6e-7 * plan.rank * m
    if plan.kind == "dense":
        cube = here * _CUBE * float(m) ** 3
        steps = dict.fromkeys(("factorise", "invert factor", "multiply factor"), cube)
        matrix = here * (_ADDITION * additions + _ENTRY * m * m)
        return {
            **costs,
            "matrix": matrix,
            **steps,
            "weights": here * 3e-9 * m * m,
            "finish": beside * 1e-9 * m * m,
        }
    k = _UNKNOWN_NEIGHBORS if plan.sparsity is None else plan.sparsity * m
    k = min(k, settings.max_neighbors, m)
    mean = max(k, min(settings.max_neighbors, m) / 2)  # neighbours of a neighbour: 315, 582 and 755 were seen
    heads = 1 / (1 + settings.r * k / 6)  # share of the items that head a block
    stored = heads * m * k * mean
    costs["pattern"] = here * (_ADDITION * additions + _ENTRY * m * m)
    costs["gather"] = here * (_ADDITION * additions + _GATHERED * stored)
    costs["solve"] = here * 1.1 * _SOLVED * stored * mean**0.5
    costs["rows"] = beside * _KEPT * k * m
    return costs


def on_processor(device: bool) -> float:
    """Return what a stage of the processor costs, of the seconds of one core: less beside a device."""
    return _BESIDE_DEVICE if device else 1.0


def of_blocks(
    kinds: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], additions: float, device: bool
) -> dict[str, float]:
    """Return the costs of gathering and solving blocks of known sizes.

    `additions` are those of all passes over the data.
    """
    k, here = kinds.astype(np.float64), _ON_DEVICE if device else 1.0
    gather = _ADDITION * additions + _GATHERED * float((k**2).sum())
    solve = _SOLVED * float((k**2.5).sum()) + _COLUMN * float((targets * k**2).sum())
    return {"gather": here * gather, "solve": here * solve}
