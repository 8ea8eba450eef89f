"""Leases of model files: who would write over one waits until this process no longer needs it.

The arrays of a model are mapped from its file. To rename another file over it does no harm, but if it is
written over (`cp new.mrf shop.mrf`), it is empty for a moment, and a process that looks at it then is killed.
On Linux, the owner of a file can lease it. The kernel sends SIGIO to the holder of the lease when somebody is
about to write, who waits until the lease is given back, for at most 45 seconds.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, which does not let anybody write over a mapped file
    fcntl = None  # type: ignore[assignment]


class Lease:
    """A lease of a file. The process must handle SIGIO, which would end it."""

    def __init__(self, path: Path) -> None:
        """Lease a file; `BlockingIOError` if somebody writes to it, `OSError` if it cannot be leased."""
        if not hasattr(fcntl, "F_SETLEASE"):
            raise OSError("files cannot be leased on this system")
        self._file = os.open(path, os.O_RDONLY)
        self.inode = os.fstat(self._file).st_ino
        try:
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            os.close(self._file)
            raise

    @property
    def is_wanted_back(self) -> bool:
        """Whether somebody waits to write to the file."""
        return fcntl.fcntl(self._file, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    @property
    def is_needed(self) -> bool:
        """Whether this process has mapped the file."""
        maps = Path("/proc/self/maps").read_text().splitlines()
        return any(line.split(maxsplit=5)[4] == str(self.inode) for line in maps)

    def give_back(self) -> None:
        """Let others write to the file."""
        os.close(self._file)


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Copy a file to one without a name, on disk or else in memory, and give a path to it, for this block."""
    source = os.open(path, os.O_RDONLY)
    target = -1
    try:
        try:
            with tempfile.TemporaryFile() as file:
                _copy(source, file.fileno())
                target = os.dup(file.fileno())
        except OSError:  # no room
            target = os.memfd_create("model")
            _copy(source, target)
        yield Path(f"/proc/self/fd/{target}")
    finally:
        for file_number in {source, target} - {-1}:
            os.close(file_number)


def _copy(source: int, target: int) -> None:
    size, done = os.fstat(source).st_size, 0
    while done < size:
        sent = os.sendfile(target, source, done, size - done)
        if sent == 0:
            raise OSError("the file has become shorter")
        done += sent
