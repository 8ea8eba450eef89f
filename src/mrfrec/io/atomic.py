"""Files appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrfrec.errors import ParameterError

__all__ = ["writing"]


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new file beside `path`, which takes its place when all went well and is removed when not.

    Until then an old file of that name stays as it was, whatever happens: an error, a full disk, Ctrl-C.
    """
    target = Path(path).expanduser()
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():
        raise ParameterError("path", "a file, new or old", str(path), "Something else has that name.")
    if not target.parent.is_dir():
        raise ParameterError("path", "in a folder that exists", str(path), "Make the folder first.")
    unfinished = target.with_name(f".{target.name[:80]}.{secrets.token_hex(4)}.unfinished")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else unfinished).stat().st_mode & 0o777
        yield unfinished
        unfinished.chmod(mode)  # whatever its writer made of it
        _flush(unfinished, os.O_RDWR)
        unfinished.replace(target)
        _flush(target.parent, os.O_RDONLY)
    finally:
        unfinished.unlink(missing_ok=True)


def _flush(path: Path, mode: int) -> None:
    """Wait until it is on the disk, so that the new name never points at less than the whole."""
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
