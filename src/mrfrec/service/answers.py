"""Answers of a model as plain data, for the API and the page. Ids that a model does not know are reported."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from mrfrec.answers import recommending
from mrfrec.answers.columns import (
    Recommendations,
    as_python,
    neighbor_columns,
    reason_columns,
    rows_of,
    search_columns,
)
from mrfrec.answers.people import People, UnknownIds, people_of, people_with_values
from mrfrec.answers.question import Boost, Question
from mrfrec.answers.reasons import explanation
from mrfrec.answers.similar import nearest
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Id, Ids
from mrfrec.data.reading_options import moment
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.parameters import runtime_of
from mrfrec.models.recommender import Recommender

Row = dict[str, Any]
_DAY = 86_400_000_000  # microseconds


History = Mapping[Id, float | str | None]
"""The items of a history, each with a value, or a time as text; None, for all, if they are oldest first."""


class Answered(NamedTuple):
    """Recommended items, best first; the unknown ids of the history; whether the model knows any of it."""

    items: list[Row]
    unknown: list[Id]
    known: bool


def recommend(
    model: Recommender, histories: Sequence[History], question: Question
) -> tuple[list[Answered], list[Id]]:
    """Recommend to each history.

    Returns the answers, and the unknown ids of `allow`, `exclude` and `boost`: once, since all answers share
    them.
    """
    people = _people(model, histories)
    kind = _type_of(model.items_)
    missing = {item for each in people.unknown for item in each.ids}
    unknown = [
        [item for item in history if type(item) is not kind or item in missing] for history in histories
    ]
    return _answers(model, people, question, unknown)


def recommend_to_user(model: Recommender, user: Id, question: Question) -> tuple[list[Answered], list[Id]]:
    """Recommend to a user, by the history of training; returns what `recommend` does."""
    return _answers(model, people_of(model.fitted_, [user]), question, [[]])


def _people(model: Recommender, histories: Sequence[History]) -> People:
    """Return people with these histories, without ids of the other type."""
    usual, kind = model.fitted_.usual_value, _type_of(model.items_)
    known = [{item: x for item, x in history.items() if type(item) is kind} for history in histories]
    kinds = {type(x) for history in known for x in history.values()}
    if str in kinds and len(kinds) > 1:
        raise DataError("history must have times for all items, or for none.")
    order = None
    if str in kinds:
        latest = time.time_ns() // 1000 + _DAY
        order = [[_past(x, latest) for x in history.values()] for history in known]
    elif kinds <= {NoneType}:
        order = [list(range(len(history))) for history in known]
    values: list[dict[Id, float]] = [
        {item: x if isinstance(x, float | int) else usual for item, x in history.items()} for history in known
    ]
    people = people_with_values(model.items_, values, order)
    return people_of(model.fitted_, history=replace(people, are_times=str in kinds))


def _past(text: object, latest: int) -> int:
    """Return a time in microseconds; refuse one that is later than `latest`."""
    microseconds = moment("time", text)
    if microseconds > latest:
        raise ParameterError("time", "at most a day later than the clock of the service", text)
    return microseconds


def _answers(
    model: Recommender, people: People, question: Question, unknown: list[list[Id]]
) -> tuple[list[Answered], list[Id]]:
    kind = _type_of(model.items_)
    wanted: dict[str, list[Id]] = {
        name: list(dict.fromkeys(ids))
        for name in ("allow", "exclude")
        if (ids := getattr(question, name)) is not None
    }
    boost, wanted["boost"] = _known_kind(question.boost, kind)
    # Ids of the other type are no error here; the filters tell which of the rest are unknown.
    possible: dict[str, Any] = {
        name: [item for item in ids if type(item) is kind] for name, ids in wanted.items() if name != "boost"
    }
    possible["boost"] = boost
    missing: list[UnknownIds] = []
    batches = recommending.recommend(
        model.fitted_, runtime_of(model), people, question.model_copy(update=possible), unknown=missing
    )
    lost = {each.parameter: {*each.ids} for each in missing}
    others = [
        item
        for name, ids in wanted.items()
        for item in ids
        if type(item) is not kind or item in lost.get(name, ())
    ]
    rows = [each for batch in batches for each in _rows(model, batch)]
    known = people.are_known.tolist()
    return [Answered(*each) for each in zip(rows, unknown, known, strict=True)], others


def _known_kind(boost: Boost, kind: type[Id]) -> tuple[Boost, list[Id]]:
    """Return a boost without items whose ids are of the other type, and all of its items."""
    ids: dict[Id, None] = {}
    possible: dict[str, str | Mapping[Any, float]] = {}
    for way, numbers in (boost or {}).items():
        if isinstance(numbers, str):
            possible[way] = numbers
        else:
            ids |= dict.fromkeys(numbers)
            possible[way] = {item: x for item, x in numbers.items() if type(item) is kind}
    return possible or None, list(ids)


def _type_of(items: Ids) -> type[Id]:
    return str if items.is_text else int


def _rows(model: Recommender, batch: Recommendations) -> Iterable[list[Row]]:
    """Yield the rows of each user."""
    catalogue = model.catalogue
    for user in range(len(batch.users)):
        items = batch.items[user]
        items = items[items >= 0]  # the first ones
        named = catalogue.columns(items)
        count = len(items)
        columns = (
            named["item"], named["title"], as_python(batch.scores[user, :count]), range(1, count + 1),
            batch.evidence[user, :count].tolist(),
        )  # fmt: skip
        rows: list[Row] = [
            {
                "item": item,
                "title": title,
                "score": x,
                "rank": rank,
                "source": "model" if known else "popular",
            }
            for item, title, x, rank, known in zip(*columns, strict=True)
        ]
        if batch.parts is not None:
            bases, others, amounts = (part[user, :count] for part in batch.parts[:3])
            named_others = {item: _named(catalogue, item) for item in np.unique(others[others >= 0]).tolist()}
            parts = as_python(bases), others.tolist(), amounts.tolist()
            for row, target, base, *reasons in zip(rows, items.tolist(), *parts, strict=True):
                row["base"] = base
                if batch.parts.boost is not None:
                    row["boost"] = float(batch.parts.boost[user, row["rank"] - 1])
                row["reasons"] = [
                    {
                        **named_others[item],
                        "contribution": amount,
                        **_features_of_both(catalogue, target, item),
                    }
                    for item, amount in zip(*reasons, strict=True)
                    if item >= 0
                ]
        yield rows


def _named(catalogue: Catalogue, item: int) -> Row:
    return {"item": catalogue.items[item], "title": catalogue.short_title(item)}


def _features_of_both(catalogue: Catalogue, item: int, other: int) -> Row:
    """Return the features in common that carry the weight between two items, as "both", if there are any."""
    names = catalogue.in_common(item, other)
    return {"both": names} if names else {}


def similar(model: Recommender, position: int, k: int) -> list[Row]:
    """Return the items that go with an item, strongest first."""
    return list(rows_of(neighbor_columns(model.catalogue, *nearest(model.fitted_, position, k))))


def search(model: Recommender, text: str, k: int) -> list[Row]:
    """Find items by id or title."""
    return list(rows_of(search_columns(model.catalogue, text, k)))


def item(model: Recommender, position: int) -> Row:
    """Return the id, title and popularity of an item."""
    row = next(rows_of(model.catalogue.columns(np.array([position]))))
    return {**row, "users": int(model.popularity_[position])}


def find_item(items: Ids, text: str) -> int | None:
    """Return the position of an item whose id is written in a URL; None if it is unknown."""
    if items.is_text:
        wanted: Id = text
    elif re.fullmatch(r"-?[0-9]{1,20}", text):
        wanted = int(text)
    else:
        return None
    place = int(items.find([wanted], "item")[0])
    return place if place >= 0 else None


def about(model: Recommender) -> Row:
    """Describe a model: its kind, parameters and training data."""
    return {
        "kind": type(model).__name__,
        "parameters": model.fitted_.used_parameters,
        "data": model.fitted_.size._asdict(),
        "item_ids": "strings" if model.items_.is_text else "integers",
        "types": {"item": model.items_.type, "score": model.fitted_.score_type},
        "titles": model.titles_ is not None,
        "histories": model.fitted_.has_histories,
        "explains": model.explains,
        "features": model.catalogue.features is not None,
        "columns": {} if model.catalogue.table is None else model.catalogue.table.types,
        "notes": model.notes_,
    }


def explain(
    model: Recommender,
    item: Id,
    history: History | None,
    user: Id | None,
    novelty: float | None,
    boost: Boost = None,
) -> Row | None:
    """Return the contribution of each item of a history, or of a user's, to the score of an item.

    Returns None for an unknown item. To the score of an unknown user, only the popularity of the item adds.
    """
    catalogue = model.catalogue
    if item not in _known(catalogue.items, [item]):
        return None
    unknown: list[Id] = []
    if history is None:
        people = people_of(model.fitted_, [user])
    else:
        known = _known(catalogue.items, history)
        unknown = [each for each in history if each not in known]
        people = _people(model, [{each: x for each, x in history.items() if each in known}])
    boost, ids = _known_kind(boost, _type_of(catalogue.items))
    lost = {*ids} - _known(catalogue.items, ids)
    unknown += [each for each in ids if each in lost]
    if boost is not None:
        boost = {
            way: x if isinstance(x, str) else {each: number for each, number in x.items() if each not in lost}
            for way, x in boost.items()
        }
    is_known = bool(people.are_known[0])
    people = replace(people, unknown=(), as_ones=0)  # which the answer tells
    contributions, *others = explanation(model.fitted_, item, history=people, novelty=novelty, boost=boost)
    place = catalogue.index_of(item)
    columns = reason_columns(catalogue, place, contributions, *others)
    columns.pop("both", None)  # which is for tables
    rows = list(rows_of(columns))
    for row, part in zip(rows, contributions, strict=False):  # the base score has none of these
        row |= _features_of_both(catalogue, place, part.item) if part.weight else {}
    score = sum(row["contribution"] for row in rows)
    return {
        "item": item, "score": score, "contributions": rows, "unknown": unknown, "known": is_known,
    }  # fmt: skip


def _known(items: Ids, ids: Iterable[Id]) -> set[Id]:
    """Return those of some ids that the model has."""
    possible = [item for item in ids if type(item) is _type_of(items)]
    return {
        item
        for item, place in zip(possible, items.find(possible, "item").tolist(), strict=True)
        if place >= 0
    }
