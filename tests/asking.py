"""Ask a model for rows of plain values, without warnings: what tests compare."""

from typing import Any

from mrfrec.answers.people import people_of
from mrfrec.answers.question import Question
from mrfrec.answers.recommending import PreparedQuestion
from mrfrec.answers.tables import recommended_rows
from mrfrec.fitted.state import Runtime
from mrfrec.models.recommender import Recommender

Rows = list[dict[str, Any]]


def rows_for(model: Recommender, users: object = None, **options: Any) -> Rows:
    """The recommendations of `model.recommend(users, **options)`."""
    return rows_and_unknown(model, users, **options)[0]


def rows_and_unknown(
    model: Recommender, users: object = None, *, history: object = None, **options: Any
) -> tuple[Rows, dict[str, list[Any]]]:
    """The recommendations, and the ids that the model does not know by the name of the parameter."""
    people = people_of(model.fitted_, users, history)
    prepared = PreparedQuestion.of(model.fitted_, people, Question.of(**options))
    answers = (prepared.answer(Runtime.of(model), batch) for batch in people.batches())
    rows = list(recommended_rows(model.catalogue, answers))
    return rows, {each.parameter: each.ids for each in prepared.unknown}
