"""Strong generalisation: users the model never saw, a part of their history shown, the rest to be guessed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.errors import DataError

__all__ = ["Holdout", "hold_out"]


@dataclass(frozen=True)
class Holdout:
    """Three matrices over the same items."""

    training: sp.csr_array
    shown: sp.csr_array  # of the users held out
    targets: sp.csr_array  # what they have besides


def hold_out(X: sp.csr_array, users: int, *, hidden: float = 0.2, seed: int = 0) -> Holdout:
    """Take some users out, and hide a share of what each has: at least one item, never all.

    Users with a single item cannot be held out.
    """
    rng = np.random.default_rng(seed)
    lengths = np.diff(X.indptr)
    eligible = np.flatnonzero(lengths >= 2)
    if not 0 < users < len(eligible):
        raise DataError(f"{users} users cannot be held out of {len(eligible)} who have two items or more.")
    chosen = np.sort(rng.choice(eligible, users, replace=False))
    rest = np.setdiff1d(np.arange(X.shape[0]), chosen)
    held = X[chosen]
    hide = np.zeros(held.nnz, np.bool_)
    for start, stop in zip(held.indptr[:-1], held.indptr[1:], strict=True):
        count = min(max(round(hidden * (stop - start)), 1), stop - start - 1)
        hide[start + rng.choice(stop - start, count, replace=False)] = True
    return Holdout(X[rest], _only(held, ~hide), _only(held, hide))


def _only(X: sp.csr_array, keep: npt.NDArray[np.bool_]) -> sp.csr_array:
    ptr = np.concatenate([[0], np.cumsum(keep)])[X.indptr]
    return sp.csr_array((X.data[keep], X.indices[keep], ptr), shape=X.shape)
