"""Read tables of recommendations that another library or a system in use has made."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import Ids
from mrfrec.data.reading_options import Format, ReadingOptions
from mrfrec.errors import DataError, EmptyTableError, ParameterError
from mrfrec.io.columns import find_lists
from mrfrec.io.row_reader import RowReader
from mrfrec.io.sources import open_sources

_log = logging.getLogger("mrfrec")

Column = npt.NDArray[Any]


@dataclass(frozen=True)
class RecommendedLists:
    """A list of items for each user, read from a table by `read_lists`.

    Attributes
    ----------
    name
        Of the table.
    order
        What orders the lists, in words: a column of ranks, a column of scores, or the rows.
    users, items
        The ids that occur in the table.
    user, item
        The indices of the user and of the item of each row: users ascend, and the best item comes first.
    """

    name: str
    order: str
    users: Ids
    items: Ids
    user: npt.NDArray[np.int32]
    item: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"RecommendedLists({len(self):,} lists, {len(self.user):,} rows, in the order of {self.order})"


def read_lists(
    source: object,
    user: str | None = None,
    item: str | None = None,
    *,
    rank: str | None = None,
    score: str | None = None,
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    input_format: Format | None = None,
    query: str | None = None,
) -> RecommendedLists:
    """Read lists of recommendations: a table with a row for each user and item recommended.

    Each user's items are ordered by a column of ranks, the lowest first; or of scores, the highest first and
    equal ones as the rows come; or as the rows come, if there is neither. The log says which. A table with
    both goes by the ranks. An item that a user's list has twice is refused, and so is a rank.

    Parameters
    ----------
    source
        A path, a URL or a data frame, as for `read_interactions`.
    user, item, rank, score
        Names of the columns, if they do not tell. Name at most one of `rank` and `score`.
    separator, columns, input_format, query
        As for `read_interactions`.
    """
    if rank is not None and score is not None:
        raise ParameterError("score", "None with rank: one of them orders the lists", score)
    options = ReadingOptions.of(
        separator=separator, columns=columns, input_format=input_format, query=query, duplicates="error"
    )
    sources = open_sources(source, options)
    first = sources[0]
    roles = find_lists(first, user, item, rank, score)
    by = next((role for role in ("rank", "score") if role in roles), None)
    read = {role: roles[role] for role in ("user", "item")} | ({"order": roles[by]} if by else {})
    rows = RowReader()
    types = {"user": rows.users.texts.dtype, "item": rows.items.texts.dtype}
    parts: list[tuple[Column, ...]] = []
    for each in sources:
        for name in read.values():
            if name not in each.columns:
                raise DataError(f"{each.name} has no column {name!r}, which other files have.")
        for batch in rows.good_rows(each, read, types):
            pair = (rows.users.encode(batch["user"], each, read["user"]),
                    rows.items.encode(batch["item"], each, read["item"]))  # fmt: skip
            parts.append((*pair, *([batch["order"].to_numpy()] if by else [])))
    if not sum(len(part[0]) for part in parts):
        raise EmptyTableError(f"{first.name} has no recommendations: 0 rows.")
    of_user, of_item, *order = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows.number(rows.users, of_user)
    rows.number(rows.items, of_item)
    row = np.arange(len(of_user))
    keys = [row, *((key if by == "rank" else -key) for key in order), of_user]
    best_first = np.lexsort(keys)
    users, items = rows.users.ids, rows.items.ids
    _refuse_repeated(first.name, "item", of_user, of_item, users, items)
    if by == "rank":
        _refuse_repeated(first.name, "rank", of_user, order[0], users)
    text = "the rows" if by is None else f"column {roles[by]!r}, {'low' if by == 'rank' else 'high'}est first"
    lists = RecommendedLists(first.name, text, users, items, of_user[best_first], of_item[best_first])
    _log.info("%s: %s", first.name, lists)
    return lists


def _refuse_repeated(
    table: str, what: str, user: Column, value: Column, users: Ids, names: Ids | None = None
) -> None:
    """Refuse a user who has a value in two rows."""
    order = np.lexsort((np.arange(len(user)), value, user))
    same = (user[order[1:]] == user[order[:-1]]) & (value[order[1:]] == value[order[:-1]])
    if same.any():
        i = int(np.argmin(np.where(same, order[1:], len(user))))
        before, row = int(order[i]), int(order[i + 1])
        got = value[row].item() if names is None else names[int(value[row])]
        raise DataError(
            f"{table}, row {row + 1:,}: user {users[int(user[row])]!r} has the {what} {got!r} already, in "
            f"row {before + 1:,}. Each user has one list, with each {what} once."
        )
