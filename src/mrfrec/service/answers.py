"""Answers of a model as plain data, for the API and the page. Ids that a model does not know are reported."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from mrfrec.answers.question import Question
from mrfrec.answers.reasons import explanation
from mrfrec.answers.similar import nearest
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Id, Ids
from mrfrec.models.parameters import runtime_of
from mrfrec.models.recommender import Recommender

Row = dict[str, Any]


class Answered(NamedTuple):
    """Recommended items, best first, and the ids of the history that are unknown."""

    items: list[Row]
    unknown: list[Id]


def recommend(
    model: Recommender, histories: Sequence[Mapping[Id, float | None]], question: Question
) -> tuple[list[Answered], list[Id]]:
    """Recommend to each history, a mapping from items to values; None stands for the usual value.

    Returns the answers, and the unknown ids of `allow` and `exclude`: once, since all answers share them.
    """
    usual, kind = model.fitted_.usual_value, _type_of(model.items_)
    values = [
        {item: usual if x is None else x for item, x in history.items() if type(item) is kind}
        for history in histories
    ]
    # A list of items, whose values are all None, is oldest first.
    are_lists = all(x is None for history in histories for x in history.values())
    order = [list(range(len(history))) for history in values] if are_lists else None
    people = people_with_values(model.items_, values, order)
    people = replace(people, are_times=False, recency=model.fitted_.learned.recency)
    missing = {item for each in people.unknown for item in each.ids}
    unknown = [
        [item for item in history if type(item) is not kind or item in missing]
        if missing or len(known) < len(history) else []
        for history, known in zip(histories, values, strict=True)
    ]  # fmt: skip
    return _answers(model, people, question, unknown)


def recommend_to_user(model: Recommender, user: Id, question: Question) -> tuple[list[Answered], list[Id]]:
    """Recommend to a training user; returns what `recommend` does."""
    return _answers(model, people_of(model.fitted_, [user]), question, [[]])


def _answers(
    model: Recommender, people: People, question: Question, unknown: list[list[Id]]
) -> tuple[list[Answered], list[Id]]:
    kind = _type_of(model.items_)
    wanted: dict[str, list[Id]] = {
        name: list(dict.fromkeys(ids))
        for name in ("allow", "exclude")
        if (ids := getattr(question, name)) is not None
    }
    # Ids of the other type are no error here; the filters tell which of the rest are unknown.
    possible: dict[str, Any] = {
        name: [item for item in ids if type(item) is kind] for name, ids in wanted.items()
    }
    missing: list[UnknownIds] = []
    batches = recommending.recommend(
        model.fitted_, runtime_of(model), people, replace(question, **possible), unknown=missing
    )
    lost = {each.parameter: {*each.ids} for each in missing}
    others = [
        item
        for name, ids in wanted.items()
        for item in ids
        if type(item) is not kind or item in lost.get(name, ())
    ]
    rows = [each for batch in batches for each in _rows(model, batch)]
    return [Answered(*each) for each in zip(rows, unknown, strict=True)], others


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
            bases, others, amounts = (part[user, :count] for part in batch.parts)
            named_others = {
                item: {"item": catalogue.items[item], "title": catalogue.short_title(item)}
                for item in np.unique(others[others >= 0]).tolist()
            }
            parts = as_python(bases), others.tolist(), amounts.tolist()
            for row, target, base, *reasons in zip(rows, items.tolist(), *parts, strict=True):
                row["base"] = base
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
        "data": model.data_size_._asdict(),
        "item_ids": "strings" if model.items_.is_text else "integers",
        "types": {"item": model.items_.kind, "score": model.fitted_.score_type},
        "titles": model.titles_ is not None,
        "histories": model.has_histories,
        "explains": model.explains,
        "features": model.features_ is not None,
        "notes": model.notes_,
    }


def explain(
    model: Recommender,
    item: Id,
    history: Mapping[Id, float | None] | None,
    user: Id | None,
    novelty: float | None,
) -> Row | None:
    """Return the contribution of each item of a history, or of a user's, to the score of an item.

    Returns None for an unknown item. The user is known.
    """
    catalogue = model.catalogue
    if item not in _known(catalogue.items, [item]):
        return None
    unknown: list[Id] = []
    whose: dict[str, Any] = {"user": user}
    if history is not None:
        known, usual = _known(catalogue.items, history), model.fitted_.usual_value
        unknown = [each for each in history if each not in known]
        whose = {"history": {each: usual if x is None else x for each, x in history.items() if each in known}}
    contributions, base = explanation(model.fitted_, item, novelty=novelty, **whose)
    place = catalogue.position(item)
    columns = reason_columns(catalogue, place, contributions, base)
    columns.pop("both", None)  # which is text, for tables
    rows = list(rows_of(columns))
    for row, part in zip(rows, contributions, strict=False):  # the base score has no features
        row |= _features_of_both(catalogue, place, part.item) if part.weight else {}
    score = sum(row["contribution"] for row in rows)
    return {"item": item, "score": score, "contributions": rows, "unknown": unknown}


def _known(items: Ids, ids: Iterable[Id]) -> set[Id]:
    """Return those of some ids that the model has."""
    possible = [item for item in ids if type(item) is _type_of(items)]
    return {
        item
        for item, place in zip(possible, items.find(possible, "item").tolist(), strict=True)
        if place >= 0
    }
