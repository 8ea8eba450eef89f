"""Let the workers of a cluster write recommendations for many users as the parts of a folder.

Each part holds the rows of a range of users and appears when it is whole. A manifest says what the folder is
for: the same call goes on with the parts that are missing, another one is refused.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.checks import warn
from mrfrec.core.engine import Progress
from mrfrec.data.catalogue import Training
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import file_path, writing
from mrfrec.models.answers.explaining import added_novelty
from mrfrec.models.answers.filters import Filters
from mrfrec.models.answers.histories import Query
from mrfrec.models.answers.question import Question
from mrfrec.models.answers.recommending import check_question, columns_of_part, table_form
from mrfrec.models.storage.arrays import catalogue_arrays, training_arrays

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender

_USERS = 20_000  # of a part, at most
_ROWS = 1_000_000
_MANIFEST = "manifest.json"

Span = tuple[int, int]
Columns = Iterable[Mapping[str, Any]]


def recommend_in_parts(
    model: "Recommender",
    query: Query,
    question: Question,
    path: "str | os.PathLike[str]",
    client: Any,
    shared_path: "str | os.PathLike[str] | None" = None,
    progress: Progress | None = None,
) -> int:
    """Let the workers of a cluster write recommendations to a folder; return the number of rows."""
    from mrfrec.engines.cluster import check_client

    check_client(client)
    filters = check_question(model, query, question)
    facts = _facts(model, query, question, filters)
    asked = replace(question, allow=None, exclude=None)  # the filters hold both
    there = copy(model)  # for tasks of one thread, without the training data, which the query has
    there.threads, there._training = 1, None
    there.__dict__.pop("_interactions", None)
    rows = _write_parts(
        path, partial(columns_of_part, there, query, asked, filters),
        table_form(model, query, bool(question.explain)), facts,
        client=client, shared_path=shared_path, progress=progress,
    )  # fmt: skip
    if rows < question.k * len(query):
        warn(
            f"there are {rows:,} rows and not k={question.k} for each of {len(query):,} users: for some, "
            "no more items are left that they have not seen and that are not excluded."
        )
    return rows


def _write_parts(
    path: "str | os.PathLike[str]",
    make: Callable[[Span], Columns],
    form: tuple[tuple[str, ...], dict[str, Any]],
    facts: dict[str, Any],
    *,
    client: Any,
    shared_path: "str | os.PathLike[str] | None",
    progress: Progress | None,
) -> int:
    """Write the parts of a folder that are not there yet; returns the number of rows of all of them.

    `make` returns the columns of a range of users, and can be pickled; `form` are their names and types.
    `facts` tell what the rows depend on, among it the number of `users` and k.
    """
    from mrfrec.engines.cluster import ClusterEngine
    from mrfrec.io.frames import count_rows

    folder, users = file_path(path), facts["users"]
    size = max(min(_USERS, _ROWS // facts["k"]), 1)
    facts = {**facts, "users_per_part": size}
    digests = _open(folder, facts)
    spans = [(start, min(start + size, users)) for start in range(0, max(users, 1), size)]
    files = {span: folder / f"part-{number:05}.parquet" for number, span in enumerate(spans)}
    missing = [span for span in spans if not _is_whole(files[span], digests)]
    done = users - sum(stop - start for start, stop in missing)

    def add(span: Span, part: bytes) -> None:
        nonlocal done
        _write(files[span], part)
        digests[files[span].name] = hashlib.sha256(part).hexdigest()
        _write_manifest(folder, facts, None, digests)
        done += span[1] - span[0]
        if progress is not None:
            progress("recommending", done, users)

    if missing:
        with ClusterEngine(client, shared_path=shared_path) as engine:
            engine.fold("recommend", partial(_parquet, make, *form), missing, add, [1] * len(missing))
    rows = count_rows(files.values())
    _write_manifest(folder, facts, rows, digests)
    return rows


def _is_whole(file: Path, digests: Mapping[str, str]) -> bool:
    """Return whether a part exists with the content that was written."""
    if file.name not in digests or not file.exists():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == digests[file.name]


def _write_manifest(folder: Path, facts: dict[str, Any], rows: int | None, digests: dict[str, str]) -> None:
    content = {**facts, "rows": rows, "parts": digests}
    _write(folder / _MANIFEST, json.dumps(content, indent=2).encode())


def _parquet(
    make: Callable[[Span], Columns], names: tuple[str, ...], kinds: dict[str, Any], span: Span, _: object
) -> bytes:
    from mrfrec.io.frames import as_parquet

    return as_parquet(make(span), names, kinds)


def _open(folder: Path, facts: dict[str, Any]) -> dict[str, str]:
    """Begin a folder, or check that it was begun for the same rows; return the hashes of its parts."""
    manifest = folder / _MANIFEST
    if folder.exists() and not folder.is_dir():
        raise ParameterError("path", "a folder, with a client", str(folder), "A file has that name.")
    if not folder.parent.is_dir():
        raise ParameterError("path", "in a folder that exists", str(folder), "Make the folder first.")
    if manifest.exists():
        try:
            found = json.loads(manifest.read_bytes())
            differs = [name for name, value in facts.items() if found[name] != value]
            digests = {str(name): str(digest) for name, digest in found["parts"].items()}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{manifest} is not a manifest of recommendations. Use another folder.") from None
        if differs:
            rule = f"a folder for the same recommendations: {', '.join(differs)} differ from its manifest"
            raise ParameterError("path", rule, str(folder), "Use another folder, or remove it.")
        return digests
    folder.mkdir(exist_ok=True)
    if any(not path.name.endswith(".unfinished") for path in folder.iterdir()):
        advice = "Use another one."
        raise ParameterError("path", "a new or empty folder, or one with a manifest", str(folder), advice)
    _write_manifest(folder, facts, None, {})
    return {}


def _write(path: Path, content: bytes) -> None:
    try:
        with writing(path) as unfinished:
            unfinished.write_bytes(content)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} could not be written: {reason}. The same call continues.") from error


def _facts(model: "Recommender", query: Query, question: Question, filters: Filters) -> dict[str, Any]:
    """Return what the rows depend on: hashes of the model and of the query, and the options."""
    arrays, state = model._state()
    about = {"kind": type(model).__name__, "parameters": model.fitted_parameters_, "state": state}
    asked = training_arrays(Training(query.names, query.histories, None))
    for name, rows in (("excluded", filters.excluded), ("allowed", filters.allowed)):
        if rows is not None:
            asked |= {f"{name}.ptr": rows.ptr, f"{name}.items": rows.items}
    for name, array in (("chosen", query.chosen), ("hidden", filters.hidden)):
        asked |= {} if array is None else {name: array}
    # The digest of the query has the items that are allowed and excluded.
    options = {name: value for name, value in vars(question).items() if name not in ("allow", "exclude")}
    return {
        "model": _digest(arrays | catalogue_arrays(model.catalogue), about),
        "asked": _digest(asked, sorted(filters.limited)),
        "users": len(query),
        **options,
        "novelty": added_novelty(model, question.novelty),
    }


def _digest(arrays: Mapping[str, npt.NDArray[Any]], facts: object) -> str:
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
