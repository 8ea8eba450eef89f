"""How kernels are compiled, and where their machine code is kept.

numba's own cache notices changes in the file of a function, but not in the files of the functions it calls.
Here the folder is named after a hash of all kernel sources and the version of numba, which discards what
another version has written: when any of them changes, a new folder replaces the old one.

Machine code is looked for in each of these folders, and written to the first that can be written:

1. numba's setting NUMBA_CACHE_DIR, if there is one;
2. `lib/mrfrec/kernels` of the Python environment, which serves everybody who uses this installation;
3. `~/.cache/mrfrec/kernels`.

The last two have a folder for each installation, and are passed over where somebody else could have written
to them, since machine code is run. Where no folder can be written, every process compiles for itself.
"""

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
from numba.core import caching, config, types

_log = logging.getLogger(__package__)
_HERE = Path(__file__).resolve().parent
_PREFIX = "kernels-"
_compiled: list[str] = []  # kernels that this process has compiled


def kernel(function: Any) -> Any:
    """Compile a function that reads and writes the elements of its arguments and makes no arrays.

    It runs without the interpreter's lock, and the machine code is kept. To be quick to compile it gets no
    code for arrays that it makes (`_nrt`) or treats as wholes (`no_rewrites`), nor for raising an error:
    division by zero gives ±∞ or NaN, as in NumPy.
    """
    return _dispatcher(function, _nrt=False, no_rewrites=True)


def inner(function: Any) -> Any:
    """Compile a `kernel` that only kernels call: quicker, since Python need not be able to call it.

    For numba each integer constant is a type of its own, for which it would compile the function again.
    """
    made = _dispatcher(function, _nrt=False, no_rewrites=True, no_cpython_wrapper=True)
    of_types = made.get_call_template
    made.get_call_template = lambda args, kws: of_types([types.unliteral(each) for each in args], kws)
    return made


def array_kernel(function: Any) -> Any:
    """Compile a function that makes arrays, which takes longer than a `kernel` does."""
    return _dispatcher(function, _nrt=True)


def _dispatcher(function: Any, **options: Any) -> Any:
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    made: Any = njit(**options)(function)
    made._cache = _MachineCode(function)  # in place of numba's, which `cache=True` would put there
    return made


def cache_folders() -> list[Path]:
    """Return the folders in which machine code is looked for, whether they exist or not."""
    name = _PREFIX + _hash_of_sources()
    installation = sha256(str(_HERE).encode()).hexdigest()[:16]
    own = [Path(sys.prefix) / "lib" / "mrfrec" / "kernels" / installation / name]
    with suppress(RuntimeError):  # no home
        own.append(Path.home() / ".cache" / "mrfrec" / "kernels" / installation / name)
    setting: str = config.CACHE_DIR  # type: ignore[attr-defined]
    return [*([Path(setting) / name] if setting else []), *filter(_is_safe, own)]


def _is_safe(folder: Path) -> bool:
    """Return whether only this user, root and the owner of the package can write to a folder, if it exists.

    Groups may, too: in many systems each user has one.
    """
    trusted = {os.getuid(), 0, _HERE.stat().st_uid}
    for part in (folder, folder.parent):
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
    if folder.parent == Path(config.CACHE_DIR):  # type: ignore[attr-defined]
        return  # other installations may share it
    for other in folder.parent.glob(_PREFIX + "*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


# numba has no public way to choose the folder of a cache but variables of the environment.


class _Locator(caching._CacheLocator):
    """Tells numba how to name the files of a kernel; `_MachineCode` chooses their folder."""

    def __init__(self, line: int) -> None:
        self._line = line

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        return cls(py_func.__code__.co_firstlineno)

    def get_disambiguator(self) -> str:
        return str(self._line)

    def get_cache_path(self) -> str:
        return ""

    get_source_stamp = get_cache_path
    ensure_cache_path = get_cache_path


class _Files(caching.CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]  # noqa: RUF012 - as numba has it


class _MachineCode(caching.FunctionCache):
    """The machine code of one kernel, in all folders."""

    _impl_class = _Files

    def _look_in(self, folder: Path) -> None:
        self._cache_file = caching.IndexDataCacheFile(
            str(folder), self._impl.filename_base, _hash_of_sources()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for some types of arguments, or None: it will be compiled."""
        for folder in cache_folders():
            self._look_in(folder)
            with suppress(OSError):
                found = super().load_overload(sig, target_context)
                if found is not None:
                    return found
        if not _compiled:
            _log.info("compiling for this machine what it has not run before; up to 15 seconds")
        _compiled.append(self._py_func.__name__)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code in the first folder that can be written, if any."""
        for folder in cache_folders():
            self._look_in(folder)
            with suppress(OSError):
                _make(folder)
                super().save_overload(sig, data)
                return
