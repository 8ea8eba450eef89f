"""How kernels are compiled, and where their machine code is kept.

numba's own cache notices changes in the file of a function, but not in the files of the functions it calls.
Here its folder is named after a hash of all kernel sources and the version of numba: when any of them
changes, a new folder replaces the old one.

Machine code is kept in numba's setting NUMBA_CACHE_DIR, if there is one, else in the first of these folders
that can be written:

1. `lib/mrfrec/kernels` of the Python environment, which serves everybody who uses this installation;
2. `~/.cache/mrfrec/kernels`.

Both have a subfolder per installation. A folder that other users could have written to is skipped, because
its machine code would be run. If no folder can be written, every process compiles for itself.

numba reads machine code only from a folder that it can also write to. If the machine code is in a read-only
folder, the second folder, or else a temporary one, links to its files.
"""

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core import config, event

_log = logging.getLogger(__package__)
_HERE = Path(__file__).resolve().parent
_PREFIX = "kernels-"
_numba: Any = config  # numba's settings carry no types
_compiled: list[str] = []  # kernels that this process has compiled


def kernel(function: Any) -> Any:
    """Compile a function that reads and writes the elements of its arguments and makes no arrays.

    It runs without the interpreter's lock, and its machine code is kept. To compile quickly, it can neither
    allocate arrays (`_nrt`) nor use array expressions (`no_rewrites`) nor raise errors: division by zero
    gives ±∞ or NaN, as in NumPy.
    """
    return _dispatcher(function, _nrt=False, no_rewrites=True)


def inner(function: Any) -> Any:
    """Compile a `kernel` that only kernels call; without a wrapper for Python this is quicker."""
    return _dispatcher(function, _nrt=False, no_rewrites=True, no_cpython_wrapper=True)


def array_kernel(function: Any) -> Any:
    """Compile a function that allocates arrays, which takes longer than a `kernel`."""
    return _dispatcher(function)


def _dispatcher(function: Any, **options: Any) -> Any:
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    folder = _folder()
    if folder is None:
        return njit(**options)(function)
    setting = _numba.CACHE_DIR
    _numba.CACHE_DIR = str(folder)
    try:
        made: Any = njit(cache=True, **options)(function)
    finally:
        _numba.CACHE_DIR = setting
    with suppress(OSError):
        Path(made.stats.cache_path).chmod(0o755)  # whatever the umask
    return made


class _Note(event.Listener):
    """Records the kernels that are compiled, and logs a line before the first."""

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith(__package__):
            if not _compiled:
                advice = "" if _folder() else "; it cannot be kept: name a folder as NUMBA_CACHE_DIR"
                _log.info(f"compiling for this machine what it has not run before; up to 15 seconds{advice}")
            _compiled.append(function.__name__)

    def on_end(self, event: Any) -> None:
        """Do nothing: `on_start` has recorded the kernel."""


event.register("numba:compile", _Note())


@cache
def _folder() -> Path | None:
    """Return the folder that numba uses in this process; None if the machine code is not kept."""
    folders = cache_folders()
    chosen = next(filter(can_write, folders), None)
    others = folders if chosen is None else folders[: folders.index(chosen)]
    kept = next((folder for folder in others if any(folder.rglob("*.nbi"))), None)
    if kept is None:
        return chosen
    if chosen is None:
        try:
            chosen = Path(tempfile.mkdtemp(prefix="mrfrec-kernels-"))
        except OSError:
            return None
        atexit.register(shutil.rmtree, chosen, ignore_errors=True)
    for path in filter(_can_read, sorted(kept.rglob("*.nb[ci]"))):
        link = chosen / path.relative_to(kept)
        with suppress(OSError):  # The link exists already.
            link.parent.mkdir(mode=0o755, exist_ok=True)
            link.symlink_to(path)
    return chosen


def _can_read(path: Path) -> bool:
    return os.access(path, os.R_OK)


def cache_folders() -> list[Path]:
    """Return the folders to search for machine code, in order; they need not exist."""
    name = _PREFIX + _hash_of_sources()
    if _numba.CACHE_DIR:
        return [Path(_numba.CACHE_DIR) / name]
    installation = sha256(str(_HERE).encode()).hexdigest()[:16]
    own = [Path(sys.prefix) / "lib" / "mrfrec" / "kernels" / installation / name]
    with suppress(RuntimeError):  # no home
        own.append(Path.home() / ".cache" / "mrfrec" / "kernels" / installation / name)
    return list(filter(_is_safe, own))


def _is_safe(folder: Path) -> bool:
    """Return whether only this user, root and the owner of the package can write to a folder, if it exists.

    Its group may write to it as well: on many systems every user has their own group.
    """
    trusted = {os.getuid(), 0, _HERE.stat().st_uid}
    for part in (folder, folder.parent, *folder.glob("*/")):
        with suppress(OSError):  # it does not exist, or cannot be read
            facts = part.stat()
            if facts.st_uid not in trusted or facts.st_mode & stat.S_IWOTH:
                return False
    return True


def can_write(folder: Path) -> bool:
    """Create the folder if needed, and return whether files can be written to it."""
    try:
        _make(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b".")
        return True
    except OSError:
        return False


@cache
def _hash_of_sources() -> str:
    digest = sha256(numba.__version__.encode())
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _make(folder: Path) -> None:
    """Create the folder, writable for its owner only, and delete the folders of earlier sources.

    A process that still runs earlier sources compiles them again and creates its folder anew.
    """
    if folder.is_dir():
        return
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for part in (folder.parent, folder):
        part.mkdir(mode=0o755, exist_ok=True)
    if folder.parent == Path(_numba.CACHE_DIR):
        return  # other installations may share it
    for other in folder.parent.glob(_PREFIX + "*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
