"""The API, version 1: JSON in, JSON out."""

import json
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import ValidationError, to_json
from starlette.requests import Request
from starlette.responses import Response

from mrfrec.answers.people import length_of_history
from mrfrec.answers.question import Question
from mrfrec.checks import in_words
from mrfrec.errors import MrfrecError
from mrfrec.options import own_errors
from mrfrec.service import answers, schemas
from mrfrec.service.middleware import LARGE_BODY, info_of
from mrfrec.service.monitoring import Metrics
from mrfrec.service.problems import ClientLeftError, ProblemError
from mrfrec.service.queue import WorkQueue
from mrfrec.service.served import Choice, Served, ServedModels
from mrfrec.service.settings import ServiceSettings

# A cost of an answer, items of the history included, above which it takes more than some milliseconds.
_LARGE = 1000
# What the errors of pydantic do not include.
_BRIEF: Any = {"include_url": False, "include_context": False}
_UNKNOWN_ITEM = "the model does not know this item."
_JSON = re.compile(rb"application/(.*\+)?json")  # media types
_MOST_BATCHES = 4  # batches that wait or are answered
_MOST_RELOADS = 2  # one reload under way, and one that sees later changes
_RELOADING = "models are being reloaded; try again."
# A batch is answered in pieces of this cost, which take some hundredths of a second.
_PIECE = 5000

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": text}
    for status, text in {
        400: "Not JSON.", 401: "No key, or an unknown one.", 403: "A key that may not do this.",
        404: "No such model, item or user.", 408: "The request came too slowly.",
        413: "The request is too large.", 414: "The query of the address is too long.",
        415: "Not said to be JSON.", 421: "Not a name of this host.", 422: "A value is not allowed.",
        429: "Too many requests of this key.", 503: "Too many requests at once; try again.",
    }.items()
}  # fmt: skip
ModelName = Annotated[str | None, Query(description="Name of the model.")]
ItemText = Annotated[str, Query(description="Id of the item.", max_length=1000)]


