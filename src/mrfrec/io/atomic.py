"""Write files atomically: they appear whole or not at all. Lock files against other processes."""

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from glob import escape
from io import FileIO, IOBase
from pathlib import Path

from mrfrec.checks import check_nonnegative
from mrfrec.errors import BusyError, ModelFileError, ParameterError
from mrfrec.io.databases import refuse_url


@contextmanager
def writing(
    path: str | os.PathLike[str], *, mode: int | None = None, check: Callable[[], None] | None = None
) -> Iterator[Path]:
    """Yield a new file beside `path`, which replaces it at the end or is removed after an error.

    Until the end the old file stays as it was, whatever happens: an error, a full disk, Ctrl-C. The new file
    gets the owner of the old one, if this user may give it, and the mode `mode`; by default the mode of the
    old file, or the usual mode of a new one. `check` is called just before the old file is replaced, and may
    raise.

    The next writer removes what a killed writer has left behind. Write the new file in place: replacing it
    would lose its lock. Pass a library that writes in its own threads the open file and not the name: after
    Ctrl-C, a late thread would create the file again.
    """
    with _unfinished(path, is_private=mode is not None) as (target, temporary):
        if mode is None:
            mode = (target if target.exists() else temporary).stat().st_mode & 0o777
        try:
            yield temporary
            if target.exists():
                keep_owner(target, temporary)
            temporary.chmod(mode)
            put_in_place(temporary, target, check)
        except OSError as error:
            # The system does not say which file was too large.
            if error.errno in (ENOSPC, EDQUOT, EFBIG) and error.filename is None:
                error.filename = str(path)
            raise


def put_in_place(new: Path, target: Path, check: Callable[[], None] | None = None) -> None:
    """Flush a file to disk and rename it, so that a power failure leaves the old file or the new one.

    `check` is called just before the old file is replaced, and may raise.
    """
    _flush(new)
    if check is not None:
        check()
    new.replace(target)
    # Not every file system can flush a folder.
    with suppress(OSError):
        _flush(target.parent)


def keep_owner(old: Path, new: Path) -> None:
    """Give a new file the owner of the file it replaces, if this user may, as root may."""
    owner = old.stat()
    if (owner.st_uid, owner.st_gid) != (new.stat().st_uid, new.stat().st_gid):
        with suppress(PermissionError):
            os.chown(new, owner.st_uid, owner.st_gid)


def expanded(path: str | os.PathLike[str]) -> Path:
    """Replace ~ by the home folder; a name such as ~so stays if no user has it."""
    if not isinstance(path, str | os.PathLike):
        raise ParameterError("path", "the name of a file", path)
    try:
        return Path(path).expanduser()
    except RuntimeError:
        # There is no such user.
        return Path(path)


def file_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file; refuse an empty name, which would be the current folder."""
    try:
        name = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        # This is no name, or it has half of a surrogate pair.
        name = b""
    if not name:
        raise ParameterError("path", "the name of a file", path)
    return expanded(path)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be written to, before long work starts."""
    with _unfinished(path):
        pass


def written_file(path: str | os.PathLike[str]) -> Path:
    """Return the file behind a name, which is the target of a link; refuse what cannot be a file."""
    target = file_path(path)
    if str(target) == "-":
        raise ParameterError("path", "the name of a file", "-", "Results go to stdout if there is none.")
    try:
        target = target.resolve() if target.is_symlink() else target
    except RuntimeError:
        # The links form a circle.
        raise ParameterError("path", "the name of a file", str(path), "The link leads nowhere.") from None
    if target.exists() and not target.is_file():
        raise ParameterError("path", "the name of a file", str(path), "Something else has that name.")
    if not target.parent.is_dir():
        refuse_url(path, "a file of this machine, not a URL")
        raise ParameterError("path", "in a folder that exists", str(path), "Make the folder first.")
    return target


def refuse_own_input(path: str | os.PathLike[str] | None, inputs: Iterable[Path | None]) -> None:
    """Refuse to overwrite an input."""
    if path is None or not expanded(path).exists():
        return
    for given in inputs:
        if given is not None and expanded(given).exists() and expanded(path).samefile(expanded(given)):
            raise ParameterError("path", "another file than the input", str(path), "Give it its own name.")


