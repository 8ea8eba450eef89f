"""Metrics for Prometheus, of this process."""

import logging
import platform
import re
import time
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from functools import lru_cache

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mrfrec import __version__
from mrfrec.service.answers import Answered
from mrfrec.service.served import ServedModels

CONTENT_TYPE = CONTENT_TYPE_LATEST
ROUTES = (
    "/v1/recommend", "/v1/recommend/batch", "/v1/similar", "/v1/explain", "/v1/search", "/v1/item",
    "/v1/models", "/v1/models/{name}", "/v1/models/{name}/reload", "/v1/openapi.json",
    "/health", "/ready", "/metrics", "/static", "page", "other",
)  # fmt: skip
_API = ("v1", "health", "ready", "metrics")
_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds


def route_of(path: str) -> str:
    """Return the name under which a path is counted: one of `ROUTES`, even for an unknown path."""
    if path in ROUTES:
        return path
    if path.startswith("/v1/models/"):
        return "/v1/models/{name}/reload" if path.endswith("/reload") else "/v1/models/{name}"
    if path.startswith("/static/"):
        return "/static"
    # The path of OPTIONS may be *.
    is_page = path.startswith("/") and path.split("/")[1] not in _API
    return "page" if is_page else "other"


class Metrics(Collector):
    """The metrics of a service."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._registry = registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "mrfrec_requests", "Requests by route, status and the model that answered.",
            ("route", "status", "model"), registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "mrfrec_request_seconds", "Time from the arrival of a request to its answer.", ("route",),
            buckets=_BOUNDS, registry=registry,
        )  # fmt: skip
        self.set_queue = Gauge("mrfrec_queue", "Requests that wait or are answered.", registry=registry).set
        self._items = Counter(
            "mrfrec_recommended_items", "Recommended items, by weights or by popularity.",
            ("model", "source"), registry=registry,
        )  # fmt: skip
        self._history_items, self._unknown, self._failed = (
            Counter(f"mrfrec_{name}", text, ("model",), registry=registry)
            for name, text in (
                ("history_items", "Items of the histories asked for."),
                ("unknown_items", "Ids of histories that the model does not know."),
                ("reload_failures", "Model files that could not be opened."),
            )
        )
        # A counter is shown once it is named, even while it is zero.
        for served in models:
            self.count_answers(served.name, (), 0)
            self._failed.labels(served.name)
        # Finding the counter of some labels takes longer than counting, so the last ones are remembered.
        self._count = lru_cache(1024)(self._requests.labels)
        self._time = lru_cache(1024)(self._seconds.labels)

    def count_request(self, route: str, status: int, seconds: float, model: str = "") -> None:
        """Count a request, and the model that answered it, if any."""
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
        # Nobody uses the times at which the counters were created.
        return re.sub(rb"(?m)^(# \w+ )?\w+_created\b.*\n", b"", generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of versions, models and the log."""
        build = GaugeMetricFamily(
            "mrfrec_build_info", "Version of mrfrec and of Python.", labels=("version", "python")
        )
        build.add_metric((__version__, platform.python_version()), 1)
        info = GaugeMetricFamily(
            "mrfrec_model_info", "Models that answer, by file hash.", labels=("model", "file_hash")
        )
        age = GaugeMetricFamily(
            "mrfrec_model_age_seconds", "Time since the model file was written.", labels=("model",)
        )
        stale = GaugeMetricFamily(
            "mrfrec_model_stale", "1 if what answers is not what lies on disk.", labels=("model",)
        )
        for served in self._models:
            info.add_metric((served.name, served.file_hash), 1)
            age.add_metric((served.name,), time.time() - served.written)
            stale.add_metric((served.name,), float(served.name in self._models.stale))
        # The handler of `mrfrec serve` counts the lines that it drops.
        handlers = logging.getLogger("mrfrec").handlers
        dropped = CounterMetricFamily(
            "mrfrec_log_lines_dropped", "Lines of the log that nobody read in time.",
            sum(getattr(handler, "dropped", 0) for handler in handlers),
        )  # fmt: skip
        yield from (build, info, age, stale, dropped)
