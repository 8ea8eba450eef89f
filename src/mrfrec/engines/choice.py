"""Which engine a fit gets, by the name of a device."""

from typing import TYPE_CHECKING

from mrfrec.core.engine import Progress
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.engines.devices import chosen_device
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MemoryPlanError

if TYPE_CHECKING:
    from mrfrec.core.low_rank import LowRank
    from mrfrec.engines.gpu.ranking import DeviceRanker


def engine_on(
    device: str, threads: int | None, memory_limit: int | None, progress: Progress | None
) -> LocalEngine:
    """Return the engine for a device."""
    chosen = "cpu" if device == "cpu" else chosen_device(device)
    if chosen == "cpu":
        return LocalEngine(threads, memory_limit, progress)
    from mrfrec.engines.gpu.accelerator import TorchAccelerator

    accelerator = TorchAccelerator(chosen, if_it_pays=device == "auto")
    return LocalEngine(threads, memory_limit, progress, accelerator=accelerator)


def ranker_on(device: str, weights: Rows | DenseRows, low_rank: "LowRank | None") -> "DeviceRanker | None":
    """Return weights on a device; None if "auto" finds none, or none with room for them."""
    chosen = chosen_device(device)
    if chosen == "cpu":
        return None
    from mrfrec.engines.gpu.ranking import DeviceRanker

    try:
        return DeviceRanker(chosen, weights, low_rank)
    except MemoryPlanError:
        if device == "auto":
            return None
        raise
