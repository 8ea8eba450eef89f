"""Compare new data and a new model with what was published before: bounds, faults, and samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.answers.people import people_of
from mrfrec.answers.question import Question
from mrfrec.answers.recommending import PreparedQuestion
from mrfrec.answers.tables import recommended_rows, rows_of
from mrfrec.checks import shortened
from mrfrec.data.catalogue import name_with_id
from mrfrec.data.holdout import hashed, hidden_after, hold_out, owners
from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import MrfrecError
from mrfrec.evaluation.metrics import Mean
from mrfrec.evaluation.protocol import evaluate_fitted
from mrfrec.evaluation.questions import ask, numbered, over_columns
from mrfrec.fitted.state import Runtime
from mrfrec.models.recommender import Recommender
from mrfrec.nightly.job import Guard

SIZES = ("users", "items", "pairs")
_ROUNDING = 1e-9  # relative error of a share such as 0.3 of 10 users
_COMPARED_USERS = 1_000  # users for whom both models are asked
_COMPARED_ITEMS = 10  # recommendations per user that are compared
_SHOWN_ITEMS = 5  # items of a history, and recommendations, in a sample
_LONGEST_TITLE = 80  # characters


def drift(before: Recommender, data: Interactions) -> dict[str, Any]:
    """Return the share of the interactions that moved to other items, and how many items are new or gone.

    The share is ½ Σ |p − q| over the items, where p and q are an item's share of the interactions before and
    now. It is near 1 if items have other ids than before.
    """
    q = data.popularity / max(data.popularity.sum(), 1)
    p = before.popularity_ / max(before.popularity_.sum(), 1)
    index_of = {str(item): index for index, item in enumerate(data.items)}  # 7 and "7" are the same
    index = np.array([index_of.get(str(item), -1) for item in before.items_])
    is_kept = index >= 0
    moved = round(float(1 - np.minimum(p[is_kept], q[index[is_kept]]).sum()), 6)
    kept = int(is_kept.sum())
    return {"drift": moved, "new_items": data.n_items - kept, "gone_items": len(index) - kept}


def ids_of(users: Ids | None, items: Ids) -> dict[str, str]:
    """Return the type of the ids, "integers" or "strings", for the record of the run."""
    both = {"users": users, "items": items}
    return {role: "strings" if ids.is_text else "integers" for role, ids in both.items() if ids is not None}


def changed_ids(before: Mapping[str, str], data: Interactions, *, is_batch: bool) -> list[str]:
    """Return a message if users or items have ids of another type than the published ids.

    A batch that is read from text may have only integers where the published ids are strings.
    """
    kinds = () if data.origin is None else (data.origin.users, data.origin.items)
    messages = []
    for ids, kind in zip((data.users, data.items), kinds or ("", ""), strict=True):
        role = "users" if ids is data.users else "items"
        now = ids_of(ids, ids)["users"]
        if before.get(role, now) == now or (is_batch and kind == "untyped" and not ids.is_text):
            continue
        odd = next((each for each in ids if not str(each).isdecimal()), ids[0])
        messages.append(
            f"the ids of {role} are {now}, such as {odd!r}, and those published are {before[role]}: nobody "
            "would find one by the other"
        )
    return messages


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least and the largest value of one number of a run that the guard lets pass."""

    number: str  # its name in the record of the run, such as "users"
    least: float = -math.inf
    most: float = math.inf
    before: float = 1.0  # value of earlier runs that it is compared with
    fault: str  # message for a value beyond the bound; {value} and its relative {change} are filled in

    def is_broken_by(self, value: float) -> bool:
        """Return whether a value is beyond the bound by more than rounding errors."""
        return value < self.least * (1 - _ROUNDING) or value > self.most * (1 + _ROUNDING)


