"""The models of a service: copied, opened, checked and warmed up before they answer, exchanged under load.

A file that is overwritten in place, as by `cp`, changes the answers of every process that has mapped it, or
ends the process (SIGBUS). So the service copies a file before it opens it. The copies lie in one folder,
named by the hashes of their content: processes that serve the same file map the same copy, which is in memory
once. A process holds a shared lock on a copy while a model answers from it. The last process that releases a
copy removes it. The next process that opens a model removes the copies of processes that were killed.
"""

import errno
import fcntl
import gc
import hashlib
import logging
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedIOBase
from os import PathLike
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

from mrfrec.checks import counted
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ModelFileError, MrfrecError, ParameterError
from mrfrec.io.artifact import model_file, read_erasures
from mrfrec.io.atomic import expanded
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.service.problems import ProblemError

_log = logging.getLogger("mrfrec.service")

_MOST_SHARE = 1_000_000
# Seconds until a file is tried again; a pause is twice as long as the one before.
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 300.0
# Why a model is stale.
_IN_PLACE, _GONE, _FAILED = "changed in place", "gone", "cannot be opened"
_FORGOTTEN = "may have people who were forgotten"
_LOCKED = "another process locks the folder of copies"
_LONGEST_WAIT = 10.0  # seconds, for a lock of another process
# No other file of the folder of copies is ever removed.
_COPY_NAME = re.compile(r"[0-9a-f]{32}\.copy|unfinished-\w+\.copy")
_PIECE = 1 << 20  # bytes that are copied at once


class Stamp(NamedTuple):
    """What distinguishes a file from the file that replaces it, or from itself after a change.

    The time of the last change of the inode is not part of it: `mrfrec nightly` makes another hard link to an
    old model, which changes that time.
    """

    inode: int
    content: tuple[int, int]  # size, and time of the last write
    rights: tuple[int, int, int]  # mode, user and group


@dataclass(frozen=True)
class Served:
    """A model that answers. It never changes; a file that is replaced makes another one."""

    name: str
    model: Recommender
    file_hash: str
    opened: float  # seconds since 1970
    written: float = 0.0  # when the file was written: seconds since 1970


class Choice(NamedTuple):
    """The model of a request, and why it answers."""

    served: Served
    why: str  # "request", "split" or "default"


