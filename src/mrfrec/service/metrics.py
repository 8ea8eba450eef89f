"""Metrics for Prometheus, counted in cells that all worker processes share.

Each worker has a row of numbers in shared memory and writes only to its own, so that nothing is locked; any
of them answers with the sums. The successor of a worker that died goes on with its row. The workers also tell
each other by these cells which models to reload, and share those of `Rates`, which follow the rows.
"""

import math
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mrfrec import __version__
from mrfrec.errors import DataError
from mrfrec.service.rates import CELLS
from mrfrec.service.shelf import Shelf

CONTENT_TYPE = CONTENT_TYPE_LATEST
ROUTES = (
    "/v1/recommend", "/v1/recommend/batch", "/v1/similar", "/v1/explain", "/v1/search", "/v1/item",
    "/v1/models", "/v1/models/{name}", "/v1/models/{name}/reload", "/v1/openapi.json",
    "/health", "/ready", "/metrics", "/static", "page", "other",
)  # fmt: skip
_PLACES = {route: place for place, route in enumerate(ROUTES)}
_STATUSES = (
    200,
    204,
    303,
    304,
    307,
    400,
    401,
    403,
    404,
    405,
    408,
    413,
    414,
    415,
    421,
    422,
    429,
    499,
    500,
    503,
)
_STATUS_PLACES = {status: place for place, status in enumerate(_STATUSES)}
_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds

_OF_ROUTE = len(_BOUNDS) + 2  # requests by time, and longer; the sum of their times
_OF_STATUSES = len(_STATUSES) + 1  # requests of a route by status, and any other
_QUEUE, _CONNECTIONS, _PID, _FIRST_ROUTE = range(4)  # requests under way; open connections; the process
_NO_MODEL = _FIRST_ROUTE + len(ROUTES) * _OF_ROUTE  # requests, by route and status, that no model answered
_FIRST_MODEL = _NO_MODEL + len(ROUTES) * _OF_STATUSES
_BY_WEIGHTS, _BY_POPULARITY, _ASKED, _UNKNOWN, _FAILED, _RELOADED, _HEARD, _REQUESTS = range(8)
_OF_MODEL = _REQUESTS + len(ROUTES) * _OF_STATUSES


class Counts(NamedTuple):
    """What is counted of an answer."""

    asked: int  # ids of the histories
    unknown: int  # ids that the model does not know
    by_weights: int  # recommended items
    by_popularity: int


class Row(NamedTuple):
    """The row of a worker in the cells that all workers share."""

    cells: Any
    worker: int
    workers: int


def route_of(path: str) -> str:
    """Return the name under which a path is counted: one of `ROUTES`, whatever is asked for."""
    if path in _PLACES:
        return path
    if path.startswith("/v1/models/"):
        return "/v1/models/{name}/reload" if path.endswith("/reload") else "/v1/models/{name}"
    if path.startswith("/static/"):
        return "/static"
    return "other" if path.startswith("/v1/") else "page"


def shared_rows(models: int, workers: int) -> list[Row]:
    """Return the rows of workers that this process will start."""
    try:
        cells = get_context("spawn").RawArray("d", workers * _length(models) + CELLS)
    except OSError as error:
        raise DataError(
            f"workers count in memory that they share, which needs /dev/shm or a folder for temporary files "
            f"that can be written to: {error}."
        ) from error
    return [Row(cells, worker, workers) for worker in range(workers)]


def _length(models: int) -> int:
    return _FIRST_MODEL + models * _OF_MODEL


def others_serve(row: Row) -> bool:
    """Return whether another worker of these rows is alive and has opened its models."""
    length = (len(row.cells) - CELLS) // row.workers
    others = (int(row.cells[each * length + _PID]) for each in range(row.workers) if each != row.worker)
    return any(pid and _is_alive(pid) for pid in others)


