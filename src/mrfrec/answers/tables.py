"""Answers as columns and rows: the one way to tables, files, databases, JSON, the terminal and the page."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from mrfrec.answers.people import People, people_of, without_repetitions
from mrfrec.answers.question import Question
from mrfrec.answers.ranking import nearest
from mrfrec.answers.recommending import Explanation, PreparedQuestion, Recommendations
from mrfrec.checks import check_count, warn
from mrfrec.core.engine import Progress
from mrfrec.data.catalogue import Catalogue, Columns, name_with_id
from mrfrec.data.ids import Id, as_list, is_table
from mrfrec.errors import ParameterError
from mrfrec.fitted.state import FittedState, Runtime
from mrfrec.io.frames import check_target, writing_rows
from mrfrec.io.staging import Staging

Array = npt.NDArray[Any]
Form = Literal["parquet", "csv", "jsonl"] | None

RECOMMENDATION_COLUMNS = ("user", "item", "title", "score", "rank", "source")
NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
SIMILAR_COLUMNS = ("similar_to", *NEIGHBOR_COLUMNS)
REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
SEARCH_COLUMNS = ("item", "title", "users")
_ITEMS_AT_ONCE = 1024  # items of a batch, whose neighbors are written at once


# ── recommendations ───────────────────────────────────────────────────────────────────────────────


def recommendation_columns(catalogue: Catalogue, answer: Recommendations) -> Columns:
    """Return user, item, title, score, rank and source, and with reasons base, boost and reasons.

    The reasons of an item are a list of mappings with item, title and contribution, and with `both` where
    features in common carry the weight. `boost` is there only if the question has one.
    """
    filled = answer.items >= 0
    owner, index = np.nonzero(filled)
    items = answer.items[filled]
    columns = {
        "user": [answer.users[u] for u in owner.tolist()],
        **catalogue.columns(items),
        "score": answer.scores[filled],
        "rank": (index + 1).astype(np.int32),
        "source": ["model" if known else "popular" for known in answer.evidence[filled].tolist()],
    }
    if answer.parts is not None:
        base, others, amounts, boost = answer.parts
        columns["base"] = base[filled]
        if boost is not None:
            columns["boost"] = boost[filled]
        named = {
            item: {"item": catalogue.items[item], "title": catalogue.short_title(item)}
            for item in np.unique(others[others >= 0]).tolist()
        }
        columns["reasons"] = [
            [
                {**named[other], "contribution": amount, **_in_common(catalogue, item, other)}
                for other, amount in zip(*reasons, strict=True)
                if other >= 0
            ]
            for item, *reasons in zip(
                items.tolist(), others[filled].tolist(), amounts[filled].tolist(), strict=True
            )
        ]
    return columns


def _in_common(catalogue: Catalogue, item: int, other: int) -> dict[str, list[str]]:
    """Return {"both": names} for the features in common that carry the weight between two items, or {}."""
    names = catalogue.in_common(item, other)
    return {"both": names} if names else {}


def recommendation_table(catalogue: Catalogue, answer: Recommendations) -> Columns:
    """Return the columns of a table, in which the text `because` stands for the parts of the score."""
    columns = recommendation_columns(catalogue, answer)
    if "reasons" in columns:
        base, reasons = as_python(columns.pop("base")), columns.pop("reasons")
        boost = as_python(columns.pop("boost", [0.0] * len(base)))
        columns["because"] = [
            because_text(x, ((_named(reason), reason["contribution"]) for reason in parts), more)
            for x, parts, more in zip(base, reasons, boost, strict=True)
        ]
    return columns


def because_text(base: float, reasons: Iterable[tuple[str, float]], boost: float = 0.0) -> str:
    """Return the parts of a score as text: "base +0.74, boost +0.20, cython3 +0.01".

    Parts that round to 0.00 are left out, unless all do.
    """
    parts = (("base", base), ("boost", boost), *reasons)
    texts = [(name, f"{amount:+.2f}") for name, amount in parts if amount]
    shown = [(name, text) for name, text in texts if float(text)] or texts
    return ", ".join(f"{name} {text}" for name, text in shown)


def _named(reason: Mapping[str, Any]) -> str:
    """Return "title [id]", and the features in common: "Naruto [20] (both: naruto, shounen)"."""
    name = name_with_id(reason["item"], reason["title"])
    return f"{name} (both: {', '.join(reason['both'])})" if "both" in reason else name


def table_names(question: Question) -> tuple[str, ...]:
    """Return the names of the columns of `recommendation_table`."""
    return (*RECOMMENDATION_COLUMNS, "because") if question.explain else RECOMMENDATION_COLUMNS


def recommended_rows(catalogue: Catalogue, answers: Iterable[Recommendations]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `recommendation_table` as plain values."""
    return (row for answer in answers for row in rows_of(recommendation_table(catalogue, answer)))


