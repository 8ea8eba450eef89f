"""Answer a question: recommend items to people, and explain scores by the items of a history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrfrec.answers.filters import Filters, boost_of
from mrfrec.answers.people import Batch, People, UnknownIds, people_of
from mrfrec.answers.question import Boost, Question, check_boost, check_novelty
from mrfrec.answers.ranking import rank, rank_by_rules
from mrfrec.core.engine import Progress
from mrfrec.core.rows import Rows
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.scorers import ItemBoost, novelty_factors
from mrfrec.fitted.state import FittedState, Runtime

Array = npt.NDArray[Any]
WeightsBetween = Callable[[Array, Array, Array], npt.NDArray[np.float64]]

_WEIGHTS_AT_ONCE = 100_000  # weights from a history to its recommended items: some megabytes


class ScoreParts(NamedTuple):
    """The parts of the scores of recommended items."""

    base: Array  # base scores, users × k
    items: npt.NDArray[np.int32]  # items of the history, users × k × reasons; −1 where there are no more
    amounts: npt.NDArray[np.float64]  # what these items add to the score
    boost: npt.NDArray[np.float64] | None = None  # what a boost adds to the score, users × k


@dataclass(frozen=True)
class Recommendations:
    """Recommendations for a batch of users: arrays of users × k, item −1 where nothing is left."""

    users: list[Id]
    items: npt.NDArray[np.int32]
    scores: Array
    evidence: npt.NDArray[np.bool_]  # The history has an item with a weight for the recommended one.
    parts: ScoreParts | None = None

    def short_of(self, k: int) -> int:
        """Return the number of users with fewer than k items."""
        return int((self.items[:, -1] < 0).sum()) if self.items.shape[1] == k else len(self.users)


@dataclass(frozen=True)
class PreparedQuestion:
    """A question to a model about people, checked and looked up: nothing in it will be refused later."""

    fitted: FittedState
    people: People
    question: Question
    filters: Filters
    more_novelty: float

    @classmethod
    def of(cls, fitted: FittedState, people: People, question: Question) -> "PreparedQuestion":
        """Refuse a question that the model cannot answer, and look up its items and columns."""
        if question.explain:
            check_explains(fitted)
        filters = Filters.of(people, fitted.catalogue, question)
        for unknown in people.unknown:
            if question.strict and unknown.parameter == "users":
                unknown.refuse()
        return cls(fitted, people, question, filters, added_novelty(fitted, question.novelty))

    @property
    def unknown(self) -> tuple[UnknownIds, ...]:
        """The ids that the model does not know, by parameter."""
        return (*self.people.unknown, *self.filters.unknown)

    def warn(self) -> None:
        """Warn of unknown ids, and of values that the model has no use for."""
        self.people.warn()
        for unknown in self.filters.unknown:
            unknown.warn()

    def answer(self, runtime: Runtime, batch: Batch) -> Recommendations:
        """Recommend to a batch of the people."""
        fitted, filters, more = self.fitted, self.filters, self.more_novelty
        histories, rules = batch.histories, filters.rules
        k = min(self.question.k, len(fitted.catalogue.items))
        eligible = filters.eligible(batch.start, histories, self.question.exclude_seen)
        if rules:
            ranked = rank_by_rules(fitted, runtime, histories, k, rules, eligible, more)
        else:
            ranked = rank(fitted, runtime, histories, k, eligible, more_novelty=more)
        items, scores, _ = ranked
        if not self.question.explain:
            return Recommendations(batch.ids, *ranked)
        base = fitted.base(unknown_user=False, more_novelty=more).scores[items]
        empty = histories.ptr[1:] == histories.ptr[:-1]
        if empty.any():
            base[empty] = fitted.base(unknown_user=True, more_novelty=more).scores[items[empty]]
        reasons = _reasons(scaled_weights(fitted, more), histories, items, self.question.explain)
        boost = None if rules.boost is None else rules.boost.part_of(items, scores)
        return Recommendations(batch.ids, *ranked, ScoreParts(base, *reasons, boost))

    def answers(self, runtime: Runtime, progress: Progress | None = None) -> Iterator[Recommendations]:
        """Recommend to all people, a batch at a time; warn at the end of users with fewer than k items."""
        k, done, short = self.question.k, 0, 0
        for batch in self.people.batches():
            answer = self.answer(runtime, batch)
            yield answer
            done, short = done + len(batch.ids), short + answer.short_of(k)
            if progress is not None:
                progress("recommending", done, len(self.people))
        if short:
            shortage = f"{short:,} of {len(self.people):,} users get fewer than k={k} items"
            self.question.warn_of_few(shortage, self.filters.left)


def check_explains(fitted: FittedState) -> None:
    """Refuse a model whose scores are no sums over the items of a history."""
    if not fitted.learned.explains:
        raise DataError(
            f"a {fitted.kind} cannot explain: its scores are no sums over the items of a "
            "history. MRF, EASE, EDLAE and ItemKNN can."
        )


def added_novelty(fitted: FittedState, novelty: float | None) -> float:
    """Return the difference between this novelty and the one the model was fitted with."""
    if novelty is None:
        return 0.0
    if not fitted.learned.scales_scores:
        raise DataError(
            f"a {fitted.kind} takes no novelty: its scores are no sums of weights, and dividing "
            "them by popularity means nothing. MRF, EASE, EDLAE and ItemKNN do."
        )
    return novelty - fitted.novelty


# ── the parts of a score ──────────────────────────────────────────────────────────────────────────


class Contribution(NamedTuple):
    """The contribution of one item of a history to a score: `value · weight`."""

    item: int
    value: float
    weight: float

    @property
    def amount(self) -> float:
        """The product, exact in 64 bits for factors of 32 bits."""
        return self.value * self.weight


class Explanation(NamedTuple):
    """The parts of one score: contributions, the largest first, the base score and a boost."""

    contributions: list[Contribution]
    base: float
    boost: float = 0.0

    @property
    def score(self) -> float:
        """The sum of the parts."""
        return fsum([self.base, self.boost, *(part.amount for part in self.contributions)])


def explanation(
    fitted: FittedState,
    item: Id,
    *,
    user: Id | None = None,
    history: object = None,
    novelty: float | None = None,
    boost: Boost = None,
) -> Explanation:
    """Return the parts of the score of an item, for a user or a history; warn of unknown ids."""
    index = fitted.catalogue.index_of(item)
    check_explains(fitted)
    if (user is None) == (history is None):
        raise ParameterError(
            "user", "given, or else a history", user, "Exactly one of them says whose score."
        )
    people = people_of(fitted, None if user is None else [user], history)
    people.warn()
    boosts, unknown = boost_of(fitted.catalogue, check_boost(boost))
    for ids in unknown:
        ids.warn()
    return explanations(fitted, np.array([index]), people, novelty, boosts)[0]


def explanations(
    fitted: FittedState,
    targets: Array,
    people: People,
    novelty: float | None = None,
    boost: ItemBoost | None = None,
) -> list[Explanation]:
    """Return the parts of the scores of some items, by index, for one history."""
    if len(people) != 1:
        raise ParameterError("history", "of one person", people.ids[:2])
    histories = next(people.batches()).histories
    more = added_novelty(fitted, check_novelty(novelty))
    indices, *factors = _largest(scaled_weights(fitted, more), histories.items, histories.values, targets)
    columns = (each.tolist() for each in (histories.items[indices], *factors))
    contributions = [list(map(Contribution, *of_target)) for of_target in zip(*columns, strict=True)]
    base = fitted.base(unknown_user=not len(histories.items), more_novelty=more).scores[targets]
    plain = [Explanation(*parts) for parts in zip(contributions, base.tolist(), strict=True)]
    if boost is None:
        return plain
    scores = np.array([parts.score for parts in plain], np.float64)
    added = boost.boosted(targets, scores) - scores
    return [parts._replace(boost=x) for parts, x in zip(plain, added.tolist(), strict=True)]


def scaled_weights(fitted: FittedState, more_novelty: float) -> WeightsBetween:
    """Return the function that gives the weights between items, scaled for more novelty."""
    weights_between = fitted.learned.weights_between
    if not more_novelty:
        return weights_between
    factors = novelty_factors(fitted.catalogue.popularity, more_novelty)
    return lambda had, values, targets: weights_between(had, values, targets) * factors[targets]


def _largest(
    weights_between: WeightsBetween, had: Array, values: Array, targets: Array, count: int | None = None
) -> tuple[Array, Array, Array]:
    """Return which items j of a history add most to each target i, and their x_j and B_ji.

    The first array has indices into the history. All have the shape targets × `count`, or × the length of the
    history: the largest x_j·B_ji first, and of equal ones the first item.
    """
    weights = weights_between(had, values, targets).T
    # In float64, a product of two float32 is exact.
    x = values.astype(np.float64)
    indices = (-x * weights).argsort(axis=1, kind="stable")[:, :count]
    return indices, x[indices], weights[np.arange(len(targets))[:, None], indices]


def _reasons(
    weights_between: WeightsBetween, histories: Rows, items: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return the items of the histories that add most to each of users × k items, and how much they add.

    Both are users × k × `count`, the largest first; item −1 where nothing more adds anything.
    """
    reasons = np.full((*items.shape, count), -1, np.int32)
    amounts = np.zeros((*items.shape, count))
    for u, recommended in enumerate(items):
        span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
        had, values = histories.items[span], histories.values[span]
        targets = recommended[recommended >= 0]
        step = max(1, _WEIGHTS_AT_ONCE // max(len(had), 1))
        for first in range(0, len(targets), step):
            some = targets[first : first + step]
            indices, x, weights = _largest(weights_between, had, values, some, count)
            part = u, slice(first, first + len(indices)), slice(indices.shape[1])
            amounts[part] = x * weights
            reasons[part] = np.where(amounts[part] > 0, had[indices], -1)
    return reasons, amounts
