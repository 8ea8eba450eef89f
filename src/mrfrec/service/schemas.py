"""The requests and responses of the API, as OpenAPI describes them, and the addresses of pages."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from mrfrec.answers.question import Boost, Question, check_boost
from mrfrec.answers.where import check_where
from mrfrec.checks import shortened
from mrfrec.data.ids import Id
from mrfrec.data.reading_options import moment
from mrfrec.errors import ParameterError
from mrfrec.options import same_field
from mrfrec.service.problems import ProblemError

_Integer = Annotated[int, Field(ge=-(2**63), lt=2**64)]
ItemId = _Integer | str
# An empty text would stand for everybody.
Visitor = _Integer | Annotated[str, Field(min_length=1)]
_DAY = 86_400_000_000  # microseconds
_MOST_NAMES = 20  # names of an object; no object of a request has more
_MOST_REASONS = 100  # reasons for an item


def check_limit(size: int, setting: str, what: str, info: ValidationInfo) -> None:
    """Refuse a size beyond a setting of the service, which is the context of the validation."""
    most = None if info.context is None else getattr(info.context, setting)
    if most is not None and size > most:
        raise ProblemError(422, f"{what} must be at most {most:,}; got {size:,}.")


def _at_most(setting: str, what: str) -> BeforeValidator:
    """Return a check that a number, or the length of a list, is within a setting of the service."""

    def check(value: Any, info: ValidationInfo) -> Any:
        size = len(value) if isinstance(value, list) else value
        if type(size) is int:
            check_limit(size, setting, what, info)
        return value

    return BeforeValidator(check)


_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class _Strict(BaseModel):
    """A part of a request. Values are not converted, but an integer may stand for a float."""

    model_config = _STRICT


class Used(_Strict):
    """An item of a history with a value, such as a rating or a count, or with a time."""

    item: ItemId
    value: float | None = Field(None, description="Where every pair counts 1, 1 or, below 0, -1.")
    time: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="When it was used: 2026-11-16T10:30:00Z. Then all items must have a time."
    )


def history_of(items: "Sequence[ItemId | Used]") -> dict[Id, float | np.datetime64 | None]:
    """Return a history as `people_of` reads it."""
    latest = time.time_ns() // 1000 + _DAY
    history: dict[Id, float | np.datetime64 | None] = {}
    for one in items:
        if isinstance(one, Used):
            if (one.value is None) == (one.time is None):
                raise ProblemError(422, "an item of a history has either a value or a time.")
            history[one.item] = one.value if one.time is None else _past(one.time, latest)
        else:
            # An item that is listed twice counts where it comes last.
            history.pop(one, None)
            history[one] = None
    return history


def _past(text: str, latest: int) -> np.datetime64:
    """Return a time; refuse one that is later than `latest`, in microseconds."""
    microseconds = moment("time", text)
    if microseconds > latest:
        raise ParameterError("time", "at most a day later than the clock of the service", text)
    return np.datetime64(microseconds, "us")


class Number(_Strict):
    """An item with a number to add to its score, or to multiply it by."""

    item: ItemId
    value: float


# The first error of a long list is enough: to collect all of them can take a second.
Items = Annotated[list[ItemId], Field(fail_fast=True)]
History = Annotated[
    list[ItemId | Used], Field(fail_fast=True), _at_most("max_history", "the number of items of a history")
]
Numbers = Annotated[
    str | Annotated[list[Number], Field(fail_fast=True)],
    _at_most("max_history", "the number of items of boost"),
]


class Boosting(_Strict):
    """What to add to scores, and what to multiply them by: columns of the item table, or numbers."""

    add: Numbers | None = None
    multiply: Numbers | None = None


def _boost_of(boosting: Boosting | None) -> Boost:
    """Return a boost as `Question` takes it."""
    if boosting is None:
        return None
    boost: dict[str, Any] = {}
    for way, numbers in (("add", boosting.add), ("multiply", boosting.multiply)):
        if isinstance(numbers, list):
            boost[way] = {number.item: number.value for number in numbers}
            if len(boost[way]) < len(numbers):
                counts = Counter(number.item for number in numbers)
                twice = shortened(repr(max(counts, key=counts.__getitem__)), 40)
                raise ProblemError(
                    422, f"boost.{way} must be a list with each item once; got {twice} more than once."
                )
        elif numbers is not None:
            boost[way] = numbers
    return check_boost(boost)


Value = bool | _Integer | float | Annotated[str, Field(max_length=1000)]
Values = Annotated[list[Value], Field(fail_fast=True)]
# A number, a date or a time.
Bound = _Integer | float | Annotated[str, Field(max_length=40)]


class Condition(_Strict):
    """What the value of a column must be. All parts must hold; a missing value only fulfils `missing`."""

    any: Values | None = Field(None, description="One of these; a list has one of them.")
    all: Values | None = Field(None, description="A list has all of these.")
    none: Values | None = Field(None, description="None of these; a list has none of them.")
    least: Bound | None = Field(None, description="This or more; or this time or later.")
    most: Bound | None = Field(None, description="This or less; or this time or earlier.")
    above: Bound | None = None
    below: Bound | None = None
    missing: bool | None = Field(None, description="Whether there is no value.")


Conditions = Annotated[
    dict[Annotated[str, Field(max_length=1000)], Value | Values | Condition], Field(max_length=_MOST_NAMES)
]


def where_of(conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return conditions as `Question` takes them."""
    return None if conditions is None else {
        name: one.model_dump(exclude_none=True) if isinstance(one, Condition) else one
        for name, one in conditions.items()
    }  # fmt: skip


