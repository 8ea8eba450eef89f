"""How every kernel is compiled."""

from typing import Any

from numba import njit

__all__ = ["kernel"]


def kernel(function: Any) -> Any:
    """Compile without the lock, and keep the machine code on disk where some folder can be written."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder for its cache (read-only installation, no home)
        return njit(nogil=True)(function)
