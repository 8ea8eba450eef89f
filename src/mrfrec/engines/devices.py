"""Devices by name: list them, and make the engine of a fit or the ranker of recommendations for one."""

import warnings
from typing import TYPE_CHECKING, Any

from mrfrec.checks import missing_extra
from mrfrec.core.engine import Progress
from mrfrec.core.low_rank import LowRank
from mrfrec.core.rows import DenseRows, Rows
from mrfrec.engines.local import LocalEngine
from mrfrec.errors import MemoryPlanError, ParameterError

if TYPE_CHECKING:
    from mrfrec.engines.gpu.ranking import DeviceRanker


def chosen_device(name: str) -> str:
    """Return the PyTorch device for a name, "cpu" for "auto" without a GPU; refuse one that is missing."""
    if name == "cpu":
        return name
    try:
        import torch
    except ImportError:
        if name == "auto":
            return "cpu"
        raise missing_extra(f'device="{name}" needs PyTorch', "torch") from None
    count = _gpu_count(torch)
    if name == "auto":
        return "cuda" if count else "cpu"
    if (torch.device(name).index or 0) >= count:
        reason = "This PyTorch is built without CUDA." if torch.version.cuda is None else f"It finds {count}."
        advice = f'{reason} Use "cpu", or "auto" to use a GPU if there is one.'
        raise ParameterError("device", "a device that PyTorch finds", name, advice)
    return name


def devices() -> list[tuple[str, str, int, int]]:
    """Return the names, models, free bytes and total bytes of the GPUs that PyTorch finds."""
    try:
        import torch
    except ImportError:
        return []
    numbers = range(_gpu_count(torch))
    return [(f"cuda:{i}", torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)) for i in numbers]


def _gpu_count(torch: Any) -> int:
    with warnings.catch_warnings():  # PyTorch warns of old drivers
        warnings.simplefilter("ignore")
        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def engine_on(
    device: str, threads: int | None, memory_limit: int | None, progress: "Progress | None"
) -> "LocalEngine":
    """Return the engine for a device."""
    chosen = chosen_device(device)
    if chosen == "cpu":
        return LocalEngine(threads, memory_limit, progress)
    from mrfrec.engines.gpu.dense import TorchAccelerator

    accelerator = TorchAccelerator(chosen, if_it_pays=device == "auto")
    return LocalEngine(threads, memory_limit, progress, accelerator=accelerator)


def ranker_on(device: str, weights: "Rows | DenseRows", low_rank: "LowRank | None") -> "DeviceRanker | None":
    """Return a ranker with weights on a device; None if "auto" finds no GPU, or none with room for them."""
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
