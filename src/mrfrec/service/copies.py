"""The service's own copies of the model files that it maps into memory.

A file that is overwritten in place, as by `cp`, changes the answers of every process that has mapped it, or
ends the process (SIGBUS). So the service copies a file before it opens it. The copies lie in one folder,
named by the hashes of their content: processes that serve the same file map the same copy, which is in memory
once. A process holds a shared lock on a copy while a model answers from it. The last process that releases a
copy removes it. The next process that opens a model removes the copies of processes that were killed.
"""

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.artifact import model_file
from mrfrec.io.atomic import expanded

# No other file of the folder is ever removed.
_NAME = re.compile(r"[0-9a-f]{32}\.copy|unfinished\.copy")
_PIECE = 1 << 20  # bytes that are copied at once


class OwnCopy(NamedTuple):
    """A copy of a model file. It exists until this and all other processes have called `release`."""

    path: Path
    written: float  # when the model file was written: seconds since 1970
    descriptor: int  # holds the shared lock that keeps the copy

    def release(self) -> None:
        """Release the copy, and remove it if no other process or model uses it. This never waits."""
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(self.path, self.descriptor):
                self.path.unlink()
        os.close(self.descriptor)


def folder_of_copies(path: "str | os.PathLike[str] | None") -> Path:
    """Return the folder for copies, made if missing, after removing the copies of killed processes.

    Only its owner may write to it: a program that can write to a copy can change what the service maps.
    """
    folder = Path("the temporary folder")
    try:
        own = f"mrfrec-{os.getuid()}"
        folder = Path(tempfile.gettempdir(), own) if path is None else expanded(path).resolve()
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            rule = "a folder that belongs to the user of the service, and that nobody else can write to"
            raise ParameterError("copies", rule, str(folder), "Name another one.")
        with _alone_in(folder):
            for copy in [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]:
                if (descriptor := _shared(copy)) is not None:
                    OwnCopy(copy, 0.0, descriptor).release()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{folder} cannot hold copies of models: {reason}. Name another folder (copies=…, --copies)."
        ) from error
    return folder


def copied(model: Path, folder: Path) -> OwnCopy:
    """Copy a model file into the folder, or use the copy with the same content that is there."""
    with _alone_in(folder), model_file(model).open("rb") as source:
        written = os.fstat(source.fileno()).st_mtime
        copy = folder / f"{_hash(source)}.copy"
        if (descriptor := _shared(copy)) is None:
            source.seek(0)
            unfinished = folder / "unfinished.copy"
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                with open(descriptor, "wb", closefd=False) as target:
                    # The file may have changed since it was read first.
                    copy = folder / f"{_hash(source, target)}.copy"
                unfinished.replace(copy)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                os.close(descriptor)
                raise
    return OwnCopy(copy, written, descriptor)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process copies into the folder, so that it never has two unfinished copies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _hash(source: BufferedIOBase, target: BufferedIOBase | None = None) -> str:
    """Return the hash of the rest of a file, and write the rest to `target`."""
    digest = hashlib.blake2b(digest_size=16)
    while piece := source.read(_PIECE):
        digest.update(piece)
        if target is not None:
            target.write(piece)
    return digest.hexdigest()


def _shared(copy: Path) -> int | None:
    """Return a descriptor of a copy, with a shared lock, or None if the copy does not exist."""
    try:
        descriptor = os.open(copy, os.O_RDONLY)
    except FileNotFoundError:
        return None
    # This waits for a process that is about to remove the copy.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _is_named(copy, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _is_named(copy: Path, descriptor: int) -> bool:
    """Return whether a name still belongs to the open file."""
    try:
        return os.path.samestat(copy.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
