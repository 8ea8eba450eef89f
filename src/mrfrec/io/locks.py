"""Locks that keep processes from rewriting one model file at the same time.

A lock is held on an empty file beside the model, `.NAME.lock`, and ends with the process that holds it. The
file stays: if it were removed, one process could lock the removed file while another locks a new one.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrfrec.checks import check_nonnegative
from mrfrec.errors import BusyError, ModelFileError
from mrfrec.io.atomic import lock_file, written_file

WAIT = 600.0  # seconds that a command waits for another one
_PAUSE = 0.05  # seconds between two attempts

_log = logging.getLogger("mrfrec")


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: float = WAIT) -> Iterator[None]:
    """Hold the lock of a model file, to load, change and save it without losing what others do to it.

        with mrfrec.locked("shop.mrf"):
            model = mrfrec.load("shop.mrf").update("today.csv")
            model.save("shop.mrf", include_histories=True)

    `mrfrec update`, `forget` and `nightly` hold it, too; `load` and `save` take none. A
    link has the lock of its target. Do not lock a file twice: the second lock would wait for the first.

    Parameters
    ----------
    path
        The model file, which need not exist yet.
    wait
        Seconds to wait for a process that holds the lock.

    Raises
    ------
    BusyError
        Another process has held the lock for all that time.
    """
    wait = check_nonnegative("wait", wait)
    target = written_file(path)
    busy = f"another process is rewriting {path}, and has not ended within {wait:g} s. Nothing was written. "
    busy += "Try again later, or wait longer (wait=…, --wait)."
    waiting = f"waiting up to {wait:g} s for {path}, which another process is rewriting"
    with holding(target.with_name(f".{target.name}.lock"), busy, wait, waiting):
        yield


@contextmanager
def holding(lock: Path, busy: str, wait: float = 0.0, waiting: str = "") -> Iterator[None]:
    """Hold the lock on a file, which is created if missing.

    If another process holds it for longer than `wait` seconds, raise a `BusyError` with the text `busy`. The
    text `waiting` is logged once.
    """
    try:
        # Others have no access: whoever can open the file can hold the lock.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o660)
    except OSError as error:
        raise _no_lock(lock, error) from error
    try:
        end = time.monotonic() + wait
        while not _try_lock(descriptor, lock):
            if time.monotonic() >= end:
                raise BusyError(busy)
            if waiting:
                _log.info(waiting)
                waiting = ""
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, lock: Path) -> bool:
    try:
        lock_file(descriptor)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _no_lock(lock, error) from error
    return True


def _no_lock(lock: Path, error: OSError) -> ModelFileError:
    return ModelFileError(
        f"{lock}, the lock of the model file beside it, cannot be taken: {error.strerror}. Let this user "
        "write to the file and its folder, or write the new model to another folder (-o)."
    )
