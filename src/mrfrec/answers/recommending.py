"""Recommend: rank items for the people a question is about, a batch of them at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from mrfrec.answers.columns import (
    RECOMMENDATION_COLUMNS,
    Recommendations,
    ScoreParts,
    recommendation_columns,
    rows_of,
)
from mrfrec.answers.filters import Filters
from mrfrec.answers.people import People, UnknownIds
from mrfrec.answers.question import Question
from mrfrec.answers.reasons import added_novelty, check_explains, reasons, scaled_weights
from mrfrec.answers.rules import Rules, boosts, rank_by_rules
from mrfrec.answers.selection import rank
from mrfrec.core.progress import Progress
from mrfrec.data.catalogue import Columns
from mrfrec.fitted.state import FittedState, Runtime


def recommend(
    fitted: FittedState,
    runtime: Runtime,
    people: People,
    question: Question,
    *,
    progress: Progress | None = None,
    unknown: list[UnknownIds] | None = None,
) -> Iterator[Recommendations]:
    """Check a question, and return recommendations for a few thousand users at a time.

    Warns of unknown ids and of users with fewer than k items; a list `unknown` takes the ids instead.
    """
    filters = check_question(fitted, people, question, unknown)
    return ranked(fitted, runtime, people, question, filters, progress, warns=unknown is None)


def check_question(
    fitted: FittedState, people: People, question: Question, unknown: list[UnknownIds] | None = None
) -> Filters:
    """Refuse a question that the model cannot answer, and look up its items and columns."""
    if question.explain:
        check_explains(fitted)
    filters = Filters.of(people, fitted.catalogue, question)
    rules, unknown_boosts = Rules.of(fitted.catalogue, question)
    filters = replace(filters, rules=rules, unknown=(*filters.unknown, *unknown_boosts))
    for each in people.unknown:
        if question.strict and each.parameter == "users":
            each.refuse()
    if unknown is None:
        people.warn()
    else:
        unknown += people.unknown
    for each in filters.unknown:
        each.warn() if unknown is None else unknown.append(each)
    added_novelty(fitted, question.novelty)
    return filters


def ranked(
    fitted: FittedState,
    runtime: Runtime,
    people: People,
    question: Question,
    filters: Filters,
    progress: Progress | None = None,
    *,
    warns: bool = False,
) -> Iterator[Recommendations]:
    """Yield recommendations for the people."""
    k, more_novelty = question.k, added_novelty(fitted, question.novelty)
    places, rules = min(k, len(fitted.catalogue.items)), filters.rules
    short = done = 0
    for start, names, histories in people.batches():
        which: dict[str, Any] = {
            "hide": filters.hide(start, histories, question.exclude_seen),
            "never": filters.hidden,
            "allowed": filters.allow(start, len(names)),
            "more_novelty": more_novelty,
        }
        if rules:
            ranking = rank_by_rules(fitted, runtime, histories, places, rules, **which)
        else:
            ranking = rank(fitted, runtime, histories, places, **which)
        items, scores, evidence = ranking
        short += int((items[:, -1] < 0).sum()) if places == k else len(names)
        explained = None
        if question.explain:
            base = fitted.base(unknown_user=False, more_novelty=more_novelty).scores[items]
            strangers = histories.ptr[1:] == histories.ptr[:-1]
            if strangers.any():
                others = fitted.base(unknown_user=True, more_novelty=more_novelty).scores
                base[strangers] = others[items[strangers]]
            weights = scaled_weights(fitted, more_novelty)
            boost = None if rules.lift is None else boosts(rules.lift, items, scores)
            found = reasons(weights, histories, items, question.explain)
            explained = ScoreParts(base, *found, boost)
        yield Recommendations(names, items, scores, evidence, explained)
        done += len(names)
        if progress is not None:
            progress("recommending", done, len(people))
    if short and warns:
        question.warn_of_few(f"{short:,} of {len(people):,} users get fewer than k={k} items", filters.left)


def as_table(
    fitted: FittedState, people: People, question: Question, batches: Iterable[Recommendations]
) -> tuple[Iterator[Columns], tuple[str, ...], dict[str, str]]:
    """Return batches as columns, the names of all columns, and the types that depend on the model."""
    columns = (recommendation_columns(fitted.catalogue, batch) for batch in batches)
    names = (*RECOMMENDATION_COLUMNS, "because") if question.explain else RECOMMENDATION_COLUMNS
    return columns, names, {**fitted.column_types, "user": people.names.type}


def as_rows(
    fitted: FittedState,
    runtime: Runtime,
    people: People,
    question: Question,
    unknown: list[UnknownIds] | None = None,
) -> Iterator[dict[str, Any]]:
    """Return recommendations as rows of plain values; see `recommend`."""
    batches = recommend(fitted, runtime, people, question, unknown=unknown)
    return (row for batch in batches for row in rows_of(recommendation_columns(fitted.catalogue, batch)))
