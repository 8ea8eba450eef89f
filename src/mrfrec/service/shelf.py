"""The models of a service: opened, checked and warmed before they answer, exchanged while others ask."""

import gc
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mrfrec.data.ids import Id
from mrfrec.errors import ModelFileError, MrfrecError, ParameterError
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.service.lease import Lease, copied
from mrfrec.service.problems import ProblemError
from mrfrec.service.quick import QuickAnswers

_log = logging.getLogger("mrfrec.service")

_MOST_SHARE = 1_000_000
_MOST_WAIT = 20.0  # seconds until nobody uses a model any more

# Of a file: its inode, its size, when its content was changed, its rights and its owners. The time at which
# its inode was changed is left out: another hard link, as `mrfrec nightly` keeps old models, changes it.
Stamp = tuple[int, ...]
_LOOK_AGAIN: Stamp = ()


@dataclass(frozen=True)
class Served:
    """A model that answers. Never changed: a replaced file makes another."""

    name: str
    model: Recommender
    fingerprint: str
    opened: float  # seconds since 1970
    quick: QuickAnswers | None  # for models of sparse weights
    written: float = 0.0  # the file: seconds since 1970


class Choice(NamedTuple):
    """The model of a request, and why it is this one."""

    served: Served
    why: str  # "request", "split" or "default"


