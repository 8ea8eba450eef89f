"""Ask a model for rows of plain values, without warnings: what tests compare."""

from typing import Any

from mrfrec.answers.people import UnknownIds, people_of
from mrfrec.answers.question import Question
from mrfrec.answers.recommending import as_rows
from mrfrec.models.parameters import runtime_of
from mrfrec.models.recommender import Recommender

Rows = list[dict[str, Any]]


def rows_for(model: Recommender, users: object = None, **options: Any) -> Rows:
    """The recommendations of `model.recommend(users, **options)`."""
    return rows_and_unknown(model, users, **options)[0]


def rows_and_unknown(
    model: Recommender, users: object = None, *, history: object = None, **options: Any
) -> tuple[Rows, dict[str, list[Any]]]:
    """The recommendations, and the ids that the model does not know by the name of the parameter."""
    unknown: list[UnknownIds] = []
    people = people_of(model.fitted_, users, history)
    rows = list(as_rows(model.fitted_, runtime_of(model), people, Question.of(**options), unknown))
    return rows, {each.parameter: each.ids for each in unknown}
