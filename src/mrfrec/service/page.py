"""The page: look at the items of a model, their graph, and reasons of recommendations.

Made on the server, for any browser. Nothing is loaded from elsewhere; scripts and styles are files of their
own, so that a strict Content-Security-Policy allows them and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Query
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mrfrec.answers.question import Question
from mrfrec.answers.reasons import explanations
from mrfrec.answers.where import mask_of
from mrfrec.checks import shortened
from mrfrec.data.ids import Id
from mrfrec.models.recommender import Recommender
from mrfrec.service import answers
from mrfrec.service.api import position
from mrfrec.service.graph import NARROW, WIDE, draw
from mrfrec.service.problems import ProblemError
from mrfrec.service.queue import WorkQueue
from mrfrec.service.schemas import MOST_ON_PAGE, PageQuery, where_of
from mrfrec.service.served import Served, ServedModels

Content = dict[str, Any]
Places = Sequence[int] | npt.NDArray[Any]

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = {one.name: one.read_bytes() for one in files("mrfrec.service").joinpath("static").iterdir()}
_NAME = 120  # characters of a name in lists
_WHOLE_NAME = 1000  # characters of a name on the page of the item
_FEW_BARS = 6  # of a score, which are always visible
_FEATURES = 20  # of an item, the rarest
_POPULAR, _FOUND, _SUGGESTED = 12, 50, 8  # items of a page


@dataclass(frozen=True)
class PageVisit:
    """A request for a page."""

    root: str  # of all addresses
    query: PageQuery
    served: Served
    models: list[str]
    is_default: bool  # whether it is the default model

    @property
    def model(self) -> Recommender:
        return self.served.model

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    def link(self, page: str = "", **query: Any) -> str:
        """Return the address of a page of the same model; None leaves a value out."""
        named = {} if self.is_default else {"model": self.served.name}
        values = {name: value for name, value in {**named, **query}.items() if value is not None}
        return f"{self.root}{page}" + (f"?{urlencode(values, doseq=True)}" if values else "")

    def rules(self) -> dict[str, Any]:
        """Return the filter and the quotas of the address, as `Question` takes them."""
        rules = {"where": where_of(self.query.where), "at_most": self.query.at_most}
        return {name: rule for name, rule in rules.items() if rule}

    def options(self) -> dict[str, Any]:
        """Return what links to recommendations keep besides the history: novelty, variety and rules."""
        rules = {name: json.dumps(rule, ensure_ascii=False) for name, rule in self.rules().items()}
        variety = {"variety": f"{self.query.variety:g}"} if self.query.variety else {}
        novelty = {} if self.query.novelty is None else {"novelty": self.query.novelty}
        return {**novelty, **variety, **rules}

    def file(self, name: str) -> str:
        """Return the address of a script or style, which changes with its content."""
        return f"{self.root}static/{name}?{blake2b(_FILES[name], digest_size=6).hexdigest()}"

    def history(self) -> tuple[list[int], list[str]]:
        """Return the items of the query by position, each once, and the texts that are no known item."""
        texts = list(dict.fromkeys(self.query.item))
        places = [answers.find_item(self.model.items_, text) for text in texts]
        unknown = [text for text, place in zip(texts, places, strict=True) if place is None]
        return list(dict.fromkeys(place for place in places if place is not None)), unknown

    def ids(self, places: Places) -> list[Any]:
        return self.model.items_.take(np.asarray(places, np.int64))

    def items(self, places: Places) -> list[Content]:
        """Return rows about items, cut to a few lines: names, ids in brackets, users, and a link."""
        catalogue = self.model.catalogue
        rows = []
        for place, item in zip(places, self.ids(places), strict=True):
            name = catalogue.name(int(place))
            short_id = shortened(str(item), _NAME)
            short = shortened(name, _NAME) if name.strip() else "(without a name)"
            note = None if short == short_id else f"[{short_id}]"
            rows.append(
                {
                    "id": item,
                    "name": short,
                    "note": note,
                    "hover": f"{shortened(name, 2 * _NAME)} {note or ''}".strip(),
                    "whole": shortened(name, _WHOLE_NAME) if len(name) > _NAME else None,
                    "users": int(catalogue.popularity[place]),
                    "link": self.link("item", item=item),
                }
            )
        return rows


View = Callable[[PageVisit], tuple[str, Content]]


def create_pages(models: ServedModels, queue: WorkQueue) -> APIRouter:
    """Return the routes of the page. Pages are made in another thread: each takes some milliseconds."""
    router = APIRouter(include_in_schema=False)

    def add(path: str, view: View) -> None:
        async def endpoint(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
            visit = _visit(request, models, query)
            html = await queue.run_in_thread(lambda: _rendered(visit, *view(visit)))
            served = visit.served
            return HTMLResponse(html, 200, {"Mrfrec-Model": f"{served.name}; {served.file_hash}"})

        router.add_api_route(path, endpoint, methods=["GET", "HEAD"])

    add("/", _start)
    add("/search", partial(_search, "search.html", _FOUND))
    # The suggestions of a search box. A script could not make them from the JSON of the API: an id that is a
    # large integer would be rounded.
    add("/suggest", partial(_search, "suggestions.html", _SUGGESTED))
    add("/item", _item)
    add("/history", _history)
    add("/model", _about)

    @router.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(name: str) -> Response:
        if name not in _FILES:
            raise ProblemError(404, "there is no such file.")
        kind = _TYPES[name.rpartition(".")[2]]
        # Their addresses change with their content.
        return Response(_FILES[name], 200, {"Cache-Control": "public, max-age=31536000, immutable"}, kind)

    return router


def error_page(request: Request, models: ServedModels, problem: ProblemError) -> Response:
    """Return a page that says what is wrong."""
    detail = problem.detail
    content = {"status": problem.status, "detail": f"{detail[:1].upper()}{detail[1:]}"}
    html = _rendered(_visit(request, models, PageQuery()), "error.html", content)
    return HTMLResponse(html, problem.status, problem.headers)


def _visit(request: Request, models: ServedModels, query: PageQuery) -> PageVisit:
    served = models.choose(query.model or None).served
    names = [each.name for each in models]
    root = f"{request.scope.get('root_path', '').rstrip('/')}/"
    return PageVisit(root, query, served, names, served.name == models.default)


# ── views ─────────────────────────────────────────────────────────────────────────────────────────


def _start(visit: PageVisit) -> tuple[str, Content]:
    first = visit.model.catalogue.popularity_rank
    places = np.flatnonzero(first < _POPULAR)
    popular = visit.items(places[np.argsort(first[places])])
    return "start.html", {"popular": popular, "about": answers.about(visit.model)}


def _search(template: str, most: int, visit: PageVisit) -> tuple[str, Content]:
    text = visit.query.q.strip()[:1000]
    history = list(dict.fromkeys(visit.query.item))
    places = visit.model.catalogue.search(text, most) if text else []
    found = visit.items(places)
    for row in found:
        row["add"] = visit.link("history", item=[*history, row["id"]], **visit.options())
    adds = visit.query.add is not None
    return template, {"q": text, "found": found, "history": history, "most": most, "adds": adds}


def _item(visit: PageVisit) -> tuple[str, Content]:
    if not visit.query.item:
        raise ProblemError(422, "say which item: ?item=ID.")
    model = visit.model
    text = visit.query.item[0]
    place = position(visit.served, text)
    others, strengths = model.fitted_.learned.neighbors(place, model.catalogue)
    order = np.lexsort((model.catalogue.popularity_rank[others], -strengths))
    order = order[others[order] != place]
    positive = order[strengths[order] > 0][: WIDE.positive]
    negative = order[strengths[order] < 0][::-1][: WIDE.negative]
    chosen = np.concatenate([positive, negative])
    near = np.asarray(others)[chosen].astype(np.int64)
    weights = strengths[chosen].astype(np.float64)
    rows = visit.items(near)
    adds = (
        _weights(model, np.array([place]), near)[0]
        if model.fitted_.learned.scales_scores
        else [None] * len(near)
    )
    widest = float(np.abs(weights).max(initial=0)) or 1.0
    for row, weight, added in zip(rows, weights.tolist(), adds, strict=True):
        row |= {"weight": weight, "share": abs(weight) / widest, "adds": added}
    on_page = [*visit.items([place]), *rows]
    matrix = _edges(model, np.array([place, *near]), weights)
    drawings = []
    for canvas in (WIDE, NARROW) if rows else ():
        against = range(len(positive) + 1, len(on_page))[: canvas.negative]
        kept = [*range(min(canvas.positive, len(positive)) + 1), *against]
        nodes, edges = draw([on_page[i] for i in kept], matrix[np.ix_(kept, kept)], canvas)
        drawings.append({"canvas": canvas, "nodes": nodes, "edges": edges})
    features = [] if model.catalogue.features is None else model.catalogue.features.shared(place, place)[0]
    return "item.html", {
        "item": on_page[0],
        "features": [shortened(name, _NAME) for name in features[:_FEATURES]],
        "rank": int(model.catalogue.popularity_rank[place]) + 1,
        "of": model.fitted_.size.users,
        "positive": rows[: len(positive)],
        "negative": rows[len(positive) :],
        "drawings": drawings,
        "add": visit.link("history", item=text),
    }


def _weights(model: Recommender, items: npt.NDArray[Any], targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the weight of each item, of value 1, in the score of each target, items × targets."""
    return model.fitted_.learned.weights_between(items, np.ones(len(items)), targets)


