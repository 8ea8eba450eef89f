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
        """Lease a file; `OSError` if somebody is writing to it, or it may not be leased."""
        if not hasattr(fcntl, "F_SETLEASE"):
            raise OSError("files cannot be leased on this system")
        self._file = os.open(path, os.O_RDONLY)
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
        wanted = str(os.fstat(self._file).st_ino)
        maps = Path("/proc/self/maps").read_text().splitlines()
        return any(line.split(maxsplit=5)[4] == wanted for line in maps)

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Copy the file to one without a name, and give a path to it, for this block."""
        with tempfile.TemporaryFile() as copy:
            size, done = os.fstat(self._file).st_size, 0
            while done < size:
                sent = os.sendfile(copy.fileno(), self._file, done, size - done)
                if sent == 0:
                    raise OSError("the file has become shorter")
                done += sent
            yield Path(f"/proc/self/fd/{copy.fileno()}")

    def give_back(self) -> None:
        """Let others write to the file."""
        os.close(self._file)
