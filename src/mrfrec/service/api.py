"""The API, version 1: JSON in, JSON out."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import ValidationError, to_json
from starlette.requests import Request
from starlette.responses import Response

from mrfrec.errors import MrfrecError
from mrfrec.models.answers.histories import length_of_history
from mrfrec.models.answers.question import Question
from mrfrec.service import answers, schemas
from mrfrec.service.metrics import Counts, Metrics
from mrfrec.service.middleware import LARGE_BODY, info_of
from mrfrec.service.problems import NO_ROOM, NOT_A_MANAGER, ProblemError
from mrfrec.service.queue import QueueFullError, WorkQueue
from mrfrec.service.served import Choice, Served, ServedModels
from mrfrec.service.settings import ServiceSettings

T = TypeVar("T")

_LARGE = 1000  # items of a history, and of an answer with its reasons, that take more than milliseconds

_OPTIONS = [each.name for each in fields(Question)]  # which have the same names in `schemas.Asked`
_JSON = re.compile(rb"application/(.*\+)?json")  # media types
_MOST_BATCHES = 4  # that wait or are answered
_PIECE = 5000  # cost of the histories of a batch that are answered at once: some hundredths of a second

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": text}
    for status, text in {
        400: "Not JSON.", 401: "No key, or an unknown one.", 403: "A key that may not do this.",
        404: "No such model, item or user.", 408: "The body came too slowly.",
        413: "The request is too large.", 414: "The query of the address is too long.",
        415: "Not said to be JSON.", 421: "Not a name of this host.", 422: "A value is not allowed.",
        429: "Too many requests of this key.", 503: "Too many requests at once; try again.",
    }.items()
}  # fmt: skip
ModelName = Annotated[str | None, Query(description="Name of the model.")]
ItemText = Annotated[str, Query(description="Id of the item.", max_length=1000)]


def create_router(
    models: ServedModels, settings: ServiceSettings, metrics: Metrics, looks: WorkQueue
) -> APIRouter:
    """Return the routes. `looks` is the queue of lookups, which the page shares."""
    usual, large = (WorkQueue(settings.queue, settings.seconds) for _ in range(2))
    batches = WorkQueue(_MOST_BATCHES, settings.seconds)
    router = APIRouter(prefix="/v1", responses=_PROBLEMS, route_class=_JsonRoute)

    @router.post("/recommend", response_model=schemas.RecommendResponse, summary="Recommend items")
    async def recommend(body: schemas.RecommendRequest, request: Request) -> Response:
        choice = chosen(models, body.model, body.visitor if body.user is None else body.user)
        asked = _question(body, settings)
        if (body.history is None) == (body.user is None):
            raise ProblemError(422, "give either history or user.")
        served, history = choice.served, _history(body.history or (), settings)
        length = len(history) if body.user is None else _length(served, body.user)
        is_large = length + _check_cost(asked, [length], settings) > _LARGE

        def work() -> tuple[Counts, Response]:
            if body.user is None:
                found, others = answers.recommend(served.model, [history], asked)
            else:
                found, others = answers.recommend_to_user(served.model, body.user, asked)
            items = _rows(found[0].items) if is_large else found[0].items
            reply = _reply(choice, {"items": items, "unknown": [*found[0].unknown, *others]})
            return _counts(found, len(history)), reply

        if is_large:
            [(counts, reply)] = await done(large.run_in_thread(work))
        else:
            counts, reply = await done(usual.run(work))
        metrics.count_answer(served.name, counts)
        return reply

    @router.post("/recommend/batch", response_model=schemas.BatchResponse, summary="Recommend to several")
    async def recommend_batch(body: schemas.BatchRequest, request: Request) -> Response:
        choice = chosen(models, body.model, body.visitor)
        if not 1 <= len(body.histories) <= settings.max_batch:
            raise ProblemError(
                422, f"histories must be 1 to {settings.max_batch:,}; got {len(body.histories):,}."
            )
        asked = _question(body, settings)
        histories, lengths = body.histories, [len(history) for history in body.histories]
        _check_length(max(lengths), settings)
        cost = _check_cost(asked, lengths, settings)
        step = max(1, _PIECE * len(histories) // (cost + sum(lengths)))

        def work(first: int) -> tuple[Counts, list[bytes], list[int | str]]:
            some = [_history(history, settings) for history in histories[first : first + step]]
            found, others = answers.recommend(choice.served.model, some, asked)
            replies = [_encoded({"items": _rows(one.items), "unknown": one.unknown}) for one in found]
            return _counts(found, sum(map(len, some))), replies, others

        async def is_wanted() -> bool:
            return not await request.is_disconnected()

        pieces = [partial(work, first) for first in range(0, len(histories), step)]
        answered = await done(batches.run_in_thread(*pieces, is_wanted=is_wanted))
        for counts, _, _ in answered:
            metrics.count_answer(choice.served.name, counts)
        joined = (one for _, replies, _ in answered for one in replies)
        return await asyncio.to_thread(
            lambda: _reply(choice, {"answers": _joined(joined), "unknown": answered[0][2]})
        )

    @router.get("/similar", response_model=schemas.SimilarResponse, summary="Items that go with an item")
    async def similar(
        item: ItemText, k: Annotated[int, Query(ge=1)] = 10, model: ModelName = None
    ) -> Response:
        choice = chosen(models, model)
        _check_k(k, settings)
        place = position(choice.served, item)
        found = await done(looks.run_in_thread(partial(answers.similar, choice.served.model, place, k)))
        return _reply(choice, {"item": choice.served.model.items_[place], "items": found[0]})

    @router.post("/explain", response_model=schemas.ExplainResponse, summary="Why an item has its score")
    async def explain(body: schemas.ExplainRequest, request: Request) -> Response:
        choice = chosen(models, body.model, body.visitor if body.user is None else body.user)
        if (body.history is None) == (body.user is None):
            raise ProblemError(422, "give either history or user.")
        served, history = choice.served, None
        if body.history is None:
            _length(served, body.user)
        else:
            history = _history(body.history, settings)
        found = await done(
            looks.run_in_thread(
                partial(answers.explain, served.model, body.item, history, body.user, body.novelty)
            )
        )
        if found[0] is None:
            raise ProblemError(404, "the model does not know this item.")
        return _reply(choice, found[0])

    @router.get("/search", response_model=schemas.SearchResponse, summary="Find items by id or title")
    async def search(
        q: Annotated[str, Query(max_length=1000)],
        k: Annotated[int, Query(ge=1)] = 10,
        model: ModelName = None,
    ) -> Response:
        choice = chosen(models, model)
        _check_k(k, settings)
        found = await done(looks.run_in_thread(partial(answers.search, choice.served.model, q, k)))
        return _reply(choice, {"items": found[0]})

    @router.get("/item", response_model=schemas.ItemResponse, summary="An item")
    async def item(item: ItemText, model: ModelName = None) -> Response:
        choice = chosen(models, model)
        return _reply(choice, answers.item(choice.served.model, position(choice.served, item)))

    @router.get("/models", response_model=schemas.ModelsResponse, summary="The models of the service")
    async def list_models() -> Response:
        return _json({"models": [info(models, served) for served in models]})

    @router.get("/models/{name}", response_model=schemas.ModelInfo, summary="A model")
    async def model(name: str) -> Response:
        return _json(info(models, chosen(models, name).served))

    @router.post("/models/{name}/reload", response_model=schemas.ModelInfo, summary="Open a model file anew")
    async def reload(name: str, request: Request) -> Response:
        """Open the file of a model, check it, and let it answer from now on.

        If the file cannot be used, the answer is 422 and the old model stays. With several workers, the one
        that answers has the new model by then; the others are told to open all files anew.
        """
        if not info_of(request).may_manage:
            raise ProblemError(403, NOT_A_MANAGER)
        name = chosen(models, name).served.name
        try:
            served = await asyncio.to_thread(models.reload, name)
        except (MrfrecError, OSError):
            raise ProblemError(
                422, "the file of this model cannot be used, and the old model stays; the log says why."
            ) from None
        request.app.state.tell_others()
        return _json(info(models, served))

    return router


class _JsonRoute(APIRoute):
    """A route that reads JSON in one step; FastAPI's own steps read half characters, which JSON may have."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual, endpoint = super().get_route_handler(), self.endpoint
        if self.body_field is None:
            return usual
        kind: Any = self.body_field.field_info.annotation  # a model of pydantic

        async def handle(request: Request) -> Response:
            found = info_of(request)
            if found.headers.get(b"content-encoding", b"identity").lower() != b"identity":
                detail = "send JSON as it is, neither compressed nor otherwise encoded."
                raise ProblemError(415, detail, {"Accept-Encoding": "identity"})
            media = found.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if _JSON.fullmatch(media) is None:
                return await usual(request)
            try:
                body = kind.model_validate_json(found.body)
            except ValidationError as error:
                wrong = error.errors(include_url=False, include_context=False, include_input=False)
                if wrong[0]["type"] != "json_invalid":
                    wrong = [{**one, "loc": ("body", *one["loc"])} for one in wrong]
                    raise RequestValidationError(wrong) from None
                if len(found.body) > LARGE_BODY:  # of which Python's JSON may take a quarter of a second
                    raise ProblemError(400, "the body is not JSON.") from None
                return await usual(request)
            answer: Response = await endpoint(body, request)
            return answer

        return handle


