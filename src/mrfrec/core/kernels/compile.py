"""How every kernel is compiled."""

from pathlib import Path
from typing import Any

from numba import njit

__all__ = ["cache_folder", "has_compiled", "kernel"]


def kernel(function: Any) -> Any:
    """Compile without the lock, and keep the machine code on disk where some folder can be written."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder for its cache (read-only installation, no home)
        return njit(nogil=True)(function)


def cache_folder() -> Path | None:
    """Where the machine code is kept; None where no folder can be written."""

    @kernel
    def nothing():
        return 0

    folder = getattr(nothing._cache, "cache_path", None)
    return None if folder is None else Path(folder)


def has_compiled() -> bool:
    """Whether some machine code is kept already, so that the next fit need not compile it all."""
    folder = cache_folder()
    return folder is not None and any(folder.glob("*.nbi"))