@contextmanager
def staged_recommendations(
    fitted: FittedState,
    runtime: Runtime,
    path: str | PathLike[str] | Staging,
    users: object = None,
    *,
    history: object = None,
    target: "WriteOptions",
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[int]:
    """Write as `Recommender.recommend_to` does, with its options; the rows appear when the block ends.

    Yields the number of rows once all of them are written beside the file or the table. If the block
    raises, nothing changes.
    """
    check_target(path, target.get("form"), target.get("table"))
    question = Question.of(**options)
    prepared = PreparedQuestion.of(fitted, people_of(fitted, users, history), question)
    prepared.warn()
    types = {**fitted.column_types, "user": prepared.people.ids.type}
    tables = (
        recommendation_table(fitted.catalogue, answer) for answer in prepared.answers(runtime, progress)
    )
    with writing_rows(tables, table_names(question), types, path, **target) as count:
        yield count


class WriteOptions(TypedDict, total=False):
    """Where and how to write rows, besides the path; see `Recommender.recommend_to`."""

    form: Form
    table: str | None
    columns: Mapping[str, str] | None


# ── items: found by a text, or similar ────────────────────────────────────────────────────────────


def search_columns(catalogue: Catalogue, text: str, k: int) -> Columns:
    """Return item, title and users of up to k items that match a text, the best match first."""
    items = np.array(catalogue.search(text, k), np.int64)
    return {**catalogue.columns(items), "users": catalogue.popularity[items]}


def neighbor_columns(catalogue: Catalogue, items: npt.NDArray[Any], strengths: npt.NDArray[Any]) -> Columns:
    """Return item, title, score and rank of the items that go with an item, nearest first."""
    ranks = np.arange(1, len(items) + 1, dtype=np.int32)
    return {**catalogue.columns(items), "score": strengths, "rank": ranks}


def similar_tables(
    fitted: FittedState, item: Id | Iterable[Id], k: int
) -> tuple[Iterable[Columns], tuple[str, ...]]:
    """Return the nearest of an item, or of several, as columns, and the names of the columns."""
    if is_table(item) or (isinstance(item, Iterable) and not isinstance(item, str | bytes)):
        return neighbor_batches(fitted, k, as_list(item, "item", "item")), SIMILAR_COLUMNS
    near = nearest(fitted, fitted.catalogue.index_of(item), check_count("k", k))  # type: ignore[arg-type]
    if len(near[0]) < k:
        warn(f"item {item!r} has fewer than k={k} similar items: the model knows no more.")
    return [neighbor_columns(fitted.catalogue, *near)], NEIGHBOR_COLUMNS


def neighbor_batches(
    fitted: FittedState,
    k: int,
    items: Iterable[Id] | None = None,
    progress: Progress | None = None,
) -> Iterator[Columns]:
    """Return columns of the k nearest of items, of all by default, a thousand items at a time.

    The column `similar_to` names the item; an item that is given several times counts once.
    """
    k = check_count("k", k)
    wanted = np.arange(len(fitted.catalogue.items))
    if items is not None:
        wanted = fitted.catalogue.indices_of(as_list(items, "item", "items"))
        wanted = np.array(without_repetitions(wanted.tolist(), "item"), np.int64)
    return _batches(fitted, wanted, k, progress)


def _batches(
    fitted: FittedState, items: npt.NDArray[np.int64], k: int, progress: Progress | None
) -> Iterator[Columns]:
    """Yield columns of the k nearest of items, by position, a thousand items at a time."""
    short = 0
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        batch = items[start : start + _ITEMS_AT_ONCE]
        lists = [nearest(fitted, item, k) for item in batch.tolist()]
        counts = [len(near) for near, _ in lists]
        short += sum(count < k for count in counts)
        near, strengths = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        yield {
            "similar_to": fitted.catalogue.items.take(np.repeat(batch, counts)),
            **fitted.catalogue.columns(near),
            "score": strengths,
            "rank": np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts]),
        }
        if progress is not None:
            progress("finding similar items", start + len(batch), len(items))
    if short:
        warn(
            f"{short:,} of {len(items):,} items have fewer than k={k} similar items: the model knows no more."
        )