def create_router(
    models: ServedModels, settings: ServiceSettings, metrics: Metrics, lookups: WorkQueue
) -> APIRouter:
    """Return the routes. The page shares the queue `lookups`."""
    usual, large = (WorkQueue(settings.queue, settings.seconds) for _ in range(2))
    batches = WorkQueue(_MOST_BATCHES, settings.seconds)
    reloads = WorkQueue(_MOST_RELOADS, settings.seconds, _RELOADING)
    router = APIRouter(prefix="/v1", responses=_PROBLEMS, route_class=_JsonRoute)

    @router.post("/recommend", response_model=schemas.RecommendResponse, summary="Recommend items")
    async def recommend(body: schemas.RecommendRequest, request: Request) -> Response:
        choice = models.choose(body.model, body.visitor if body.user is None else body.user)
        served = choice.served
        history = schemas.history_of(body.history or ())
        length = len(history) if body.user is None else _length_of_history(served, body.user, body.strict)
        is_large = length + _check_cost(body, [length], settings) > _LARGE

        def work() -> Response:
            if body.user is None:
                answered, unknown = answers.recommend(served.model, [history], body)
            else:
                answered, unknown = answers.recommend_to_user(served.model, body.user, body)
            metrics.count_answers(served.name, answered, len(history))
            (answer,) = answered
            items = _encoded_rows(answer.items) if is_large else answer.items
            unknown = [*answer.unknown, *unknown]
            return _reply(choice, {"items": items, "unknown": unknown, "known": answer.known})

        return await (large.run_in_thread(work) if is_large else usual.run(work))

    @router.post("/recommend/batch", response_model=schemas.BatchResponse, summary="Recommend to several")
    async def recommend_batch(body: schemas.BatchRequest, request: Request) -> Response:
        choice = models.choose(body.model, body.visitor)
        histories = body.histories
        lengths = [len(history) for history in histories]
        cost = _check_cost(body, lengths, settings)
        step = max(1, _PIECE * len(histories) // (cost + sum(lengths)))
        replies: list[bytes] = []

        def work(first: int) -> list[int | str]:
            some = [schemas.history_of(history) for history in histories[first : first + step]]
            answered, unknown = answers.recommend(choice.served.model, some, body)
            metrics.count_answers(choice.served.name, answered, sum(map(len, some)))
            replies.extend(_encoded({**one._asdict(), "items": _encoded_rows(one.items)}) for one in answered)
            return unknown

        async with batches.turn() as run:
            for first in range(0, len(histories), step):
                if await request.is_disconnected():
                    raise ClientLeftError
                unknown = await run(work, first)
            reply: Response = await run(
                _reply, choice, {"answers": _encoded_rows(replies), "unknown": unknown}
            )
        return reply

    @router.get("/similar", response_model=schemas.SimilarResponse, summary="Items that go with an item")
    async def similar(
        item: ItemText, k: Annotated[int, Query(ge=1, le=settings.max_k)] = 10, model: ModelName = None
    ) -> Response:
        choice = models.choose(model)
        model_ = choice.served.model
        index = index_of(choice.served, item)
        rows = await lookups.run_in_thread(answers.similar, model_, index, k)
        return _reply(choice, {"item": model_.items_[index], "items": rows})

    @router.post("/explain", response_model=schemas.ExplainResponse, summary="Why an item has its score")
    async def explain(body: schemas.ExplainRequest, request: Request) -> Response:
        choice = models.choose(body.model, body.visitor if body.user is None else body.user)
        served = choice.served
        history = None if body.history is None else schemas.history_of(body.history)
        if history is None:
            _check_histories(served)
        explained = await lookups.run_in_thread(
            answers.explain, served.model, body.item, history, body.user, body.novelty, body.boost
        )
        if explained is None:
            raise ProblemError(404, _UNKNOWN_ITEM)
        return _reply(choice, explained)

    @router.get("/search", response_model=schemas.SearchResponse, summary="Find items by id or title")
    async def search(
        q: Annotated[str, Query(max_length=1000)],
        k: Annotated[int, Query(ge=1, le=settings.max_k)] = 10,
        model: ModelName = None,
    ) -> Response:
        choice = models.choose(model)
        rows = await lookups.run_in_thread(answers.search, choice.served.model, q, k)
        return _reply(choice, {"items": rows})

    @router.get("/item", response_model=schemas.ItemResponse, summary="An item")
    async def item(item: ItemText, model: ModelName = None) -> Response:
        choice = models.choose(model)
        return _reply(choice, answers.item(choice.served.model, index_of(choice.served, item)))

    @router.get("/models", response_model=schemas.ModelsResponse, summary="The models of the service")
    async def list_models() -> Response:
        return _json_response({"models": [info(models, served) for served in models]})

    @router.get("/models/{name}", response_model=schemas.ModelInfo, summary="A model")
    async def model(name: str) -> Response:
        return _json_response(info(models, models.choose(name).served))

    @router.post("/models/{name}/reload", response_model=schemas.ModelInfo, summary="Open a model file anew")
    async def reload(name: str, request: Request) -> Response:
        """Open the file of a model and check it; the model answers from now on.

        If the file cannot be used, the answer is 422 and the old model stays. Reloads are done one at a time:
        a second request waits, and any more get 503.
        """
        if not info_of(request).may_manage:
            raise ProblemError(
                403, "a key with the role manage is needed, as Bearer or X-API-Key; without keys, a request "
                "from this host that is not sent by a page of another site.",
            )  # fmt: skip
        name = models.choose(name).served.name
        try:
            served = await reloads.run_in_thread(models.reload, name)
        except (MrfrecError, OSError):
            raise ProblemError(
                422, "the file of this model cannot be used, and the old model stays; the log says why."
            ) from None
        return _json_response(info(models, served))

    return router


class _JsonRoute(APIRoute):
    """A route that parses and checks JSON in one step, and refuses unknown fields of an address."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return self._checked(super().get_route_handler())
        schema: Any = self.body_field.field_info.annotation
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            arrived, settings = info_of(request), request.app.state.settings
            if arrived.headers.get(b"content-encoding", b"identity").lower() != b"identity":
                detail = "send JSON as it is, neither compressed nor otherwise encoded."
                raise ProblemError(415, detail, {"Accept-Encoding": "identity"})
            media = arrived.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if _JSON.fullmatch(media) is None:
                raise ProblemError(415, "send JSON, with the header Content-Type: application/json.")
            try:
                try:
                    body = schema.model_validate_json(arrived.body, context=settings)
                except ValidationError as error:
                    if error.errors(**_BRIEF, include_input=False)[0]["type"] != "json_invalid":
                        raise
                    body = schema.model_validate(_load_json(arrived.body), context=settings)
            except ValidationError as error:
                ours = own_errors(error)
                if len(ours) == error.error_count():
                    raise ours[0] from None
                errors = error.errors(**_BRIEF, include_input=len(arrived.body) <= LARGE_BODY)
                wrong = [{**one, "loc": ("body", *one["loc"])} for one in errors]
                raise RequestValidationError(wrong) from None
            answer: Response = await endpoint(body, request)
            return answer

        return handle

    def _checked(
        self, answer: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Refuse an address with an unknown field, or with a field that is there twice."""
        known = [field.alias for field in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            given = [name for name, _ in request.query_params.multi_items()]
            for name in given:
                if name not in known:
                    advice = f"known are {in_words(known)}" if known else "none is"
                    raise ProblemError(422, f"{name}: no field of this name is known; {advice}.")
            for name in known:
                if given.count(name) > 1:
                    raise ProblemError(422, f"{name} must be given once; got it {given.count(name)} times.")
            return await answer(request)

        return handle


def _load_json(body: bytes) -> Any:
    """Read JSON that pydantic refuses, such as a half of a character, "\\ud800"."""
    # Python's parser may take a quarter of a second for larger bodies.
    if len(body) <= LARGE_BODY:
        with suppress(ValueError, RecursionError):
            return json.loads(body)
    raise ProblemError(400, "the body is not JSON.")


def info(models: ServedModels, served: Served) -> dict[str, Any]:
    """Describe a model of the service."""
    return {
        "name": served.name,
        "file_hash": served.file_hash,
        "opened": served.opened,
        "default": served.name == models.default,
        **answers.about(served.model),
    }


def _check_histories(served: Served) -> None:
    """Refuse a question about a user if the model keeps no histories."""
    if not served.model.fitted_.has_histories:
        raise ProblemError(422, "this model keeps no histories: give history in place of user.")


def _length_of_history(served: Served, user: Any, strict: bool) -> int:
    """Return how many items a user has. An unknown user has 0, or raises an error if `strict`."""
    _check_histories(served)
    length = length_of_history(served.model.fitted_, user)
    if length is None and strict:
        raise ProblemError(404, "the model does not know this user; without strict, popular items answer.")
    return length or 0


def _check_cost(question: Question, lengths: Sequence[int], settings: ServiceSettings) -> int:
    """Return the cost of an answer; refuse it before any work if it costs too much."""
    cost = question.cost(lengths)
    if cost > settings.max_cost:
        raise ProblemError(
            422, "the cost of the answer, histories × k × (1 + reasons), and more for rules and long "
            f"histories, must be at most {settings.max_cost:,}; got {cost:,}.",
        )  # fmt: skip
    return cost


def index_of(served: Served, text: str) -> int:
    """Return the index of the item whose id stands in a URL; refuse an item that the model does not know."""
    index = answers.find_item(served.model.items_, text)
    if index is None:
        raise ProblemError(404, _UNKNOWN_ITEM)
    return index


def _reply(choice: Choice, content: dict[str, Any]) -> Response:
    served = choice.served
    model = {"name": served.name, "file_hash": served.file_hash, "chosen": choice.why}
    return _json_response({"model": model, **content}, {"Mrfrec-Model": f"{served.name}; {served.file_hash}"})


def _json_response(content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(_encoded(content), 200, headers, "application/json")


def _encoded(content: dict[str, Any]) -> bytes:
    return b"{%b}" % b",".join(
        to_json(name) + b":" + _encoded_value(value) for name, value in content.items()
    )


def _encoded_rows(rows: Iterable[Any]) -> bytes:
    """Encode rows one by one: encoding a long answer at once would keep all other requests waiting."""
    return b"[%b]" % b",".join(map(_encoded_value, rows))


def _encoded_value(value: Any) -> bytes:
    """Encode a value; bytes are JSON already."""
    if isinstance(value, bytes):
        return value
    try:
        # Weights of 1e38 overflow, and JSON has no infinity.
        return to_json(value, inf_nan_mode="null")
    except ValueError:
        # An id of the request has half a character, which can only be sent as \ud800.
        return json.dumps(value, allow_nan=False).encode()
