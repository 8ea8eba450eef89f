"""Let the workers of a cluster make recommendations for many users: a folder of Parquet files.

Each part holds the rows of a range of users. The folder appears when all parts are in it.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mrfrec.answers.filters import Filters
from mrfrec.answers.people import People
from mrfrec.answers.question import Question
from mrfrec.answers.recommending import as_table, check_question, ranked
from mrfrec.core.progress import Progress
from mrfrec.errors import ParameterError
from mrfrec.fitted.state import FittedState, Runtime
from mrfrec.io.atomic import file_path, writing

_USERS_OF_A_PART = 20_000  # at most
_ROWS_OF_A_PART = 1_000_000

Span = tuple[int, int]


def recommend_in_parts(
    fitted: FittedState,
    people: People,
    question: Question,
    path: "str | os.PathLike[str]",
    client: Any,
    progress: Progress | None = None,
) -> int:
    """Let the workers of a cluster fill a new folder with recommendations; return the number of rows."""
    from mrfrec.engines.cluster import ClusterEngine, check_client
    from mrfrec.io.frames import count_rows

    check_client(client)
    people = people.asked_at(question.at)
    filters = check_question(fitted, people, question)
    # `filters` holds these.
    unfiltered = replace(question, allow=None, exclude=None, where=None, boost=None)
    without_data = replace(fitted, source=None)  # the people have their histories
    users = len(people)
    size = max(min(_USERS_OF_A_PART, _ROWS_OF_A_PART // question.k), 1)
    spans = [(start, min(start + size, users)) for start in range(0, max(users, 1), size)]
    with _new_folder(file_path(path)) as folder, ClusterEngine(client) as engine:

        def add(span: Span, part: bytes) -> None:
            with writing(folder / f"part-{span[0] // size:05}.parquet") as file:
                file.write_bytes(part)
            if progress is not None:
                progress("recommending", span[1], users)

        engine.fold(
            "recommend",
            partial(_part, without_data, people, unfiltered, filters),
            spans,
            add,
            [1] * len(spans),
        )
        rows = count_rows(folder.glob("part-*.parquet"))
    if rows < question.k * users:
        question.warn_of_few(
            f"there are {rows:,} rows and not k={question.k} for each of {users:,} users", filters.left
        )
    return rows


def _part(
    fitted: FittedState, people: People, question: Question, filters: Filters, span: Span, engine: object
) -> bytes:
    """Return a Parquet file of the recommendations for a range of users."""
    from mrfrec.io.frames import as_parquet

    batches = ranked(fitted, Runtime(threads=1), people, question, filters, span=span)
    return as_parquet(*as_table(fitted, people, question, batches))


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside this one, which takes its name at the end, or is removed after an error."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ParameterError("path", "a new or empty folder, with a client", str(folder), "Use another one.")
    if not folder.parent.is_dir():
        raise ParameterError("path", "in a folder that exists", str(folder), "Make the folder first.")
    unfinished = folder.with_name(f".{folder.name[:40]}.{secrets.token_hex(4)}.unfinished")
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