def bounds_of(
    guard: Guard, recent: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> list[Bound]:
    """Return the bounds for a new run, compared with runs published recently and with the last of them.

    Smaller data is compared with the smallest of the recent runs, larger data with the largest. A usual night
    is therefore not refused after an odd night that was published.
    """
    bounds = []
    for name in SIZES if recent else ():
        fewest, most = min(run[name] for run in recent), max(run[name] for run in recent)
        bounds += [
            Bound(
                number=name,
                least=fewest * (1 - guard.max_shrink),
                before=fewest,
                fault=f"{{value:,}} {name} are {{change:.1%}} fewer than {fewest:,} "
                f"(max_shrink = {guard.max_shrink:g})",
            ),
            Bound(
                number=name,
                most=most * (1 + guard.max_growth),
                before=most,
                fault=f"{{value:,}} {name} are {{change:.1%}} more than {most:,} "
                f"(max_growth = {guard.max_growth:g})",
            ),
        ]
    moved = f"{{value:.1%}} of the interactions have moved to other items (max_drift = {guard.max_drift:g})"
    bounds.append(Bound(number="drift", most=guard.max_drift, fault=moved))
    again = (
        f"only {{value:.1%}} of a sample of the published pairs of a user and an item are there again "
        f"(min_again = {guard.min_again:g}), as if the ids of users were new"
    )
    bounds.append(Bound(number="same_pairs", least=guard.min_again, fault=again))
    for what in {what for run in recent for what in run.get("rows", {})}:
        fewest = min(run["rows"][what] for run in recent if what in run.get("rows", {}))
        fault = f"{{value:,}} rows of {what} are {{change:.1%}} fewer than {fewest:,} (max_shrink = "
        least = fewest * (1 - guard.max_shrink)
        bounds.append(Bound(number=what, least=least, before=fewest, fault=f"{fault}{guard.max_shrink:g})"))
    left_out = f"{{value:.2%}} of the rows are bad and were left out (max_bad = {guard.max_bad:g})"
    bounds.append(Bound(number="bad", most=guard.max_bad, fault=left_out))
    if before is not None and before.get("metric") == guard.metric and before["value"] > 0:
        bounds.append(
            Bound(
                number="value",
                least=before["value"] * (1 - guard.max_drop),
                before=before["value"],
                fault=f"{guard.metric} {{value}} is {{change:.1%}} below {before['value']:.4f} "
                f"(max_drop = {guard.max_drop:g})",
            )
        )
    if guard.min_metric:
        too_low = f"{guard.metric} {{value}} is below min_metric = {guard.min_metric:g}"
        bounds.append(Bound(number="value", least=guard.min_metric, fault=too_low))
    return bounds


def limits(bounds: Iterable[Bound]) -> dict[str, list[float | None]]:
    """Return the least and the largest value of each number, for the record of the run; None: no limit."""
    tightest: dict[str, tuple[float, float]] = {}
    for bound in bounds:
        least, most = tightest.get(bound.number, (-math.inf, math.inf))
        tightest[bound.number] = max(least, bound.least), min(most, bound.most)
    return {name: [x if math.isfinite(x) else None for x in pair] for name, pair in tightest.items()}


def faults(bounds: Iterable[Bound], numbers: Mapping[str, float | Mean | None]) -> list[str]:
    """Return the message of each bound that a number of a new run breaks; None is a number not known."""
    messages = []
    for bound in bounds:
        value = numbers.get(bound.number)
        x = value.mean if isinstance(value, Mean) else value
        if x is not None and bound.is_broken_by(x):
            messages.append(bound.fault.format(value=value, change=abs(x / bound.before - 1)))
    return messages


def predicted_since(
    before: Recommender, data: Interactions, latest: int, metric: str
) -> dict[str, Any] | None:
    """Return how well the model before would have predicted what came after the latest time of its data.

    At most 1,000 users are asked, those with the lowest hashes: users who were there before, and who took an
    item since then that the model knows and that they did not have. None without times, or if there is nobody
    to ask.
    """
    if data.times is None:
        return None
    items = before.items_
    try:
        column = items.find(list(data.items), "item")
    except MrfrecError:  # The ids have another type.
        return None
    X = over_columns(data.matrix, column, len(items))
    times = data.times[over_columns(numbered(data.matrix), column, len(items)).data]
    # Of a pair only the last time is known: who had an item before has it at the latest time.
    times = np.where(_known(before, data.users, X), np.minimum(times, latest), times)
    hide, was_there = hidden_after(X, times, latest + 1, odd_hidden=True)
    held = hold_out(X, times <= latest, hide, np.ones(len(items), np.bool_))
    users = held.users[was_there[held.users]]
    if not len(users):
        return None
    asked = users[np.argsort(hashed(data.users, users), kind="stable")[:_COMPARED_USERS]]
    questions = replace(ask(data.users, X, times, held, asked), items=items)
    found = evaluate_fitted(before, questions, [metric]).mean(metric)
    error = found.error if found.error == found.error else None
    return {"metric": metric, "value": found.mean, "error": error, "asked": len(users)}


def _known(before: Recommender, users: Ids, X: sp.csr_array) -> npt.NDArray[np.bool_]:
    """Return which entries of X the model has in its histories; none without histories."""
    training = before.fitted_.training
    known = np.zeros(X.nnz, np.bool_)
    if training is None or training.users.is_text != users.is_text:
        return known
    user = owners(X)
    row = training.users.find(list(users), "user")[user]
    both = np.flatnonzero(row >= 0)
    if not len(both):  # scipy has no empty selection
        return known
    known[both] = training.histories.matrix()[row[both], X.indices[both]] != 0
    return known


def compare_recommendations(
    model: Recommender, before: Recommender | None, data: Interactions, users: Ids, count: int, **options: Any
) -> dict[str, Any]:
    """Recommend to some users; return samples of what they get, and the share that they got before.

    At most 1,000 users are asked: those with the lowest hashes, the same every night. The samples are the
    first `count` of them, without their ids. `unchanged` is the share of the first 10 recommendations per
    user that `before`, the published model, gives too. It is None if there is no such model, or if it cannot
    answer about these histories.
    """
    chosen = np.argsort(hashed(users, np.arange(len(users))), kind="stable")[:_COMPARED_USERS]
    matrix = data.matrix[data.users.find(users.take(chosen), "user")]
    histories = Interactions(matrix, items=data.items, copy=False)
    rows = _recommended(model, histories, options)
    samples = []
    for user in range(min(count, len(chosen))):
        items = matrix[[user]].indices
        popular = items[np.argsort(-data.popularity[items], kind="stable")[:_SHOWN_ITEMS]]
        best = [row for row in rows if row["user"] == user][:_SHOWN_ITEMS]
        history = _names(rows_of(model.catalogue.columns(popular)))
        samples.append({"items": len(items), "history": history, "recommended": _names(best)})
    try:
        earlier = None if before is None else _recommended(before, histories, options)
    except MrfrecError:  # The ids have another type, or the model does not know an option.
        earlier = None
    unchanged = None if earlier is None else _share_in_common(rows, earlier)
    return {"samples": samples, "unchanged": unchanged}


def _recommended(
    model: Recommender, histories: Interactions, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the first 10 recommendations to every user, without warnings."""
    question = Question.of(k=_COMPARED_ITEMS, **options)
    people = people_of(model.fitted_, None, histories)
    prepared, runtime = PreparedQuestion.of(model.fitted_, people, question), Runtime.of(model)
    answers = (prepared.answer(runtime, batch) for batch in people.batches())
    return list(recommended_rows(model.catalogue, answers))


def _share_in_common(rows: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> float | None:
    """Return the share of the recommendations that were given before; None if either are empty."""
    now, then = ({(row["user"], row["item"]) for row in each} for each in (rows, before))
    return len(now & then) / len(now) if now and then else None


def _names(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [name_with_id(row["item"], shortened(row["title"] or "", _LONGEST_TITLE)) for row in rows]
