"""Evaluate what other systems have recommended, and write the data to train them on."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import check_flag, in_words, warn
from mrfrec.data.ids import Ids
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Lists, parse_all
from mrfrec.evaluation.questions import Questions, Split, check_split
from mrfrec.evaluation.results import Evaluation, describe_lists
from mrfrec.io.atomic import file_path
from mrfrec.io.frames import writing_rows
from mrfrec.io.lists import RecommendedLists, read_lists

_log = logging.getLogger("mrfrec")


def evaluate_lists(
    lists: object,
    split: Split,
    metrics: Iterable[str] | str = DEFAULTS,
    *,
    name: str | None = None,
    drop_seen: bool = False,
) -> Evaluation:
    """Evaluate what another system has recommended, on the test users and with the metrics of `evaluate`.

    A test user without a list has no hits. An item that is not in the training data, or that the user has
    already seen, is no hit: models never recommend it. Seen items keep their ranks unless `drop_seen`. All of
    these are counted in `facts["lists"]`, and a warning names what makes a comparison unfair.

    Parameters
    ----------
    lists
        What `read_lists` returns, or anything that it reads.
    drop_seen
        Take out the items that a user is shown in the split, so that the next ones move up.
    """
    check_split(split)
    check_flag("drop_seen", drop_seen)
    table = lists if isinstance(lists, RecommendedLists) else read_lists(lists)
    wanted = parse_all(metrics, split.training.n_items)
    k = max(metric.k for metric in wanted)
    ranked, counts = _ranked(table, split.test, split.training.items, k, drop_seen)
    _tell(table.name, counts, drop_seen)
    popularity = split.training.popularity
    made = Lists(ranked, split.test.targets, popularity, split.training.n_users, lambda: split.training)
    return Evaluation(
        model=Path(table.name).stem if name is None else name,
        parameters={},
        split=split.name,
        users=split.test.users,
        left_out=split.test.left_out,
        values={metric: metric.per_user(made) for metric in wanted},
        seconds={},
        recommended=np.bincount(ranked[ranked >= 0], minlength=split.training.n_items),
        popularity=popularity,
        facts={
            **split.training.size._asdict(), "kind": "lists", "test_users": len(split.test), "k": k,
            "ties": "none", "plan": None, "values": {}, "measured": [],
            "new_items": split.test.new_items, "new_targets": split.test.new_targets,
            "lists": {"order": table.order, **counts, "drop_seen": drop_seen},
        },
        situation=split.test.situation,
    )  # fmt: skip


def _ranked(
    table: RecommendedLists, questions: Questions, items: Ids, k: int, drop_seen: bool
) -> tuple[npt.NDArray[np.int32], dict[str, int]]:
    """Return the first k items per test user, −1 for an unknown item or none, and counts of what was odd."""
    of_user = questions.users.find(list(table.users.like(questions.users, "user", "recommendations")), "user")
    of_item = items.find(list(table.items.like(items, "item", "recommendations")), "item")
    for what, index in (("users are test users", of_user), ("items are in the training data", of_item)):
        if not (index >= 0).any():
            raise DataError(f"{table.name}: none of its {len(index):,} {what}. Are the ids the same?")
    asked = of_user[table.user] >= 0
    user, item = of_user[table.user[asked]], of_item[table.item[asked]]
    m = len(items)
    shown = questions.shown.tocoo()
    seen = np.isin(user * m + item, shown.coords[0].astype(np.int64) * m + shown.coords[1]) & (item >= 0)
    early = _ranks(user) < k
    counts = {
        "users_without_list": len(questions) - int((of_user >= 0).sum()),
        "users_not_asked": int((of_user < 0).sum()),
        "unknown_items": int((early & (item < 0)).sum()),
        "seen_items": int((early & seen).sum()),
    }
    if drop_seen:
        user, item = user[~seen], item[~seen]
    rank = _ranks(user)
    ranked = np.full((len(questions), k), -1, np.int32)
    ranked[user[rank < k], rank[rank < k]] = item[rank < k]
    return ranked, counts


def _ranks(user: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rank of every row, from 0, among the rows of its user, which are adjacent."""
    starts = np.flatnonzero(np.append(True, user[1:] != user[:-1]))[: len(user)]
    return np.arange(len(user)) - np.repeat(starts, np.diff(np.append(starts, len(user))))


def _tell(table: str, counts: dict[str, int], drop_seen: bool) -> None:
    odd = describe_lists({**counts, "drop_seen": drop_seen})
    unfair = counts["users_without_list"] or (counts["seen_items"] and not drop_seen)
    advice = ""
    if counts["seen_items"] and not drop_seen:
        advice = " To judge the list without what was seen: drop_seen=True (--drop-seen)."
    if odd and unfair:
        warn(f"{table}: {in_words(odd)}.{advice}")
    elif odd:
        _log.info("%s: %s", table, in_words(odd))


def write_split(split: Split, folder: str | os.PathLike[str]) -> list[Path]:
    """Write a split as Parquet files, for another library to train on; return their paths.

    train.parquet has the pairs to train on, shown.parquet what the test users show, and test.parquet what is
    to be guessed. With validation users, validation-shown.parquet and validation.parquet have theirs. Columns
    are user and item, value unless all values are 1, and time where times are known; targets have none.
    """
    check_split(split)
    training = split.training
    tables = {"train": (training.users, training.matrix, training.times)}
    for name, asked in (("", split.test), ("validation", split.validation)):
        if asked is not None:
            tables[f"{name}-shown".lstrip("-")] = (asked.users, asked.shown, asked.shown_times)
            tables[name or "test"] = (asked.users, asked.targets, None)
    try:
        path = file_path(folder)
    except ParameterError:
        raise ParameterError("folder", "the name of a folder", folder) from None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ParameterError("folder", "the name of a folder; this is a file", str(folder)) from None
    return [_write(path / f"{name}.parquet", *table, training.items) for name, table in tables.items()]


def _write(path: Path, users: Ids, X: sp.csr_array, times: "npt.NDArray[Any] | None", items: Ids) -> Path:
    owner = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    columns: dict[str, Any] = {"user": users.take(owner), "item": items.take(X.indices)}
    if (X.data != 1).any():
        columns["value"] = X.data
    if times is not None:
        columns["time"] = times
    with writing_rows([columns], columns, {"user": users.type, "item": items.type}, path):
        return path
