"""Metrics for Prometheus, of one process or of all that share a folder.

With PROMETHEUS_MULTIPROC_DIR, which `mrfrec serve` sets for its workers, prometheus_client keeps the numbers
in files of that folder, and each process answers with the sums, those of dead processes included. The files
are mapped into memory: a write for which the file system has no room would end the process (SIGBUS). So each
process first reserves the room of all that it can ever count.
"""

import fcntl
import logging
import os
import platform
import re
import shutil
import tempfile
import time
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    values,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from mrfrec import __version__
from mrfrec.service.answers import Answered
from mrfrec.service.served import ServedModels

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "mrfrec-workers-"
_MEMORY = "/dev/shm"  # a folder of files in memory, on Linux
ROUTES = (
    "/v1/recommend", "/v1/recommend/batch", "/v1/similar", "/v1/explain", "/v1/search", "/v1/item",
    "/v1/models", "/v1/models/{name}", "/v1/models/{name}/reload", "/v1/openapi.json",
    "/health", "/ready", "/metrics", "/static", "page", "other",
)  # fmt: skip
_API = ("v1", "health", "ready", "metrics")
_STATUSES = 64  # that a request may have: those of HTTP, 0 and 499
_NUMBER = 256  # bytes of a number in a file, with its labels, at most
_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds

_log = logging.getLogger("mrfrec.service")


@contextmanager
def shared_folder(workers: int, models: int) -> Iterator[None]:
    """Give the processes that are started meanwhile a folder in which they count together.

    The folder is in memory if the system has such a place, which can be written even where the file system
    is read-only, else where temporary files are. Where there is no room for it, each process counts alone.
    """
    with ExitStack() as stack:
        for place in (_MEMORY, None):
            with suppress(OSError), ExitStack() as attempt:
                _remove_abandoned(place or tempfile.gettempdir())
                folder = attempt.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place))
                attempt.enter_context(_locked(folder))
                with tempfile.TemporaryFile(dir=folder) as all_files:
                    _take(all_files.fileno(), workers * sum(_room(models).values()))
                os.environ[_FOLDER] = folder
                attempt.callback(os.environ.pop, _FOLDER)
                stack.enter_context(attempt.pop_all())
                _log.info("metrics of all workers are in %s", folder)
                break
        else:
            _log.warning("no folder for temporary files has room: /metrics tells of one worker each")
        yield


def _room(models: int) -> dict[str, int]:
    """Return the bytes that a process needs for all it can count, by kind of file."""
    requests = len(ROUTES) * (_STATUSES + 2 * models)  # a model answers with 200, or its client leaves
    return {
        "counter": _NUMBER * (requests + 5 * models),
        "histogram": _NUMBER * len(ROUTES) * (len(_BOUNDS) + 2),
        "gauge_livesum": _NUMBER * 2,
    }


def _reserve(folder: str, models: int) -> None:
    """Make the files of this process, with room for all that it can count; leave none after an OSError."""
    # A file that exists is that of a dead process with the same id: counting goes on from its numbers.
    files = {Path(folder, f"{kind}_{os.getpid()}.db"): size for kind, size in _room(models).items()}
    with ExitStack() as made:
        for file, size in files.items():
            new = file.with_suffix(".new")
            made.callback(new.unlink, missing_ok=True)
            with new.open("wb") as opened:
                _take(opened.fileno(), size)
        for file in files:
            if not file.exists():
                file.with_suffix(".new").rename(file)


def _take(file: int, size: int) -> None:
    """Fill a new file with zeros, so that there is room for it; an OSError if there is none."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(file, 0, size)
    else:
        os.write(file, bytes(size))


def _remove_abandoned(place: str) -> None:
    """Remove the folders of services that were killed."""
    for folder in Path(place).glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(folder):  # else it is in use, or another user's
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: "str | Path") -> Iterator[None]:
    """Lock a folder until the block or the process ends; raise an OSError if another process has done so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def route_of(path: str) -> str:
    """Return the name under which a path is counted: one of `ROUTES`, also for unknown paths."""
    if path in ROUTES:
        return path
    if path.startswith("/v1/models/"):
        return "/v1/models/{name}/reload" if path.endswith("/reload") else "/v1/models/{name}"
    if path.startswith("/static/"):
        return "/static"
    is_page = path.startswith("/") and path.split("/")[1] not in _API  # the path of OPTIONS may be *
    return "page" if is_page else "other"


