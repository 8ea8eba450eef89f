"""Locks on open files, which end with the process that holds them."""

import os

try:
    import fcntl

    REPLACES_OPEN_FILES = True
except ImportError:  # Windows, which neither replaces nor removes a file while somebody has it open
    import msvcrt

    REPLACES_OPEN_FILES = False


def lock_file(descriptor: int) -> None:
    """Lock an open file; raise `BlockingIOError` if another has done so, `OSError` if it cannot be locked."""
    if REPLACES_OPEN_FILES:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError as error:
        raise BlockingIOError(error.errno, error.strerror) from error
