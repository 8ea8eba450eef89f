"""The pages: routes, templates, and the files that a browser loads.

The server makes the pages, for any browser. Scripts and styles are files of this service, so that a strict
Content-Security-Policy can forbid everything else.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Query
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mrfrec.service import views
from mrfrec.service.middleware import info_of
from mrfrec.service.problems import ProblemError
from mrfrec.service.queue import WorkQueue
from mrfrec.service.served import ServedModels
from mrfrec.service.settings import ServiceSettings
from mrfrec.service.views import Content, PageQuery, PageVisit

View = Callable[[PageVisit], tuple[str, Content]]

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = {one.name: one.read_bytes() for one in files("mrfrec.service").joinpath("static").iterdir()}


def create_pages(models: ServedModels, settings: ServiceSettings, queue: WorkQueue) -> APIRouter:
    """Return the routes of the pages, which take some milliseconds and so are made in another thread."""
    router = APIRouter(include_in_schema=False)

    def add(path: str, view: View) -> None:
        async def endpoint(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
            visit = _visit(request, models, settings, query)
            html = await queue.run_in_thread(lambda: _rendered(visit, *view(visit)))
            served = visit.served
            return HTMLResponse(html, 200, {"Mrfrec-Model": f"{served.name}; {served.file_hash}"})

        router.add_api_route(path, endpoint, methods=["GET", "HEAD"])

    add("/", views.start)
    add("/search", partial(views.search, "search.html", views.FOUND))
    # The suggestions of a search box are HTML: a script would round an id that is a large integer in JSON.
    add("/suggest", partial(views.search, "suggestions.html", views.SUGGESTED))
    add("/item", views.item)
    add("/history", views.history)
    add("/model", views.model)
    if settings.user_page:
        add("/user", views.user)

    @router.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(name: str) -> Response:
        if name not in _FILES:
            raise ProblemError(404, "there is no such file.")
        kind = _TYPES[name.rpartition(".")[2]]
        # The address of a file changes with its content, so browsers may keep it.
        return Response(_FILES[name], 200, {"Cache-Control": "public, max-age=31536000, immutable"}, kind)

    return router


def error_page(
    request: Request, models: ServedModels, settings: ServiceSettings, problem: ProblemError
) -> Response:
    """Return a page that says what is wrong."""
    detail = problem.detail
    content = {"status": problem.status, "detail": f"{detail[:1].upper()}{detail[1:]}"}
    html = _rendered(_visit(request, models, settings, PageQuery()), "error.html", content)
    return HTMLResponse(html, problem.status, problem.headers)


def _visit(request: Request, models: ServedModels, settings: ServiceSettings, query: PageQuery) -> PageVisit:
    served = models.choose(query.model or None).served
    return PageVisit(
        root=f"{request.scope.get('root_path', '').rstrip('/')}/",
        query=query,
        served=served,
        models=[one.name for one in models],
        is_default=served.name == models.default,
        may_see_users=settings.user_page and info_of(request).is_manager,
    )


# ── templates ─────────────────────────────────────────────────────────────────────────────────────


def _signed(value: float, digits: int = 4) -> str:
    """Write a number with its sign, and a minus as wide as the plus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _written(value: object) -> str:
    """Write the value of a parameter or a fact."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("mrfrec.service"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters |= {"signed": _signed, "written": _written}
    # Compile all templates now, and not while somebody waits.
    for name in made.list_templates():
        made.get_template(name)
    return made


_TEMPLATES = _environment()


def _rendered(visit: PageVisit, template: str, content: Content) -> str:
    def file(name: str) -> str:
        """Return the address of a script or style, which changes with its content."""
        return f"{visit.root}static/{name}?{blake2b(_FILES[name], digest_size=6).hexdigest()}"

    page = _TEMPLATES.get_template(template)
    html: str = page.render(visit=visit, link=visit.link, file=file, **content)
    return html