class Metrics(Collector):
    """The metrics of a service."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._folder = os.environ.get(_FOLDER)
        if self._folder is not None:
            try:
                _reserve(self._folder, len(list(models)))
            except OSError as error:
                _log.warning(
                    "no room for metrics in %s (%s): /metrics of worker %d tells of this worker alone",
                    self._folder, error.strerror, os.getpid(),
                )  # fmt: skip
                self._folder = None
                values.ValueClass = values.MutexValue  # chosen by the environment before
        self._registry = CollectorRegistry()
        self._registry.register(self)  # first: it removes the gauges of dead processes
        if self._folder is not None:
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        own: Any = {"registry": self._registry if self._folder is None else None}
        live: Any = {**own, "multiprocess_mode": "livesum"}
        self._requests = Counter(
            "mrfrec_requests", "Requests by route, status and the model that answered.",
            ("route", "status", "model"), **own,
        )  # fmt: skip
        self._seconds = Histogram(
            "mrfrec_request_seconds", "Time from the arrival of a request to its answer.", ("route",),
            buckets=_BOUNDS, **own,
        )  # fmt: skip
        self.set_queue = Gauge("mrfrec_queue", "Requests that wait or are answered.", **live).set
        Gauge("mrfrec_workers", "Living worker processes.", **live).set(1)
        self._items = Counter(
            "mrfrec_recommended_items", "Recommended items, by weights or by popularity.",
            ("model", "source"), **own,
        )  # fmt: skip
        self._history_items, self._unknown, self._failed = (
            Counter(f"mrfrec_{name}", text, ("model",), **own)
            for name, text in (
                ("history_items", "Items of the histories asked for."),
                ("unknown_items", "Ids of histories that the model does not know."),
                ("reload_failures", "Model files that could not be opened."),
            )
        )
        for served in models:  # which shows them even while they are zero
            self.count_answers(served.name, (), 0)
            self._failed.labels(served.name)
        # To find the counter of some labels takes longer than to count: the last ones are remembered.
        self._count = lru_cache(1024)(self._requests.labels)
        self._time = lru_cache(1024)(self._seconds.labels)

    def count_request(self, route: str, status: int, seconds: float, model: str = "") -> None:
        """Count a request, and the model that answered it if any did."""
        self._count(route, status, model).inc()
        self._time(route).observe(seconds)

    def count_answers(self, model: str, answers: Sequence[Answered], history_items: int) -> None:
        """Count answers, and the items of all their histories."""
        sources = Counts(row["source"] for answer in answers for row in answer.items)
        self._history_items.labels(model).inc(history_items)
        self._unknown.labels(model).inc(sum(len(answer.unknown) for answer in answers))
        for source in ("model", "popular"):
            self._items.labels(model, source).inc(sources[source])

    def count_failure(self, model: str) -> None:
        """Count a model file that could not be opened."""
        self._failed.labels(model).inc()

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        # Without the times at which each number was first counted, which nobody looks at.
        return re.sub(rb"(?m)^(# \w+ )?\w+_created\b.*\n", b"", generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of processes, versions and models."""
        families: dict[str, Metric] = {}
        for pid in self._living():
            for one in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                for sample in one.samples:
                    family.add_sample(sample.name, {"pid": str(pid)}, sample.value)
        yield from families.values()
        build = GaugeMetricFamily(
            "mrfrec_build_info", "Version of mrfrec and of Python.", labels=("version", "python")
        )
        build.add_metric((__version__, platform.python_version()), 1)
        info = GaugeMetricFamily(
            "mrfrec_model_info", "Models that answer, by fingerprint.", labels=("model", "fingerprint")
        )
        age = GaugeMetricFamily(
            "mrfrec_model_age_seconds", "Time since the model file was written.", labels=("model",)
        )
        for served in self._models:
            info.add_metric((served.name, served.fingerprint), 1)
            age.add_metric((served.name,), time.time() - served.written)
        yield from (build, info, age)

    def _living(self) -> list[int]:
        """Return the living processes of the folder; the gauges of dead ones are removed."""
        if self._folder is None:
            return [os.getpid()]
        found = {int(file.stem.rpartition("_")[2]) for file in Path(self._folder).glob("gauge_livesum_*.db")}
        dead = {pid for pid in found if not _is_alive(pid)}
        for pid in dead:
            mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]
        return sorted(found - dead)


def _is_alive(pid: int) -> bool:
    """Return whether a process of this user exists."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
