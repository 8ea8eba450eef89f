"""Metrics for Prometheus, counted in cells that all worker processes share.

Each worker has a row of numbers in a mapped file and writes only to its own, so that nothing is locked; any
of them answers with the sums. The successor of a worker that died goes on with its row. The workers also tell
each other by these cells which models to reload, and share those of `Rates`, which follow the rows.
"""

import math
import mmap
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from mrfrec.service.rates import CELLS
from mrfrec.service.shelf import Shelf

CONTENT_TYPE = CONTENT_TYPE_LATEST
ROUTES = (
    "/v1/recommend", "/v1/recommend/batch", "/v1/similar", "/v1/explain", "/v1/search", "/v1/item",
    "/v1/models", "/v1/models/{name}", "/v1/models/{name}/reload", "/v1/openapi.json",
    "/health", "/ready", "/metrics", "/static", "page", "other",
)  # fmt: skip
_PLACES = {route: place for place, route in enumerate(ROUTES)}
_STATUSES = (200, 204, 303, 304, 307, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 499, 500, 503)
_STATUS_PLACES = {status: place for place, status in enumerate(_STATUSES)}
_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds

_OF_ROUTE = len(_STATUSES) + 1 + len(_BOUNDS) + 2  # by status and other; by time and longer; the sum
_BY_TIME = len(_STATUSES) + 1
_SUM = _OF_ROUTE - 1
_QUEUE, _CONNECTIONS, _FIRST_ROUTE = range(3)  # requests under way; open connections
_FIRST_MODEL = _FIRST_ROUTE + len(ROUTES) * _OF_ROUTE
_OF_MODEL = 7
_BY_WEIGHTS, _BY_POPULARITY, _ASKED, _UNKNOWN, _FAILED, _RELOADED, _HEARD = range(_OF_MODEL)


class Row(NamedTuple):
    """The row of a worker in the file that all workers share."""

    file: Path
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


def size_of_rows(models: int, workers: int) -> int:
    """Return the bytes of the file that workers share."""
    return 8 * (workers * _length(models) + CELLS)


def _length(models: int) -> int:
    return _FIRST_MODEL + models * _OF_MODEL


class Metrics(Collector):
    """The counts of a service."""

    def __init__(self, shelf: Shelf, row: Row | None = None) -> None:
        self._shelf = shelf
        self._first_of = {name: _FIRST_MODEL + place * _OF_MODEL for place, name in enumerate(shelf.names)}
        workers, length = 1 if row is None else row.workers, _length(len(self._first_of))
        size = size_of_rows(len(self._first_of), workers)
        if row is None:
            space = mmap.mmap(-1, size)
        else:
            with row.file.open("r+b") as file:
                space = mmap.mmap(file.fileno(), size)
        cells = memoryview(space).cast("d")
        self._rows = [cells[worker * length :][:length] for worker in range(workers)]
        self._own = self._rows[0 if row is None else row.worker]
        self.of_rates = cells[workers * length :]
        self._others = [row for row in self._rows if row is not self._own]
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

    def count_request(self, route: str, status: int, seconds: float) -> None:
        own, first = self._own, _FIRST_ROUTE + _PLACES[route] * _OF_ROUTE
        own[first + _STATUS_PLACES.get(status, len(_STATUSES))] += 1
        own[first + _BY_TIME + bisect_left(_BOUNDS, seconds)] += 1
        own[first + _SUM] += seconds

    def count_answer(self, model: str, asked: int, unknown: int, sources: Iterable[str]) -> None:
        """Count the ids of a request, those that the model does not know, and the recommended items."""
        own, first = self._own, self._first_of[model]
        own[first + _ASKED] += asked
        own[first + _UNKNOWN] += unknown
        for source in sources:
            own[first + (_BY_WEIGHTS if source == "model" else _BY_POPULARITY)] += 1

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
            "mrfrec_requests", "Requests by route and status.", labels=("route", "status")
        )
        seconds = HistogramMetricFamily(
            "mrfrec_request_seconds", "Time from the arrival of a request to its answer.", labels=("route",)
        )
        for place, route in enumerate(ROUTES):
            own = sums[_FIRST_ROUTE + place * _OF_ROUTE :][:_OF_ROUTE]
            for status, count in zip((*_STATUSES, "other"), own, strict=False):
                if count:
                    requests.add_metric((route, str(status)), count)
            if any(own):
                total, buckets = 0.0, []
                for bound, count in zip((*_BOUNDS, "+Inf"), own[_BY_TIME:], strict=False):
                    total += count
                    buckets.append((str(bound), total))
                seconds.add_metric((route,), buckets, own[_SUM])
        yield requests
        yield seconds
        yield GaugeMetricFamily("mrfrec_queue", "Requests that wait or are answered.", value=sums[_QUEUE])
        yield GaugeMetricFamily("mrfrec_connections", "Open connections.", value=sums[_CONNECTIONS])
        yield GaugeMetricFamily("mrfrec_workers", "Worker processes.", value=len(self._rows))
        yield from self._of_models(sums)

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
