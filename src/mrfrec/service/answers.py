"""Turn a model's answers into plain data for the API and the page, and report unknown ids."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mrfrec.answers.filters import boost_of
from mrfrec.answers.people import People, UnknownIds, find_ids, people_of
from mrfrec.answers.question import Boost, Question
from mrfrec.answers.ranking import nearest
from mrfrec.answers.recommending import PreparedQuestion, check_explains, explanations
from mrfrec.answers.tables import (
    neighbor_columns,
    reason_columns,
    recommendation_columns,
    rows_of,
    search_columns,
)
from mrfrec.data.ids import Id, Ids
from mrfrec.fitted.state import Runtime
from mrfrec.models.recommender import Recommender

Row = dict[str, Any]
History = Mapping[Id, float | np.datetime64 | None]
"""A history: items with values or times, or with None for all if they are in order, oldest first."""


class Answered(NamedTuple):
    """The answer to one history or user."""

    items: list[Row]  # recommended items, best first
    unknown: list[Id]  # ids of the history that the model does not know
    known: bool  # whether the history has an item that the model knows


def recommend(
    model: Recommender, histories: Sequence[History], question: Question
) -> tuple[list[Answered], list[Id]]:
    """Return recommendations for each history, and the unknown ids of `allow`, `exclude` and `boost`."""
    people = people_of(model.fitted_, history=list(histories), any_type=True)
    missing = {*_ids(people.unknown)}
    unknown = [[item for item in history if item in missing] for history in histories]
    return _answers(model, people, question, unknown)


def recommend_to_user(model: Recommender, user: Id, question: Question) -> tuple[list[Answered], list[Id]]:
    """Return the same as `recommend`, for a user of the training data."""
    return _answers(model, people_of(model.fitted_, [user], any_type=True), question, [[]])


def _answers(
    model: Recommender, people: People, question: Question, unknown: list[list[Id]]
) -> tuple[list[Answered], list[Id]]:
    prepared = PreparedQuestion.of(model.fitted_, people, question)
    runtime, items = Runtime.of(model), []
    for batch in people.batches():
        answer = prepared.answer(runtime, batch)
        columns = recommendation_columns(model.catalogue, answer)
        del columns["user"]
        rows = rows_of(columns)
        items += [list(islice(rows, count)) for count in (answer.items >= 0).sum(axis=1).tolist()]
    answers = zip(items, unknown, people.are_known.tolist(), strict=True)
    return [Answered(*each) for each in answers], _ids(prepared.filters.unknown)


def _ids(unknown: Iterable[UnknownIds]) -> list[Id]:
    """Return the unknown ids of all parameters, without duplicates within a parameter."""
    return [item for ids in unknown for item in dict.fromkeys(ids.ids)]


def similar(model: Recommender, index: int, k: int) -> list[Row]:
    """Return the k items most similar to an item, most similar first."""
    return list(rows_of(neighbor_columns(model.catalogue, *nearest(model.fitted_, index, k))))


def search(model: Recommender, text: str, k: int) -> list[Row]:
    """Find items by id or title."""
    return list(rows_of(search_columns(model.catalogue, text, k)))


def item(model: Recommender, index: int) -> Row:
    """Return the id and title of an item, and its number of users."""
    row = next(rows_of(model.catalogue.columns(np.array([index]))))
    return {**row, "users": int(model.popularity_[index])}


def find_item(items: Ids, text: str) -> int | None:
    """Return the index of the item whose id a URL contains; None if it is unknown."""
    if items.is_text:
        wanted: Id = text
    elif re.fullmatch(r"-?[0-9]{1,20}", text):
        wanted = int(text)
    else:
        return None
    index = int(items.find([wanted], "item")[0])
    return index if index >= 0 else None


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
    """Explain the score of an item by the contributions of a history, or of a user's history.

    Return None if the item is unknown. An unknown user gets the base score.
    """
    fitted, catalogue = model.fitted_, model.catalogue
    target = find_ids([item], catalogue.items, "item", "item", any_type=True)[0]
    if target[0] < 0:
        return None
    check_explains(fitted)
    if history is None:
        people, unknown = people_of(fitted, [user]), []
    else:
        people = people_of(fitted, history=[history], any_type=True)
        unknown = _ids(people.unknown)
    boosts, others = boost_of(catalogue, boost, any_type=True)
    (parts,) = explanations(fitted, target, people, novelty, boosts)
    rows = list(rows_of(reason_columns(catalogue, int(target[0]), parts)))
    for row in rows:
        if not row.get("both", True):
            del row["both"]
    return {
        "item": item, "score": parts.score, "contributions": rows, "unknown": [*unknown, *_ids(others)],
        "known": bool(people.are_known[0]),
    }  # fmt: skip
