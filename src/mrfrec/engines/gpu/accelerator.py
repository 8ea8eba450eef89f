"""The steps of a fit that a GPU takes over."""

import numpy as np

from mrfrec.engines.gpu import dense, low_rank, rows, sparse
from mrfrec.engines.gpu.device import LIBRARIES

# Seconds of a fit without the device below which "auto" does not use it: a GPU takes about as long to wake.
_WORTH_WAKING = 2.0


class TorchAccelerator(rows.StreamingDevice):
    """The stages of a fit on a device of PyTorch.

    Results are those of the core up to rounding, and the same for every run on one device.
    """

    def __init__(self, name: str, *, if_it_pays: bool = False) -> None:
        super().__init__(name)
        self.name, self._if_it_pays = name, if_it_pays

    def takes(
        self, kind: str, m: int, pairs: int, binary: bool, dtype: str, rank: int, seconds: float
    ) -> bool:
        """Return whether the device is to fit a model of this size, which takes so long without it.

        Raises `MemoryPlanError` if it must and has no room.
        """
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
        free = self.memory
        if self._if_it_pays and needed > free.limit:
            return False
        free.check(f"{kind}, on the device", needed, advice)
        return True

    leading_vectors = low_rank.leading_vectors
    dense_weights = dense.dense_weights
    list_pairs = sparse.list_pairs
    estimates_of_blocks = sparse.estimates_of_blocks
