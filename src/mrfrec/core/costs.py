"""About how long the stages of a fit take compared with each other, for progress that tells the time left.

The constants are seconds of one core at 2.1 GHz, measured on data of 5,000 to 41,000 items (Debian, Gowalla,
Yelp2018, MTG, MSD-shaped). Mostly their ratios matter.
"""

import math

import numpy as np
import numpy.typing as npt

from mrfrec.core.low_rank import basis_size
from mrfrec.core.plan import Plan, Settings, Sizes

_ADDITION = 6e-10  # to add a product of two values to an entry of S
_ORDERED = 4.0  # additions that a pair with an order takes
_ENTRY = 5e-10  # to look at an entry of a row of S
_CUBE = 2.8e-12  # per m³, of each of the three steps of the closed form
_COLUMNS = 1.8e-10  # to multiply a pair by a column of the low-rank part's basis
_GATHERED = 2.2e-9  # per entry of a block
_SOLVED, _SOLVED_CUBE = 2.5e-9, 3e-12  # per k² and per k³, for a block of k items
_COLUMN = 1.5e-11  # per k², for a column that a block estimates
_PAIR = 4.0e-8  # to count and transpose a pair
_KEPT = 3.0e-8  # to bring an entry of B into its place
_ON_DEVICE = 0.05  # what a GPU takes of the time of a stage
_PAIR_TO_DEVICE = 2.0e-8  # seconds to send a pair there
_BESIDE_DEVICE = 0.5  # what a processor with several cores takes beside it
SOLVING = ("solve", "rows", "factorise", "invert factor", "multiply factor", "weights")
"""The stages of a fit that another ridge changes."""


def of_fit(plan: Plan, settings: Settings, sizes: Sizes, additions: float, device: bool) -> dict[str, float]:
    """Return the costs of all stages, as far as they can be told before the data has been looked at.

    `additions` is Σ|x_u|², the products that a pass over the data adds up. A `device` takes over dense models
    that are not ordered.
    """
    m = sizes.items
    here = _ON_DEVICE if device else 1.0
    beside = on_processor(device)
    costs = {"statistics": beside * _PAIR * sizes.pairs}
    if plan.rank:
        columns = basis_size(plan.rank, m)[1]
        costs["low rank"] = here * _COLUMNS * columns * (sizes.pairs + m * columns)
        costs["low rank"] += device * _PAIR_TO_DEVICE * sizes.pairs
        costs["finish"] = beside * 5e-8 * plan.rank * m
    ordered = settings.order > 0
    pairs = _ADDITION * additions * (_ORDERED if ordered else 1.0)
    if plan.kind == "dense":
        cube = here * _CUBE * float(m) ** 3
        steps = dict.fromkeys(("factorise", "invert factor", "multiply factor"), cube)
        matrix = here * (pairs + _ENTRY * m * m)
        return {
            **costs,
            "matrix": matrix,
            **steps,
            "weights": here * 2.2e-9 * m * m + (5 * cube if ordered else 0.0),
            "finish": beside * 3e-10 * m * m,
        }
    assert plan.sparsity is not None
    k = min(plan.sparsity * m, settings.max_neighbors, m)
    mean = max(k, min(settings.max_neighbors, m) / 3)  # neighbours of a neighbour: 266 to 755 were seen
    heads = 1 / (1 + settings.r * k / 6)  # share of the items that head a block
    stored = heads * m * k * mean
    costs["pattern"] = _ADDITION * additions + _ENTRY * m * m
    # Each batch is a pass over the data.
    batches = math.ceil(0.5 * sizes.itemsize * stored / sizes.worthwhile_batch)
    costs["gather"] = batches * pairs + _GATHERED * stored
    costs["solve"] = stored * (_SOLVED + _SOLVED_CUBE * mean)
    costs["rows"] = _KEPT * k * m
    return costs


def on_processor(device: bool) -> float:
    """Return what a stage of the processor costs, of the seconds of one core: less beside a device."""
    return _BESIDE_DEVICE if device else 1.0


def of_blocks(
    kinds: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    additions: float,
    ordered: bool = False,
) -> dict[str, float]:
    """Return the costs of gathering and solving blocks of known sizes.

    `additions` are those of all passes over the data.
    """
    k, passes = kinds.astype(np.float64), _ORDERED if ordered else 1.0
    gather = passes * _ADDITION * additions + _GATHERED * float((k**2).sum())
    solve = float((k**2 * (_SOLVED + _SOLVED_CUBE * k + _COLUMN * targets)).sum())
    return {"gather": gather, "solve": solve}