def _edges(model: Recommender, places: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the weights of edges between an item, which comes first, and its neighbors, n × n.

    √(B_ij·B_ji) is the partial correlation, up to the factor that `novelty` brings. All neighbors have an
    edge to the first item; in a model without weights there are no others.
    """
    n = len(places)
    edges = np.zeros((n, n))
    if model.fitted_.learned.scales_scores:
        B = _weights(model, places, places)
        edges = np.sqrt(np.maximum(B * B.T, 0)) * np.sign(B)
    inner = np.where(edges[0, 1:] * weights > 0, edges[0, 1:], weights)
    edges[0, 1:] = edges[1:, 0] = inner
    return edges


def _history(visit: PageVisit) -> tuple[str, Content]:
    model = visit.model
    query = visit.query
    places, unknown = visit.history()
    novelty = query.novelty if model.fitted_.learned.scales_scores else None
    k = query.k or 10
    ids = visit.ids(places)
    question = Question.of(k=k, novelty=novelty, variety=query.variety, **visit.rules())
    recommended = answers.recommend(model, [dict.fromkeys(ids)], question)[0][0].items
    targets = model.items_.find([row["item"] for row in recommended], "item")
    rows = visit.items(targets)
    options = {**visit.options(), "k": query.k}
    for row, answer in zip(rows, recommended, strict=True):
        row |= {"score": answer["score"], "source": answer["source"]}
        row["add"] = visit.link("history", item=[*ids, row["id"]], **options)
    history = visit.items(places)
    for row in history:
        row["remove"] = visit.link("history", item=[one for one in ids if one != row["id"]], **options)
    if model.explains:
        named = dict(zip(places, history, strict=True))
        for row, reasons in zip(rows, _bars_of(visit, ids, targets, novelty, named), strict=True):
            row["reasons"] = reasons
    shown = model.fitted_.novelty if novelty is None else novelty
    kept = mask_of(question.where, model.catalogue)
    without = {name: value for name, value in options.items() if name not in visit.rules()}
    return "history.html", {
        "history": history,
        "ids": ids,
        "unknown": unknown,
        "recommended": rows,
        "novelty": shown if model.fitted_.learned.scales_scores else None,
        "typical": None if model.fitted_.size.binary else model.fitted_.usual_value,
        "rules": {name: text for name, text in options.items() if name in visit.rules()},
        "without_rules": visit.link("history", item=ids, **without),
        "variety": query.variety if model.catalogue.table is not None or query.variety else None,
        "left": None if kept is None else (int(kept.sum()), len(kept)),
        "more": visit.link("history", item=ids, **{**options, "k": min(2 * k, MOST_ON_PAGE)})
        if len(rows) == k < MOST_ON_PAGE else None,
    }  # fmt: skip


def _bars_of(
    visit: PageVisit, history: Sequence[Id], targets: Places, novelty: float | None,
    rows_by_place: Mapping[int, Content],
) -> list[Content]:  # fmt: skip
    """Return, for each target, the bars whose amounts add up to its score.

    All bars have one scale, so that those of different items can be compared. `rows_by_place` has the rows of
    the items of the history.
    """
    if not len(targets):
        return []
    found, bases = explanations(visit.model.fitted_, np.asarray(targets), history=[history], novelty=novelty)
    amounts = [0.0, *bases.tolist(), *(part.amount for parts in found for part in parts)]
    low = min(amounts)
    width = max(amounts) - low or 1.0

    def bar(amount: float, item: Content | None = None) -> Content:
        """Return where a bar begins and how long it is, in percent of the widest."""
        start = 100 * (min(amount, 0.0) - low) / width
        length = 100 * abs(amount) / width
        return {"item": item, "amount": amount, "x": round(start, 2), "length": round(length, 2)}

    each = []
    zero = round(-100 * low / width, 2)
    for parts, base in zip(found, bases.tolist(), strict=True):
        bars = [bar(part.amount, rows_by_place[part.item]) for part in parts]
        bars.sort(key=lambda one: -abs(one["amount"]))
        each.append({"few": bars[:_FEW_BARS], "rest": bars[_FEW_BARS:], "base": bar(base), "zero": zero})
    return each


def _about(visit: PageVisit) -> tuple[str, Content]:
    served = visit.served
    opened = datetime.fromtimestamp(served.opened, UTC)
    plan = served.model.fitted_.learned.plan
    return "model.html", {
        "about": answers.about(served.model),
        "opened": opened,
        "plan": None if plan is None else str(plan),
        "training": _training(served.model.notes_),
    }


def _training(notes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the notes that were saved with the model; those of `mrfrec nightly` get names in words."""
    left = dict(notes)
    rows = []
    if isinstance(left.get("started"), str):
        rows.append(("Trained", left.pop("started")[:16].replace("T", " ") + " UTC"))
    if isinstance(left.get("fit_seconds"), float):
        rows.append(("Training time", f"{left.pop('fit_seconds'):,.1f} s"))
    if isinstance(left.get("value"), float) and "metric" in left:
        error = left.pop("error", None)
        spread = f" ± {error:.4f}" if isinstance(error, float) else ""
        rows.append((str(left.pop("metric")), f"{left.pop('value'):.4f}{spread}"))
    if isinstance(left.get("asked"), int):
        rows.append(("Evaluated on", f"{left.pop('asked'):,} users held out"))
    return rows + list(left.items())


# ── templates ─────────────────────────────────────────────────────────────────────────────────────


def _signed(value: float, digits: int = 4) -> str:
    """Write a number with its sign; the minus as wide as the plus."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−")


def _written(value: object) -> str:
    """Write the value of a parameter or a fact."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mrfrec.service"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    found.filters |= {"signed": _signed, "written": _written}
    for name in found.list_templates():  # compiled now, and not while somebody waits
        found.get_template(name)
    return found


_TEMPLATES = _environment()


def _rendered(visit: PageVisit, template: str, content: Content) -> str:
    html: str = _TEMPLATES.get_template(template).render(visit=visit, link=visit.link, **content)
    return html
