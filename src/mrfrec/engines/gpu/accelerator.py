"""The stages of a fit that a GPU takes over."""

import numpy as np

from mrfrec.engines.gpu import dense, low_rank, rows, sparse
from mrfrec.engines.gpu.device import LIBRARIES

# "auto" does not use the device for a fit that takes fewer seconds without it: a GPU takes as long to start.
_LEAST_SECONDS = 2.0


class TorchAccelerator(rows.StreamingDevice):
    """The stages of a fit on a device of PyTorch.

    Results are those of the core up to rounding, and the same for every run on one device.
    """

    def __init__(self, name: str, *, if_it_pays: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self._if_it_pays = if_it_pays

    def takes(
        self, kind: str, m: int, pairs: int, binary: bool, dtype: str, rank: int, seconds: float
    ) -> bool:
        """Return whether the device is to fit a model of this size, which takes `seconds` without it.

        With `if_it_pays`, a device without room returns False; else it raises `MemoryPlanError`.
        """
        if self._if_it_pays and seconds < _LEAST_SECONDS:
            return False
        itemsize = np.dtype(dtype).itemsize
        needed = rows.needed_bytes(pairs, binary)
        advice = 'Use device="cpu", or a device with more memory.'
        if kind == "sparse":
            needed += sparse.needed_bytes()
        else:
            needed = max(itemsize * m * m + needed, dense.needed_bytes(m, itemsize))
            advice = f"Use a sparse model, {advice[4:]}"
        needed = LIBRARIES + max(needed, low_rank.needed_bytes(pairs, m, rank, itemsize))
        memory = self.memory
        if self._if_it_pays and needed > memory.limit:
            return False
        memory.check(f"{kind}, on the device", needed, advice)
        return True

    leading_vectors = low_rank.leading_vectors
    dense_weights = dense.dense_weights
    list_pairs = sparse.list_pairs
    estimates_of_blocks = sparse.estimates_of_blocks