class Shelf:
    """The models of a service."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        default: str | None = None,
        split: Mapping[str, float] | None = None,
        *,
        salt: str = "",
        strict: bool = True,
    ) -> None:
        """Open the models. Unless `strict`, the service starts without models that cannot be opened.

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
            if name not in paths or not 0 < share <= _MOST_SHARE:
                rule = f"shares above 0, and at most {_MOST_SHARE:,}, of {', '.join(paths)}"
                raise ParameterError("split", rule, dict(split or {}))
        self._split, self._salt = dict(split or {}), hashlib.blake2b(salt.encode()).digest() if salt else b""
        self._paths = dict(paths)
        self._stamps = {name: _stamp(path) for name, path in paths.items()}
        self.on_failure: Callable[[str], None] = lambda name: None  # called when a file cannot be opened
        self._lock = threading.Lock()  # one model is opened at a time
        self._leases: list[Lease] | None = None  # of the files that are mapped, if `lease` was called
        self._inodes: dict[str, int] = {}  # of the files that are mapped and leased
        self.names = tuple(paths)
        self._served: dict[str, Served] = {}
        for name, path in paths.items():
            try:
                self._served[name] = _opened(name, path)
            except (MrfrecError, OSError) as error:
                if strict:
                    raise
                _log.error("model %s does not answer: %s", name, error)

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    @property
    def is_complete(self) -> bool:
        """Whether all models answer."""
        return len(self._served) == len(self._paths)

    def get(self, name: str) -> Served | None:
        """Return a model by name."""
        return self._served.get(name)

    def choose(self, name: str | None, visitor: Id | None) -> Choice | None:
        """Return the model that was asked for, that of the visitor's part of the split, or the default.

        None if there is no model of that name. The same visitor gets the same model, in every process.
        Refused with 503 if the model could not be opened.
        """
        if name is not None:
            return Choice(self._open(name), "request") if name in self._paths else None
        if self._split and visitor is not None:
            text = str(visitor).encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=8, key=self._salt).digest()
            place = int.from_bytes(digest, "big") / 2**64 * sum(self._split.values())
            for part, share in self._split.items():
                place -= share
                if place < 0:
                    return Choice(self._open(part), "split")
        return Choice(self._open(self.default), "default")

    def _open(self, name: str) -> Served:
        served = self._served.get(name)
        if served is None:
            raise ProblemError(
                503, "this model could not be opened; the log says why.", {"Retry-After": "10"}
            )
        return served

    def changed(self) -> list[str]:
        """Return the names of models whose files were replaced since they were last looked at."""
        found = {name: _stamp(path) for name, path in self._paths.items()}
        for name, stamp in found.items():
            if stamp is None and self._stamps[name] is not None:
                _log.error("model %s: its file is gone; what was opened goes on answering", name)
                self._stamps[name] = None
                self.on_failure(name)
        return [name for name, stamp in found.items() if stamp is not None and stamp != self._stamps[name]]

    def reload(self, name: str) -> Served:
        """Open the file of a model anew and let it answer from now on.

        If it is damaged, the error is raised and the old model stays.
        """
        with self._lock:
            # Before it is read: what is replaced meanwhile counts as changed again.
            self._stamps[name] = _stamp(self._paths[name])
            try:
                served, inode = self._open_file(name)
            except (MrfrecError, OSError) as error:
                _log.error("model %s stays as it is: %s", name, error)
                self.on_failure(name)
                raise
            before = self._served[name].fingerprint if name in self._served else None
            self._served[name], self._inodes[name] = served, inode
            gc.collect()  # what is left of the old one
            self._settle()
        _log.info("model %s: %s replaces %s", name, served.fingerprint, before)
        return served

    def follow(self, every: bool = False) -> None:
        """Reload the models whose files were replaced, or all; the old stays where one cannot be opened."""
        for name in self._paths if every else self.changed():
            with suppress(MrfrecError, OSError):  # logged
                self.reload(name)
        with self._lock:
            self._settle()

    # ── files that are written over ───────────────────────────────────────────────────────────────

    def lease(self) -> None:
        """Lease the files, where that is possible. From now on, `give_way` must be called on SIGIO."""
        with self._lock:
            self._leases = []
            for name in self._served:
                try:
                    lease = Lease(self._paths[name])
                except BlockingIOError:  # somebody writes to it
                    self._stamps[name] = _LOOK_AGAIN
                except OSError:
                    continue
                else:
                    self._leases.append(lease)
                    self._inodes[name] = lease.inode

    def end_leases(self) -> None:
        """Give all leases back; SIGIO need no longer be handled."""
        with self._lock:
            for lease in self._leases or ():
                lease.give_back()
            self._leases = None

    def _open_file(self, name: str) -> tuple[Served, int]:
        """Open the file of a model; returns its inode, or 0 if it is not leased.

        If somebody writes to it, a copy is opened.
        """
        path = self._paths[name]
        if self._leases is None:
            return _opened(name, path), 0
        for _ in range(5):
            try:
                lease = Lease(path)
            except BlockingIOError:
                break
            except OSError:  # it cannot be leased, or there is none
                return _opened(name, path), 0
            try:
                served = _opened(name, path)
            except BaseException:
                lease.give_back()
                raise
            if path.stat().st_ino == lease.inode:
                self._leases.append(lease)
                return served, lease.inode
            lease.give_back()  # it was replaced meanwhile
        return _opened_copy(name, path), 0

    def give_way(self) -> None:
        """Let those go on who wait to write over the files of models, which answer from copies meanwhile."""
        with self._lock:
            wanted = [lease for lease in self._leases or () if lease.is_wanted_back]
            for name in [name for name, inode in self._inodes.items() if inode in {w.inode for w in wanted}]:
                try:
                    copy = _opened_copy(name, self._paths[name])
                except (MrfrecError, OSError, MemoryError) as error:
                    _log.error("model %s: somebody writes over its file, which has no copy: %s", name, error)
                    continue
                self._served[name] = replace(copy, opened=self._served[name].opened)
                del copy
                self._inodes[name] = 0
                _log.warning(
                    "model %s: somebody writes over its file, and had to wait until it was copied; "
                    "rename a new file over it instead", name,
                )  # fmt: skip
            gc.collect()
            end = time.monotonic() + _MOST_WAIT  # requests under way are answered
            while any(lease.is_needed for lease in wanted) and time.monotonic() < end:
                time.sleep(0.01)
            self._settle(wanted)

    def _settle(self, wanted: Sequence[Lease] = ()) -> None:
        """Give back the leases of files that are no longer mapped, and those that are wanted."""
        for lease in list(self._leases or ()):
            if lease in wanted or (lease.inode not in self._inodes.values() and not lease.is_needed):
                lease.give_back()
                self._leases.remove(lease)  # type: ignore[union-attr]


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid, found.st_gid


def _opened_copy(name: str, path: Path) -> Served:
    with copied(path) as copy:
        try:
            return replace(_opened(name, copy), written=path.stat().st_mtime)
        except ModelFileError as error:
            raise ModelFileError(str(error).replace(str(copy), str(path))) from None


def _opened(name: str, path: Path) -> Served:
    """Open a model, check every byte of it, and answer a first question in every way."""
    start = time.perf_counter()
    model = load(path)
    written = path.stat().st_mtime
    model.threads = 1  # the workers share the cores
    model.prepare_answers()
    quick = QuickAnswers.of(model)
    if quick is not None:
        quick.recommend(dict.fromkeys(model.items_[:1]), 1, (), 1)
    model.answer(history=model.items_[:1], k=1, explain=int(model.explains))
    model.catalogue.search("a", 1)
    _log.info("model %s: opened %s in %.2f s: %r", name, path, time.perf_counter() - start, model)
    return Served(name, model, model._seal[:16], time.time(), quick, written)
