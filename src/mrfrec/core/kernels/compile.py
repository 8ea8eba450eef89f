"""How kernels are compiled, and where their machine code is kept.

numba's own cache notices changes in the file of a function, but not in the files of the functions it calls.
Here its folder is named after a hash of all kernel sources and the version of numba: when any of them
changes, a new folder replaces the old one.

Machine code is kept in numba's setting NUMBA_CACHE_DIR, if there is one, else in the first of these folders
that can be written:

1. `lib/mrfrec/kernels` of the Python environment, which serves everybody who uses this installation;
2. `~/.cache/mrfrec/kernels`.

Both have a folder for each installation, and are passed over where somebody else could have written to them,
since machine code is run. Where no folder can be written, every process compiles for itself.

numba reads machine code only from a folder that it can also write to. Where the machine code is in a folder
that is read-only, the second one, or a temporary one, has links to it.
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

    It runs without the interpreter's lock, and the machine code is kept. To be quick to compile it gets no
    code for arrays that it makes (`_nrt`) or treats as wholes (`no_rewrites`), nor for raising an error:
    division by zero gives ±∞ or NaN, as in NumPy.
    """
    return _dispatcher(function, _nrt=False, no_rewrites=True)


def inner(function: Any) -> Any:
    """Compile a `kernel` that only kernels call: quicker, since Python need not be able to call it."""
    return _dispatcher(function, _nrt=False, no_rewrites=True, no_cpython_wrapper=True)


def array_kernel(function: Any) -> Any:
    """Compile a function that makes arrays, which takes longer than a `kernel` does."""
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
    """Notes the kernels that are compiled, and says so before the first."""

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith(__package__):
            if not _compiled:
                advice = "" if _folder() else "; it cannot be kept: name a folder as NUMBA_CACHE_DIR"
                _log.info(f"compiling for this machine what it has not run before; up to 15 seconds{advice}")
            _compiled.append(function.__name__)

    def on_end(self, event: Any) -> None:
        """Nothing is noted then."""


event.register("numba:compile", _Note())


@cache
def _folder() -> Path | None:
    """Return the folder that numba uses in this process; None if it compiles in memory."""
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
        place = chosen / path.relative_to(kept)
        with suppress(OSError):  # it is there
            place.parent.mkdir(mode=0o755, exist_ok=True)
            place.symlink_to(path)
    return chosen


def _can_read(path: Path) -> bool:
    return os.access(path, os.R_OK)


def cache_folders() -> list[Path]:
    """Return the folders in which machine code is looked for, whether they exist or not."""
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

    Groups may, too: in many systems each user has one.
    """
    trusted = {os.getuid(), 0, _HERE.stat().st_uid}
    for part in (folder, folder.parent, *folder.glob("*/")):
        with suppress(OSError):  # it does not exist, or cannot be read
            facts = part.stat()
            if facts.st_uid not in trusted or facts.st_mode & stat.S_IWOTH:
                return False
    return True


def can_write(folder: Path) -> bool:
    """Make the folder, and find out whether files can be written to it."""
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
    """Make the folder, which nobody else may write to; the folders of earlier sources go.

    Processes that still run earlier sources find their folder gone, compile, and make it again.
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