def _checked_where(conditions: dict[str, Any] | None, info: ValidationInfo) -> Any:
    """Return conditions as `Question` takes them, with a bounded number of values."""
    where = check_where(where_of(conditions))
    for words in where.values() if isinstance(where, dict) else ():
        count = sum(len(value) for value in words.values() if isinstance(value, list))
        check_limit(count, "max_history", "the number of values of a condition", info)
    return where


def _example(*bodies: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


class _Request(BaseModel):
    """A request. Only the first names of its objects are read: to report many unknown names takes long."""

    model_config = _STRICT

    model: str | None = Field(
        None, description="Name of the model; by default that of the split, or the default one."
    )
    visitor: Visitor | None = Field(
        None, description="Anything that distinguishes visitors, to choose a model of the split."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorten(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(islice(data.items(), _MOST_NAMES))
        several = data.get("histories")
        for history in (data.get("history"), *(several if isinstance(several, list) else ())):
            for index, item in enumerate(history if isinstance(history, list) else ()):
                if type(item) is dict and len(item) > _MOST_NAMES:
                    history[index] = dict(islice(item.items(), _MOST_NAMES))
        # One name more than the limit, so that they are refused.
        for name in ("at_most", "boost"):
            if isinstance(data.get(name), dict):
                data[name] = dict(islice(data[name].items(), _MOST_NAMES + 1))
        return data


_Boost = Annotated[Boosting | None, AfterValidator(_boost_of)]


class _InJson(BaseModel):
    """The fields of a question that JSON writes differently, or that the settings limit."""

    k: Annotated[int, _at_most("max_k", "k")] = same_field(Question, "k")
    allow: Annotated[Items | None, _at_most("max_history", "the number of items of allow")] = same_field(
        Question, "allow"
    )
    exclude: Annotated[Items | None, _at_most("max_history", "the number of items of exclude")] = same_field(
        Question, "exclude"
    )
    explain: int = same_field(Question, "explain", alias="reasons", le=_MOST_REASONS)
    where: Annotated[Conditions | None, AfterValidator(_checked_where)] = same_field(Question, "where")
    boost: _Boost = same_field(Question, "boost")


class _ForSomebody(_Request):
    """A request with either a history or a user whose history the model keeps."""

    history: History | None = None
    user: ItemId | None = None

    @model_validator(mode="after")
    def _check_somebody(self) -> Self:
        if (self.history is None) == (self.user is None):
            raise ProblemError(422, "give either history or user.")
        return self


class RecommendRequest(_ForSomebody, _InJson, Question):  # type: ignore[misc]
    """For whom to recommend: a history, or a user whose history the model keeps."""

    model_config = _example({"history": ["milk"], "k": 10, "reasons": 3}, {"user": "u17"})


class BatchRequest(_Request, _InJson, Question):  # type: ignore[misc]
    """Several histories, with the same options for all."""

    histories: Annotated[
        list[History],
        Field(fail_fast=True, min_length=1),
        _at_most("max_batch", "the number of histories"),
    ]

    model_config = _example({"histories": [["milk"], ["bread", "jam"]], "k": 3})


class ExplainRequest(_ForSomebody):
    """The score of an item for a history or a user."""

    item: ItemId
    novelty: float | None = same_field(Question, "novelty")
    boost: _Boost = same_field(Question, "boost")

    model_config = _example({"item": "bread", "history": ["milk", "jam"]})


Both = Annotated[list[str] | None, Field(description="Features of both items, where they carry the weight.")]


class ModelRef(BaseModel):
    """Which model answered."""

    name: str
    file_hash: str
    chosen: str = Field(description="Why this model: request, split or default.")


class Reason(BaseModel):
    """The contribution of an item of the history to a score."""

    item: ItemId
    title: str | None = Field(description="Cut to 80 characters.")
    contribution: float
    both: Both = None


class Explained(BaseModel):
    """What an item of the history adds, value · weight; without an item, the base score or a boost."""

    item: ItemId | None
    title: str | None
    value: float | None
    weight: float | None
    contribution: float
    both: Both = None


class Neighbor(BaseModel):
    """An item that goes with another."""

    item: ItemId
    title: str | None
    score: float
    rank: int


class Recommended(Neighbor):
    """A recommended item."""

    source: str = Field(description="model, or popular if no item of the history has a weight for it.")
    base: float | None = Field(None, description="With reasons: the part of the score that no item adds.")
    boost: float | None = Field(None, description="With reasons and a boost: what the boost adds.")
    reasons: list[Reason] | None = None


Known = Annotated[
    bool,
    Field(description="False if the model knows nothing of the user or the history: all items are popular."),
]


class BatchAnswer(BaseModel):
    """The answer to one history of a batch."""

    items: list[Recommended]
    unknown: list[ItemId] = Field(description="Ids that the model does not know.")
    known: Known


class RecommendResponse(BatchAnswer):
    """Recommended items, best first. The unknown ids include ids of allow, exclude and boost."""

    model: ModelRef


class BatchResponse(BaseModel):
    """The answers to the histories, in the same order."""

    model: ModelRef
    answers: list[BatchAnswer]
    unknown: list[ItemId] = Field(description="Ids of allow, exclude and boost that the model does not know.")


class SimilarResponse(BaseModel):
    """The items that go with an item, strongest first."""

    model: ModelRef
    item: ItemId
    items: list[Neighbor]


class KnownItem(BaseModel):
    """An item, and how many training users it has."""

    item: ItemId
    title: str | None
    users: int


class ItemResponse(KnownItem):
    """An item of a model."""

    model: ModelRef


class SearchResponse(BaseModel):
    """Items that match, best first."""

    model: ModelRef
    items: list[KnownItem]


class ExplainResponse(BaseModel):
    """The contributions, which sum up to the score."""

    model: ModelRef
    item: ItemId
    score: float
    contributions: list[Explained]
    unknown: list[ItemId]
    known: Known


class ModelInfo(BaseModel):
    """A model of the service."""

    name: str
    file_hash: str
    default: bool
    opened: float = Field(description="Seconds since 1970.")
    kind: str
    parameters: dict[str, Any]
    data: dict[str, Any]
    item_ids: str
    types: dict[str, str] = Field(description="Types of items and scores: string, int64, float32 and so on.")
    titles: bool
    histories: bool
    explains: bool
    features: bool
    columns: dict[str, str] = Field(description="Columns of the item table, for `where`, and their types.")
    notes: dict[str, Any] = Field(description="Notes that were saved with the model, such as its accuracy.")


class ModelsResponse(BaseModel):
    """All models."""

    models: list[ModelInfo]


class Status(BaseModel):
    """Whether the service is well."""

    status: str
    stale: dict[str, str] = Field(
        {}, description="At /ready: models that differ from their files on disk, and why."
    )


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
