"""The models of a service: opened, checked and warmed before they answer, exchanged under load."""

import gc
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mrfrec.data.ids import Id
from mrfrec.errors import MrfrecError, ParameterError
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.service.problems import ProblemError

_log = logging.getLogger("mrfrec.service")

_MOST_SHARE = 1_000_000

# Of a file: its inode, its size, when its content was changed, its rights and its owners. The time at which
# its inode was changed is left out: another hard link, as `mrfrec nightly` keeps old models, changes it.
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """A model that answers. Never changed: a replaced file makes another."""

    name: str
    model: Recommender
    fingerprint: str
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
    ) -> None:
        """Open the models. The visitors of a split are hashed with `salt`: other salts make other groups."""
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
        self.on_failure: Callable[[str], None] = lambda name: None  # called when a file cannot be opened
        self._lock = threading.Lock()  # one model is opened at a time
        self._served = {name: _opened(name, path) for name, path in paths.items()}

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
        """Return the names of models whose files were replaced since they were last looked at."""
        stamps = {name: _stamp(path) for name, path in self._paths.items()}
        for name, stamp in stamps.items():
            if stamp is None and self._stamps[name] is not None:
                _log.error("model %s: its file is gone; the model goes on answering", name)
                self._stamps[name] = None
                self.on_failure(name)
        return [name for name, stamp in stamps.items() if stamp is not None and stamp != self._stamps[name]]

    def reload(self, name: str) -> Served:
        """Open the file of a model anew and let it answer from now on.

        If it is damaged, the error is raised and the old model stays.
        """
        with self._lock:
            # Before it is read: a file that is replaced meanwhile counts as changed again.
            self._stamps[name] = _stamp(self._paths[name])
            try:
                served = _opened(name, self._paths[name])
            except (MrfrecError, OSError) as error:
                _log.error("model %s stays as it is: %s", name, error)
                self.on_failure(name)
                raise
            before = self._served[name].fingerprint
            self._served[name] = served
            gc.collect()  # frees the old one
        _log.info("model %s: %s replaces %s", name, served.fingerprint, before)
        return served

    def follow(self, every: bool = False) -> None:
        """Reload the models whose files were replaced, or all; the old stays where one cannot be opened."""
        for name in self._paths if every else self.changed():
            with suppress(MrfrecError, OSError):  # logged
                self.reload(name)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid, found.st_gid


def _opened(name: str, path: Path) -> Served:
    """Open a model, check every byte of it, and warm it up by an answer of each kind."""
    start = time.perf_counter()
    model = load(path)
    written = path.stat().st_mtime
    model.threads = 1  # each process answers with one core
    model.verify()
    model.recommend(history=model.items_[:1], k=1, exclude_seen=False, explain=int(model.explains))
    model.catalogue.search("a", 1)
    _log.info("model %s: opened %s in %.2f s: %r", name, path, time.perf_counter() - start, model)
    return Served(name, model, model.fitted_.file_hash[:16], time.time(), written)
