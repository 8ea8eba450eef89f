"""§3.2, steps 1, 2 and 4: which items head a block, and which columns each block estimates."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mrfrec.core.engine import Engine
from mrfrec.core.kernels import blocks as kernels
from mrfrec.core.pattern import Pattern


@dataclass(frozen=True)
class Schedule:
    """Block b is N(i) ∪ {i} with i = heads[b]; its D is dependents[dependent_ptr[b]:dependent_ptr[b+1]]."""

    heads: npt.NDArray[np.int32]
    dependent_ptr: npt.NDArray[np.int64]
    dependents: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def nbytes(self) -> int:
        return int(self.heads.nbytes + self.dependent_ptr.nbytes + self.dependents.nbytes)


def make_schedule(pattern: Pattern, popularity: npt.NDArray[np.int64], r: float, engine: Engine) -> Schedule:
    """Choose the heads of blocks greedily, by number of neighbours, then popularity, then index.

    Each block takes its D off the list of items, so the work is linear in the entries of A. The blocks can
    then be solved in any order (end of §3.2).
    """
    with engine.stage("schedule", 1):
        m = len(popularity)
        order = np.lexsort((np.arange(m), -popularity, -np.diff(pattern.column_ptr)))
        heads = np.empty(m, np.int32)
        sizes = np.empty(m, np.int64)
        left = np.ones(m, np.bool_)
        blocks = kernels.greedy_schedule(order, pattern.column_ptr, pattern.neighbors, r, left, heads, sizes)
        heads = heads[:blocks].copy()
        dependent_ptr = np.concatenate([[0], np.cumsum(sizes[:blocks])])
        dependents = np.empty(dependent_ptr[-1], np.int32)
        kernels.list_dependents(heads, dependent_ptr, pattern.column_ptr, pattern.neighbors, dependents)
        return Schedule(heads, dependent_ptr, dependents)
