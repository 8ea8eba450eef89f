"""One device of PyTorch: its memory, copies to and from it, and the precision of its products."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from mrfrec.core.engine import Array, Budget, Engine, human_bytes, ranges
from mrfrec.engines.machine import memory_budget
from mrfrec.errors import MemoryPlanError

P = ParamSpec("P")
Result = TypeVar("Result")

# Bytes that PyTorch and its libraries take on a GPU, as measured.
LIBRARIES = 700_000_000
# So many rows of an array are copied to the host at one time.
_PINNED_ROWS = 512


class Device:
    """A device, "cuda" or, for tests, PyTorch's own "cpu"."""

    def __init__(self, name: str) -> None:
        self.torch = torch.device(name)

    @property
    def memory(self) -> Budget:
        """The bytes that are free on the device, with those that PyTorch has reserved and does not use."""
        if self.torch.type == "cpu":
            return memory_budget(None)
        unused = torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
        return Budget(torch.cuda.mem_get_info(self.torch)[0] + unused, f"is free on the device {self.torch}")

    def to_device(self, array: Array) -> Tensor:
        """Return a copy on the device; unsigned integers become signed."""
        array = np.ascontiguousarray(array)
        if array.dtype.kind == "u" and array.itemsize > 1:
            array = array.view(f"i{array.itemsize}")
        if not array.flags.writeable:  # PyTorch warns of these, though it only reads them
            array = array.copy()
        return torch.from_numpy(array).to(self.torch)

    @contextmanager
    def host_array(self, m: int, dtype: str, threads: int) -> Iterator[Array]:
        """Yield an m × m array in ordinary memory.

        Threads touch its pages while the device is at work, so that copying to it is faster.
        """
        out = np.empty((m, m), dtype)
        pool = ThreadPoolExecutor(threads)
        for i0, i1 in ranges(0, m, _PINNED_ROWS) if self.torch.type != "cpu" else ():
            pool.submit(out[i0:i1].fill, 0)
        try:
            yield out
        finally:
            pool.shutdown(cancel_futures=True)

    def to_host(self, A: Tensor, out: Array, engine: Engine) -> Array:
        """Copy a matrix to `out`, in ordinary memory, through pinned strips and with all threads."""
        if A.device.type == "cpu":
            return np.asarray(A.numpy())
        pinned = [torch.empty((_PINNED_ROWS, A.shape[1]), dtype=A.dtype, pin_memory=True) for _ in range(2)]
        strips = ranges(0, len(A), _PINNED_ROWS)
        ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        for number, (i0, i1) in enumerate([*strips, (0, 0)]):
            if number < len(strips):
                pinned[number % 2][: i1 - i0].copy_(A[i0:i1], non_blocking=True)
            if number:
                # The previous strip has arrived: copy it while the next one comes.
                j0, j1 = strips[number - 1]
                source = pinned[(number - 1) % 2].numpy()
                engine.run(lambda t, j0=j0, source=source: _copy(out, j0, source, *t), ranges(0, j1 - j0, 32))
            ready.record()
            ready.synchronize()
        return out


def _copy(out: Array, offset: int, source: Array, start: int, stop: int) -> None:
    out[offset + start : offset + stop] = source[start:stop]


def dtype_name(A: Tensor) -> str:
    """Return the name that NumPy has for the type of a tensor."""
    return str(A.dtype).removeprefix("torch.")


@contextmanager
def computing_on(device: torch.device, work: str) -> Iterator[None]:
    """Compute float32 products in float32, whatever precision the process allows elsewhere.

    If the device runs out of memory, which other processes may use, raise a `MemoryPlanError`. At the end,
    give unused memory back.
    """
    usual_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode():
            yield
    except torch.OutOfMemoryError:
        free = torch.cuda.mem_get_info(device)[0]
        raise MemoryPlanError(
            f"{work} ran out of memory on the device {device}, of which {human_bytes(free)} are free now: "
            'others have taken some since it began. Try again later, or use device="cpu".',
            needed=free + 1,
            limit=free,
        ) from None
    finally:
        torch.set_float32_matmul_precision(usual_precision)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def computes(function: Callable[Concatenate[Device, P], Result]) -> Callable[Concatenate[Device, P], Result]:
    """Run a step of a fit within `computing_on` the device that is its first argument."""

    @wraps(function)
    def on_device(device: Device, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        with computing_on(device.torch, "the fit"):
            return function(device, *args, **kwargs)

    return on_device
