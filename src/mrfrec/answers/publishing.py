"""Write answers beside a file or a table of a database, and let them appear all at once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, TypedDict

from mrfrec.answers import recommending, similar
from mrfrec.answers.columns import SIMILAR_COLUMNS
from mrfrec.answers.people import people_of
from mrfrec.answers.question import Question
from mrfrec.core.progress import Progress
from mrfrec.data.ids import Id
from mrfrec.fitted.state import FittedState, Runtime
from mrfrec.io.frames import check_target, writing_rows
from mrfrec.io.staging import Staging

Form = Literal["parquet", "csv", "jsonl"] | None


class WriteOptions(TypedDict, total=False):
    """Where and how to write rows, besides the path; see `Recommender.recommend_to`."""

    form: Form
    table: str | None
    columns: Mapping[str, str] | None


@contextmanager
def staged_recommendations(
    fitted: FittedState,
    runtime: Runtime,
    path: str | PathLike[str] | Staging,
    users: object = None,
    *,
    history: object = None,
    target: WriteOptions,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[int]:
    """Write as `Recommender.recommend_to` does, with its options; the rows appear when the block ends.

    Yields the number of rows once all of them are written beside the file or the table. If the block
    raises, nothing changes.
    """
    check_target(path, target.get("form"), target.get("table"))
    question = Question.of(**options)
    people = people_of(fitted, users, history)
    batches = recommending.recommend(fitted, runtime, people, question, progress=progress)
    rows = recommending.as_table(fitted, people, question, batches)
    with writing_rows(*rows, path, **target) as count:
        yield count


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
    batches = similar.neighbor_batches(fitted, k, items, progress)
    with writing_rows(batches, SIMILAR_COLUMNS, fitted.column_types, path, **target) as count:
        yield count
