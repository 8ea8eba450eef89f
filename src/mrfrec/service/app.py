"""The application: models, API and page, wrapped in middleware."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
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
from mrfrec.checks import shortened
from mrfrec.errors import MrfrecError
from mrfrec.io.atomic import file_path
from mrfrec.service.access_control import AccessControl
from mrfrec.service.api import create_router
from mrfrec.service.metrics import CONTENT_TYPE, Metrics, route_of
from mrfrec.service.middleware import ProcessLoad, RequestLimits, RequestLog, info_of
from mrfrec.service.page import create_pages, error_page
from mrfrec.service.problems import ProblemError, busy
from mrfrec.service.queue import WorkQueue
from mrfrec.service.schemas import Problem, Status
from mrfrec.service.served import ServedModels
from mrfrec.service.settings import ServiceSettings

_MOST_LOOKUPS = 16  # pages, and lookups of the API, that wait or are answered
_MOST_SCRAPES = 4  # of the metrics, which wait or are under way
_TYPES = (
    "constrained-int",
    "constrained-str",
    "str",
    "bool",
    "float",
    "Used",
    "Condition",
)  # in paths of errors

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
        The model that answers where a request names none; the first by default.
    split
        Shares of visitors by model, such as {"a": 0.9, "b": 0.1}, for requests with a user or a visitor.
    salt
        Anything, such as the name of an experiment: with another salt, the split makes other groups.
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
        # When first used, anyio loads its back end and FastAPI makes its routes. That takes a tenth of a
        # second, for which no request should wait.
        await anyio.sleep(0)
        for route in app.routes:
            route.matches({"type": "http", "method": "GET", "path": "/v1/", "root_path": "", "headers": []})
        yield
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    app = FastAPI(
        title="mrfrec", version=__version__, summary="Recommendations from a Gaussian Markov random field",
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None, lifespan=lifespan,
        redirect_slashes=False,  # a redirect would lead to whatever Host a request names
    )  # fmt: skip
    app.state.models = served
    app.state.access = access
    app.state.load = load
    app.state.on_start = []  # called when a server starts the application

    def error_response(request: Request, problem: ProblemError) -> Response:
        is_page = route_of(info_of(request).path) in ("page", "/static")
        return error_page(request, served, problem) if is_page else problem.response()

    # The last one added is the first that a request passes.
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
    app.include_router(create_pages(served, lookups))

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
        return error_response(request, _problem_of(request, error))

    for kind in (ProblemError, MrfrecError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer_error)
    describe = app.openapi
    app.openapi = lambda: _with_keys_and_problems(describe())  # type: ignore[method-assign]
    return app


def paths_of(models: "str | PathLike[str] | Mapping[str, str | PathLike[str]]") -> dict[str, Path]:
    """Return the files of models by name; a single model gets the name of its file."""
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
            # A service without keys needs none: {}.
            ways = ("bearer", "header") if path.endswith("/reload") else ("bearer", "header", "basic")
            operation["security"] = [{}, *({way: []} for way in ways)] if path.startswith("/v1/") else []
            for status, response in operation["responses"].items():
                content = response.get("content", {})
                if status >= "400" and "application/json" in content:
                    content["application/problem+json"] = content.pop("application/json")
    return description


def reload(app: FastAPI, every: bool = True) -> None:
    """Open all models of an application anew, or those whose files were replaced, and read its keys again.

    The old ones stay where that fails.
    """
    app.state.models.follow(every)
    app.state.access.reload_keys()


def _problem_of(request: Request, error: Exception) -> ProblemError:
    """Return the problem to answer with, for an error of this service, of the model, or of FastAPI."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return ProblemError(422, _what_is_wrong(error.errors()))
    if not isinstance(error, HTTPException):  # the model refuses a value
        return ProblemError(422, str(error))
    said = {404: "there is nothing at this address.", 405: f"{request.method} is not allowed here."}
    detail = said.get(error.status_code, str(error.detail))
    return ProblemError(error.status_code, detail, error.headers)


def _what_is_wrong(errors: Sequence[Mapping[str, Any]]) -> str:
    """Describe the error of a request that goes into most detail.

    A value that may be of several types has an error for each, with the name of the type in its path.
    """
    deepest = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    place = deepest["loc"]
    unknown = deepest["type"] == "extra_forbidden"
    words = {
        "extra_forbidden": "no field of this name is known",
        "missing": "must be given",
        "too_short": "must have at least one entry",
    }
    rule = words.get(deepest["type"], deepest["msg"].rstrip("."))
    if place[1:] == ("where",) and deepest["type"] == "dict_type":
        rule = 'must be an object such as {"price": {"most": 5}}, not SQL'
    if len(place) == 1:
        return "the body must be a JSON object."
    if place[1] in ("where", "boost") and len(place) > 3 and place[-1] in _TYPES:
        place = place[:-1]
        if deepest["type"].endswith("_type"):
            rule = _rule_of_values(place)
    elif place[-1] == "constrained-int" and not unknown:
        place = place[:-1]
        rule = "must be an id, an integer of 64 bits or a string"
        if any(error["loc"] == (*place, "Used") for error in errors):
            rule += ', or {"item": …, "value": …}'
    types = {part for part in place[3:-1] if part in _TYPES or str(part).startswith("list[")}
    path = [
        *place[1:3],
        *(part for part in place[3:-1] if part not in types),
        *place[max(len(place) - 1, 3) :],
    ]
    value = None if unknown else deepest.get("input")
    # A number of thousands of digits is not shown.
    is_shown = isinstance(value, str) or (isinstance(value, int | float) and abs(value) < 2**64)
    got = f"; got {shortened(json.dumps(value, ensure_ascii=False), 40)}" if is_shown else ""
    return f"{'.'.join(map(str, path))}: {rule}{got}."


def _rule_of_values(place: Sequence[Any]) -> str:
    """Return what a value of a filter or of a boost must be, which may be of several types."""
    if place[1] == "boost":
        return 'must be the name of a column, or a list such as [{"item": "tea", "value": 0.2}]'
    if place[-1] in ("least", "most", "above", "below"):
        return "must be a number, a date or a time"
    rule = "must be a text, a number, true or false"
    return f'{rule}, a list of these, or a condition such as {{"least": 10}}' if len(place) == 3 else rule


async def _follow(models: ServedModels, seconds: float) -> None:
    """Look again and again, in another thread, whether model files were replaced."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(models.follow)
        except Exception:  # whatever happens to a file, the service goes on
            _log.exception("models could not be followed")