def info(models: ServedModels, served: Served) -> dict[str, Any]:
    """Describe a model of the service."""
    facts = {"name": served.name, "fingerprint": served.fingerprint, "opened": served.opened}
    return {**facts, "default": served.name == models.default, **answers.about(served.model)}


def chosen(models: ServedModels, name: str | None, visitor: int | str | None = None) -> Choice:
    """Return the model of a request, if there is one of that name."""
    choice = models.choose(name, visitor)
    if choice is None:
        raise ProblemError(404, f"there is no model {name!r}.")
    return choice


def _question(body: schemas.Asked, settings: ServiceSettings) -> Question:
    _check_k(body.k, settings)
    for name, given in (("exclude", body.exclude), ("allow", body.allow)):
        if given and len(given) > settings.max_history:
            raise ProblemError(422, f"{name} must have at most {settings.max_history:,} items.")
    return Question(**{name: getattr(body, name) for name in _OPTIONS})


def _check_k(k: int, settings: ServiceSettings) -> None:
    if k > settings.max_k:
        raise ProblemError(422, f"k must be at most {settings.max_k:,}; got {k:,}.")


def _check_length(length: int, settings: ServiceSettings) -> None:
    if length > settings.max_history:
        raise ProblemError(422, f"a history must have at most {settings.max_history:,} items.")


