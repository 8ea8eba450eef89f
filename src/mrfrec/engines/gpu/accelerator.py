"""The steps of a fit that a GPU takes over."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Accelerator, Engine
from mrfrec.core.entries import Pairs
from mrfrec.core.kernels.blocks import Blocks
from mrfrec.core.lanczos import Half
from mrfrec.core.statistics import Statistics
from mrfrec.engines.gpu import dense, low_rank, rows, sparse
from mrfrec.engines.gpu.device import LIBRARIES, Device, computing_on
from mrfrec.engines.gpu.rows import StreamedRows

# Seconds of a fit without the device below which "auto" does not use it: a GPU takes about as long to wake.
_WORTH_WAKING = 2.0


class TorchAccelerator(Accelerator):
    """The stages of a fit on a device of PyTorch."""

    def __init__(self, name: str, *, if_it_pays: bool = False) -> None:
        self.device, self.name, self._if_it_pays = Device(name), name, if_it_pays
        self._rows: StreamedRows | None = None

    def takes(
        self, kind: str, m: int, pairs: int, binary: bool, dtype: str, rank: int, seconds: float
    ) -> bool:
        if self._if_it_pays and seconds < _WORTH_WAKING:
            return False
        needed, itemsize = rows.needed_bytes(pairs, binary), np.dtype(dtype).itemsize
        advice = 'Use device="cpu", or a device with more memory.'
        if kind == "sparse":
            needed += sparse.needed_bytes()
        else:
            needed = max(itemsize * m * m + needed, dense.needed_bytes(m, itemsize))
            advice = f"Use a sparse model, {advice[4:]}"
        needed = LIBRARIES + max(needed, low_rank.needed_bytes(pairs, m, rank, itemsize))
        free = self.device.memory
        if self._if_it_pays and needed > free.limit:
            return False
        free.check(f"{kind}, on the device", needed, advice)
        return True

    def leading_vectors(
        self,
        parts: list[tuple[Half, Half]],
        a: npt.NDArray[Any],
        random: Callable[[int], npt.NDArray[Any]],
        columns: int,
        rank: int,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        with computing_on(self.device.torch, "the fit"):
            return low_rank.leading_vectors(parts, a, random, columns, rank, self.device, engine)

    def dense_weights(
        self,
        statistics: Statistics,
        ridge: npt.NDArray[np.float64],
        dtype: str,
        mean_constraint: bool,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        with computing_on(self.device.torch, "the fit"):
            streamed = StreamedRows(statistics, self.device)
            return dense.dense_weights(streamed, self.device, ridge, dtype, mean_constraint, engine)

    def list_pairs(
        self,
        statistics: Statistics,
        threshold: np.float32,
        shift: int,
        may_keep: Callable[[int], bool],
        steps: int,
        engine: Engine,
    ) -> tuple[list[Pairs], npt.NDArray[np.int64]]:
        with computing_on(self.device.torch, "the fit"):
            return sparse.list_pairs(self._streamed(statistics), threshold, shift, may_keep, steps, engine)

    def estimates_of_blocks(
        self,
        statistics: Statistics,
        ridge: npt.NDArray[np.float64],
        dtype: str,
        batch: Blocks,
        engine: Engine,
    ) -> npt.NDArray[Any]:
        with computing_on(self.device.torch, "the fit"):
            return sparse.estimates_of_blocks(self._streamed(statistics), ridge, dtype, batch, engine)

    def _streamed(self, statistics: Statistics) -> StreamedRows:
        """Keep the data on the device from one stage to the next."""
        if self._rows is None or self._rows.statistics is not statistics:
            self._rows = StreamedRows(statistics, self.device)
        return self._rows