class Metrics(Collector):
    """The counts of a service."""

    def __init__(self, shelf: Shelf, row: Row | None = None) -> None:
        self._shelf = shelf
        self._first_of = {name: _FIRST_MODEL + place * _OF_MODEL for place, name in enumerate(shelf.names)}
        row, length = row or shared_rows(len(self._first_of), 1)[0], _length(len(self._first_of))
        cells = memoryview(row.cells).cast("B").cast("d")
        self._rows = [cells[worker * length :][:length] for worker in range(row.workers)]
        self._own = self._rows[row.worker]
        self.of_rates = cells[row.workers * length :]
        self._others = [row for row in self._rows if row is not self._own]
        self._own[_PID] = os.getpid()
        self._own[_QUEUE] = self._own[_CONNECTIONS] = 0.0  # a predecessor's have ended with it
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # ── counting ──────────────────────────────────────────────────────────────────────────────────

    def set_queue(self, length: int) -> None:
        self._own[_QUEUE] = length

    def set_connections(self, count: int) -> None:
        self._own[_CONNECTIONS] = count

    def is_ahead(self, more: int) -> bool:
        """Return whether another worker has clearly fewer connections; `more` of this one's are uncounted."""
        least = min((row[_CONNECTIONS] for row in self._others), default=math.inf)
        return self._own[_CONNECTIONS] + more > least + least // 8

    def count_request(self, route: str, status: int, seconds: float, model: str = "") -> None:
        """Count a request, which `model` answered if any did."""
        own, place = self._own, _PLACES[route]
        by_status = self._first_of[model] + _REQUESTS if model else _NO_MODEL
        own[by_status + place * _OF_STATUSES + _STATUS_PLACES.get(status, len(_STATUSES))] += 1
        first = _FIRST_ROUTE + place * _OF_ROUTE
        own[first + bisect_left(_BOUNDS, seconds)] += 1
        own[first + _OF_ROUTE - 1] += seconds

    def count_answer(self, model: str, counts: Counts) -> None:
        own, first = self._own, self._first_of[model]
        own[first + _ASKED] += counts.asked
        own[first + _UNKNOWN] += counts.unknown
        own[first + _BY_WEIGHTS] += counts.by_weights
        own[first + _BY_POPULARITY] += counts.by_popularity

    def count_failure(self, model: str) -> None:
        """Count a model file that could not be opened."""
        self._own[self._first_of[model] + _FAILED] += 1

    def tell_reload(self, model: str) -> None:
        """Tell the other workers to reload a model."""
        self._own[self._first_of[model] + _RELOADED] += 1

    def told_reloads(self) -> list[str]:
        """Return the models that other workers have told this one to reload since it was last asked."""
        told = []
        for name, first in self._first_of.items():
            count = sum(row[first + _RELOADED] for row in self._rows if row is not self._own)
            if count != self._own[first + _HEARD]:
                self._own[first + _HEARD] = count
                told.append(name)
        return told

    # ── showing ───────────────────────────────────────────────────────────────────────────────────

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, summed over the workers."""
        sums = [sum(cells) for cells in zip(*self._rows, strict=True)]
        requests = CounterMetricFamily(
            "mrfrec_requests", "Requests by route, status and the model that answered.",
            labels=("route", "status", "model"),
        )  # fmt: skip
        seconds = HistogramMetricFamily(
            "mrfrec_request_seconds", "Time from the arrival of a request to its answer.", labels=("route",)
        )
        for place, route in enumerate(ROUTES):
            for model, first in [("", _NO_MODEL), *((m, at + _REQUESTS) for m, at in self._first_of.items())]:
                counts = sums[first + place * _OF_STATUSES :]
                for status, count in zip((*_STATUSES, "other"), counts, strict=False):
                    if count:
                        requests.add_metric((route, str(status), model), count)
            own = sums[_FIRST_ROUTE + place * _OF_ROUTE :][:_OF_ROUTE]
            if any(own):
                total, buckets = 0.0, []
                for bound, count in zip((*_BOUNDS, "+Inf"), own, strict=False):
                    total += count
                    buckets.append((str(bound), total))
                seconds.add_metric((route,), buckets, own[-1])
        yield requests
        yield seconds
        yield GaugeMetricFamily("mrfrec_queue", "Requests that wait or are answered.", value=sums[_QUEUE])
        yield GaugeMetricFamily("mrfrec_connections", "Open connections.", value=sums[_CONNECTIONS])
        yield from self._of_processes()
        yield from self._of_models(sums)

    def _of_processes(self) -> Iterator[Any]:
        """Yield the number of living workers, and what each of them takes of the machine."""
        pids = [pid for pid in (int(row[_PID]) for row in self._rows) if pid and _is_alive(pid)]
        yield GaugeMetricFamily("mrfrec_workers", "Living worker processes.", value=len(pids))
        families: dict[str, Metric] = {}
        for pid in map(str, pids):
            for one in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                for sample in one.samples:
                    family.add_sample(sample.name, {"pid": pid}, sample.value)
        yield from families.values()
        build = GaugeMetricFamily(
            "mrfrec_build_info", "Version of mrfrec and of Python.", labels=("version", "python")
        )
        build.add_metric((__version__, platform.python_version()), 1)
        yield build

    def _of_models(self, sums: list[float]) -> Iterator[Any]:
        now = time.time()
        info = GaugeMetricFamily(
            "mrfrec_model_info", "Models that answer, by fingerprint.", labels=("model", "fingerprint")
        )
        age = GaugeMetricFamily(
            "mrfrec_model_age_seconds", "Time since the model file was written.", labels=("model",)
        )
        items = CounterMetricFamily(
            "mrfrec_recommended_items", "Recommended items, by weights or by popularity.",
            labels=("model", "source"),
        )  # fmt: skip
        asked, unknown, failed = (
            CounterMetricFamily(f"mrfrec_{name}", text, labels=("model",))
            for name, text in (
                ("history_items", "Items of the histories asked for."),
                ("unknown_items", "Ids of requests that the model does not know."),
                ("reload_failures", "Model files that could not be opened."),
            )
        )
        for served in self._shelf:
            info.add_metric((served.name, served.fingerprint), 1)
            age.add_metric((served.name,), now - served.written)
        for name, first in self._first_of.items():  # also those that this worker could not open
            own = sums[first:]
            items.add_metric((name, "model"), own[_BY_WEIGHTS])
            items.add_metric((name, "popular"), own[_BY_POPULARITY])
            asked.add_metric((name,), own[_ASKED])
            unknown.add_metric((name,), own[_UNKNOWN])
            failed.add_metric((name,), own[_FAILED])
        yield from (info, age, items, asked, unknown, failed)


def _is_alive(pid: int) -> bool:
    """Return whether a process of this user exists."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