def _history(
    given: "Sequence[int | str | schemas.Used]", settings: ServiceSettings
) -> dict[int | str, float | None]:
    _check_length(len(given), settings)
    history: dict[int | str, float | None] = {}
    for one in given:
        if isinstance(one, schemas.Used):
            history[one.item] = one.value
        else:
            history[one] = None
    return history


def _length(served: Served, user: Any) -> int:
    """Return the number of items of a user, whom the model must know."""
    if not served.model.has_histories:
        raise ProblemError(422, "this model keeps no histories: give history in place of user.")
    try:
        length = length_of_history(served.model, user)
    except MrfrecError as error:
        raise ProblemError(422, str(error)) from None
    if length is None:
        raise ProblemError(404, "the model does not know this user; an empty history gets popular items.")
    return length


def _check_cost(asked: Question, lengths: Sequence[int], settings: ServiceSettings) -> int:
    """Return the cost of an answer, or refuse it before any work is done."""
    cost = asked.cost(lengths)
    if cost > settings.max_cost:
        raise ProblemError(
            422, "the cost of the answer, histories × k × (1 + reasons) and more for reasons of long "
            f"histories, must be at most {settings.max_cost:,}; got {cost:,}. Ask for less at once.",
        )  # fmt: skip
    return cost


def position(served: Served, text: str) -> int:
    """Return the position of an item whose id is written in a URL, and which the model must know."""
    place = answers.find_item(served.model.items_, text)
    if place is None:
        raise ProblemError(404, "the model does not know this item.")
    return place


def _counts(found: Sequence[answers.Answered], asked: int) -> Counts:
    rows = sum(len(one.items) for one in found)
    popular = sum(row["source"] == "popular" for one in found for row in one.items)
    return Counts(asked, sum(len(one.unknown) for one in found), rows - popular, popular)


async def done(work: Awaitable[T]) -> T:
    """Wait for work in a queue; refuse the request if the queue is full or the model refuses a value."""
    try:
        return await work
    except QueueFullError:
        raise ProblemError(503, NO_ROOM, {"Retry-After": "1"}) from None
    except MrfrecError as error:
        raise ProblemError(422, str(error)) from None


def _reply(choice: Choice, content: dict[str, Any]) -> Response:
    served = choice.served
    model = {"name": served.name, "fingerprint": served.fingerprint, "chosen": choice.why}
    return _json({"model": model, **content}, {"Mrfrec-Model": f"{served.name}; {served.fingerprint}"})


def _json(content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(_encoded(content), 200, headers, "application/json")


def _encoded(content: dict[str, Any]) -> bytes:
    """Encode an object, of which values that are bytes are JSON already."""
    pairs = ((to_json(name), v if isinstance(v, bytes) else _one(v)) for name, v in content.items())
    return b"{%b}" % b",".join(name + b":" + value for name, value in pairs)


def _rows(rows: Iterable[Any]) -> bytes:
    """Encode rows one by one: to encode a long answer at once would keep everybody else waiting."""
    return _joined(map(_one, rows))


def _joined(values: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(values)


def _one(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="null")  # weights of 1e38 overflow; JSON has no infinity
    except ValueError:  # half a character, of an id that was asked for, cannot be sent but as \ud800
        return json.dumps(value, allow_nan=False).encode()
