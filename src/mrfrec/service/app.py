"""The application: models, API and page, wrapped in middleware."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mrfrec import __version__
from mrfrec.errors import MrfrecError
from mrfrec.io.atomic import file_path
from mrfrec.service.access_control import AccessControl
from mrfrec.service.api import create_router
from mrfrec.service.middleware import ProcessLoad, RequestLimits, RequestLog, info_of
from mrfrec.service.monitoring import CONTENT_TYPE, Metrics, route_of
from mrfrec.service.page import create_pages, error_page
from mrfrec.service.problems import ProblemError, busy, problem_of
from mrfrec.service.queue import WorkQueue
from mrfrec.service.schemas import Problem, Status
from mrfrec.service.served import ServedModels
from mrfrec.service.settings import ServiceSettings

_MOST_LOOKUPS = 16  # pages and lookups of the API that wait or are answered
_MOST_SCRAPES = 4  # requests for metrics that wait or are answered
_log = logging.getLogger("mrfrec.service")


def create_app(
    models: "str | PathLike[str] | Mapping[str, str | PathLike[str]]",
    *,
    default: str | None = None,
    split: Mapping[str, float] | None = None,
    salt: str = "",
    settings: ServiceSettings | None = None,
) -> FastAPI:
    """Create an ASGI application that serves models.

    Parameters
    ----------
    models
        A model file, or several by name.
    default
        The model that answers requests without the name of a model; by default the first one.
    split
        Shares of visitors by model, such as {"a": 0.9, "b": 0.1}. They apply to requests with a user or a
        visitor.
    salt
        Any text, such as the name of an experiment. Another salt makes other groups of visitors.
    settings
        Limits, keys and the other settings.
    """
    settings = settings or ServiceSettings()
    served = ServedModels(paths_of(models), default, split, salt=salt, copies=settings.copies)
    access = AccessControl(settings)
    metrics = Metrics(served)
    load = ProcessLoad()
    served.on_failure = metrics.count_failure
    watching: list[asyncio.Task[None]] = []

    def watch() -> None:
        if settings.poll and not watching:
            watching.append(asyncio.create_task(_follow(served, settings.poll)))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch()
        for start in app.state.on_start:
            start()
        # The first use of anyio loads its back end, and the first request makes FastAPI's routes. Both take a
        # tenth of a second, which no request should wait for.
        await anyio.sleep(0)
        for route in app.routes:
            route.matches({"type": "http", "method": "GET", "path": "/v1/", "root_path": "", "headers": []})
        yield
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    # FastAPI must not redirect: it would redirect to any host that a request names.
    app = FastAPI(
        title="mrfrec", version=__version__, summary="Recommendations from a Gaussian Markov random field",
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None, lifespan=lifespan,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.models = served
    app.state.settings = settings
    app.state.access = access
    app.state.load = load
    # Functions that are called when a server starts the application.
    app.state.on_start = []

    def error_response(request: Request, problem: ProblemError) -> Response:
        is_page = route_of(info_of(request).path) in ("page", "/static")
        return error_page(request, served, settings, problem) if is_page else problem.response()

    # A request passes the middleware that is added last first.
    app.add_middleware(
        RequestLimits, settings=settings, metrics=metrics, load=load, check_access=access.check
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-Id"],
            expose_headers=["Mrfrec-Model", "Retry-After", "X-Request-Id"],
        )  # fmt: skip
    app.add_middleware(
        RequestLog, settings=settings, metrics=metrics, load=load, begin=watch, error_response=error_response
    )
    lookups = WorkQueue(_MOST_LOOKUPS, settings.seconds)
    scrapes = WorkQueue(_MOST_SCRAPES, settings.seconds)
    app.include_router(create_router(served, settings, metrics, lookups))
    app.include_router(create_pages(served, settings, lookups))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_model=Status, summary="Whether the process answers")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.head("/ready", include_in_schema=False)
    @app.get(
        "/ready", response_model=Status, summary="Whether it takes more requests",
        responses={503: {"model": Problem, "description": "Too many requests, or the service stops."}},
    )  # fmt: skip
    async def ready() -> Response:
        if load.is_closing or load.requests >= settings.queue:
            raise busy("too many requests at once.")
        return JSONResponse({"status": "ready", "stale": dict(served.stale)})

    @app.get("/metrics", summary="Metrics for Prometheus", include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(await scrapes.run_in_thread(metrics.render), media_type=CONTENT_TYPE)

    async def answer_error(request: Request, error: Exception) -> Response:
        return error_response(request, problem_of(request, error))

    for kind in (ProblemError, MrfrecError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer_error)
    describe = app.openapi
    app.openapi = lambda: _with_keys_and_problems(describe())  # type: ignore[method-assign]
    return app


def paths_of(models: "str | PathLike[str] | Mapping[str, str | PathLike[str]]") -> dict[str, Path]:
    """Return the files of models by name. A single model has the name of its file."""
    named = models if isinstance(models, Mapping) else {file_path(models).stem: models}
    return {name: file_path(path) for name, path in named.items()}


def _with_keys_and_problems(description: dict[str, Any]) -> dict[str, Any]:
    """Add to an OpenAPI description how keys are sent, and the media type of errors."""
    description["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "basic": {"type": "http", "scheme": "basic", "description": "The key as the password, to read only."},
    }  # fmt: skip
    for path, methods in description["paths"].items():
        for operation in methods.values():
            # {} stands for a service without keys.
            ways = ("bearer", "header") if path.endswith("/reload") else ("bearer", "header", "basic")
            operation["security"] = [{}, *({way: []} for way in ways)] if path.startswith("/v1/") else []
            for status, response in operation["responses"].items():
                content = response.get("content", {})
                if status >= "400" and "application/json" in content:
                    content["application/problem+json"] = content.pop("application/json")
    return description


def reload(app: FastAPI, every: bool = True) -> None:
    """Open all models of an application anew, or the models whose files have changed; read its keys again.

    If a file cannot be read, the old model or the old keys stay.
    """
    app.state.models.follow(every)
    app.state.access.reload_keys()


async def _follow(models: ServedModels, seconds: float) -> None:
    """Check again and again, in another thread, whether model files were replaced."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(models.follow)
        except Exception:
            # Whatever happens to a file, the service goes on.
            _log.exception("models could not be followed")
