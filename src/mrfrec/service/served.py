"""The models of a service: opened, checked and warmed before they answer, exchanged under load."""

import gc
import hashlib
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from mrfrec.data.ids import Id
from mrfrec.errors import ModelFileError, MrfrecError, ParameterError
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.service.copies import copied, folder_of_copies
from mrfrec.service.problems import ProblemError

_log = logging.getLogger("mrfrec.service")

_MOST_SHARE = 1_000_000
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 300.0  # seconds until a file is tried again; each pause doubles the last
_IN_PLACE, _GONE, _FAILED = "changed in place", "gone", "cannot be opened"  # why a model is stale


class Stamp(NamedTuple):
    """What tells that a file was replaced or changed.

    The time at which its inode was changed is left out: another hard link, as `mrfrec nightly` keeps old
    models, changes it.
    """

    inode: int
    content: tuple[int, int]  # its size, and when it was written
    rights: tuple[int, int, int]  # its mode and its owners


@dataclass(frozen=True)
class Served:
    """A model that answers. Never changed: a replaced file makes another."""

    name: str
    model: Recommender
    file_hash: str
    opened: float  # seconds since 1970
    written: float = 0.0  # the file: seconds since 1970


class Choice(NamedTuple):
    """The model of a request, and why it is this one."""

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
        """Open copies of the models, made in the folder `copies`.

        The visitors of a split are hashed with `salt`: other salts make other groups.
        """
        if not paths:
            raise ParameterError("models", "at least one model", dict(paths))
        for name in paths:
            if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:  # it goes into headers and labels
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
        # By model, if what answers is not what lies on disk: why.
        self.stale: dict[str, str] = {}
        # By model that could not be opened for a reason that may pass: when to try again, and the pause.
        self._due: dict[str, tuple[float, float]] = {}
        self.on_failure: Callable[[str], None] = lambda name: None  # called when a file cannot be opened
        self._lock = threading.Lock()  # one model is opened at a time
        self._copies = copies
        self._served = {name: self._opened(name) for name in paths}

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def choose(self, name: str | None, visitor: Id | None = None) -> Choice:
        """Return the model that was asked for, that of the visitor's part of the split, or the default.

        The same visitor gets the same model, in every process.
        """
        if name is not None:
            if name not in self._served:
                raise ProblemError(404, f"there is no model {name!r}.")
            return Choice(self._served[name], "request")
        if self._split and visitor is not None:
            text = str(visitor).encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=8, key=self._salt).digest()
            place = int.from_bytes(digest, "big") / 2**64 * sum(self._split.values())
            for part, share in self._split.items():
                place -= share
                if place < 0:
                    return Choice(self._served[part], "split")
        return Choice(self._served[self.default], "default")

    def changed(self) -> list[str]:
        """Return the models whose files were replaced or changed since the last look, or are due again."""
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
        """Open the file of a model anew and let it answer from now on.

        If that fails, the error is raised and the old model stays. Unless the file is damaged, it is due once
        more after a pause.
        """
        with self._lock:
            # Before it is read: a file that is replaced meanwhile counts as changed again.
            self._stamps[name] = _stamp(self._paths[name])
            _, pause = self._due.pop(name, (0.0, _FIRST_PAUSE))
            try:
                served = self._opened(name)
            except Exception as error:
                self.stale.setdefault(name, _FAILED)
                again = ""
                if not isinstance(error, MrfrecError) or isinstance(error.__cause__, OSError):
                    self._due[name] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)
                    again = f" It is tried again in {pause:g} s."
                _log.error("model %s stays as it is: %s%s", name, error, again)
                self.on_failure(name)
                raise
            before = self._served[name].file_hash
            self._served[name] = served
            self.stale.pop(name, None)
            gc.collect()  # frees the old one
        _log.info("model %s: %s replaces %s", name, served.file_hash, before)
        return served

    def follow(self, every: bool = False) -> None:
        """Reload the models whose files were replaced, or all; the old stays where one cannot be opened."""
        for name in self._paths if every else self.changed():
            with suppress(Exception):  # logged
                self.reload(name)

    def _opened(self, name: str) -> Served:
        """Open a copy of a model, check every byte of it, and warm it up by an answer of each kind."""
        start = time.perf_counter()
        path = self._paths[name]
        folder = folder_of_copies(self._copies)  # whoever tidies up temporary files may have removed it
        try:
            copy = copied(path, folder)
        except OSError as error:
            what = "read" if error.filename == str(path) else f"copied to {folder} (--copies)"
            raise ModelFileError(f"{path} could not be {what}: {error.strerror or error}.") from error
        try:
            model = load(copy.path)
            model.threads = 1  # each process answers with one core
            model.verify()
            model.recommend(history=model.items_[:1], k=1, exclude_seen=False, explain=int(model.explains))
            model.catalogue.search("a", 1)
            served = Served(name, model, model.fitted_.file_hash[:16], time.time(), copy.written)
        except BaseException as error:
            copy.release()
            if isinstance(error, ModelFileError):  # which names the copy
                raise ModelFileError(str(error).replace(str(copy.path), str(path))) from error.__cause__
            raise
        weakref.finalize(served, copy.release)
        _log.info("model %s: opened %s in %.2f s: %r", name, path, time.perf_counter() - start, model)
        return served


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(
        found.st_ino, (found.st_size, found.st_mtime_ns), (found.st_mode, found.st_uid, found.st_gid)
    )