@contextmanager
def staged_similar_items(
    fitted: FittedState,
    path: str | PathLike[str] | Staging,
    items: Iterable[Id] | None = None,
    *,
    k: int = 10,
    target: WriteOptions,
    progress: Progress | None = None,
) -> Iterator[int]:
    """Write as `Recommender.similar_items_to` does; the rows appear when the block ends."""
    check_target(path, target.get("form"), target.get("table"))
    batches = neighbor_batches(fitted, k, items, progress)
    with writing_rows(batches, SIMILAR_COLUMNS, fitted.column_types, path, **target) as count:
        yield count


# ── explanations ──────────────────────────────────────────────────────────────────────────────────


def reason_columns(catalogue: Catalogue, item: int, parts: Explanation) -> Columns:
    """Return item, title, value, weight and contribution; a base score and a boost other than 0 are last.

    With features there is a column `both`: a list of the features in common, where they carry the weight.
    """
    reasons = parts.contributions
    columns: Columns = {
        **catalogue.columns(np.array([c.item for c in reasons], np.int64)),
        # Adding 0 turns −0.0 into 0.0.
        "value": [c.value for c in reasons],
        "weight": [c.weight + 0.0 for c in reasons],
        "contribution": [c.amount + 0.0 for c in reasons],
    }
    if catalogue.features is not None:
        columns["both"] = [(catalogue.in_common(item, c.item) or None) if c.weight else None for c in reasons]
    for title, amount in (("(base score)", parts.base), ("(boost)", parts.boost)):
        if amount:
            last = {"title": title, "contribution": amount}
            columns = {name: [*values, last.get(name)] for name, values in columns.items()}
    return columns


def reason_table(catalogue: Catalogue, item: int, parts: Explanation) -> Columns:
    """Return the columns of a table, in which `both` is a text."""
    columns = reason_columns(catalogue, item, parts)
    if "both" in columns:
        columns["both"] = [None if names is None else ", ".join(names) for names in columns["both"]]
    return columns


# ── what training users have ──────────────────────────────────────────────────────────────────────


def history_columns(fitted: FittedState, users: object) -> tuple[Columns, People]:
    """Return user, item and title; value unless all are 1; and time where it is known; and the users.

    The items of a user are in the order of their times; at equal times, in the order of the model.
    """
    training = fitted.training_for("history", "Fit it again, and")
    people = people_of(fitted, users)
    if people.unknown:
        rule = "training users, whose ids users_ has"
        raise ParameterError("users", rule, people.unknown[0].ids[0], "Give recommend the history instead.")
    chosen = np.arange(len(people)) if people.rows is None else people.rows
    rows, times = training.histories, None if training.origin is None else training.origin.times
    lengths = np.diff(rows.ptr)[chosen]
    owner = np.repeat(np.arange(len(chosen)), lengths)
    entry = np.arange(len(owner)) + np.repeat(rows.ptr[chosen] - (np.cumsum(lengths) - lengths), lengths)
    if times is not None:
        entry = entry[np.lexsort((times[entry], owner))]
    columns = {"user": people.ids.take(owner), **fitted.catalogue.columns(rows.items[entry])}
    if not fitted.size.binary:
        columns["value"] = rows.values[entry].astype(np.float64)
    if times is not None and times.min() != times.max():
        columns["time"] = times[entry].astype("datetime64[us]")
    return columns, people


# ── columns and rows ──────────────────────────────────────────────────────────────────────────────


def columns_shown(catalogue: Catalogue, names: Iterable[str], without_user: bool = False) -> list[str]:
    """Return the columns of a table to look at: no titles if there are none, and perhaps no user.

    Files, tables of databases and JSON have all columns, whatever the model.
    """
    left_out = ("title" if catalogue.titles is None else "", "user" if without_user else "")
    return [name for name in names if name not in left_out]


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Turn columns into rows of plain Python values."""
    lists = [as_python(values) for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def as_python(values: Any) -> list[Any]:
    """Return a column as a list of plain Python values."""
    if not isinstance(values, np.ndarray):
        return list(values)
    # The shortest digits of a 32-bit number, 0.1, instead of those of the same 64-bit number, 0.10000000149.
    return [float(str(x)) for x in values] if values.dtype == np.float32 else list(values.tolist())