class ServedModels:
    """The models of a service."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        default: str | None = None,
        split: Mapping[str, float] | None = None,
        *,
        salt: str = "",
        copies: "str | PathLike[str] | None" = None,
    ) -> None:
        """Open copies of the models, which are made in the folder `copies`.

        A hash with `salt` splits the visitors: another salt makes other groups.
        """
        if not paths:
            raise ParameterError("models", "at least one model", dict(paths))
        for name in paths:
            # The name stands in headers and labels.
            if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
                rule = "up to 64 letters, digits, dots, dashes and underscores"
                raise ParameterError("the name of a model", rule, name, "Give another one: NAME=FILE.")
        self.default = next(iter(paths)) if default is None else default
        if self.default not in paths:
            raise ParameterError("default", f"one of {', '.join(paths)}", self.default)
        for name, share in (split or {}).items():
            is_number = isinstance(share, int | float)
            if name not in paths or not (is_number and 0 < share <= _MOST_SHARE):
                rule = f"shares above 0, and at most {_MOST_SHARE:,}, of {', '.join(paths)}"
                raise ParameterError("split", rule, dict(split or {}))
        self._split = dict(split or {})
        self._salt = hashlib.blake2b(salt.encode()).digest() if salt else b""
        self._paths = dict(paths)
        self._stamps = {name: _stamp(path) for name, path in paths.items()}
        # Models that are not those on disk: why, by name.
        self.stale: dict[str, str] = {}
        # Files that could not be opened for a reason that may pass: time of the next try, and pause, by name.
        self._due: dict[str, tuple[float, float]] = {}
        # This function is called when a file cannot be opened.
        self.on_failure: Callable[[str], None] = lambda name: None
        # One model is opened at a time.
        self._lock = threading.Lock()
        self._copies = copies
        self._served: dict[str, Served] = {}
        self._served = {name: self._opened(name) for name in paths}

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def choose(self, name: str | None, visitor: Id | None = None) -> Choice:
        """Return the model with this name, or the visitor's model of the split, or the default model.

        The same visitor gets the same model in every process.
        """
        if name is not None:
            if name not in self._served:
                raise ProblemError(404, f"there is no model {name!r}.")
            return Choice(self._served[name], "request")
        if self._split and visitor is not None:
            text = str(visitor).encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=8, key=self._salt).digest()
            number = int.from_bytes(digest, "big") / 2**64 * sum(self._split.values())
            for part, share in self._split.items():
                number -= share
                if number < 0:
                    return Choice(self._served[part], "split")
        return Choice(self._served[self.default], "default")

    def changed(self) -> list[str]:
        """Return the models whose files were replaced or changed since the last call, or are due again."""
        changed = []
        for name, path in self._paths.items():
            stamp, before = _stamp(path), self._stamps[name]
            if stamp == before:
                if name in self._due and time.monotonic() >= self._due[name][0]:
                    changed.append(name)
                continue
            self.stale.pop(name, None)
            self._due.pop(name, None)
            if stamp is None:
                _log.error("model %s: its file is gone; the model goes on answering", name)
                self._stamps[name] = None
                self.stale[name] = _GONE
                self.on_failure(name)
                continue
            if before and stamp.inode == before.inode and stamp.content != before.content:
                _log.warning("model %s: its file was changed in place; write beside it, and rename", name)
                self.stale[name] = _IN_PLACE
            changed.append(name)
        return changed

    def reload(self, name: str) -> Served:
        """Open the file of a model anew; the new model answers from now on.

        If the file cannot be opened, the error is raised and the old model stays. Unless the file is damaged,
        it is tried again after a pause.
        """
        with self._lock:
            # The stamp is taken before the file is read: a file that is replaced meanwhile counts as changed.
            self._stamps[name] = _stamp(self._paths[name])
            _, pause = self._due.pop(name, (0.0, _FIRST_PAUSE))
            try:
                served = self._opened(name)
            except Exception as error:
                self.stale.setdefault(name, _LOCKED if isinstance(error.__cause__, TimeoutError) else _FAILED)
                again = ""
                passes = not isinstance(error, MrfrecError) or isinstance(error.__cause__, OSError)
                # A ParameterError is about the folder of copies, not about the file.
                if passes or isinstance(error, ParameterError):
                    self._due[name] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)
                    again = f" It is tried again in {pause:g} s."
                _log.error("model %s stays as it is: %s%s", name, error, again)
                self.on_failure(name)
                raise
            before = self._served[name].file_hash
            self._served[name] = served
            self.stale.pop(name, None)
            # Free the old model.
            gc.collect()
        _log.info("model %s: %s replaces %s", name, served.file_hash, before)
        return served

    def follow(self, every: bool = False) -> None:
        """Reload all models, or the models whose files were replaced. A file with a fault changes nothing."""
        for name in self._paths if every else self.changed():
            # The error is in the log.
            with suppress(Exception):
                self.reload(name)

    def _check_erasures(self, name: str, model: Recommender) -> None:
        """Refuse a file that may have people who were forgotten; at the start, it answers and is stale.

        The list of erasures lies beside the model file, not beside its copy.
        """
        beside = None
        with suppress(PermissionError):
            beside = read_erasures(self._paths[name])
        if beside is None or not (later := beside.beyond(model.fitted_.erased)):
            return
        text = (
            f"{self._paths[name]} does not know of {counted(later, 'erasure')} in the file beside it, so it "
            "may have people who were forgotten. mrfrec forget, an update or a nightly job removes them."
        )
        if name in self._served:
            raise ModelFileError(text)
        _log.error("model %s: %s", name, text)
        self.stale[name] = _FORGOTTEN

    def _opened(self, name: str) -> Served:
        """Open a copy of a model, check every byte of it, and warm it up by one answer of every kind."""
        start = time.perf_counter()
        path = self._paths[name]
        # A program that tidies up temporary files may have removed the folder.
        folder = folder_of_copies(self._copies)
        try:
            copy = copied(path, folder)
        except OSError as error:
            what = "read" if error.filename == str(path) else f"copied to {folder} (--copies)"
            raise ModelFileError(f"{path} could not be {what}: {error.strerror or error}.") from error
        try:
            model = load(copy.path)
            self._check_erasures(name, model)
            # A process answers with one core.
            model.threads = 1
            model.verify()
            model.recommend(history=model.items_[:1], k=1, exclude_seen=False, explain=int(model.explains))
            model.catalogue.search("a", 1)
            served = Served(name, model, model.fitted_.file_hash[:16], time.time(), copy.written)
        except BaseException as error:
            copy.release()
            # The error must name the model file, not its copy.
            if isinstance(error, ModelFileError):
                raise ModelFileError(str(error).replace(str(copy.path), str(path))) from error.__cause__
            raise
        weakref.finalize(served, copy.release)
        _log.info("model %s: opened %s in %.2f s: %r", name, path, time.perf_counter() - start, model)
        return served


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return Stamp(
        status.st_ino, (status.st_size, status.st_mtime_ns), (status.st_mode, status.st_uid, status.st_gid)
    )


# ── copies ────────────────────────────────────────────────────────────────────────────────────────


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
            for copy in [path for path in folder.iterdir() if _COPY_NAME.fullmatch(path.name)]:
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
    # The file is read without the lock of the folder: a slow disk keeps no other process waiting.
    with model_file(model).open("rb") as source:
        written = os.fstat(source.fileno()).st_mtime
        copy = folder / f"{_hash(source)}.copy"
        with _alone_in(folder):
            if (descriptor := _shared(copy)) is not None:
                return OwnCopy(copy, written, descriptor)
            descriptor, name = tempfile.mkstemp(".copy", "unfinished-", folder)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        unfinished = Path(name)
        try:
            source.seek(0)
            with open(descriptor, "wb", closefd=False) as target:
                # The file may have changed since it was read first.
                copy = folder / f"{_hash(source, target)}.copy"
            with _alone_in(folder):
                # Another process may have made the same copy meanwhile.
                if (other := _shared(copy)) is None:
                    unfinished.replace(copy)
                    return OwnCopy(copy, written, descriptor)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            os.close(descriptor)
            raise
    unfinished.unlink(missing_ok=True)
    os.close(descriptor)
    return OwnCopy(copy, written, other)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process adds files to the folder or removes some."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, fcntl.LOCK_EX, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int, path: Path) -> None:
    """Lock an open file; a process that was stopped may hold its lock for ever."""
    deadline = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            return fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                said = f"another process has locked it for {_LONGEST_WAIT:g} s"
                raise TimeoutError(errno.ETIMEDOUT, said, str(path)) from None
        time.sleep(0.02)


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
    is_named = False
    try:
        # This waits for a process that is about to remove the copy.
        _lock(descriptor, fcntl.LOCK_SH, copy)
        is_named = _is_named(copy, descriptor)
    finally:
        if not is_named:
            os.close(descriptor)
    return descriptor if is_named else None


def _is_named(copy: Path, descriptor: int) -> bool:
    """Return whether a name still belongs to the open file."""
    try:
        return os.path.samestat(copy.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