@contextmanager
def _unfinished(path: str | os.PathLike[str], is_private: bool = False) -> Iterator[tuple[Path, Path]]:
    """Yield the file to write, and a temporary file beside it that is locked while its writer lives.

    A link stays, and its target is written. The name of the temporary file is known before the file exists,
    so that it can be removed whenever Ctrl-C comes. Only its owner can read it until it is whole, unless it
    is a new file of the usual mode.
    """
    target = written_file(path)
    start = _start_of(target)
    temporary, lock = target, None
    mode = 0o600 if is_private or target.exists() else 0o666
    try:
        try:
            _remove_abandoned(target.parent, start)
            while lock is None or not (_locked(lock, unsure=True) and temporary.exists()):
                # Another process has removed the file before it was locked: try another name.
                if lock is not None:
                    lock.close()
                temporary = target.with_name(f"{start}{secrets.token_hex(4)}.unfinished")
                lock = FileIO(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode), "r+")
        except OSError as error:
            # The error names the temporary file, which the caller does not know.
            raise type(error)(error.errno, error.strerror, str(path)) from error
        yield target, temporary
    finally:
        try:
            _remove(target, temporary, lock)
        finally:
            # A second Ctrl-C, or a second exception of polars, may have stopped the first attempt.
            _remove(target, temporary, lock)


def _remove(target: Path, temporary: Path, lock: FileIO | None) -> None:
    # In a read-only folder there is nothing to remove.
    with suppress(OSError):
        if temporary != target:
            temporary.unlink(missing_ok=True)
    if lock is not None:
        lock.close()


def remove_with_leftovers(path: Path) -> None:
    """Remove a file if it exists, and what its killed writers have left behind."""
    path.unlink(missing_ok=True)
    _remove_abandoned(path.parent, _start_of(path))


def _start_of(target: Path) -> str:
    """Return the beginning of the names of unfinished files."""
    return f".{target.name[:40]}."


def _remove_abandoned(folder: Path, start: str) -> None:
    for path in [*folder.glob(f"{escape(start)}*.unfinished")]:
        with suppress(OSError):
            if path.is_file():
                with path.open("rb") as file:
                    if _locked(file, unsure=False):
                        path.unlink()


def _locked(file: IOBase, unsure: bool) -> bool:
    """Try to lock a file; return whether that worked, or `unsure` if files cannot be locked here."""
    try:
        lock_file(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return unsure
    return True


def _flush(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int) -> None:
    """Lock an open file until this process ends.

    Raises `BlockingIOError` if another process holds the lock, and `OSError` if the file cannot be locked.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# A command waits for another one for up to WAIT seconds, and tries again after each pause.
WAIT = 600.0
_PAUSE = 0.05

_log = logging.getLogger("mrfrec")


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: float = WAIT) -> Iterator[None]:
    """Hold the lock of a model file, to load, change and save it without losing changes of other processes.

        with mrfrec.locked("shop.mrf"):
            model = mrfrec.load("shop.mrf").update("today.csv")
            model.save("shop.mrf", include_histories=True)

    `mrfrec update`, `forget` and `nightly` hold the lock; `load` and `save` do not. A link has the lock of
    its target. Do not lock a file twice: the second lock would wait for the first.

    The lock is held on an empty file beside the model, `.NAME.lock`, and ends with the process. That file
    stays, since one process could lock a removed file while another one locks a new file.

    Parameters
    ----------
    path
        The model file, which need not exist yet.
    wait
        Seconds to wait for a process that holds the lock.

    Raises
    ------
    BusyError
        Another process held the lock for the whole time.
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
    """Hold the lock on a file, which is created if it is missing.

    If another process holds the lock for longer than `wait` seconds, raise a `BusyError` with the text
    `busy`. The text `waiting` is logged once.
    """
    try:
        # Other users get no access, since whoever can open the file can hold the lock.
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
