"""Files appear whole or not at all."""

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO, IOBase
from pathlib import Path

from mrfrec.errors import ParameterError

__all__ = ["check_writable", "expanded", "refuse_own_input", "writing"]


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new file beside `path`, which takes its place when all went well and is removed when not.

    Until then an old file of that name stays as it was, whatever happens: an error, a full disk, Ctrl-C.
    What a writer that was killed has left behind is removed by the next one. The new file is to be written
    in place, not replaced by another, or its lock is lost.
    """
    target = _target(path)
    begun = _Unfinished(target)
    try:
        begun.create(path)
        # As the old file had it, or as the process gives it to new ones.
        mode = (target if target.exists() else begun.path).stat().st_mode & 0o777
        yield begun.path
        begun.path.chmod(mode)
        _flush(begun.path, os.O_RDWR)
        begun.path.replace(target)
        with suppress(OSError):  # not every file system can; the file itself is on the disk
            _flush(target.parent, os.O_RDONLY)
    finally:
        begun.remove()


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home folder in the place of ~; a file may also be called ~so."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # nobody of that name
        return Path(path)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse, before long work, a path that nothing could be written to after it."""
    begun = _Unfinished(_target(path))
    try:
        begun.create(path)
    finally:
        begun.remove()


def refuse_own_input(path: str | os.PathLike[str] | None, inputs: Iterable[Path | None]) -> None:
    """Refuse to write over what is being read."""
    if path is None or not expanded(path).exists():
        return
    for given in inputs:
        if given is not None and expanded(given).exists() and expanded(path).samefile(expanded(given)):
            raise ParameterError("path", "another file than the input", str(path), "Give it its own name.")


def _target(path: str | os.PathLike[str]) -> Path:
    """The file to be written: where a link leads, so that the link stays."""
    target = expanded(path)
    try:
        target = target.resolve() if target.is_symlink() else target
    except RuntimeError:  # links in a circle
        raise ParameterError("path", "a file, new or old", str(path), "The link leads nowhere.") from None
    if target.exists() and not target.is_file():
        raise ParameterError("path", "a file, new or old", str(path), "Something else has that name.")
    if not target.parent.is_dir():
        raise ParameterError("path", "in a folder that exists", str(path), "Make the folder first.")
    return target


class _Unfinished:
    """A file beside the target, and its lock, which is held for as long as its writer lives.

    Its name is known before it exists: Ctrl-C may come at any moment, and it must be removed even then.
    """

    def __init__(self, target: Path) -> None:
        self._start = f".{target.name[:40]}."
        self._target = target
        self._lock: FileIO | None = None
        self._rename()

    def _rename(self) -> None:
        self.path = self._target.with_name(f"{self._start}{secrets.token_hex(4)}.unfinished")

    def create(self, path: str | os.PathLike[str]) -> None:
        """Make it, empty; `path` is what errors should name."""
        try:
            _remove_abandoned(self._target.parent, self._start)
            while True:
                self._lock = FileIO(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), "r+")
                if _locked(self._lock, unsure=True) and self.path.exists():
                    return
                self._lock.close()  # another process took it for abandoned before it was locked
                self._rename()
        except OSError as error:  # which names a file nobody has heard of
            raise type(error)(error.errno, error.strerror, str(path)) from error

    def remove(self) -> None:
        """Remove it, if it is still there."""
        try:
            self._remove()
        finally:  # a second Ctrl-C, or the second exception that polars makes of the first
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):  # a folder that nothing can be written to has nothing to be removed from
            self.path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()


def _remove_abandoned(folder: Path, start: str) -> None:
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        found = [
            folder / entry.name
            for entry in entries
            if entry.name.startswith(start) and entry.name.endswith(".unfinished") and entry.is_file()
        ]
    for path in found:
        with suppress(OSError), path.open("rb") as file:
            if _locked(file, unsure=False):
                path.unlink()


def _locked(file: IOBase, unsure: bool) -> bool:
    """Lock a file that nobody else has locked; `unsure` is the answer where files cannot be locked."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unsure
    return True


def _flush(path: Path, mode: int) -> None:
    """Wait until it is on the disk, so that the new name never points at less than the whole."""
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
